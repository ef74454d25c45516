//! What one call of [`decide`](super::State::decide) has done, and how much more it may.

use crate::{
    decision::{Budget, Visited},
    placement::Effort,
};

/// See the module.
#[derive(Clone, Debug)]
pub(super) struct Work {
    pub(super) visited: Visited,
    /// Steps of judging those who then did not fit.
    pub(super) in_vain: u64,
    enough: u64,
    /// For the questions that groups are asked.
    questions: Effort,
}

impl Work {
    pub(super) fn within(budget: &Budget) -> Self {
        Self {
            visited: Visited::default(),
            in_vain: 0,
            enough: budget.steps_in_vain,
            questions: Effort::of(budget.steps_in_vain),
        }
    }

    /// Whether enough was searched in vain. It is asked after somebody was judged, so each call gets on by one at least.
    pub(super) fn is_enough(&self) -> bool {
        self.in_vain >= self.enough
    }

    /// Asks a group, with no more steps than one decision takes. Once no steps are left for questions, the question finds out
    /// nothing, and the members are judged.
    pub(super) fn ask<T>(&mut self, question: impl FnOnce(&mut Effort) -> T) -> T {
        let most = self.questions.steps().min(Effort::ONE_DECISION);
        let mut effort = Effort::of(most);
        let answer = question(&mut effort);
        self.questions.spend(effort.used());
        answer
    }
}
