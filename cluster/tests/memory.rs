//! What the index keeps of a pod and of a node, in bytes of this process.
//!
//! The controller is to hold 10,000 nodes and 50,000 gangs in 2 GiB. A pod as the API server sends it takes 5 KiB for the
//! empty fields of its one container and itself alone.

#![expect(clippy::unwrap_used, reason = "a test")]

use std::{collections::BTreeSet, sync::Arc};

use k8s_openapi::api::core::v1::{Node, Pod};
use muster_cluster::{
    index::{Config, Index},
    managed::ManagedPods,
    object::{Change, Object},
};
use serde_json::json;

const OBJECTS: u32 = 20_000;

/// Resident memory of this process in bytes.
fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status
        .lines()
        .find(|line| line.starts_with("VmRSS:"))
        .unwrap();
    let kibibytes: u64 = line.split_whitespace().nth(1).unwrap().parse().unwrap();
    kibibytes * 1024
}

fn index() -> Index {
    Index::new(Config {
        managed: ManagedPods::new(["nvidia.com/gpu"]).unwrap(),
        excluded_namespaces: BTreeSet::new(),
        excepted_device_classes: BTreeSet::new(),
        default_team: None,
        start_timeout_seconds: muster_cluster::index::START_TIMEOUT_SECONDS,
    })
}

/// A pod with the ballast that pods have: managed fields, environment, volumes, probes, statuses.
fn pod(number: u32, claims: bool) -> Pod {
    let env: Vec<_> = (0..30)
        .map(|n| json!({"name": format!("VARIABLE_{n}"), "value": format!("value {n} of pod {number}")}))
        .collect();
    let claims =
        claims.then(|| json!([{"name": "gpus", "resourceClaimName": format!("claim-{number}")}]));
    serde_json::from_value(json!({
        "metadata": {
            "name": format!("pod-{number}"), "namespace": "ml", "uid": format!("00000000-0000-0000-0000-{number:012}"),
            "resourceVersion": number.to_string(), "creationTimestamp": "2026-11-22T00:00:00Z",
            "labels": {"app": "train", "pod-template-hash": "5d9c7b6f4"},
            "annotations": {"kubectl.kubernetes.io/last-applied-configuration": "x".repeat(2000)},
            "managedFields": [{"manager": "kubectl", "operation": "Update", "fieldsV1": {"f:spec": {"f:containers": {"k": "x".repeat(2000)}}}}],
        },
        "spec": {
            "nodeName": format!("node-{}", number % 1000), "resourceClaims": claims,
            "volumes": [{"name": "v", "configMap": {"name": "c"}}],
            "containers": [
                {"name": "main", "image": "registry.example.com/train:1", "env": env,
                    "resources": {"requests": {"cpu": "4", "memory": "16Gi"}}},
                {"name": "log", "image": "registry.example.com/log:1", "resources": {"requests": {"cpu": "1"}}},
            ],
        },
        "status": {"phase": "Running", "containerStatuses": [
            {"name": "main", "image": "i", "imageID": "x".repeat(100), "ready": true, "restartCount": 0},
        ]},
    }))
    .unwrap()
}

fn node(number: u32) -> Node {
    let images: Vec<_> = (0..50)
        .map(|n| json!({"names": [format!("registry.example.com/image-{n}@sha256:{}", "0".repeat(64))], "sizeBytes": 1}))
        .collect();
    serde_json::from_value(json!({
        "metadata": {"name": format!("node-{number}"), "uid": number.to_string(), "resourceVersion": "1",
            "labels": {"kubernetes.io/hostname": format!("node-{number}"), "example.com/leaf": format!("l{}", number / 32)},
            "annotations": {"csi.volume.kubernetes.io/nodeid": "x".repeat(500)}},
        "spec": {"providerID": format!("cloud:///{number}")},
        "status": {"images": images, "allocatable": {"cpu": "128", "memory": "1Ti", "pods": "110"},
            "conditions": [{"type": "Ready", "status": "True", "message": "kubelet is posting ready status"}]},
    }))
    .unwrap()
}

/// Bytes that the index keeps for each object, and the index: what it holds must not be free for the next measurement.
fn kept(object: impl Fn(u32) -> Object) -> (u64, Index) {
    let mut index = index();
    // What the allocator and the index need once is there before the measurement begins.
    for number in 0..1_000 {
        index.observe(Change::Applied(object(number)));
    }
    let before = resident();
    for number in 1_000..1_000 + OBJECTS {
        index.observe(Change::Applied(object(number)));
    }
    let bytes = resident().saturating_sub(before) / u64::from(OBJECTS);
    (bytes, index)
}

#[test]
fn pods_and_nodes_are_kept_in_a_few_kibibytes() {
    let (nodes, _nodes) = kept(|number| Object::Node(Arc::new(node(number))));
    let (others, _others) = kept(|number| Object::Pod(Arc::new(pod(number, false))));
    let (ours, _ours) = kept(|number| Object::Pod(Arc::new(pod(number, true))));
    let report = format!("bytes per pod of others {others}, of ours {ours}, per node {nodes}");
    assert!(nodes > 0, "nothing was measured: {report}");
    assert!(others < 1_536, "{report}");
    assert!(ours < 8_192, "{report}");
    assert!(nodes < 5_120, "{report}");
}
