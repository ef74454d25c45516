//! Gangs from pods: who belongs together, under which name, how many, in which order, and whether
//! they are complete.
//!
//! All of it is a function of what is observed now: nothing is remembered between two looks, so a
//! new leader forms the same gangs (S10). What has to outlive the pods is in the Gang object: its
//! name, its labels, its admission.

mod declaration;
mod ending;
mod forming;
mod group;
mod naming;
mod ranks;
mod spec;
mod tiers;
mod waiting;

pub(crate) use forming::{GangInputs, NamespaceTeam, PodRequest, form};
pub(crate) use group::{Belonging, Group, belonging, controller, controlling_job};
pub(crate) use naming::{GangFinder, Incarnations, gang_key, group_of_gang};
pub use ranks::natural_order;

use k8s_openapi::api::core::v1::Pod;

/// Whether the pod has ended.
pub fn is_terminal(pod: &Pod) -> bool {
    matches!(phase(pod), "Succeeded" | "Failed")
}

/// Whether the pod counts as a member: neither ended nor being deleted.
pub fn is_active(pod: &Pod) -> bool {
    !is_terminal(pod) && pod.metadata.deletion_timestamp.is_none()
}

/// The node that the pod is bound to.
pub fn bound_to(pod: &Pod) -> Option<&str> {
    let node = pod.spec.as_ref()?.node_name.as_deref()?;
    (!node.is_empty()).then_some(node)
}

pub(crate) fn phase(pod: &Pod) -> &str {
    let status = pod.status.as_ref();
    status
        .and_then(|status| status.phase.as_deref())
        .unwrap_or_default()
}

pub(crate) fn name(pod: &Pod) -> &str {
    pod.metadata.name.as_deref().unwrap_or_default()
}

pub(crate) fn uid(pod: &Pod) -> &str {
    pod.metadata.uid.as_deref().unwrap_or_default()
}

pub(crate) fn annotation<'a>(pod: &'a Pod, key: &str) -> Option<&'a str> {
    pod.metadata
        .annotations
        .as_ref()?
        .get(key)
        .map(String::as_str)
}

pub(crate) fn label<'a>(pod: &'a Pod, key: &str) -> Option<&'a str> {
    pod.metadata.labels.as_ref()?.get(key).map(String::as_str)
}

/// Seconds since the Unix epoch; what has no creation time counts as oldest.
pub(crate) fn created_at(pod: &Pod) -> i64 {
    let time = pod.metadata.creation_timestamp.as_ref();
    time.map_or(i64::MIN, |time| time.0.as_second())
}

/// Older first, then the smaller UID: who is surplus is never decided by the order of watch events.
pub(crate) fn age_order(pod: &Pod) -> (i64, &str) {
    (created_at(pod), uid(pod))
}
