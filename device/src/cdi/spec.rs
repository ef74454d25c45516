//! A CDI spec file, as far as Muster writes one.

use std::{collections::BTreeMap, path::PathBuf};

use serde::{Deserialize, Serialize};

/// Version of the CDI specification: the first with annotations. (Device names that begin with a digit, as
/// claim UIDs do, came with 0.5.0; mounts and hooks are older.)
pub(super) const VERSION: &str = "0.6.0";

/// A CDI spec file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Spec {
    /// Version of the CDI specification.
    pub cdi_version: String,
    /// `vendor/class`.
    pub kind: String,
    /// For whoever wrote it.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub annotations: BTreeMap<String, String>,
    /// The devices.
    pub devices: Vec<Device>,
    /// Edits for a container that gets any of them.
    #[serde(default)]
    pub container_edits: Edits,
}

/// One device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Device {
    /// Name, unique among all specs of the kind.
    pub name: String,
    /// Edits for a container that gets it.
    pub container_edits: Edits,
}

/// What is changed in a container.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Edits {
    /// `NAME=value`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub env: Vec<String>,
    /// Device nodes.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub device_nodes: Vec<DeviceNode>,
    /// Files of the host.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub mounts: Vec<Mount>,
    /// Programs of the host that finish the container.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub hooks: Vec<Hook>,
}

/// A character device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DeviceNode {
    /// Path, on the host and in the container.
    pub path: String,
    /// `c`. Type and numbers are given, so that no runtime has to look at the host's node.
    #[serde(rename = "type")]
    pub kind: String,
    /// Major number.
    pub major: i64,
    /// Minor number.
    pub minor: i64,
}

/// A file of the host in the container.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Mount {
    /// Where it is on the host.
    pub host_path: PathBuf,
    /// Where it will be in the container.
    pub container_path: PathBuf,
    /// As `mount(8)` has them.
    pub options: Vec<String>,
}

/// A program that the runtime runs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Hook {
    /// When.
    pub hook_name: String,
    /// Where it is on the host.
    pub path: PathBuf,
    /// Its arguments, its own name first.
    pub args: Vec<String>,
    /// Its environment, never empty: runtimes let a hook without one have their own, which holds the container's
    /// variables.
    pub env: Vec<String>,
}

impl DeviceNode {
    /// A character device.
    pub(super) fn character(path: String, major: i64, minor: i64) -> Self {
        Self {
            path,
            kind: "c".to_owned(),
            major,
            minor,
        }
    }
}
