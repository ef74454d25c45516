//! The examples that users copy are what the webhook takes without a word.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::{fs, path::Path};

use k8s_openapi::api::{batch::v1::Job, core::v1::Pod};
use muster_cluster::managed::ManagedPods;
use muster_webhook::{cache::Cache, finding::Findings, job, pod::PodRules};
use serde_json::Value;

/// The documents of all examples, with their file's name.
fn documents() -> Vec<(String, Value)> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../manifests/examples");
    let mut documents = Vec::new();
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        let text = fs::read_to_string(&path).unwrap();
        for document in text.split("\n---\n") {
            documents.push((name.clone(), serde_saphyr::from_str(document).unwrap()));
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
        scheduler_name: None,
    };
    let mut looked_at = 0;
    for (file, document) in documents() {
        let findings = match document["kind"].as_str() {
            Some("Pod") => {
                let pod: Pod = serde_json::from_value(document).unwrap();
                assert!(rules.managed.is_managed(&pod), "{file}");
                rules.check(&pod, "vision", &facts())
            }
            Some("Job") => {
                let job: Job = serde_json::from_value(document).unwrap();
                job::check(&job, "vision", &facts())
            }
            _ => continue,
        };
        assert_eq!(findings, Findings::default(), "{file}");
        looked_at += 1;
    }
    assert!(looked_at >= 7, "{looked_at} pods and Jobs");
}
