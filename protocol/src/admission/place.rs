//! Whether a rank that is not bound yet can still get the place that was planned for it.

use k8s_openapi::api::core::v1::Node;
use muster_api::Reason;

use crate::{
    admission::plan::{Plan, Rank},
    objects::{bound_node, is_terminal},
    poll_context::PollContext,
};
use muster_cluster::{formed::PendingReason, taints};

/// The first rank that has lost its place, and how. A bound rank keeps its place whatever becomes of the
/// node: what runs is not moved for that.
pub(crate) fn lost(picture: PollContext<'_>, plan: &Plan<'_>) -> Option<PendingReason> {
    plan.ranks.iter().enumerate().find_map(|(number, rank)| {
        let cause = lost_by(picture, rank)?;
        Some(PendingReason {
            reason: Reason::PlaceLost,
            details: format!("rank {number}: node {} {cause}", rank.node.node),
        })
    })
}

fn lost_by(picture: PollContext<'_>, rank: &Rank<'_>) -> Option<String> {
    let pod = picture.index.pod_by_uid(rank.pod)?;
    if bound_node(pod).is_some() || is_terminal(pod) {
        return None;
    }
    let Some(node) = picture.index.node(&rank.node.node) else {
        return Some("is gone".to_owned());
    };
    if node.metadata.uid.as_deref() != Some(rank.node.node_uid.as_str()) {
        return Some("was made anew since it was planned".to_owned());
    }
    if node
        .spec
        .as_ref()
        .is_some_and(|spec| spec.unschedulable == Some(true))
    {
        return Some("is cordoned".to_owned());
    }
    if let Some(since) = picture.clocks.not_ready_since(&rank.node.node) {
        let seconds = picture.now.monotonic_seconds.saturating_sub(since);
        if seconds >= picture.config.not_ready_seconds {
            return Some(format!("has not been Ready for {seconds} s"));
        }
    }
    taints::repels(node, pod).map(|taint| {
        format!(
            "carries taint {}:{}, which the pod does not tolerate",
            taint.key, taint.effect
        )
    })
}

/// Whether the node says that it is Ready.
pub(crate) fn is_ready(node: &Node) -> bool {
    node.status
        .iter()
        .filter_map(|status| status.conditions.as_ref())
        .flatten()
        .any(|condition| condition.type_ == "Ready" && condition.status == "True")
}
