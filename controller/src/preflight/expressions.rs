//! The CEL expressions of the chart's policies and of its webhook, compared with those in the cluster.
//!
//! `expressions.json` has them as the chart of this version renders them; the chart's own tests write it. Of what depends on a
//! release its name and its namespaces are put in; what values may say (`«any»`) may be any names, and no more. A release of another version has
//! other expressions, so its are not compared.

use std::{collections::BTreeMap, sync::LazyLock};

use k8s_openapi::api::admissionregistration::v1::{MatchCondition, ValidatingAdmissionPolicySpec};
use serde::Deserialize;

use super::installation::Installation;

/// The label by which the chart says its version.
pub const VERSION_LABEL: &str = "app.kubernetes.io/version";
/// The version of this program, and of the chart that comes with it.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");

/// Where the name of the release stands.
const RELEASE: &str = "«release»";
/// Where its namespace stands.
const NAMESPACE: &str = "«namespace»";
/// Where the namespace of its driver stands.
const DRIVER_NAMESPACE: &str = "«driver namespace»";
/// Where a value of the chart stands.
const ANY: &str = "«any»";

/// Those of one policy or webhook.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Expressions {
    /// By name.
    match_conditions: BTreeMap<String, String>,
    validations: Vec<String>,
    /// By name.
    variables: BTreeMap<String, String>,
}

/// By what stands behind the release's name in that of a policy, or by the name of a webhook.
static OF_CHART: LazyLock<BTreeMap<String, Expressions>> =
    LazyLock::new(|| serde_json::from_str(include_str!("expressions.json")).unwrap_or_default());

/// The version of the chart that installed something with these labels, if that is another than this program's.
pub fn other_version(labels: &BTreeMap<String, String>) -> Option<&str> {
    let version = labels.get(VERSION_LABEL)?.as_str();
    (version != VERSION).then_some(version)
}

/// The expressions of a policy that are not there any more as the chart has them, each by its place. What there is beside them is
/// no matter: a further validation refuses more.
pub fn lost(
    policy: &str,
    spec: &ValidatingAdmissionPolicySpec,
    installation: &Installation,
) -> Vec<String> {
    let Some(wanted) = OF_CHART.get(policy) else {
        return Vec::new();
    };
    let mut lost = Vec::new();
    let conditions = spec.match_conditions.iter().flatten();
    let conditions = conditions.map(|found| (found.name.as_str(), found.expression.as_str()));
    let conditions: BTreeMap<&str, &str> = conditions.collect();
    let variables = spec.variables.iter().flatten();
    let variables = variables.map(|found| (found.name.as_str(), found.expression.as_str()));
    let variables: BTreeMap<&str, &str> = variables.collect();
    for (place, wanted, found) in [
        ("matchCondition", &wanted.match_conditions, conditions),
        ("variable", &wanted.variables, variables),
    ] {
        for (name, text) in wanted {
            let found = found.get(name.as_str());
            if !found.is_some_and(|found| is_as(text, found, installation)) {
                lost.push(format!("{place} {name}"));
            }
        }
    }
    for (position, text) in wanted.validations.iter().enumerate() {
        let mut found = spec.validations.iter().flatten();
        if !found.any(|found| is_as(text, &found.expression, installation)) {
            lost.push(format!("validation {}", position + 1));
        }
    }
    lost
}

/// The conditions of a webhook that have the chart's names and not its expressions. Without a condition it is asked about more.
pub fn changed_conditions(
    webhook: &str,
    conditions: Option<&Vec<MatchCondition>>,
    installation: &Installation,
) -> Vec<String> {
    let Some(wanted) = OF_CHART.get(webhook) else {
        return Vec::new();
    };
    let changed = conditions.into_iter().flatten().filter(|found| {
        let wanted = wanted.match_conditions.get(&found.name);
        wanted.is_some_and(|text| !is_as(text, &found.expression, installation))
    });
    changed.map(|found| found.name.clone()).collect()
}

