//! How long a takeover takes, and what memory, at a given size.
//!
//! `cargo run --release -p muster-controller --example takeover -- NODES GANGS` serves a cluster of so many nodes (eight
//! GPUs each) and so many waiting gangs in 1,000 Teams over real HTTP from this very process, has a leader take it over,
//! and prints one line of JSON: `takeoverSeconds` (from the lease to the first decision), `peakMemoryMiB` (of the whole
//! process, which makes each page of objects as it is asked for and keeps none), and the phases. `cpuSeconds` counts the
//! serving side too; on a machine that others use it says more than the time that passed.

#[path = "../tests/fake_cluster/mod.rs"]
mod fake_cluster;
#[path = "../tests/fake_cluster/leading.rs"]
mod leading;

use std::{io::Write, time::Duration};

use fake_cluster::{FakeCluster, Make};
use leading::{take_over, value};
use serde_json::{Value, json};

const TEAMS: usize = 1_000;
const GPUS_PER_NODE: usize = 8;
const LIMIT: Duration = Duration::from_secs(600);

#[tokio::main(worker_threads = 4)]
async fn main() {
    let mut arguments = std::env::args().skip(1).map(|text| text.parse::<usize>());
    let mut next = |default| {
        arguments
            .next()
            .map_or(default, |size| size.unwrap_or(default))
    };
    let (nodes, gangs) = (next(10_000), next(50_000));
    let cluster = FakeCluster::new([
        ("/api/v1/nodes", nodes, Box::new(node) as Make),
        (
            "/apis/resource.k8s.io/v1/resourceslices",
            nodes,
            Box::new(slice),
        ),
        (
            "/apis/muster.dev/v1alpha1/nodedevices",
            nodes,
            Box::new(node_devices),
        ),
        ("/api/v1/namespaces", TEAMS, Box::new(namespace)),
        ("/apis/muster.dev/v1alpha1/teams", TEAMS, Box::new(team)),
        (
            "/apis/muster.dev/v1alpha1/flavors",
            1,
            Box::new(|_| json!({"metadata": metadata("gpus"), "spec": {}})),
        ),
        (
            "/apis/muster.dev/v1alpha1/prioritytiers",
            1,
            Box::new(
                |_| json!({"metadata": metadata("standard"), "spec": {"value": 100, "default": true}}),
            ),
        ),
        (
            "/apis/resource.k8s.io/v1/deviceclasses",
            1,
            Box::new(|_| {
                json!({"metadata": metadata("gpu.muster.dev"), "spec": {"selectors": [
                {"cel": {"expression": "device.driver == 'gpu.muster.dev'"}}]}})
            }),
        ),
        ("/api/v1/pods", gangs, Box::new(pod)),
        (
            "/apis/resource.k8s.io/v1/resourceclaims",
            gangs,
            Box::new(claim),
        ),
        ("/apis/muster.dev/v1alpha1/gangs", gangs, Box::new(gang)),
    ]);
    let (took, metrics) = take_over(cluster.serve().await, LIMIT).await;
    let phase = |name: &str| {
        value(
            &metrics,
            &format!("muster_takeover_seconds{{phase=\"{name}\"}}"),
        )
        .unwrap_or_default()
    };
    let line = json!({
        "nodes": nodes, "gangs": gangs, "teams": TEAMS,
        "takeoverSeconds": took.as_secs_f64(),
        "raiseEpochSeconds": phase("raise-epoch"),
        "readAllSeconds": phase("read-all"),
        "firstDecisionSeconds": phase("first-decision"),
        "cpuSeconds": value(&metrics, "process_cpu_seconds_total"),
        "peakMemoryMiB": peak_memory_mib(),
    });
    let mut out = std::io::stdout().lock();
    let _ = writeln!(out, "{line}");
}

fn metadata(name: &str) -> Value {
    json!({"name": name, "uid": format!("uid-{name}"), "resourceVersion": "5", "generation": 1})
}

fn within(number: usize, name: &str) -> Value {
    let mut metadata = metadata(name);
    metadata["namespace"] = json!(format!("lab-{}", number % TEAMS));
    metadata["creationTimestamp"] = json!("2026-01-01T00:00:00Z");
    metadata
}

