//! How often a gang is started anew after its own pods failed, and that its Job does not give up before.
//!
//! **Counted** is an attempt of which pods failed by what ran in them, once, by the write that ends the attempt: `status.failedAttempts` and
//! `status.failedPods` rise with `status.attempt`, under the resourceVersion of the Gang. What nodes, faults, administrators and other gangs end is not counted, and
//! nothing of an attempt of which one rank was ended so: the others of a collective die with it. A pod that is removed after it failed counts as well; but whoever
//! completes an eviction of another leader may not see the failed pods any more: the gang is started once more then, never once less.
//!
//! **In doubt** is for a while what pods died of: a driver takes two seconds to tell of a fault, a node that fell silent most of a minute. Where it matters,
//! the attempt is not ended before ([`is_in_doubt`]). It is charged for as long; its pods have ended, so nothing of it is used.
//!
//! **Its Job** counts each failed pod, and of a gang all fail when one does. So the Job's `backoffLimit` is raised to what attempts may cost: as many
//! restarts as the gang declares ([`Restarts::failures_covered`]), or else, where recovery acts, all attempts up to this one ([`PodsOfAttempts::failures_until`]).
//! How many pods attempts had that are over, the Gang counts (`status.podsOfPastAttempts`), by the write that ends each: a Job that makes fewer by now
//! has failed pods of all of them. It is raised as
//! soon as pods of the attempt are seen: they start no sooner than they are admitted, by several writes after that. Nobody waits
//! for it; a gang that may not be helped is started all the same.
//!
//! **What the user wrote** stands in the annotation, and is what counts for pods that fail by themselves where nothing else is declared. Once more of them
//! failed, the limit is that again, and Kubernetes ends the Job by its own rule and its own word.
//!
//! **Who else writes** the limit: users, and evictions that delete pods ([`super::evict`]). The patch tests the resourceVersion, and says from which value to
//! which; nobody raises it to that again, so whoever changes it has the last word until the gang breaks once more, and what he wrote is from then on what the user
//! wrote. A limit of 0 says that nothing is to be tried twice, and stays. Twice or late it conflicts. Never answered, it is owed again once that is known.

use std::cell::Cell;

use k8s_openapi::api::batch::v1::Job;
use muster_api::{Gang, GangPhase, Reason, keys};
use muster_cluster::{
    formed::{GangKey, PendingReason, has_ended},
    gangs::runs_at_once,
    pod::{self, ObservedPod},
    rank_state::RankState,
};
use muster_engine::recovery::{PodsOfAttempts, Restarts};
use serde_json::json;

use crate::{
    ApiRequest, JobChange, Machine, Mode, Now,
    admission::plan::{Plan, Rank},
    disruptions,
    effect::Refusable,
    faults::{self, held},
    jobs::{
        annotation, are_gangs_of_one, backoff_limit, counts_failed_pods_alone, fails_by_index,
        is_controlled, owners_of, says_that_it_ends, suspended_for,
    },
    nodes::loss,
    objects::{is_deleting, job_object},
    outward::{gang_status, patch},
    poll_context::{PollContext, attempt},
};

/// How long after a rank failed it may still be told that it died of a fault, in seconds: drivers take less than two. The Job controller makes no
/// pod again for ten.
const FAULT_TOLD_WITHIN_SECONDS: u64 = 3;
/// The same where the Job fails by what is counted, which nobody undoes: a node that fell silent is told of as well.
const ANYTHING_TOLD_WITHIN_SECONDS: u64 = 60;

