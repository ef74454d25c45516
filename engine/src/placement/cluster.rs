//! All nodes, kept up to date one by one: what is free on each, where it stands in each Topology, and which changed
//! when.

use std::{
    cell::{Cell, RefCell},
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use super::{
    cache::IndexCache,
    demand::UnitShape,
    held_back::HeldBack,
    index::{CapacityIndex, IndexKey},
    inventory::{DeviceCharge, Inventory},
    kind::Kinds,
    node::{NodeRecord, Occupancy, Released},
    tree::Tree,
    version::{ChangeLog, Version},
};
use crate::{
    amount::{Amount, Overflow},
    model::{Device, Hold, Node, PodResources, Topology},
    names::{ClaimUid, DeviceName, FlavorName, NodeName, PodUid, SelectorId, TopologyName},
};

/// The nodes and what is held on them. An update costs what it touches.
#[derive(Clone, Debug)]
pub(crate) struct Cluster {
    slots: Vec<Option<NodeRecord>>,
    vacant: Vec<usize>,
    by_name: BTreeMap<NodeName, usize>,
    holds: BTreeMap<NodeName, BTreeMap<PodUid, Arc<Hold>>>,
    /// Nodes on which nothing new is planned, since they are kept for somebody.
    /// By how many reservations.
    reserved: BTreeMap<NodeName, usize>,
    /// Nodes on which only some may be planned.
    pub(super) held_back: HeldBack,
    kinds: Kinds,
    inventory: Inventory,
    /// Nodes with which something is wrong.
    pub(super) faulty: BTreeSet<NodeName>,
    /// By Topology; under `None` the flat one.
    trees: BTreeMap<Option<TopologyName>, Tree>,
    version: Version,
    /// What is free now.
    changed: ChangeLog,
    /// What would be free if nothing ran.
    remade: ChangeLog,
    /// What may have come free.
    grown: ChangeLog,
    /// Of the last change of a Topology.
    topologies: Version,
    indexes: RefCell<IndexCache>,
    visited: Cell<u64>,
}

/// What the update of a node changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NodeChange {
    /// Nothing.
    None,
    /// At most what is free there: no answer for [`View::Empty`].
    Free,
    /// What there is, or where the node stands.
    Inventory,
}

