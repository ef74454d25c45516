//! Taking changes in: each is stored, and what it may touch is noted.

use std::{collections::BTreeSet, sync::Arc};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Resource;

use super::{Index, NamespacedName};
use crate::{
    formed::GangKey,
    object::{Change, Kind, Object, ObjectKey},
};

impl Index {
    pub(super) fn take_in(&mut self, change: Change) {
        match change {
            Change::Applied(object) => self.put(object),
            Change::Deleted(key) => self.take_out(&key, true),
            Change::Listed(kind, objects) => {
                let listed: BTreeSet<ObjectKey> = objects.iter().map(key_of).collect();
                for object in objects {
                    self.put(object);
                }
                self.end_list(kind, &listed);
            }
            Change::ListedKeys(kind, listed) => self.end_list(kind, &listed),
        }
    }

    fn end_list(&mut self, kind: Kind, listed: &BTreeSet<ObjectKey>) {
        for key in self.keys(kind) {
            if !listed.contains(&key) {
                self.take_out(&key, false);
            }
        }
        self.synced.insert(kind);
    }

    fn put(&mut self, object: Object) {
        let ObjectKey {
            namespace, name, ..
        } = key_of(&object);
        let namespaced = NamespacedName {
            namespace,
            name: name.clone(),
        };
        macro_rules! put {
            ($store:ident, $key:expr, $object:expr, $touch:ident) => {{
                let key = $key;
                if let Some(changed) = self.objects.$store.put(key.clone(), $object) {
                    self.$touch(&key, &changed);
                }
            }};
        }
        match object {
            Object::Cohort(object) => put!(cohorts, name, object, cohort_changed),
            Object::DeviceClass(object) => put!(classes, name, object, class_changed),
            Object::Flavor(object) => put!(flavors, name, object, flavor_changed),
            Object::Gang(object) => put!(gangs, GangKey::from(namespaced), object, gang_changed),
            Object::Job(object) => put!(jobs, namespaced, object, job_changed),
            Object::Ledger(object) => put!(ledgers, name, object, nothing_changed),
            Object::Namespace(object) => put!(namespaces, name, object, namespace_changed),
            Object::Node(object) => put!(nodes, name, object, node_changed),
            Object::NodeDevices(object) => put!(node_devices, name, object, node_changed),
            Object::Pod(object) => put!(pods, namespaced, object, pod_changed),
            Object::PriorityTier(object) => put!(tiers, name, object, tier_changed),
            Object::Queue(object) => put!(queues, namespaced, object, nothing_changed),
            Object::ResourceClaim(object) => put!(claims, namespaced, object, claim_changed),
            Object::ResourceSlice(object) => put!(slices, name, object, slice_changed),
            Object::Team(object) => put!(teams, name, object, team_changed),
            Object::Topology(object) => put!(topologies, name, object, topology_changed),
        }
    }

    /// `is_gone`: told gone, for good; else only missing in a list.
    fn take_out(&mut self, key: &ObjectKey, is_gone: bool) {
        let name = key.name.clone();
        let namespaced = NamespacedName {
            namespace: key.namespace.clone(),
            name: name.clone(),
        };
        macro_rules! take {
            ($store:ident, $key:expr, $touch:ident) => {{
                let key = $key;
                let store = &mut self.objects.$store;
                let changed = if is_gone {
                    store.remove(&key)
                } else {
                    store.forget(&key)
                };
                if let Some(changed) = changed {
                    self.$touch(&key, &changed);
                }
            }};
        }
        match key.kind {
            Kind::Cohort => take!(cohorts, name, cohort_changed),
            Kind::DeviceClass => take!(classes, name, class_changed),
            Kind::Flavor => take!(flavors, name, flavor_changed),
            Kind::Gang => take!(gangs, GangKey::from(namespaced), gang_changed),
            Kind::Job => take!(jobs, namespaced, job_changed),
            Kind::Ledger => take!(ledgers, name, nothing_changed),
            Kind::Namespace => take!(namespaces, name, namespace_changed),
            Kind::Node => take!(nodes, name, node_changed),
            Kind::NodeDevices => take!(node_devices, name, node_changed),
            Kind::Pod => take!(pods, namespaced, pod_changed),
            Kind::PriorityTier => take!(tiers, name, tier_changed),
            Kind::Queue => take!(queues, namespaced, nothing_changed),
            Kind::ResourceClaim => take!(claims, namespaced, claim_changed),
            Kind::ResourceSlice => take!(slices, name, slice_changed),
            Kind::Team => take!(teams, name, team_changed),
            Kind::Topology => take!(topologies, name, topology_changed),
        }
    }

