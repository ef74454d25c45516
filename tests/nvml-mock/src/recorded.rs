//! What real cards said, and where the mock says otherwise.
//!
//! The suite `gpu` (`device/tests/gpu`) records it on machines that have a GPU. What was recorded lies in `recorded/`, and the boards are
//! compared with it. Nothing in it tells which card it was: neither UUID nor serial number.

mod compare;

use serde::{Deserialize, Serialize};

use crate::state::Placement;

/// What NVML answered, or the number of `nvmlReturn_t` by which it refused.
pub type Answer<T> = Result<T, u32>;

/// A machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Recording {
    /// Version of the driver.
    pub driver_version: String,
    /// CUDA version of the driver, 1000 times major plus 10 times minor.
    pub cuda_driver_version: Answer<i32>,
    /// Its GPUs, in the order of NVML's indices.
    pub gpus: Vec<RecordedGpu>,
    /// Each two of them.
    pub peers: Vec<RecordedPeers>,
    /// What became of a program that used each of them; empty where that was not tried.
    #[serde(default)]
    pub uses: Vec<RecordedUse>,
}

/// A GPU.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct RecordedGpu {
    /// As `nvmlDeviceGetName` says.
    pub product_name: String,
    /// NVML's number of the architecture.
    pub architecture: u32,
    /// CUDA compute capability, major and minor.
    pub compute_capability: (i32, i32),
    /// `DDDDDDDD:BB:DD.F`.
    pub pci_bus_id: String,
    /// PCI device and vendor id.
    pub pci_device_id: u32,
    /// PCI subsystem id.
    pub pci_subsystem_id: u32,
    /// Total memory.
    pub memory_bytes: Answer<u64>,
    /// What of it the driver keeps.
    pub reserved_bytes: Answer<u64>,
    /// Whether it is in MIG mode.
    pub mig: Answer<RecordedMig>,
    /// What it can be cut into, ascending by enumerator.
    pub profiles: Vec<RecordedProfile>,
    /// Its links, by number.
    pub links: Vec<Answer<RecordedLink>>,
    /// How far the fabric manager has come with it: `NVML_GPU_FABRIC_STATE_*`.
    pub fabric_state: Answer<u8>,
    /// Events that it reports: bits of `nvmlEventType*`.
    pub events: Answer<u64>,
    /// Whether an event set could be registered for all of these, and asked.
    pub registered: Answer<()>,
}

/// MIG mode.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct RecordedMig {
    /// Whether it is on.
    pub current: bool,
    /// Whether it will be on after a reset.
    pub pending: bool,
}

/// A kind of GPU instance.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct RecordedProfile {
    /// `NVML_GPU_INSTANCE_PROFILE_*`.
    pub enumerator: u32,
    /// Its own number.
    pub id: u32,
    /// `MIG 1g.10gb`.
    pub name: Answer<String>,
    /// Compute slices.
    pub compute_slices: u32,
    /// Most instances at one time.
    pub max_instances: u32,
    /// Multiprocessors.
    pub multiprocessors: u32,
    /// Copy engines.
    pub copy_engines: u32,
    /// Video decoders.
    pub decoders: u32,
    /// Video encoders.
    pub encoders: u32,
    /// JPEG decoders.
    pub jpeg_engines: u32,
    /// Optical flow accelerators.
    pub ofa_engines: u32,
    /// Memory, in MiB.
    pub memory_mib: u64,
    /// Where an instance may lie.
    pub placements: Answer<Vec<Placement>>,
}

/// An NVLink.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct RecordedLink {
    /// Whether it is active.
    pub is_active: bool,
    /// What is at its other end: `NVML_NVLINK_DEVICE_TYPE_*`.
    pub remote: Answer<u32>,
}

/// How two GPUs reach each other: `NVML_P2P_STATUS_*`, and what they have in common.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct RecordedPeers {
    /// Which two, by their places in [`Recording::gpus`].
    pub gpus: (usize, usize),
    /// To read each other's memory.
    pub read: Answer<u32>,
    /// To write to it.
    pub write: Answer<u32>,
    /// Over NVLink.
    pub nvlink: Answer<u32>,
    /// Atomic operations.
    pub atomics: Answer<u32>,
    /// `NVML_TOPOLOGY_*`.
    pub common_ancestor: Answer<u32>,
}

/// What NVML said of a program with a CUDA context.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct RecordedUse {
    /// The GPU, by its place in [`Recording::gpus`].
    pub gpu: usize,
    /// Whether it was seen from the host's own namespace of processes.
    pub from_the_host: bool,
    /// By which process id it was listed.
    pub listed: ListedAs,
    /// Whether it was listed with a GPU instance.
    pub has_gpu_instance: bool,
    /// When it was not listed any more.
    pub gone: GoneWith,
}

/// A process in NVML's list.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ListedAs {
    /// By its own id.
    Itself,
    /// By another, that of another namespace of processes.
    Another,
    /// Not at all.
    Nobody,
}

/// The end of a process in NVML's list.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum GoneWith {
    /// As soon as its context was destroyed.
    Context,
    /// When it ended.
    Process,
    /// It never was there.
    Nothing,
}
