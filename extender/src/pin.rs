//! The pin: the one node that the controller wrote into a pod.

use k8s_openapi::api::core::v1::{Affinity, NodeSelectorTerm};

/// The only field that `matchFields` knows.
const NODE_NAME_FIELD: &str = "metadata.name";

/// The one node that a pod is pinned to: every required term of its node affinity names that node by
/// `matchFields`.
///
/// Terms are alternatives, so a single term without the pin would let the pod go anywhere: the pod is
/// pinned only if all of them agree. `None`: not pinned.
pub fn pinned_node(affinity: Option<&Affinity>) -> Option<&str> {
    let terms = &affinity?
        .node_affinity
        .as_ref()?
        .required_during_scheduling_ignored_during_execution
        .as_ref()?
        .node_selector_terms;
    let (first, rest) = terms.split_first()?;
    let node = node_of_term(first)?;
    rest.iter()
        .all(|term| node_of_term(term) == Some(node))
        .then_some(node)
}

/// The node that a term names. Requirements of a term must all hold, so one that names a node suffices.
fn node_of_term(term: &NodeSelectorTerm) -> Option<&str> {
    term.match_fields.iter().flatten().find_map(|requirement| {
        let values = requirement.values.as_deref().unwrap_or_default();
        match values {
            [node] if requirement.key == NODE_NAME_FIELD && requirement.operator == "In" => {
                Some(node.as_str())
            }
            _ => None,
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn pinned(terms: &Value) -> Option<String> {
        let affinity: Affinity = serde_json::from_value(json!({
            "nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}
        }))
        .unwrap();
        pinned_node(Some(&affinity)).map(str::to_owned)
    }

    fn pin(node: &str) -> Value {
        json!({"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node]}]})
    }

    #[test]
    fn a_pod_is_pinned_only_where_every_alternative_names_the_same_node() {
        let own_rule = json!({"matchExpressions": [{"key": "zone", "operator": "Exists"}],
            "matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n1"]}]});
        let anywhere = json!({"matchExpressions": [{"key": "zone", "operator": "Exists"}]});
        let excluded = json!({"matchFields": [{"key": "metadata.name", "operator": "NotIn", "values": ["n1"]}]});
        for (terms, expected) in [
            (json!([pin("n1")]), Some("n1")),
            (json!([pin("n1"), own_rule]), Some("n1")),
            (json!([pin("n1"), pin("n2")]), None),
            (json!([pin("n1"), anywhere]), None),
            (json!([excluded]), None),
            (json!([{}]), None),
            (json!([]), None),
        ] {
            assert_eq!(pinned(&terms).as_deref(), expected, "{terms}");
        }
        assert_eq!(pinned_node(None), None);
    }
}
