//! Which GPUs are reset with one.

use std::collections::BTreeSet;

use crate::gpu::Gpu;

/// CUDA compute capability, the major number, from which on a GPU is reset alone though it has NVLinks: that of Ampere.
const RESETS_ALONE: u32 = 8;

/// UUIDs of the GPUs that are reset when that of `uuid` is, itself included, of those that the node has.
///
/// `nvidia-smi --gpu-reset` says of NVLinks: before Ampere all GPUs that are connected by them are reset together, on a board with NVSwitch
/// that is the whole board; from Ampere on each by itself, whatever it is connected to. A GPU that is not among `gpus` is reset alone.
pub fn resets_with<'a>(gpus: impl IntoIterator<Item = &'a Gpu>, uuid: &str) -> BTreeSet<String> {
    let gpus: Vec<&Gpu> = gpus.into_iter().collect();
    let own = gpus.iter().find(|gpu| gpu.uuid == uuid);
    let group = own
        .filter(|own| own.cuda_compute_capability.0 < RESETS_ALONE)
        .map(|own| own.nvlink.group);
    let is_meant = |gpu: &&&Gpu| gpu.uuid == uuid || Some(gpu.nvlink.group) == group;
    let meant = gpus.iter().filter(is_meant).map(|gpu| gpu.uuid.clone());
    meant.chain([uuid.to_owned()]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gpu::NvlinkGroups;

    fn gpu(index: u32, group: u32, capability: (u32, u32)) -> Gpu {
        Gpu {
            uuid: format!("GPU-{index}"),
            index,
            pci_bus_id: format!("0000:{index:02x}:00.0"),
            product_name: String::new(),
            architecture: String::new(),
            memory_bytes: None,
            numa_node: None,
            pcie_root: String::new(),
            nvlink: NvlinkGroups {
                group,
                ..NvlinkGroups::alone(index)
            },
            fabric_clique: None,
            fabric: crate::gpu::FabricState::None,
            rdma_nic: None,
            driver_version: String::new(),
            cuda_compute_capability: capability,
            minor: index,
            mig: None,
        }
    }

    #[test]
    fn before_ampere_what_nvlink_connects_is_reset_together() {
        for (capability, groups, expected) in [
            // A board of V100 with NVSwitch.
            (
                (7, 0),
                [0, 0, 0, 0],
                &["GPU-0", "GPU-1", "GPU-2", "GPU-3"][..],
            ),
            // Two pairs with bridges.
            ((7, 5), [0, 0, 2, 2], &["GPU-0", "GPU-1"]),
            // No NVLink.
            ((7, 5), [0, 1, 2, 3], &["GPU-0"]),
            // A100 and H100 on NVSwitch.
            ((8, 0), [0, 0, 0, 0], &["GPU-0"]),
            ((9, 0), [0, 0, 0, 0], &["GPU-0"]),
        ] {
            let gpus: Vec<Gpu> = (0_u32..)
                .zip(groups)
                .map(|(index, group)| gpu(index, group, capability))
                .collect();
            let found: Vec<String> = resets_with(&gpus, "GPU-0").into_iter().collect();
            assert_eq!(found, expected, "{capability:?} {groups:?}");
        }
        assert_eq!(
            resets_with([], "GPU-9"),
            BTreeSet::from(["GPU-9".to_owned()])
        );
    }
}
