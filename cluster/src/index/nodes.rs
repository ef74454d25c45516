//! What the engine has been told about nodes, and what selectors said of their devices.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use k8s_openapi::api::core::v1::Pod;
use muster_api::{Flavor, keys};
use muster_engine::{self as engine, PodResources, SelectorId, Timestamp};

use super::{Index, SLICES_GRACE_SECONDS};
use crate::{
    gangs,
    nodes::{self, FlavorRule, Judged, Judgement, NodeParts},
    pod_resources,
    pools::{OnNode, PoolKey, PublishedDevice},
};

/// What is known about nodes beside their objects.
#[derive(Debug, Default)]
pub(super) struct NodeViews {
    told: BTreeMap<String, engine::Node>,
    seen: BTreeMap<String, Seen>,
    /// Nodes whose slices vanished or are incomplete, and since when.
    missing: BTreeMap<String, Timestamp>,
    /// Where each pool was seen last.
    homes: BTreeMap<PoolKey, String>,
    judged: BTreeMap<String, Judged>,
    verdicts: BTreeMap<SelectorId, Verdicts>,
    pub(super) flavors: Vec<FlavorRule>,
}

/// Devices of a node as last seen whole.
#[derive(Debug, Default)]
struct Seen {
    devices: Vec<PublishedDevice>,
    pools: BTreeSet<PoolKey>,
}

/// On how many nodes a selector matches, and fails with which cause.
#[derive(Debug, Default)]
struct Verdicts {
    matches: usize,
    fails: BTreeMap<Arc<str>, usize>,
}

/// What a bound pod uses: nothing once it is terminal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Usage {
    uid: String,
    resources: Option<PodResources>,
}

/// What a bound pod uses. What it asks for and cannot be read counts as all that can be: nothing is
/// planned beside it.
pub(super) fn usage_of(pod: &Pod) -> Usage {
    let resources = (!gangs::is_terminal(pod)).then(|| {
        pod_resources::of_pod(pod).unwrap_or(PodResources {
            cpu_milli: i64::MAX,
            memory_bytes: i64::MAX,
            pods: 1,
            ..PodResources::default()
        })
    });
    Usage {
        uid: gangs::uid(pod).to_owned(),
        resources,
    }
}

impl NodeViews {
    /// Why a selector is not understood: it fails somewhere and matches nowhere.
    pub(super) fn fails_everywhere(&self, id: SelectorId) -> Option<&Arc<str>> {
        let verdicts = self.verdicts.get(&id)?;
        if verdicts.matches > 0 {
            return None;
        }
        verdicts.fails.keys().next()
    }

    pub(super) fn told(&self, node: &str) -> Option<&engine::Node> {
        self.told.get(node)
    }

    pub(super) fn is_served(&self, node: &str) -> bool {
        let seen = self.seen.get(node);
        seen.is_some_and(|seen| seen.pools.iter().any(|(driver, _)| driver == keys::DRIVER))
    }

    pub(super) fn home_of(&self, pool: &PoolKey) -> Option<&String> {
        self.homes.get(pool)
    }

    /// Nodes whose grace time has ended.
    pub(super) fn overdue(&self, now: Timestamp) -> Vec<String> {
        let missing = self
            .missing
            .iter()
            .filter(|(_, since)| is_over(**since, now));
        missing.map(|(node, _)| node.clone()).collect()
    }

    /// The devices that count, and whether slices are missing. What was seen whole and is not whole
    /// now counts as seen for the grace time; incomplete slices block for as long as they are.
    fn look(
        &mut self,
        node: &str,
        offered: OnNode,
        now: Timestamp,
    ) -> (Vec<PublishedDevice>, bool) {
        let seen = self.seen.entry(node.to_owned()).or_default();
        let is_whole = offered.all_complete && seen.pools.is_subset(&offered.pools);
        if !is_whole {
            let since = *self.missing.entry(node.to_owned()).or_insert(now);
            if !is_over(since, now) {
                return (seen.devices.clone(), true);
            }
        }
        for pool in std::mem::take(&mut seen.pools) {
            self.homes.remove(&pool);
        }
        for pool in &offered.pools {
            self.homes.insert(pool.clone(), node.to_owned());
        }
        seen.pools = offered.pools;
        seen.devices.clone_from(&offered.devices);
        self.missing.remove(node);
        (offered.devices, !offered.all_complete)
    }

    fn forget(&mut self, node: &str) {
        for pool in self.seen.remove(node).unwrap_or_default().pools {
            self.homes.remove(&pool);
        }
        self.missing.remove(node);
        self.told.remove(node);
    }

