//! Nodes with their devices as the engine's nodes.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use k8s_openapi::api::core::v1::Node;
use muster_api::{NodeDevices, Topology, keys};
use muster_engine::{
    self as engine, Amount, ClaimUid, FlavorName, NodeBlock, NodeFilterId, PodResources,
    ResourceName, SelectorId,
};

pub use crate::devices::{attribute, memory};
use crate::{
    device_plugin::{self, CountedResources},
    devices::PublishedDevice,
    pod_resources,
    pools::{Offered, OfferedDevice},
    selectors::{DeviceVerdicts, Selectors, Subject},
    taint_rules::{RuledTaints, TaintRules},
    taints,
};

/// A Flavor as devices are measured by it.
#[derive(Clone, Debug)]
pub struct FlavorRule {
    /// Its name.
    pub name: FlavorName,
    /// Labels that the node must carry.
    pub node_selector: BTreeMap<String, String>,
    /// What it counts there.
    pub counts: Counts,
}

/// What a Flavor counts on its nodes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Counts {
    /// Devices of a driver.
    Devices {
        /// The driver.
        driver: String,
        /// What a device must match, if anything.
        selector: Option<SelectorId>,
    },
    /// Units of a resource of a device plugin.
    Resource(ResourceName),
}

impl FlavorRule {
    /// The selector that a device must match, if any.
    pub fn selector(&self) -> Option<SelectorId> {
        match &self.counts {
            Counts::Devices { selector, .. } => *selector,
            Counts::Resource(_) => None,
        }
    }

    /// The resource that it counts, if it counts one.
    pub fn resource(&self) -> Option<&ResourceName> {
        match &self.counts {
            Counts::Devices { .. } => None,
            Counts::Resource(name) => Some(name),
        }
    }

    fn counts_devices_of(&self, by: &str) -> bool {
        matches!(&self.counts, Counts::Devices { driver, .. } if driver == by)
    }
}

/// All that a node is made of.
#[derive(Debug)]
pub struct NodeParts<'a> {
    /// The Node.
    pub node: &'a Node,
    /// Its NodeDevices, if there is one.
    pub node_devices: Option<&'a NodeDevices>,
    /// Its devices in allocation order, now or as last seen, and what they draw from.
    pub offered: &'a Offered,
    /// The rules that taint devices.
    pub(crate) taint_rules: &'a TaintRules,
    /// Whether slices vanished or are incomplete.
    pub slices_missing: bool,
    /// Whether its driver has not answered for too long, as it was said.
    pub is_driver_silent: bool,
    /// What pods without a hold use there.
    pub used: PodResources,
    /// Of the resources of device plugins that some Flavor counts, how many units the pods have that are bound there, held or not.
    pub units_in_use: BTreeMap<ResourceName, i64>,
    /// All Flavors that are understood.
    pub flavors: &'a [FlavorRule],
    /// The resources of device plugins that some of them count.
    pub counted_resources: &'a CountedResources,
    /// All Topologies, by name.
    pub topologies: &'a BTreeMap<String, Arc<Topology>>,
    /// Which claim each device is allocated to, by device name on the node.
    pub allocated: &'a BTreeMap<String, ClaimUid>,
    /// The rules about nodes that it passes.
    pub filters: &'a Arc<BTreeSet<NodeFilterId>>,
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
    /// It matches one that is never planned, which the cause names: kube-scheduler may give that one to a claim for which another was planned,
    /// and charged. So no device of the node counts as matching.
    Withheld(Arc<str>),
}

/// A node, and what is known of its devices.
#[derive(Debug)]
pub struct Made {
    /// The engine's node.
    pub node: engine::Node,
    /// What the selectors say of its devices.
    pub judged: Judged,
    /// What the selectors have not said yet; such a device matches nothing by them.
    pub unknown: BTreeSet<Subject>,
}

