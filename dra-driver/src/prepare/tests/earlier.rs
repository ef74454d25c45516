//! A claim that is allocated again while the record of its earlier allocation is there (rule 7).

use super::*;

/// The kubelet has forgotten claim `a`, which was prepared with `gpu-0` for `pod-a`: nobody has it unprepared.
fn forgotten() -> Node {
    let mut node = Node::new(None);
    let first = node.prepare(claim("a", &["gpu-0"]));
    assert_eq!(node.prepared(first), ["gpu.muster.dev/claim=a-gpu-0"]);
    node.log.clear();
    node
}

/// Claim `a` as it is allocated next, for another pod.
fn allocated_again(devices: &[&str]) -> Claim {
    Claim {
        pods: vec!["pod-later".to_owned()],
        ..claim("a", devices)
    }
}

/// The devices of claim `a` by its record, if it holds any, and by its CDI file.
fn given(node: &Node) -> (Vec<String>, Vec<String>) {
    let devices = |record: &Record| -> Vec<String> {
        let devices = record.devices.iter();
        devices.map(|device| device.device.clone()).collect()
    };
    let record = node.disk.records.get("a");
    (
        record.map(devices).unwrap_or_default(),
        node.cdi.get("a").map(devices).unwrap_or_default(),
    )
}

fn both(devices: &[&str]) -> (Vec<String>, Vec<String>) {
    let devices: Vec<String> = devices.iter().map(ToString::to_string).collect();
    (devices.clone(), devices)
}

#[test]
fn a_later_allocation_gets_its_own_devices_and_not_those_of_the_record() {
    let mut node = forgotten();
    let later = node.prepare(allocated_again(&["gpu-1"]));
    assert_eq!(node.prepared(later), ["gpu.muster.dev/claim=a-gpu-1"]);
    assert_eq!(given(&node), both(&["gpu-1"]));
    assert_eq!(node.disk.records["a"].pods, ["pod-later"]);
    assert_eq!(
        node.log,
        [
            "a Prepared",
            "a Unpreparing",
            "a Waiting",
            "a Preparing",
            "a CDI",
            "a Prepared"
        ]
    );
    // What the earlier one had is free.
    let next = node.prepare(claim("b", &["gpu-0"]));
    assert_eq!(node.prepared(next).len(), 1);
}

#[test]
fn what_an_earlier_allocation_gave_is_waited_for_while_it_may_be_in_use() {
    for in_use in [
        InUse::Yes("process 4242".to_owned()),
        InUse::Unknown("NVML does not answer".to_owned()),
    ] {
        let mut node = forgotten();
        node.in_use = in_use;
        let refused = node.prepare(allocated_again(&["gpu-1"]));
        node.pass(34 * SECOND);
        assert_eq!(node.answered(refused), None);
        node.pass(2 * SECOND);
        let refusal = node.refused(refused);
        assert_eq!(refusal.reason, Some(Reason::DeviceHeld), "{refusal}");
        assert!(refusal.message.contains("gpu-0"), "{refusal}");
        assert_eq!(given(&node), both(&["gpu-0"]), "it is still held");

        let waits = node.prepare(allocated_again(&["gpu-1"]));
        node.pass(10 * SECOND);
        assert_eq!(node.answered(waits), None);
        node.in_use = InUse::No;
        node.pass(SECOND);
        assert_eq!(node.prepared(waits), ["gpu.muster.dev/claim=a-gpu-1"]);
        assert_eq!(given(&node), both(&["gpu-1"]));
    }
}

#[test]
fn a_later_allocation_is_judged_as_if_nothing_had_been_prepared() {
    let mut node = Node::new(Some(node_devices("u", 1, vec![permit("a", 1_000)])));
    node.prepare(claim("a", &["gpu-0"]));
    let refused = node.prepare(allocated_again(&["gpu-1"]));
    node.pass(36 * SECOND);
    assert_eq!(node.refused(refused).reason, Some(Reason::NoPermit));
    assert_eq!(given(&node), both(&[]));

    // And waits for who has its devices.
    let of_later = Permit {
        pod_uid: "pod-later".to_owned(),
        ..permit("a", 1_000)
    };
    let mut node = Node::new(Some(node_devices(
        "u",
        1,
        vec![permit("a", 1_000), permit("b", 1_000), of_later],
    )));
    node.prepare(claim("a", &["gpu-0"]));
    node.prepare(claim("b", &["gpu-1"]));
    // Not even a permit that was there before makes the record one of the later allocation.
    let waits = node.prepare(allocated_again(&["gpu-1"]));
    node.pass(SECOND);
    assert_eq!(node.answered(waits), None);
    node.unprepare("b");
    node.pass(SECOND);
    assert_eq!(node.prepared(waits), ["gpu.muster.dev/claim=a-gpu-1"]);
}

