//! A fake kube-scheduler. It decides by what its informer shows, which lags, and by what it wrote itself (its assume
//! cache); what it writes carries the versions that it saw, and fails where they are old. It takes ungated pods, honours
//! what they say about nodes, allocates devices first fit in slice order, reserves the claim, binds. Each write is a step
//! of its own, so that anything can happen between.
//!
//! A claim that is allocated already is reserved only where its pod fits. If that is nowhere, an allocation in the pod's way
//! that nobody else has reserved is cleared, as the plugin `DynamicResources` does in `PostFilter`; the next attempt
//! allocates the claim anew.

mod placing;
#[cfg(test)]
mod tests;

use k8s_openapi::api::{
    core::v1::{Node, Pod, PodCondition, PodStatus},
    resource::v1::{
        AllocationResult, DeviceAllocationResult, DeviceRequestAllocationResult, ResourceClaim,
        ResourceClaimConsumerReference, ResourceClaimStatus,
    },
};
use muster_api::keys;
use muster_cluster::object::{Kind, Object};

use crate::{
    api_server::{ApiServer, Failure, Informer, Precondition, has_ended, is_bound},
    claim_controller::{DELETE_PROTECTION, claims_of},
};
use placing::{accepts, has_room, place};

/// What it watches.
pub const WATCHED: [Kind; 5] = [
    Kind::Node,
    Kind::Pod,
    Kind::ResourceClaim,
    Kind::ResourceSlice,
    Kind::DeviceTaintRule,
];

/// One write of the scheduler, about one pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    namespace: String,
    pod: String,
    write: Write,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Write {
    /// Gives the pod's claim its devices.
    Allocate {
        claim: String,
        node: String,
        devices: Vec<String>,
    },
    /// Puts the pod into the claim's `reservedFor`.
    Reserve { claim: String },
    /// Takes from a claim the devices that keep the pod from the nodes it may go to.
    Deallocate { claim: String },
    /// Gives the pod its node.
    Bind { node: String },
    /// Says that the pod fits nowhere.
    Unschedulable,
}

impl std::fmt::Display for Step {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let pod = &self.pod;
        match &self.write {
            Write::Allocate { node, devices, .. } => {
                write!(
                    formatter,
                    "scheduler: allocates {devices:?} of {node} to {pod}"
                )
            }
            Write::Reserve { claim } => {
                write!(formatter, "scheduler: reserves {claim} for {pod}")
            }
            Write::Deallocate { claim } => {
                write!(formatter, "scheduler: deallocates {claim} for {pod}")
            }
            Write::Bind { node } => write!(formatter, "scheduler: binds {pod} to {node}"),
            Write::Unschedulable => write!(formatter, "scheduler: {pod} fits nowhere"),
        }
    }
}

/// All that the scheduler has to do, by what it knows.
pub fn steps(api: &ApiServer) -> Vec<Step> {
    api.list::<Pod>()
        .filter(|pod| is_schedulable(pod))
        .filter_map(|pod| {
            Some(Step {
                namespace: pod.metadata.namespace.clone()?,
                pod: pod.metadata.name.clone()?,
                write: next_write(api, pod)?,
            })
        })
        .collect()
}

fn is_schedulable(pod: &Pod) -> bool {
    let gated = pod.spec.as_ref().is_some_and(|spec| {
        spec.scheduling_gates
            .as_ref()
            .is_some_and(|gates| !gates.is_empty())
    });
    !gated && !is_bound(pod) && !has_ended(pod) && pod.metadata.deletion_timestamp.is_none()
}

