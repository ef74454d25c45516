//! JSON patches of pods and Jobs.
//!
//! Each tests UID and resourceVersion first: a pod that changed since it was looked at, or one that was made
//! again under the same name, is not meant. A [`nudge`] tests the UID only: kubelets write often.

use jiff::Timestamp;
use k8s_openapi::{api::batch::v1::Job, apimachinery::pkg::apis::meta::v1::Time};
use muster_api::keys;
use muster_cluster::pod::{self, DISRUPTION_TARGET, EVICTED_BY_MUSTER, ObservedPod, PodFields};
use serde_json::{Value, json};

use crate::{
    ApiRequest, JobChange,
    objects::{job_object, pod_object},
};

/// What an ungated pod is told.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Release<'a> {
    /// Name of the Gang.
    pub(crate) gang: &'a str,
    /// Rank of the pod, as it is told.
    pub(crate) rank: u32,
    /// The attempt.
    pub(crate) attempt: i64,
    /// How many pods the attempt has, where that is not known beforehand.
    pub(crate) count: Option<usize>,
    /// The one node that it may run on.
    pub(crate) node: &'a str,
}

/// Stamps a gated pod with an attempt, so that a late ungate for an earlier one conflicts.
pub(crate) fn stamp(pod: &ObservedPod, attempt: i64) -> ApiRequest {
    let mut patch = guards(pod);
    annotate(&mut patch, pod, &[(keys::ATTEMPT, attempt.to_string())]);
    written(pod, patch)
}

/// Rank, attempt, pin and gate in one: there is no moment at which the pod is free and not pinned.
pub(crate) fn ungate(pod: &ObservedPod, release: Release<'_>) -> ApiRequest {
    let mut patch = guards(pod);
    let mut annotations = vec![
        (keys::ATTEMPT, release.attempt.to_string()),
        (keys::GANG_NAME, release.gang.to_owned()),
        (keys::PLACEMENT, keys::PLACEMENT_PINNED.to_owned()),
        (keys::RANK, release.rank.to_string()),
    ];
    annotations.extend(
        release
            .count
            .map(|count| (keys::ADMITTED_COUNT, count.to_string())),
    );
    annotate(&mut patch, pod, &annotations);
    patch.push(json!({
        "op": "add",
        "path": "/spec/affinity",
        "value": pinned_affinity(pod, release.node),
    }));
    take_gate(&mut patch, pod);
    written(pod, patch)
}

/// Makes the kubelet look at the pod again. Whatever else changed meanwhile, it is safe: the annotation says nothing, and
/// nobody decides by it.
pub(crate) fn nudge(pod: &ObservedPod) -> ApiRequest {
    let before = pod::annotation(pod, keys::NUDGES).and_then(|nudges| nudges.parse().ok());
    let nudges = before.unwrap_or(0_u32).saturating_add(1);
    let mut patch = vec![is_that_pod(pod)];
    annotate(&mut patch, pod, &[(keys::NUDGES, nudges.to_string())]);
    written(pod, patch)
}

/// Tells a pod when its gang gives way to another one; `None`: it does not any more.
pub(crate) fn preempt_at(pod: &ObservedPod, preempt_at: Option<&str>) -> ApiRequest {
    let mut patch = guards(pod);
    if let Some(at) = preempt_at {
        annotate(&mut patch, pod, &[(keys::PREEMPT_AT, at.to_owned())]);
    } else {
        patch.push(json!({"op": "remove", "path": pointer_to(keys::PREEMPT_AT)}));
    }
    written(pod, patch)
}

/// Tells a pod, and whoever counts its failure, that it is about to be deleted, and why.
pub(crate) fn disrupt(pod: &ObservedPod, message: &str, now: Timestamp) -> ApiRequest {
    let condition = json!({
        "type": DISRUPTION_TARGET, "status": "True", "reason": EVICTED_BY_MUSTER, "message": message,
        "lastTransitionTime": Time(now),
    });
    let mut patch = guards(pod);
    patch.push(if pod.has_conditions() {
        json!({"op": "add", "path": "/status/conditions/-", "value": condition})
    } else {
        json!({"op": "add", "path": "/status/conditions", "value": [condition]})
    });
    ApiRequest::PatchPodStatus {
        key: pod_object(pod),
        patch: Value::Array(patch),
    }
}

/// Takes the gate of a pod that Muster has no say about.
pub(crate) fn ungate_anywhere(pod: &ObservedPod) -> ApiRequest {
    let mut patch = guards(pod);
    let placement = [(keys::PLACEMENT, keys::PLACEMENT_ANY.to_owned())];
    annotate(&mut patch, pod, &placement);
    take_gate(&mut patch, pod);
    written(pod, patch)
}

fn written(pod: &ObservedPod, patch: Vec<Value>) -> ApiRequest {
    ApiRequest::PatchPod {
        key: pod_object(pod),
        patch: Value::Array(patch),
    }
}

fn guards(pod: &ObservedPod) -> Vec<Value> {
    vec![
        is_that_pod(pod),
        json!({"op": "test", "path": "/metadata/resourceVersion", "value": pod.resource_version()}),
    ]
}

fn is_that_pod(pod: &ObservedPod) -> Value {
    json!({"op": "test", "path": "/metadata/uid", "value": pod.uid()})
}

fn annotate(patch: &mut Vec<Value>, pod: &ObservedPod, annotations: &[(&str, String)]) {
    if !pod.has_annotations() {
        patch.push(no_annotations());
    }
    for (key, value) in annotations {
        patch.push(json!({"op": "add", "path": pointer_to(key), "value": value}));
    }
}

fn no_annotations() -> Value {
    json!({"op": "add", "path": "/metadata/annotations", "value": {}})
}

