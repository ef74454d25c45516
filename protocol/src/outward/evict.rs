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
//! somebody else resumes it, or suspends it as well, only the annotation goes, and the Job is neither resumed nor suspended for
//! this attempt again.
//!
//! A Job whose time is limited stays suspended as long as it is known without its pods that they would wait.
//!
//! **All others** lose their pods one by one, each by its UID, after it was told so by its condition `DisruptionTarget`. A Job
//! among them has its `backoffLimit` raised by their number first, in one guarded write that says for which attempt.
//!
//! **Who else writes**: Job controllers, users and kubelets. A conflict concerns that object, and what is owed is worked out
//! again. A controller that was superseded deletes only pods of attempts below one that it saw: they are over whoever leads.
//! It suspends a Job only as it saw it: before pods of a later attempt run, its successor has changed the Job, or the Job
//! controller has told of other pods in its status.
//!
//! **What the API server refuses**, or never answers, must not stop an eviction: a Job that may not be suspended loses its pods, after its
//! limit was raised if that is allowed, and a pod that may not be told is deleted all the same. So does a Job whose controller
//! does nothing for two minutes. A refusal is believed for a while only. Pods that do not die are [`super::force`]'s.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::batch::v1::Job;
use muster_api::{Gang, GangPhase, Reason, keys};
use serde_json::json;

use crate::{
    ApiRequest, JobChange, Mode,
    admission::{adopt, evict::FOR_GOOD_SECONDS},
    effect::Refusable,
    feed::waiting,
    injected_bug::InjectedBug,
    jobs::{
        annotation, are_gangs_of_one, backoff_limit, eviction_mark, fails_by_index, has_deadline,
        is_controlled, is_drained_queue, is_suspended, is_suspended_by_muster, job_of, owners_of,
        suspended_for,
    },
    nodes::loss,
    objects::{bound_node, is_deleting, is_gated, is_terminal, job_object, pod_object, stamp, uid},
    outward::{patch, restarts},
    poll_context::{PollContext, attempt},
};
use muster_cluster::{
    formed::{GangKey, PendingReason, has_ended},
    index::NamespacedName,
    pod::{ObservedPod, PodFields},
};

/// How long an owner may take to end its pods, or the API server to answer that it is suspended, in seconds: longer than it takes
/// controllers to find a new leader.
const OWNER_ENDS_WITHIN_SECONDS: u64 = 120;
/// How long the API server may take to answer that a limit is raised, in seconds: pods that are deleted without may cost their Job,
/// and many gangs may have pods of one Job, which is written once for each.
const RAISED_WITHIN_SECONDS: u64 = 600;

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
    let part = part(context, gang);
    for pod in left(context, key, gang).filter(|pod| !is_deleting(pod)) {
        if part.is_some_and(|node| bound_node(pod) != Some(node)) {
            continue;
        }
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
        let mark = eviction_mark(job, key, attempt(gang) - 1);
        let may_be_suspended = part.is_none() && may_be_suspended(context, gang, job, &pods);
        match way(context, gang, job, &mark, may_be_suspended) {
            Way::Wait => {}
            Way::Suspend => {
                let annotation = [(keys::SUSPENDED_FOR, Some(mark.as_str()))];
                let suspend = [("suspend", json!(true))];
                writes.push(patch::job(job, JobChange::Suspend, &annotation, &suspend));
            }
            Way::Raise => {
                let raised = raised_to(job, &mark);
                let (told, untold): (Vec<_>, Vec<_>) =
                    pods.into_iter().partition(|pod| pod.is_disrupted());
                if raised.is_none() {
                    // Raised by their number before they were told, be it that another gang of the Job has written its own mark
                    // since.
                    others.extend(told);
                }
                let more = i32::try_from(untold.len()).unwrap_or(i32::MAX);
                if more > 0 || raised.is_some() {
                    let limit = raised.unwrap_or_else(|| backoff_limit(job).saturating_add(more));
                    writes.push(raise(job, &mark, limit));
                }
            }
            Way::Delete => others.extend(pods),
        }
    }
    writes.extend(others.into_iter().map(|pod| end(context, pod, &why)));
    writes
}

