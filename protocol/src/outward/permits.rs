//! Permits: what `NodeDevices.spec` has to say, worked out for a node when something that concerns it changed.
//!
//! Written by the leader only, one object per node, conditional on its resourceVersion. A permit exists
//! from before the first ungate of its attempt until its release is proved ([`super::release`]), and while
//! it exists its claims are charged. It is written only for what an admission carries already, so that
//! adding it never charges anything new; not for a claim that the node still has prepared for somebody else
//! ([`super::still_prepared`]); and only to an object that was seen before this leader was the newest for certain
//! ([`crate::leadership::newest`]), so that no late write of a superseded one permits what was taken back.

use std::{collections::BTreeSet, sync::Arc};

use muster_api::{IntentKind, NodeDevices, NodeDevicesSpec, Permit, keys};

use crate::{
    ApiRequest,
    admission::adopt,
    admission::charge,
    admission::plan::{Plan, Rank},
    faults::resets,
    injected_bug::InjectedBug,
    leadership::ledger_recovery,
    nodes::loss,
    objects::{
        bound_node, gang_key_of_uid, is_gated, is_over, is_terminal, node_devices_object, phase,
    },
    outward::release::{DriverAnswer, is_let_go, is_of_other_driver},
    outward::still_prepared::StillPrepared,
    poll_context::{PollContext, attempt},
};
use muster_cluster::formed::{GangKey, has_ended};

/// What the `NodeDevices` of a node owes.
#[derive(Debug)]
pub(crate) enum Owed {
    /// A write.
    Write(ApiRequest),
    /// Permits, which wait until it is known that this leader led after it saw the object.
    Proof,
}

/// What has to be written to the `NodeDevices` of a node, or waited for.
///
/// That pods ended is written in the next second: pods of a gang end together, and one write withdraws all their permits, or removes them.
pub(crate) fn write(context: PollContext<'_>, node: &str) -> Option<Owed> {
    if context.busy(&node_devices_object(node)) {
        return None;
    }
    if let Some(devices) = context.index.node_devices(node) {
        return replacement(context, node, devices);
    }
    let node_uid = context.index.node(node)?.metadata.uid.as_ref()?;
    Some(Owed::Write(creation(context, node, node_uid)))
}

/// Which permit it is: that of a pod in one attempt of one Gang, by their UIDs. A Gang that was deleted and made again has
/// attempts of its own, whose pods may be the same: its predecessor's permits are not its.
pub(crate) type Identity<'a> = (&'a str, &'a str, i64);

/// The identity of a permit.
pub(crate) fn identity(permit: &Permit) -> Identity<'_> {
    (&permit.pod_uid, &permit.gang_uid, permit.attempt)
}

/// Whether a rank of the plan has its permit; a withdrawn one counts unless `live`.
pub(crate) fn is_permitted(context: PollContext<'_>, plan: &Plan, rank: &Rank, live: bool) -> bool {
    let own = (&*rank.pod, &*plan.gang_uid, plan.attempt);
    let devices = context.index.node_devices(&rank.node.name);
    devices.is_some_and(|devices| {
        let mut permits = devices.spec.permits.iter();
        permits.any(|permit| identity(permit) == own && !(live && permit.withdrawn))
    })
}

/// The object is made for the Node as it is now, without permits: all that guards a creation is that there is none, so it may
/// come late, after its attempts were taken back and the object that said so was deleted. What its gangs carry is permitted by
/// the next write. A driver that sees it first prepares nothing meanwhile, if it enforces, and keeps what is prepared.
fn creation(context: PollContext<'_>, node: &str, node_uid: &str) -> ApiRequest {
    let mut spec = NodeDevicesSpec {
        node_uid: node_uid.to_owned(),
        leader_epoch: context.epoch,
        enforce: adopt::may_enforce(context, node),
        lost: false,
        awaits_driver: false,
        remediation: None,
        permits: Vec::new(),
    };
    if context.bugs.has(InjectedBug::PermitsUnproved) {
        add_admitted(context, node, None, &mut spec);
    }
    ApiRequest::CreateNodeDevices {
        node: node.to_owned(),
        spec,
    }
}

