//! The world as the observer knows it: all objects at one revision.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::{
    core::v1::{Container, Namespace, Node, Pod},
    resource::v1::{DeviceRequestAllocationResult, ResourceClaim, ResourceSlice},
};
use kube::ResourceExt;
use muster_api::{Cohort, Flavor, Gang, Ledger, NodeDevices, Team, keys};

use crate::kubernetes::is_terminal;

/// An object of a watched kind.
#[derive(Clone, Debug)]
pub(super) enum Object {
    Pod(Box<Pod>),
    Claim(Box<ResourceClaim>),
    Slice(Box<ResourceSlice>),
    Namespace(Box<Namespace>),
    Node(Box<Node>),
    Gang(Box<Gang>),
    NodeDevices(Box<NodeDevices>),
    Ledger(Box<Ledger>),
    Team(Box<Team>),
    Cohort(Box<Cohort>),
    Flavor(Box<Flavor>),
}

/// An object that appeared, changed or went.
#[derive(Clone, Debug)]
pub(super) struct Change {
    pub(super) object: Object,
    pub(super) gone: bool,
}

/// Everything at one revision. Pods and claims by UID, Gangs by UID, the others by name.
#[derive(Debug, Default)]
pub(super) struct World {
    pub(super) pods: BTreeMap<String, Pod>,
    pub(super) claims: BTreeMap<String, ResourceClaim>,
    pub(super) slices: BTreeMap<String, ResourceSlice>,
    pub(super) namespaces: BTreeMap<String, Namespace>,
    pub(super) nodes: BTreeMap<String, Node>,
    pub(super) gangs: BTreeMap<String, Gang>,
    pub(super) node_devices: BTreeMap<String, NodeDevices>,
    pub(super) ledger: Option<Ledger>,
    pub(super) teams: BTreeMap<String, Team>,
    pub(super) cohorts: BTreeMap<String, Cohort>,
    pub(super) flavors: BTreeMap<String, Flavor>,
}

impl World {
    /// Takes a change in.
    pub(super) fn apply(&mut self, change: Change) {
        fn put<T>(map: &mut BTreeMap<String, T>, key: String, value: T, gone: bool) {
            if gone {
                map.remove(&key);
            } else {
                map.insert(key, value);
            }
        }
        let gone = change.gone;
        match change.object {
            Object::Pod(pod) => put(&mut self.pods, uid(&*pod), *pod, gone),
            Object::Claim(claim) => put(&mut self.claims, uid(&*claim), *claim, gone),
            Object::Slice(slice) => put(&mut self.slices, slice.name_any(), *slice, gone),
            Object::Namespace(found) => put(&mut self.namespaces, found.name_any(), *found, gone),
            Object::Node(node) => put(&mut self.nodes, node.name_any(), *node, gone),
            Object::Gang(gang) => put(&mut self.gangs, uid(&*gang), *gang, gone),
            Object::NodeDevices(node) => put(&mut self.node_devices, node.name_any(), *node, gone),
            Object::Ledger(ledger) => self.ledger = (!gone).then_some(*ledger),
            Object::Team(team) => put(&mut self.teams, team.name_any(), *team, gone),
            Object::Cohort(cohort) => put(&mut self.cohorts, cohort.name_any(), *cohort, gone),
            Object::Flavor(flavor) => put(&mut self.flavors, flavor.name_any(), *flavor, gone),
        }
    }

    /// The pods that carry a Gang's name.
    pub(super) fn pods_of<'a>(&'a self, gang: &'a Gang) -> impl Iterator<Item = &'a Pod> {
        self.pods.values().filter(move |pod| {
            pod.namespace() == gang.namespace()
                && pod
                    .annotations()
                    .get(keys::GANG_NAME)
                    .is_some_and(|name| *name == gang.name_any())
        })
    }

    /// Whether the pod exists and has not ended.
    pub(super) fn is_alive(&self, pod_uid: &str) -> bool {
        self.pods.get(pod_uid).is_some_and(|pod| !is_terminal(pod))
    }

    /// The Team that a namespace's label names.
    pub(super) fn team_of(&self, namespace: &str) -> Option<&str> {
        let labels = self.namespaces.get(namespace)?.metadata.labels.as_ref()?;
        labels.get(keys::TEAM).map(String::as_str)
    }
}

/// UID of an object; the API server gives every stored object one.
pub(super) fn uid<K: kube::Resource>(object: &K) -> String {
    object.meta().uid.clone().unwrap_or_default()
}

/// Whether the pod carries Muster's gate.
pub(super) fn is_gated(pod: &Pod) -> bool {
    pod.spec
        .iter()
        .flat_map(|spec| spec.scheduling_gates.iter().flatten())
        .any(|gate| gate.name == keys::ADMISSION_GATE)
}

/// The node that the pod is bound to.
pub(super) fn node_of(pod: &Pod) -> Option<&str> {
    pod.spec.as_ref()?.node_name.as_deref()
}