/// What counts as taken.
#[derive(Clone, Debug)]
pub(crate) enum View {
    /// Everything as it is.
    Now,
    /// As if some holds were gone, or some nodes were full: what is then free in the slots of the nodes concerned. See
    /// [`Cluster::without`] and [`Cluster::without_nodes`].
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

impl Default for Cluster {
    fn default() -> Self {
        let version = Version::default();
        Self {
            slots: Vec::new(),
            vacant: Vec::new(),
            by_name: BTreeMap::new(),
            holds: BTreeMap::new(),
            reserved: BTreeMap::new(),
            held_back: HeldBack::default(),
            kinds: Kinds::default(),
            inventory: Inventory::default(),
            faulty: BTreeSet::new(),
            trees: BTreeMap::from([(None, Tree::new(None, version))]),
            version,
            changed: ChangeLog::default(),
            remade: ChangeLog::default(),
            grown: ChangeLog::default(),
            topologies: version,
            indexes: RefCell::default(),
            visited: Cell::default(),
        }
    }
}

impl Cluster {
    /// Takes a node in; what that changes.
    pub(crate) fn set_node(&mut self, node: Node) -> NodeChange {
        let slot = match self.by_name.get(&node.name) {
            Some(slot) => *slot,
            None => self.new_slot(&node.name),
        };
        let known = self.slots[slot].as_ref();
        if known.is_some_and(|known| known.node == node) {
            return NodeChange::None;
        }
        let before = self.slots[slot].take();
        let kind = self.kinds.enter(&node);
        let mut record = NodeRecord::new(node, kind);
        record.now = self.occupancy(&record);
        if before
            .as_ref()
            .is_none_or(|before| before.kind.id != record.kind.id)
        {
            self.inventory.enter(&record.node);
            if let Some(before) = &before {
                self.inventory.leave(&before.node);
            }
        }
        if let Some(before) = &before {
            self.kinds.leave(&before.kind);
        }
        let now = self.version.advance();
        for tree in self.trees.values_mut() {
            tree.set(slot, &record.node, now);
        }
        self.changed.note(slot, now);
        let same_when_empty = before
            .as_ref()
            .is_some_and(|before| same_when_empty(before, &record));
        if !same_when_empty {
            self.remade.note(slot, now);
        }
        let grew =
            before.is_none_or(|before| !same_when_empty || !record.now.lies_within(&before.now));
        if grew {
            self.grown.note(slot, now);
        }
        self.held_back.note_node(&record.node.name);
        self.note_faults(&record.node);
        self.slots[slot] = Some(record);
        self.note_held_back(slot);
        if same_when_empty {
            NodeChange::Free
        } else {
            NodeChange::Inventory
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

    /// A node is gone. What is held there is remembered in case that it comes back.
    pub(crate) fn remove_node(&mut self, name: &NodeName) {
        let Some(slot) = self.by_name.remove(name) else {
            return;
        };
        if let Some(record) = self.slots[slot].take() {
            self.inventory.leave(&record.node);
            self.kinds.leave(&record.kind);
        }
        for tree in self.trees.values_mut() {
            tree.remove(slot);
        }
        self.vacant.push(slot);
        let now = self.version.advance();
        self.changed.note(slot, now);
        self.remade.note(slot, now);
        self.held_back.note_gone(name);
        self.faulty.remove(name);
    }

    /// What one pod holds is as given.
    pub(crate) fn add_hold(&mut self, hold: &Arc<Hold>) {
        let holds = self.holds.entry(hold.node.clone()).or_default();
        let known = holds.insert(hold.pod.clone(), Arc::clone(hold));
        self.hold_replaced(&hold.node, known.as_deref(), Some(hold));
    }

    /// What is known of a pod's hold is another thing; of its node only what that changes.
    pub(crate) fn replace_hold(&mut self, known: &Hold, hold: &Arc<Hold>) {
        if known.node != hold.node {
            self.remove_hold(known);
        }
        self.add_hold(hold);
    }

    /// A pod holds nothing any more.
    pub(crate) fn remove_hold(&mut self, hold: &Hold) {
        let mut known = None;
        if let Some(holds) = self.holds.get_mut(&hold.node) {
            known = holds.remove(&hold.pod);
            if holds.is_empty() {
                self.holds.remove(&hold.node);
            }
        }
        self.hold_replaced(&hold.node, known.as_deref(), None);
    }

    /// One pod's hold on a node is another one, or the first, or none. Where nothing but amounts changes the others are not
    /// looked at: there may be hundreds. On a node that is reserved or held back nothing is determined, and all of them are.
    fn hold_replaced(&mut self, node: &NodeName, known: Option<&Hold>, hold: Option<&Hold>) {
        let Some(slot) = self.slot_of(node) else {
            return;
        };
        let record = self.record(slot);
        match record.and_then(|record| record.with_hold_replaced(known, hold)) {
            Some(occupancy) => self.set_occupancy(slot, occupancy),
            None => self.hold_changed(node),
        }
    }

    pub(super) fn hold_changed(&mut self, node: &NodeName) {
        let Some(slot) = self.slot_of(node) else {
            return;
        };
        self.note_held_back(slot);
        let Some(record) = self.record(slot) else {
            return;
        };
        let occupancy = self.occupancy(record);
        self.set_occupancy(slot, occupancy);
    }

    fn set_occupancy(&mut self, slot: usize, occupancy: Occupancy) {
        let Some(record) = self.record(slot) else {
            return;
        };
        if occupancy == record.now {
            return;
        }
        let grew = !occupancy.lies_within(&record.now);
        let now = self.version.advance();
        self.changed.note(slot, now);
        if grew {
            self.grown.note(slot, now);
        }
        if let Some(record) = self.slots[slot].as_mut() {
            record.now = occupancy;
        }
    }

    /// What is free on a node by all that is held there.
    fn occupancy(&self, record: &NodeRecord) -> Occupancy {
        if self.is_held_back(&record.node.name) {
            return Occupancy::reserved(&record.node);
        }
        self.occupancy_for_all(record)
    }

    /// The same for those who may be planned on nodes that are held back.
    pub(super) fn occupancy_for_all(&self, record: &NodeRecord) -> Occupancy {
        if self.is_reserved(&record.node.name) {
            return Occupancy::reserved(&record.node);
        }
        let holds = self.holds.get(&record.node.name);
        let holds = holds.into_iter().flat_map(BTreeMap::values);
        record.occupancy(holds, &Released::new())
    }

    /// Nothing new is planned on a node from now on. What is held there stays.
    pub(crate) fn reserve(&mut self, node: &NodeName) {
        let count = self.reserved.entry(node.clone()).or_default();
        *count += 1;
        if *count == 1 {
            self.hold_changed(node);
        }
    }

    /// One reservation of a node is over: something may be planned there again, unless there is another one.
    pub(crate) fn end_reservation(&mut self, node: &NodeName) {
        match self.reserved.get_mut(node) {
            Some(count) if *count > 1 => *count -= 1,
            Some(_) => {
                self.reserved.remove(node);
                self.hold_changed(node);
            }
            None => {}
        }
    }

    /// Whether nothing new is planned on a node.
    pub(crate) fn is_reserved(&self, node: &NodeName) -> bool {
        self.reserved.contains_key(node)
    }

    /// The pods that hold something on a node.
    pub(crate) fn pods_on(&self, node: &NodeName) -> impl Iterator<Item = &PodUid> {
        self.holds.get(node).into_iter().flat_map(BTreeMap::keys)
    }

    /// Whether a hold is of devices that its node, which is there, does not list.
    pub(crate) fn is_unseen(&self, hold: &Hold) -> bool {
        let slot = self.slot_of(&hold.node);
        let Some(record) = slot.and_then(|slot| self.record(slot)) else {
            return false;
        };
        let mut counted = hold.claims.iter().filter(|it| it.gpus > Amount::ZERO);
        counted.any(|claim| match &claim.devices {
            Some(devices) => devices.iter().any(|it| record.device_named(it).is_none()),
            None => record.node.devices.is_empty(),
        })
    }

    /// A Topology is as given. It costs all nodes.
    pub(crate) fn set_topology(&mut self, topology: Topology) {
        let known = self.trees.get(&Some(topology.name.clone()));
        if known.is_some_and(|tree| tree.levels == topology.levels) {
            return;
        }
        let now = self.version.advance();
        self.topologies = now;
        let mut tree = Tree::new(Some(&topology), now);
        for (slot, record) in self.slots.iter().enumerate() {
            if let Some(record) = record {
                tree.set(slot, &record.node, now);
            }
        }
        self.trees.insert(Some(topology.name), tree);
    }

    /// A Topology is gone.
    pub(crate) fn remove_topology(&mut self, name: &TopologyName) {
        if self.trees.remove(&Some(name.clone())).is_some() {
            self.topologies = self.version.advance();
        }
    }

    /// The moment of the last change.
    pub(crate) fn version(&self) -> Version {
        self.version
    }

    /// Whether a Topology came, changed or went after a moment.
    pub(crate) fn topologies_changed_since(&self, version: Version) -> bool {
        self.topologies > version
    }

    /// Whether no node ever holds more units of a shape for having less to give: then only what comes free can help it. Where
    /// devices share counters this is so if it makes no difference which of them are taken first.
    pub(super) fn is_monotone(&self, shape: &UnitShape) -> bool {
        let mut open = shape.open_claims();
        shape.is_monotone() && open.all(|claim| self.kinds.are_steady(claim))
    }

    /// The slots in which anything changed after a moment, each once.
    pub(crate) fn changed_since(&self, version: Version) -> impl Iterator<Item = usize> + '_ {
        self.changed.since(version)
    }

    /// Whether anything changed on any node after a moment, or a Topology did.
    pub(crate) fn has_changed_since(&self, version: Version) -> bool {
        self.version > version
    }

    /// Whether anything changed in a slot after a moment.
    pub(crate) fn slot_changed_since(&self, slot: usize, version: Version) -> bool {
        self.changed.last(slot) > Some(version)
    }

    /// What is free in a slot changed for those who are let in there.
    pub(super) fn note_changed_inside(&mut self, slot: usize, grew: bool) {
        let now = self.version.advance();
        self.changed.note(slot, now);
        if grew {
            self.grown.note(slot, now);
        }
    }

    /// The slots in which something may have come free after a moment, each once: a gang that was refused then
    /// can have a place now only if it uses one of them, as long as no Topology changed.
    pub(crate) fn grown_since(&self, version: Version) -> impl Iterator<Item = usize> + '_ {
        self.grown.since(version)
    }

