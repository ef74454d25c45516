//! All nodes, kept up to date one by one: what is free on each, their order in each Topology, and how many
//! devices of which kind there are.

use std::{
    borrow::Cow,
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use super::{
    fabric::Fabric,
    node::{NodeRecord, Occupancy, Released},
    version::{ChangeLog, Version},
};
use crate::{
    amount::{Amount, Overflow},
    model::{Hold, Node, Topology},
    names::{ClaimUid, DeviceName, FlavorName, NodeName, PodUid, SelectorId, TopologyName},
};

/// Devices of a Flavor that match a selector: how many by GPUs and bytes that each is charged as.
type Kinds = BTreeMap<(Amount, Amount), usize>;

/// The nodes and what is held on them.
#[derive(Clone, Debug, Default)]
pub(crate) struct Cluster {
    slots: Vec<Option<NodeRecord>>,
    vacant: Vec<usize>,
    by_name: BTreeMap<NodeName, usize>,
    holds: BTreeMap<NodeName, BTreeMap<PodUid, Arc<Hold>>>,
    topologies: BTreeMap<TopologyName, Topology>,
    fabrics: BTreeMap<Option<TopologyName>, Fabric>,
    /// By Flavor; under `None` what belongs to no Flavor and is charged as no GPU.
    inventory: BTreeMap<Option<FlavorName>, BTreeMap<SelectorId, Kinds>>,
    version: Version,
    changed: ChangeLog,
    grown: ChangeLog,
    stale_nodes: BTreeSet<NodeName>,
    stale_fabrics: bool,
}

/// What a new word on a node changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NodeChange {
    /// Nothing.
    None,
    /// At most what is free there.
    Free,
    /// Which devices there are, or where the node stands.
    Inventory,
}

/// Whether two nodes have devices of the same kinds in the same order.
fn same_kinds(one: &Node, other: &Node) -> bool {
    let kinds = |node: &Node| -> Vec<_> {
        let devices = node.devices.iter();
        devices
            .map(|device| {
                let (flavors, selectors) = (device.flavors.clone(), device.selectors.clone());
                (flavors, selectors, device.gpus, device.vram)
            })
            .collect()
    };
    kinds(one) == kinds(other)
}

/// What counts as taken.
#[derive(Clone, Debug)]
pub(crate) enum View {
    /// Everything as it is.
    Now,
    /// As if some holds were gone: what is then free in the slots of the nodes concerned. See
    /// [`Cluster::without`].
    Without(BTreeMap<usize, Occupancy>),
    /// As if nothing ran and no node was blocked.
    Empty,
}

impl View {
    /// What is free on the node in a slot.
    pub(crate) fn occupancy<'a>(&'a self, slot: usize, record: &'a NodeRecord) -> &'a Occupancy {
        match self {
            Self::Now => &record.now,
            Self::Without(changed) => changed.get(&slot).unwrap_or(&record.now),
            Self::Empty => &record.empty,
        }
    }
}

impl Cluster {
    /// Takes a node in; what that changes.
    pub(crate) fn set_node(&mut self, node: Node) -> NodeChange {
        let name = node.name.clone();
        let slot = match self.by_name.get(&name) {
            Some(slot) => *slot,
            None => self.new_slot(&name),
        };
        let before = self.slots[slot].as_ref().map(|record| &record.node);
        if before == Some(&node) {
            return NodeChange::None;
        }
        let moved = before.is_none_or(|before| {
            before.fabric != node.fabric || before.accelerator != node.accelerator
        });
        let replaced = before.is_none_or(|before| !same_kinds(before, &node));
        self.stale_fabrics |= moved;
        if replaced {
            if let Some(before) = self.slots[slot].take() {
                self.count_devices(&before.node, false);
            }
            self.count_devices(&node, true);
        }
        self.slots[slot] = Some(NodeRecord::new(node));
        self.touch(slot);
        self.stale_nodes.insert(name);
        if moved || replaced {
            NodeChange::Inventory
        } else {
            NodeChange::Free
        }
    }

