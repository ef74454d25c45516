//! What anybody goes by of a Job.
//!
//! Its controller writes a Job half a dozen times while its pods come and go: how many are active, ready, or not counted yet, and since
//! when. Nobody here reads that, and the gang of the Job is not looked at for it.

use std::collections::BTreeMap;

use k8s_openapi::{
    api::batch::v1::{Job, JobCondition, PodFailurePolicy},
    apimachinery::pkg::apis::meta::v1::{ManagedFieldsEntry, OwnerReference},
};

use super::strip::{is_read, restarts_in_place, suspenders_count};

/// What is kept of a Job, but for its version: the same of a Job as it is received and as it is kept.
#[derive(Debug, PartialEq)]
pub struct JobFacts<'a> {
    uid: Option<&'a str>,
    is_deleting: bool,
    owners: Option<&'a [OwnerReference]>,
    labels: Option<&'a BTreeMap<String, String>>,
    /// `None`: it has none at all, read or not.
    annotations: Option<Vec<(&'a str, &'a str)>>,
    suspenders: Option<&'a [ManagedFieldsEntry]>,
    spec: Option<SpecFacts<'a>>,
    conditions: Option<&'a [JobCondition]>,
    completed_indexes: Option<&'a str>,
    failed_indexes: Option<&'a str>,
    succeeded: Option<i32>,
}

#[derive(Debug, PartialEq)]
struct SpecFacts<'a> {
    completions: Option<i32>,
    completion_mode: Option<&'a str>,
    parallelism: Option<i32>,
    suspend: Option<bool>,
    active_deadline_seconds: Option<i64>,
    backoff_limit: Option<i32>,
    backoff_limit_per_index: Option<i32>,
    pod_failure_policy: Option<&'a PodFailurePolicy>,
    restarts_in_place: bool,
}

