//! Why a gang has no place, in numbers for people: no part of a decision.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet},
};

use super::{
    Occupants, Request, Unfit, View,
    capacity::{Cause, Rules},
    cluster::Cluster,
    demand::Class,
    effort::Effort,
    index::IndexKey,
    node::Occupancy,
    tree::{ROOT, Tree, Width},
};
use crate::{model::PodResources, names::LevelName};

/// Most nodes, and most units, among which the largest part of a gang is searched exhaustively.
pub(super) const EXHAUSTIVE: usize = 16;

/// How many times that search may try a unit on a node, about ten milliseconds.
const EXHAUSTIVE_TRIES: u64 = 20_000;

/// How many nodes that hold a unit are looked at for one explanation, over all classes of a gang: about five milliseconds.
/// Of a gang with more kinds of pods than that suffices for, the room is counted that was found until then.
pub(super) const MOST_LOOKS: u64 = 50_000;

/// Most nodes of which it is worked out who has what lacks there.
pub(super) const MOST_OCCUPIED: usize = 256;

/// Looks that it takes to put a unit on a node.
const LOOKS_PER_UNIT: u64 = 8;

/// A class with what it is allowed on which node.
struct Fit<'a> {
    class: &'a Class,
    resources: Option<PodResources>,
    /// By slot, at least one.
    capacities: BTreeMap<usize, usize>,
    /// Why nodes hold none, and how many.
    excluded: BTreeMap<Cause, usize>,
    /// Nodes that have the devices but lack something else, by what.
    lacking: BTreeMap<Cause, Vec<usize>>,
}

impl Fit<'_> {
    /// How many pods so many units have, and no more than there are.
    fn pods(&self, units: usize) -> usize {
        let units = units.min(self.class.units.len());
        units * self.class.units.first().map_or(0, Vec::len)
    }

    fn capacity(&self, slot: usize) -> usize {
        self.capacities.get(&slot).copied().unwrap_or(0)
    }
}

struct Explanation<'a> {
    cluster: &'a Cluster,
    view: &'a View,
    tree: &'a Tree,
    rules: Rules,
    fits: Vec<Fit<'a>>,
}

/// A part of the cluster that may hold the gang.
#[derive(Default)]
struct Part {
    slots: BTreeSet<usize>,
    /// How many pods fit if classes did not compete.
    bound: usize,
}

/// Why a gang that has no placement has none, as things are or, in [`View::Empty`], as if nothing ran. It looks at
/// nodes on which devices of the right kind are free; how many others there are, and why, the index knows.
pub(crate) fn explain(cluster: &Cluster, view: &View, request: &Request<'_>) -> Unfit {
    let Some(tree) = cluster.tree(request.topology) else {
        return Unfit::default();
    };
    let nodes = tree.slots().count();
    let required = request.wish.required.as_ref();
    let Some(widths) = tree.widths(required) else {
        let level = required.map_or("", LevelName::as_str);
        let what = match &tree.topology {
            Some(topology) => format!("Topology {topology} has no level {level}"),
            None => format!("no Topology, so no level {level}"),
        };
        return Unfit {
            fit: 0,
            nodes,
            excluded: vec![(what, nodes)],
            occupants: None,
        };
    };
    let mut explanation = Explanation {
        cluster,
        view,
        tree,
        rules: Rules::of(request, view),
        fits: Vec::new(),
    };
    let mut effort = Effort::of(MOST_LOOKS);
    let classes = request.demand.classes.iter();
    explanation.fits = classes
        .map(|class| explanation.fit(class, required, nodes, &mut effort))
        .collect();
    let widest = widths.last().copied().unwrap_or(Width::Depth(0));
    Unfit {
        // The gang as a whole does not fit, whatever a search that is not exhaustive finds.
        fit: explanation
            .most_pods(widest, &mut effort)
            .min(request.demand.pods.saturating_sub(1)),
        nodes,
        excluded: explanation.excluded(),
        occupants: explanation.occupants(),
    }
}