fn replacement(context: PollContext<'_>, node: &str, devices: &NodeDevices) -> Option<Owed> {
    if loss::is_to_be_removed(context, node, devices) {
        return Some(Owed::Write(ApiRequest::DeleteNodeDevices {
            node: node.to_owned(),
            uid: devices.metadata.uid.clone()?,
            resource_version: devices.metadata.resource_version.clone()?,
        }));
    }
    let before = &devices.spec;
    let mut spec = before.clone();
    // Devices of our driver are released if they were withdrawn in the generation that it acknowledged, never if this very
    // write withdraws them.
    let answer = DriverAnswer::of(context, devices);
    let state = loss::proved(context, node, devices);
    spec.permits.retain(|permit| {
        !answer.proves_released(context, permit)
            && !loss::proves_released(context, node, state, permit)
    });
    withdraw(context, &mut spec);
    if let Some(uid) = context
        .index
        .node(node)
        .and_then(|node| node.metadata.uid.as_ref())
    {
        // A Node of that name came back. Permits stay, whichever of the two they were written for: each goes by the
        // driver's answer, as ever. Nothing is planned here before it has answered for this write.
        spec.node_uid.clone_from(uid);
    }
    let is_made_again = spec.node_uid != before.node_uid;
    spec.awaits_driver = loss::awaits_driver(context, node, devices, is_made_again);
    spec.lost = loss::is_lost(context, node, devices);
    let standing = spec.permits.len();
    add_admitted(context, node, Some(devices), &mut spec);
    let is_proved = context.newest.has_seen(node) || context.bugs.has(InjectedBug::PermitsUnproved);
    if spec.permits.len() > standing && !is_proved {
        // Nothing else meanwhile: what the driver lists comes back as withdrawn only where no permit of these names it.
        return Some(Owed::Proof);
    }
    adopt::permit_held(context, node, devices, &mut spec);
    spec.enforce = adopt::may_enforce(context, node);
    spec.remediation = resets::remediation(context, node, devices);

    let finalizer = !spec.permits.is_empty() && !context.bugs.has(InjectedBug::NoFinalizer);
    let has_finalizer = devices
        .metadata
        .finalizers
        .iter()
        .flatten()
        .any(|name| name == keys::PERMITS_FINALIZER);
    let fenced = context.views.is_fenced(node) || ledger_recovery::is_fence_owed(context);
    let owed_epoch = fenced && before.leader_epoch < context.epoch;
    if spec == *before && finalizer == has_finalizer && !owed_epoch {
        return None;
    }
    if !owed_epoch && finalizer == has_finalizer && only_ends(context, before, &spec) {
        let since = context.clocks.ends_since(node);
        if !context.has_come(since.unwrap_or(context.now.monotonic_seconds) + 1) {
            return None;
        }
    }
    if !context.bugs.has(InjectedBug::NoFence) {
        spec.leader_epoch = context.epoch;
    }
    Some(Owed::Write(ApiRequest::ReplaceNodeDevices {
        node: node.to_owned(),
        uid: devices.metadata.uid.clone()?,
        resource_version: devices.metadata.resource_version.clone()?,
        spec,
        finalizer,
    }))
}

/// Withdraws what has no claim to devices any more: the pod ended or is gone, or its attempt is over.
fn withdraw(context: PollContext<'_>, spec: &mut NodeDevicesSpec) {
    for permit in spec.permits.iter_mut().filter(|permit| !permit.withdrawn) {
        permit.withdrawn = is_over(context.index, &permit.pod_uid)
            || is_superseded(context, permit)
            || context
                .views
                .voided(&permit.gang_uid)
                .is_some_and(|attempt| permit.attempt <= attempt);
        if context.bugs.has(InjectedBug::FailedPodsKeepPermits) {
            let pod = context.index.pod_by_uid(&permit.pod_uid);
            permit.withdrawn &= pod.is_none_or(|pod| phase(pod) != "Failed");
        }
    }
}

/// Whether nothing differs but that pods ended: their permits are withdrawn, or gone.
fn only_ends(context: PollContext<'_>, before: &NodeDevicesSpec, after: &NodeDevicesSpec) -> bool {
    let standing = before.permits.iter().filter(|it| !it.withdrawn);
    let ended = standing.filter(|it| is_over(context.index, &it.pod_uid));
    let ended: BTreeSet<Identity<'_>> = ended.map(identity).collect();
    let others = |spec: &NodeDevicesSpec| {
        let mut spec = spec.clone();
        spec.permits
            .retain(|permit| !ended.contains(&identity(permit)));
        spec
    };
    others(after) == others(before)
}

/// Whether the node has a permit, not withdrawn, of a pod that is over.
pub(crate) fn owes_end(context: PollContext<'_>, node: &str) -> bool {
    let devices = context.index.node_devices(node);
    let mut permits = devices.iter().flat_map(|devices| &devices.spec.permits);
    permits.any(|permit| !permit.withdrawn && is_over(context.index, &permit.pod_uid))
}

fn is_superseded(context: PollContext<'_>, permit: &Permit) -> bool {
    let Some(key) = GangKey::parse(&permit.gang) else {
        return false;
    };
    match context.index.gang(&key) {
        Some(gang) => {
            let is_other = gang.metadata.uid.as_ref() != Some(&permit.gang_uid);
            is_other || attempt(gang) > permit.attempt || has_ended(gang)
        }
        None => context.intent_of(&key).is_none() && belongs_to_another(context, permit, &key),
    }
}