    fn new_slot(&mut self, name: &NodeName) -> usize {
        let slot = self.vacant.pop().unwrap_or_else(|| {
            self.slots.push(None);
            self.slots.len() - 1
        });
        self.by_name.insert(name.clone(), slot);
        slot
    }

    pub(crate) fn remove_node(&mut self, name: &NodeName) {
        let Some(slot) = self.by_name.remove(name) else {
            return;
        };
        if let Some(record) = self.slots[slot].take() {
            self.count_devices(&record.node, false);
        }
        self.vacant.push(slot);
        self.touch(slot);
        self.stale_fabrics = true;
    }

    fn count_devices(&mut self, node: &Node, present: bool) {
        for device in &node.devices {
            let no_flavor = device.flavors.is_empty() && device.gpus == Amount::ZERO;
            let flavors = device.flavors.iter().cloned().map(Some);
            for flavor in flavors.chain(no_flavor.then_some(None)) {
                let selectors = self.inventory.entry(flavor).or_default();
                for selector in &device.selectors {
                    let kinds = selectors.entry(*selector).or_default();
                    let count = kinds.entry((device.gpus, device.vram)).or_default();
                    *count = if present {
                        *count + 1
                    } else {
                        count.saturating_sub(1)
                    };
                    kinds.retain(|_, count| *count > 0);
                }
            }
        }
    }

    pub(crate) fn add_hold(&mut self, hold: &Arc<Hold>) {
        let holds = self.holds.entry(hold.node.clone()).or_default();
        holds.insert(hold.pod.clone(), Arc::clone(hold));
        self.hold_changed(hold);
    }

    fn hold_changed(&mut self, hold: &Hold) {
        if let Some(slot) = self.by_name.get(&hold.node) {
            self.touch(*slot);
        }
        self.stale_nodes.insert(hold.node.clone());
    }

    /// Notes that what is free in a slot may have changed.
    fn touch(&mut self, slot: usize) {
        let version = self.version.advance();
        self.changed.note(slot, version);
        self.grown.note(slot, version);
    }

    /// The moment of the last change.
    pub(crate) fn version(&self) -> Version {
        self.version
    }

