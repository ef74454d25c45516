//! Gang objects: made from pods, kept in the right attempt, ended, and removed an hour later.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use muster_api::Gang;

use crate::{
    ApiRequest,
    admission::adopt,
    admission::intent_state::{IntentState, fate},
    admission::plan::Plan,
    injected_bug::InjectedBug,
    objects::{gang_object, is_gated, stamp},
    outward::gang_status,
    poll_context::{PollContext, attempt, has_ended},
};
use muster_cluster::formed::{Ended, FormedGang, GangKey};

/// What is owed to Gangs, but for what intents ask for.
pub(crate) fn writes(picture: PollContext<'_>) -> Vec<ApiRequest> {
    let existing = picture.index.gangs().filter_map(|(key, gang)| {
        if picture.busy(&gang_object(key)) || gang.metadata.deletion_timestamp.is_some() {
            return None;
        }
        owed(picture, key, gang)
    });
    let missing = picture
        .index
        .formed_gangs()
        .filter_map(|formed| creation(picture, formed));
    existing.chain(missing).collect()
}

/// The attempt that a Gang that holds nothing must have at least: that of its gated pods' stamps, and above
/// those of its ungated ones. A Gang that was never written starts above everything that was seen of its
/// name, permits included: a predecessor's permits must not pass for its own.
pub(crate) fn owed_attempt(picture: PollContext<'_>, key: &GangKey, gang: &Gang) -> i64 {
    if picture.bugs.has(InjectedBug::NoRaise) && attempt(gang) > 0 {
        return attempt(gang);
    }
    let pods = picture.index.pods_of_gang(key);
    if attempt(gang) == 0 {
        let stamps = pods.iter().map(|pod| stamp(pod)).max().unwrap_or(0);
        return stamps.max(highest_permit(picture, key)) + 1;
    }
    pods.iter()
        .map(|pod| match (stamp(pod), is_gated(pod)) {
            (stamp, true) => stamp,
            (0, false) => 0,
            (stamp, false) => stamp + 1,
        })
        .max()
        .unwrap_or(0)
}

fn highest_permit(picture: PollContext<'_>, key: &GangKey) -> i64 {
    let name = key.to_string();
    picture
        .index
        .all_node_devices()
        .flat_map(|(_, devices)| &devices.spec.permits)
        .filter(|permit| permit.gang == name)
        .map(|permit| permit.attempt)
        .max()
        .unwrap_or(0)
}

/// Not while an intent about a predecessor of that name is in the Ledger: it is voided first.
fn creation(picture: PollContext<'_>, formed: &FormedGang) -> Option<ApiRequest> {
    let key = &formed.key;
    let owed = picture.index.gang(key).is_none()
        && picture.intent_of(key).is_none()
        && !formed.pods.is_empty()
        && formed.ended.is_none()
        && !formed.excepted;
    if !owed {
        return None;
    }
    let mut gang = Gang::new(&key.name, formed.spec.clone());
    gang.metadata = ObjectMeta {
        name: Some(key.name.clone()),
        namespace: Some(key.namespace.clone()),
        labels: (!formed.labels.is_empty()).then(|| formed.labels.clone()),
        owner_references: formed.owner.clone().map(|owner| vec![owner]),
        ..ObjectMeta::default()
    };
    Some(ApiRequest::CreateGang {
        gang: Box::new(gang),
    })
}

fn owed(picture: PollContext<'_>, key: &GangKey, gang: &Gang) -> Option<ApiRequest> {
    if has_ended(gang) {
        return revival(picture, key, gang).or_else(|| removal(picture, key, gang));
    }
    if let Some(intent) = picture.intent_of(key) {
        // Everything else waits for the intent; a Gang that carries it is told how it fares.
        let carried = picture
            .gang_of(intent)
            .is_some_and(|gang| PollContext::carries(gang, intent));
        let fares = carried && fate(picture, intent) == IntentState::Complete;
        return fares.then(|| gang_status::update(picture, key, gang))?;
    }
    if let Some(plan) = Plan::of_gang(key, gang) {
        return owed_to_admitted(picture, key, gang, &plan);
    }
    let owed = owed_attempt(picture, key, gang);
    if attempt(gang) < owed {
        return gang_status::raised_to(picture, key, gang, owed);
    }
    if let Some(end) = end_of_waiting(picture, key, gang) {
        return gang_status::ended(picture, key, gang, &end);
    }
    adopt::admission(picture, key, gang).or_else(|| gang_status::update(picture, key, gang))
}

/// All its pods ended or are gone: that stays true, so it needs no intent, and whoever concludes it is right.
/// What they held is charged by their permits until it is proved released.
fn owed_to_admitted(
    picture: PollContext<'_>,
    key: &GangKey,
    gang: &Gang,
    plan: &Plan<'_>,
) -> Option<ApiRequest> {
    if !plan.is_over(picture) {
        return gang_status::update(picture, key, gang);
    }
    match end_of_waiting(picture, key, gang) {
        Some(end) => gang_status::ended(picture, key, gang, &end),
        // Its Job says so in a moment; another attempt in between would only puzzle whoever looks. Unless the Job has
        // made more pods (it was scaled up, say): those wait for the next attempt.
        None if plan.has_succeeded(picture) && !has_excess(picture, key) => {
            gang_status::update(picture, key, gang)
        }
        None => gang_status::next_attempt(picture, key, gang),
    }
}

fn has_excess(picture: PollContext<'_>, key: &GangKey) -> bool {
    picture
        .formed(key)
        .is_some_and(|formed| !formed.excess.is_empty())
}

/// How a Gang that holds nothing ended, if it did.
fn end_of_waiting(picture: PollContext<'_>, key: &GangKey, gang: &Gang) -> Option<Ended> {
    match picture.formed(key) {
        Some(formed) => formed.ended.clone().filter(|_| formed.pods.is_empty()),
        // Nobody makes its pods anew.
        None if gang
            .metadata
            .owner_references
            .iter()
            .flatten()
            .next()
            .is_none() =>
        {
            Some(Ended::Failed("all its pods were deleted".to_owned()))
        }
        None => None,
    }
}

/// A Gang that was declared ended too early: a leader that saw the Gang, and its pods or its Job not yet (they come
/// by watches of their own), took them for gone. Absence is no proof; whoever sees members takes it up again.
fn revival(picture: PollContext<'_>, key: &GangKey, gang: &Gang) -> Option<ApiRequest> {
    let formed = picture.formed(key)?;
    let lives =
        !formed.pods.is_empty() && formed.ended.is_none() && picture.intent_of(key).is_none();
    if picture.bugs.has(InjectedBug::NoRevival) {
        return None;
    }
    let next = owed_attempt(picture, key, gang).max(attempt(gang) + 1);
    lives.then(|| gang_status::raised_to(picture, key, gang, next))?
}

fn removal(picture: PollContext<'_>, key: &GangKey, gang: &Gang) -> Option<ApiRequest> {
    let finished_at = gang.status.as_ref()?.finished_at.as_ref()?;
    let age = picture.now.wall.as_second() - finished_at.0.as_second();
    (age >= picture.config.keep_ended_seconds).then(|| ApiRequest::DeleteGang {
        key: gang_object(key),
        uid: gang.metadata.uid.clone().unwrap_or_default(),
    })
}
