//! A small cluster for tests: objects written as JSON, as users write them.

use std::{ops::Range, sync::Arc};

use serde_json::{Value, json};

use crate::{
    formed::{FormedGang, GangKey},
    index::{Config, Index},
    managed::ManagedPods,
    managed_cases::MANAGED_CASES_RESOURCES,
    object::{Change, Kind, Object, ObjectKey},
};
use muster_engine::Timestamp;

/// Configuration of the tests: network cards are excepted, kube-system is excluded.
pub(crate) fn config() -> Config {
    Config {
        managed: ManagedPods::new(MANAGED_CASES_RESOURCES).unwrap(),
        excluded_namespaces: ["kube-system".to_owned()].into(),
        excepted_device_classes: ["nic.example.com".to_owned()].into(),
        default_team: None,
        start_timeout_seconds: crate::index::START_TIMEOUT_SECONDS,
    }
}

/// An object from its JSON; `kind` says which.
pub(crate) fn object(value: Value) -> Object {
    fn of<V: serde::de::DeserializeOwned>(value: Value) -> Arc<V> {
        let text = value.to_string();
        Arc::new(serde_json::from_value(value).unwrap_or_else(|error| panic!("{error}: {text}")))
    }
    let kind = value["kind"].as_str().unwrap_or_default().to_owned();
    match kind.as_str() {
        "Cohort" => Object::Cohort(of(value)),
        "DeviceClass" => Object::DeviceClass(of(value)),
        "DeviceTaintRule" => Object::DeviceTaintRule(of(value)),
        "Flavor" => Object::Flavor(of(value)),
        "Gang" => Object::Gang(of(value)),
        "Job" => Object::Job(of(value)),
        "Namespace" => Object::Namespace(of(value)),
        "Node" => Object::Node(of(value)),
        "NodeDevices" => Object::NodeDevices(of(value)),
        "Pod" => Object::Pod(of(value)),
        "PriorityTier" => Object::PriorityTier(of(value)),
        "ResourceClaim" => Object::ResourceClaim(of(value)),
        "ResourceSlice" => Object::ResourceSlice(of(value)),
        "Team" => Object::Team(of(value)),
        "Topology" => Object::Topology(of(value)),
        other => panic!("no kind {other}"),
    }
}

/// That an object is as given.
pub(crate) fn is(value: Value) -> Change {
    Change::Applied(object(value))
}

/// That an object of a namespace is gone.
pub(crate) fn gone(kind: Kind, namespace: &str, name: &str) -> Change {
    Change::Deleted(ObjectKey {
        kind,
        namespace: namespace.to_owned(),
        name: name.to_owned(),
    })
}

/// Sets one field by its JSON pointer; missing objects on the way are made.
pub(crate) fn with(mut value: Value, pointer: &str, field: Value) -> Value {
    let mut at = &mut value;
    for part in pointer.trim_start_matches('/').split('/') {
        let part = part.replace("~1", "/");
        at = match part.parse::<usize>() {
            Ok(index) if at.is_array() => &mut at[index],
            _ => &mut at[part.as_str()],
        };
    }
    *at = field;
    value
}

/// A time, some seconds after the tests' beginning.
pub(crate) fn time(second: u32) -> String {
    format!(
        "2026-11-21T{:02}:{:02}:{:02}Z",
        second / 3600,
        second / 60 % 60,
        second % 60
    )
}

pub(crate) fn team(name: &str) -> Value {
    json!({
        "apiVersion": "muster.dev/v1alpha1", "kind": "Team",
        "metadata": {"name": name, "uid": format!("team-{name}"), "generation": 1},
        "spec": {"quota": [{"flavor": "h100", "resources": [{"name": "gpus", "nominal": 16}]}]},
    })
}

pub(crate) fn namespace(name: &str, team: Option<&str>) -> Value {
    let labels = team.map(|team| json!({"muster.dev/team": team}));
    json!({
        "apiVersion": "v1", "kind": "Namespace",
        "metadata": {"name": name, "uid": format!("namespace-{name}"), "labels": labels},
    })
}

