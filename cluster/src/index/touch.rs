//! What a change may touch: noted, not derived.

use std::collections::BTreeSet;

use k8s_openapi::api::{
    batch::v1::Job,
    core::v1::{Namespace, Pod},
    resource::v1::{ResourceClaim, ResourceSlice},
};
use muster_api::{Flavor, Gang, Team, keys};

use super::{Index, NamespacedName, pods, store::Changed};
use crate::{
    formed::GangKey,
    gangs::{self, Group},
    object::Kind,
    pools::device_name,
};

/// What has to be derived anew.
#[derive(Debug, Default)]
pub(super) struct Dirty {
    pub(super) groups: BTreeSet<Group>,
    pub(super) gangs: BTreeSet<GangKey>,
    pub(super) all_gangs: bool,
    /// Claims to be read.
    pub(super) claims: BTreeSet<NamespacedName>,
    pub(super) nodes: BTreeSet<String>,
    pub(super) all_nodes: bool,
    pub(super) flavors: bool,
    /// Teams, Cohorts, Flavors and Topologies that the engine must be told about.
    pub(super) limits: BTreeSet<(Kind, String)>,
}

impl Index {
    #[expect(clippy::unused_self, reason = "one shape for all kinds")]
    pub(super) fn nothing_changed<K, V>(&mut self, _: &K, _: &Changed<V>) {}

    pub(super) fn node_changed<V>(&mut self, name: &str, _: &Changed<V>) {
        self.touched.nodes.insert(name.to_owned());
    }

    pub(super) fn cohort_changed<V>(&mut self, name: &str, _: &Changed<V>) {
        self.touched.limits.insert((Kind::Cohort, name.to_owned()));
    }

    pub(super) fn flavor_changed(&mut self, name: &str, changed: &Changed<Flavor>) {
        // Its status is ours, and written whenever a device comes or goes.
        if changed.differs_in(|flavor| &flavor.spec) {
            self.touched.limits.insert((Kind::Flavor, name.to_owned()));
            self.touched.flavors = true;
        }
    }

    pub(super) fn topology_changed<V>(&mut self, name: &str, _: &Changed<V>) {
        self.touched
            .limits
            .insert((Kind::Topology, name.to_owned()));
        self.touched.all_nodes = true;
        self.touched.all_gangs = true;
    }

    pub(super) fn tier_changed<V>(&mut self, _: &str, _: &Changed<V>) {
        self.touched.all_gangs = true;
    }

    pub(super) fn class_changed<V>(&mut self, _: &str, _: &Changed<V>) {
        self.requests.of_claims.clear();
        self.requests.of_pods.clear();
        self.touched.claims = self.objects.claims.items().keys().cloned().collect();
        self.touched.all_gangs = true;
    }

    pub(super) fn team_changed(&mut self, name: &str, changed: &Changed<Team>) {
        // Its status is ours, and written with every admission.
        if !changed.differs_in(|team| (&team.spec, team.metadata.generation)) {
            return;
        }
        self.touched.limits.insert((Kind::Team, name.to_owned()));
        let named = self.objects.namespaces.iter().filter(|(_, namespace)| {
            let label = super::team_label(namespace);
            label.or(self.config.default_team.as_deref()) == Some(name)
        });
        let named: Vec<String> = named.map(|(namespace, _)| namespace.clone()).collect();
        for namespace in named {
            self.touch_gangs_in(&namespace);
        }
    }

    pub(super) fn namespace_changed(&mut self, name: &str, changed: &Changed<Namespace>) {
        if changed.differs_in(|namespace| super::team_label(namespace).map(str::to_owned)) {
            self.touch_gangs_in(name);
        }
    }

    fn touch_gangs_in(&mut self, namespace: &str) {
        let of_pods = self
            .membership
            .gangs()
            .filter(|key| key.namespace == namespace);
        let of_objects = self
            .objects
            .gangs
            .items()
            .keys()
            .filter(|key| key.namespace == namespace);
        self.touched
            .gangs
            .extend(of_pods.chain(of_objects).cloned());
    }

    pub(super) fn gang_changed(&mut self, key: &GangKey, changed: &Changed<Gang>) {
        self.touched.gangs.insert(key.clone());
        for gang in changed.both() {
            if let Some(label) = gang_label(gang) {
                self.gangs_by_label
                    .unlink(&(key.namespace.clone(), label.to_owned()), key);
                self.touched.groups.insert(Group::Label {
                    namespace: key.namespace.clone(),
                    label: label.to_owned(),
                });
            }
            for owner in gang.metadata.owner_references.iter().flatten() {
                self.gangs_by_owner.unlink(&owner.uid, key);
            }
            self.gangs_by_uid
                .remove(gang.metadata.uid.as_deref().unwrap_or_default());
        }
        if let Some(gang) = &changed.new {
            if let Some(label) = gang_label(gang) {
                self.gangs_by_label
                    .link((key.namespace.clone(), label.to_owned()), key.clone());
            }
            for owner in gang.metadata.owner_references.iter().flatten() {
                self.gangs_by_owner.link(owner.uid.clone(), key.clone());
            }
            self.gangs_by_uid
                .insert(gang.metadata.uid.clone().unwrap_or_default(), key.clone());
        }
        // A Gang that ends, or goes, may make a group mean another one.
        self.touched.groups.extend(self.membership.groups_of(key));
    }

