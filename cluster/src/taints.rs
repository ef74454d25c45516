//! Taints and tolerations.

use k8s_openapi::api::core::v1::{Node, Taint, Toleration};
use muster_api::keys;
use muster_engine::NodeBlock;

/// By which an administrator, or a cloud, says that the machine of a node is off.
const OUT_OF_SERVICE: &str = "node.kubernetes.io/out-of-service";

/// Kubernetes' own taints for what passes by itself or with the administrator, and the one by which a node is drained by hand: they
/// say that nothing new is to be planned on the node at the moment, never that the node does not suit a pod.
const PASSING: [(&str, NodeBlock); 11] = [
    (keys::TAINT_DRAIN, NodeBlock::Drained),
    ("node.kubernetes.io/unschedulable", NodeBlock::Cordoned),
    ("node.kubernetes.io/not-ready", NodeBlock::NotReady),
    ("node.kubernetes.io/unreachable", NodeBlock::NotReady),
    ("node.kubernetes.io/memory-pressure", NodeBlock::NotReady),
    ("node.kubernetes.io/disk-pressure", NodeBlock::NotReady),
    ("node.kubernetes.io/pid-pressure", NodeBlock::NotReady),
    (
        "node.kubernetes.io/network-unavailable",
        NodeBlock::NotReady,
    ),
    (OUT_OF_SERVICE, NodeBlock::NotReady),
    (
        "node.cloudprovider.kubernetes.io/uninitialized",
        NodeBlock::NotReady,
    ),
    (
        "node.cloudprovider.kubernetes.io/shutdown",
        NodeBlock::NotReady,
    ),
];

/// Taints that say what a node's own fields say: a cordon is judged as such, and readiness has a grace time.
const JUDGED_APART: [&str; 3] = [
    "node.kubernetes.io/unschedulable",
    "node.kubernetes.io/not-ready",
    "node.kubernetes.io/unreachable",
];

/// The taints of the node that keep pods away (`NoSchedule` and `NoExecute`).
pub fn repelling(node: &Node) -> impl Iterator<Item = &Taint> {
    let taints = node
        .spec
        .iter()
        .flat_map(|spec| spec.taints.iter().flatten());
    taints.filter(|taint| is_repelling(taint))
}

fn is_repelling(taint: &Taint) -> bool {
    matches!(taint.effect.as_str(), "NoSchedule" | "NoExecute")
}

/// Whether the node is said to be out of service.
pub fn is_out_of_service(node: &Node) -> bool {
    repelling(node).any(|taint| taint.key == OUT_OF_SERVICE)
}

/// Whether the node is cordoned.
pub fn is_cordoned(node: &Node) -> bool {
    let spec = node.spec.as_ref();
    spec.is_some_and(|spec| spec.unschedulable == Some(true))
}

/// The taints by which the node is drained by hand ([`keys::TAINT_DRAIN`], `NoSchedule` or `NoExecute`).
pub fn draining(node: &Node) -> impl Iterator<Item = &Taint> {
    repelling(node).filter(|taint| block_of(taint) == Some(NodeBlock::Drained))
}

/// What a taint of Kubernetes itself, or the one by which a node is drained by hand, says about the node; `None` for every
/// other taint.
pub fn block_of(taint: &Taint) -> Option<NodeBlock> {
    let mut passing = PASSING.iter();
    let (_, block) = passing.find(|(key, _)| *key == taint.key)?;
    Some(*block)
}

/// Whether nothing new may be planned on the node because it is cordoned or drained by hand, or because of a taint of Kubernetes
/// itself. That is so for pods that tolerate the taint, too.
pub fn block(node: &Node) -> Option<NodeBlock> {
    let by_taint = repelling(node).filter_map(block_of);
    is_cordoned(node)
        .then_some(NodeBlock::Cordoned)
        .into_iter()
        .chain(by_taint)
        .min()
}

/// Whether the toleration tolerates the taint, as kube-scheduler decides it. For how long does not matter to a plan.
///
/// An operator that is not known here counts as tolerating: a gang is held up or loses its place on positive evidence
/// only, and kube-scheduler judges the taint itself.
pub fn tolerates(toleration: &Toleration, taint: &Taint) -> bool {
    let text = |field: &Option<String>| field.clone().unwrap_or_default();
    let effect = text(&toleration.effect);
    if !effect.is_empty() && effect != taint.effect {
        return false;
    }
    let key = text(&toleration.key);
    if !key.is_empty() && key != taint.key {
        return false;
    }
    match toleration.operator.as_deref().unwrap_or_default() {
        "" | "Equal" => !key.is_empty() && text(&toleration.value) == text(&taint.value),
        _ => true,
    }
}

