//! What Jobs say about the pods that they make: whose they are, and what ending them costs.

use std::collections::BTreeMap;

use k8s_openapi::api::batch::v1::Job;
use muster_api::{Gang, keys};
use muster_cluster::{
    formed::GangKey,
    gangs::{is_gang, is_indexed, succeeded_ranks},
    index::{Index, NamespacedName},
    object::restarts_in_place,
    pod::{self, DISRUPTION_TARGET, ObservedPod, PodFields},
};

use crate::{admission::plan::Plan, poll_context::PollContext};

/// Under which name the API server sums up the oldest field managers where there are many: Muster may be one of them.
const ANCIENT_CHANGES: &str = "ancient-changes";

/// Highest attempt of a mark that a new Gang counts on from. No gang gets there, and whoever may change a Job may write what they like: the attempts after it have
/// to be far below what a stamp may say ([`pod::MAX_ATTEMPT`]), or no pod could be told whose it is, nor be ended for it.
const LAST_MARKED_AT_MOST: i64 = 1 << 32;

/// Failures that a Job without `backoffLimit` may have.
const DEFAULT_BACKOFF_LIMIT: i32 = 6;

/// The Job that controls the pod, if it is known.
pub(crate) fn job_of<'a>(index: &'a Index, pod: &ObservedPod) -> Option<&'a Job> {
    let owner = pod::controlling_job(pod)?;
    by_uid(index, pod.namespace(), &owner.name, &owner.uid)
}

fn by_uid<'a>(index: &'a Index, namespace: &str, name: &str, uid: &str) -> Option<&'a Job> {
    let job = index.job(&NamespacedName::new(namespace, name))?;
    (job.metadata.uid.as_deref() == Some(uid)).then_some(job)
}

/// The Jobs that control these pods, each once.
pub(crate) fn of_pods<'a, 'p>(
    index: &'a Index,
    pods: impl Iterator<Item = &'p ObservedPod>,
) -> Vec<&'a Job> {
    let jobs = pods.filter_map(|pod| job_of(index, pod));
    let jobs: BTreeMap<Option<&str>, &Job> =
        jobs.map(|job| (job.metadata.uid.as_deref(), job)).collect();
    jobs.into_values().collect()
}

/// The Jobs that own a Gang.
pub(crate) fn owners_of<'a>(index: &'a Index, gang: &'a Gang) -> impl Iterator<Item = &'a Job> {
    let namespace = gang.metadata.namespace.as_deref().unwrap_or_default();
    let owners = gang.metadata.owner_references.iter().flatten();
    let owners = owners.filter(|owner| owner.kind == "Job");
    owners.filter_map(move |owner| by_uid(index, namespace, &owner.name, &owner.uid))
}

/// The Jobs that make the pods of a plan, each once: those that own its Gang or control a pod of it.
pub(crate) fn of_plan<'a>(context: PollContext<'a>, plan: &Plan) -> Vec<&'a Job> {
    let gang = context.gang_of(plan).into_iter();
    let owners = gang.flat_map(|gang| owners_of(context.index, gang));
    let pods = plan.ranks.iter();
    let pods = pods.filter_map(|rank| context.index.pod_by_uid(&rank.pod));
    let controllers = pods.filter_map(|pod| job_of(context.index, pod));
    let jobs = owners.chain(controllers);
    let jobs: BTreeMap<Option<&str>, &Job> =
        jobs.map(|job| (job.metadata.uid.as_deref(), job)).collect();
    jobs.into_values().collect()
}

/// How many indexes are done of the Indexed Job that owns a Gang, as the Job or its pods say; `None`: there is no such Job.
pub(crate) fn done(index: &Index, key: &GangKey, gang: &Gang) -> Option<i32> {
    let job = owners_of(index, gang).find(|job| is_indexed(job))?;
    let pods = index.pods_of_gang(key);
    let pods: Vec<&ObservedPod> = pods.into_iter().map(AsRef::as_ref).collect();
    i32::try_from(succeeded_ranks(job, &pods).len()).ok()
}

/// How many indexes are left of the Indexed Job that owns a Gang, if it makes the pods of all of them at once; `None`: there is no such Job.
pub(crate) fn left_at_once(index: &Index, key: &GangKey, gang: &Gang) -> Option<i32> {
    let job = owners_of(index, gang).find(|job| is_indexed(job))?;
    let spec = job.spec.as_ref()?;
    let completions = spec.completions?;
    if spec.parallelism.unwrap_or(1) < completions {
        return None;
    }
    Some(completions.saturating_sub(done(index, key, gang)?))
}

