//! What would have to be repaired so that a gang is admitted: nodes on which nothing new is planned, and devices that have a fault.
//!
//! A repair makes room on its node, and where nominal quota follows what is healthy it makes quota, too. First each node is tried
//! alone, with all that is wrong with it; if none suffices, all of them together. Then everything is left out again without which the
//! rest suffices. Of nodes that suffice alone the one is told of which the fewest things have to be repaired.

use std::collections::{BTreeMap, BTreeSet};

use super::{
    State,
    judge::request,
    release::Afterwards,
    remedies::{Search, half},
};
use crate::{
    amount::FlavorResource,
    model::NodeBlock,
    placement::Faults,
    quota::{NodeId, PairId, QuotaTree, automatic::Owner, healthy::healthy_of},
    remedy::NodeRepair,
};

/// Of how many nodes that have a fault is worked out what they would hold without.
const MOST_LOOKED_AT: usize = 128;
/// How many are considered.
const MOST_CONSIDERED: usize = 16;
/// How many steps it costs to think the faults of one node gone.
const STEPS_PER_NODE: u64 = 8;

/// How many steps it costs to divide something among one more of those whose nominal quota follows what is healthy, and to raise one part.
const STEPS_PER_PART: u64 = 4;

/// So much more would be healthy.
pub(super) type More = BTreeMap<FlavorResource, i128>;

/// Of whom the nominal quota would grow, and by how much.
pub(super) type Growth = Vec<(NodeId, PairId, i128)>;

/// How many things are to be repaired.
pub(super) fn things(faults: &[Faults]) -> usize {
    faults.iter().map(Faults::count).sum()
}

impl State {
    /// How much more would be healthy without these faults.
    fn more_without(&self, faults: &[Faults]) -> More {
        let mut more = More::new();
        for faults in faults {
            let Some(node) = self.cluster.node(&faults.node) else {
                continue;
            };
            let healthy = healthy_of(&faults.repaired(node)).into_iter();
            for (of, by) in healthy {
                *more.entry(of).or_insert(0) += by;
            }
            for (of, by) in healthy_of(node) {
                *more.entry(of).or_insert(0) -= by;
            }
        }
        more.retain(|_, by| *by != 0);
        more
    }

    /// What nominal quota would grow if so much more were healthy.
    fn growth_by(&self, more: &More) -> Growth {
        let growth = self.limits.automatic.growth(more).into_iter();
        let at_nodes = growth.filter_map(|(owner, of, by)| {
            let node = match &owner {
                Owner::Team(name) => self.tree.node_of(name),
                Owner::Cohort(name) => self.tree.node_of_cohort(name),
            };
            Some((node?, self.tree.known_pair(&of)?, by))
        });
        at_nodes.collect()
    }

    /// The world without these faults, and whether other limits hold there.
    pub(super) fn world_repaired(&self, faults: &[Faults]) -> (Afterwards<'_>, bool) {
        let (mut tree, mut freed) = (self.tree.clone(), BTreeSet::new());
        for (node, pair, by) in self.growth_by(&self.more_without(faults)) {
            tree.raise(node, pair, by, |at| {
                freed.insert((at, pair));
            });
        }
        let are_limits_others = !freed.is_empty();
        let view = self.cluster.without_faults(faults.iter());
        let after = Self::world_with(tree, freed).seen_as(view);
        (after, are_limits_others)
    }

    /// These faults by the names of the devices.
    pub(super) fn named_repairs(&self, faults: Vec<Faults>) -> Vec<NodeRepair> {
        let named = faults.into_iter().map(|faults| {
            let node = self.cluster.node(&faults.node);
            let devices = node.map_or(&[][..], |node| &node.devices);
            let devices = faults.devices.iter().filter_map(|at| devices.get(*at));
            NodeRepair {
                devices: devices.map(|device| device.name.clone()).collect(),
                node: faults.node,
                block: faults.block,
            }
        });
        named.collect()
    }

    /// Whether Teams are charged again for what a node holds as soon as it is back.
    fn brings_charges_back(&self, faults: &Faults) -> bool {
        let slot = self.cluster.slot_of(&faults.node);
        let mut holds = slot
            .into_iter()
            .flat_map(|slot| self.cluster.holds_in(slot));
        faults.block == Some(NodeBlock::Lost) && holds.any(|hold| hold.charged_to_node)
    }
}

