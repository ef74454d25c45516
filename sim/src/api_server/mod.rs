//! A fake API server: objects of the real types, and what the protocols rely on.
//!
//! * every change raises one **resourceVersion** for all kinds, and a write that changes nothing none;
//! * `metadata.generation` is raised by a change of the spec and by a deletion that has to wait, and a status has a
//!   write of its own;
//! * a precondition (UID, resourceVersion) that does not hold fails the write with a conflict;
//! * a **finalizer** keeps a deleted object until it is taken; a bound pod stays until its kubelet lets go;
//! * of `metadata.managedFields` it keeps who set `spec.suspend` of a Job: whoever gives it another value owns it alone, as with
//!   every update that is not applied server-side;
//! * a **watch** is a place in the log of one kind: who reads it slowly, lags. One that breaks off goes on where it was,
//!   unless the history was **compacted** meanwhile: then it is answered 410 Gone, and lists again. (A connected watch is
//!   served from memory, and bookmarks keep it from falling behind by being quiet.)
//!
//! Clients that speak to it by requests are answered in [`rest`].
//!
//! It is linearisable and never loses anything. What can go wrong between it and its clients (lost answers,
//! late writes, lagging caches) is theirs to simulate.

mod informer;
mod log;
pub mod rest;
mod stored;
pub(crate) mod validation;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use jiff::Timestamp;
use k8s_openapi::api::{batch::v1::Job, core::v1::Pod};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{
    FieldsV1, ManagedFieldsEntry, OwnerReference, Time,
};
use muster_cluster::object::{Kind, Object, ObjectKey};
use serde_json::json;

pub use informer::Informer;
use log::Log;
pub use log::{Event, Place};
pub use stored::Stored;
pub(crate) use stored::metadata_mut;

/// Grace of a deleted pod that runs.
const GRACE_SECONDS: i64 = 30;

/// Why a write was not done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Failure {
    /// A precondition does not hold, or the object exists already.
    Conflict,
    /// There is no such object.
    NotFound,
    /// The API server will never accept that.
    Refused(String),
}

/// What must hold for a write to be done.
#[derive(Clone, Copy, Debug, Default)]
pub struct Precondition<'a> {
    /// The object's UID.
    pub uid: Option<&'a str>,
    /// The object's resourceVersion.
    pub resource_version: Option<&'a str>,
}

impl<'a> Precondition<'a> {
    /// The object with this UID, whatever its state.
    pub fn uid(uid: &'a str) -> Self {
        Self {
            uid: Some(uid),
            resource_version: None,
        }
    }

    /// The object with this UID, as it was when it had this resourceVersion.
    pub fn exactly(uid: &'a str, resource_version: &'a str) -> Self {
        Self {
            uid: Some(uid),
            resource_version: Some(resource_version),
        }
    }

    /// The object as it was when it had this resourceVersion.
    pub fn as_seen(resource_version: Option<&'a String>) -> Self {
        Self {
            uid: None,
            resource_version: resource_version.map(String::as_str),
        }
    }
}

/// The fake API server.
#[derive(Debug, Default)]
pub struct ApiServer {
    now: Timestamp,
    revision: u64,
    uids: u64,
    objects: BTreeMap<ObjectKey, Object>,
    /// UIDs of all objects, those of kinds that are not kept here included.
    known_uids: BTreeSet<String>,
    log: Log,
    /// Whose writes come in; nobody's in particular by default.
    field_manager: &'static str,
}

/// The key of an object.
pub fn key(kind: Kind, namespace: &str, name: &str) -> ObjectKey {
    ObjectKey {
        kind,
        namespace: namespace.to_owned(),
        name: name.to_owned(),
    }
}

impl ApiServer {
    /// Sets the time of day, for creation and deletion times.
    pub fn set_time(&mut self, now: Timestamp) {
        self.now = now;
    }

    /// The time of day.
    pub fn time(&self) -> Timestamp {
        self.now
    }

