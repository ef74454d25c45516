//! The devices of a node as ResourceSlices show them. Names: DESIGN 7.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::{
    api::resource::v1::{Device, DeviceAttribute, DeviceCapacity, DeviceTaint},
    apimachinery::pkg::api::resource::Quantity,
};
use muster_api::keys;
use muster_cluster::quantity;

use crate::inventory::{KnownGpu, KnownGpus};

/// Most devices of a slice: with more than 64 a slice becomes invalid the moment one of them gets a taint.
pub const MAX_DEVICES_PER_SLICE: usize = 64;
/// Taint key (NoSchedule) on GPUs that NVML does not list any more.
pub const TAINT_GONE: &str = "gpu.muster.dev/gone";
/// Taint key (NoSchedule) on GPUs that do not answer NVML.
pub const TAINT_UNRESPONSIVE: &str = "gpu.muster.dev/unresponsive";
/// Longest string attribute that the API server takes.
const MAX_STRING_BYTES: usize = 64;

/// What is to be tainted, beside what is gone or does not answer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tainted {
    /// Names of devices that are held without a permit.
    pub held: BTreeSet<String>,
    /// UUIDs of GPUs that processes use which nothing explains.
    pub bypassed: BTreeSet<String>,
}

/// The devices of each slice, in order: kube-scheduler takes the first that fit, so neighbours in `NVLink` stand together.
/// At least one slice, empty if need be: a pool without slices looks like a driver that is not there.
pub fn devices(known: &KnownGpus, tainted: &Tainted) -> Vec<Vec<Device>> {
    let all: Vec<Device> = known.gpus.iter().map(|gpu| device(gpu, tainted)).collect();
    if all.is_empty() {
        return vec![Vec::new()];
    }
    all.chunks(MAX_DEVICES_PER_SLICE)
        .map(<[Device]>::to_vec)
        .collect()
}

/// Every attribute stands on every device: a selector that reads one that is missing is a run-time error, which
/// aborts the scheduling of the pod. Where the hardware has no such thing the value is the device's own name, or -1.
fn device(known: &KnownGpu, tainted: &Tainted) -> Device {
    let gpu = &known.gpu;
    let name = gpu.device_name();
    let neighbour = |index: u32| string(&format!("gpu-{index}"));
    let (major, minor) = gpu.cuda_compute_capability;
    let attributes = [
        ("uuid", string(&gpu.uuid)),
        ("productName", string(&gpu.product_name)),
        ("architecture", string(&gpu.architecture)),
        ("nvlinkPair", neighbour(gpu.nvlink.pair)),
        ("nvlinkQuad", neighbour(gpu.nvlink.quad)),
        ("nvlinkGroup", neighbour(gpu.nvlink.group)),
        (
            "fabricClique",
            string(gpu.fabric_clique.as_ref().unwrap_or(&name)),
        ),
        ("driverVersion", version(&semantic(&gpu.driver_version))),
        (
            "cudaComputeCapability",
            version(&format!("{major}.{minor}.0")),
        ),
        ("resource.kubernetes.io/pciBusID", string(&gpu.pci_bus_id)),
        ("resource.kubernetes.io/pcieRoot", string(&gpu.pcie_root)),
        (
            "resource.kubernetes.io/numaNode",
            DeviceAttribute {
                int: Some(gpu.numa_node.map_or(-1, i64::from)),
                ..DeviceAttribute::default()
            },
        ),
    ];
    let taints = taints(known, &name, tainted);
    Device {
        name,
        attributes: Some(owned(attributes)),
        capacity: gpu.memory_bytes.map(|bytes| {
            let value = memory(bytes);
            owned([(
                "memory",
                DeviceCapacity {
                    value,
                    ..DeviceCapacity::default()
                },
            )])
        }),
        taints: (!taints.is_empty()).then_some(taints),
        ..Device::default()
    }
}

/// In the form in which the API server stores it, so that what comes back compares equal.
fn memory(bytes: u64) -> Quantity {
    Quantity(quantity::written_bytes(
        i64::try_from(bytes).unwrap_or(i64::MAX),
    ))
}

fn taints(known: &KnownGpu, name: &str, tainted: &Tainted) -> Vec<DeviceTaint> {
    let no_schedule = |key: &str| DeviceTaint {
        key: key.to_owned(),
        effect: "NoSchedule".to_owned(),
        ..DeviceTaint::default()
    };
    let mut taints = Vec::new();
    if tainted.held.contains(name) {
        taints.push(no_schedule(keys::TAINT_HELD));
    }
    if tainted.bypassed.contains(&known.gpu.uuid) {
        taints.push(no_schedule(keys::TAINT_BYPASSED));
    }
    if known.gone {
        taints.push(no_schedule(TAINT_GONE));
    }
    if known.silent {
        taints.push(no_schedule(TAINT_UNRESPONSIVE));
    }
    taints
}

fn owned<V, const COUNT: usize>(pairs: [(&str, V); COUNT]) -> BTreeMap<String, V> {
    pairs
        .into_iter()
        .map(|(key, value)| (key.to_owned(), value))
        .collect()
}

fn string(value: &str) -> DeviceAttribute {
    DeviceAttribute {
        string: Some(value[..value.floor_char_boundary(MAX_STRING_BYTES)].to_owned()),
        ..DeviceAttribute::default()
    }
}

