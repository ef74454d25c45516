//! The API server, as far as the protocol can tell the difference: versions, UIDs, generations, finalizers.

use std::{collections::BTreeMap, sync::Arc};

use jiff::Timestamp;
use k8s_openapi::{api::core::v1::Pod, apimachinery::pkg::apis::meta::v1::Time};
use muster_api::{
    Cohort, Flavor, Gang, Ledger, NodeDevices, PriorityTier, Queue, QueueSpec, Team, keys,
};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::Value;

use crate::{ApiRequest, Outcome};
use muster_cluster::object::{Change, Kind, Object, ObjectKey};

fn cluster_key(kind: Kind, name: &str) -> ObjectKey {
    ObjectKey {
        kind,
        namespace: String::new(),
        name: name.to_owned(),
    }
}

/// The store. Changes since the last [`Server::news`] are remembered for the watch.
#[derive(Clone, Debug, Default)]
pub(crate) struct Server {
    /// Takes fields out of what is stored, as the API server does by a definition that lacks them.
    pub(crate) prunes: Option<fn(&mut Object)>,
    version: u64,
    objects: BTreeMap<ObjectKey, Object>,
    news: Vec<Change>,
    /// How often an object of that key was taken away.
    removed: BTreeMap<ObjectKey, usize>,
}

impl Server {
    /// Puts an object there, with a new version; its UID is made of its name unless it has one. No UID is given twice.
    pub(crate) fn put(&mut self, mut object: Object) -> Object {
        self.version += 1;
        let version = self.version.to_string();
        let again = self.removed.get(&object.key()).copied();
        edit(&mut object, |metadata| {
            metadata.resource_version = Some(version.clone());
            let name = metadata.name.clone().unwrap_or_default();
            metadata.uid.get_or_insert_with(|| match again {
                None => format!("{name}-uid"),
                Some(again) => format!("{name}-uid-{again}"),
            });
            metadata.generation.get_or_insert(1);
        });
        if let Some(prune) = self.prunes {
            prune(&mut object);
        }
        self.objects.insert(object.key(), object.clone());
        self.news.push(Change::Applied(object.clone()));
        object
    }

    /// Takes an object away.
    pub(crate) fn remove(&mut self, key: &ObjectKey) {
        if self.objects.remove(key).is_some() {
            *self.removed.entry(key.clone()).or_default() += 1;
            self.news.push(Change::Deleted(key.clone()));
        }
    }

    /// What the watch has not shown yet.
    pub(crate) fn news(&mut self) -> Vec<Change> {
        std::mem::take(&mut self.news)
    }

    /// All objects of a kind.
    pub(crate) fn list(&self, kind: Kind) -> Vec<Object> {
        let of_kind = self.objects.iter().filter(|(key, _)| key.kind == kind);
        of_kind.map(|(_, object)| object.clone()).collect()
    }

    /// The Ledger.
    pub(crate) fn ledger(&self) -> Option<Ledger> {
        match self.objects.get(&crate::objects::ledger_object())? {
            Object::Ledger(ledger) => Some(Ledger::clone(ledger)),
            _ => None,
        }
    }

    /// The `NodeDevices` of a node.
    pub(crate) fn node_devices(&self, node: &str) -> Option<NodeDevices> {
        match self
            .objects
            .get(&crate::objects::node_devices_object(node))?
        {
            Object::NodeDevices(devices) => Some(NodeDevices::clone(devices)),
            _ => None,
        }
    }

    /// A pod of the one namespace.
    pub(crate) fn pod(&self, name: &str) -> Option<Pod> {
        match self.objects.get(&super::pod_key(name))? {
            Object::Pod(pod) => Some(Pod::clone(pod)),
            _ => None,
        }
    }

