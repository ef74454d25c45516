//! Nodes, what they publish, and what their drivers say.

use std::collections::BTreeMap;

use k8s_openapi::api::{
    core::v1::{Node, NodeCondition, NodeStatus},
    resource::v1::ResourceSlice,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use muster_api::{NodeDevices, NodeDevicesSpec, NodeDevicesStatus};

use super::Completed;
use crate::api_server::{ApiServer, Precondition};

/// What a node without a status has: no limit that a gang would meet, but for the number of pods, which is the
/// kubelet's default.
const AMPLE: [(&str, &str); 4] = [
    ("cpu", "1024"),
    ("memory", "16Ti"),
    ("ephemeral-storage", "64Ti"),
    ("pods", "110"),
];

/// Fills in what nodes and slices lack.
pub(super) fn complete(completed: &mut Completed<'_>) {
    for mut node in completed.list::<Node>() {
        let status = node.status.get_or_insert_with(NodeStatus::default);
        if status.allocatable.is_none() {
            let ample = AMPLE.map(|(name, amount)| (name.to_owned(), Quantity(amount.to_owned())));
            let mut resources = BTreeMap::from(ample);
            resources.extend(status.capacity.clone().unwrap_or_default());
            status.allocatable = Some(resources);
        }
        let conditions = status.conditions.get_or_insert_default();
        if !conditions
            .iter()
            .any(|condition| condition.type_ == "Ready")
        {
            conditions.push(NodeCondition {
                type_: "Ready".to_owned(),
                status: "True".to_owned(),
                ..NodeCondition::default()
            });
        }
        completed.put(node);
    }
    complete_slices(completed);
}

/// A slice without a pool is one of its node's, and a pool whose slices do not say how many they are is complete.
fn complete_slices(completed: &mut Completed<'_>) {
    let mut slices = completed.list::<ResourceSlice>();
    let mut counts: BTreeMap<(String, String, i64), i64> = BTreeMap::new();
    for slice in &mut slices {
        let pool = &mut slice.spec.pool;
        if pool.name.is_empty() {
            pool.name = slice.spec.node_name.clone().unwrap_or_default();
        }
        let key = (
            slice.spec.driver.clone(),
            pool.name.clone(),
            pool.generation,
        );
        *counts.entry(key).or_default() += 1;
    }
    for mut slice in slices {
        let pool = &mut slice.spec.pool;
        let key = (
            slice.spec.driver.clone(),
            pool.name.clone(),
            pool.generation,
        );
        if pool.resource_slice_count == 0 {
            pool.resource_slice_count = counts.get(&key).copied().unwrap_or(1);
        }
        completed.put(slice);
    }
}

/// Every node has a driver that enforces permits, as when Muster is installed.
pub(super) fn add_node_devices(completed: &mut Completed<'_>) {
    for node in completed.list::<Node>() {
        let name = node.metadata.name.unwrap_or_default();
        if completed.has::<NodeDevices>("", &name) {
            continue;
        }
        let spec = NodeDevicesSpec {
            node_uid: node.metadata.uid.unwrap_or_default(),
            enforce: true,
            ..NodeDevicesSpec::default()
        };
        completed.put(NodeDevices::new(&name, spec));
    }
}

/// The node's driver has its permits on disk, and says so.
pub(crate) fn acknowledge(api: &mut ApiServer, node: &str) {
    let any = Precondition::default();
    let _ = api.update::<NodeDevices>("", node, any, |devices| {
        let uid = devices.metadata.uid.clone().unwrap_or_default();
        let generation = devices.metadata.generation.unwrap_or_default();
        let status = devices
            .status
            .get_or_insert_with(NodeDevicesStatus::default);
        status.uid = uid;
        status.observed_generation = generation;
    });
}
