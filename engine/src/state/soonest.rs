//! Where a gang that lacks a place has one soonest: who has to end for that, and when the last of them does.
//!
//! Of each area that may hold the gang, those who run there are taken away one after the other until it would hold it: by when they end,
//! and after those of whom that is known the others, largest first, so that few of them are needed; who outlasted a place that was kept in vain
//! comes last. The area is taken in which nobody who has to go outlasted as many, of those the one that needs the fewest devices from gangs of
//! unknown end, of those the one that is free first, of those the tightest. So areas in which it is not known when somebody ends are tried in
//! turns. So far devices are counted; then the gang is
//! planned on the nodes that hold most of it by then, and on more of them if it does not fit. Its plan says which nodes are kept, and who runs on
//! these when they are free.
//!
//! It takes a look at each node of the Flavor and at all that is held there: a place is looked for when one can be kept, and once in
//! a call.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use super::{
    State,
    backfill::{FORESEEABLE_SECONDS, Found, after, end_after},
    ids::GangId,
    judge::request,
};
use crate::{
    amount::Amount,
    model::Hold,
    names::{FlavorName, GangUid, NodeName, PodUid, Timestamp},
    placement::{Effort, Plan, Roomy, Verdict, areas, plan},
};

/// Most areas in which the gang is planned, and most times in each of them.
const MOST_PLANS: usize = 8;

/// Somebody who runs in an area: when it ends, or after all whose end is known how many places it outlasted, and how large it is.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum End {
    Known(Timestamp),
    Unknown {
        outlasted: u32,
        size: Reverse<usize>,
        gang: GangUid,
    },
}

/// When an area is free, as far as devices go: how many places those of unknown end outlasted who have to go, one of them at most,
/// and how many devices they hold; and when the last of the others ends.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Free {
    outlasted: u32,
    unknown: usize,
    at: Timestamp,
}

/// An area as far as devices are counted.
struct Sketch<'a> {
    free: Free,
    /// Its nodes, those that hold most by then first.
    slots: Vec<usize>,
    /// How many of them hold the gang together.
    needed: usize,
    /// Who is gone by then.
    gone: BTreeSet<&'a GangUid>,
}

impl State {
    /// Where a gang has its place soonest.
    pub(super) fn soonest(&self, id: GangId, flavor: &FlavorName) -> Option<Found> {
        let waiting = self.waiting.get(id)?;
        let request = request(waiting, self.flavors.get(flavor));
        let class = waiting.demand.classes.first()?;
        let (each, needed) = (class.shape.open_devices().max(1), class.units.len());
        let areas = areas(&self.cluster, &request);
        let sketches = areas.iter();
        let mut sketches: Vec<Sketch<'_>> = sketches
            .filter_map(|area| self.sketch(area, each, needed))
            .collect();
        // Stable: among equals the tightest first.
        sketches.sort_by(|one, other| one.free.cmp(&other.free));
        let mut effort = Effort::default();
        for sketch in sketches.iter().take(MOST_PLANS) {
            let mut nodes = sketch.needed;
            for _ in 0..MOST_PLANS {
                let slots = sketch.slots.iter().take(nodes);
                let holds = slots.flat_map(|slot| self.cluster.holds_in(*slot));
                let gone = holds.filter(|hold| sketch.gone.contains(&hold.gang));
                let gone: BTreeMap<PodUid, &Hold> = gone
                    .map(|hold| (hold.pod.clone(), Arc::as_ref(hold)))
                    .collect();
                let view = self.cluster.without(&gone);
                if let Verdict::Placed(plan) = plan(&self.cluster, &view, &request, &mut effort) {
                    return self.found(&plan, &gone);
                }
                if nodes >= sketch.slots.len() || effort.is_spent() {
                    break;
                }
                nodes = nodes.saturating_mul(2);
            }
        }
        None
    }