pub(crate) fn tier(name: &str, value: i32, default: bool) -> Value {
    json!({
        "apiVersion": "muster.dev/v1alpha1", "kind": "PriorityTier",
        "metadata": {"name": name, "uid": format!("tier-{name}")},
        "spec": {"value": value, "default": default},
    })
}

pub(crate) fn flavor(name: &str) -> Value {
    json!({
        "apiVersion": "muster.dev/v1alpha1", "kind": "Flavor",
        "metadata": {"name": name, "uid": format!("flavor-{name}")},
        "spec": {"topology": "fabric"},
    })
}

pub(crate) fn topology() -> Value {
    json!({
        "apiVersion": "muster.dev/v1alpha1", "kind": "Topology",
        "metadata": {"name": "fabric", "uid": "topology-fabric"},
        "spec": {"fabric": [
            {"name": "spine", "nodeLabel": "example.com/spine"},
            {"name": "leaf", "nodeLabel": "example.com/leaf"},
        ]},
    })
}

pub(crate) fn device_class() -> Value {
    json!({
        "apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass",
        "metadata": {"name": "gpu.muster.dev", "uid": "class-gpu"},
        "spec": {"selectors": [{"cel": {"expression": "device.driver == 'gpu.muster.dev'"}}]},
    })
}

/// A pod of namespace `ml` that waits at our gate, with one claim made for it.
pub(crate) fn pod(name: &str, second: u32) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {
            "name": name, "namespace": "ml", "uid": format!("uid-{name}"), "creationTimestamp": time(second),
            "labels": {}, "annotations": {},
        },
        "spec": {
            "schedulingGates": [{"name": "muster.dev/admission"}],
            "containers": [{"name": "main", "resources": {
                "requests": {"cpu": "4", "memory": "16Gi"}, "limits": {"muster.dev/managed": "0"},
            }}],
            "resourceClaims": [{"name": "gpus", "resourceClaimTemplateName": "eight"}],
        },
        "status": {"phase": "Pending", "resourceClaimStatuses": [
            {"name": "gpus", "resourceClaimName": format!("{name}-gpus")},
        ]},
    })
}

/// The pod as a member of a gang by label.
pub(crate) fn member(name: &str, second: u32, gang: &str, size: &str) -> Value {
    let pod = with(
        pod(name, second),
        "/metadata/labels",
        json!({"muster.dev/gang": gang}),
    );
    with(
        pod,
        "/metadata/annotations",
        json!({"muster.dev/gang-size": size}),
    )
}

/// The claim that was made for a pod of [`pod`].
pub(crate) fn claim(of_pod: &str, count: u32) -> Value {
    json!({
        "apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim",
        "metadata": {
            "name": format!("{of_pod}-gpus"), "namespace": "ml", "uid": format!("claim-{of_pod}"),
            "ownerReferences": [{"apiVersion": "v1", "kind": "Pod", "name": of_pod, "uid": format!("uid-{of_pod}"), "controller": true}],
        },
        "spec": {"devices": {"requests": [
            {"name": "gpu", "exactly": {"deviceClassName": "gpu.muster.dev", "allocationMode": "ExactCount", "count": count}},
        ]}},
    })
}

/// The Job of namespace `ml`, Indexed, with all its ranks at once.
pub(crate) fn indexed_job(name: &str, ranks: u32) -> Value {
    json!({
        "apiVersion": "batch/v1", "kind": "Job",
        "metadata": {"name": name, "namespace": "ml", "uid": format!("job-{name}"), "labels": {}, "annotations": {}},
        "spec": {"completionMode": "Indexed", "completions": ranks, "parallelism": ranks,
            "template": {"spec": {"containers": []}}},
        "status": {},
    })
}

