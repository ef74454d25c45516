//! From the watches into the cache.

use std::sync::{Arc, RwLock};

use kube::Client;
use muster_serve::{Program, mirror::Mirror, watch::WatchEvent};

use crate::{
    cache::Cache,
    slim::{SlimGang, SlimNode, SlimPod},
};

/// The cache behind its lock.
pub type SharedCache = Arc<RwLock<Cache>>;

/// Starts the watches. The readiness conditions `pods`, `gangs` and `nodes` hold once the first list of
/// each is in the cache.
pub fn spawn(program: &Program, client: Client) -> SharedCache {
    let cache = Mirror::new(program, client);
    cache.keep("pods", apply_pod);
    cache.keep("gangs", apply_gang);
    cache.keep("nodes", apply_node);
    cache.shared()
}

fn apply_pod(cache: &mut Cache, seen: WatchEvent<SlimPod>) {
    match seen {
        WatchEvent::Applied(pod) => cache.pod_is(&pod),
        WatchEvent::Deleted(pod) => cache.pod_gone(&pod),
        WatchEvent::Listed(pods) => cache.pods_are(&pods),
    }
}

fn apply_gang(cache: &mut Cache, seen: WatchEvent<SlimGang>) {
    match seen {
        WatchEvent::Applied(gang) => cache.gang_is(&gang),
        WatchEvent::Deleted(gang) => cache.gang_gone(&gang),
        WatchEvent::Listed(gangs) => cache.gangs_are(&gangs),
    }
}

fn apply_node(cache: &mut Cache, seen: WatchEvent<SlimNode>) {
    match seen {
        WatchEvent::Applied(node) => cache.node_is(&node),
        WatchEvent::Deleted(node) => cache.node_gone(&node),
        WatchEvent::Listed(nodes) => cache.nodes_are(&nodes),
    }
}
