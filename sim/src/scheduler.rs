//! A fake kube-scheduler: takes ungated pods, honours what they say about nodes, allocates devices first fit in
//! slice order, reserves the claim, binds. Each write is a step of its own, so that anything can happen between.

use std::collections::BTreeSet;

use k8s_openapi::api::{
    core::v1::{Node, NodeSelectorTerm, Pod, PodCondition, PodStatus},
    resource::v1::{
        AllocationResult, DeviceAllocationResult, DeviceRequestAllocationResult, ResourceClaim,
        ResourceClaimConsumerReference, ResourceClaimStatus, ResourceSlice,
    },
};
use muster_api::keys;

use crate::{
    api_server::{ApiServer, Precondition, has_ended, is_bound, node_of},
    claim_controller::{DELETE_PROTECTION, claim_of},
};

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
            Write::Reserve { claim } => write!(formatter, "scheduler: reserves {claim} for {pod}"),
            Write::Bind { node } => write!(formatter, "scheduler: binds {pod} to {node}"),
            Write::Unschedulable => write!(formatter, "scheduler: {pod} fits nowhere"),
        }
    }
}

/// All that the scheduler has to do.
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
    let claim = claim_of(api, pod)?;
    if claim.metadata.deletion_timestamp.is_some() {
        return None;
    }
    let name = claim.metadata.name.clone()?;
    let Some(node) = allocated_node(claim) else {
        return match place(api, pod, claim) {
            Some((node, devices)) => Some(Write::Allocate {
                claim: name,
                node,
                devices,
            }),
            None => (!is_marked_unschedulable(pod)).then_some(Write::Unschedulable),
        };
    };
    if !is_reserved_for(claim, pod) {
        return Some(Write::Reserve { claim: name });
    }
    let fits = api
        .get::<Node>("", node)
        .is_some_and(|node| accepts(pod, node) && has_room(api, pod, node));
    if fits {
        return Some(Write::Bind {
            node: node.to_owned(),
        });
    }
    (!is_marked_unschedulable(pod)).then_some(Write::Unschedulable)
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
    claim
        .status
        .iter()
        .filter_map(|status| status.reserved_for.as_ref())
        .flatten()
        .any(|consumer| Some(&consumer.uid) == pod.metadata.uid.as_ref())
}

fn is_marked_unschedulable(pod: &Pod) -> bool {
    pod.status
        .iter()
        .filter_map(|status| status.conditions.as_ref())
        .flatten()
        .any(|condition| condition.type_ == "PodScheduled" && condition.status == "False")
}

/// The first node, and on it the first devices, that the pod fits on.
fn place(api: &ApiServer, pod: &Pod, claim: &ResourceClaim) -> Option<(String, Vec<String>)> {
    let wanted = devices_wanted(claim)?;
    let taken: BTreeSet<(&str, &str)> = api
        .list::<ResourceClaim>()
        .flat_map(allocated_devices)
        .collect();
    api.list::<Node>()
        .filter(|node| accepts(pod, node) && has_room(api, pod, node))
        .find_map(|node| {
            let name = node.metadata.name.as_deref()?;
            let free: Vec<String> = free_devices(api, name, &taken).take(wanted).collect();
            (free.len() == wanted).then(|| (name.to_owned(), free))
        })
}

fn devices_wanted(claim: &ResourceClaim) -> Option<usize> {
    let request = claim
        .spec
        .as_ref()?
        .devices
        .as_ref()?
        .requests
        .as_ref()?
        .first()?;
    usize::try_from(request.exactly.as_ref()?.count.unwrap_or(1)).ok()
}

fn free_devices<'a>(
    api: &'a ApiServer,
    node: &'a str,
    taken: &'a BTreeSet<(&str, &str)>,
) -> impl Iterator<Item = String> + 'a {
    api.list::<ResourceSlice>()
        .filter(move |slice| slice.spec.node_name.as_deref() == Some(node))
        .flat_map(|slice| slice.spec.devices.iter().flatten())
        .filter(move |device| {
            let tainted = device
                .taints
                .iter()
                .flatten()
                .any(|taint| taint.effect != "None");
            !tainted && !taken.contains(&(node, device.name.as_str()))
        })
        .map(|device| device.name.clone())
}

