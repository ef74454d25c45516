//! Which gangs may be evicted for others, or for a limit, as the engine is told.

use k8s_openapi::api::batch::v1::Job;
use muster_api::{
    Gang, PriorityTierSpec, TierPreemption, conditions as condition_types,
    gang::{PreemptionNotice, PreemptionRight},
};
use muster_cluster::{
    formed::{FormedGang, has_ended},
    pod::ObservedPod,
};
use muster_engine as engine;

use crate::{
    Mode,
    admission::{evict, plan::Plan, preempt, stage::View},
    injected_bug::InjectedBug,
    jobs,
    outward::{evict::may_be_suspended, gang_status},
    poll_context::PollContext,
};

/// A gang as far as it goes by this who is evicted, if it may be: its attempt is under way. Its tier says whether other gangs may preempt
/// it; no tier keeps it where its Team uses more than it may.
pub(crate) fn running(
    context: PollContext<'_>,
    gang: &Gang,
    plan: &Plan,
    view: &View,
) -> Option<engine::Running> {
    let formed = context.formed(&plan.key)?;
    let notice = preempt::notice(gang, plan);
    let may_be_evicted = context.config.mode == Mode::Enforce
        && view.is_under_way()
        && !has_ended(gang)
        && gang.metadata.deletion_timestamp.is_none()
        && !evict::is_as_found(context, plan);
    if !may_be_evicted {
        return None;
    }
    let status = gang.status.as_ref()?;
    let admitted_at = admitted_at(gang).unwrap_or(0);
    let queued_at = status.queued_at.as_ref();
    Some(engine::Running {
        uid: plan.gang_uid.as_str().into(),
        team: plan.team.as_str().into(),
        priority: if context.bugs.has(InjectedBug::TierIgnored) {
            i32::MIN
        } else {
            formed.priority
        },
        queued_at: engine::Timestamp(
            queued_at.map_or(formed.last_pod_created_at, |at| at.0.as_second()),
        ),
        admitted_at: engine::Timestamp(admitted_at),
        checkpointed_at: checkpointed_at(context, formed, plan),
        is_made_again: is_made_again(context, gang, plan),
        protected_until: protected_until(context, gang, formed, plan, admitted_at),
        ending_since: notice.map(|notice| engine::Timestamp(notice.noticed_at.0.as_second())),
        // Who was told to go has the time that it was told, whatever its tier says by now.
        notice_seconds: notice.map_or(formed.preemptible.notice_seconds, notice_seconds),
        may_be_preempted: formed.preemptible.when != TierPreemption::Never
            || admitted_by(context, plan).is_some_and(may_borrow)
            || context.bugs.has(InjectedBug::TierIgnored),
        is_told_over_quota: notice
            .is_some_and(|notice| notice.right == PreemptionRight::QuotaShrunk),
    })
}

fn notice_seconds(notice: &PreemptionNotice) -> i64 {
    let (from, to) = (notice.noticed_at.0, notice.preempt_at.0);
    to.as_second().saturating_sub(from.as_second())
}

/// The tier that an attempt was admitted by, as that is now. Users may have their gang follow another one since.
fn admitted_by<'a>(context: PollContext<'a>, plan: &Plan) -> Option<&'a PriorityTierSpec> {
    let tier = context.index.tier(plan.tier.as_deref()?)?;
    Some(&tier.spec)
}

/// Whether gangs of a tier may borrow. What they borrowed comes back by preemption alone.
fn may_borrow(tier: &PriorityTierSpec) -> bool {
    tier.preemption != TierPreemption::Never
}

/// Whether an attempt that was told as running is being ended, or ended.
pub(crate) fn ends(gang: Option<&Gang>, view: Option<&View>) -> bool {
    let Some(gang) = gang else { return true };
    has_ended(gang)
        || gang.metadata.deletion_timestamp.is_some()
        || view.is_none_or(|view| !view.is_under_way())
}

/// Whether its pods are made again once they were evicted: those without owner are not, nor those of a work queue of which a pod
/// succeeded. Those of a Job with `backoffLimitPerIndex` that cannot be suspended may not be: each deletion counts as a failure of the
/// index, and nobody can raise that limit.
fn is_made_again(context: PollContext<'_>, gang: &Gang, plan: &Plan) -> bool {
    let mut owners = gang.metadata.owner_references.iter().flatten();
    let mut jobs = jobs::of_plan(context, plan).into_iter();
    let pods = plan.ranks.iter();
    let pods = pods.filter_map(|rank| Some(&**context.index.pod_by_uid(&rank.pod)?));
    let pods: Vec<&ObservedPod> = pods.collect();
    let is_lost = |job: &Job| {
        jobs::is_drained_queue(context.index, job)
            || jobs::fails_by_index(job) && !may_be_suspended(context, gang, job, &pods)
    };
    owners.next().is_some() && !jobs.any(is_lost)
}

