//! Device nodes. Their numbers are the kernel's, so the runtime makes them itself: whether they exist on the host, and in
//! which `/dev`, does not matter. (In a user namespace nobody makes any: there runtimes mount the host's by the same paths.)

use std::{
    cell::OnceCell,
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

use super::{Failure, MigSlice, ModuleLoader, spec::DeviceNode};

/// Static major number of `/dev/nvidia*` (Linux `Documentation/admin-guide/devices.txt`: 195 is the vendor's).
pub(super) const NVIDIA_MAJOR: i64 = 195;
/// Minor number of `/dev/nvidiactl`.
const CONTROL_MINOR: i64 = 255;
/// Minor number of `/dev/nvidia-modeset`.
const MODESET_MINOR: i64 = 254;
/// Names under which drivers of different ages register the GPUs' major number.
const GPU_NAMES: [&str; 3] = ["nvidia", "nvidia-frontend", "nvidiactl"];
/// What sets the modes of displays. Slices drive none.
pub(super) const MODESET: &str = "/dev/nvidia-modeset";
const UNIFIED_MEMORY: &str = "nvidia-uvm";
const CAPABILITIES: &str = "nvidia-caps";
/// What the kernel's description of a capability says of its device.
const CAPABILITY_MINOR: &str = "DeviceFileMinor:";

/// The kernel's character devices: major numbers by name.
struct Majors {
    file: PathBuf,
    numbers: BTreeMap<String, i64>,
}

impl Majors {
    fn read(proc: &Path) -> Self {
        let file = proc.join("devices");
        let text = fs::read_to_string(&file).unwrap_or_default();
        let numbers = text
            .lines()
            .take_while(|line| !line.starts_with("Block devices"))
            .filter_map(|line| {
                let (major, name) = line.trim().split_once(' ')?;
                Some((name.to_owned(), major.parse().ok()?))
            })
            .collect();
        Self { file, numbers }
    }

    fn of(&self, name: &str) -> Option<i64> {
        self.numbers.get(name).copied()
    }

    fn missing(&self, device: &'static str, module: &'static str, cause: String) -> Failure {
        Failure::ModuleMissing {
            file: self.file.clone(),
            device,
            module,
            cause,
        }
    }
}

/// The nodes that every container with a GPU gets, as far as the kernel has them.
pub(super) fn common(proc: &Path) -> Vec<DeviceNode> {
    let majors = Majors::read(proc);
    let mut nodes = vec![control()];
    nodes.extend(
        majors
            .of(UNIFIED_MEMORY)
            .into_iter()
            .flat_map(unified_memory),
    );
    nodes
}

/// The same, where a program that uses CUDA is to find all it needs: without unified memory `cuInit` fails, and the
/// kernel loads that module only when somebody asks for it.
pub(super) fn complete(
    proc: &Path,
    modules: &dyn ModuleLoader,
) -> Result<Vec<DeviceNode>, Failure> {
    let is_complete = |majors: &Majors| {
        GPU_NAMES.iter().any(|name| majors.of(name).is_some())
            && majors.of(UNIFIED_MEMORY).is_some()
    };
    let mut majors = Majors::read(proc);
    let mut loaded = Ok(());
    if !is_complete(&majors) {
        loaded = modules.load();
        majors = Majors::read(proc);
    }
    let cause = || match &loaded {
        Ok(()) => "nvidia-modprobe says that it loaded it".to_owned(),
        Err(cause) => cause.clone(),
    };
    if GPU_NAMES.iter().all(|name| majors.of(name).is_none()) {
        return Err(majors.missing("nvidia", "nvidia", cause()));
    }
    let Some(unified) = majors.of(UNIFIED_MEMORY) else {
        return Err(majors.missing(UNIFIED_MEMORY, "nvidia_uvm", cause()));
    };
    let mut nodes = vec![control()];
    nodes.extend(unified_memory(unified));
    nodes.extend(
        majors
            .of("nvidia-modeset")
            .map(|major| DeviceNode::character(MODESET.to_owned(), major, MODESET_MINOR)),
    );
    Ok(nodes)
}

/// What the kernel knows of leave to use slices. What all slices of a claim have in common is read once, with the first of them.
pub(super) struct Capabilities<'a> {
    proc: &'a Path,
    majors: OnceCell<Majors>,
    /// Minor numbers by name, from the kernel's list of all that there may ever be.
    minors: OnceCell<Result<BTreeMap<String, u32>, String>>,
}