    pub(super) fn job_changed(&mut self, _: &NamespacedName, changed: &Changed<Job>) {
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

    pub(super) fn pod_changed(&mut self, key: &NamespacedName, changed: &Changed<Pod>) {
        self.links
            .replace(key, changed.old.as_deref(), changed.new.as_deref());
        let (before, after) = (
            pods::usage(changed.old.as_ref()),
            pods::usage(changed.new.as_ref()),
        );
        if before != after {
            let nodes = before.into_iter().chain(after).map(|(node, _)| node);
            self.touched.nodes.extend(nodes);
        }
        for pod in changed.both() {
            self.requests.of_pods.remove(gangs::uid(pod));
        }
        self.place(key);
        self.touched
            .gangs
            .extend(self.membership.gang_of(key).cloned());
    }

    /// Finds out where a pod belongs.
    fn place(&mut self, key: &NamespacedName) {
        let pod = self.objects.pods.get(key).filter(|pod| self.is_ours(pod));
        let belonging = pod.map(|pod| {
            gangs::belonging(pod, &|namespace, name, uid| {
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

    /// Whether the pod is ours to care about. One that carries our gate, or a gang name, is so
    /// whatever the configuration says now: nobody else would take the gate.
    fn is_ours(&self, pod: &Pod) -> bool {
        let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
        let gates = pod
            .spec
            .iter()
            .flat_map(|spec| spec.scheduling_gates.iter().flatten());
        let mut gates = gates.map(|gate| gate.name.as_str());
        gates.any(|gate| gate == keys::ADMISSION_GATE)
            || gangs::annotation(pod, keys::GANG_NAME).is_some()
            || (!self.config.excluded_namespaces.contains(namespace)
                && self.config.managed.is_managed(pod))
    }

    pub(super) fn claim_changed(&mut self, key: &NamespacedName, changed: &Changed<ResourceClaim>) {
        if let Some(old) = &changed.old {
            let uid = old.metadata.uid.clone().unwrap_or_default();
            for (driver, pool, device) in allocation(old) {
                self.allocations
                    .unlink(&device_name(driver, pool, device), &uid.as_str().into());
            }
            self.claims_by_uid.remove(&uid);
        }
        if let Some(new) = &changed.new {
            let uid = new.metadata.uid.clone().unwrap_or_default();
            for (driver, pool, device) in allocation(new) {
                self.allocations
                    .link(device_name(driver, pool, device), uid.as_str().into());
            }
            self.claims_by_uid.insert(uid, key.clone());
        }
        for claim in changed.both() {
            for (driver, pool, _) in allocation(claim) {
                let home = self.home_of(&(driver.to_owned(), pool.to_owned()));
                self.touched.nodes.extend(home);
            }
        }
        if changed.differs_in(|claim| (&claim.spec, &claim.metadata.uid)) {
            self.requests.of_claims.remove(key);
            self.touched.claims.insert(key.clone());
        }
        self.touch_users(key);
    }

    /// Pods that name the claim are to be understood anew.
    pub(super) fn touch_users(&mut self, claim: &NamespacedName) {
        let users: Vec<NamespacedName> = self.links.of_claim.of(claim).cloned().collect();
        for user in users {
            if let Some(pod) = self.objects.pods.get(&user) {
                self.requests.of_pods.remove(gangs::uid(pod));
            }
            self.touched
                .gangs
                .extend(self.membership.gang_of(&user).cloned());
        }
    }

    pub(super) fn slice_changed(&mut self, _: &str, changed: &Changed<ResourceSlice>) {
        let pools: BTreeSet<(String, String)> = changed
            .both()
            .map(|slice| (slice.spec.driver.clone(), slice.spec.pool.name.clone()))
            .collect();
        let before: Vec<_> = pools.iter().map(|pool| self.home_of(pool)).collect();
        let nodes = self
            .pools
            .replace(changed.old.as_deref(), changed.new.clone());
        self.touched.nodes.extend(nodes);
        for (pool, before) in pools.iter().zip(before) {
            if self.home_of(pool) != before {
                self.touch_allocated(&pool.0, &pool.1);
            }
        }
    }

    /// A pool came or went: claims that are allocated of it are to be understood anew.
    fn touch_allocated(&mut self, driver: &str, pool: &str) {
        let prefix = device_name(driver, pool, "");
        let claims: BTreeSet<NamespacedName> = self
            .allocations
            .starting_at(prefix.clone())
            .take_while(|(device, _)| device.starts_with(&prefix))
            .flat_map(|(_, claims)| claims)
            .filter_map(|uid| self.claims_by_uid.get(uid.as_str()))
            .cloned()
            .collect();
        for claim in claims {
            self.touch_users(&claim);
        }
    }
}

impl<V> Changed<V> {
    /// The object as it was and as it is.
    fn both(&self) -> impl Iterator<Item = &V> {
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
fn allocation(claim: &ResourceClaim) -> impl Iterator<Item = (&str, &str, &str)> {
    let allocation = claim.status.iter().flat_map(|status| &status.allocation);
    allocation
        .flat_map(|allocation| &allocation.devices)
        .flat_map(|devices| devices.results.iter().flatten())
        .filter(|result| result.admin_access != Some(true))
        .map(|result| {
            (
                result.driver.as_str(),
                result.pool.as_str(),
                result.device.as_str(),
            )
        })
}

fn gang_label(gang: &Gang) -> Option<&str> {
    gang.metadata
        .labels
        .as_ref()?
        .get(keys::GANG)
        .map(String::as_str)
}
