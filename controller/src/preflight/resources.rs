//! Names of resources by which pods come to GPUs, and which Muster does not manage, or not in this way.
//!
//! A pod that names a resource which is not among `managedResources` is not gated and charged for nothing. For one that a DeviceClass
//! stands behind, kube-scheduler makes the claim itself once the pod is released: no gang was admitted with it, so no permit names it.

use std::collections::BTreeMap;

use k8s_openapi::api::resource::v1::{DeviceClass, DeviceClassSpec};
use kube::{Api, Client, ResourceExt, api::ListParams};
use muster_api::keys;
use muster_cluster::{
    managed::ManagedPods,
    selectors::{self, Verdict},
};

use super::{
    finding::{Finding, Reason},
    nodes::Nodes,
    reading::{self, Reading},
};

/// The domain of the attributes that mean the same whatever the driver.
const STANDARD_ATTRIBUTES: &str = "resource.kubernetes.io";

/// Resources by the DeviceClasses that stand behind them and have Muster's devices.
pub type Classes = BTreeMap<String, String>;

/// Reads the DeviceClasses that name a resource.
pub async fn read_classes(client: &Client) -> Reading<Classes> {
    let classes: Api<DeviceClass> = Api::all(client.clone());
    reading::list(classes, ListParams::default(), Classes::new(), see).await
}

fn see(found: &mut Classes, class: &DeviceClass) {
    if let Some(spec) = &class.spec
        && let Some(resource) = &spec.extended_resource_name
        && may_have_ours(spec)
    {
        found.insert(class.name_any(), resource.clone());
    }
}

/// By what its selectors say: one without any has every device.
fn may_have_ours(class: &DeviceClassSpec) -> bool {
    let selectors = class.selectors.iter().flatten();
    let expressions: Vec<&str> = selectors
        .filter_map(|selector| Some(selector.cel.as_ref()?.expression.as_str()))
        .collect();
    let names_ours = |expression: &&str| expression.contains(keys::DRIVER);
    expressions.iter().any(names_ours) || !expressions.iter().any(|text| is_of_others(text))
}

/// Whether no device of Muster's driver matches the expression, which does not name it. What reads attributes that all drivers may
/// have, or cannot be read here, may match any.
fn is_of_others(expression: &str) -> bool {
    let matches = || selectors::of_bare_device(expression, keys::DRIVER);
    !expression.contains(STANDARD_ATTRIBUTES)
        && matches!(matches(), Ok(Verdict::Differs | Verdict::Fails(_)))
}

/// DeviceClasses of Muster's devices that name a resource.
pub fn of_classes(
    classes: &Reading<Classes>,
    devices: &ManagedPods,
    enforces: bool,
) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (class, resource) in &classes.found {
        let is_managed = devices.stands_for_devices(resource);
        // What pods ask for of the class of whole GPUs is planned, charged and permitted.
        if is_managed && (!enforces || class == keys::DEVICE_CLASS_GPU) {
            continue;
        }
        let (message, remedy) = if is_managed {
            (
                format!(
                    "its spec.extendedResourceName is {resource}, and mode is Enforce: kube-scheduler makes the claims of pods that \
                     ask for it, which no permit names, so the driver does not prepare them and these pods do not start; only the class \
                     {} may name one",
                    keys::DEVICE_CLASS_GPU
                ),
                "Take extendedResourceName off the DeviceClass, and have these pods ask by a ResourceClaim or by muster.dev/gpus"
                    .to_owned(),
            )
        } else {
            (
                format!(
                    "its spec.extendedResourceName is {resource}, which is not among the managed resources: pods that ask for it are \
                     given Muster's devices without a gate and without a charge"
                ),
                format!(
                    "Take extendedResourceName off the DeviceClass; or, with mode=Observe only, list {resource} in the chart's \
                     managedResources"
                ),
            )
        };
        let object = format!("deviceclass {class}");
        findings.push(Finding::new(
            Reason::DeviceClassNamesResource,
            object,
            message,
            remedy,
        ));
    }
    classes.or_passed(findings, || {
        Finding::passed(
            "device classes",
            "none gives out Muster's devices by the name of a resource",
        )
    })
}

