//! One watched kind as a stream of changes and whole lists.
//!
//! What kube's watcher leaves to its users is done here: a list is passed on whole, when it is complete, so
//! that nobody decides on half of one; an object that cannot be decoded costs that object, not the watch; a
//! failing watch is retried with back-off and its age is a metric; `managedFields` are dropped.

use std::fmt::Debug;

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
use tokio::{sync::mpsc, time::Instant};

use crate::{metrics::Metrics, readiness::Condition};

/// What is seen of a kind.
#[derive(Clone, Debug, PartialEq)]
pub enum Seen<K> {
    /// The object is as given: added or modified.
    Applied(K),
    /// The object with this metadata is gone.
    Gone(Box<ObjectMeta>),
    /// The whole list: what is not in it is gone. First of all, and after every gap of the watch.
    Listed(Vec<K>),
}

/// Metrics of all watches of a program.
#[derive(Clone, Debug)]
pub struct WatchMetrics {
    stale_seconds: Family<KindLabel, Gauge>,
    errors: Family<KindLabel, Counter>,
    undecodable: Family<KindLabel, Counter>,
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
                "Objects of a kind that were left out because they could not be decoded",
                watch.undecodable.clone(),
            );
        });
        watch
    }
}

/// Watches a kind until the receiver is dropped; returns then. `map` turns what is seen into the messages of
/// the channel, which several watches may share. `synced` holds from when the first whole list has been handed
/// to the channel.
///
/// The channel should be bounded: a consumer that is slow slows the watch down, which the API server copes
/// with by a new list.
pub async fn run<K, M>(
    api: Api<DeserializeGuard<K>>,
    config: watcher::Config,
    metrics: WatchMetrics,
    synced: Condition,
    sender: mpsc::Sender<M>,
    map: impl Fn(Seen<K>) -> M + Send,
) where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug + Send + 'static,
    M: Send,
{
    let events = kube::runtime::watcher(api, config).default_backoff();
    pump(events, metrics, synced, sender, map).await;
}

async fn pump<K, M>(
    events: impl Stream<Item = watcher::Result<Event<DeserializeGuard<K>>>> + Send,
    metrics: WatchMetrics,
    synced: Condition,
    sender: mpsc::Sender<M>,
    map: impl Fn(Seen<K>) -> M + Send,
) where
    K: Resource<DynamicType = ()> + Send,
    M: Send,
{
    let label = KindLabel {
        kind: K::kind(&()).into_owned(),
    };
    let mut decoder = Decoder {
        undecodable: metrics.undecodable.get_or_create_owned(&label),
    };
    let stale_seconds = metrics.stale_seconds.get_or_create_owned(&label);
    let errors = metrics.errors.get_or_create_owned(&label);
    let mut failing_since: Option<Instant> = None;
    let mut list = Vec::new();
    let mut events = std::pin::pin!(events);
    while let Some(event) = tokio::select! {
        event = events.next() => event,
        () = sender.closed() => None,
    } {
        let event = match event {
            Ok(event) => {
                failing_since = None;
                stale_seconds.set(0);
                event
            }
            Err(error) => {
                let since = *failing_since.get_or_insert_with(Instant::now);
                let seconds = since.elapsed().as_secs();
                stale_seconds.set(i64::try_from(seconds).unwrap_or(i64::MAX));
                errors.inc();
                tracing::warn!(kind = label.kind, seconds, %error, "watch fails");
                continue;
            }
        };
        let is_list = matches!(event, Event::InitDone);
        let seen = match event {
            Event::Init => {
                list.clear();
                None
            }
            Event::InitApply(object) => {
                list.extend(decoder.decode(object));
                None
            }
            Event::InitDone => Some(Seen::Listed(std::mem::take(&mut list))),
            Event::Apply(object) => decoder.decode(object).map(Seen::Applied),
            Event::Delete(mut object) => {
                Some(Seen::Gone(Box::new(std::mem::take(object.meta_mut()))))
            }
        };
        let Some(seen) = seen else { continue };
        if sender.send(map(seen)).await.is_err() {
            return;
        }
        if is_list {
            synced.set(true);
        }
    }
}

struct Decoder {
    undecodable: Counter,
}

