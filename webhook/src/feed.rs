//! From the watches into the facts.
//!
//! One channel per kind, so that what happened to one kind is applied in order; between kinds there is no
//! order to keep. Only these tasks write the facts, each its own kind.

use std::{
    fmt::Debug,
    sync::{Arc, PoisonError, RwLock},
};

use k8s_openapi::api::core::v1::Namespace;
use kube::{Api, Client, Resource, core::DeserializeGuard, runtime::watcher};
use muster_api::{Cohort, PriorityTier, Team, Topology};
use muster_serve::{
    Program, Shutdown,
    watch::{self, Seen, WatchMetrics},
};
use serde::de::DeserializeOwned;
use tokio::sync::mpsc;

use crate::facts::{Fact, Facts};

/// Changes of one kind that may wait to be applied.
const QUEUE: usize = 256;

/// The facts behind their lock.
pub type SharedFacts = Arc<RwLock<Facts>>;

/// Starts the watches. A readiness condition per kind holds once its first list is in the facts.
pub fn spawn(program: &Program, client: &Client) -> SharedFacts {
    let facts = SharedFacts::default();
    let metrics = WatchMetrics::register(&program.metrics);
    feed::<Namespace>(program, client, &metrics, &facts, "namespaces");
    feed::<Team>(program, client, &metrics, &facts, "teams");
    feed::<Cohort>(program, client, &metrics, &facts, "cohorts");
    feed::<PriorityTier>(program, client, &metrics, &facts, "prioritytiers");
    feed::<Topology>(program, client, &metrics, &facts, "topologies");
    facts
}

fn feed<K>(
    program: &Program,
    client: &Client,
    metrics: &WatchMetrics,
    facts: &SharedFacts,
    name: &'static str,
) where
    K: Fact + Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug + Send + Sync + 'static,
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
    let facts = Arc::clone(facts);
    spawn_until_stopped(&program.shutdown, name, async move {
        while let Some(seen) = seen.recv().await {
            let is_list = matches!(seen, Seen::Listed(_));
            apply(
                &mut facts.write().unwrap_or_else(PoisonError::into_inner),
                seen,
            );
            if is_list {
                applied.set(true);
            }
        }
    });
}

fn apply<K: Fact>(facts: &mut Facts, seen: Seen<K>) {
    match seen {
        Seen::Applied(object) => object.is(facts),
        Seen::Gone(metadata) => K::gone(facts, metadata.name.as_deref().unwrap_or_default()),
        Seen::Listed(objects) => {
            K::none(facts);
            for object in &objects {
                object.is(facts);
            }
        }
    }
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