    /// When nodes changed, as they are or as if nothing ran on them.
    pub(super) fn changes(&self, as_they_are: bool) -> &ChangeLog {
        if as_they_are {
            &self.changed
        } else {
            &self.remade
        }
    }

    /// The tree of a Topology; the flat one if there is no such Topology.
    pub(super) fn tree(&self, topology: Option<&TopologyName>) -> Option<&Tree> {
        let named = topology.and_then(|name| self.trees.get(&Some(name.clone())));
        named.or_else(|| self.trees.get(&None))
    }

    /// How many slots there are, vacant ones included.
    pub(super) fn slots(&self) -> usize {
        self.slots.len()
    }

    pub(crate) fn slot_of(&self, name: &NodeName) -> Option<usize> {
        self.by_name.get(name).copied()
    }

    /// The node in a slot.
    pub(crate) fn record(&self, slot: usize) -> Option<&NodeRecord> {
        self.slots.get(slot)?.as_ref()
    }

    /// A node that is known.
    pub(crate) fn node(&self, name: &NodeName) -> Option<&Node> {
        let slot = self.by_name.get(name)?;
        Some(&self.record(*slot)?.node)
    }

    /// What is held on the node in a slot.
    pub(crate) fn holds_in(&self, slot: usize) -> impl Iterator<Item = &Arc<Hold>> + Clone {
        let holds = self
            .record(slot)
            .and_then(|record| self.holds.get(&record.node.name));
        holds.into_iter().flat_map(BTreeMap::values)
    }