    /// Takes in what the selectors said of a node; returns those that became understood, or ceased to be.
    fn judge(&mut self, node: &str, judged: Judged) -> BTreeSet<SelectorId> {
        let old = self.judged.remove(node).unwrap_or_default();
        if old == judged {
            if !judged.is_empty() {
                self.judged.insert(node.to_owned(), judged);
            }
            return BTreeSet::new();
        }
        let ids: BTreeSet<SelectorId> = old.keys().chain(judged.keys()).copied().collect();
        let before: Vec<_> = ids
            .iter()
            .map(|id| self.fails_everywhere(*id).cloned())
            .collect();
        for (id, judgement) in &old {
            self.verdicts.entry(*id).or_default().take(judgement);
        }
        for (id, judgement) in &judged {
            self.verdicts.entry(*id).or_default().add(judgement);
        }
        if !judged.is_empty() {
            self.judged.insert(node.to_owned(), judged);
        }
        ids.into_iter()
            .zip(before)
            .filter(|(id, before)| self.fails_everywhere(*id) != before.as_ref())
            .map(|(id, _)| id)
            .collect()
    }
}

impl Verdicts {
    fn add(&mut self, judgement: &Judgement) {
        match judgement {
            Judgement::Matches => self.matches += 1,
            Judgement::Fails(cause) => *self.fails.entry(Arc::clone(cause)).or_default() += 1,
        }
    }

    fn take(&mut self, judgement: &Judgement) {
        match judgement {
            Judgement::Matches => self.matches = self.matches.saturating_sub(1),
            Judgement::Fails(cause) => {
                if let Some(count) = self.fails.get_mut(cause) {
                    *count -= 1;
                    if *count == 0 {
                        self.fails.remove(cause);
                    }
                }
            }
        }
    }
}

fn is_over(since: Timestamp, now: Timestamp) -> bool {
    now.0.saturating_sub(since.0) >= SLICES_GRACE_SECONDS
}

impl Index {
    /// Makes a node anew, and notes an update if it differs from what was told. Returns the selectors
    /// that became understood, or ceased to be.
    pub(super) fn make_node(&mut self, name: &str, now: Timestamp) -> BTreeSet<SelectorId> {
        let Some(object) = self.objects.nodes.get(name).cloned() else {
            if self.views.told.contains_key(name) {
                self.updates.push(engine::Update::NodeGone(name.into()));
            }
            self.views.forget(name);
            return self.views.judge(name, Judged::new());
        };
        let offered = self.pools.on_node(name);
        let (devices, slices_missing) = self.views.look(name, offered, now);
        let allocated = devices
            .iter()
            .filter_map(|device| {
                let name = device.name();
                let claim = self.allocations.of(&name).next()?;
                Some((name.clone(), claim.clone()))
            })
            .collect();
        let parts = NodeParts {
            node: &object,
            node_devices: self.objects.node_devices.get(name).map(AsRef::as_ref),
            devices: &devices,
            slices_missing,
            used: self.used_on(name),
            flavors: &self.views.flavors,
            topologies: self.objects.topologies.items(),
            allocated: &allocated,
            filters: &self.filters,
        };
        let (node, judged) = nodes::node(&parts, &mut self.selectors);
        let changed = self.views.judge(name, judged);
        if self.views.told.get(name) != Some(&node) {
            self.updates.push(engine::Update::Node(node.clone()));
            self.views.told.insert(name.to_owned(), node);
        }
        changed
    }

    /// What bound pods without a hold use.
    fn used_on(&self, node: &str) -> PodResources {
        self.links
            .of_node
            .of(node)
            .filter_map(|key| self.objects.pods.get(key))
            .filter(|pod| !self.held.contains(gangs::uid(pod)))
            .filter_map(|pod| usage_of(pod).resources)
            .fold(PodResources::default(), pod_resources::saturating_add)
    }

    /// The node of a pool: as its slices say, else where it was seen last, else the node of the same
    /// name, which is how drivers of nodes name their pools.
    pub(super) fn home_of(&self, pool: &PoolKey) -> Option<String> {
        let published = self.pools.node_of(pool).map(str::to_owned);
        published
            .or_else(|| self.views.home_of(pool).cloned())
            .or_else(|| self.objects.nodes.get(&pool.1).map(|_| pool.1.clone()))
    }

    /// Reads all Flavors anew; one whose expression does not parse counts nothing.
    pub(super) fn read_flavors(&mut self) {
        self.faults
            .retain(|object, _| !object.starts_with("Flavor/"));
        let flavors: Vec<_> = self
            .objects
            .flavors
            .iter()
            .map(|(name, flavor)| (name.clone(), Arc::clone(flavor)))
            .collect();
        self.views.flavors = flavors
            .iter()
            .filter_map(|(name, flavor)| self.read_flavor(name, flavor))
            .collect();
        self.touched.all_nodes = true;
    }

    fn read_flavor(&mut self, name: &str, flavor: &Flavor) -> Option<FlavorRule> {
        let devices = flavor.spec.devices.as_ref();
        let expression = devices.and_then(|devices| devices.selector.clone());
        let selector = match expression.map(|text| self.selectors.intern(vec![text])) {
            None => None,
            Some(Ok((id, _))) => Some(id),
            Some(Err((_, error))) => {
                self.faults.insert(
                    format!("Flavor/{name}"),
                    format!("spec.devices.selector: {error}"),
                );
                return None;
            }
        };
        Some(FlavorRule {
            name: name.into(),
            node_selector: flavor.spec.node_selector.clone(),
            driver: devices
                .map_or(keys::DRIVER, |devices| devices.driver.as_str())
                .to_owned(),
            selector,
        })
    }
}
