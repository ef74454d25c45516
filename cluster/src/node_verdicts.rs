//! Verdicts of rules about nodes, by what the rules read of a node: nodes of which they read the same have the same
//! verdict, and cost one comparison.

use std::{
    collections::{BTreeMap, BTreeSet},
    hash::{DefaultHasher, Hash, Hasher},
};

use k8s_openapi::api::core::v1::{Node, NodeSelectorTerm};

use crate::{node_filter::NodeRules, taints};

/// Most verdicts that are remembered of one rule. Kinds of nodes are few; a rule that tells more nodes apart, by their
/// hostnames say, is compared with each of the others.
pub(crate) const MOST_REMEMBERED: usize = 64;

/// What rules read of a node besides its taints.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Reads {
    labels: BTreeSet<String>,
    name: bool,
}

impl Reads {
    pub(crate) fn new(
        selector: &BTreeMap<String, String>,
        terms: Option<&[NodeSelectorTerm]>,
    ) -> Self {
        let mut labels: BTreeSet<String> = selector.keys().cloned().collect();
        let mut name = false;
        for term in terms.unwrap_or_default() {
            let expressions = term.match_expressions.iter().flatten();
            labels.extend(expressions.map(|requirement| requirement.key.clone()));
            name |= term.match_fields.iter().flatten().next().is_some();
        }
        Self { labels, name }
    }

    /// A hash of what is read; `None` if that is the name, which no other node has.
    fn of(&self, node: &Node) -> Option<u64> {
        if self.name {
            return None;
        }
        let labels = node.metadata.labels.as_ref();
        let mut hasher = DefaultHasher::new();
        for key in &self.labels {
            labels.and_then(|labels| labels.get(key)).hash(&mut hasher);
        }
        for taint in taints::repelling(node).filter(|taint| taints::block_of(taint).is_none()) {
            (&taint.key, &taint.value, &taint.effect).hash(&mut hasher);
        }
        Some(hasher.finish())
    }
}

/// What is known of one rule, by what it reads of nodes.
#[derive(Clone, Debug, Default)]
pub(crate) struct NodeVerdicts(BTreeMap<u64, bool>);

impl NodeVerdicts {
    /// Whether a node passes.
    pub(crate) fn judge(&mut self, rules: &NodeRules, node: &Node) -> bool {
        let Some(read) = rules.reads().of(node) else {
            return rules.pass(node);
        };
        if let Some(passes) = self.0.get(&read) {
            return *passes;
        }
        let passes = rules.pass(node);
        if self.0.len() < MOST_REMEMBERED {
            self.0.insert(read, passes);
        }
        passes
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::{node_filter::comparisons, pod::ObservedPod};

    fn rules(spec: &Value) -> NodeRules {
        let mut spec = spec.clone();
        spec["containers"] = json!([]);
        let pod = serde_json::from_value(json!({"spec": spec})).unwrap();
        NodeRules::of_pod(&ObservedPod::of(&pod)).unwrap()
    }

    /// A node of one of some kinds, with a hostname of its own, as every node has.
    fn node(number: usize, kinds: usize) -> Node {
        let kind = number % kinds;
        let taints = json!([{"key": "gpu", "value": "yes", "effect": "NoSchedule"}]);
        serde_json::from_value(json!({
            "metadata": {
                "name": format!("n{number}"),
                "labels": {"kubernetes.io/hostname": format!("n{number}"), "kind": format!("k{kind}")},
            },
            "spec": {"taints": if kind == 0 { taints } else { json!([]) }},
        }))
        .unwrap()
    }

    /// How many nodes pass, and how many comparisons that takes.
    fn judged(rules: &NodeRules, nodes: usize, kinds: usize) -> (usize, usize) {
        let mut verdicts = NodeVerdicts::default();
        let before = comparisons();
        let nodes: Vec<Node> = (0..nodes).map(|number| node(number, kinds)).collect();
        let mut passing = 0;
        for node in &nodes {
            let passes = verdicts.judge(rules, node);
            passing += usize::from(passes);
        }
        let took = comparisons() - before;
        let one_by_one = nodes.iter().filter(|node| rules.pass(node)).count();
        assert_eq!(passing, one_by_one);
        assert!(verdicts.0.len() <= MOST_REMEMBERED);
        (passing, took)
    }

    #[test]
    fn a_rule_is_compared_once_with_each_kind_of_node_that_it_tells_apart() {
        let by_kind = rules(&json!({"nodeSelector": {"kind": "k1"}}));
        assert_eq!(judged(&by_kind, 1_000, 3), (333, 3));
        // Taints are read by every rule, labels by those that name them.
        assert_eq!(judged(&rules(&json!({})), 1_000, 3), (666, 2));
        let tolerating = json!({"tolerations": [{"key": "gpu", "operator": "Exists"}]});
        assert_eq!(judged(&rules(&tolerating), 1_000, 3), (1_000, 2));
    }

    #[test]
    fn so_many_verdicts_are_remembered_and_no_more() {
        let by_kind = rules(&json!({"nodeSelector": {"kind": "k1"}}));
        let most = MOST_REMEMBERED;
        assert_eq!(judged(&by_kind, 10 * most, most), (10, most));
        // The last kind is compared each time.
        assert_eq!(judged(&by_kind, 10 * (most + 1), most + 1), (10, most + 10));
    }

    #[test]
    fn a_rule_about_names_is_compared_with_each_node() {
        let names = json!({"key": "metadata.name", "operator": "In", "values": ["n7", "n8"]});
        let by_name = rules(&json!({"affinity": {"nodeAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution":
                {"nodeSelectorTerms": [{"matchFields": [names]}]},
        }}, "tolerations": [{"operator": "Exists"}]}));
        assert_eq!(judged(&by_name, 100, 3), (2, 100));
    }
}