/// Whether its pods are being ended, or have been, by the Job's own controller or by whoever suspended or deleted it. Kubernetes
/// says `Complete` or `Failed` only once no pod is being ended any more; what will be said then is known before.
pub(crate) fn is_ending(job: &Job) -> bool {
    says_that_it_ends(job)
        || job.metadata.deletion_timestamp.is_some()
        || is_suspended(job) && !is_suspended_by_muster(job)
}

/// Whether it says that it ends, or has ended.
pub(crate) fn says_that_it_ends(job: &Job) -> bool {
    const ENDS: [&str; 4] = ["FailureTarget", "SuccessCriteriaMet", "Complete", "Failed"];
    let conditions = job.status.iter().flat_map(|status| &status.conditions);
    let mut conditions = conditions.flatten().filter(|it| it.status == "True");
    conditions.any(|it| ENDS.contains(&it.type_.as_str()))
}

/// Whether it is a work queue (it names no `completions`) of which a pod succeeded: without pods it is complete, whatever
/// work is left. Pods tell of it before their Job does.
pub(crate) fn is_drained_queue(index: &Index, job: &Job) -> bool {
    let completions = job.spec.as_ref().and_then(|spec| spec.completions);
    let succeeded = job.status.as_ref().and_then(|status| status.succeeded);
    let has_succeeded = |pod: &ObservedPod| pod.phase() == "Succeeded";
    let job_uid = job.metadata.uid.as_deref().unwrap_or_default();
    let mut pods = index.pods_of_job(job_uid);
    completions.is_none() && (succeeded.unwrap_or(0) > 0 || pods.any(|pod| has_succeeded(pod)))
}

/// Whether its failures count by index (`backoffLimitPerIndex`): a limit that is fixed with the Job.
pub(crate) fn fails_by_index(job: &Job) -> bool {
    let spec = job.spec.as_ref();
    spec.is_some_and(|spec| spec.backoff_limit_per_index.is_some())
}

/// Whether each of its pods that fails by itself counts against its `backoffLimit`, and nothing else does. Containers that are started anew in place count as well; and
/// what a `podFailurePolicy` ignores does not, be it for what ran in it: how a container ended, or a condition that Muster does not know.
pub(crate) fn counts_failed_pods_alone(job: &Job) -> bool {
    let policy = job
        .spec
        .as_ref()
        .and_then(|spec| spec.pod_failure_policy.as_ref());
    let rules = policy.into_iter().flat_map(|policy| &policy.rules);
    let mut ignoring = rules.filter(|rule| rule.action == "Ignore");
    let ignores_its_own = ignoring.any(|rule| {
        let mut conditions = rule.on_pod_conditions.iter().flatten();
        rule.on_exit_codes.is_some() || conditions.any(|it| it.type_ != DISRUPTION_TARGET)
    });
    !ignores_its_own && !restarts_in_place(job)
}

/// How many pods of it may fail.
pub(crate) fn backoff_limit(job: &Job) -> i32 {
    let limit = job.spec.as_ref().and_then(|spec| spec.backoff_limit);
    limit.unwrap_or(DEFAULT_BACKOFF_LIMIT)
}

/// Whether somebody controls it, who keeps its spec as it wants it. Kubernetes' CronJob leaves the Jobs alone that it made; of others of
/// that kind nothing is known.
pub(crate) fn is_controlled(job: &Job) -> bool {
    let mut owners = job.metadata.owner_references.iter().flatten();
    owners.any(|owner| {
        let is_cron_job = owner.kind == "CronJob" && owner.api_version.starts_with("batch/");
        owner.controller == Some(true) && !is_cron_job
    })
}

/// Whether each of its pods is a gang for itself, and not all of them one, which these are. (How many are left of it says nothing.)
pub(crate) fn are_gangs_of_one(gang: &Gang, job: &Job, pods: &[&ObservedPod]) -> bool {
    let is_single = gang.spec.group.is_none() && !pods.iter().any(|pod| is_gang(job, pod));
    let parallelism = job.spec.as_ref().and_then(|spec| spec.parallelism);
    is_single && parallelism.unwrap_or(1) > 1
}