impl Decoder {
    fn decode<K: Resource<DynamicType = ()>>(&mut self, guarded: DeserializeGuard<K>) -> Option<K> {
        match guarded.0 {
            Ok(mut object) => {
                object.meta_mut().managed_fields = None;
                Some(object)
            }
            Err(invalid) => {
                self.undecodable.inc();
                tracing::error!(
                    kind = %K::kind(&()),
                    namespace = invalid.metadata.namespace,
                    name = invalid.metadata.name,
                    error = invalid.error,
                    "an object cannot be decoded and is left out"
                );
                None
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use futures::stream;
    use k8s_openapi::api::core::v1::Pod;
    use kube::{ResourceExt, core::error_boundary::InvalidObject};
    use serde_json::json;

    use super::*;
    use crate::readiness::Readiness;

    fn metadata(name: &str) -> ObjectMeta {
        serde_json::from_value(
            json!({"name": name, "namespace": "team-a", "managedFields": [{"manager": "x"}]}),
        )
        .unwrap()
    }

    fn pod(name: &str) -> DeserializeGuard<Pod> {
        DeserializeGuard(Ok(Pod {
            metadata: metadata(name),
            ..Pod::default()
        }))
    }

    fn broken(name: &str) -> DeserializeGuard<Pod> {
        DeserializeGuard(Err(InvalidObject {
            error: "spec: expected a map".to_owned(),
            metadata: metadata(name),
        }))
    }

    fn told(seen: Seen<Pod>) -> String {
        match seen {
            Seen::Applied(pod) => {
                assert_eq!(pod.metadata.managed_fields, None);
                format!("applied {}", pod.name_any())
            }
            Seen::Gone(metadata) => format!("gone {}", metadata.name.unwrap_or_default()),
            Seen::Listed(pods) => {
                let names: Vec<String> = pods.iter().map(ResourceExt::name_any).collect();
                format!("listed {}", names.join(" "))
            }
        }
    }

    #[tokio::test]
    async fn lists_come_whole_and_what_cannot_be_decoded_costs_only_itself() {
        let metrics = Metrics::new("test", "0");
        let readiness = Readiness::default();
        let synced = readiness.condition("watch Pod");
        let (sender, mut receiver) = mpsc::channel(16);
        let events = stream::iter(vec![
            Ok(Event::Init),
            Ok(Event::InitApply(pod("half"))),
            Err(watcher::Error::NoResourceVersion),
            Ok(Event::Init),
            Ok(Event::InitApply(pod("a"))),
            Ok(Event::InitApply(broken("b"))),
            Ok(Event::InitApply(pod("c"))),
            Ok(Event::InitDone),
            Ok(Event::Apply(pod("d"))),
            Ok(Event::Apply(broken("a"))),
            Ok(Event::Delete(broken("b"))),
            Ok(Event::Delete(pod("c"))),
        ]);
        pump(
            events,
            WatchMetrics::register(&metrics),
            synced.clone(),
            sender,
            told,
        )
        .await;
        let mut all = Vec::new();
        while let Some(message) = receiver.recv().await {
            all.push(message);
        }
        assert_eq!(all, ["listed a c", "applied d", "gone b", "gone c"]);
        assert!(synced.holds());
        let text = metrics.encode().unwrap();
        for line in [
            "muster_watch_undecodable_objects_total{kind=\"Pod\"} 2",
            "muster_watch_errors_total{kind=\"Pod\"} 1",
            "muster_watch_stale_seconds{kind=\"Pod\"} 0",
        ] {
            assert!(text.contains(line), "{line} is missing in\n{text}");
        }
    }

    #[tokio::test]
    async fn a_watch_whose_receiver_is_gone_ends() {
        let metrics = WatchMetrics::register(&Metrics::new("test", "0"));
        let (sender, receiver) = mpsc::channel(1);
        drop(receiver);
        let synced = Readiness::default().condition("watch Pod");
        pump(stream::pending(), metrics, synced, sender, told).await;
    }

    #[tokio::test(start_paused = true)]
    async fn a_failing_watch_shows_its_age() {
        let metrics = Metrics::new("test", "0");
        let (sender, _receiver) = mpsc::channel::<String>(1);
        let synced = Readiness::default().condition("watch Pod");
        let failures = stream::iter(0..3).then(|_| async {
            tokio::time::sleep(std::time::Duration::from_secs(20)).await;
            Err(watcher::Error::NoResourceVersion)
        });
        pump(
            failures,
            WatchMetrics::register(&metrics),
            synced.clone(),
            sender,
            told,
        )
        .await;
        let text = metrics.encode().unwrap();
        assert!(
            text.contains("muster_watch_stale_seconds{kind=\"Pod\"} 40"),
            "{text}"
        );
        assert!(!synced.holds());
    }
}
