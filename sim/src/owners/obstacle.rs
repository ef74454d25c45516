//! What keeps a pod that gets nowhere, as far as the API server shows it.

use k8s_openapi::api::core::v1::Pod;
use muster_api::{Gang, conditions, keys};

use super::is_gated;
use crate::api_server::{ApiServer, is_bound};

/// What keeps nobody's pod for ever once attempts can be evicted: until then its user has to delete it, also after
/// everything has healed. All of them are pods that were let go, which only an eviction can take back:
///
/// * another pod of the attempt is lost (`MembersChanged`);
/// * a rank that is not bound yet has lost its place (`PlaceLost`);
/// * the Gang was deleted and made again, and waits for what is left of the attempt before (`WaitingForRelease`).
const EXPECTED: [&str; 3] = ["MembersChanged", "PlaceLost", "WaitingForRelease"];

/// What keeps the pod: why its Gang is degraded or waits, and how far the pod itself is.
pub(super) fn of(api: &ApiServer, pod: &Pod) -> String {
    let uid = pod.metadata.uid.as_deref().unwrap_or_default();
    let stage = match (is_gated(pod), is_bound(pod)) {
        (true, _) => "gated",
        (false, false) => "not bound",
        (false, true) => "bound, not running",
    };
    let annotations = pod.metadata.annotations.as_ref();
    let name = annotations.and_then(|annotations| annotations.get(keys::GANG_NAME));
    let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
    let gang = name.and_then(|name| api.get::<Gang>(namespace, name));
    let Some(status) = gang.and_then(|gang| gang.status.as_ref()) else {
        return format!("{stage}, of no Gang");
    };
    let is_admitted = status
        .admission
        .as_ref()
        .is_some_and(|admission| admission.pods.iter().any(|member| member.uid == uid));
    if !is_admitted {
        let reason = status.queue.as_ref().map(|queue| queue.reason.as_str());
        return format!("{stage}, not admitted: {}", reason.unwrap_or("no reason"));
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

/// Whether it is one of the cases that wait for evictions.
pub(super) fn is_expected(kept_by: &str) -> bool {
    !kept_by.starts_with("gated") && EXPECTED.iter().any(|reason| kept_by.ends_with(reason))
}
