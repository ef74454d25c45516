//! The pods: rank, attempt, pin and gate, one patch each.
//!
//! Only after the Gang carries the plan, every rank has its permit in this leader's own view, and all pods
//! are still what was planned (S4). Gangs go in the order in which the Ledger committed them, ranks in
//! theirs, so that a large gang at the head drains the window and goes alone.

use std::collections::BTreeMap;

use muster_api::keys;

use crate::{
    ApiRequest, Mode,
    admission::intent_state::{obstacle, pod_is_busy},
    admission::plan::Plan,
    objects::{
        bound_node, is_deleting, is_gated, is_over, is_terminal, is_unschedulable, pod_object,
    },
    outward::patch,
    outward::permits::is_permitted,
    poll_context::PollContext,
};
use muster_cluster::{
    formed::GangKey,
    pod::{ObservedPod, PodFields},
};

/// The gates of pods that Muster has no say about: those of excepted gangs, and in Observe all that still carry ours.
pub(crate) fn unmanaged(context: PollContext<'_>, key: &GangKey) -> Vec<ApiRequest> {
    let observes = context.config.mode == Mode::Observe;
    context
        .formed(key)
        .filter(|formed| observes || formed.excepted)
        .into_iter()
        .flat_map(|formed| {
            let members = formed.pods.iter().map(|member| &member.identity);
            members.chain(&formed.excess)
        })
        .filter_map(|pod| context.index.pod_by_uid(&pod.uid))
        .filter(|pod| is_gated(pod) && !is_deleting(pod))
        .map(|pod| patch::ungate_anywhere(pod))
        .collect()
}

/// Whether any pod of the plan is still gated, and all may be ungated.
pub(crate) fn is_owed(context: PollContext<'_>, plan: &Plan) -> bool {
    let gated = plan.ranks.iter().any(|rank| {
        let pod = context.index.pod_by_uid(&rank.pod);
        pod.is_some_and(is_gated)
    });
    gated
        && obstacle(context, plan).is_none()
        && plan.ranks.iter().all(|rank| {
            !plan.needs_permit(rank)
                || is_over(context.index, &rank.pod)
                || is_permitted(context, plan, rank, true)
        })
}

/// The patches that the pods of a plan are owed, in the order of their places, each with the UID of its pod.
pub(crate) fn ungates<'a>(
    context: PollContext<'a>,
    plan: &'a Plan,
) -> impl Iterator<Item = (&'a str, ApiRequest)> {
    // What a pod is told as its rank stays the same in every attempt; its place in the plan may not.
    let formed = context.formed(&plan.key);
    let is_open = formed.is_some_and(|formed| formed.spec.min_count.is_some());
    let count = (is_open || plan.gang_size.is_some()).then_some(plan.ranks.len());
    let members = formed.into_iter().flat_map(|formed| &formed.pods);
    let numbers: BTreeMap<&str, u32> = members
        .map(|member| (member.identity.uid.as_str(), member.rank))
        .collect();
    plan.ranks
        .iter()
        .enumerate()
        .filter_map(move |(place, rank)| {
            let pod = context.index.pod_by_uid(&rank.pod)?;
            if !is_gated(pod) || is_terminal(pod) || pod_is_busy(context, &rank.pod) {
                return None;
            }
            let number = numbers.get(rank.pod.as_str()).copied();
            let release = patch::Release {
                gang: &plan.key.name,
                rank: number.unwrap_or_else(|| u32::try_from(place).unwrap_or(u32::MAX)),
                attempt: plan.attempt,
                count,
                node: &rank.node.name,
            };
            Some((rank.pod.as_str(), patch::ungate(pod, release)))
        })
}

/// Whether the pod is ungated, or being ungated, and waits for our kube-scheduler.
pub(crate) fn is_under_way(context: PollContext<'_>, pod: &ObservedPod) -> bool {
    let pinned = pod.annotation(keys::PLACEMENT) == Some(keys::PLACEMENT_PINNED);
    let waits = pinned
        && !is_gated(pod)
        && bound_node(pod).is_none()
        && !is_terminal(pod)
        && !is_deleting(pod)
        && !is_unschedulable(pod);
    let ours = context.config.scheduler_names.contains(pod.scheduler());
    ours && (waits || (is_gated(pod) && context.flights.is_sent(&pod_object(pod))))
}