impl<'a> Capabilities<'a> {
    pub(super) fn new(proc: &'a Path) -> Self {
        Self {
            proc,
            majors: OnceCell::new(),
            minors: OnceCell::new(),
        }
    }

    /// The nodes without which a slice cannot be used: that of its GPU instance and that of its compute instance. Whoever can
    /// open them may use it, and nobody else. The kernel's module is loaded by then.
    pub(super) fn of_slice(
        &self,
        gpu_minor: u32,
        slice: MigSlice,
    ) -> Result<[DeviceNode; 2], Failure> {
        let gpu = format!("gpu{gpu_minor}");
        let gpu_instance = format!("gi{}", slice.gpu_instance);
        let compute_instance = format!("{gpu_instance}/ci{}", slice.compute_instance);
        Ok([
            self.node(&gpu, &gpu_instance)?,
            self.node(&gpu, &compute_instance)?,
        ])
    }

    /// The device that stands for leave to use an instance.
    fn node(&self, gpu: &str, instance: &str) -> Result<DeviceNode, Failure> {
        let minor = self.minor(gpu, instance)?;
        let majors = self.majors.get_or_init(|| Majors::read(self.proc));
        let Some(major) = majors.of(CAPABILITIES) else {
            return Err(Failure::SliceMissing {
                file: majors.file.clone(),
                cause: format!("it lists no {CAPABILITIES}"),
            });
        };
        let path = format!("/dev/{CAPABILITIES}/nvidia-cap{minor}");
        Ok(DeviceNode::character(path, major, i64::from(minor)))
    }

    /// Its minor number, as the kernel describes it where it exists. Where `/proc/driver/nvidia` shows no capabilities at all (the
    /// container toolkit covers it in containers) the number is in the kernel's list; that the instance exists, NVML has said then.
    fn minor(&self, gpu: &str, instance: &str) -> Result<u32, Failure> {
        let described = self.proc.join("driver/nvidia/capabilities");
        if !described.is_dir() {
            return self.listed_minor(&format!("{gpu}/{instance}/access"));
        }
        let file = described.join(format!("{gpu}/mig/{instance}/access"));
        let text = fs::read_to_string(&file).map_err(|error| error.to_string());
        let minor = text.and_then(|text| {
            let minor: Option<u32> = text
                .lines()
                .find_map(|line| line.strip_prefix(CAPABILITY_MINOR)?.trim().parse().ok());
            minor.ok_or_else(|| format!("it has no {CAPABILITY_MINOR} NUMBER"))
        });
        minor.map_err(|cause| Failure::SliceMissing { file, cause })
    }

    fn listed_minor(&self, name: &str) -> Result<u32, Failure> {
        let file = self.proc.join("driver/nvidia-caps/mig-minors");
        let read = || -> Result<BTreeMap<String, u32>, String> {
            let text = fs::read_to_string(&file).map_err(|error| error.to_string())?;
            let pair = |line: &str| {
                let (name, minor) = line.trim().split_once(' ')?;
                Some((name.to_owned(), minor.trim().parse::<u32>().ok()?))
            };
            Ok(text.lines().filter_map(pair).collect())
        };
        let minors = self.minors.get_or_init(read);
        let minor = minors.as_ref().map_err(String::clone).and_then(|minors| {
            let minor = minors.get(name).copied();
            minor.ok_or_else(|| format!("it lists no {name}"))
        });
        minor.map_err(|cause| Failure::SliceMissing {
            file: file.clone(),
            cause,
        })
    }
}

fn control() -> DeviceNode {
    DeviceNode::character("/dev/nvidiactl".to_owned(), NVIDIA_MAJOR, CONTROL_MINOR)
}

fn unified_memory(major: i64) -> [DeviceNode; 2] {
    [(0, "nvidia-uvm"), (1, "nvidia-uvm-tools")]
        .map(|(minor, name)| DeviceNode::character(format!("/dev/{name}"), major, minor))
}
