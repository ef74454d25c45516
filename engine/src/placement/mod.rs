//! Placement: which pod of a gang goes to which node, and whether kube-scheduler can allocate its devices there.
//!
//! A gang is fitted whole or not at all (S4): in the narrowest domain of the Topology that holds it, the
//! tightest of those, and inside it on as few domains as possible. Ranks follow the order of the tree.
//!
//! Work follows change: what fits where is kept by device request ([`index`]) and brought up to date node by node,
//! so that a question costs what changed since the last one and the few nodes that come into question. Answers
//! depend on the facts alone, never on what was asked before or in which order the facts came.
//!
//! * [`cluster`]: all nodes, kept up to date one by one; [`node`]: one of them; [`kind`]: what nodes have in common;
//!   [`room`]: what is left besides devices; [`inventory`]: how many devices there are; [`version`]: what changed when.
//! * [`tree`]: nodes and domains in the order of a Topology; [`index`]: how often a device request fits in each of
//!   them; [`remembered`]: on nodes that are alike; [`by_room`]: and what else is left there; [`cache`]: the indexes that
//!   are kept.
//! * [`demand`]: a gang without its names. [`capacity`]: how many of its units one node holds.
//! * [`allocator`]: kube-scheduler's allocator, simulated; [`counters`]: what devices share; [`coallocation`]: when several pods
//!   may wait for it.
//! * [`search`]: which domain; [`spread`]: which nodes in it; [`pack`]: gangs of unequal pods; [`effort`]: how long.
//! * [`holds_still`](mod@holds_still): whether a place that was found is one still. [`held_back`]: nodes that only some may use; [`beneath`]: what comes free that is kept
//!   for somebody; [`areas`](mod@areas): where a gang might be if nothing ran.
//!   [`repair`]: what is wrong with nodes, and what would be free there without it.
//! * [`explain`](mod@explain): why there is no place, for people.

mod allocator;
mod areas;
mod beneath;
mod by_room;
mod cache;
mod capacity;
mod cluster;
mod coallocation;
mod counters;
mod demand;
mod device_set;
mod effort;
mod explain;
#[cfg(test)]
mod fixtures;
mod held_back;
mod holds_still;
mod index;
mod inventory;
mod kind;
mod most_left;
mod node;
mod pack;
mod remembered;
mod repair;
mod room;
mod search;
mod spread;
#[cfg(test)]
mod tests;
mod tree;
mod version;

pub(crate) use areas::{Roomy, areas, units_if_empty};
pub(crate) use cluster::{Cluster, NodeChange, View};
pub(crate) use demand::{Demand, RequestShape, Signature, claims_of};
pub(crate) use effort::{Effort, GaveUp};
pub(crate) use explain::{equal_pods_fit, explain};
pub(crate) use holds_still::holds_still;
pub(crate) use inventory::DeviceCharge;
pub(crate) use node::{NodeRecord, Occupancy};
pub(crate) use repair::Faults;
pub(crate) use tree::NODE_LEVEL;
pub(crate) use version::Version;

use std::collections::{BTreeMap, BTreeSet};

use capacity::{Cause, Grants, Rules};
use remembered::Remembered;

use crate::{
    model::{PodResources, TopologyRequest},
    names::{FlavorName, LevelName, TopologyName},
};

/// Most slots that came free for which only the domains around them are looked at again.
const MOST_SLOTS_APART: usize = 64;

/// What is to be placed, and by which Flavor.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Request<'a> {
    pub(crate) demand: &'a Demand,
    pub(crate) flavor: Option<&'a FlavorName>,
    /// Only placements in which no granted device is charged as more than this.
    pub(crate) most_per_device: Option<DeviceCharge>,
    pub(crate) topology: Option<&'a TopologyName>,
    /// A preferred level needs no code: the narrowest domain that holds the gang lies in a domain of the
    /// preferred level whenever one of those can hold it.
    pub(crate) wish: &'a TopologyRequest,
}

/// Where one unit goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PlacedUnit {
    pub(crate) class: usize,
    pub(crate) unit: usize,
    /// The node's slot in the [`Cluster`].
    pub(crate) slot: usize,
    /// For each claim of the unit the devices that the allocator is expected to grant.
    pub(crate) grants: Grants,
}

