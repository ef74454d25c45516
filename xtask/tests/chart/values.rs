//! Values, their schema and the table of them in the README agree, and each value does something.
//!
//! `MUSTER_WRITE_EXPECTED=1` writes the table anew.

use std::{
    collections::BTreeMap,
    fs,
    sync::{Mutex, PoisonError},
    thread,
};

use serde_json::{Value, json};

use crate::helm::{chart, parsed, template};

const BEGIN: &str = "<!-- values: written by the tests of the chart -->\n";
const END: &str = "<!-- end of values -->\n";

fn yaml(file: &str) -> Value {
    serde_saphyr::from_str(&fs::read_to_string(chart().join(file)).unwrap()).unwrap()
}

fn schema() -> Value {
    serde_json::from_str(&fs::read_to_string(chart().join("values.schema.json")).unwrap()).unwrap()
}

/// A value that can be set: its path, its schema and its default.
struct Leaf {
    path: String,
    schema: Value,
    default: Option<Value>,
}

/// All values of the schema; what has properties is no value by itself.
fn leaves() -> Vec<Leaf> {
    let schema = schema();
    let mut found = Vec::new();
    collect(&schema, &schema, "", Some(&yaml("values.yaml")), &mut found);
    found
}

fn collect(
    root: &Value,
    schema: &Value,
    path: &str,
    default: Option<&Value>,
    found: &mut Vec<Leaf>,
) {
    let schema = match schema["$ref"].as_str() {
        Some(reference) => root.pointer(reference.trim_start_matches('#')).unwrap(),
        None => schema,
    };
    let Some(properties) = schema["properties"].as_object() else {
        let mut schema = schema.clone();
        if let Some(reference) = schema["items"]["$ref"].as_str() {
            schema["items"] = root
                .pointer(reference.trim_start_matches('#'))
                .unwrap()
                .clone();
        }
        found.push(Leaf {
            path: path.to_owned(),
            schema,
            default: default.cloned(),
        });
        return;
    };
    assert_eq!(
        schema["additionalProperties"], false,
        "{path}: a misspelled value must be refused"
    );
    for (name, below) in properties {
        // For charts of which this one is a part: Helm's own, and the usual condition.
        if path.is_empty() && ["global", "enabled"].contains(&name.as_str()) {
            continue;
        }
        let path = if path.is_empty() {
            name.clone()
        } else {
            format!("{path}.{name}")
        };
        collect(
            root,
            below,
            &path,
            default.and_then(|default| default.get(name)),
            found,
        );
    }
}

/// The comments of values.yaml, by path, in the order of the file.
fn documented() -> Vec<(String, String)> {
    let text = fs::read_to_string(chart().join("values.yaml")).unwrap();
    let mut found = Vec::new();
    let mut parents: Vec<(usize, String)> = Vec::new();
    let mut comment: Vec<&str> = Vec::new();
    for line in text.lines() {
        let content = line.trim_start();
        let indent = line.len() - content.len();
        if let Some(words) = content.strip_prefix("# ") {
            comment.push(words);
        } else if let Some((key, _)) = content.split_once(':')
            && !content.starts_with('-')
        {
            parents.retain(|(level, _)| *level < indent);
            parents.push((indent, key.to_owned()));
            let path: Vec<&str> = parents.iter().map(|(_, key)| key.as_str()).collect();
            found.push((path.join("."), comment.join(" ")));
            comment.clear();
        } else {
            comment.clear();
        }
    }
    found
}

