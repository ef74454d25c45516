//! What the guides and the chart's README say of the chart is so.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::PathBuf,
};

use serde_json::Value;

use crate::helm::{chart, object, objects, parsed, root, template};

/// The guides.
fn guides() -> Vec<PathBuf> {
    let files = fs::read_dir(root().join("docs")).unwrap();
    let mut files: Vec<PathBuf> = files.map(|file| file.unwrap().path()).collect();
    files.retain(|file| file.extension().is_some_and(|ending| ending == "md"));
    files.sort();
    files
}

/// The blocks of this language in all guides, each with the name of its guide.
fn blocks(language: &str) -> Vec<(String, Value)> {
    let opening = format!("```{language}\n");
    let mut found = Vec::new();
    for guide in guides() {
        let name = guide.file_name().unwrap().to_string_lossy().into_owned();
        let text = fs::read_to_string(&guide).unwrap();
        for block in text.split(&opening).skip(1) {
            let (block, _) = block.split_once("```").unwrap();
            found.push((name.clone(), serde_saphyr::from_str(block).unwrap()));
        }
    }
    found
}

#[test]
fn the_chart_takes_the_values_that_the_guides_say() {
    let all = blocks("yaml values");
    for (guide, values) in &all {
        let values = values.as_object().unwrap().iter();
        let set: Vec<String> = values
            .map(|(name, value)| format!("{name}={value}"))
            .collect();
        let rendered = template("muster", "muster-system", &set);
        rendered.unwrap_or_else(|error| panic!("{guide}: {set:?}: {error}"));
    }
    assert!(all.len() >= 4, "{} blocks of values", all.len());
}

/// Before it exchanges the kernel's driver it takes off a node whoever chooses nodes by that label.
#[test]
fn gpu_operators_driver_manager_is_told_the_label_by_which_the_driver_chooses_nodes() {
    let objects = objects(&[]);
    let driver = object(&objects, "DaemonSet", "muster-driver");
    let selector = &driver["spec"]["template"]["spec"]["nodeSelector"];
    let labels: Vec<&String> = selector.as_object().unwrap().keys().collect();
    let all = blocks("yaml gpu-operator");
    let mut told = Vec::new();
    for (_, values) in &all {
        let variables = values.pointer("/driver/manager/env");
        let variables = variables.and_then(Value::as_array).into_iter().flatten();
        told.extend(
            variables
                .filter(|variable| variable["name"] == "NODE_LABEL_FOR_GPU_POD_EVICTION")
                .map(|variable| variable["value"].as_str().unwrap()),
        );
    }
    assert_eq!(told, labels);
}

/// Which values bring every flag and every variable, one way or another.
const ALL_FLAGS: [&[&str]; 3] = [
    &[
        "mode=\"Enforce\"",
        "scheduler.enabled=true",
        "defaultTeam=\"team\"",
        "exceptedDeviceClasses=[\"class\"]",
        "extender.urlOverride=\"https://extender.example.com:7\"",
    ],
    &[
        "certManager.enabled=true",
        "certManager.issuerRef={\"name\":\"ca\"}",
    ],
    &[
        "driver.toolkitHook=\"/usr/bin/nvidia-cdi-hook\"",
        "driver.nvmlLibrary=\"/usr/lib/libnvidia-ml.so.1\"",
    ],
];

/// Flags that the README says of all programs.
const COMMON: [&str; 3] = ["--admin-addr", "--log-level", "--log-format"];

/// Flags and variables of each program, as containers are started with them.
fn started() -> BTreeMap<String, BTreeSet<String>> {
    let mut found: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    let templates = ALL_FLAGS.iter().flat_map(|values| objects(values));
    for object in templates.filter(|it| ["Deployment", "DaemonSet"].contains(&kind(it))) {
        let container = &object["spec"]["template"]["spec"]["containers"][0];
        let command = container["command"][0].as_str().unwrap_or_default();
        let Some(program) = command.strip_prefix("/muster-") else {
            continue;
        };
        let words = found.entry(format!("muster-{program}")).or_default();
        for argument in container["args"].as_array().unwrap() {
            let flag = argument.as_str().unwrap().split('=').next().unwrap();
            if !COMMON.contains(&flag) {
                words.insert(flag.to_owned());
            }
        }
        for variable in container["env"].as_array().into_iter().flatten() {
            words.insert(variable["name"].as_str().unwrap().to_owned());
        }
    }
    found
}

fn kind(object: &Value) -> &str {
    object["kind"].as_str().unwrap()
}

#[test]
fn the_charts_readme_names_each_flag_and_variable_that_the_chart_sets_and_no_other() {
    let readme = fs::read_to_string(chart().join("README.md")).unwrap();
    let started = started();
    assert_eq!(started.len(), 4, "{:?}", started.keys());
    for (program, expected) in started {
        let row = format!("| {program} | ");
        let row = readme.lines().find_map(|line| line.strip_prefix(&row));
        let row = row.unwrap_or_else(|| panic!("no row of {program}"));
        let quoted = row.split('`').skip(1).step_by(2);
        // `scheduler-config` is what some variables are for.
        let named: BTreeSet<String> = quoted
            .filter(|word| *word != "scheduler-config")
            .map(str::to_owned)
            .collect();
        assert_eq!(named, expected, "{program}");
    }
}

