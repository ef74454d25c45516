//! What an admission policy or a webhook is asked about, compared with what it must be asked about.
//!
//! It goes by what is needed and not by the text: a rule may be written in another way, or match more.

use k8s_openapi::{
    api::admissionregistration::v1::{
        MatchCondition, MatchResources, NamedRuleWithOperations, RuleWithOperations,
    },
    apimachinery::pkg::apis::meta::v1::LabelSelector,
};

/// The label that only the API server writes.
const NAME_LABEL: &str = "kubernetes.io/metadata.name";

/// Of the resources that are guarded, those that are in no namespace. A Namespace counts as one, although its requests name it.
const IN_NO_NAMESPACE: [&str; 8] = [
    "cohorts",
    "flavors",
    "ledgers",
    "namespaces",
    "nodedevices",
    "prioritytiers",
    "resourceslices",
    "teams",
];

/// Requests that something must be asked about.
#[derive(Clone, Copy, Debug)]
pub struct Guard {
    /// API group.
    pub group: &'static str,
    /// The version that is written; others are converted to the one that a rule names.
    pub version: &'static str,
    /// Resources and subresources.
    pub resources: &'static [&'static str],
    /// Operations.
    pub operations: &'static [&'static str],
}

/// The requests that no rule matches, each as `CREATE pods`.
pub fn left_out(guards: &[Guard], matches: &MatchResources) -> Vec<String> {
    let rules = matches.resource_rules.as_deref().unwrap_or_default();
    let mut left_out = Vec::new();
    for guard in guards {
        for resource in guard.resources {
            for operation in guard.operations {
                let covers =
                    |rule: &NamedRuleWithOperations| covers(rule, guard, resource, operation);
                if !rules.iter().any(covers) {
                    left_out.push(format!("{operation} {resource}"));
                }
            }
        }
    }
    left_out
}

fn covers(rule: &NamedRuleWithOperations, guard: &Guard, resource: &str, operation: &str) -> bool {
    let has = |list: &Option<Vec<String>>, words: &[&str]| {
        let mut list = list.iter().flatten();
        list.any(|word| word == "*" || words.contains(&word.as_str()))
    };
    // As the API server has it: `pods` is no subresource of them, and `pods/*` is every one, and pods themselves.
    let (of, subresource) = parts(resource);
    let resources = rule.resources.iter().flatten().any(|listed| {
        let listed = parts(listed);
        ["*", of].contains(&listed.0) && ["*", subresource].contains(&listed.1)
    });
    let names = rule.resource_names.as_deref().unwrap_or_default();
    let scope = rule.scope.as_deref().unwrap_or("*");
    let own_scope = if IN_NO_NAMESPACE.contains(&of) {
        "Cluster"
    } else {
        "Namespaced"
    };
    resources
        && has(&rule.api_groups, &[guard.group])
        && has(&rule.api_versions, &[guard.version])
        && has(&rule.operations, &[operation])
        && names.is_empty()
        && ["*", own_scope].contains(&scope)
}

/// A resource, and its subresource if it is one.
fn parts(resource: &str) -> (&str, &str) {
    resource.split_once('/').unwrap_or((resource, ""))
}

/// The rules of a webhook in the form that those of a policy have.
pub fn of_webhook(
    rules: Option<&Vec<RuleWithOperations>>,
    namespaces: Option<&LabelSelector>,
    objects: Option<&LabelSelector>,
) -> MatchResources {
    let rules = rules.into_iter().flatten();
    let rules = rules.map(|rule| NamedRuleWithOperations {
        api_groups: rule.api_groups.clone(),
        api_versions: rule.api_versions.clone(),
        operations: rule.operations.clone(),
        resource_names: None,
        resources: rule.resources.clone(),
        scope: rule.scope.clone(),
    });
    MatchResources {
        resource_rules: Some(rules.collect()),
        namespace_selector: namespaces.cloned(),
        object_selector: objects.cloned(),
        ..MatchResources::default()
    }
}

/// Whether selectors and exceptions leave out nothing but namespaces, by their own names, that may be left out.
pub fn is_wide(matches: &MatchResources, may_leave_out: impl Fn(&str) -> bool) -> bool {
    let by_name = matches.namespace_selector.as_ref().is_none_or(|selector| {
        let expressions = selector.match_expressions.as_deref().unwrap_or_default();
        has_no_labels(selector)
            && expressions.iter().all(|expression| {
                let mut names = expression.values.iter().flatten();
                expression.key == NAME_LABEL
                    && expression.operator == "NotIn"
                    && names.all(|name| may_leave_out(name))
            })
    });
    let objects = matches.object_selector.as_ref().is_none_or(|selector| {
        let expressions = selector.match_expressions.as_deref().unwrap_or_default();
        has_no_labels(selector) && expressions.is_empty()
    });
    let exceptions = matches.exclude_resource_rules.as_deref();
    by_name && objects && exceptions.unwrap_or_default().is_empty()
}

fn has_no_labels(selector: &LabelSelector) -> bool {
    let labels = selector.match_labels.as_ref();
    labels.is_none_or(std::collections::BTreeMap::is_empty)
}

