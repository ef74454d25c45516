//! What is to become of an intent.
//!
//! Worked out by whoever leads: an intent is carried out by the leader that committed it, completed by its successor
//! if the Gang carries it and its pods still match, and taken back otherwise. An Evict is completed by whoever leads: taking
//! back its attempt is all that it asks for.

use muster_api::{IntentKind, Reason};

use crate::{
    admission::place,
    admission::plan::Plan,
    effect::Refusable,
    objects::{gang_object, is_gated, pod_object},
    outward::{gang_status, still_prepared},
    poll_context::{PollContext, attempt},
    tables::plans::Committed,
};
use muster_cluster::{
    formed::{PendingReason, has_ended},
    pod::{ObservedPod, PodFields},
};

/// What is to become of an intent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum IntentState {
    /// The answer of a write is owed first: what is seen may be from before it.
    Undecided,
    /// The Gang is to carry it.
    Carry,
    /// The Gang carries it: permits and pods are to follow, or did.
    Complete,
    /// It is to be taken back: an Admit that cannot be carried out, and every Evict.
    Void,
}

/// What is to become of an intent.
pub(crate) fn intent_state(context: PollContext<'_>, intent: &Committed) -> IntentState {
    let plan = &intent.plan;
    if context.busy(&gang_object(&plan.key)) {
        return IntentState::Undecided;
    }
    if intent.kind == IntentKind::Evict {
        return IntentState::Void;
    }
    if intent.lost.is_some() {
        // Nobody can carry out what nobody knows. Whoever committed it and still leads has it in memory.
        return IntentState::Void;
    }
    let gang = context.gang_of(plan);
    let carries = gang.is_some_and(|gang| PollContext::carries(gang, plan));
    if context.views.is_being_voided(plan) {
        return IntentState::Void;
    }
    if carries {
        return state_of_carried(context, plan);
    }
    let own = intent.leader_epoch == context.epoch;
    let to_carry = own
        && plan.is_untouched(context)
        && !plan.is_given_up(context)
        && obstacle(context, plan).is_none()
        && gang.is_some_and(|gang| attempt(gang) == plan.attempt && !has_ended(gang));
    if to_carry {
        IntentState::Carry
    } else {
        IntentState::Void
    }
}

/// Once a pod was ungated the attempt is not taken back: that takes an Evict ([`super::evict`]). A stamp of a later attempt says that it is being taken back only
/// as long as no pod was ungated: a write of an older leader may stamp a pod late.
fn state_of_carried(context: PollContext<'_>, plan: &Plan) -> IntentState {
    if !plan.is_untouched(context) {
        return IntentState::Complete;
    }
    // From then on there is no way back, whoever leads.
    if plan.is_given_up(context) {
        return IntentState::Void;
    }
    if plan.is_over(context) || obstacle(context, plan).is_none() {
        return IntentState::Complete;
    }
    // An ungate that is under way may be applied yet.
    if plan
        .ranks
        .iter()
        .any(|rank| pod_is_busy(context, &rank.pod))
    {
        return IntentState::Undecided;
    }
    IntentState::Void
}

/// Why the plan cannot be carried out as it is.
pub(crate) fn obstacle(context: PollContext<'_>, plan: &Plan) -> Option<PendingReason> {
    plan.mismatch(context)
        .map(|mismatch| mismatch.reason)
        .or_else(|| refused(context, plan))
        .or_else(|| place::lost(context, plan).map(|lost| lost.reason))
        .or_else(|| kept_back(context, plan))
}

/// Whether anything that stands in the way of the plan cannot heal.
pub(crate) fn is_obstacle_for_good(context: PollContext<'_>, plan: &Plan) -> bool {
    plan.mismatch(context)
        .is_some_and(|mismatch| mismatch.for_good)
        || refused(context, plan).is_some()
        || place::lost(context, plan).is_some_and(|lost| lost.for_good)
}

/// That the start is late and no pod was let go, since a node has a claim of the plan prepared for pods that were there before. Nothing is
/// evicted before a pod was let go, so nothing else would end the attempt, and it would keep quota and the devices of its other nodes for as
/// long as that node's driver lists the claim. The next attempt is not planned on such a node ([`still_prepared::closed_nodes`]).
///
/// A new leader counts the limit anew. Once a pod is stamped there is no way back, whoever leads, though the claim be released by then.
fn kept_back(context: PollContext<'_>, plan: &Plan) -> Option<PendingReason> {
    let gang = context.gang_of(plan)?;
    // First what is so of nearly nobody, and costs no look at a node.
    let seconds = gang_status::late_after_seconds(context, gang, plan)?;
    if !plan.is_untouched(context) {
        return None;
    }
    let withheld = still_prepared::withheld(context, plan)?;
    Some(PendingReason {
        reason: Reason::StartTimeout,
        details: format!(
            "rank {} (attempt {}) is not released yet ({withheld}); no rank made progress for {seconds} s",
            withheld.place, plan.attempt
        ),
    })
}

/// The first rank whose pod the API server refused to have changed too often.
fn refused(context: PollContext<'_>, plan: &Plan) -> Option<PendingReason> {
    plan.ranks.iter().find_map(|rank| {
        let pod = context.index.pod_by_uid(&rank.pod)?;
        release_refused(context, pod)
    })
}

/// That the API server does not let the gate of a pod be taken, if so.
pub(crate) fn release_refused(
    context: PollContext<'_>,
    pod: &ObservedPod,
) -> Option<PendingReason> {
    let (answer, until) = context.flights.refused(&pod_object(pod), Refusable::Pod)?;
    if !is_gated(pod) || context.has_come(until) {
        return None;
    }
    let name = pod.name();
    Some(PendingReason {
        reason: Reason::NotPermitted,
        details: format!("the API server refuses to release pod {name}: {answer}"),
    })
}

/// Whether a patch of the pod is under way.
pub(crate) fn pod_is_busy(context: PollContext<'_>, uid: &str) -> bool {
    context
        .index
        .pod_by_uid(uid)
        .is_some_and(|pod| context.busy(&pod_object(pod)))
}
