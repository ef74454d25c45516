//! What follows from a node that is silent, lost, out of service, gone or back.
//!
//! **Lost** is a mark in the node's `NodeDevices`, so that every leader reads it the same. It moves what the node holds from its
//! Teams to the node's own account **without any proof**: pods may still run there. So nothing is planned on the node until it is
//! Ready again and its driver has acknowledged that very generation; with that all of it counts for its Teams again, which may be more than
//! they may have by then: from there on it only falls. A claim of a user may have other devices elsewhere by then: what the node has of it counts
//! beside these. Its permits stay, and go by the driver's answer as ever. Where no driver of ours
//! has anything to answer for, Ready is enough.
//!
//! **Proof** of release without the driver, for permits that are withdrawn: the Node carries the taint `out-of-service` and
//! its kubelet is silent, by which an administrator (or the cloud) says that the machine is off; or the Node is gone, and so is
//! the pod, or it never was on that node. The store itself has said so ([`super::check`]).
//!
//! **Back under the same name**: a Node that was made again, or was out of service, may be another machine, or the old one with all that
//! ran on it. The object says so (`awaitsDriver`), and nothing is planned there until the driver has acknowledged that. What it holds then comes
//! back as withdrawn permits ([`crate::admission::adopt`]).
//!
//! **Who else writes**: nobody but leaders. Each write carries the object's resourceVersion, so that of two leaders one
//! conflicts; what a superseded one still marks, unmarks or removes is in the object, and its successor goes by the object. Twice or late
//! such a write changes nothing. A `NodeDevices` is removed by UID and resourceVersion, once it has no permit: one that is written
//! meanwhile is not meant.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::Node;
use muster_api::{NodeDevices, Permit, Reason};

use crate::{
    admission::plan::{Plan, Rank},
    faults,
    feed::holds,
    injected_bug::InjectedBug,
    objects::{bound_node, is_over, ledger_object},
    outward::release,
    poll_context::PollContext,
};
use muster_cluster::{
    formed::PendingReason,
    nodes::{Readiness, readiness},
    rank_state::RankState,
    taints,
};

/// How long a node of which the store has said that it is silent is waited for until it is marked as lost, in seconds from the read on: a read and a
/// write take less where they are answered at all.
const MARKED_WITHIN_SECONDS: u64 = 60;

/// What has become of a Node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NodeState {
    /// It is Ready.
    Ready,
    /// It is not.
    NotReady,
    /// Its kubelet is silent, and somebody said that the machine is off.
    OutOfService,
    /// It is no more; another one may have its name.
    Gone,
}

/// What has become of the Node of that UID.
pub(crate) fn state_of(node: Option<&Node>, uid: &str) -> NodeState {
    let Some(node) = node.filter(|node| node.metadata.uid.as_deref() == Some(uid)) else {
        return NodeState::Gone;
    };
    match readiness(node) {
        Readiness::Ready => NodeState::Ready,
        // Only of a node whose kubelet says nothing somebody else can say that it is off.
        Readiness::Unknown if taints::is_out_of_service(node) => NodeState::OutOfService,
        Readiness::NotReady | Readiness::Unknown => NodeState::NotReady,
    }
}

/// What has become of the Node that has the name which a pod is bound to: whoever registers it again runs what is bound to it.
pub(crate) fn state_by_name(node: Option<&Node>) -> NodeState {
    node.map_or(NodeState::Gone, |node| {
        let uid = node.metadata.uid.as_deref();
        state_of(Some(node), uid.unwrap_or_default())
    })
}

/// The same, as it is seen.
fn seen(context: PollContext<'_>, node: &str, uid: &str) -> NodeState {
    let node = context.index.node(node);
    state_of(node.map(AsRef::as_ref), uid)
}

/// What has become of the Node, as it is seen, and as the store said after the object was seen as it is now.
pub(crate) fn proved(
    context: PollContext<'_>,
    node: &str,
    devices: &NodeDevices,
) -> Option<NodeState> {
    let found = context.node_checks.found(node, devices)?;
    (seen(context, node, &devices.spec.node_uid) == found).then_some(found)
}

