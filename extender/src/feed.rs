//! From the watches into the picture.

use std::sync::{Arc, RwLock};

use k8s_openapi::api::core::v1::{Node, Pod};
use kube::Client;
use muster_api::Gang;
use muster_serve::{Program, mirror::Mirror, watch::Seen};

use crate::picture::Picture;

/// The picture behind its lock.
pub type SharedPicture = Arc<RwLock<Picture>>;

/// Starts the watches. The readiness conditions `pods`, `gangs` and `nodes` hold once the first list of
/// each is in the picture.
pub fn spawn(program: &Program, client: Client) -> SharedPicture {
    let picture = Mirror::new(program, client);
    picture.keep("pods", apply_pod);
    picture.keep("gangs", apply_gang);
    picture.keep("nodes", apply_node);
    picture.shared()
}

fn apply_pod(picture: &mut Picture, seen: Seen<Pod>) {
    match seen {
        Seen::Applied(pod) => picture.pod_is(&pod),
        Seen::Gone(pod) => picture.pod_gone(&pod),
        Seen::Listed(pods) => picture.pods_are(&pods),
    }
}

fn apply_gang(picture: &mut Picture, seen: Seen<Gang>) {
    match seen {
        Seen::Applied(gang) => picture.gang_is(&gang),
        Seen::Gone(gang) => picture.gang_gone(&gang),
        Seen::Listed(gangs) => picture.gangs_are(&gangs),
    }
}

fn apply_node(picture: &mut Picture, seen: Seen<Node>) {
    match seen {
        Seen::Applied(node) => picture.node_is(&node),
        Seen::Gone(node) => picture.node_gone(&node),
        Seen::Listed(nodes) => picture.nodes_are(&nodes),
    }
}
