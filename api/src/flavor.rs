//! Flavor: a kind of capacity that quota counts.
//!
//! GPUs are handed out by DRA drivers, which publish devices, or by device plugins, of which a node lists no more than how
//! many there are (`status.allocatable`). A Flavor counts the ones or the others.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A Flavor says which devices on which nodes a quota counts.
#[derive(
    Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, CustomResource, KubeSchema,
)]
#[kube(
    group = "muster.dev",
    version = "v1alpha1",
    kind = "Flavor",
    plural = "flavors",
    category = "muster",
    status = "FlavorStatus",
    doc = "A kind of capacity that quota counts: which nodes, which devices.",
    validation = (
        "!has(self.spec.extendedResource) || !has(self.spec.devices)",
        "devices counts what a DRA driver hands out, extendedResource what a device plugin does: say one of them, and make a Flavor for each"
    ),
    printcolumn(name = "Topology", json_path = ".spec.topology", type_ = "string"),
    printcolumn(
        name = "Resource",
        json_path = ".spec.extendedResource",
        type_ = "string",
        description = "The resource of a device plugin that it counts, if it does",
        priority = 1
    ),
    printcolumn(
        name = "Nodes",
        json_path = ".status.nodes",
        type_ = "integer",
        description = "Nodes with devices of the Flavor"
    ),
    printcolumn(
        name = "Devices",
        json_path = ".status.devices",
        type_ = "integer",
        description = "Devices that count"
    ),
    printcolumn(
        name = "Healthy",
        json_path = ".status.healthyDevices",
        type_ = "integer",
        description = "Of those, devices that can be used now"
    ),
    printcolumn(
        name = "Active",
        json_path = ".status.conditions[?(@.type==\"Active\")].status",
        type_ = "string",
        description = "Whether it counts any device"
    ),
    printcolumn(
        name = "Reason",
        json_path = ".status.conditions[?(@.type==\"Active\")].reason",
        type_ = "string",
        priority = 1
    ),
    printcolumn(
        name = "Overlaps",
        json_path = ".status.overlaps[*].flavor",
        type_ = "string",
        description = "The first Flavor that counts some of the same devices",
        priority = 1
    ),
    printcolumn(
        name = "Age",
        json_path = ".metadata.creationTimestamp",
        type_ = "date"
    )
)]
#[serde(rename_all = "camelCase")]
pub struct FlavorSpec {
    /// Labels that a node must carry; all nodes if empty.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub node_selector: BTreeMap<String, String>,
    /// The devices that count; all devices of Muster's driver without it and without `extendedResource`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub devices: Option<DeviceSource>,
    /// The resource of a device plugin that counts instead, such as `nvidia.com/gpu`: each unit of it as one GPU. Pods ask for it by
    /// `resources.limits`. It has to be among the resources that the installation manages.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 3, max = 317))]
    #[x_kube(
        validation = ("self.matches('^[a-z0-9][-a-z0-9]*([.][a-z0-9][-a-z0-9]*)+/[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$')", "extendedResource is DOMAIN/NAME, such as nvidia.com/gpu"),
        validation = ("!self.matches('(^|[.])kubernetes[.]io/') && !self.startsWith('muster.dev/')", "extendedResource is what a device plugin registers: no name of kubernetes.io (there DeviceClasses stand for claims) nor of muster.dev")
    )]
    pub extended_resource: Option<String>,
    /// The Topology that places gangs of this Flavor; a flat one without it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub topology: Option<String>,
}

/// Which devices of ResourceSlices belong to a Flavor.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct DeviceSource {
    /// Name of the DRA driver.
    #[schemars(length(min = 1, max = 63))]
    pub driver: String,
    /// CEL expression over `device`, as in a DeviceClass; all devices of the driver without it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 10240))]
    pub selector: Option<String>,
}

/// What a Flavor counts now; written by the controller alone, whenever that changes. Nothing is decided by it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct FlavorStatus {
    /// Nodes with at least one device of the Flavor.
    #[serde(default)]
    pub nodes: i64,
    /// Of those, nodes on which new pods may be planned: neither cordoned, lost nor not Ready, and whose driver answers.
    #[serde(default)]
    pub ready_nodes: i64,
    /// Devices that count, used or not.
    #[serde(default)]
    pub devices: i64,
    /// Of those, devices without a fault on such nodes.
    #[serde(default)]
    pub healthy_devices: i64,
    /// Other Flavors that count some of the same devices: those with the most, at most 16. Quota of both gives those devices out
    /// twice.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub overlaps: Vec<FlavorOverlap>,
    /// Standard conditions: `Active`, `ResolvedRefs`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<Condition>,
}

impl FlavorStatus {
    /// Most other Flavors that are named.
    pub const OVERLAPS_NAMED: usize = 16;
}

/// Devices that count as of two Flavors.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct FlavorOverlap {
    /// The other Flavor.
    pub flavor: String,
    /// How many devices both count.
    pub devices: i64,
}
