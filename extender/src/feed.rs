//! From the watches into the picture.
//!
//! One channel per kind, so that what happened to one kind is applied in order; between kinds there is no
//! order to keep. Only these tasks write the picture, each its own kind.

use std::{
    fmt::Debug,
    sync::{Arc, PoisonError, RwLock},
};

use k8s_openapi::api::core::v1::{Node, Pod};
use kube::{Api, Client, Resource, core::DeserializeGuard, runtime::watcher};
use muster_api::Gang;
use muster_serve::{
    Program, Shutdown,
    watch::{self, Seen, WatchMetrics},
};
use serde::de::DeserializeOwned;
use tokio::sync::mpsc;

use crate::picture::Picture;

/// Changes of one kind that may wait to be applied.
const QUEUE: usize = 256;

/// The picture behind its lock.
pub type SharedPicture = Arc<RwLock<Picture>>;

/// Starts the watches. The readiness conditions `pods`, `gangs` and `nodes` hold once the first list of
/// each is in the picture.
pub fn spawn(program: &Program, client: &Client) -> SharedPicture {
    let picture = SharedPicture::default();
    let metrics = WatchMetrics::register(&program.metrics);
    feed(program, client, &metrics, &picture, "pods", apply_pod);
    feed(program, client, &metrics, &picture, "gangs", apply_gang);
    feed(program, client, &metrics, &picture, "nodes", apply_node);
    picture
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

fn feed<K>(
    program: &Program,
    client: &Client,
    metrics: &WatchMetrics,
    picture: &SharedPicture,
    name: &'static str,
    apply: fn(&mut Picture, Seen<K>),
) where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug + Send + Sync + 'static,
{
    let (sender, mut seen) = mpsc::channel::<Seen<K>>(QUEUE);
    let delivered = program.readiness.condition(&format!("watch of {name}"));
    let applied = program.readiness.condition(name);
    let api: Api<DeserializeGuard<K>> = Api::all(client.clone());
    let watch = watch::run(
        api,
        watcher::Config::default(),
        metrics.clone(),
        delivered,
        sender,
        |seen| seen,
    );
    spawn_until_stopped(&program.shutdown, name, watch);
    let picture = Arc::clone(picture);
    spawn_until_stopped(&program.shutdown, name, async move {
        while let Some(seen) = seen.recv().await {
            let is_list = matches!(seen, Seen::Listed(_));
            apply(
                &mut picture.write().unwrap_or_else(PoisonError::into_inner),
                seen,
            );
            if is_list {
                applied.set(true);
            }
        }
    });
}

/// Runs a task that ends with the program; if it ends before, the program is of no use.
fn spawn_until_stopped(
    shutdown: &Shutdown,
    name: &'static str,
    task: impl Future<Output = ()> + Send + 'static,
) {
    let token = shutdown.token().clone();
    shutdown.spawn_essential(name, async move {
        let _ = token.run_until_cancelled(task).await;
        Ok::<(), std::convert::Infallible>(())
    });
}
