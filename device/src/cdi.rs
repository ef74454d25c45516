//! CDI specs: how a container runtime gives devices to a container.
//!
//! Only what Muster writes, in the least version that has it: environment and device nodes. There are no hooks
//! and no mounts of ours (they run or appear with the runtime's privileges); a container that needs the driver's
//! libraries has them in its image, or gets them by the runtime's own spec.

use std::{
    collections::BTreeMap,
    fs, io,
    path::{Path, PathBuf},
};

use serde::{Deserialize, Serialize};

use crate::files;

/// Version of the CDI specification: the first with annotations. (Device names that begin with a digit, as
/// claim UIDs do, came with 0.5.0.)
const CDI_VERSION: &str = "0.6.0";
/// Class of the devices: they exist for one claim.
const CLASS: &str = "claim";
/// Static major number of `/dev/nvidia*` (Linux `Documentation/admin-guide/devices.txt`: 195 is the vendor's).
const NVIDIA_MAJOR: i64 = 195;
/// Minor number of `/dev/nvidiactl`.
const CONTROL_MINOR: i64 = 255;

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

impl DeviceNode {
    fn character(path: String, major: i64, minor: i64) -> Self {
        Self {
            path,
            kind: "c".to_owned(),
            major,
            minor,
        }
    }
}

/// A GPU of a claim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClaimedGpu {
    /// Name of the device in its pool.
    pub device: String,
    /// UUID.
    pub uuid: String,
    /// Minor number.
    pub minor: u32,
}

/// The CDI directory of a node, as far as one vendor writes to it.
#[derive(Clone, Debug)]
pub struct Directory {
    path: PathBuf,
    vendor: String,
    proc: PathBuf,
}

impl Directory {
    /// `path` is where the container runtime looks, `vendor` the driver's name, `proc` the `/proc` of the host.
    pub fn new(
        path: impl Into<PathBuf>,
        vendor: impl Into<String>,
        proc: impl Into<PathBuf>,
    ) -> Self {
        Self {
            path: path.into(),
            vendor: vendor.into(),
            proc: proc.into(),
        }
    }

    /// Where the spec of a claim is. The UID is the kubelet's and was checked to be one: it goes into a path.
    pub fn file(&self, claim_uid: &str) -> PathBuf {
        let name = format!("{}-{CLASS}_{claim_uid}.json", self.vendor);
        self.path.join(name)
    }

    /// CDI id of a claim's device.
    pub fn device_id(&self, claim_uid: &str, device: &str) -> String {
        format!("{}/{CLASS}={claim_uid}-{device}", self.vendor)
    }

    /// Writes the spec of a claim.
    pub fn write(
        &self,
        claim_uid: &str,
        gpus: &[ClaimedGpu],
        annotations: BTreeMap<String, String>,
    ) -> io::Result<()> {
        let spec = self.spec(claim_uid, gpus, annotations);
        let content = serde_json::to_vec_pretty(&spec)?;
        // Container runtimes of any user may read it.
        files::write_whole(&self.file(claim_uid), &content, 0o644)
    }

    /// Removes the spec of a claim; none is fine.
    pub fn remove(&self, claim_uid: &str) -> io::Result<()> {
        files::remove(&self.file(claim_uid))
    }

    /// The specs of this vendor by claim UID; `None` for one that cannot be read.
    pub fn list(&self) -> io::Result<BTreeMap<String, Option<Spec>>> {
        let prefix = format!("{}-{CLASS}_", self.vendor);
        let mut specs = BTreeMap::new();
        for entry in fs::read_dir(&self.path)? {
            let entry = entry?;
            let name = entry.file_name();
            let uid = name
                .to_str()
                .and_then(|name| name.strip_prefix(&prefix)?.strip_suffix(".json"));
            if let Some(uid) = uid {
                let spec = fs::read(entry.path())
                    .ok()
                    .and_then(|content| serde_json::from_slice(&content).ok());
                specs.insert(uid.to_owned(), spec);
            }
        }
        Ok(specs)
    }

    fn spec(
        &self,
        claim_uid: &str,
        gpus: &[ClaimedGpu],
        annotations: BTreeMap<String, String>,
    ) -> Spec {
        let uuids: Vec<&str> = gpus.iter().map(|gpu| gpu.uuid.as_str()).collect();
        let mut device_nodes = vec![DeviceNode::character(
            "/dev/nvidiactl".to_owned(),
            NVIDIA_MAJOR,
            CONTROL_MINOR,
        )];
        device_nodes.extend(unified_memory_nodes(&self.proc));
        Spec {
            cdi_version: CDI_VERSION.to_owned(),
            kind: format!("{}/{CLASS}", self.vendor),
            annotations,
            devices: gpus.iter().map(|gpu| device(claim_uid, gpu)).collect(),
            container_edits: Edits {
                env: vec![format!("MUSTER_VISIBLE_GPUS={}", uuids.join(","))],
                device_nodes,
            },
        }
    }
}

