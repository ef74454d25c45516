//! Why a gang has no place, in numbers for people. Every node is looked at: this is no part of a decision.

use std::{cmp::Reverse, collections::BTreeMap};

use super::{
    Request, Unfit, View,
    capacity::{Cause, Rules},
    cluster::Cluster,
    demand::Class,
    effort::Effort,
    node::Occupancy,
    tree::{ROOT, Tree, Width},
};
use crate::{model::PodResources, names::LevelName};

/// Most nodes, and most units, among which the largest part of a gang is searched exhaustively.
pub(super) const EXHAUSTIVE: usize = 16;

/// How many times that search may try a unit on a node, about ten milliseconds.
const EXHAUSTIVE_TRIES: u64 = 20_000;

/// A class with what it is allowed on which node.
struct Fit<'a> {
    class: &'a Class,
    resources: Option<PodResources>,
    /// By slot.
    capacities: Vec<usize>,
    /// Why nodes hold none, and how many.
    excluded: BTreeMap<Cause, usize>,
}

struct Explanation<'a> {
    cluster: &'a Cluster,
    view: &'a View,
    tree: &'a Tree,
    rules: Rules,
    fits: Vec<Fit<'a>>,
}

/// Why a gang that has no placement has none.
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
        };
    };
    let mut explanation = Explanation {
        cluster,
        view,
        tree,
        rules: Rules::of(request, view),
        fits: Vec::new(),
    };
    let classes = request.demand.classes.iter();
    explanation.fits = classes
        .map(|class| explanation.fit(class, required))
        .collect();
    let widest = widths.last().copied().unwrap_or(Width::Depth(0));
    Unfit {
        // The gang as a whole does not fit, whatever a search that is not exhaustive finds.
        fit: explanation
            .most_pods(widest)
            .min(request.demand.pods.saturating_sub(1)),
        nodes,
        excluded: explanation.excluded(),
    }
}

impl<'a> Explanation<'a> {
    fn fit(&self, class: &'a Class, required: Option<&LevelName>) -> Fit<'a> {
        let mut fit = Fit {
            class,
            resources: class.shape.resources(),
            capacities: vec![0; self.cluster.slots()],
            excluded: BTreeMap::new(),
        };
        for slot in self.tree.slots() {
            match self.capacity(slot, &fit, required) {
                Ok(capacity) => fit.capacities[slot] = capacity,
                Err(cause) => *fit.excluded.entry(cause).or_default() += 1,
            }
        }
        fit
    }

    fn capacity(
        &self,
        slot: usize,
        fit: &Fit<'_>,
        required: Option<&LevelName>,
    ) -> Result<usize, Cause> {
        let place = self.tree.place(slot);
        if !place.is_some_and(|place| place.is_eligible(required)) {
            return Err(Cause::OutsideTopology);
        }
        let resources = fit.resources.as_ref().ok_or(Cause::Uncountable)?;
        let record = self.cluster.record(slot).ok_or(Cause::OutsideTopology)?;
        let occupancy = self.view.occupancy(slot, record);
        let shape = &fit.class.shape;
        self.rules.capacity(record, occupancy, shape, resources)
    }

    /// How many pods fit in one area of a width at best: exact for equal pods and for small gangs, else as many as
    /// a greedy search finds room for.
    fn most_pods(&self, width: Width) -> usize {
        let mut areas: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
        let holds_any = |slot: &usize| self.fits.iter().any(|fit| fit.capacities[*slot] > 0);
        for slot in self.tree.slots().filter(holds_any) {
            let area = match width {
                Width::Node => Some(slot),
                Width::Depth(0) => Some(ROOT),
                Width::Depth(depth) => self.tree.domain_at(slot, depth),
            };
            if let Some(area) = area {
                areas.entry(area).or_default().push(slot);
            }
        }
        let mut areas: Vec<(usize, Vec<usize>)> = areas
            .into_values()
            .map(|slots| (self.bound(&slots), slots))
            .collect();
        let label = |slot: usize| self.tree.place(slot).map(|place| place.label);
        areas.sort_by_cached_key(|(bound, slots)| {
            (Reverse(*bound), slots.first().map(|slot| label(*slot)))
        });
        let mut effort = Effort::of(EXHAUSTIVE_TRIES);
        let mut most = 0;
        for (bound, slots) in areas {
            if bound <= most {
                break;
            }
            most = most.max(self.most_pods_on(&slots, bound, &mut effort));
        }
        most
    }

    /// How many pods fit if classes did not compete.
    fn bound(&self, slots: &[usize]) -> usize {
        let of = |fit: &Fit<'_>| {
            let capacities = slots.iter().map(|slot| fit.capacities[*slot]);
            let units: usize = capacities.sum();
            let units = units.min(fit.class.units.len());
            let pods = fit.class.units.iter().take(units);
            pods.map(Vec::len).sum::<usize>()
        };
        self.fits.iter().map(of).sum()
    }

    fn most_pods_on(&self, slots: &[usize], bound: usize, effort: &mut Effort) -> usize {
        if self.fits.len() < 2 {
            return bound;
        }
        let largest_first: Vec<usize> = (0..self.fits.len()).collect();
        let smallest_first: Vec<usize> = largest_first.iter().rev().copied().collect();
        let mut most = self.greedily(slots, &largest_first);
        most = most.max(self.greedily(slots, &smallest_first));
        let units: Vec<usize> = smallest_first
            .into_iter()
            .flat_map(|fit| vec![fit; self.fits[fit].class.units.len()])
            .collect();
        if most < bound && units.len() <= EXHAUSTIVE && slots.len() <= EXHAUSTIVE {
            let mut occupancies: Vec<Occupancy> = slots
                .iter()
                .filter_map(|slot| {
                    let record = self.cluster.record(*slot)?;
                    Some(self.view.occupancy(*slot, record).clone())
                })
                .collect();
            self.exhaustively(slots, &units, 0, &mut occupancies, &mut most, effort);
        }
        most
    }

    /// Puts units where the first node takes them, class by class.
    fn greedily(&self, slots: &[usize], order: &[usize]) -> usize {
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
                let capacity = fit.capacities[*slot];
                for _ in 0..capacity {
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
            if fit.capacities[*slot] == 0 || !effort.spend(1) {
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

    /// Why nodes hold none of the class that is the first not to fit.
    fn excluded(&self) -> Vec<(String, usize)> {
        let lacks = |fit: &&Fit<'_>| {
            let units: usize = fit.capacities.iter().sum();
            units < fit.class.units.len()
        };
        let lacking = self.fits.iter().find(lacks).or_else(|| self.fits.first());
        let counts = lacking.into_iter().flat_map(|fit| &fit.excluded);
        let mut excluded: Vec<(&Cause, &usize)> = counts.collect();
        excluded.sort_by_key(|(cause, count)| (Reverse(**count), *cause));
        excluded
            .into_iter()
            .map(|(cause, count)| (cause.to_string(), *count))
            .collect()
    }
}
