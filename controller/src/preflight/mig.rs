//! What `driver.mig` asks for beside what nodes say: who else cuts their GPUs, and which GPUs cannot be cut as it says.
//!
//! What holds for a node is worked out as the driver does it ([`muster_cluster::mig_settings`]). Whether it can be done is seen in what the driver
//! publishes: on a `Dynamic` node a whole GPU that draws from no counters is one that no slice can be made of.

use std::collections::BTreeMap;

use k8s_openapi::api::{
    core::v1::Node,
    resource::v1::{Device, ResourceSlice},
};
use kube::{Api, Client, ResourceExt, api::ListParams};
use muster_api::keys;
use muster_cluster::{
    devices::attribute,
    mig_settings::{Mode, Settings, Toggle, switches_without_reset},
};

use super::{
    finding::{Finding, Reason},
    nodes::Nodes,
    reading::{self, Reading},
};
use crate::listing::Names;

/// What is told is about this value of the chart.
const OBJECT: &str = "driver.mig";
/// Objects of one answer: a slice may have 128 devices, and all of an answer are in memory at once.
const PAGE: u32 = 50;
/// Which of its configurations NVIDIA's mig-manager is to apply.
const MANAGER_CONFIG: &str = "nvidia.com/mig.config";

/// What `driver.mig` asks for on nodes that Muster serves.
#[derive(Clone, Debug, Default)]
pub struct MigNodes {
    /// Those on which slices are asked for and NVIDIA's mig-manager makes them.
    beside_manager: Names,
    /// Those on which slices are made for claims, and whether GPUs are switched for that.
    dynamic: BTreeMap<String, Toggle>,
}

impl MigNodes {
    /// Keeps what is to be told of a node that is served.
    pub(super) fn see(&mut self, node: &Node, settings: &Settings) {
        let labels = node.labels();
        let policy = settings.policy(labels);
        if policy.refused.is_some() {
            self.beside_manager
                .add(|| match labels.get(MANAGER_CONFIG) {
                    Some(config) => format!("{}: {MANAGER_CONFIG}={config}", node.name_any()),
                    None => node.name_any(),
                });
        } else if policy.mode == Mode::Dynamic {
            self.dynamic.insert(node.name_any(), policy.toggle);
        }
    }
}

/// GPUs of `Dynamic` nodes that are offered whole only, each by node and name.
#[derive(Clone, Debug, Default)]
pub struct WholeOnly {
    /// Devices of these nodes that were seen at all.
    devices: usize,
    /// Their mode would have to be switched, and `toggle` is `Never`.
    not_switched: Names,
    /// Their mode changes with a reset only.
    need_reset: Names,
    /// They tell nothing that they could be cut into.
    not_possible: Names,
}

impl WholeOnly {
    fn see(&mut self, slice: &ResourceSlice, dynamic: &BTreeMap<String, Toggle>) {
        let spec = &slice.spec;
        let Some(node) = spec.node_name.as_ref() else {
            return;
        };
        let Some(toggle) = dynamic.get(node).filter(|_| spec.driver == keys::DRIVER) else {
            return;
        };
        for device in spec.devices.iter().flatten() {
            self.devices += 1;
            let kind = attribute(keys::DRIVER, device, "type");
            let is_whole = kind.and_then(|kind| kind.string.as_deref()) == Some("gpu");
            if !is_whole || device.consumes_counters.is_some() {
                continue;
            }
            let slices = attribute(keys::DRIVER, device, "parentMemorySlices");
            let can_be_cut = slices.and_then(|slices| slices.int) > Some(0);
            let names = match (can_be_cut, *toggle, needs_reset(device)) {
                (false, _, _) => &mut self.not_possible,
                (true, _, true) => &mut self.need_reset,
                (true, Toggle::Never, false) => &mut self.not_switched,
                // The driver has not published it anew yet.
                (true, Toggle::WhenIdle, false) => continue,
            };
            names.add(|| format!("{node}/{}", device.name));
        }
    }
}

/// Whether the MIG mode of a GPU changes with a reset only. Of one that does not say what it can that is not known.
fn needs_reset(device: &Device) -> bool {
    let capability = attribute(keys::DRIVER, device, "cudaComputeCapability");
    let capability = capability.and_then(|capability| capability.version.as_deref());
    let major = capability.and_then(|capability| capability.split('.').next()?.parse().ok());
    major.is_some_and(|major| !switches_without_reset(major))
}

/// Reads what is published of the nodes on which slices are made for claims. Where there is none nothing is read.
pub async fn read(client: &Client, nodes: &Nodes) -> Reading<WholeOnly> {
    let dynamic = &nodes.mig.dynamic;
    if dynamic.is_empty() {
        return Reading::whole(WholeOnly::default());
    }
    let slices: Api<ResourceSlice> = Api::all(client.clone());
    let own = format!("spec.driver={}", keys::DRIVER);
    let params = ListParams::default().fields(&own).limit(PAGE);
    let see = |found: &mut WholeOnly, slice: &ResourceSlice| found.see(slice, dynamic);
    reading::list(slices, params, WholeOnly::default(), see).await
}

