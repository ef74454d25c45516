//! The devices of nodes, who has them, and which ones kube-scheduler would give to claims.
//!
//! It allocates a pod's claims before it binds the pod: of the devices of the node, in the order of their pools and slices,
//! the first ones that meet all requests. What it would need for that is read from objects, wherever they come from, and kept: a
//! node's devices are read when something on it is allocated first, and a claim that changes costs what it has and had.

mod asked;
mod node;
mod search;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use k8s_openapi::api::{
    core::v1::Pod,
    resource::v1::{
        AllocationResult, DeviceAllocationResult, DeviceRequestAllocationResult, DeviceTaintRule,
        ResourceClaim, ResourceClaimConsumerReference, ResourceClaimStatus, ResourceSlice,
    },
};
use muster_cluster::{
    devices::DeviceKinds,
    object::{Kind, ObjectKey},
    pools::{OfferedDevice, PoolKey, Pools, device_name},
    selectors::{SelectorText, Selectors},
    taint_rules::{self, TaintRules},
};
use muster_engine::SelectorId;

use self::{
    asked::{Asked, Constraint},
    node::OfNode,
    search::{Chosen, Request, Way},
};
use crate::api_server::{ApiServer, Stored};

/// Where objects are read.
pub(super) trait ReadObjects {
    /// All objects of a type, in the order of namespace and name.
    fn all<T: Stored>(&self) -> Vec<&T>;
    /// An object; the namespace is empty for a cluster-scoped one.
    fn find<T: Stored>(&self, namespace: &str, name: &str) -> Option<&T>;
}

impl ReadObjects for ApiServer {
    fn all<T: Stored>(&self) -> Vec<&T> {
        self.list::<T>().collect()
    }

    fn find<T: Stored>(&self, namespace: &str, name: &str) -> Option<&T> {
        self.get(namespace, name)
    }
}

/// To whom devices are given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Receivers {
    /// Pods that run: what they have may have been tainted since.
    Running,
    /// Pods that are about to be bound: nothing that is tainted, and nothing that Muster does not plan.
    New,
}

/// Devices of nodes, and who has them.
pub(super) struct Nodes {
    receivers: Receivers,
    rules: TaintRules,
    kinds: DeviceKinds,
    selectors: Selectors,
    /// The slices of nodes that were read.
    pools: Pools,
    /// Names of the slices of each node.
    slices: BTreeMap<String, Vec<String>>,
    /// The nodes that publish slices of a pool.
    publishers: BTreeMap<PoolKey, BTreeSet<String>>,
    /// Nodes whose devices were read, in the order of that.
    read: Vec<OfNode>,
    /// Where they stand there.
    numbers: BTreeMap<String, usize>,
    /// Where a device is: number of its node, and its place there.
    places: BTreeMap<Arc<str>, Vec<(usize, usize)>>,
    /// The devices that each claim has: `driver/pool/device`.
    held: BTreeMap<ObjectKey, Vec<String>>,
    /// How many claims have a device. More than one is a fault of the objects.
    holders: BTreeMap<String, usize>,
}

impl Nodes {
    /// What the objects say now.
    pub(super) fn new(objects: &impl ReadObjects, receivers: Receivers) -> Self {
        let mut rules = TaintRules::default();
        for rule in objects.all::<DeviceTaintRule>() {
            rules.replace(None, taint_rules::tainted_by(rule).as_ref());
        }
        let mut slices: BTreeMap<String, Vec<String>> = BTreeMap::new();
        let mut publishers: BTreeMap<PoolKey, BTreeSet<String>> = BTreeMap::new();
        for slice in objects.all::<ResourceSlice>() {
            let (Some(node), Some(name)) = (&slice.spec.node_name, &slice.metadata.name) else {
                continue;
            };
            let pool = PoolKey {
                driver: slice.spec.driver.clone(),
                name: slice.spec.pool.name.clone(),
            };
            slices.entry(node.clone()).or_default().push(name.clone());
            publishers.entry(pool).or_default().insert(node.clone());
        }
        let mut nodes = Self {
            receivers,
            rules,
            kinds: DeviceKinds::default(),
            selectors: Selectors::default(),
            pools: Pools::default(),
            slices,
            publishers,
            read: Vec::new(),
            numbers: BTreeMap::new(),
            places: BTreeMap::new(),
            held: BTreeMap::new(),
            holders: BTreeMap::new(),
        };
        for claim in objects.all::<ResourceClaim>() {
            nodes.note(&key_of(claim), Some(claim));
        }
        nodes
    }

    /// A claim came, changed or went. Returns whether somebody else may have devices now that it had.
    pub(super) fn note(&mut self, key: &ObjectKey, claim: Option<&ResourceClaim>) -> bool {
        let has: Vec<String> = claim.into_iter().flat_map(allocated).collect();
        let had = self.held.get(key);
        if had.map_or(has.is_empty(), |had| *had == has) {
            return false;
        }
        for device in &has {
            self.hold(device);
        }
        let had = if has.is_empty() {
            self.held.remove(key)
        } else {
            self.held.insert(key.clone(), has)
        };
        let had = had.unwrap_or_default();
        for device in &had {
            self.release(device);
        }
        had.iter().any(|device| !self.holders.contains_key(device))
    }