/// How many pods of an attempt that is over failed by what ran in them; 0 if anything else ended one of them, or the attempt. `cause`: why it is
/// evicted, if it is.
pub(crate) fn failed_by_themselves(
    context: PollContext<'_>,
    plan: &Plan,
    cause: Option<Reason>,
) -> i32 {
    if !matches!(
        cause,
        None | Some(Reason::PodFailed | Reason::MembersChanged)
    ) {
        return 0;
    }
    // The others of a collective die with a rank that somebody took, be its own pod gone.
    if disruptions::of_plan(context, plan).is_some() {
        return 0;
    }
    let mut failed: i32 = 0;
    for (rank, state) in plan.states(context) {
        let is_known = is_known_to_have_failed(context, plan, rank);
        let is_own = match context.index.pod_by_uid(&rank.pod) {
            // What was told to end is no failure: a Job that its user suspends counts none either. But what had failed before is one.
            Some(pod) if state == RankState::Failed && (is_known || !is_deleting(pod)) => {
                is_its_own_failure(pod)
            }
            None if is_known => true,
            Some(_) | None => continue,
        };
        if !is_own || held::may_have_ended(context, plan, rank) {
            return 0;
        }
        failed = failed.saturating_add(1);
    }
    let is_excused = failed > 0
        && (!held::faulty_nodes(context, plan).is_empty()
            || loss::of_plan(context, plan).is_some());
    if is_excused { 0 } else { failed }
}

/// Whether nothing that a pod which failed says of it explains that but what ran in it.
fn is_its_own_failure(pod: &ObservedPod) -> bool {
    !pod.is_disrupted() && !pod.failed_by_its_node()
}

/// Whether it was seen that the pod of a rank failed by itself, be it removed since.
fn is_known_to_have_failed(context: PollContext<'_>, plan: &Plan, rank: &Rank) -> bool {
    let clocks = context.clocks;
    clocks.has_failed_by_itself(&plan.gang_uid, plan.attempt, &rank.pod)
}

/// Whether all pods of an attempt ended, and it may still turn out that a fault ended them, which matters: its Job counts, and is to bear with faults.
pub(crate) fn is_in_doubt(context: PollContext<'_>, gang: &Gang, plan: &Plan) -> bool {
    let may_matter = owners_of(context.index, gang).any(may_be_covered)
        && failed_by_themselves(context, plan, None) > 0;
    if !may_matter {
        return false;
    }
    let told_within_seconds = if faults::acts(context) {
        FAULT_TOLD_WITHIN_SECONDS
    } else {
        0
    };
    let seconds = doubted_for_seconds(context, gang, plan).max(told_within_seconds);
    let since = context.clocks.failed_since(&plan.gang_uid);
    let since = since.unwrap_or(context.now.monotonic_seconds);
    !context.has_come(since.saturating_add(seconds))
}

/// How long it is doubted that pods of an attempt failed by themselves, in seconds, since its Job fails if they did; 0 if it does not.
pub(crate) fn doubted_for_seconds(context: PollContext<'_>, gang: &Gang, plan: &Plan) -> u64 {
    if restarts(context, &plan.key, gang).is_some() {
        return 0;
    }
    let failed = failed_by_themselves(context, plan, Some(Reason::PodFailed));
    let all = failed_pods(gang).saturating_add(failed);
    let mut jobs = owners_of(context.index, gang);
    let would_fail = |job: &Job| {
        is_covered(job) && all > own_limit(job) && makes_all_pods(context, &plan.key, gang, job)
    };
    let fails = failed > 0 && jobs.any(would_fail);
    if fails {
        ANYTHING_TOLD_WITHIN_SECONDS
    } else {
        0
    }
}

impl Machine {
    /// Notes that ranks of an attempt have failed, and which by themselves: whoever removes their pods takes nothing from what is counted.
    pub(crate) fn note_failures(
        &mut self,
        gang_uid: &str,
        plan: Option<&Plan>,
        epoch: i64,
        now: Now,
        wake: &Cell<Option<u64>>,
    ) {
        let context = self.context(epoch, now, wake);
        let mut has_failed = false;
        let mut by_themselves = Vec::new();
        if let Some(plan) = plan {
            let states = plan.states(context);
            for (rank, _) in states.filter(|(_, state)| *state == RankState::Failed) {
                has_failed = true;
                let pod = context.index.pod_by_uid(&rank.pod);
                let is_own = |pod: &ObservedPod| !is_deleting(pod) && is_its_own_failure(pod);
                if !is_known_to_have_failed(context, plan, rank) && pod.is_some_and(|it| is_own(it))
                {
                    by_themselves.push(rank.pod.clone());
                }
            }
        }
        if let Some(plan) = plan.filter(|_| has_failed) {
            let (attempt, now) = (plan.attempt, now.monotonic_seconds);
            self.clocks
                .note_failures(gang_uid, attempt, by_themselves, now);
        } else {
            let attempt = plan.map(|plan| plan.attempt);
            self.clocks.note_no_failure(gang_uid, attempt);
        }
    }
}

