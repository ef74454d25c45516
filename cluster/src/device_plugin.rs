//! GPUs that device plugins hand out, as the engine's devices and claims.
//!
//! Of a device plugin a node says how many units of an extended resource it has, and a pod says how many it wants. The kubelet
//! chooses which, and tells nobody. For the engine the units of a node are so many devices that are all alike, and what a pod
//! asks for is one claim for any of them: a [`ClaimByName`], of which no object exists. So quota, Flavors, preemption and the
//! permits know them like any other claim and device.
//!
//! Which node has room is not decided by that: the resource counts on the node like cpu and memory, as it does for
//! kube-scheduler ([`crate::pod_resources`]).

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use k8s_openapi::{
    api::{
        core::v1::Node,
        resource::v1::{DeviceClass, ResourceClaim},
    },
    apimachinery::pkg::api::resource::Quantity,
};
use muster_api::{ClaimByName, keys};
use muster_engine::{
    self as engine, Amount, ClaimUid, FlavorName, NodeName, PodResources, ResourceName, SelectorId,
};

use crate::{managed::ManagedPods, text::quoted, unsupported_field::UnsupportedField};

/// Most units of a resource that count on one node. A node of 16 GPUs has at most 112 slices; a plugin that shares GPUs by time may
/// say any number.
pub const MOST_UNITS_PER_NODE: usize = 1_024;

/// Most units that a pod that waits may ask for: as many devices as a claim has at most.
pub const MOST_UNITS_PER_POD: i64 = 32;

/// The resources that Flavors count, each with the selector that stands for it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CountedResources(BTreeMap<ResourceName, SelectorId>);

impl FromIterator<(ResourceName, SelectorId)> for CountedResources {
    fn from_iter<T: IntoIterator<Item = (ResourceName, SelectorId)>>(resources: T) -> Self {
        Self(resources.into_iter().collect())
    }
}

impl CountedResources {
    /// The selector that the units of a resource match, if some Flavor counts it.
    pub fn selector(&self, resource: &ResourceName) -> Option<SelectorId> {
        self.0.get(resource).copied()
    }

    /// The claim of that name for so many units; `None`: no Flavor counts the resource.
    pub fn claim(&self, name: ClaimByName<'_>, units: i64) -> Option<engine::Claim> {
        let selector = self.selector(&name.resource.into())?;
        Some(engine::Claim {
            uid: name.to_string().into(),
            requests: vec![engine::DeviceRequest::exactly(
                name.resource,
                selector,
                u32::try_from(units).unwrap_or(u32::MAX),
            )],
            constraints: Vec::new(),
            allocated: None,
        })
    }

    /// Whether something that counts has that selector.
    pub fn uses(&self, selector: SelectorId) -> bool {
        self.0.values().any(|used| *used == selector)
    }

    /// What is of resources that count.
    pub fn among<'a>(
        &'a self,
        resources: &'a PodResources,
    ) -> impl Iterator<Item = (&'a ResourceName, i64)> {
        let others = resources.others.iter();
        let counted = others.filter(move |(name, _)| self.0.contains_key(*name));
        counted.map(|(name, units)| (name, *units))
    }

    /// Whether a pod asks for one of the resources that count here and not there, or the reverse.
    pub fn differs_for(&self, other: &Self, asked: &PodResources) -> bool {
        asked
            .others
            .keys()
            .any(|name| self.0.contains_key(name) != other.0.contains_key(name))
    }
}

/// What a pod asks for of device plugins, each resource with its units.
pub fn asked<'a>(
    resources: &'a PodResources,
    managed: &'a ManagedPods,
) -> impl Iterator<Item = (&'a ResourceName, i64)> {
    let others = resources.others.iter();
    others
        .filter(move |(name, _)| managed.stands_for_devices(name.as_str()))
        .map(|(name, units)| (name, *units))
}

