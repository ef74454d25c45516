//! No hardware for two claims (rule 3).

use super::*;

#[test]
fn a_second_claim_on_the_same_gpu_waits_for_the_first_whatever_its_state() {
    for state in [
        RecordState::Preparing,
        RecordState::Prepared,
        RecordState::Unpreparing,
    ] {
        let mut node = Node::new(None);
        node.prepare(claim("a", &["gpu-0"]));
        node.disk.records.get_mut("a").unwrap().state = state;
        let call = node.prepare(claim("b", &["gpu-0"]));
        node.pass(10 * SECOND);
        assert_eq!(node.answered(call), None);
        node.unprepare("a");
        assert_eq!(node.prepared(call).len(), 1, "{state:?}");
    }
}

#[test]
fn a_holder_that_stays_is_named() {
    let mut node = Node::new(None);
    node.prepare(claim("a", &["gpu-0", "gpu-1"]));
    let call = node.prepare(claim("b", &["gpu-1"]));
    node.pass(36 * SECOND);
    let refusal = node.refused(call);
    assert_eq!(refusal.reason, Some(Reason::DeviceHeld));
    assert!(refusal.is_overlap);
    assert!(refusal.message.contains("ml/claim-a"), "{refusal}");
    assert_eq!(node.state("b"), None);
}

#[test]
fn a_device_of_which_nothing_can_be_told_is_refused_with_that_reason_and_prepared_once_it_is_free()
{
    let mut node = Node::new(None);
    node.in_use = InUse::Unknown("GPU GPU-0: NVML is not available".to_owned());
    let call = node.prepare(claim("a", &["gpu-0"]));
    node.pass(36 * SECOND);
    let refusal = node.refused(call);
    assert_eq!(refusal.reason, Some(Reason::DeviceUnknown));
    assert!(
        refusal.message.contains("NVML is not available"),
        "{refusal}"
    );
    assert_eq!(node.state("a"), None);
    let again = node.prepare(claim("a", &["gpu-0"]));
    node.pass(10 * SECOND);
    assert_eq!(node.answered(again), None);
    node.in_use = InUse::No;
    node.pass(SECOND);
    assert_eq!(node.prepared(again).len(), 1);
}

#[test]
fn a_slice_and_its_gpu_collide_and_two_slices_do_not() {
    let slice = |start: u32, end: u32| {
        let size = end - start;
        Unit::slice("GPU-0", Placement { start, size }, 1)
    };
    let whole = Unit::whole("GPU-0");
    for (one, other, overlap) in [
        (&whole, &slice(7, 8), true),
        (&slice(0, 4), &slice(3, 5), true),
        (&slice(0, 4), &slice(4, 8), false),
        (&whole, &Unit::whole("GPU-1"), false),
    ] {
        assert_eq!(one.overlaps(other), overlap, "{one} {other}");
        assert_eq!(other.overlaps(one), overlap);
    }
}

#[test]
fn administrative_access_takes_nothing_from_anybody() {
    let mut node = Node::new(None);
    node.prepare(claim("a", &["gpu-0"]));
    let mut look = claim("b", &["gpu-0"]);
    look.devices
        .as_mut()
        .unwrap()
        .first_mut()
        .unwrap()
        .admin_access = true;
    let call = node.prepare(look);
    assert_eq!(node.prepared(call).len(), 1);
}

#[test]
fn a_gpu_with_a_process_that_no_claim_accounts_for_is_not_given_away() {
    let mut node = Node::new(None);
    node.in_use = InUse::Yes("process 4242".to_owned());
    let call = node.prepare(claim("a", &["gpu-0"]));
    node.pass(36 * SECOND);
    let refusal = node.refused(call);
    assert_eq!(refusal.reason, Some(Reason::DeviceHeld));
    assert!(!refusal.is_overlap, "a process is no second claim");
    let again = node.prepare(claim("a", &["gpu-0"]));
    node.pass(10 * SECOND);
    assert_eq!(node.answered(again), None);
    node.in_use = InUse::No;
    node.pass(SECOND);
    assert_eq!(node.prepared(again).len(), 1);
}

#[test]
fn a_gpu_that_is_listed_only_while_the_lock_is_waited_for_is_looked_at_before_it_is_given_away() {
    let mut node = Node::new(None);
    node.in_use = InUse::Yes("process 4242".to_owned());
    node.tell(Input::Inventory(Inventory::new()));
    let call = node.prepare(claim("a", &["gpu-0"]));
    node.take_lock();
    // A turn begins that has no GPU to look at.
    node.tell(Input::Inventory(Inventory::new()));
    node.tell(Input::Inventory(inventory()));
    node.release_lock();
    node.settle();
    assert_eq!(node.answered(call), None);
    node.in_use = InUse::No;
    node.pass(SECOND);
    assert_eq!(node.prepared(call).len(), 1);
}

#[test]
fn a_gpu_that_the_fabric_manager_has_not_set_up_is_prepared_once_it_has() {
    let mut node = Node::new(None);
    let mut seen = inventory();
    seen.get_mut("gpu-0").unwrap().lacks_fabric = true;
    node.tell(Input::Inventory(seen));
    let other = node.prepare(claim("b", &["gpu-1"]));
    assert_eq!(node.prepared(other).len(), 1);
    let call = node.prepare(claim("a", &["gpu-0"]));
    node.pass(36 * SECOND);
    assert_eq!(node.refused(call).reason, Some(Reason::DriverIncomplete));
    let again = node.prepare(claim("a", &["gpu-0"]));
    assert_eq!(node.answered(again), None);
    node.tell(Input::Inventory(inventory()));
    assert_eq!(node.prepared(again).len(), 1);
}

#[test]
fn a_gpu_that_does_not_say_what_it_is_is_prepared_only_for_who_administers_it() {
    let mut node = Node::new(None);
    let mut seen = inventory();
    seen.get_mut("gpu-0").unwrap().silent = true;
    node.tell(Input::Inventory(seen));
    let mut look = claim("look", &["gpu-0"]);
    look.devices.as_mut().unwrap()[0].admin_access = true;
    let looking = node.prepare(look);
    assert_eq!(node.prepared(looking).len(), 1);
    let call = node.prepare(claim("a", &["gpu-0"]));
    node.pass(36 * SECOND);
    assert_eq!(node.refused(call).reason, Some(Reason::DeviceUnknown));
    let again = node.prepare(claim("a", &["gpu-0"]));
    assert_eq!(node.answered(again), None);
    node.tell(Input::Inventory(inventory()));
    assert_eq!(node.prepared(again).len(), 1);
}
