//! What the API server lets nobody change.

use k8s_openapi::api::core::v1::Pod;
use muster_cluster::object::Kind;

use super::Stored;

/// Why an object may not become that, if so.
///
/// Of a pod's spec the gates may only go, and node affinity may change only while there is one. Nothing that is being
/// deleted gets a new finalizer.
pub(crate) fn update<T: Stored>(before: &T, after: &T) -> Result<(), String> {
    let finalizers = |object: &T| object.metadata().finalizers.clone().unwrap_or_default();
    let known = finalizers(before);
    let is_deleted = before.metadata().deletion_timestamp.is_some();
    if is_deleted && finalizers(after).iter().any(|it| !known.contains(it)) {
        return Err("metadata.finalizers: Forbidden: no new finalizers can be added if the object is being deleted".to_owned());
    }
    if T::KIND != Kind::Pod {
        return Ok(());
    }
    let (before, after) = (before.clone().wrap(), after.clone().wrap());
    match (Pod::of(&before), Pod::of(&after)) {
        (Some(before), Some(after)) => pod(before, after),
        _ => Ok(()),
    }
}

fn pod(before: &Pod, after: &Pod) -> Result<(), String> {
    let (Some(mut before), Some(after)) = (before.spec.clone(), after.spec.as_ref()) else {
        return Err("spec: required".to_owned());
    };
    let gates_before = before.scheduling_gates.clone().unwrap_or_default();
    let gates_after = after.scheduling_gates.clone().unwrap_or_default();
    if gates_after.iter().any(|gate| !gates_before.contains(gate)) {
        return Err("spec.schedulingGates: gates can only be removed".to_owned());
    }
    if !gates_before.is_empty() {
        before.affinity.clone_from(&after.affinity);
        before.node_selector.clone_from(&after.node_selector);
    }
    before.scheduling_gates.clone_from(&after.scheduling_gates);
    if before != *after {
        return Err("spec: pod updates may not change fields".to_owned());
    }
    Ok(())
}