fn next_write(api: &ApiServer, pod: &Pod) -> Option<Write> {
    let claims = claims_of(api, pod)?;
    let is_going = |claim: &&ResourceClaim| claim.metadata.deletion_timestamp.is_some();
    if claims.iter().any(is_going) {
        return None;
    }
    let waiting = claims.iter().find(|claim| allocated_node(claim).is_none());
    if let Some(claim) = waiting {
        let name = claim.metadata.name.clone()?;
        return match place(api, pod, &claims) {
            Some((node, devices)) => Some(Write::Allocate {
                claim: name,
                node,
                devices,
            }),
            None => fits_nowhere(api, pod, &claims),
        };
    }
    let mut nodes = claims.iter().filter_map(|claim| allocated_node(claim));
    let node = nodes.next()?;
    let is_one = nodes.all(|other| other == node);
    let fits = api
        .get::<Node>("", node)
        .filter(|_| is_one)
        .is_some_and(|node| accepts(pod, node) && has_room(api, pod, node));
    if !fits {
        return fits_nowhere(api, pod, &claims);
    }
    let unreserved = claims.iter().find(|claim| !is_reserved_for(claim, pod));
    if let Some(claim) = unreserved {
        let claim = claim.metadata.name.clone()?;
        return Some(Write::Reserve { claim });
    }
    Some(Write::Bind {
        node: node.to_owned(),
    })
}

/// What is done for a pod that fits nowhere: a claim that keeps it from a node with room, and that no other pod has
/// reserved, is deallocated.
fn fits_nowhere(api: &ApiServer, pod: &Pod, claims: &[&ResourceClaim]) -> Option<Write> {
    let is_in_the_way = |claim: &&&ResourceClaim| {
        allocated_node(claim).is_some_and(|allocated| {
            api.list::<Node>()
                .filter(|node| node.metadata.name.as_deref() != Some(allocated))
                .any(|node| accepts(pod, node) && has_room(api, pod, node))
        })
    };
    let is_free = |claim: &&&ResourceClaim| {
        consumers(claim).all(|consumer| Some(&consumer.uid) == pod.metadata.uid.as_ref())
    };
    let obstacle = claims.iter().filter(is_in_the_way).find(is_free);
    match obstacle {
        Some(claim) => Some(Write::Deallocate {
            claim: claim.metadata.name.clone()?,
        }),
        None => (!is_marked_unschedulable(pod)).then_some(Write::Unschedulable),
    }
}

/// The node that a claim's devices are on.
pub fn allocated_node(claim: &ResourceClaim) -> Option<&str> {
    let devices = claim
        .status
        .as_ref()?
        .allocation
        .as_ref()?
        .devices
        .as_ref()?;
    Some(&devices.results.as_ref()?.first()?.pool)
}

/// Names of the devices that a claim was allocated, with their pool.
pub fn allocated_devices(claim: &ResourceClaim) -> impl Iterator<Item = (&str, &str)> {
    claim
        .status
        .iter()
        .filter_map(|status| {
            status
                .allocation
                .as_ref()?
                .devices
                .as_ref()?
                .results
                .as_ref()
        })
        .flatten()
        .map(|result| (result.pool.as_str(), result.device.as_str()))
}

fn is_reserved_for(claim: &ResourceClaim, pod: &Pod) -> bool {
    let uid = pod.metadata.uid.as_ref();
    uid.is_some_and(|uid| is_reserved_for_uid(claim, uid))
}

/// Whether the claim is reserved for the pod of this UID.
pub fn is_reserved_for_uid(claim: &ResourceClaim, pod_uid: &str) -> bool {
    consumers(claim).any(|consumer| consumer.uid == pod_uid)
}

fn consumers(claim: &ResourceClaim) -> impl Iterator<Item = &ResourceClaimConsumerReference> {
    let status = claim.status.iter();
    status
        .filter_map(|status| status.reserved_for.as_ref())
        .flatten()
}

fn is_marked_unschedulable(pod: &Pod) -> bool {
    pod.status
        .iter()
        .filter_map(|status| status.conditions.as_ref())
        .flatten()
        .any(|condition| condition.type_ == "PodScheduled" && condition.status == "False")
}

/// The node that a pod is pinned to.
pub fn pinned_node(pod: &Pod) -> Option<&str> {
    let affinity = pod
        .spec
        .as_ref()?
        .affinity
        .as_ref()?
        .node_affinity
        .as_ref()?;
    let required = affinity
        .required_during_scheduling_ignored_during_execution
        .as_ref()?;
    let [term] = required.node_selector_terms.as_slice() else {
        return None;
    };
    let [field] = term.match_fields.as_deref()? else {
        return None;
    };
    match field.values.as_deref()? {
        [node] => Some(node),
        _ => None,
    }
}

