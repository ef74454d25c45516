//! What is seen of a fault: its taint, the intent, that all pods are gone, and that all of another attempt run.

use std::time::{Duration, Instant};

use super::{
    cases::Case, gang::RANKS, restarts::Before, seconds, times::FaultTimes, watched::Seen,
};
use crate::faults::TargetGpu;

/// How long it is looked for what has to come before the gang runs again, once that does. Later it is not seen any more.
pub(super) const LATE: Duration = Duration::from_mins(1);

/// What was seen after a fault so far.
#[derive(Clone, Copy, Debug)]
pub(super) struct Aftermath {
    pub(super) taint: Option<Instant>,
    pub(super) intent: Option<Instant>,
    pub(super) deleted: Option<Instant>,
    /// An attempt, and when all of it ran.
    pub(super) running: Option<(i64, Instant)>,
}

impl Aftermath {
    pub(super) fn of(seen: &Seen, before: &Before, gpu: &TargetGpu, began: Instant) -> Self {
        let device = (gpu.node.clone(), gpu.device.clone());
        let evicted = (before.gang.clone(), before.attempt);
        let taint = seen.tainted.get(&device).copied();
        Self {
            taint: taint.filter(|at| *at >= began),
            intent: seen.evicted.get(&evicted).copied(),
            deleted: seen.gone_since(&before.pods),
            running: seen.whole_after(&before.gang, before.attempt, RANKS as usize),
        }
    }

    /// Whether another attempt runs whole, and everything before it was seen.
    pub(super) fn is_complete(&self, case: Case) -> bool {
        let is_evicted = self.intent.is_some() || !case.is_always_evicted();
        is_evicted && self.taint.is_some() && self.deleted.is_some() && self.running.is_some()
    }

    /// Whether another attempt runs whole for so long that what is missing does not come any more.
    pub(super) fn is_late(&self, case: Case, now: Instant) -> bool {
        let is_late = |at: Instant| now.saturating_duration_since(at) >= LATE;
        !self.is_complete(case) && self.running.is_some_and(|(_, at)| is_late(at))
    }

    pub(super) fn times(&self, before: &Before, began: Instant) -> FaultTimes {
        let since = |at: Option<Instant>| at.map(|at| seconds(began, at));
        FaultTimes {
            taint: since(self.taint),
            intent: since(self.intent),
            deleted: since(self.deleted),
            running: since(self.running.map(|(_, at)| at)),
            attempts: self.running.map(|(attempt, _)| attempt - before.attempt),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(text: &str) -> Case {
        text.parse().unwrap()
    }

    #[test]
    fn what_was_not_seen_a_minute_after_the_gang_runs_again_is_not_waited_for_and_before_it_is() {
        let start = Instant::now();
        let at = |seconds: u64| start + Duration::from_secs(seconds);
        let whole = Aftermath {
            taint: Some(at(1)),
            intent: Some(at(2)),
            deleted: Some(at(30)),
            running: Some((2, at(40))),
        };
        let without_intent = Aftermath {
            intent: None,
            ..whole
        };
        let without_taint = Aftermath {
            taint: None,
            ..whole
        };
        let undeleted = Aftermath {
            deleted: None,
            ..whole
        };
        let away = Aftermath {
            running: None,
            ..whole
        };
        for (seen, case, now, is_late) in [
            (whole, "30:0", 1_000, false),
            (away, "30:0", 1_000, false),
            (without_intent, "30:0", 99, false),
            (without_intent, "30:0", 100, true),
            // Where all have ended, nobody need be evicted.
            (without_intent, "30:all", 1_000, false),
            (without_taint, "30:all", 100, true),
            (undeleted, "0:1", 100, true),
        ] {
            assert_eq!(seen.is_late(of(case), at(now)), is_late, "{seen:?}, {now}");
        }
    }
}
