//! Whether a rank that is not bound yet can still get the place that was planned for it.

use k8s_openapi::api::core::v1::Node;
use muster_api::Reason;

use crate::{
    admission::plan::{Plan, Rank},
    objects::{bound_node, is_terminal},
    poll_context::PollContext,
};
use muster_cluster::{
    formed::PendingReason,
    nodes,
    place::{self, Lost, NodeFacts},
    taints,
};

/// A rank that has lost its place.
#[derive(Clone, Debug)]
pub(crate) struct LostRank {
    /// Which, and how.
    pub(crate) reason: PendingReason,
    /// Whether the node that was planned is no more, so that it cannot come back.
    pub(crate) for_good: bool,
}

/// The first rank that has lost its place, and how. A bound rank keeps its place whatever becomes of the
/// node: what runs is not moved for that.
pub(crate) fn lost(context: PollContext<'_>, plan: &Plan) -> Option<LostRank> {
    plan.ranks.iter().enumerate().find_map(|(place, rank)| {
        let (lost, cause) = lost_by(context, rank)?;
        let details = format!("rank {place}: node {} {cause}", rank.node.name);
        let reason = Reason::PlaceLost;
        Some(LostRank {
            reason: PendingReason { reason, details },
            for_good: lost.is_for_good(),
        })
    })
}

fn lost_by(context: PollContext<'_>, rank: &Rank) -> Option<(Lost, String)> {
    let pod = context.index.pod_by_uid(&rank.pod)?;
    if bound_node(pod).is_some() || is_terminal(pod) {
        return None;
    }
    let node = context.index.node(&rank.node.name);
    let facts = node.map(|node| NodeFacts::from(node.as_ref()));
    let tolerations = pod.node_rules().map(|rules| &*rules.tolerations);
    let tolerations = tolerations.unwrap_or_default();
    let limit = context.config.not_ready_seconds;
    let is_not_ready = || {
        let since = context.health.not_ready_since(&rank.node.name);
        since.is_some_and(|since| context.has_come(since + limit))
    };
    let lost = place::lost(facts, Some(&rank.node.uid), tolerations, is_not_ready)?;
    let cause = match lost {
        Lost::Gone if node.is_some() => "was made again since it was planned".to_owned(),
        Lost::Gone => "is gone".to_owned(),
        Lost::Cordoned => "is cordoned".to_owned(),
        Lost::NotReady => format!("has not been Ready for {limit} s"),
        Lost::Tainted => {
            let taint = taints::displacing(facts?.taints, tolerations)?;
            let (key, effect) = (&taint.key, &taint.effect);
            format!("carries taint {key}:{effect}, which the pod does not tolerate")
        }
    };
    Some((lost, cause))
}

/// Whether anything that ranks lose their place by, or nodes are lost by, differs between two states of a node.
pub(crate) fn differs(before: &Node, after: &Node) -> bool {
    let facts = |node: &Node| {
        let facts = NodeFacts::from(node);
        let taints = facts.taints.to_vec();
        let readiness = nodes::readiness(node);
        (facts.uid.to_owned(), facts.cordoned, readiness, taints)
    };
    facts(before) != facts(after)
}

/// Whether the node says that it is Ready.
pub(crate) fn is_ready(node: &Node) -> bool {
    nodes::is_ready(node)
}
