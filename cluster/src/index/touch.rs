//! What a change may touch: noted, not derived.

use std::{collections::BTreeSet, sync::Arc};

use k8s_openapi::api::{
    batch::v1::Job,
    core::v1::{Namespace, Node},
    resource::v1::DeviceTaintRule,
};
use muster_api::{Cohort, Flavor, Gang, Ledger, NodeDevices, Queue, Team, Topology};
use muster_engine::NodeFilterId;

use super::{
    Index, NamespacedName,
    pods::{KeptPod, OurPod},
    store::{Changed, Versioned},
};
use crate::{
    claims::{self, ObservedClaim},
    devices::SliceView,
    drains,
    formed::GangKey,
    gangs::{self, Group},
    nodes,
    object::{JobFacts, Kind},
    pod,
    pools::{PoolKey, device_name},
    taint_rules,
};

/// What has to be derived anew.
#[derive(Debug, Default)]
pub(super) struct Dirty {
    pub(super) groups: BTreeSet<Group>,
    pub(super) gangs: BTreeSet<GangKey>,
    /// Claims to be read.
    pub(super) claims: BTreeSet<NamespacedName>,
    pub(super) nodes: BTreeSet<String>,
    pub(super) all_nodes: bool,
    pub(super) flavors: bool,
    /// A DeviceClass changed, and with it what resources may stand for.
    pub(super) class_resources: bool,
    /// Filters that may have lost their last user.
    pub(super) filters: BTreeSet<NodeFilterId>,
    /// Teams, Cohorts, Flavors and Topologies that the engine must be told about.
    pub(super) limits: BTreeSet<(Kind, String)>,
}

impl Dirty {
    /// Whether gangs, claims or nodes are to be derived.
    pub(super) fn has_any(&self) -> bool {
        !self.gangs.is_empty() || !self.claims.is_empty() || !self.nodes.is_empty()
    }
}

impl Index {
    pub(super) fn ledger_changed(&mut self, _: &str, _: &Changed<Ledger>) {
        self.changes.ledger = true;
    }

    pub(super) fn queue_changed(&mut self, key: &NamespacedName, changed: &Changed<Queue>) {
        match changed.new {
            Some(_) => self.queues_by_team.link(key.name.clone(), key.clone()),
            None => self.queues_by_team.unlink(&key.name, key),
        }
        self.changes.queues.insert(key.clone());
    }

    pub(super) fn node_changed(&mut self, name: &str, changed: &Changed<Node>) {
        self.touched.nodes.insert(name.to_owned());
        if changed.old.is_some() == changed.new.is_some() {
            return;
        }
        // A pool that no slice publishes is at home on the node of its name.
        for driver in self.allocated_drivers() {
            let name = name.to_owned();
            self.touch_homeless(&PoolKey { driver, name });
        }
    }

    /// The drivers of all devices that claims are allocated: a few.
    fn allocated_drivers(&self) -> Vec<String> {
        let mut drivers: Vec<String> = Vec::new();
        let mut from = String::new();
        while let Some((device, _)) = self.allocations.starting_at(from).next() {
            let driver = device.split('/').next().unwrap_or_default().to_owned();
            // The character after the slash: past all devices of this one.
            from = format!("{driver}0");
            drivers.push(driver);
        }
        drivers
    }

    /// The home of a pool may be another one, unless its slices say where it is.
    pub(super) fn touch_homeless(&mut self, pool: &PoolKey) {
        if self.pools.node_of(pool).is_none() {
            self.touch_allocated(&pool.driver, &pool.name);
        }
    }

    /// Permits come and go, and drivers acknowledge them: to planning that says nothing.
    pub(super) fn node_devices_changed(&mut self, name: &str, changed: &Changed<NodeDevices>) {
        if changed.differs_in(nodes::facts_of) {
            self.touched.nodes.insert(name.to_owned());
        }
    }

    pub(super) fn cohort_changed(&mut self, name: &str, changed: &Changed<Cohort>) {
        // Its status is ours, and written whenever a gang below it starts or ends.
        if changed.differs_in(|cohort| &cohort.spec) {
            self.touched.limits.insert((Kind::Cohort, name.to_owned()));
        }
    }

    pub(super) fn flavor_changed(&mut self, name: &str, changed: &Changed<Flavor>) {
        // Its status is ours, and written whenever a device comes or goes.
        if changed.differs_in(|flavor| &flavor.spec) {
            self.touched.limits.insert((Kind::Flavor, name.to_owned()));
            self.touched.flavors = true;
        }
    }

