//! What a pod says about nodes (selector, required affinity, tolerations), and which nodes pass.
//!
//! The engine knows these as [`NodeFilterId`]s: equal rules have the same id, and each node is told
//! with the ids that it passes.

use std::{
    collections::BTreeMap,
    hash::{DefaultHasher, Hash, Hasher},
    ops::Bound,
    sync::Arc,
};

use k8s_openapi::api::core::v1::{Node, NodeSelectorRequirement, NodeSelectorTerm, Toleration};
use muster_engine::NodeFilterId;

use crate::{
    judgement::{Judgement, JudgementRequest, Outcome, Progress, Rule, SUBJECTS_PER_REQUEST, Work},
    node_verdicts::{NodeVerdicts, Reads},
    pod::ObservedPod,
    taints,
    unsupported_field::UnsupportedField,
};

/// The filter that every node passes. Pods that are placed already have it: their pin would make a
/// filter of its own for each of them, and nobody plans them anew.
pub const ANY_NODE: NodeFilterId = NodeFilterId(0);

/// Most labels, expressions, values and tolerations of the rules of one pod: each node whose labels change is compared with
/// all rules at once.
const MAX_PARTS: usize = 4_096;

/// What a pod says about nodes.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct NodeRules {
    selector: BTreeMap<String, String>,
    /// Terms of the required affinity, of which one must match. `None`: no such affinity.
    terms: Option<Vec<NodeSelectorTerm>>,
    tolerations: Vec<Toleration>,
    reads: Reads,
}

impl NodeRules {
    /// Reads the rules of a pod. An operator that is not known is not understood.
    pub fn of_pod(pod: &ObservedPod) -> Result<Self, UnsupportedField> {
        let Some(said) = pod.node_rules() else {
            return Ok(Self::default());
        };
        let required = said
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
        let rules = Self {
            reads: Reads::new(&said.selector, terms.as_deref()),
            selector: said.selector.clone(),
            terms,
            tolerations: scheduling_tolerations(&said.tolerations)?,
        };
        let parts = rules.parts();
        if parts > MAX_PARTS {
            return Err(UnsupportedField::new(
                "spec.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution",
                format!(
                    "has with selector and tolerations {parts} labels, expressions, values and tolerations, and at most {MAX_PARTS} are compared; label the nodes that are meant, and name that label"
                ),
            ));
        }
        Ok(rules)
    }

    fn parts(&self) -> usize {
        let terms = self.terms.iter().flatten();
        let requirements = terms.flat_map(|term| {
            let expressions = term.match_expressions.iter().flatten();
            expressions.chain(term.match_fields.iter().flatten())
        });
        let named: usize = requirements
            .map(|requirement| 1 + requirement.values.as_ref().map_or(0, Vec::len))
            .sum();
        named + self.selector.len() + self.tolerations.len()
    }

    pub(crate) fn reads(&self) -> &Reads {
        &self.reads
    }

    /// Whether the node passes: labels, name and taints. Kubernetes' own taints, a cordon, a drain by hand and readiness are no
    /// part of it: they pass, and block the node for everybody ([`muster_engine::NodeBlock`]).
    pub fn pass(&self, node: &Node) -> bool {
        #[cfg(test)]
        COMPARED.set(COMPARED.get() + 1);
        let labels = node.metadata.labels.as_ref();
        self.selector
            .iter()
            .all(|(key, value)| labels.and_then(|labels| labels.get(key)) == Some(value))
            && self
                .terms
                .as_ref()
                .is_none_or(|terms| affinity_passes(terms, node))
            && taints::repelling(node)
                .filter(|taint| taints::block_of(taint).is_none())
                .all(|taint| taints::tolerate(&self.tolerations, taint))
    }
}

#[cfg(test)]
std::thread_local! {
    static COMPARED: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
}

/// How often rules were compared with a node on this thread.
#[cfg(test)]
pub(crate) fn comparisons() -> usize {
    COMPARED.get()
}

/// A hash of all that rules may read of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NodeBasis(u64);

impl NodeBasis {
    /// Of its labels and taints. (Its name is what it is found by.)
    pub fn of(node: &Node) -> Self {
        let mut hasher = DefaultHasher::new();
        node.metadata.labels.hash(&mut hasher);
        for taint in taints::repelling(node) {
            (&taint.key, &taint.value, &taint.effect).hash(&mut hasher);
        }
        Self(hasher.finish())
    }
}

