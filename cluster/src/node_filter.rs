//! What a pod says about nodes (selector, required affinity, tolerations), and which nodes pass.
//!
//! The engine knows these as [`NodeFilterId`]s: equal rules have the same id, and each node is told
//! with the ids that it passes.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::{
    Node, NodeSelectorRequirement, NodeSelectorTerm, Pod, Taint, Toleration,
};
use muster_engine::NodeFilterId;

use crate::unsupported_field::UnsupportedField;

/// The filter that every node passes. Pods that are placed already have it: their pin would make a
/// filter of its own for each of them, and nobody plans them anew.
pub const ANY_NODE: NodeFilterId = NodeFilterId(0);

/// What a pod says about nodes.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct NodeRules {
    selector: BTreeMap<String, String>,
    /// Terms of the required affinity, of which one must match. `None`: no such affinity.
    terms: Option<Vec<NodeSelectorTerm>>,
    tolerations: Vec<Toleration>,
}

impl NodeRules {
    /// Reads the rules of a pod. An operator that is not known is not understood.
    pub fn of_pod(pod: &Pod) -> Result<Self, UnsupportedField> {
        let Some(spec) = &pod.spec else {
            return Ok(Self::default());
        };
        let required = spec
            .affinity
            .as_ref()
            .and_then(|affinity| affinity.node_affinity.as_ref())
            .and_then(|affinity| {
                affinity
                    .required_during_scheduling_ignored_during_execution
                    .as_ref()
            });
        let terms = required.map(|selector| selector.node_selector_terms.clone());
        for (position, term) in terms.iter().flatten().enumerate() {
            check_term(term, position)?;
        }
        Ok(Self {
            selector: spec.node_selector.clone().unwrap_or_default(),
            terms,
            tolerations: scheduling_tolerations(spec.tolerations.as_deref().unwrap_or_default())?,
        })
    }

    /// Whether the node passes: labels, name and taints. Whether it is Ready or cordoned is told
    /// apart ([`muster_engine::NodeBlock`]).
    pub fn pass(&self, node: &Node) -> bool {
        let no_labels = BTreeMap::new();
        let labels = node.metadata.labels.as_ref().unwrap_or(&no_labels);
        let name = node.metadata.name.as_deref().unwrap_or_default();
        self.selector
            .iter()
            .all(|(key, value)| labels.get(key) == Some(value))
            && self
                .terms
                .as_ref()
                .is_none_or(|terms| terms.iter().any(|term| term_matches(term, labels, name)))
            && taints(node).all(|taint| {
                self.tolerations
                    .iter()
                    .any(|toleration| tolerates(toleration, taint))
            })
    }
}

/// The interned rules. Ids are never used twice.
#[derive(Debug, Default)]
pub struct NodeFilters {
    by_text: BTreeMap<String, NodeFilterId>,
    rules: BTreeMap<NodeFilterId, NodeRules>,
    last: u32,
}

impl NodeFilters {
    /// The id of the rules, and whether it is new: then every node must be told anew.
    pub fn intern(&mut self, rules: NodeRules) -> (NodeFilterId, bool) {
        let text = text_of(&rules);
        if let Some(id) = self.by_text.get(&text) {
            return (*id, false);
        }
        self.last += 1;
        let id = NodeFilterId(self.last);
        self.by_text.insert(text, id);
        self.rules.insert(id, rules);
        (id, true)
    }

    /// The filters that the node passes.
    pub fn passed_by<'a>(&'a self, node: &'a Node) -> impl Iterator<Item = NodeFilterId> + 'a {
        std::iter::once(ANY_NODE).chain(
            self.rules
                .iter()
                .filter(|(_, rules)| rules.pass(node))
                .map(|(id, _)| *id),
        )
    }

    /// How many rules are interned.
    pub fn len(&self) -> usize {
        self.rules.len()
    }

    /// Whether none is.
    pub fn is_empty(&self) -> bool {
        self.rules.is_empty()
    }

    /// Forgets all rules but the given ones.
    pub fn retain(&mut self, used: &BTreeSet<NodeFilterId>) {
        self.rules.retain(|id, _| used.contains(id));
        self.by_text.retain(|_, id| used.contains(id));
    }
}