/// Whether the node is what the pod says about nodes: its selector, and one of its required terms.
fn accepts(pod: &Pod, node: &Node) -> bool {
    let Some(spec) = &pod.spec else { return false };
    let node_spec = node.spec.as_ref();
    if node_spec.is_some_and(|spec| spec.unschedulable == Some(true)) {
        return false;
    }
    let labels = node.metadata.labels.clone().unwrap_or_default();
    let selected = spec
        .node_selector
        .iter()
        .flatten()
        .all(|(name, value)| labels.get(name) == Some(value));
    let terms = spec
        .affinity
        .as_ref()
        .and_then(|affinity| affinity.node_affinity.as_ref())
        .and_then(|affinity| {
            affinity
                .required_during_scheduling_ignored_during_execution
                .as_ref()
        });
    let name = node.metadata.name.as_deref().unwrap_or_default();
    selected
        && terms.is_none_or(|selector| {
            selector
                .node_selector_terms
                .iter()
                .any(|term| names(term, name))
        })
}

/// Of a term only `matchFields` on the node's name is known here; whatever else it says nobody matches.
fn names(term: &NodeSelectorTerm, node: &str) -> bool {
    let fields = term.match_fields.as_deref().unwrap_or_default();
    let only_fields = term.match_expressions.as_ref().is_none_or(Vec::is_empty);
    only_fields
        && !fields.is_empty()
        && fields.iter().all(|field| {
            field.key == "metadata.name"
                && field.operator == "In"
                && field.values.iter().flatten().any(|value| value == node)
        })
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

fn has_room(api: &ApiServer, pod: &Pod, node: &Node) -> bool {
    let name = node.metadata.name.as_deref();
    let used = api
        .list::<Pod>()
        .filter(|other| node_of(other) == name && !has_ended(other))
        .map(needs)
        .fold(Needs::default(), Needs::plus);
    let together = used.plus(needs(pod));
    let allocatable = node
        .status
        .as_ref()
        .and_then(|status| status.allocatable.clone())
        .unwrap_or_default();
    let most = |resource: &str| {
        allocatable
            .get(resource)
            .map_or(0, |quantity| amount(&quantity.0))
    };
    together.cpu <= most("cpu")
        && together.memory <= most("memory")
        && together.pods <= most("pods")
}

/// What a pod takes of a node, in thousandths.
#[derive(Clone, Copy, Debug, Default)]
struct Needs {
    cpu: i64,
    memory: i64,
    pods: i64,
}

impl Needs {
    fn plus(self, other: Self) -> Self {
        Self {
            cpu: self.cpu + other.cpu,
            memory: self.memory + other.memory,
            pods: self.pods + other.pods,
        }
    }
}

fn needs(pod: &Pod) -> Needs {
    let requests = |resource: &str| -> i64 {
        pod.spec
            .iter()
            .flat_map(|spec| &spec.containers)
            .filter_map(|container| container.resources.as_ref()?.requests.as_ref())
            .filter_map(|requests| requests.get(resource))
            .map(|quantity| amount(&quantity.0))
            .sum()
    };
    Needs {
        cpu: requests("cpu"),
        memory: requests("memory"),
        pods: 1_000,
    }
}

/// A quantity in thousandths; only the forms that simulated objects use.
fn amount(text: &str) -> i64 {
    let forms = [
        ("Gi", 1_000 << 30),
        ("Mi", 1_000 << 20),
        ("m", 1),
        ("", 1_000),
    ];
    forms
        .iter()
        .find_map(|(suffix, unit)| Some(text.strip_suffix(suffix)?.parse::<i64>().ok()? * unit))
        .unwrap_or_default()
}

/// Does one write.
pub fn perform(api: &mut ApiServer, step: &Step) {
    let Step {
        namespace,
        pod,
        write,
    } = step;
    let any = Precondition::default();
    match write {
        Write::Allocate {
            claim,
            node,
            devices,
        } => {
            let consumer = consumer(api, namespace, pod);
            let _ = api.update::<ResourceClaim>(namespace, claim, any, |claim| {
                claim.metadata.finalizers = Some(vec![DELETE_PROTECTION.to_owned()]);
                claim.status = Some(ResourceClaimStatus {
                    allocation: Some(allocation(node, devices)),
                    reserved_for: consumer.map(|consumer| vec![consumer]),
                    devices: None,
                });
            });
        }
        Write::Reserve { claim } => {
            let consumer = consumer(api, namespace, pod);
            let _ = api.update::<ResourceClaim>(namespace, claim, any, |claim| {
                if let Some(status) = &mut claim.status {
                    status.reserved_for.get_or_insert_default().extend(consumer);
                }
            });
        }
        Write::Bind { node } => {
            let _ = api.update::<Pod>(namespace, pod, any, |pod| {
                if let Some(spec) = &mut pod.spec {
                    spec.node_name = Some(node.clone());
                }
                say_scheduled(pod, true);
            });
        }
        Write::Unschedulable => {
            let _ = api.update::<Pod>(namespace, pod, any, |pod| say_scheduled(pod, false));
        }
    }
}

fn consumer(
    api: &ApiServer,
    namespace: &str,
    name: &str,
) -> Option<ResourceClaimConsumerReference> {
    let pod = api.get::<Pod>(namespace, name)?;
    Some(ResourceClaimConsumerReference {
        api_group: None,
        resource: "pods".to_owned(),
        name: name.to_owned(),
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        claim_controller, furniture,
        scenario::{GangShape, NodeShape, OwnerKind},
    };

    fn gang(gpus_per_pod: usize) -> GangShape {
        GangShape {
            name: "g".into(),
            team: "blue".into(),
            owner: OwnerKind::User,
            pods: 1,
            gpus_per_pod,
            submitted_at: 0,
        }
    }

    /// Two nodes with two GPUs each, and ungated pods, one after the other.
    fn schedule(gpus_of_pods: &[usize], pin: Option<&str>) -> ApiServer {
        let mut api = ApiServer::default();
        for name in ["node-0", "node-1"] {
            let shape = NodeShape {
                name: name.into(),
                leaf: "leaf-0".into(),
                gpus: 2,
            };
            api.create(furniture::node(&shape)).unwrap();
            api.create(furniture::resource_slice(&shape)).unwrap();
        }
        for (number, gpus) in gpus_of_pods.iter().enumerate() {
            let mut pod = furniture::pod(&gang(*gpus), &format!("p-{number}"), number, None);
            let spec = pod.spec.as_mut().unwrap();
            spec.scheduling_gates = None;
            spec.node_selector =
                pin.map(|node| [("kubernetes.io/hostname".to_owned(), node.to_owned())].into());
            api.create(pod).unwrap();
            for step in claim_controller::steps(&api) {
                claim_controller::perform(&mut api, &step, number as u64);
            }
            while let Some(step) = steps(&api).first() {
                perform(&mut api, step);
            }
        }
        api
    }

    fn places(api: &ApiServer) -> Vec<Option<&str>> {
        api.list::<Pod>().map(node_of).collect()
    }

    #[test]
    fn devices_are_taken_first_fit_and_no_device_twice() {
        let api = schedule(&[1, 2, 1], None);
        let nodes = [Some("node-0"), Some("node-1"), Some("node-0")];
        assert_eq!(places(&api), nodes);
        let devices: BTreeSet<(&str, &str)> = api
            .list::<ResourceClaim>()
            .flat_map(allocated_devices)
            .collect();
        assert_eq!(devices.len(), 4);
    }

    #[test]
    fn a_pod_that_fits_nowhere_is_called_unschedulable_and_stays_unbound() {
        let api = schedule(&[3], None);
        assert_eq!(places(&api), [None]);
        assert!(is_marked_unschedulable(api.list::<Pod>().next().unwrap()));
    }

    #[test]
    fn a_node_selector_is_honoured() {
        let api = schedule(&[1, 1, 1], Some("node-1"));
        assert_eq!(places(&api), [Some("node-1"), Some("node-1"), None]);
    }
}
