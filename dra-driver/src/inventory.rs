//! Which device of this node is which GPU.
//!
//! A device keeps its name as long as its GPU is known: allocations name devices, and outlive reboots. So the
//! names are on disk, keyed by UUID; NVML's order counts only when a GPU is seen for the first time. A GPU that
//! is not seen any more stays, marked as gone, until a reboot without it. One that does not answer stays what it was: that it
//! is gone nobody has said.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use muster_cluster::mig_settings::switches_without_reset;
use muster_device::{Gpu, Listed, MigFacts, MigInstance, MigProfile, Placement, RdmaNic};
use serde::{Deserialize, Serialize};

use crate::prepare::{DeviceFacts, Inventory, SliceFacts, SliceMode, Unit};

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
    /// The slices that exist on it, by placement, as they were seen last in this boot.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub instances: Vec<MigInstance>,
    /// Where slices lie that no claim of ours accounts for.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub foreign: Vec<Placement>,
}

/// What may be a device: a GPU, or a slice of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Part<'a> {
    /// Name of the device.
    pub name: String,
    /// The slice; `None`: the whole GPU.
    pub slice: Option<Slice<'a>>,
}

/// A slice of a GPU, whether it exists or could be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slice<'a> {
    /// What kind of slice.
    pub profile: &'a MigProfile,
    /// Where it lies.
    pub placement: Placement,
    /// UUID of the one that exists there, as far as NVML tells.
    pub uuid: Option<&'a str>,
}

/// What a process uses: a GPU, or one GPU instance of it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct UsedPart {
    /// UUID of the GPU.
    pub gpu: String,
    /// Number of the GPU instance; `None`: the whole GPU, or nobody knows which part.
    pub gpu_instance: Option<u32>,
}

impl KnownGpu {
    fn of(gpu: Gpu) -> Self {
        Self {
            gpu,
            gone: false,
            silent: false,
            instances: Vec::new(),
            foreign: Vec::new(),
        }
    }

    /// Whether it is in MIG mode: usable by slices only.
    pub fn is_in_mig_mode(&self) -> bool {
        self.gpu.mig.as_ref().is_some_and(|mig| mig.current)
    }

    /// Whether nothing starts on it as a whole, because the fabric manager has not set it up. In MIG mode it has no NVLink, and nobody does.
    pub fn lacks_fabric(&self) -> bool {
        !self.is_in_mig_mode() && self.gpu.fabric.is_unusable()
    }

    /// Whether its MIG mode can be switched without a reset, which would end all that runs on it: from Hopper on.
    pub fn can_toggle(&self) -> bool {
        self.gpu.mig.is_some() && switches_without_reset(self.gpu.cuda_compute_capability.0)
    }

