//! Topology: two trees over nodes.

use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The fabric (core, spine, leaf, node) and the accelerator domain (NVLink) of nodes, by labels.
///
/// A domain is identified by its **path** of label values: `rack-1` of one block is not `rack-1` of another.
#[derive(
    Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, CustomResource, KubeSchema,
)]
#[kube(
    group = "muster.dev",
    version = "v1alpha1",
    kind = "Topology",
    plural = "topologies",
    category = "muster",
    doc = "Two trees over nodes: the fabric and the accelerator domain.",
    printcolumn(name = "Level 1", json_path = ".spec.fabric[0].name", type_ = "string"),
    printcolumn(name = "Level 2", json_path = ".spec.fabric[1].name", type_ = "string"),
    printcolumn(name = "Level 3", json_path = ".spec.fabric[2].name", type_ = "string"),
    printcolumn(name = "Level 4", json_path = ".spec.fabric[3].name", type_ = "string"),
    printcolumn(
        name = "Accelerator",
        json_path = ".spec.accelerator.nodeLabel",
        type_ = "string"
    ),
    printcolumn(
        name = "Fabric",
        json_path = ".spec.fabric",
        type_ = "string",
        priority = 1
    ),
    printcolumn(
        name = "Age",
        json_path = ".metadata.creationTimestamp",
        type_ = "date"
    )
)]
#[serde(rename_all = "camelCase")]
pub struct TopologySpec {
    /// Levels of the fabric, outermost first. The node itself is always the last level, named `node`.
    #[serde(default)]
    #[schemars(length(max = 15))]
    #[x_kube(validation = ("self.all(l, l.name != 'node' && self.exists_one(m, m.name == l.name) && self.exists_one(m, m.nodeLabel == l.nodeLabel))", "level names and node labels are unique, and 'node' is reserved"))]
    pub fabric: Vec<TopologyLevel>,
    /// Node label of the accelerator domain (one NVLink fabric that spans nodes), if there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub accelerator: Option<AcceleratorDomain>,
}

/// One level of the fabric.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct TopologyLevel {
    /// What users call the level in `muster.dev/topology-required`.
    #[schemars(length(min = 1, max = 63))]
    pub name: String,
    /// Node label whose value names the domain.
    #[schemars(length(min = 1, max = 316))]
    pub node_label: String,
}

impl TopologyLevel {
    /// The longest name.
    pub const MOST_NAME_CHARACTERS: usize = 63;
}

/// Where the accelerator domain of a node stands.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct AcceleratorDomain {
    /// Node label whose value names the domain.
    #[schemars(length(min = 1, max = 316))]
    pub node_label: String,
}
