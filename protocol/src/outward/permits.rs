//! Permits: what `NodeDevices.spec` has to say, worked out anew at each poll.
//!
//! Written by the leader only, one object per node, conditional on its resourceVersion. A permit stands
//! from before the first ungate of its attempt until its release is proved ([`super::release`]), and while
//! it stands its claims are charged. It is written only for what an admission carries already, so that
//! adding it never charges anything new.

use std::collections::{BTreeMap, BTreeSet};

use muster_api::{NodeDevices, NodeDevicesSpec, Permit, keys};

use crate::{
    ApiRequest,
    admission::adopt,
    admission::charge,
    admission::intent_state::{IntentState, fate},
    admission::plan::Plan,
    admission::void,
    injected_bug::InjectedBug,
    objects::{is_over, is_terminal, node_devices_object},
    outward::release,
    poll_context::{PollContext, attempt, has_ended},
};
use muster_cluster::{formed::GangKey, index::NamespacedName};

/// What has to be written to the `NodeDevices` of all nodes.
pub(crate) fn writes(picture: PollContext<'_>) -> Vec<ApiRequest> {
    let plans = plans(picture);
    let planned = by_node(&plans);
    let voided = void::voided(picture);
    let mut writes = Vec::new();
    for (name, node) in picture.index.nodes() {
        if picture.index.node_devices(name).is_none()
            && let Some(uid) = &node.metadata.uid
        {
            writes.extend(creation(picture, name, uid, &planned));
        }
    }
    for (name, devices) in picture.index.all_node_devices() {
        if !picture.busy(&node_devices_object(name)) {
            writes.extend(replacement(picture, name, devices, &planned, &voided));
        }
    }
    writes
}

/// Whether the pod has a permit of that attempt on the node; a withdrawn one counts unless `live`.
pub(crate) fn is_permitted(
    picture: PollContext<'_>,
    node: &str,
    pod: &str,
    attempt: i64,
    live: bool,
) -> bool {
    picture.index.node_devices(node).is_some_and(|devices| {
        devices.spec.permits.iter().any(|permit| {
            permit.pod_uid == pod && permit.attempt == attempt && !(live && permit.withdrawn)
        })
    })
}

/// The object is made for the Node as it is now. What its gangs carry is permitted from the start, so that
/// a driver that sees it first never sees less than what stands.
fn creation(
    picture: PollContext<'_>,
    node: &str,
    node_uid: &str,
    planned: &Planned<'_>,
) -> Option<ApiRequest> {
    if picture.busy(&node_devices_object(node)) {
        return None;
    }
    let mut spec = NodeDevicesSpec {
        node_uid: node_uid.to_owned(),
        leader_epoch: picture.epoch,
        enforce: adopt::may_enforce(picture, node),
        lost: false,
        permits: Vec::new(),
    };
    add_admitted(picture, node, &mut spec, planned);
    Some(ApiRequest::CreateNodeDevices {
        node: node.to_owned(),
        spec,
    })
}

fn replacement(
    picture: PollContext<'_>,
    node: &str,
    devices: &NodeDevices,
    planned: &Planned<'_>,
    voided: &void::Voided,
) -> Option<ApiRequest> {
    let before = &devices.spec;
    let mut spec = before.clone();
    // Released is what was withdrawn in the generation that the driver acknowledged, never what this very
    // write withdraws.
    spec.permits
        .retain(|permit| !release::is_proved(picture, devices, permit));
    withdraw(picture, &mut spec, voided);
    add_admitted(picture, node, &mut spec, planned);
    adopt::permit_held(picture, node, devices, &mut spec);
    spec.enforce = adopt::may_enforce(picture, node);
    if spec.permits.is_empty()
        && let Some(uid) = picture
            .index
            .node(node)
            .and_then(|node| node.metadata.uid.as_ref())
    {
        // A Node of that name came back; nothing of the one before stands any more.
        spec.node_uid.clone_from(uid);
    }

    let finalizer = !spec.permits.is_empty() && !picture.bugs.has(InjectedBug::NoFinalizer);
    let has_finalizer = devices
        .metadata
        .finalizers
        .iter()
        .flatten()
        .any(|name| name == keys::PERMITS_FINALIZER);
    let owed_epoch = voided.nodes.contains(node) && before.leader_epoch < picture.epoch;
    if spec == *before && finalizer == has_finalizer && !owed_epoch {
        return None;
    }
    if !picture.bugs.has(InjectedBug::NoFence) {
        spec.leader_epoch = picture.epoch;
    }
    Some(ApiRequest::ReplaceNodeDevices {
        node: node.to_owned(),
        uid: devices.metadata.uid.clone()?,
        resource_version: devices.metadata.resource_version.clone()?,
        spec,
        finalizer,
    })
}