/// A pod of a Job of [`indexed_job`].
pub(crate) fn rank_of(job: &str, index: u32, second: u32) -> Value {
    let pod = pod(&format!("{job}-{index}-x{second}"), second);
    let pod = with(
        pod,
        "/metadata/ownerReferences",
        json!([owner("batch/v1", "Job", job, &format!("job-{job}"))]),
    );
    with(
        pod,
        "/metadata/annotations",
        json!({"batch.kubernetes.io/job-completion-index": index.to_string()}),
    )
}

pub(crate) fn owner(api_version: &str, kind: &str, name: &str, uid: &str) -> Value {
    json!({"apiVersion": api_version, "kind": kind, "name": name, "uid": uid, "controller": true, "blockOwnerDeletion": true})
}

/// A Ready node in a spine and a leaf.
pub(crate) fn node(name: &str, spine: &str, leaf: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Node",
        "metadata": {"name": name, "uid": format!("node-{name}"), "labels": {
            "example.com/spine": spine, "example.com/leaf": leaf, "kubernetes.io/hostname": name,
        }},
        "spec": {},
        "status": {
            "conditions": [{"type": "Ready", "status": "True"}],
            "allocatable": {"cpu": "128", "memory": "1Ti", "pods": "110"},
        },
    })
}

/// The slice of a node with so many GPUs.
pub(crate) fn slice(node: &str, gpus: u32) -> Value {
    let devices: Vec<Value> = (0..gpus)
        .map(|index| {
            json!({
                "name": format!("gpu-{index}"),
                "attributes": {
                    "productName": {"string": "NVIDIA H100 80GB HBM3"},
                    "uuid": {"string": format!("GPU-{node}-{index}")},
                    "nvlinkGroup": {"string": "0"},
                    "driverVersion": {"version": "580.95.5"},
                    "resource.kubernetes.io/numaNode": {"int": index / 4},
                },
                "capacity": {"memory": {"value": "80Gi"}},
            })
        })
        .collect();
    json!({
        "apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice",
        "metadata": {"name": format!("00000-gpu.muster.dev-{node}-x"), "uid": format!("slice-{node}")},
        "spec": {"driver": "gpu.muster.dev", "nodeName": node, "devices": devices,
            "pool": {"name": node, "generation": 1, "resourceSliceCount": 1}},
    })
}

/// The slices of a node with so many GPUs of eight memory slices and seven compute slices each, and of each GPU itself, seven small
/// partitions and two large ones. The first slice has the counters.
pub(crate) fn partitioned(node: &str, gpus: u32) -> Vec<Value> {
    let slice = |number: u32, content: &str, of: Value| {
        let mut slice = json!({
            "apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice",
            "metadata": {"name": format!("{number:05}-gpu.muster.dev-{node}-x"), "uid": format!("slice-{node}-{number}")},
            "spec": {"driver": "gpu.muster.dev", "nodeName": node,
                "pool": {"name": node, "generation": 1, "resourceSliceCount": gpus + 1}},
        });
        slice["spec"][content] = of;
        slice
    };
    let counters = |memory: Range<u32>, compute: u32| {
        let mut counters = json!({"compute-slices": {"value": compute.to_string()}});
        for memory in memory {
            counters[format!("memory-slice-{memory}")] = json!({"value": "1"});
        }
        counters
    };
    let sets: Vec<Value> = (0..gpus)
        .map(|gpu| json!({"name": format!("gpu-{gpu}"), "counters": counters(0..8, 7)}))
        .collect();
    let mut slices = vec![slice(0, "sharedCounters", json!(sets))];
    for gpu in 0..gpus {
        let device = |name: String, kind: &str, profile: &str, gibibytes: u32, of: Value| {
            json!({
                "name": name,
                "attributes": {
                    "type": {"string": kind},
                    "profile": {"string": profile},
                    "productName": {"string": "NVIDIA H100 80GB HBM3"},
                    "parentUUID": {"string": format!("GPU-{node}-{gpu}")},
                },
                "capacity": {"memory": {"value": format!("{gibibytes}Gi")}},
                "consumesCounters": [{"counterSet": format!("gpu-{gpu}"), "counters": of}],
            })
        };
        let whole = format!("gpu-{gpu}");
        let mut devices = vec![device(whole, "gpu", "whole", 80, counters(0..8, 7))];
        devices.extend((0..7).map(|start| {
            let name = format!("gpu-{gpu}-mig-1g10gb-{start}");
            device(name, "mig", "1g.10gb", 10, counters(start..start + 1, 1))
        }));
        devices.extend([0, 4].map(|start| {
            let name = format!("gpu-{gpu}-mig-3g40gb-{start}");
            device(name, "mig", "3g.40gb", 40, counters(start..start + 4, 3))
        }));
        slices.push(slice(gpu + 1, "devices", json!(devices)));
    }
    slices
}

