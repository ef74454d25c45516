//! What the engine has been told about nodes, and what selectors said of their devices.

use std::{
    borrow::Cow,
    collections::{BTreeMap, BTreeSet},
    mem,
    sync::Arc,
};

use k8s_openapi::api::core::v1::Node;

use muster_api::{Flavor, keys};
use muster_engine::{
    self as engine, NodeFilterId, PodResources, ResourceName, SelectorId, Timestamp,
};

use super::{Index, SLICES_GRACE_SECONDS, store::Versioned};
use crate::{
    device_faults::FaultyDevice,
    device_plugin::{self, ClassResources, CountedResources},
    flavor::{self, Scope},
    node_filter::{NodeBasis, NodeFilters},
    nodes::{self, Counts, FlavorRule, Judged, Judgement, Made, NodeParts},
    pod_resources,
    pools::{Offered, OfferedDevice, OnNode, PoolKey},
};

/// What is known about nodes beside their objects.
#[derive(Debug, Default)]
pub(super) struct NodeViews {
    told: BTreeMap<String, engine::Node>,
    seen: BTreeMap<String, Seen>,
    /// Nodes whose slices vanished or are incomplete, and since when.
    missing: BTreeMap<String, Timestamp>,
    /// The same by time.
    missing_since: BTreeSet<(Timestamp, String)>,
    /// Where each pool was seen last.
    homes: BTreeMap<PoolKey, String>,
    /// Pools that were seen elsewhere, or nowhere, since somebody asked.
    moved: BTreeSet<PoolKey>,
    passed: BTreeMap<String, Passed>,
    /// Devices that have faults, by node; nodes without any are not listed.
    faulty: BTreeMap<String, FaultyDevices>,
    judged: BTreeMap<String, Judged>,
    verdicts: BTreeMap<SelectorId, Verdicts>,
    pub(super) flavors: Vec<FlavorRule>,
    /// The resources of device plugins that some of them count, and that of the class of whole GPUs.
    pub(super) counted_resources: CountedResources,
    /// The names by which pods may ask for devices of DeviceClasses.
    pub(super) class_resources: ClassResources,
    /// The selector of each resource that was ever counted: what is held by it may outlive the Flavor.
    resource_selectors: BTreeMap<ResourceName, SelectorId>,
}

/// The devices of a node that have faults, by their names on the node.
pub(super) type FaultyDevices = BTreeMap<Arc<str>, FaultyDevice>;

/// The rules about nodes that a node passes.
#[derive(Debug)]
struct Passed {
    /// The labels and taints that they were judged by.
    basis: NodeBasis,
    ids: Arc<BTreeSet<NodeFilterId>>,
}

/// Devices of a node as last seen whole.
#[derive(Debug, Default)]
struct Seen {
    offered: Arc<Offered>,
    pools: BTreeSet<PoolKey>,
}

/// On how many nodes a selector matches, and fails, or is withheld, with which cause.
#[derive(Debug, Default)]
struct Verdicts {
    matches: usize,
    fails: BTreeMap<Arc<str>, usize>,
    withheld: BTreeMap<Arc<str>, usize>,
}

impl NodeViews {
    /// Why a selector is not understood: it fails somewhere and matches nowhere.
    pub(super) fn fails_everywhere(&self, id: SelectorId) -> Option<&Arc<str>> {
        let verdicts = self.verdicts.get(&id)?;
        // What a selector withholds it matches.
        if verdicts.matches > 0 || !verdicts.withheld.is_empty() {
            return None;
        }
        verdicts.fails.keys().next()
    }

    /// Why a selector matches nothing that is planned: wherever it matches, it matches a device that is never planned as well.
    pub(super) fn withheld_everywhere(&self, id: SelectorId) -> Option<&Arc<str>> {
        let verdicts = self.verdicts.get(&id)?;
        if verdicts.matches > 0 {
            return None;
        }
        verdicts.withheld.keys().next()
    }