/// Whether the driver understands the value.
pub fn of_settings(settings: &Result<Settings, String>) -> Vec<Finding> {
    let invalid = settings.as_ref().err().map(|cause| {
        Finding::new(
            Reason::MigSettingsInvalid,
            OBJECT,
            format!("the driver does not start with it: {cause}"),
            "Correct driver.mig, or MUSTER_MIG in driver.extraEnv",
        )
    });
    invalid.into_iter().collect()
}

/// NVIDIA's mig-manager on nodes on which Muster is to make slices.
pub fn of_manager(nodes: &Reading<Nodes>) -> Vec<Finding> {
    let beside = &nodes.found.mig.beside_manager;
    let mut findings = Vec::new();
    if !beside.is_empty() {
        findings.push(Finding::new(
            Reason::MigManagerActive,
            OBJECT,
            format!(
                "on {} of {} nodes that Muster serves it asks for slices, and NVIDIA's mig-manager is active ({}): there the driver makes no \
                 slice and switches no mode, and offers what mig-manager makes",
                beside.count(),
                nodes.found.served.count,
                beside.list()
            ),
            "To have Muster cut these GPUs label the nodes nvidia.com/gpu.deploy.mig-manager=false; else set them to Off, or to Static without a \
             layout, by driver.mig.nodes",
        ));
    }
    nodes.or_passed(findings, || {
        Finding::passed(
            OBJECT,
            "on no node that Muster serves both it and NVIDIA's mig-manager are to make slices",
        )
    })
}