/// Rules that say the same have the same text; serialising these types cannot fail.
fn text_of(rules: &NodeRules) -> String {
    serde_json::to_string(&(&rules.selector, &rules.terms, &rules.tolerations)).unwrap_or_default()
}

/// The taints that keep pods away.
pub fn taints(node: &Node) -> impl Iterator<Item = &Taint> {
    node.spec
        .iter()
        .flat_map(|spec| spec.taints.iter().flatten())
        .filter(|taint| matches!(taint.effect.as_str(), "NoSchedule" | "NoExecute"))
}

/// Whether the toleration tolerates the taint. For how long does not matter to a plan.
pub fn tolerates(toleration: &Toleration, taint: &Taint) -> bool {
    let effect = toleration.effect.as_deref().unwrap_or_default();
    let key = toleration.key.as_deref().unwrap_or_default();
    let exists = toleration.operator.as_deref() == Some("Exists");
    (effect.is_empty() || effect == taint.effect)
        && (key == taint.key || (key.is_empty() && exists))
        && (exists
            || toleration.value.as_deref().unwrap_or_default()
                == taint.value.as_deref().unwrap_or_default())
}

/// The tolerations that matter to a plan, sorted, so that pods which differ in their order only share
/// a filter.
fn scheduling_tolerations(tolerations: &[Toleration]) -> Result<Vec<Toleration>, UnsupportedField> {
    let mut kept = Vec::new();
    for (position, toleration) in tolerations.iter().enumerate() {
        let operator = toleration.operator.as_deref().unwrap_or_default();
        if !matches!(operator, "" | "Equal" | "Exists") {
            return Err(UnsupportedField::new(
                format!("spec.tolerations[{position}].operator"),
                format!("{operator} is not known; Equal and Exists are"),
            ));
        }
        if toleration.effect.as_deref() != Some("PreferNoSchedule") {
            kept.push(Toleration {
                toleration_seconds: None,
                ..toleration.clone()
            });
        }
    }
    kept.sort_by(|a, b| {
        let order = |t: &Toleration| {
            (
                t.key.clone(),
                t.operator.clone(),
                t.value.clone(),
                t.effect.clone(),
            )
        };
        order(a).cmp(&order(b))
    });
    kept.dedup();
    Ok(kept)
}

fn check_term(term: &NodeSelectorTerm, position: usize) -> Result<(), UnsupportedField> {
    let lists = [
        (
            "matchExpressions",
            &term.match_expressions,
            &EXPRESSION_OPERATORS[..],
        ),
        ("matchFields", &term.match_fields, &FIELD_OPERATORS[..]),
    ];
    for (list, requirements, known) in lists {
        for (index, requirement) in requirements.iter().flatten().enumerate() {
            let field = format!(
                "spec.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms[{position}].{list}[{index}]"
            );
            if !known.contains(&requirement.operator.as_str()) {
                return Err(UnsupportedField::new(
                    format!("{field}.operator"),
                    format!(
                        "{} is not known; {} are",
                        requirement.operator,
                        known.join(", ")
                    ),
                ));
            }
            if list == "matchFields" && requirement.key != "metadata.name" {
                return Err(UnsupportedField::new(
                    format!("{field}.key"),
                    format!("{} is not known; metadata.name is", requirement.key),
                ));
            }
        }
    }
    Ok(())
}

const EXPRESSION_OPERATORS: [&str; 6] = ["In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt"];
const FIELD_OPERATORS: [&str; 2] = ["In", "NotIn"];

/// A term without requirements matches nothing, as in Kubernetes.
fn term_matches(term: &NodeSelectorTerm, labels: &BTreeMap<String, String>, name: &str) -> bool {
    let expressions = term.match_expressions.as_deref().unwrap_or_default();
    let fields = term.match_fields.as_deref().unwrap_or_default();
    (!expressions.is_empty() || !fields.is_empty())
        && expressions
            .iter()
            .all(|r| requirement_matches(r, labels.get(&r.key).map(String::as_str)))
        && fields.iter().all(|r| requirement_matches(r, Some(name)))
}