    /// Why nothing is planned by a selector, if so.
    fn causes(&self, id: SelectorId) -> [Option<&Arc<str>>; 2] {
        [self.fails_everywhere(id), self.withheld_everywhere(id)]
    }

    pub(super) fn told(&self, node: &str) -> Option<&engine::Node> {
        self.told.get(node)
    }

    /// Devices of the node that have faults, if any has.
    pub(super) fn faulty(&self, node: &str) -> Option<&FaultyDevices> {
        self.faulty.get(node)
    }

    /// The nodes of which any device has a fault, in the order of their names.
    pub(super) fn faulty_nodes(&self) -> impl Iterator<Item = &String> {
        self.faulty.keys()
    }

    /// Notes which devices of the node have faults; whether that is news.
    fn set_faulty(&mut self, node: &str, devices: FaultyDevices) -> bool {
        if devices.is_empty() {
            return self.faulty.remove(node).is_some();
        }
        if self.faulty.get(node) == Some(&devices) {
            return false;
        }
        self.faulty.insert(node.to_owned(), devices);
        true
    }

    pub(super) fn is_served(&self, node: &str) -> bool {
        let seen = self.seen.get(node);
        seen.is_some_and(|seen| seen.pools.iter().any(|pool| pool.driver == keys::DRIVER))
    }

    pub(super) fn home_of(&self, pool: &PoolKey) -> Option<&String> {
        self.homes.get(pool)
    }

    /// When the grace time of the next node ends.
    pub(super) fn next_due(&self) -> Option<Timestamp> {
        let (since, _) = self.missing_since.first()?;
        Some(Timestamp(since.0.saturating_add(SLICES_GRACE_SECONDS)))
    }

    /// Nodes whose grace time has ended.
    pub(super) fn overdue(&self, now: Timestamp) -> Vec<String> {
        let missing = self.missing_since.iter();
        let overdue = missing.take_while(|(since, _)| is_over(*since, now));
        overdue.map(|(_, node)| node.clone()).collect()
    }

    /// Since when slices of the node are missing: `now`, if they were not before.
    fn miss(&mut self, node: &str, now: Timestamp) -> Timestamp {
        let since = *self.missing.entry(node.to_owned()).or_insert(now);
        self.missing_since.insert((since, node.to_owned()));
        since
    }

    fn miss_no_more(&mut self, node: &str) {
        if let Some(since) = self.missing.remove(node) {
            self.missing_since.remove(&(since, node.to_owned()));
        }
    }

    /// The devices that count, and whether slices are missing. What was seen whole and is not whole
    /// now counts as seen for the grace time; incomplete slices block for as long as they are.
    fn look(&mut self, node: &str, on_node: OnNode, now: Timestamp) -> (Arc<Offered>, bool) {
        let seen = self.seen.entry(node.to_owned()).or_default();
        let is_whole = on_node.all_complete && seen.pools.is_subset(&on_node.pools);
        if !is_whole {
            let offered = Arc::clone(&seen.offered);
            if !is_over(self.miss(node, now), now) {
                return (offered, true);
            }
        }
        let offered = Arc::new(on_node.offered);
        self.see(node, on_node.pools, Arc::clone(&offered));
        self.miss_no_more(node);
        (offered, !on_node.all_complete)
    }

    /// Devices of the node as they count.
    pub(super) fn devices(&self, node: &str) -> &[OfferedDevice] {
        self.seen
            .get(node)
            .map_or(&[], |seen| seen.offered.devices.as_slice())
    }

