//! What is left of attempts that are over: their pods are ended, by way of their owners.
//!
//! An attempt is over once its Gang is above it. Its Evict is in the Ledger until the Gang says so and its permits are
//! withdrawn; only then its pods follow. Everything here goes by what is seen of the Gang, the pods and their Jobs, so another
//! controller goes on where one stopped, and whatever is done twice changes nothing.
//!
//! **A Job is suspended** where that does no harm: then its controller deletes the pods and counts none of them as failed.
//! Deleted by anybody else, each counts as a failure, and more of them than `backoffLimit` end the Job. The field and our
//! annotation change in one patch, which tests the resourceVersion: a suspension of ours can be told from a user's, which is
//! respected and never undone. Once its pods are gone, those on lost nodes aside, the Job is resumed by one patch as well. If
//! somebody else resumes it, only the annotation goes, and the Job is not suspended for this attempt again.
//!
//! **All others** lose their pods one by one, each by its UID, after it was told so by its condition `DisruptionTarget`. A Job
//! among them has its `backoffLimit` raised by their number first, in one guarded write that says for which attempt.
//!
//! **Who else writes**: Job controllers, users and kubelets. A conflict concerns that object, and what is owed is worked out
//! again. A controller that was superseded deletes only pods of attempts below one that it saw: they are over whoever leads.
//! It suspends a Job only as it saw it: before pods of a later attempt run, its successor has changed the Job, or the Job
//! controller has told of other pods in its status.
//!
//! **What the API server refuses** must not stop an eviction: a Job that may not be changed loses its pods, and a pod that may
//! not be told is deleted all the same.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::batch::v1::Job;
use muster_api::{Gang, GangPhase, Reason, keys};
use serde_json::json;

use crate::{
    ApiRequest, Mode,
    jobs::{annotation, is_drained_queue, is_suspended, job_of, suspended_for},
    objects::{bound_node, is_deleting, is_gated, is_terminal, job_object, pod_object, stamp, uid},
    outward::patch,
    poll_context::{PollContext, attempt},
};
use muster_cluster::{
    formed::{GangKey, PendingReason, has_ended},
    index::NamespacedName,
    pod::{ObservedPod, PodFields},
};

/// Failures that a Job without `backoffLimit` may have.
const DEFAULT_BACKOFF_LIMIT: i32 = 6;

/// What is owed to the pods of attempts that are over, and to their Jobs.
pub(crate) fn writes(context: PollContext<'_>, key: &GangKey, gang: &Gang) -> Vec<ApiRequest> {
    let phase = gang.status.as_ref().map(|status| status.phase);
    let is_committed = context.intent_of(key).is_some() && !context.views.is_settled(key);
    if phase != Some(GangPhase::Evicting) || is_committed || context.config.mode == Mode::Observe {
        return Vec::new();
    }
    let why = why(gang);
    let mut of_jobs: BTreeMap<String, (&Job, Vec<&ObservedPod>)> = BTreeMap::new();
    let mut others = Vec::new();
    for pod in left(context, key, gang).filter(|pod| !is_deleting(pod)) {
        match job_of(context.index, pod) {
            Some(job) => {
                let name = job.metadata.name.clone().unwrap_or_default();
                of_jobs.entry(name).or_insert((job, Vec::new())).1.push(pod);
            }
            None => others.push(pod),
        }
    }
    let mut writes = Vec::new();
    for (job, pods) in of_jobs.into_values() {
        let eviction = evicted_for(key, attempt(gang) - 1);
        match way(context, gang, job, &eviction) {
            Way::Wait => {}
            Way::Suspend => {
                let annotation = [(keys::SUSPENDED_FOR, Some(eviction.as_str()))];
                writes.push(patch::job(job, &annotation, &[("suspend", json!(true))]));
            }
            Way::Raise => {
                let annotation = [(keys::BACKOFF_RAISED_FOR, Some(eviction.as_str()))];
                let limit = backoff_limit(job);
                let pods = i32::try_from(pods.len()).unwrap_or(i32::MAX);
                let raised = json!(limit.saturating_add(pods));
                writes.push(patch::job(job, &annotation, &[("backoffLimit", raised)]));
            }
            Way::Delete => others.extend(pods),
        }
    }
    writes.extend(others.into_iter().map(|pod| end(context, pod, &why)));
    writes
}