/// Whether the store is to be asked about the Node: something would follow from its answer.
pub(crate) fn is_to_be_asked(context: PollContext<'_>, node: &str, devices: &NodeDevices) -> bool {
    let spec = &devices.spec;
    let state = seen(context, node, &spec.node_uid);
    let to_mark = !spec.lost && is_to_be_marked(context, node, devices, state);
    let mut permits = spec.permits.iter();
    let to_release = permits.any(|permit| is_released_by(context, node, state, permit));
    let to_evict = is_silence_to_evict(context, node, devices, state);
    let is_evicting_unconfirmed = || {
        let deadline = eviction_deadline(context, node);
        deadline.is_some_and(|deadline| !is_confirmed(context, node, deadline))
    };
    ((to_mark || to_release) && proved(context, node, devices) != Some(state)
        || to_evict && is_evicting_unconfirmed())
        && context
            .node_checks
            .may_ask_at(node, devices)
            .is_some_and(|second| context.has_come(second))
}

/// Whether what runs on the node is to be evicted for its silence, once its time has come and the store has said so.
fn is_silence_to_evict(
    context: PollContext<'_>,
    node: &str,
    devices: &NodeDevices,
    state: NodeState,
) -> bool {
    let is_silence = match state {
        NodeState::NotReady => devices.spec.lost,
        NodeState::Gone => context.index.node(node).is_none(),
        NodeState::OutOfService | NodeState::Ready => false,
    };
    is_silence && context.plans.on_node(node).next().is_some()
}

/// Whether the node is to be marked as lost for its silence, and something runs there. Where gangs are evicted as soon as their node is marked, what
/// the store says is good for both.
fn is_silence_to_mark(
    context: PollContext<'_>,
    node: &str,
    devices: &NodeDevices,
    state: NodeState,
) -> bool {
    state == NodeState::NotReady
        && !devices.spec.lost
        && is_to_be_marked(context, node, devices, state)
        && context.plans.on_node(node).next().is_some()
}

/// The nodes of which the store is being asked for the first time since what runs there is to be evicted for their silence, and those of which it has
/// said so, and that are about to be marked. A read that was begun before that confirms nothing, and another one follows it.
pub(crate) fn nodes_being_asked(context: PollContext<'_>) -> impl Iterator<Item = &String> {
    let asked = context.node_checks.being_asked();
    let asked = asked.filter(move |&(node, before_at)| {
        let is_first = |deadline: u64| before_at.is_none_or(|before| before < deadline);
        let devices = context.index.node_devices(node);
        devices.is_some_and(|devices| {
            let state = seen(context, node, &devices.spec.node_uid);
            (is_silence_to_evict(context, node, devices, state)
                || is_silence_to_mark(context, node, devices, state))
                && eviction_deadline(context, node).is_some_and(is_first)
        })
    });
    let answered = context.node_checks.answered();
    let marked = answered.filter(move |&(node, begun_at)| {
        let devices = context.index.node_devices(node);
        devices.is_some_and(|devices| {
            let state = seen(context, node, &devices.spec.node_uid);
            is_silence_to_mark(context, node, devices, state)
                && eviction_deadline(context, node)
                    .is_some_and(|deadline| is_confirmed(context, node, deadline))
                && !context.has_come(begun_at + MARKED_WITHIN_SECONDS)
        })
    });
    let asked = asked.map(|(node, _)| node);
    asked.chain(marked.map(|(node, _)| node))
}

/// Whether the devices of a withdrawn permit are proved released, whatever its driver says or not.
pub(crate) fn proves_released(
    context: PollContext<'_>,
    node: &str,
    proved: Option<NodeState>,
    permit: &Permit,
) -> bool {
    let devices = context.index.node_devices(node);
    if context.bugs.has(InjectedBug::ReleaseOnLostNode)
        && devices.is_some_and(|devices| devices.spec.lost)
    {
        return permit.withdrawn && !is_here(context, node, &permit.pod_uid);
    }
    proved.is_some_and(|state| is_released_by(context, node, state, permit))
}

fn is_released_by(context: PollContext<'_>, node: &str, state: NodeState, permit: &Permit) -> bool {
    let is_proof = match state {
        NodeState::OutOfService => true,
        NodeState::Gone => !is_here(context, node, &permit.pod_uid),
        NodeState::NotReady | NodeState::Ready => false,
    };
    permit.withdrawn && is_proof
}

/// Whether the pod is on that node, and not over.
fn is_here(context: PollContext<'_>, node: &str, pod_uid: &str) -> bool {
    let pod = context.index.pod_by_uid(pod_uid);
    let on = pod.and_then(|pod| bound_node(pod));
    on == Some(node) && !is_over(context.index, pod_uid)
}

