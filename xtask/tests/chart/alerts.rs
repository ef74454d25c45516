//! Every alert has cases of when it fires and when it does not, in `alerts.yaml`.
//!
//! Whether it does is said by Prometheus' own promtool: `cargo xtask test alerts`.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::Path,
};

use serde_json::Value;

use crate::helm::{chart, object, objects, root};

fn yaml(path: &Path) -> Value {
    serde_saphyr::from_str(&fs::read_to_string(path).unwrap()).unwrap()
}

/// The alerts, by name.
fn alerts() -> BTreeMap<String, Value> {
    let groups = yaml(&chart().join("files/alerts.yaml"))["groups"].clone();
    let groups = groups.as_array().unwrap().iter();
    groups
        .flat_map(|group| group["rules"].as_array().unwrap().clone())
        .map(|rule| (rule["alert"].as_str().unwrap().to_owned(), rule))
        .collect()
}

/// The labels of a series as promtool's tests write it.
fn labels(series: &str) -> BTreeSet<&str> {
    let (_, labels) = series.split_once('{').unwrap();
    let labels = labels.trim_end_matches('}').split(", ");
    labels
        .map(|label| label.split_once('=').unwrap().0)
        .collect()
}

#[test]
fn every_alert_has_a_case_in_which_it_fires_with_the_labels_that_it_tells_and_one_in_which_it_does_not()
 {
    let tests = yaml(&root().join("xtask/tests/chart/alerts.yaml"));
    let cases: Vec<&Value> = tests["tests"]
        .as_array()
        .unwrap()
        .iter()
        .flat_map(|test| test["promql_expr_test"].as_array().unwrap())
        .collect();
    let alerts = alerts();
    let expression =
        |name: &String| format!("ALERTS{{alertname=\"{name}\", alertstate=\"firing\"}}");
    // What asks otherwise, or about another alert, finds nothing whatever happens.
    let known: BTreeSet<String> = alerts.keys().map(expression).collect();
    for case in &cases {
        let asked = case["expr"].as_str().unwrap();
        assert!(known.contains(asked), "no alert is {asked}");
    }
    for (name, rule) in &alerts {
        let expression = expression(name);
        let of_alert = cases.iter().filter(|case| case["expr"] == expression);
        let (fires, does_not): (Vec<&Value>, Vec<&Value>) = of_alert
            .copied()
            .partition(|case| !case["exp_samples"].as_array().unwrap().is_empty());
        assert!(!fires.is_empty(), "{name} never fires in alerts.yaml");
        assert!(!does_not.is_empty(), "{name} always fires in alerts.yaml");
        let texts = rule["annotations"].to_string();
        for told in texts.split("$labels.").skip(1) {
            let told = told.split([' ', '}']).next().unwrap();
            for sample in fires[0]["exp_samples"].as_array().unwrap() {
                let series = sample["labels"].as_str().unwrap();
                assert!(labels(series).contains(told), "{name}: {told}");
            }
        }
    }
}

#[test]
fn the_chart_installs_the_alerts_that_are_tested() {
    let objects = objects(&["metrics.prometheusRule.enabled=true"]);
    let installed = object(&objects, "PrometheusRule", "muster");
    assert_eq!(installed["spec"], yaml(&chart().join("files/alerts.yaml")));
}
