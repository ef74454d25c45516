//! The devices of pods that run, where their claims do not say: kube-scheduler allocates them before it binds a pod, so
//! a pod that is bound holds what it asks for.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use k8s_openapi::api::{
    core::v1::Pod,
    resource::v1::{
        AllocationResult, CapacityRequirements, DeviceAllocationResult, DeviceClass,
        DeviceRequestAllocationResult, DeviceSelector, DeviceSubRequest, ExactDeviceRequest,
        ResourceClaim, ResourceClaimConsumerReference, ResourceClaimStatus, ResourceSlice,
    },
};
use muster_cluster::{
    devices::DeviceKinds,
    pod::{bound_to, is_active},
    pools::{OfferedDevice, Pools, device_name},
    quantity,
    selectors::{SelectorText, Selectors},
};
use muster_engine::Consumption;

use super::Completed;

/// Allocates what the claims of bound pods ask for: the first free devices of their nodes that match.
pub(super) fn add(completed: &mut Completed<'_>) {
    let mut nodes = Nodes::default();
    let mut given = Vec::new();
    for pod in completed.list::<Pod>() {
        let Some(node) = bound_to(&pod).filter(|_| is_active(&pod)) else {
            continue;
        };
        for name in claims_of(&pod) {
            let namespace = pod.metadata.namespace.clone().unwrap_or_default();
            let Some(claim) = completed.get::<ResourceClaim>(&namespace, &name) else {
                continue;
            };
            let status = claim.status.as_ref();
            if status.is_some_and(|status| status.allocation.is_some()) {
                continue;
            }
            given.push((claim.clone(), pod.clone(), node.to_owned()));
        }
    }
    if given.is_empty() {
        return;
    }
    nodes.read(completed, given.iter().map(|(_, _, node)| node.as_str()));
    for (mut claim, pod, node) in given {
        let namespace = claim.metadata.namespace.clone().unwrap_or_default();
        let name = claim.metadata.name.clone().unwrap_or_default();
        // Another pod may have been here that shares it.
        let known = completed.get::<ResourceClaim>(&namespace, &name);
        let known = known.and_then(|claim| claim.status.clone());
        let allocation = match known.and_then(|status| status.allocation) {
            Some(allocation) => Some(allocation),
            None => nodes.allocate(completed, &claim, &node),
        };
        let Some(allocation) = allocation else {
            completed.warnings.push(format!(
                "pod {namespace}/{} runs on node {node}, which has no free devices as its ResourceClaim {name} asks for: \
                 what it holds is not counted; give the claim with its status.allocation",
                pod.metadata.name.unwrap_or_default()
            ));
            continue;
        };
        let status = claim
            .status
            .get_or_insert_with(ResourceClaimStatus::default);
        status.allocation = Some(allocation);
        let consumer = ResourceClaimConsumerReference {
            api_group: None,
            resource: "pods".to_owned(),
            name: pod.metadata.name.unwrap_or_default(),
            uid: pod.metadata.uid.unwrap_or_default(),
        };
        status.reserved_for.get_or_insert_default().push(consumer);
        completed.put(claim);
    }
}

/// Names of a pod's claims.
fn claims_of(pod: &Pod) -> Vec<String> {
    let spec = pod.spec.iter();
    let named = spec.flat_map(|spec| spec.resource_claims.iter().flatten());
    let status = pod.status.iter();
    let made = status.flat_map(|status| status.resource_claim_statuses.iter().flatten());
    named
        .filter_map(|claim| claim.resource_claim_name.clone())
        .chain(made.filter_map(|claim| claim.resource_claim_name.clone()))
        .collect()
}

/// Devices of nodes, and who has them.
#[derive(Default)]
struct Nodes {
    kinds: DeviceKinds,
    selectors: Selectors,
    devices: BTreeMap<String, NodeDevices>,
    /// Names of the devices that somebody has: `driver/pool/device`.
    taken: BTreeSet<String>,
}

/// Devices of a node, in the order in which kube-scheduler tries them, and what is left of what they share.
struct NodeDevices {
    devices: Vec<OfferedDevice>,
    left: Vec<Vec<i64>>,
}

/// What `exactly` and an alternative of `firstAvailable` ask for.
struct Asked<'a> {
    class: &'a str,
    selectors: Option<&'a Vec<DeviceSelector>>,
    capacity: Option<&'a CapacityRequirements>,
    count: Option<i64>,
    mode: Option<&'a str>,
}

