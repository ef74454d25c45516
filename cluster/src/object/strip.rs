//! What is kept of an object: only what somebody reads.
//!
//! A cluster of 10,000 nodes has hundreds of thousands of objects, and most of what they carry says nothing about
//! admission. It is dropped once an object is received, and the largest parts of it are not even made ([`super::unread`]). (Pods are kept as
//! [`crate::pod::ObservedPod`], claims as [`crate::claims::ObservedClaim`].)

use std::sync::Arc;

use k8s_openapi::{
    api::{
        batch::v1::{Job, JobSpec, JobStatus},
        core::v1::{Namespace, Node, NodeSpec, NodeStatus, PodSpec, PodTemplateSpec},
    },
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};

use muster_api::{Charge, Gang, NodeDevices, conditions::OF_NODES, keys};

use super::types;
use crate::pod::READ_PREFIXES;

/// A kind of which only a part is kept.
pub(crate) trait Strip: Sized {
    /// The object without what nobody reads.
    fn strip(object: Arc<Self>) -> Arc<Self> {
        object
    }
}

macro_rules! strip {
    ($($kind:ident $(by $part:ident)?;)*) => {
        $(impl Strip for types::$kind {
            $(fn strip(object: Arc<Self>) -> Arc<Self> {
                Arc::new($part(Arc::unwrap_or_clone(object)))
            })?
        })*
    };
}

strip! {
    Cohort;
    DeviceClass;
    DeviceTaintRule;
    Flavor;
    Gang by gang;
    Job by job;
    Ledger;
    Namespace by namespace;
    Node by node;
    NodeDevices by node_devices;
    PriorityTier;
    Queue;
    ResourceSlice;
    Team;
    Topology;
}

/// A list without the room that it was received with: a decoder does not know how many will come, and makes room for four.
fn without_room<T>(list: Option<Vec<T>>) -> Option<Vec<T>> {
    list.map(|mut list| {
        list.shrink_to_fit();
        list
    })
}

fn metadata_of(metadata: ObjectMeta, keeps: impl Fn(&str) -> bool) -> ObjectMeta {
    ObjectMeta {
        owner_references: without_room(metadata.owner_references),
        managed_fields: None,
        generate_name: None,
        self_link: None,
        // A patch must know whether there are annotations, so an empty map stays one.
        annotations: metadata.annotations.map(|mut annotations| {
            annotations.retain(|key, _| keeps(key));
            annotations
        }),
        ..metadata
    }
}

pub(super) fn is_read(key: &str) -> bool {
    READ_PREFIXES.iter().any(|prefix| key.starts_with(prefix))
}

fn gang(mut gang: Gang) -> Gang {
    gang.metadata.managed_fields = None;
    gang.metadata.owner_references = without_room(gang.metadata.owner_references.take());
    gang.spec.pod_sets.shrink_to_fit();
    let Some(status) = &mut gang.status else {
        return gang;
    };
    status.conditions.shrink_to_fit();
    if let Some(admission) = &mut status.admission {
        charge_without_room(&mut admission.charge);
        admission.pods.shrink_to_fit();
        for pod in &mut admission.pods {
            pod.claims.shrink_to_fit();
        }
    }
    if let Some(placement) = &mut status.placement {
        placement.nodes.shrink_to_fit();
        placement.domain.shrink_to_fit();
    }
    gang
}

fn node_devices(mut devices: NodeDevices) -> NodeDevices {
    devices.spec.permits.shrink_to_fit();
    for permit in &mut devices.spec.permits {
        permit.claim_uids.shrink_to_fit();
        charge_without_room(&mut permit.charge);
    }
    if let Some(status) = &mut devices.status {
        status.held.shrink_to_fit();
        for held in &mut status.held {
            held.devices.shrink_to_fit();
        }
        if let Some(faults) = &mut status.faults {
            faults.shrink_to_fit();
        }
    }
    devices
}

