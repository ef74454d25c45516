//! What keeps a pod that gets nowhere, as far as the API server shows it.

use k8s_openapi::api::core::v1::Pod;
use muster_api::{Gang, GangStatus, conditions, keys};

use super::is_gated;
use crate::{
    api_server::{ApiServer, has_ended, is_bound},
    claim_controller::claims_of,
    scheduler::pinned_node,
};

/// A pod that was let go, of an attempt that is over.
const OVER: &str = "of an attempt that is over";
/// A pod that is not bound, and whose node has, or had while it waited, one of those.
const TAKEN: &str = "beside an attempt that is over";
/// A pod whose claim is reserved for a pod of another gang as well.
const EXCHANGED: &str = "its claim is with another gang";

/// What keeps the pod: why its Gang is degraded or waits, and how far the pod itself is. `beside_over`: whether
/// [`is_beside_over`] ever held while it waited.
pub(super) fn of(api: &ApiServer, pod: &Pod, beside_over: bool) -> String {
    let stage = match (is_gated(pod), is_bound(pod)) {
        (true, _) => "gated",
        (false, false) => "not bound",
        (false, true) => "bound, not running",
    };
    let Some(status) = admitted(api, pod) else {
        let state = if is_over(api, pod) {
            OVER
        } else {
            "never admitted"
        };
        return format!("{stage}, {state}");
    };
    if beside_over && !is_bound(pod) {
        return format!("{stage}, {TAKEN}");
    }
    if is_with_another(api, pod) {
        return format!("{stage}, {EXCHANGED}");
    }
    let degraded = status
        .conditions
        .iter()
        .find(|condition| condition.type_ == conditions::DEGRADED && condition.status == "True");
    match degraded {
        Some(condition) => format!("{stage}, {}", condition.reason),
        None => format!("{stage}, as planned"),
    }
}

/// The status of the Gang that is admitted with the pod.
fn admitted<'a>(api: &'a ApiServer, pod: &Pod) -> Option<&'a GangStatus> {
    let uid = pod.metadata.uid.as_deref()?;
    api.list::<Gang>()
        .filter_map(|gang| gang.status.as_ref())
        .find(|status| {
            let admission = status.admission.as_ref();
            admission.is_some_and(|admission| admission.pods.iter().any(|member| member.uid == uid))
        })
}

/// Whether the pod was let go, and its attempt is over.
fn is_over(api: &ApiServer, pod: &Pod) -> bool {
    let annotations = pod.metadata.annotations.as_ref();
    let is_stamped = annotations.is_some_and(|annotations| annotations.contains_key(keys::ATTEMPT));
    is_stamped && !is_gated(pod) && !has_ended(pod) && admitted(api, pod).is_none()
}

/// Whether the pod is let go and not bound, and its node has a pod of an attempt that is over.
pub(super) fn is_beside_over(api: &ApiServer, pod: &Pod) -> bool {
    let Some(node) = pinned_node(pod).filter(|_| !is_gated(pod) && !is_bound(pod)) else {
        return false;
    };
    api.list::<Pod>()
        .any(|other| pinned_node(other) == Some(node) && is_over(api, other))
}

/// Whether a claim of the pod is reserved for a pod of another gang. That both gangs are charged for it is ruled out
/// elsewhere (S1).
fn is_with_another(api: &ApiServer, pod: &Pod) -> bool {
    let name = |pod: &Pod| {
        let annotations = pod.metadata.annotations.as_ref();
        annotations.and_then(|annotations| annotations.get(keys::GANG_NAME).cloned())
    };
    let claims = claims_of(api, pod).unwrap_or_default();
    let reserved = claims.iter().filter_map(|claim| claim.status.as_ref());
    let consumers = reserved.flat_map(|status| status.reserved_for.iter().flatten());
    consumers
        .filter_map(|consumer| api.pod_by_uid(&consumer.uid))
        .any(|other| name(other) != name(pod))
}