    /// The rules about nodes that the node passes. They are judged again if labels or taints change; new ones are judged
    /// apart ([`NodeViews::note_passed`]).
    fn passed(
        &mut self,
        name: &str,
        node: &Node,
        filters: &mut NodeFilters,
    ) -> Arc<BTreeSet<NodeFilterId>> {
        let basis = NodeBasis::of(node);
        if let Some(passed) = self.passed.get_mut(name)
            && passed.basis == basis
        {
            if !passed.ids.iter().all(|id| filters.knows(*id)) {
                Arc::make_mut(&mut passed.ids).retain(|id| filters.knows(*id));
            }
            return Arc::clone(&passed.ids);
        }
        let ids: Arc<BTreeSet<_>> = Arc::new(filters.passed_by(name, node).collect());
        let passed = Passed {
            basis,
            ids: Arc::clone(&ids),
        };
        self.passed.insert(name.to_owned(), passed);
        ids
    }

    /// The node passes the rules, as it was when they were judged. If it is not so any more, they were judged for it when
    /// that was seen, or will be.
    pub(super) fn note_passed(&mut self, node: &str, basis: NodeBasis, filter: NodeFilterId) {
        if let Some(passed) = self.passed.get_mut(node)
            && passed.basis == basis
        {
            Arc::make_mut(&mut passed.ids).insert(filter);
        }
    }

    /// Whether the node passes the rules.
    pub(super) fn passes(&self, node: &str, filter: NodeFilterId) -> bool {
        let passed = self.passed.get(node);
        passed.is_some_and(|passed| passed.ids.contains(&filter))
    }

    fn see(&mut self, node: &str, pools: BTreeSet<PoolKey>, offered: Arc<Offered>) {
        let seen = self.seen.entry(node.to_owned()).or_default();
        for pool in mem::replace(&mut seen.pools, pools.clone()) {
            if !pools.contains(&pool) {
                self.homes.remove(&pool);
                self.moved.insert(pool);
            }
        }
        seen.offered = offered;
        for pool in pools {
            let before = self.homes.insert(pool.clone(), node.to_owned());
            if before.as_deref() != Some(node) {
                self.moved.insert(pool);
            }
        }
    }

    /// Pools that were seen elsewhere, or nowhere, since this was asked last.
    pub(super) fn take_moved(&mut self) -> BTreeSet<PoolKey> {
        mem::take(&mut self.moved)
    }

    fn forget(&mut self, node: &str) {
        self.passed.remove(node);
        self.see(node, BTreeSet::new(), Arc::default());
        self.seen.remove(node);
        self.miss_no_more(node);
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
            .map(|id| self.causes(*id).map(Option::<&Arc<str>>::cloned))
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
            .filter(|(id, before)| self.causes(*id) != before.each_ref().map(Option::as_ref))
            .map(|(id, _)| id)
            .collect()
    }
}

impl Verdicts {
    fn add(&mut self, judgement: &Judgement) {
        match judgement {
            Judgement::Matches => self.matches += 1,
            Judgement::Fails(cause) => *self.fails.entry(Arc::clone(cause)).or_default() += 1,
            Judgement::Withheld(cause) => {
                *self.withheld.entry(Arc::clone(cause)).or_default() += 1;
            }
        }
    }

    fn take(&mut self, judgement: &Judgement) {
        match judgement {
            Judgement::Matches => self.matches = self.matches.saturating_sub(1),
            Judgement::Fails(cause) => take_one(&mut self.fails, cause),
            Judgement::Withheld(cause) => take_one(&mut self.withheld, cause),
        }
    }
}

fn take_one(causes: &mut BTreeMap<Arc<str>, usize>, cause: &Arc<str>) {
    if let Some(count) = causes.get_mut(cause) {
        *count -= 1;
        if *count == 0 {
            causes.remove(cause);
        }
    }
}

/// What faults of the pools of a node are found by.
fn pools_of(node: &str) -> String {
    format!("ResourceSlices/{node}")
}

fn is_over(since: Timestamp, now: Timestamp) -> bool {
    now.0.saturating_sub(since.0) >= SLICES_GRACE_SECONDS
}

