//! Pods whose kubelet is to look at them again.
//!
//! A kubelet that could not prepare a pod's claims tries again with the pod's next regular sync, **60 to 90 s later**
//! (Kubernetes 1.37: the error is an Event and no sync error; `kuberuntime_manager.go`, `pod_workers.go`). One such failure
//! is common: the kubelet reads the claim with its node's rights, often within 20 ms of the binding, and is refused
//! while the API server's node authorizer has not seen the binding itself. Every rank of a gang can meet it, and the gang
//! waits for the last. A change of an annotation makes the kubelet look at once (`config.go`: a change of labels,
//! annotations or spec is an update, one of the status is not).
//!
//! So a pod that its kubelet has taken over, and that has no sandbox 3 s later, is nudged. A nudge that was not needed
//! costs one write and does nothing: the kubelet does not break off what it is doing for it.

use crate::{
    ApiRequest, Mode,
    admission::plan::{Plan, Rank},
    objects::{uid, waits_for_sandbox},
    outward::patch,
    poll_context::PollContext,
};
use muster_api::ClaimByName;
use muster_cluster::index::Index;

/// UIDs of the pods of a plan that wait for their sandbox and have claims to be prepared before.
pub(crate) fn waiting<'a>(
    context: PollContext<'a>,
    plan: &'a Plan,
) -> impl Iterator<Item = String> {
    let observes = context.config.mode == Mode::Observe;
    plan.ranks
        .iter()
        .filter(move |rank| !observes && has_objects(rank))
        .filter_map(move |rank| context.index.pod_by_uid(&rank.pod))
        .filter(waits_for_sandbox)
        .map(|pod| uid(pod).to_owned())
}

/// Whether a driver prepares something for a rank.
fn has_objects(rank: &Rank) -> bool {
    let mut claims = rank.claims.iter();
    claims.any(|uid| ClaimByName::driver_prepares(uid.as_str()))
}

/// The nudges of these pods.
pub(crate) fn writes(index: &Index, pods: &[String]) -> Vec<ApiRequest> {
    pods.iter()
        .filter_map(|uid| index.pod_by_uid(uid))
        .map(|pod| patch::nudge(pod))
        .collect()
}