/// The interned rules. Ids are never used twice.
#[derive(Debug, Default)]
pub struct NodeFilters {
    by_text: BTreeMap<String, NodeFilterId>,
    filters: BTreeMap<NodeFilterId, Filter>,
    last: u32,
}

#[derive(Debug)]
struct Filter {
    rules: Arc<NodeRules>,
    verdicts: NodeVerdicts,
    /// The last node that was judged, and the last one that is being judged.
    judged_up_to: Option<String>,
    asked_up_to: Option<String>,
    /// Whether the request on the way found no node after those that were judged: who comes now, comes after it.
    asked_all: bool,
    progress: Progress,
    is_judged: bool,
    given_up: Option<Arc<str>>,
}

impl NodeFilters {
    /// The id of the rules, and whether it is new: then they are to be judged for every node ([`NodeFilters::request`]).
    pub fn intern(&mut self, rules: NodeRules) -> (NodeFilterId, bool) {
        let text = text_of(&rules);
        if let Some(id) = self.by_text.get(&text) {
            return (*id, false);
        }
        self.last += 1;
        let id = NodeFilterId(self.last);
        self.by_text.insert(text, id);
        let filter = Filter {
            rules: Arc::new(rules),
            verdicts: NodeVerdicts::default(),
            judged_up_to: None,
            asked_up_to: None,
            asked_all: false,
            progress: Progress::default(),
            is_judged: false,
            given_up: None,
        };
        self.filters.insert(id, filter);
        (id, true)
    }

    /// The id of the rules, if they are interned.
    pub fn known(&self, rules: &NodeRules) -> Option<NodeFilterId> {
        self.by_text.get(&text_of(rules)).copied()
    }

    /// The next nodes for which the rules are to be judged; `None`: all were.
    pub(crate) fn request(
        &mut self,
        id: NodeFilterId,
        nodes: &BTreeMap<String, Arc<Node>>,
    ) -> Option<JudgementRequest> {
        let filter = self.filters.get_mut(&id)?;
        if filter.is_judged {
            return None;
        }
        let after = filter.judged_up_to.as_ref();
        let later = (
            after.map_or(Bound::Unbounded, Bound::Excluded),
            Bound::Unbounded,
        );
        let later = nodes.range::<String, _>(later).take(SUBJECTS_PER_REQUEST);
        let (names, asked): (Vec<_>, Vec<_>) =
            later.map(|(name, node)| (name, Arc::clone(node))).unzip();
        match names.last() {
            Some(last) => filter.asked_up_to = Some((*last).clone()),
            None => filter.asked_all = true,
        }
        filter.progress.total = nodes.len().max(filter.progress.judged);
        Some(JudgementRequest {
            rule: Rule::Filter(id),
            work: Work::Nodes {
                rules: Arc::clone(&filter.rules),
                verdicts: filter.verdicts.clone(),
                nodes: asked,
            },
            progress: filter.progress,
        })
    }

    /// Takes a judgement in. Returns the nodes that pass, as they were, and whether it was the last one. An answer that
    /// nobody waits for any more changes nothing.
    pub(crate) fn give(&mut self, judgement: Judgement) -> (Vec<(String, NodeBasis)>, bool) {
        let Rule::Filter(id) = judgement.rule else {
            return (Vec::new(), false);
        };
        let Some(filter) = self.filters.get_mut(&id).filter(|filter| !filter.is_judged) else {
            return (Vec::new(), false);
        };
        match judgement.outcome {
            Outcome::Nodes {
                passed,
                verdicts,
                judged,
                up_to,
            } => {
                filter.verdicts = verdicts;
                if up_to.is_some() && up_to <= filter.judged_up_to {
                    return (Vec::new(), false);
                }
                filter.progress.judged += judged;
                filter.progress.spent += judgement.spent;
                // Nothing was left to be judged, so all is.
                filter.is_judged = up_to.is_none();
                if up_to.is_some() {
                    filter.judged_up_to.clone_from(&up_to);
                    filter.asked_up_to = up_to;
                }
                (passed, filter.is_judged)
            }
            Outcome::GivenUp(cause) => {
                filter.given_up = Some(cause);
                filter.is_judged = true;
                (Vec::new(), true)
            }
            Outcome::Compiled(_) | Outcome::Devices { .. } => (Vec::new(), false),
        }
    }

    /// Rules that were given up are judged again from the beginning.
    pub fn try_again(&mut self, id: NodeFilterId) {
        if let Some(filter) = self.filters.get_mut(&id)
            && filter.given_up.take().is_some()
        {
            filter.is_judged = false;
            filter.judged_up_to = None;
            filter.asked_up_to = None;
            filter.asked_all = false;
            filter.progress = Progress::default();
        }
    }