/// That the gang is not started again, if its pods failed too often.
pub(crate) fn exhausted(
    context: PollContext<'_>,
    key: &GangKey,
    gang: &Gang,
) -> Option<PendingReason> {
    let reason = |details: String| PendingReason {
        reason: Reason::RestartsExhausted,
        details,
    };
    let Some(restarts) = restarts(context, key, gang) else {
        let mut jobs = owners_of(context.index, gang);
        let job = jobs.find(|job| is_exceeded(context, key, gang, job))?;
        let name = job.metadata.name.as_deref().unwrap_or_default();
        return Some(reason(format!(
            "{} pods of it failed by themselves, and Job {name} bears with {} by its backoffLimit as it was written: Kubernetes ends it",
            failed_pods(gang),
            own_limit(job)
        )));
    };
    restarts.is_exhausted().then(|| {
        reason(format!(
            "pods of it failed in {} attempts, and it is started anew {} times at most by its max-restarts: delete it, or its owner, and \
             create it anew",
            restarts.failed_attempts, restarts.most
        ))
    })
}

/// Whether a gang of which so many attempts failed may be started anew by a limit that is declared.
pub(crate) fn are_left(
    context: PollContext<'_>,
    key: &GangKey,
    gang: &Gang,
    failed_attempts: i32,
) -> bool {
    let failed_attempts = u32::try_from(failed_attempts.max(0)).unwrap_or(u32::MAX);
    restarts(context, key, gang).is_some_and(|known| {
        let restarts = Restarts {
            failed_attempts,
            ..known
        };
        !restarts.is_exhausted()
    })
}

/// What is owed to the Job that owns a Gang, so that it makes failed pods again as often as the gang may be started anew, and no more often than its
/// user wrote.
pub(crate) fn writes(context: PollContext<'_>, key: &GangKey, gang: &Gang) -> Vec<ApiRequest> {
    let phase = gang.status.as_ref().map(|status| status.phase);
    let is_none_owed = context.config.mode == Mode::Observe
        || phase == Some(GangPhase::Evicting)
        || has_ended(gang)
        || gang.metadata.deletion_timestamp.is_some();
    if is_none_owed {
        return Vec::new();
    }
    let declared = restarts(context, key, gang);
    let owed = |job: &Job| match declared {
        Some(restarts) if restarts.is_exhausted() || fails_by_index(job) => None,
        Some(restarts) => cover(context, key, gang, job, RaisedFor::Restarts(restarts)),
        None if is_exceeded(context, key, gang, job) => restore(context, job),
        // What only observes changes nothing for the sake of faults.
        None if faults::acts(context) && may_be_covered(job) => {
            let attempt = whole_number(attempt(gang));
            cover(context, key, gang, job, RaisedFor::Faults { attempt })
        }
        None => None,
    };
    // Whoever controls a Job keeps its spec as it wants it.
    let jobs = owners_of(context.index, gang).filter(|job| !is_controlled(job));
    jobs.filter_map(owed).collect()
}

/// What the limit of a Job is raised for.
#[derive(Clone, Copy)]
enum RaisedFor {
    /// The restarts that its gang declares, beside what its attempts so far may have cost.
    Restarts(Restarts),
    /// What the attempts up to this one may have cost, whatever ended them: only of a Job that makes all pods of its gang.
    Faults { attempt: u32 },
}

impl RaisedFor {
    /// How many failures the limit is to cover, if the attempts of the gang have so many pods.
    fn failures(self, pods: PodsOfAttempts) -> i32 {
        let failures = match self {
            Self::Restarts(restarts) => restarts.failures_covered(pods),
            Self::Faults { attempt } => pods.failures_until(attempt, 0),
        };
        i32::try_from(failures).unwrap_or(i32::MAX)
    }
}

