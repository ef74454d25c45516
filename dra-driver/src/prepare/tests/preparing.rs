//! What a Prepare does, and how it answers.

use super::*;

#[test]
fn before_there_is_a_controller_a_claim_is_prepared_as_it_is() {
    let mut node = Node::new(None);
    let call = node.prepare(claim("a", &["gpu-0", "gpu-1"]));
    assert_eq!(
        node.prepared(call),
        [
            "gpu.muster.dev/claim=a-gpu-0",
            "gpu.muster.dev/claim=a-gpu-1"
        ]
    );
    assert_eq!(node.state("a"), Some(RecordState::Prepared));
    assert!(
        node.held.is_empty(),
        "nothing is refused, so nothing is tainted"
    );
}

#[test]
fn the_intent_is_on_disk_before_the_cdi_file() {
    let mut node = Node::new(None);
    node.log.clear();
    node.prepare(claim("a", &["gpu-0"]));
    assert_eq!(
        node.log,
        ["a Waiting", "a Preparing", "a CDI", "a Prepared"]
    );
}

#[test]
fn prepare_twice_is_answered_from_the_record_also_after_a_restart_and_without_a_permit() {
    let mut node = Node::new(Some(node_devices("u", 1, vec![permit("a", 1_000)])));
    let first = node.prepare(claim("a", &["gpu-0"]));
    node.write_api(node_devices("u", 2, vec![]), true);
    node.cdi.clear();
    node.restart("two");
    node.claims.clear();
    node.log.clear();
    let second = node.prepare(claim("a", &["gpu-0"]));
    assert_eq!(node.prepared(first), node.prepared(second));
    assert!(node.cdi.contains_key("a"), "the file is written again");
}

#[test]
fn a_claim_that_is_not_what_the_kubelet_named_is_refused_at_once() {
    let mut other = claim("a", &["gpu-0"]);
    other.reference.uid = "b".to_owned();
    let mut unallocated = claim("a", &[]);
    unallocated.devices = None;
    // The name is that of a device here, too.
    let mut elsewhere = claim("a", &["gpu-0", "gpu-1"]);
    elsewhere.devices.as_mut().unwrap()[1].pool = "node-7".to_owned();
    for (found, why) in [
        (Some(elsewhere), "device gpu-1 of pool node-7"),
        (Some(other), "replaced"),
        (Some(unallocated), "not allocated"),
        (None, "does not exist"),
    ] {
        let mut node = Node::new(None);
        if let Some(found) = found {
            node.claims.insert("claim-a".to_owned(), found);
        }
        node.calls = 1;
        node.tell(Input::Prepare(CallId(1), reference("a")));
        assert!(node.refused(1).message.contains(why), "{why}");
        assert_eq!(node.state("a"), None, "the mark is taken away");
    }
}

#[test]
fn a_claim_without_devices_of_ours_is_prepared_without_a_record() {
    let mut node = Node::new(Some(node_devices("u", 1, vec![])));
    let call = node.prepare(claim("a", &[]));
    assert!(node.prepared(call).is_empty());
    assert_eq!(node.state("a"), None);
}