/// Whether the node is lost from now on. While a commit is under way none is back: it was decided without what the node brings with
/// it, and would come on top of that.
pub(crate) fn is_lost(context: PollContext<'_>, node: &str, devices: &NodeDevices) -> bool {
    if devices.spec.lost {
        return !is_back(context, node, devices) || context.busy(&ledger_object());
    }
    proved(context, node, devices)
        .is_some_and(|state| is_to_be_marked(context, node, devices, state))
}

/// Whether so many nodes are silent that nothing is concluded from the silence of this one.
fn is_in_outage(context: PollContext<'_>, node: &str) -> bool {
    context.health.is_in_outage(node) && !context.bugs.has(InjectedBug::OutageIgnored)
}

fn is_to_be_marked(
    context: PollContext<'_>,
    node: &str,
    devices: &NodeDevices,
    state: NodeState,
) -> bool {
    let lasts = || {
        let since = context.health.not_ready_since(node);
        let limit = context.config.lost_after_seconds;
        since.is_some_and(|since| context.has_come(since + limit))
    };
    match state {
        NodeState::Ready => false,
        NodeState::NotReady => !is_in_outage(context, node) && lasts(),
        NodeState::OutOfService => true,
        // Under the name of the Node there may be another one, whose object this becomes.
        NodeState::Gone => {
            context.index.node(node).is_none()
                && !devices.spec.permits.is_empty()
                && !is_in_outage(context, node)
                && lasts()
        }
    }
}

/// Whether nothing is planned on the node from now on until its driver has answered: a Node of that name was made again, or permits go
/// that it was not asked about.
pub(crate) fn awaits_driver(
    context: PollContext<'_>,
    node: &str,
    devices: &NodeDevices,
    is_made_again: bool,
) -> bool {
    is_made_again
        || is_taken_unasked(context, node, devices)
        || (devices.spec.awaits_driver && !is_back(context, node, devices))
}

/// Whether a permit goes now because the machine is said to be off, of which its driver has something to answer for. If the machine comes
/// back with all that ran there, nothing else in the object says that it may.
fn is_taken_unasked(context: PollContext<'_>, node: &str, devices: &NodeDevices) -> bool {
    let off = NodeState::OutOfService;
    let mut permits = devices.spec.permits.iter();
    proved(context, node, devices) == Some(off)
        && permits.any(|permit| {
            is_released_by(context, node, off, permit) && !release::is_nothing_to_our_driver(permit)
        })
}

/// Whether the node is Ready, and its driver has acknowledged the object as it is.
fn is_back(context: PollContext<'_>, node: &str, devices: &NodeDevices) -> bool {
    let answered =
        !is_served(context, node, devices) || release::has_acknowledged(context, devices);
    answered && seen(context, node, &devices.spec.node_uid) == NodeState::Ready
}

/// Whether a driver of ours has something to answer for on the node. One that published nothing, was given nothing by permits and lists
/// nothing has not: its node went over to a device plugin, or to another driver, and nobody answers there any more.
fn is_served(context: PollContext<'_>, node: &str, devices: &NodeDevices) -> bool {
    let spec = &devices.spec;
    context.index.is_served(node)
        || devices.status.as_ref().is_some_and(|status| {
            spec.awaits_driver
                || !status.held.is_empty()
                || !spec.permits.iter().all(release::is_nothing_to_our_driver)
        })
}

/// Whether what the node holds is charged to no Team: it is lost, or there is neither Node nor object any more. What is about to
/// be written that it is back is charged already, so that nothing is decided without it meanwhile.
pub(crate) fn is_off_account(context: PollContext<'_>, node: &str) -> bool {
    match context.index.node_devices(node) {
        Some(devices) => devices.spec.lost && !is_back(context, node, devices),
        None => context.index.node(node).is_none(),
    }
}

/// Up to where the driver of a Ready node has answered, if it owes more.
pub(crate) fn behind(context: PollContext<'_>, node: &str) -> Option<(String, i64)> {
    let devices = context.index.node_devices(node)?;
    let is_owed = is_served(context, node, devices)
        && !release::has_acknowledged(context, devices)
        && seen(context, node, &devices.spec.node_uid) == NodeState::Ready;
    let status = devices.status.as_ref();
    let acknowledged = status.map(|status| (status.uid.clone(), status.observed_generation));
    is_owed.then(|| acknowledged.unwrap_or_default())
}

