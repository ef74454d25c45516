//! Whether a place that was found holds still, though nodes changed since.

use std::collections::BTreeMap;

use super::{
    Plan, Request, allocator::Tally, capacity::Rules, cluster::Cluster, node::Occupancy,
    version::Version,
};

/// Whether a gang of equal pods fits still, as a whole, on the nodes that were planned for it at an earlier moment, with devices of
/// the same charge, though perhaps not the same ones. Costs what was planned on nodes that changed since.
///
/// `false` says nothing: there may be other places. Of unequal pods it is not asked: what fits may still be missed by a search.
pub(crate) fn holds_still(
    cluster: &Cluster,
    request: &Request<'_>,
    plan: &Plan,
    since: Version,
) -> bool {
    let changed = |slot: usize| cluster.slot_changed_since(slot, since);
    let mut units = plan
        .units
        .iter()
        .filter(|unit| changed(unit.slot))
        .peekable();
    if units.peek().is_none() {
        return true;
    }
    let [class] = request.demand.classes.as_slice() else {
        return false;
    };
    let Some(resources) = class.shape.resources() else {
        return false;
    };
    let rules = Rules::of(request);
    let mut trials: BTreeMap<usize, Occupancy> = BTreeMap::new();
    let mut tally = Tally::default();
    units.all(|unit| {
        cluster.note_visits(1);
        let Some(record) = cluster.record(unit.slot) else {
            return false;
        };
        let trial = trials
            .entry(unit.slot)
            .or_insert_with(|| record.now.clone());
        if Rules::may_run(record, trial, &class.shape).is_err() {
            return false;
        }
        let granted = rules.place(record, trial, &class.shape, &resources, &mut tally);
        granted.is_some_and(|granted| {
            let mut claims = granted.iter().zip(&unit.grants);
            claims
                .all(|(now, before)| record.kind.charged_as(now) == record.kind.charged_as(before))
        })
    })
}
