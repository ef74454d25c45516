//! What every pod holds, as the engine is told it: the union of intents, admissions and permits.
//!
//! A hold stands as long as any of them names it, so that no order in which they come and go lets a charge
//! drop out in between. Two of them may name the same claim: the engine charges a claim once, by UID.

use std::collections::BTreeMap;

use muster_api::Permit;
use muster_engine as engine;

use crate::{
    admission::charge, admission::plan::Plan, injected_bug::InjectedBug, objects::is_over,
    poll_context::PollContext,
};

/// Holds by UID of the pod.
pub(crate) type Holds = BTreeMap<engine::PodUid, engine::Hold>;

/// What every pod holds now.
pub(crate) fn all(picture: PollContext<'_>) -> Holds {
    let mut holds = Holds::new();
    for (key, gang) in picture.index.gangs() {
        if let Some(plan) = Plan::of_gang(key, gang) {
            add_plan(picture, &mut holds, &plan);
        }
    }
    for intent in picture.intents() {
        add_plan(picture, &mut holds, &Plan::of_intent(intent));
    }
    for (node, devices) in picture.index.all_node_devices() {
        for permit in &devices.spec.permits {
            if !(permit.withdrawn && picture.bugs.has(InjectedBug::ChargeLiteral)) {
                add_permit(picture, &mut holds, node, permit, devices.spec.lost);
            }
        }
    }
    holds
}

fn add_plan(picture: PollContext<'_>, holds: &mut Holds, plan: &Plan<'_>) {
    let charged = charge::read(plan.charge);
    let claims: BTreeMap<&str, &engine::HeldClaim> = charged
        .claims
        .iter()
        .map(|claim| (claim.uid.as_str(), claim))
        .collect();
    for (number, rank) in plan.ranks.iter().enumerate() {
        let own = rank
            .claims
            .iter()
            .filter_map(|uid| claims.get(uid.as_str()))
            .map(|claim| known(picture, &rank.node.node, (*claim).clone()))
            .collect();
        let part = charge::of_rank(plan.charge, &[], number, plan.ranks.len());
        add(
            holds,
            engine::Hold {
                pod: rank.pod.into(),
                gang: plan.gang_uid.into(),
                gang_name: plan.key.to_string(),
                team: plan.team.into(),
                node: rank.node.node.as_str().into(),
                charged_to_node: false,
                resources: resources(picture, rank.pod),
                charged: charge::read(&part).resources,
                claims: own,
                releasing: false,
            },
        );
    }
}

fn add_permit(
    picture: PollContext<'_>,
    holds: &mut Holds,
    node: &str,
    permit: &Permit,
    lost: bool,
) {
    let charged = charge::read(&permit.charge);
    let claims = charged
        .claims
        .into_iter()
        .map(|claim| known(picture, node, claim))
        .collect();
    add(
        holds,
        engine::Hold {
            pod: permit.pod_uid.as_str().into(),
            gang: permit.gang_uid.as_str().into(),
            gang_name: permit.gang.clone(),
            team: permit.team.as_str().into(),
            node: node.into(),
            charged_to_node: lost,
            resources: resources(picture, &permit.pod_uid),
            charged: charged.resources,
            claims,
            releasing: permit.withdrawn,
        },
    );
}

/// Adds a hold, or the claims of it that the pod does not hold yet: a pod that was planned anew keeps what a
/// permit of its earlier attempt names.
fn add(holds: &mut Holds, hold: engine::Hold) {
    let Some(stands) = holds.get_mut(&hold.pod) else {
        holds.insert(hold.pod.clone(), hold);
        return;
    };
    for claim in hold.claims {
        if !stands.claims.iter().any(|known| known.uid == claim.uid) {
            stands.claims.push(claim);
        }
    }
}

/// What is known of a held claim: what it asks for while it exists, and its devices, by its allocation or, once
/// the API forgot it, by what the driver lists.
fn known(picture: PollContext<'_>, node: &str, mut claim: engine::HeldClaim) -> engine::HeldClaim {
    claim.request = picture.index.request_of_claim(&claim.uid);
    claim.devices = allocated(picture, claim.uid.as_str())
        .or_else(|| listed(picture, node, claim.uid.as_str()));
    claim
}

/// The devices of a claim's allocation.
pub(crate) fn allocated(picture: PollContext<'_>, claim: &str) -> Option<Vec<engine::DeviceName>> {
    let claim = picture.index.claim_by_uid(claim)?;
    let allocation = claim.status.as_ref()?.allocation.as_ref()?;
    let results = allocation.devices.as_ref()?.results.as_ref()?;
    let names = results
        .iter()
        .map(|result| format!("{}/{}/{}", result.driver, result.pool, result.device).into());
    Some(names.collect())
}

fn listed(picture: PollContext<'_>, node: &str, claim: &str) -> Option<Vec<engine::DeviceName>> {
    let devices = picture.index.node_devices(node)?;
    let status = devices.status.as_ref()?;
    let held = status.held.iter().find(|held| held.claim_uid == claim)?;
    let names = held.devices.iter().map(|name| device_name(node, name));
    Some(names.collect())
}

/// The engine's name of a device of our driver: its one pool per node is named after the node.
pub(crate) fn device_name(node: &str, device: &str) -> engine::DeviceName {
    format!("{}/{node}/{device}", muster_api::keys::DRIVER).into()
}

/// A pod that ended takes nothing of the node but its devices. One that lives takes its cpu and memory whether or not
/// its claims are understood (any more).
fn resources(picture: PollContext<'_>, pod: &str) -> engine::PodResources {
    if is_over(picture.index, pod) {
        return engine::PodResources::default();
    }
    let pod = pod.into();
    picture
        .index
        .request_of_pod(&pod)
        .map(|request| request.resources.clone())
        .or_else(|| picture.index.resources_of_pod(&pod))
        .unwrap_or_default()
}
