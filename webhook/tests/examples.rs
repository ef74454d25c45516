//! What users and administrators copy (examples, the manifests of docs/pods, the YAML of the guides) has no field that nobody knows,
//! and the webhook takes the examples and the guides' without a word.

#![expect(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

use std::{
    fs,
    path::{Path, PathBuf},
};

use k8s_openapi::api::{
    apps::v1::{Deployment, StatefulSet},
    batch::v1::{CronJob, Job},
    core::v1::{Namespace, Pod},
    resource::v1::{DeviceTaintRule, ResourceClaim, ResourceClaimTemplate},
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use muster_api::{Cohort, FaultPolicy, Flavor, PriorityTier, Team, Topology};
use muster_cluster::managed::ManagedPods;
use muster_webhook::{cache::Cache, fault_policy, finding::Findings, job, pod::PodRules};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::Value;

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// The files of a directory whose names end so, in the order of their names.
fn files(directory: &str, ending: &str) -> Vec<PathBuf> {
    let entries = fs::read_dir(repository().join(directory)).unwrap();
    let mut files: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
    files.retain(|file| file.extension().is_some_and(|it| it == ending));
    files.sort();
    files
}

/// The documents of a YAML text, each with the name of where it is from.
fn parsed(place: &Path, text: &str) -> Vec<(String, Value)> {
    let name = place.file_name().unwrap().to_string_lossy().into_owned();
    let documents = text.split("\n---\n").map(|document| {
        serde_saphyr::from_str(document)
            .unwrap_or_else(|error| panic!("{name}: {error}\n{document}"))
    });
    documents.map(|document| (name.clone(), document)).collect()
}

/// The documents of the files of a directory.
fn of_directory(directory: &str) -> Vec<(String, Value)> {
    let files = files(directory, "yaml");
    let all = files
        .iter()
        .map(|file| parsed(file, &fs::read_to_string(file).unwrap()));
    all.flatten().collect()
}

/// The documents of the blocks of objects in the README and the guides. A block in another language than `yaml` is none: `yaml values`
/// are values of the chart.
fn of_guides() -> Vec<(String, Value)> {
    let mut documents = Vec::new();
    for guide in [files("docs", "md"), vec![repository().join("README.md")]].concat() {
        let text = fs::read_to_string(&guide).unwrap();
        for block in text.split("```yaml\n").skip(1) {
            let (block, _) = block.split_once("\n```").unwrap();
            documents.extend(parsed(&guide, block));
        }
    }
    documents
}

/// An administrator has made what the examples name.
fn facts() -> Cache {
    Cache {
        tiers: ["standard".to_owned()].into(),
        levels_of_topology: [("fabric".to_owned(), vec!["leaf".to_owned()])].into(),
        ..Cache::default()
    }
}

#[test]
fn every_example_passes_the_webhook() {
    let rules = PodRules {
        managed: ManagedPods::new(["nvidia.com/gpu"]).unwrap(),
        extender: true,
        void_devices: true,
        excepted_namespaces: [].into(),
        scheduler_name: None,
    };
    let mut looked_at = 0;
    for (file, document) in [of_directory("manifests/examples"), of_guides()].concat() {
        let findings = match document["kind"].as_str() {
            Some("Pod") => {
                let pod: Pod = serde_json::from_value(document).unwrap();
                assert!(rules.managed.is_managed(&pod), "{file}");
                rules.check(&pod, "vision", &facts())
            }
            Some("Job") => {
                let job: Job = serde_json::from_value(document).unwrap();
                let pod = pod_of(&job);
                assert!(rules.managed.is_managed(&pod), "{file}: its pods");
                let of_pods = rules.check(&pod, "vision", &facts());
                assert_eq!(of_pods, Findings::default(), "{file}: its pods");
                job::check(&job, "vision", &facts())
            }
            Some("FaultPolicy") => {
                let policy: FaultPolicy = serde_json::from_value(document).unwrap();
                fault_policy::check(&policy, None)
            }
            _ => continue,
        };
        assert_eq!(findings, Findings::default(), "{file}");
        looked_at += 1;
    }
    assert!(looked_at >= 10, "{looked_at} pods and Jobs");
}

/// A pod as the Job controller makes it.
fn pod_of(job: &Job) -> Pod {
    let template = &job.spec.as_ref().unwrap().template;
    let owner = OwnerReference {
        api_version: "batch/v1".to_owned(),
        kind: "Job".to_owned(),
        controller: Some(true),
        ..OwnerReference::default()
    };
    Pod {
        metadata: ObjectMeta {
            owner_references: Some(vec![owner]),
            ..template.metadata.clone().unwrap_or_default()
        },
        spec: template.spec.clone(),
        status: None,
    }
}

/// Nobody refuses a label or an annotation that is misspelt.
#[test]
fn every_key_of_ours_in_what_is_copied_exists() {
    let known = fs::read_to_string(repository().join("api/src/keys.rs")).unwrap();
    let all = ["manifests/examples", "docs/pods"].map(of_directory);
    let mut looked_at = 0;
    for (file, document) in [all.concat(), of_guides()].concat() {
        for key in keys_of(&document) {
            assert!(known.contains(&format!("{key:?}")), "{file}: {key}");
            looked_at += 1;
        }
    }
    assert!(looked_at >= 40, "{looked_at} labels and annotations");
}

/// The labels and annotations of ours in an object and in the templates in it.
fn keys_of(value: &Value) -> Vec<&str> {
    match value {
        Value::Object(fields) => {
            let maps = ["labels", "annotations"].map(|name| fields.get(name)?.as_object());
            let keys = maps.into_iter().flatten().flat_map(serde_json::Map::keys);
            let ours = keys.filter(|key| key.starts_with("muster.dev/"));
            let mut found: Vec<&str> = ours.map(String::as_str).collect();
            found.extend(fields.values().flat_map(keys_of));
            found
        }
        Value::Array(items) => items.iter().flat_map(keys_of).collect(),
        _ => Vec::new(),
    }
}

#[test]
fn every_field_of_what_is_copied_exists() {
    let all = ["manifests/examples", "docs/pods"].map(of_directory);
    let mut looked_at = 0;
    for (file, document) in [all.concat(), of_guides()].concat() {
        let Some(kind) = document["kind"].as_str() else {
            // Lines to be added to a pod.
            assert!(document["metadata"].is_object(), "{file}: {document}");
            continue;
        };
        let read = match kind {
            "Pod" => typed::<Pod>(&document),
            "Job" => typed::<Job>(&document),
            "CronJob" => typed::<CronJob>(&document),
            "Deployment" => typed::<Deployment>(&document),
            "StatefulSet" => typed::<StatefulSet>(&document),
            "Namespace" => typed::<Namespace>(&document),
            "ResourceClaim" => typed::<ResourceClaim>(&document),
            "DeviceTaintRule" => typed::<DeviceTaintRule>(&document),
            "ResourceClaimTemplate" => typed::<ResourceClaimTemplate>(&document),
            "Team" => typed::<Team>(&document),
            "Cohort" => typed::<Cohort>(&document),
            "FaultPolicy" => typed::<FaultPolicy>(&document),
            "Flavor" => typed::<Flavor>(&document),
            "PriorityTier" => typed::<PriorityTier>(&document),
            "Topology" => typed::<Topology>(&document),
            other => panic!("{file}: no test knows the kind {other}"),
        };
        let read = read.unwrap_or_else(|error| panic!("{file}: {error}\n{document}"));
        if let Some(lost) = lost(&document, &read) {
            panic!("{file}: a {kind} has no field {lost}");
        }
        looked_at += 1;
    }
    assert!(looked_at >= 60, "{looked_at} objects");
}

#[test]
fn a_field_that_is_misspelt_is_found() {
    let team = serde_json::json!({"apiVersion": "muster.dev/v1alpha1", "kind": "Team", "metadata": {"name": "t"},
        "spec": {"quota": [{"flavor": "f", "resources": [{"name": "gpus", "nominals": 1}]}]}});
    let read = typed::<Team>(&team).unwrap();
    assert_eq!(
        lost(&team, &read).as_deref(),
        Some(".spec.quota[0].resources[0].nominals")
    );
}

/// What is left of an object that was read by its type.
fn typed<T: DeserializeOwned + Serialize>(document: &Value) -> Result<Value, String> {
    let read: T = serde_json::from_value(document.clone()).map_err(|error| error.to_string())?;
    serde_json::to_value(read).map_err(|error| error.to_string())
}

/// The path of the first field that is not in what was read.
fn lost(written: &Value, read: &Value) -> Option<String> {
    match (written, read) {
        (Value::Object(fields), _) => {
            fields
                .iter()
                .find_map(|(name, value)| match read.get(name) {
                    Some(read) => lost(value, read).map(|path| format!(".{name}{path}")),
                    None if is_empty(value) => None,
                    None => Some(format!(".{name}")),
                })
        }
        (Value::Array(items), Value::Array(read)) => {
            let mut pairs = items.iter().zip(read).enumerate();
            pairs.find_map(|(index, (item, read))| {
                lost(item, read).map(|path| format!("[{index}]{path}"))
            })
        }
        _ => None,
    }
}

/// What need not be written.
fn is_empty(value: &Value) -> bool {
    value.as_object().is_some_and(serde_json::Map::is_empty)
}
