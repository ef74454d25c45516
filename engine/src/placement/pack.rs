//! Puts all classes of a gang into one area.
//!
//! A gang of equal pods needs only its counts: what fits on one node does not depend on another. Unequal
//! pods compete for nodes: the largest class goes first, and if that greedy way leaves one without a
//! place, small gangs are searched exhaustively, as far as the effort goes.

use std::collections::BTreeMap;

use super::{
    PlacedUnit,
    capacity::Grants,
    node::Occupancy,
    search::{Area, Progress, Search},
};

/// Most units of a gang that is searched exhaustively.
const EXHAUSTIVE_UNITS: usize = 64;

/// Steps of effort that it takes to put a unit on a node.
const STEPS_PER_UNIT: u64 = 8;

/// Nodes with what was put on them so far, by slot.
pub(super) type Trials = BTreeMap<usize, Occupancy>;

/// The units of a gang with their nodes.
pub(super) type Packed = Vec<PlacedUnit>;

impl Search<'_> {
    /// Puts the whole gang into an area, or nothing of it.
    pub(super) fn pack(&self, progress: &mut Progress, area: Area) -> Option<Packed> {
        if let Some(packed) = self.pack_greedily(area) {
            return Some(packed);
        }
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

    fn pack_greedily(&self, area: Area) -> Option<Packed> {
        let mut trials = Trials::new();
        let mut packed = Packed::new();
        for (class, of) in self.classes.iter().enumerate() {
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

    /// Puts one unit on a node.
    fn put(&self, class: usize, slot: usize, trials: &mut Trials) -> Option<Grants> {
        let (record, occupancy) = self.node(slot)?;
        let class = self.classes.get(class)?;
        let trial = trials.entry(slot).or_insert_with(|| occupancy.clone());
        self.rules
            .place(record, trial, class.shape, &class.resources)
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
        let mut trials = Trials::new();
        let mut packed = Packed::new();
        self.pack_from(&units, &nodes, &mut trials, &mut packed, progress)
            .then_some(packed)
    }

    fn pack_from(
        &self,
        units: &[(usize, usize)],
        nodes: &[Vec<usize>],
        trials: &mut Trials,
        packed: &mut Packed,
        progress: &mut Progress,
    ) -> bool {
        let Some(&(class, unit)) = units.get(packed.len()) else {
            return true;
        };
        let Some(nodes_of_class) = nodes.get(class) else {
            return false;
        };
        let first = match packed.last() {
            Some(before) if before.class == class => {
                let at = nodes_of_class.iter().position(|slot| *slot == before.slot);
                at.unwrap_or(0)
            }
            _ => 0,
        };
        let mut untouched: Vec<usize> = Vec::new();
        for &slot in &nodes_of_class[first..] {
            let before = trials.get(&slot).cloned();
            if before.is_none() {
                if untouched.iter().any(|other| self.alike(*other, slot)) {
                    continue;
                }
                untouched.push(slot);
            }
            if !progress.effort.spend(STEPS_PER_UNIT) {
                return false;
            }
            if let Some(grants) = self.put(class, slot, trials) {
                packed.push(Self::placed(class, unit, slot, grants));
                if self.pack_from(units, nodes, trials, packed, progress) {
                    return true;
                }
                packed.pop();
            }
            match before {
                Some(before) => trials.insert(slot, before),
                None => trials.remove(&slot),
            };
        }
        false
    }

    /// Whether two nodes hold the same.
    fn alike(&self, one: usize, other: usize) -> bool {
        let nodes = self.node(one).zip(self.node(other));
        let tied = |class: &super::search::SearchedClass<'_>| {
            let mut claims = class.shape.claims.iter();
            claims.any(|claim| claim.allocated.is_some())
        };
        nodes.is_some_and(|((one, held_by_one), (other, held_by_other))| {
            one.kind.id == other.kind.id
                && held_by_one == held_by_other
                && one.node.filters == other.node.filters
                && !self.classes.iter().any(tied)
        })
    }
}