fn charge_without_room(charge: &mut Charge) {
    charge.claims.shrink_to_fit();
    for claims in &mut charge.claims {
        claims.uids.shrink_to_fit();
    }
    charge.resources.shrink_to_fit();
}

fn node(node: Node) -> Node {
    Node {
        metadata: metadata_of(node.metadata, |_| false),
        spec: node.spec.map(|spec| NodeSpec {
            unschedulable: spec.unschedulable,
            taints: spec.taints,
            ..NodeSpec::default()
        }),
        status: node.status.map(|status| NodeStatus {
            allocatable: status.allocatable,
            conditions: without_room(status.conditions.map(|mut conditions| {
                let is_ours = |kind: &str| OF_NODES.contains(&kind);
                conditions
                    .retain(|condition| condition.type_ == "Ready" || is_ours(&condition.type_));
                for condition in &mut conditions {
                    condition.last_heartbeat_time = None;
                    // What is to be said is compared with what is.
                    if !is_ours(&condition.type_) {
                        condition.message = None;
                    }
                }
                conditions
            })),
            ..NodeStatus::default()
        }),
    }
}

/// Whether it is asked who suspended a Job: only while Muster may have done so.
pub(super) fn suspenders_count(job: &Job) -> bool {
    let is_suspended = job.spec.as_ref().and_then(|spec| spec.suspend) == Some(true);
    let annotations = job.metadata.annotations.as_ref();
    is_suspended && annotations.is_some_and(|it| it.contains_key(keys::SUSPENDED_FOR))
}

/// What a pod says whose containers are started anew where they are when they fail.
const RESTARTS_IN_PLACE: &str = "OnFailure";

/// Whether containers of a Job's pods are started anew in place when they fail: then the Job counts containers, and hardly any pods.
pub fn restarts_in_place(job: &Job) -> bool {
    let spec = job.spec.as_ref();
    let pods = spec.and_then(|spec| spec.template.spec.as_ref());
    pods.is_some_and(|pods| pods.restart_policy.as_deref() == Some(RESTARTS_IN_PLACE))
}

/// Of the template of a Job's pods: whether containers are started anew in place.
fn template(do_restart_in_place: bool) -> PodTemplateSpec {
    PodTemplateSpec {
        metadata: None,
        spec: do_restart_in_place.then(|| PodSpec {
            restart_policy: Some(RESTARTS_IN_PLACE.to_owned()),
            ..PodSpec::default()
        }),
    }
}

fn job(mut job: Job) -> Job {
    let do_restart_in_place = restarts_in_place(&job);
    let do_suspenders_count = suspenders_count(&job);
    let suspenders = job.metadata.managed_fields.take();
    Job {
        metadata: ObjectMeta {
            managed_fields: suspenders.filter(|_| do_suspenders_count),
            ..metadata_of(job.metadata, is_read)
        },
        spec: job.spec.map(|spec| JobSpec {
            completions: spec.completions,
            completion_mode: spec.completion_mode,
            parallelism: spec.parallelism,
            suspend: spec.suspend,
            active_deadline_seconds: spec.active_deadline_seconds,
            backoff_limit: spec.backoff_limit,
            backoff_limit_per_index: spec.backoff_limit_per_index,
            pod_failure_policy: spec.pod_failure_policy,
            template: template(do_restart_in_place),
            ..JobSpec::default()
        }),
        status: job.status.map(|status| JobStatus {
            conditions: status.conditions,
            completed_indexes: status.completed_indexes,
            succeeded: status.succeeded,
            failed_indexes: status.failed_indexes,
            ..JobStatus::default()
        }),
    }
}