    /// Performs an effect as the controller would. A list is handed over by the caller.
    pub(crate) fn perform(&mut self, write: &ApiRequest) -> Outcome {
        match write {
            ApiRequest::ReadAll { .. } | ApiRequest::PublishEvent(_) => Outcome::Done(None),
            ApiRequest::ReadObject { key } => match self.objects.get(key) {
                Some(object) => Outcome::Done(Some(object.clone())),
                None => Outcome::NotFound,
            },
            ApiRequest::CreateLedger { spec } => self.create(Object::Ledger(Arc::new(
                Ledger::new(keys::LEDGER_NAME, spec.clone()),
            ))),
            ApiRequest::ReplaceLedger {
                resource_version,
                spec,
            } => {
                let Some(mut ledger) = self.ledger() else {
                    return Outcome::NotFound;
                };
                ledger.spec = spec.clone();
                self.replace(Object::Ledger(Arc::new(ledger)), resource_version)
            }
            ApiRequest::CreateGang { gang } => {
                self.create(Object::Gang(Arc::new(Gang::clone(gang))))
            }
            ApiRequest::ReplaceGangStatus {
                key,
                resource_version,
                status,
                ..
            } => {
                let Some(Object::Gang(gang)) = self.objects.get(key) else {
                    return Outcome::NotFound;
                };
                let mut gang = Gang::clone(gang);
                gang.status = Some((**status).clone());
                self.replace(Object::Gang(Arc::new(gang)), resource_version)
            }
            ApiRequest::CreateNodeDevices { node, spec } => {
                let mut devices = NodeDevices::new(node, spec.clone());
                devices.metadata.finalizers = finalizers(!spec.permits.is_empty());
                self.create(Object::NodeDevices(Arc::new(devices)))
            }
            ApiRequest::ReplaceNodeDevices {
                node,
                resource_version,
                spec,
                finalizer,
                ..
            } => {
                let Some(mut devices) = self.node_devices(node) else {
                    return Outcome::NotFound;
                };
                if devices.spec != *spec {
                    devices.metadata.generation = devices.metadata.generation.map(|it| it + 1);
                }
                devices.spec = spec.clone();
                devices.metadata.finalizers = finalizers(*finalizer);
                self.replace(Object::NodeDevices(Arc::new(devices)), resource_version)
            }
            ApiRequest::PatchPod { key, patch } | ApiRequest::PatchPodStatus { key, patch } => {
                let Some(Object::Pod(pod)) = self.objects.get(key) else {
                    return Outcome::NotFound;
                };
                match patched(pod.as_ref(), patch) {
                    Some(pod) => Outcome::Done(Some(self.put(Object::Pod(Arc::new(pod))))),
                    None => Outcome::Conflict,
                }
            }
            ApiRequest::PatchJob { key, patch, .. } => {
                let Some(Object::Job(job)) = self.objects.get(key) else {
                    return Outcome::NotFound;
                };
                match patched(job.as_ref(), patch) {
                    Some(job) => Outcome::Done(Some(self.put(Object::Job(Arc::new(job))))),
                    None => Outcome::Conflict,
                }
            }
            ApiRequest::DeletePod { key, uid, .. } => self.delete_pod(key, uid),
            ApiRequest::ForceDeletePod {
                key,
                uid,
                resource_version,
            } => self.force_delete_pod(key, uid, resource_version),
            ApiRequest::PublishQueue {
                namespace,
                team,
                status,
            } => {
                let mut queue = Queue::new(team, QueueSpec { team: team.clone() });
                queue.metadata.namespace = Some(namespace.clone());
                queue.status = Some((**status).clone());
                Outcome::Done(Some(self.put(Object::Queue(Arc::new(queue)))))
            }
            ApiRequest::PublishCohort { cohort, status } => {
                let Some(Object::Cohort(cohort)) =
                    self.objects.get(&cluster_key(Kind::Cohort, cohort))
                else {
                    return Outcome::NotFound;
                };
                let mut cohort = Cohort::clone(cohort);
                cohort.status = Some((**status).clone());
                Outcome::Done(Some(self.put(Object::Cohort(Arc::new(cohort)))))
            }
            ApiRequest::PublishFlavor { flavor, status } => {
                let Some(Object::Flavor(flavor)) =
                    self.objects.get(&cluster_key(Kind::Flavor, flavor))
                else {
                    return Outcome::NotFound;
                };
                let mut flavor = Flavor::clone(flavor);
                flavor.status = Some((**status).clone());
                Outcome::Done(Some(self.put(Object::Flavor(Arc::new(flavor)))))
            }
            ApiRequest::PublishPriorityTier { tier, status } => {
                let Some(Object::PriorityTier(tier)) =
                    self.objects.get(&cluster_key(Kind::PriorityTier, tier))
                else {
                    return Outcome::NotFound;
                };
                let mut tier = PriorityTier::clone(tier);
                tier.status = Some((**status).clone());
                Outcome::Done(Some(self.put(Object::PriorityTier(Arc::new(tier)))))
            }
            ApiRequest::PublishTeam { team, status } => {
                let Some(Object::Team(team)) = self.objects.get(&cluster_key(Kind::Team, team))
                else {
                    return Outcome::NotFound;
                };
                let mut team = Team::clone(team);
                team.status = Some((**status).clone());
                Outcome::Done(Some(self.put(Object::Team(Arc::new(team)))))
            }
            ApiRequest::DeleteNodeDevices {
                node,
                uid,
                resource_version,
            } => self.delete(
                &crate::objects::node_devices_object(node),
                uid,
                resource_version,
            ),
            ApiRequest::DeleteGang {
                key,
                uid,
                resource_version,
            } => self.delete(key, uid, resource_version),
            ApiRequest::DeleteQueue { key } => {
                self.remove(key);
                Outcome::Done(None)
            }
        }
    }

