//! Alerts and dashboards ask for metrics that exist.
//!
//! What exists is read from where the programs register it: a family without a sample yet is in no answer of `/metrics`.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::Path,
};

use serde_json::Value;

use crate::{
    guides::{documents, quoted},
    helm::{chart, object, objects, root},
};

/// Where metrics are registered, and what their names begin with there.
const REGISTERED: [(&str, &str); 10] = [
    ("controller/src/metrics.rs", "muster_"),
    ("controller/src/metrics/quota/cohorts.rs", "muster_"),
    ("controller/src/metrics/quota/gangs.rs", "muster_"),
    ("controller/src/metrics/quota/teams.rs", "muster_"),
    ("webhook/src/metrics.rs", "muster_"),
    ("extender/src/metrics.rs", "muster_"),
    ("dra-driver/src/metrics.rs", "muster_driver_"),
    ("serve/src/certificate_source.rs", "muster_"),
    ("serve/src/watch.rs", "muster_watch_"),
    ("serve/src/process_metrics.rs", ""),
];

/// Series of each family, as Prometheus names them.
fn series() -> BTreeSet<String> {
    // What every program says of itself.
    let every = fs::read_to_string(root().join("serve/src/metrics.rs")).unwrap();
    assert!(every.contains("\"muster_build\""), "it has another name");
    let mut found = BTreeSet::from(["muster_build_info".to_owned()]);
    for (file, prefix) in REGISTERED {
        let text = fs::read_to_string(root().join(file)).unwrap();
        let families = if prefix.is_empty() {
            collected(&text)
        } else {
            registered(&text)
        };
        assert!(!families.is_empty(), "{file} registers nothing");
        for (name, kind) in families {
            let name = format!("{prefix}{name}");
            match kind.as_str() {
                "Counter" => drop(found.insert(format!("{name}_total"))),
                "Histogram" => {
                    for part in ["bucket", "sum", "count"] {
                        found.insert(format!("{name}_{part}"));
                    }
                }
                _ => drop(found.insert(name)),
            }
        }
    }
    found
}

/// The last word of the field's type that says what it is.
fn kind_of(text: &str, field: &str) -> String {
    let declared = text.lines().find_map(|line| {
        let line = line
            .trim()
            .trim_start_matches("pub(crate) ")
            .trim_start_matches("pub ");
        line.strip_prefix(&format!("{field}: "))
    });
    let declared = declared.unwrap_or_else(|| panic!("no field {field}"));
    let kinds = ["Histogram", "Counter", "Gauge", "Numbers"];
    let kind = kinds.iter().find(|kind| declared.contains(**kind));
    kind.unwrap_or_else(|| panic!("{field}: {declared}"))
        .to_string()
}

/// Names and kinds of `registry.register("NAME", "HELP", x.FIELD.clone())`.
fn registered(text: &str) -> BTreeMap<String, String> {
    let calls = text.split("registry.register(").skip(1);
    calls
        .map(|call| {
            let name = call.split('"').nth(1).unwrap().to_owned();
            let (field, _) = call.split_once(".clone()").unwrap();
            let field = field.rsplit('.').next().unwrap();
            (name, kind_of(text, field))
        })
        .collect()
}

/// Names and kinds of what a collector encodes.
fn collected(text: &str) -> BTreeMap<String, String> {
    let names = text.split("encode_descriptor(").skip(1);
    names
        .map(|call| {
            let name = call.split('"').nth(1).unwrap().to_owned();
            let counts = call.contains("counter.metric_type()");
            (name, if counts { "Counter" } else { "Gauge" }.to_owned())
        })
        .collect()
}

/// The metrics that an expression of PromQL names.
fn named(expression: &str) -> BTreeSet<String> {
    expression
        .split(|character: char| !character.is_ascii_alphanumeric() && character != '_')
        .filter(|word| word.starts_with("muster_") || word.starts_with("process_"))
        .map(str::to_owned)
        .collect()
}

fn expressions(value: &Value, found: &mut Vec<String>) {
    match value {
        Value::Object(map) => {
            for (key, value) in map {
                match (key.as_str(), value) {
                    ("expr" | "query", Value::String(text)) => found.push(text.clone()),
                    _ => expressions(value, found),
                }
            }
        }
        Value::Array(list) => list.iter().for_each(|value| expressions(value, found)),
        _ => {}
    }
}