/// Whether the permit's pod is another Gang's by now. A pod keeps the name of its gang once it was let go; before that the
/// name may change with the pods, and a Gang that was deleted comes back under another. Neither that one nor
/// anything else would ever carry the attempt that this permit is of, and while it exists its pod is not planned.
fn belongs_to_another(context: PollContext<'_>, permit: &Permit, key: &GangKey) -> bool {
    gang_key_of_uid(context.index, &permit.pod_uid).is_some_and(|gang| gang != key)
}

/// Adds the permits of what the gangs planned here carry. `devices`: what the driver says.
fn add_admitted(
    context: PollContext<'_>,
    node: &str,
    devices: Option<&NodeDevices>,
    spec: &mut NodeDevicesSpec,
) {
    let mut added = Vec::new();
    let mut still_prepared = None;
    let standing: BTreeSet<Identity<'_>> = spec.permits.iter().map(identity).collect();
    for key in context.plans.on_node(node) {
        let Some(plan) = context.plans.carried(key) else {
            continue;
        };
        // First what is so of nearly all.
        let stands = |place: &&usize| {
            let rank = &plan.ranks[**place];
            standing.contains(&(&*rank.pod, &*plan.gang_uid, plan.attempt))
        };
        let places = plan.places.get(node).into_iter().flatten();
        let mut missing = places.filter(|place| !stands(place)).peekable();
        let is_permitted = || context.views.of(key).is_some_and(|view| view.is_permitted);
        if missing.peek().is_none() || !is_permitted() {
            continue;
        }
        for place in missing {
            let rank = &plan.ranks[*place];
            let Some(pod) = context.index.pod_by_uid(&rank.pod) else {
                continue;
            };
            // A pod that is bound here is on this node, as whatever it was registered when it was planned.
            let here = rank.node.uid == spec.node_uid || bound_node(pod) == Some(node);
            if !here || !plan.needs_permit(rank) || is_terminal(pod) {
                continue;
            }
            // What was let go already goes by its permit, as ever.
            let is_withheld = is_gated(pod)
                && still_prepared
                    .get_or_insert_with(|| StillPrepared::on(&spec.permits, devices))
                    .claim_of(plan, rank)
                    .is_some();
            if !is_withheld {
                added.push(permit(context, plan, *place));
            }
        }
    }
    spec.permits.extend(added);
    for (plan, place) in owed_by_evicted(context, node, spec) {
        spec.permits.push(Permit {
            withdrawn: true,
            ..permit(context, &plan, place)
        });
    }
}

/// Ranks of attempts that are evicted which were let go to a node and have no permit there, since somebody deleted the object
/// that said so: what they are charged besides claims no driver lists. It is said by a permit that is withdrawn from the start.
fn owed_by_evicted(
    context: PollContext<'_>,
    node: &str,
    spec: &NodeDevicesSpec,
) -> Vec<(Arc<Plan>, usize)> {
    let mut owed = Vec::new();
    for key in context.plans.on_node(node) {
        let intent = context.intent_of(key);
        let Some(evict) = intent.filter(|it| it.kind == IntentKind::Evict && it.lost.is_none())
        else {
            continue;
        };
        let plan = &evict.plan;
        for place in plan.places.get(node).into_iter().flatten() {
            let rank = &plan.ranks[*place];
            let own = (&*rank.pod, &*plan.gang_uid, plan.attempt);
            let stands = spec.permits.iter().any(|permit| identity(permit) == own);
            if !stands && plan.needs_permit(rank) && is_let_go(context, node, &rank.pod) {
                owed.push((Arc::clone(plan), *place));
            }
        }
    }
    owed
}

/// Whether an eviction owes a node a permit that says what its pods are charged there.
pub(crate) fn owes_charge(context: PollContext<'_>, node: &str) -> bool {
    let devices = context.index.node_devices(node);
    devices.is_some_and(|devices| !owed_by_evicted(context, node, &devices.spec).is_empty())
}

fn permit(context: PollContext<'_>, plan: &Plan, place: usize) -> Permit {
    let rank = &plan.ranks[place];
    let charge = charge::of_rank(&plan.charge, &rank.claims, place, plan.ranks.len());
    Permit {
        pod_uid: rank.pod.clone(),
        claim_uids: rank.claims.clone(),
        gang: plan.key.to_string(),
        gang_uid: plan.gang_uid.clone(),
        attempt: plan.attempt,
        team: plan.team.clone(),
        of_other_driver: is_of_other_driver(context, &charge),
        charge,
        withdrawn: false,
    }
}