    /// An index that is up to date. It is to be [put back](Self::keep) after use.
    pub(super) fn index(&self, key: IndexKey, tree: &Tree) -> CapacityIndex {
        let kept = self.indexes.borrow_mut().take(&key);
        match kept {
            Some(mut index) => {
                index.catch_up(self, tree);
                index
            }
            None => CapacityIndex::new(key, self, tree),
        }
    }

    /// Keeps an index for the next question.
    pub(super) fn keep(&self, index: CapacityIndex) {
        if index.is_shared() {
            self.indexes.borrow_mut().put(index);
        }
    }

    /// Counts looks at nodes and domains, or at what costs as much.
    pub(crate) fn note_visits(&self, visits: u64) {
        self.visited.set(self.visited.get().wrapping_add(visits));
    }

    /// How many looks were taken at nodes and domains since the beginning: what placement has cost, on any machine.
    pub(crate) fn visited(&self) -> u64 {
        self.visited.get()
    }

    /// The view in which these holds are gone, at the cost of the nodes that they are on.
    pub(crate) fn without(&self, gone: &BTreeMap<PodUid, &Hold>) -> View {
        View::Without(self.changed_without(gone, &BTreeSet::new()))
    }

    /// The view in which these holds are gone, and these claims that nobody holds any more have no devices on these nodes. Whose
    /// devices are allocated still has pods there still: they count as gone as well, and since what of the use without a
    /// hold is theirs is not told, all of it does on a node where such a claim has devices. Devices of these nodes with which nothing is
    /// wrong count as usable: that their driver taints them no longer may be seen after its word that they are released, and even after their
    /// claims are deallocated.
    pub(crate) fn without_leftovers(
        &self,
        gone: &BTreeMap<PodUid, &Hold>,
        nodes: &BTreeSet<NodeName>,
        leftovers: &BTreeSet<&ClaimUid>,
    ) -> View {
        let mut changed = self.changed_without(gone, &BTreeSet::new());
        for name in nodes {
            let slot = self.by_name.get(name);
            let record = slot.and_then(|slot| Some((*slot, self.record(*slot)?)));
            let Some((slot, record)) = record else {
                continue;
            };
            if self.is_held_back(name) || self.is_reserved(name) {
                continue;
            }
            let mut released: Released<'_> = record
                .claims()
                .filter(|claim| leftovers.contains(claim))
                .map(|claim| (claim, &[][..]))
                .collect();
            let is_allocated = !released.is_empty();
            if !is_allocated && !record.is_any_tied() {
                continue;
            }
            let (stays, going) = self.parted(name, gone);
            released.extend(going);
            let nothing = PodResources::default();
            let used = if is_allocated {
                &nothing
            } else {
                &record.node.used
            };
            let occupancy = record.occupancy_beside(used, stays, &released, true);
            changed.insert(slot, occupancy);
        }
        View::Without(changed)
    }

