//! What is known of a GPU.

use serde::{Deserialize, Serialize};

use crate::mig::{MigFacts, MigProfile};

/// One physical GPU.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Gpu {
    /// NVML's UUID: its identity.
    pub uuid: String,
    /// Position in PCI order, counted from 0.
    pub index: u32,
    /// Address as the kernel writes it: `0000:1b:00.0`.
    pub pci_bus_id: String,
    /// Marketing name, e.g. `NVIDIA H100 80GB HBM3`.
    pub product_name: String,
    /// Name of the architecture, e.g. `Hopper`.
    pub architecture: String,
    /// Total memory that NVML reports; `None` for parts that share the host's and report none.
    pub memory_bytes: Option<u64>,
    /// NUMA node of the host that it is attached to; `None` where the kernel and NVML know none.
    pub numa_node: Option<u32>,
    /// PCIe root complex, as the kernel names it: `pci0000:15`.
    pub pcie_root: String,
    /// Which others it is connected to by NVLink.
    pub nvlink: NvlinkGroups,
    /// `<cluster UUID>.<clique>` of its multi-node NVLink domain, if it is part of one.
    pub fabric_clique: Option<String>,
    /// How far the fabric manager has come with it.
    #[serde(default)]
    pub fabric: FabricState,
    /// The RDMA adapter that is nearest to it.
    #[serde(default)]
    pub rdma_nic: Option<RdmaNic>,
    /// Version of the driver, as NVML writes it.
    pub driver_version: String,
    /// CUDA compute capability, major and minor.
    pub cuda_compute_capability: (u32, u32),
    /// Minor number of `/dev/nvidia<minor>`, good for this boot.
    pub minor: u32,
    /// What it can be cut into; `None` if it cannot be, or does not say.
    #[serde(default)]
    pub mig: Option<MigFacts>,
}

/// How far a GPU behind NVSwitch was set up. Until that is done CUDA does not start on it: its first call ends with error 802
/// (`cudaErrorSystemNotReady`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum FabricState {
    /// There is no fabric, nobody has begun to set the GPU up, or the driver does not tell.
    #[default]
    None,
    /// The GPU waits for the fabric manager, which may not be done with it, or not run.
    Unfinished,
    /// The fabric manager has given up on it.
    Failed,
    /// It reaches the others.
    Completed,
}

impl FabricState {
    /// Whether nothing starts on the GPU as long as this is so.
    pub fn is_unusable(self) -> bool {
        matches!(self, Self::Unfinished | Self::Failed)
    }
}

/// An RDMA adapter of the host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RdmaNic {
    /// Its name in the kernel, as NCCL takes it: `mlx5_0`.
    pub name: String,
    /// Its PCI address.
    pub pci_bus_id: String,
    /// How many PCI bridges, the root complex included, lead to both it and the GPU. 0: it is merely on the same NUMA node.
    pub shared_bridges: u32,
}

/// NVLink neighbours. Each value is the index of the first GPU of the set; a GPU alone is its own set. Two
/// GPUs with the same value are connected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NvlinkGroups {
    /// Two GPUs that are linked directly, or by a switch.
    pub pair: u32,
    /// Four GPUs, each linked to each.
    pub quad: u32,
    /// All GPUs that are reachable.
    pub group: u32,
}

impl NvlinkGroups {
    /// Without NVLink.
    pub fn alone(index: u32) -> Self {
        Self {
            pair: index,
            quad: index,
            group: index,
        }
    }
}

impl Gpu {
    /// Name of the device in ResourceSlices. (DESIGN 7.)
    pub fn device_name(&self) -> String {
        device_name(self.index)
    }

    /// Name in ResourceSlices of the slice of it with this profile that begins at this memory slice.
    pub fn slice_name(&self, profile: &MigProfile, start: u32) -> String {
        slice_name(self.index, &profile.name, start)
    }
}

/// Name of the device with this index.
pub(crate) fn device_name(index: u32) -> String {
    format!("gpu-{index}")
}

/// Name of a slice of the GPU with this index: `gpu-0-mig-1g10gb-me-6`. A part of a DNS name has no `.` and no `+`, and profiles
/// with and without media engines (`+me`, `-me`) keep apart.
pub fn slice_name(index: u32, profile: &str, start: u32) -> String {
    format!(
        "{}-mig-{}-{start}",
        device_name(index),
        profile_label(profile)
    )
}

/// A profile's name as part of a device's name.
pub(crate) fn profile_label(profile: &str) -> String {
    let kept = profile.chars().filter(|character| *character != '.');
    kept.fold(String::new(), |mut label, character| {
        match character {
            '+' => label.push('-'),
            '-' => label.push_str("-no"),
            other => label.push(other.to_ascii_lowercase()),
        }
        label
    })
}

/// Name of NVML's architecture number.
pub(crate) fn architecture_name(number: u32) -> String {
    let known = match number {
        2 => "Kepler",
        3 => "Maxwell",
        4 => "Pascal",
        5 => "Volta",
        6 => "Turing",
        7 => "Ampere",
        8 => "Ada Lovelace",
        9 => "Hopper",
        10 => "Blackwell",
        _ => return format!("architecture-{number}"),
    };
    known.to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_slices_are_parts_of_dns_names_and_keep_profiles_apart() {
        for (profile, name) in [
            ("1g.10gb", "gpu-3-mig-1g10gb-6"),
            ("1g.10gb+me", "gpu-3-mig-1g10gb-me-6"),
            ("1g.24gb-me", "gpu-3-mig-1g24gb-nome-6"),
            ("1g.24gb+me.all", "gpu-3-mig-1g24gb-meall-6"),
            ("1g.24gb+gfx", "gpu-3-mig-1g24gb-gfx-6"),
        ] {
            assert_eq!(slice_name(3, profile, 6), name);
        }
    }
}
