//! A cluster behind real HTTP, of any size: an API server that makes the objects of a list while it answers.
//!
//! It stands for the outside only: lists in pages with continue tokens, watches that never tell anything, and the Ledger
//! with its compare-and-swap. Nothing is kept but the Ledger, so that the memory of the process is the controller's.
//! Writes to anything else are noted and never answered: what is measured and tested ends with the first decision.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test or a benchmark that cannot go on ends"
)]

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
};

use axum::{
    Router,
    body::{Body, Bytes},
    extract::State,
    http::{Method, StatusCode, Uri},
    response::{IntoResponse, Response},
};
use serde_json::{Value, json};

/// Where the Ledger stands.
const LEDGERS: &str = "/apis/muster.dev/v1alpha1/ledgers";

/// Makes the object of that number.
pub(crate) type Make = Box<dyn Fn(usize) -> Value + Send + Sync>;

/// The content of a cluster, and what it was asked.
#[derive(Clone, Default)]
pub(crate) struct FakeCluster(Arc<Shared>);

#[derive(Default)]
struct Shared {
    /// By path of the collection over all namespaces.
    collections: BTreeMap<String, (usize, Make)>,
    /// Collections of which a continue token has expired, once for each time that it stands here.
    expires: Mutex<Vec<String>>,
    ledger: Mutex<Option<Value>>,
    asked: Mutex<Vec<String>>,
}

impl FakeCluster {
    /// A cluster of these collections, by the path of each over all namespaces; all others are empty.
    pub(crate) fn new(collections: impl IntoIterator<Item = (&'static str, usize, Make)>) -> Self {
        let collections = collections
            .into_iter()
            .map(|(path, count, make)| (path.to_owned(), (count, make)));
        Self(Arc::new(Shared {
            collections: collections.collect(),
            ..Shared::default()
        }))
    }

    /// From when the epoch is raised, the next `times` continue tokens of this collection have expired when they are used.
    #[allow(dead_code, reason = "the benchmark breaks nothing")]
    pub(crate) fn expire(self, path: &str, times: usize) -> Self {
        let expires = std::iter::repeat_n(path.to_owned(), times);
        self.0.expires.lock().unwrap().extend(expires);
        self
    }

    /// Every request so far: method, path and query; and `expired PATH` where a continue token was refused.
    #[allow(dead_code, reason = "the benchmark only counts seconds")]
    pub(crate) fn asked(&self) -> Vec<String> {
        self.0.asked.lock().unwrap().clone()
    }

    /// Serves on a port of loopback until the runtime ends, and returns the URL.
    pub(crate) async fn serve(&self) -> Uri {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let router = Router::new().fallback(answer).with_state(self.clone());
        tokio::spawn(async move { axum::serve(listener, router).await });
        format!("http://{address}").parse().unwrap()
    }

    fn list(&self, path: &str, query: &str) -> Response {
        let parameter = |name: &str| {
            query
                .split('&')
                .find_map(|pair| pair.strip_prefix(name)?.strip_prefix('='))
        };
        let limit: usize = parameter("limit").map_or(usize::MAX, |limit| limit.parse().unwrap());
        let start: usize = match parameter("continue") {
            Some(token) => {
                let mut expires = self.0.expires.lock().unwrap();
                let place = expires.iter().position(|expires| expires == path);
                if let Some(place) = place.filter(|_| self.is_raised()) {
                    expires.remove(place);
                    self.0.asked.lock().unwrap().push(format!("expired {path}"));
                    return failure(StatusCode::GONE, "Expired");
                }
                token.parse().unwrap()
            }
            None => 0,
        };
        let mut body = String::from(r#"{"apiVersion":"v1","kind":"List","items":["#);
        let mut end = start;
        if path == LEDGERS {
            let ledger = self.0.ledger.lock().unwrap();
            body.push_str(&ledger.as_ref().map_or_else(String::new, Value::to_string));
        } else if let Some((count, make)) = self.0.collections.get(path) {
            end = start.saturating_add(limit).min(*count);
            for number in start..end {
                if number > start {
                    body.push(',');
                }
                body.push_str(&make(number).to_string());
            }
            if end == *count {
                end = 0;
            }
        }
        let token = if end == start || end == 0 {
            String::new()
        } else {
            end.to_string()
        };
        body.push_str(&format!(
            r#"],"metadata":{{"resourceVersion":"1000000","continue":"{token}"}}}}"#
        ));
        (StatusCode::OK, body).into_response()
    }

    fn is_raised(&self) -> bool {
        let ledger = self.0.ledger.lock().unwrap();
        let epoch = ledger
            .as_ref()
            .and_then(|ledger| ledger["spec"]["leaderEpoch"].as_i64());
        epoch.is_some_and(|epoch| epoch > 0)
    }

    fn ledger(&self, method: &Method, body: &Bytes) -> Response {
        let mut ledger = self.0.ledger.lock().unwrap();
        if *method == Method::GET {
            return match ledger.as_ref() {
                Some(ledger) => (StatusCode::OK, ledger.to_string()).into_response(),
                None => failure(StatusCode::NOT_FOUND, "NotFound"),
            };
        }
        let mut written: Value = serde_json::from_slice(body).unwrap();
        let version = ledger.as_ref().map_or(0, |ledger| {
            let version = ledger["metadata"]["resourceVersion"].as_str().unwrap();
            version.parse::<u64>().unwrap()
        });
        let seen = written["metadata"]["resourceVersion"]
            .as_str()
            .unwrap_or("0");
        if seen != version.to_string() {
            return failure(StatusCode::CONFLICT, "Conflict");
        }
        written["metadata"]["uid"] = json!("ledger");
        written["metadata"]["resourceVersion"] = json!((version + 1).to_string());
        *ledger = Some(written.clone());
        (StatusCode::OK, written.to_string()).into_response()
    }
}

async fn answer(
    State(cluster): State<FakeCluster>,
    method: Method,
    uri: Uri,
    body: Bytes,
) -> Response {
    let (path, query) = (uri.path(), uri.query().unwrap_or_default());
    cluster
        .0
        .asked
        .lock()
        .unwrap()
        .push(format!("{method} {path} {query}"));
    if path == format!("{LEDGERS}/cluster") || (path == LEDGERS && method == Method::POST) {
        return cluster.ledger(&method, &body);
    }
    if method == Method::GET && query.contains("watch=true") {
        let silent = futures::stream::pending::<Result<Bytes, std::io::Error>>();
        return Body::from_stream(silent).into_response();
    }
    if method == Method::GET {
        return cluster.list(path, query);
    }
    std::future::pending().await
}

fn failure(status: StatusCode, reason: &str) -> Response {
    let body = json!({
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
        "message": reason, "reason": reason, "code": status.as_u16(),
    });
    (status, body.to_string()).into_response()
}
