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
        AllocationResult, DeviceAllocationResult, DeviceClass, DeviceRequestAllocationResult,
        DeviceSelector, ExactDeviceRequest, ResourceClaim, ResourceClaimConsumerReference,
        ResourceClaimStatus, ResourceSlice,
    },
};
use muster_cluster::{
    devices::{DeviceKinds, PublishedDevice},
    pod::{bound_to, is_active},
    selectors::Selectors,
};

use super::Completed;

/// A device: its driver, pool and name.
type DeviceId = (String, String, String);

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
    devices: BTreeMap<String, Vec<(DeviceId, PublishedDevice)>>,
    taken: BTreeSet<DeviceId>,
}

impl Nodes {
    fn read<'a>(&mut self, completed: &Completed<'_>, wanted: impl Iterator<Item = &'a str>) {
        let wanted: BTreeSet<&str> = wanted.collect();
        for claim in completed.list::<ResourceClaim>() {
            self.taken.extend(allocated(&claim));
        }
        for slice in completed.list::<ResourceSlice>() {
            let node = slice.spec.node_name.clone().unwrap_or_default();
            if !wanted.contains(node.as_str()) {
                continue;
            }
            let names = slice.spec.devices.iter().flatten();
            let names: Vec<String> = names.map(|device| device.name.clone()).collect();
            let view = self.kinds.slice(Arc::new(slice), None);
            self.kinds.replace(None, Some(&view));
            let devices = names.into_iter().zip(view.devices).map(|(name, device)| {
                let id = (view.pool.driver.clone(), view.pool.name.clone(), name);
                (id, device)
            });
            self.devices.entry(node).or_default().extend(devices);
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
        for request in devices.requests.iter().flatten() {
            let exactly = request.exactly.as_ref()?;
            let found = self.find(completed, exactly, node, &results)?;
            results.extend(found.into_iter().map(|id| (request.name.clone(), id)));
        }
        self.taken.extend(results.iter().map(|(_, id)| id.clone()));
        let results = results.into_iter().map(|(request, id)| {
            let (driver, pool, device) = id;
            DeviceRequestAllocationResult {
                request,
                driver,
                pool,
                device,
                ..DeviceRequestAllocationResult::default()
            }
        });
        Some(AllocationResult {
            devices: Some(DeviceAllocationResult {
                results: Some(results.collect()),
                ..DeviceAllocationResult::default()
            }),
            ..AllocationResult::default()
        })
    }

    fn find(
        &mut self,
        completed: &Completed<'_>,
        request: &ExactDeviceRequest,
        node: &str,
        chosen: &[(String, DeviceId)],
    ) -> Option<Vec<DeviceId>> {
        let is_counted = |mode: &String| mode == "ExactCount";
        if !request.allocation_mode.as_ref().is_none_or(is_counted) {
            return None;
        }
        let count = usize::try_from(request.count.unwrap_or(1)).ok()?;
        let class = completed.get::<DeviceClass>("", &request.device_class_name)?;
        let of_class = class.spec.as_ref().and_then(|spec| spec.selectors.as_ref());
        let selectors = of_class.into_iter().chain(request.selectors.as_ref());
        let texts = selectors.flatten().filter_map(expression).collect();
        let (id, _) = self.selectors.intern(texts).ok()?;
        // Without a clock: the answer is a function of the objects.
        while let Some(request) = self.selectors.request(id, &self.kinds) {
            let judgement = request.judge(&|| Duration::ZERO);
            self.selectors.give(judgement, &self.kinds);
        }
        let mut found = Vec::new();
        for (device, published) in self.devices.get(node)? {
            let is_free = !self.taken.contains(device) && chosen.iter().all(|(_, it)| it != device);
            if found.len() == count || !is_free {
                continue;
            }
            if self.selectors.verdicts(published).matching.contains(&id) {
                found.push(device.clone());
            }
        }
        (found.len() == count).then_some(found)
    }
}

fn expression(selector: &DeviceSelector) -> Option<String> {
    Some(selector.cel.as_ref()?.expression.clone())
}

fn allocated(claim: &ResourceClaim) -> impl Iterator<Item = DeviceId> {
    let results = claim.status.iter().filter_map(|status| {
        let devices = status.allocation.as_ref()?.devices.as_ref()?;
        devices.results.as_ref()
    });
    results.flatten().map(|result| {
        (
            result.driver.clone(),
            result.pool.clone(),
            result.device.clone(),
        )
    })
}
