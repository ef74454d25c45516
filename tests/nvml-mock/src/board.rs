//! Boards: what is soldered.

use std::{collections::BTreeMap, sync::LazyLock};

use serde::Deserialize;

use crate::mig::Table;

/// `NVML_DEVICE_ARCH_AMPERE`.
const AMPERE: u32 = 7;
/// `NVML_DEVICE_ARCH_BLACKWELL`.
pub(crate) const BLACKWELL: u32 = 10;

/// The boards by name, as they stand in `boards/`. What products are, how much memory and how many links they have is from published
/// outputs of `nvidia-smi`; slots, subsystem ids and what the driver keeps of the memory are plausible, not seen: but for the H100 and H200, of
/// which cards were recorded (the subsystem ids and amounts of memory are theirs).
pub const BOARDS: [(&str, &str); 9] = [
    ("a30-4", include_str!("../boards/a30-4.json")),
    ("a30-16", include_str!("../boards/a30-16.json")),
    (
        "a100-40gb-nvswitch-8",
        include_str!("../boards/a100-40gb-nvswitch-8.json"),
    ),
    (
        "a100-80gb-nvswitch-8",
        include_str!("../boards/a100-80gb-nvswitch-8.json"),
    ),
    (
        "a100-40gb-pcie-bridged-4",
        include_str!("../boards/a100-40gb-pcie-bridged-4.json"),
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

/// The same, understood once: each call of the library asks for its board.
static UNDERSTOOD: LazyLock<BTreeMap<&'static str, Board>> = LazyLock::new(|| {
    let boards = BOARDS.into_iter();
    let understood =
        boards.filter_map(|(name, text)| Some((name, serde_json::from_str(text).ok()?)));
    understood.collect()
});

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

/// Links of every GPU: spread evenly over switches, or all of them over a bridge to one other GPU.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct NvLink {
    /// Links per GPU, all active.
    pub links_per_gpu: u32,
    /// PCI bus ids of the switches; none where GPUs are bridged.
    #[serde(default)]
    pub switches: Vec<String>,
    /// PCI bus ids of each two GPUs that a bridge connects.
    #[serde(default)]
    pub bridges: Vec<(String, String)>,
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

impl NvLink {
    /// PCI bus id of the GPU to which a bridge connects this one.
    pub fn bridged(&self, gpu: &str) -> Option<&str> {
        self.bridges.iter().find_map(|(one, other)| {
            if gpu == one {
                Some(other.as_str())
            } else if gpu == other {
                Some(one.as_str())
            } else {
                None
            }
        })
    }

    /// Whether links lead from one GPU to the other, both named by PCI bus id.
    pub fn connects(&self, one: &str, other: &str) -> bool {
        !self.switches.is_empty() || self.bridged(one) == Some(other)
    }
}

impl Board {
    /// The board of that name.
    pub fn named(name: &str) -> Option<Self> {
        UNDERSTOOD.get(name).cloned()
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

    #[test]
    fn links_lead_to_switches_or_over_one_bridge_to_a_gpu_of_the_board() {
        for (name, _) in BOARDS {
            let board = Board::named(name).unwrap();
            let Some(nvlink) = &board.nvlink else {
                continue;
            };
            assert_ne!(nvlink.switches.is_empty(), nvlink.bridges.is_empty());
            let ends = nvlink.bridges.iter().flat_map(|(one, other)| [one, other]);
            let mut ends: Vec<&String> = ends.collect();
            let count = ends.len();
            ends.sort();
            ends.dedup();
            assert_eq!(ends.len(), count, "{name}: two bridges on one GPU");
            let is_gpu = |end: &String| board.gpus.iter().any(|gpu| gpu.pci_bus_id == *end);
            assert!(ends.into_iter().all(is_gpu), "{name}");
        }
    }

    #[test]
    fn a_bridge_connects_two_gpus_and_a_switch_all() {
        let connected = |name: &str| {
            let board = Board::named(name).unwrap();
            let nvlink = board.nvlink.unwrap();
            let first = board.gpus[0].pci_bus_id.clone();
            let others = board.gpus.into_iter().skip(1);
            let is_connected = |gpu: Gpu| nvlink.connects(&first, &gpu.pci_bus_id);
            others.map(is_connected).collect::<Vec<bool>>()
        };
        assert_eq!(connected("a100-40gb-pcie-bridged-4"), [false, true, false]);
        assert_eq!(connected("h100-nvswitch-8"), [true; 7]);
    }
}
