//! Which device of this node is which GPU.
//!
//! A device keeps its name as long as its GPU is known: allocations name devices, and outlive reboots. So the
//! names are on disk, keyed by UUID; NVML's order counts only when a GPU is seen for the first time. A GPU that
//! is not seen any more stays, marked as gone, until a reboot without it.

use std::collections::{BTreeMap, BTreeSet};

use muster_device::Gpu;
use serde::{Deserialize, Serialize};

use crate::prepare::{DeviceFacts, Inventory, Unit};

/// A GPU and whether it is there.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct KnownGpu {
    /// What is, or was, known of it. Its name is made from its index.
    #[serde(flatten)]
    pub gpu: Gpu,
    /// Not seen in the last enumeration.
    #[serde(default)]
    pub gone: bool,
}

/// The GPUs of a node by index, as they are on disk.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct KnownGpus {
    /// Boot in which they were last seen.
    pub boot_id: String,
    /// The GPUs.
    pub gpus: Vec<KnownGpu>,
}

impl KnownGpus {
    /// What is known after NVML has listed `seen`.
    ///
    /// A known UUID keeps its index. A new one takes that of a missing GPU at the same address (a GPU that was
    /// exchanged), else the lowest free one. `NVLink` groups come from the enumeration and are translated.
    #[must_use]
    pub fn after(&self, boot_id: &str, seen: &[Gpu]) -> Self {
        let rebooted = self.boot_id != boot_id;
        let mut indices: BTreeMap<u32, u32> = BTreeMap::new();
        let mut taken: BTreeSet<u32> = BTreeSet::new();
        let is_seen = |known: &KnownGpu| seen.iter().any(|gpu| gpu.uuid == known.gpu.uuid);
        for known in self.gpus.iter().filter(|known| is_seen(known) || !rebooted) {
            taken.insert(known.gpu.index);
        }
        for gpu in seen {
            let same = self.gpus.iter().find(|known| known.gpu.uuid == gpu.uuid);
            let exchanged = || {
                let here =
                    |known: &&KnownGpu| known.gpu.pci_bus_id == gpu.pci_bus_id && !is_seen(known);
                self.gpus.iter().find(here)
            };
            let index = match same.or_else(exchanged) {
                Some(known) => known.gpu.index,
                None => lowest_free(&taken),
            };
            taken.insert(index);
            indices.insert(gpu.index, index);
        }
        let translate = |old: u32| indices.get(&old).copied().unwrap_or(old);
        let mut gpus: Vec<KnownGpu> = seen
            .iter()
            .map(|gpu| {
                let mut gpu = gpu.clone();
                gpu.index = translate(gpu.index);
                gpu.nvlink.pair = translate(gpu.nvlink.pair);
                gpu.nvlink.quad = translate(gpu.nvlink.quad);
                gpu.nvlink.group = translate(gpu.nvlink.group);
                KnownGpu { gpu, gone: false }
            })
            .collect();
        let replaced = |index: u32| gpus.iter().any(|known| known.gpu.index == index);
        let gone: Vec<KnownGpu> = self
            .gpus
            .iter()
            .filter(|known| !rebooted && !is_seen(known) && !replaced(known.gpu.index))
            .map(|known| KnownGpu {
                gone: true,
                ..known.clone()
            })
            .collect();
        gpus.extend(gone);
        gpus.sort_by_key(|known| known.gpu.index);
        Self {
            boot_id: boot_id.to_owned(),
            gpus,
        }
    }

    /// What may be prepared: the GPUs that are there.
    pub fn inventory(&self) -> Inventory {
        self.gpus
            .iter()
            .filter(|known| !known.gone)
            .map(|known| {
                let facts = DeviceFacts {
                    unit: Unit::whole(known.gpu.uuid.clone()),
                    gpus_milli: 1_000,
                    memory_bytes: i64::try_from(known.gpu.memory_bytes).unwrap_or(i64::MAX),
                    minor: known.gpu.minor,
                };
                (known.gpu.device_name(), facts)
            })
            .collect()
    }
}

fn lowest_free(taken: &BTreeSet<u32>) -> u32 {
    let gap = (0_u32..).zip(taken).find(|(index, used)| index != *used);
    // Without a gap they are 0 to n - 1.
    gap.map_or_else(
        || u32::try_from(taken.len()).unwrap_or(u32::MAX),
        |(index, _)| index,
    )
}

#[cfg(test)]
mod tests {
    use muster_device::NvlinkGroups;

    use super::*;

    fn gpu(uuid: &str, index: u32, bus: &str) -> Gpu {
        Gpu {
            uuid: uuid.to_owned(),
            index,
            pci_bus_id: bus.to_owned(),
            product_name: "Test".to_owned(),
            architecture: "Test".to_owned(),
            memory_bytes: 1 << 30,
            numa_node: None,
            pcie_root: "pci0000:00".to_owned(),
            nvlink: NvlinkGroups::alone(index),
            fabric_clique: None,
            driver_version: "1.2.3".to_owned(),
            cuda_compute_capability: (9, 0),
            minor: index,
        }
    }

    fn names(known: &KnownGpus) -> Vec<(String, u32, bool)> {
        let name = |known: &KnownGpu| (known.gpu.uuid.clone(), known.gpu.index, known.gone);
        known.gpus.iter().map(name).collect()
    }

    fn three() -> KnownGpus {
        let seen = [gpu("a", 0, "1"), gpu("b", 1, "2"), gpu("c", 2, "3")];
        KnownGpus::default().after("boot", &seen)
    }

    #[test]
    fn a_gpu_that_vanishes_moves_no_name() {
        let after = three().after("boot", &[gpu("a", 0, "1"), gpu("c", 1, "3")]);
        assert_eq!(
            names(&after),
            [
                ("a".to_owned(), 0, false),
                ("b".to_owned(), 1, true),
                ("c".to_owned(), 2, false)
            ]
        );
        assert_eq!(
            after.inventory().keys().collect::<Vec<_>>(),
            ["gpu-0", "gpu-2"]
        );
        // And comes back as what it was.
        let seen = [gpu("a", 0, "1"), gpu("b", 1, "2"), gpu("c", 2, "3")];
        assert_eq!(after.after("boot", &seen), three());
    }

    #[test]
    fn after_a_reboot_names_stay_with_uuids_and_the_gone_are_forgotten() {
        let after = three().after("next", &[gpu("c", 0, "1"), gpu("a", 1, "2")]);
        assert_eq!(
            names(&after),
            [("a".to_owned(), 0, false), ("c".to_owned(), 2, false)]
        );
    }

    #[test]
    fn a_gpu_that_was_exchanged_takes_the_name_of_the_old_one() {
        let seen = [gpu("a", 0, "1"), gpu("new", 1, "2"), gpu("c", 2, "3")];
        let after = three().after("boot", &seen);
        assert_eq!(
            names(&after),
            [
                ("a".to_owned(), 0, false),
                ("new".to_owned(), 1, false),
                ("c".to_owned(), 2, false)
            ]
        );
    }
}
