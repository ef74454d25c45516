//! One watched kind as a stream of changes and whole lists.
//!
//! What kube's watcher leaves to its users is done here: a list is passed on whole, when it is complete, so
//! that nobody decides on half of one; an object that cannot be decoded costs that object, not the watch, and
//! is never taken for gone; a failing watch is retried with back-off and its age is a metric; `managedFields`
//! are dropped.

mod decoder;
#[cfg(test)]
mod tests;

use std::fmt::Debug;

use decoder::WatchDecoder;
use futures::{Stream, StreamExt};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::{
    Api, Resource,
    core::DeserializeGuard,
    runtime::{
        WatchStreamExt,
        watcher::{self, Event},
    },
};
use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family, gauge::Gauge},
};
use serde::de::DeserializeOwned;
use tokio::sync::mpsc;

use crate::{metrics::Metrics, readiness::Condition};

/// What is seen of a kind.
#[derive(Clone, Debug, PartialEq)]
pub enum WatchEvent<K> {
    /// The object is as given: added or modified.
    Applied(K),
    /// The object with this metadata is gone.
    Deleted(Box<ObjectMeta>),
    /// The whole list: what is not in it is gone. First of all, and after every gap of the watch.
    Listed(Vec<K>),
}

/// What an object that cannot be decoded means, while it was not seen before. (One that was seen counts as last seen,
/// never as gone.) It is told in the log and counted in a metric in any case.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Undecodable {
    /// It is left out: right for those who answer about one object at a time, and refuse what they do not know.
    IsLeftOut,
    /// The first list is not told, and the kind not synced, before all of it can be decoded: right for those who
    /// conclude something from what is not there.
    HoldsTheListBack,
}

/// Metrics of all watches of a program.
#[derive(Clone, Debug)]
pub struct WatchMetrics {
    stale_seconds: Family<KindLabel, Gauge>,
    errors: Family<KindLabel, Counter>,
    undecodable: Family<KindLabel, Gauge>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct KindLabel {
    kind: String,
}

impl WatchMetrics {
    /// Registers the metrics; once per program.
    pub fn register(metrics: &Metrics) -> Self {
        let watch = Self {
            stale_seconds: Family::default(),
            errors: Family::default(),
            undecodable: Family::default(),
        };
        metrics.register(|registry| {
            let registry = registry.sub_registry_with_prefix("watch");
            registry.register(
                "stale_seconds",
                "For how long the watch of a kind has been failing; 0: it works",
                watch.stale_seconds.clone(),
            );
            registry.register(
                "errors",
                "Failures of the watch of a kind",
                watch.errors.clone(),
            );
            registry.register(
                "undecodable_objects",
                "Objects of a kind that cannot be decoded now",
                watch.undecodable.clone(),
            );
        });
        watch
    }
}

/// Watches a kind until the receiver is dropped; returns then. `map` turns what is seen into the messages of
/// the channel, which several watches may share. `synced` holds from when the first whole list has been handed
/// to the channel. What cannot be decoded is left out of that list.
///
/// The channel should be bounded: a consumer that is slow slows the watch down, which the API server copes
/// with by a new list.
pub async fn run<K, M>(
    api: Api<DeserializeGuard<K>>,
    config: watcher::Config,
    metrics: WatchMetrics,
    synced: Condition,
    sender: mpsc::Sender<M>,
    map: impl Fn(WatchEvent<K>) -> M + Send,
) where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug + Send + 'static,
    M: Send,
{
    let events = kube::runtime::watcher(api, config).default_backoff();
    let sight = WatchDecoder::new(Undecodable::IsLeftOut, &metrics, synced);
    pump(events, sight, sender, map).await;
}

/// The same for those who conclude something from what is not there: the first list is not told, and `synced` does not
/// hold, before all of it can be decoded.
pub async fn run_whole<K, M>(
    api: Api<DeserializeGuard<K>>,
    config: watcher::Config,
    metrics: WatchMetrics,
    synced: Condition,
    sender: mpsc::Sender<M>,
    map: impl Fn(WatchEvent<K>) -> M + Send,
) where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug + Send + 'static,
    M: Send,
{
    let events = kube::runtime::watcher(api, config).default_backoff();
    let sight = WatchDecoder::new(Undecodable::HoldsTheListBack, &metrics, synced);
    pump(events, sight, sender, map).await;
}

async fn pump<K, M>(
    events: impl Stream<Item = watcher::Result<Event<DeserializeGuard<K>>>> + Send,
    mut sight: WatchDecoder<K>,
    sender: mpsc::Sender<M>,
    map: impl Fn(WatchEvent<K>) -> M + Send,
) where
    K: Resource<DynamicType = ()> + Send,
    M: Send,
{
    let mut events = std::pin::pin!(events);
    while let Some(event) = tokio::select! {
        event = events.next() => event,
        () = sender.closed() => None,
    } {
        let seen = match event {
            Ok(event) => sight.take(event),
            Err(error) => {
                sight.failed(&error);
                continue;
            }
        };
        for seen in seen {
            if sender.send(map(seen)).await.is_err() {
                return;
            }
        }
        sight.handed_over();
    }
}