/// The NodeDevices of a node whose driver has answered.
pub(crate) fn node_devices(node: &str) -> Value {
    json!({
        "apiVersion": "muster.dev/v1alpha1", "kind": "NodeDevices",
        "metadata": {"name": node, "uid": format!("nd-{node}"), "generation": 1},
        "spec": {"nodeUid": format!("node-{node}"), "leaderEpoch": 1, "enforce": true},
        "status": {"uid": format!("nd-{node}"), "observedGeneration": 1},
    })
}

/// A Gang as its protocol made it.
pub(crate) fn gang(name: &str, size: u32, phase: &str) -> Value {
    json!({
        "apiVersion": "muster.dev/v1alpha1", "kind": "Gang",
        "metadata": {"name": name, "namespace": "ml", "uid": format!("gang-{name}"), "labels": {}, "creationTimestamp": time(1)},
        "spec": {"size": size},
        "status": {"phase": phase, "attempt": 1},
    })
}

/// The Gang admitted with these pods.
pub(crate) fn admitted(gang: Value, pods: &[&str]) -> Value {
    let pods: Vec<Value> = pods
        .iter()
        .map(|pod| json!({"uid": format!("uid-{pod}")}))
        .collect();
    let admission = json!({
        "team": "research", "teamGeneration": 1, "ledgerSequence": 1, "charge": {}, "pods": pods,
    });
    with(gang, "/status/admission", admission)
}

/// The objects that every test has: Team `research` with namespace `ml`, tiers, a Flavor, a Topology,
/// a DeviceClass, and two nodes of two GPUs.
pub(crate) fn background() -> Vec<Change> {
    let mut objects = vec![
        team("research"),
        namespace("ml", Some("research")),
        tier("standard", 100, true),
        tier("critical", 1000, false),
        flavor("h100"),
        topology(),
        device_class(),
    ];
    for name in ["a", "b"] {
        objects.extend([node(name, "s1", "l1"), slice(name, 2), node_devices(name)]);
    }
    objects.into_iter().map(is).collect()
}

/// An index that has observed the background and these objects.
pub(crate) fn index_with(objects: impl IntoIterator<Item = Value>) -> Index {
    let mut index = Index::new(config());
    for change in background().into_iter().chain(objects.into_iter().map(is)) {
        index.observe(change);
    }
    settle(&mut index);
    index
}

/// Refreshes until nothing is left to derive.
pub(crate) fn settle(index: &mut Index) {
    while index.refresh(Timestamp(0)).more {}
}

/// The only gang of the index.
pub(crate) fn only_gang(index: &Index) -> &FormedGang {
    let mut gangs = index.formed_gangs();
    let first = gangs.next().expect("one gang");
    assert_eq!(
        gangs.next().map(|gang| &gang.key),
        None,
        "beside {}",
        first.key
    );
    first
}

/// Key of a gang of namespace `ml`.
pub(crate) fn key(name: &str) -> GangKey {
    GangKey::new("ml", name)
}
