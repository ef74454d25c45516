//! How often a gang is started anew after its own pods failed, and that its Job does not give up before.
//!
//! **Counted** is an attempt of which a pod failed by what ran in it, once, by the write that ends the attempt: `status.failedAttempts` rises with
//! `status.attempt`, under the resourceVersion of the Gang. What nodes, faults, administrators and other gangs end is not counted. Whoever
//! completes an eviction of another leader may not see the failed pods any more: the gang is started once more then, never once less.
//!
//! **Its Job** counts each failed pod, and of a gang all fail when one does. So the Job's `backoffLimit` is raised to what as many restarts may cost
//! ([`Restarts::failures_covered`]), as soon as its pods are seen: they start no sooner than they are admitted, by several writes after that. Nobody waits
//! for it; a gang that may not be helped is started all the same.
//!
//! **Who else writes** the limit: users, and evictions that delete pods ([`super::evict`]). The patch tests the resourceVersion, and says from which value to
//! which; nobody raises it to that again, so whoever lowers it has the last word until the gang breaks once more. A limit of 0 says that nothing is
//! to be tried twice, and stays. Twice or late it conflicts. Never answered, it is owed again once that is known.

use k8s_openapi::api::batch::v1::Job;
use muster_api::{Gang, GangPhase, Reason, keys};
use muster_cluster::{
    formed::{GangKey, PendingReason, has_ended},
    pod::ObservedPod,
    rank_state::RankState,
};
use muster_engine::recovery::Restarts;
use serde_json::json;

use crate::{
    ApiRequest, JobChange, Mode,
    admission::plan::Plan,
    effect::Refusable,
    faults::held,
    jobs::{
        annotation, are_gangs_of_one, backoff_limit, fails_by_index, is_controlled, owners_of,
        says_that_it_ends, suspended_for,
    },
    objects::job_object,
    outward::{gang_status, patch},
    poll_context::{PollContext, attempt},
};

/// Whether an attempt that is over ended since pods of it failed by what ran in them. `cause`: why it is evicted, if it is.
pub(crate) fn failed_by_itself(
    context: PollContext<'_>,
    plan: &Plan,
    cause: Option<Reason>,
) -> bool {
    if !matches!(
        cause,
        None | Some(Reason::PodFailed | Reason::MembersChanged)
    ) {
        return false;
    }
    let mut states = plan.states(context);
    states.any(|(rank, state)| {
        let pod = context.index.pod_by_uid(&rank.pod);
        let is_its_own = |pod: &ObservedPod| !pod.is_disrupted() && !pod.failed_by_its_node();
        state == RankState::Failed
            && pod.is_some_and(|pod| is_its_own(pod))
            && !held::may_have_ended(context, rank)
    })
}

/// That the gang is not started again, if its pods failed too often.
pub(crate) fn exhausted(
    context: PollContext<'_>,
    key: &GangKey,
    gang: &Gang,
) -> Option<PendingReason> {
    let restarts = restarts(context, key, gang)?;
    restarts.is_exhausted().then(|| PendingReason {
        reason: Reason::RestartsExhausted,
        details: format!(
            "pods of it failed in {} attempts, and it is started anew {} times at most by its max-restarts: delete it, or its owner, and \
             create it anew",
            restarts.failed_attempts, restarts.most
        ),
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

/// What is owed to the Job that owns a Gang, so that it makes failed pods again as often as the gang may be started anew.
pub(crate) fn writes(context: PollContext<'_>, key: &GangKey, gang: &Gang) -> Vec<ApiRequest> {
    let Some(restarts) = restarts(context, key, gang) else {
        return Vec::new();
    };
    let phase = gang.status.as_ref().map(|status| status.phase);
    let is_none_owed = context.config.mode == Mode::Observe
        || restarts.is_exhausted()
        || phase == Some(GangPhase::Evicting)
        || has_ended(gang)
        || gang.metadata.deletion_timestamp.is_some();
    if is_none_owed {
        return Vec::new();
    }
    let pods = context.index.pods_of_gang(key).into_iter();
    let pods: Vec<&ObservedPod> = pods.map(AsRef::as_ref).collect();
    let jobs = owners_of(context.index, gang).filter(|job| {
        // Whoever controls a Job keeps its spec as it wants it; and no gang of many speaks for the others.
        !pods.is_empty() && !is_controlled(job) && !are_gangs_of_one(gang, job, &pods)
    });
    jobs.filter_map(|job| cover(context, job, restarts))
        .collect()
}

fn cover(context: PollContext<'_>, job: &Job, restarts: Restarts) -> Option<ApiRequest> {
    let key = job_object(job);
    let is_refused = || {
        let raise = Refusable::Job(JobChange::RaiseBackoffLimit);
        let refused = context.flights.refused(&key, raise);
        refused.is_some_and(|(_, until)| !context.has_come(until))
    };
    let limit = backoff_limit(job);
    let is_out_of_question = limit <= 0
        || fails_by_index(job)
        || says_that_it_ends(job)
        || job.metadata.deletion_timestamp.is_some()
        || suspended_for(job).is_some()
        || context.busy(&key)
        || is_refused();
    if is_out_of_question {
        return None;
    }
    let parallelism = job.spec.as_ref().and_then(|spec| spec.parallelism);
    let pods = u32::try_from(parallelism.unwrap_or(1)).unwrap_or(0);
    let covered = i32::try_from(restarts.failures_covered(pods)).unwrap_or(i32::MAX);
    let before = covers(job);
    if limit >= covered || before.is_some_and(|(_, to)| to >= covered) {
        return None;
    }
    let from = before.map_or(limit, |(from, _)| from);
    let uid = job.metadata.uid.as_deref()?;
    let value = format!("{from}/{covered}/{uid}");
    let annotation = [(keys::BACKOFF_COVERS, Some(value.as_str()))];
    let raised = [("backoffLimit", json!(covered))];
    Some(patch::job(
        job,
        JobChange::RaiseBackoffLimit,
        &annotation,
        &raised,
    ))
}

/// From what to what the limit of the Job was raised, if it was. What cannot be read, or names another Job, from whose manifest this one was
/// made, says nothing.
fn covers(job: &Job) -> Option<(i32, i32)> {
    let mut parts = annotation(job, keys::BACKOFF_COVERS)?.splitn(3, '/');
    let (from, to, uid) = (parts.next()?, parts.next()?, parts.next()?);
    if job.metadata.uid.as_deref() != Some(uid) {
        return None;
    }
    Some((from.parse().ok()?, to.parse().ok()?))
}

/// How often the gang may be started anew, and how often it was; `None`: there is no limit.
fn restarts(context: PollContext<'_>, key: &GangKey, gang: &Gang) -> Option<Restarts> {
    let most = gang_status::limits(context, key, gang)
        .restart
        .max_restarts?;
    let failed = gang.status.as_ref().map(|status| status.failed_attempts);
    let number = |number: i64| u32::try_from(number.max(0)).unwrap_or(u32::MAX);
    Some(Restarts {
        most: number(most.into()),
        failed_attempts: number(failed.unwrap_or(0).into()),
        attempt: number(attempt(gang)),
    })
}