/// Raises the limit of a Job so that it covers what that is for, if it does not. At its pods it looks only where its numbers say that it may be owed.
fn cover(
    context: PollContext<'_>,
    key: &GangKey,
    gang: &Gang,
    job: &Job,
    raised_for: RaisedFor,
) -> Option<ApiRequest> {
    let limit = backoff_limit(job);
    let is_enough =
        |covered: i32| limit >= covered || covers(job).is_some_and(|(_, to)| to >= covered);
    let most = raised_for.failures(pods_of_attempts(gang, job));
    if limit <= 0 || is_enough(most) || !may_be_changed(context, job, JobChange::RaiseBackoffLimit)
    {
        return None;
    }
    let pods = context.index.pods_of_gang(key).into_iter();
    let pods: Vec<&ObservedPod> = pods.map(AsRef::as_ref).collect();
    // No gang of many speaks for the others.
    if pods.is_empty() || are_gangs_of_one(gang, job, &pods) {
        return None;
    }
    let covered = match (makes_all_pods(context, key, gang, job), raised_for) {
        (true, _) => most,
        (false, RaisedFor::Restarts(_)) => raised_for.failures(pods_by_job(job)),
        // Whose pods fail with those of others has its limit as it is.
        (false, RaisedFor::Faults { .. }) => return None,
    };
    if is_enough(covered) {
        return None;
    }
    let value = noted(job, own_limit(job), covered)?;
    let annotation = [(keys::BACKOFF_COVERS, Some(value.as_str()))];
    let raised = [("backoffLimit", json!(covered))];
    Some(patch::job(
        job,
        JobChange::RaiseBackoffLimit,
        &annotation,
        &raised,
    ))
}

/// Gives a Job the limit again that its user wrote, if it has another by Muster.
fn restore(context: PollContext<'_>, job: &Job) -> Option<ApiRequest> {
    let (from, to) = covers(job)?;
    let is_raised = from < to && backoff_limit(job) == to;
    if !is_raised || !may_be_changed(context, job, JobChange::RestoreBackoffLimit) {
        return None;
    }
    let value = noted(job, from, from)?;
    let annotation = [(keys::BACKOFF_COVERS, Some(value.as_str()))];
    let restored = [("backoffLimit", json!(from))];
    Some(patch::job(
        job,
        JobChange::RestoreBackoffLimit,
        &annotation,
        &restored,
    ))
}

/// Whether a Job lives, nobody is about to change it, and the API server did not refuse that.
fn may_be_changed(context: PollContext<'_>, job: &Job, change: JobChange) -> bool {
    let key = job_object(job);
    let is_refused = || {
        let refused = context.flights.refused(&key, Refusable::Job(change));
        refused.is_some_and(|(_, until)| !context.has_come(until))
    };
    !says_that_it_ends(job)
        && job.metadata.deletion_timestamp.is_none()
        && suspended_for(job).is_none()
        && !context.busy(&key)
        && !is_refused()
}

/// Whether a Job that says nothing of restarts is one whose limit Muster may raise for faults, and answer for what its user wrote.
fn may_be_covered(job: &Job) -> bool {
    !is_controlled(job) && !fails_by_index(job) && counts_failed_pods_alone(job)
}

/// Whether the limit of the Job is or was raised to cover restarts, and is Muster's to answer for.
fn is_covered(job: &Job) -> bool {
    covers(job).is_some() && may_be_covered(job)
}

/// Whether more pods of the gang failed by themselves than its Job may have by what its user wrote.
fn is_exceeded(context: PollContext<'_>, key: &GangKey, gang: &Gang, job: &Job) -> bool {
    is_covered(job) && failed_pods(gang) > own_limit(job) && makes_all_pods(context, key, gang, job)
}

/// Whether all pods of the gang are the Job's: those that there are, and those that are to come. A gang by label may have those of others besides: Kubernetes
/// counts them for each Job by itself, and a limit that is given back would not end the Job. (Its Gang is owned by the Job whose pods were there first.) The gang of
/// a Job has none but its own, though the Job may make fewer by now than when its Gang was made.
fn makes_all_pods(context: PollContext<'_>, key: &GangKey, gang: &Gang, job: &Job) -> bool {
    let job_uid = job.metadata.uid.as_deref();
    let size = u32::try_from(gang.spec.size).unwrap_or(0);
    if gang.spec.group.is_some() && !runs_at_once(job, size) {
        return false;
    }
    let pods = context.index.pods_of_gang(key).into_iter();
    let mut pods = pods.map(AsRef::as_ref);
    pods.all(|pod: &ObservedPod| {
        let owner = pod::controlling_job(pod);
        owner.is_some_and(|owner| Some(owner.uid.as_str()) == job_uid)
    })
}

