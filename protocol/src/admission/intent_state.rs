//! What is to become of an Admit intent.
//!
//! Worked out anew at each poll, by whoever leads: an intent is carried out by the leader that committed
//! it, completed by its successor if the Gang carries it and its pods still match, and voided otherwise.

use muster_api::{Intent, IntentKind};

use crate::{
    admission::place,
    admission::plan::Plan,
    objects::{gang_key, gang_object, is_gated, ledger_object, pod_object, stamp},
    poll_context::{PollContext, attempt, has_ended},
};

/// What is to become of an intent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum IntentState {
    /// The answer of a write is owed first: what is seen may be from before it.
    PendingReason,
    /// The Gang is to carry it.
    Carry,
    /// The Gang carries it: permits and pods are to follow, or did.
    Complete,
    /// It is to be taken back.
    Void,
}

/// What is to become of an intent.
pub(crate) fn fate(picture: PollContext<'_>, intent: &Intent) -> IntentState {
    if picture.busy(&ledger_object()) || picture.busy(&gang_object(&gang_key(intent))) {
        return IntentState::PendingReason;
    }
    if intent.kind == IntentKind::Evict {
        // Written by a later version: all that is left to do here is to take its permits back.
        return IntentState::Void;
    }
    let plan = Plan::of_intent(intent);
    let gang = picture.gang_of(intent);
    if gang.is_some_and(|gang| PollContext::carries(gang, intent)) {
        return fate_of_carried(picture, &plan);
    }
    let own = intent.leader_epoch == picture.epoch;
    let to_carry = own
        && plan.is_untouched(picture)
        && !has_begun(picture, &plan)
        && obstacle(picture, &plan).is_none()
        && gang.is_some_and(|gang| attempt(gang) == intent.attempt && !has_ended(gang));
    if to_carry {
        IntentState::Carry
    } else {
        IntentState::Void
    }
}

/// Once a pod was ungated the attempt is not taken back: that takes an eviction. What it lacks is a
/// condition of the Gang, and its charge is kept.
fn fate_of_carried(picture: PollContext<'_>, plan: &Plan<'_>) -> IntentState {
    if has_begun(picture, plan) {
        return IntentState::Void;
    }
    if plan.is_over(picture) || !plan.is_untouched(picture) || obstacle(picture, plan).is_none() {
        return IntentState::Complete;
    }
    // An ungate that is under way may be applied yet.
    if plan.ranks.iter().any(|rank| pod_is_busy(picture, rank.pod)) {
        return IntentState::PendingReason;
    }
    IntentState::Void
}

/// Whether the attempt is being voided: a gated pod is stamped with a later one. From then on there is no
/// way back, whoever leads.
fn has_begun(picture: PollContext<'_>, plan: &Plan<'_>) -> bool {
    plan.ranks.iter().any(|rank| {
        picture
            .index
            .pod_by_uid(rank.pod)
            .is_some_and(|pod| is_gated(pod) && stamp(pod) > plan.attempt)
    })
}

/// Why the plan cannot be carried out as it is.
pub(crate) fn obstacle(
    picture: PollContext<'_>,
    plan: &Plan<'_>,
) -> Option<muster_cluster::formed::PendingReason> {
    plan.mismatch(picture)
        .map(|(_, wait)| wait)
        .or_else(|| place::lost(picture, plan))
}

/// Whether a patch of the pod is under way.
pub(crate) fn pod_is_busy(picture: PollContext<'_>, uid: &str) -> bool {
    picture
        .index
        .pod_by_uid(uid)
        .is_some_and(|pod| picture.busy(&pod_object(pod)))
}
