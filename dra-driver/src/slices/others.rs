//! Who else hands out the GPUs of this node.
//!
//! Two who hand out one GPU give it to two pods, and neither can know. So nothing is published while a device plugin offers GPUs of
//! the node, or another GPU driver publishes any there. A device that somebody was given stays in the ResourceSlices under its
//! name: it is in use, whoever else offers it.
//!
//! A container that a plugin gave a GPU counts like the plugin: when that is taken off, the node's allocatable drops to 0 while the
//! container runs on.
//!
//! It is looked at with each publication, and once a minute without one. Until then both offer the same GPUs, so this is a net, and
//! no way to change from one to the other: a node is emptied first.

use std::collections::BTreeSet;

use k8s_openapi::api::{core::v1::Node, resource::v1::Device};
use muster_api::keys;
use muster_cluster::{device_plugin, managed::ManagedPods, text::listed};

/// Names who else hands out GPUs of the node, with what shows it; empty: nobody does.
/// `publishing`: the drivers that have ResourceSlices there; `handed_out`: what a container got of a device plugin, if one has anything.
pub fn others<'a>(
    node: &Node,
    publishing: impl Iterator<Item = &'a str>,
    handed_out: Option<&str>,
    managed: &ManagedPods,
) -> String {
    let plugin = device_plugin::offered(node, managed)
        .map(|units| format!("a device plugin ({units} in status.allocatable)"))
        .or_else(|| handed_out.map(|what| format!("a device plugin ({what})")));
    let drivers: BTreeSet<&str> = publishing
        .filter(|driver| *driver != keys::DRIVER && device_plugin::is_gpu_driver(driver))
        .collect();
    let drivers = drivers.iter().map(|driver| format!("driver {driver}"));
    let all: Vec<String> = plugin.into_iter().chain(drivers).collect();
    if all.is_empty() {
        return String::new();
    }
    listed(all.iter().map(String::as_str))
}

/// Of what would be published the devices that claims have, by name; at least one slice.
pub fn in_use(desired: &[Vec<Device>], used: &BTreeSet<String>) -> Vec<Vec<Device>> {
    let kept = desired.iter().map(|slice| {
        let kept = slice.iter().filter(|device| used.contains(&device.name));
        kept.cloned().collect::<Vec<_>>()
    });
    let mut slices: Vec<Vec<Device>> = kept.filter(|slice| !slice.is_empty()).collect();
    if slices.is_empty() {
        slices.push(Vec::new());
    }
    slices
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn managed() -> ManagedPods {
        ManagedPods::new(["nvidia.com/gpu", "nvidia.com/mig-*"]).unwrap()
    }

    fn node(resource: &str, units: &str) -> Node {
        serde_json::from_value(json!({"status": {"allocatable": {"cpu": "8", resource: units}}}))
            .unwrap()
    }

    #[test]
    fn whoever_else_hands_out_gpus_is_named_and_nobody_else() {
        let given = Some("nvidia.com/gpu of pod ml/w-0");
        assert_eq!(
            others(
                &node("nvidia.com/gpu", "0"),
                std::iter::empty(),
                given,
                &managed()
            ),
            "a device plugin (nvidia.com/gpu of pod ml/w-0)"
        );
        for (resource, units, drivers, expected) in [
            ("nvidia.com/gpu", "0", vec![], ""),
            (
                "nvidia.com/gpu",
                "8",
                vec![],
                "a device plugin (8 nvidia.com/gpu in status.allocatable)",
            ),
            (
                "nvidia.com/mig-1g.10gb",
                "7",
                vec![],
                "a device plugin (7 nvidia.com/mig-1g.10gb in status.allocatable)",
            ),
            (
                "rdma/hca",
                "8",
                vec!["gpu.muster.dev", "dra.net", "compute-domain.nvidia.com"],
                "",
            ),
            (
                "rdma/hca",
                "8",
                vec!["gpu.nvidia.com", "gpu.nvidia.com"],
                "driver gpu.nvidia.com",
            ),
        ] {
            let drivers = drivers.into_iter();
            assert_eq!(
                others(&node(resource, units), drivers, None, &managed()),
                expected
            );
        }
    }

    #[test]
    fn what_is_in_use_stays_and_no_pool_is_without_a_slice() {
        let device = |name: &str| Device {
            name: name.to_owned(),
            ..Device::default()
        };
        let desired = [
            vec![device("gpu-0"), device("gpu-1")],
            vec![device("gpu-64")],
        ];
        let names = |used: &[&str]| {
            let used = used.iter().map(|name| (*name).to_owned()).collect();
            let slices = in_use(&desired, &used).into_iter();
            let names = slices.map(|slice| slice.into_iter().map(|it| it.name).collect());
            names.collect::<Vec<Vec<String>>>()
        };
        assert_eq!(names(&[]), [Vec::<String>::new()]);
        assert_eq!(names(&["gpu-1", "gpu-9"]), [["gpu-1"]]);
        assert_eq!(names(&["gpu-1", "gpu-64"]), [["gpu-1"], ["gpu-64"]]);
    }
}