/// Makes the engine's node.
pub fn node(parts: &NodeParts<'_>, selectors: &mut Selectors) -> Made {
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
    let mut unknown = BTreeSet::new();
    let mut ruled = parts.taint_rules.lookup();
    let mut devices: Vec<engine::Device> = parts
        .offered
        .devices
        .iter()
        .map(|offered| {
            let device = &offered.published;
            let matched = judge(device, selectors, &mut judged, &mut unknown);
            withhold(device, &matched, &mut judged);
            let in_flavors = flavors
                .iter()
                .filter(|flavor| flavor.counts_devices_of(&device.kind.driver))
                .filter(|flavor| flavor.selector().is_none_or(|id| matched.contains(&id)))
                .map(|flavor| flavor.name.clone())
                .collect();
            let is_gpu = hands_out_gpus(&device.kind.driver, parts.flavors);
            let made = device_of(offered, is_gpu, in_flavors, matched, parts.allocated);
            tainted(made, ruled.of(&device.name))
        })
        .collect();
    let left_out = |id: &SelectorId| {
        let judgement = judged.get(id);
        matches!(
            judgement,
            Some(Judgement::Fails(_) | Judgement::Withheld(_))
        )
    };
    for device in &mut devices {
        if device.selectors.iter().any(left_out) {
            Arc::make_mut(&mut device.selectors).retain(|id| !left_out(id));
        }
    }
    let uid = parts.node.metadata.uid.clone().unwrap_or_default();
    let name = parts.node.metadata.name.clone().unwrap_or_default().into();
    let (allocatable, is_readable) = allocatable(parts.node);
    devices.extend(device_plugin::devices(
        &name,
        &allocatable,
        &parts.used,
        &parts.units_in_use,
        parts.counted_resources,
        |resource| {
            let counting = flavors
                .iter()
                .filter(|flavor| flavor.resource() == Some(resource));
            counting.map(|flavor| flavor.name.clone()).collect()
        },
    ));
    let node = engine::Node {
        name,
        block: block(parts).or_else(|| (!is_readable).then_some(NodeBlock::NotReady)),
        uid,
        allocatable,
        used: parts.used.clone(),
        fabric: fabric(labels, parts.topologies),
        accelerator: accelerator(labels, parts.topologies),
        filters: Arc::clone(parts.filters),
        devices,
        counter_sets: Arc::clone(&parts.offered.counter_sets),
    };
    Made {
        node,
        judged,
        unknown,
    }
}

/// What a node says of itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Readiness {
    /// Its kubelet says that it is Ready.
    Ready,
    /// Its kubelet says that it is not.
    NotReady,
    /// Its kubelet says nothing.
    Unknown,
}

/// What the node says of itself, or nobody.
pub fn readiness(node: &Node) -> Readiness {
    let conditions = node
        .status
        .iter()
        .flat_map(|status| status.conditions.iter().flatten());
    let mut ready = conditions.filter(|condition| condition.type_ == "Ready");
    match ready.next().map(|condition| condition.status.as_str()) {
        Some("True") => Readiness::Ready,
        Some("False") => Readiness::NotReady,
        _ => Readiness::Unknown,
    }
}

/// Whether the node is Ready.
pub fn is_ready(node: &Node) -> bool {
    readiness(node) == Readiness::Ready
}

/// All that is read of a NodeDevices when a node is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DriverFacts<'a> {
    /// Whether the node is lost.
    is_lost: bool,
    /// Whether its driver is to answer for this generation first.
    awaits_driver: bool,
    /// UID of the Node that it is about.
    node_uid: &'a str,
    /// Whether the driver has answered for this very object.
    has_answered: bool,
}

/// Reads them.
pub(crate) fn facts_of(node_devices: &NodeDevices) -> DriverFacts<'_> {
    let status = node_devices.status.as_ref();
    let has_answered = status.is_some_and(|status| {
        node_devices.metadata.uid.as_deref() == Some(status.uid.as_str())
            && status.observed_generation > 0
    });
    DriverFacts {
        is_lost: node_devices.spec.lost,
        awaits_driver: node_devices.spec.awaits_driver,
        node_uid: &node_devices.spec.node_uid,
        has_answered,
    }
}

/// Whether the driver has answered for this very object, and the object is about this very node.
pub fn driver_has_answered(node: &Node, node_devices: &NodeDevices) -> bool {
    let facts = facts_of(node_devices);
    node.metadata.uid.as_deref() == Some(facts.node_uid)
        && facts.has_answered
        && !facts.awaits_driver
}