#[test]
fn values_schema_and_readme_name_the_same_values_and_defaults() {
    let leaves: BTreeMap<String, Leaf> = leaves()
        .into_iter()
        .map(|leaf| (leaf.path.clone(), leaf))
        .collect();
    let mut rows = String::from("| value | default | |\n| --- | --- | --- |\n");
    let mut written = 0;
    for (path, comment) in documented() {
        let Some(leaf) = leaves.get(&path) else {
            continue;
        };
        let default = leaf.default.as_ref().unwrap();
        assert!(!comment.is_empty(), "{path}: has no comment in values.yaml");
        let escaped = |text: &str| text.replace('|', "\\|");
        rows += &format!(
            "| `{path}` | `{}` | {} |\n",
            escaped(&default.to_string()),
            escaped(&comment)
        );
        written += 1;
    }
    for leaf in leaves.values() {
        assert!(
            leaf.default.is_some(),
            "{}: is in the schema, and not in values.yaml",
            leaf.path
        );
    }
    assert_eq!(written, leaves.len(), "each value is in values.yaml once");
    let file = chart().join("README.md");
    let readme = fs::read_to_string(&file).unwrap();
    let (before, rest) = readme
        .split_once(BEGIN)
        .expect("the README has a place for the table");
    let (table, after) = rest.split_once(END).unwrap();
    if std::env::var_os("MUSTER_WRITE_EXPECTED").is_some() {
        fs::write(&file, format!("{before}{BEGIN}{rows}{END}{after}")).unwrap();
    } else {
        assert!(
            table == rows,
            "the table is not as values.yaml says: write it with MUSTER_WRITE_EXPECTED=1"
        );
    }
}

/// What has to be set for a value to matter at all.
fn premises(path: &str) -> Vec<String> {
    let set = |values: &[&str]| values.iter().map(|&value| value.to_owned()).collect();
    match path {
        "certManager.enabled" => set(&["certManager.issuerRef={\"name\":\"ca\"}"]),
        "certManager.issuerRef" => set(&[
            "certManager.issuerRef={\"name\":\"ca\"}",
            "certManager.enabled=true",
        ]),
        "scheduler.enabled" | "enforce.check" | "enforce.acceptViolations" => {
            set(&["mode=\"Enforce\""])
        }
        "recovery.resets.maxNodes" => set(&["driver.reset.command=[\"/reset\"]"]),
        "driver.cdiHookPath" => set(&["driver.driverRoot=\"/\""]),
        "driver.createNamespace" => set(&["driver.namespace=\"gpu\""]),
        _ if path.starts_with("scheduler.") => set(&["mode=\"Enforce\"", "scheduler.enabled=true"]),
        _ if path.starts_with("networkPolicy.") && path != "networkPolicy.enabled" => {
            set(&["networkPolicy.enabled=true"])
        }
        _ if path.starts_with("metrics.") && !path.ends_with(".enabled") => {
            let (section, _) = path.rsplit_once('.').unwrap();
            vec![format!("{section}.enabled=true")]
        }
        _ => Vec::new(),
    }
}

/// Another value than the default, which the schema allows.
fn another(leaf: &Leaf) -> Value {
    let default = leaf.default.clone().unwrap();
    if let Some(words) = leaf.schema["enum"].as_array() {
        return words.iter().find(|word| **word != default).unwrap().clone();
    }
    let last = leaf.path.rsplit('.').next().unwrap();
    match (leaf.schema["type"].as_str().unwrap(), last) {
        ("boolean", _) => json!(!default.as_bool().unwrap()),
        ("integer", "timeoutSeconds") => json!(1),
        ("integer", _) => json!(default.as_i64().unwrap() + 1),
        ("string", "adminAddr" | "listenAddr") => json!("0.0.0.0:9999"),
        ("string", "urlOverride") => json!("https://other.example.com:7"),
        ("string", "controller" | "webhook" | "extender" | "driver") => {
            json!(format!("sha256:{}", "a".repeat(64)))
        }
        ("string", "interval") => json!("77s"),
        ("string", "extendedResourceName") => json!("example.com/gpu"),
        ("string", name)
            if name.ends_with("Directory")
                || ["nvmlLibrary", "driverRoot", "cdiHookPath", "toolkitHook"].contains(&name) =>
        {
            json!("/other")
        }
        ("string", _) => json!("other"),
        ("array", "managedResources") => json!(["example.com/other"]),
        ("array", "trustedPrograms") => json!(["/other"]),
        ("array", "controlPlaneCidrs") => json!(["10.1.0.0/16"]),
        ("array", "nodes") => json!([{"labels": {"pool": "other"}, "mode": "Static"}]),
        ("array", _) if leaf.schema["items"]["type"] == "object" => json!([{"name": "other"}]),
        ("array", _) => json!(["other"]),
        ("object", "issuerRef") => json!({"name": "other"}),
        ("object", "priorityTiers") => json!({"other": {"value": 7}}),
        ("object", "layouts") => json!({"other": [{"slices": {"1g.10gb": 7}}]}),
        ("object", "resources") => json!({"limits": {"memory": "7Mi"}}),
        ("object", _) => json!({"other": "x"}),
        (kind, _) => panic!("{}: of type {kind}", leaf.path),
    }
}

