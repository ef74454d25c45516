//! The pods that Jobs would make.

use std::collections::BTreeSet;

use k8s_openapi::api::{
    batch::v1::Job,
    core::v1::{Pod, PodStatus},
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use muster_cluster::pod::is_active;

use super::Completed;
use crate::{api_server::has_ended, decide::Error};

/// Most pods that are made up for all Jobs together: three times those of the largest clusters that are run.
const MOST_PODS: usize = 500_000;
const INDEX: &str = "batch.kubernetes.io/job-completion-index";
const JOB_NAME: &str = "batch.kubernetes.io/job-name";

/// Adds the pods that the Job controller would make next.
pub(super) fn add_pods(completed: &mut Completed<'_>) -> Result<(), Error> {
    let mut made = 0_usize;
    let pods = completed.list::<Pod>();
    for job in completed.list::<Job>() {
        let of_job: Vec<&Pod> = pods.iter().filter(|pod| is_of(pod, &job)).collect();
        let missing = missing(&job, &of_job);
        made = made.saturating_add(missing.len());
        if made > MOST_PODS {
            let namespace = job.metadata.namespace.unwrap_or_default();
            return Err(Error::TooManyPods {
                job: format!("{namespace}/{}", job.metadata.name.unwrap_or_default()),
                most: MOST_PODS,
            });
        }
        for index in missing {
            let pod = pod(completed, &job, index);
            completed.put(pod);
        }
    }
    Ok(())
}

/// Whether the Job made the pod.
fn is_of(pod: &Pod, job: &Job) -> bool {
    pod.metadata.namespace == job.metadata.namespace
        && pod
            .metadata
            .owner_references
            .iter()
            .flatten()
            .any(|owner| owner.kind == "Job" && Some(&owner.uid) == job.metadata.uid.as_ref())
}

/// The numbers of the pods that are yet to be made, at most one more than may be.
fn missing(job: &Job, pods: &[&Pod]) -> Vec<usize> {
    let Some(spec) = &job.spec else {
        return Vec::new();
    };
    let is_over = job
        .status
        .iter()
        .flat_map(|status| status.conditions.iter().flatten())
        .any(|condition| {
            matches!(condition.type_.as_str(), "Complete" | "Failed") && condition.status == "True"
        });
    if spec.suspend == Some(true) || is_over || job.metadata.deletion_timestamp.is_some() {
        return Vec::new();
    }
    let number = |value: Option<i32>| value.and_then(|value| usize::try_from(value).ok());
    let parallelism = number(spec.parallelism.or(Some(1))).unwrap_or(0);
    let succeeded = |pod: &&&Pod| has_ended(pod) && !failed(pod);
    let counted = job
        .status
        .as_ref()
        .and_then(|status| number(status.succeeded))
        .unwrap_or(0);
    let done = counted.max(pods.iter().filter(succeeded).count());
    let completions = number(spec.completions).unwrap_or(if done == 0 { parallelism } else { 0 });
    let active = pods.iter().filter(is_active).count();
    let wanted = parallelism
        .min(completions.saturating_sub(done))
        .saturating_sub(active)
        .min(MOST_PODS + 1);
    let taken: BTreeSet<usize> = pods
        .iter()
        .filter(|pod| is_active(pod) || (has_ended(pod) && !failed(pod)))
        .filter_map(|pod| pod.metadata.annotations.as_ref()?.get(INDEX)?.parse().ok())
        .chain(completed_indexes(job))
        .collect();
    (0..)
        .filter(|index| !taken.contains(index))
        .take(wanted)
        .collect()
}

fn failed(pod: &Pod) -> bool {
    let phase = pod
        .status
        .as_ref()
        .and_then(|status| status.phase.as_deref());
    phase == Some("Failed")
}

/// As a Job writes them, `0,2-4`; never more than can be missing.
fn completed_indexes(job: &Job) -> impl Iterator<Item = usize> {
    let text = job
        .status
        .as_ref()
        .and_then(|status| status.completed_indexes.clone())
        .unwrap_or_default();
    let ranges: Vec<(usize, usize)> = text
        .split(',')
        .filter_map(|part| {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            Some((first.trim().parse().ok()?, last.trim().parse().ok()?))
        })
        .collect();
    ranges
        .into_iter()
        .flat_map(|(first, last)| (first..=last).take(MOST_PODS))
}

fn pod(completed: &Completed<'_>, job: &Job, index: usize) -> Pod {
    let namespace = job.metadata.namespace.clone().unwrap_or_default();
    let job_name = job.metadata.name.clone().unwrap_or_default();
    let spec = job.spec.clone().unwrap_or_default();
    let template = spec.template.metadata.unwrap_or_default();
    let mut name = format!("{job_name}-{index}");
    // Somebody else may have a pod of that name.
    while completed.has::<Pod>(&namespace, &name) {
        name += "-x";
    }
    let mut labels = template.labels.unwrap_or_default();
    let mut annotations = template.annotations.unwrap_or_default();
    labels.insert(JOB_NAME.to_owned(), job_name.clone());
    if spec.completion_mode.as_deref() == Some("Indexed") {
        labels.insert(INDEX.to_owned(), index.to_string());
        annotations.insert(INDEX.to_owned(), index.to_string());
    }
    Pod {
        metadata: ObjectMeta {
            namespace: Some(namespace),
            name: Some(name),
            labels: Some(labels),
            annotations: Some(annotations),
            creation_timestamp: job.metadata.creation_timestamp.clone(),
            owner_references: Some(vec![OwnerReference {
                api_version: "batch/v1".to_owned(),
                kind: "Job".to_owned(),
                name: job_name,
                uid: job.metadata.uid.clone().unwrap_or_default(),
                controller: Some(true),
                block_owner_deletion: Some(true),
            }]),
            ..ObjectMeta::default()
        },
        spec: spec.template.spec,
        status: Some(PodStatus {
            phase: Some("Pending".to_owned()),
            ..PodStatus::default()
        }),
    }
}
