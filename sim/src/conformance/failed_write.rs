//! Cases in which a write fails, though their data do not say so.
//!
//! Kueue's tests make the API server refuse the write of an admission by a hook in Go, which data cannot carry. Such a case
//! gives itself away: one gang waits in a cluster where nobody uses anything, asks for no more than what its own queue is
//! guaranteed of one Flavor, and is still expected in its queue. No rule of quota leaves it there. What is
//! expected instead of an engine is that it copes: the gang whose admission could not be written waits as before, and is
//! admitted when it is asked about again.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::ensure;
use muster_engine::{Admission, Amount, Budget, FlavorName, Resource, State, Timestamp};

use super::queues::Queue;

/// What a gang asks for in all, in a case in which it is alone.
pub(super) struct Alone<'a> {
    pub(super) queue: &'a Queue,
    pub(super) asks: BTreeMap<Resource, Amount>,
    /// Flavors on whose nodes it may not run.
    pub(super) excluded: BTreeSet<FlavorName>,
}

impl Alone<'_> {
    /// Whether what its queue is guaranteed of one Flavor is enough. Worked out from the case, not by the engine, so that an
    /// engine that admits too much is not excused.
    pub(super) fn is_within_nominal(&self) -> anyhow::Result<bool> {
        for (flavor, limits) in self.queue.team()?.quota {
            let suffices = self.asks.iter().all(|(resource, amount)| {
                let limit = limits.get(resource);
                limit.is_some_and(|limit| *amount <= limit.nominal)
            });
            if suffices && !self.excluded.contains(&flavor) {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

/// Has the writes of these admissions fail: each gang waits again and is admitted in the same way later.
pub(super) fn fail(state: &mut State, admissions: &[Admission]) -> anyhow::Result<()> {
    ensure!(!admissions.is_empty(), "nothing is admitted");
    for admission in admissions {
        state.undo(&admission.gang);
    }
    for admission in admissions {
        let waits = state.waiting(&admission.gang).is_some();
        ensure!(
            waits,
            "{} waits no more after a failed write",
            admission.gang
        );
    }
    let again = state.decide(Timestamp(0), &Budget::UNLIMITED).admissions;
    ensure!(
        again == admissions,
        "after a failed write {again:?} is admitted, before it {admissions:?}"
    );
    Ok(())
}
