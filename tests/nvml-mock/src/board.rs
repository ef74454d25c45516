//! Boards: what is soldered.

use serde::Deserialize;

/// The boards by name, as they stand in `boards/`.
pub const BOARDS: [(&str, &str); 2] = [
    (
        "h100-nvswitch-8",
        include_str!("../boards/h100-nvswitch-8.json"),
    ),
    ("t4-2", include_str!("../boards/t4-2.json")),
];

/// GPUs of one product on one machine.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Board {
    /// As `nvmlDeviceGetName` says.
    pub product_name: String,
    /// NVML's number of the architecture (`NVML_DEVICE_ARCH_*`).
    pub architecture: u32,
    /// CUDA compute capability, major and minor.
    pub compute_capability: (i32, i32),
    /// Total memory of each GPU.
    pub memory_bytes: u64,
    /// What of it the driver keeps.
    pub reserved_bytes: u64,
    /// PCI device and vendor id, as a hexadecimal number.
    #[serde(deserialize_with = "hexadecimal")]
    pub pci_device_id: u32,
    /// PCI subsystem id, as a hexadecimal number.
    #[serde(deserialize_with = "hexadecimal")]
    pub pci_subsystem_id: u32,
    /// Version of the driver.
    pub driver_version: String,
    /// CUDA version of the driver, 1000 times major plus 10 times minor.
    pub cuda_driver_version: i32,
    /// Whether the GPUs can be partitioned. (The mode is off.)
    pub mig_capable: bool,
    /// Whether a fabric manager has set the GPUs up.
    pub fabric_managed: bool,
    /// NVLink, where there is any.
    #[serde(default)]
    pub nvlink: Option<NvLink>,
    /// The GPUs in PCI order; index and minor number are the position.
    pub gpus: Vec<Gpu>,
}

/// Links of every GPU, spread evenly over switches.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct NvLink {
    /// Links per GPU, all active.
    pub links_per_gpu: u32,
    /// PCI bus ids of the switches.
    pub switches: Vec<String>,
}

/// One GPU.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Gpu {
    /// `DDDDDDDD:BB:DD.F`, as NVML writes it.
    pub pci_bus_id: String,
    /// NUMA node that it is attached to.
    pub numa_node: u32,
}

impl Board {
    /// The board of that name.
    pub fn named(name: &str) -> Option<Self> {
        let (_, text) = BOARDS.iter().find(|(known, _)| *known == name)?;
        serde_json::from_str(text).ok()
    }
}

fn hexadecimal<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<u32, D::Error> {
    let text = String::deserialize(deserializer)?;
    u32::from_str_radix(text.trim_start_matches("0x"), 16).map_err(serde::de::Error::custom)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_board_is_well_formed() {
        for (name, _) in BOARDS {
            let board = Board::named(name).unwrap();
            assert!(board.gpus.is_sorted_by_key(|gpu| gpu.pci_bus_id.clone()));
        }
        assert!(Board::named("no-such-board").is_none());
    }
}