/// GPUs that are not cut although `Dynamic` holds for their nodes.
pub fn of_hardware(nodes: &Nodes, whole: &Reading<WholeOnly>) -> Vec<Finding> {
    let WholeOnly {
        devices,
        not_switched,
        need_reset,
        not_possible,
    } = &whole.found;
    let mut findings = Vec::new();
    let mut tell = |names: &Names, reason, why: &str, remedy: &str| {
        if !names.is_empty() {
            let what = format!(
                "mode is Dynamic, and {} GPUs are offered whole only ({}): {why}",
                names.count(),
                names.list()
            );
            findings.push(Finding::new(reason, OBJECT, what, remedy));
        }
    };
    tell(
        not_switched,
        Reason::MigModeNotSwitched,
        "they are not in MIG mode, and toggle is Never",
        "Set toggle to WhenIdle, or put them into MIG mode (nvidia-smi -i N -mig 1)",
    );
    tell(
        need_reset,
        Reason::MigModeNotSwitched,
        "they are not in MIG mode, which changes with a reset only (Ampere), so the driver does not switch it, whatever toggle says",
        "Drain these nodes, put the GPUs into MIG mode (nvidia-smi -i N -mig 1), and reset them; or set the nodes to Off by driver.mig.nodes",
    );
    tell(
        not_possible,
        Reason::MigNotPossible,
        "they tell nothing that they could be cut into",
        "Set their nodes to Off by driver.mig.nodes. NVIDIA drivers that tell it in MIG mode only do so once a GPU was in that mode",
    );
    whole.or_passed(findings, || {
        Finding::passed(
            "GPUs of Dynamic nodes",
            format!(
                "on {} nodes slices are made for claims; of their {devices} devices none is a GPU that is offered whole only",
                nodes.mig.dynamic.len()
            ),
        )
    })
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::preflight::nodes::{
        Wanted,
        tests::{node, wanted},
    };

    fn settings(value: &Value) -> Settings {
        Settings::parse(&value.to_string()).unwrap()
    }

    fn nodes(mig: &Value, all: &[(&str, Value)]) -> Reading<Nodes> {
        let wanted = Wanted {
            mig: Some(Ok(settings(mig))),
            ..wanted()
        };
        let mut nodes = Nodes::default();
        for (name, labels) in all {
            let mut labels = labels.clone();
            labels["muster.dev/driver"] = json!("true");
            nodes.see(&node(name, &labels, &json!({})), &wanted);
        }
        // One that the driver does not run on, whatever it has.
        let other = json!({"nvidia.com/mig.config.state": "success"});
        nodes.see(&node("other", &other, &json!({})), &wanted);
        Reading::whole(nodes)
    }

    fn gpu(name: &str, memory_slices: i64, capability: &str, is_cut: bool) -> Value {
        let mut device = json!({"name": name, "attributes": {
            "type": {"string": "gpu"}, "parentMemorySlices": {"int": memory_slices},
            "cudaComputeCapability": {"version": capability}}});
        if is_cut {
            device["consumesCounters"] = json!([{"counterSet": name, "counters": {}}]);
        }
        device
    }

    fn whole(nodes: &Nodes, driver: &str, node: &str, devices: &[Value]) -> Reading<WholeOnly> {
        let slice = json!({"metadata": {"name": "s"}, "spec": {
            "driver": driver, "nodeName": node, "devices": devices,
            "pool": {"name": node, "generation": 1, "resourceSliceCount": 1}}});
        let mut found = WholeOnly::default();
        let slice = serde_json::from_value(slice).unwrap();
        found.see(&slice, &nodes.mig.dynamic);
        Reading::whole(found)
    }

    #[test]
    fn a_node_on_which_two_are_to_make_slices_is_told_with_what_mig_manager_is_told_to_do() {
        let manager = json!({"nvidia.com/gpu.deploy.mig-manager": "true", "nvidia.com/mig.config": "all-balanced"});
        let off = json!({"nvidia.com/gpu.deploy.mig-manager": "false", "nvidia.com/mig.config": "all-disabled"});
        let dynamic = json!({"mode": "Dynamic"});
        let by_node = json!({"mode": "Dynamic", "nodes": [
            {"labels": {"nvidia.com/gpu.deploy.mig-manager": "true"}, "mode": "Off"}]});
        for (mig, labels, expected) in [
            (&dynamic, &manager, Reason::MigManagerActive),
            (&dynamic, &off, Reason::Passed),
            (&by_node, &manager, Reason::Passed),
            (&json!({"mode": "Off"}), &manager, Reason::Passed),
            (&json!({"mode": "Static"}), &manager, Reason::Passed),
        ] {
            let found = of_manager(&nodes(mig, &[("a", labels.clone())]));
            let reasons: Vec<Reason> = found.iter().map(|found| found.reason).collect();
            assert_eq!(reasons, [expected], "{mig} {labels}");
            if expected == Reason::MigManagerActive {
                let told = &found[0].message;
                assert!(told.contains("1 of 1 nodes"), "{told}");
                assert!(
                    told.contains("nvidia.com/mig.config=all-balanced"),
                    "{told}"
                );
            }
        }
    }

    #[test]
    fn gpus_of_a_dynamic_node_that_are_offered_whole_only_are_told_with_the_reason() {
        let hopper = gpu("gpu-0", 8, "9.0.0", false);
        let ampere = gpu("gpu-0", 8, "8.0.0", false);
        let small = gpu("gpu-0", 0, "8.9.0", false);
        let cut = gpu("gpu-0", 8, "9.0.0", true);
        let odd = gpu("gpu-0", 8, "", false);
        for (mode, toggle, device, expected) in [
            ("Dynamic", "Never", &hopper, Reason::MigModeNotSwitched),
            ("Dynamic", "WhenIdle", &hopper, Reason::Passed),
            ("Dynamic", "WhenIdle", &ampere, Reason::MigModeNotSwitched),
            ("Dynamic", "Never", &ampere, Reason::MigModeNotSwitched),
            ("Dynamic", "WhenIdle", &small, Reason::MigNotPossible),
            ("Dynamic", "WhenIdle", &cut, Reason::Passed),
            ("Dynamic", "Never", &odd, Reason::MigModeNotSwitched),
            ("Static", "WhenIdle", &ampere, Reason::Passed),
            ("Off", "Never", &hopper, Reason::Passed),
        ] {
            let nodes = nodes(
                &json!({"mode": mode, "toggle": toggle}),
                &[("a", json!({}))],
            );
            let devices = [device.clone()];
            let seen = whole(&nodes.found, keys::DRIVER, "a", &devices);
            let found = of_hardware(&nodes.found, &seen);
            let reasons: Vec<Reason> = found.iter().map(|found| found.reason).collect();
            assert_eq!(reasons, [expected], "{mode} {toggle} {device}");
            let is_told = found[0].message.contains("a/gpu-0");
            assert_eq!(is_told, expected != Reason::Passed, "{found:?}");
            // Of other nodes and drivers nothing is said.
            for (driver, node) in [("gpu.nvidia.com", "a"), (keys::DRIVER, "b")] {
                let seen = whole(&nodes.found, driver, node, &devices);
                assert_eq!(of_hardware(&nodes.found, &seen)[0].reason, Reason::Passed);
            }
        }
    }

    #[test]
    fn a_value_that_the_driver_does_not_start_with_is_an_error_and_names_the_field() {
        let found = of_settings(&Settings::parse(r#"{"modus": "Off"}"#));
        assert_eq!(found[0].reason, Reason::MigSettingsInvalid);
        assert!(found[0].message.contains("modus"), "{found:?}");
        assert!(of_settings(&Settings::parse("{}")).is_empty());
    }
}