    /// A Topology is edited by administrators, and rarely: every node is placed in it again.
    pub(super) fn topology_changed(&mut self, name: &str, changed: &Changed<Topology>) {
        if !changed.differs_in(|topology| &topology.spec) {
            return;
        }
        self.touched
            .limits
            .insert((Kind::Topology, name.to_owned()));
        self.touched.all_nodes = true;
        let topologies = self.objects.topologies.iter();
        self.levels = topologies
            .flat_map(|(_, topology)| &topology.spec.fabric)
            .map(|level| level.name.clone())
            .collect();
        let users = self.gangs_with_level.iter().cloned();
        self.touched.gangs.extend(users);
    }

    /// Claims that name the class are read again, and so are pods that ask for its devices by the name of a resource.
    pub(super) fn class_changed<V>(&mut self, name: &str, _: &Changed<V>) {
        self.touched.class_resources = true;
        let users: Vec<NamespacedName> = self.claims_by_class.of(name).cloned().collect();
        for claim in users {
            self.touch_users(&claim);
            self.touched.claims.insert(claim);
        }
    }

    /// Nodes are made anew whose devices the rule selects, or selected. (Its status is Kubernetes' own, and says nothing here.)
    pub(super) fn taint_rule_changed(&mut self, _: &str, changed: &Changed<DeviceTaintRule>) {
        // What it says to people changes nothing that is made of nodes.
        if !changed.differs_in(|rule| (taint_rules::tainted_by(rule), drains::of_rule(rule))) {
            return;
        }
        let old = changed.old.as_deref().and_then(taint_rules::tainted_by);
        let new = changed.new.as_deref().and_then(taint_rules::tainted_by);
        self.taint_rules.replace(old.as_ref(), new.as_ref());
        for devices in old.iter().chain(&new) {
            let (driver, pool) = (devices.driver.as_deref(), devices.pool.as_deref());
            let nodes = self.pools.nodes_with(driver, pool);
            self.changes.ruled.extend(nodes.iter().cloned());
            self.touched.nodes.extend(nodes);
            // Who waits for a claim waits for what drains its device.
            let prefix = match (driver, pool) {
                (Some(driver), Some(pool)) => device_name(driver, pool, ""),
                (Some(driver), None) => format!("{driver}/"),
                (None, _) => String::new(),
            };
            for claim in self.allocated_at(&prefix) {
                // A rule may name a pool, whichever driver's it is.
                let allocated = self.claim(&claim);
                let is_there = allocated.is_some_and(|claim| {
                    allocation(claim).any(|(_, of, _)| pool.is_none_or(|pool| pool == of))
                });
                if is_there {
                    let users = self.links.of_claim.of(&claim);
                    let gangs = users.filter_map(|user| self.membership.gang_of(user));
                    self.changes.gangs.extend(gangs.cloned());
                }
            }
        }
    }

    pub(super) fn team_changed(&mut self, name: &str, changed: &Changed<Team>) {
        // Its status is ours, and written with every admission.
        if !changed.differs_in(|team| (&team.spec, team.metadata.generation)) {
            return;
        }
        self.touched.limits.insert((Kind::Team, name.to_owned()));
        self.changes.teams.insert(name.to_owned());
        let namespaces: Vec<String> = self.namespaces_by_team.of(name).cloned().collect();
        for namespace in namespaces {
            self.touch_gangs_in(&namespace);
        }
    }

    pub(super) fn namespace_changed(&mut self, name: &String, changed: &Changed<Namespace>) {
        let team = |namespace: Option<&Namespace>| {
            namespace.and_then(|namespace| self.team_named_by(namespace).map(str::to_owned))
        };
        let (before, after) = (team(changed.old.as_deref()), team(changed.new.as_deref()));
        if before == after {
            return;
        }
        if let Some(team) = before {
            self.namespaces_by_team.unlink(&team, name);
            self.changes.teams.insert(team);
        }
        if let Some(team) = after {
            self.namespaces_by_team.link(team.clone(), name.clone());
            self.changes.teams.insert(team);
        }
        self.touch_gangs_in(name);
    }

    fn touch_gangs_in(&mut self, namespace: &str) {
        let gangs: Vec<GangKey> = self.gangs_in_namespace(namespace).cloned().collect();
        self.touched.gangs.extend(gangs);
    }