fn namespace(namespace: Namespace) -> Namespace {
    Namespace {
        metadata: metadata_of(namespace.metadata, is_read),
        ..namespace
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    /// A decoder that does not know how many will come.
    fn received<T: serde::de::DeserializeOwned>(value: &Value) -> Arc<T> {
        Arc::new(serde_json::from_str(&value.to_string()).unwrap())
    }

    fn charge() -> Value {
        json!({
            "claims": [{"flavor": "h100", "gpusMilli": 1000, "vramBytes": 0, "uids": ["c"]}],
            "resources": [{"flavor": "h100", "resource": "cpu", "amount": 1}],
        })
    }

    /// A decoder makes room for four; what is kept of 60,000 Gangs has room for what is there.
    #[test]
    fn lists_of_a_gang_are_kept_without_the_room_that_they_were_received_with() {
        let gang: Arc<Gang> = received(&json!({
            "apiVersion": "muster.dev/v1alpha1", "kind": "Gang",
            "metadata": {"name": "g", "namespace": "ml", "ownerReferences": [
                {"apiVersion": "batch/v1", "kind": "Job", "name": "j", "uid": "u"},
            ]},
            "spec": {"size": 1, "podSets": [{"name": "main", "count": 1}]},
            "status": {
                "phase": "Running", "attempt": 1, "leaderEpoch": 1, "observedGeneration": 1,
                "conditions": [{"type": "Admitted", "status": "True", "reason": "Admitted", "message": "",
                    "lastTransitionTime": "2026-11-22T00:00:00Z"}],
                "admission": {"team": "t", "teamGeneration": 1, "ledgerSequence": 1, "charge": charge(),
                    "pods": [{"uid": "p", "claims": ["c"]}]},
                "placement": {"nodes": [{"node": "n", "nodeUid": "u", "ranks": 1}], "domain": ["a"]},
            },
        }));
        let kept = Strip::strip(Arc::clone(&gang));
        let text = |gang: &Gang| serde_json::to_value(gang).unwrap();
        assert_eq!(text(&kept), text(&gang), "nothing is lost");
        let status = kept.status.as_ref().unwrap();
        let admission = status.admission.as_ref().unwrap();
        let placement = status.placement.as_ref().unwrap();
        let rooms = [
            kept.metadata.owner_references.as_ref().unwrap().capacity(),
            kept.spec.pod_sets.capacity(),
            status.conditions.capacity(),
            admission.pods.capacity(),
            admission.pods[0].claims.capacity(),
            admission.charge.claims.capacity(),
            admission.charge.claims[0].uids.capacity(),
            admission.charge.resources.capacity(),
            placement.nodes.capacity(),
            placement.domain.capacity(),
        ];
        assert_eq!(rooms, [1; 10]);
    }

    #[test]
    fn lists_of_node_devices_are_kept_without_the_room_that_they_were_received_with() {
        let devices: Arc<NodeDevices> = received(&json!({
            "apiVersion": "muster.dev/v1alpha1", "kind": "NodeDevices", "metadata": {"name": "n"},
            "spec": {"nodeUid": "u", "leaderEpoch": 1, "permits": [{
                "podUid": "p", "claimUids": ["c"], "gang": "ml/g", "gangUid": "g", "attempt": 1, "team": "t",
                "charge": charge(),
            }]},
            "status": {"uid": "u", "observedGeneration": 1, "held": [
                {"claimUid": "c", "namespace": "ml", "name": "c", "podUid": "p", "devices": ["gpu-0"]},
            ]},
        }));
        let kept = Strip::strip(Arc::clone(&devices));
        let text = |devices: &NodeDevices| serde_json::to_value(devices).unwrap();
        assert_eq!(text(&kept), text(&devices), "nothing is lost");
        let permit = &kept.spec.permits[0];
        let held = &kept.status.as_ref().unwrap().held;
        let rooms = [
            kept.spec.permits.capacity(),
            permit.claim_uids.capacity(),
            permit.charge.claims[0].uids.capacity(),
            held.capacity(),
            held[0].devices.capacity(),
        ];
        assert_eq!(rooms, [1; 5]);
    }
}