impl Index {
    /// Makes a node anew, and notes an update if it differs from what was told. Returns the selectors
    /// that became understood, or ceased to be.
    pub(super) fn make_node(&mut self, name: &str, now: Timestamp) -> BTreeSet<SelectorId> {
        self.visits.nodes += 1;
        let Some(object) = self.objects.nodes.get(name).cloned() else {
            if self.views.told.contains_key(name) {
                let gone = engine::Update::NodeGone(name.into());
                self.updates.insert(name.to_owned(), gone);
            }
            self.count_flavors(name, None);
            self.note_faults_of_pools(name, &[]);
            self.note_faulty(name, FaultyDevices::new());
            self.views.forget(name);
            return self.views.judge(name, Judged::new());
        };
        let on_node = self.pools.on_node(name);
        self.note_faults_of_pools(name, &on_node.faults);
        let (offered, slices_missing) = self.views.look(name, on_node, now);
        let faulty = self.faulty_among(name, &offered);
        self.note_faulty(name, faulty);
        let allocated = offered
            .devices
            .iter()
            .filter_map(|device| {
                let name = &device.published.name;
                let claim = self.allocations.of(name.as_ref()).next()?;
                Some((name.to_string(), claim.clone()))
            })
            .collect();
        let filters = self.views.passed(name, &object, &mut self.filters);
        let parts = NodeParts {
            node: &object,
            node_devices: self.objects.node_devices.get(name).map(AsRef::as_ref),
            offered: &offered,
            taint_rules: &self.taint_rules,
            slices_missing,
            is_driver_silent: self.silent_drivers.contains(name),
            used: self.used_on(name),
            units_in_use: self.units_in_use_on(name),
            flavors: &self.views.flavors,
            counted_resources: &self.views.counted_resources,
            topologies: self.objects.topologies.items(),
            allocated: &allocated,
            filters: &filters,
        };
        let Made {
            node,
            judged,
            unknown,
        } = nodes::node(&parts, &mut self.selectors);
        for subject in unknown {
            self.nodes_waiting.link(subject, name.to_owned());
        }
        let changed = self.views.judge(name, judged);
        if self.views.told.get(name) != Some(&node) {
            self.count_flavors(name, Some(&node));
            let update = engine::Update::Node(node.clone());
            self.updates.insert(name.to_owned(), update);
            self.views.told.insert(name.to_owned(), node);
        }
        changed
    }

    /// The devices that have faults, by slices that are there now: those that vanished say nothing.
    fn faulty_among(&self, node: &str, offered: &Offered) -> FaultyDevices {
        let devices = offered.devices.iter().map(|device| &device.published);
        let faulty = devices.filter_map(|device| {
            let faults = device.faults.as_ref()?;
            let slice = self.pools.slice_with(node, &device.name)?;
            let faulty = FaultyDevice {
                faults: Arc::clone(faults),
                slice: slice.name.clone(),
            };
            Some((Arc::clone(&device.name), faulty))
        });
        faulty.collect()
    }

    fn note_faulty(&mut self, node: &str, devices: FaultyDevices) {
        if self.views.set_faulty(node, devices) {
            self.changes.faulted.insert(node.to_owned());
        }
    }

    /// Why pools of the node cannot be used, though all their slices are there; nothing, if they can.
    fn note_faults_of_pools(&mut self, node: &str, faults: &[String]) {
        let object = pools_of(node);
        if faults.is_empty() {
            self.faults.remove(&object);
        } else {
            self.faults.insert(object, faults.join("; "));
        }
    }

    /// Why pools of ResourceSlices of the node cannot be used, though all their slices are there, if so.
    pub fn fault_of_pools(&self, node: &str) -> Option<&str> {
        self.faults.get(&pools_of(node)).map(String::as_str)
    }

    /// Counts the devices of a node as they are now, in place of those that were told.
    fn count_flavors(&mut self, name: &str, now: Option<&engine::Node>) {
        let changed = self.flavor_census.replace(self.views.told(name), now);
        self.changes.flavors.extend(changed);
    }