    /// Whose writes come in from now on; returns whose came before.
    pub fn hear(&mut self, field_manager: &'static str) -> &'static str {
        std::mem::replace(&mut self.field_manager, field_manager)
    }

    /// There is an object of a kind that is not kept here: what it owns is no garbage.
    pub fn know(&mut self, uid: &str) {
        self.known_uids.insert(uid.to_owned());
    }

    /// An object of a kind that is not kept here is gone, and what it owns is garbage.
    pub fn forget(&mut self, uid: &str) {
        self.known_uids.remove(uid);
    }

    /// Number of changes so far.
    pub fn revision(&self) -> u64 {
        self.revision
    }

    /// An object, whatever its kind.
    pub fn object(&self, key: &ObjectKey) -> Option<&Object> {
        self.objects.get(key)
    }

    /// An object; the namespace is empty for a cluster-scoped one.
    pub fn get<T: Stored>(&self, namespace: &str, name: &str) -> Option<&T> {
        let object = self.objects.get(&key(T::KIND, namespace, name))?;
        T::of(object).map(AsRef::as_ref)
    }

    /// All objects of a type, in the order of namespace and name.
    pub fn list<'a, T: Stored + 'a>(&'a self) -> impl Iterator<Item = &'a T> {
        self.objects(T::KIND)
            .filter_map(|object| T::of(object).map(AsRef::as_ref))
    }

    /// All objects of a kind, in the order of namespace and name.
    pub fn objects(&self, kind: Kind) -> impl Iterator<Item = &Object> {
        self.objects
            .range(key(kind, "", "")..)
            .take_while(move |(key, _)| key.kind == kind)
            .map(|(_, object)| object)
    }

    /// The pod with that UID.
    pub fn pod_by_uid(&self, uid: &str) -> Option<&Pod> {
        self.list::<Pod>()
            .find(|pod| pod.metadata.uid.as_deref() == Some(uid))
    }

    /// Stores a new object. Name and namespace are given; UID, version and generation are not.
    pub fn create<T: Stored>(&mut self, object: T) -> Result<Object, Failure> {
        let mut object = object.wrap();
        let key = object.key();
        if self.objects.contains_key(&key) {
            return Err(Failure::Conflict);
        }
        self.uids += 1;
        let uid = format!("{:?}-{}", key.kind, self.uids).to_lowercase();
        let now = self.now;
        let metadata = metadata_mut(&mut object);
        metadata.uid = Some(uid);
        metadata.generation = Some(1);
        metadata.creation_timestamp = Some(Time(now));
        Ok(self.store(key, object))
    }

    /// Stores an object as it was stored before, in another API server say: its UID, generation and times are its own.
    pub fn restore(&mut self, object: Object) {
        let key = object.key();
        self.store(key, object);
    }

    /// Changes an object in place, as one write. Both spec and status may be changed: which of them a client may
    /// is the caller's to know.
    pub fn update<T: Stored>(
        &mut self,
        namespace: &str,
        name: &str,
        precondition: Precondition<'_>,
        change: impl FnOnce(&mut T),
    ) -> Result<Object, Failure> {
        let key = key(T::KIND, namespace, name);
        let current = self.check(&key, precondition)?;
        let Some(before) = T::of(current) else {
            return Err(Failure::NotFound);
        };
        let mut after = T::clone(before);
        change(&mut after);
        let same_spec = after.same_spec(before);
        if same_spec && after.same_status(before) && after.metadata() == before.metadata() {
            return Ok(current.clone());
        }
        if !same_spec {
            let generation = before.metadata().generation.unwrap_or_default();
            after.metadata_mut().generation = Some(generation + 1);
        }
        let mut after = after.wrap();
        if let (Object::Job(after), Some(before)) = (&mut after, Job::of(current)) {
            note_suspender(before, after, self.field_manager);
        }
        Ok(self.store(key, after))
    }

    /// Deletes an object. A bound pod that has not ended is only marked, for its kubelet to let go; so is
    /// whatever has a finalizer.
    pub fn delete(
        &mut self,
        key: &ObjectKey,
        precondition: Precondition<'_>,
    ) -> Result<(), Failure> {
        let current = self.check(key, precondition)?;
        let graceful = Pod::of(current).is_some_and(|pod| is_bound(pod) && !has_ended(pod));
        let grace = if graceful { GRACE_SECONDS } else { 0 };
        self.delete_with_grace(key, precondition, grace)
    }

    /// Deletes an object without grace, as `--grace-period=0 --force` does and as a kubelet does when it is done.
    /// Finalizers hold all the same.
    pub fn delete_now(
        &mut self,
        key: &ObjectKey,
        precondition: Precondition<'_>,
    ) -> Result<(), Failure> {
        self.delete_with_grace(key, precondition, 0)
    }

    // As Kubernetes does, a deletion that only marks the object raises its generation.
    fn delete_with_grace(
        &mut self,
        key: &ObjectKey,
        precondition: Precondition<'_>,
        grace_seconds: i64,
    ) -> Result<(), Failure> {
        let mut object = self.check(key, precondition)?.clone();
        let now = self.now;
        let metadata = metadata_mut(&mut object);
        let is_shorter = metadata
            .deletion_grace_period_seconds
            .is_none_or(|current| grace_seconds < current);
        if metadata.deletion_timestamp.is_some() && !is_shorter {
            return Ok(());
        }
        if metadata.deletion_timestamp.is_none() {
            metadata.deletion_timestamp = Some(Time(now));
            metadata.generation = metadata.generation.map(|generation| generation + 1);
        }
        metadata.deletion_grace_period_seconds = Some(grace_seconds);
        self.store(key.clone(), object);
        Ok(())
    }

    fn check(&self, key: &ObjectKey, precondition: Precondition<'_>) -> Result<&Object, Failure> {
        let object = self.objects.get(key).ok_or(Failure::NotFound)?;
        let metadata = object.metadata();
        let holds = |wanted: Option<&str>, is: Option<&String>| {
            wanted.is_none_or(|wanted| is.is_some_and(|is| is == wanted))
        };
        if holds(precondition.uid, metadata.uid.as_ref())
            && holds(
                precondition.resource_version,
                metadata.resource_version.as_ref(),
            )
        {
            Ok(object)
        } else {
            Err(Failure::Conflict)
        }
    }

    /// Stores a new state. What is deleted and has nothing left to wait for goes.
    fn store(&mut self, key: ObjectKey, mut object: Object) -> Object {
        self.revision += 1;
        let version = self.revision.to_string();
        metadata_mut(&mut object).resource_version = Some(version);
        let metadata = object.metadata();
        let is_deleted = metadata.deletion_timestamp.is_some()
            && metadata.deletion_grace_period_seconds.unwrap_or(0) == 0
            && metadata.finalizers.as_ref().is_none_or(Vec::is_empty);
        let uid = metadata.uid.clone().unwrap_or_default();
        if is_deleted {
            self.objects.remove(&key);
            self.known_uids.remove(&uid);
            self.log.append(self.revision, key, None);
        } else {
            self.known_uids.insert(uid);
            self.objects.insert(key.clone(), object.clone());
            self.log.append(self.revision, key, Some(object.clone()));
        }
        object
    }

    /// Keeps what another API server told, unless something newer is kept already.
    fn mirror(&mut self, revision: u64, key: &ObjectKey, object: Option<&Object>) {
        let known = self
            .objects
            .get(key)
            .and_then(|known| known.metadata().resource_version.as_ref()?.parse().ok());
        if known.is_some_and(|known: u64| known > revision) {
            return;
        }
        match object {
            Some(object) => {
                self.objects.insert(key.clone(), object.clone());
            }
            None => {
                self.objects.remove(key);
            }
        }
    }

    /// The history up to now is compacted: a watch that broke off before cannot go on from where it was.
    pub fn compact(&mut self) {
        self.log.compact();
    }

    /// Whether a watch that broke off here is answered 410 Gone, and has to list again.
    pub fn is_gone(&self, place: Place) -> bool {
        self.log.is_compacted(place)
    }

    /// A watch of a kind that begins now.
    pub fn watch(&self, kind: Kind) -> Place {
        self.log.end(kind)
    }

    /// All that a watch has yet to be told.
    pub fn events_from(&self, place: Place) -> impl Iterator<Item = &Event> {
        self.log.from(place)
    }

    /// What a watch has next; `None` if it is up to date.
    pub fn next_event(&self, place: Place) -> Option<&Event> {
        self.log.at(place)
    }

    /// Objects whose owners are all gone: the garbage collector deletes them.
    pub fn garbage(&self) -> Vec<ObjectKey> {
        let orphaned = |owners: &Vec<OwnerReference>| {
            !owners.is_empty()
                && !owners
                    .iter()
                    .any(|owner| self.known_uids.contains(owner.uid.as_str()))
        };
        self.objects
            .iter()
            .filter(|(_, object)| object.metadata().deletion_timestamp.is_none())
            .filter(|(_, object)| {
                object
                    .metadata()
                    .owner_references
                    .as_ref()
                    .is_some_and(orphaned)
            })
            .map(|(key, _)| key.clone())
            .collect()
    }
}

fn note_suspender(before: &Job, after: &mut Arc<Job>, manager: &str) {
    let suspend = |job: &Job| job.spec.as_ref().and_then(|spec| spec.suspend);
    if suspend(before) == suspend(after) {
        return;
    }
    Arc::make_mut(after).metadata.managed_fields = Some(vec![ManagedFieldsEntry {
        manager: Some(manager.to_owned()),
        operation: Some("Update".to_owned()),
        fields_type: Some("FieldsV1".to_owned()),
        fields_v1: Some(FieldsV1(json!({"f:spec": {"f:suspend": {}}}))),
        ..ManagedFieldsEntry::default()
    }]);
}

/// Whether the pod has a node.
pub fn is_bound(pod: &Pod) -> bool {
    node_of(pod).is_some()
}

/// The node of a pod.
pub fn node_of(pod: &Pod) -> Option<&str> {
    pod.spec.as_ref()?.node_name.as_deref()
}

/// Whether the pod's phase is terminal.
pub fn has_ended(pod: &Pod) -> bool {
    matches!(
        pod.status
            .as_ref()
            .and_then(|status| status.phase.as_deref()),
        Some("Succeeded" | "Failed")
    )
}

#[cfg(test)]
mod tests;