impl<'a> From<&'a ExactDeviceRequest> for Asked<'a> {
    fn from(exactly: &'a ExactDeviceRequest) -> Self {
        Self {
            class: &exactly.device_class_name,
            selectors: exactly.selectors.as_ref(),
            capacity: exactly.capacity.as_ref(),
            count: exactly.count,
            mode: exactly.allocation_mode.as_deref(),
        }
    }
}

impl<'a> From<&'a DeviceSubRequest> for Asked<'a> {
    fn from(alternative: &'a DeviceSubRequest) -> Self {
        Self {
            class: &alternative.device_class_name,
            selectors: alternative.selectors.as_ref(),
            capacity: alternative.capacity.as_ref(),
            count: alternative.count,
            mode: alternative.allocation_mode.as_deref(),
        }
    }
}

impl NodeDevices {
    /// Whether there is enough of all that a device draws from.
    fn has_left(&self, consumes: &[Consumption]) -> bool {
        let mut drawn = amounts(consumes);
        drawn.all(|(set, counter, amount)| {
            let left = self.left.get(set).and_then(|set| set.get(counter));
            left.is_some_and(|left| *left >= amount)
        })
    }

    /// So much is drawn, or with a negative sign given back.
    fn draw(&mut self, consumes: &[Consumption], sign: i64) {
        for (set, counter, amount) in amounts(consumes) {
            let left = self.left.get_mut(set).and_then(|set| set.get_mut(counter));
            if let Some(left) = left {
                *left = left.saturating_sub(amount.saturating_mul(sign));
            }
        }
    }
}

/// What is drawn: set, counter and amount.
fn amounts(consumes: &[Consumption]) -> impl Iterator<Item = (usize, usize, i64)> {
    consumes.iter().flat_map(|of| {
        let amounts = of.amounts.iter();
        amounts.map(move |(counter, amount)| (of.set as usize, *counter as usize, *amount))
    })
}

