//! One watched kind as a stream of changes and whole lists.
//!
//! What kube's watcher leaves to its users is done here: nobody concludes anything from half a list; an object that
//! cannot be decoded costs that object at most, and not the watch ([`decoded`]); a failing watch is retried with
//! back-off, also one whose list is refused ([`retries`]), and its age is a metric; of `managedFields` only who set
//! `spec.suspend` is kept ([`managed_fields`]).
//!
//! There are two ways to be told: [`run`] tells lists whole, [`run_streamed`] object by object.
//!
//! Lists come in pages of 500 (kube's default), each dropped before the next is asked for. A page whose continue token
//! has expired (410) begins the list again: a list of two points in time is none.

pub mod decoded;
mod decoder;
mod health;
pub mod managed_fields;
mod of_kind;
pub mod retries;
mod streamed;
#[cfg(test)]
mod tests;
mod too_deep;

use std::fmt::Debug;

pub use decoded::Decoded;
use decoder::WatchDecoder;
use futures::{Stream, StreamExt};
use health::AgeGauge;
pub use health::WatchHealth;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::{
    Api, Resource,
    runtime::watcher::{self, Event},
};
use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family, gauge::Gauge},
};
use serde::de::DeserializeOwned;
use streamed::StreamDecoder;
pub use streamed::{StreamEvent, Taken};
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

/// What an object of a kind is called.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ObjectName {
    /// Namespace; empty for cluster-scoped kinds.
    pub namespace: String,
    /// Name.
    pub name: String,
}

/// From the events of kube's watcher to what is reported to a consumer.
trait Decode<K> {
    type Told;

    /// What is reported to the consumer of an event.
    fn take(&mut self, event: Event<Decoded<K>>) -> Vec<Self::Told>;

    /// The watch failed, and goes on. Returns what is reported to the consumer all the same.
    fn failed(&mut self, error: &watcher::Error) -> Vec<Self::Told> {
        self.health().failed(error);
        Vec::new()
    }

    /// What was taken last is in the channel.
    fn handed_over(&mut self);

    fn health(&mut self) -> &mut WatchHealth;
}

/// Metrics of all watches of a program.
#[derive(Clone, Debug)]
pub struct WatchMetrics {
    stale_seconds: Family<KindLabel, AgeGauge>,
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

/// Watches a kind until the receiver is dropped; returns then. `map` turns what is seen into the messages of the
/// channel, which several watches may share. `synced` holds from when the first whole list has been handed to the
/// channel.
///
/// What cannot be decoded as a whole is left out: right for those who answer about one object at a time and refuse what
/// they do not know. Whoever concludes something from what is not there uses [`run_streamed`].
///
/// The channel should be bounded: a consumer that is slow slows the watch down, which the API server copes with by a
/// new list.
pub async fn run<K, M>(
    api: Api<Decoded<K>>,
    config: watcher::Config,
    metrics: WatchMetrics,
    synced: Condition,
    sender: mpsc::Sender<M>,
    map: impl Fn(WatchEvent<K>) -> M + Send,
) where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug + Send + 'static,
    M: Send,
{
    let events = retries::events(api, config);
    let decoder = WatchDecoder::new(WatchHealth::new::<K>(&metrics, synced));
    pump(events, decoder, sender, map).await;
}

/// The same, told object by object: `take_over` is called as soon as an object is received, so nothing is ever held but
/// what it returns, and it decides what replaces an object that cannot be decoded.
pub async fn run_streamed<K, T, M>(
    api: Api<Decoded<K>>,
    config: watcher::Config,
    metrics: WatchMetrics,
    synced: Condition,
    sender: mpsc::Sender<M>,
    take_over: impl Fn(Decoded<K>) -> Taken<T> + Send,
    map: impl Fn(StreamEvent<T>) -> M + Send,
) where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug + Send + 'static,
    T: Send,
    M: Send,
{
    let events = retries::events(api, config);
    let decoder = StreamDecoder::new(take_over, WatchHealth::new::<K>(&metrics, synced));
    pump(events, decoder, sender, map).await;
}

/// The same for a kind that the API server may do without: while it does not serve the kind, that is reported as a list of nothing,
/// once, and not as a failure. The watch goes on asking, with back-off, so the kind is seen within a minute after it is served.
pub async fn run_streamed_if_served<K, T, M>(
    api: Api<Decoded<K>>,
    config: watcher::Config,
    metrics: WatchMetrics,
    synced: Condition,
    sender: mpsc::Sender<M>,
    take_over: impl Fn(Decoded<K>) -> Taken<T> + Send,
    map: impl Fn(StreamEvent<T>) -> M + Send,
) where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug + Send + 'static,
    T: Send,
    M: Send,
{
    let events = retries::events(api, config);
    let health = WatchHealth::new::<K>(&metrics, synced);
    let decoder = StreamDecoder::new(take_over, health).of_optional_kind();
    pump(events, decoder, sender, map).await;
}

/// Whether the API server says that it does not serve what is watched.
fn is_not_served(error: &watcher::Error) -> bool {
    use watcher::Error::{InitialListFailed, WatchStartFailed};
    let (InitialListFailed(error) | WatchStartFailed(error)) = error else {
        return false;
    };
    matches!(error, kube::Error::Api(status) if status.code == 404)
}

async fn pump<K, D, M>(
    events: impl Stream<Item = watcher::Result<Event<Decoded<K>>>> + Send,
    mut decoder: D,
    sender: mpsc::Sender<M>,
    map: impl Fn(D::Told) -> M + Send,
) where
    D: Decode<K>,
{
    let mut events = std::pin::pin!(events);
    while let Some(event) = tokio::select! {
        event = events.next() => event,
        () = sender.closed() => None,
    } {
        let told = match event {
            Ok(event) => decoder.take(event),
            Err(error) => decoder.failed(&error),
        };
        for told in told {
            if sender.send(map(told)).await.is_err() {
                return;
            }
        }
        decoder.handed_over();
    }
}

fn name(metadata: &ObjectMeta) -> ObjectName {
    ObjectName {
        namespace: metadata.namespace.clone().unwrap_or_default(),
        name: metadata.name.clone().unwrap_or_default(),
    }
}
