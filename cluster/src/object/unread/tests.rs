use std::sync::Arc;

use serde_json::{Value, json};

use super::*;
use crate::{
    object::{JobFacts, Strip},
    pod::ObservedPod,
    pod_resources, pod_rules,
};

/// An object as it is received.
fn received<K: Receive>(object: &Value) -> K {
    whole(&without(object, K::UNREAD))
}

fn whole<K: Receive>(object: &Value) -> K {
    serde_json::from_value(object.clone()).unwrap()
}

/// An object without what a table names.
fn without(object: &Value, unread: &[Unread]) -> Value {
    match object {
        Value::Array(items) => items.iter().map(|item| without(item, unread)).collect(),
        Value::Object(fields) => {
            let kept = fields.iter().filter_map(|(name, value)| {
                let part = unread.iter().find(|(unread, _)| name == unread);
                match part {
                    Some((_, Whole)) => None,
                    Some((_, Fields(below))) => Some((name.clone(), without(value, below))),
                    None => Some((name.clone(), value.clone())),
                }
            });
            Value::Object(kept.collect())
        }
        other => other.clone(),
    }
}

fn pod() -> Value {
    let container = json!({
        "name": "rank", "image": "registry/train:1", "command": ["train"], "args": ["--now"], "workingDir": "/",
        "env": [{"name": "A", "value": "b"}], "envFrom": [{"secretRef": {"name": "s"}}],
        "volumeMounts": [{"name": "v", "mountPath": "/v"}], "livenessProbe": {"periodSeconds": 1},
        "resources": {"limits": {"cpu": "2", "nvidia.com/gpu": "1"}, "claims": [{"name": "gpu"}]},
        "ports": [{"containerPort": 80, "hostPort": 80}], "restartPolicy": "Always",
        "securityContext": {"privileged": true},
    });
    let status = json!({
        "name": "rank", "image": "registry/train:1", "imageID": "sha", "containerID": "c", "ready": true,
        "restartCount": 1, "state": {"running": {"startedAt": "2027-01-01T00:00:00Z"}},
        "lastState": {"terminated": {"exitCode": 1}},
    });
    let in_state = |name: &str, state: Value| json!({"name": name, "image": "a", "imageID": "b", "ready": false, "restartCount": 0, "state": state});
    let ended = in_state(
        "ended",
        json!({"terminated": {"exitCode": 3, "reason": "Error", "message": "m", "startedAt": "2027-01-01T00:00:00Z",
            "finishedAt": "2027-01-01T00:00:01Z", "containerID": "c"}}),
    );
    let waiting = in_state(
        "waiting",
        json!({"waiting": {"reason": "ImagePullBackOff", "message": "m"}}),
    );
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": "train-0", "namespace": "ml", "labels": {"muster.dev/gang": "train"}},
        "spec": {
            "containers": [container.clone(), container.clone()], "initContainers": [container],
            "volumes": [
                {"name": "v", "persistentVolumeClaim": {"claimName": "c"}},
                {"name": "token", "projected": {"sources": [{"serviceAccountToken": {"path": "t"}}]}},
            ],
            "resourceClaims": [{"name": "gpu", "resourceClaimName": "g"}], "hostNetwork": true,
            "nodeName": "n0", "tolerations": [{"key": "k"}], "schedulingGates": [{"name": "x"}],
            "securityContext": {"runAsUser": 7}, "dnsPolicy": "ClusterFirst", "enableServiceLinks": true,
            "serviceAccount": "default", "serviceAccountName": "default",
        },
        "status": {
            "phase": "Running", "podIPs": [{"ip": "::1"}], "podIP": "::1", "hostIP": "::2", "qosClass": "Burstable",
            "startTime": "2027-01-01T00:00:00Z",
            "conditions": [
                {"type": "PodReadyToStartContainers", "status": "True", "lastProbeTime": null,
                    "lastTransitionTime": "2027-01-01T00:00:00Z", "observedGeneration": 2},
                {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/1 nodes"},
            ],
            "containerStatuses": [status.clone(), ended, waiting], "initContainerStatuses": [status],
        },
    })
}

fn job() -> Value {
    json!({
        "apiVersion": "batch/v1", "kind": "Job",
        "metadata": {"name": "train", "namespace": "ml", "uid": "u", "labels": {"a": "b"}},
        "spec": {
            "completions": 2, "parallelism": 2, "completionMode": "Indexed", "suspend": true, "backoffLimit": 3,
            "backoffLimitPerIndex": 1, "activeDeadlineSeconds": 60,
            "template": {
                "metadata": {"labels": {"a": "b"}},
                "spec": {"restartPolicy": "OnFailure", "containers": [{"name": "c"}], "volumes": [{"name": "v", "emptyDir": {}}]},
            },
            "podFailurePolicy": {"rules": [{"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}]},
            "selector": {"matchLabels": {"a": "b"}}, "successPolicy": {"rules": [{"succeededCount": 1}]},
        },
        "status": {
            "succeeded": 1, "completedIndexes": "0", "failedIndexes": "1", "uncountedTerminatedPods": {},
            "conditions": [{"type": "Complete", "status": "False"}],
        },
    })
}

#[test]
fn of_the_kinds_that_say_most_something_is_passed_over_and_of_the_others_nothing() {
    let node = json!({
        "metadata": {"name": "n0", "labels": {"zone": "a"}},
        "spec": {"taints": [{"key": "k", "effect": "NoSchedule"}]},
        "status": {
            "allocatable": {"cpu": "8"}, "images": [{"names": ["a"]}], "volumesInUse": ["v"],
            "conditions": [{"type": "Ready", "status": "True"}],
        },
    });
    for (object, unread) in [
        (pod(), types::Pod::UNREAD),
        (job(), types::Job::UNREAD),
        (node, types::Node::UNREAD),
    ] {
        assert_ne!(object, without(&object, unread));
    }
    assert!(types::Gang::UNREAD.is_empty() && types::NodeDevices::UNREAD.is_empty());
}

/// Whoever reads a field says the same of an object as it is received and as it is.
#[test]
fn nothing_that_is_passed_over_is_read() {
    let (seen, all): (types::Pod, types::Pod) = (received(&pod()), whole(&pod()));
    assert_eq!(ObservedPod::of(&seen), ObservedPod::of(&all));
    // What it says about its failure, and what it waits for.
    for phase in ["Failed", "Pending"] {
        let mut pod = pod();
        pod["status"]["phase"] = json!(phase);
        let (seen, all): (types::Pod, types::Pod) = (received(&pod), whole(&pod));
        let (seen, all) = (ObservedPod::of(&seen), ObservedPod::of(&all));
        assert!(
            all.failure().or_else(|| all.waits_for()).is_some(),
            "{phase}"
        );
        assert_eq!(seen, all, "{phase}");
    }
    let resources = pod_resources::of_pod(&all);
    assert!(resources.is_ok());
    assert_eq!(pod_resources::of_pod(&seen).ok(), resources.ok());
    assert_eq!(pod_rules::unmodelled(&seen), pod_rules::unmodelled(&all));
    assert_eq!(pod_rules::unmodelled(&all).len(), 1);
    assert_eq!(pod_rules::is_marked(&seen), pod_rules::is_marked(&all));
    let (seen, all): (types::Job, types::Job) = (received(&job()), whole(&job()));
    assert_eq!(JobFacts::of(&seen), JobFacts::of(&all));
    assert_eq!(Strip::strip(Arc::new(seen)), Strip::strip(Arc::new(all)));
}