    fn hold(&mut self, device: &str) {
        let holders = self.holders.entry(device.to_owned()).or_default();
        *holders += 1;
        if *holders > 1 {
            return;
        }
        for (node, place) in self.places.get(device).into_iter().flatten() {
            if let Some(node) = self.read.get_mut(*node) {
                node.take(*place);
            }
        }
    }

    fn release(&mut self, device: &str) {
        let Some(holders) = self.holders.get_mut(device) else {
            return;
        };
        *holders -= 1;
        if *holders > 0 {
            return;
        }
        self.holders.remove(device);
        for (node, place) in self.places.get(device).into_iter().flatten() {
            if let Some(node) = self.read.get_mut(*node) {
                node.give_back(*place);
            }
        }
    }

    /// Whether a pod on that node can use what the claim is allocated: devices of other nodes it cannot.
    pub(super) fn reaches(&self, node: &str, allocation: &AllocationResult) -> bool {
        let devices = allocation.devices.iter();
        let mut results = devices.flat_map(|devices| devices.results.iter().flatten());
        results.all(|result| {
            let pool = PoolKey {
                driver: result.driver.clone(),
                name: result.pool.clone(),
            };
            let publishers = self.publishers.get(&pool);
            publishers.is_none_or(|publishers| publishers.contains(node))
        })
    }

    /// Gives devices of the node to all of these claims, none of which has any; `None`: there are too few, and no claim
    /// gets one. Returns what each is allocated.
    pub(super) fn allocate(
        &mut self,
        objects: &impl ReadObjects,
        claims: &[&ResourceClaim],
        node: &str,
    ) -> Option<Vec<AllocationResult>> {
        let number = self.number(objects, node);
        let mut requests = Vec::new();
        let mut constraints = Vec::new();
        for (place, claim) in claims.iter().enumerate() {
            let Some(devices) = claim.spec.as_ref().and_then(|spec| spec.devices.as_ref()) else {
                continue;
            };
            for request in devices.requests.iter().flatten() {
                let ways = asked::ways(objects, request);
                let ways = ways.into_iter().filter_map(|way| self.way(number, way));
                requests.push(Request {
                    claim: place,
                    ways: ways.collect(),
                });
            }
            for constraint in devices.constraints.iter().flatten() {
                constraints.push(Constraint::read(place, constraint)?);
            }
        }
        let of_node = self.read.get_mut(number)?;
        let chosen = search::search(of_node, &requests, &constraints)?;
        let mut results: Vec<Vec<DeviceRequestAllocationResult>> = vec![Vec::new(); claims.len()];
        for chosen in chosen {
            let device = of_node.devices().get(chosen.place)?;
            if let Some(results) = results.get_mut(chosen.claim) {
                results.push(result(chosen, device)?);
            }
        }
        let allocations = results.into_iter().map(allocation).collect::<Vec<_>>();
        for (claim, allocation) in claims.iter().zip(&allocations) {
            let mut claim = ResourceClaim::clone(claim);
            give(&mut claim, allocation.clone());
            self.note(&key_of(&claim), Some(&claim));
        }
        Some(allocations)
    }

    /// The number of a node, whose devices are read the first time.
    fn number(&mut self, objects: &impl ReadObjects, node: &str) -> usize {
        if let Some(number) = self.numbers.get(node) {
            return *number;
        }
        for name in self.slices.get(node).into_iter().flatten() {
            let Some(slice) = objects.find::<ResourceSlice>("", name) else {
                continue;
            };
            let view = self.kinds.slice(Arc::new(slice.clone()), None);
            self.kinds.replace(None, Some(&view));
            self.pools.replace(None, Some(Arc::new(view)));
        }
        let mut of_node = OfNode::new(self.pools.on_node(node).offered);
        let number = self.read.len();
        let names = of_node.devices().iter();
        let names: Vec<Arc<str>> = names
            .map(|device| Arc::clone(&device.published.name))
            .collect();
        for (place, name) in names.into_iter().enumerate() {
            if self.holders.contains_key(&*name) {
                of_node.take(place);
            }
            self.places.entry(name).or_default().push((number, place));
        }
        self.read.push(of_node);
        self.numbers.insert(node.to_owned(), number);
        number
    }

