//! What is read of a pod. Every program asks these functions, so that no two of them read a field differently.

use k8s_openapi::{api::core::v1::Pod, apimachinery::pkg::apis::meta::v1::OwnerReference};
use muster_api::keys;

/// Annotation and label that hold the completion index of a pod of an Indexed Job.
pub(crate) const COMPLETION_INDEX: &str = "batch.kubernetes.io/job-completion-index";
/// Label that holds the ordinal of a pod of a StatefulSet.
pub(crate) const POD_INDEX: &str = "apps.kubernetes.io/pod-index";

/// Name of the pod; empty if it has none.
pub fn name(pod: &Pod) -> &str {
    pod.metadata.name.as_deref().unwrap_or_default()
}

/// Namespace of the pod; empty if it has none.
pub fn namespace(pod: &Pod) -> &str {
    pod.metadata.namespace.as_deref().unwrap_or_default()
}

/// UID of the pod; empty if it has none.
pub fn uid(pod: &Pod) -> &str {
    pod.metadata.uid.as_deref().unwrap_or_default()
}

/// The value of an annotation.
pub fn annotation<'a>(pod: &'a Pod, key: &str) -> Option<&'a str> {
    pod.metadata
        .annotations
        .as_ref()?
        .get(key)
        .map(String::as_str)
}

/// The value of a label.
pub fn label<'a>(pod: &'a Pod, key: &str) -> Option<&'a str> {
    pod.metadata.labels.as_ref()?.get(key).map(String::as_str)
}

/// Highest attempt that a stamp may say. No gang gets there, and whoever forges one (in Observe the policy against it
/// only warns) leaves room for the attempts after it.
const MAX_ATTEMPT: i64 = 1 << 48;

/// The attempt that the pod is stamped with; 0 if it never was, or if what is written there is none.
pub fn stamp(pod: &Pod) -> i64 {
    annotation(pod, keys::ATTEMPT)
        .and_then(|text| text.parse().ok())
        .filter(|attempt| (0..=MAX_ATTEMPT).contains(attempt))
        .unwrap_or(0)
}

/// Phase of the pod; empty if nobody has reported one.
pub fn phase(pod: &Pod) -> &str {
    let status = pod.status.as_ref();
    status
        .and_then(|status| status.phase.as_deref())
        .unwrap_or_default()
}

/// Whether the pod ended for good.
pub fn is_terminal(pod: &Pod) -> bool {
    matches!(phase(pod), "Succeeded" | "Failed")
}

/// Whether the pod is being deleted.
pub fn is_deleting(pod: &Pod) -> bool {
    pod.metadata.deletion_timestamp.is_some()
}

/// Whether the pod counts as a member of its gang: it neither ended nor is being deleted.
pub fn is_active(pod: &Pod) -> bool {
    !is_terminal(pod) && !is_deleting(pod)
}

/// The node that the pod is bound to.
pub fn bound_to(pod: &Pod) -> Option<&str> {
    let node = pod.spec.as_ref()?.node_name.as_deref()?;
    (!node.is_empty()).then_some(node)
}

/// Whether the pod carries the admission gate.
pub fn is_gated(pod: &Pod) -> bool {
    gates(pod).any(|gate| gate == keys::ADMISSION_GATE)
}

/// A scheduling gate of the pod that is not Muster's.
pub fn foreign_gate(pod: &Pod) -> Option<&str> {
    gates(pod).find(|gate| *gate != keys::ADMISSION_GATE)
}

fn gates(pod: &Pod) -> impl Iterator<Item = &str> {
    pod.spec
        .iter()
        .flat_map(|spec| spec.scheduling_gates.iter().flatten())
        .map(|gate| gate.name.as_str())
}

/// Whether kube-scheduler reports that the pod fits nowhere at the moment.
pub fn is_unschedulable(pod: &Pod) -> bool {
    has_condition(pod, "PodScheduled", "False", Some("Unschedulable"))
}

/// Whether the kubelet has the pod and could not make its sandbox yet, which comes after its claims are prepared.
pub fn waits_for_sandbox(pod: &Pod) -> bool {
    has_condition(pod, "PodReadyToStartContainers", "False", None)
        && bound_to(pod).is_some()
        && phase(pod) == "Pending"
        && !is_deleting(pod)
}

fn has_condition(pod: &Pod, type_: &str, status: &str, reason: Option<&str>) -> bool {
    let conditions = pod.status.iter().flat_map(|status| &status.conditions);
    conditions.flatten().any(|condition| {
        condition.type_ == type_
            && condition.status == status
            && reason.is_none_or(|reason| condition.reason.as_deref() == Some(reason))
    })
}

/// The owner that controls the pod.
pub fn controller(pod: &Pod) -> Option<&OwnerReference> {
    let owners = pod.metadata.owner_references.as_ref()?;
    owners.iter().find(|owner| owner.controller == Some(true))
}

/// The Job that controls the pod.
pub fn controlling_job(pod: &Pod) -> Option<&OwnerReference> {
    controller(pod).filter(|owner| is_job(owner))
}

/// Whether the owner is a batch Job.
pub(crate) fn is_job(owner: &OwnerReference) -> bool {
    owner.kind == "Job" && owner.api_version.starts_with("batch/")
}

/// The completion index of a pod of an Indexed Job.
pub fn completion_index(pod: &Pod) -> Option<u32> {
    let text = annotation(pod, COMPLETION_INDEX).or_else(|| label(pod, COMPLETION_INDEX));
    text.and_then(|text| text.parse().ok())
}

/// The ordinal of a pod of a StatefulSet.
pub fn pod_index(pod: &Pod) -> Option<u32> {
    label(pod, POD_INDEX).and_then(|text| text.parse().ok())
}

/// Creation time in seconds since the Unix epoch; a pod without one counts as the oldest.
pub fn created_at(pod: &Pod) -> i64 {
    let time = pod.metadata.creation_timestamp.as_ref();
    time.map_or(i64::MIN, |time| time.0.as_second())
}

/// Older first, then the smaller UID. Which pod is surplus never depends on the order of watch events.
pub(crate) fn age_order(pod: &Pod) -> (i64, &str) {
    (created_at(pod), uid(pod))
}
