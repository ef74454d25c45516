//! From the watches into the picture.

use std::sync::{Arc, RwLock};

use kube::Client;
use muster_serve::{Program, mirror::Mirror, watch::WatchEvent};

use crate::{
    cache::Cache,
    slim::{SlimGang, SlimNode, SlimPod},
};

/// The picture behind its lock.
pub type SharedPicture = Arc<RwLock<Cache>>;

/// Starts the watches. The readiness conditions `pods`, `gangs` and `nodes` hold once the first list of
/// each is in the picture.
pub fn spawn(program: &Program, client: Client) -> SharedPicture {
    let picture = Mirror::new(program, client);
    picture.keep("pods", apply_pod);
    picture.keep("gangs", apply_gang);
    picture.keep("nodes", apply_node);
    picture.shared()
}

fn apply_pod(picture: &mut Cache, seen: WatchEvent<SlimPod>) {
    match seen {
        WatchEvent::Applied(pod) => picture.pod_is(&pod),
        WatchEvent::Deleted(pod) => picture.pod_gone(&pod),
        WatchEvent::Listed(pods) => picture.pods_are(&pods),
    }
}

fn apply_gang(picture: &mut Cache, seen: WatchEvent<SlimGang>) {
    match seen {
        WatchEvent::Applied(gang) => picture.gang_is(&gang),
        WatchEvent::Deleted(gang) => picture.gang_gone(&gang),
        WatchEvent::Listed(gangs) => picture.gangs_are(&gangs),
    }
}

fn apply_node(picture: &mut Cache, seen: WatchEvent<SlimNode>) {
    match seen {
        WatchEvent::Applied(node) => picture.node_is(&node),
        WatchEvent::Deleted(node) => picture.node_gone(&node),
        WatchEvent::Listed(nodes) => picture.nodes_are(&nodes),
    }
}
