//! A value that watches keep in step with the API server, for programs that answer from memory.
//!
//! One channel per kind, so that what happened to one kind is applied in order; between kinds there is no
//! order to keep. Only the watches write, each its own kind; everybody else reads.

use std::{
    fmt::Debug,
    sync::{Arc, PoisonError, RwLock},
};

use kube::{
    Api, Client, Resource,
    runtime::watcher::{self, Config},
};
use serde::de::DeserializeOwned;
use tokio::sync::mpsc;

use crate::{
    Program, Readiness, Shutdown,
    watch::{self, Decoded, WatchEvent, WatchMetrics},
};

/// Changes of one kind that may wait to be applied.
const QUEUE: usize = 256;

/// A value behind its lock, and the watches that keep it.
pub struct Mirror<S> {
    shared: Arc<RwLock<S>>,
    client: Client,
    metrics: WatchMetrics,
    readiness: Readiness,
    shutdown: Shutdown,
}

impl<S> Debug for Mirror<S> {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Mirror").finish_non_exhaustive()
    }
}

impl<S: Default + Send + Sync + 'static> Mirror<S> {
    /// A mirror that nothing keeps yet. One of each program: it registers the metrics of its watches.
    pub fn new(program: &Program, client: Client) -> Self {
        Self {
            shared: Arc::default(),
            client,
            metrics: WatchMetrics::register(&program.metrics),
            readiness: program.readiness.clone(),
            shutdown: program.shutdown.clone(),
        }
    }

    /// Has a kind applied, all of it. See [`Mirror::keep_those`].
    pub fn keep<K>(&self, name: &'static str, apply: fn(&mut S, WatchEvent<K>))
    where
        K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug + Send + Sync + 'static,
    {
        self.keep_those(name, watcher::Config::default(), apply);
    }

    /// Has those objects of a kind applied that `which` selects. A condition of readiness of that name holds
    /// once the first list has been; the program is of no use any more if the watch ends before it is told to.
    pub fn keep_those<K>(&self, name: &'static str, which: Config, apply: fn(&mut S, WatchEvent<K>))
    where
        K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug + Send + Sync + 'static,
    {
        let (sender, mut seen) = mpsc::channel::<WatchEvent<K>>(QUEUE);
        let delivered = self.readiness.condition(&format!("watch of {name}"));
        let applied = self.readiness.condition(name);
        let api: Api<Decoded<K>> = Api::all(self.client.clone());
        let metrics = self.metrics.clone();
        self.shutdown.spawn_until_stopped(
            name,
            watch::run(api, which, metrics, delivered, sender, |seen| seen),
        );
        let shared = Arc::clone(&self.shared);
        self.shutdown.spawn_until_stopped(name, async move {
            while let Some(seen) = seen.recv().await {
                let is_list = matches!(seen, WatchEvent::Listed(_));
                let mut value = shared.write().unwrap_or_else(PoisonError::into_inner);
                apply(&mut value, seen);
                drop(value);
                if is_list {
                    applied.set(true);
                }
            }
        });
    }

    /// The value.
    pub fn shared(&self) -> Arc<RwLock<S>> {
        Arc::clone(&self.shared)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use http::{Request, Response};
    use k8s_openapi::api::core::v1::Namespace;
    use kube::{ResourceExt, client::Body};
    use serde_json::json;

    use super::*;
    use crate::metrics::Metrics;

    /// An API server with one Namespace in which nothing ever happens.
    fn quiet() -> Client {
        let service = tower::service_fn(|request: Request<Body>| async move {
            if request
                .uri()
                .query()
                .unwrap_or_default()
                .contains("watch=true")
            {
                std::future::pending::<()>().await;
            }
            let list = json!({"apiVersion": "v1", "kind": "NamespaceList",
                "metadata": {"resourceVersion": "1"}, "items": [{"metadata": {"name": "ml"}}]});
            let body = Body::from(list.to_string().into_bytes());
            Ok::<_, std::io::Error>(Response::new(body))
        });
        Client::new(service, "default")
    }

    #[tokio::test]
    async fn what_is_listed_is_in_the_value_once_it_is_said_to_be_ready() {
        let readiness = Readiness::default();
        let mirror = Mirror::<Vec<String>> {
            shared: Arc::default(),
            client: quiet(),
            metrics: WatchMetrics::register(&Metrics::new("test", "0")),
            readiness: readiness.clone(),
            shutdown: Shutdown::default(),
        };
        mirror.keep::<Namespace>("namespaces", |names, seen| {
            if let WatchEvent::Listed(all) = seen {
                *names = all.iter().map(ResourceExt::name_any).collect();
            }
        });
        assert_eq!(readiness.missing(), ["namespaces", "watch of namespaces"]);
        let limit = Duration::from_secs(10);
        let becomes_ready = async {
            while !readiness.is_ready() {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(limit, becomes_ready).await.unwrap();
        assert_eq!(*mirror.shared().read().unwrap(), ["ml"]);
        mirror.shutdown.request();
    }
}
