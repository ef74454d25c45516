//! Many claims at once: who has the next turn, how often GPUs are looked at, and what a GPU that hangs costs whom.

use super::*;

/// When that was first done.
#[track_caller]
fn moment(node: &Node, what: &str) -> usize {
    let mut log = node.log.iter();
    log.position(|line| line == what)
        .unwrap_or_else(|| panic!("{what} is not in {:?}", node.log))
}

#[test]
fn a_claim_whose_slice_is_made_is_answered_before_those_are_recorded_that_were_in_line_before_it() {
    let mut node = slices::node();
    node.holds_changes = true;
    let made = node.prepare(claim("a", &["slice-1-0"]));
    node.log.clear();
    node.take_lock();
    // The first of them has its turn already.
    let others = ["b", "c", "d"].map(|uid| node.prepare(claim(uid, &["gpu-1"])));
    node.release_changes();
    node.release_lock();
    node.settle();
    assert_eq!(node.prepared(made).len(), 1);
    assert!(moment(&node, "b Waiting") < moment(&node, "a Prepared"));
    for later in ["c Waiting", "d Waiting", "b Prepared"] {
        assert!(
            moment(&node, "a Prepared") < moment(&node, later),
            "{later}"
        );
    }
    assert_eq!(node.prepared(others[0]).len(), 1);
}

#[test]
fn a_claim_that_is_of_no_use_is_refused_before_those_are_recorded_that_were_in_line_before_it() {
    let mut node = slices::node();
    node.claims_answer = false;
    let refused = node.begin_prepare(0, claim("a", &["slice-1-0"]));
    // Its mark, and the read that fails.
    for _ in 0..2 {
        node.step();
    }
    node.take_lock();
    let others = ["b", "c"].map(|uid| node.prepare(claim(uid, &["gpu-1"])));
    node.claims_answer = true;
    node.release_lock();
    node.settle();
    node.pass(SECOND);
    assert!(node.refused(refused).message.contains("could not be read"));
    assert!(moment(&node, "a removed") < moment(&node, "c Waiting"));
    assert_eq!(node.prepared(others[0]).len(), 1);
}

#[test]
fn marks_and_intents_have_their_turns_in_the_order_in_which_they_came() {
    let mut node = Node::new(None);
    node.log.clear();
    for uid in ["c", "a", "b"] {
        node.begin_prepare(0, claim(uid, &["gpu-0"]));
    }
    node.settle();
    let marks = ["c Waiting", "a Waiting", "b Waiting"].map(|what| moment(&node, what));
    assert!(marks.is_sorted(), "{:?}", node.log);
    assert!(
        node.log.contains(&"c Prepared".to_owned()),
        "{:?}",
        node.log
    );
}

#[test]
fn a_burst_of_claims_on_one_gpu_costs_two_looks_for_each_and_not_one_for_each_pair() {
    let looks = |claims: usize| {
        let mut node = slices::node();
        node.asked.clear();
        let begun: Vec<u64> = (0..claims)
            .map(|start| {
                let device = format!("slice-1-{start}");
                node.begin_prepare(0, claim(&device, &[&device]))
            })
            .collect();
        node.settle();
        for call in begun {
            assert_eq!(node.prepared(call).len(), 1);
        }
        assert_eq!(node.starts().len(), claims);
        node.asked.len()
    };
    for claims in [1, 2, 4, 8] {
        let looks = looks(claims);
        assert!(looks <= 2 * claims, "{claims} claims: {looks} looks");
    }
}

#[test]
fn all_who_come_while_a_gpu_is_looked_at_share_the_next_look() {
    let mut node = slices::node();
    node.hanging = Some("GPU-0".to_owned());
    node.holds_changes = true;
    for start in 0..8 {
        let device = format!("slice-1-{start}");
        node.prepare(claim(&device, &[&device]));
    }
    node.asked.clear();
    node.release_looks();
    assert_eq!(
        node.asked, ["GPU-0"; 2],
        "one for the first, one for the rest"
    );
    // The first is being made: what the others have seen is outdated by that, and they share the look after it.
    assert_eq!(node.state("slice-1-0"), Some(RecordState::Preparing));
    node.pass(SECOND);
    assert_eq!(node.asked.len(), 2);
    node.release_changes();
    assert_eq!(node.starts().len(), 8);
}

/// Eight GPUs, seven slices of each as `GPU-SLICE`.
fn eight_gpus() -> Inventory {
    let profile = slices::profile(1);
    let places = (0..8).flat_map(|gpu| (0..7).map(move |start| (gpu, start)));
    places
        .map(|(gpu, start)| {
            let placement = Placement { start, size: 1 };
            let facts = DeviceFacts {
                unit: Unit::slice(format!("GPU-{gpu}"), placement, 1),
                gpus_milli: 125,
                memory_bytes: 10,
                minor: gpu,
                silent: false,
                lacks_fabric: false,
                slice: Some(SliceFacts {
                    profile: profile.clone(),
                    placement,
                    mode: SliceMode::Dynamic,
                }),
            };
            (format!("{gpu}-{start}"), facts)
        })
        .collect()
}

