//! Placement: which pod of a gang goes to which node, and whether kube-scheduler can allocate its devices there.
//!
//! A gang is fitted whole or not at all (S4): in the narrowest domain of the Topology that holds it, the
//! tightest of those, and inside it on as few domains as possible. Ranks follow the order of the tree.
//!
//! * [`cluster`]: all nodes, kept up to date one by one; [`node`]: one of them, and what is free on it.
//! * [`demand`]: a gang without its names. [`capacity`]: how many of its units one node holds.
//! * [`allocator`]: kube-scheduler's allocator, simulated; [`coallocation`]: when several pods may wait for it.
//! * [`fabric`]: nodes in tree order; [`choose`]: which domain, which nodes; [`pack`]: gangs of unequal pods.

mod allocator;
mod capacity;
mod choose;
mod cluster;
mod coallocation;
mod demand;
mod device_set;
mod effort;
mod fabric;
mod node;
mod pack;
mod version;

use std::{borrow::Cow, cmp::Reverse, collections::BTreeMap, ops::Range};

use capacity::{Cause, Grants, Rules};
use choose::Sums;
use demand::{Class, UnitShape};
use fabric::{Fabric, Width};
use node::{NodeRecord, Occupancy};

pub(crate) use cluster::{Cluster, NodeChange, View};
pub(crate) use demand::{Demand, Signature, UnitClaim, claims_of};
pub(crate) use effort::Effort;
pub(crate) use version::Version;

use crate::{
    model::{PodResources, TopologyRequest},
    names::{FlavorName, LevelName, TopologyName},
};

/// What is to be placed, and by which Flavor.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Request<'a> {
    pub(crate) demand: &'a Demand,
    pub(crate) flavor: Option<&'a FlavorName>,
    pub(crate) topology: Option<&'a TopologyName>,
    /// A preferred level needs no code: the narrowest domain that holds the gang lies in a domain of the
    /// preferred level whenever one of those can hold it.
    pub(crate) wish: &'a TopologyRequest,
}

/// Where one unit goes.
#[derive(Clone, Debug)]
pub(crate) struct PlacedUnit {
    pub(crate) class: usize,
    pub(crate) unit: usize,
    /// The node's slot in the [`Cluster`].
    pub(crate) slot: usize,
    /// For each claim of the unit the devices that the allocator is expected to grant.
    pub(crate) grants: Grants,
}

/// A placement of a whole gang.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub(crate) units: Vec<PlacedUnit>,
    pub(crate) level: Option<LevelName>,
    pub(crate) domain: Vec<String>,
}

/// What came of an attempt to place a gang.
#[allow(
    dead_code,
    reason = "the queue asks this as soon as its decisions work by change"
)]
#[derive(Clone, Debug)]
pub(crate) enum Verdict {
    /// The whole gang has its place.
    Placed(Plan),
    /// There is no place, and there will be none until something comes free: [`may_fit_since`] says when to ask
    /// again, [`explain`] says why.
    NoPlace(Refusal),
    /// The search ran out of [`Effort`] before it had looked at everything. It says nothing about whether
    /// there is a place; asked again with nothing changed, it gives up again.
    GaveUp(Refusal),
}

/// When a gang was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Refusal {
    /// The state of the cluster that was looked at.
    pub(crate) as_of: Version,
}

/// Why there is no placement, for people. It takes a look at every node: make it when somebody reads it.
#[derive(Clone, Debug)]
pub(crate) struct Unfit {
    /// How many pods fit at best.
    pub(crate) fit: usize,
    /// Nodes looked at.
    pub(crate) nodes: usize,
    /// Why nodes were left out, most frequent first.
    pub(crate) excluded: Vec<(String, usize)>,
}

/// How often one class of a gang fits where.
struct ClassFit {
    resources: Option<PodResources>,
    units: usize,
    /// Per place in the fabric.
    capacities: Vec<usize>,
    sums: Sums,
    /// Why places hold none, and how many.
    excluded: BTreeMap<Cause, usize>,
}

/// One attempt to place a gang.
struct Planner<'a> {
    cluster: &'a Cluster,
    view: &'a View,
    demand: &'a Demand,
    required: Option<&'a LevelName>,
    rules: Rules<'a>,
    fabric: Cow<'a, Fabric>,
    fits: Vec<ClassFit>,
    free_gpus: Sums,
}

