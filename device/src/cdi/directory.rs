//! The CDI directory of a node.

use std::{
    collections::BTreeMap,
    fs, io,
    path::{Path, PathBuf},
};

use super::{
    ClaimedGpu, Driver, Failure,
    claim::{self, CLASS},
    nodes,
    spec::{Edits, Spec},
};
use crate::files;

/// The CDI directory of a node, as far as one vendor writes to it.
#[derive(Clone, Debug)]
pub struct Directory {
    path: PathBuf,
    vendor: String,
    proc: PathBuf,
    driver: Option<Driver>,
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
            driver: None,
        }
    }

    /// Containers get all that they need of this driver, or their claims are not prepared.
    #[must_use]
    pub fn with_driver(mut self, driver: Driver) -> Self {
        self.driver = Some(driver);
        self
    }

    /// The driver that containers get, if they do.
    pub fn driver(&self) -> Option<&Driver> {
        self.driver.as_ref()
    }

    /// The `/proc` of the host.
    pub fn proc(&self) -> &Path {
        &self.proc
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
    ) -> Result<(), Failure> {
        let common = match &self.driver {
            Some(driver) => driver.edits(&self.proc)?,
            None => Edits {
                device_nodes: nodes::common(&self.proc),
                ..Edits::default()
            },
        };
        let spec = claim::spec(
            &self.vendor,
            claim_uid,
            gpus,
            annotations,
            common,
            &self.proc,
        )?;
        let content = serde_json::to_vec_pretty(&spec).map_err(io::Error::from)?;
        // Container runtimes of any user may read it.
        Ok(files::write_whole(&self.file(claim_uid), &content, 0o644)?)
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
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gpu(index: u32) -> ClaimedGpu {
        ClaimedGpu {
            device: format!("gpu-{index}"),
            uuid: format!("GPU-{index}"),
            minor: index,
            slice: None,
        }
    }

    #[test]
    fn without_a_driver_root_a_spec_has_the_claim_s_gpus_and_nothing_else() {
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
                    "env": ["MUSTER_VISIBLE_GPUS=GPU-2,GPU-3", "NVIDIA_VISIBLE_DEVICES=void"],
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
    fn a_gpu_that_two_requests_have_is_one_device() {
        let root = tempfile::tempdir().unwrap();
        let directory = Directory::new(root.path(), "gpu.muster.dev", root.path());
        let gpus = [gpu(1), gpu(0), gpu(1)];
        directory.write("a", &gpus, BTreeMap::new()).unwrap();
        let spec = directory.list().unwrap().remove("a").flatten().unwrap();
        let names: Vec<_> = spec.devices.iter().map(|device| &*device.name).collect();
        assert_eq!(names, ["a-gpu-1", "a-gpu-0"]);
        let env = &spec.container_edits.env;
        assert!(
            env.contains(&"MUSTER_VISIBLE_GPUS=GPU-1,GPU-0".to_owned()),
            "{env:?}"
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
