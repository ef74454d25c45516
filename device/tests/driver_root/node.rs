//! A node with a driver root, its `/proc` and its CDI directory.

use std::{
    collections::BTreeMap,
    fs,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    sync::Arc,
};

use muster_device::cdi::{
    ClaimedGpu, Directory, Driver, DriverRoot, Failure, Hooks, MigSlice, ModuleLoader,
    NvidiaModprobe, Spec,
};

use crate::elf::{Kind, library};

/// What the runtime calls the driver root.
pub(crate) const ON_HOST: &str = "/run/nvidia/driver";
/// What the kernel's module is of.
pub(crate) const VERSION: &str = "580.65.06";
/// Libraries of a driver, and what programs ask for instead.
const LIBRARIES: [(&str, &str); 5] = [
    ("libcuda.so", "libcuda.so.1"),
    ("libnvidia-ml.so", "libnvidia-ml.so.1"),
    (
        "libnvidia-ptxjitcompiler.so",
        "libnvidia-ptxjitcompiler.so.1",
    ),
    ("libnvidia-nvvm.so", "libnvidia-nvvm.so.4"),
    ("libnvidia-gpucomp.so", "libnvidia-gpucomp.so.580.65.06"),
];
pub(crate) const DEVICES: &str = "Character devices:\n  1 mem\n195 nvidia\n195 nvidia-modeset\n195 nvidiactl\n\
                                  505 nvidia-uvm\n235 nvidia-caps\n\nBlock devices:\n  7 nvidia-uvm\n";

pub(crate) struct Node {
    directory: tempfile::TempDir,
    pub(crate) hooks: Hooks,
    pub(crate) modules: Arc<dyn ModuleLoader>,
}