    /// The slots in which anything changed after a moment, each once.
    #[allow(
        dead_code,
        reason = "the queue asks this as soon as its decisions work by change"
    )]
    pub(crate) fn changed_since(&self, version: Version) -> impl Iterator<Item = usize> + '_ {
        self.changed.since(version)
    }

    /// The slots in which something may have come free after a moment, each once: a gang that was refused then
    /// can have a place now only if it uses one of them.
    #[allow(
        dead_code,
        reason = "the queue asks this as soon as its decisions work by change"
    )]
    pub(crate) fn grown_since(&self, version: Version) -> impl Iterator<Item = usize> + '_ {
        self.grown.since(version)
    }

    pub(crate) fn remove_hold(&mut self, hold: &Hold) {
        if let Some(holds) = self.holds.get_mut(&hold.node) {
            holds.remove(&hold.pod);
            if holds.is_empty() {
                self.holds.remove(&hold.node);
            }
        }
        self.hold_changed(hold);
    }

    pub(crate) fn set_topology(&mut self, topology: Topology) {
        if self.topologies.get(&topology.name) != Some(&topology) {
            self.topologies.insert(topology.name.clone(), topology);
            self.stale_fabrics = true;
        }
    }

    pub(crate) fn remove_topology(&mut self, name: &TopologyName) {
        self.stale_fabrics |= self.topologies.remove(name).is_some();
    }

    /// Brings what is derived up to date: only what changed since the last time.
    pub(crate) fn refresh(&mut self) {
        for name in std::mem::take(&mut self.stale_nodes) {
            let Some(record) = self
                .by_name
                .get(&name)
                .and_then(|slot| self.slots[*slot].as_mut())
            else {
                continue;
            };
            let none = BTreeMap::new();
            let holds = self.holds.get(&name).unwrap_or(&none);
            record.now = record.occupancy(holds.values(), &Released::new());
        }
        if std::mem::take(&mut self.stale_fabrics) {
            let nodes = || {
                let slots = &self.slots;
                self.by_name
                    .values()
                    .filter_map(move |slot| Some((*slot, slots[*slot].as_ref()?)))
            };
            let topologies = self.topologies.values().map(Some).chain([None]);
            self.fabrics = topologies
                .map(|topology| {
                    let name = topology.map(|topology| topology.name.clone());
                    (name, Fabric::new(topology, nodes()))
                })
                .collect();
        }
    }

    /// The fabric of a Topology; a flat one if there is no such Topology.
    pub(crate) fn fabric(&self, topology: Option<&TopologyName>) -> Cow<'_, Fabric> {
        let named = topology.and_then(|name| self.fabrics.get(&Some(name.clone())));
        match named.or_else(|| self.fabrics.get(&None)) {
            Some(fabric) => Cow::Borrowed(fabric),
            None => Cow::Owned(Fabric::default()),
        }
    }

    pub(crate) fn record(&self, slot: usize) -> Option<&NodeRecord> {
        self.slots.get(slot)?.as_ref()
    }

    /// The view in which these holds are gone, at the cost of the nodes that they are on.
    pub(crate) fn without(&self, gone: &BTreeMap<PodUid, &Hold>) -> View {
        let nodes: BTreeSet<&NodeName> = gone.values().map(|hold| &hold.node).collect();
        let mut changed = BTreeMap::new();
        for name in nodes {
            let Some(slot) = self.by_name.get(name) else {
                continue;
            };
            let Some(record) = self.record(*slot) else {
                continue;
            };
            let holds = self.holds.get(name).into_iter().flat_map(BTreeMap::values);
            let stays = holds.clone().filter(|hold| !gone.contains_key(&hold.pod));
            let kept: BTreeSet<&ClaimUid> = stays
                .clone()
                .flat_map(|hold| &hold.claims)
                .map(|claim| &claim.uid)
                .collect();
            let released = holds
                .filter(|hold| gone.contains_key(&hold.pod))
                .flat_map(|hold| &hold.claims)
                .filter(|claim| !kept.contains(&claim.uid))
                .map(|claim| (&claim.uid, claim.devices.as_deref().unwrap_or_default()))
                .collect();
            changed.insert(*slot, record.occupancy(stays, &released));
        }
        View::Without(changed)
    }

    /// How many devices that may be charged to a Flavor match a selector on all nodes, taken or not.
    pub(crate) fn devices(&self, flavor: &FlavorName, selector: SelectorId) -> usize {
        self.kinds(flavor, selector)
            .flat_map(BTreeMap::values)
            .sum()
    }

    /// The least GPUs and bytes that a device of a Flavor that matches a selector is charged as.
    pub(crate) fn cheapest(
        &self,
        flavor: &FlavorName,
        selector: SelectorId,
    ) -> Option<(Amount, Amount)> {
        let kinds = || self.kinds(flavor, selector).flat_map(BTreeMap::keys);
        let gpus = kinds().map(|(gpus, _)| *gpus).min()?;
        let vram = kinds().map(|(_, vram)| *vram).min()?;
        Some((gpus, vram))
    }

    fn kinds(&self, flavor: &FlavorName, selector: SelectorId) -> impl Iterator<Item = &Kinds> {
        [Some(flavor.clone()), None]
            .into_iter()
            .filter_map(move |flavor| self.inventory.get(&flavor)?.get(&selector))
    }

    /// What devices of a node are charged as together; names that it does not have count nothing.
    pub(crate) fn charged_as(
        &self,
        node: &NodeName,
        devices: &[DeviceName],
    ) -> Result<(Amount, Amount), Overflow> {
        let slot = self.by_name.get(node);
        let Some(record) = slot.and_then(|slot| self.record(*slot)) else {
            return Ok((Amount::ZERO, Amount::ZERO));
        };
        let devices: Vec<usize> = devices
            .iter()
            .filter_map(|name| record.device_named(name))
            .collect();
        record.charged_as(&devices)
    }
}
