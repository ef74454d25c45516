//! What is kept of an object: only what somebody reads.
//!
//! A cluster of 10,000 nodes has hundreds of thousands of objects, and most of what they carry says nothing about
//! admission. It is dropped while an object is received. (Pods are kept as
//! [`crate::pod::ObservedPod`], claims as [`crate::claims::ObservedClaim`].)

use std::sync::Arc;

use k8s_openapi::{
    api::{
        batch::v1::{Job, JobSpec, JobStatus},
        core::v1::{Namespace, Node, NodeSpec, NodeStatus},
    },
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};

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
    Flavor;
    Gang;
    Job by job;
    Ledger;
    Namespace by namespace;
    Node by node;
    NodeDevices;
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

fn is_read(key: &str) -> bool {
    READ_PREFIXES.iter().any(|prefix| key.starts_with(prefix))
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
