//! Whether a gang that runs would have a place without some nodes, if it were started anew.

use std::collections::{BTreeMap, BTreeSet};

use super::State;
use crate::{
    amount::Amount,
    model::{Gang, Hold},
    names::{FlavorName, LevelName, NodeName, PodUid},
    placement::{Demand, DeviceCharge, Effort, Request, Verdict, View, explain, plan},
};

/// Whether a gang that runs would have a place elsewhere.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Elsewhere {
    /// On these nodes.
    On(BTreeSet<NodeName>),
    /// Nowhere, as far as was looked.
    Nowhere(Nowhere),
}

/// What a gang lacks that has no place elsewhere.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Nowhere {
    /// Its pods.
    pub pods: usize,
    /// How many of them would fit at best.
    pub fit: usize,
    /// Whether not every way was counted, so that more may fit.
    pub is_fit_partial: bool,
    /// Whether the search met its bound: there may be a place that it did not find.
    pub gave_up: bool,
    /// The required level.
    pub level: Option<LevelName>,
    /// Nodes looked at.
    pub nodes: usize,
    /// Why nodes were left out: cause and number, most frequent first.
    pub excluded: Vec<(String, usize)>,
}

impl State {
    /// Whether a gang that runs would have a place if what it holds were gone and nothing were free on these nodes. It keeps its quota, so that is
    /// not asked about, and it gets no larger devices than it has; and it stays on the Flavor by which it is charged. What its claims are allocated counts for nothing: they are allocated
    /// anew. Nothing is remembered of it. With the steps of one decision, and half as many to say why not.
    pub fn elsewhere(&self, gang: &Gang, without: &BTreeSet<NodeName>) -> Elsewhere {
        let mut gang = gang.clone();
        let claims = gang.pods.iter_mut().flat_map(|pod| &mut pod.claims);
        claims.for_each(|claim| claim.allocated = None);
        let own: BTreeMap<PodUid, &Hold> = self
            .running
            .pods_of(&gang.uid)
            .filter_map(|pod| Some((pod.clone(), &**self.holds.get(pod)?)))
            .collect();
        let flavor = flavor_of(&own).and_then(|name| self.flavors.get(name));
        let demand = Demand::of_first(&gang, gang.pods.len());
        let request = Request {
            demand: &demand,
            flavor: flavor.map(|flavor| &flavor.name),
            most_per_device: most_per_device(&own),
            topology: flavor.and_then(|flavor| flavor.topology.as_ref()),
            wish: &gang.topology,
        };
        let full = self.cluster.without_nodes(without.iter());
        let view = match (self.cluster.without(&own), full) {
            (View::Without(mut changed), Some(View::Without(full))) => {
                changed.extend(full);
                View::Without(changed)
            }
            (view, _) => view,
        };
        let gave_up = match plan(&self.cluster, &view, &request, &mut Effort::default()) {
            Verdict::Placed(plan) => {
                let slots = plan.slots().into_iter();
                let records = slots.filter_map(|slot| self.cluster.record(slot));
                return Elsewhere::On(records.map(|record| record.node.name.clone()).collect());
            }
            Verdict::NoPlace(_) => false,
            Verdict::GaveUp(_) => true,
        };
        let steps = &mut Effort::of(Effort::ONE_DECISION / 2);
        let unfit = explain(&self.cluster, &view, &request, steps);
        Elsewhere::Nowhere(Nowhere {
            pods: demand.pods,
            fit: unfit.fit,
            is_fit_partial: unfit.is_fit_partial,
            gave_up,
            level: gang.topology.required.clone(),
            nodes: unfit.nodes,
            excluded: unfit.excluded,
        })
    }
}

/// What one device may be charged as at most where a gang holds slices only: on larger ones it would take more quota than it gives back. `None`:
/// it holds a whole GPU, and none is larger, or no device.
fn most_per_device(holds: &BTreeMap<PodUid, &Hold>) -> Option<DeviceCharge> {
    let claims = holds.values().flat_map(|hold| &hold.claims);
    let each = claims.map(|claim| {
        // As long as its devices are not known it may be one.
        let devices = claim.devices.as_ref().map_or(1, Vec::len).max(1);
        let devices = i64::try_from(devices).unwrap_or(i64::MAX);
        Amount(claim.gpus.0.saturating_add(devices - 1) / devices)
    });
    let gpus = each.max().filter(|most| *most < Amount::ONE_GPU)?;
    Some(DeviceCharge {
        gpus,
        vram: Amount(i64::MAX),
    })
}

/// The Flavor by which a gang is charged, by what it holds.
fn flavor_of<'a>(holds: &BTreeMap<PodUid, &'a Hold>) -> Option<&'a FlavorName> {
    let claims = holds.values().flat_map(|hold| &hold.claims);
    let of_claims = claims.map(|claim| &claim.flavor);
    let charged = holds.values().flat_map(|hold| &hold.charged);
    let besides = charged.map(|charge| &charge.of.flavor);
    of_claims.chain(besides).next()
}