/// Whether nothing new is planned on the node because its driver is silent.
pub(crate) fn is_driver_silent(context: PollContext<'_>, node: &str) -> bool {
    let since = context.health.driver_silent_since(node);
    let limit = context.config.lost_after_seconds;
    since.is_some_and(|since| context.has_come(since + limit))
}

/// Whether withdrawn permits of a Ready node count for nobody's Team, because its driver is silent for too long.
pub(crate) fn is_release_overdue(context: PollContext<'_>, node: &str) -> bool {
    let since = context.health.driver_silent_since(node);
    let limit = context.config.silent_driver_seconds;
    since.is_some_and(|since| context.has_come(since + limit))
}

/// Whether the object of a node that is gone is to be removed: it has no permit, and nothing is committed there.
pub(crate) fn is_to_be_removed(
    context: PollContext<'_>,
    node: &str,
    devices: &NodeDevices,
) -> bool {
    let finalizers = devices.metadata.finalizers.as_ref();
    let since = context.health.not_ready_since(node);
    let limit = context.config.lost_after_seconds;
    context.index.node(node).is_none()
        && devices.spec.permits.is_empty()
        && finalizers.is_none_or(Vec::is_empty)
        && context.plans.on_node(node).next().is_none()
        && devices.metadata.deletion_timestamp.is_none()
        && since.is_some_and(|since| context.has_come(since + limit))
}

/// A rank of a running attempt whose node is lost.
#[derive(Clone, Debug)]
pub(crate) struct LostRank {
    /// Its node.
    pub(crate) node: String,
    /// Which rank, and how.
    pub(crate) reason: PendingReason,
    /// Whether its attempt is to be evicted for it by now.
    pub(crate) is_due: bool,
    /// Whether that needs nobody to believe in silence: somebody said that the machine is off, or Node and pod are gone.
    pub(crate) is_proved: bool,
}

/// Whether, and how surely, a rank's attempt is to be evicted for its node by now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Due {
    NotYet,
    BySilence,
    ByProof,
}

/// The rank of the plan whose loss is due, by proof if any is, or else the first one that is lost.
pub(crate) fn of_plan(context: PollContext<'_>, plan: &Plan) -> Option<LostRank> {
    let mut lost: Vec<LostRank> = lost_ranks(context, plan).collect();
    let proved = lost.iter().position(|lost| lost.is_proved);
    let due = proved.or_else(|| lost.iter().position(|lost| lost.is_due));
    (!lost.is_empty()).then(|| lost.swap_remove(due.unwrap_or(0)))
}

fn lost_ranks(context: PollContext<'_>, plan: &Plan) -> impl Iterator<Item = LostRank> {
    let states = plan.states(context).enumerate();
    states.filter_map(move |(place, (rank, state))| {
        let (cause, due) = lost_by(context, rank, state)?;
        let node = &rank.node.name;
        let mut details = format!("rank {place}: node {node} {cause}");
        if due == Due::BySilence
            && let Some(held_back) = faults::held_back(context)
        {
            details = format!("{details}; {}", held_back.of_attempt());
        }
        Some(LostRank {
            node: node.clone(),
            reason: PendingReason {
                reason: Reason::NodeLost,
                details,
            },
            is_due: due != Due::NotYet,
            is_proved: due == Due::ByProof,
        })
    })
}

/// The nodes that are evacuated by evicting the attempt for lost nodes now; `None`: it is proved that one is.
pub(crate) fn evacuated_without_proof(
    context: PollContext<'_>,
    plan: &Plan,
) -> Option<BTreeSet<String>> {
    let due: Vec<LostRank> = lost_ranks(context, plan).filter(|it| it.is_due).collect();
    let is_proved = due.iter().any(|lost| lost.is_proved);
    (!is_proved).then(|| due.into_iter().map(|lost| lost.node).collect())
}

