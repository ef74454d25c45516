//! Required anti-affinity by hostname: pods that keep pods like themselves off their node.
//!
//! Modelled is the rule that a pod states about itself: the selector matches its own labels, in its own namespace.
//! Pods that state the same rule get the same id, and no two of them are planned on one node. A rule about other pods
//! is not modelled, and named to the user ([`crate::pod_rules::unsupported`]).

use std::{
    collections::BTreeMap,
    sync::{Arc, Weak},
};

use k8s_openapi::{
    api::core::v1::{Pod, PodAffinityTerm},
    apimachinery::pkg::apis::meta::v1::{LabelSelector, LabelSelectorRequirement},
};
use muster_engine::PodSelectorId;

use crate::pod;

/// The label by which every node is a domain of its own.
const HOSTNAME: &str = "kubernetes.io/hostname";

/// The rules that are in use. Ids are never used twice.
#[derive(Debug, Default)]
pub struct PodTerms {
    by_text: BTreeMap<String, Weak<PodSelectorId>>,
    last: u32,
    sweep_above: usize,
}

impl PodTerms {
    /// The rules that the pod states about itself. A rule is forgotten with its last owner.
    pub fn of_pod(&mut self, pod: &Pod) -> Vec<Arc<PodSelectorId>> {
        let terms = required(pod).filter(|term| is_about_itself(pod, term));
        let texts: Vec<String> = terms.map(|term| text_of(pod, term)).collect();
        texts.into_iter().map(|text| self.intern(text)).collect()
    }

    fn intern(&mut self, text: String) -> Arc<PodSelectorId> {
        if let Some(known) = self.by_text.get(&text).and_then(Weak::upgrade) {
            return known;
        }
        if self.by_text.len() > self.sweep_above {
            self.by_text.retain(|_, id| id.strong_count() > 0);
            self.sweep_above = self.by_text.len() * 2 + 64;
        }
        self.last += 1;
        let id = Arc::new(PodSelectorId(self.last));
        self.by_text.insert(text, Arc::downgrade(&id));
        id
    }
}

/// The terms of the pod's required anti-affinity.
pub fn required(pod: &Pod) -> impl Iterator<Item = &PodAffinityTerm> {
    let affinity = pod.spec.iter().flat_map(|spec| &spec.affinity);
    let repelling = affinity.flat_map(|affinity| &affinity.pod_anti_affinity);
    repelling.flat_map(|affinity| {
        let required = &affinity.required_during_scheduling_ignored_during_execution;
        required.iter().flatten()
    })
}

/// Whether the term says that pods like this one stay off its node.
pub fn is_about_itself(pod: &Pod, term: &PodAffinityTerm) -> bool {
    let own = pod::namespace(pod);
    let namespaces = term.namespaces.as_deref().unwrap_or_default();
    let in_own_namespace = namespaces.is_empty() || namespaces == [own];
    let no_labels = BTreeMap::new();
    let labels = pod.metadata.labels.as_ref().unwrap_or(&no_labels);
    term.topology_key == HOSTNAME
        && in_own_namespace
        && term.namespace_selector.is_none()
        && term.mismatch_label_keys.as_ref().is_none_or(Vec::is_empty)
        && term
            .label_selector
            .as_ref()
            .is_some_and(|selector| matches(selector, labels))
}

/// Rules that say the same have the same text; serialising these types cannot fail.
fn text_of(pod: &Pod, term: &PodAffinityTerm) -> String {
    let rule = (pod::namespace(pod), &term.label_selector);
    serde_json::to_string(&rule).unwrap_or_default()
}

/// Whether the selector selects the labels. An operator that is not known selects nothing.
fn matches(selector: &LabelSelector, labels: &BTreeMap<String, String>) -> bool {
    let equal = selector.match_labels.iter().flatten();
    let expressions = selector.match_expressions.iter().flatten();
    equal
        .into_iter()
        .all(|(key, value)| labels.get(key) == Some(value))
        && expressions
            .into_iter()
            .all(|requirement| requirement_matches(requirement, labels))
}

fn requirement_matches(
    requirement: &LabelSelectorRequirement,
    labels: &BTreeMap<String, String>,
) -> bool {
    let value = labels.get(&requirement.key);
    let is_listed =
        value.is_some_and(|value| requirement.values.iter().flatten().any(|v| v == value));
    match requirement.operator.as_str() {
        "In" => is_listed,
        "NotIn" => !is_listed,
        "Exists" => value.is_some(),
        "DoesNotExist" => value.is_none(),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn pod(namespace: &str, term: &Value) -> Pod {
        serde_json::from_value(json!({
            "metadata": {"namespace": namespace, "labels": {"app": "train"}},
            "spec": {"containers": [], "affinity": {"podAntiAffinity": {
                "requiredDuringSchedulingIgnoredDuringExecution": [term],
            }}},
        }))
        .unwrap()
    }

    fn term(selector: &Value) -> Value {
        json!({"topologyKey": HOSTNAME, "labelSelector": selector})
    }

    #[test]
    fn a_rule_that_selects_the_pod_itself_on_its_own_node_is_modelled() {
        let own = json!({"matchLabels": {"app": "train"}});
        let expression = |operator: &str, values: Value| {
            term(
                &json!({"matchExpressions": [{"key": "app", "operator": operator, "values": values}]}),
            )
        };
        let with = |field: &str, value: Value| {
            let mut term = term(&own);
            term[field] = value;
            term
        };
        for (term, modelled) in [
            (term(&own), true),
            (expression("In", json!(["train", "serve"])), true),
            (expression("NotIn", json!(["train"])), false),
            (expression("Exists", json!([])), true),
            (expression("DoesNotExist", json!([])), false),
            (expression("Like", json!([])), false),
            (term(&json!({"matchLabels": {"app": "serve"}})), false),
            (
                with("topologyKey", json!("topology.kubernetes.io/zone")),
                false,
            ),
            (with("namespaces", json!(["ml"])), true),
            (with("namespaces", json!(["other"])), false),
            (with("namespaceSelector", json!({})), false),
            (with("mismatchLabelKeys", json!(["x"])), false),
        ] {
            let pod = pod("ml", &term);
            assert_eq!(
                required(&pod).all(|term| is_about_itself(&pod, term)),
                modelled,
                "{term}"
            );
        }
    }

    #[test]
    fn pods_with_the_same_rule_share_an_id_for_as_long_as_one_exists() {
        let mut terms = PodTerms::default();
        let rule = term(&json!({"matchLabels": {"app": "train"}}));
        let first = terms.of_pod(&pod("ml", &rule));
        assert_eq!(terms.of_pod(&pod("ml", &rule)), first);
        assert_ne!(
            terms.of_pod(&pod("other", &rule)),
            first,
            "another namespace"
        );
        let id = *first[0];
        drop(first);
        assert_ne!(
            *terms.of_pod(&pod("ml", &rule))[0],
            id,
            "ids are never used twice"
        );
    }

    #[test]
    fn rules_of_pods_that_are_gone_are_forgotten() {
        let mut terms = PodTerms::default();
        for number in 0..10_000 {
            let namespace = format!("ns-{number}");
            terms.of_pod(&pod(
                &namespace,
                &term(&json!({"matchLabels": {"app": "train"}})),
            ));
        }
        assert!(terms.by_text.len() <= 130, "{}", terms.by_text.len());
    }
}