    /// The slices that exist on it and are whole: each has all compute of its GPU instance, and is of a profile that the GPU has.
    pub fn existing(&self) -> impl Iterator<Item = Slice<'_>> {
        let instances = self.instances.iter();
        let whole = instances
            .filter(|instance| instance.compute_instance.is_some() && !instance.is_divided);
        whole.filter_map(move |instance| {
            let profiles = &self.gpu.mig.as_ref()?.profiles;
            let profile = profiles.iter().find(|profile| {
                profile.gpu_instance_profile == instance.profile
                    && profile.placements.contains(&instance.placement)
            })?;
            Some(Slice {
                profile,
                placement: instance.placement,
                uuid: instance.uuid.as_deref(),
            })
        })
    }

    /// All that it may be: the whole GPU, and every legal slice.
    pub fn parts(&self) -> impl Iterator<Item = Part<'_>> {
        let whole = Part {
            name: self.gpu.device_name(),
            slice: None,
        };
        let profiles = self.gpu.mig.iter().flat_map(|mig| &mig.profiles);
        let slices = profiles.flat_map(move |profile| {
            let placements = profile.placements.iter();
            placements.map(move |&placement| self.part(profile, placement))
        });
        std::iter::once(whole).chain(slices)
    }

    /// The slice of this profile that lies there.
    pub fn part<'a>(&'a self, profile: &'a MigProfile, placement: Placement) -> Part<'a> {
        let there = self.existing().find(|existing| {
            existing.placement == placement
                && existing.profile.gpu_instance_profile == profile.gpu_instance_profile
        });
        Part {
            name: self.gpu.slice_name(profile, placement.start),
            slice: Some(Slice {
                profile,
                placement,
                uuid: there.and_then(|existing| existing.uuid),
            }),
        }
    }

    /// Where a GPU instance lies; `None`: nobody knows, so it may be anywhere.
    pub fn placement(&self, gpu_instance: u32) -> Option<Placement> {
        let mut instances = self.instances.iter();
        let found = instances.find(|instance| instance.gpu_instance == gpu_instance)?;
        Some(found.placement)
    }

    fn facts(&self, part: &Part<'_>, mode: SliceMode) -> DeviceFacts {
        let memory = match &part.slice {
            Some(slice) => Some(slice.profile.memory_bytes),
            // One that reports none has none of its own to count.
            None => self.gpu.memory_bytes,
        };
        let unit = match &part.slice {
            None => Unit::whole(self.gpu.uuid.clone()),
            Some(slice) => Unit::slice(
                self.gpu.uuid.clone(),
                slice.placement,
                slice.profile.compute_slices,
            ),
        };
        let mig = self.gpu.mig.as_ref();
        let gpus_milli = match (&part.slice, mig) {
            (Some(slice), Some(mig)) => gpus_milli(mig, slice.profile),
            _ => WHOLE_MILLI,
        };
        DeviceFacts {
            unit,
            gpus_milli,
            memory_bytes: memory.map_or(0, |bytes| i64::try_from(bytes).unwrap_or(i64::MAX)),
            minor: self.gpu.minor,
            silent: self.silent,
            lacks_fabric: part.slice.is_none() && self.lacks_fabric(),
            slice: part.slice.map(|slice| SliceFacts {
                profile: Arc::new(slice.profile.clone()),
                placement: slice.placement,
                mode,
            }),
        }
    }
}

/// A whole GPU, in thousandths.
const WHOLE_MILLI: i64 = 1_000;

/// The larger of a slice's shares of the GPU's memory slices and compute slices, in thousandths, rounded down: seven sevenths are 1,000.
pub fn gpus_milli(mig: &MigFacts, profile: &MigProfile) -> i64 {
    let share = |part: u32, all: u32| {
        let milli = i64::from(part) * WHOLE_MILLI;
        milli.checked_div(i64::from(all)).unwrap_or(WHOLE_MILLI)
    };
    let memory = share(profile.memory_slices, mig.memory_slices());
    let compute = share(profile.compute_slices, mig.compute_slices());
    memory.max(compute).min(WHOLE_MILLI)
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
                let before = self.gpus.iter().find(|known| known.gpu.uuid == gpu.uuid);
                let mut known = KnownGpu::of(gpu);
                known.silent = listed.silent.is_some();
                if let Some(before) = before {
                    known.keep(before, self.boot_id == boot_id);
                }
                known
            })
            .collect();
        let replaced = |index: u32| gpus.iter().any(|known| known.gpu.index == index);
        let missing: Vec<KnownGpu> = self
            .gpus
            .iter()
            .filter(|known| !forgets && !is_seen(known) && !replaced(known.gpu.index))
            .map(|known| KnownGpu {
                gone: known.gone || is_complete,
                silent: !known.gone && !is_complete,
                ..known.clone()
            })
            .collect();
        gpus.extend(missing);
        gpus.sort_by_key(|known| known.gpu.index);
        Self {
            boot_id: boot_id.to_owned(),
            gpus,
        }
    }

    /// With the slices that exist now, by UUID of their GPU. Of a GPU that is not among them nobody could tell: it has those that it had.
    /// `foreign` says of a slice that no claim of ours accounts for it.
    #[must_use]
    pub fn with_instances(
        mut self,
        seen: &BTreeMap<String, Vec<MigInstance>>,
        foreign: impl Fn(&str, Placement) -> bool,
    ) -> Self {
        for known in &mut self.gpus {
            let Some(instances) = seen.get(&known.gpu.uuid) else {
                continue;
            };
            known.instances.clone_from(instances);
            known
                .instances
                .sort_by_key(|instance| (instance.placement, instance.gpu_instance));
            let uuid = &known.gpu.uuid;
            let placements = known.instances.iter().map(|instance| instance.placement);
            known.foreign = placements
                .filter(|&placement| foreign(uuid, placement))
                .collect();
        }
        self
    }

    /// What may be held: the GPUs that are there, whole, and every slice that they may be cut into. What of it is offered the
    /// ResourceSlices say; an allocation may be older. A GPU that is silent is among them, and is said to be.
    pub fn inventory(&self, mode: SliceMode) -> Inventory {
        let there = self.gpus.iter().filter(|known| !known.gone);
        there
            .flat_map(|known| {
                known.parts().map(move |part| {
                    let facts = known.facts(&part, mode);
                    (part.name, facts)
                })
            })
            .collect()
    }
}

