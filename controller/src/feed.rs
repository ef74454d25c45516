//! Everything that is watched, as one stream of changes.
//!
//! Each kind has one watch at a time. [`Feed::reopen`] closes it and opens another, whose first changes are the whole list,
//! read from the store and not from a cache; what the closed one had still to say is dropped (generations). So once a
//! list asked for has come, nothing from before it follows.
//!
//! A kind that the API server does not serve, and need not, is watched all the same: until it is served there are no objects of it.
//!
//! An object that cannot be decoded holds back what its absence would free, and nothing else: [`undecodable`]. Objects
//! are handed out one by one while their list is received, and no list is ever held as one.

mod lean;
mod undecodable;

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Debug,
    sync::Arc,
};

use kube::{
    Api, Client,
    runtime::watcher::{Config, ListSemantic},
};
use muster_cluster::object::{Change, Kind, Object, ObjectKey, Receive};
use muster_serve::{
    Condition, Readiness,
    metrics::Metrics,
    watch::{self, Decoded, ObjectName, StreamEvent, Taken, WatchMetrics},
};
use tokio::{
    sync::mpsc,
    task::{AbortHandle, JoinError, JoinSet},
};

use self::{lean::Lean, undecodable::StandIn};

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
    tasks: JoinSet<()>,
    undecodable: BTreeSet<ObjectKey>,
    /// Which of these are new, or are so no more, since this was last asked for.
    undecodable_news: BTreeMap<ObjectKey, bool>,
    sender: mpsc::Sender<Stamped>,
    receiver: mpsc::Receiver<Stamped>,
}

/// A watch broke off: what it watched would not be seen any more.
#[derive(Debug, thiserror::Error)]
#[error("a watch broke off: {0}")]
pub struct WatchBroken(#[from] JoinError);

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
    seen: StreamEvent<Received>,
}

/// An object as it is reported.
#[derive(Debug)]
struct Received {
    object: Object,
    stands_in: bool,
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
            tasks: JoinSet::new(),
            undecodable: BTreeSet::new(),
            undecodable_news: BTreeMap::new(),
            sender,
            receiver,
        };
        for kind in Kind::ALL {
            feed.reopen(kind);
        }
        feed
    }

    /// The metrics of the watches of this program, for those that others keep.
    pub fn watch_metrics(&self) -> WatchMetrics {
        self.metrics.clone()
    }

    /// Closes the watch of a kind and opens another: the next changes of that kind are its whole list, which
    /// is begun after this call and ends with [`Change::ListedKeys`].
    pub fn reopen(&mut self, kind: Kind) {
        macro_rules! watch {
            ($($kind:ident: $scope:ident $collection:ident $status:ident;)*) => {
                match kind {
                    $(Kind::$kind => self.watch(kind, Object::$kind),)*
                }
            };
        }
        muster_cluster::for_each_kind!(watch);
    }

    /// The next change. Cancel-safe.
    pub async fn next(&mut self) -> Result<Change, WatchBroken> {
        loop {
            let stamped = tokio::select! {
                // The channel never closes: we hold a sender ourselves.
                Some(stamped) = self.receiver.recv() => stamped,
                Some(ended) = self.tasks.join_next() => {
                    match ended {
                        Err(error) if !error.is_cancelled() => return Err(error.into()),
                        // Closed by us.
                        _ => continue,
                    }
                }
            };
            if let Some(change) = self.current(stamped) {
                return Ok(change);
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

    /// Which objects something else replaces now (true), or no longer does, since this was last asked, as far as
    /// the changes that were handed out tell. Differences only: whoever makes many such objects pays for each once.
    pub fn undecodable_news(&mut self) -> BTreeMap<ObjectKey, bool> {
        std::mem::take(&mut self.undecodable_news)
    }

    /// How many objects something else replaces.
    pub fn undecodable(&self) -> usize {
        self.undecodable.len()
    }

    fn set_undecodable(&mut self, key: ObjectKey, is_so: bool) {
        let changed = if is_so {
            self.undecodable.insert(key.clone())
        } else {
            self.undecodable.remove(&key)
        };
        if changed {
            self.undecodable_news.insert(key, is_so);
        }
    }

    fn current(&mut self, stamped: Stamped) -> Option<Change> {
        let Stamped {
            kind,
            generation,
            seen,
        } = stamped;
        let watch = self.watches.get(&kind)?;
        (watch.generation == generation).then(|| self.noted(kind, seen))
    }

    /// Notes what is replaced, and gives the change as it is reported.
    fn noted(&mut self, kind: Kind, seen: StreamEvent<Received>) -> Change {
        match seen {
            StreamEvent::Seen(received) => Change::Applied(self.note(received)),
            StreamEvent::Deleted(metadata) => {
                let key = ObjectKey {
                    kind,
                    namespace: metadata.namespace.unwrap_or_default(),
                    name: metadata.name.unwrap_or_default(),
                };
                self.set_undecodable(key.clone(), false);
                Change::Deleted(key)
            }
            StreamEvent::ListEnded(names) => {
                let keys: BTreeSet<ObjectKey> = names
                    .into_iter()
                    .map(|ObjectName { namespace, name }| ObjectKey {
                        kind,
                        namespace,
                        name,
                    })
                    .collect();
                let gone = self.undecodable.iter();
                let gone = gone.filter(|key| key.kind == kind && !keys.contains(key));
                for key in gone.cloned().collect::<Vec<_>>() {
                    self.set_undecodable(key, false);
                }
                Change::ListedKeys(kind, keys)
            }
        }
    }

    fn note(&mut self, received: Received) -> Object {
        // Almost always there is none, and then no key needs to be made.
        if received.stands_in || !self.undecodable.is_empty() {
            self.set_undecodable(received.object.key(), received.stands_in);
        }
        received.object
    }

    fn watch<K>(&mut self, kind: Kind, wrap: fn(Arc<K>) -> Object)
    where
        K: StandIn + Receive + Clone + Debug + Send + Sync + 'static,
    {
        let Some(watch) = self.watches.get_mut(&kind) else {
            return;
        };
        if let Some(closed) = watch.task.take() {
            closed.abort();
        }
        watch.generation += 1;
        let generation = watch.generation;
        let api: Api<Decoded<Lean<K>>> = Api::all(self.source.0.clone());
        let config = Config::default()
            .timeout(WATCH_SECONDS)
            .list_semantic(ListSemantic::MostRecent);
        let (metrics, synced) = (self.metrics.clone(), watch.synced.clone());
        let sender = self.sender.clone();
        let take = move |decoded: Decoded<Lean<K>>| take_over(kind, wrap, lean::unwrapped(decoded));
        let stamp = move |seen| Stamped {
            kind,
            generation,
            seen,
        };
        watch.task = Some(if kind.is_optional() {
            let run =
                watch::run_streamed_if_served(api, config, metrics, synced, sender, take, stamp);
            self.tasks.spawn(run)
        } else {
            let run = watch::run_streamed(api, config, metrics, synced, sender, take, stamp);
            self.tasks.spawn(run)
        });
    }
}

fn take_over<K: StandIn>(
    kind: Kind,
    wrap: fn(Arc<K>) -> Object,
    decoded: Decoded<K>,
) -> Taken<Received> {
    let received = |object, stands_in| Received {
        object: wrap(Arc::new(object)),
        stands_in,
    };
    match undecodable::take_over(kind, decoded) {
        Taken::Whole(object) => Taken::Whole(received(object, false)),
        Taken::StandIn(object) => Taken::StandIn(received(object, true)),
        Taken::LeftOut => Taken::LeftOut,
    }
}

#[cfg(test)]
pub(crate) mod tests;
