//! What a Team may do to others to get its quota, and what its share weighs. The words and the defaults are Kueue's.

use std::cmp::Ordering;

use crate::names::Timestamp;

/// Which gangs of its own Team a gang may preempt.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WithinTeam {
    /// None.
    #[default]
    Never,
    /// Those of lower priority.
    LowerPriority,
    /// Those of lower priority, and those of equal priority that were queued later.
    LowerOrNewerEqualPriority,
}

/// Which gangs of other Teams, which borrow, a gang may preempt.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ReclaimWithinCohort {
    /// None.
    #[default]
    Never,
    /// Those of lower priority.
    LowerPriority,
    /// All of them.
    Any,
}

/// Whether a gang that will borrow itself may preempt gangs of other Teams. It says nothing where shares are fair.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum BorrowWithinCohort {
    /// It may not.
    #[default]
    Never,
    /// Those of lower priority.
    LowerPriority {
        /// Only those of at most this priority, if given.
        highest: Option<i32>,
    },
}

/// Whom the gangs of a Team may preempt.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PreemptionPolicy {
    /// In the Team itself.
    pub within_team: WithinTeam,
    /// In other Teams, to have back what they borrow.
    pub reclaim_within_cohort: ReclaimWithinCohort,
    /// In other Teams, while borrowing itself.
    pub borrow_within_cohort: BorrowWithinCohort,
}

impl PreemptionPolicy {
    /// Nobody.
    pub const NEVER: Self = Self {
        within_team: WithinTeam::Never,
        reclaim_within_cohort: ReclaimWithinCohort::Never,
        borrow_within_cohort: BorrowWithinCohort::Never,
    };

    /// Whether a gang may preempt another one, as far as priority and age go: one of its own Team, or one of another Team that
    /// borrows.
    pub(crate) fn may_preempt(self, preemptor: Rank, other: Rank, is_own_team: bool) -> bool {
        let is_lower = other.priority < preemptor.priority;
        let is_newer =
            other.priority == preemptor.priority && other.queued_at > preemptor.queued_at;
        if is_own_team {
            match self.within_team {
                WithinTeam::Never => false,
                WithinTeam::LowerPriority => is_lower,
                WithinTeam::LowerOrNewerEqualPriority => is_lower || is_newer,
            }
        } else {
            match self.reclaim_within_cohort {
                ReclaimWithinCohort::Never => false,
                ReclaimWithinCohort::LowerPriority => is_lower,
                ReclaimWithinCohort::Any => true,
            }
        }
    }
}

/// What decides, besides their Teams, which of two gangs may preempt the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Rank {
    pub(crate) priority: i32,
    /// Since when it is in its queue.
    pub(crate) queued_at: Timestamp,
}

/// What the fair share of a Team or Cohort weighs, in billionths; 1 by default.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Weight(pub u64);

impl Weight {
    /// The default.
    pub const ONE: Self = Self(1_000_000_000);
    /// Whoever has it should not borrow at all: its share is beyond any other as soon as it does.
    pub const ZERO: Self = Self(0);
}

impl Default for Weight {
    fn default() -> Self {
        Self::ONE
    }
}

/// A test that the preemption of a gang has to pass where shares are fair. All compare shares with the preemptor's gang
/// admitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FairStrategy {
    /// The preemptor's share is at most what the other's will be without the victim.
    LessThanOrEqualToFinalShare,
    /// The preemptor's share is less than the other's is now.
    LessThanInitialShare,
}

impl FairStrategy {
    /// The default: the stricter test first, and the other if that does not free enough.
    pub const DEFAULT: [Self; 2] = [
        Self::LessThanOrEqualToFinalShare,
        Self::LessThanInitialShare,
    ];

    /// Whether shares pass, given how the preemptor's compares with the other's after and before.
    pub(super) fn passes(self, with_final: Ordering, with_initial: Ordering) -> bool {
        match self {
            Self::LessThanOrEqualToFinalShare => with_final.is_le(),
            Self::LessThanInitialShare => with_initial.is_lt(),
        }
    }
}
