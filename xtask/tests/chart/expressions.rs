//! The expressions that `preflight` compares are those that the chart renders.
//!
//! `MUSTER_WRITE_EXPECTED=1` writes them anew.

use std::{collections::BTreeMap, fs};

use serde_json::{Value, json};

use crate::helm::{parsed, root, template};

/// What may say anything, so that it can be told from what always stands there.
const VALUES: [&str; 8] = [
    "mode=\"Enforce\"",
    "managedResources=[\"muster.dev/any\"]",
    "garbageCollectorUsernames=[\"any-user\"]",
    "driver.namespace=\"driver-namespace\"",
    "scheduler.enabled=true",
    "schedulerName=\"any-scheduler\"",
    "sideDoors.refuse=true",
    "sideDoors.runtimeClasses=[\"any-class\"]",
];

/// What stands there for these values, this release and its namespace.
const PLACES: [(&str, &str); 8] = [
    (
        "['driver-namespace','kube-system','muster-namespace']",
        "«any»",
    ),
    ("r == 'muster.dev/any'", "«any»"),
    ("['any-user']", "«any»"),
    ("[\"any-class\"]", "«any»"),
    ("any-scheduler", "«any»"),
    ("driver-namespace", "«driver namespace»"),
    ("muster-namespace", "«namespace»"),
    ("muster-release", "«release»"),
];

fn expression(of: &Value) -> String {
    let mut text = of["expression"].as_str().unwrap().to_owned();
    for (rendered, place) in PLACES {
        text = text.replace(rendered, place);
    }
    let words: Vec<&str> = text.split_whitespace().collect();
    words.join(" ")
}

fn expressions(spec: &Value) -> Value {
    let all = |key: &str| spec[key].as_array().cloned().unwrap_or_default();
    let named = |key: &str| -> BTreeMap<String, String> {
        let all = all(key).into_iter();
        all.map(|of| (of["name"].as_str().unwrap().to_owned(), expression(&of)))
            .collect()
    };
    let validations: Vec<String> = all("validations").iter().map(expression).collect();
    json!({"matchConditions": named("matchConditions"), "variables": named("variables"),
        "validations": validations})
}

#[test]
fn the_expressions_that_preflight_compares_are_those_of_the_chart() {
    let values = VALUES.map(str::to_owned);
    let text = template("muster-release", "muster-namespace", &values).unwrap();
    let mut rendered = BTreeMap::new();
    for object in parsed(&text) {
        if object["kind"] == "ValidatingAdmissionPolicy" {
            let name = object["metadata"]["name"].as_str().unwrap();
            let name = name.strip_prefix("muster-release-").unwrap().to_owned();
            rendered.insert(name, expressions(&object["spec"]));
        }
        if object["kind"] == "MutatingWebhookConfiguration" {
            for webhook in object["webhooks"].as_array().unwrap() {
                let name = webhook["name"].as_str().unwrap().to_owned();
                rendered.insert(name, expressions(webhook));
            }
        }
    }
    let file = root().join("controller/src/preflight/expressions.json");
    if std::env::var_os("MUSTER_WRITE_EXPECTED").is_some() {
        let text = serde_json::to_string_pretty(&rendered).unwrap();
        fs::write(&file, text + "\n").unwrap();
        return;
    }
    let expected: BTreeMap<String, Value> =
        serde_json::from_str(&fs::read_to_string(&file).unwrap()).unwrap();
    assert!(
        expected == rendered,
        "the expressions are not as the chart renders them: write them with MUSTER_WRITE_EXPECTED=1"
    );
}
