//! Whether a rank that is not bound yet can still get the place that was planned for it.

use k8s_openapi::api::core::v1::{Node, Pod, Taint, Toleration};
use muster_api::Reason;

use crate::{
    admission::plan::{Plan, Rank},
    objects::{bound_node, is_terminal},
    poll_context::PollContext,
};
use muster_cluster::formed::PendingReason;

/// A rank that has lost its place.
#[derive(Clone, Debug)]
pub(crate) struct Lost {
    /// Which, and how.
    pub(crate) reason: PendingReason,
    /// Whether the node that was planned is no more, so that it cannot come back.
    pub(crate) for_good: bool,
}

/// The first rank that has lost its place, and how. A bound rank keeps its place whatever becomes of the
/// node: what runs is not moved for that.
pub(crate) fn lost(context: PollContext<'_>, plan: &Plan) -> Option<Lost> {
    plan.ranks.iter().enumerate().find_map(|(place, rank)| {
        let (cause, for_good) = lost_by(context, rank)?;
        let details = format!("rank {place}: node {} {cause}", rank.node.name);
        let reason = Reason::PlaceLost;
        Some(Lost {
            reason: PendingReason { reason, details },
            for_good,
        })
    })
}

fn lost_by(context: PollContext<'_>, rank: &Rank) -> Option<(String, bool)> {
    let pod = context.index.pod_by_uid(&rank.pod)?;
    if bound_node(pod).is_some() || is_terminal(pod) {
        return None;
    }
    let Some(node) = context.index.node(&rank.node.name) else {
        return Some(("is gone".to_owned(), true));
    };
    if node.metadata.uid.as_deref() != Some(rank.node.uid.as_str()) {
        return Some(("was made again since it was planned".to_owned(), true));
    }
    if is_cordoned(node) {
        return Some(("is cordoned".to_owned(), false));
    }
    let limit = context.config.not_ready_seconds;
    if let Some(since) = context.clocks.not_ready_since(&rank.node.name)
        && context.has_come(since + limit)
    {
        return Some((format!("has not been Ready for {limit} s"), false));
    }
    let taint = repelling_taint(node, pod)?;
    let (key, effect) = (&taint.key, &taint.effect);
    let cause = format!("carries taint {key}:{effect}, which the pod does not tolerate");
    Some((cause, false))
}

/// Whether an administrator keeps new pods off the node.
fn is_cordoned(node: &Node) -> bool {
    let spec = node.spec.as_ref();
    spec.is_some_and(|spec| spec.unschedulable == Some(true))
}

/// Whether anything that ranks lose their place by differs between two states of a node.
pub(crate) fn differs(before: &Node, after: &Node) -> bool {
    let facts = |node: &Node| {
        let taints = node.spec.as_ref().and_then(|spec| spec.taints.clone());
        (
            node.metadata.uid.clone(),
            is_cordoned(node),
            is_ready(node),
            taints,
        )
    };
    facts(before) != facts(after)
}

/// Whether the node says that it is Ready.
pub(crate) fn is_ready(node: &Node) -> bool {
    node.status
        .iter()
        .filter_map(|status| status.conditions.as_ref())
        .flatten()
        .any(|condition| condition.type_ == "Ready" && condition.status == "True")
}

/// Taints that the node controller sets for what is judged by itself above: NotReady has its own grace time,
/// and a cordon is named as such.
const JUDGED_APART: [&str; 3] = [
    "node.kubernetes.io/not-ready",
    "node.kubernetes.io/unreachable",
    "node.kubernetes.io/unschedulable",
];

fn repelling_taint<'a>(node: &'a Node, pod: &Pod) -> Option<&'a Taint> {
    let tolerations: Vec<&Toleration> = pod
        .spec
        .iter()
        .filter_map(|spec| spec.tolerations.as_ref())
        .flatten()
        .collect();
    node.spec
        .iter()
        .filter_map(|spec| spec.taints.as_ref())
        .flatten()
        .filter(|taint| matches!(taint.effect.as_str(), "NoSchedule" | "NoExecute"))
        .filter(|taint| !JUDGED_APART.contains(&taint.key.as_str()))
        .find(|taint| {
            !tolerations
                .iter()
                .any(|toleration| tolerates(toleration, taint))
        })
}

/// As kube-scheduler: an empty key with `Exists` tolerates everything, an empty effect every effect.
fn tolerates(toleration: &Toleration, taint: &Taint) -> bool {
    let effect = toleration.effect.as_deref().unwrap_or_default();
    if !effect.is_empty() && effect != taint.effect {
        return false;
    }
    let key = toleration.key.as_deref().unwrap_or_default();
    if !key.is_empty() && key != taint.key {
        return false;
    }
    match toleration.operator.as_deref().unwrap_or_default() {
        "Exists" => true,
        "" | "Equal" => {
            !key.is_empty()
                && toleration.value.as_deref().unwrap_or_default()
                    == taint.value.as_deref().unwrap_or_default()
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_taint_repels_unless_key_value_and_effect_are_tolerated() {
        let taint = Taint {
            key: "gpu".into(),
            value: Some("h100".into()),
            effect: "NoSchedule".into(),
            time_added: None,
        };
        for (toleration, tolerated) in [
            (json!({"operator": "Exists"}), true),
            (json!({"key": "gpu", "operator": "Exists"}), true),
            (json!({"key": "gpu", "value": "h100"}), true),
            (json!({"key": "gpu", "value": "t4"}), false),
            (
                json!({"key": "gpu", "operator": "Exists", "effect": "NoExecute"}),
                false,
            ),
            (json!({"key": "other", "operator": "Exists"}), false),
        ] {
            let parsed: Toleration = serde_json::from_value(toleration.clone()).unwrap();
            assert_eq!(tolerates(&parsed, &taint), tolerated, "{toleration}");
        }
    }
}
