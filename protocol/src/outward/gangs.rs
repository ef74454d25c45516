//! Gang objects: made from pods, kept in the right attempt, ended, and removed an hour later.

use k8s_openapi::{api::batch::v1::Job, apimachinery::pkg::apis::meta::v1::ObjectMeta};
use muster_api::{Gang, GangPhase};

use crate::{
    ApiRequest,
    admission::adopt,
    admission::intent_state::IntentState,
    admission::plan::Plan,
    injected_bug::InjectedBug,
    jobs,
    objects::{gang_object, is_gated, stamp},
    outward::{gang_status, restarts},
    poll_context::{PollContext, attempt},
};
use muster_cluster::{
    formed::{Ended, FormedGang, GangKey, has_ended},
    gangs::succeeded_ranks,
    pod::ObservedPod,
};

/// What is owed to a Gang, but for what an intent asks for.
pub(crate) fn write(context: PollContext<'_>, key: &GangKey) -> Option<ApiRequest> {
    let Some(gang) = context.index.gang(key) else {
        return creation(context, context.formed(key)?);
    };
    if context.busy(&gang_object(key)) || gang.metadata.deletion_timestamp.is_some() {
        return None;
    }
    owed(context, key, gang)
}

/// The attempt that a Gang that holds nothing must have at least: that of its gated pods' stamps, and above
/// those of its ungated ones.
pub(crate) fn owed_attempt(context: PollContext<'_>, key: &GangKey, gang: &Gang) -> i64 {
    if context.bugs.has(InjectedBug::NoRaise) && attempt(gang) > 0 {
        return attempt(gang);
    }
    if gang.status.is_none() {
        return first_attempt(context, key);
    }
    let pods = context.index.pods_of_gang(key);
    pods.iter()
        .map(|pod| match (stamp(pod), is_gated(pod)) {
            (stamp, true) => stamp,
            (0, false) => 0,
            (stamp, false) => stamp + 1,
        })
        .max()
        .unwrap_or(0)
}

/// A Gang that was never written starts above everything that was seen of its name, permits included: a predecessor's
/// permits must not pass for its own, and what its Job was changed for must not be taken for what it is to be changed for again.
fn first_attempt(context: PollContext<'_>, key: &GangKey) -> i64 {
    let pods = context.index.pods_of_gang(key);
    let stamps = pods.iter().map(stamp).max().unwrap_or(0);
    let permits = context.permits.highest_attempt(&key.to_string());
    let pods = pods.into_iter().map(AsRef::as_ref);
    let marks = jobs::last_marked(context.index, key, pods);
    stamps.max(permits).max(marks) + 1
}

/// Not while an intent about a predecessor of that name is in the Ledger: it is voided first.
fn creation(context: PollContext<'_>, formed: &FormedGang) -> Option<ApiRequest> {
    let key = &formed.key;
    let owed = context.index.gang(key).is_none()
        && context.intent_of(key).is_none()
        && !formed.pods.is_empty()
        && formed.ended.is_none()
        && !formed.excepted;
    if !owed || is_another_being_made(context, formed) {
        return None;
    }
    let mut gang = Gang::new(&key.name, formed.spec.clone());
    gang.spec.first_attempt = first_attempt(context, key);
    gang.metadata = ObjectMeta {
        name: Some(key.name.clone()),
        namespace: Some(key.namespace.clone()),
        labels: Some(formed.labels()).filter(|labels| !labels.is_empty()),
        owner_references: formed.owner.clone().map(|owner| vec![owner]),
        ..ObjectMeta::default()
    };
    Some(ApiRequest::CreateGang {
        gang: Box::new(gang),
    })
}

/// Whether the group has a Gang in a moment. It is looked at again once that is shown, which gives the group its name, or was made in vain
/// ([`InFlightWrites::take_no_longer_made`](crate::in_flight::InFlightWrites::take_no_longer_made)).
fn is_another_being_made(context: PollContext<'_>, formed: &FormedGang) -> bool {
    let key = &formed.key;
    let group = formed.spec.group.as_deref();
    group.is_some_and(|group| {
        let flights = context.flights;
        flights.is_another_being_made(&key.namespace, group, &key.name)
    })
}

