//! Giving back (rules 1 and 6).

use super::*;

#[test]
fn unprepare_twice_and_of_an_unknown_claim_succeeds() {
    let mut node = Node::new(None);
    node.prepare(claim("a", &["gpu-0"]));
    for uid in ["a", "a", "never"] {
        let call = node.unprepare(uid);
        assert_eq!(node.answered(call), Some(&Answer::Unprepared));
    }
    assert!(node.disk.records.is_empty() && node.cdi.is_empty());
}

#[test]
fn a_device_in_use_or_of_unknown_use_is_held() {
    for in_use in [
        InUse::Yes("process 4242".to_owned()),
        InUse::Unknown("NVML does not answer".to_owned()),
    ] {
        let mut node = Node::new(None);
        node.prepare(claim("a", &["gpu-0"]));
        node.in_use = in_use;
        let call = node.unprepare("a");
        assert_eq!(node.refused(call).reason, Some(Reason::DeviceHeld));
        assert_eq!(node.state("a"), Some(RecordState::Prepared));
        node.in_use = InUse::No;
        let call = node.unprepare("a");
        assert_eq!(node.answered(call), Some(&Answer::Unprepared));
    }
}

#[test]
fn a_claim_that_pods_share_is_recorded_with_all_that_may_use_it() {
    let sharing = Permit {
        pod_uid: "pod-b".to_owned(),
        ..permit("a", 1_000)
    };
    let withdrawn = Permit {
        pod_uid: "pod-c".to_owned(),
        withdrawn: true,
        ..permit("a", 1_000)
    };
    let permits = vec![permit("a", 1_000), sharing, withdrawn, permit("d", 1_000)];
    let mut node = Node::new(Some(node_devices("u", 1, permits)));
    // It is reserved for the first of them only; for the second the kubelet will not call.
    node.prepare(claim("a", &["gpu-0"]));
    assert_eq!(node.disk.records["a"].pods, ["pod-a", "pod-b"]);
}

#[test]
fn a_prepare_whose_mark_was_taken_records_nothing() {
    let mut node = Node::new(Some(node_devices("u", 1, vec![])));
    let call = node.prepare(claim("a", &["gpu-0"]));
    node.unprepare("a");
    assert!(node.refused(call).message.contains("unprepared"));
    node.write_api(node_devices("u", 2, vec![permit("a", 1_000)]), true);
    node.pass(SECOND);
    assert_eq!(node.state("a"), None);
}

/// More than a Prepare takes steps, from its call to its answer and what follows from that.
const MOMENTS: usize = 24;

/// Permits for claim `a`, or only for claim `b` on the same GPU.
fn permits(a_too: bool) -> NodeDevices {
    let mut permits = vec![permit("b", 1_000)];
    if a_too {
        permits.push(permit("a", 1_000));
    }
    node_devices("u", 1, permits)
}

/// Nobody answers for claim `a` any more, and claim `b` gets its GPU at once.
#[track_caller]
fn assert_nothing_left(node: &mut Node, prepare: u64, unprepare: u64, moment: &str) {
    assert_eq!(
        node.answered(unprepare),
        Some(&Answer::Unprepared),
        "{moment}"
    );
    assert!(node.answered(prepare).is_some(), "{moment}");
    // What is still to come of the call would come now.
    node.pass(40 * SECOND);
    assert_eq!(node.state("a"), None, "{moment}");
    assert!(!node.cdi.contains_key("a"), "{moment}");
    let next = node.prepare(claim("b", &["gpu-0"]));
    assert_eq!(node.prepared(next).len(), 1, "{moment}");
}

#[test]
fn an_unprepare_at_any_moment_of_a_prepare_leaves_nothing() {
    for (permitted, behind_another_turn, steps) in moments() {
        let moment =
            format!("permitted: {permitted}, behind: {behind_another_turn}, after {steps} steps");
        let mut node = Node::new(Some(permits(permitted)));
        if behind_another_turn {
            let newer = node_devices("u", 2, permits(permitted).spec.permits);
            node.api = Some(newer.clone());
            node.begin(0, Input::Observed(Some(Arc::new(newer))));
        }
        let prepare = node.begin_prepare(0, claim("a", &["gpu-0"]));
        for _ in 0..steps {
            node.step();
        }
        let unprepare = node.begin_unprepare(0, "a");
        node.settle();
        assert_nothing_left(&mut node, prepare, unprepare, &moment);
    }
}