/// Places a gang, whole, or says that this cannot be done.
///
/// It depends on nothing but the facts in the cluster: not on the order in which they were told, nor on what
/// was asked before.
pub(crate) fn plan(
    cluster: &Cluster,
    view: &View,
    request: &Request<'_>,
    effort: &mut Effort,
) -> Verdict {
    Planner::new(cluster, view, request).plan(effort)
}

/// The same as [`plan`] as things are now, for a gang that got [`Verdict::NoPlace`] at an earlier moment: only
/// domains in which something came free since then are looked at.
#[allow(
    dead_code,
    reason = "the queue asks this as soon as its decisions work by change"
)]
pub(crate) fn plan_since(
    cluster: &Cluster,
    request: &Request<'_>,
    refused: Refusal,
    effort: &mut Effort,
) -> Verdict {
    if may_fit_since(cluster, request, refused) {
        plan(cluster, &View::Now, request, effort)
    } else {
        Verdict::NoPlace(Refusal {
            as_of: cluster.version(),
        })
    }
}

/// Whether a gang that got [`Verdict::NoPlace`] as things were at an earlier moment may have a place now. It costs what came
/// free since then. `false` is certain, `true` is worth a look.
#[allow(
    dead_code,
    reason = "the queue asks this as soon as its decisions work by change"
)]
pub(crate) fn may_fit_since(cluster: &Cluster, _request: &Request<'_>, refused: Refusal) -> bool {
    cluster.grown_since(refused.as_of).next().is_some()
}

/// Why a gang that has no placement has none.
pub(crate) fn explain(cluster: &Cluster, view: &View, request: &Request<'_>) -> Unfit {
    Planner::new(cluster, view, request).unfit()
}

impl<'a> Planner<'a> {
    fn new(cluster: &'a Cluster, view: &'a View, request: &Request<'a>) -> Self {
        let mut planner = Self {
            cluster,
            view,
            demand: request.demand,
            required: request.wish.required.as_ref(),
            rules: Rules {
                flavor: request.flavor,
                blocks_count: !matches!(view, View::Empty),
            },
            fabric: cluster.fabric(request.topology),
            fits: Vec::new(),
            free_gpus: Sums::default(),
        };
        let needs_devices = request
            .demand
            .classes
            .iter()
            .any(|class| class.shape.needs_devices());
        let fits = request
            .demand
            .classes
            .iter()
            .map(|class| planner.class_fit(class));
        planner.fits = fits.collect();
        let free = planner.places().map(|place| match place {
            // A gang without devices wants the nodes with the fewest GPUs, all other gangs those
            // with the fewest left.
            Some((record, occupancy)) if needs_devices => record.gpus_in(&occupancy.free),
            Some((record, _)) => record.gpus_in(&record.empty.free),
            None => 0,
        });
        planner.free_gpus = Sums::of(free.collect::<Vec<_>>().into_iter());
        planner
    }

    /// Every place of the fabric with its node.
    fn places(&self) -> impl Iterator<Item = Option<(&'a NodeRecord, &'a Occupancy)>> {
        let (cluster, view) = (self.cluster, self.view);
        self.fabric.order.iter().map(move |slot| {
            let record = cluster.record(*slot)?;
            Some((record, view.occupancy(*slot, record)))
        })
    }

    fn place(&self, at: usize) -> Option<(&'a NodeRecord, &'a Occupancy)> {
        let slot = *self.fabric.order.get(at)?;
        let record = self.cluster.record(slot)?;
        Some((record, self.view.occupancy(slot, record)))
    }

    fn class_fit(&self, class: &Class) -> ClassFit {
        let resources = class.shape.resources();
        let eligible = self.fabric.eligible(self.required);
        let mut capacities = Vec::with_capacity(self.fabric.order.len());
        let mut excluded: BTreeMap<Cause, usize> = BTreeMap::new();
        for (at, place) in self.places().enumerate() {
            let capacity = match (place, &resources) {
                _ if at >= eligible => Err(Cause::OutsideTopology),
                (Some((record, occupancy)), Some(resources)) => {
                    self.rules
                        .capacity(record, occupancy, &class.shape, resources)
                }
                _ => Err(Cause::Cpu),
            };
            capacities.push(capacity.unwrap_or(0));
            if let Err(cause) = capacity {
                *excluded.entry(cause).or_default() += 1;
            }
        }
        ClassFit {
            resources,
            units: class.units.len(),
            sums: Sums::of(capacities.iter().copied()),
            capacities,
            excluded,
        }
    }