fn rendered(values: &[String]) -> String {
    template("muster", "muster-system", values)
        .unwrap_or_else(|error| panic!("{values:?}: {error}"))
}

#[test]
fn every_value_changes_what_is_installed() {
    let leaves = leaves();
    assert!(leaves.len() > 100, "{} values", leaves.len());
    let bases: Mutex<BTreeMap<Vec<String>, String>> = Mutex::default();
    let base = |premises: &[String]| {
        let mut bases = bases.lock().unwrap_or_else(PoisonError::into_inner);
        bases
            .entry(premises.to_vec())
            .or_insert_with(|| rendered(premises))
            .clone()
    };
    let ignored: Mutex<Vec<String>> = Mutex::default();
    let (base, ignored_here) = (&base, &ignored);
    thread::scope(|scope| {
        for part in leaves.chunks(leaves.len().div_ceil(2)) {
            scope.spawn(move || {
                for leaf in part {
                    let mut values = premises(&leaf.path);
                    let before = base(&values);
                    values.push(format!("{}={}", leaf.path, another(leaf)));
                    if rendered(&values) == before {
                        ignored_here.lock().unwrap().push(values.join(" "));
                    }
                }
            });
        }
    });
    let ignored = ignored.into_inner().unwrap();
    assert!(ignored.is_empty(), "nobody reads:\n{}", ignored.join("\n"));
}

/// Helm gives the condition by which that chart switches this one on to this one, too.
#[test]
fn a_chart_of_which_this_one_is_a_part_may_have_a_condition_for_it() {
    assert!(rendered(&["enabled=true".to_owned()]) == rendered(&[]));
}

#[test]
fn values_that_cannot_be_are_refused_with_the_reason() {
    for (values, word) in [
        (vec!["mode=\"Off\""], "mode"),
        (vec!["mods=\"Observe\""], "mods"),
        (vec!["managedResources=[\"a/b/c\"]"], "managedResources"),
        (vec!["managedResources=[\"gpu\"]"], "managedResources"),
        (vec!["image.tag=\"latest\""], "tag"),
        (vec!["image.digests.driver=\"sha256:1\""], "driver"),
        (vec!["webhook.timeoutSeconds=10"], "timeoutSeconds"),
        (vec!["webhook.urlOverride=\"http://a\""], "urlOverride"),
        (vec!["driver.namespace=\"Kube_System\""], "namespace"),
        (vec!["driver.mig.mode=\"Auto\""], "mode"),
        (vec!["driver.mig.nodes=[{\"labels\":{}}]"], "labels"),
        (vec!["scheduler.enabled=true"], "needs mode=Enforce"),
        (
            vec![
                "mode=\"Enforce\"",
                "scheduler.enabled=true",
                "extender.enabled=false",
            ],
            "needs extender.enabled=true",
        ),
        (
            vec![
                "mode=\"Enforce\"",
                "scheduler.enabled=true",
                "schedulerName=\"default-scheduler\"",
            ],
            "name another one",
        ),
        (
            vec!["deviceClasses.gpu.extendedResourceName=\"gpu\""],
            "extendedResourceName",
        ),
        (
            vec![
                "deviceClasses.gpu.extendedResourceName=\"nvidia.com/gpu\"",
                "deviceClasses.create=false",
            ],
            "needs deviceClasses.create=true",
        ),
        (
            vec!["controller.podLabels={\"app.kubernetes.io/name\":\"x\"}"],
            "controller.podLabels names app.kubernetes.io/name",
        ),
        (
            vec!["driver.createNamespace=true"],
            "needs driver.namespace",
        ),
        (
            vec![
                "metrics.podMonitor.enabled=true",
                "metrics.serviceMonitor.enabled=true",
            ],
            "choose one",
        ),
        (
            vec!["test.namespace=\"kube-system\""],
            "excluded from Muster",
        ),
    ] {
        let set: Vec<String> = values.iter().map(|&value| value.to_owned()).collect();
        let refusal = template("muster", "muster-system", &set).unwrap_err();
        assert!(refusal.contains(word), "{values:?}: {refusal}");
    }
}