/// The names by which pods may ask for devices of a DeviceClass instead of by a claim (Kubernetes KEP-5004).
///
/// kube-scheduler makes the claim itself, when it binds the pod. Until then, and in all that is charged and permitted, a **claim by the
/// name of the class** stands for it ([`class_resource`]), whichever of its names the pod used.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClassResources {
    class_of: BTreeMap<String, String>,
}

impl ClassResources {
    /// Of all DeviceClasses. Of those that name the same resource kube-scheduler takes the one that was created last, of equals the
    /// first by name.
    pub fn of<'a>(classes: impl IntoIterator<Item = &'a DeviceClass>) -> Self {
        let mut newest: BTreeMap<&str, &DeviceClass> = BTreeMap::new();
        for class in classes {
            let spec = class.spec.as_ref();
            let Some(resource) = spec.and_then(|spec| spec.extended_resource_name.as_deref())
            else {
                continue;
            };
            let order = |class: &DeviceClass| {
                let created_at = class
                    .metadata
                    .creation_timestamp
                    .as_ref()
                    .map(|time| time.0);
                (created_at, std::cmp::Reverse(class.metadata.name.clone()))
            };
            newest
                .entry(resource)
                .and_modify(|known| {
                    if order(class) > order(known) {
                        *known = class;
                    }
                })
                .or_insert(class);
        }
        let class_of = newest.into_iter().filter_map(|(resource, class)| {
            let name = class.metadata.name.clone()?;
            Some((resource.to_owned(), name))
        });
        Self {
            class_of: class_of.collect(),
        }
    }

    /// The DeviceClass behind a resource, if there is one: each stands behind the resource that is called after it, too, whether or not
    /// it exists.
    pub fn class<'a>(&'a self, resource: &'a str) -> Option<&'a str> {
        let implicit = resource.strip_prefix(keys::DEVICE_CLASS_RESOURCE_PREFIX);
        implicit.or_else(|| self.class_of.get(resource).map(String::as_str))
    }

    /// Takes what classes stand behind out of what a pod takes of its node: no node lists such a resource, and none has to. Returns how
    /// many devices of each class it asks for, by the resource that is called after the class. A resource that a Flavor counts is a
    /// device plugin's, and stays: kube-scheduler makes no claim on a node that lists it.
    pub fn take_from(
        &self,
        resources: &mut PodResources,
        counted: &CountedResources,
    ) -> BTreeMap<ResourceName, i64> {
        let mut taken: BTreeMap<ResourceName, i64> = BTreeMap::new();
        resources.others.retain(|name, units| {
            let class = self.class(name.as_str());
            let class = class.filter(|_| !is_of_a_plugin(name, counted));
            let Some(class) = class else {
                return true;
            };
            let of_class = taken.entry(class_resource(class).into()).or_default();
            *of_class = of_class.saturating_add(*units);
            false
        });
        taken
    }
}

fn is_of_a_plugin(resource: &ResourceName, counted: &CountedResources) -> bool {
    let is_called_after_a_class = resource
        .as_str()
        .starts_with(keys::DEVICE_CLASS_RESOURCE_PREFIX);
    !is_called_after_a_class && counted.selector(resource).is_some()
}

/// The resource that is called after a DeviceClass.
pub fn class_resource(class: &str) -> String {
    format!("{}{class}", keys::DEVICE_CLASS_RESOURCE_PREFIX)
}