/// Does one write, as it was decided by the informer's cache.
pub fn perform(api: &mut ApiServer, informer: &mut Informer, step: &Step) {
    let Step {
        namespace,
        pod: pod_name,
        write,
    } = step;
    let cache = informer.cache();
    let Some(pod) = cache.get::<Pod>(namespace, pod_name) else {
        return;
    };
    let pod_uid = pod.metadata.uid.clone().unwrap_or_default();
    let consumer = consumer(pod);
    let written = match write {
        Write::Allocate {
            claim,
            node,
            devices,
        } => update_claim(api, cache, namespace, claim, |claim| {
            claim.metadata.finalizers = Some(vec![DELETE_PROTECTION.to_owned()]);
            claim.status = Some(ResourceClaimStatus {
                allocation: Some(allocation(node, devices)),
                reserved_for: consumer.map(|consumer| vec![consumer]),
                devices: None,
            });
        }),
        Write::Reserve { claim } => update_claim(api, cache, namespace, claim, |claim| {
            if let Some(status) = &mut claim.status {
                status.reserved_for.get_or_insert_default().extend(consumer);
            }
        }),
        Write::Deallocate { claim } => update_claim(api, cache, namespace, claim, |claim| {
            if let Some(status) = &mut claim.status {
                status.allocation = None;
                status.reserved_for = None;
            }
        }),
        Write::Bind { node } => bind(api, namespace, pod_name, &pod_uid, node),
        Write::Unschedulable => {
            let same = Precondition::uid(&pod_uid);
            api.update::<Pod>(namespace, pod_name, same, |pod| say_scheduled(pod, false))
        }
    };
    if let Ok(written) = written {
        informer.assume(&written);
    }
}

/// Changes a claim, unless it is another one than the cache shows.
fn update_claim(
    api: &mut ApiServer,
    cache: &ApiServer,
    namespace: &str,
    name: &str,
    change: impl FnOnce(&mut ResourceClaim),
) -> Result<Object, Failure> {
    let seen = cache.get::<ResourceClaim>(namespace, name);
    let version = seen.and_then(|claim| claim.metadata.resource_version.as_ref());
    api.update(namespace, name, Precondition::as_seen(version), change)
}

/// A Binding: refused for a pod that has a node, is going, or was gated meanwhile.
fn bind(
    api: &mut ApiServer,
    namespace: &str,
    name: &str,
    uid: &str,
    node: &str,
) -> Result<Object, Failure> {
    let is_free = api.get::<Pod>(namespace, name).is_some_and(is_schedulable);
    if !is_free {
        return Err(Failure::Conflict);
    }
    api.update::<Pod>(namespace, name, Precondition::uid(uid), |pod| {
        if let Some(spec) = &mut pod.spec {
            spec.node_name = Some(node.to_owned());
        }
        say_scheduled(pod, true);
    })
}

fn consumer(pod: &Pod) -> Option<ResourceClaimConsumerReference> {
    Some(ResourceClaimConsumerReference {
        api_group: None,
        resource: "pods".to_owned(),
        name: pod.metadata.name.clone()?,
        uid: pod.metadata.uid.clone()?,
    })
}

fn allocation(node: &str, devices: &[String]) -> AllocationResult {
    let result = |device: &String| DeviceRequestAllocationResult {
        driver: keys::DRIVER.to_owned(),
        pool: node.to_owned(),
        device: device.clone(),
        request: "gpu".to_owned(),
        ..DeviceRequestAllocationResult::default()
    };
    AllocationResult {
        devices: Some(DeviceAllocationResult {
            results: Some(devices.iter().map(result).collect()),
            ..DeviceAllocationResult::default()
        }),
        ..AllocationResult::default()
    }
}

fn say_scheduled(pod: &mut Pod, scheduled: bool) {
    let condition = PodCondition {
        type_: "PodScheduled".to_owned(),
        status: if scheduled { "True" } else { "False" }.to_owned(),
        reason: (!scheduled).then(|| "Unschedulable".to_owned()),
        ..PodCondition::default()
    };
    let status = pod.status.get_or_insert_with(PodStatus::default);
    status.conditions = Some(vec![condition]);
}
