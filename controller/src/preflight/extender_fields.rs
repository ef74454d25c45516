//! What of an extender's entry keeps kube-scheduler from starting.
//!
//! It decodes its configuration strictly: a field that it does not know, or knows in other letters, is an error. It shows at the next
//! restart only, and then nothing in the cluster is scheduled any more.

use std::collections::BTreeSet;

use muster_api::keys;
use serde_json::{Map, Value};

use super::finding::{Finding, Reason};

/// What a field holds, in words, and whether a value is that.
type Kind = (&'static str, fn(&Value) -> bool);

const TEXT: Kind = ("a string", Value::is_string);
const TRUTH: Kind = ("true or false", Value::is_boolean);
const WHOLE: Kind = ("a whole number", |value| {
    value.as_f64().is_some_and(|number| number.fract() == 0.0)
});
const MAPPING: Kind = ("a mapping", Value::is_object);
const LIST: Kind = ("a list", Value::is_array);
/// Which values are durations is said where what they mean is looked at.
const DURATION: Kind = ("a duration", |_| true);

const OF_EXTENDER: [(&str, Kind); 12] = [
    ("urlPrefix", TEXT),
    ("filterVerb", TEXT),
    ("preemptVerb", TEXT),
    ("prioritizeVerb", TEXT),
    ("weight", WHOLE),
    ("bindVerb", TEXT),
    ("enableHTTPS", TRUTH),
    ("tlsConfig", MAPPING),
    ("httpTimeout", DURATION),
    ("nodeCacheCapable", TRUTH),
    ("managedResources", LIST),
    ("ignorable", TRUTH),
];
const OF_TLS: [(&str, Kind); 8] = [
    ("insecure", TRUTH),
    ("serverName", TEXT),
    ("certFile", TEXT),
    ("keyFile", TEXT),
    ("caFile", TEXT),
    ("certData", TEXT),
    ("keyData", TEXT),
    ("caData", TEXT),
];
const OF_RESOURCE: [(&str, Kind); 2] = [("name", TEXT), ("ignoredByScheduler", TRUTH)];

/// What is wrong with an entry, by its fields.
pub(super) fn findings(entry: &Value, place: &str) -> Vec<Finding> {
    let Some(fields) = entry.as_object() else {
        // That is said of the whole configuration.
        return Vec::new();
    };
    let mut wrong = Vec::new();
    compare(fields, &OF_EXTENDER, "", &mut wrong);
    if let Some(tls) = entry["tlsConfig"].as_object() {
        compare(tls, &OF_TLS, "tlsConfig.", &mut wrong);
    }
    let resources = entry["managedResources"].as_array().into_iter().flatten();
    for resource in resources {
        match resource.as_object() {
            Some(resource) => compare(resource, &OF_RESOURCE, "managedResources[].", &mut wrong),
            None => wrong.push("managedResources[] must be a mapping".to_owned()),
        }
    }
    let verb = entry["prioritizeVerb"].as_str().unwrap_or_default();
    let weight = entry["weight"].as_f64().unwrap_or_default();
    if !verb.is_empty() && weight <= 0.0 {
        wrong.push(format!(
            "weight is {weight}, and has to be above 0 where prioritizeVerb is set"
        ));
    }
    let of = |text: String| {
        let message = format!("kube-scheduler does not start with this entry: {text}");
        let remedy = "Correct it before kube-scheduler is restarted";
        Finding::new(Reason::SchedulerConfigInvalid, place, message, remedy)
    };
    wrong.into_iter().map(of).collect()
}

fn compare(fields: &Map<String, Value>, known: &[(&str, Kind)], of: &str, wrong: &mut Vec<String>) {
    for (name, value) in fields {
        match known.iter().find(|(field, _)| field == name) {
            Some((_, (_, fits))) if value.is_null() || fits(value) => {}
            Some((_, (kind, _))) => wrong.push(format!("{of}{name} must be {kind}")),
            None => {
                let mut known = known.iter().map(|(field, _)| field);
                let meant = known.find(|field| field.eq_ignore_ascii_case(name));
                let meant = meant.map_or_else(String::new, |field| format!(", and {field} is one"));
                wrong.push(format!("{of}{name} is no field{meant}"));
            }
        }
    }
}

/// A resource that two entries manage. Of Muster's own more is said elsewhere.
pub(super) fn managed_twice(extenders: &[Value]) -> Option<Finding> {
    let mut seen = BTreeSet::new();
    let lists = extenders
        .iter()
        .filter_map(|entry| entry["managedResources"].as_array());
    let mut names = lists
        .flatten()
        .filter_map(|resource| resource["name"].as_str());
    let twice = names.find(|name| *name != keys::MARKER_RESOURCE && !seen.insert(*name))?;
    Some(Finding::new(
        Reason::SchedulerConfigInvalid,
        "extenders",
        format!("kube-scheduler does not start with it: {twice} is managed twice"),
        "Leave it with one extender",
    ))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_field_that_kube_scheduler_does_not_know_or_that_holds_something_else_is_named() {
        for (entry, expected) in [
            (json!({"urlPrefix": "https://a", "httpTimeout": "1s"}), None),
            (
                json!({"weight": 20.0, "prioritizeVerb": "p", "tlsConfig": null}),
                None,
            ),
            (json!({"weight": 0, "prioritizeVerb": ""}), None),
            (json!(7), None),
            // As KEP-1819 has it.
            (
                json!({"enableHttps": true}),
                Some("enableHttps is no field, and enableHTTPS is one"),
            ),
            (json!({"timeout": "1s"}), Some("timeout is no field")),
            (
                json!({"ignorable": "true"}),
                Some("ignorable must be true or false"),
            ),
            (
                json!({"weight": 1.5}),
                Some("weight must be a whole number"),
            ),
            (
                json!({"tlsConfig": {"CAFile": "/a"}}),
                Some("tlsConfig.CAFile is no field, and caFile is one"),
            ),
            (
                json!({"tlsConfig": "x"}),
                Some("tlsConfig must be a mapping"),
            ),
            (
                json!({"managedResources": ["a.b/c"]}),
                Some("managedResources[] must be a mapping"),
            ),
            (
                json!({"managedResources": [{"resource": "a.b/c"}]}),
                Some("managedResources[].resource is no field"),
            ),
            (
                json!({"prioritizeVerb": "p"}),
                Some("weight is 0, and has to be above 0"),
            ),
            (
                json!({"prioritizeVerb": "p", "weight": -1}),
                Some("weight is -1, and has to be above 0"),
            ),
        ] {
            let found = findings(&entry, "extenders[0]");
            assert_eq!(found.len(), usize::from(expected.is_some()), "{found:?}");
            if let Some(expected) = expected {
                assert_eq!(found[0].reason, Reason::SchedulerConfigInvalid);
                assert!(found[0].message.contains(expected), "{found:?}");
            }
        }
    }

    #[test]
    fn a_resource_is_managed_by_one_extender() {
        let of = |name: &str| json!({"managedResources": [{"name": name}]});
        assert_eq!(managed_twice(&[]), None);
        assert_eq!(managed_twice(&[of("a.b/c"), of("a.b/d"), json!(7)]), None);
        let marker = keys::MARKER_RESOURCE;
        assert_eq!(managed_twice(&[of(marker), of(marker)]), None);
        let found = managed_twice(&[of("a.b/c"), of(marker), of("a.b/c")]).unwrap();
        assert!(
            found.message.contains("a.b/c is managed twice"),
            "{found:?}"
        );
    }
}