/// Whoever demands labels of everything in the cluster gets them of everything.
#[test]
fn every_object_and_every_pod_has_the_labels_that_all_are_to_have() {
    let values = [
        "commonLabels={\"owner\":\"platform\"}",
        "mode=\"Enforce\"",
        "scheduler.enabled=true",
        "networkPolicy.enabled=true",
        "metrics.serviceMonitor.enabled=true",
        "metrics.prometheusRule.enabled=true",
        "metrics.dashboards.enabled=true",
        "openshift.enabled=true",
        "driver.namespace=\"gpu-drivers\"",
        "driver.createNamespace=true",
        "test.namespace=\"research\"",
    ];
    let values: Vec<String> = values.map(str::to_owned).to_vec();
    let text = template("muster", "muster-system", &values).unwrap();
    let mut pods = 0;
    for object in parsed(&text) {
        let name = &object["metadata"]["name"];
        let has = |metadata: &Value| metadata["labels"]["owner"] == "platform";
        assert!(has(&object["metadata"]), "{} {name}", kind(&object));
        let template = &object["spec"]["template"];
        if template["spec"]["containers"].is_array() {
            pods += 1;
            assert!(has(&template["metadata"]), "pods of {name}");
        }
    }
    assert!(pods > 5, "{pods} templates of pods");
}

/// The lines of a Markdown text that are no code.
fn prose(text: &str) -> Vec<&str> {
    let mut is_code = false;
    let mut lines = Vec::new();
    for line in text.lines() {
        if line.starts_with("```") {
            is_code = !is_code;
        } else if !is_code {
            lines.push(line);
        }
    }
    lines
}

/// The headings of a text, as links name them.
fn anchors(text: &str) -> BTreeSet<String> {
    let headings = prose(text);
    let headings = headings.iter().filter(|line| line.starts_with('#'));
    headings
        .map(|line| {
            let heading = line.trim_start_matches('#').trim().to_lowercase();
            let kept = heading
                .chars()
                .filter(|it| it.is_alphanumeric() || " -_".contains(*it));
            kept.collect::<String>().replace(' ', "-")
        })
        .collect()
}

/// The guides, and what stands in the root and beside the chart.
pub(crate) fn documents() -> Vec<PathBuf> {
    let mut files = guides();
    for name in ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md"] {
        files.push(root().join(name));
    }
    files.push(chart().join("README.md"));
    files
}

/// What a text quotes as code within its lines.
pub(crate) fn quoted(text: &str) -> Vec<&str> {
    let lines = prose(text).into_iter();
    lines
        .flat_map(|line| line.split('`').skip(1).step_by(2))
        .collect()
}

#[test]
fn every_value_of_the_chart_that_a_document_names_exists() {
    let values = fs::read_to_string(chart().join("values.yaml")).unwrap();
    let values: Value = serde_saphyr::from_str(&values).unwrap();
    let mut named = 0;
    for file in documents() {
        let text = fs::read_to_string(&file).unwrap();
        let words = quoted(&text)
            .into_iter()
            .flat_map(|code| code.split([' ', ',']));
        for word in words {
            let path = word.split(['=', ':']).next().unwrap_or_default();
            // Files of the same names have other endings than values have fields.
            let is_path = path
                .chars()
                .all(|it| it.is_ascii_alphanumeric() || it == '.');
            let Some((first, rest)) = path.split_once('.').filter(|_| is_path) else {
                continue;
            };
            if values.get(first).is_some() && rest != "yaml" {
                let pointer = format!("/{}", path.replace('.', "/"));
                let place = format!("{}: {path}", file.display());
                assert!(values.pointer(&pointer).is_some(), "{place}");
                named += 1;
            }
        }
    }
    assert!(named > 100, "{named} values");
}

/// Where names of labels, annotations, gates, finalizers, conditions, resources and taints stand.
const KEYS: [&str; 4] = [
    "api/src/keys.rs",
    "api/src/conditions.rs",
    "dra-driver/src/slices/desired.rs",
    "deploy/helm/muster/values.yaml",
];

#[test]
fn every_key_that_a_document_names_exists() {
    let known = KEYS.map(|file| fs::read_to_string(root().join(file)).unwrap());
    let known = known.concat();
    let mut named = BTreeSet::new();
    for file in documents() {
        let text = fs::read_to_string(&file).unwrap();
        let is_in_key = |it: char| it.is_ascii_alphanumeric() || "./-".contains(it);
        let words = text.split(|it: char| !is_in_key(it));
        for word in words.filter(|word| word.contains("muster.dev/")) {
            // A sentence may end with one, and kubectl takes a label off by a dash behind it.
            let key = word.trim_end_matches(['.', '-']);
            let is_known =
                known.contains(&format!("\"{key}\"")) || known.contains(&format!("{key}: "));
            // A version, of the definitions or of what the driver is told, is none.
            let is_version = key.ends_with("muster.dev/v1alpha1");
            assert!(is_known || is_version, "{}: {key}", file.display());
            named.insert(key.to_owned());
        }
    }
    assert!(named.len() > 15, "{named:?}");
}

#[test]
fn every_link_of_the_documents_leads_to_something() {
    let mut followed = 0;
    for file in documents() {
        let text = fs::read_to_string(&file).unwrap();
        let links = prose(&text).into_iter();
        for rest in links.flat_map(|line| line.split("](").skip(1)) {
            let (link, _) = rest.split_once(')').unwrap();
            if link.starts_with("https://") {
                continue;
            }
            let (path, anchor) = link.split_once('#').unwrap_or((link, ""));
            let target = if path.is_empty() {
                file.clone()
            } else {
                file.parent().unwrap().join(path)
            };
            let place = format!("{}: {link}", file.display());
            assert!(target.exists(), "{place}");
            if !anchor.is_empty() {
                let known = anchors(&fs::read_to_string(&target).unwrap());
                assert!(known.contains(anchor), "{place}: {known:?}");
            }
            followed += 1;
        }
    }
    assert!(followed > 100, "{followed} links");
}
