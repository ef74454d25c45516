//! The pods: rank, attempt, pin and gate, one patch each.
//!
//! Only after the Gang carries the plan, every rank has its permit in this leader's own view, and all pods
//! are still what was planned (S4). Gangs go in the order in which the Ledger committed them, ranks in
//! theirs, so that a large gang at the head drains the window and goes alone.

use k8s_openapi::api::core::v1::Pod;
use muster_api::keys;

use crate::{
    ApiRequest, Mode,
    admission::intent_state::{IntentState, fate, obstacle, pod_is_busy},
    admission::plan::Plan,
    injected_bug::InjectedBug,
    objects::{
        bound_node, is_deleting, is_gated, is_over, is_terminal, is_unschedulable, pod_object,
    },
    outward::patch,
    outward::permits::is_permitted,
    poll_context::{PollContext, has_ended},
};

/// The patches that are owed to pods.
pub(crate) fn writes(picture: PollContext<'_>, withheld: bool) -> Vec<ApiRequest> {
    let mut writes = unmanaged(picture);
    if picture.config.mode == Mode::Observe || withheld {
        return writes;
    }
    let plans = released_plans(picture);
    if plans.is_empty() {
        return writes;
    }
    let room = picture
        .config
        .ungated_unbound_limit
        .saturating_sub(under_way(picture));
    let pinned = plans.iter().flat_map(|plan| ungates(picture, plan));
    writes.extend(pinned.take(room));
    writes
}

/// Pods that Muster has no say about: those of excepted gangs, and in Observe all that still carry our gate.
fn unmanaged(picture: PollContext<'_>) -> Vec<ApiRequest> {
    let observes = picture.config.mode == Mode::Observe;
    picture
        .index
        .formed_gangs()
        .filter(|formed| observes || formed.excepted)
        .flat_map(|formed| &formed.pods)
        .filter_map(|member| picture.index.pod_by_uid(&member.identity.uid))
        .filter(|pod| is_gated(pod) && !is_deleting(pod))
        .map(|pod| patch::ungate_anywhere(pod))
        .collect()
}

/// Plans whose pods may be ungated and are not all, in the order of the Ledger.
fn released_plans(picture: PollContext<'_>) -> Vec<Plan<'_>> {
    let mut plans: Vec<(i64, Plan<'_>)> = picture
        .index
        .gangs()
        .filter_map(|(key, gang)| {
            let admission = gang.status.as_ref()?.admission.as_ref()?;
            let plan = Plan::of_gang(key, gang)?;
            let intent_agrees = picture
                .intent_of(key)
                .is_none_or(|intent| fate(picture, intent) == IntentState::Complete);
            let owed = intent_agrees && !has_ended(gang) && is_owed(picture, &plan);
            owed.then_some((admission.ledger_sequence, plan))
        })
        .collect();
    if picture.bugs.has(InjectedBug::UngateBeforePlan) {
        plans.extend(
            picture
                .intents()
                .iter()
                .map(|intent| (intent.sequence, Plan::of_intent(intent))),
        );
    }
    plans.sort_by(|left, right| (left.0, &left.1.key).cmp(&(right.0, &right.1.key)));
    plans.into_iter().map(|(_, plan)| plan).collect()
}

fn is_owed(picture: PollContext<'_>, plan: &Plan<'_>) -> bool {
    let gated = plan.ranks.iter().any(|rank| {
        picture
            .index
            .pod_by_uid(rank.pod)
            .is_some_and(|pod| is_gated(pod))
    });
    gated
        && obstacle(picture, plan).is_none()
        && plan.ranks.iter().all(|rank| {
            rank.claims.is_empty()
                || is_over(picture.index, rank.pod)
                || is_permitted(picture, &rank.node.node, rank.pod, plan.attempt, true)
        })
}

fn ungates<'a>(picture: PollContext<'a>, plan: &'a Plan<'a>) -> impl Iterator<Item = ApiRequest> {
    plan.ranks
        .iter()
        .enumerate()
        .filter_map(move |(rank, place)| {
            let pod = picture.index.pod_by_uid(place.pod)?;
            let owed = is_gated(pod) && !is_terminal(pod) && !pod_is_busy(picture, place.pod);
            owed.then(|| {
                let release = patch::Release {
                    gang: &plan.key.name,
                    rank,
                    attempt: plan.attempt,
                    node: &place.node.node,
                };
                patch::ungate(pod, release)
            })
        })
}

/// Pods that are ungated, or being ungated, and wait for kube-scheduler.
fn under_way(picture: PollContext<'_>) -> usize {
    picture
        .index
        .pods()
        .filter(|pod| is_under_way(picture, pod))
        .count()
}

fn is_under_way(picture: PollContext<'_>, pod: &Pod) -> bool {
    let pinned = pod
        .metadata
        .annotations
        .as_ref()
        .and_then(|annotations| annotations.get(keys::PLACEMENT))
        .is_some_and(|placement| placement == keys::PLACEMENT_PINNED);
    let waits = pinned
        && !is_gated(pod)
        && bound_node(pod).is_none()
        && !is_terminal(pod)
        && !is_deleting(pod)
        && !is_unschedulable(pod);
    waits || (is_gated(pod) && picture.busy(&pod_object(pod)))
}