fn requirement_matches(requirement: &NodeSelectorRequirement, value: Option<&str>) -> bool {
    let values = requirement.values.as_deref().unwrap_or_default();
    let is_listed = |value: &str| values.iter().any(|listed| listed == value);
    match requirement.operator.as_str() {
        "In" => value.is_some_and(is_listed),
        "NotIn" => !value.is_some_and(is_listed),
        "Exists" => value.is_some(),
        "DoesNotExist" => value.is_none(),
        "Gt" => compared(value, values).is_some_and(|(label, bound)| label > bound),
        "Lt" => compared(value, values).is_some_and(|(label, bound)| label < bound),
        _ => false,
    }
}

/// A label and a bound as numbers; `None` if either is none, and then nothing matches.
fn compared(value: Option<&str>, values: &[String]) -> Option<(i64, i64)> {
    let [bound] = values else { return None };
    Some((value?.parse().ok()?, bound.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn node(taints: &Value) -> Node {
        serde_json::from_value(json!({
            "metadata": {"name": "a", "labels": {"zone": "z1", "cores": "64", "odd": "many"}},
            "spec": {"taints": taints},
        }))
        .unwrap()
    }

    fn passes(spec: &Value, taints: &Value) -> bool {
        let mut spec = spec.clone();
        spec["containers"] = json!([]);
        let pod: Pod = serde_json::from_value(json!({"spec": spec})).unwrap();
        NodeRules::of_pod(&pod).unwrap().pass(&node(taints))
    }

    fn affinity(terms: &Value) -> Value {
        json!({"affinity": {"nodeAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms},
        }}})
    }

    #[test]
    fn a_node_selector_asks_for_every_label() {
        for (selector, passed) in [
            (json!({}), true),
            (json!({"zone": "z1"}), true),
            (json!({"zone": "z2"}), false),
            (json!({"zone": "z1", "rack": "r1"}), false),
        ] {
            assert_eq!(
                passes(&json!({"nodeSelector": selector}), &json!([])),
                passed,
                "{selector}"
            );
        }
    }

    #[test]
    fn every_operator_of_node_affinity_is_read_as_kubernetes_reads_it() {
        for (key, operator, values, passed) in [
            ("zone", "In", json!(["z0", "z1"]), true),
            ("zone", "In", json!(["z2"]), false),
            ("rack", "In", json!(["r1"]), false),
            ("zone", "NotIn", json!(["z1"]), false),
            ("zone", "NotIn", json!(["z2"]), true),
            ("rack", "NotIn", json!(["r1"]), true),
            ("zone", "Exists", json!([]), true),
            ("rack", "Exists", json!([]), false),
            ("zone", "DoesNotExist", json!([]), false),
            ("rack", "DoesNotExist", json!([]), true),
            ("cores", "Gt", json!(["63"]), true),
            ("cores", "Gt", json!(["64"]), false),
            ("cores", "Lt", json!(["65"]), true),
            ("cores", "Lt", json!(["64"]), false),
            ("odd", "Gt", json!(["1"]), false),
            ("cores", "Gt", json!(["few"]), false),
            ("rack", "Lt", json!(["1"]), false),
        ] {
            let requirement = json!({"key": key, "operator": operator, "values": values});
            let spec = affinity(&json!([{"matchExpressions": [requirement]}]));
            assert_eq!(passes(&spec, &json!([])), passed, "{requirement}");
        }
    }

    #[test]
    fn terms_are_alternatives_and_their_requirements_are_not() {
        let zone = json!({"key": "zone", "operator": "In", "values": ["z1"]});
        let rack = json!({"key": "rack", "operator": "Exists"});
        let name = |name: &str| json!({"key": "metadata.name", "operator": "In", "values": [name]});
        for (terms, passed) in [
            (json!([]), false),
            (json!([{}]), false),
            (json!([{}, {"matchExpressions": [zone]}]), true),
            (json!([{"matchExpressions": [zone, rack]}]), false),
            (
                json!([{"matchExpressions": [rack]}, {"matchExpressions": [zone]}]),
                true,
            ),
            (json!([{"matchFields": [name("a")]}]), true),
            (json!([{"matchFields": [name("b")]}]), false),
            (
                json!([{"matchExpressions": [zone], "matchFields": [name("b")]}]),
                false,
            ),
            (
                json!([{"matchFields": [{"key": "metadata.name", "operator": "NotIn", "values": ["b"]}]}]),
                true,
            ),
        ] {
            assert_eq!(passes(&affinity(&terms), &json!([])), passed, "{terms}");
        }
    }

    #[test]
    fn what_is_not_known_is_not_understood() {
        let field = "spec.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms[0]";
        for (term, at) in [
            (
                json!({"matchExpressions": [{"key": "k", "operator": "Like"}]}),
                "matchExpressions[0].operator",
            ),
            (
                json!({"matchFields": [{"key": "metadata.name", "operator": "Exists"}]}),
                "matchFields[0].operator",
            ),
            (
                json!({"matchFields": [{"key": "spec.x", "operator": "In"}]}),
                "matchFields[0].key",
            ),
        ] {
            let mut spec = affinity(&json!([term]));
            spec["containers"] = json!([]);
            let pod: Pod = serde_json::from_value(json!({"spec": spec})).unwrap();
            assert_eq!(
                NodeRules::of_pod(&pod).unwrap_err().field,
                format!("{field}.{at}")
            );
        }
    }

    #[test]
    fn taints_keep_pods_away_unless_they_are_tolerated() {
        let taint = |effect: &str| json!([{"key": "gpu", "value": "yes", "effect": effect}]);
        for (tolerations, effect, passed) in [
            (json!([]), "NoSchedule", false),
            (json!([]), "NoExecute", false),
            (json!([]), "PreferNoSchedule", true),
            (json!([{"operator": "Exists"}]), "NoSchedule", true),
            (
                json!([{"key": "gpu", "operator": "Exists"}]),
                "NoExecute",
                true,
            ),
            (json!([{"key": "gpu", "value": "yes"}]), "NoSchedule", true),
            (
                json!([{"key": "gpu", "operator": "Equal", "value": "no"}]),
                "NoSchedule",
                false,
            ),
            (
                json!([{"key": "gpu", "value": "yes", "effect": "NoSchedule"}]),
                "NoSchedule",
                true,
            ),
            (
                json!([{"key": "gpu", "value": "yes", "effect": "NoSchedule"}]),
                "NoExecute",
                false,
            ),
            (
                json!([{"key": "gpu", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 1}]),
                "NoExecute",
                true,
            ),
            (
                json!([{"key": "cpu", "operator": "Exists"}]),
                "NoSchedule",
                false,
            ),
        ] {
            let spec = json!({"tolerations": tolerations});
            assert_eq!(
                passes(&spec, &taint(effect)),
                passed,
                "{tolerations} {effect}"
            );
        }
    }

    #[test]
    fn equal_rules_share_a_filter_whatever_the_order_of_their_tolerations() {
        let rules = |tolerations: Value| {
            let pod = json!({"spec": {"containers": [], "tolerations": tolerations}});
            NodeRules::of_pod(&serde_json::from_value(pod).unwrap()).unwrap()
        };
        let (a, b) = (
            json!({"key": "a", "operator": "Exists"}),
            json!({"key": "b", "operator": "Exists"}),
        );
        let mut filters = NodeFilters::default();
        let (first, is_new) = filters.intern(rules(json!([a, b])));
        assert!(is_new);
        assert_eq!(filters.intern(rules(json!([b, a, b]))), (first, false));
        assert_ne!(filters.intern(rules(json!([a]))).0, first);
        assert_ne!(first, ANY_NODE);
        assert_eq!(filters.passed_by(&node(&json!([]))).next(), Some(ANY_NODE));
        filters.retain(&BTreeSet::new());
        assert!(filters.is_empty());
        assert_ne!(
            filters.intern(rules(json!([a, b]))).0,
            first,
            "ids are never used twice"
        );
    }
}