fn dashboard(name: &str) -> Value {
    let file = chart().join(format!("files/dashboards/{name}.json"));
    serde_json::from_str(&fs::read_to_string(file).unwrap()).unwrap()
}

fn assert_all_exist(what: &str, expressions: &[String]) {
    let series = series();
    assert!(!expressions.is_empty(), "{what} asks for nothing");
    for expression in expressions {
        let names = named(expression);
        assert!(
            !names.is_empty() || expression == "prometheus",
            "{what}: {expression}"
        );
        for name in names {
            assert!(
                series.contains(&name),
                "{what}: {name} does not exist: {expression}"
            );
        }
    }
}

#[test]
fn every_alert_is_over_metrics_that_exist_and_says_what_to_do() {
    let objects = objects(&["metrics.prometheusRule.enabled=true"]);
    let groups = object(&objects, "PrometheusRule", "muster")["spec"]["groups"].clone();
    let mut names = BTreeSet::new();
    for rule in groups
        .as_array()
        .unwrap()
        .iter()
        .flat_map(|group| group["rules"].as_array().unwrap())
    {
        let name = rule["alert"].as_str().unwrap();
        assert!(names.insert(name.to_owned()), "{name} twice");
        assert_all_exist(name, &[rule["expr"].as_str().unwrap().to_owned()]);
        assert!(
            ["critical", "warning"].contains(&rule["labels"]["severity"].as_str().unwrap()),
            "{name}"
        );
        for annotation in ["summary", "description"] {
            let text = rule["annotations"][annotation].as_str().unwrap_or_default();
            assert!(text.ends_with('.'), "{name}: {annotation}");
        }
    }
    let guide = fs::read_to_string(root().join("docs/operator-guide.md")).unwrap();
    for name in &names {
        assert!(
            guide.contains(&format!("`{name}`")),
            "the operator's guide does not explain {name}"
        );
    }
    assert!(names.len() > 10);
}

#[test]
fn every_metric_that_a_guide_names_exists() {
    let series = series();
    let mut seen = 0;
    for file in documents()
        .into_iter()
        .filter(|file| is_for_operators(file))
    {
        let text = fs::read_to_string(&file).unwrap();
        for name in quoted(&text).into_iter().flat_map(named) {
            // A histogram has no series of its own name.
            let exists = series.contains(&name) || series.contains(&format!("{name}_count"));
            assert!(exists, "{}: {name}", file.display());
            seen += 1;
        }
    }
    assert!(seen > 30, "{seen} names");
}

/// Others name crates of these names.
fn is_for_operators(file: &Path) -> bool {
    file.parent().is_some_and(|parent| parent.ends_with("docs"))
}

#[test]
fn every_panel_is_over_metrics_that_exist() {
    let objects = objects(&["metrics.dashboards.enabled=true"]);
    for name in ["teams", "operators"] {
        let dashboard = dashboard(name);
        let map = object(&objects, "ConfigMap", &format!("muster-dashboard-{name}"));
        let text = map["data"][format!("muster-{name}.json")].as_str().unwrap();
        assert_eq!(serde_json::from_str::<Value>(text).unwrap(), dashboard);
        let mut found = Vec::new();
        expressions(&dashboard, &mut found);
        assert_all_exist(name, &found);
        let panels = dashboard["panels"].as_array().unwrap();
        let numbers: BTreeSet<i64> = panels
            .iter()
            .map(|panel| panel["id"].as_i64().unwrap())
            .collect();
        assert_eq!(
            numbers.len(),
            panels.len(),
            "{name}: two panels with one number"
        );
    }
}

/// The check itself can fail: a name that does not exist, or one without the suffix of its kind, is seen.
#[test]
fn a_metric_is_known_by_the_name_that_prometheus_gives_it() {
    let series = series();
    for name in [
        "muster_leading",
        "muster_effects_total",
        "muster_driver_claim_seconds_bucket",
        "muster_watch_stale_seconds",
    ] {
        assert!(series.contains(name), "{name}");
    }
    for name in [
        "muster_leader",
        "muster_effects",
        "muster_driver_claim_seconds",
        "muster_team_nominal_quota_total",
    ] {
        assert!(!series.contains(name), "{name}");
    }
    assert!(Path::new(&root()).join("docs/operator-guide.md").is_file());
}
