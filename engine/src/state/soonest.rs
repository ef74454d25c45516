//! Where a gang that lacks a place has one soonest: who has to end for that, and when the last of them does.
//!
//! Of each area that may hold the gang, those who run there are taken away one after the other until it would hold it: by when they end,
//! and after those of whom that is known the others, largest first, so that few of them are needed; who outlasted a place that was kept in vain
//! comes last. The area is taken in which nobody who has to go outlasted as many, of those the one that needs the fewest devices from gangs of
//! unknown end, of those the one that is free first, of those the tightest. So areas in which it is not known when somebody ends are tried in
//! turns. So far devices are counted ([`sketch`]); then the gang is
//! planned on the nodes that hold most of it by then, and on more of them if it does not fit. If it still does not, since it lacks cores, say, or its
//! pods ask for different things, more of those who run there have to go: the fewest without whom it fits. Its plan says which nodes are
//! kept, and who runs on these when they are free.
//!
//! It takes a look at each node of the Flavor and at all that is held there: a place is looked for when one can be kept, and once in
//! a call.

mod sketch;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use sketch::{Free, Sketch};

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
    placement::{Effort, Plan, Request, Roomy, Verdict, areas, plan},
};

/// Most areas in which the gang is planned, and most times in each of them.
const MOST_PLANS: usize = 8;

impl State {
    /// Where a gang has its place soonest.
    pub(super) fn soonest(&self, id: GangId, flavor: &FlavorName) -> Option<Found> {
        let waiting = self.waiting.get(id)?;
        let request = request(waiting, self.flavors.get(flavor));
        let class = waiting.demand.classes.first()?;
        let units = (class.shape.open_devices().max(1), class.units.len());
        let areas = areas(&self.cluster, &request);
        // By when they are free, among equals the tightest first. What was found there is known once it was planned with all that counts.
        let mut open: BTreeMap<(Free, usize), (Sketch<'_>, Option<Found>)> = BTreeMap::new();
        for (at, area) in areas.iter().enumerate() {
            if let Some(sketch) = self.sketch(area, units, 0) {
                open.insert((sketch.free.clone(), at), (sketch, None));
            }
        }
        let (mut effort, mut further) = (Effort::default(), Effort::default());
        for _ in 0..MOST_PLANS {
            let ((_, at), (sketch, found)) = open.pop_first()?;
            let found =
                found.or_else(|| self.planned(&sketch, sketch.needed, &request, &mut effort));
            if found.is_some() {
                return found;
            }
            // It lacks something else than devices, or pods that ask for other things: more have to go.
            if let Some(area) = areas.get(at)
                && let Some((sketch, found)) =
                    self.widened(area, units, &sketch, &request, &mut further)
            {
                open.insert((sketch.free.clone(), at), (sketch, Some(found)));
            }
        }
        None
    }

    /// The gang is planned where those who have to go are gone: on so many nodes of the area that hold most of it, and on more of them if it
    /// does not fit.
    fn planned(
        &self,
        sketch: &Sketch<'_>,
        mut nodes: usize,
        request: &Request<'_>,
        effort: &mut Effort,
    ) -> Option<Found> {
        for _ in 0..MOST_PLANS {
            let slots = sketch.slots.iter().take(nodes);
            let holds = slots.flat_map(|slot| self.cluster.holds_in(*slot));
            let gone = holds.filter(|hold| sketch.gone.contains(&hold.gang));
            let gone: BTreeMap<PodUid, &Hold> = gone
                .map(|hold| (hold.pod.clone(), Arc::as_ref(hold)))
                .collect();
            let view = self.cluster.without(&gone);
            if let Verdict::Placed(plan) = plan(&self.cluster, &view, request, effort) {
                return self.found(&plan, &gone);
            }
            if nodes >= sketch.slots.len() || effort.is_spent() {
                return None;
            }
            nodes = nodes.saturating_mul(2);
        }
        None
    }

    /// The fewest of those who run in an area, in the order in which they go, without whom the gang has a place there, if it has one without all of
    /// them. It has none without those of the `sketch`.
    fn widened<'a>(
        &'a self,
        area: &[Roomy],
        units: (usize, usize),
        sketch: &Sketch<'_>,
        request: &Request<'_>,
        effort: &mut Effort,
    ) -> Option<(Sketch<'a>, Found)> {
        let mut without = |gone: usize| {
            let sketch = self.sketch(area, units, gone)?;
            let found = self.planned(&sketch, usize::MAX, request, effort)?;
            Some((sketch, found))
        };
        let (mut too_few, mut enough) = (sketch.gone.len(), sketch.run);
        if too_few >= enough {
            return None;
        }
        let mut best = without(enough)?;
        while enough - too_few > 1 {
            let middle = too_few + (enough - too_few) / 2;
            match without(middle) {
                Some(better) => (best, enough) = (better, middle),
                None => too_few = middle,
            }
        }
        Some(best)
    }

    /// When a gang that holds something ends, if that is known and not too far away. Whoever should have ended does so any time, but is not counted on
    /// once a place was kept in vain for that.
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
            Some(end_after(now, waiting.gang.run_time.gone_after_seconds()?))
        })?;
        let hangs = end <= now && self.backfill.outlasted_by(gang) > 0;
        (end <= after(now, FORESEEABLE_SECONDS) && !hangs).then_some(end.max(now))
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