/// The node whose pods alone are ended, where the rule is broken that all are.
fn part<'a>(context: PollContext<'_>, gang: &'a Gang) -> Option<&'a str> {
    let last = gang.status.as_ref()?.evictions.last()?;
    let is_in_part = last.reason == Reason::Drained && context.bugs.has(InjectedBug::MovedInPart);
    last.node.as_deref().filter(|_| is_in_part)
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

/// Whether nothing more can be done about the pod, and its Gang goes on without it: it is being deleted, and has no node, or its
/// node is gone or lost. What it holds stays charged until it is proved released.
pub(crate) fn is_out_of_reach(context: PollContext<'_>, pod: &ObservedPod) -> bool {
    if !is_deleting(pod) {
        return false;
    }
    // Nobody binds it any more, and only finalizers of others hold it.
    let Some(node) = bound_node(pod) else {
        return true;
    };
    loss::is_unreachable(context, node)
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
    let formed = context.formed(key);
    let is_in_part = formed.is_some_and(|formed| adopt::is_in_part(context, formed));
    if !is_given_up(context, key, gang, is_in_part) {
        let mut details = format!(
            "pod {name} of attempt {of} is still there (this is {})",
            attempt(gang)
        );
        if is_in_part {
            details.push_str(", and others of it are gone");
        }
        let (reason, _) = goes_within(context, is_in_part);
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
    } else if let Some((answer, _)) = context
        .flights
        .refused(&pod_object(first), Refusable::PodDeletion)
    {
        details = format!("{details}; the API server refuses to delete it: {answer}");
    }
    Some(PendingReason {
        reason: Reason::Evicting,
        details,
    })
}

/// Whether the Gang does not wait any longer for what is left to go by itself, or to be found holding what it does and be
/// charged for it: a Gang that was deleted and made again may take its pods up again, if it has a Team to charge.
fn is_given_up(context: PollContext<'_>, key: &GangKey, gang: &Gang, is_in_part: bool) -> bool {
    let phase = gang.status.as_ref().map(|status| status.phase);
    if phase != Some(GangPhase::Evicting)
        && context
            .formed(key)
            .is_some_and(|formed| formed.team.is_none())
    {
        return false;
    }
    let uid = gang.metadata.uid.as_deref().unwrap_or_default();
    let since = |reason| context.clocks.is_reason_since(uid, reason);
    if phase == Some(GangPhase::Evicting) || since(Reason::Evicting).is_some() {
        return true;
    }
    let (reason, seconds) = goes_within(context, is_in_part);
    let since = since(reason).unwrap_or(context.now.monotonic_seconds);
    context.has_come(since.saturating_add(seconds))
}

/// What a Gang says while it waits for what is left to go by itself, and for how many seconds it does. That it is a part of its attempt has a time of its
/// own: pods and their Jobs are seen by different watches, so that a rank that is done may be missed for a moment.
fn goes_within(context: PollContext<'_>, is_in_part: bool) -> (Reason, u64) {
    if is_in_part {
        (Reason::MembersChanged, FOR_GOOD_SECONDS)
    } else {
        (Reason::WaitingForRelease, context.config.not_ready_seconds)
    }
}

/// That a Job of the Gang stays suspended because the API server refuses to have it resumed, if so.
pub(crate) fn refused_resumption(context: PollContext<'_>, gang: &Gang) -> Option<String> {
    let jobs = owners_of(context.index, gang);
    jobs.filter(|job| is_suspended_by_muster(job)).find_map(|job| {
        let resumption = Refusable::Job(JobChange::Resume);
        let (answer, _) = context.flights.refused(&job_object(job), resumption)?;
        let name = job.metadata.name.as_deref().unwrap_or_default();
        Some(format!(
            "the API server refuses to resume Job {name}, which was suspended to evict its pods: {answer}"
        ))
    })
}

/// Why a Job of the Gang stays suspended though its pods are gone, if one does: its deadline would run while it waits.
pub(crate) fn held_suspended(context: PollContext<'_>, gang: &Gang) -> Option<PendingReason> {
    let mut jobs = owners_of(context.index, gang);
    let job = jobs.find(|job| has_deadline(job) && is_suspended_by_muster(job))?;
    let name = job.metadata.name.as_deref().unwrap_or_default();
    let held = waiting::held_back(context, gang)?;
    Some(PendingReason {
        details: format!(
            "{}; Job {name} stays suspended meanwhile: its activeDeadlineSeconds would run",
            held.details
        ),
        ..held
    })
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
    // Somebody else resumed it, or wants it to be suspended.
    if !is_suspended_by_muster(job) {
        let annotations = [
            (keys::SUSPENDED_FOR, None),
            (keys::RESUMED_BY_OTHERS, Some(eviction)),
        ];
        return Some(patch::job(job, JobChange::Resume, &annotations, &[]));
    }
    let (key, of) = suspended_for(job)?;
    let gang = context.index.gang(&key);
    if has_deadline(job) && gang.is_some_and(|gang| waiting::held_back(context, gang).is_some()) {
        return None;
    }
    let job_uid = job.metadata.uid.as_deref()?;
    let mut pods = context.index.pods_of_job(job_uid);
    let is_awaited = pods.any(|pod| {
        let is_left = !is_gated(pod) && !is_terminal(pod) && (1..=of).contains(&stamp(pod));
        is_left && !is_out_of_reach(context, pod)
    });
    let annotation = [(keys::SUSPENDED_FOR, None)];
    let resume = [("suspend", json!(false))];
    (!is_awaited).then(|| patch::job(job, JobChange::Resume, &annotation, &resume))
}

/// The limit is raised by one guarded write, which says to what: where somebody lowers it again before the pods are gone, it is
/// raised to that once more, never beyond. What it was at first goes on being told.
fn raise(job: &Job, mark: &str, limit: i32) -> ApiRequest {
    let value = format!("{mark}/{limit}");
    let covers = restarts::still_covers(job, limit);
    let mut annotations = vec![(keys::BACKOFF_RAISED_FOR, Some(value.as_str()))];
    annotations.extend(covers.as_deref().map(|it| (keys::BACKOFF_COVERS, Some(it))));
    let raised = [("backoffLimit", json!(limit))];
    patch::job(job, JobChange::RaiseBackoffLimit, &annotations, &raised)
}

/// To what the limit of the Job was raised for that, if it was.
fn raised_to(job: &Job, mark: &str) -> Option<i32> {
    let value = annotation(job, keys::BACKOFF_RAISED_FOR)?;
    value.strip_prefix(mark)?.strip_prefix('/')?.parse().ok()
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

/// What cannot be done, or is never answered, stops no eviction: pods whose owner does nothing about them are deleted after a
/// while. Where the suspension of their Job is applied only then, its annotation has it resumed.
fn way(
    context: PollContext<'_>,
    gang: &Gang,
    job: &Job,
    mark: &str,
    may_be_suspended: bool,
) -> Way {
    let key = job_object(job);
    let is_refused = |change| {
        let refused = context.flights.refused(&key, Refusable::Job(change));
        refused.is_some_and(|(_, until)| !context.has_come(until))
    };
    let within = |seconds, way| {
        let uid = gang.metadata.uid.as_deref().unwrap_or_default();
        let since = context.clocks.is_reason_since(uid, Reason::Evicting);
        let since = since.unwrap_or(context.now.monotonic_seconds);
        if context.has_come(since + seconds) {
            Way::Delete
        } else {
            way
        }
    };
    // Somebody else resumed it; that is noted first.
    let is_resumed = || suspended_for(job).is_some() && !is_refused(JobChange::Resume);
    if is_suspended(job) || job.metadata.deletion_timestamp.is_some() || is_resumed() {
        return within(OWNER_ENDS_WITHIN_SECONDS, Way::Wait);
    }
    let is_owed_answer = || context.flights.is_sent(&key);
    let was_resumed = annotation(job, keys::RESUMED_BY_OTHERS) == Some(mark);
    let raised = raised_to(job, mark);
    let is_suspended_next = may_be_suspended && !was_resumed && raised.is_none();
    if is_suspended_next && !is_refused(JobChange::Suspend) {
        return if is_owed_answer() {
            within(OWNER_ENDS_WITHIN_SECONDS, Way::Suspend)
        } else {
            Way::Suspend
        };
    }
    let limit = backoff_limit(job);
    let is_raised = raised.is_some_and(|raised| limit >= raised);
    let needs_none = fails_by_index(job) || is_raised || limit == i32::MAX;
    if needs_none || is_refused(JobChange::RaiseBackoffLimit) {
        Way::Delete
    } else if is_owed_answer() {
        within(RAISED_WITHIN_SECONDS, Way::Raise)
    } else {
        Way::Raise
    }
}

/// Whether suspending the Job ends nothing but this gang, of which these pods are left, and changes nothing but that.
pub(crate) fn may_be_suspended(
    context: PollContext<'_>,
    gang: &Gang,
    job: &Job,
    pods: &[&ObservedPod],
) -> bool {
    !(is_controlled(job)
        || are_gangs_of_one(gang, job, pods)
        || is_drained_queue(context.index, job))
}

/// The condition first, then the deletion. Where the condition is refused, the pod is deleted without it.
fn end(context: PollContext<'_>, pod: &ObservedPod, why: &str) -> ApiRequest {
    let key = pod_object(pod);
    let is_refused = || {
        let flights = context.flights;
        flights.was_refused_once(&key, Refusable::PodCondition)
    };
    if pod.is_disrupted() || is_refused() {
        // Without any time the API server would not wait for its kubelet, whoever consents to that ([`super::force`]).
        let is_given_none = pod.ends_within_seconds() == 0;
        return ApiRequest::DeletePod {
            key,
            uid: uid(pod).to_owned(),
            grace_period_seconds: is_given_none.then_some(1),
        };
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
    let suspension = context
        .flights
        .refused(&job_object(job), Refusable::Job(JobChange::Suspend));
    let (answer, _) = suspension?;
    Some((job.metadata.name.as_deref()?, answer))
}