#[test]
fn fifty_six_claims_at_once_are_all_prepared_without_a_standstill_and_at_two_looks_each() {
    let mut node = Node::unstarted(None);
    node.inventory = eight_gpus();
    node.restart("one");
    node.log.clear();
    let devices: Vec<String> = node.inventory.keys().cloned().collect();
    assert_eq!(devices.len(), 56);
    let calls: Vec<u64> = devices
        .iter()
        .map(|device| node.begin_prepare(0, claim(device, &[device])))
        .collect();
    let mut steps = 0;
    while node.step() {
        steps += 1;
        assert!(steps < 10_000, "it does not come to rest");
    }
    for call in &calls {
        assert_eq!(node.prepared(*call).len(), 1);
    }
    assert_eq!(node.starts().len(), 56);
    // A look is what NVML is asked for a Prepare; nothing else asks it but whoever makes a slice.
    let looks = node.asked.len();
    assert!(looks <= 2 * calls.len(), "{looks} looks");
    // The first are answered while the last wait for their GPU.
    let first = node.log.iter().position(|it| it.ends_with(" Prepared"));
    let made = node.log.iter().rposition(|it| it.contains(" made at "));
    let (first, made) = (first.unwrap(), made.unwrap());
    let before = &node.log[..first];
    let begun = before.iter().filter(|it| it.contains(" made at ")).count();
    assert!(
        first < made && begun <= 8,
        "{begun} slices before an answer"
    );
}

#[test]
fn who_waits_for_a_permit_or_for_a_holder_asks_nothing_of_the_gpu() {
    let api = node_devices("u", 1, vec![permit("held", 1_000), permit("waits", 1_000)]);
    let mut node = Node::new(Some(api));
    node.prepare(claim("held", &["gpu-0"]));
    let calls = ["waits", "unpermitted"].map(|uid| node.prepare(claim(uid, &["gpu-0"])));
    node.asked.clear();
    node.pass(20 * SECOND);
    assert_eq!(node.asked, Vec::<String>::new());
    for call in calls {
        assert_eq!(node.answered(call), None);
    }
}

#[test]
fn a_gpu_that_hangs_holds_up_its_own_claims_alone_and_not_beyond_the_patience_of_the_kubelet() {
    let mut node = slices::node();
    let held = node.prepare(claim("held", &["slice-1-7"]));
    assert_eq!(node.prepared(held).len(), 1);
    node.hanging = Some("GPU-0".to_owned());
    let hung = node.prepare(claim("a", &["slice-1-0"]));
    let unprepare = node.unprepare("held");
    let other = node.prepare(claim("b", &["gpu-1"]));
    assert_eq!(node.prepared(other).len(), 1, "at once");
    let call = node.unprepare("b");
    assert_eq!(node.answered(call), Some(&Answer::Unprepared));
    node.pass(34 * SECOND);
    assert_eq!(node.answered(hung), None);
    // The kubelet waits for 45 seconds.
    node.pass(6 * SECOND);
    let refusal = node.refused(hung);
    assert_eq!(refusal.reason, Some(Reason::DeviceUnknown));
    assert!(refusal.message.contains("GPU-0"), "{refusal}");
    assert_eq!(node.state("a"), None, "its mark is taken away");
    assert_eq!(node.state("held"), Some(RecordState::Prepared));
    node.release_looks();
    assert_eq!(node.answered(unprepare), Some(&Answer::Unprepared));
    let again = node.prepare(claim("a", &["slice-1-0"]));
    assert_eq!(node.prepared(again).len(), 1);
}

#[test]
fn while_what_is_given_back_is_looked_at_no_later_prepare_of_the_claim_has_a_turn() {
    let mut node = Node::new(None);
    node.prepare(claim("a", &["gpu-0"]));
    let mark = node.disk.records["a"].call.clone();
    node.hanging = Some("GPU-0".to_owned());
    let unprepare = node.unprepare("a");
    let again = node.prepare(claim("a", &["gpu-0"]));
    assert_eq!(node.disk.records["a"].call, mark);
    assert_eq!(node.answered(again), None);
    node.release_looks();
    assert_eq!(node.answered(unprepare), Some(&Answer::Unprepared));
    assert_eq!(node.prepared(again).len(), 1);
    assert_eq!(node.state("a"), Some(RecordState::Prepared));
}

#[test]
fn what_another_instance_was_asked_for_since_it_was_looked_at_is_not_given_back() {
    let mut node = Node::new(None);
    let other = node.start_another("two");
    node.prepare(claim("a", &["gpu-0"]));
    node.hanging = Some("GPU-0".to_owned());
    let unprepare = node.unprepare("a");
    // A container of this call may start before the next turn of the Unprepare.
    node.begin_prepare(other, claim("a", &["gpu-0"]));
    node.settle();
    node.release_looks();
    node.pass(SECOND);
    let answer = node.answered(unprepare);
    assert!(matches!(answer, Some(Answer::Refused(_))), "{answer:?}");
    assert!(node.cdi.contains_key("a"));
    // The kubelet wants nothing of it still.
    let repeated = node.unprepare("a");
    node.pass(SECOND);
    assert_eq!(node.answered(repeated), Some(&Answer::Unprepared));
    assert!(!node.cdi.contains_key("a"));
}