    /// What a Flavor counts goes by what these selectors say, and why they say nothing.
    pub(super) fn note_flavors_with(&mut self, selectors: &BTreeSet<SelectorId>) {
        let flavors = self.views.flavors.iter();
        let touched = flavors.filter(|it| it.selector().is_some_and(|id| selectors.contains(&id)));
        let touched = touched.map(|flavor| flavor.name.clone());
        self.changes.flavors.extend(touched);
    }

    /// Why the selector of a Flavor matches nothing, though it is well written: it fails wherever it is asked.
    pub(super) fn failure_of_flavor(&self, name: &str) -> Option<&Arc<str>> {
        let mut flavors = self.views.flavors.iter();
        let rule = flavors.find(|flavor| flavor.name.as_str() == name)?;
        self.views.fails_everywhere(rule.selector()?)
    }

    /// What bound pods without a hold use.
    fn used_on(&self, node: &str) -> PodResources {
        self.links
            .using_node
            .of(node)
            .filter_map(|key| self.objects.pods.get(key))
            .filter(|pod| !self.held.contains(pod.uid()))
            .filter_map(|pod| pod.usage())
            .map(Cow::into_owned)
            .fold(PodResources::default(), pod_resources::saturating_add)
    }

    /// Of the resources of device plugins that count, how many units the pods have that are bound there, held or not.
    fn units_in_use_on(&self, node: &str) -> BTreeMap<ResourceName, i64> {
        let counted = &self.views.counted_resources;
        let mut units: BTreeMap<ResourceName, i64> = BTreeMap::new();
        let names = self.links.using_node.of(node);
        let pods = names.filter_map(|key| self.objects.pods.get(key));
        for usage in pods.filter_map(|pod| pod.usage()) {
            for (resource, own) in counted.among(&usage) {
                let sum = units.entry(resource.clone()).or_default();
                *sum = sum.saturating_add(own);
            }
        }
        units
    }

    /// The node of a pool: as its slices say, else where it was seen last, else the node of the same
    /// name, which is how drivers of nodes name their pools.
    pub(super) fn home_of(&self, pool: &PoolKey) -> Option<String> {
        let published = self.pools.node_of(pool).map(str::to_owned);
        published
            .or_else(|| self.views.home_of(pool).cloned())
            .or_else(|| {
                self.objects
                    .nodes
                    .get(&pool.name)
                    .map(|_| pool.name.clone())
            })
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
        let names = flavors.iter().map(|(name, _)| name.as_str().into());
        self.changes.flavors.extend(names);
        self.touched.all_nodes = true;
        self.count_resources();
    }

    /// Notes which resources of device plugins count now, and which DeviceClasses stand behind resources. Pods that ask for another one
    /// than before are read again: a walk over all pods, since administrators do that once.
    pub(super) fn count_resources(&mut self) {
        let mut counted = Vec::new();
        for rule in &self.views.flavors {
            let Some(resource) = rule.resource() else {
                continue;
            };
            let known = self.views.resource_selectors.entry(resource.clone());
            let selector = *known.or_insert_with(|| self.selectors.without_expressions());
            counted.push((resource.clone(), selector));
        }
        let of_gpus: ResourceName = device_plugin::class_resource(keys::DEVICE_CLASS_GPU).into();
        counted.extend(self.class_selector().map(|id| (of_gpus.clone(), id)));
        let counted: CountedResources = counted.into_iter().collect();
        let classes = self.objects.device_classes.iter();
        let classes = ClassResources::of(classes.map(|(_, class)| class.as_ref()));
        let before = mem::replace(&mut self.views.counted_resources, counted);
        let before_classes = mem::replace(&mut self.views.class_resources, classes);
        let (after, after_classes) = (&self.views.counted_resources, &self.views.class_resources);
        if before == *after && before_classes == *after_classes {
            return;
        }
        let is_other_class = before.selector(&of_gpus) != after.selector(&of_gpus);
        let differs = |asked: &PodResources| {
            before.differs_for(after, asked)
                || asked.others.keys().any(|name| {
                    let class = after_classes.class(name.as_str());
                    class != before_classes.class(name.as_str())
                        || (is_other_class && class == Some(keys::DEVICE_CLASS_GPU))
                })
        };
        let concerned = self.objects.pods.iter().filter(|(_, pod)| {
            let asked = pod.ours().and_then(|pod| pod.resources.as_ref().ok());
            asked.is_some_and(differs)
        });
        let concerned: Vec<_> = concerned
            .map(|(key, pod)| (key.clone(), pod.uid().to_owned()))
            .collect();
        for (key, uid) in concerned {
            self.forget_request(&key.namespace, &uid);
            let gang = self.membership.gang_of(&key).cloned();
            self.touched.gangs.extend(gang);
        }
        if let Some(old) = before.selector(&of_gpus).filter(|_| is_other_class) {
            self.retire_selector(old);
        }
    }