/// Whether one of the tolerations tolerates the taint.
pub fn tolerate(tolerations: &[Toleration], taint: &Taint) -> bool {
    let mut tolerations = tolerations.iter();
    tolerations.any(|toleration| tolerates(toleration, taint))
}

/// Whether a planned pod that does not tolerate the taint loses its place: so do all that repel, but for those that only
/// repeat a cordon or that the node is not Ready.
pub fn displaces(taint: &Taint) -> bool {
    is_repelling(taint) && !JUDGED_APART.contains(&taint.key.as_str())
}

/// The first of a node's taints by which a planned pod with these tolerations loses its place.
pub fn displacing<'a>(taints: &'a [Taint], tolerations: &[Toleration]) -> Option<&'a Taint> {
    let mut taints = taints.iter().filter(|taint| displaces(taint));
    taints.find(|taint| !tolerate(tolerations, taint))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn a_taint_is_tolerated_by_key_value_and_effect() {
        let taint = Taint {
            key: "k".into(),
            value: Some("v".into()),
            effect: "NoSchedule".into(),
            time_added: None,
        };
        for (toleration, tolerated) in [
            (json!({"operator": "Exists"}), true),
            (json!({"key": "k", "operator": "Exists"}), true),
            (json!({"key": "k", "value": "v"}), true),
            (
                json!({"key": "k", "operator": "Equal", "value": "v", "effect": "NoSchedule"}),
                true,
            ),
            (
                json!({"key": "k", "operator": "Exists", "tolerationSeconds": 1}),
                true,
            ),
            (json!({"key": "k", "value": "other"}), false),
            (json!({"key": "other", "operator": "Exists"}), false),
            (
                json!({"key": "k", "operator": "Exists", "effect": "NoExecute"}),
                false,
            ),
            (json!({"value": "v"}), false),
            (json!({"key": "k", "operator": "Gt", "value": "5"}), true),
        ] {
            let parsed: Toleration = serde_json::from_value(toleration.clone()).unwrap();
            assert_eq!(tolerates(&parsed, &taint), tolerated, "{toleration}");
        }
    }

    #[test]
    fn a_cordon_a_drain_and_kubernetes_own_taints_block_a_node_and_other_taints_do_not() {
        let node = |spec: Value| -> Node {
            serde_json::from_value(json!({"metadata": {}, "spec": spec})).unwrap()
        };
        let taint = |key: &str, effect: &str| json!({"taints": [{"key": key, "effect": effect}]});
        for (spec, blocked) in [
            (json!({}), None),
            (json!({"unschedulable": true}), Some(NodeBlock::Cordoned)),
            (
                taint("node.kubernetes.io/unschedulable", "NoSchedule"),
                Some(NodeBlock::Cordoned),
            ),
            (
                taint(keys::TAINT_DRAIN, "NoSchedule"),
                Some(NodeBlock::Drained),
            ),
            (
                taint(keys::TAINT_DRAIN, "NoExecute"),
                Some(NodeBlock::Drained),
            ),
            (taint(keys::TAINT_DRAIN, "PreferNoSchedule"), None),
            (
                json!({"taints": [
                    {"key": "node.kubernetes.io/not-ready", "effect": "NoSchedule"},
                    {"key": keys::TAINT_DRAIN, "effect": "NoSchedule"},
                ]}),
                Some(NodeBlock::Drained),
            ),
            (
                json!({
                    "unschedulable": true,
                    "taints": [{"key": keys::TAINT_DRAIN, "effect": "NoSchedule"}],
                }),
                Some(NodeBlock::Cordoned),
            ),
            (
                taint("node.kubernetes.io/not-ready", "NoExecute"),
                Some(NodeBlock::NotReady),
            ),
            (
                taint("node.kubernetes.io/unreachable", "NoSchedule"),
                Some(NodeBlock::NotReady),
            ),
            (
                taint("node.kubernetes.io/disk-pressure", "NoSchedule"),
                Some(NodeBlock::NotReady),
            ),
            (
                taint("node.kubernetes.io/not-ready", "PreferNoSchedule"),
                None,
            ),
            (taint("nvidia.com/gpu", "NoSchedule"), None),
        ] {
            assert_eq!(block(&node(spec.clone())), blocked, "{spec}");
        }
    }
}
