//! From the watches into the facts.

use std::sync::{Arc, RwLock};

use k8s_openapi::api::{
    core::v1::Namespace,
    resource::v1::{DeviceClass, ResourceClaim, ResourceClaimTemplate, ResourceSlice},
};
use kube::{Client, runtime::watcher};
use muster_api::{Cohort, Flavor, PriorityTier, Team, Topology, keys};
use muster_serve::{Program, mirror::Mirror, watch::WatchEvent};

use crate::{
    cache::{Cache, Cached},
    claims::Asked,
};

/// The facts behind their lock.
pub type SharedCache = Arc<RwLock<Cache>>;

/// Starts the watches. A readiness condition per kind holds once its first list is in the facts.
pub fn spawn(program: &Program, client: Client) -> SharedCache {
    let facts = Mirror::new(program, client);
    facts.keep::<Namespace>("namespaces", apply);
    facts.keep::<Team>("teams", apply);
    facts.keep::<Cohort>("cohorts", apply);
    facts.keep::<Flavor>("flavors", apply);
    facts.keep::<PriorityTier>("prioritytiers", apply);
    facts.keep::<Topology>("topologies", apply);
    let of_our_driver = format!("spec.driver={}", keys::DRIVER);
    let of_our_driver = watcher::Config::default().fields(&of_our_driver);
    facts.keep_those::<ResourceSlice>("resourceslices", of_our_driver, apply);
    facts.keep::<DeviceClass>("deviceclasses", apply);
    facts.keep::<Asked<ResourceClaimTemplate>>("resourceclaimtemplates", apply);
    facts.keep::<Asked<ResourceClaim>>("resourceclaims", apply);
    facts.shared()
}

fn apply<K: Cached>(facts: &mut Cache, seen: WatchEvent<K>) {
    match seen {
        WatchEvent::Applied(object) => object.is(facts),
        WatchEvent::Deleted(metadata) => {
            K::gone(facts, &metadata);
        }
        WatchEvent::Listed(objects) => {
            K::none(facts);
            for object in &objects {
                object.is(facts);
            }
        }
    }
}