    /// The selector of the class of whole GPUs, for pods that ask for these by the name of a resource; `None`: there is no such class, or
    /// it is not understood, which is said of it.
    fn class_selector(&mut self) -> Option<SelectorId> {
        let object = format!("DeviceClass/{}", keys::DEVICE_CLASS_GPU);
        self.faults.remove(&object);
        let class = self.objects.device_classes.get(keys::DEVICE_CLASS_GPU)?;
        let spec = class.spec.as_ref();
        let selectors = spec.and_then(|spec| spec.selectors.as_ref());
        let texts: Option<Vec<String>> = selectors
            .into_iter()
            .flatten()
            .map(|selector| Some(selector.cel.as_ref()?.expression.clone()))
            .collect();
        // One of a kind that is not known is told of the claims that name the class.
        let selector = self.selector_at_once(texts?);
        let selector = selector.map_err(|cause| format!("spec.selectors: {cause}"));
        let selector = selector.map_err(|fault| self.faults.insert(object, fault));
        selector.ok()
    }

    fn read_flavor(&mut self, name: &str, flavor: &Flavor) -> Option<FlavorRule> {
        let scope = Scope::of(&flavor.spec);
        let counts = self.read_counts(scope.counts);
        let counts = counts.map_err(|fault| self.faults.insert(format!("Flavor/{name}"), fault));
        Some(FlavorRule {
            name: name.into(),
            node_selector: scope.node_selector.clone(),
            counts: counts.ok()?,
        })
    }

    fn read_counts(&mut self, counts: flavor::Counts<'_>) -> Result<Counts, String> {
        match counts {
            flavor::Counts::Devices { driver, selector } => {
                let selector = selector.map(|text| self.flavor_selector(text.to_owned()));
                Ok(Counts::Devices {
                    driver: driver.to_owned(),
                    selector: selector
                        .transpose()
                        .map_err(|cause| format!("spec.devices.selector: {cause}"))?,
                })
            }
            flavor::Counts::Resource(name) => {
                // Pods that ask for another one pass without a gate.
                if !self.config.managed.stands_for_devices(name) {
                    return Err(format!(
                        "spec.extendedResource: {}",
                        device_plugin::unmanaged(name)
                    ));
                }
                Ok(Counts::Resource(name.into()))
            }
        }
    }

    /// The selector of a Flavor. Administrators write these, and what is charged goes by them: they are judged at once.
    fn flavor_selector(&mut self, expression: String) -> Result<SelectorId, String> {
        self.selector_at_once(vec![expression])
    }

    /// The selector of these expressions of an administrator, judged at once.
    fn selector_at_once(&mut self, texts: Vec<String>) -> Result<SelectorId, String> {
        let interned = self.selectors.intern(texts.clone());
        let (id, is_new) = interned.map_err(|error| error.cause)?;
        if is_new {
            self.rollout.add_selector(id);
        }
        self.judge_at_once(id);
        match self.selectors.intern(texts) {
            Ok(_) => Ok(id),
            Err(error) => {
                self.retire_selector(id);
                Err(error.cause)
            }
        }
    }
}
