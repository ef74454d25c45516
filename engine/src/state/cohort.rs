//! What is shared in a Cohort.

use std::borrow::Cow;

use super::State;
use crate::{
    names::CohortName,
    quota::{CohortUsage, QuotaTree, Share, Sharing},
};

impl State {
    /// What a Cohort has and uses, by Flavor and resource. Empty for one that nobody names, or that is cut off by a cycle.
    pub fn cohort_usage(&self, cohort: &CohortName) -> Vec<CohortUsage> {
        self.current_tree().cohort_usage(cohort)
    }

    /// How much of what could be lent to it a Cohort borrows, where its tree shares fairly. `None` elsewhere, for one that nobody
    /// names, and for one that a cycle cuts off.
    pub fn cohort_fair_share(&self, cohort: &CohortName) -> Option<Share> {
        let tree = self.current_tree();
        match tree.sharing_of_cohort(cohort)? {
            Sharing::ByPriority => None,
            Sharing::Fair(_) => tree.cohort_share(cohort),
        }
    }

    /// Whether the last decision went by the limits as they were told last. While it did not, each question about what Teams and Cohorts
    /// have costs a tree.
    pub fn has_taken_in_limits(&self) -> bool {
        !self.tree_is_stale
    }

    /// The tree by the limits as they were told last; made for the question where the next decision has still to take them in.
    pub(super) fn current_tree(&self) -> Cow<'_, QuotaTree> {
        if self.tree_is_stale {
            Cow::Owned(self.built_trees().0)
        } else {
            Cow::Borrowed(&self.tree)
        }
    }
}