impl Node {
    /// Everything loaded, and nothing installed.
    pub(crate) fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path().join("root");
        for path in ["root", "cdi", "proc/driver/nvidia"] {
            fs::create_dir_all(directory.path().join(path)).unwrap();
        }
        let node = Self {
            directory,
            hooks: Hooks::Own("/opt/muster/bin/muster-cdi-hook-0.1.0-0123456789abcdef".into()),
            modules: Arc::new(NvidiaModprobe::new(root)),
        };
        node.devices(DEVICES);
        let version =
            format!("NVRM version: NVIDIA UNIX x86_64 Kernel Module  {VERSION}  Sun Jul 27\n");
        fs::write(node.path("proc/driver/nvidia/version"), version).unwrap();
        node
    }

    /// The same with a driver in a directory of the root.
    pub(crate) fn with_libraries(directory: &str) -> Self {
        let node = Self::new();
        node.install(directory, VERSION);
        node
    }

    /// Installs libraries of a version, as distributions do.
    pub(crate) fn install(&self, directory: &str, version: &str) {
        for (stem, soname) in LIBRARIES {
            let soname = soname.replace(VERSION, version);
            let name = format!("{stem}.{version}");
            self.library(&format!("{directory}/{name}"), Kind::X86Wide, &soname);
            if soname != name {
                let _ = fs::remove_file(self.root(&format!("{directory}/{soname}")));
                self.link(&format!("{directory}/{soname}"), &name);
            }
        }
    }

    pub(crate) fn library(&self, path: &str, kind: Kind, soname: &str) {
        self.file(path, &library(kind, soname));
    }

    pub(crate) fn file(&self, path: &str, content: &[u8]) {
        let path = self.root(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content).unwrap();
    }

    pub(crate) fn link(&self, path: &str, target: impl AsRef<Path>) {
        let path = self.root(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        symlink(target, path).unwrap();
    }

    pub(crate) fn devices(&self, text: &str) {
        fs::write(self.path("proc/devices"), text).unwrap();
    }

    pub(crate) fn path(&self, path: &str) -> PathBuf {
        self.directory.path().join(path)
    }

    /// A path in the driver root.
    pub(crate) fn root(&self, path: &str) -> PathBuf {
        self.path("root").join(path)
    }

    fn directory(&self) -> Directory {
        let driver = Driver {
            root: DriverRoot {
                path: self.path("root"),
                on_host: ON_HOST.into(),
            },
            hooks: self.hooks.clone(),
            modules: self.modules.clone(),
        };
        let directory = Directory::new(self.path("cdi"), "gpu.muster.dev", self.path("proc"));
        directory.with_driver(driver)
    }

    /// What a claim of one GPU is given.
    pub(crate) fn claim(&self) -> Result<Spec, Failure> {
        self.claim_of(&[whole(3)])
    }

    /// What a claim of slices of that GPU is given, each a GPU instance and a compute instance of it.
    pub(crate) fn claim_of_slices(&self, slices: &[(u32, u32)]) -> Result<Spec, Failure> {
        self.claim_of(&slices.iter().copied().map(slice).collect::<Vec<_>>())
    }

    /// What a claim of all of these is given.
    pub(crate) fn claim_of(&self, gpus: &[ClaimedGpu]) -> Result<Spec, Failure> {
        let directory = self.directory();
        let uid = "0d9a1f4e-1111-2222-3333-444455556666";
        // As the driver keeps its record.
        let record = r#"{"schema":1,"claim":{"uid":"0d9a1f4e-1111-2222-3333-444455556666"}}"#;
        let annotations = BTreeMap::from([("muster.dev/record".to_owned(), record.to_owned())]);
        directory.write(uid, gpus, annotations)?;
        Ok(directory.list().unwrap().remove(uid).flatten().unwrap())
    }

    /// What the kernel says of a capability of the GPU with minor number 3.
    pub(crate) fn capability(&self, instance: &str, text: &str) {
        let directory = self.path("proc/driver/nvidia/capabilities/gpu3/mig");
        let directory = directory.join(instance);
        fs::create_dir_all(&directory).unwrap();
        fs::write(directory.join("access"), text).unwrap();
    }

    /// The kernel's list of capabilities that there may be.
    pub(crate) fn capability_list(&self, text: &str) {
        let directory = self.path("proc/driver/nvidia-caps");
        fs::create_dir_all(&directory).unwrap();
        fs::write(directory.join("mig-minors"), text).unwrap();
    }

    /// Why it is not given anything; nothing is written then.
    pub(crate) fn refusal(&self) -> String {
        let refusal = self.claim().unwrap_err().to_string();
        assert_eq!(fs::read_dir(self.path("cdi")).unwrap().count(), 0);
        refusal
    }

    /// What is known to be missing.
    pub(crate) fn missing(&self) -> Vec<&'static str> {
        let directory = self.directory();
        directory
            .driver()
            .unwrap()
            .look(directory.proc())
            .unwrap()
            .1
    }
}

/// A GPU that a claim has whole, by its minor number.
pub(crate) fn whole(minor: u32) -> ClaimedGpu {
    ClaimedGpu {
        device: format!("gpu-{minor}"),
        uuid: format!("GPU-6a1e35f4-0000-0000-0000-{minor:012}"),
        minor,
        slice: None,
    }
}

/// A slice of the GPU with minor number 3: a GPU instance and a compute instance of it.
pub(crate) fn slice((gpu_instance, compute_instance): (u32, u32)) -> ClaimedGpu {
    ClaimedGpu {
        device: format!("gpu-3-mig-{gpu_instance}-{compute_instance}"),
        uuid: format!("MIG-{gpu_instance}-{compute_instance}"),
        minor: 3,
        slice: Some(MigSlice {
            gpu_instance,
            compute_instance,
        }),
    }
}

/// Mounts, as `host => container`.
pub(crate) fn mounts(spec: &Spec) -> Vec<String> {
    let mounts = spec.container_edits.mounts.iter();
    mounts
        .map(|mount| {
            format!(
                "{} => {}",
                mount.host_path.display(),
                mount.container_path.display()
            )
        })
        .collect()
}

/// The values that a flag of a hook has.
pub(crate) fn values(spec: &Spec, flag: &str) -> Vec<String> {
    let words = spec
        .container_edits
        .hooks
        .iter()
        .flat_map(|hook| &hook.args);
    let words: Vec<&String> = words.collect();
    let pairs = words.windows(2).filter(|pair| pair[0] == flag);
    pairs.map(|pair| pair[1].clone()).collect()
}
