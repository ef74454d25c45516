//! Who may be preempted at all, and who first.

use std::cmp::Ordering;

use muster_engine::quota::{ReclaimWithinCohort, WithinTeam};

use super::{Contest, Running};

impl Contest<'_> {
    /// Whether the gang holds some of what is contested.
    fn uses_contested(&self, gang: &Running) -> bool {
        let mut charges = gang.charges.iter();
        charges.any(|(pair, _)| self.asking.contested.contains(pair))
    }

    pub(super) fn may_preempt_in_own_team(&self, gang: &Running) -> bool {
        let allowed = match self.policy().within_team {
            WithinTeam::Never => false,
            WithinTeam::LowerPriority => gang.priority < self.asking.priority,
            WithinTeam::LowerOrNewerEqualPriority => {
                gang.priority < self.asking.priority
                    || gang.priority == self.asking.priority
                        && gang.queued_at > self.asking.queued_at
            }
        };
        gang.team == self.asking.team && allowed && self.uses_contested(gang)
    }

    pub(super) fn may_reclaim(&self, gang: &Running) -> bool {
        let allowed = match self.policy().reclaim_within_cohort {
            ReclaimWithinCohort::Never => false,
            ReclaimWithinCohort::LowerPriority => gang.priority < self.asking.priority,
            ReclaimWithinCohort::Any => true,
        };
        gang.team != self.asking.team && allowed && self.uses_contested(gang)
    }

    /// Ending first; other Teams before the own one; lower priority first; latest admission first, and unknown is latest;
    /// then by UID.
    pub(super) fn compare(&self, one: usize, other: usize) -> Ordering {
        let (one, other) = (&self.running[one], &self.running[other]);
        let is_own = |gang: &Running| gang.team == self.asking.team;
        let admitted_at = |gang: &Running| gang.admitted_at.unwrap_or(i64::MAX);
        let ending = other.is_ending.cmp(&one.is_ending);
        ending
            .then(is_own(one).cmp(&is_own(other)))
            .then(one.priority.cmp(&other.priority))
            .then(admitted_at(other).cmp(&admitted_at(one)))
            .then(one.uid.cmp(&other.uid))
    }
}