#[test]
fn a_record_answers_for_the_same_devices_and_a_pod_that_stayed() {
    let shared = |pods: &[&str], devices: &[&str]| Claim {
        pods: pods.iter().map(ToString::to_string).collect(),
        ..claim("a", devices)
    };
    let changed = |change: fn(&mut AllocatedDevice)| {
        let mut claim = shared(&["one"], &["gpu-0"]);
        claim.devices.iter_mut().flatten().for_each(change);
        claim
    };
    let one = shared(&["one"], &["gpu-0"]);
    for (what, first, then, is_same) in [
        ("as it was", one.clone(), one.clone(), true),
        (
            "one of two pods stayed",
            shared(&["one", "two"], &["gpu-0"]),
            shared(&["two", "three"], &["gpu-0"]),
            true,
        ),
        (
            "pods joined it",
            one.clone(),
            shared(&["zero", "one"], &["gpu-0"]),
            true,
        ),
        (
            "reserved for no pod at all",
            shared(&[], &["gpu-0"]),
            shared(&[], &["gpu-0"]),
            true,
        ),
        (
            "no pod stayed",
            one.clone(),
            shared(&["two"], &["gpu-0"]),
            false,
        ),
        (
            "another device",
            one.clone(),
            shared(&["one"], &["gpu-1"]),
            false,
        ),
        (
            "a device more",
            one.clone(),
            shared(&["one"], &["gpu-0", "gpu-1"]),
            false,
        ),
        (
            "a device less",
            shared(&["one"], &["gpu-0", "gpu-1"]),
            one.clone(),
            false,
        ),
        (
            "for another request",
            one.clone(),
            changed(|device| device.request = "other".to_owned()),
            false,
        ),
        (
            "for administration",
            one,
            changed(|device| device.admin_access = true),
            false,
        ),
    ] {
        let mut node = Node::new(None);
        node.prepare(first);
        node.cdi.clear();
        // Whoever uses what is recorded runs with it: only an earlier allocation has to be waited for.
        node.in_use = InUse::Yes("process 4242".to_owned());
        let again = node.prepare(then);
        node.pass(36 * SECOND);
        match node.answered(again) {
            Some(Answer::Prepared(_)) if is_same => {
                let (recorded, in_cdi) = given(&node);
                assert_eq!(recorded, in_cdi, "{what}: the file is written again");
            }
            Some(Answer::Refused(_)) if !is_same => {}
            other => panic!("{what}: {other:?}"),
        }
    }
}

#[test]
fn pods_that_joined_an_allocation_hold_its_devices_from_then_on() {
    let mut node = forgotten();
    let mut joined = claim("a", &["gpu-0"]);
    joined.pods.push("pod-joined".to_owned());
    let again = node.prepare(joined);
    assert_eq!(node.prepared(again).len(), 1);
    assert_eq!(node.disk.records["a"].pods, ["pod-a", "pod-joined"]);
}

#[test]
fn a_claim_that_cannot_be_compared_is_refused_and_its_record_stays() {
    let no_answer: fn(&mut Node) = |node| node.claims_answer = false;
    let unallocated: fn(&mut Node) = |node| {
        let claim = node.claims.get_mut("claim-a").unwrap();
        claim.devices = None;
    };
    let gone: fn(&mut Node) = |node| node.claims.clear();
    for (change, why) in [
        (no_answer, "could not be read"),
        (unallocated, "not allocated"),
        (gone, "does not exist"),
    ] {
        let mut node = forgotten();
        change(&mut node);
        node.calls += 1;
        let call = node.calls;
        node.tell(Input::Prepare(CallId(call), reference("a")));
        assert!(node.refused(call).message.contains(why), "{why}");
        assert_eq!(node.state("a"), Some(RecordState::Prepared), "{why}");
        assert_eq!(given(&node), both(&["gpu-0"]), "{why}");
    }
}

#[test]
fn a_disk_that_fails_while_a_record_is_answered_from_takes_nothing_from_who_runs_with_it() {
    // Mark, record, CDI file.
    for writes in 0..3 {
        let mut node = forgotten();
        node.in_use = InUse::Yes("process 4242".to_owned());
        node.disk_fails_after = Some(writes);
        let call = node.prepare(claim("a", &["gpu-0"]));
        assert!(node.refused(call).message.contains("No space left"));
        assert_eq!(node.state("a"), Some(RecordState::Prepared), "{writes}");
        assert_eq!(given(&node), both(&["gpu-0"]), "{writes}");
    }
}

#[test]
fn a_disk_that_fails_at_any_write_of_an_exchange_is_made_good_by_the_next_try() {
    // Mark; Unpreparing, CDI file, Waiting; intent, CDI file, completion.
    for writes in 0..7 {
        let mut node = forgotten();
        node.disk_fails_after = Some(writes);
        let call = node.prepare(allocated_again(&["gpu-1"]));
        assert!(
            node.refused(call).message.contains("No space left"),
            "{writes}"
        );
        let call = node.prepare(allocated_again(&["gpu-1"]));
        assert_eq!(
            node.prepared(call),
            ["gpu.muster.dev/claim=a-gpu-1"],
            "{writes}"
        );
        assert_eq!(given(&node), both(&["gpu-1"]), "{writes}");
    }
}

