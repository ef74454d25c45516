//! What is counted of a GPU over several looks: errors, what comes again and again, and what proves that something is over.

use super::{
    super::{
        catalogue::Repeat,
        class::FaultClass,
        condition::{Condition, Errors},
        observation::{Cause, Observation, Scope, recovery_class},
        signal::{Signal, Subject},
    },
    GpuFaults,
};

/// For how long NVLinks have to work, all of them and without an error, until that proves that they do. Links that are bad come and go.
const LINKS_WORK_SECONDS: i64 = 300;
/// So much of it counts from one look to the next at the most, whatever the clock says that has passed: a machine that begins with a wrong time of day has it
/// set soon, perhaps by hours, and what nobody looked at for longer proves nothing either. A driver looks every ten seconds.
const MOST_BETWEEN_LOOKS_SECONDS: i64 = 30;

/// For how long NVLinks have worked.
#[derive(Clone, Copy, Debug)]
pub(super) struct LinksWork {
    /// Up to the last look.
    worked_seconds: i64,
    looked_at_unix_seconds: i64,
    /// Number that the observations had reached when it began.
    mark: u64,
}

/// That it goes on is no news: it is not kept, and nobody is told, so no look costs a write by it.
impl PartialEq for LinksWork {
    fn eq(&self, other: &Self) -> bool {
        self.mark == other.mark
    }
}

impl Eq for LinksWork {}

impl LinksWork {
    /// The same as of another look.
    fn at(self, now_unix_seconds: i64) -> Self {
        let passed = now_unix_seconds.saturating_sub(self.looked_at_unix_seconds);
        let passed = passed.clamp(0, MOST_BETWEEN_LOOKS_SECONDS);
        Self {
            worked_seconds: self.worked_seconds.saturating_add(passed),
            looked_at_unix_seconds: now_unix_seconds,
            ..self
        }
    }
}

impl GpuFaults {
    /// Errors that it had counted when it was looked at last.
    pub(in crate::faults) fn errors(&self) -> Errors {
        self.errors
    }

    /// What was found, after it was observed; `before` is the number that the observations had reached before it.
    pub(in crate::faults) fn note_condition(
        &mut self,
        condition: &Condition,
        before: u64,
        now: u64,
        now_unix_seconds: i64,
    ) {
        let had_link_errors = condition
            .errors
            .grown_since(&self.errors)
            .any(|cause| cause == Cause::LinkErrors);
        self.errors = condition.errors.or(self.errors);
        self.note_links_work(condition, had_link_errors, before, now_unix_seconds);
        let class = condition.recovery_action.and_then(recovery_class);
        let is_pending = condition.row_remap_pending == Some(true);
        // Who does not tell does not say that no row is to be replaced any more.
        self.awaits_row_remap = condition.row_remap_pending.unwrap_or(self.awaits_row_remap);
        if class == Some(FaultClass::Reset) || (class.is_none() && is_pending) {
            self.needs_reset_mark = Some(now);
        } else if class.is_some() {
            // What comes after that is proved by other means.
            self.needs_reset_mark = None;
        }
    }

    fn note_links_work(
        &mut self,
        condition: &Condition,
        had_errors: bool,
        mark: u64,
        now_unix_seconds: i64,
    ) {
        let links = self.best_links.zip(condition.active_links);
        let is_at_best = links.is_some_and(|(best, active)| best > 0 && active >= best);
        let is_fine = is_at_best && !had_errors && condition.recovery_action.unwrap_or(0) == 0;
        let begun = LinksWork {
            worked_seconds: 0,
            looked_at_unix_seconds: now_unix_seconds,
            mark,
        };
        let mut faults = self.faults.iter();
        let goes_on = self.links_work.filter(|work| {
            // What was seen since then is newer.
            !faults.any(|fault| fault.class == FaultClass::Link && fault.newest > work.mark)
        });
        self.links_work = is_fine.then(|| goes_on.unwrap_or(begun).at(now_unix_seconds));
    }

    /// If its NVLinks have worked for so long that this is a proof, the number of the last observation that is older.
    pub(in crate::faults) fn links_work_mark(&self, now_unix_seconds: i64) -> Option<u64> {
        let work = self.links_work?.at(now_unix_seconds);
        (work.worked_seconds >= LINKS_WORK_SECONDS).then_some(work.mark)
    }

    /// If it was found to need a reset and is found without that need, the number of the last observation that is older than the reset. To be
    /// asked after what was found was noted.
    pub(in crate::faults) fn reset_mark(&self, condition: &Condition) -> Option<u64> {
        // Who does not say what is to be done does not say that nothing is.
        let needs_none = condition.recovery_action == Some(0);
        self.needs_reset_mark
            .filter(|_| needs_none && !self.awaits_row_remap)
    }

    /// A reset was taken up that is a proof about what has a number up to this one. While a fault is left that is newer, so is the need that was found with it.
    pub(in crate::faults) fn reset_is_taken_up(&mut self, mark: u64) {
        if self.awaits_reset() {
            self.needs_reset_mark = self.needs_reset_mark.filter(|newest| *newest > mark);
            self.reset_done_mark = self.reset_done_mark.filter(|newest| *newest > mark);
        } else {
            self.forget_need_of_reset();
        }
    }

    /// What was found of resets, and what was done, is past.
    pub(in crate::faults) fn forget_need_of_reset(&mut self) {
        self.needs_reset_mark = None;
        self.reset_done_mark = None;
    }

    /// Counts what was seen. If it came as often as the rule says, what that is.
    pub(in crate::faults) fn count(
        &mut self,
        observation: &Observation,
        repeat: &Repeat,
        now_unix_seconds: i64,
    ) -> Option<Observation> {
        let (xid, signal): (Option<u32>, Option<Signal>) = match observation.cause.subject()? {
            Subject::Xid(code, _) => (Some(code), None),
            Subject::Signal(signal) => (None, Some(signal)),
        };
        let cause = Cause::Repeated {
            xid,
            signal,
            count: repeat.count,
            within_seconds: repeat.within_seconds,
        };
        // Two rules about one XID, by what the log says of it, count apart.
        let rule = format!("{}: {cause}", repeat.class);
        let occurrences = self.occurrences.entry(rule).or_default();
        if !occurrences.note(repeat, now_unix_seconds) {
            return None;
        }
        Some(Observation {
            class: repeat.class,
            scope: if repeat.class.is_of_slices() {
                observation.scope
            } else {
                Scope::Gpu
            },
            cause,
        })
    }
}
