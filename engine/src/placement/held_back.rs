//! Nodes that are held back: to whoever is not let in they are full.
//!
//! What is free on them is kept beside, up to date, for those who are. Whoever is let in is planned in a [`View`] in which
//! they are open. That something came free there is noted as on any other node: who was refused before and is let in may have a
//! place then, whatever it waited for meanwhile. To the others the node is full still.

use std::collections::{BTreeMap, BTreeSet};

use super::{
    cluster::{Cluster, View},
    node::Occupancy,
};
use crate::{
    model::Hold,
    names::{NodeName, PodUid},
};

/// See the module.
#[derive(Clone, Debug, Default)]
pub(crate) struct HeldBack {
    /// What is free there. The slot of a node that left and came back is another one.
    free: BTreeMap<NodeName, Occupancy>,
    /// Nodes that changed since somebody asked.
    changed: BTreeSet<NodeName>,
}

impl HeldBack {
    /// What is free on a node; whether something came free, if that is another thing than before.
    fn set(&mut self, node: &NodeName, free: Occupancy) -> Option<bool> {
        let known = self.free.get(node);
        if known == Some(&free) {
            return None;
        }
        let grew = known.is_none_or(|known| !free.lies_within(known));
        self.free.insert(node.clone(), free);
        self.changed.insert(node.clone());
        Some(grew)
    }

    /// A node is another one, be it that it may not be planned on.
    pub(crate) fn note_node(&mut self, node: &NodeName) {
        if self.free.contains_key(node) {
            self.changed.insert(node.clone());
        }
    }

    /// A node is gone.
    pub(crate) fn note_gone(&mut self, node: &NodeName) {
        if self.free.contains_key(node) {
            self.set(node, Occupancy::nothing(0));
        }
    }
}

impl Cluster {
    /// Only who is let in may be planned on a node from now on. What is held there stays.
    pub(crate) fn hold_back(&mut self, node: &NodeName) {
        let free = match self.slot_of(node).and_then(|slot| self.record(slot)) {
            Some(record) => self.occupancy_for_all(record),
            None => Occupancy::nothing(0),
        };
        self.held_back.free.insert(node.clone(), free);
        self.hold_changed(node);
    }

    /// Everybody may be planned on a node again.
    pub(crate) fn end_hold_back(&mut self, node: &NodeName) {
        self.held_back.changed.remove(node);
        if self.held_back.free.remove(node).is_some() {
            self.hold_changed(node);
        }
    }

    /// Whether a node is held back.
    pub(crate) fn is_held_back(&self, node: &NodeName) -> bool {
        self.held_back.free.contains_key(node)
    }

    /// What is held on a node that may be held back changed, or the node did.
    pub(super) fn note_held_back(&mut self, slot: usize) {
        let Some(record) = self.record(slot) else {
            return;
        };
        if !self.is_held_back(&record.node.name) {
            return;
        }
        let (name, free) = (record.node.name.clone(), self.occupancy_for_all(record));
        if let Some(grew) = self.held_back.set(&name, free) {
            self.note_changed_inside(slot, grew);
        }
    }

    /// Somebody is let in on these nodes who was not: what is free there is news.
    pub(crate) fn note_let_in(&mut self, nodes: &BTreeSet<NodeName>) {
        for node in nodes {
            if let Some(slot) = self.slot_of(node) {
                self.note_changed_inside(slot, true);
            }
        }
    }

    /// A node that is held back is good for something else by now to whom it is held back for, whatever is free there.
    pub(crate) fn note_other_worth(&mut self, node: &NodeName) {
        self.held_back.note_node(node);
    }

    /// What is free on a node that is held back.
    pub(crate) fn free_on_held_back(&self, node: &NodeName) -> Option<&Occupancy> {
        self.held_back.free.get(node)
    }

    /// The nodes held back that changed since somebody asked.
    pub(crate) fn take_held_back_changes(&mut self) -> BTreeSet<NodeName> {
        std::mem::take(&mut self.held_back.changed)
    }

    /// The view of somebody who is let in on these nodes, in which some holds are gone.
    pub(crate) fn opened(
        &self,
        nodes: &BTreeSet<NodeName>,
        gone: &BTreeMap<PodUid, &Hold>,
    ) -> View {
        self.note_visits(nodes.len() as u64);
        let mut changed = self.changed_without(gone, nodes);
        for node in nodes {
            if let Some(slot) = self.slot_of(node)
                && let Some(free) = self.held_back.free.get(node)
            {
                changed.entry(slot).or_insert_with(|| free.clone());
            }
        }
        View::Without(changed)
    }
}
