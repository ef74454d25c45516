//! Which device of this node is which GPU.
//!
//! A device keeps its name as long as its GPU is known: allocations name devices, and outlive reboots. So the
//! names are on disk, keyed by UUID; NVML's order counts only when a GPU is seen for the first time. A GPU that
//! is not seen any more stays, marked as gone, until a reboot without it. One that does not answer stays what it was: that it
//! is gone nobody has said.

use std::collections::{BTreeMap, BTreeSet};

use muster_device::{Gpu, Listed};
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
    /// It did not answer in the last enumeration: what is known of it is from before.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub silent: bool,
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
    /// What is known after NVML has listed the GPUs.
    ///
    /// A known UUID keeps its index. A new one takes that of a missing GPU at the same address (a GPU that was
    /// exchanged), else the lowest free one. `NVLink` groups come from the enumeration and are translated.
    ///
    /// While a GPU does not say who it is, it may be any that is missing: those are silent, and neither gone nor forgotten.
    #[must_use]
    pub fn after(&self, boot_id: &str, listed: &Listed) -> Self {
        let is_complete = listed.unidentified.is_empty();
        let forgets = self.boot_id != boot_id && is_complete;
        let seen: Vec<&Gpu> = listed.gpus.iter().map(|listed| &listed.gpu).collect();
        let mut indices: BTreeMap<u32, u32> = BTreeMap::new();
        let mut taken: BTreeSet<u32> = BTreeSet::new();
        let is_seen = |known: &KnownGpu| seen.iter().any(|gpu| gpu.uuid == known.gpu.uuid);
        for known in self.gpus.iter().filter(|known| is_seen(known) || !forgets) {
            taken.insert(known.gpu.index);
        }
        let mut new = Vec::new();
        for gpu in &seen {
            let same = self.gpus.iter().find(|known| known.gpu.uuid == gpu.uuid);
            let exchanged = || {
                let here =
                    |known: &&KnownGpu| known.gpu.pci_bus_id == gpu.pci_bus_id && !is_seen(known);
                self.gpus.iter().find(here)
            };
            match same.or_else(exchanged) {
                Some(known) => {
                    taken.insert(known.gpu.index);
                    indices.insert(gpu.index, known.gpu.index);
                }
                None => new.push(gpu.index),
            }
        }
        // Only now is it known what is free.
        for number in new {
            let index = lowest_free(&taken);
            taken.insert(index);
            indices.insert(number, index);
        }
        let translate = |old: u32| indices.get(&old).copied().unwrap_or(old);
        let mut gpus: Vec<KnownGpu> = listed
            .gpus
            .iter()
            .map(|listed| {
                let mut gpu = listed.gpu.clone();
                gpu.index = translate(gpu.index);
                gpu.nvlink.pair = translate(gpu.nvlink.pair);
                gpu.nvlink.quad = translate(gpu.nvlink.quad);
                gpu.nvlink.group = translate(gpu.nvlink.group);
                KnownGpu {
                    gpu,
                    gone: false,
                    silent: listed.silent.is_some(),
                }
            })
            .collect();
        let replaced = |index: u32| gpus.iter().any(|known| known.gpu.index == index);
        let missing: Vec<KnownGpu> = self
            .gpus
            .iter()
            .filter(|known| !forgets && !is_seen(known) && !replaced(known.gpu.index))
            .map(|known| KnownGpu {
                gpu: known.gpu.clone(),
                gone: known.gone || is_complete,
                silent: !known.gone && !is_complete,
            })
            .collect();
        gpus.extend(missing);
        gpus.sort_by_key(|known| known.gpu.index);
        Self {
            boot_id: boot_id.to_owned(),
            gpus,
        }
    }

    /// What may be held: the GPUs that are there. One that is silent is among them, and is said to be.
    pub fn inventory(&self) -> Inventory {
        self.gpus
            .iter()
            .filter(|known| !known.gone)
            .map(|known| {
                let facts = DeviceFacts {
                    unit: Unit::whole(known.gpu.uuid.clone()),
                    gpus_milli: 1_000,
                    // One that reports none has none of its own to count.
                    memory_bytes: known
                        .gpu
                        .memory_bytes
                        .map_or(0, |bytes| i64::try_from(bytes).unwrap_or(i64::MAX)),
                    minor: known.gpu.minor,
                    silent: known.silent,
                    slice: None,
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
pub(crate) mod fixtures {
    use muster_device::{Gpu, NvlinkGroups};

    /// A GPU of which nothing but its names matters.
    pub(crate) fn gpu(uuid: &str, index: u32, pci_bus_id: &str) -> Gpu {
        Gpu {
            uuid: uuid.to_owned(),
            index,
            pci_bus_id: pci_bus_id.to_owned(),
            product_name: "Test".to_owned(),
            architecture: "Test".to_owned(),
            memory_bytes: Some(1 << 30),
            numa_node: None,
            pcie_root: "pci0000:00".to_owned(),
            nvlink: NvlinkGroups::alone(index),
            fabric_clique: None,
            driver_version: "1.2.3".to_owned(),
            cuda_compute_capability: (9, 0),
            minor: index,
            mig: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use muster_device::{BackendError, ListedGpu};

    use super::{fixtures::gpu, *};

    fn listed(gpus: &[Gpu]) -> Listed {
        let answered = |gpu: &Gpu| ListedGpu {
            gpu: gpu.clone(),
            silent: None,
        };
        Listed {
            gpus: gpus.iter().map(answered).collect(),
            unidentified: Vec::new(),
        }
    }

    fn names(known: &KnownGpus) -> Vec<(String, u32, bool)> {
        let name = |known: &KnownGpu| (known.gpu.uuid.clone(), known.gpu.index, known.gone);
        known.gpus.iter().map(name).collect()
    }

    fn three() -> KnownGpus {
        let seen = [gpu("a", 0, "1"), gpu("b", 1, "2"), gpu("c", 2, "3")];
        KnownGpus::default().after("boot", &listed(&seen))
    }

    #[test]
    fn a_gpu_that_vanishes_moves_no_name() {
        let after = three().after("boot", &listed(&[gpu("a", 0, "1"), gpu("c", 1, "3")]));
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
        assert_eq!(after.after("boot", &listed(&seen)), three());
    }

    #[test]
    fn after_a_reboot_names_stay_with_uuids_and_the_gone_are_forgotten() {
        let after = three().after("next", &listed(&[gpu("c", 0, "1"), gpu("a", 1, "2")]));
        assert_eq!(
            names(&after),
            [("a".to_owned(), 0, false), ("c".to_owned(), 2, false)]
        );
    }

    #[test]
    fn a_gpu_that_was_exchanged_takes_the_name_of_the_old_one() {
        let seen = [gpu("a", 0, "1"), gpu("new", 1, "2"), gpu("c", 2, "3")];
        let after = three().after("boot", &listed(&seen));
        assert_eq!(
            names(&after),
            [
                ("a".to_owned(), 0, false),
                ("new".to_owned(), 1, false),
                ("c".to_owned(), 2, false)
            ]
        );
    }

    #[test]
    fn no_two_gpus_get_one_name_when_all_were_exchanged() {
        let seen = [gpu("x", 0, "0"), gpu("y", 1, "1"), gpu("z", 2, "2")];
        for boot_id in ["boot", "next"] {
            let after = three().after(boot_id, &listed(&seen));
            let there = after.inventory();
            assert_eq!(there.len(), 3, "{boot_id}: {:?}", names(&after));
            let unit_of = |name: &str| there[name].unit.gpu.clone();
            assert_eq!([unit_of("gpu-0"), unit_of("gpu-1")], ["y", "z"]);
        }
    }

    fn silent(known: &KnownGpus) -> Vec<&str> {
        let silent = known.gpus.iter().filter(|known| known.silent);
        silent.map(|known| known.gpu.uuid.as_str()).collect()
    }

    #[test]
    fn a_gpu_that_does_not_answer_stays_and_may_be_held() {
        let mut look = listed(&[gpu("a", 0, "1"), gpu("b", 1, "2"), gpu("c", 2, "3")]);
        look.gpus[1].silent = Some(BackendError::Unresponsive);
        let after = three().after("boot", &look);
        assert_eq!(silent(&after), ["b"]);
        assert!(after.gpus.iter().all(|known| !known.gone));
        let silent: Vec<bool> = after.inventory().values().map(|it| it.silent).collect();
        assert_eq!(silent, [false, true, false]);
        // And is on disk as it was before there was such a thing, once it answers.
        let text = serde_json::to_string(&three()).unwrap();
        assert!(!text.contains("silent"), "{text}");
    }

    #[test]
    fn while_a_gpu_does_not_say_who_it_is_a_missing_one_is_neither_gone_nor_forgotten() {
        let mut look = listed(&[gpu("a", 0, "1"), gpu("c", 1, "3"), gpu("new", 2, "4")]);
        look.unidentified.push(BackendError::Unresponsive);
        for boot_id in ["boot", "next"] {
            let after = three().after(boot_id, &look);
            assert_eq!(silent(&after), ["b"], "{boot_id}");
            assert_eq!(
                names(&after),
                [
                    ("a".to_owned(), 0, false),
                    ("b".to_owned(), 1, false),
                    ("c".to_owned(), 2, false),
                    ("new".to_owned(), 3, false)
                ]
            );
        }
        // One that was gone before is still gone.
        let gone = three().after("boot", &listed(&[gpu("a", 0, "1"), gpu("c", 1, "3")]));
        let after = gone.after("boot", &look);
        assert_eq!(names(&after)[1], ("b".to_owned(), 1, true));
        assert!(silent(&after).is_empty());
    }
}
