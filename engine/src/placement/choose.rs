//! Which domain takes a gang, and which nodes in it.

use std::{cmp::Ordering, collections::BTreeMap, ops::Range};

use super::{Planner, fabric::Width, node::Occupancy};

/// Running sums, to know the sum of any stretch at once.
#[derive(Clone, Debug, Default)]
pub(super) struct Sums(Vec<usize>);

impl Sums {
    pub(super) fn of(values: impl Iterator<Item = usize>) -> Self {
        let mut sum = 0_usize;
        let mut sums = vec![0];
        sums.extend(values.map(|value| {
            sum = sum.saturating_add(value);
            sum
        }));
        Self(sums)
    }

    pub(super) fn within(&self, area: &Range<usize>) -> usize {
        let at = |place: usize| {
            self.0
                .get(place)
                .or_else(|| self.0.last())
                .copied()
                .unwrap_or(0)
        };
        at(area.end).saturating_sub(at(area.start))
    }
}

/// A part of an area that may take some of the units.
struct Part {
    area: Range<usize>,
    capacity: usize,
    free_gpus: usize,
    groups_broken: usize,
}

impl Planner<'_> {
    /// The domains of a width that may hold the gang, in the order in which they are tried: the tightest
    /// first, then the one with the fewest GPUs left, then the one whose surroundings are tightest;
    /// among equals one that holds it in a single accelerator domain, then one that leaves NVLink groups
    /// whole, then by place.
    pub(super) fn by_tightness(&self, width: Width) -> Vec<Range<usize>> {
        let mut areas = self.fabric.domains(width);
        areas.retain(|area| self.may_hold(area));
        areas.sort_by(|one, other| self.compare(width, one, other));
        let equal = areas.first().map_or(0, |first| {
            areas.partition_point(|area| self.compare(width, first, area) == Ordering::Equal)
        });
        if equal > 1
            && let Some(ties) = areas.get_mut(..equal)
        {
            self.break_ties(width, ties);
        }
        areas
    }

    fn compare(&self, width: Width, one: &Range<usize>, other: &Range<usize>) -> Ordering {
        let Some(main) = self.fits.first() else {
            return Ordering::Equal;
        };
        let sums = if self.demand.classes[0].shape.needs_devices() {
            [&main.sums, &self.free_gpus]
        } else {
            [&self.free_gpus, &main.sums]
        };
        let by_own = sums
            .iter()
            .map(|sums| sums.within(one).cmp(&sums.within(other)))
            .fold(Ordering::Equal, Ordering::then);
        if by_own.is_ne() {
            return by_own;
        }
        let around = |area: &Range<usize>| {
            self.fabric
                .around(area.start, width)
                .map(|domain| main.sums.within(domain))
                .collect::<Vec<_>>()
        };
        // A place outside the Topology has nothing around it: the last resort.
        match (around(one), around(other)) {
            (one, other) if one.is_empty() != other.is_empty() => {
                one.is_empty().cmp(&other.is_empty())
            }
            (one, other) => one.cmp(&other),
        }
    }

    fn break_ties(&self, width: Width, ties: &mut [Range<usize>]) {
        let Some(main) = self.fits.first() else {
            return;
        };
        if width == Width::Node {
            let places: Vec<usize> = ties.iter().map(|area| area.start).collect();
            let broken = self.groups_broken(0, main.units, &places);
            ties.sort_by_cached_key(|area| (broken.get(&area.start).copied(), area.start));
        } else {
            ties.sort_by_cached_key(|area| {
                let single = self.accelerator_within(area, &main.capacities, main.units);
                (single.is_none(), area.start)
            });
        }
    }

    /// How many NVLink groups a number of units of a class would break on each of these nodes. Nodes that
    /// look alike are tried once.
    fn groups_broken(
        &self,
        class: usize,
        units: usize,
        places: &[usize],
    ) -> BTreeMap<usize, usize> {
        let mut broken = BTreeMap::new();
        let Some(shape) = self.shape(class).filter(|shape| shape.needs_devices()) else {
            return broken;
        };
        let mut last: Option<(usize, &Occupancy, usize)> = None;
        for &at in places {
            let Some((record, occupancy)) = self.place(at) else {
                continue;
            };
            let alike = last.filter(|(before, known, _)| {
                known.free == occupancy.free
                    && known.pending.is_empty()
                    && occupancy.pending.is_empty()
                    && self
                        .place(*before)
                        .is_some_and(|(other, _)| other.looks_like(record))
            });
            let count = alike.map_or_else(
                || {
                    let mut trial = occupancy.clone();
                    for _ in 0..units {
                        self.rules.place(record, &mut trial, shape);
                    }
                    record.groups_broken(&occupancy.free, &trial.free)
                },
                |(_, _, count)| count,
            );
            last = Some((at, occupancy, count));
            broken.insert(at, count);
        }
        broken
    }

    /// The tightest accelerator domain that holds so many units within an area.
    fn accelerator_within(
        &self,
        area: &Range<usize>,
        capacities: &[usize],
        units: usize,
    ) -> Option<usize> {
        let mut held: BTreeMap<usize, usize> = BTreeMap::new();
        for at in area.clone() {
            if let Some(Some(domain)) = self.fabric.accelerators.get(at) {
                *held.entry(*domain).or_default() += capacities.get(at).copied().unwrap_or(0);
            }
        }
        held.into_iter()
            .filter(|(_, held)| *held >= units)
            .min_by_key(|(domain, held)| (*held, *domain))
            .map(|(domain, _)| domain)
    }

    /// How many units of a class go to which place of an area: on as few domains of each level as
    /// possible, level by level, and in one accelerator domain if one holds them.
    pub(super) fn spread(
        &self,
        class: usize,
        width: Width,
        area: &Range<usize>,
        mut capacities: Vec<usize>,
        units: usize,
    ) -> Option<Vec<(usize, usize)>> {
        if area.len() > 1
            && let Some(domain) = self.accelerator_within(area, &capacities, units)
        {
            for at in area.clone() {
                if self.fabric.accelerators.get(at) != Some(&Some(domain)) {
                    capacities[at] = 0;
                }
            }
        }
        let sums = Sums::of(capacities.iter().copied());
        let mut areas = vec![area.clone()];
        let below = match width {
            Width::Everything => 0,
            Width::Level(level) => level + 1,
            Width::Node => self.fabric.levels.len(),
        };
        for level in below..self.fabric.levels.len() {
            let parts = areas.iter().flat_map(|area| self.fabric.parts(area, level));
            let parts = parts.map(|area| self.part(area, &sums)).collect();
            areas = cover(parts, units)?
                .into_iter()
                .map(|(area, _)| area)
                .collect();
        }
        let places: Vec<usize> = areas
            .into_iter()
            .flatten()
            .filter(|at| capacities[*at] > 0)
            .collect();
        let broken = self.groups_broken(class, 1, &places);
        let parts = places
            .into_iter()
            .map(|at| Part {
                groups_broken: broken.get(&at).copied().unwrap_or(0),
                ..self.part(at..at + 1, &sums)
            })
            .collect();
        let chosen = cover(parts, units)?;
        Some(
            chosen
                .into_iter()
                .map(|(area, units)| (area.start, units))
                .collect(),
        )
    }

    fn part(&self, area: Range<usize>, sums: &Sums) -> Part {
        Part {
            capacity: sums.within(&area),
            free_gpus: self.free_gpus.within(&area),
            groups_broken: 0,
            area,
        }
    }
}

/// The fewest parts that hold the units, largest first, the last one the tightest that suffices; each with
/// how many it takes.
fn cover(mut parts: Vec<Part>, units: usize) -> Option<Vec<(Range<usize>, usize)>> {
    parts.retain(|part| part.capacity > 0);
    parts.sort_by(|one, other| {
        other
            .capacity
            .cmp(&one.capacity)
            .then(one.free_gpus.cmp(&other.free_gpus))
            .then(one.groups_broken.cmp(&other.groups_broken))
            .then(one.area.start.cmp(&other.area.start))
    });
    let mut chosen = Vec::new();
    let mut rest = units;
    for (at, part) in parts.iter().enumerate() {
        if rest == 0 {
            break;
        }
        if part.capacity < rest {
            rest -= part.capacity;
            chosen.push((part.area.clone(), part.capacity));
            continue;
        }
        let enough = parts[at..].iter().take_while(|part| part.capacity >= rest);
        let tightest = enough.map(|part| part.capacity).min()?;
        let part = parts[at..].iter().find(|part| part.capacity == tightest)?;
        chosen.push((part.area.clone(), rest));
        rest = 0;
    }
    (rest == 0).then_some(chosen)
}