    /// Whether a device on these nodes is allocated to nobody, but tainted as held by its driver.
    pub(crate) fn is_any_tied_on(&self, nodes: &BTreeSet<NodeName>) -> bool {
        let slots = nodes.iter().filter_map(|name| self.by_name.get(name));
        let mut records = slots.filter_map(|slot| self.record(*slot));
        records.any(NodeRecord::is_any_tied)
    }

    /// The claims that have devices on these nodes.
    pub(crate) fn claims_on<'a>(
        &'a self,
        nodes: &'a BTreeSet<NodeName>,
    ) -> impl Iterator<Item = &'a ClaimUid> {
        let slots = nodes.iter().filter_map(|name| self.by_name.get(name));
        let records = slots.filter_map(|slot| self.record(*slot));
        records.flat_map(NodeRecord::claims)
    }

    /// What is free without these holds on the nodes that they are on, except on those that are kept for others than the ones
    /// for whom these nodes are `opened`.
    pub(super) fn changed_without(
        &self,
        gone: &BTreeMap<PodUid, &Hold>,
        opened: &BTreeSet<NodeName>,
    ) -> BTreeMap<usize, Occupancy> {
        let nodes: BTreeSet<&NodeName> = gone.values().map(|hold| &hold.node).collect();
        let mut changed = BTreeMap::new();
        for name in nodes {
            let Some(slot) = self.by_name.get(name) else {
                continue;
            };
            let Some(record) = self.record(*slot) else {
                continue;
            };
            let is_shut = self.is_held_back(name) && !opened.contains(name);
            if is_shut || self.is_reserved(name) {
                continue;
            }
            let (stays, released) = self.parted(name, gone);
            changed.insert(*slot, record.occupancy(stays, &released));
        }
        changed
    }

    /// The holds on a node that stay when these are gone, and the claims that are released then.
    fn parted<'a>(
        &'a self,
        node: &NodeName,
        gone: &'a BTreeMap<PodUid, &'a Hold>,
    ) -> (
        impl Iterator<Item = &'a Arc<Hold>> + Clone + use<'a>,
        Released<'a>,
    ) {
        let holds = self.holds.get(node).into_iter().flat_map(BTreeMap::values);
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
        (stays, released)
    }

    /// The nodes that are not in a domain of a Topology, which is one node where the path ends with the name of one.
    pub(crate) fn nodes_outside(
        &self,
        topology: Option<&TopologyName>,
        domain: &[String],
    ) -> BTreeSet<NodeName> {
        self.note_visits(self.slots.len() as u64);
        let records = self.slots.iter().flatten();
        let outside = records.filter(|record| {
            let path = topology.and_then(|name| record.node.fabric.get(name));
            let path = path.into_iter().flatten().map(String::as_str);
            let mut path = path.chain(std::iter::once(record.node.name.as_str()));
            !domain
                .iter()
                .all(|level| path.next() == Some(level.as_str()))
        });
        outside.map(|record| record.node.name.clone()).collect()
    }

    /// The view in which nothing is free on these nodes; `None`: none of them is known.
    pub(crate) fn without_nodes<'a>(
        &self,
        nodes: impl Iterator<Item = &'a NodeName>,
    ) -> Option<View> {
        let slots = nodes.filter_map(|name| self.by_name.get(name));
        let full = slots.filter_map(|slot| {
            let record = self.record(*slot)?;
            Some((*slot, Occupancy::reserved(&record.node)))
        });
        let full: BTreeMap<usize, Occupancy> = full.collect();
        (!full.is_empty()).then_some(View::Without(full))
    }

    /// How many devices that may be charged to a Flavor match a selector on all nodes, taken or not.
    pub(crate) fn devices(&self, flavor: &FlavorName, selector: SelectorId) -> usize {
        self.inventory.devices(flavor, selector)
    }

    /// What the devices of a Flavor that match a selector are charged as, each kind once.
    pub(crate) fn kinds(
        &self,
        flavor: &FlavorName,
        selector: SelectorId,
    ) -> impl Iterator<Item = DeviceCharge> {
        self.inventory.kinds(flavor, selector)
    }

    /// A number that moves only if some Flavor and selector gain or lose a kind of device.
    pub(crate) fn kinds_version(&self) -> u64 {
        self.inventory.kinds_version()
    }

    /// The least GPUs and bytes that a device of a Flavor that matches a selector is charged as.
    pub(crate) fn cheapest(
        &self,
        flavor: &FlavorName,
        selector: SelectorId,
    ) -> Option<DeviceCharge> {
        let kinds = || self.kinds(flavor, selector);
        Some(DeviceCharge {
            gpus: kinds().map(|kind| kind.gpus).min()?,
            vram: kinds().map(|kind| kind.vram).min()?,
        })
    }

    /// These devices of a node; names that it does not have are left out.
    pub(crate) fn devices_named<'a>(
        &'a self,
        node: &NodeName,
        devices: &'a [DeviceName],
    ) -> impl Iterator<Item = &'a Device> {
        let slot = self.slot_of(node);
        let record = slot.and_then(|slot| self.record(slot)).into_iter();
        record.flat_map(move |record| {
            let at = devices.iter().filter_map(|name| record.device_named(name));
            at.filter_map(|at| record.node.devices.get(at))
        })
    }

    /// What devices of a node are charged as together; names that it does not have count nothing.
    pub(crate) fn charged_as(
        &self,
        node: &NodeName,
        devices: &[DeviceName],
    ) -> Result<DeviceCharge, Overflow> {
        let mut charges = self
            .devices_named(node, devices)
            .map(|device| DeviceCharge {
                gpus: device.gpus,
                vram: device.vram,
            });
        charges.try_fold(DeviceCharge::default(), DeviceCharge::add)
    }

    /// Forgets what was remembered from earlier questions.
    #[cfg(test)]
    pub(super) fn forget(&self) {
        self.indexes.borrow_mut().clear();
    }

    /// The most answers that an index remembers by kind and free devices.
    #[cfg(test)]
    pub(super) fn most_remembered(&self) -> usize {
        let indexes = self.indexes.borrow();
        indexes
            .iter()
            .map(CapacityIndex::remembered)
            .max()
            .unwrap_or(0)
    }

    /// How many indexes are kept.
    #[cfg(test)]
    pub(super) fn indexes(&self) -> usize {
        self.indexes.borrow().len()
    }
}

/// Whether two updates of a node differ at most in what is taken and whether it is blocked.
fn same_when_empty(one: &NodeRecord, other: &NodeRecord) -> bool {
    let devices = one.node.devices.iter().zip(&other.node.devices);
    one.kind.id == other.kind.id
        && one.node.allocatable == other.node.allocatable
        && one.node.filters == other.node.filters
        && one.node.fabric == other.node.fabric
        && one.node.accelerator == other.node.accelerator
        && devices
            .into_iter()
            .all(|(one, other)| one.name == other.name)
}