    pub(super) fn gang_changed(&mut self, key: &GangKey, changed: &Changed<Gang>) {
        let uids = changed.old.iter().chain(&changed.new);
        let uids = uids.map(|gang| gang.metadata.uid.as_deref().unwrap_or_default());
        for uid in uids {
            self.gangs_by_uid.remove(uid);
        }
        if let Some(gang) = &changed.new {
            let uid = gang.metadata.uid.clone().unwrap_or_default();
            self.gangs_by_uid.insert(uid, Arc::clone(gang));
        }
        match (&changed.old, &changed.new) {
            (None, Some(_)) => self
                .gangs_by_namespace
                .link(key.namespace.clone(), key.clone()),
            (Some(_), None) => self.gangs_by_namespace.unlink(&*key.namespace, key),
            _ => {}
        }
        if !changed.differs_in(gangs::facts_of) {
            return;
        }
        self.touched.gangs.insert(key.clone());
        for gang in changed.both() {
            if let Some(label) = gang.spec.group.as_deref() {
                self.gangs_by_group
                    .unlink(&(key.namespace.clone(), label.to_owned()), key);
                self.touched.groups.insert(Group::Label {
                    namespace: key.namespace.clone(),
                    label: label.to_owned(),
                });
            }
            for owner in gang.metadata.owner_references.iter().flatten() {
                self.gangs_by_owner.unlink(&owner.uid, key);
            }
        }
        if let Some(gang) = &changed.new {
            if let Some(label) = gang.spec.group.as_deref() {
                self.gangs_by_group
                    .link((key.namespace.clone(), label.to_owned()), key.clone());
            }
            for owner in gang.metadata.owner_references.iter().flatten() {
                self.gangs_by_owner.link(owner.uid.clone(), key.clone());
            }
        }
        // A Gang that ends, or goes, may make a group mean another one.
        self.touched.groups.extend(self.membership.groups_of(key));
    }

    pub(super) fn job_changed(&mut self, _: &NamespacedName, changed: &Changed<Job>) {
        if !changed.differs_in(JobFacts::of) {
            return;
        }
        let uids: BTreeSet<String> = changed
            .both()
            .filter_map(|job| job.metadata.uid.clone())
            .collect();
        for uid in &uids {
            let pods: Vec<NamespacedName> = self.links.of_job.of(uid).cloned().collect();
            for pod in pods {
                self.place(&pod);
                self.touched
                    .gangs
                    .extend(self.membership.gang_of(&pod).cloned());
            }
        }
        // Gangs whose pods are gone end as their Job ends.
        let owned = uids.iter().flat_map(|uid| self.gangs_by_owner.of(uid));
        self.touched.gangs.extend(owned.cloned());
    }

    pub(super) fn pod_changed(&mut self, key: &NamespacedName, changed: &Changed<KeptPod>) {
        self.links
            .replace(key, changed.old.as_deref(), changed.new.as_ref());
        // What a hold counts is not counted again: its node has nothing new to tell, but of device plugins, which may offer less than
        // their pods have.
        let is_held = |pod: &KeptPod| pod.ours().is_some() && self.held.contains(pod.uid());
        let has_units = |pod: &KeptPod| {
            let counted = &self.views.counted_resources;
            pod.usage()
                .is_some_and(|usage| counted.among(&usage).next().is_some())
        };
        if changed.differs_in(|pod| (pod.uid(), pod.node(), pod.usage())) {
            let counted = changed.both().filter(|pod| !is_held(pod) || has_units(pod));
            let nodes = counted.filter_map(KeptPod::node).map(str::to_owned);
            self.touched.nodes.extend(nodes.collect::<Vec<_>>());
        }
        let ours: Vec<&OurPod> = changed.both().filter_map(KeptPod::ours).collect();
        // Most of what is written to a pod while it starts and ends is read by others: its finalizers, its addresses, the times of its
        // conditions. Whatever was derived of it stands, since nothing that is derived says its version.
        if ours.is_empty() || !changed.differs_in(KeptPod::facts) {
            return;
        }
        let uids = ours.iter().map(|pod| pod::uid(&pod.object).to_owned());
        self.changes.pods.extend(uids);
        if changed.differs_in(KeptPod::request_facts) {
            for pod in ours {
                self.forget_request(&key.namespace, pod::uid(&pod.object));
            }
        }
        if changed.differs_in(KeptPod::belonging_facts) {
            self.place(key);
        }
        self.touched
            .gangs
            .extend(self.membership.gang_of(key).cloned());
    }

    /// Finds out where a pod belongs.
    fn place(&mut self, key: &NamespacedName) {
        let belonging = self.our_pod(key).map(|pod| {
            gangs::belonging(&pod.object, &|namespace, name, uid| {
                self.objects.job(namespace, name, uid)
            })
        });
        self.touched
            .gangs
            .extend(self.membership.gang_of(key).cloned());
        let touches = self.membership.set(key, belonging);
        self.touched.groups.extend(touches.groups);
        self.touched.gangs.extend(touches.gangs);
    }

