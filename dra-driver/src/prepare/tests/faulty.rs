//! Faults of GPUs: nothing new is prepared there, and what is prepared stays.

use muster_device::faults::{
    Cause, Device, FaultClass, FaultState, KnownAddresses, Observation, Scope,
};

use super::*;

fn faults(gpu: &str, class: FaultClass) -> Input {
    let known = KnownAddresses([(gpu.to_owned(), None)].into());
    let observation = Observation {
        class,
        scope: Scope::Gpu,
        cause: Cause::Xid(48),
    };
    let mut state = FaultState::default();
    let _ = state.observe(&Device::Uuid(gpu.to_owned()), observation, &known, 0);
    Input::Faults(Arc::new(state))
}

fn tolerating(uid: &str, key: &str) -> Claim {
    let mut claim = claim(uid, &["gpu-0"]);
    for device in claim.devices.iter_mut().flatten() {
        device.tolerations.push(Toleration {
            key: Some(key.to_owned()),
            value: None,
        });
    }
    claim
}

#[test]
fn nothing_new_is_prepared_on_a_gpu_that_a_fault_closes_and_it_is_said_at_once_which() {
    let mut node = Node::new(None);
    node.tell(faults("GPU-0", FaultClass::Reset));
    let call = node.prepare(claim("a", &["gpu-0"]));
    let refusal = node.refused(call);
    assert_eq!(refusal.reason, Some(Reason::DeviceFaulty));
    for word in ["gpu-0", "gpu.muster.dev/fault=Reset", "GPU-0", "XID 48"] {
        assert!(refusal.message.contains(word), "{word}: {refusal}");
    }
    assert!(node.disk.records.is_empty(), "nothing is left of the call");
    let other = node.prepare(claim("b", &["gpu-1"]));
    assert_eq!(node.prepared(other).len(), 1);
    // Once it is mended the next try succeeds.
    node.tell(Input::Faults(Arc::default()));
    let again = node.prepare(claim("a", &["gpu-0"]));
    assert_eq!(node.prepared(again).len(), 1);
}

#[test]
fn what_is_prepared_is_answered_whatever_is_wrong_since() {
    let mut node = Node::new(None);
    let call = node.prepare(claim("a", &["gpu-0"]));
    assert_eq!(node.prepared(call).len(), 1);
    node.tell(faults("GPU-0", FaultClass::Reboot));
    let again = node.prepare(claim("a", &["gpu-0"]));
    assert_eq!(node.prepared(again).len(), 1);
    assert_eq!(node.disk.records.len(), 1);
}

#[test]
fn a_gpu_that_needs_the_machine_started_anew_closes_all_others_of_it() {
    let mut node = Node::new(None);
    node.tell(faults("GPU-0", FaultClass::Reboot));
    let call = node.prepare(claim("a", &["gpu-1"]));
    let refusal = node.refused(call);
    assert!(refusal.message.contains("node-fault=Reboot"), "{refusal}");
    // One that the node does not have closes nothing.
    node.tell(faults("GPU-exchanged", FaultClass::Reboot));
    let again = node.prepare(claim("a", &["gpu-1"]));
    assert_eq!(node.prepared(again).len(), 1);
}

#[test]
fn who_tolerates_the_taint_or_administers_the_device_gets_it() {
    let mut node = Node::new(None);
    for (class, key, is_enough) in [
        (FaultClass::Link, "gpu.muster.dev/link-fault", true),
        (FaultClass::Reset, "gpu.muster.dev/fault", true),
        (FaultClass::Reset, "gpu.muster.dev/link-fault", false),
        // It has two taints.
        (FaultClass::Reboot, "gpu.muster.dev/fault", false),
    ] {
        node.tell(faults("GPU-0", class));
        let uid = format!("{class}-{key}");
        let call = node.prepare(tolerating(&uid, key));
        if is_enough {
            assert_eq!(node.prepared(call).len(), 1, "{uid}");
            let _ = node.unprepare(&uid);
        } else {
            let refusal = node.refused(call);
            assert_eq!(refusal.reason, Some(Reason::DeviceFaulty), "{uid}");
        }
    }
    let mut look = claim("look", &["gpu-0"]);
    look.devices.as_mut().unwrap()[0].admin_access = true;
    let looking = node.prepare(look);
    assert_eq!(node.prepared(looking).len(), 1);
}

#[test]
fn anomalies_close_nothing() {
    let mut node = Node::new(None);
    node.tell(faults("GPU-0", FaultClass::Info));
    let call = node.prepare(claim("a", &["gpu-0"]));
    assert_eq!(node.prepared(call).len(), 1);
}