fn lost_by(context: PollContext<'_>, rank: &Rank, state: RankState) -> Option<(&'static str, Due)> {
    let node = rank.node.name.as_str();
    let pod = context.index.pod_by_uid(&rank.pod);
    let is_elsewhere = pod.is_some_and(|pod| bound_node(pod) != Some(node));
    if state == RankState::Succeeded || is_elsewhere {
        return None;
    }
    // A pod that is bound goes on though the Node is registered again: what becomes of it is what becomes of the Node that has the
    // name now.
    let now = context.index.node(node).filter(|_| pod.is_some());
    let uid = now.and_then(|node| node.metadata.uid.as_deref());
    let by_silence = || {
        if is_eviction_due(context, node) {
            Due::BySilence
        } else {
            Due::NotYet
        }
    };
    match seen(context, node, uid.unwrap_or(&rank.node.uid)) {
        NodeState::OutOfService => Some(("is out of service", Due::ByProof)),
        // Kubernetes removes its pods some time after it. Until then they may run: whoever deleted the Node may have erred.
        NodeState::Gone if context.index.node(node).is_none() => {
            let is_over = is_over(context.index, &rank.pod);
            Some(("is gone", if is_over { Due::ByProof } else { by_silence() }))
        }
        NodeState::NotReady if pod.is_some() && is_off_account(context, node) => {
            Some(("is lost", by_silence()))
        }
        NodeState::Gone | NodeState::NotReady | NodeState::Ready => None,
    }
}

/// Whether what runs on a node that is lost or gone is to be evicted by now, though nothing is proved. A node that was marked before
/// others fell silent may be one of them after all, so an outage is asked about again here.
fn is_eviction_due(context: PollContext<'_>, node: &str) -> bool {
    if context.health.not_ready_since(node).is_none() {
        // There is neither Node nor object.
        return true;
    }
    let deadline = eviction_deadline(context, node);
    deadline.is_some_and(|deadline| is_confirmed(context, node, deadline))
}

/// Since which second what runs on the node is to be evicted, if that has come and there is no outage.
fn eviction_deadline(context: PollContext<'_>, node: &str) -> Option<u64> {
    let since = context.health.not_ready_since(node)?;
    let deadline = since + context.config.node_loss_seconds;
    (context.has_come(deadline) && !is_in_outage(context, node)).then_some(deadline)
}

/// Whether the store said in that second or later that the node is as it is seen. Where there is no object of its permits,
/// nothing asks, and what is seen has to do.
fn is_confirmed(context: PollContext<'_>, node: &str, second: u64) -> bool {
    let Some(devices) = context.index.node_devices(node) else {
        return true;
    };
    let state = seen(context, node, &devices.spec.node_uid);
    context.node_checks.found_since(node, second) == Some(state)
}

/// Whether nobody waits for pods that are being ended on the node: it is gone, or lost. One without an object of its permits carries no
/// mark, and is unreachable when it would be marked.
pub(crate) fn is_unreachable(context: PollContext<'_>, node: &str) -> bool {
    if context.index.node(node).is_none() {
        return true;
    }
    if context.index.node_devices(node).is_some() {
        return is_off_account(context, node);
    }
    is_not_ready_for_long(context, node) && !is_in_outage(context, node)
}

/// Whether the node is not Ready for as long as it takes until it is lost, be it in an outage.
pub(crate) fn is_not_ready_for_long(context: PollContext<'_>, node: &str) -> bool {
    let since = context.health.not_ready_since(node);
    let limit = context.config.lost_after_seconds;
    since.is_some_and(|since| context.has_come(since + limit))
}

/// Why the attempt is to be evicted because of a node, if it is: by proof in any case, by silence only where anything is ended for that.
pub(crate) fn due(context: PollContext<'_>, plan: &Plan) -> Option<PendingReason> {
    let lost = of_plan(context, plan)?;
    let is_held_back =
        faults::held_back(context).is_some() && !context.bugs.has(InjectedBug::SilenceNotHeldBack);
    let is_due = lost.is_proved || lost.is_due && !is_held_back;
    is_due.then_some(lost.reason)
}

/// A hold as the account of its node bears it. Under a name of the node's own: neither its gang nor its claims wait for it.
pub(crate) fn on_account_of(node: &str, hold: &mut muster_engine::Hold) {
    hold.charged_to_node = true;
    hold.pod = holds::of_node_itself(node, hold.pod.as_str()).into();
    hold.gang = holds::of_node_itself(node, hold.gang.as_str()).into();
    for claim in &mut hold.claims {
        claim.uid = holds::of_node_itself(node, claim.uid.as_str()).into();
    }
}
