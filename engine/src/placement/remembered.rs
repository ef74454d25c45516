//! How many units nodes hold, remembered by what decides it: the kind of node, which of its devices are free, and what is left
//! of what they share.

use std::{cell::RefCell, collections::BTreeMap};

use super::{
    capacity::{Capacity, Cause, Rules},
    counters::Left,
    demand::UnitShape,
    device_set::DeviceSet,
    kind::KindId,
    node::{NodeRecord, Occupancy},
};

/// Most answers that are remembered.
pub(super) const MOST_REMEMBERED: usize = 4096;

/// A kind of node, its devices that are free, those of which too little is left, what is left, and those that are tainted.
type Alike = (KindId, DeviceSet, DeviceSet, Left, DeviceSet);

/// The answers for one unit by one set of rules. They decide what a question costs, never what the answer is.
#[derive(Clone, Debug, Default)]
pub(super) struct Remembered {
    capacities: RefCell<BTreeMap<Alike, Result<Capacity, Cause>>>,
}

impl Remembered {
    /// The same as [`Rules::device_capacity`].
    pub(super) fn device_capacity(
        &self,
        rules: &Rules,
        record: &NodeRecord,
        occupancy: &Occupancy,
        shape: &UnitShape,
    ) -> Result<Capacity, Cause> {
        // Where counting suffices there is nothing to remember; what waits on a node, and a claim's node, are its own.
        let is_counted = shape.is_plain() && !record.kind.has_counters();
        let is_tied = |claim: &super::demand::UnitClaim| claim.allocated.is_some();
        if is_counted || !occupancy.pending.is_empty() || shape.claims.iter().any(is_tied) {
            return rules.device_capacity(record, occupancy, shape);
        }
        Rules::may_run(record, occupancy, shape)?;
        let mut capacities = self.capacities.borrow_mut();
        let alike = (
            record.kind.id,
            occupancy.free.clone(),
            occupancy.short.clone(),
            occupancy.left.clone(),
            record.tainted.clone(),
        );
        if let Some(capacity) = capacities.get(&alike) {
            return capacity.clone();
        }
        let capacity = rules.device_capacity(record, occupancy, shape);
        if capacities.len() >= MOST_REMEMBERED {
            capacities.clear();
        }
        capacities.insert(alike, capacity.clone());
        capacity
    }

    /// How many answers are remembered.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.capacities.borrow().len()
    }
}
