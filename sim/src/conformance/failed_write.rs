//! Cases in which a write fails, though their data do not say so.
//!
//! Kueue's tests make the API server refuse the write of an admission by a hook in Go, which data cannot carry. Such a case
//! gives itself away ([`super::cycle`] finds that out, before anything is compared, and for the engine's decision alone):
//!
//! * it has one workload, which runs nowhere yet, in a queue that there is, and which nobody turns away before it waits;
//! * nothing is expected to be assigned or preempted, and the workload to be left in its queue: not parked, which no failed write does;
//! * all that it asks for is what its own queue is guaranteed of one Flavor that it may use.
//!
//! No rule of quota leaves it there. What is expected instead of an engine is that it copes: the gang whose admission could not
//! be written is taken back, waits as before, and is admitted alike when it is asked about again. That second admission enters no comparison.
//!
//! **Why the expected answer is read.** Nothing in the input says it. Its workload, its queue and its feature gate are those of another case of
//! the same suite, which has an admission check besides, no matter of quota; and that one is expected to be admitted. All that speaks of an
//! error is the case's name, and no case is known by its name: cases of the same form come under others. So of two cases with one input and two
//! answers only the answers are left to say which is which.
//!
//! **What it does not excuse.** The answer chooses what is tried, and never makes a case pass by itself. An engine has to admit the gang in both cases:
//! here too, [`fail`] refuses a decision that admits nobody, and no deviation excuses it: one gang waits. Whether an idle cluster can leave the gang waiting for a reason of quota is worked out from
//! the input alone ([`Alone::is_within_nominal`]), and where it can, the case is compared as it stands.

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

/// Has the writes of these admissions fail: each gang waits again, and is admitted in the same way when the engine decides next. Fails unless that is
/// so, and where nobody is admitted.
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