/// UIDs of the pod's claims, as far as they exist.
pub(super) fn claims_of(world: &World, pod: &Pod) -> Vec<String> {
    let namespace = pod.namespace();
    let referenced = pod
        .spec
        .iter()
        .flat_map(|spec| spec.resource_claims.iter().flatten());
    let generated = pod
        .status
        .iter()
        .flat_map(|status| status.resource_claim_statuses.iter().flatten());
    // What kube-scheduler made for a pod that asks by the name of a resource.
    let by_resource = pod.status.iter().filter_map(|status| {
        let made = status.extended_resource_claim_status.as_ref()?;
        Some(made.resource_claim_name.as_str())
    });
    let names: Vec<&str> = referenced
        .filter_map(|claim| claim.resource_claim_name.as_deref())
        .chain(generated.filter_map(|status| status.resource_claim_name.as_deref()))
        .chain(by_resource)
        .collect();
    world
        .claims
        .values()
        .filter(|claim| {
            claim.namespace() == namespace && names.contains(&claim.name_any().as_str())
        })
        .map(uid)
        .collect()
}

/// What the claim was allocated, of every driver.
pub(super) fn allocation(
    claim: &ResourceClaim,
) -> impl Iterator<Item = &DeviceRequestAllocationResult> {
    let status = claim.status.iter();
    let devices = status.filter_map(|status| status.allocation.as_ref()?.devices.as_ref());
    devices.flat_map(|devices| devices.results.iter().flatten())
}

/// Devices of Muster's driver that the claim was allocated.
pub(super) fn allocated_devices(claim: &ResourceClaim) -> usize {
    let ours = allocation(claim).filter(|result| result.driver == keys::DRIVER);
    ours.count()
}

/// UIDs of the pods that the claim is reserved for.
pub(super) fn reserved_for(claim: &ResourceClaim) -> impl Iterator<Item = &str> {
    let status = claim.status.iter();
    let consumers = status.flat_map(|status| status.reserved_for.iter().flatten());
    consumers
        .filter(|consumer| consumer.resource == "pods")
        .map(|consumer| consumer.uid.as_str())
}

/// What the pod asks for of device plugins, as far as some Flavor counts it: the resource and its units. By Kubernetes' rule: the sum of
/// its containers and sidecars, or what an init container needs beside the sidecars before it, whichever is more.
pub(super) fn asked_of_plugins(world: &World, pod: &Pod) -> Vec<(String, i64)> {
    let counted = world.flavors.values();
    let counted: BTreeSet<&String> = counted
        .filter_map(|flavor| flavor.spec.extended_resource.as_ref())
        .collect();
    let asked = counted.into_iter().filter_map(|resource| {
        let units = units_of(pod, resource);
        (units > 0).then(|| (resource.clone(), units))
    });
    asked.collect()
}

fn units_of(pod: &Pod, resource: &str) -> i64 {
    let of = |container: &Container| {
        let limits = container
            .resources
            .as_ref()
            .and_then(|it| it.limits.as_ref());
        let limit = limits.and_then(|limits| limits.get(resource));
        limit
            .and_then(|limit| limit.0.parse::<i64>().ok())
            .unwrap_or(0)
    };
    let spec = pod.spec.iter();
    let (mut sidecars, mut most) = (0, 0);
    for container in spec
        .clone()
        .flat_map(|spec| spec.init_containers.iter().flatten())
    {
        most = most.max(sidecars + of(container));
        if container.restart_policy.as_deref() == Some("Always") {
            sidecars += of(container);
        }
    }
    let together: i64 = spec.flat_map(|spec| &spec.containers).map(of).sum();
    most.max(together + sidecars)
}

/// Whole GPUs that the claim asks for, if it asks in a way that can be counted: what slices it gets shows when it has them.
pub(super) fn requested_gpus(claim: &ResourceClaim) -> Option<i64> {
    let mut sum = 0_i64;
    let devices = claim.spec.as_ref().and_then(|spec| spec.devices.as_ref())?;
    for request in devices.requests.iter().flatten() {
        let exactly = request.exactly.as_ref()?;
        let has_number = exactly
            .allocation_mode
            .as_deref()
            .is_none_or(|mode| mode == "ExactCount");
        let slices = [keys::DEVICE_CLASS_MIG, keys::DEVICE_CLASS_GPU_OR_SLICE];
        if !has_number || slices.contains(&&*exactly.device_class_name) {
            return None;
        }
        sum = sum.checked_add(exactly.count.unwrap_or(1))?;
    }
    Some(sum)
}

/// Whether some request of the claim has alternatives.
pub(super) fn has_alternatives(claim: &ResourceClaim) -> bool {
    let spec = claim.spec.iter();
    let devices = spec.filter_map(|spec| spec.devices.as_ref());
    let mut requests = devices.flat_map(|devices| devices.requests.iter().flatten());
    requests.any(|request| request.first_available.is_some())
}