impl Search<'_> {
    /// Faults of which none can be left out: without them there is quota and a place.
    pub(super) fn what_to_repair(&mut self) -> Option<Vec<Faults>> {
        let considered = self.faults_considered();
        let whole = self.effort;
        self.effort = half(whole);
        let mut fewest: Option<Vec<Faults>> = None;
        for faults in &considered {
            let best = fewest.as_deref().map_or(usize::MAX, things);
            if best == 1 {
                break;
            }
            let alone = std::slice::from_ref(faults);
            if self.fits_repaired(alone) {
                let least = self.least_of(alone.to_vec());
                if things(&least) < best {
                    fewest = Some(least);
                }
            }
        }
        if fewest.is_some() || considered.len() < 2 {
            return fewest;
        }
        self.effort = half(whole);
        self.fits_repaired(&considered)
            .then(|| self.least_of(considered))
    }

    /// Faults that may stand in the way, node by node, the fewest first.
    fn faults_considered(&mut self) -> Vec<Faults> {
        let state = self.state;
        let request = request(
            self.waiting,
            self.flavor.and_then(|name| state.flavors.get(name)),
        );
        let follows = self.lacks_what_is_divided();
        let mut considered = Vec::new();
        for (at, faults) in state.cluster.faults().enumerate() {
            if at == MOST_LOOKED_AT || !self.effort.spend(STEPS_PER_NODE) {
                self.gave_up = true;
                break;
            }
            let alone = std::slice::from_ref(&faults);
            let may_help = state.cluster.would_hold_some(&faults, &request)
                || (follows && !self.growth_without(alone).is_empty());
            if may_help && !state.brings_charges_back(&faults) {
                considered.push(faults);
            }
        }
        // Names are in order.
        considered.sort_by_key(Faults::count);
        self.gave_up |= considered.len() > MOST_CONSIDERED;
        considered.truncate(MOST_CONSIDERED);
        considered
    }

    /// Whether the gang lacks nominal quota that follows what is healthy, its own or that of others.
    fn lacks_what_is_divided(&self) -> bool {
        let node = self.candidate.and_then(|candidate| candidate.node);
        let asked = self.asked().unwrap_or_default();
        node.is_some_and(|node| {
            asked.iter().any(|(pair, amount)| {
                *amount > self.tree.available_at(node, *pair)
                    && self
                        .state
                        .limits
                        .automatic
                        .is_divided(self.tree.named(*pair))
            })
        })
    }

    /// What nominal quota would grow without these faults; nothing if too few steps are left to find out. Faults that are alike have it
    /// divided once: among a thousand Teams that takes as long as to plan a large gang.
    fn growth_without(&mut self, faults: &[Faults]) -> Growth {
        let state = self.state;
        let more = state.more_without(faults);
        if let Some(known) = self.growths.get(&more) {
            return known.clone();
        }
        if !self.pays_for(state.limits.automatic.count_parts(&more)) {
            return Growth::new();
        }
        let growth = state.growth_by(&more);
        self.growths.insert(more, growth.clone());
        growth
    }

    /// Pays for so many parts, if enough steps are left for that.
    fn pays_for(&mut self, parts: usize) -> bool {
        let steps = STEPS_PER_PART.saturating_mul(parts as u64);
        let is_paid = steps <= self.effort.steps() && self.effort.spend(steps);
        if is_paid {
            self.state.cluster.note_visits(steps);
        }
        self.gave_up |= !is_paid;
        is_paid
    }

    /// Whether the gang would have quota and a place without these faults.
    fn fits_repaired(&mut self, faults: &[Faults]) -> bool {
        let state = self.state;
        let steps = STEPS_PER_NODE.saturating_mul(faults.len() as u64);
        state.cluster.note_visits(steps);
        if !self.effort.spend(steps) {
            self.gave_up = true;
            return false;
        }
        let mut growth = self.growth_without(faults);
        if !self.pays_for(growth.len()) {
            growth.clear();
        }
        // What is kept for others by other limits would have to be known. With less quota it fits all the more.
        if !growth.is_empty() && !state.reservations.is_empty() {
            self.gave_up = true;
            growth.clear();
        }
        if !growth.is_empty() && self.may_be_held_up() {
            return false;
        }
        raise(&mut self.tree, &growth, 1);
        let view = state.cluster.without_faults(faults.iter());
        let fits = self.fits_in_view(&view);
        raise(&mut self.tree, &growth, -1);
        self.noted(fits).flatten().is_some()
    }

    /// Of faults without which the gang fits those that cannot be left out.
    fn least_of(&mut self, mut faults: Vec<Faults>) -> Vec<Faults> {
        // Whole nodes first, those of which most is wrong.
        let mut at = faults.len();
        while at > 0 && faults.len() > 1 {
            at -= 1;
            let left_out = faults.remove(at);
            if !self.fits_repaired(&faults) {
                faults.insert(at, left_out);
            }
        }
        for at in 0..faults.len() {
            for device in faults[at].devices.clone().into_iter().rev() {
                let mut less = faults.clone();
                less[at].devices.retain(|other| *other != device);
                self.keep_if_it_fits(&mut faults, less);
            }
            let mut less = faults.clone();
            if less[at].block.take().is_some() {
                self.keep_if_it_fits(&mut faults, less);
            }
        }
        faults
    }

    fn keep_if_it_fits(&mut self, faults: &mut Vec<Faults>, less: Vec<Faults>) {
        if self.fits_repaired(&less) {
            *faults = less;
        }
    }
}

/// Raises nominal quota, or takes that back.
fn raise(tree: &mut QuotaTree, growth: &Growth, times: i128) {
    for (node, pair, by) in growth {
        tree.raise(*node, *pair, by * times, |_| {});
    }
}