    pub(super) fn claim_changed(&mut self, key: &NamespacedName, changed: &Changed<ObservedClaim>) {
        if let Some(old) = &changed.old {
            if old.own_uid.is_some() {
                self.claims_by_name.unlink(&old.uid, key);
            } else {
                self.claims_by_uid.remove(&old.uid);
            }
        }
        if let Some(new) = &changed.new {
            if new.own_uid.is_some() {
                self.claims_by_name.link(new.uid.clone(), key.clone());
            } else {
                self.claims_by_uid.insert(new.uid.clone(), Arc::clone(new));
            }
        }
        // Who has reserved it says nothing here, and changes with every pod that starts or ends.
        if !changed.differs_in(ObservedClaim::facts) {
            return;
        }
        if changed.differs_in(|claim| (&claim.uid, &claim.allocated)) {
            self.allocation_changed(changed);
        }
        if changed.differs_in(|claim| (&claim.spec, &claim.uid)) {
            if let Some(claim) = &changed.old {
                for class in claims::classes(claim) {
                    self.claims_by_class.unlink(&class.to_owned(), key);
                }
            }
            if let Some(claim) = &changed.new {
                for class in claims::classes(claim) {
                    self.claims_by_class.link(class.to_owned(), key.clone());
                }
            }
            self.touched.claims.insert(key.clone());
        }
        self.touch_users(key);
    }

    fn allocation_changed(&mut self, changed: &Changed<ObservedClaim>) {
        if let Some(old) = &changed.old {
            for (driver, pool, device) in allocation(old) {
                self.allocations
                    .unlink(&device_name(driver, pool, device), &(*old.uid).into());
            }
        }
        if let Some(new) = &changed.new {
            for (driver, pool, device) in allocation(new) {
                self.allocations
                    .link(device_name(driver, pool, device), (*new.uid).into());
            }
        }
        for claim in changed.both() {
            for (driver, pool, _) in allocation(claim) {
                let home = self.home_of(&PoolKey {
                    driver: driver.to_owned(),
                    name: pool.to_owned(),
                });
                self.touched.nodes.extend(home);
            }
        }
    }

    /// Pods that name the claim are to be understood anew.
    pub(super) fn touch_users(&mut self, claim: &NamespacedName) {
        let users: Vec<NamespacedName> = self.links.of_claim.of(claim).cloned().collect();
        for user in users {
            if let Some(uid) = self
                .our_pod(&user)
                .map(|pod| pod::uid(&pod.object).to_owned())
            {
                self.forget_request(&user.namespace, &uid);
            }
            self.touched
                .gangs
                .extend(self.membership.gang_of(&user).cloned());
        }
    }

    pub(super) fn slice_changed(&mut self, changed: &Changed<SliceView>) {
        let (old, new) = (changed.old.as_deref(), changed.new.as_deref());
        let appeared = self.device_kinds.replace(old, new);
        let new_kinds = !self.device_kinds.take_found().is_empty();
        if appeared || new_kinds {
            self.ask_about_new_devices(new_kinds);
        }
        let pools: BTreeSet<PoolKey> = changed.both().map(|slice| slice.pool.clone()).collect();
        let before: Vec<_> = pools.iter().map(|pool| self.home_of(pool)).collect();
        let nodes = self
            .pools
            .replace(changed.old.as_deref(), changed.new.clone());
        self.touched.nodes.extend(nodes);
        for (pool, before) in pools.iter().zip(before) {
            if self.home_of(pool) != before {
                self.touch_allocated(&pool.driver, &pool.name);
            }
        }
    }

    /// A pool came or went: claims that are allocated of it are to be understood anew.
    fn touch_allocated(&mut self, driver: &str, pool: &str) {
        for claim in self.allocated_at(&device_name(driver, pool, "")) {
            self.touch_users(&claim);
        }
    }

    /// Claims that are allocated devices whose names on their nodes begin so.
    fn allocated_at(&self, prefix: &str) -> BTreeSet<NamespacedName> {
        self.allocations
            .starting_at(prefix.to_owned())
            .take_while(|(device, _)| device.starts_with(prefix))
            .flat_map(|(_, claims)| claims.iter())
            .filter_map(|uid| self.claim_by_uid(uid.as_str()))
            .map(|claim| NamespacedName::new(&*claim.namespace, &*claim.name))
            .collect()
    }
}

impl<V> Changed<V> {
    /// The object as it was and as it is.
    pub(super) fn both(&self) -> impl Iterator<Item = &V> {
        self.old.as_deref().into_iter().chain(self.new.as_deref())
    }

    /// Whether the part is not the same before and after.
    fn differs_in<'a, P: PartialEq>(&'a self, part: impl Fn(&'a V) -> P) -> bool {
        match (self.old.as_deref(), self.new.as_deref()) {
            (Some(old), Some(new)) => part(old) != part(new),
            _ => true,
        }
    }
}

/// Driver, pool and device of all that a claim is allocated for itself.
fn allocation(claim: &ObservedClaim) -> impl Iterator<Item = (&str, &str, &str)> {
    let devices = claim.allocated.iter().flatten();
    let own = devices.filter(|device| !device.for_admin);
    own.map(|device| (&*device.driver, &*device.pool, &*device.device))
}