/// Resources of device plugins.
pub fn of_plugins(nodes: &Reading<Nodes>) -> Vec<Finding> {
    let unmanaged = nodes.found.unmanaged.iter();
    let findings = unmanaged.map(|(resource, on)| {
        Finding::new(
            Reason::ResourceNotManaged,
            resource,
            format!(
                "on {} nodes a device plugin offers {resource} ({}), which is not among the managed resources: pods that ask for it are \
                 not gated, and no Team is charged",
                on.count(),
                on.list()
            ),
            format!(
                "List {resource} in the chart's managedResources, and count it by a Flavor with extendedResource; or have the device \
                 plugin not offer it"
            ),
        )
    });
    nodes.or_passed(findings.collect(), || {
        Finding::passed(
            "resources of device plugins",
            "every one by which GPUs of NVIDIA are offered is managed",
        )
    })
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::preflight::nodes::tests::{node, nodes, served, wanted};

    fn class(name: &str, resource: Option<&str>, expressions: &[&str]) -> DeviceClass {
        let selectors: Vec<Value> = expressions
            .iter()
            .map(|expression| json!({"cel": {"expression": expression}}))
            .collect();
        serde_json::from_value(json!({
            "metadata": {"name": name},
            "spec": {"selectors": selectors, "extendedResourceName": resource},
        }))
        .unwrap()
    }

    #[test]
    fn a_class_of_our_devices_that_names_a_resource_is_told_where_pods_would_pass_gate_or_permit() {
        let ours = "device.driver == 'gpu.muster.dev'";
        let theirs = "device.driver == 'gpu.nvidia.com'";
        for (class, enforces, expected) in [
            (class("a", None, &[ours]), true, None),
            (
                class("gpu.muster.dev", Some("nvidia.com/gpu"), &[ours]),
                true,
                None,
            ),
            (
                class("gpu.muster.dev", Some("example.com/gpu"), &[ours]),
                true,
                Some("not among the managed resources"),
            ),
            (
                class("a", Some("nvidia.com/gpu"), &[ours]),
                true,
                Some("mode is Enforce"),
            ),
            (class("a", Some("nvidia.com/gpu"), &[ours]), false, None),
            (
                class("a", Some("example.com/gpu"), &[ours]),
                false,
                Some("not among the managed resources"),
            ),
            (
                class("a", Some("example.com/gpu"), &[ours]),
                true,
                Some("not among the managed resources"),
            ),
            (
                class("a", Some("example.com/gpu"), &[]),
                false,
                Some("not among the managed resources"),
            ),
            (
                class(
                    "a",
                    Some("example.com/gpu"),
                    &["device.attributes['gpu.muster.dev'].architecture == 'Hopper'"],
                ),
                false,
                Some("not among the managed resources"),
            ),
            (class("a", Some("example.com/gpu"), &[theirs]), true, None),
            // Those that name no driver.
            (
                class(
                    "a",
                    Some("nvidia.com/gpu"),
                    &["device.driver.startsWith('gpu.')"],
                ),
                true,
                Some("mode is Enforce"),
            ),
            (
                class(
                    "a",
                    Some("nvidia.com/gpu"),
                    &["device.driver != 'gpu.nvidia.com'"],
                ),
                true,
                Some("mode is Enforce"),
            ),
            (
                class(
                    "a",
                    Some("nvidia.com/gpu"),
                    &["device.attributes['resource.kubernetes.io'].numaNode == 0"],
                ),
                true,
                Some("mode is Enforce"),
            ),
            (
                class(
                    "a",
                    Some("nvidia.com/gpu"),
                    &["device.attributes['gpu.nvidia.com'].type == 'gpu'"],
                ),
                true,
                None,
            ),
            (
                class(
                    "a",
                    Some("nvidia.com/gpu"),
                    &["device.driver.startsWith('gpu.')", theirs],
                ),
                true,
                None,
            ),
        ] {
            let mut found = Classes::new();
            see(&mut found, &class);
            let findings = of_classes(&Reading::whole(found), &wanted().devices, enforces);
            assert_eq!(findings.len(), 1, "{findings:?}");
            match expected {
                None => assert_eq!(findings[0].reason, Reason::Passed, "{class:?}"),
                Some(text) => {
                    assert_eq!(findings[0].reason, Reason::DeviceClassNamesResource);
                    let name = class.metadata.name.as_deref().unwrap();
                    assert_eq!(findings[0].object, format!("deviceclass {name}"));
                    assert!(findings[0].message.contains(text), "{findings:?}");
                }
            }
        }
    }

    #[test]
    fn a_resource_of_a_device_plugin_that_nobody_manages_is_told_with_its_nodes_served_or_not() {
        let offers = |resources: &[(&str, &str)]| {
            let resources: BTreeMap<&str, &str> = resources.iter().copied().collect();
            json!({"allocatable": resources, "capacity": resources})
        };
        for (all, expected) in [
            (
                vec![served("a", &offers(&[("nvidia.com/gpu", "8")]))],
                vec![],
            ),
            (
                vec![
                    served(
                        "a",
                        &offers(&[("nvidia.com/gpu.shared", "16"), ("nvidia.com/gpu", "0")]),
                    ),
                    node("b", &json!({}), &offers(&[("nvidia.com/gpu.shared", "8")])),
                ],
                vec![("nvidia.com/gpu.shared", "on 2 nodes")],
            ),
            // It was taken off.
            (
                vec![node(
                    "b",
                    &json!({}),
                    &offers(&[("nvidia.com/gpu.shared", "0")]),
                )],
                vec![],
            ),
            (
                vec![node(
                    "b",
                    &json!({}),
                    &offers(&[("nvidia.com/hostdev", "4")]),
                )],
                vec![],
            ),
        ] {
            let findings = of_plugins(&Reading::whole(nodes(&all)));
            if expected.is_empty() {
                assert_eq!(findings.len(), 1);
                assert_eq!(findings[0].reason, Reason::Passed, "{findings:?}");
                continue;
            }
            assert_eq!(findings.len(), expected.len(), "{findings:?}");
            for (finding, (resource, text)) in findings.iter().zip(expected) {
                assert_eq!(finding.reason, Reason::ResourceNotManaged);
                assert_eq!(finding.object, resource);
                assert!(finding.message.contains(text), "{finding:?}");
                assert!(finding.remedy.contains("managedResources"), "{finding:?}");
            }
        }
        let without_mig = super::super::nodes::Wanted {
            devices: ManagedPods::new(["nvidia.com/gpu"]).unwrap(),
            ..wanted()
        };
        let slices = served("a", &offers(&[("nvidia.com/mig-1g.10gb", "7")]));
        let unmanaged =
            muster_cluster::device_plugin::offered_unmanaged(&slices, &without_mig.devices);
        assert_eq!(
            unmanaged.into_iter().collect::<Vec<_>>(),
            ["nvidia.com/mig-1g.10gb"]
        );
    }
}
