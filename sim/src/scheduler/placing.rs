//! Where a pod fits: its node's name and room, and devices that nobody has.

use std::collections::BTreeSet;

use k8s_openapi::api::{
    core::v1::{Node, NodeSelectorTerm, Pod, Taint},
    resource::v1::{Device, DeviceTaintRule, ExactDeviceRequest, ResourceClaim, ResourceSlice},
};
use muster_api::keys;

use super::{allocated_devices, allocated_node};
use crate::{
    api_server::{ApiServer, has_ended, node_of},
    fixtures,
};

/// The first node that the pod fits on with all its claims, and the first devices on it for the first claim that has none.
pub(super) fn place(
    api: &ApiServer,
    pod: &Pod,
    claims: &[&ResourceClaim],
) -> Option<(String, Vec<String>)> {
    let waiting = claims
        .iter()
        .filter(|claim| allocated_node(claim).is_none());
    let wanted: Option<Vec<&ExactDeviceRequest>> = waiting.map(|claim| request(claim)).collect();
    let wanted = wanted?;
    let chosen: BTreeSet<&str> = claims
        .iter()
        .filter_map(|claim| allocated_node(claim))
        .collect();
    let taken: BTreeSet<(&str, &str)> = api
        .list::<ResourceClaim>()
        .flat_map(allocated_devices)
        .collect();
    api.list::<Node>()
        .filter(|node| {
            let is_it = |name: &&str| node.metadata.name.as_deref() == Some(*name);
            chosen.iter().all(is_it)
        })
        .filter(|node| accepts(pod, node) && has_room(api, pod, node))
        .find_map(|node| {
            let name = node.metadata.name.as_deref()?;
            let mut free: Vec<&Device> = free_devices(api, name, &taken).collect();
            let mut given = wanted.iter().map(|request| take(request, &mut free));
            let first = given.next()??;
            given
                .all(|devices| devices.is_some())
                .then(|| (name.to_owned(), first))
        })
}

/// The one request that claims have here.
fn request(claim: &ResourceClaim) -> Option<&ExactDeviceRequest> {
    let devices = claim.spec.as_ref()?.devices.as_ref()?;
    let request = devices.requests.as_ref()?.first()?;
    request.exactly.as_ref()
}

/// Takes the first devices that a request asks for; `None` if there are too few.
fn take(request: &ExactDeviceRequest, free: &mut Vec<&Device>) -> Option<Vec<String>> {
    let selectors = request.selectors.as_deref().unwrap_or_default();
    let count = usize::try_from(request.count.unwrap_or(1)).ok()?;
    let mut taken = Vec::new();
    free.retain(|device| {
        let takes = taken.len() < count && fixtures::is_selected(selectors, device);
        if takes {
            taken.push(device.name.clone());
        }
        !takes
    });
    (taken.len() == count).then_some(taken)
}

fn free_devices<'a>(
    api: &'a ApiServer,
    node: &'a str,
    taken: &'a BTreeSet<(&str, &str)>,
) -> impl Iterator<Item = &'a Device> {
    api.list::<ResourceSlice>()
        .filter(move |slice| slice.spec.node_name.as_deref() == Some(node))
        .flat_map(|slice| slice.spec.devices.iter().flatten())
        .filter(move |device| {
            let tainted = device
                .taints
                .iter()
                .flatten()
                .any(|taint| taint.effect != "None");
            let name = device.name.as_str();
            !tainted && !taken.contains(&(node, name)) && !is_tainted_by_rule(api, node, name)
        })
}

/// Whether a rule keeps the device of that pool from being given out: what it does not select by may be anything.
fn is_tainted_by_rule(api: &ApiServer, pool: &str, device: &str) -> bool {
    let is = |wanted: Option<&String>, given: &str| wanted.is_none_or(|wanted| wanted == given);
    api.list::<DeviceTaintRule>().any(|rule| {
        let selector = rule.spec.device_selector.as_ref();
        rule.spec.taint.effect != "None"
            && selector.is_some_and(|selector| {
                is(selector.driver.as_ref(), keys::DRIVER)
                    && is(selector.pool.as_ref(), pool)
                    && is(selector.device.as_ref(), device)
            })
    })
}

/// Whether the node is what the pod says about nodes: its selector, and one of its required terms.
pub(super) fn accepts(pod: &Pod, node: &Node) -> bool {
    let Some(spec) = &pod.spec else { return false };
    let node_spec = node.spec.as_ref();
    // No simulated pod tolerates anything.
    let repels = |taint: &Taint| taint.effect != "PreferNoSchedule";
    if node_spec.is_some_and(|spec| {
        spec.unschedulable == Some(true) || spec.taints.iter().flatten().any(repels)
    }) {
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

pub(super) fn has_room(api: &ApiServer, pod: &Pod, node: &Node) -> bool {
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