/// What a claim that kube-scheduler made for a pod is permitted and charged as: `POD_UID/RESOURCE`, with the resource that is called after its
/// DeviceClass. `None`: it is no such claim, or one for another class than that of whole GPUs, for which no pod is admitted so.
///
/// **A claim may say so of itself that kube-scheduler did not make**, where no policy kept it out. It gains nothing by that: the driver
/// prepares it only for a pod that it is reserved for, which the kubelet asks for, by a permit of that pod whose charge covers it, and one
/// claim at most for each such name. And a pod that names such a claim itself is not planned. One that was made from a template is the
/// claim of its pod's spec, whatever the template had written on it: a pod with two of these would else be charged for one. Of several that
/// say it of one pod, which counts [`Index::claim_by_uid`](crate::index::Index::claim_by_uid) decides.
pub fn made_by_scheduler(claim: &ResourceClaim) -> Option<String> {
    let metadata = &claim.metadata;
    let annotations = metadata.annotations.as_ref()?;
    let says = annotations.get(keys::EXTENDED_RESOURCE_CLAIM)?;
    if says != "true" || annotations.contains_key(keys::POD_CLAIM_NAME) {
        return None;
    }
    let mut owners = metadata.owner_references.iter().flatten();
    let owner = owners.find(|owner| {
        owner.controller == Some(true) && owner.kind == "Pod" && owner.api_version == "v1"
    })?;
    let devices = claim.spec.as_ref()?.devices.as_ref()?;
    let mut classes = devices.requests.iter().flatten().map(|request| {
        let exactly = request.exactly.as_ref()?;
        Some(exactly.device_class_name.as_str())
    });
    let class = classes.next()??;
    if class != keys::DEVICE_CLASS_GPU || !classes.all(|other| other == Some(class)) {
        return None;
    }
    let resource = class_resource(class);
    let name = ClaimByName {
        pod_uid: &owner.uid,
        resource: &resource,
    };
    Some(name.to_string())
}

/// How names of DRA drivers begin whose devices are GPUs, as those of NVIDIA, AMD and Intel do.
const GPU_DRIVER: &str = "gpu.";

/// How names of resources begin by which NVIDIA's device plugin hands out GPUs, whatever an installation manages: those that it
/// shares are `nvidia.com/gpu.shared`, which no pod of Muster names, and are the same GPUs, as slices are.
pub(crate) const NVIDIA_RESOURCES: [&str; 2] = ["nvidia.com/gpu", "nvidia.com/mig-"];

/// Whether units of the resource are GPUs of a device plugin, or parts of them.
pub fn is_of_gpus(resource: &str, managed: &ManagedPods) -> bool {
    let mut nvidia = NVIDIA_RESOURCES.iter();
    managed.stands_for_devices(resource) || nvidia.any(|name| resource.starts_with(name))
}

/// What a node says of the GPUs of device plugins: each resource with its units, what pods may take first.
fn said<'a>(
    node: &'a Node,
    managed: &'a ManagedPods,
) -> impl Iterator<Item = (&'a String, &'a Quantity)> {
    let status = node.status.iter();
    let lists = status.flat_map(|status| [&status.allocatable, &status.capacity]);
    let units = lists.flatten().flatten();
    units.filter(move |(name, _)| is_of_gpus(name, managed))
}

/// The first resource of a node that stands for devices and of which there is any: `8 nvidia.com/gpu`. What pods may not take counts,
/// too: a plugin whose GPUs are all faulty has them all the same, and so has one that is away for less than five minutes.
pub fn offered(node: &Node, managed: &ManagedPods) -> Option<String> {
    // A plugin that was taken off leaves 0 behind.
    let (name, units) = said(node, managed).find(|(_, units)| units.0 != "0")?;
    Some(format!("{} {name}", units.0))
}

/// The resources by which a node offers GPUs of NVIDIA's device plugin and that are not managed, so that pods take them past quota.
pub fn offered_unmanaged<'a>(node: &'a Node, managed: &'a ManagedPods) -> BTreeSet<&'a str> {
    let offered = said(node, managed).filter(|(_, units)| units.0 != "0");
    let names = offered.map(|(name, _)| name.as_str());
    names
        .filter(|name| !managed.stands_for_devices(name))
        .collect()
}

/// Whether a device plugin offered GPUs of the node at some time, and offers none now: it was taken off, or its kubelet has just
/// started and says 0 of each plugin until that registers again.
pub fn was_offered(node: &Node, managed: &ManagedPods) -> bool {
    said(node, managed).next().is_some() && offered(node, managed).is_none()
}