/// The limit of a Job as its user wrote it: what stands there is his unless Muster raised it to that.
fn own_limit(job: &Job) -> i32 {
    let limit = backoff_limit(job);
    let ours = covers(job).filter(|(_, to)| *to == limit);
    ours.map_or(limit, |(from, _)| from)
}

/// What the annotation of a Job says once its limit is raised to another value for other reasons; `None`: it has none, or somebody changed the limit since.
pub(crate) fn still_covers(job: &Job, limit: i32) -> Option<String> {
    let (from, to) = covers(job)?;
    (to == backoff_limit(job))
        .then(|| noted(job, from, limit))
        .flatten()
}

fn noted(job: &Job, from: i32, to: i32) -> Option<String> {
    let uid = job.metadata.uid.as_deref()?;
    Some(format!("{from}/{to}/{uid}"))
}

/// From what to what the limit of the Job was raised, if it was. What cannot be read or be meant, or names another Job, from whose manifest this
/// one was made, says nothing.
fn covers(job: &Job) -> Option<(i32, i32)> {
    let mut parts = annotation(job, keys::BACKOFF_COVERS)?.splitn(3, '/');
    let (from, to, uid) = (parts.next()?, parts.next()?, parts.next()?);
    if job.metadata.uid.as_deref() != Some(uid) {
        return None;
    }
    let (from, to): (i32, i32) = (from.parse().ok()?, to.parse().ok()?);
    (0..=to).contains(&from).then_some((from, to))
}

/// How often the gang may be started anew, and how often it was; `None`: there is no limit.
fn restarts(context: PollContext<'_>, key: &GangKey, gang: &Gang) -> Option<Restarts> {
    let most = gang_status::limits(context, key, gang)
        .restart
        .max_restarts?;
    let failed = gang.status.as_ref().map(|status| status.failed_attempts);
    Some(Restarts {
        most: whole_number(most.into()),
        failed_attempts: whole_number(failed.unwrap_or(0).into()),
        attempt: whole_number(attempt(gang)),
    })
}

/// How many pods of the gang failed by themselves. An API server that does not store that, since its definition of the Gang is older, stores how many attempts did: at
/// least one pod each.
fn failed_pods(gang: &Gang) -> i32 {
    let status = gang.status.as_ref();
    status.map_or(0, |status| status.failed_pods.max(status.failed_attempts))
}

/// How many pods of a Job the attempts of its gang have, if all pods of the gang are the Job's: what the Gang counted are pods of others as well.
fn pods_of_attempts(gang: &Gang, job: &Job) -> PodsOfAttempts {
    let next = parallelism(job);
    let status = gang.status.as_ref();
    let before = status.map_or(0, |status| status.pods_of_past_attempts);
    // It has as many as it was admitted with, though its Job was told to make fewer since.
    let admitted = status.and_then(|status| status.admission.as_ref());
    let admitted = admitted.map_or(0, |admission| admission.pods.len());
    PodsOfAttempts {
        before: whole_number(before.into()),
        now: next.max(u32::try_from(admitted).unwrap_or(u32::MAX)),
        next,
    }
}

/// The same as far as the Job alone says it.
fn pods_by_job(job: &Job) -> PodsOfAttempts {
    let next = parallelism(job);
    PodsOfAttempts {
        before: 0,
        now: next,
        next,
    }
}

/// How many pods of a Job run at once.
fn parallelism(job: &Job) -> u32 {
    let parallelism = job.spec.as_ref().and_then(|spec| spec.parallelism);
    u32::try_from(parallelism.unwrap_or(1)).unwrap_or(0)
}

fn whole_number(number: i64) -> u32 {
    u32::try_from(number.max(0)).unwrap_or(u32::MAX)
}
