//! Puts all classes of a gang into one area.
//!
//! A gang of equal pods needs only its counts: what fits on one node does not depend on another. Unequal
//! pods compete for nodes: the largest class goes first, and if that greedy way leaves one without a
//! place, small gangs are searched exhaustively, within a bound of effort per gang.

use std::{cmp::Reverse, collections::BTreeMap, ops::Range};

use super::{PlacedUnit, Planner, capacity::Grants, fabric::Width, node::Occupancy};

/// Most units of a gang that is searched exhaustively.
const EXHAUSTIVE_UNITS: usize = 64;

/// How often a unit may be tried on a node in one exhaustive search.
const EXHAUSTIVE_STEPS: usize = 20_000;

/// How many areas are packed greedily before a gang of unequal pods counts as one that does not fit.
const GREEDY_AREAS: usize = 256;

/// What an attempt to place one gang may still cost.
pub(super) struct Budget {
    areas: usize,
    steps: usize,
}

impl Default for Budget {
    fn default() -> Self {
        Self {
            areas: GREEDY_AREAS,
            steps: EXHAUSTIVE_STEPS,
        }
    }
}

impl Budget {
    /// Whether something was left untried.
    pub(super) fn is_spent(&self) -> bool {
        self.areas == 0 || self.steps == 0
    }
}

/// Nodes with what was put on them so far.
type Trials = BTreeMap<usize, Occupancy>;

/// Class, unit of the class, place, devices.
type Packed = Vec<(usize, PlacedUnit)>;

impl Planner<'_> {
    /// Puts the whole gang into an area, or nothing of it.
    pub(super) fn pack(
        &self,
        width: Width,
        area: &Range<usize>,
        budget: &mut Budget,
    ) -> Option<Packed> {
        if budget.areas == 0 {
            return None;
        }
        budget.areas -= 1;
        if let Some(packed) = self.pack_greedily(width, area) {
            return Some(packed);
        }
        let units: usize = self.fits.iter().map(|fit| fit.units).sum();
        if self.fits.len() < 2 || units > EXHAUSTIVE_UNITS {
            return None;
        }
        self.search(area, budget)
    }

    fn pack_greedily(&self, width: Width, area: &Range<usize>) -> Option<Packed> {
        let mut trials = Trials::new();
        let mut packed = Packed::new();
        for (class, fit) in self.fits.iter().enumerate() {
            let shape = self.shape(class)?;
            let mut capacities = fit.capacities.clone();
            for (at, occupancy) in &trials {
                let (record, _) = self.place(*at)?;
                let capacity =
                    self.rules
                        .capacity(record, occupancy, shape, fit.resources.as_ref()?);
                capacities[*at] = capacity.unwrap_or(0);
            }
            let mut chosen = if shape.needs_devices() {
                self.spread(class, width, area, capacities, fit.units)?
            } else {
                self.tuck_in(area, &capacities, &trials, fit.units)?
            };
            chosen.sort_unstable();
            let places = chosen
                .into_iter()
                .flat_map(|(at, units)| std::iter::repeat_n(at, units));
            for (unit, at) in places.enumerate() {
                let grants = self.put(class, at, &mut trials)?;
                packed.push((at, self.placed(class, unit, at, grants)?));
            }
        }
        Some(packed)
    }

    /// Places for units without devices: on nodes that the gang uses anyway, then on those with the fewest GPUs.
    fn tuck_in(
        &self,
        area: &Range<usize>,
        capacities: &[usize],
        trials: &Trials,
        units: usize,
    ) -> Option<Vec<(usize, usize)>> {
        let mut places: Vec<usize> = area.clone().filter(|at| capacities[*at] > 0).collect();
        places.sort_by_cached_key(|at| {
            let gpus = self.free_gpus.within(&(*at..at + 1));
            (Reverse(trials.contains_key(at)), gpus, *at)
        });
        let mut chosen = Vec::new();
        let mut rest = units;
        for at in places {
            let units = capacities[at].min(rest);
            if units == 0 {
                break;
            }
            chosen.push((at, units));
            rest -= units;
        }
        (rest == 0).then_some(chosen)
    }

    /// Puts one unit on the node at a place.
    fn put(&self, class: usize, at: usize, trials: &mut Trials) -> Option<Grants> {
        let (record, occupancy) = self.place(at)?;
        let trial = trials.entry(at).or_insert_with(|| occupancy.clone());
        self.rules.place(record, trial, self.shape(class)?)
    }

    fn placed(&self, class: usize, unit: usize, at: usize, grants: Grants) -> Option<PlacedUnit> {
        Some(PlacedUnit {
            class,
            unit,
            slot: *self.fabric.order.get(at)?,
            grants,
        })
    }

    /// Tries every way to distribute the units over the nodes of an area, as far as the effort goes. Equal
    /// units go to nodes in order, so that no way is tried twice.
    fn search(&self, area: &Range<usize>, budget: &mut Budget) -> Option<Packed> {
        let units: Vec<(usize, usize)> = self
            .fits
            .iter()
            .enumerate()
            .flat_map(|(class, fit)| (0..fit.units).map(move |unit| (class, unit)))
            .collect();
        let mut packed = Packed::new();
        let mut trials = Trials::new();
        self.search_from(&units, area, &mut trials, &mut packed, budget)
            .then_some(packed)
    }

    fn search_from(
        &self,
        units: &[(usize, usize)],
        area: &Range<usize>,
        trials: &mut Trials,
        packed: &mut Packed,
        budget: &mut Budget,
    ) -> bool {
        let Some(&(class, unit)) = units.get(packed.len()) else {
            return true;
        };
        let first = match packed.last() {
            Some((at, before)) if before.class == class => *at,
            _ => area.start,
        };
        for at in first..area.end {
            if self.fits[class].capacities[at] == 0 {
                continue;
            }
            if budget.steps == 0 {
                return false;
            }
            budget.steps -= 1;
            let before = trials.get(&at).cloned();
            let put = self
                .put(class, at, trials)
                .and_then(|grants| self.placed(class, unit, at, grants));
            if let Some(placed) = put {
                packed.push((at, placed));
                if self.search_from(units, area, trials, packed, budget) {
                    return true;
                }
                packed.pop();
            }
            match before {
                Some(before) => trials.insert(at, before),
                None => trials.remove(&at),
            };
        }
        false
    }
}
