//! Nodes with their devices as the engine's nodes.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use k8s_openapi::api::{
    core::v1::Node,
    resource::v1::{Device, DeviceAttribute},
};
use muster_api::{NodeDevices, Topology, keys};
use muster_engine::{
    self as engine, Amount, ClaimUid, FlavorName, NodeBlock, PodResources, SelectorId,
};

use crate::{
    node_filter::NodeFilters,
    pod_resources,
    pools::PublishedDevice,
    quantity,
    selectors::{Selectors, Verdict},
};

/// A Flavor as devices are measured by it.
#[derive(Clone, Debug)]
pub struct FlavorRule {
    /// Its name.
    pub name: FlavorName,
    /// Labels that the node must carry.
    pub node_selector: BTreeMap<String, String>,
    /// The driver of its devices.
    pub driver: String,
    /// What a device must match, if anything.
    pub selector: Option<SelectorId>,
}

/// All that a node is made of.
#[derive(Debug)]
pub struct NodeParts<'a> {
    /// The Node.
    pub node: &'a Node,
    /// Its NodeDevices, if there is one.
    pub node_devices: Option<&'a NodeDevices>,
    /// Its devices in allocation order, now or as last seen.
    pub devices: &'a [PublishedDevice],
    /// Whether slices vanished or are incomplete.
    pub slices_missing: bool,
    /// What pods without a hold use there.
    pub used: PodResources,
    /// All Flavors that are understood.
    pub flavors: &'a [FlavorRule],
    /// All Topologies, by name.
    pub topologies: &'a BTreeMap<String, Arc<Topology>>,
    /// Which claim each device is allocated to, by device name on the node.
    pub allocated: &'a BTreeMap<String, ClaimUid>,
    /// The interned rules about nodes.
    pub filters: &'a NodeFilters,
}

/// What the selectors said of a node's devices.
pub type Judged = BTreeMap<SelectorId, Judgement>;

/// What one selector said of a node's devices.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Judgement {
    /// It matches some, and failed on none.
    Matches,
    /// It failed on one, with the cause: no device of the node counts as matching.
    Fails(Arc<str>),
}

/// Makes the engine's node, and says what the selectors said of its devices.
pub fn node(parts: &NodeParts<'_>, selectors: &mut Selectors) -> (engine::Node, Judged) {
    let no_labels = BTreeMap::new();
    let labels = parts.node.metadata.labels.as_ref().unwrap_or(&no_labels);
    let flavors: Vec<_> = parts
        .flavors
        .iter()
        .filter(|flavor| {
            flavor
                .node_selector
                .iter()
                .all(|(key, value)| labels.get(key) == Some(value))
        })
        .collect();
    let mut judged = Judged::new();
    let ids = selectors.ids();
    let mut devices: Vec<engine::Device> = parts
        .devices
        .iter()
        .filter_map(|published| {
            let device = published.device()?;
            let matched = judge(&ids, published.driver(), device, selectors, &mut judged);
            let in_flavors = flavors
                .iter()
                .filter(|flavor| flavor.driver == published.driver())
                .filter(|flavor| flavor.selector.is_none_or(|id| matched.contains(&id)))
                .map(|flavor| flavor.name.clone())
                .collect();
            Some(device_of(
                published,
                device,
                in_flavors,
                matched,
                parts.allocated,
            ))
        })
        .collect();
    let failed = |id: &SelectorId| matches!(judged.get(id), Some(Judgement::Fails(_)));
    for device in &mut devices {
        device.selectors.retain(|id| !failed(id));
    }
    let uid = parts.node.metadata.uid.clone().unwrap_or_default();
    let (allocatable, is_readable) = allocatable(parts.node);
    let node = engine::Node {
        name: parts.node.metadata.name.clone().unwrap_or_default().into(),
        block: block(parts).or_else(|| (!is_readable).then_some(NodeBlock::NotReady)),
        uid,
        allocatable,
        used: parts.used.clone(),
        fabric: fabric(labels, parts.topologies),
        accelerator: accelerator(labels, parts.topologies),
        filters: parts.filters.passed_by(parts.node).collect(),
        devices,
    };
    (node, judged)
}

/// Whether the node is Ready.
pub fn is_ready(node: &Node) -> bool {
    let conditions = node
        .status
        .iter()
        .flat_map(|status| status.conditions.iter().flatten());
    conditions
        .into_iter()
        .any(|condition| condition.type_ == "Ready" && condition.status == "True")
}

/// Whether the driver has answered for this very object, and the object is about this very node.
pub fn driver_has_answered(node: &Node, node_devices: &NodeDevices) -> bool {
    node.metadata.uid.as_deref() == Some(node_devices.spec.node_uid.as_str())
        && node_devices.status.as_ref().is_some_and(|status| {
            node_devices.metadata.uid.as_deref() == Some(status.uid.as_str())
                && status.observed_generation > 0
        })
}

fn block(parts: &NodeParts<'_>) -> Option<NodeBlock> {
    if parts.node_devices.is_some_and(|object| object.spec.lost) {
        return Some(NodeBlock::Lost);
    }
    if !is_ready(parts.node) {
        return Some(NodeBlock::NotReady);
    }
    if parts
        .node
        .spec
        .as_ref()
        .is_some_and(|spec| spec.unschedulable == Some(true))
    {
        return Some(NodeBlock::Cordoned);
    }
    if parts.slices_missing {
        return Some(NodeBlock::SlicesMissing);
    }
    let is_served = parts
        .devices
        .iter()
        .any(|device| device.driver() == keys::DRIVER);
    let answered = parts
        .node_devices
        .is_some_and(|object| driver_has_answered(parts.node, object));
    (is_served && !answered).then_some(NodeBlock::DriverSilent)
}