/// Whether an expression is as the chart has it, whatever its lines.
fn is_as(wanted: &str, found: &str, installation: &Installation) -> bool {
    let driver = installation.driver.as_ref();
    let driver = driver.map_or(ANY, |driver| driver.namespace.as_str());
    let wanted = wanted
        .replace(RELEASE, &installation.name)
        .replace(NAMESPACE, &installation.namespace)
        .replace(DRIVER_NAMESPACE, driver);
    let found = in_one_line(found);
    let mut parts = wanted.split(ANY);
    let first = parts.next().unwrap_or_default();
    let Some(mut rest) = found.strip_prefix(first) else {
        return false;
    };
    let parts: Vec<&str> = parts.collect();
    let Some((last, between)) = parts.split_last() else {
        return rest.is_empty();
    };
    for part in between {
        let Some((value, after)) = rest.split_once(part) else {
            return false;
        };
        if !is_value(value) {
            return false;
        }
        rest = after;
    }
    rest.strip_suffix(last).is_some_and(is_value)
}

/// Whether it is no more than what a value is rendered as: a name, a list of names, or what a resource is to be called.
fn is_value(text: &str) -> bool {
    let list = text.strip_prefix('[').and_then(|it| it.strip_suffix(']'));
    is_name(text)
        || list.is_some_and(|list| list.is_empty() || list.split(',').all(is_quoted_name))
        || text.split(" || ").all(is_about_a_resource)
}

fn is_name(text: &str) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._:@/".contains(&byte);
    !text.is_empty() && text.bytes().all(is_plain)
}

fn is_quoted_name(text: &str) -> bool {
    let text = text.trim();
    ['\'', '"'].into_iter().any(|quote| {
        let name = text.strip_prefix(quote);
        name.and_then(|it| it.strip_suffix(quote))
            .is_some_and(is_name)
    })
}

/// One of `managedResources`; `false`, which is a name, stands for none.
fn is_about_a_resource(text: &str) -> bool {
    let begins = text.strip_prefix("r.startsWith(");
    begins
        .and_then(|it| it.strip_suffix(')'))
        .or_else(|| text.strip_prefix("r == "))
        .is_some_and(is_quoted_name)
}

fn in_one_line(text: &str) -> String {
    let words: Vec<&str> = text.split_whitespace().collect();
    words.join(" ")
}

