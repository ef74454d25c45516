//! The products of the clusters, as NVML tells them: the tables of the mock library, which are those of real cards.

use anyhow::{Context, Result};
use muster_cluster::shorthand::NOMINAL_PERCENT;
use muster_device::{FabricState, Gpu, Media, MigFacts, MigProfile, NvlinkGroups, Placement};
use nvidia_ml_mock::mig::{Profile, Table};

/// A product.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Card {
    /// Name of its table of profiles.
    pub(super) name: &'static str,
    product_name: &'static str,
    architecture: &'static str,
    memory_mib: u64,
    cuda_compute_capability: (u32, u32),
    /// GPUs of a node.
    pub(super) per_node: usize,
    /// Sizes under which its memory is sold, whole and cut, in GiB.
    sold_gib: &'static [u64],
}

/// With 24 GB, cut into four.
pub(super) const A30: Card = Card {
    name: "a30",
    product_name: "NVIDIA A30",
    architecture: "Ampere",
    memory_mib: 24_576,
    cuda_compute_capability: (8, 0),
    per_node: 4,
    sold_gib: &[6, 12, 24],
};
/// With 80 GB.
pub(super) const A100: Card = Card {
    name: "a100-80gb",
    product_name: "NVIDIA A100-SXM4-80GB",
    architecture: "Ampere",
    memory_mib: 81_920,
    cuda_compute_capability: (8, 0),
    per_node: 8,
    sold_gib: &[10, 20, 40, 80],
};
/// With 80 GB.
pub(super) const H100: Card = Card {
    name: "h100-80gb",
    product_name: "NVIDIA H100 80GB HBM3",
    architecture: "Hopper",
    memory_mib: 81_559,
    cuda_compute_capability: (9, 0),
    per_node: 8,
    sold_gib: &[10, 20, 40, 80],
};
/// With 141 GB.
pub(super) const H200: Card = Card {
    name: "h200",
    product_name: "NVIDIA H200",
    architecture: "Hopper",
    memory_mib: 143_771,
    cuda_compute_capability: (9, 0),
    per_node: 8,
    sold_gib: &[16, 33, 71, 141],
};

impl Card {
    /// What it can be cut into, and what fits beside what.
    pub(super) fn table(self) -> Result<&'static Table> {
        Table::named(self.name).with_context(|| format!("there is no table of {}", self.name))
    }

    /// Whether it can be had whole where it can be cut: where its MIG mode can be switched, which is from Hopper on.
    pub(super) fn is_offered_whole(self) -> bool {
        self.cuda_compute_capability.0 >= 9
    }

    /// The size under which so much memory is sold, in GiB: the largest of its sizes that it has nearly.
    pub(super) fn sold_as(self, memory_bytes: u64) -> Option<u64> {
        let percent = NOMINAL_PERCENT.unsigned_abs();
        let sizes = self.sold_gib.iter().copied();
        sizes
            .filter(|gib| memory_bytes >= ((gib << 30) * percent).div_ceil(100))
            .max()
    }

    /// One of them in a node, as its driver finds it.
    pub(super) fn gpu(self, node: &str, index: u32) -> Result<Gpu> {
        let mut profiles: Vec<MigProfile> = self.table()?.profiles.iter().map(facts).collect();
        profiles.sort_by_key(|profile| profile.gpu_instance_profile);
        // What cannot be switched is in the mode for good.
        let is_cut = !self.is_offered_whole();
        Ok(Gpu {
            uuid: format!("GPU-{node}-{index}"),
            index,
            pci_bus_id: format!("0000:{:02x}:00.0", index + 1),
            product_name: self.product_name.to_owned(),
            architecture: self.architecture.to_owned(),
            memory_bytes: Some(self.memory_mib << 20),
            numa_node: None,
            pcie_root: "pci0000:00".to_owned(),
            nvlink: NvlinkGroups {
                pair: index & !1,
                quad: index & !3,
                group: 0,
            },
            fabric_clique: None,
            fabric: FabricState::None,
            rdma_nic: None,
            driver_version: "580.95.05".to_owned(),
            cuda_compute_capability: self.cuda_compute_capability,
            minor: index,
            mig: Some(MigFacts {
                current: is_cut,
                pending: is_cut,
                profiles,
                implausible: Vec::new(),
            }),
        })
    }
}

fn facts(profile: &Profile) -> MigProfile {
    let placements = profile.placements().map(|placement| Placement {
        start: placement.start,
        size: placement.size,
    });
    MigProfile {
        name: profile.name.to_owned(),
        gpu_instance_profile: profile.id,
        compute_instance_profile: 0,
        memory_bytes: profile.memory_bytes(),
        multiprocessors: profile.multiprocessors,
        compute_slices: profile.compute_slices,
        memory_slices: profile.memory_slices,
        media: Media {
            copy_engines: profile.engines.copy,
            decoders: profile.engines.decoders,
            encoders: 0,
            jpeg_engines: profile.engines.jpeg,
            ofa_engines: profile.engines.optical_flow,
        },
        max_instances: profile.max_instances,
        placements: placements.collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_profile_is_sold_under_a_size_of_its_card() {
        for card in [A30, A100, H100, H200] {
            let profiles = card.table().unwrap().profiles;
            let mut sold: Vec<u64> = profiles
                .iter()
                .map(|profile| card.sold_as(profile.memory_bytes()).unwrap())
                .collect();
            sold.sort_unstable();
            sold.dedup();
            assert_eq!(sold, card.sold_gib, "{}", card.name);
        }
    }
}
