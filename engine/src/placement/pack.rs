//! Puts all classes of a gang into one area.
//!
//! A gang of equal pods needs only its counts: what fits on one node does not depend on another. Unequal
//! pods compete for nodes: the largest class goes first, and if that greedy way leaves one without a
//! place, small gangs are searched exhaustively, as far as the effort goes.

use std::collections::{BTreeMap, BTreeSet};

use super::{
    PlacedUnit,
    capacity::Grants,
    counters::Left,
    device_set::DeviceSet,
    kind::KindId,
    node::Occupancy,
    room::Room,
    search::{Area, Progress, Search, SearchedClass},
};
use crate::names::NodeFilterId;

/// Most units of a gang that is searched exhaustively.
pub(super) const EXHAUSTIVE_UNITS: usize = 64;

/// Steps of effort for each node among which those for a class are chosen.
pub(super) const STEPS_PER_CHOICE: u64 = 1;

/// Steps of effort that it takes to put a unit on a node.
pub(super) const STEPS_PER_UNIT: u64 = 8;

/// Nodes with what was put on them so far, by slot.
pub(super) type Trials = BTreeMap<usize, Occupancy>;

/// The units of a gang with their nodes.
pub(super) type Packed = Vec<PlacedUnit>;

impl Search<'_> {
    /// Puts the whole gang into an area, or nothing of it.
    pub(super) fn pack(&self, progress: &mut Progress, area: Area) -> Option<Packed> {
        if let Some(packed) = self.pack_greedily(progress, area) {
            return Some(packed);
        }
        self.pay(progress);
        let units: usize = self.classes.iter().map(|class| class.units).sum();
        progress.effort.spend(units as u64 * STEPS_PER_UNIT);
        if self.classes.len() < 2 || units > EXHAUSTIVE_UNITS {
            // There may be a way that the greedy one misses.
            if self.classes.len() > 1 {
                progress.effort.overlook();
            }
            return None;
        }
        self.pack_exhaustively(progress, area)
    }

    fn pack_greedily(&self, progress: &mut Progress, area: Area) -> Option<Packed> {
        let mut trials = Trials::new();
        let mut packed = Packed::new();
        for (class, of) in self.classes.iter().enumerate() {
            if !progress
                .effort
                .spend(self.looks(class, area) * STEPS_PER_CHOICE)
            {
                return None;
            }
            let units = of.units as u64;
            let chosen = if of.shape.needs_devices() {
                self.spread(class, area, &trials, units)?
            } else {
                self.tuck_in(class, area, &trials, units)?
            };
            let slots = chosen
                .into_iter()
                .flat_map(|member| (0..member.units).map(move |_| member.slot));
            for (unit, slot) in slots.enumerate() {
                let grants = self.put(class, slot, &mut trials)?;
                packed.push(Self::placed(class, unit, slot, grants));
            }
        }
        Some(packed)
    }

    /// How many nodes are looked at to choose those for a class.
    fn looks(&self, class: usize, area: Area) -> u64 {
        match area {
            Area::Node(_) => 1,
            Area::Domain(domain) => {
                let index = self.index(class).into_iter();
                let members = index.flat_map(|index| index.members(self.tree, domain));
                members.count() as u64
            }
        }
    }

    /// Puts one unit on a node.
    fn put(&self, class: usize, slot: usize, trials: &mut Trials) -> Option<Grants> {
        let (record, occupancy) = self.node(slot)?;
        let class = self.classes.get(class)?;
        let trial = trials.entry(slot).or_insert_with(|| occupancy.clone());
        let mut tally = self.tally.take();
        let before = tally.steps();
        let (shape, resources) = (class.shape, &class.resources);
        let grants = self
            .rules
            .place(record, trial, shape, resources, &mut tally);
        self.cluster
            .note_visits(STEPS_PER_UNIT + tally.steps() - before);
        self.tally.set(tally);
        grants
    }

    /// Tries every way to distribute the units over the nodes of an area. Equal units go to nodes in order, and of
    /// nodes that are alike only the first is tried, so that no way is tried twice.
    fn pack_exhaustively(&self, progress: &mut Progress, area: Area) -> Option<Packed> {
        let none = Trials::new();
        let nodes: Vec<Vec<usize>> = (0..self.classes.len())
            .map(|class| {
                let members = self.members(class, area, &none);
                members.into_iter().map(|member| member.slot).collect()
            })
            .collect();
        let units: Vec<(usize, usize)> = self
            .classes
            .iter()
            .enumerate()
            .flat_map(|(class, of)| (0..of.units).map(move |unit| (class, unit)))
            .collect();
        let mut exhaustive = Exhaustive {
            search: self,
            units: &units,
            nodes: &nodes,
            trials: Trials::new(),
            packed: Packed::new(),
        };
        exhaustive.go_on(progress, 0).then_some(exhaustive.packed)
    }

    /// What nodes have in common that are alike for a gang; `None` for a node that is like no other.
    fn likeness(&self, slot: usize) -> Option<Likeness<'_>> {
        let (record, occupancy) = self.node(slot)?;
        let tied = |class: &SearchedClass<'_>| {
            let mut claims = class.shape.claims.iter();
            claims.any(|claim| claim.allocated.is_some())
        };
        if !occupancy.pending.is_empty() || self.classes.iter().any(tied) {
            return None;
        }
        Some((
            record.kind.id,
            (&occupancy.free, &occupancy.left, &record.tainted),
            &*occupancy.room,
            &record.node.filters,
        ))
    }
}

/// See [`Search::likeness`].
type Likeness<'a> = (
    KindId,
    (&'a DeviceSet, &'a Left, &'a DeviceSet),
    &'a Room,
    &'a BTreeSet<NodeFilterId>,
);

/// A search of every way to put units on nodes.
struct Exhaustive<'a> {
    search: &'a Search<'a>,
    /// Class and number of each unit, class by class.
    units: &'a [(usize, usize)],
    /// By class, the nodes that hold a unit of it, by place.
    nodes: &'a [Vec<usize>],
    trials: Trials,
    packed: Packed,
}

impl Exhaustive<'_> {
    /// Finds a node for each unit that has none yet. `first` is the place, among the nodes of its class, before which
    /// the next unit needs no try.
    fn go_on(&mut self, progress: &mut Progress, first: usize) -> bool {
        let Some(&(class, unit)) = self.units.get(self.packed.len()) else {
            return true;
        };
        let same_class = |next: &(usize, usize)| next.0 == class;
        let equal_follows = self
            .units
            .get(self.packed.len() + 1)
            .is_some_and(same_class);
        let nodes = self.nodes.get(class).map_or(&[][..], Vec::as_slice);
        let mut tried: BTreeSet<Likeness<'_>> = BTreeSet::new();
        for (at, slot) in nodes.iter().copied().enumerate().skip(first) {
            let before = self.trials.get(&slot).cloned();
            if before.is_none()
                && let Some(likeness) = self.search.likeness(slot)
                && !tried.insert(likeness)
            {
                continue;
            }
            if !progress.effort.spend(STEPS_PER_UNIT) {
                return false;
            }
            let grants = self.search.put(class, slot, &mut self.trials);
            self.search.pay(progress);
            if let Some(grants) = grants {
                let placed = Search::placed(class, unit, slot, grants);
                self.packed.push(placed);
                if self.go_on(progress, if equal_follows { at } else { 0 }) {
                    return true;
                }
                self.packed.pop();
            }
            match before {
                Some(before) => self.trials.insert(slot, before),
                None => self.trials.remove(&slot),
            };
        }
        false
    }
}
