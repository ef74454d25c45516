//! What Jobs say about the pods that they make: whose they are, and what ending them costs.

use std::collections::BTreeMap;

use k8s_openapi::api::batch::v1::Job;
use muster_api::keys;
use muster_cluster::{
    formed::GangKey,
    index::{Index, NamespacedName},
    pod::{self, ObservedPod, PodFields},
};

use crate::{admission::plan::Plan, poll_context::PollContext};

/// The Job that controls the pod, if it is known.
pub(crate) fn job_of<'a>(index: &'a Index, pod: &ObservedPod) -> Option<&'a Job> {
    let owner = pod::controlling_job(pod)?;
    by_uid(index, pod.namespace(), &owner.name, &owner.uid)
}

fn by_uid<'a>(index: &'a Index, namespace: &str, name: &str, uid: &str) -> Option<&'a Job> {
    let job = index.job(&NamespacedName::new(namespace, name))?;
    (job.metadata.uid.as_deref() == Some(uid)).then_some(job)
}

/// The Jobs that make the pods of a plan, each once: those that own its Gang or control a pod of it.
pub(crate) fn of_plan<'a>(context: PollContext<'a>, plan: &Plan) -> Vec<&'a Job> {
    let gang = context.gang_of(plan);
    let owners = gang.and_then(|gang| gang.metadata.owner_references.as_ref());
    let owners = owners.into_iter().flatten().filter(|it| it.kind == "Job");
    let owners = owners
        .filter_map(|owner| by_uid(context.index, &plan.key.namespace, &owner.name, &owner.uid));
    let pods = plan.ranks.iter();
    let pods = pods.filter_map(|rank| context.index.pod_by_uid(&rank.pod));
    let controllers = pods.filter_map(|pod| job_of(context.index, pod));
    let jobs = owners.chain(controllers);
    let jobs: BTreeMap<Option<&str>, &Job> =
        jobs.map(|job| (job.metadata.uid.as_deref(), job)).collect();
    jobs.into_values().collect()
}

/// Whether its pods are being ended, or have been, by the Job's own controller or by whoever suspended or deleted it. Kubernetes
/// says `Complete` or `Failed` only once no pod is being ended any more; what will be said then is known before.
pub(crate) fn is_ending(job: &Job) -> bool {
    const ENDS: [&str; 4] = ["FailureTarget", "SuccessCriteriaMet", "Complete", "Failed"];
    let conditions = job.status.iter().flat_map(|status| &status.conditions);
    let mut conditions = conditions.flatten().filter(|it| it.status == "True");
    conditions.any(|it| ENDS.contains(&it.type_.as_str()))
        || job.metadata.deletion_timestamp.is_some()
        || is_suspended(job) && suspended_for(job).is_none()
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

/// Whether it is suspended, by whomever.
pub(crate) fn is_suspended(job: &Job) -> bool {
    let spec = job.spec.as_ref();
    spec.is_some_and(|spec| spec.suspend == Some(true))
}

/// The Gang that a Job was suspended for, and the attempt that is evicted, if Muster suspended it. What cannot be read is not
/// Muster's.
pub(crate) fn suspended_for(job: &Job) -> Option<(GangKey, i64)> {
    let (name, attempt) = annotation(job, keys::SUSPENDED_FOR)?.rsplit_once('/')?;
    let namespace = job.metadata.namespace.as_deref()?;
    Some((GangKey::new(namespace, name), attempt.parse().ok()?))
}

/// The value of an annotation of a Job.
pub(crate) fn annotation<'a>(job: &'a Job, key: &str) -> Option<&'a str> {
    let annotations = job.metadata.annotations.as_ref()?;
    annotations.get(key).map(String::as_str)
}