    /// Keys of all objects of a kind that are held.
    fn keys(&self, kind: Kind) -> Vec<ObjectKey> {
        let cluster = |name: &String| ObjectKey {
            kind,
            namespace: String::new(),
            name: name.clone(),
        };
        let within = |key: &NamespacedName| ObjectKey {
            kind,
            namespace: key.namespace.clone(),
            name: key.name.clone(),
        };
        let objects = &self.objects;
        match kind {
            Kind::Cohort => objects.cohorts.items().keys().map(cluster).collect(),
            Kind::DeviceClass => objects.classes.items().keys().map(cluster).collect(),
            Kind::Flavor => objects.flavors.items().keys().map(cluster).collect(),
            Kind::Gang => {
                let keys = objects.gangs.items().keys();
                keys.map(|key| within(&NamespacedName::from(key.clone())))
                    .collect()
            }
            Kind::Job => objects.jobs.items().keys().map(within).collect(),
            Kind::Ledger => objects.ledgers.items().keys().map(cluster).collect(),
            Kind::Namespace => objects.namespaces.items().keys().map(cluster).collect(),
            Kind::Node => objects.nodes.items().keys().map(cluster).collect(),
            Kind::NodeDevices => objects.node_devices.items().keys().map(cluster).collect(),
            Kind::Pod => objects.pods.items().keys().map(within).collect(),
            Kind::PriorityTier => objects.tiers.items().keys().map(cluster).collect(),
            Kind::Queue => objects.queues.items().keys().map(within).collect(),
            Kind::ResourceClaim => objects.claims.items().keys().map(within).collect(),
            Kind::ResourceSlice => objects.slices.items().keys().map(cluster).collect(),
            Kind::Team => objects.teams.items().keys().map(cluster).collect(),
            Kind::Topology => objects.topologies.items().keys().map(cluster).collect(),
        }
    }
}

/// Which object it is.
fn key_of(object: &Object) -> ObjectKey {
    fn of<V: Resource>(kind: Kind, object: &Arc<V>) -> ObjectKey {
        let ObjectMeta {
            namespace, name, ..
        } = object.meta();
        ObjectKey {
            kind,
            namespace: namespace.clone().unwrap_or_default(),
            name: name.clone().unwrap_or_default(),
        }
    }
    match object {
        Object::Cohort(object) => of(Kind::Cohort, object),
        Object::DeviceClass(object) => of(Kind::DeviceClass, object),
        Object::Flavor(object) => of(Kind::Flavor, object),
        Object::Gang(object) => of(Kind::Gang, object),
        Object::Job(object) => of(Kind::Job, object),
        Object::Ledger(object) => of(Kind::Ledger, object),
        Object::Namespace(object) => of(Kind::Namespace, object),
        Object::Node(object) => of(Kind::Node, object),
        Object::NodeDevices(object) => of(Kind::NodeDevices, object),
        Object::Pod(object) => of(Kind::Pod, object),
        Object::PriorityTier(object) => of(Kind::PriorityTier, object),
        Object::Queue(object) => of(Kind::Queue, object),
        Object::ResourceClaim(object) => of(Kind::ResourceClaim, object),
        Object::ResourceSlice(object) => of(Kind::ResourceSlice, object),
        Object::Team(object) => of(Kind::Team, object),
        Object::Topology(object) => of(Kind::Topology, object),
    }
}