    /// A way to meet a request on a node; `None` if what it asks for is no selector.
    fn way(&mut self, node: usize, asked: Asked) -> Option<Way> {
        let selector = self.judged(asked.text)?;
        let Self {
            receivers,
            rules,
            selectors,
            read,
            ..
        } = self;
        let matching = read.get_mut(node)?.matching(selector, |devices| {
            let mut rules = rules.lookup();
            let mut matching = Vec::new();
            for (place, device) in devices.iter().enumerate() {
                let published = &device.published;
                let is_offered = match receivers {
                    Receivers::Running => true,
                    Receivers::New => published.kind.usable && !rules.of(&published.name).repels,
                };
                if is_offered && selectors.verdicts(published).matching.contains(&selector) {
                    matching.push(place);
                }
            }
            matching
        });
        Some(Way {
            name: asked.name,
            matching,
            count: asked.count,
        })
    }

    /// A selector that was judged for all devices that were read.
    fn judged(&mut self, text: SelectorText) -> Option<SelectorId> {
        let (id, _) = self.selectors.intern(text).ok()?;
        // Without a clock: the answer is a function of the objects.
        while let Some(request) = self.selectors.request(id, &self.kinds) {
            let judgement = request.judge(&|| Duration::ZERO);
            self.selectors.give(judgement, &self.kinds);
        }
        Some(id)
    }
}

/// The key of a claim.
pub(super) fn key_of(claim: &ResourceClaim) -> ObjectKey {
    ObjectKey::of(Kind::ResourceClaim, &claim.metadata)
}

/// What a claim is allocated.
pub(super) fn allocation_of(claim: &ResourceClaim) -> Option<&AllocationResult> {
    claim.status.as_ref()?.allocation.as_ref()
}

/// The claim has these devices.
pub(super) fn give(claim: &mut ResourceClaim, allocation: AllocationResult) {
    let status = claim
        .status
        .get_or_insert_with(ResourceClaimStatus::default);
    status.allocation = Some(allocation);
}

/// The pod uses the claim, if it is not said already.
pub(super) fn reserve(claim: &mut ResourceClaim, pod: &Pod) {
    let consumer = ResourceClaimConsumerReference {
        api_group: None,
        resource: "pods".to_owned(),
        name: pod.metadata.name.clone().unwrap_or_default(),
        uid: pod.metadata.uid.clone().unwrap_or_default(),
    };
    let status = claim
        .status
        .get_or_insert_with(ResourceClaimStatus::default);
    let reserved_for = status.reserved_for.get_or_insert_default();
    if reserved_for.iter().all(|other| other.uid != consumer.uid) {
        reserved_for.push(consumer);
    }
}

/// Names of a pod's claims, each once, in its order, and last the one that was made for what it asks for by the name of a resource; `Err`: of an entry of the pod for which no claim was made yet.
pub(super) fn claims_of(pod: &Pod) -> Vec<Result<String, String>> {
    let status = pod.status.iter();
    let made = status.flat_map(|status| status.resource_claim_statuses.iter().flatten());
    let made: BTreeMap<&str, Option<&String>> = made
        .map(|made| (made.name.as_str(), made.resource_claim_name.as_ref()))
        .collect();
    let spec = pod.spec.iter();
    let mut claims = Vec::new();
    for entry in spec.flat_map(|spec| spec.resource_claims.iter().flatten()) {
        let claim = match (&entry.resource_claim_name, made.get(entry.name.as_str())) {
            (Some(name), _) => Ok(name.clone()),
            (None, Some(Some(name))) => Ok(String::clone(name)),
            // It was found that the pod needs none.
            (None, Some(None)) => continue,
            (None, None) => Err(entry.name.clone()),
        };
        if !claims.contains(&claim) {
            claims.push(claim);
        }
    }
    let mut status = pod.status.iter();
    let by_name = status.find_map(|status| status.extended_resource_claim_status.as_ref());
    claims.extend(by_name.map(|claim| Ok(claim.resource_claim_name.clone())));
    claims
}

fn result(chosen: Chosen, device: &OfferedDevice) -> Option<DeviceRequestAllocationResult> {
    // Names of pools may have slashes, those of drivers and devices have none.
    let (driver, rest) = device.published.name.split_once('/')?;
    let (pool, name) = rest.rsplit_once('/')?;
    Some(DeviceRequestAllocationResult {
        request: chosen.way,
        driver: driver.to_owned(),
        pool: pool.to_owned(),
        device: name.to_owned(),
        ..DeviceRequestAllocationResult::default()
    })
}

fn allocation(results: Vec<DeviceRequestAllocationResult>) -> AllocationResult {
    AllocationResult {
        devices: Some(DeviceAllocationResult {
            results: Some(results),
            ..DeviceAllocationResult::default()
        }),
        ..AllocationResult::default()
    }
}

/// The names of the devices that a claim has for itself: `driver/pool/device`.
fn allocated(claim: &ResourceClaim) -> impl Iterator<Item = String> {
    let devices = allocation_of(claim).and_then(|allocation| allocation.devices.as_ref());
    let results = devices.and_then(|devices| devices.results.as_ref());
    let own = results
        .into_iter()
        .flatten()
        .filter(|result| result.admin_access != Some(true));
    own.map(|result| device_name(&result.driver, &result.pool, &result.device))
}