    fn delete(&mut self, key: &ObjectKey, uid: &str, resource_version: &str) -> Outcome {
        let Some(object) = self.objects.get(key) else {
            return Outcome::NotFound;
        };
        let metadata = object.metadata();
        if metadata.resource_version.as_deref() != Some(resource_version)
            || metadata.uid.as_deref() != Some(uid)
        {
            return Outcome::Conflict;
        }
        self.remove(key);
        Outcome::Done(None)
    }

    fn create(&mut self, object: Object) -> Outcome {
        if self.objects.contains_key(&object.key()) {
            return Outcome::Conflict;
        }
        Outcome::Done(Some(self.put(object)))
    }

    fn replace(&mut self, object: Object, resource_version: &str) -> Outcome {
        let stands = self.objects.get(&object.key());
        let version = stands.and_then(|it| it.metadata().resource_version.as_deref());
        if version != Some(resource_version) {
            return Outcome::Conflict;
        }
        Outcome::Done(Some(self.put(object)))
    }

    /// A pod that is bound is there until its kubelet has ended it.
    fn delete_pod(&mut self, key: &ObjectKey, uid: &str) -> Outcome {
        let Some(Object::Pod(pod)) = self.objects.get(key) else {
            return Outcome::NotFound;
        };
        if pod.metadata.uid.as_deref() != Some(uid) {
            return Outcome::Conflict;
        }
        let mut pod = Pod::clone(pod);
        if pod
            .spec
            .as_ref()
            .is_none_or(|spec| spec.node_name.is_none())
        {
            self.remove(key);
            return Outcome::Done(None);
        }
        pod.metadata.deletion_timestamp = Some(Time(Timestamp::UNIX_EPOCH));
        Outcome::Done(Some(self.put(Object::Pod(Arc::new(pod)))))
    }

    /// Without grace nothing but finalizers keeps a pod.
    fn force_delete_pod(&mut self, key: &ObjectKey, uid: &str, resource_version: &str) -> Outcome {
        let Some(Object::Pod(pod)) = self.objects.get(key) else {
            return Outcome::NotFound;
        };
        if pod.metadata.finalizers.as_ref().is_none_or(Vec::is_empty) {
            return self.delete(key, uid, resource_version);
        }
        let mut pod = Pod::clone(pod);
        if pod.metadata.resource_version.as_deref() != Some(resource_version)
            || pod.metadata.uid.as_deref() != Some(uid)
        {
            return Outcome::Conflict;
        }
        pod.metadata.deletion_grace_period_seconds = Some(0);
        Outcome::Done(Some(self.put(Object::Pod(Arc::new(pod)))))
    }
}

/// The object as a JSON patch leaves it; `None`: a test failed.
fn patched<T: Serialize + DeserializeOwned>(object: &T, patch: &Value) -> Option<T> {
    let mut document = serde_json::to_value(object).unwrap();
    for operation in patch.as_array().unwrap() {
        let pointer = operation["path"].as_str().unwrap();
        if operation["op"] == "test" {
            if document.pointer(pointer) != Some(&operation["value"]) {
                return None;
            }
            continue;
        }
        let (parent, field) = pointer.rsplit_once('/').unwrap();
        let field = field.replace("~1", "/");
        let parent = document.pointer_mut(parent).unwrap();
        match (operation["op"].as_str().unwrap(), parent) {
            ("add", Value::Object(fields)) => {
                fields.insert(field, operation["value"].clone());
            }
            ("add", Value::Array(list)) if field == "-" => list.push(operation["value"].clone()),
            ("remove", Value::Array(list)) => {
                list.remove(field.parse().unwrap());
            }
            ("remove", Value::Object(fields)) => {
                fields.remove(&field).unwrap();
            }
            (other, _) => panic!("{other} at {pointer}"),
        }
    }
    Some(serde_json::from_value(document).unwrap())
}

fn finalizers(any: bool) -> Option<Vec<String>> {
    any.then(|| vec![keys::PERMITS_FINALIZER.to_owned()])
}

fn edit(
    object: &mut Object,
    change: impl FnOnce(&mut k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta),
) {
    macro_rules! metadata {
        ($($kind:ident),*) => {
            match object { $(Object::$kind(object) => &mut Arc::make_mut(object).metadata,)* }
        };
    }
    change(metadata!(
        Cohort,
        DeviceClass,
        DeviceTaintRule,
        Flavor,
        Gang,
        Job,
        Ledger,
        Namespace,
        Node,
        NodeDevices,
        Pod,
        PriorityTier,
        Queue,
        ResourceClaim,
        ResourceSlice,
        Team,
        Topology
    ));
}
