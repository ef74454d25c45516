//! Which pods belong together, by what they and their Jobs declare.

use k8s_openapi::api::batch::v1::{Job, JobSpec};
use muster_api::keys;

use super::{annotation, controlling_job, label, name, namespace, uid};
use crate::{formed::GangKey, pod::ObservedPod, whole_number};

/// The `completionMode` of Jobs whose pods have an index.
const INDEXED: &str = "Indexed";

/// Pods that were declared to belong together.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Group {
    /// Pods with the label `muster.dev/gang`.
    Label {
        /// Namespace.
        namespace: String,
        /// Value of the label.
        label: String,
    },
    /// Pods of a Job that is a gang.
    Job {
        /// Namespace.
        namespace: String,
        /// Name of the Job.
        name: String,
        /// UID of the Job.
        uid: String,
    },
    /// A pod for itself.
    Single {
        /// Namespace.
        namespace: String,
        /// Name of the pod.
        name: String,
        /// UID of the pod.
        uid: String,
    },
}

/// Where a pod belongs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Belonging {
    /// The gang that its annotation names: its identity, whatever else it declares.
    pub(crate) named: Option<GangKey>,
    /// The group that it declares. `None` while its Job has not been observed: what the Job declares
    /// is not known, and a guess could admit one pod of a gang alone.
    pub(crate) group: Option<Group>,
}

/// Finds a Job by namespace, name and UID.
pub(crate) type JobFinder<'a> = dyn Fn(&str, &str, &str) -> Option<&'a Job> + 'a;

/// Where a managed pod belongs.
pub(crate) fn belonging(pod: &ObservedPod, jobs: &JobFinder<'_>) -> Belonging {
    let namespace = namespace(pod).to_owned();
    let named = annotation(pod, keys::GANG_NAME).map(|name| GangKey::new(&namespace, name));
    Belonging {
        named,
        group: group(pod, namespace, jobs),
    }
}

fn group(pod: &ObservedPod, namespace: String, jobs: &JobFinder<'_>) -> Option<Group> {
    if let Some(value) = label(pod, keys::GANG) {
        return Some(Group::Label {
            namespace,
            label: value.to_owned(),
        });
    }
    if let Some(owner) = controlling_job(pod) {
        let job = jobs(&namespace, &owner.name, &owner.uid)?;
        if is_gang(job, pod) {
            return Some(Group::Job {
                namespace,
                name: owner.name.clone(),
                uid: owner.uid.clone(),
            });
        }
    }
    Some(Group::Single {
        namespace,
        name: name(pod).to_owned(),
        uid: uid(pod).to_owned(),
    })
}

/// Whether the pods of a Job are one gang: it says so, it is Indexed and runs all its ranks at once, or all that it makes are
/// attempts at one pod's work.
pub fn is_gang(job: &Job, pod: &ObservedPod) -> bool {
    match annotation(pod, keys::GANG_SIZE).or_else(|| job_annotation(job, keys::GANG_SIZE)) {
        Some(size) => whole_number::gang_size(size) != Some(1) || makes_one_pod(job),
        None => makes_one_pod(job) || implied_size(job).is_some(),
    }
}

/// The ranks of an Indexed Job that runs all of them at once, if they are more than one.
pub(super) fn implied_size(job: &Job) -> Option<i32> {
    implied_by(job.spec.as_ref()?)
}

fn implied_by(spec: &JobSpec) -> Option<i32> {
    let completions = spec.completions?;
    let is_indexed = spec.completion_mode.as_deref() == Some(INDEXED);
    (is_indexed && completions > 1 && spec.parallelism.unwrap_or(1) == completions)
        .then_some(completions)
}

/// How many pods a Job makes one gang of by its shape alone: the ranks of an Indexed Job that runs all of them at once, or the one
/// pod that it makes. `None`: each of its pods starts for itself.
pub fn size_by_shape(spec: &JobSpec) -> Option<i32> {
    if spec.completions == Some(1) {
        return Some(1);
    }
    implied_by(spec)
}

/// Whether a Job is done with the first pod that succeeds, and makes another only once that one is lost or failed, whatever its
/// `parallelism`. The gang is the Job's, not each pod's, so that its age and what it went through outlive a pod.
pub(super) fn makes_one_pod(job: &Job) -> bool {
    let spec = job.spec.as_ref();
    spec.is_some_and(|spec| spec.completions == Some(1))
}

/// Whether each pod of the Job has an index of its own.
pub fn is_indexed(job: &Job) -> bool {
    let spec = job.spec.as_ref();
    spec.is_some_and(|spec| spec.completion_mode.as_deref() == Some(INDEXED))
}

pub(super) fn job_annotation<'a>(job: &'a Job, key: &str) -> Option<&'a str> {
    job.metadata
        .annotations
        .as_ref()?
        .get(key)
        .map(String::as_str)
}