/// Whether the schema takes the empty text, list or map.
fn may_be_empty(schema: &Value) -> bool {
    match schema["type"].as_str() {
        Some("array" | "object") => true,
        Some("string") => {
            schema["minLength"].as_i64().unwrap_or(0) == 0
                // Patterns that take the empty text say so first.
                && schema["pattern"].as_str().is_none_or(|pattern| pattern.starts_with("^(|"))
        }
        _ => false,
    }
}

/// Names of what has to be there, in each section, by the path of the section.
fn required(root: &Value, schema: &Value, path: &str, found: &mut BTreeMap<String, Vec<String>>) {
    let schema = match schema["$ref"].as_str() {
        Some(reference) => root.pointer(reference.trim_start_matches('#')).unwrap(),
        None => schema,
    };
    let Some(properties) = schema["properties"].as_object() else {
        return;
    };
    let names = schema["required"].as_array().into_iter().flatten();
    let names = names.map(|name| name.as_str().unwrap().to_owned());
    found.insert(path.to_owned(), names.collect());
    for (name, below) in properties {
        let path = format!("{path}.{name}");
        required(root, below, path.trim_start_matches('.'), found);
    }
}

/// Helm drops what is set to null, its default with it, and so does `--reuse-values` with what a former chart did not have. Then a
/// switch would be off, and a path empty, with no word.
#[test]
fn what_is_set_to_null_is_empty_or_refused() {
    let schema = schema();
    let mut sections = BTreeMap::new();
    required(&schema, &schema, "", &mut sections);
    let is_required = |path: &str| {
        let (section, name) = path.rsplit_once('.').unwrap_or(("", path));
        sections[section].iter().any(|required| required == name)
    };
    for section in sections.keys().filter(|section| !section.is_empty()) {
        assert!(is_required(section), "{section}");
    }
    let (mut null, mut empty) = (Vec::new(), Vec::new());
    for leaf in leaves() {
        assert_ne!(
            is_required(&leaf.path),
            may_be_empty(&leaf.schema),
            "{}",
            leaf.path
        );
        if is_required(&leaf.path) {
            continue;
        }
        null.push(format!("{}=null", leaf.path));
        let nothing = match leaf.schema["type"].as_str().unwrap() {
            "string" => "\"\"",
            "array" => "[]",
            // A map that is empty keeps the defaults.
            _ => "null",
        };
        empty.push(format!("{}={nothing}", leaf.path));
    }
    let with = |values: Vec<String>| {
        let everything = [
            "mode=\"Enforce\"",
            "scheduler.enabled=true",
            "networkPolicy.enabled=true",
            "metrics.serviceMonitor.enabled=true",
            "metrics.dashboards.enabled=true",
            "openshift.enabled=true",
        ];
        let everything = everything.map(str::to_owned);
        rendered(&[everything.to_vec(), values].concat())
    };
    let without = with(null);
    assert!(without == with(empty));
    for object in parsed(&without) {
        if object["kind"] != "CustomResourceDefinition" {
            let text = object.to_string();
            assert!(!text.contains(":null"), "{text}");
        }
    }
    let refusal =
        |value: &str| template("muster", "muster-system", &[value.to_owned()]).unwrap_err();
    for (value, name) in [
        ("uninstall.check=null", "check"),
        ("driver.cdiDirectory=null", "cdiDirectory"),
        ("enforce=null", "enforce"),
    ] {
        let refusal = refusal(value);
        let expected = format!("missing property '{name}'");
        assert!(refusal.contains(&expected), "{value}: {refusal}");
    }
}
