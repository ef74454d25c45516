//! What a node is made of.

use std::collections::BTreeSet;

use muster_device::{FabricState, Gpu, Listed, ListedGpu, NvlinkGroups};
use muster_dra_driver::{
    inventory::KnownGpus,
    mig::Policy,
    slices::desired::{Content, Tainted, desired},
};
use muster_sim::{
    fixtures::{self, GPU_BYTES},
    gpu_node::GpuNode,
    scenario::{NodeShape, Product},
};

/// Where a node stands, and how many GPUs it has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Its name.
    pub name: String,
    /// Its leaf of the fabric.
    pub leaf: String,
    /// Its spine of the fabric.
    pub spine: String,
    /// Number of its GPUs: H100 with 80 GiB, all to all by NVSwitch.
    pub gpus: u32,
}

impl Shape {
    /// Its disk and its hardware, as the driver's machine sees them.
    pub fn gpu_node(&self) -> GpuNode {
        GpuNode::new(NodeShape {
            name: self.name.clone(),
            leaf: self.leaf.clone(),
            product: Product::H100,
            gpus: usize::try_from(self.gpus).unwrap_or_default(),
        })
    }

    /// What its slices hold, the devices in `held` tainted.
    pub fn contents(&self, held: &BTreeSet<String>) -> Vec<Content> {
        let gpus = (0..self.gpus).map(|index| ListedGpu {
            gpu: self.gpu(index),
            silent: None,
        });
        let listed = Listed {
            gpus: gpus.collect(),
            unidentified: Vec::new(),
        };
        let known = KnownGpus::default().after("boot", &listed);
        let tainted = Tainted {
            held: held.clone(),
            ..Tainted::default()
        };
        desired(&known, &Policy::default(), &[], &tainted).contents
    }

    fn gpu(&self, index: u32) -> Gpu {
        let number = usize::try_from(index).unwrap_or_default();
        Gpu {
            uuid: fixtures::gpu_uuid(&self.name, number),
            index,
            pci_bus_id: format!("0000:{:02x}:00.0", index + 1),
            product_name: "NVIDIA H100 80GB HBM3".to_owned(),
            architecture: "Hopper".to_owned(),
            memory_bytes: u64::try_from(GPU_BYTES).ok(),
            numa_node: Some(index / 4),
            pcie_root: format!("pci0000:{:02x}", index + 1),
            nvlink: NvlinkGroups {
                pair: index - index % 2,
                quad: index - index % 4,
                group: 0,
            },
            fabric_clique: None,
            fabric: FabricState::None,
            rdma_nic: None,
            driver_version: "580.95.05".to_owned(),
            cuda_compute_capability: (9, 0),
            minor: index,
            mig: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_published_is_what_can_be_prepared() {
        let shape = Shape {
            name: "n".to_owned(),
            leaf: "l".to_owned(),
            spine: "s".to_owned(),
            gpus: 8,
        };
        let published: Vec<(String, Option<String>)> = shape
            .contents(&BTreeSet::new())
            .iter()
            .flat_map(Content::devices)
            .map(|device| {
                let uuid = device.attributes.as_ref().and_then(|all| all.get("uuid"));
                let uuid = uuid.and_then(|uuid| uuid.string.clone());
                (device.name.clone(), uuid)
            })
            .collect();
        let preparable: Vec<(String, Option<String>)> = shape
            .gpu_node()
            .inventory()
            .into_iter()
            .map(|(name, facts)| (name, Some(facts.unit.gpu)))
            .collect();
        assert_eq!(published, preparable);
    }
}