fn block(parts: &NodeParts<'_>) -> Option<NodeBlock> {
    let facts = parts.node_devices.map(facts_of);
    if facts.is_some_and(|facts| facts.is_lost) {
        return Some(NodeBlock::Lost);
    }
    let not_ready = (!is_ready(parts.node)).then_some(NodeBlock::NotReady);
    let by_itself = taints::block(parts.node).into_iter().chain(not_ready).min();
    if by_itself.is_some() {
        return by_itself;
    }
    if parts.slices_missing {
        return Some(NodeBlock::SlicesMissing);
    }
    let is_served = parts
        .offered
        .devices
        .iter()
        .any(|device| device.published.kind.driver == keys::DRIVER);
    let answered = parts
        .node_devices
        .is_some_and(|object| driver_has_answered(parts.node, object));
    (is_served && (!answered || parts.is_driver_silent)).then_some(NodeBlock::DriverSilent)
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

/// The selectors that a device matches.
fn judge(
    device: &PublishedDevice,
    selectors: &mut Selectors,
    judged: &mut Judged,
    unknown: &mut BTreeSet<Subject>,
) -> Arc<BTreeSet<SelectorId>> {
    let DeviceVerdicts {
        matching,
        fails,
        unknown: of_device,
    } = selectors.verdicts(device);
    unknown.extend(of_device);
    for id in matching.iter() {
        judged.entry(*id).or_insert(Judgement::Matches);
    }
    for (id, cause) in fails {
        // The first device that fails gives the cause, as for kube-scheduler.
        if !matches!(judged.get(&id), Some(Judgement::Fails(_))) {
            judged.insert(id, Judgement::Fails(cause));
        }
    }
    matching
}

/// A device that is never planned, and that some selectors match: the node is left out for these. The first such device gives the cause.
fn withhold(device: &PublishedDevice, matching: &BTreeSet<SelectorId>, judged: &mut Judged) {
    if device.kind.is_planned || matching.is_empty() {
        return;
    }
    let cause: Arc<str> = format!(
        "device {} is given out in a way that is not planned (to several claims at once, bound later, or with some others only), and \
         kube-scheduler may give it where another one was planned; write expressions that it does not match",
        device.name
    )
    .into();
    for id in matching {
        let judgement = judged.entry(*id).or_insert(Judgement::Matches);
        if *judgement == Judgement::Matches {
            *judgement = Judgement::Withheld(Arc::clone(&cause));
        }
    }
}

/// Whether devices of a driver are GPUs: of our own, and of each that any Flavor counts, whether or not a Flavor counts this
/// very device. What a network card costs nobody counts; a GPU that no Flavor counts (yet) is nobody's, not free.
fn hands_out_gpus(driver: &str, flavors: &[FlavorRule]) -> bool {
    driver == keys::DRIVER
        || flavors
            .iter()
            .any(|flavor| flavor.counts_devices_of(driver))
}

fn device_of(
    offered: &OfferedDevice,
    is_gpu: bool,
    flavors: BTreeSet<FlavorName>,
    selectors: Arc<BTreeSet<SelectorId>>,
    allocated: &BTreeMap<String, ClaimUid>,
) -> engine::Device {
    let published = &offered.published;
    // What is never planned is not there for any request: no request waits for it, and none is told that it is in use. (Nor is any other device of
    // the node for the selectors that match it: see `withhold`.)
    let selectors = if published.kind.is_planned {
        selectors
    } else {
        Arc::default()
    };
    engine::Device {
        allocated_to: allocated.get(published.name.as_ref()).cloned(),
        name: published.name.as_ref().into(),
        // A network card in the same claim is not charged as a GPU.
        gpus: if is_gpu { offered.gpus } else { Amount::ZERO },
        flavors,
        vram: published.kind.memory,
        selectors,
        nvlink_group: published.kind.nvlink_group.clone(),
        attributes: Arc::clone(&published.kind.attributes),
        own_attributes: Arc::clone(&published.own_attributes),
        usable: published.kind.usable,
        healthy: published.kind.healthy,
        consumes: Arc::clone(&offered.consumes),
    }
}

/// The device with the taints of rules beside its own.
fn tainted(device: engine::Device, taints: RuledTaints) -> engine::Device {
    engine::Device {
        usable: device.usable && !taints.repels,
        healthy: device.healthy && !taints.is_faulty,
        ..device
    }
}
