//! What is wrong with nodes, and what would be free there without it.
//!
//! A repair is an update of the node, applied to a copy: what is told of it is what a decision would find. Devices that draw from one counter
//! set are parts of one GPU, and are repaired with it: it is one thing, however many slices it could be cut into.

use std::collections::{BTreeMap, BTreeSet};

use super::{
    Request, View,
    capacity::Rules,
    cluster::Cluster,
    node::{NodeRecord, Occupancy, Released},
};
use crate::{
    model::{Device, Node, NodeBlock},
    names::NodeName,
};

/// What is wrong with a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Faults {
    pub(crate) node: NodeName,
    /// Why nothing new is planned there.
    pub(crate) block: Option<NodeBlock>,
    /// Devices that have a fault and that no claim has, by their place. Of those that draw from one counter set it is the one that is
    /// charged most, for all of them.
    pub(crate) devices: Vec<usize>,
}

impl Faults {
    fn of(node: &Node) -> Self {
        let mut devices: Vec<usize> = Vec::new();
        let mut of_set: BTreeMap<u32, (usize, &Device)> = BTreeMap::new();
        let all = node.devices.iter().enumerate();
        for (at, device) in all.filter(|(_, device)| is_faulty(device)) {
            let Some(set) = set_of(device) else {
                devices.push(at);
                continue;
            };
            let most = of_set.entry(set).or_insert((at, device));
            if device.gpus > most.1.gpus {
                *most = (at, device);
            }
        }
        devices.extend(of_set.into_values().map(|(at, _)| at));
        devices.sort_unstable();
        Self {
            node: node.name.clone(),
            block: node.block,
            devices,
        }
    }

    /// How many things are wrong.
    pub(crate) fn count(&self) -> usize {
        usize::from(self.block.is_some()) + self.devices.len()
    }

    /// The node without them.
    pub(crate) fn repaired(&self, node: &Node) -> Node {
        let mut node = node.clone();
        if self.block.is_some() {
            node.block = None;
        }
        let these = self.devices.iter().filter_map(|at| node.devices.get(*at));
        let sets: BTreeSet<u32> = these.filter_map(set_of).collect();
        for (at, device) in node.devices.iter_mut().enumerate() {
            let is_of_set = set_of(device).is_some_and(|set| sets.contains(&set));
            if self.devices.contains(&at) || (is_of_set && is_faulty(device)) {
                device.usable = true;
                device.healthy = true;
            }
        }
        node
    }
}

/// A device that a claim has is not free without its fault either, and one that no request matches is of no use to anybody.
fn is_faulty(device: &Device) -> bool {
    !device.healthy && device.allocated_to.is_none() && !device.selectors.is_empty()
}

/// What a device is a part of, if it can be told: the first counter set from which it draws.
fn set_of(device: &Device) -> Option<u32> {
    device.consumes.first().map(|of| of.set)
}

impl Cluster {
    /// A node is as given.
    pub(super) fn note_faults(&mut self, node: &Node) {
        if node.block.is_some() || node.devices.iter().any(is_faulty) {
            self.faulty.insert(node.name.clone());
        } else {
            self.faulty.remove(&node.name);
        }
    }

    /// What is wrong with nodes, in the order of their names.
    pub(crate) fn faults(&self) -> impl Iterator<Item = Faults> + '_ {
        let nodes = self.faulty.iter().filter_map(|name| self.node(name));
        nodes.map(Faults::of)
    }

    /// The view in which these faults are gone. A node that is kept for somebody stays kept.
    pub(crate) fn without_faults<'a>(&self, faults: impl Iterator<Item = &'a Faults>) -> View {
        let mut changed = BTreeMap::new();
        for faults in faults {
            let open = !self.is_held_back(&faults.node) && !self.is_reserved(&faults.node);
            if let Some((slot, record)) = self.repaired(faults).filter(|_| open) {
                changed.insert(slot, self.free_on(slot, &record));
            }
        }
        View::Without(changed)
    }

    /// Whether a node would hold a part of a gang without what is wrong with it.
    pub(crate) fn would_hold_some(&self, faults: &Faults, request: &Request<'_>) -> bool {
        let Some((slot, record)) = self.repaired(faults) else {
            return false;
        };
        let (rules, occupancy) = (Rules::of(request), self.free_on(slot, &record));
        request.demand.classes.iter().any(|class| {
            let resources = class.shape.resources();
            resources.is_some_and(|resources| {
                let capacity = rules.capacity(&record, &occupancy, &class.shape, &resources);
                capacity.is_ok()
            })
        })
    }

    fn repaired(&self, faults: &Faults) -> Option<(usize, NodeRecord)> {
        let slot = self.slot_of(&faults.node)?;
        let record = self.record(slot)?;
        let node = faults.repaired(&record.node);
        Some((slot, NodeRecord::new(node, record.kind.clone())))
    }

    fn free_on(&self, slot: usize, record: &NodeRecord) -> Occupancy {
        self.note_visits(1);
        record.occupancy(self.holds_in(slot), &Released::new())
    }
}