impl<'a> JobFacts<'a> {
    /// Of this Job.
    pub fn of(job: &'a Job) -> Self {
        let metadata = &job.metadata;
        let annotations = metadata.annotations.as_ref().map(|annotations| {
            let read = annotations.iter().filter(|(key, _)| is_read(key));
            read.map(|(key, value)| (key.as_str(), value.as_str()))
                .collect()
        });
        let suspenders = metadata.managed_fields.as_deref();
        let status = job.status.as_ref();
        Self {
            uid: metadata.uid.as_deref(),
            is_deleting: metadata.deletion_timestamp.is_some(),
            owners: metadata.owner_references.as_deref(),
            labels: metadata.labels.as_ref(),
            annotations,
            suspenders: suspenders.filter(|_| suspenders_count(job)),
            spec: job.spec.as_ref().map(|spec| SpecFacts {
                completions: spec.completions,
                completion_mode: spec.completion_mode.as_deref(),
                parallelism: spec.parallelism,
                suspend: spec.suspend,
                active_deadline_seconds: spec.active_deadline_seconds,
                backoff_limit: spec.backoff_limit,
                backoff_limit_per_index: spec.backoff_limit_per_index,
                pod_failure_policy: spec.pod_failure_policy.as_ref(),
                restarts_in_place: restarts_in_place(job),
            }),
            conditions: status.and_then(|status| status.conditions.as_deref()),
            completed_indexes: status.and_then(|status| status.completed_indexes.as_deref()),
            failed_indexes: status.and_then(|status| status.failed_indexes.as_deref()),
            succeeded: status.and_then(|status| status.succeeded),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use serde_json::{Value, json};

    use super::*;
    use crate::object::Strip;

    fn job(pointer: &str, value: &Value) -> Job {
        let mut job = json!({
            "metadata": {
                "name": "fit", "namespace": "ml", "uid": "u", "resourceVersion": "7", "generation": 1,
                "labels": {"a": "b"}, "annotations": {"muster.dev/suspended-for": "fit/1/u", "other": "x"},
                "ownerReferences": [{"apiVersion": "v1", "kind": "JobSet", "name": "s", "uid": "s-uid"}],
                "managedFields": [{"manager": "kubectl", "fieldsV1": {"f:spec": {"f:suspend": {}}}}],
            },
            "spec": {
                "suspend": true, "parallelism": 2, "completions": 2, "completionMode": "Indexed", "backoffLimit": 3,
                "backoffLimitPerIndex": 2, "activeDeadlineSeconds": 60,
                "podFailurePolicy": {"rules": [{"action": "FailJob", "onExitCodes": {"operator": "In", "values": [3]}}]},
                "template": {"spec": {"containers": [], "restartPolicy": "Never"}},
            },
            "status": {
                "active": 2, "ready": 1, "startTime": "2027-01-01T00:00:00Z", "succeeded": 1, "completedIndexes": "0",
                "failedIndexes": "1", "conditions": [{"type": "Complete", "status": "False"}],
                "uncountedTerminatedPods": {},
            },
        });
        *job.pointer_mut(pointer).expect(pointer) = value.clone();
        serde_json::from_value(job).unwrap()
    }

    #[test]
    fn what_is_kept_of_a_job_is_what_is_gone_by_and_what_its_controller_counts_is_not() {
        let before = job("/metadata/uid", &json!("u"));
        let kept = Strip::strip(Arc::new(before.clone()));
        assert_eq!(JobFacts::of(&kept), JobFacts::of(&before));
        for (pointer, value, is_news) in [
            ("/metadata/resourceVersion", json!("8"), false),
            ("/metadata/generation", json!(2), false),
            ("/metadata/annotations/other", json!("y"), false),
            ("/status/active", json!(0), false),
            ("/status/ready", json!(2), false),
            ("/status/startTime", json!("2027-01-01T00:00:01Z"), false),
            (
                "/status/uncountedTerminatedPods",
                json!({"succeeded": ["p"]}),
                false,
            ),
            ("/metadata/uid", json!("v"), true),
            ("/metadata/labels", json!({"a": "c"}), true),
            ("/metadata/annotations", json!(null), true),
            (
                "/metadata/annotations/muster.dev~1suspended-for",
                json!("fit/2/u"),
                true,
            ),
            ("/metadata/ownerReferences", json!([]), true),
            ("/metadata/managedFields/0/manager", json!("helm"), true),
            ("/spec/suspend", json!(false), true),
            ("/spec/parallelism", json!(3), true),
            ("/spec/completions", json!(3), true),
            ("/spec/completionMode", json!("NonIndexed"), true),
            ("/spec/backoffLimit", json!(4), true),
            ("/spec/backoffLimitPerIndex", json!(3), true),
            ("/spec/activeDeadlineSeconds", json!(61), true),
            (
                "/spec/podFailurePolicy/rules/0/action",
                json!("Ignore"),
                true,
            ),
            (
                "/spec/template/spec/restartPolicy",
                json!("OnFailure"),
                true,
            ),
            (
                "/spec/template/spec/containers",
                json!([{"name": "c"}]),
                false,
            ),
            ("/status/succeeded", json!(2), true),
            ("/status/completedIndexes", json!("0,1"), true),
            ("/status/failedIndexes", json!("0"), true),
            ("/status/conditions/0/status", json!("True"), true),
            ("/status", json!(null), true),
        ] {
            let after = job(pointer, &value);
            let is_other = JobFacts::of(&kept) != JobFacts::of(&after);
            assert_eq!(is_other, is_news, "{pointer}");
            // Whatever is kept of it beyond its version is among the facts.
            let mut stripped = Arc::unwrap_or_clone(Strip::strip(Arc::new(after)));
            stripped
                .metadata
                .resource_version
                .clone_from(&kept.metadata.resource_version);
            stripped.metadata.generation = kept.metadata.generation;
            assert_eq!(stripped != *kept, is_news, "{pointer}");
        }
    }
}
