//! Taking back an attempt of which no pod was ungated.
//!
//! In this order: each pod that is still gated is stamped with the next attempt, so that a late ungate of an
//! older leader conflicts; then the Gang is raised above the attempt; then every `NodeDevices` of the plan is
//! written, also where no permit is found (at least the epoch: a write without change moves no
//! resourceVersion), so that a late permit conflicts; only then the intent leaves the Ledger, and with it
//! what it charged. Each step is seen in the objects, so a crash between two of them loses nothing.

use std::collections::{BTreeMap, BTreeSet};

use muster_api::Intent;

use crate::{
    ApiRequest,
    admission::intent_state::{IntentState, fate, pod_is_busy},
    admission::plan::{Plan, Rank},
    injected_bug::InjectedBug,
    leadership::ledger_recovery,
    objects::{gang_key, is_deleting, is_gated, is_over, node_devices_object, stamp},
    outward::gang_status,
    outward::patch,
    outward::permits::is_permitted,
    poll_context::{PollContext, attempt, has_ended},
};

/// What is owed to the `NodeDevices` of attempts that were taken back or that ended early.
#[derive(Debug, Default)]
pub(crate) struct Voided {
    /// By UID of the Gang: permits up to this attempt are withdrawn.
    pub(crate) attempts: BTreeMap<String, i64>,
    /// Nodes whose object must carry this leader's epoch.
    pub(crate) nodes: BTreeSet<String>,
}

/// Stamps, and Gangs to be raised.
pub(crate) fn writes(picture: PollContext<'_>) -> Vec<ApiRequest> {
    picture
        .intents()
        .iter()
        .filter(|intent| fate(picture, intent) == IntentState::Void)
        .flat_map(|intent| {
            let stamps = stamps(picture, intent);
            if stamps.is_empty() {
                raise(picture, intent).into_iter().collect()
            } else {
                stamps
            }
        })
        .collect()
}

/// What is owed to `NodeDevices`: only for attempts whose pods are stamped and whose Gang is raised; and by a
/// leader that commits to a new Ledger, to every one of them.
pub(crate) fn voided(picture: PollContext<'_>) -> Voided {
    let mut voided = Voided::default();
    for intent in picture.intents() {
        let plan = Plan::of_intent(intent);
        match fate(picture, intent) {
            IntentState::Void if is_raised(picture, intent) => {
                voided
                    .attempts
                    .insert(intent.gang_uid.clone(), intent.attempt);
                let nodes = plan.nodes().into_iter().map(|node| node.node.clone());
                voided.nodes.extend(nodes);
            }
            IntentState::Complete => {
                let ranks = plan.ranks.iter();
                let ended = ranks.filter(|rank| ended_unpermitted(picture, &plan, rank));
                voided
                    .nodes
                    .extend(ended.map(|rank| rank.node.node.clone()));
            }
            _ => {}
        }
    }
    if picture.bugs.has(InjectedBug::VoidWithoutNodeDevices) {
        voided = Voided::default();
    }
    if ledger_recovery::is_fence_owed(picture) {
        let all = picture.index.all_node_devices();
        voided.nodes.extend(all.map(|(node, _)| node.clone()));
    }
    voided
}

/// Whether the intent owes nothing any more: it may leave the Ledger.
pub(crate) fn is_settled(picture: PollContext<'_>, intent: &Intent) -> bool {
    let plan = Plan::of_intent(intent);
    match fate(picture, intent) {
        IntentState::PendingReason | IntentState::Carry => false,
        IntentState::Void => {
            is_raised(picture, intent)
                && plan
                    .nodes()
                    .iter()
                    .all(|node| is_taken_back(picture, intent, &node.node))
        }
        IntentState::Complete => {
            picture.bugs.has(InjectedBug::IntentDropsEarly)
                || plan
                    .ranks
                    .iter()
                    .all(|rank| is_complete(picture, &plan, rank))
        }
    }
}

/// A rank is complete when its pod is ungated and its permit seen. One that ended before its permit was
/// seen, or after it was released, is complete once no older leader can write that permit any more.
fn is_complete(picture: PollContext<'_>, plan: &Plan<'_>, rank: &Rank<'_>) -> bool {
    if pod_is_busy(picture, rank.pod) {
        return false;
    }
    if is_over(picture.index, rank.pod) {
        return is_permitted(picture, &rank.node.node, rank.pod, plan.attempt, false)
            || carries_own_epoch(picture, &rank.node.node);
    }
    let ungated = picture
        .index
        .pod_by_uid(rank.pod)
        .is_some_and(|pod| !is_gated(pod));
    ungated
        && (rank.claims.is_empty()
            || is_permitted(picture, &rank.node.node, rank.pod, plan.attempt, false))
}

fn ended_unpermitted(picture: PollContext<'_>, plan: &Plan<'_>, rank: &Rank<'_>) -> bool {
    is_over(picture.index, rank.pod)
        && !is_permitted(picture, &rank.node.node, rank.pod, plan.attempt, false)
}

fn stamps(picture: PollContext<'_>, intent: &Intent) -> Vec<ApiRequest> {
    if picture.bugs.has(InjectedBug::NoStampGated) {
        return Vec::new();
    }
    intent
        .pods
        .iter()
        .filter_map(|pod| {
            let pod = picture.index.pod_by_uid(&pod.uid)?;
            let owed = is_gated(pod) && !is_deleting(pod) && stamp(pod) <= intent.attempt;
            owed.then(|| patch::stamp(pod, intent.attempt + 1))
        })
        .collect()
}

fn raise(picture: PollContext<'_>, intent: &Intent) -> Option<ApiRequest> {
    let gang = picture.gang_of(intent)?;
    let owed = attempt(gang) == intent.attempt
        && !has_ended(gang)
        && !picture.bugs.has(InjectedBug::VoidWithoutGang);
    owed.then(|| gang_status::next_attempt(picture, &gang_key(intent), gang))?
}

/// Whether stamps and Gang say that the attempt is over.
fn is_raised(picture: PollContext<'_>, intent: &Intent) -> bool {
    stamps(picture, intent).is_empty()
        && raise(picture, intent).is_none()
        && !intent.pods.iter().any(|pod| pod_is_busy(picture, &pod.uid))
}

fn is_taken_back(picture: PollContext<'_>, intent: &Intent, node: &str) -> bool {
    if picture.bugs.has(InjectedBug::VoidWithoutNodeDevices) {
        return true;
    }
    let live = picture.index.node_devices(node).is_some_and(|devices| {
        devices.spec.permits.iter().any(|permit| {
            permit.gang_uid == intent.gang_uid
                && permit.attempt <= intent.attempt
                && !permit.withdrawn
        })
    });
    !live && carries_own_epoch(picture, node)
}

/// Whether this leader wrote the node's object, so that no older one can any more; or there is neither
/// object nor Node.
fn carries_own_epoch(picture: PollContext<'_>, node: &str) -> bool {
    if picture.bugs.has(InjectedBug::VoidWithoutNodeDevices) {
        return true;
    }
    if picture.busy(&node_devices_object(node)) {
        return false;
    }
    match picture.index.node_devices(node) {
        Some(devices) => {
            devices.spec.leader_epoch >= picture.epoch || picture.bugs.has(InjectedBug::NoFence)
        }
        None => picture.index.node(node).is_none(),
    }
}