/// Whether its time is limited, which runs while its pods wait and stands while it is suspended.
pub(crate) fn has_deadline(job: &Job) -> bool {
    let spec = job.spec.as_ref();
    spec.is_some_and(|spec| spec.active_deadline_seconds.is_some())
}

/// Whether it is suspended, by whomever.
pub(crate) fn is_suspended(job: &Job) -> bool {
    let spec = job.spec.as_ref();
    spec.is_some_and(|spec| spec.suspend == Some(true))
}

/// What annotations of a Job say it was changed for: the attempt of a Gang that is evicted, and the Job itself, since others may be
/// made from its manifest.
pub(crate) fn eviction_mark(job: &Job, key: &GangKey, attempt: i64) -> String {
    let uid = job.metadata.uid.as_deref().unwrap_or_default();
    format!("{}/{attempt}/{uid}", key.name)
}

/// The Gang that a Job was suspended for, and the attempt that is evicted, if Muster suspended it. What cannot be read, or names
/// another Job, is not Muster's.
pub(crate) fn suspended_for(job: &Job) -> Option<(GangKey, i64)> {
    marked(job, annotation(job, keys::SUSPENDED_FOR)?)
}

/// The last attempt of a Gang that a Job of these pods was changed for; 0 if there is none. What says so outlasts the Gang and all its
/// pods, and has another attempt of that number pass for one that the Job was changed for already.
pub(crate) fn last_marked<'a>(
    index: &Index,
    key: &GangKey,
    pods: impl Iterator<Item = &'a ObservedPod>,
) -> i64 {
    let marks = of_pods(index, pods).into_iter().flat_map(|job| {
        let raised = annotation(job, keys::BACKOFF_RAISED_FOR);
        let raised = raised.and_then(|raised| Some(raised.rsplit_once('/')?.0));
        let resumed = annotation(job, keys::RESUMED_BY_OTHERS);
        let suspended = annotation(job, keys::SUSPENDED_FOR);
        let marks = [raised, resumed, suspended].into_iter().flatten();
        marks.filter_map(move |mark| marked(job, mark))
    });
    let attempts = marks.filter(|(of, _)| of == key).map(|(_, of)| of);
    let known = attempts.filter(|attempt| (1..=LAST_MARKED_AT_MOST).contains(attempt));
    known.max().unwrap_or(0)
}

/// What an [`eviction_mark`] of the Job names.
fn marked(job: &Job, mark: &str) -> Option<(GangKey, i64)> {
    let mut parts = mark.splitn(3, '/');
    let (name, attempt, uid) = (parts.next()?, parts.next()?, parts.next()?);
    if job.metadata.uid.as_deref() != Some(uid) {
        return None;
    }
    let namespace = job.metadata.namespace.as_deref()?;
    Some((GangKey::new(namespace, name), attempt.parse().ok()?))
}

/// Whether Muster suspended it, and nobody else wants it to be suspended as well. Who sets a field to the value that it has changes
/// nothing that could be seen. But the API server tells who has set `spec.suspend` since Muster did: whoever applies it server-side
/// owns it too, and whoever ends Muster's suspension and then suspends the Job owns it alone. Where it does not tell, the
/// annotation counts: whoever takes that away makes the suspension theirs.
pub(crate) fn is_suspended_by_muster(job: &Job) -> bool {
    is_suspended(job) && suspended_for(job).is_some() && !is_suspended_by_others(job)
}

/// Whether a field manager other than Muster's has set `spec.suspend` as it is.
fn is_suspended_by_others(job: &Job) -> bool {
    let entries = job.metadata.managed_fields.iter().flatten();
    let mut suspenders = entries.filter(|entry| {
        let fields = entry.fields_v1.as_ref();
        fields.is_some_and(|it| it.0.pointer("/f:spec/f:suspend").is_some())
    });
    suspenders.any(|entry| {
        let manager = entry.manager.as_deref().unwrap_or_default();
        manager != keys::FIELD_MANAGER_CONTROLLER && manager != ANCIENT_CHANGES
    })
}

/// The value of an annotation of a Job.
pub(crate) fn annotation<'a>(job: &'a Job, key: &str) -> Option<&'a str> {
    let annotations = job.metadata.annotations.as_ref()?;
    annotations.get(key).map(String::as_str)
}
