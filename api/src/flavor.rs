//! Flavor: a kind of capacity that quota counts.

use std::collections::BTreeMap;

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
    doc = "A kind of capacity that quota counts: which nodes, which devices.",
    printcolumn(name = "Topology", json_path = ".spec.topology", type_ = "string"),
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
    /// The devices that count; all devices of Muster's driver without it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub devices: Option<DeviceSource>,
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