/// What pods may take; nothing where it cannot be read.
fn allocatable(node: &Node) -> (PodResources, bool) {
    let list = node
        .status
        .as_ref()
        .and_then(|status| status.allocatable.as_ref());
    match pod_resources::of_node(list) {
        Ok(resources) => (resources, true),
        Err(_) => (PodResources::default(), false),
    }
}

/// A node that lacks a label of a Topology is not part of it; a value is never invented.
fn fabric(
    labels: &BTreeMap<String, String>,
    topologies: &BTreeMap<String, Arc<Topology>>,
) -> BTreeMap<engine::TopologyName, Vec<String>> {
    let path = |topology: &Topology| {
        let levels = topology.spec.fabric.iter();
        levels
            .map(|level| {
                labels
                    .get(&level.node_label)
                    .filter(|value| !value.is_empty())
                    .cloned()
            })
            .collect::<Option<Vec<_>>>()
    };
    topologies
        .iter()
        .filter_map(|(name, topology)| Some((name.as_str().into(), path(topology)?)))
        .collect()
}

fn accelerator(
    labels: &BTreeMap<String, String>,
    topologies: &BTreeMap<String, Arc<Topology>>,
) -> BTreeMap<engine::TopologyName, String> {
    topologies
        .iter()
        .filter_map(|(name, topology)| {
            let label = &topology.spec.accelerator.as_ref()?.node_label;
            let domain = labels.get(label).filter(|value| !value.is_empty())?;
            Some((name.as_str().into(), domain.clone()))
        })
        .collect()
}

fn judge(
    ids: &[SelectorId],
    driver: &str,
    device: &Device,
    selectors: &mut Selectors,
    judged: &mut Judged,
) -> BTreeSet<SelectorId> {
    let mut matched = BTreeSet::new();
    for id in ids {
        match selectors.judge(*id, driver, device) {
            Verdict::Matches => {
                matched.insert(*id);
                judged.entry(*id).or_insert(Judgement::Matches);
            }
            Verdict::Differs => {}
            Verdict::Fails(cause) => {
                // The first device that fails gives the cause, as for kube-scheduler.
                if !matches!(judged.get(id), Some(Judgement::Fails(_))) {
                    judged.insert(*id, Judgement::Fails(cause));
                }
            }
        }
    }
    matched
}

fn device_of(
    published: &PublishedDevice,
    device: &Device,
    flavors: BTreeSet<FlavorName>,
    selectors: BTreeSet<SelectorId>,
    allocated: &BTreeMap<String, ClaimUid>,
) -> engine::Device {
    let name = published.name();
    let driver = published.driver();
    let attributes = attributes(driver, device);
    engine::Device {
        allocated_to: allocated.get(&name).cloned(),
        name: name.into(),
        flavors,
        gpus: Amount::ONE_GPU,
        vram: memory(driver, device),
        selectors,
        nvlink_group: attribute(driver, device, "nvlinkGroup")
            .and_then(|group| group.string.clone()),
        attributes,
        usable: is_modelled(device) && !is_tainted(device),
    }
}

/// Devices that kube-scheduler gives out in ways that the planner does not model yet (slices of a
/// device that share its counters, devices shared by several claims, devices that are bound later)
/// are never planned.
fn is_modelled(device: &Device) -> bool {
    let is_empty = |list: Option<usize>| list.unwrap_or(0) == 0;
    is_empty(device.consumes_counters.as_ref().map(Vec::len))
        && is_empty(device.binding_conditions.as_ref().map(Vec::len))
        && device.allow_multiple_allocations != Some(true)
        && device.node_selector.is_none()
        && device.all_nodes != Some(true)
}

fn is_tainted(device: &Device) -> bool {
    let taints = device.taints.iter().flatten();
    taints
        .into_iter()
        .any(|taint| matches!(taint.effect.as_str(), "NoSchedule" | "NoExecute"))
}

/// Bytes of memory of a device. Drivers that publish none, or what is no quantity, count as none.
pub fn memory(driver: &str, device: &Device) -> Amount {
    let capacity = device.capacity.as_ref();
    let given = capacity.and_then(|capacity| {
        capacity
            .get(&format!("{driver}/memory"))
            .or_else(|| capacity.get("memory"))
    });
    let bytes = given.and_then(|memory| quantity::units(&memory.value.0, "capacity[memory]").ok());
    Amount(bytes.unwrap_or(0))
}

/// An attribute of a device by its name within the driver's domain.
pub fn attribute<'a>(driver: &str, device: &'a Device, name: &str) -> Option<&'a DeviceAttribute> {
    let attributes = device.attributes.as_ref()?;
    attributes
        .get(&format!("{driver}/{name}"))
        .or_else(|| attributes.get(name))
}

/// Attributes by qualified name. A constraint compares type and value, so the type stands in front;
/// lists are left out: a constraint on one matches no device.
fn attributes(driver: &str, device: &Device) -> BTreeMap<engine::AttributeName, String> {
    let mut attributes = BTreeMap::new();
    for (name, attribute) in device.attributes.iter().flatten() {
        let text = match attribute {
            DeviceAttribute {
                string: Some(text), ..
            } => format!("string {text}"),
            DeviceAttribute {
                int: Some(number), ..
            } => format!("int {number}"),
            DeviceAttribute {
                bool: Some(truth), ..
            } => format!("bool {truth}"),
            DeviceAttribute {
                version: Some(version),
                ..
            } => format!("version {version}"),
            _ => continue,
        };
        let qualified = match name.split_once('/') {
            Some(_) => name.clone(),
            None => format!("{driver}/{name}"),
        };
        attributes.insert(qualified.into(), text);
    }
    attributes
}
