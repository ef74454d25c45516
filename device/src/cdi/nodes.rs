//! Device nodes. Their numbers are the kernel's, so the runtime makes them itself: whether they exist on the host, and in
//! which `/dev`, does not matter. (In a user namespace nobody makes any: there runtimes mount the host's by the same paths.)

use std::{
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
    nodes.extend(majors.of("nvidia-modeset").map(|major| {
        DeviceNode::character("/dev/nvidia-modeset".to_owned(), major, MODESET_MINOR)
    }));
    Ok(nodes)
}

/// The nodes without which a slice cannot be used: that of its GPU instance and that of its compute instance. Whoever can
/// open them may use it, and nobody else. The kernel's module is loaded by then.
pub(super) fn of_slice(
    proc: &Path,
    gpu_minor: u32,
    slice: MigSlice,
) -> Result<[DeviceNode; 2], Failure> {
    let majors = Majors::read(proc);
    let gpu_instance = PathBuf::from(format!("gpu{gpu_minor}/mig/gi{}", slice.gpu_instance));
    let compute_instance = gpu_instance.join(format!("ci{}", slice.compute_instance));
    Ok([
        capability(proc, &majors, &gpu_instance)?,
        capability(proc, &majors, &compute_instance)?,
    ])
}

/// The device that stands for leave to use an instance.
fn capability(proc: &Path, majors: &Majors, instance: &Path) -> Result<DeviceNode, Failure> {
    let directory = proc.join("driver/nvidia/capabilities");
    let file = directory.join(instance).join("access");
    let text = fs::read_to_string(&file).map_err(|error| error.to_string());
    let minor = text.and_then(|text| {
        let minor: Option<u32> = text
            .lines()
            .find_map(|line| line.strip_prefix(CAPABILITY_MINOR)?.trim().parse().ok());
        minor.ok_or_else(|| format!("it has no {CAPABILITY_MINOR} NUMBER"))
    });
    let minor = minor.map_err(|cause| Failure::SliceMissing { file, cause })?;
    let Some(major) = majors.of(CAPABILITIES) else {
        return Err(Failure::SliceMissing {
            file: majors.file.clone(),
            cause: format!("it lists no {CAPABILITIES}"),
        });
    };
    let path = format!("/dev/{CAPABILITIES}/nvidia-cap{minor}");
    Ok(DeviceNode::character(path, major, i64::from(minor)))
}

fn control() -> DeviceNode {
    DeviceNode::character("/dev/nvidiactl".to_owned(), NVIDIA_MAJOR, CONTROL_MINOR)
}

fn unified_memory(major: i64) -> [DeviceNode; 2] {
    [(0, "nvidia-uvm"), (1, "nvidia-uvm-tools")]
        .map(|(minor, name)| DeviceNode::character(format!("/dev/{name}"), major, minor))
}