/// Its variable is its own, so that a container with several claims, or with some requests of one, sees
/// exactly what it got; `MUSTER_VISIBLE_GPUS` is the whole claim, and with several claims the last one.
fn device(claim_uid: &str, gpu: &ClaimedGpu) -> Device {
    let variable = gpu.device.to_ascii_uppercase().replace('-', "_");
    Device {
        name: format!("{claim_uid}-{}", gpu.device),
        container_edits: Edits {
            env: vec![format!("MUSTER_{variable}={}", gpu.uuid)],
            device_nodes: vec![DeviceNode::character(
                format!("/dev/nvidia{}", gpu.minor),
                NVIDIA_MAJOR,
                i64::from(gpu.minor),
            )],
        },
    }
}

/// The nodes of unified memory, whose major number the kernel gives out. A machine without the module has none.
fn unified_memory_nodes(proc: &Path) -> Vec<DeviceNode> {
    let devices = fs::read_to_string(proc.join("devices")).unwrap_or_default();
    let major = devices.lines().find_map(|line| {
        let (major, name) = line.trim().split_once(' ')?;
        (name == "nvidia-uvm").then(|| major.parse().ok())?
    });
    let node = |major, (minor, name)| DeviceNode::character(format!("/dev/{name}"), major, minor);
    major.map_or_else(Vec::new, |major| {
        [(0, "nvidia-uvm"), (1, "nvidia-uvm-tools")]
            .into_iter()
            .map(|each| node(major, each))
            .collect()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gpu(index: u32) -> ClaimedGpu {
        ClaimedGpu {
            device: format!("gpu-{index}"),
            uuid: format!("GPU-{index}"),
            minor: index,
        }
    }

    #[test]
    fn a_claim_s_spec_has_its_gpus_and_nothing_else() {
        let root = tempfile::tempdir().unwrap();
        fs::write(
            root.path().join("devices"),
            "Character devices:\n195 nvidia\n511 nvidia-uvm\n",
        )
        .unwrap();
        let directory = Directory::new(root.path(), "gpu.muster.dev", root.path());
        let uid = "0d9a1f4e-1111-2222-3333-444455556666";
        directory
            .write(uid, &[gpu(2), gpu(3)], BTreeMap::new())
            .unwrap();

        let path = root.path().join(format!("gpu.muster.dev-claim_{uid}.json"));
        let written: serde_json::Value = serde_json::from_slice(&fs::read(path).unwrap()).unwrap();
        let node = |path: &str, major: i64, minor: i64| serde_json::json!({"path": path, "type": "c", "major": major, "minor": minor});
        assert_eq!(
            written,
            serde_json::json!({
                "cdiVersion": "0.6.0",
                "kind": "gpu.muster.dev/claim",
                "devices": [
                    {"name": format!("{uid}-gpu-2"), "containerEdits": {
                        "env": ["MUSTER_GPU_2=GPU-2"], "deviceNodes": [node("/dev/nvidia2", 195, 2)]}},
                    {"name": format!("{uid}-gpu-3"), "containerEdits": {
                        "env": ["MUSTER_GPU_3=GPU-3"], "deviceNodes": [node("/dev/nvidia3", 195, 3)]}},
                ],
                "containerEdits": {
                    "env": ["MUSTER_VISIBLE_GPUS=GPU-2,GPU-3"],
                    "deviceNodes": [
                        node("/dev/nvidiactl", 195, 255),
                        node("/dev/nvidia-uvm", 511, 0),
                        node("/dev/nvidia-uvm-tools", 511, 1),
                    ],
                },
            })
        );
        assert_eq!(
            directory.device_id(uid, "gpu-2"),
            format!("gpu.muster.dev/claim={uid}-gpu-2")
        );
    }

    #[test]
    fn specs_are_listed_also_when_broken_and_those_of_others_are_not() {
        let root = tempfile::tempdir().unwrap();
        let directory = Directory::new(root.path(), "gpu.muster.dev", "/nonexistent-muster");
        directory.write("a", &[gpu(0)], BTreeMap::new()).unwrap();
        fs::write(directory.file("b"), "{").unwrap();
        fs::write(root.path().join("other.example.com-x.json"), "{}").unwrap();

        let listed = directory.list().unwrap();
        assert_eq!(listed.keys().collect::<Vec<_>>(), ["a", "b"]);
        assert!(listed.get("a").unwrap().is_some());
        assert!(listed.get("b").unwrap().is_none());

        directory.remove("a").unwrap();
        directory.remove("a").unwrap();
        assert_eq!(directory.list().unwrap().len(), 1);
    }
}