#[cfg(test)]
pub(crate) mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::preflight::{
        guards::{BY_VALUE, PODS, POLICIES},
        installation::Driver,
    };

    /// What a policy or webhook of a release `muster` has: conditions, variables and validations as in its spec.
    pub(crate) fn rendered(of: &str, namespace: &str) -> Value {
        let text = |text: &String| {
            text.replace(RELEASE, "muster")
                .replace(NAMESPACE, namespace)
                .replace(DRIVER_NAMESPACE, "gpu-drivers")
                .replace(ANY, "['a', 'b']")
        };
        let named = |all: &BTreeMap<String, String>| -> Vec<Value> {
            let all = all.iter();
            all.map(|(name, expression)| json!({"name": name, "expression": text(expression)}))
                .collect()
        };
        let of = &OF_CHART[of];
        let validations = of.validations.iter();
        let validations: Vec<Value> = validations
            .map(|expression| json!({"expression": text(expression)}))
            .collect();
        json!({"matchConditions": named(&of.match_conditions), "variables": named(&of.variables),
            "validations": validations})
    }

    fn installation(driver: Option<&str>) -> Installation {
        Installation {
            name: "muster".to_owned(),
            namespace: "gpus".to_owned(),
            driver: driver.map(|namespace| Driver {
                namespace: namespace.to_owned(),
                ..Driver::default()
            }),
            ..Installation::default()
        }
    }

    fn found(spec: Value) -> ValidatingAdmissionPolicySpec {
        serde_json::from_value(spec).unwrap()
    }

    #[test]
    fn every_policy_of_the_chart_is_compared_and_passes_as_it_is_rendered() {
        let policies: Vec<_> = POLICIES.iter().chain(&BY_VALUE).collect();
        assert_eq!(OF_CHART.len(), policies.len() + 1, "and the webhook");
        for policy in policies {
            let of_chart = &OF_CHART[policy.name];
            assert!(!of_chart.validations.is_empty(), "{}", policy.name);
            let mut names: Vec<&str> = policy.conditions.to_vec();
            names.sort_unstable();
            let conditions = of_chart.match_conditions.keys();
            assert!(conditions.eq(names.iter()), "{}", policy.name);
            for driver in [None, Some("gpu-drivers")] {
                let spec = found(rendered(policy.name, "gpus"));
                let lost = lost(policy.name, &spec, &installation(driver));
                assert_eq!(lost, [""; 0], "{}", policy.name);
            }
        }
        assert_eq!(OF_CHART[PODS.name].match_conditions.len(), 1);
    }

    #[test]
    fn what_of_a_policy_was_changed_is_told_by_its_place() {
        let at = installation(None);
        for (pointer, value, expected) in [
            // Other lines, a further validation, another list of resources.
            (
                "/validations/0/expression",
                json!(
                    "\n variables.team  == variables.old_team ||\n [variables.team, variables.old_team].all(t, t == '' || authorizer.group('muster.dev').resource('teams').name(t).check('assign').allowed()) "
                ),
                None,
            ),
            (
                "/validations/0/expression",
                json!("true || variables.team == ''"),
                Some("validation 1"),
            ),
            ("/validations", json!([]), Some("validation 1")),
            (
                "/variables/1/expression",
                json!("'none'"),
                Some("variable team"),
            ),
            ("/variables/1/name", json!("teams"), Some("variable team")),
        ] {
            let mut spec = rendered("team", "gpus");
            *spec.pointer_mut(pointer).unwrap() = value;
            let lost = lost("team", &found(spec.clone()), &at);
            let expected: Vec<&str> = expected.into_iter().collect();
            assert_eq!(lost, expected, "{spec}");
        }
        for (expression, expected) in [
            (
                "!(request.userInfo.username == 'system:serviceaccount:gpus:muster-controller')",
                None,
            ),
            // Somebody else is let pass.
            (
                "!(request.userInfo.username == 'system:serviceaccount:ml:muster-controller')",
                Some("matchCondition not-by-the-controller"),
            ),
            ("false", Some("matchCondition not-by-the-controller")),
        ] {
            let mut spec = rendered("pod-decided", "gpus");
            spec["matchConditions"][0]["expression"] = json!(expression);
            let lost = lost("pod-decided", &found(spec), &at);
            let expected: Vec<&str> = expected.into_iter().collect();
            assert_eq!(lost, expected, "{expression}");
        }
        let mut spec = rendered("pod-created", "gpus");
        spec["matchConditions"] = json!([]);
        let lost = lost("pod-created", &found(spec), &at);
        assert_eq!(lost, ["matchCondition managed"]);
    }

    #[test]
    fn what_a_value_of_the_chart_says_may_be_anything_and_nothing_around_it() {
        let at = installation(None);
        for (wanted, text, same) in [
            ("a in «any» && b", "a in ['x', 'y'] && b", true),
            ("a in «any» && b", "a in ['x', 'y'] && b || c", false),
            ("a in «any» && b", "true || a in ['x'] && b", false),
            ("a in «any»", "a in ['x']", true),
            ("«any» + «any»", "1 + 2", true),
            ("«any» + «any»", "1 - 2", false),
            ("!(a in «any»)", "!(a in [\"x\"])", true),
            ("!(a in «any»)", "!(a in [])", true),
            // What stands in a value's place, and closes what is around it.
            ("!(a in «any»)", "!(a in []) || (true)", false),
            ("!(a in «any»)", "!(a in ['x'] && false)", false),
            ("a in «any» && b", "a in ['x'] || true && b", false),
            ("a == '«any»'", "a == 'x'", true),
            ("a == '«any»'", "a == 'x' || 'x' == 'x'", false),
            (
                "e(r, «any» || c)",
                "e(r, r == 'a/b' || r.startsWith('a/c-') || c)",
                true,
            ),
            ("e(r, «any» || c)", "e(r, false || c)", true),
            ("e(r, «any» || c)", "e(r, r != 'a/b' || c)", false),
            ("a", "a", true),
            ("a", "a || b", false),
            ("a", "", false),
        ] {
            assert_eq!(is_as(wanted, text, &at), same, "{wanted}: {text}");
        }
    }

    #[test]
    fn another_version_is_told_by_the_label_and_none_where_there_is_no_label() {
        let labels =
            |version: &str| BTreeMap::from([(VERSION_LABEL.to_owned(), version.to_owned())]);
        assert_eq!(other_version(&labels("9.9.9")), Some("9.9.9"));
        assert_eq!(other_version(&labels(VERSION)), None);
        assert_eq!(other_version(&BTreeMap::new()), None);
    }
}
