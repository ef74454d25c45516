//! Boards: what is soldered.

use serde::Deserialize;

use crate::mig::Table;

/// `NVML_DEVICE_ARCH_AMPERE`.
const AMPERE: u32 = 7;

/// The boards by name, as they stand in `boards/`. What products are, how much memory and how many links they have is from published
/// outputs of `nvidia-smi`; slots, subsystem ids and what the driver keeps of the memory are plausible, not seen.
pub const BOARDS: [(&str, &str); 7] = [
    ("a30-4", include_str!("../boards/a30-4.json")),
    (
        "a100-40gb-nvswitch-8",
        include_str!("../boards/a100-40gb-nvswitch-8.json"),
    ),
    (
        "a100-80gb-nvswitch-8",
        include_str!("../boards/a100-80gb-nvswitch-8.json"),
    ),
    (
        "h100-nvswitch-8",
        include_str!("../boards/h100-nvswitch-8.json"),
    ),
    (
        "h200-nvswitch-8",
        include_str!("../boards/h200-nvswitch-8.json"),
    ),
    (
        "b200-nvswitch-8",
        include_str!("../boards/b200-nvswitch-8.json"),
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
    /// Name of the table of what the GPUs can be cut into; they cannot be without.
    #[serde(default)]
    pub mig: Option<String>,
    /// Whether a fabric manager has set the GPUs up.
    pub fabric_managed: bool,
    /// NVLink, where there is any.
    #[serde(default)]
    pub nvlink: Option<NvLink>,
    /// The GPUs in PCI order; unless the state says otherwise, index and minor number are the position.
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

    /// What its GPUs can be cut into.
    pub fn mig_table(&self) -> Option<&'static Table> {
        Table::named(self.mig.as_deref()?)
    }

    /// Whether a GPU has to be reset before a change of its MIG mode takes effect, and keeps the mode over a reboot.
    pub fn needs_reset_for_mig(&self) -> bool {
        self.architecture <= AMPERE
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
            assert_eq!(board.mig.is_some(), board.mig_table().is_some(), "{name}");
            let whole = board.mig_table().and_then(|table| table.profiles.last());
            assert!(whole.is_none_or(|whole| whole.memory_bytes() < board.memory_bytes));
        }
        assert!(Board::named("no-such-board").is_none());
    }
}
