//! One commit after another, each with room for few gangs, and nothing observed between two of them.
#![allow(dead_code, reason = "each test program uses its part")]

use muster_engine::{Budget, CommitRoom, Decisions, State, Timestamp};

/// Room for so many gangs, and whatever they need.
pub(crate) fn budget_of(gangs: usize) -> Budget {
    Budget {
        left: CommitRoom {
            gangs,
            ..CommitRoom::UNLIMITED
        },
        ..Budget::UNLIMITED
    }
}

/// What is decided with room for so many gangs in one commit, until nothing more is to be.
pub(crate) fn decide_in_slices(state: &mut State, now: Timestamp, gangs: usize) -> Vec<Decisions> {
    let mut slices = Vec::new();
    loop {
        let decisions = state.decide(now, &budget_of(gangs));
        let is_last = !decisions.is_cut_short();
        slices.push(decisions);
        if is_last {
            return slices;
        }
    }
}

/// Whether somebody who searched for victims in vain is left to be asked by a later call, a second after this one. How many are asked at
/// once is a matter of cost, so with small commits more of them may be asked by then (ADR 18, "Asking again"): where some are left, the size
/// of a commit may change who is admitted.
pub(crate) fn leaves_some(decisions: &Decisions, now: Timestamp) -> bool {
    decisions.look_again_at == Some(Timestamp(now.0 + 1))
}