/// Withdraws what has no claim to devices any more: the pod ended or is gone, or its attempt is over.
fn withdraw(picture: PollContext<'_>, spec: &mut NodeDevicesSpec, voided: &void::Voided) {
    for permit in spec.permits.iter_mut().filter(|permit| !permit.withdrawn) {
        permit.withdrawn = is_over(picture.index, &permit.pod_uid)
            || is_superseded(picture, permit)
            || voided
                .attempts
                .get(permit.gang_uid.as_str())
                .is_some_and(|attempt| permit.attempt <= *attempt);
    }
}

fn is_superseded(picture: PollContext<'_>, permit: &Permit) -> bool {
    let Some((namespace, name)) = permit.gang.split_once('/') else {
        return false;
    };
    let key = GangKey {
        namespace: namespace.to_owned(),
        name: name.to_owned(),
    };
    match picture.index.gang(&key) {
        Some(gang) => attempt(gang) > permit.attempt || has_ended(gang),
        None => picture.intent_of(&key).is_none() && belongs_to_another(picture, permit, &key),
    }
}

/// Whether the permit's pod is another Gang's by now. A pod keeps the name of its gang once it was let go; before that the
/// name may change with the pods, and a Gang that was deleted comes back under another. Neither that one nor
/// anything else would ever carry the attempt that this permit is of, and while it stands its pod is not planned.
fn belongs_to_another(picture: PollContext<'_>, permit: &Permit, key: &GangKey) -> bool {
    picture
        .index
        .pod_by_uid(&permit.pod_uid)
        .is_some_and(|pod| {
            let name = NamespacedName {
                namespace: pod.metadata.namespace.clone().unwrap_or_default(),
                name: pod.metadata.name.clone().unwrap_or_default(),
            };
            picture
                .index
                .gang_of_pod(&name)
                .is_some_and(|gang| gang != key)
        })
}

/// The plans whose permits stand or are to be written.
fn plans(picture: PollContext<'_>) -> Vec<Plan<'_>> {
    picture
        .index
        .gangs()
        .filter_map(|(key, gang)| {
            let plan = Plan::of_gang(key, gang)?;
            // While the start is not complete all of it must match; afterwards each pod stands for itself.
            let stands = picture.intent_of(key).is_none_or(|intent| {
                fate(picture, intent) == IntentState::Complete && plan.mismatch(picture).is_none()
            });
            stands.then_some(plan)
        })
        .collect()
}

/// The ranks that hold devices, by node.
type Planned<'a> = BTreeMap<&'a str, Vec<(&'a Plan<'a>, usize)>>;

fn by_node<'a>(plans: &'a [Plan<'a>]) -> Planned<'a> {
    let mut planned = Planned::new();
    for plan in plans {
        for (rank, place) in plan.ranks.iter().enumerate() {
            if !place.claims.is_empty() {
                let ranks = planned.entry(place.node.node.as_str()).or_default();
                ranks.push((plan, rank));
            }
        }
    }
    planned
}

fn add_admitted(
    picture: PollContext<'_>,
    node: &str,
    spec: &mut NodeDevicesSpec,
    planned: &Planned<'_>,
) {
    let standing: BTreeSet<(String, i64)> = spec
        .permits
        .iter()
        .map(|permit| (permit.pod_uid.clone(), permit.attempt))
        .collect();
    for (plan, rank) in planned.get(node).into_iter().flatten() {
        let place = &plan.ranks[*rank];
        let lives = picture
            .index
            .pod_by_uid(place.pod)
            .is_some_and(|pod| !is_terminal(pod));
        let stands = standing.contains(&(place.pod.to_owned(), plan.attempt));
        if place.node.node_uid == spec.node_uid && lives && !stands {
            spec.permits.push(permit(plan, *rank));
        }
    }
}

fn permit(plan: &Plan<'_>, rank: usize) -> Permit {
    let place = &plan.ranks[rank];
    Permit {
        pod_uid: place.pod.to_owned(),
        claim_uids: place.claims.to_vec(),
        gang: plan.key.to_string(),
        gang_uid: plan.gang_uid.to_owned(),
        attempt: plan.attempt,
        team: plan.team.to_owned(),
        charge: charge::of_rank(plan.charge, place.claims, rank, plan.ranks.len()),
        withdrawn: false,
    }
}
