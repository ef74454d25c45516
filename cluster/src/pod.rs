//! What is read of a pod. Every program asks these functions, so that no two of them read a field differently.

mod fields;
mod observed;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use muster_api::keys;

pub use fields::PodFields;
pub(crate) use observed::READ_PREFIXES;
pub use observed::{
    DISRUPTION_TARGET, Disruption, EVICTED_BY_MUSTER, NodeRulesOfPod, ObservedPod, StartOfPod,
};

/// Annotation and label that hold the completion index of a pod of an Indexed Job.
pub(crate) const COMPLETION_INDEX: &str = "batch.kubernetes.io/job-completion-index";
/// Label that holds the ordinal of a pod of a StatefulSet.
pub(crate) const POD_INDEX: &str = "apps.kubernetes.io/pod-index";
/// Label that tells the template that a StatefulSet made the pod from.
pub(crate) const REVISION_HASH: &str = "controller-revision-hash";

/// Name of the pod; empty if it has none.
pub fn name(pod: &impl PodFields) -> &str {
    pod.name()
}

/// Namespace of the pod; empty if it has none.
pub fn namespace(pod: &impl PodFields) -> &str {
    pod.namespace()
}

/// UID of the pod; empty if it has none.
pub fn uid(pod: &impl PodFields) -> &str {
    pod.uid()
}

/// The value of an annotation.
pub fn annotation<'a>(pod: &'a impl PodFields, key: &str) -> Option<&'a str> {
    pod.annotation(key)
}

/// The value of a label.
pub fn label<'a>(pod: &'a impl PodFields, key: &str) -> Option<&'a str> {
    pod.label(key)
}

/// Highest attempt that a stamp may say. No gang gets there, and whoever forges one (in Observe the policy against it
/// only warns) leaves room for the attempts after it.
pub const MAX_ATTEMPT: i64 = 1 << 48;

/// The attempt that the pod is stamped with; 0 if it never was, or if what is written there is none.
pub fn stamp(pod: &impl PodFields) -> i64 {
    annotation(pod, keys::ATTEMPT)
        .and_then(|text| text.parse().ok())
        .filter(|attempt| (0..=MAX_ATTEMPT).contains(attempt))
        .unwrap_or(0)
}

/// Phase of the pod; empty if nobody has reported one.
pub fn phase(pod: &impl PodFields) -> &str {
    pod.phase()
}

/// Whether the pod ended for good.
pub fn is_terminal(pod: &impl PodFields) -> bool {
    matches!(phase(pod), "Succeeded" | "Failed")
}

/// Whether the pod is being deleted.
pub fn is_deleting(pod: &impl PodFields) -> bool {
    pod.is_deleting()
}

/// Whether the pod counts as a member of its gang: it neither ended nor is being deleted.
pub fn is_active(pod: &impl PodFields) -> bool {
    !is_terminal(pod) && !is_deleting(pod)
}

/// The node that the pod is bound to.
pub fn bound_to(pod: &impl PodFields) -> Option<&str> {
    let node = pod.node_name();
    (!node.is_empty()).then_some(node)
}

/// Whether the pod carries the admission gate.
pub fn is_gated(pod: &impl PodFields) -> bool {
    pod.gates().any(|gate| gate == keys::ADMISSION_GATE)
}

/// A scheduling gate of the pod that is not Muster's.
pub fn foreign_gate(pod: &impl PodFields) -> Option<&str> {
    pod.gates().find(|gate| *gate != keys::ADMISSION_GATE)
}

/// Whether kube-scheduler reports that the pod fits nowhere at the moment.
pub fn is_unschedulable(pod: &impl PodFields) -> bool {
    pod.is_unschedulable()
}

/// Whether the kubelet has the pod and could not make its sandbox yet, which comes after its claims are prepared.
pub fn waits_for_sandbox(pod: &impl PodFields) -> bool {
    pod.lacks_sandbox() && bound_to(pod).is_some() && phase(pod) == "Pending" && !is_deleting(pod)
}

/// The owner that controls the pod.
pub fn controller(pod: &impl PodFields) -> Option<&OwnerReference> {
    pod.controller()
}

/// The Job that controls the pod.
pub fn controlling_job(pod: &impl PodFields) -> Option<&OwnerReference> {
    controller(pod).filter(|owner| is_job(owner))
}

/// Whether the owner is a batch Job.
pub(crate) fn is_job(owner: &OwnerReference) -> bool {
    owner.kind == "Job" && owner.api_version.starts_with("batch/")
}

/// What tells from which template a pod was made, as far as pods tell: the revision of a StatefulSet, else the UID of whoever
/// controls it. (A Deployment has a ReplicaSet for each template.)
pub fn template(pod: &impl PodFields) -> Option<&str> {
    label(pod, REVISION_HASH).or_else(|| Some(controller(pod)?.uid.as_str()))
}

/// The Deployment whose ReplicaSet controls the pod: the ReplicaSet is named after it and a hash.
pub fn deployment(pod: &impl PodFields) -> Option<&str> {
    // The alphabet of such hashes, which has no vowels.
    let is_hash = |text: &str| {
        let mut bytes = text.bytes();
        !text.is_empty() && bytes.all(|byte| b"bcdfghjklmnpqrstvwxz2456789".contains(&byte))
    };
    let owner = controller(pod).filter(|owner| owner.kind == "ReplicaSet")?;
    let (deployment, hash) = owner.name.rsplit_once('-')?;
    (owner.api_version.starts_with("apps/") && is_hash(hash)).then_some(deployment)
}

/// The completion index of a pod of an Indexed Job.
pub fn completion_index(pod: &impl PodFields) -> Option<u32> {
    let text = annotation(pod, COMPLETION_INDEX).or_else(|| label(pod, COMPLETION_INDEX));
    text.and_then(|text| text.parse().ok())
}

/// The ordinal of a pod of a StatefulSet.
pub fn pod_index(pod: &impl PodFields) -> Option<u32> {
    label(pod, POD_INDEX).and_then(|text| text.parse().ok())
}

/// Creation time in seconds since the Unix epoch; a pod without one counts as the oldest.
pub fn created_at(pod: &impl PodFields) -> i64 {
    pod.created_at().unwrap_or(i64::MIN)
}

/// Older first, then the smaller UID. Which pod is surplus never depends on the order of watch events.
pub(crate) fn age_order(pod: &impl PodFields) -> (i64, &str) {
    (created_at(pod), uid(pod))
}