/// Names of conditions that the chart's does not have: each leaves something out.
pub fn further_conditions<'a>(
    conditions: Option<&'a Vec<MatchCondition>>,
    known: &[&str],
) -> Vec<&'a str> {
    let conditions = conditions.into_iter().flatten();
    conditions
        .map(|condition| condition.name.as_str())
        .filter(|name| !known.contains(name))
        .collect()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    const GUARD: Guard = Guard {
        group: "",
        version: "v1",
        resources: &["pods", "pods/status"],
        operations: &["CREATE", "UPDATE"],
    };

    #[test]
    fn what_no_rule_matches_is_named_and_a_rule_may_be_written_in_another_way() {
        let rule = |groups: Value, versions: Value, resources: Value, operations: Value| json!({"apiGroups": groups, "apiVersions": versions, "resources": resources, "operations": operations});
        let any = json!(["*"]);
        let all = [
            "CREATE pods",
            "UPDATE pods",
            "CREATE pods/status",
            "UPDATE pods/status",
        ];
        let whole = rule(
            json!([""]),
            json!(["v1"]),
            json!(["pods", "pods/status"]),
            json!(["CREATE", "UPDATE"]),
        );
        let with = |key: &str, value: Value| {
            let mut rule = whole.clone();
            rule[key] = value;
            rule
        };
        for (rules, expected) in [
            (vec![whole.clone()], &all[4..]),
            (
                vec![rule(any.clone(), any.clone(), json!(["*/*"]), any.clone())],
                &all[4..],
            ),
            (
                vec![rule(any.clone(), any.clone(), any.clone(), any.clone())],
                &all[2..],
            ),
            (
                vec![rule(
                    any.clone(),
                    any.clone(),
                    json!(["pods", "pods/*"]),
                    any.clone(),
                )],
                &all[4..],
            ),
            (
                vec![rule(
                    any.clone(),
                    any.clone(),
                    json!(["pods", "*/status"]),
                    any.clone(),
                )],
                &all[4..],
            ),
            (
                vec![
                    with("resources", json!(["pods/status"])),
                    with("resources", json!(["pods"])),
                ],
                &all[4..],
            ),
            (vec![with("scope", json!("Namespaced"))], &all[4..]),
            // All of them, and pods themselves.
            (vec![with("resources", json!(["pods/*"]))], &all[4..]),
            (vec![with("resources", json!(["*/status"]))], &all[..2]),
            (vec![with("resources", json!(["pods"]))], &all[2..]),
            (
                vec![
                    with("operations", json!(["UPDATE"])),
                    with("resources", json!(["pods"])),
                ],
                &all[2..3],
            ),
            (vec![], &all[..]),
            (vec![with("apiGroups", json!(["apps"]))], &all[..]),
            (vec![with("apiVersions", json!(["v2"]))], &all[..]),
            (vec![with("resourceNames", json!(["a"]))], &all[..]),
            (vec![with("scope", json!("Cluster"))], &all[..]),
        ] {
            let matches = json!({"resourceRules": rules});
            let found = left_out(&[GUARD], &serde_json::from_value(matches).unwrap());
            assert_eq!(found, expected, "{rules:?}");
        }
    }

    #[test]
    fn selectors_leave_out_only_namespaces_by_their_names_and_those_only_where_that_is_allowed() {
        let names = json!({"matchExpressions": [{"key": NAME_LABEL, "operator": "NotIn", "values": ["a"]}]});
        let only =
            json!({"matchExpressions": [{"key": NAME_LABEL, "operator": "In", "values": ["a"]}]});
        let further = json!({"matchExpressions": [{"key": NAME_LABEL, "operator": "NotIn", "values": ["a", "ml"]}]});
        let labels = json!({"matchLabels": {"guarded": "yes"}});
        for (matches, by_name, wide) in [
            (json!({}), false, true),
            (
                json!({"namespaceSelector": {}, "objectSelector": {}}),
                false,
                true,
            ),
            (json!({"namespaceSelector": names}), true, true),
            (json!({"namespaceSelector": names}), false, false),
            (json!({"namespaceSelector": only}), true, false),
            (json!({"namespaceSelector": further}), true, false),
            (json!({"namespaceSelector": labels}), true, false),
            (json!({"objectSelector": labels}), true, false),
            (json!({"objectSelector": names}), true, false),
            (json!({"excludeResourceRules": [{}]}), true, false),
        ] {
            let found = serde_json::from_value(matches.clone()).unwrap();
            let may_leave_out = |namespace: &str| by_name && namespace == "a";
            assert_eq!(is_wide(&found, may_leave_out), wide, "{matches}");
        }
    }

    #[test]
    fn a_rule_for_the_scope_that_a_resource_has_matches_it() {
        let of = |group: &'static str, resources: &'static [&'static str]| Guard {
            group,
            version: "v1",
            resources,
            operations: &["UPDATE"],
        };
        for (guard, scope) in [
            (of("", &["namespaces", "namespaces/status"]), "Cluster"),
            (of("muster.dev", &["ledgers", "teams/status"]), "Cluster"),
            (of("resource.k8s.io", &["resourceslices"]), "Cluster"),
            (of("muster.dev", &["gangs", "queues/status"]), "Namespaced"),
            (of("resource.k8s.io", &["resourceclaims"]), "Namespaced"),
        ] {
            for written in ["*", "Cluster", "Namespaced"] {
                let rule = json!({"apiGroups": ["*"], "apiVersions": ["*"], "resources": ["*/*"], "operations": ["*"],
                    "scope": written});
                let matches = serde_json::from_value(json!({"resourceRules": [rule]})).unwrap();
                let is_asked = left_out(&[guard], &matches).is_empty();
                assert_eq!(
                    is_asked,
                    written == "*" || written == scope,
                    "{guard:?} {written}"
                );
            }
        }
    }

    #[test]
    fn conditions_that_the_chart_does_not_have_are_named() {
        let conditions =
            json!([{"name": "managed", "expression": "a"}, {"name": "mine", "expression": "b"}]);
        let conditions: Vec<MatchCondition> = serde_json::from_value(conditions).unwrap();
        assert_eq!(
            further_conditions(Some(&conditions), &["managed"]),
            ["mine"]
        );
        assert_eq!(further_conditions(None, &["managed"]), [""; 0]);
    }
}