/// Whether the devices of a DRA driver are GPUs, as its name says.
pub fn is_gpu_driver(driver: &str) -> bool {
    driver.starts_with(GPU_DRIVER)
}

/// Why a Flavor cannot count a resource that the installation does not manage, and what would help.
pub fn unmanaged(resource: &str) -> String {
    format!(
        "{} is not among the resources that stand for devices, so pods that ask for it are not admitted by Muster; list it in the \
         chart's managedResources",
        quoted(resource)
    )
}

/// Why a pod that waits does not get what it asks for of device plugins, whatever is free.
pub fn check(asked: &[(&ResourceName, i64)], has_claims: bool) -> Result<(), UnsupportedField> {
    let Some((name, units)) = asked.first() else {
        return Ok(());
    };
    let field = format!("resources.limits[{name}]");
    let mut classes = asked.iter().filter_map(|(name, _)| {
        name.as_str()
            .strip_prefix(keys::DEVICE_CLASS_RESOURCE_PREFIX)
    });
    if let Some(class) = classes.find(|class| *class != keys::DEVICE_CLASS_GPU) {
        return Err(UnsupportedField::new(
            format!("resources.limits[{}]", class_resource(class)),
            format!(
                "has kube-scheduler make a claim by itself, which is planned and charged for DeviceClass {} only; ask for these devices \
                 by spec.resourceClaims",
                keys::DEVICE_CLASS_GPU
            ),
        ));
    }
    if has_claims {
        return Err(UnsupportedField::new(
            field,
            "is asked for beside ResourceClaims for devices; a pod has its GPUs from one Flavor, so ask for all of them by claims or for all \
             of them by limits",
        ));
    }
    if let Some((other, _)) = asked.get(1) {
        return Err(UnsupportedField::new(
            field,
            format!(
                "is asked for beside {other}; a pod has its GPUs from one Flavor, so ask for one of the two"
            ),
        ));
    }
    if *units > MOST_UNITS_PER_POD {
        return Err(UnsupportedField::new(
            field,
            format!(
                "is {units}; a pod gets at most {MOST_UNITS_PER_POD}, so ask for fewer in each of more pods"
            ),
        ));
    }
    Ok(())
}