impl KnownGpu {
    /// What an earlier look knows better. Slices do not outlive a boot. What the GPU can be cut into does: some drivers tell it only
    /// while the mode is on, and a device that was allocated does not lose its name because the mode is off.
    fn keep(&mut self, before: &Self, is_same_boot: bool) {
        if let (Some(mig), Some(known)) = (&mut self.gpu.mig, &before.gpu.mig)
            && mig.profiles.is_empty()
        {
            mig.profiles.clone_from(&known.profiles);
        }
        if is_same_boot {
            // An adapter that is handed to a container as a whole is not to be seen meanwhile, and is as near as before.
            let nearness = |nic: &Option<RdmaNic>| nic.as_ref().map(|nic| nic.shared_bridges);
            if nearness(&before.gpu.rdma_nic) > nearness(&self.gpu.rdma_nic) {
                self.gpu.rdma_nic.clone_from(&before.gpu.rdma_nic);
            }
            self.instances.clone_from(&before.instances);
            self.foreign.clone_from(&before.foreign);
        }
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
    use muster_device::{FabricState, Gpu, Media, MigFacts, MigProfile, NvlinkGroups, Placement};

    /// Number, name, compute slices, memory slices, MiB, multiprocessors, starts, most at a time; copy engines, decoders, JPEG engines,
    /// optical flow accelerators.
    type Row = (
        u32,
        &'static str,
        u32,
        u32,
        u64,
        u32,
        &'static [u32],
        u32,
        [u32; 4],
    );

    /// H100 with 80 GB, as NVIDIA's tools list it.
    const H100: [Row; 7] = [
        (0, "7g.80gb", 7, 8, 81_152, 132, &[0], 1, [8, 7, 7, 1]),
        (5, "4g.40gb", 4, 4, 40_448, 64, &[0], 1, [4, 4, 4, 0]),
        (9, "3g.40gb", 3, 4, 40_448, 60, &[0, 4], 2, [3, 3, 3, 0]),
        (14, "2g.20gb", 2, 2, 20_096, 32, &[0, 2, 4], 3, [2, 2, 2, 0]),
        (
            15,
            "1g.20gb",
            1,
            2,
            20_096,
            26,
            &[0, 2, 4, 6],
            4,
            [1, 1, 1, 0],
        ),
        (
            19,
            "1g.10gb",
            1,
            1,
            9_984,
            16,
            &[0, 1, 2, 3, 4, 5, 6],
            7,
            [1, 1, 1, 0],
        ),
        (
            20,
            "1g.10gb+me",
            1,
            1,
            9_984,
            16,
            &[0, 1, 2, 3, 4, 5, 6],
            1,
            [1, 1, 1, 1],
        ),
    ];

    /// A30.
    const A30: [Row; 5] = [
        (0, "4g.24gb", 4, 4, 23_344, 56, &[0], 1, [4, 4, 1, 1]),
        (5, "2g.12gb", 2, 2, 11_672, 28, &[0, 2], 2, [2, 2, 0, 0]),
        (6, "2g.12gb+me", 2, 2, 11_672, 28, &[0, 2], 1, [2, 2, 1, 1]),
        (
            14,
            "1g.6gb",
            1,
            1,
            5_836,
            14,
            &[0, 1, 2, 3],
            4,
            [1, 0, 0, 0],
        ),
        (
            21,
            "1g.6gb+me",
            1,
            1,
            5_836,
            14,
            &[0, 1, 2, 3],
            1,
            [1, 1, 1, 1],
        ),
    ];

    /// What an H100 with 80 GB can be cut into.
    pub(crate) fn h100(is_on: bool) -> MigFacts {
        mig(&H100, is_on)
    }

    /// What an A30 can be cut into.
    pub(crate) fn a30(is_on: bool) -> MigFacts {
        mig(&A30, is_on)
    }

    fn mig(rows: &[Row], is_on: bool) -> MigFacts {
        let profile = |row: &Row| {
            let (id, name, compute, memory, mib, multiprocessors, starts, most, media) = *row;
            let [copy_engines, decoders, jpeg_engines, ofa_engines] = media;
            let start = |&start: &u32| Placement {
                start,
                size: memory,
            };
            MigProfile {
                name: name.to_owned(),
                gpu_instance_profile: id,
                compute_instance_profile: 0,
                memory_bytes: mib << 20,
                multiprocessors,
                compute_slices: compute,
                memory_slices: memory,
                media: Media {
                    copy_engines,
                    decoders,
                    encoders: 0,
                    jpeg_engines,
                    ofa_engines,
                },
                max_instances: most,
                placements: starts.iter().map(start).collect(),
            }
        };
        MigFacts {
            current: is_on,
            pending: is_on,
            profiles: rows.iter().map(profile).collect(),
            implausible: Vec::new(),
        }
    }

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
            fabric: FabricState::None,
            rdma_nic: None,
            driver_version: "1.2.3".to_owned(),
            cuda_compute_capability: (9, 0),
            minor: index,
            mig: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use muster_device::{BackendError, FabricState, ListedGpu};

    use super::{
        fixtures::{a30, gpu, h100},
        *,
    };

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
            after
                .inventory(SliceMode::Dynamic)
                .keys()
                .collect::<Vec<_>>(),
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
            let there = after.inventory(SliceMode::Dynamic);
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
        let silent: Vec<bool> = after
            .inventory(SliceMode::Dynamic)
            .values()
            .map(|it| it.silent)
            .collect();
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

    #[test]
    fn an_adapter_that_a_container_has_stays_the_nearest_until_a_reboot_or_a_nearer_one() {
        let seen = |nic: Option<(&str, u32)>| {
            let mut gpu = gpu("a", 0, "1");
            gpu.rdma_nic = nic.map(|(name, shared_bridges)| RdmaNic {
                name: name.to_owned(),
                pci_bus_id: "2".to_owned(),
                shared_bridges,
            });
            listed(&[gpu])
        };
        let near = KnownGpus::default().after("boot", &seen(Some(("mlx5_1", 3))));
        for (boot_id, nic, expected) in [
            ("boot", None, Some("mlx5_1")),
            ("boot", Some(("mlx5_5", 0)), Some("mlx5_1")),
            ("boot", Some(("mlx5_2", 3)), Some("mlx5_2")),
            ("boot", Some(("mlx5_3", 4)), Some("mlx5_3")),
            ("next", Some(("mlx5_5", 0)), Some("mlx5_5")),
            ("next", None, None),
        ] {
            let after = near.after(boot_id, &seen(nic));
            let found = after.gpus[0].gpu.rdma_nic.as_ref();
            let found = found.map(|nic| nic.name.as_str());
            assert_eq!(found, expected, "{boot_id}, {nic:?}");
        }
    }

    #[test]
    fn a_slice_counts_the_larger_of_its_shares_of_memory_and_compute() {
        let mig = h100(true);
        let milli = |name: &str| gpus_milli(&mig, mig.profile(name).unwrap());
        for (name, expected) in [
            ("1g.10gb", 142),
            ("1g.10gb+me", 142),
            ("1g.20gb", 250),
            ("2g.20gb", 285),
            ("3g.40gb", 500),
            ("4g.40gb", 571),
            ("7g.80gb", 1_000),
        ] {
            assert_eq!(milli(name), expected, "{name}");
        }
        let a30 = a30(true);
        let milli: Vec<i64> = a30.profiles.iter().map(|it| gpus_milli(&a30, it)).collect();
        assert_eq!(milli, [1_000, 500, 500, 250, 250]);
    }

    fn cut() -> KnownGpus {
        let mut gpu = gpu("a", 0, "1");
        gpu.mig = Some(h100(true));
        let instance = MigInstance {
            placement: Placement { start: 4, size: 4 },
            gpu_instance: 7,
            compute_instance: Some(0),
            is_divided: false,
            profile: 9,
            uuid: Some("MIG-7".to_owned()),
        };
        let seen = BTreeMap::from([("a".to_owned(), vec![instance])]);
        KnownGpus::default()
            .after("boot", &listed(&[gpu]))
            .with_instances(&seen, |_, _| true)
    }

    #[test]
    fn the_inventory_has_the_gpu_and_every_legal_slice_each_with_its_hardware() {
        let inventory = cut().inventory(SliceMode::Static);
        assert_eq!(inventory.len(), 26);
        let whole = &inventory["gpu-0"];
        assert!(whole.slice.is_none());
        assert!(inventory.values().all(|it| whole.unit.overlaps(&it.unit)));
        let (left, right) = (
            &inventory["gpu-0-mig-3g40gb-0"],
            &inventory["gpu-0-mig-3g40gb-4"],
        );
        assert!(!left.unit.overlaps(&right.unit));
        let small = &inventory["gpu-0-mig-1g10gb-4"];
        assert!(right.unit.overlaps(&small.unit) && !left.unit.overlaps(&small.unit));
        let slice = right.slice.as_ref().unwrap();
        assert_eq!((slice.placement.start, slice.mode), (4, SliceMode::Static));
        assert_eq!((right.gpus_milli, right.memory_bytes), (500, 40_448 << 20));
    }

    #[test]
    fn a_gpu_lacks_its_fabric_as_a_whole_and_out_of_mig_mode_only() {
        for (fabric, is_on, lacks) in [
            (FabricState::Completed, false, false),
            (FabricState::None, false, false),
            (FabricState::Unfinished, false, true),
            (FabricState::Failed, false, true),
            (FabricState::Unfinished, true, false),
        ] {
            let mut gpu = gpu("a", 0, "1");
            gpu.mig = Some(h100(is_on));
            gpu.fabric = fabric;
            let known = KnownGpus::default().after("boot", &listed(&[gpu]));
            let inventory = known.inventory(SliceMode::Dynamic);
            let lacking = inventory.iter().filter(|(_, facts)| facts.lacks_fabric);
            let lacking: Vec<&str> = lacking.map(|(name, _)| name.as_str()).collect();
            let expected: &[&str] = if lacks { &["gpu-0"] } else { &[] };
            assert_eq!(lacking, expected, "{fabric:?}, {is_on}");
        }
    }

    #[test]
    fn what_a_gpu_can_be_cut_into_outlives_a_boot_and_its_slices_do_not() {
        let known = cut();
        assert_eq!(known.gpus[0].placement(7).map(|it| it.start), Some(4));
        assert_eq!(known.gpus[0].placement(8), None);
        assert_eq!(known.gpus[0].existing().count(), 1);
        // A driver that tells nothing while the mode is off.
        let mut silent = gpu("a", 0, "1");
        silent.mig = Some(MigFacts::default());
        for (boot_id, slices) in [("boot", 1), ("next", 0)] {
            let after = known.after(boot_id, &listed(&[silent.clone()]));
            assert_eq!(after.gpus[0].instances.len(), slices, "{boot_id}");
            assert_eq!(after.gpus[0].foreign.len(), slices, "{boot_id}");
            assert_eq!(after.inventory(SliceMode::Dynamic).len(), 26, "{boot_id}");
            // Of a GPU that cannot tell now nothing changes.
            let same = after.clone().with_instances(&BTreeMap::new(), |_, _| false);
            assert_eq!(same, after);
        }
        let text = serde_json::to_string(&known).unwrap();
        assert_eq!(serde_json::from_str::<KnownGpus>(&text).unwrap(), known);
        // As an earlier version wrote it.
        let old = serde_json::to_string(&three()).unwrap();
        assert!(
            !old.contains("instances") && !old.contains("foreign"),
            "{old}"
        );
    }
}
