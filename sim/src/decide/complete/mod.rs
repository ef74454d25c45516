//! What a cluster adds to the objects that a user writes, made up where it is lacking.
//!
//! Everything here is deterministic: a made-up UID is the object's own path, and what has no creation time was created
//! at the latest time that any object names.

mod allocations;
mod defaults;
mod identity;
mod jobs;
mod nodes;
mod pods;
mod running;
mod scheduler_claims;

use std::collections::BTreeMap;

use jiff::Timestamp;
use k8s_openapi::api::resource::v1::ResourceClaimTemplate;
use muster_cluster::object::{Object, ObjectKey};

use super::{Error, read::Objects};
use crate::api_server::{ApiServer, Stored};

pub use defaults::shipped_tiers;
pub(super) use nodes::acknowledge;

/// Objects while they are completed, in the order of their keys.
struct Completed<'a> {
    objects: BTreeMap<ObjectKey, Object>,
    templates: BTreeMap<(String, String), ResourceClaimTemplate>,
    warnings: &'a mut Vec<String>,
}

/// Completes the objects, and stores them. Returns the time at which the cluster is looked at.
pub(super) fn complete(
    objects: Objects,
    api: &mut ApiServer,
    warnings: &mut Vec<String>,
) -> Result<Timestamp, Error> {
    let mut completed = Completed {
        objects: objects.watched,
        templates: objects.templates,
        warnings,
    };
    let now = identity::latest(&completed);
    defaults::add(&mut completed);
    identity::adopt_referred_uids(&mut completed);
    identity::fill(&mut completed, now);
    nodes::complete(&mut completed);
    running::add_members(&mut completed);
    jobs::add_pods(&mut completed)?;
    pods::complete(&mut completed);
    scheduler_claims::add(&mut completed);
    allocations::add(&mut completed);
    nodes::add_node_devices(&mut completed);
    defaults::add_ledger(&mut completed);
    // What was made up has neither UID nor time yet.
    identity::fill(&mut completed, now);
    api.set_time(now);
    for object in completed.objects.into_values() {
        api.restore(object);
    }
    let node_devices: Vec<String> = api
        .list::<muster_api::NodeDevices>()
        .filter_map(|devices| devices.metadata.name.clone())
        .collect();
    for node in node_devices {
        acknowledge(api, &node);
    }
    Ok(now)
}

impl Completed<'_> {
    /// All objects of a type, as they are now.
    fn list<T: Stored>(&self) -> Vec<T> {
        self.objects
            .values()
            .filter_map(|object| T::of(object))
            .map(|object| T::clone(object))
            .collect()
    }

    fn get<T: Stored>(&self, namespace: &str, name: &str) -> Option<&T> {
        let key = crate::api_server::key(T::KIND, namespace, name);
        T::of(self.objects.get(&key)?).map(AsRef::as_ref)
    }

    fn has<T: Stored>(&self, namespace: &str, name: &str) -> bool {
        self.get::<T>(namespace, name).is_some()
    }

    fn put<T: Stored>(&mut self, object: T) {
        let object = object.wrap();
        self.objects.insert(object.key(), object);
    }
}