    fn all(&self) -> Range<usize> {
        0..self.fabric.order.len()
    }

    /// Whether every class fits into an area by itself.
    fn may_hold(&self, area: &Range<usize>) -> bool {
        self.fits
            .iter()
            .all(|fit| fit.sums.within(area) >= fit.units)
    }

    fn plan(&self, effort: &mut Effort) -> Verdict {
        let refusal = Refusal {
            as_of: self.cluster.version(),
        };
        if !self.may_hold(&self.all()) {
            return Verdict::NoPlace(refusal);
        }
        let mut budget = pack::Budget::default();
        for width in self.fabric.widths(self.required).unwrap_or_default() {
            for area in self.by_tightness(width) {
                effort.spend(1);
                if let Some(packed) = self.pack(width, &area, &mut budget) {
                    return Verdict::Placed(self.finish(packed));
                }
            }
        }
        if budget.is_spent() || effort.is_spent() {
            Verdict::GaveUp(refusal)
        } else {
            Verdict::NoPlace(refusal)
        }
    }

    fn finish(&self, packed: Vec<(usize, PlacedUnit)>) -> Plan {
        let places: Vec<usize> = packed.iter().map(|(place, _)| *place).collect();
        let narrowest = self.fabric.narrowest(&places);
        let domain = narrowest
            .as_ref()
            .zip(places.first())
            .map(|((_, depth), place)| {
                let node = self.place(*place).map(|(record, _)| &record.node);
                let path = node.zip(self.fabric.topology.as_ref());
                let path = path.and_then(|(node, topology)| node.fabric.get(topology));
                let inside =
                    *depth <= self.fabric.levels.len() || places_in_tree(&self.fabric, *place);
                let mut path: Vec<String> = path
                    .filter(|_| inside)
                    .into_iter()
                    .flatten()
                    .take(*depth)
                    .cloned()
                    .collect();
                if *depth > self.fabric.levels.len() {
                    path.extend(node.map(|node| node.name.to_string()));
                }
                path
            });
        Plan {
            units: packed.into_iter().map(|(_, unit)| unit).collect(),
            level: narrowest.map(|(level, _)| level),
            domain: domain.unwrap_or_default(),
        }
    }

    fn unfit(&self) -> Unfit {
        let nodes = self.fabric.order.len();
        let Some(widths) = self.fabric.widths(self.required) else {
            let level = self.required.map_or("", LevelName::as_str);
            let what = match &self.fabric.topology {
                Some(topology) => format!("Topology {topology} has no level {level}"),
                None => format!("no Topology, so no level {level}"),
            };
            return Unfit {
                fit: 0,
                nodes,
                excluded: vec![(what, nodes)],
            };
        };
        let widest = widths.last().copied().unwrap_or(Width::Everything);
        let fit = self
            .fabric
            .domains(widest)
            .iter()
            .map(|area| self.pods_within(area))
            .max()
            .unwrap_or(0);
        Unfit {
            // Each class may fit by itself and all of them still not together.
            fit: fit.min(self.demand.pods.saturating_sub(1)),
            nodes,
            excluded: self.excluded(),
        }
    }

    fn pods_within(&self, area: &Range<usize>) -> usize {
        self.demand
            .classes
            .iter()
            .zip(&self.fits)
            .map(|(class, fit)| {
                let units = fit.sums.within(area).min(fit.units);
                class.units.iter().take(units).map(Vec::len).sum::<usize>()
            })
            .sum()
    }

    /// Why nodes hold none of the class that is the first not to fit.
    fn excluded(&self) -> Vec<(String, usize)> {
        let all = self.all();
        let lacks = |fit: &&ClassFit| fit.sums.within(&all) < fit.units;
        let lacking = self.fits.iter().find(lacks).or_else(|| self.fits.first());
        let counts = lacking.into_iter().flat_map(|fit| &fit.excluded);
        let mut excluded: Vec<(&Cause, &usize)> = counts.collect();
        excluded.sort_by_key(|(cause, count)| (Reverse(**count), **cause));
        excluded
            .into_iter()
            .map(|(cause, count)| (cause.to_string(), *count))
            .collect()
    }

    fn shape(&self, class: usize) -> Option<&'a UnitShape> {
        self.demand.classes.get(class).map(|class| &class.shape)
    }
}

fn places_in_tree(fabric: &Fabric, place: usize) -> bool {
    fabric.around(place, Width::Node).next().is_some()
}