fn owed(context: PollContext<'_>, key: &GangKey, gang: &Gang) -> Option<ApiRequest> {
    if has_ended(gang) {
        return revival(context, key, gang).or_else(|| removal(context, key, gang));
    }
    if let Some(intent) = context.intent_of(key) {
        // Everything else waits for the intent; a Gang that carries it is told how it fares.
        let carried = context
            .gang_of(&intent.plan)
            .is_some_and(|gang| PollContext::carries(gang, &intent.plan));
        let state = context.views.of(key).and_then(|view| view.intent);
        let fares = state == Some(IntentState::Complete);
        return (carried && fares).then(|| gang_status::update(context, key, gang))?;
    }
    if let Some(plan) = context.plans.carried(key) {
        return owed_to_admitted(context, key, gang, plan);
    }
    let owed = owed_attempt(context, key, gang);
    if attempt(gang) < owed {
        return gang_status::raised_to(context, key, gang, owed);
    }
    if let Some(end) = end_of_waiting(context, key, gang) {
        return gang_status::ended(context, key, gang, &end);
    }
    let may_adopt = gang
        .status
        .as_ref()
        .is_none_or(|it| it.phase != GangPhase::Evicting);
    let adopted = may_adopt
        .then(|| adopt::admission(context, key, gang))
        .flatten();
    adopted.or_else(|| gang_status::update(context, key, gang))
}

/// All its pods ended or are gone: that stays true, so it needs no intent, and whoever
/// concludes it is right. What they held is charged by their permits until it is proved released.
fn owed_to_admitted(
    context: PollContext<'_>,
    key: &GangKey,
    gang: &Gang,
    plan: &Plan,
) -> Option<ApiRequest> {
    if !plan.is_over(context) {
        return gang_status::update(context, key, gang);
    }
    match end_of_waiting(context, key, gang) {
        Some(end) => gang_status::ended(context, key, gang, &end),
        // Its Job says so in a moment; another attempt in between would only puzzle whoever looks. Unless the Job has
        // made more pods (it was scaled up, say): those wait for the next attempt.
        None if plan.has_succeeded(context) && !has_excess(context, key) => {
            gang_status::update(context, key, gang)
        }
        None if waits_for_its_job(context, plan) => gang_status::update(context, key, gang),
        None if restarts::is_in_doubt(context, gang, plan) => {
            gang_status::update(context, key, gang)
        }
        None => gang_status::attempt_after(context, gang, plan),
    }
}

/// Whether the Job decides first what becomes of the pods that wait for the next attempt: it has not counted yet what was done in this one,
/// or says that it ends. By its `successPolicy` it may do without them.
fn waits_for_its_job(context: PollContext<'_>, plan: &Plan) -> bool {
    let jobs = || jobs::of_plan(context, plan).into_iter();
    let counts = |job: &Job| {
        let pods = plan.ranks.iter();
        let pods = pods.filter_map(|rank| Some(&**context.index.pod_by_uid(&rank.pod)?));
        let pods: Vec<&ObservedPod> = pods.collect();
        succeeded_ranks(job, &pods) == succeeded_ranks(job, &[])
    };
    plan.gang_size.is_some() && jobs().any(|job| jobs::says_that_it_ends(job) || !counts(job))
}

fn has_excess(context: PollContext<'_>, key: &GangKey) -> bool {
    context
        .formed(key)
        .is_some_and(|formed| !formed.excess.is_empty())
}

/// How a Gang that holds nothing ended, if it did.
fn end_of_waiting(context: PollContext<'_>, key: &GangKey, gang: &Gang) -> Option<Ended> {
    match context.formed(key) {
        Some(formed) => formed.ended.clone().filter(|_| formed.pods.is_empty()),
        // Nobody makes its pods again.
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
fn revival(context: PollContext<'_>, key: &GangKey, gang: &Gang) -> Option<ApiRequest> {
    let formed = context.formed(key)?;
    let lives =
        !formed.pods.is_empty() && formed.ended.is_none() && context.intent_of(key).is_none();
    if context.bugs.has(InjectedBug::NoRevival) {
        return None;
    }
    let next = owed_attempt(context, key, gang).max(attempt(gang) + 1);
    lives.then(|| gang_status::raised_to(context, key, gang, next))?
}

/// An ended Gang goes an hour later, unless it changes until then. When it ended was told by the clock of another machine, perhaps: it goes no later than an hour
/// after this leader saw that it had.
fn removal(context: PollContext<'_>, key: &GangKey, gang: &Gang) -> Option<ApiRequest> {
    let finished_at = gang.status.as_ref()?.finished_at.as_ref()?;
    let keep_seconds = context.config.keep_ended_seconds;
    let age = context.now.wall.as_second() - finished_at.0.as_second();
    let seconds = |seconds: i64| u64::try_from(seconds).unwrap_or(0);
    let now = context.now.monotonic_seconds;
    let uid = gang.metadata.uid.as_deref().unwrap_or_default();
    let seen = context.clocks.gang_end_seen_at(uid).unwrap_or(now);
    let goes_at = now.saturating_add(seconds(keep_seconds.saturating_sub(age)));
    if !context.has_come(goes_at.min(seen.saturating_add(seconds(keep_seconds)))) {
        return None;
    }
    Some(ApiRequest::DeleteGang {
        key: gang_object(key),
        uid: gang.metadata.uid.clone()?,
        resource_version: gang.metadata.resource_version.clone()?,
    })
}