/// Pods of attempts that are over and that may still run, those being deleted included. A pod that passed the gate without
/// any attempt is none of them.
pub(crate) fn left<'a>(
    context: PollContext<'a>,
    key: &GangKey,
    gang: &Gang,
) -> impl Iterator<Item = &'a ObservedPod> {
    let attempt = attempt(gang);
    let pods = context.index.pods_of_gang(key).into_iter();
    let pods = pods.map(AsRef::as_ref);
    pods.filter(move |pod: &&ObservedPod| {
        !is_gated(pod) && !is_terminal(pod) && (1..attempt).contains(&stamp(pod))
    })
}

/// Whether nothing more can be done about the pod, and its Gang goes on without it: it is being deleted, and its node is gone
/// or was not Ready for long. What it holds stays charged until it is proved released.
pub(crate) fn is_out_of_reach(context: PollContext<'_>, pod: &ObservedPod) -> bool {
    let Some(node) = bound_node(pod).filter(|_| is_deleting(pod)) else {
        return false;
    };
    context.index.node(node).is_none()
        || context
            .clocks
            .not_ready_since(node)
            .is_some_and(|since| context.has_come(since + context.config.not_ready_seconds))
}

/// Why the Gang waits for pods of an attempt that is over, if it does.
pub(crate) fn waits_for(
    context: PollContext<'_>,
    key: &GangKey,
    gang: &Gang,
) -> Option<PendingReason> {
    if context.config.mode == Mode::Observe || has_ended(gang) {
        return None;
    }
    let pods = left(context, key, gang);
    let mut pods = pods.filter(|pod| !is_out_of_reach(context, pod));
    let first = pods.next()?;
    let (name, of) = (first.name(), stamp(first));
    if !is_given_up(context, gang) {
        let reason = Reason::WaitingForRelease;
        let details = format!(
            "pod {name} of attempt {of} is still there (this is {})",
            attempt(gang)
        );
        return Some(PendingReason { reason, details });
    }
    let mut details = format!(
        "pod {name} of attempt {of} is being ended before attempt {} can be admitted",
        attempt(gang)
    );
    let others = pods.count();
    if others > 0 {
        details = format!("{details}, and so are {others} others");
    }
    if let Some((job, answer)) = refused_job(context, first) {
        details =
            format!("{details}; Job {job} may not be suspended, so its pods are deleted: {answer}");
    } else if let Some((answer, _)) = context.flights.refused(&pod_object(first)) {
        details = format!("{details}; the API server refuses to delete it: {answer}");
    }
    Some(PendingReason {
        reason: Reason::Evicting,
        details,
    })
}

/// Whether the Gang does not wait any longer for what is left to go by itself, or to be found holding what it does and be
/// charged for it: a Gang that was deleted and made again may take its pods up again.
fn is_given_up(context: PollContext<'_>, gang: &Gang) -> bool {
    let phase = gang.status.as_ref().map(|status| status.phase);
    let uid = gang.metadata.uid.as_deref().unwrap_or_default();
    let since = |reason| context.clocks.is_reason_since(uid, reason);
    if phase == Some(GangPhase::Evicting) || since(Reason::Evicting).is_some() {
        return true;
    }
    let since = since(Reason::WaitingForRelease);
    let since = since.unwrap_or(context.now.monotonic_seconds);
    context.has_come(since + context.config.not_ready_seconds)
}

/// What is owed to Jobs that are suspended for the eviction of a Gang, whether or not it still exists.
pub(crate) fn resumptions(
    context: PollContext<'_>,
    suspended: &BTreeSet<NamespacedName>,
) -> Vec<ApiRequest> {
    let jobs = suspended.iter().filter_map(|name| context.index.job(name));
    jobs.filter_map(|job| resumption(context, job)).collect()
}

