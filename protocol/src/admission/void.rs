//! Taking back an attempt: one of which no pod was ungated, or one that is evicted.
//!
//! In this order: each pod that is still gated is stamped with the next attempt, so that a late ungate of an
//! older leader conflicts; then the Gang is raised above the attempt; then every `NodeDevices` of the plan is
//! written, also where no permit is found (at least the epoch: a write without change moves no
//! resourceVersion), so that a late permit conflicts (where there is none, and a Node, one is made first, and whoever deletes it
//! then does no harm: [`crate::leadership::newest`]); only then the intent leaves the Ledger, and with it
//! what it charged. Each step is seen in the objects, so a crash between two of them loses nothing.
//!
//! Of an intent whose proposal is gone with its Gang, the nodes are still known, and the pods are the gang's and those that
//! permits on these nodes name: no pod with claims is ungated before its permit is seen. What it charges is not known, so
//! nothing is admitted before it has left the Ledger.
//!
//! Of an attempt that is evicted the pods that were ungated keep their stamp, and are ended once the intent owes nothing any more
//! ([`crate::outward::evict`]). What they hold is charged by their permits.

use std::collections::BTreeMap;

use muster_api::IntentKind;
use muster_cluster::{formed::has_ended, pod::ObservedPod};

use crate::{
    ApiRequest,
    admission::intent_state::{IntentState, pod_is_busy, release_refused},
    admission::plan::{Plan, Rank},
    admission::stage::View,
    effect::Refusable,
    injected_bug::InjectedBug,
    objects::{is_deleting, is_gated, is_over, node_devices_object, pod_object, stamp, uid},
    outward::gang_status,
    outward::patch,
    outward::permits::{self, is_permitted},
    outward::recovery,
    poll_context::{PollContext, attempt},
    tables::plans::Committed,
};

/// Stamps, or the raise of the Gang.
pub(crate) fn writes(context: PollContext<'_>, intent: &Committed, view: &View) -> Vec<ApiRequest> {
    let stamps = match view.intent {
        Some(IntentState::Void) => stamps(context, intent),
        _ => return Vec::new(),
    };
    if !stamps.is_empty() {
        return stamps;
    }
    raise(context, intent).into_iter().collect()
}

/// Works out what the intent owes: whether it may leave the Ledger, and what is owed to `NodeDevices` before. That is
/// asked for only once the pods are stamped and the Gang is raised.
pub(crate) fn judge(context: PollContext<'_>, intent: &Committed, view: &mut View) {
    let plan = &intent.plan;
    let Some(state) = view.intent else { return };
    let unfenced = context.bugs.has(InjectedBug::VoidWithoutNodeDevices);
    match state {
        IntentState::Undecided | IntentState::Carry => {}
        IntentState::Void => {
            if !is_raised(context, intent) {
                return;
            }
            if !unfenced {
                view.voided = Some((plan.gang_uid.clone(), plan.attempt));
                view.fenced = plan.nodes().cloned().collect();
            }
            view.is_settled = plan.nodes().all(|node| is_taken_back(context, plan, node));
        }
        IntentState::Complete => {
            if !unfenced {
                let ended = plan.ranks.iter();
                let ended = ended.filter(|rank| ended_unpermitted(context, plan, rank));
                view.fenced = ended.map(|rank| rank.node.name.clone()).collect();
            }
            view.is_settled = context.bugs.has(InjectedBug::IntentDropsEarly)
                || plan
                    .ranks
                    .iter()
                    .all(|rank| is_complete(context, intent, rank));
        }
    }
}

/// A rank is complete when its pod is ungated and its permit seen. One that ended before its permit was
/// seen, or after it was released, is complete once no older leader can write that permit any more.
fn is_complete(context: PollContext<'_>, intent: &Committed, rank: &Rank) -> bool {
    let plan = &intent.plan;
    if pod_is_busy(context, &rank.pod) {
        return false;
    }
    let permitted = || is_permitted(context, plan, rank, false);
    if is_over(context.index, &rank.pod) {
        return permitted() || carries_own_epoch(context, &rank.node.name);
    }
    let Some(pod) = context.index.pod_by_uid(&rank.pod) else {
        return true;
    };
    if is_gated(pod) {
        return false;
    }
    !plan.needs_permit(rank) || permitted()
}

fn ended_unpermitted(context: PollContext<'_>, plan: &Plan, rank: &Rank) -> bool {
    is_over(context.index, &rank.pod) && !is_permitted(context, plan, rank, false)
}

/// The stamps that are owed. A pod of an attempt that is evicted which the API server does not let be stamped is deleted, by its
/// UID: it never ran, and whatever an older leader still sends for it finds another version, or none.
fn stamps(context: PollContext<'_>, intent: &Committed) -> Vec<ApiRequest> {
    if context.bugs.has(InjectedBug::NoStampGated) {
        return Vec::new();
    }
    let pods = members(context, intent).into_iter();
    let pods = pods.filter(|pod| owes_stamp(context, intent, pod));
    let is_evict = intent.kind == IntentKind::Evict;
    pods.map(|pod| {
        if is_evict && release_refused(context, pod).is_some() {
            ApiRequest::DeletePod {
                key: pod_object(pod),
                uid: uid(pod).to_owned(),
                grace_period_seconds: None,
            }
        } else {
            patch::stamp(pod, intent.plan.attempt + 1)
        }
    })
    .collect()
}