impl<'a> Explanation<'a> {
    fn fit(
        &self,
        class: &'a Class,
        required: Option<&LevelName>,
        nodes: usize,
        effort: &mut Effort,
    ) -> Fit<'a> {
        let mut fit = Fit {
            class,
            resources: class.shape.resources(),
            capacities: BTreeMap::new(),
            excluded: BTreeMap::new(),
            lacking: BTreeMap::new(),
        };
        let Some(resources) = &fit.resources else {
            fit.excluded.insert(Cause::Uncountable, nodes);
            return fit;
        };
        if effort.is_spent() {
            return fit;
        }
        let key = IndexKey {
            rules: self.rules.clone(),
            topology: self.tree.topology.clone(),
            as_they_are: !matches!(self.view, View::Empty),
            shape: class.shape.without_resources(),
        };
        let index = self.cluster.index(key, self.tree);
        let mut counted = 0;
        for (cause, nodes) in index.excluded() {
            counted += nodes;
            fit.excluded.insert(cause.clone(), nodes);
        }
        for (_, slot) in index.members(self.tree, ROOT) {
            counted += 1;
            if !effort.spend(1) {
                break;
            }
            let capacity = self.capacity(slot, resources, required);
            match capacity.map(|most| most.min(index.units_on(slot))) {
                Ok(capacity) => {
                    let capacity = usize::try_from(capacity).unwrap_or(usize::MAX);
                    fit.capacities.insert(slot, capacity);
                }
                Err(cause) => {
                    fit.lacking.entry(cause.clone()).or_default().push(slot);
                    *fit.excluded.entry(cause).or_default() += 1;
                }
            }
        }
        if !index.is_shared() && nodes > counted {
            fit.excluded.insert(Cause::ClaimElsewhere, nodes - counted);
        }
        self.cluster.keep(index);
        fit
    }

    /// How many units a node holds as far as its place and everything but devices go.
    fn capacity(
        &self,
        slot: usize,
        resources: &PodResources,
        required: Option<&LevelName>,
    ) -> Result<u64, Cause> {
        let place = self.tree.place(slot);
        if !place.is_some_and(|place| place.is_eligible(required)) {
            return Err(Cause::OutsideTopology);
        }
        self.cluster.note_visits(1);
        let record = self.cluster.record(slot).ok_or(Cause::OutsideTopology)?;
        let occupancy = self.view.occupancy(slot, record);
        Ok(occupancy.room.times(resources)? as u64)
    }

    /// How many pods fit in one area of a width at best: exact for equal pods and for small gangs, else as many as
    /// a greedy search finds room for.
    fn most_pods(&self, width: Width, effort: &mut Effort) -> usize {
        let area_of = |slot: usize| match width {
            Width::Node => Some(slot),
            Width::Depth(0) => Some(ROOT),
            Width::Depth(depth) => self.tree.domain_at(slot, depth),
        };
        let mut areas: BTreeMap<usize, Part> = BTreeMap::new();
        for fit in &self.fits {
            let mut units: BTreeMap<usize, usize> = BTreeMap::new();
            for (slot, capacity) in &fit.capacities {
                let Some(area) = area_of(*slot) else { continue };
                areas.entry(area).or_default().slots.insert(*slot);
                let units = units.entry(area).or_default();
                *units = units.saturating_add(*capacity);
            }
            for (area, units) in units {
                areas.entry(area).or_default().bound += fit.pods(units);
            }
        }
        let label = |slot: usize| self.tree.place(slot).map(|place| place.label);
        let mut areas: Vec<(usize, Vec<usize>)> = areas
            .into_values()
            .map(|area| {
                let mut slots: Vec<usize> = area.slots.into_iter().collect();
                slots.sort_by_cached_key(|slot| label(*slot));
                (area.bound, slots)
            })
            .collect();
        areas.sort_by_cached_key(|(bound, slots)| {
            (Reverse(*bound), slots.first().map(|slot| label(*slot)))
        });
        let mut most = 0;
        for (bound, slots) in areas {
            if bound <= most {
                break;
            }
            most = most.max(self.most_pods_on(&slots, bound, effort));
        }
        most
    }

    fn most_pods_on(&self, slots: &[usize], bound: usize, effort: &mut Effort) -> usize {
        if self.fits.len() < 2 {
            return bound;
        }
        let largest_first: Vec<usize> = (0..self.fits.len()).collect();
        let smallest_first: Vec<usize> = largest_first.iter().rev().copied().collect();
        let mut most = self.greedily(slots, &largest_first, effort);
        most = most.max(self.greedily(slots, &smallest_first, effort));
        let units: usize = self.fits.iter().map(|fit| fit.class.units.len()).sum();
        if most < bound && units <= EXHAUSTIVE && slots.len() <= EXHAUSTIVE {
            let units: Vec<usize> = smallest_first
                .into_iter()
                .flat_map(|fit| vec![fit; self.fits[fit].class.units.len()])
                .collect();
            let mut occupancies: Vec<Occupancy> = slots
                .iter()
                .filter_map(|slot| {
                    let record = self.cluster.record(*slot)?;
                    Some(self.view.occupancy(*slot, record).clone())
                })
                .collect();
            let mut tries = Effort::of(EXHAUSTIVE_TRIES);
            self.exhaustively(slots, &units, 0, &mut occupancies, &mut most, &mut tries);
        }
        most
    }

    /// Puts units where the first node takes them, class by class.
    fn greedily(&self, slots: &[usize], order: &[usize], effort: &mut Effort) -> usize {
        let mut occupancies: BTreeMap<usize, Occupancy> = BTreeMap::new();
        let mut pods = 0;
        for fit in order.iter().map(|fit| &self.fits[*fit]) {
            let mut units = fit.class.units.iter();
            let Some(mut unit) = units.next() else {
                continue;
            };
            'nodes: for slot in slots {
                let Some(record) = self.cluster.record(*slot) else {
                    continue;
                };
                for _ in 0..fit.capacity(*slot) {
                    if !effort.spend(LOOKS_PER_UNIT) {
                        return pods;
                    }
                    let occupancy = occupancies
                        .entry(*slot)
                        .or_insert_with(|| self.view.occupancy(*slot, record).clone());
                    let mut trial = occupancy.clone();
                    let resources = fit.resources.as_ref();
                    let placed = resources.and_then(|resources| {
                        let shape = &fit.class.shape;
                        self.rules.place(record, &mut trial, shape, resources)
                    });
                    if placed.is_none() {
                        break;
                    }
                    *occupancy = trial;
                    pods += unit.len();
                    match units.next() {
                        Some(next) => unit = next,
                        None => break 'nodes,
                    }
                }
            }
        }
        pods
    }

    /// Tries every way to put some of the units on nodes; `units` are numbers of classes.
    fn exhaustively(
        &self,
        slots: &[usize],
        units: &[usize],
        pods: usize,
        occupancies: &mut [Occupancy],
        most: &mut usize,
        effort: &mut Effort,
    ) {
        *most = pods.max(*most);
        let Some((class, rest)) = units.split_first() else {
            return;
        };
        let fit = &self.fits[*class];
        let size = |class: &usize| {
            let units = &self.fits[*class].class.units;
            units.first().map_or(0, Vec::len)
        };
        if pods + units.iter().map(size).sum::<usize>() <= *most {
            return;
        }
        for (at, slot) in slots.iter().enumerate() {
            let Some(record) = self.cluster.record(*slot) else {
                continue;
            };
            if fit.capacity(*slot) == 0 || !effort.spend(1) {
                continue;
            }
            let mut trial = occupancies[at].clone();
            let resources = fit.resources.as_ref();
            let placed = resources.and_then(|resources| {
                let shape = &fit.class.shape;
                self.rules.place(record, &mut trial, shape, resources)
            });
            if placed.is_some() {
                let before = std::mem::replace(&mut occupancies[at], trial);
                let pods = pods + size(class);
                self.exhaustively(slots, rest, pods, occupancies, most, effort);
                occupancies[at] = before;
            }
        }
        // Without this unit; its likes are then left out too.
        let others = units.iter().position(|other| other != class);
        let others = others.map_or(&[][..], |at| &units[at..]);
        self.exhaustively(slots, others, pods, occupancies, most, effort);
    }

    /// The class that is the first not to fit.
    fn lacking(&self) -> Option<&Fit<'a>> {
        let lacks = |fit: &&Fit<'_>| {
            let units: usize = fit.capacities.values().sum();
            units < fit.class.units.len()
        };
        self.fits.iter().find(lacks).or_else(|| self.fits.first())
    }

    /// Who has what lacks on most of the nodes that have the devices.
    fn occupants(&self) -> Option<Occupants> {
        let fit = self.lacking()?;
        let asked = fit.resources.as_ref()?;
        let most = |(_, nodes): &(&Cause, &Vec<usize>)| nodes.len();
        let (cause, nodes) = fit.lacking.iter().rev().max_by_key(most)?;
        let of_devices = [
            Cause::DevicesInUse,
            Cause::NotAllocatedYet,
            Cause::HeldDevicesUnknown,
        ];
        let of_devices = of_devices
            .iter()
            .filter_map(|cause| fit.excluded.get(cause));
        if of_devices
            .max()
            .is_some_and(|devices| *devices > nodes.len())
        {
            return None;
        }
        let mut gangs: BTreeMap<String, i128> = BTreeMap::new();
        let looked_at = nodes.iter().take(MOST_OCCUPIED);
        for hold in looked_at.flat_map(|slot| self.cluster.holds_in(*slot)) {
            let has = cause.share_of(&hold.resources, asked);
            if has > 0 {
                *gangs.entry(hold.gang_name.clone()).or_default() += i128::from(has);
            }
        }
        Some(Occupants {
            gangs,
            is_partial: nodes.len() > MOST_OCCUPIED,
        })
    }

    /// Why nodes hold none of the class that is the first not to fit.
    fn excluded(&self) -> Vec<(String, usize)> {
        let counts = self.lacking().into_iter().flat_map(|fit| &fit.excluded);
        let mut excluded: Vec<(&Cause, &usize)> = counts.collect();
        excluded.sort_by_key(|(cause, count)| (Reverse(**count), *cause));
        excluded
            .into_iter()
            .map(|(cause, count)| (cause.to_string(), *count))
            .collect()
    }
}
