//! What one call of [`decide`](super::State::decide) has done, and how much more it may.

use crate::{
    decision::{Budget, Visited},
    names::Timestamp,
    placement::{Cluster, Effort},
};

/// See the module. It counts looks, those that make an index included: when a call ends may depend on what was kept of earlier
/// ones, what is decided does not.
#[derive(Clone, Debug)]
pub(super) struct Work {
    /// When the call was made.
    pub(super) now: Timestamp,
    pub(super) visited: Visited,
    /// Looks of judging those who then did not fit.
    in_vain: u64,
    /// Looks of the questions that groups were asked.
    asking: u64,
    enough: u64,
}

impl Work {
    pub(super) fn within(budget: &Budget, now: Timestamp) -> Self {
        Self {
            now,
            visited: Visited::default(),
            in_vain: 0,
            asking: 0,
            enough: budget.looks_in_vain,
        }
    }

    /// Somebody was judged in vain, since so many looks had been taken.
    pub(super) fn note_in_vain(&mut self, cluster: &Cluster, before: u64) {
        self.in_vain += cluster.visited().wrapping_sub(before);
    }

    /// A call began anew in the middle, in vain. What that costs is not searched in vain, most of it: it counts as much as one decision may take.
    pub(super) fn note_anew_in_vain(&mut self) {
        self.in_vain = self.in_vain.saturating_add(Effort::ONE_DECISION);
    }

    /// Whether enough was searched in vain. It is asked after somebody was judged, so each call gets on by one at least.
    pub(super) fn is_enough(&self) -> bool {
        self.in_vain >= self.enough
    }

    /// Asks whether what came free may help somebody, with no more steps than one decision takes. Once questions have taken
    /// enough, it may, and the members are judged.
    pub(super) fn may_help(
        &mut self,
        cluster: &Cluster,
        question: impl FnOnce(&mut Effort) -> bool,
    ) -> bool {
        if self.asking >= self.enough {
            return true;
        }
        let before = cluster.visited();
        let answer = question(&mut Effort::default());
        self.asking += cluster.visited().wrapping_sub(before);
        answer
    }
}