fn pointer_to(annotation: &str) -> String {
    format!("/metadata/annotations/{}", annotation.replace('/', "~1"))
}

/// A change of a Job: annotations that are set (`Some`) or taken (`None`), and fields of its spec that are set. It tests UID
/// and resourceVersion first: whoever writes the Job in between is not overruled.
pub(crate) fn job(
    job: &Job,
    change: JobChange,
    annotations: &[(&str, Option<&str>)],
    spec: &[(&str, Value)],
) -> ApiRequest {
    let metadata = &job.metadata;
    let mut patch = vec![
        json!({"op": "test", "path": "/metadata/uid", "value": metadata.uid}),
        json!({"op": "test", "path": "/metadata/resourceVersion", "value": metadata.resource_version}),
    ];
    if metadata.annotations.is_none() {
        patch.push(no_annotations());
    }
    for (key, value) in annotations {
        let path = pointer_to(key);
        patch.push(match value {
            Some(value) => json!({"op": "add", "path": path, "value": value}),
            None => json!({"op": "remove", "path": path}),
        });
    }
    for (field, value) in spec {
        patch.push(json!({"op": "add", "path": format!("/spec/{field}"), "value": value}));
    }
    ApiRequest::PatchJob {
        key: job_object(job),
        change,
        patch: Value::Array(patch),
    }
}

fn take_gate(patch: &mut Vec<Value>, pod: &ObservedPod) {
    if let Some(place) = pod.gates().position(|gate| gate == keys::ADMISSION_GATE) {
        let pointer = format!("/spec/schedulingGates/{place}");
        patch.push(json!({"op": "remove", "path": pointer}));
    }
}

/// The pod's affinity with the node as `matchFields metadata.name` in **every** term that says anything, or as
/// the only term. Terms are alternatives, so one without the pin would let the pod go elsewhere; an empty
/// term matches nothing and stays so. Of a gated pod the API server allows exactly this: requirements may be
/// added to terms, terms may not be added to others.
fn pinned_affinity(pod: &ObservedPod, node: &str) -> Value {
    let pin = json!({"key": "metadata.name", "operator": "In", "values": [node]});
    let mut affinity = pod
        .node_rules()
        .and_then(|rules| rules.affinity.as_ref())
        .and_then(|affinity| serde_json::to_value(affinity).ok())
        .unwrap_or_else(|| json!({}));
    let terms = &mut affinity["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"];
    match terms.as_array_mut() {
        Some(terms) if !terms.is_empty() => {
            let said = |term: &Value, field: &str| {
                term[field].as_array().is_some_and(|list| !list.is_empty())
            };
            for term in terms
                .iter_mut()
                .filter(|term| said(term, "matchExpressions") || said(term, "matchFields"))
            {
                match term["matchFields"].as_array_mut() {
                    Some(fields) => fields.push(pin.clone()),
                    None => term["matchFields"] = json!([pin.clone()]),
                }
            }
        }
        _ => *terms = json!([{"matchFields": [pin]}]),
    }
    affinity
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(affinity: &Value) -> ObservedPod {
        let pod = serde_json::from_value(json!({
            "metadata": {"name": "p", "namespace": "ml", "uid": "u", "resourceVersion": "7"},
            "spec": {
                "containers": [],
                "affinity": affinity,
                "schedulingGates": [{"name": "other"}, {"name": keys::ADMISSION_GATE}],
            },
        }));
        ObservedPod::of(&pod.unwrap())
    }

    fn terms(affinity: &Value) -> Value {
        pinned_affinity(&pod(affinity), "n1")["nodeAffinity"]
            ["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
            .clone()
    }

    #[test]
    fn the_pin_stands_in_every_term_that_says_anything_or_is_the_only_one() {
        let pin = json!({"key": "metadata.name", "operator": "In", "values": ["n1"]});
        let zone = json!({"key": "zone", "operator": "In", "values": ["a"]});
        let field = json!({"key": "metadata.name", "operator": "NotIn", "values": ["n9"]});
        let required = |terms: Value| json!({"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}});
        assert_eq!(terms(&Value::Null), json!([{"matchFields": [pin]}]));
        assert_eq!(
            terms(&json!({"podAntiAffinity": {}})),
            json!([{"matchFields": [pin]}])
        );
        assert_eq!(
            terms(&required(
                json!([{"matchExpressions": [zone]}, {"matchFields": [field]}, {}])
            )),
            json!([{"matchExpressions": [zone], "matchFields": [pin]}, {"matchFields": [field, pin]}, {}])
        );
    }

    #[test]
    fn what_else_the_pod_says_about_affinity_is_kept() {
        let kept = pinned_affinity(
            &pod(
                &json!({"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [{"topologyKey": "rack"}]}}),
            ),
            "n1",
        );
        assert_eq!(
            kept["podAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"][0]["topologyKey"],
            "rack"
        );
    }

    #[test]
    fn an_ungate_tests_the_pod_it_means_and_takes_our_gate_only() {
        let release = Release {
            gang: "g",
            rank: 3,
            attempt: 2,
            count: None,
            node: "n1",
        };
        let ApiRequest::PatchPod { patch, .. } = ungate(&pod(&Value::Null), release) else {
            panic!("a patch");
        };
        let operations = patch.as_array().unwrap();
        assert_eq!(operations[0]["path"], "/metadata/uid");
        assert_eq!(operations[1]["value"], "7");
        assert_eq!(
            operations.last().unwrap(),
            &json!({"op": "remove", "path": "/spec/schedulingGates/1"})
        );
        assert!(operations.iter().any(|operation| operation["path"]
            == "/metadata/annotations/muster.dev~1rank"
            && operation["value"] == "3"));
    }
}
