//! What is kept of an object: only what somebody reads.
//!
//! A cluster of 10,000 nodes has hundreds of thousands of pods, and most of what they carry (images, environments,
//! volumes, probes) says nothing about admission. It is dropped while an object is received.

use std::sync::Arc;

use k8s_openapi::{
    api::{
        batch::v1::{Job, JobSpec, JobStatus},
        core::v1::{
            ContainerState, ContainerStatus, Namespace, Node, NodeSpec, NodeStatus, Pod, PodSpec,
            PodStatus,
        },
        resource::v1::ResourceClaim,
    },
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};

use super::types;
use crate::{pod as pods, text};

/// Prefixes of the annotations that are read.
const READ_PREFIXES: [&str; 3] = ["muster.dev/", "batch.kubernetes.io/", "apps.kubernetes.io/"];
/// Conditions of a pod that are read.
const POD_CONDITIONS: [&str; 2] = ["PodScheduled", "PodReadyToStartContainers"];
/// Most bytes of a message in a status.
const MESSAGE_BYTES: usize = 512;

/// A kind of which only a part is kept.
pub(crate) trait Strip: Sized {
    /// The object without what nobody reads. What a pod asks for of its node is read before, by the index.
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
    Flavor;
    Gang;
    Job by job;
    Ledger;
    Namespace by namespace;
    Node by node;
    NodeDevices;
    Pod by pod;
    PriorityTier;
    Queue;
    ResourceClaim by claim;
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

fn is_read(key: &str) -> bool {
    READ_PREFIXES.iter().any(|prefix| key.starts_with(prefix))
}

fn pod(pod: Pod) -> Pod {
    let is_bound = pods::bound_to(&pod).is_some();
    let is_failed = pods::phase(&pod) == "Failed";
    Pod {
        metadata: metadata_of(pod.metadata, is_read),
        spec: pod.spec.map(|spec| pod_spec(spec, is_bound)),
        status: pod.status.map(|status| pod_status(status, is_failed)),
    }
}

/// The rules that choose a node have done their work once the pod is bound.
fn pod_spec(spec: PodSpec, is_bound: bool) -> PodSpec {
    PodSpec {
        node_name: spec.node_name,
        scheduling_gates: without_room(spec.scheduling_gates),
        scheduler_name: spec.scheduler_name,
        resource_claims: without_room(spec.resource_claims),
        affinity: spec.affinity.filter(|_| !is_bound),
        node_selector: spec.node_selector.filter(|_| !is_bound),
        tolerations: without_room(spec.tolerations),
        ..PodSpec::default()
    }
}

fn pod_status(status: PodStatus, is_failed: bool) -> PodStatus {
    let message = |mut text: String| {
        text::truncate(&mut text, MESSAGE_BYTES);
        text
    };
    PodStatus {
        phase: status.phase,
        reason: status.reason,
        message: status.message.map(message),
        conditions: without_room(status.conditions.map(|mut conditions| {
            conditions.retain(|condition| POD_CONDITIONS.contains(&condition.type_.as_str()));
            for condition in &mut conditions {
                condition.message = condition.message.take().map(message);
            }
            conditions
        })),
        resource_claim_statuses: without_room(status.resource_claim_statuses),
        container_statuses: status
            .container_statuses
            .filter(|_| is_failed)
            .map(first_failed),
        ..PodStatus::default()
    }
}

/// The first container that failed, with its exit code: all that is reported of a failed pod.
fn first_failed(statuses: Vec<ContainerStatus>) -> Vec<ContainerStatus> {
    let failed = statuses.into_iter().find_map(|status| {
        let mut terminated = status.state?.terminated?;
        terminated.message = None;
        (terminated.exit_code != 0).then(|| ContainerStatus {
            name: status.name,
            state: Some(ContainerState {
                terminated: Some(terminated),
                ..ContainerState::default()
            }),
            ..ContainerStatus::default()
        })
    });
    failed.into_iter().collect()
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
                conditions.retain(|condition| condition.type_ == "Ready");
                for condition in &mut conditions {
                    condition.last_heartbeat_time = None;
                    condition.message = None;
                }
                conditions
            })),
            ..NodeStatus::default()
        }),
    }
}