fn resumption(context: PollContext<'_>, job: &Job) -> Option<ApiRequest> {
    let eviction = annotation(job, keys::SUSPENDED_FOR)?;
    if context.busy(&job_object(job)) || job.metadata.deletion_timestamp.is_some() {
        return None;
    }
    if !is_suspended(job) {
        let annotations = [
            (keys::SUSPENDED_FOR, None),
            (keys::RESUMED_BY_OTHERS, Some(eviction)),
        ];
        return Some(patch::job(job, &annotations, &[]));
    }
    let (_, of) = suspended_for(job)?;
    let job_uid = job.metadata.uid.as_deref()?;
    let mut pods = context.index.pods_of_job(job_uid);
    let is_awaited = pods.any(|pod| {
        let is_left = !is_gated(pod) && !is_terminal(pod) && (1..=of).contains(&stamp(pod));
        is_left && !is_out_of_reach(context, pod)
    });
    let annotation = [(keys::SUSPENDED_FOR, None)];
    (!is_awaited).then(|| patch::job(job, &annotation, &[("suspend", json!(false))]))
}

fn evicted_for(key: &GangKey, attempt: i64) -> String {
    format!("{}/{attempt}", key.name)
}

/// How the pods of a Job are ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// Its controller does it, or is about to.
    Wait,
    /// It is to be suspended.
    Suspend,
    /// Its `backoffLimit` is to be raised first.
    Raise,
    /// They are to be deleted.
    Delete,
}

fn way(context: PollContext<'_>, gang: &Gang, job: &Job, eviction: &str) -> Way {
    let is_refused = context.flights.refused(&job_object(job)).is_some();
    if is_suspended(job) || job.metadata.deletion_timestamp.is_some() {
        return Way::Wait;
    }
    if !is_refused && annotation(job, keys::SUSPENDED_FOR).is_some() {
        // Somebody else resumed it; that is noted first.
        return Way::Wait;
    }
    let was_resumed = annotation(job, keys::RESUMED_BY_OTHERS) == Some(eviction);
    if !is_refused && !was_resumed && may_be_suspended(context, gang, job) {
        return Way::Suspend;
    }
    let spec = job.spec.as_ref();
    let is_per_index = spec.is_some_and(|spec| spec.backoff_limit_per_index.is_some());
    let was_raised = annotation(job, keys::BACKOFF_RAISED_FOR) == Some(eviction);
    if is_refused || is_per_index || was_raised || backoff_limit(job) == i32::MAX {
        Way::Delete
    } else {
        Way::Raise
    }
}

/// Whether suspending the Job ends nothing but this gang, and changes nothing but that.
fn may_be_suspended(context: PollContext<'_>, gang: &Gang, job: &Job) -> bool {
    let mut owners = job.metadata.owner_references.iter().flatten();
    // Who controls a Job keeps its spec as it wants it. A CronJob leaves the Jobs alone that it made.
    let is_controlled =
        owners.any(|owner| owner.controller == Some(true) && owner.kind != "CronJob");
    let spec = job.spec.as_ref();
    // The pods of a Job are one gang, unless each of them is one for itself.
    let is_single = gang.spec.size == 1 && gang.spec.group.is_none();
    let parallelism = spec.and_then(|spec| spec.parallelism).unwrap_or(1);
    let are_apart = is_single && parallelism > 1;
    !(is_controlled || are_apart || is_drained_queue(context.index, job))
}

/// The condition first, then the deletion. Where the condition is refused, the pod is deleted without it.
fn end(context: PollContext<'_>, pod: &ObservedPod, why: &str) -> ApiRequest {
    let key = pod_object(pod);
    if pod.is_disrupted() || context.flights.was_refused(&key) {
        let uid = uid(pod).to_owned();
        return ApiRequest::DeletePod { key, uid };
    }
    patch::disrupt(pod, why, context.now.wall)
}

/// Why the last attempt of a Gang was evicted, for people.
fn why(gang: &Gang) -> String {
    let evictions = gang.status.iter().flat_map(|status| &status.evictions);
    evictions.last().map_or_else(
        || "its attempt is over".to_owned(),
        |eviction| format!("{}: {}", eviction.reason, eviction.message),
    )
}

/// The Job of the pod, and the API server's last word that it may not be changed, if it said so.
fn refused_job<'a>(context: PollContext<'a>, pod: &ObservedPod) -> Option<(&'a str, &'a str)> {
    let job = job_of(context.index, pod)?;
    let (answer, _) = context.flights.refused(&job_object(job))?;
    Some((job.metadata.name.as_deref()?, answer))
}

fn backoff_limit(job: &Job) -> i32 {
    let limit = job.spec.as_ref().and_then(|spec| spec.backoff_limit);
    limit.unwrap_or(DEFAULT_BACKOFF_LIMIT)
}