/// Whether claim `a` has a permit, whether another turn at the lock comes first, and how many steps are taken.
fn moments() -> impl Iterator<Item = (bool, bool, usize)> {
    let kinds = [(true, false), (true, true), (false, false), (false, true)];
    kinds
        .into_iter()
        .flat_map(|(permitted, behind)| (0..MOMENTS).map(move |steps| (permitted, behind, steps)))
}

#[test]
fn an_unprepare_that_overtakes_a_prepare_on_its_way_to_the_lock_voids_it_at_once() {
    let mut node = Node::new(Some(permits(true)));
    node.take_lock();
    // Another turn of the same instance is first in line.
    node.write_api(node_devices("u", 2, permits(true).spec.permits), true);
    let prepare = node.prepare(claim("a", &["gpu-0"]));
    let unprepare = node.unprepare("a");
    assert!(
        node.refused(prepare).message.contains("unprepared"),
        "it does not wait for the lock"
    );
    assert_eq!(node.answered(unprepare), None);
    node.release_lock();
    node.settle();
    assert_nothing_left(&mut node, prepare, unprepare, "behind a slow holder");
}

#[test]
fn an_unprepare_by_another_instance_takes_the_mark_at_any_moment_after_it() {
    for permitted in [true, false] {
        for steps in 0..MOMENTS {
            let moment = format!("permitted: {permitted}, {steps} steps after the mark");
            let mut node = Node::new(Some(permits(permitted)));
            let other = node.start_another("two");
            let prepare = node.begin_prepare(0, claim("a", &["gpu-0"]));
            while node.state("a") != Some(RecordState::Waiting) {
                assert!(node.step(), "the mark is left");
            }
            for _ in 0..steps {
                node.step();
            }
            let unprepare = node.begin_unprepare(other, "a");
            node.settle();
            // The first instance learns it from the disk, when it looks again.
            node.pass(SECOND);
            assert_nothing_left(&mut node, prepare, unprepare, &moment);
        }
    }
}

#[test]
fn a_prepare_after_an_unprepare_is_a_new_wish() {
    for prepared_before in [true, false] {
        for steps in 0..MOMENTS {
            let moment = format!("prepared before: {prepared_before}, after {steps} steps");
            let mut node = Node::new(Some(permits(true)));
            if prepared_before {
                node.prepare(claim("a", &["gpu-0"]));
            }
            node.begin_unprepare(0, "a");
            for _ in 0..steps {
                node.step();
            }
            let again = node.begin_prepare(0, claim("a", &["gpu-0"]));
            node.settle();
            assert_eq!(node.prepared(again).len(), 1, "{moment}");
            assert_eq!(node.state("a"), Some(RecordState::Prepared), "{moment}");
            assert!(node.cdi.contains_key("a"), "{moment}");
        }
    }
}

#[test]
fn of_two_instances_the_answer_to_a_prepare_tells_what_is_on_disk() {
    for steps in 0..MOMENTS {
        let mut node = Node::new(Some(permits(true)));
        let other = node.start_another("two");
        node.prepare(claim("a", &["gpu-0"]));
        node.begin_unprepare(other, "a");
        for _ in 0..steps {
            node.step();
        }
        let again = node.begin_prepare(0, claim("a", &["gpu-0"]));
        node.settle();
        node.pass(SECOND);
        let prepared = matches!(node.answered(again), Some(Answer::Prepared(_)));
        let recorded = node.state("a") == Some(RecordState::Prepared);
        assert_eq!(
            (prepared, node.cdi.contains_key("a")),
            (recorded, recorded),
            "{steps}"
        );
    }
}

#[test]
fn an_unprepare_voids_only_calls_of_its_own_claim() {
    let mut node = Node::new(Some(node_devices("u", 1, vec![])));
    let other = node.prepare(claim("b", &["gpu-0"]));
    node.unprepare("a");
    assert_eq!(node.answered(other), None, "it waits for its permit");
    assert_eq!(node.state("b"), Some(RecordState::Waiting));
}
