//! Nodes, their devices, and what the cluster has one of.

use std::sync::Arc;

use muster_api::{LedgerSpec, keys};
use muster_cluster::object::{Kind, Object};
use serde_json::{Value, json};

use super::{
    Cluster, Collection, GPUS_PER_NODE, LARGE_NODE_BYTES, SMALL_NODE_BYTES, is_large, pods,
};

pub(super) const FLAVOR: &str = "h100";
const TOPOLOGY: &str = "fabric";
const SPINE_LABEL: &str = "example.com/spine";
const LEAF_LABEL: &str = "example.com/leaf";
/// Where the API server has the Ledger.
pub(crate) const LEDGERS: &str = "/apis/muster.dev/v1alpha1/ledgers";
const NODES_PER_LEAF: usize = 32;
const LEAVES_PER_SPINE: usize = 20;

/// An object of the types that the controller works with.
pub(crate) fn object(kind: Kind, value: Value) -> serde_json::Result<Object> {
    macro_rules! parse {
        ($($kind:ident: $scope:ident $collection:ident $status:ident;)*) => {
            match kind {
                $(Kind::$kind => Object::$kind(Arc::new(serde_json::from_value(value)?)),)*
            }
        };
    }
    Ok(muster_cluster::for_each_kind!(parse))
}

pub(super) fn metadata(name: &str) -> Value {
    json!({"name": name, "uid": format!("uid-{name}"), "resourceVersion": "5", "generation": 1})
}

/// The name of a node.
pub(crate) fn node_name(node: usize) -> String {
    format!("node-{node:05}")
}

/// The name of a device.
pub(crate) fn device_name(gpu: usize) -> String {
    format!("gpu-{gpu}")
}

/// The Node of that number.
pub(crate) fn node(number: usize) -> Value {
    let (mut metadata, leaf) = (metadata(&node_name(number)), number / NODES_PER_LEAF);
    metadata["labels"] = json!({
        "kubernetes.io/hostname": node_name(number),
        SPINE_LABEL: format!("spine-{:03}", leaf / LEAVES_PER_SPINE),
        LEAF_LABEL: format!("leaf-{leaf:04}"),
    });
    let memory = if is_large(number) {
        LARGE_NODE_BYTES
    } else {
        SMALL_NODE_BYTES
    };
    json!({"metadata": metadata, "spec": {"podCIDR": "10.0.0.0/24"}, "status": {
        "allocatable": {"cpu": "192", "memory": memory.to_string(), "pods": "250"},
        "conditions": [{"type": "Ready", "status": "True"}],
        "images": (0..30).map(|image| json!({
            "names": [format!("registry.example.com/team/image-{image}@sha256:{image:064}")],
            "sizeBytes": 1_000_000,
        })).collect::<Vec<_>>(),
    }})
}

/// The Ledger as the leader before left it.
pub(crate) fn ledger_spec() -> LedgerSpec {
    LedgerSpec {
        leader_epoch: 1,
        sequence: 1,
        ..LedgerSpec::default()
    }
}

fn ledger() -> Value {
    json!({"apiVersion": "muster.dev/v1alpha1", "kind": "Ledger",
        "metadata": metadata(keys::LEDGER_NAME), "spec": ledger_spec()})
}

fn slice(number: usize) -> Value {
    let node = node_name(number);
    let devices: Vec<Value> = (0..GPUS_PER_NODE)
        .map(|gpu| {
            json!({"name": device_name(gpu), "capacity": {"memory": {"value": "80Gi"}}, "attributes": {
                "uuid": {"string": format!("GPU-{number:08}-{gpu:04}")},
                "productName": {"string": "NVIDIA H100 80GB HBM3"},
                "nvlinkGroup": {"string": format!("{node}-all")},
            }})
        })
        .collect();
    json!({"metadata": metadata(&format!("{node}-gpus")), "spec": {
        "driver": keys::DRIVER, "nodeName": node, "devices": devices,
        "pool": {"name": node, "generation": 1, "resourceSliceCount": 1},
    }})
}

impl Cluster {
    pub(super) fn objects_of_nodes(&self) -> Vec<Collection> {
        let one = |kind, path, value: Value| Collection {
            kind,
            path,
            count: 1,
            make: Box::new(move |_, _| value.clone()),
        };
        vec![
            one(Kind::Ledger, LEDGERS, ledger()),
            one(
                Kind::Flavor,
                "/apis/muster.dev/v1alpha1/flavors",
                json!({"apiVersion": "muster.dev/v1alpha1", "kind": "Flavor",
                    "metadata": metadata(FLAVOR), "spec": {"topology": TOPOLOGY}}),
            ),
            one(
                Kind::Topology,
                "/apis/muster.dev/v1alpha1/topologies",
                json!({"apiVersion": "muster.dev/v1alpha1", "kind": "Topology",
                "metadata": metadata(TOPOLOGY), "spec": {"fabric": [
                    {"name": "spine", "nodeLabel": SPINE_LABEL},
                    {"name": "leaf", "nodeLabel": LEAF_LABEL},
                ]}}),
            ),
            one(
                Kind::PriorityTier,
                "/apis/muster.dev/v1alpha1/prioritytiers",
                json!({"apiVersion": "muster.dev/v1alpha1", "kind": "PriorityTier",
                    "metadata": metadata("standard"), "spec": {"value": 100, "default": true}}),
            ),
            one(
                Kind::DeviceClass,
                "/apis/resource.k8s.io/v1/deviceclasses",
                json!({"metadata": metadata(keys::DEVICE_CLASS_GPU), "spec": {"selectors": [
                    {"cel": {"expression": format!("device.driver == '{}'", keys::DRIVER)}}]}}),
            ),
            Collection {
                kind: Kind::Node,
                path: "/api/v1/nodes",
                count: self.nodes,
                make: Box::new(|_, number| node(number)),
            },
            Collection {
                kind: Kind::ResourceSlice,
                path: "/apis/resource.k8s.io/v1/resourceslices",
                count: self.nodes,
                make: Box::new(|_, number| slice(number)),
            },
            Collection {
                kind: Kind::NodeDevices,
                path: "/apis/muster.dev/v1alpha1/nodedevices",
                count: self.nodes,
                make: Box::new(Self::node_devices),
            },
        ]
    }

    /// Acknowledged, with a permit for each pod that runs there.
    fn node_devices(&self, number: usize) -> Value {
        let node = node_name(number);
        let first = self.running.partition_point(|pod| pod.node < number);
        let there = self.running[first..].iter();
        let permits: Vec<Value> = there
            .take_while(|pod| pod.node == number)
            .map(pods::permit)
            .collect();
        let mut metadata = metadata(&node);
        if !permits.is_empty() {
            metadata["finalizers"] = json!([keys::PERMITS_FINALIZER]);
        }
        let uid = metadata["uid"].clone();
        json!({"apiVersion": "muster.dev/v1alpha1", "kind": "NodeDevices", "metadata": metadata,
            "spec": {"nodeUid": format!("uid-{node}"), "leaderEpoch": 1, "enforce": true, "permits": permits},
            "status": {"uid": uid, "observedGeneration": 1, "bootId": "boot"}})
    }
}
