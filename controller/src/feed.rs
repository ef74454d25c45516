//! Everything that is watched, as one stream of changes.
//!
//! Each kind has one watch at a time. [`Feed::reopen`] closes it and opens another, whose first change is the
//! whole list, read from the store and not from a cache; what the closed one had still to say is dropped
//! (generations). So once a list asked for has come, nothing from before it follows.
//!
//! A leader concludes from what is not there: what no Gang and no permit names is free. So a list of which an object
//! cannot be decoded (another version of Muster wrote it, say) is not told, and nobody leads, until it can be.

use std::{collections::BTreeMap, fmt::Debug, sync::Arc};

use kube::{
    Api, Client, Resource,
    core::DeserializeGuard,
    runtime::watcher::{Config, ListSemantic},
};
use muster_cluster::object::{Change, Kind, Object, ObjectKey};
use muster_serve::{
    Condition, Readiness,
    metrics::Metrics,
    watch::{self, WatchEvent, WatchMetrics},
};
use serde::de::DeserializeOwned;
use tokio::{sync::mpsc, task::AbortHandle};

/// Changes that may wait to be taken in; a slow consumer slows the watches down.
const QUEUE: usize = 1024;

/// How long one watch request lasts, in seconds. A connection that is dead is noticed 5 s later at most.
const WATCH_SECONDS: u32 = 120;

/// All watches, and what they have seen.
#[derive(Debug)]
pub struct Feed {
    source: Source,
    metrics: WatchMetrics,
    watches: BTreeMap<Kind, Watch>,
    sender: mpsc::Sender<Stamped>,
    receiver: mpsc::Receiver<Stamped>,
}

struct Source(Client);

impl Debug for Source {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("API server")
    }
}

#[derive(Debug)]
struct Watch {
    synced: Condition,
    generation: u64,
    task: Option<AbortHandle>,
}

#[derive(Debug)]
struct Stamped {
    kind: Kind,
    generation: u64,
    change: Change,
}

impl Feed {
    /// Watches every kind. For each, a condition of readiness holds once its list has come.
    pub fn open(readiness: &Readiness, metrics: &Metrics, client: Client) -> Self {
        let (sender, receiver) = mpsc::channel(QUEUE);
        let watches = Kind::ALL.map(|kind| {
            let watch = Watch {
                synced: readiness.condition(&format!("watch {kind:?}")),
                generation: 0,
                task: None,
            };
            (kind, watch)
        });
        let mut feed = Self {
            source: Source(client),
            metrics: WatchMetrics::register(metrics),
            watches: BTreeMap::from(watches),
            sender,
            receiver,
        };
        for kind in Kind::ALL {
            feed.reopen(kind);
        }
        feed
    }

    /// Closes the watch of a kind and opens another: the next change of that kind is its whole list, and the
    /// list is begun after this call.
    pub fn reopen(&mut self, kind: Kind) {
        match kind {
            Kind::Cohort => self.watch(kind, Object::Cohort),
            Kind::DeviceClass => self.watch(kind, Object::DeviceClass),
            Kind::Flavor => self.watch(kind, Object::Flavor),
            Kind::Gang => self.watch(kind, Object::Gang),
            Kind::Job => self.watch(kind, Object::Job),
            Kind::Ledger => self.watch(kind, Object::Ledger),
            Kind::Namespace => self.watch(kind, Object::Namespace),
            Kind::Node => self.watch(kind, Object::Node),
            Kind::NodeDevices => self.watch(kind, Object::NodeDevices),
            Kind::Pod => self.watch(kind, Object::Pod),
            Kind::PriorityTier => self.watch(kind, Object::PriorityTier),
            Kind::Queue => self.watch(kind, Object::Queue),
            Kind::ResourceClaim => self.watch(kind, Object::ResourceClaim),
            Kind::ResourceSlice => self.watch(kind, Object::ResourceSlice),
            Kind::Team => self.watch(kind, Object::Team),
            Kind::Topology => self.watch(kind, Object::Topology),
        }
    }

    /// The next change. Cancel-safe.
    pub async fn next(&mut self) -> Change {
        loop {
            // The channel never closes: we hold a sender ourselves.
            let Some(stamped) = self.receiver.recv().await else {
                return std::future::pending().await;
            };
            if let Some(change) = self.current(stamped) {
                return change;
            }
        }
    }

    /// The next change, if there is one already.
    pub fn ready(&mut self) -> Option<Change> {
        while let Ok(stamped) = self.receiver.try_recv() {
            let change = self.current(stamped);
            if change.is_some() {
                return change;
            }
        }
        None
    }

    fn current(&self, stamped: Stamped) -> Option<Change> {
        let watch = self.watches.get(&stamped.kind)?;
        (watch.generation == stamped.generation).then_some(stamped.change)
    }

    fn watch<K>(&mut self, kind: Kind, wrap: fn(Arc<K>) -> Object)
    where
        K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug + Send + Sync + 'static,
    {
        let Some(watch) = self.watches.get_mut(&kind) else {
            return;
        };
        if let Some(closed) = watch.task.take() {
            closed.abort();
        }
        watch.generation += 1;
        let generation = watch.generation;
        let api: Api<DeserializeGuard<K>> = Api::all(self.source.0.clone());
        let config = Config::default()
            .timeout(WATCH_SECONDS)
            .list_semantic(ListSemantic::MostRecent);
        let task = tokio::spawn(watch::run_whole(
            api,
            config,
            self.metrics.clone(),
            watch.synced.clone(),
            self.sender.clone(),
            move |seen| Stamped {
                kind,
                generation,
                change: change(kind, wrap, seen),
            },
        ));
        watch.task = Some(task.abort_handle());
    }
}

impl Drop for Feed {
    fn drop(&mut self) {
        for watch in self.watches.values() {
            if let Some(task) = &watch.task {
                task.abort();
            }
        }
    }
}

fn change<K>(kind: Kind, wrap: fn(Arc<K>) -> Object, seen: WatchEvent<K>) -> Change {
    match seen {
        WatchEvent::Applied(object) => Change::Applied(wrap(Arc::new(object))),
        WatchEvent::Deleted(metadata) => Change::Deleted(ObjectKey {
            kind,
            namespace: metadata.namespace.unwrap_or_default(),
            name: metadata.name.unwrap_or_default(),
        }),
        WatchEvent::Listed(objects) => Change::Listed(
            kind,
            objects
                .into_iter()
                .map(|object| wrap(Arc::new(object)))
                .collect(),
        ),
    }
}

#[cfg(test)]
mod tests {
    use kube::client::Body;

    use super::*;

    #[tokio::test]
    async fn a_reopened_watch_tells_nothing_from_before() {
        let silent = tower::service_fn(|_: http::Request<Body>| {
            std::future::pending::<Result<http::Response<Body>, std::io::Error>>()
        });
        let client = Client::new(silent, "default");
        let mut feed = Feed::open(&Readiness::default(), &Metrics::new("test", "0"), client);
        let stamped = |generation| Stamped {
            kind: Kind::Pod,
            generation,
            change: Change::Listed(Kind::Pod, Vec::new()),
        };
        feed.sender.send(stamped(1)).await.unwrap();
        assert!(matches!(feed.next().await, Change::Listed(Kind::Pod, _)));
        feed.sender.send(stamped(1)).await.unwrap();
        feed.reopen(Kind::Pod);
        feed.sender.send(stamped(1)).await.unwrap();
        assert!(feed.ready().is_none(), "both are of the closed watch");
        feed.sender.send(stamped(2)).await.unwrap();
        assert!(feed.ready().is_some());
    }
}