/// The units of a node that Flavors count: those that pods may take, or those that they have, if these are more. A plugin that
/// restarts, or whose GPUs are faulty, offers fewer than before while all that runs on them runs on; so what is held keeps its devices, and a
/// quota that follows them does not fall below it. None of them is free for that: the node's room says so.
/// `used`: how many pods without a hold have; `in_use`: how many all pods have that are bound there; `flavors_of`: the Flavors that
/// count a resource there.
pub fn devices(
    node: &NodeName,
    allocatable: &PodResources,
    used: &PodResources,
    in_use: &BTreeMap<ResourceName, i64>,
    counted: &CountedResources,
    flavors_of: impl Fn(&ResourceName) -> BTreeSet<FlavorName>,
) -> Vec<engine::Device> {
    let mut devices = Vec::new();
    // What a class stands behind are devices that a driver publishes.
    let of_plugins = counted.0.iter().filter(|(resource, _)| {
        let name = resource.as_str();
        !name.starts_with(keys::DEVICE_CLASS_RESOURCE_PREFIX)
    });
    for (resource, selector) in of_plugins {
        let amount = |of: &BTreeMap<ResourceName, i64>| {
            let units = of.get(resource).copied().unwrap_or(0);
            usize::try_from(units).unwrap_or(0)
        };
        let units = amount(&allocatable.others).max(amount(in_use));
        let taken = amount(&used.others);
        let flavors = flavors_of(resource);
        let selectors = Arc::new(BTreeSet::from([*selector]));
        let attributes = Arc::default();
        let holder = ClaimUid::from(format!("{node}/{resource}"));
        devices.extend(
            (0..units.min(MOST_UNITS_PER_NODE)).map(|unit| engine::Device {
                // No device of a driver is called so: these have slashes only.
                name: format!("{resource}#{unit}").into(),
                flavors: flavors.clone(),
                gpus: Amount::ONE_GPU,
                vram: Amount::ZERO,
                selectors: Arc::clone(&selectors),
                attributes: Arc::clone(&attributes),
                own_attributes: Arc::default(),
                nvlink_group: None,
                usable: true,
                healthy: true,
                allocated_to: (unit < taken).then(|| holder.clone()),
                consumes: Arc::default(),
            }),
        );
    }
    devices
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn of(amounts: &[(&str, i64)]) -> PodResources {
        let others = amounts.iter().map(|(name, units)| ((*name).into(), *units));
        PodResources {
            others: others.collect(),
            ..PodResources::default()
        }
    }

    fn counted() -> CountedResources {
        [("nvidia.com/gpu".into(), SelectorId(7))]
            .into_iter()
            .collect()
    }

    fn class(name: &str, resource: Option<&str>, created_at: &str) -> DeviceClass {
        serde_json::from_value(json!({
            "metadata": {"name": name, "creationTimestamp": created_at},
            "spec": {"extendedResourceName": resource},
        }))
        .unwrap()
    }

    #[test]
    fn a_resource_stands_for_the_class_that_names_it_and_of_several_for_the_newest() {
        let (early, late) = ("2026-01-01T00:00:00Z", "2026-02-01T00:00:00Z");
        let classes = [
            class("gpu.muster.dev", Some("example.com/gpu"), late),
            class("older", Some("example.com/gpu"), early),
            class("b", Some("example.com/other"), early),
            class("a", Some("example.com/other"), early),
            class("nameless", None, late),
        ];
        for classes in [
            classes.iter().collect::<Vec<_>>(),
            classes.iter().rev().collect(),
        ] {
            let resources = ClassResources::of(classes);
            for (resource, class) in [
                ("example.com/gpu", Some("gpu.muster.dev")),
                ("example.com/other", Some("a")),
                (
                    "deviceclass.resource.kubernetes.io/nameless",
                    Some("nameless"),
                ),
                ("nvidia.com/gpu", None),
            ] {
                assert_eq!(resources.class(resource), class, "{resource}");
            }
        }
    }

    #[test]
    fn what_a_class_stands_behind_is_nothing_that_a_node_must_list() {
        let class = class(
            "gpu.muster.dev",
            Some("nvidia.com/gpu"),
            "2026-01-01T00:00:00Z",
        );
        let classes = ClassResources::of([&class]);
        let own = "deviceclass.resource.kubernetes.io/gpu.muster.dev";
        let asked = || of(&[("nvidia.com/gpu", 2), (own, 1), ("rdma/hca", 1)]);
        let amounts = |resources: &BTreeMap<ResourceName, i64>| -> Vec<(String, i64)> {
            let amounts = resources.iter();
            amounts
                .map(|(name, units)| (name.to_string(), *units))
                .collect()
        };
        let mut resources = asked();
        let taken = classes.take_from(&mut resources, &CountedResources::default());
        assert_eq!(amounts(&taken), [(own.to_owned(), 3)]);
        assert_eq!(amounts(&resources.others), [("rdma/hca".to_owned(), 1)]);

        // A Flavor counts it: there is a device plugin.
        let mut resources = asked();
        let taken = classes.take_from(&mut resources, &counted());
        assert_eq!(amounts(&taken), [(own.to_owned(), 1)]);
        assert_eq!(
            amounts(&resources.others),
            [("nvidia.com/gpu".to_owned(), 2), ("rdma/hca".to_owned(), 1)]
        );
    }

    #[test]
    fn a_claim_that_kube_scheduler_made_is_called_after_its_pod_and_class() {
        let made = json!({
            "metadata": {"name": "p-extended-resources-x", "namespace": "ml", "uid": "c-1",
                "annotations": {"resource.kubernetes.io/extended-resource-claim": "true"},
                "ownerReferences": [{"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": "p-1", "controller": true}]},
            "spec": {"devices": {"requests": [
                {"name": "container-0-request-0", "exactly": {"deviceClassName": "gpu.muster.dev", "count": 2}},
                {"name": "container-1-request-0", "exactly": {"deviceClassName": "gpu.muster.dev", "count": 1}},
            ]}},
        });
        let name = |claim: &serde_json::Value| {
            made_by_scheduler(&serde_json::from_value(claim.clone()).unwrap())
        };
        let expected = "p-1/deviceclass.resource.kubernetes.io/gpu.muster.dev";
        assert_eq!(name(&made).as_deref(), Some(expected));
        let read = ClaimByName::parse(expected).unwrap();
        assert_eq!(read.device_class(), Some("gpu.muster.dev"));
        for (pointer, value) in [
            ("/metadata/annotations", json!({})),
            (
                "/metadata/annotations",
                json!({"resource.kubernetes.io/extended-resource-claim": "false"}),
            ),
            (
                "/metadata/annotations",
                json!({"resource.kubernetes.io/extended-resource-claim": "true", "resource.kubernetes.io/pod-claim-name": "gpus"}),
            ),
            ("/metadata/ownerReferences", json!([])),
            (
                "/metadata/ownerReferences/0/apiVersion",
                json!("example.com/v1"),
            ),
            ("/metadata/ownerReferences/0/controller", json!(false)),
            ("/metadata/ownerReferences/0/kind", json!("Job")),
            ("/spec/devices/requests", json!([])),
            (
                "/spec/devices/requests/1/exactly/deviceClassName",
                json!("other"),
            ),
            (
                "/spec/devices/requests/0/exactly/deviceClassName",
                json!("other"),
            ),
            ("/spec/devices/requests/0/exactly", json!(null)),
        ] {
            let mut other = made.clone();
            *other.pointer_mut(pointer).unwrap() = value;
            assert_eq!(name(&other), None, "{pointer}");
        }
    }

    #[test]
    fn a_node_has_a_device_for_each_unit_that_is_counted_and_what_others_use_is_taken() {
        let table = [
            (0, 0, 0, 0, 0),
            (8, 0, 0, 8, 8),
            (8, 3, 3, 8, 5),
            (8, 0, 3, 8, 8),
            // More is used than there is: the plugin lost some. What is held keeps its devices.
            (2, 3, 3, 3, 0),
            (2, 0, 3, 3, 3),
            (0, 1, 4, 4, 3),
            (1_024, 0, 0, MOST_UNITS_PER_NODE, MOST_UNITS_PER_NODE),
            (1_025, 0, 0, MOST_UNITS_PER_NODE, MOST_UNITS_PER_NODE),
            (i64::MAX, i64::MAX, i64::MAX, MOST_UNITS_PER_NODE, 0),
        ];
        for (allocatable, used, in_use, all, free) in table {
            let devices = devices(
                &"n".into(),
                &of(&[("nvidia.com/gpu", allocatable), ("rdma/hca", 4)]),
                &of(&[("nvidia.com/gpu", used)]),
                &of(&[("nvidia.com/gpu", in_use), ("rdma/hca", 9)]).others,
                &counted(),
                |_| BTreeSet::from(["h100".into()]),
            );
            let are_free = devices
                .iter()
                .filter(|device| device.allocated_to.is_none());
            assert_eq!(
                (devices.len(), are_free.count()),
                (all, free),
                "{allocatable} {used} {in_use}"
            );
            assert!(devices.iter().all(|device| device.gpus == Amount::ONE_GPU));
        }
    }

    #[test]
    fn a_node_says_whose_gpus_a_plugin_has_also_while_pods_may_take_none() {
        let managed = ManagedPods::new(["amd.com/gpu"]).unwrap();
        for (allocatable, capacity, offers, offered_once) in [
            (json!({}), json!({}), None, false),
            (
                json!({"rdma/hca": "8"}),
                json!({"rdma/hca": "8"}),
                None,
                false,
            ),
            (
                json!({"amd.com/gpu": "8"}),
                json!({"amd.com/gpu": "8"}),
                Some("8 amd.com/gpu"),
                false,
            ),
            // What the installation does not manage are the same GPUs.
            (
                json!({"nvidia.com/gpu.shared": "4"}),
                json!({}),
                Some("4 nvidia.com/gpu.shared"),
                false,
            ),
            (
                json!({"nvidia.com/mig-1g.10gb": "7"}),
                json!({}),
                Some("7 nvidia.com/mig-1g.10gb"),
                false,
            ),
            // All of them are faulty, or the plugin is being exchanged.
            (
                json!({"nvidia.com/gpu": "0"}),
                json!({"nvidia.com/gpu": "1"}),
                Some("1 nvidia.com/gpu"),
                false,
            ),
            (
                json!({"nvidia.com/gpu": "0"}),
                json!({"nvidia.com/gpu": "0"}),
                None,
                true,
            ),
        ] {
            let status = json!({"status": {"allocatable": allocatable, "capacity": capacity}});
            let node: Node = serde_json::from_value(status.clone()).unwrap();
            assert_eq!(offered(&node, &managed).as_deref(), offers, "{status}");
            assert_eq!(was_offered(&node, &managed), offered_once, "{status}");
        }
    }

    #[test]
    fn a_pod_asks_for_so_many_units_of_one_resource_and_for_no_claims_beside() {
        let (gpu, slice): (ResourceName, ResourceName) =
            ("nvidia.com/gpu".into(), "nvidia.com/mig-1g.10gb".into());
        let ours: ResourceName = "deviceclass.resource.kubernetes.io/gpu.muster.dev".into();
        assert!(check(&[(&ours, 1)], false).is_ok());
        let class: ResourceName = "deviceclass.resource.kubernetes.io/mig.muster.dev".into();
        let error = check(&[(&class, 1)], false).unwrap_err();
        assert!(error.why.contains("by spec.resourceClaims"), "{error}");
        for (asked, has_claims, why) in [
            (vec![], true, None),
            (vec![(&gpu, 1)], false, None),
            (vec![(&gpu, MOST_UNITS_PER_POD)], false, None),
            (
                vec![(&gpu, MOST_UNITS_PER_POD + 1)],
                false,
                Some("is 33; a pod gets at most 32"),
            ),
            (vec![(&gpu, 1)], true, Some("beside ResourceClaims")),
            (
                vec![(&gpu, 1), (&slice, 1)],
                false,
                Some("beside nvidia.com/mig-1g.10gb"),
            ),
        ] {
            match (check(&asked, has_claims), why) {
                (Ok(()), None) => {}
                (Err(error), Some(why)) => {
                    assert_eq!(error.field, "resources.limits[nvidia.com/gpu]");
                    assert!(error.why.contains(why), "{error}");
                }
                (found, why) => panic!("{found:?} instead of {why:?}"),
            }
        }
    }

    #[test]
    fn a_claim_by_name_asks_for_so_many_of_what_some_flavor_counts() {
        let name = |resource| ClaimByName {
            pod_uid: "p",
            resource,
        };
        let claim = counted().claim(name("nvidia.com/gpu"), 4).unwrap();
        assert_eq!(claim.uid.as_str(), "p/nvidia.com/gpu");
        assert_eq!(claim.requests[0].choices[0].selector, SelectorId(7));
        assert_eq!(claim.requests[0].choices[0].count, 4);
        assert_eq!(counted().claim(name("amd.com/gpu"), 4), None);
    }
}