/// More than a Prepare takes steps that gives something back first.
const MOMENTS: usize = 36;

#[test]
fn a_crash_at_any_moment_of_an_exchange_is_made_good_by_the_next_try() {
    for steps in 0..MOMENTS {
        let mut node = forgotten();
        node.begin_prepare(0, allocated_again(&["gpu-1"]));
        for _ in 0..steps {
            node.step();
        }
        node.restart("two");
        let call = node.prepare(allocated_again(&["gpu-1"]));
        assert_eq!(
            node.prepared(call),
            ["gpu.muster.dev/claim=a-gpu-1"],
            "{steps}"
        );
        assert_eq!(given(&node), both(&["gpu-1"]), "{steps}");
    }
}

#[test]
fn an_unprepare_at_any_moment_of_an_exchange_leaves_nothing() {
    for instance in [0, 1] {
        for steps in 0..MOMENTS {
            let moment = format!("by instance {instance}, after {steps} steps");
            let mut node = forgotten();
            node.start_another("two");
            let call = node.begin_prepare(0, allocated_again(&["gpu-1"]));
            // Another instance is called only once this one has left its mark.
            let mark = Some(format!("one/{call}"));
            while instance == 1 && node.disk.records["a"].call != mark {
                assert!(node.step(), "the mark is left");
            }
            for _ in 0..steps {
                node.step();
            }
            let unprepare = node.begin_unprepare(instance, "a");
            node.settle();
            node.pass(40 * SECOND);
            assert!(node.answered(call).is_some(), "{moment}");
            assert_eq!(
                node.answered(unprepare),
                Some(&Answer::Unprepared),
                "{moment}"
            );
            assert_eq!(given(&node), both(&[]), "{moment}");
            assert_eq!(node.state("a"), None, "{moment}");
        }
    }
}

#[test]
fn what_a_later_call_recorded_is_not_given_back_by_one_that_read_its_claim_before() {
    for steps in 0..MOMENTS {
        let mut node = forgotten();
        let other = node.start_another("two");
        // The first call reads one allocation, at some moment; the second reads the one after that.
        let first = node.begin_prepare(0, allocated_again(&["gpu-1"]));
        for _ in 0..steps {
            node.step();
        }
        let latest = Claim {
            pods: vec!["pod-latest".to_owned()],
            ..claim("a", &["gpu-0"])
        };
        let second = node.begin_prepare(other, latest);
        node.settle();
        node.pass(SECOND);
        assert_eq!(
            node.prepared(second),
            ["gpu.muster.dev/claim=a-gpu-0"],
            "{steps}"
        );
        assert_eq!(given(&node), both(&["gpu-0"]), "{steps}");
        assert_eq!(node.disk.records["a"].pods, ["pod-latest"], "{steps}");
        node.pass(40 * SECOND);
        assert!(node.answered(first).is_some(), "{steps}");
        assert_eq!(given(&node), both(&["gpu-0"]), "{steps}");
    }
}

#[test]
fn two_pods_that_ask_at_once_for_what_is_prepared_are_both_answered() {
    for steps in 0..MOMENTS {
        let mut node = forgotten();
        let claim = claim("a", &["gpu-0"]);
        let one = node.begin_prepare(0, claim.clone());
        for _ in 0..steps {
            node.step();
        }
        let other = node.begin_prepare(0, claim);
        node.settle();
        for call in [one, other] {
            assert_eq!(node.prepared(call).len(), 1, "{steps}");
        }
    }
}

#[test]
fn who_administers_a_gpu_is_told_the_minor_number_that_it_has_now_and_who_holds_it_the_one_it_keeps()
 {
    let mut node = Node::new(None);
    let mut look = claim("look", &["gpu-0", "gpu-1"]);
    for device in look.devices.as_mut().unwrap() {
        device.admin_access = true;
    }
    let mut both = claim("both", &["gpu-0", "gpu-0"]);
    both.devices.as_mut().unwrap()[0].admin_access = true;
    let minors = |node: &Node, uid: &str| {
        let devices = node.cdi[uid].devices.iter();
        devices.map(|device| device.minor).collect::<Vec<_>>()
    };
    for one in [&look, &both] {
        let call = node.prepare(one.clone());
        assert_eq!(node.prepared(call).len(), 2);
    }
    assert_eq!(minors(&node, "look"), [0, 1]);
    // As after a change of the MIG mode: who has a device file is another. One that does not say what it is has none that is known.
    for (name, minor, silent) in [("gpu-0", 7, false), ("gpu-1", 8, true)] {
        let facts = node.inventory.get_mut(name).unwrap();
        facts.minor = minor;
        facts.silent = silent;
    }
    node.tell(Input::Inventory(node.inventory.clone()));
    for one in [look, both] {
        let call = node.prepare(one);
        assert_eq!(node.prepared(call).len(), 2);
    }
    assert_eq!(minors(&node, "look"), [7, 1]);
    assert_eq!(node.disk.records["look"].devices[0].minor, 7);
    assert_eq!(minors(&node, "both"), [0, 0]);
}