    /// When an area has room for so many units of so many devices.
    fn sketch<'a>(&'a self, area: &[Roomy], each: usize, needed: usize) -> Option<Sketch<'a>> {
        let mut free: BTreeMap<usize, usize> = BTreeMap::new();
        let mut runs: BTreeMap<&GangUid, BTreeMap<usize, usize>> = BTreeMap::new();
        for node in area {
            let record = self.cluster.record(node.slot)?;
            free.insert(node.slot, record.now.free.len());
            for hold in self.cluster.holds_in(node.slot) {
                self.cluster.note_visits(1);
                let claims = hold.claims.iter();
                let devices = claims.map(|claim| match (&claim.devices, &claim.request) {
                    (Some(devices), _) => devices.len(),
                    (None, Some(request)) => {
                        let requests = request.requests.iter();
                        requests.map(|request| request.count as usize).sum()
                    }
                    (None, None) => 0,
                });
                let on_node = runs.entry(&hold.gang).or_default();
                *on_node.entry(node.slot).or_default() += devices.sum::<usize>();
            }
        }
        let most: BTreeMap<usize, u64> = area.iter().map(|node| (node.slot, node.units)).collect();
        let units = |slot: usize, devices: usize| {
            let most = most.get(&slot).copied().unwrap_or(0);
            (devices / each).min(usize::try_from(most).unwrap_or(usize::MAX))
        };
        let mut ends: Vec<(End, &GangUid)> = Vec::with_capacity(runs.len());
        for (gang, on) in &runs {
            let end = match self.end_of(gang) {
                Some(at) => End::Known(at),
                None => End::Unknown {
                    outlasted: self.backfill.outlasted_by(gang),
                    size: Reverse(on.values().sum()),
                    gang: (*gang).clone(),
                },
            };
            ends.push((end, gang));
        }
        ends.sort();
        let mut held: usize = free
            .iter()
            .map(|(slot, devices)| units(*slot, *devices))
            .sum();
        let mut when = Free {
            outlasted: 0,
            unknown: 0,
            at: self.backfill.now(),
        };
        let mut gone = BTreeSet::new();
        for (end, gang) in ends {
            if held >= needed {
                break;
            }
            match end {
                End::Known(at) => when.at = when.at.max(at),
                End::Unknown {
                    outlasted, size, ..
                } => {
                    when.outlasted = when.outlasted.max(outlasted);
                    when.unknown += size.0;
                }
            }
            gone.insert(gang);
            for (slot, devices) in runs.get(gang).into_iter().flatten() {
                if let Some(known) = free.get_mut(slot) {
                    held -= units(*slot, *known);
                    *known += devices;
                    held += units(*slot, *known);
                }
            }
        }
        if held < needed {
            return None;
        }
        let mut slots: Vec<(Reverse<usize>, usize, usize)> = Vec::with_capacity(area.len());
        for (order, node) in area.iter().enumerate() {
            let devices = free.get(&node.slot).copied().unwrap_or(0);
            slots.push((Reverse(units(node.slot, devices)), order, node.slot));
        }
        slots.sort_unstable();
        let mut sum = 0;
        let at_least = slots.iter().take_while(|(Reverse(units), ..)| {
            let is_enough = sum >= needed;
            sum += units;
            !is_enough
        });
        Some(Sketch {
            needed: at_least.count(),
            free: when,
            slots: slots.iter().map(|(.., slot)| *slot).collect(),
            gone,
        })
    }

    /// When a gang that holds something ends, if that is known and not too far away.
    pub(super) fn end_of(&self, gang: &GangUid) -> Option<Timestamp> {
        let now = self.backfill.now();
        let gives_way = self.reservations.gives_way(gang) && !self.reservations.is_overdue(gang);
        if gives_way {
            return Some(now);
        }
        let told = self.running.end_of(gang);
        let end = told.or_else(|| {
            // It was admitted just now, and not told yet.
            let waiting = self.waiting.get(self.waiting.id(gang)?)?;
            Some(end_after(now, waiting.gang.run_time.max_seconds?))
        })?;
        (end <= after(now, FORESEEABLE_SECONDS)).then_some(end.max(now))
    }

    /// What is kept by a plan that holds once some are gone.
    fn found(&self, plan: &Plan, gone: &BTreeMap<PodUid, &Hold>) -> Option<Found> {
        let slots = plan.slots();
        let records = slots.iter().filter_map(|slot| self.cluster.record(*slot));
        let nodes: BTreeSet<NodeName> = records.map(|it| it.node.name.clone()).collect();
        let waited_for = gone.values().filter(|hold| nodes.contains(&hold.node));
        let waited_for: BTreeSet<&GangUid> = waited_for.map(|hold| &hold.gang).collect();
        let ends = waited_for.into_iter().map(|gang| self.end_of(gang));
        let starts_at = ends.collect::<Option<Vec<Timestamp>>>();
        let starts_at = starts_at.map(|ends| ends.into_iter().max());
        let mut gpus: i64 = 0;
        for unit in &plan.units {
            let record = self.cluster.record(unit.slot)?;
            for devices in &unit.grants {
                let charge = record.kind.charged_as(devices).ok()?;
                gpus = gpus.saturating_add(charge.gpus.0);
            }
        }
        Some(Found {
            nodes,
            domain: plan.domain.clone(),
            starts_at: starts_at.map(|at| at.unwrap_or_else(|| self.backfill.now())),
            gpus: Amount(gpus),
        })
    }
}