/// The pods that the intent may be about.
fn members<'a>(context: PollContext<'a>, intent: &Committed) -> Vec<&'a ObservedPod> {
    let plan = &intent.plan;
    let by_uid = |uid: &str| context.index.pod_by_uid(uid).map(AsRef::as_ref);
    if intent.lost.is_none() {
        let ranks = plan.ranks.iter();
        return ranks.filter_map(|rank| by_uid(&rank.pod)).collect();
    }
    let nodes = plan.nodes();
    let devices = nodes.filter_map(|node| context.index.node_devices(node));
    let permits = devices.flat_map(|devices| &devices.spec.permits);
    let permitted = permits
        .filter(|permit| permit.gang_uid == plan.gang_uid && permit.attempt == plan.attempt)
        .filter_map(|permit| by_uid(&permit.pod_uid));
    let own = context.index.pods_of_gang(&plan.key).into_iter();
    let pods = own.map(AsRef::as_ref).chain(permitted);
    let pods: BTreeMap<&str, &ObservedPod> = pods.map(|pod| (uid(pod), pod)).collect();
    pods.into_values().collect()
}

/// Whether the pod is still to be stamped. Where the API server refuses to have it changed, a leader does without for
/// an admission that it committed itself: no older one knows of that attempt, and its own writes of the pod were all answered.
/// Of an attempt that is evicted, which an older one may have admitted, it does without only where the pod may not be deleted either:
/// then nobody's write of it passes.
fn owes_stamp(context: PollContext<'_>, intent: &Committed, pod: &ObservedPod) -> bool {
    let in_vain = match intent.kind {
        IntentKind::Admit => {
            intent.leader_epoch == context.epoch && release_refused(context, pod).is_some()
        }
        IntentKind::Evict => {
            let deletion = context
                .flights
                .refused(&pod_object(pod), Refusable::PodDeletion);
            deletion.is_some()
        }
    };
    is_gated(pod) && !is_deleting(pod) && stamp(pod) <= intent.plan.attempt && !in_vain
}

/// What was proposed stays on the Gang: as long as the intent names it, a successor has to know what it charges, and as long as the gang recovers, what is kept
/// for it.
fn raise(context: PollContext<'_>, intent: &Committed) -> Option<ApiRequest> {
    let plan = &intent.plan;
    let gang = context.gang_of(plan)?;
    let owed = attempt(gang) == plan.attempt
        && !has_ended(gang)
        && !context.bugs.has(InjectedBug::VoidWithoutGang);
    let mut raise = owed.then(|| match intent.kind {
        IntentKind::Admit => gang_status::next_attempt(context, &plan.key, gang),
        IntentKind::Evict => gang_status::evicted(context, gang, intent),
    })?;
    if let Some(ApiRequest::ReplaceGangStatus { status, .. }) = &mut raise
        && intent.lost.is_none()
    {
        if intent.kind == IntentKind::Admit {
            status.recovery = recovery::after_void(context, gang, plan);
            recovery::tell_phase(status);
        }
        if intent.is_proposed || status.recovery.is_some() {
            status.proposal = Some(plan.to_proposal());
        }
    }
    raise
}

/// Whether stamps and Gang say that the attempt is over.
fn is_raised(context: PollContext<'_>, intent: &Committed) -> bool {
    stamps(context, intent).is_empty()
        && raise(context, intent).is_none()
        && !members(context, intent)
            .into_iter()
            .any(|pod| context.busy(&pod_object(pod)))
}

fn is_taken_back(context: PollContext<'_>, plan: &Plan, node: &str) -> bool {
    if context.bugs.has(InjectedBug::VoidWithoutNodeDevices) {
        return true;
    }
    let live = context.index.node_devices(node).is_some_and(|devices| {
        devices.spec.permits.iter().any(|permit| {
            permit.gang_uid == plan.gang_uid && permit.attempt <= plan.attempt && !permit.withdrawn
        })
    });
    !live && carries_own_epoch(context, node) && !permits::owes_charge(context, node)
}

/// Whether this leader wrote the node's object, so that no older one can any more; or there is neither
/// object nor Node.
fn carries_own_epoch(context: PollContext<'_>, node: &str) -> bool {
    if context.bugs.has(InjectedBug::VoidWithoutNodeDevices) {
        return true;
    }
    if context.busy(&node_devices_object(node)) {
        return false;
    }
    match context.index.node_devices(node) {
        Some(devices) => {
            devices.spec.leader_epoch >= context.epoch || context.bugs.has(InjectedBug::NoFence)
        }
        None => context.index.node(node).is_none(),
    }
}