fn job(job: Job) -> Job {
    Job {
        metadata: metadata_of(job.metadata, is_read),
        spec: job.spec.map(|spec| JobSpec {
            completions: spec.completions,
            completion_mode: spec.completion_mode,
            parallelism: spec.parallelism,
            suspend: spec.suspend,
            ..JobSpec::default()
        }),
        status: job.status.map(|status| JobStatus {
            conditions: status.conditions,
            completed_indexes: status.completed_indexes,
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

fn claim(mut claim: ResourceClaim) -> ResourceClaim {
    let spec = claim.spec.as_mut();
    if let Some(devices) = spec.and_then(|spec| spec.devices.as_mut()) {
        devices.requests = without_room(devices.requests.take());
        devices.constraints = without_room(devices.constraints.take());
        devices.config = without_room(devices.config.take());
    }
    if let Some(status) = &mut claim.status {
        status.devices = without_room(status.devices.take());
        status.reserved_for = without_room(status.reserved_for.take());
        let allocation = status.allocation.as_mut();
        if let Some(devices) = allocation.and_then(|allocation| allocation.devices.as_mut()) {
            devices.results = without_room(devices.results.take());
            devices.config = without_room(devices.config.take());
        }
    }
    ResourceClaim {
        metadata: ObjectMeta {
            labels: None,
            ..metadata_of(claim.metadata, |_| false)
        },
        ..claim
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// A decoder makes room for four; what is kept of 170,000 claims and pods has room for what is there.
    #[test]
    fn lists_are_kept_without_the_room_that_they_were_received_with() {
        let received: ResourceClaim = serde_json::from_value(json!({
            "metadata": {"name": "c", "namespace": "ml", "ownerReferences": [
                {"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": "u"},
            ]},
            "spec": {"devices": {"requests": [{"name": "gpus", "exactly": {"deviceClassName": "gpu"}}]}},
            "status": {
                "allocation": {"devices": {"results": [
                    {"request": "gpus", "driver": "d", "pool": "n", "device": "gpu-0"},
                ]}},
                "reservedFor": [{"resource": "pods", "name": "p", "uid": "u"}],
            },
        }))
        .unwrap();
        let kept = Strip::strip(Arc::new(received.clone()));
        assert_eq!(*kept, received, "nothing that is read is lost");
        let devices = kept.spec.as_ref().unwrap().devices.as_ref().unwrap();
        let status = kept.status.as_ref().unwrap();
        let allocated = status.allocation.as_ref().unwrap().devices.as_ref();
        let rooms = [
            kept.metadata.owner_references.as_ref().map(Vec::capacity),
            devices.requests.as_ref().map(Vec::capacity),
            status.reserved_for.as_ref().map(Vec::capacity),
            allocated.unwrap().results.as_ref().map(Vec::capacity),
        ];
        assert_eq!(rooms, [Some(1); 4]);
        let pod: Pod = serde_json::from_value(json!({
            "metadata": {"name": "p"},
            "spec": {"containers": [], "schedulingGates": [{"name": "a"}], "tolerations": [{}],
                "resourceClaims": [{"name": "gpus", "resourceClaimName": "c"}]},
            "status": {"conditions": [
                {"type": "PodScheduled", "status": "False", "message": "gated"},
                {"type": "Initialized", "status": "True"},
            ]},
        }))
        .unwrap();
        let pod = Strip::strip(Arc::new(pod));
        let (spec, status) = (pod.spec.as_ref().unwrap(), pod.status.as_ref().unwrap());
        let rooms = [
            spec.scheduling_gates.as_ref().map(Vec::capacity),
            spec.tolerations.as_ref().map(Vec::capacity),
            spec.resource_claims.as_ref().map(Vec::capacity),
            status.conditions.as_ref().map(Vec::capacity),
        ];
        assert_eq!(rooms, [Some(1); 4]);
    }
}