    /// Why the rules were given up, if they were.
    pub fn given_up(&self, id: NodeFilterId) -> Option<&Arc<str>> {
        self.filters.get(&id)?.given_up.as_ref()
    }

    /// Whether the rules were judged for every node, or given up.
    pub fn is_judged(&self, id: NodeFilterId) -> bool {
        self.filters.get(&id).is_none_or(|filter| filter.is_judged)
    }

    /// [`ANY_NODE`], and the rules that the node passes of those that were asked about it already, or about all nodes. The
    /// others are judged for it when its turn comes.
    pub fn passed_by<'a>(
        &'a mut self,
        name: &'a str,
        node: &'a Node,
    ) -> impl Iterator<Item = NodeFilterId> + 'a {
        let asked = self.filters.iter_mut().filter(move |(_, filter)| {
            let is_asked =
                filter.is_judged || filter.asked_all || filter.asked_up_to.as_deref() >= Some(name);
            is_asked && filter.given_up.is_none()
        });
        let passed = asked.filter_map(move |(id, filter)| {
            let passes = filter.verdicts.judge(&filter.rules, node);
            passes.then_some(*id)
        });
        std::iter::once(ANY_NODE).chain(passed)
    }

    /// Whether somebody uses the filter, and it was not given up.
    pub fn knows(&self, id: NodeFilterId) -> bool {
        let filter = self.filters.get(&id);
        id == ANY_NODE || filter.is_some_and(|filter| filter.given_up.is_none())
    }

    /// How many rules are interned.
    pub fn len(&self) -> usize {
        self.filters.len()
    }

    /// Whether none is.
    pub fn is_empty(&self) -> bool {
        self.filters.is_empty()
    }

    /// Forgets rules that nobody uses any more.
    pub fn forget(&mut self, id: NodeFilterId) {
        if let Some(filter) = self.filters.remove(&id) {
            self.by_text.remove(&text_of(&filter.rules));
        }
    }
}

/// Rules that say the same have the same text; serialising these types cannot fail.
fn text_of(rules: &NodeRules) -> String {
    serde_json::to_string(&(&rules.selector, &rules.terms, &rules.tolerations)).unwrap_or_default()
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

/// Whether a node passes a required affinity: one of its terms must match.
pub fn affinity_passes(terms: &[NodeSelectorTerm], node: &Node) -> bool {
    let no_labels = BTreeMap::new();
    let labels = node.metadata.labels.as_ref().unwrap_or(&no_labels);
    let name = node.metadata.name.as_deref().unwrap_or_default();
    terms.iter().any(|term| term_matches(term, labels, name))
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

    fn observed(pod: &Value) -> ObservedPod {
        ObservedPod::of(&serde_json::from_value(pod.clone()).unwrap())
    }

    fn passes(spec: &Value, taints: &Value) -> bool {
        let mut spec = spec.clone();
        spec["containers"] = json!([]);
        let pod = observed(&json!({"spec": spec}));
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
            let pod = observed(&json!({"spec": spec}));
            assert_eq!(
                NodeRules::of_pod(&pod).unwrap_err().field,
                format!("{field}.{at}")
            );
        }
    }

    #[test]
    fn rules_of_more_parts_than_are_compared_are_refused_with_the_numbers() {
        let rules = |values: usize| {
            let values: Vec<String> = (0..values).map(|n| format!("n{n}")).collect();
            let term = json!({"matchExpressions": [
                {"key": "kubernetes.io/hostname", "operator": "NotIn", "values": values}]});
            let mut spec = affinity(&json!([term]));
            spec["containers"] = json!([]);
            let pod = observed(&json!({"spec": spec}));
            NodeRules::of_pod(&pod)
        };
        assert!(rules(MAX_PARTS - 1).is_ok());
        let error = rules(MAX_PARTS).unwrap_err();
        assert!(
            error.why.contains("4097") && error.why.contains("at most 4096"),
            "{error}"
        );
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
            NodeRules::of_pod(&observed(&pod)).unwrap()
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
        let node = node(&json!([]));
        assert_eq!(filters.passed_by("a", &node).next(), Some(ANY_NODE));
        filters.forget(first);
        assert_ne!(
            filters.intern(rules(json!([a, b]))).0,
            first,
            "ids are never used twice"
        );
    }
}