impl Nodes {
    fn read<'a>(&mut self, completed: &Completed<'_>, wanted: impl Iterator<Item = &'a str>) {
        let wanted: BTreeSet<&str> = wanted.collect();
        for claim in completed.list::<ResourceClaim>() {
            self.taken.extend(allocated(&claim));
        }
        let mut pools = Pools::default();
        for slice in completed.list::<ResourceSlice>() {
            let node = slice.spec.node_name.as_deref().unwrap_or_default();
            if !wanted.contains(node) {
                continue;
            }
            let view = self.kinds.slice(Arc::new(slice), None);
            self.kinds.replace(None, Some(&view));
            pools.replace(None, Some(Arc::new(view)));
        }
        for node in wanted {
            let offered = pools.on_node(node).offered;
            let sets = offered.counter_sets.iter();
            let mut devices = NodeDevices {
                left: sets.map(|set| set.counters.clone()).collect(),
                devices: offered.devices,
            };
            let held: Vec<Arc<[Consumption]>> = devices
                .devices
                .iter()
                .filter(|device| self.taken.contains(&*device.published.name))
                .map(|device| Arc::clone(&device.consumes))
                .collect();
            for consumes in held {
                devices.draw(&consumes, 1);
            }
            self.devices.insert(node.to_owned(), devices);
        }
    }

    /// Devices for all requests of a claim, or none.
    fn allocate(
        &mut self,
        completed: &Completed<'_>,
        claim: &ResourceClaim,
        node: &str,
    ) -> Option<AllocationResult> {
        let devices = claim.spec.as_ref()?.devices.as_ref()?;
        let mut results = Vec::new();
        let mut is_whole = true;
        for request in devices.requests.iter().flatten() {
            let exactly = request.exactly.iter();
            let exactly = exactly.map(|exactly| (request.name.clone(), Asked::from(exactly)));
            let alternatives = request.first_available.iter().flatten();
            let alternatives = alternatives.map(|alternative| {
                let name = format!("{}/{}", request.name, alternative.name);
                (name, Asked::from(alternative))
            });
            let found = exactly.chain(alternatives).find_map(|(name, asked)| {
                let found = self.take(completed, &asked, node)?;
                Some(found.into_iter().map(move |id| (name.clone(), id)))
            });
            let Some(found) = found else {
                is_whole = false;
                break;
            };
            results.extend(found);
        }
        if !is_whole {
            let names = results
                .iter()
                .map(|(_, name): &(String, String)| name.clone());
            let names: BTreeSet<String> = names.collect();
            self.give_back(node, &names);
            return None;
        }
        let results = results.into_iter().filter_map(|(request, name)| {
            // Names of pools may have slashes, those of drivers and devices have none.
            let (driver, rest) = name.split_once('/')?;
            let (pool, device) = rest.rsplit_once('/')?;
            Some(DeviceRequestAllocationResult {
                request,
                driver: driver.to_owned(),
                pool: pool.to_owned(),
                device: device.to_owned(),
                ..DeviceRequestAllocationResult::default()
            })
        });
        Some(AllocationResult {
            devices: Some(DeviceAllocationResult {
                results: Some(results.collect()),
                ..DeviceAllocationResult::default()
            }),
            ..AllocationResult::default()
        })
    }

    /// Takes the first free devices that match, all that are asked for or none; returns their names.
    fn take(
        &mut self,
        completed: &Completed<'_>,
        asked: &Asked<'_>,
        node: &str,
    ) -> Option<Vec<String>> {
        if asked.mode.is_some_and(|mode| mode != "ExactCount") {
            return None;
        }
        let count = usize::try_from(asked.count.unwrap_or(1)).ok()?;
        let class = completed.get::<DeviceClass>("", asked.class)?;
        let of_class = class.spec.as_ref().and_then(|spec| spec.selectors.as_ref());
        let selectors = of_class.into_iter().chain(asked.selectors).flatten();
        let capacity = asked
            .capacity
            .and_then(|capacity| capacity.requests.as_ref());
        let capacity = capacity.into_iter().flatten().map(|(name, amount)| {
            let amount = quantity::exact(&amount.0, name).ok()?;
            Some((name.clone(), amount))
        });
        let text = SelectorText {
            expressions: selectors.filter_map(expression).collect(),
            capacity: capacity.collect::<Option<_>>()?,
        };
        let (id, _) = self.selectors.intern(text).ok()?;
        // Without a clock: the answer is a function of the objects.
        while let Some(request) = self.selectors.request(id, &self.kinds) {
            let judgement = request.judge(&|| Duration::ZERO);
            self.selectors.give(judgement, &self.kinds);
        }
        let of_node = self.devices.get_mut(node)?;
        let mut matching = Vec::new();
        for device in &of_node.devices {
            let name = &device.published.name;
            let verdicts = self.selectors.verdicts(&device.published);
            if !self.taken.contains(&**name) && verdicts.matching.contains(&id) {
                matching.push((name.to_string(), Arc::clone(&device.consumes)));
            }
        }
        let mut names = Vec::new();
        for (name, consumes) in matching {
            if names.len() < count && of_node.has_left(&consumes) {
                of_node.draw(&consumes, 1);
                names.push(name);
            }
        }
        let found: BTreeSet<String> = names.iter().cloned().collect();
        self.taken.extend(found.iter().cloned());
        if names.len() < count {
            self.give_back(node, &found);
            return None;
        }
        Some(names)
    }

    /// Nobody has these devices any more.
    fn give_back(&mut self, node: &str, names: &BTreeSet<String>) {
        let Some(of_node) = self.devices.get_mut(node) else {
            return;
        };
        let devices = of_node.devices.iter();
        let given = devices.filter(|device| names.contains(&*device.published.name));
        let given: Vec<_> = given.map(|device| Arc::clone(&device.consumes)).collect();
        for consumes in given {
            of_node.draw(&consumes, -1);
        }
        for name in names {
            self.taken.remove(name);
        }
    }
}

fn expression(selector: &DeviceSelector) -> Option<String> {
    Some(selector.cel.as_ref()?.expression.clone())
}

/// The names of the devices that a claim has: `driver/pool/device`.
fn allocated(claim: &ResourceClaim) -> impl Iterator<Item = String> {
    let results = claim.status.iter().filter_map(|status| {
        let devices = status.allocation.as_ref()?.devices.as_ref()?;
        devices.results.as_ref()
    });
    let own = results.flatten().filter(|it| it.admin_access != Some(true));
    own.map(|result| device_name(&result.driver, &result.pool, &result.device))
}