/// Its last checkpoint, where its tier waits for one: other gangs are not known to go on from theirs.
fn checkpointed_at(
    context: PollContext<'_>,
    formed: &FormedGang,
    plan: &Plan,
) -> Option<engine::Timestamp> {
    if formed.preemptible.when != TierPreemption::AfterCheckpoint {
        return None;
    }
    let at = preempt::checkpointed_at(context, plan)?;
    Some(engine::Timestamp(at.as_second()))
}

/// The end of its minimum run time: counted from its start, and before that from its admission. Those times were told by a wall
/// clock; it is never longer than it was meant to be, counted from when this leader learnt of it.
fn protected_until(
    context: PollContext<'_>,
    gang: &Gang,
    formed: &FormedGang,
    plan: &Plan,
    admitted_at: i64,
) -> Option<engine::Timestamp> {
    let seconds = min_runtime_seconds(context, formed, plan);
    let since = since(gang, condition_types::RUNNING).unwrap_or(admitted_at);
    let uid = gang.metadata.uid.as_deref().unwrap_or_default();
    let learnt = context.clocks.running_seen_at(uid)?;
    let learnt = context.began.engine_time(learnt).0;
    let since = since.min(learnt);
    (seconds > 0).then(|| engine::Timestamp(since.saturating_add(seconds)))
}

/// For how long it is left alone: no longer than by the tier that it was admitted by.
fn min_runtime_seconds(context: PollContext<'_>, formed: &FormedGang, plan: &Plan) -> i64 {
    let seconds = formed.preemptible.min_runtime_seconds;
    let Some(tier) = admitted_by(context, plan).filter(|tier| may_borrow(tier)) else {
        return seconds;
    };
    let team = context.index.team(&plan.team);
    let of_team = team.and_then(|team| team.spec.min_runtime_seconds);
    seconds.min(tier.min_runtime_seconds.max(of_team).unwrap_or(0).max(0))
}

/// Since when an attempt runs as its Gang says, or is admitted.
pub(crate) fn runs_since(gang: &Gang) -> Option<i64> {
    since(gang, condition_types::RUNNING).or_else(|| since(gang, condition_types::ADMITTED))
}

/// Since when a Gang is admitted, as it says.
pub(crate) fn admitted_at(gang: &Gang) -> Option<i64> {
    since(gang, condition_types::ADMITTED)
}

/// The second of the monotonic clock in which an attempt that is under way ends at the latest, if its gang says for how long it runs at
/// most: counted from its admission, so that whoever is promised its place then knows when that is.
pub(crate) fn ends_at(context: PollContext<'_>, gang: &Gang, plan: &Plan) -> Option<u64> {
    let spec = gang_status::limits(context, &plan.key, gang);
    let seconds = spec.max_runtime_seconds?;
    if evict::is_as_found(context, plan) {
        return None;
    }
    let seconds = u64::try_from(seconds).unwrap_or(0);
    context.clocks.admitted_for(&plan.gang_uid, seconds)
}

/// When such an attempt is gone at the latest: its pods may take the time that they asked for to end.
pub(crate) fn gone_at(
    context: PollContext<'_>,
    gang: &Gang,
    plan: &Plan,
) -> Option<engine::Timestamp> {
    let ends_at = ends_at(context, gang, plan)?;
    let pods = plan.ranks.iter().map(|rank| rank.pod.as_str());
    let gone_at = ends_at.saturating_add(ends_within_seconds(context, pods));
    Some(context.began.engine_time(gone_at))
}

/// How long these pods may take to end once they are told to, all at the same time.
pub(crate) fn ends_within_seconds<'a>(
    context: PollContext<'_>,
    pods: impl Iterator<Item = &'a str>,
) -> u64 {
    let pods = pods.filter_map(|uid| context.index.pod_by_uid(uid));
    let seconds = pods.map(|pod| u64::from(pod.ends_within_seconds()));
    seconds.max().unwrap_or(0)
}

/// Since when a condition of a Gang holds, in seconds since the Unix epoch, if it does.
fn since(gang: &Gang, type_: &str) -> Option<i64> {
    let conditions = gang.status.iter().flat_map(|status| &status.conditions);
    let mut conditions = conditions.filter(|it| it.type_ == type_ && it.status == "True");
    Some(conditions.next()?.last_transition_time.0.as_second())
}
