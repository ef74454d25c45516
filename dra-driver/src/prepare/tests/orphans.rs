//! Records that the kubelet has forgotten, and that are given back unasked.

use super::*;

/// The claim of a prepared record is gone, and somebody has seen that.
fn orphaned() -> (Node, Orphan) {
    let mut node = Node::new(None);
    node.prepare(claim("a", &["gpu-0"]));
    node.claims.clear();
    let orphan = Orphan::of(&node.disk.records["a"], "node-0", &Read::Absent).unwrap();
    (node, orphan)
}

#[test]
fn what_the_kubelet_forgot_is_given_back_unless_it_is_used() {
    let (mut node, orphan) = orphaned();
    node.in_use = InUse::Yes("process 4242".to_owned());
    node.tell(Input::Orphaned(vec![orphan.clone()]));
    assert_eq!(node.state("a"), Some(RecordState::Prepared));
    node.in_use = InUse::No;
    node.tell(Input::Orphaned(vec![orphan]));
    assert_eq!(node.state("a"), None);
}

#[test]
fn a_record_is_an_orphan_when_no_pod_may_use_its_claim_here() {
    let mut node = Node::new(None);
    node.prepare(claim("a", &["gpu-0"]));
    let allocated = |pool: &str| {
        let mut claim = claim("a", &["gpu-0"]);
        for device in claim.devices.iter_mut().flatten() {
            device.pool = pool.to_owned();
        }
        Read::Found(claim)
    };
    let free = Claim {
        devices: None,
        ..claim("a", &[])
    };
    let mut of_that_name = claim("b", &["gpu-0"]);
    of_that_name.reference.name = reference("a").name;
    for (read, is_orphan) in [
        (allocated("node-0"), false),
        (Read::Failed("no answer".to_owned()), false),
        (allocated("another"), true),
        (Read::Found(free), true),
        (Read::Found(of_that_name), true),
        (Read::Absent, true),
    ] {
        let found = Orphan::of(&node.disk.records["a"], "node-0", &read);
        assert_eq!(found.is_some(), is_orphan, "{read:?}");
    }
}

#[test]
fn what_is_prepared_again_after_the_look_is_not_given_back() {
    let (mut node, orphan) = orphaned();
    // The claim is allocated here again; the record is found as it is.
    let again = node.prepare(claim("a", &["gpu-0"]));
    assert_eq!(node.prepared(again).len(), 1);
    node.tell(Input::Orphaned(vec![orphan]));
    assert_eq!(node.state("a"), Some(RecordState::Prepared));
}

#[test]
fn what_may_be_used_again_since_the_look_is_not_given_back() {
    let usable: fn(&mut Node) = |node| {
        let claim = claim("a", &["gpu-0"]);
        node.claims.insert(claim.reference.name.clone(), claim);
    };
    let unknown: fn(&mut Node) = |node| node.claims_answer = false;
    for change in [usable, unknown] {
        // The look itself says that it was an orphan, of this very record.
        let (mut node, orphan) = orphaned();
        change(&mut node);
        node.tell(Input::Orphaned(vec![orphan]));
        assert_eq!(node.state("a"), Some(RecordState::Prepared));
        assert!(node.cdi.contains_key("a"));
    }
}

#[test]
fn a_cdi_file_without_a_record_goes_unless_its_claim_may_be_used_again() {
    for is_usable in [false, true] {
        let (mut node, orphan) = orphaned();
        node.disk.records.clear();
        if is_usable {
            let claim = claim("a", &["gpu-0"]);
            node.claims.insert(claim.reference.name.clone(), claim);
        }
        node.tell(Input::Orphaned(vec![orphan]));
        assert_eq!(node.cdi.contains_key("a"), is_usable);
    }
}

#[test]
fn a_prepare_and_the_give_back_of_an_orphan_leave_all_or_nothing_at_any_moment() {
    for steps in 0..MOMENTS {
        let (mut node, orphan) = orphaned();
        node.begin(0, Input::Orphaned(vec![orphan]));
        for _ in 0..steps {
            node.step();
        }
        let later = Claim {
            pods: vec!["pod-later".to_owned()],
            ..claim("a", &["gpu-1"])
        };
        let call = node.begin_prepare(0, later);
        node.settle();
        assert_eq!(
            node.prepared(call),
            ["gpu.muster.dev/claim=a-gpu-1"],
            "{steps}"
        );
        assert_eq!(node.state("a"), Some(RecordState::Prepared), "{steps}");
        assert!(node.cdi.contains_key("a"), "{steps}");
    }
}

/// More than giving an orphan back takes steps.
const MOMENTS: usize = 20;

#[test]
fn a_silent_api_server_holds_the_lock_once_and_not_once_for_each_orphan() {
    let (mut node, orphan) = orphaned();
    let another = Orphan {
        claim: reference("b"),
        ..orphan.clone()
    };
    node.claims_answer = false;
    node.log.clear();
    node.tell(Input::Orphaned(vec![orphan, another.clone(), another]));
    assert_eq!(node.log.len(), 1, "{:?}", node.log);
    assert!(node.log[0].ends_with("under the lock"), "{:?}", node.log);
    assert_eq!(node.state("a"), Some(RecordState::Prepared));
}