/// A placement of a whole gang.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Plan {
    pub(crate) units: Vec<PlacedUnit>,
    pub(crate) level: Option<LevelName>,
    pub(crate) domain: Vec<String>,
}

impl Plan {
    /// The slots of its nodes, each once.
    pub(crate) fn slots(&self) -> BTreeSet<usize> {
        self.units.iter().map(|unit| unit.slot).collect()
    }
}

/// What came of an attempt to place a gang.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// The whole gang has its place.
    Placed(Plan),
    /// There is no place, and there will be none until something comes free: [`may_fit_since`] says when to ask
    /// again, [`explain`](explain()) says why.
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
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Unfit {
    /// How many pods fit at once, in the widest domain that the gang may have: exact for gangs of equal pods and for
    /// small ones, else as many as were found room for.
    pub(crate) fit: usize,
    /// Whether not every way was counted, so that more may fit.
    pub(crate) is_fit_partial: bool,
    /// Nodes looked at.
    pub(crate) nodes: usize,
    /// Why nodes were left out, most frequent first.
    pub(crate) excluded: Vec<(String, usize)>,
    /// Who has what lacks, where it is not devices.
    pub(crate) occupants: Option<Occupants>,
}

/// Gangs that have what lacks on nodes that have the devices.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Occupants {
    /// By `namespace/name`: how much of it they have (of slices, in thousandths of a GPU), or with how many pods they stand in the
    /// way.
    pub(crate) gangs: BTreeMap<String, i128>,
    /// Whether not all of these nodes were looked at.
    pub(crate) is_partial: bool,
}

/// Places a gang, whole, or says that this cannot be done.
///
/// It depends on nothing but the facts in the cluster: not on the order in which they came, nor on what
/// was asked before.
pub(crate) fn plan(
    cluster: &Cluster,
    view: &View,
    request: &Request<'_>,
    effort: &mut Effort,
) -> Verdict {
    search::search(cluster, view, request, search::Goal::Where, effort)
}

/// Whether there is a place, without saying where: for a gang of equal pods much cheaper than [`plan`].
pub(crate) fn fits(
    cluster: &Cluster,
    view: &View,
    request: &Request<'_>,
    effort: &mut Effort,
) -> Fits {
    if let Some(fit) = equal_pods_fit(cluster, view, request) {
        return if fit { Fits::Yes } else { Fits::No };
    }
    let goal = match request.demand.classes.as_slice() {
        [_] => search::Goal::Whether,
        _ => search::Goal::Where,
    };
    match search::search(cluster, view, request, goal, effort) {
        Verdict::Placed(_) => Fits::Yes,
        Verdict::NoPlace(_) => Fits::No,
        Verdict::GaveUp(_) => Fits::GaveUp,
    }
}

/// Whether there is a place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fits {
    Yes,
    No,
    /// As [`Verdict::GaveUp`].
    GaveUp,
}

/// The same as [`plan`] as things are now, for a gang that got [`Verdict::NoPlace`] at an earlier moment: only
/// domains in which something came free since then are looked at.
pub(crate) fn plan_since(
    cluster: &Cluster,
    request: &Request<'_>,
    refused: Refusal,
    effort: &mut Effort,
) -> Verdict {
    if !may_fit_since(cluster, &View::Now, request, refused) {
        return Verdict::NoPlace(Refusal {
            as_of: cluster.version(),
        });
    }
    let grown = cluster.grown_since(refused.as_of);
    let grown: Vec<usize> = grown.take(MOST_SLOTS_APART + 1).collect();
    // Of a gang of unequal pods each area may fail to hold the whole for reasons of its own; all are tried again.
    let [class] = request.demand.classes.as_slice() else {
        return plan(cluster, &View::Now, request, effort);
    };
    let apart = grown.len() <= MOST_SLOTS_APART
        && cluster.is_monotone(&class.shape)
        && !cluster.topologies_changed_since(refused.as_of);
    let goal = if apart {
        search::Goal::WhereAmong(&grown)
    } else {
        search::Goal::Where
    };
    search::search(cluster, &View::Now, request, goal, effort)
}