fn version(value: &str) -> DeviceAttribute {
    DeviceAttribute {
        version: Some(value.to_owned()),
        ..DeviceAttribute::default()
    }
}

/// NVIDIA's `580.95.05` as a semantic version, which has three numbers without leading zeros: `580.95.5`.
fn semantic(version: &str) -> String {
    let mut numbers = version
        .split('.')
        .map(|part| part.parse::<u64>().unwrap_or_default())
        .chain(std::iter::repeat(0));
    let mut next = || numbers.next().unwrap_or_default();
    format!("{}.{}.{}", next(), next(), next())
}

#[cfg(test)]
mod tests {
    use muster_device::{Gpu, Listed, ListedGpu, NvlinkGroups};

    use super::*;

    fn known(count: u32) -> KnownGpus {
        let gpu = |index| Gpu {
            uuid: format!("GPU-{index}"),
            index,
            pci_bus_id: "0000:1b:00.0".to_owned(),
            product_name: "NVIDIA H100 80GB HBM3".to_owned(),
            architecture: "Hopper".to_owned(),
            memory_bytes: Some(81_559 << 20),
            numa_node: Some(1),
            pcie_root: "pci0000:15".to_owned(),
            nvlink: NvlinkGroups {
                pair: index & !1,
                quad: index & !3,
                group: 0,
            },
            fabric_clique: None,
            driver_version: "580.95.05".to_owned(),
            cuda_compute_capability: (9, 0),
            minor: index,
            mig: None,
        };
        let gpus = (0..count).map(|index| ListedGpu {
            gpu: gpu(index),
            silent: None,
        });
        let listed = Listed {
            gpus: gpus.collect(),
            unidentified: Vec::new(),
        };
        KnownGpus::default().after("boot", &listed)
    }

    #[test]
    fn a_gpu_is_shown_with_all_names_of_the_design() {
        let slices = devices(&known(4), &Tainted::default());
        let device = slices.first().unwrap().get(3).unwrap();
        assert_eq!(
            serde_json::to_value(device).unwrap(),
            serde_json::json!({
                "name": "gpu-3",
                "attributes": {
                    "uuid": {"string": "GPU-3"},
                    "productName": {"string": "NVIDIA H100 80GB HBM3"},
                    "architecture": {"string": "Hopper"},
                    "nvlinkPair": {"string": "gpu-2"},
                    "nvlinkQuad": {"string": "gpu-0"},
                    "nvlinkGroup": {"string": "gpu-0"},
                    "fabricClique": {"string": "gpu-3"},
                    "driverVersion": {"version": "580.95.5"},
                    "cudaComputeCapability": {"version": "9.0.0"},
                    "resource.kubernetes.io/pciBusID": {"string": "0000:1b:00.0"},
                    "resource.kubernetes.io/pcieRoot": {"string": "pci0000:15"},
                    "resource.kubernetes.io/numaNode": {"int": 1},
                },
                "capacity": {"memory": {"value": "81559Mi"}},
            })
        );
    }

    #[test]
    fn no_slice_has_more_than_64_devices_and_no_pool_has_no_slice() {
        let sizes = |count| {
            let slices = devices(&known(count), &Tainted::default());
            slices.iter().map(Vec::len).collect::<Vec<_>>()
        };
        assert_eq!(sizes(0), [0]);
        assert_eq!(sizes(8), [8]);
        assert_eq!(sizes(64), [64]);
        assert_eq!(sizes(65), [64, 1]);
    }

    #[test]
    fn held_bypassed_and_silent_devices_are_tainted_and_stay() {
        let tainted = Tainted {
            held: BTreeSet::from(["gpu-1".to_owned()]),
            bypassed: BTreeSet::from(["GPU-1".to_owned(), "GPU-2".to_owned()]),
        };
        let mut known = known(4);
        known.gpus[3].silent = true;
        let slices = devices(&known, &tainted);
        let keys: Vec<Vec<String>> = slices
            .concat()
            .into_iter()
            .map(|device| {
                let taints = device.taints.into_iter().flatten();
                taints.map(|taint| taint.key).collect()
            })
            .collect();
        let (held, bypassed) = ("gpu.muster.dev/held", "gpu.muster.dev/bypassed");
        let silent = "gpu.muster.dev/unresponsive";
        assert_eq!(
            keys,
            [vec![], vec![held, bypassed], vec![bypassed], vec![silent]]
        );
        let no_schedule = |taint: &DeviceTaint| taint.effect == "NoSchedule";
        let devices = slices.concat();
        let mut taints = devices
            .iter()
            .flat_map(|device| device.taints.iter().flatten());
        assert!(taints.all(no_schedule), "nobody who runs is evicted");
    }

    #[test]
    fn a_long_attribute_is_cut_where_a_character_ends() {
        let shown = |text: &str| string(text).string.unwrap();
        assert_eq!(shown(&"a".repeat(64)), "a".repeat(64));
        assert_eq!(shown(&"a".repeat(65)), "a".repeat(64));
        assert_eq!(shown(&format!("a{}", "ä".repeat(32))).len(), 63);
    }

    #[test]
    fn driver_versions_become_semantic_versions() {
        for (nvidia, semantic_version) in [
            ("580.95.05", "580.95.5"),
            ("570.86", "570.86.0"),
            ("1.2.3.4", "1.2.3"),
            ("strange", "0.0.0"),
        ] {
            assert_eq!(semantic(nvidia), semantic_version);
        }
    }
}