fn node(number: usize) -> Value {
    let mut metadata = metadata(&format!("node-{number}"));
    metadata["labels"] = json!({
        "kubernetes.io/hostname": format!("node-{number}"),
        "topology.kubernetes.io/rack": format!("rack-{}", number / 16),
    });
    json!({"metadata": metadata, "spec": {"podCIDR": "10.0.0.0/24"}, "status": {
        "allocatable": {"cpu": "128", "memory": "2Ti", "pods": "110"},
        "conditions": [{"type": "Ready", "status": "True"}],
        "images": (0..30).map(|image| json!({
            "names": [format!("registry.example.com/team/image-{image}@sha256:{image:064}")],
            "sizeBytes": 1_000_000,
        })).collect::<Vec<_>>(),
    }})
}

fn slice(number: usize) -> Value {
    let node = format!("node-{number}");
    let devices: Vec<Value> = (0..GPUS_PER_NODE)
        .map(|gpu| {
            json!({"name": format!("gpu-{gpu}"), "capacity": {"memory": {"value": "80Gi"}},
            "attributes": {
                "uuid": {"string": format!("GPU-{number:08}-{gpu:04}")},
                "productName": {"string": "NVIDIA H100 80GB HBM3"},
                "nvlinkGroup": {"string": format!("{node}-all")},
            }})
        })
        .collect();
    json!({"metadata": metadata(&format!("{node}-slice")), "spec": {
        "driver": "gpu.muster.dev", "nodeName": node, "devices": devices,
        "pool": {"name": node, "generation": 1, "resourceSliceCount": 1},
    }})
}

/// Acknowledged, and held by nobody.
fn node_devices(number: usize) -> Value {
    let node = format!("node-{number}");
    json!({"metadata": metadata(&node),
        "spec": {"nodeUid": format!("uid-{node}"), "leaderEpoch": 0},
        "status": {"uid": format!("uid-{node}"), "observedGeneration": 1}})
}

fn namespace(number: usize) -> Value {
    let mut metadata = metadata(&format!("lab-{number}"));
    metadata["labels"] = json!({"muster.dev/team": format!("team-{number}")});
    json!({"metadata": metadata})
}

fn team(number: usize) -> Value {
    json!({"metadata": metadata(&format!("team-{number}")), "spec": {"quota": [
        {"flavor": "gpus", "resources": [{"name": "gpus", "nominal": "80"}]}]}})
}

/// A pod as a framework makes it: a few KiB, most of which nobody here reads.
fn pod(number: usize) -> Value {
    let mut metadata = within(number, &format!("train-{number}"));
    metadata["labels"] = json!({"app": "train", "team": "vision"});
    metadata["ownerReferences"] = json!([{"apiVersion": "example.com/v1", "kind": "Train",
        "name": "train", "uid": format!("uid-owner-{number}"), "controller": true}]);
    let environment: Vec<Value> = (0..40)
        .map(|variable| json!({"name": format!("VARIABLE_{variable}"), "value": "x".repeat(40)}))
        .collect();
    json!({"metadata": metadata, "spec": {
        "schedulingGates": [{"name": "muster.dev/admission"}],
        "schedulerName": "default-scheduler",
        "resourceClaims": [{"name": "gpu", "resourceClaimName": format!("claim-{number}")}],
        "containers": [{
            "name": "train", "image": "registry.example.com/train", "env": environment,
            "resources": {"requests": {"cpu": "8", "memory": "64Gi"}, "claims": [{"name": "gpu"}]},
        }],
    }, "status": {"phase": "Pending"}})
}

/// A whole node and one GPU more than there are: nothing is admitted, all wait.
fn claim(number: usize) -> Value {
    json!({"metadata": within(number, &format!("claim-{number}")), "spec": {"devices": {"requests": [
        {"name": "gpu", "exactly": {
            "deviceClassName": "gpu.muster.dev", "allocationMode": "ExactCount", "count": 9}}]}}})
}

fn gang(number: usize) -> Value {
    json!({"metadata": within(number, &format!("pod-train-{number}")),
        "spec": {"size": 1, "startTimeoutSeconds": 600},
        "status": {"phase": "Pending", "attempt": 1}})
}

/// The most memory that this process ever had, in MiB.
fn peak_memory_mib() -> f64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mut lines = status.lines();
    let peak = lines.find_map(|line| line.strip_prefix("VmHWM:")?.strip_suffix("kB"));
    peak.and_then(|kib| kib.trim().parse::<f64>().ok())
        .map_or(0.0, |kib| kib / 1024.0)
}