/// Whether a gang that got [`Verdict::NoPlace`] at an earlier moment may have a place now, as far as this can be told
/// without saying where. `false` is certain.
pub(crate) fn fits_since(
    cluster: &Cluster,
    request: &Request<'_>,
    refused: Refusal,
    effort: &mut Effort,
) -> bool {
    if !may_fit_since(cluster, &View::Now, request, refused) {
        return false;
    }
    // One unit has a place wherever a node holds it.
    request.demand.units() < 2 || fits(cluster, &View::Now, request, effort) != Fits::No
}

/// Whether a gang that got [`Verdict::NoPlace`] as things were at an earlier moment may have a place now. It costs what came
/// free since then. `false` is certain, `true` is worth a look.
pub(crate) fn may_fit_since(
    cluster: &Cluster,
    view: &View,
    request: &Request<'_>,
    refused: Refusal,
) -> bool {
    if cluster.topologies_changed_since(refused.as_of) {
        return true;
    }
    let Some(probe) = Probe::of(request) else {
        return false;
    };
    let worth_a_look = |slot: usize| probe.is_worth_a_look(cluster, slot, view);
    let mut classes = request.demand.classes.iter();
    if classes.all(|class| cluster.is_monotone(&class.shape)) {
        cluster.grown_since(refused.as_of).any(worth_a_look)
    } else {
        cluster.changed_since(refused.as_of).any(worth_a_look)
    }
}

/// Whether a gang that has no place now may have one once some holds are gone ([`View::Without`]): it would have to use one
/// of their nodes. `false` is certain, `true` is worth a look.
pub(crate) fn may_fit_without(cluster: &Cluster, view: &View, request: &Request<'_>) -> bool {
    let View::Without(changed) = view else {
        return true;
    };
    let Some(probe) = Probe::of(request) else {
        return false;
    };
    let mut changed = changed.keys();
    changed.any(|slot| probe.is_worth_a_look(cluster, *slot, view))
}

/// What a node has to hold to be of use to a gang.
struct Probe<'a> {
    rules: Rules,
    /// Of all classes a node must hold all, or of at least one class a unit.
    on_one_node: bool,
    classes: Vec<Probed<'a>>,
}

/// A class of which a node may hold units.
struct Probed<'a> {
    class: &'a demand::Class,
    resources: PodResources,
    remembered: Remembered,
}

impl<'a> Probe<'a> {
    /// `None` if a pod asks for more than can be counted.
    fn of(request: &Request<'a>) -> Option<Self> {
        let required = request.wish.required.as_ref();
        let classes = request.demand.classes.iter();
        let probed = classes.map(|class| {
            Some(Probed {
                class,
                resources: class.shape.resources()?,
                remembered: Remembered::default(),
            })
        });
        Some(Self {
            rules: Rules::of(request),
            on_one_node: required.is_some_and(|level| level.as_str() == NODE_LEVEL),
            classes: probed.collect::<Option<_>>()?,
        })
    }

    fn is_worth_a_look(&self, cluster: &Cluster, slot: usize, view: &View) -> bool {
        let mut held = self.classes.iter().map(|probed| {
            cluster.note_visits(1);
            let capacity = cluster.record(slot).map(|record| {
                let occupancy = view.occupancy(slot, record);
                let most = occupancy.room.times(&probed.resources)?;
                let (rules, shape) = (&self.rules, &probed.class.shape);
                let by_devices = probed
                    .remembered
                    .device_capacity(rules, record, occupancy, shape);
                by_devices.map(|capacity| capacity.within(most))
            });
            let needed = if self.on_one_node {
                probed.class.units.len()
            } else {
                1
            };
            match capacity {
                Some(Ok(capacity)) => capacity.units >= needed || capacity.is_partial,
                // Nobody knows.
                Some(Err(Cause::TooManyWays)) => true,
                Some(Err(_)) | None => false,
            }
        });
        if self.on_one_node {
            held.all(|held| held)
        } else {
            held.any(|held| held)
        }
    }
}
