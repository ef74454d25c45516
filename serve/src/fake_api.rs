//! An API server for tests: stores objects, checks resourceVersions, answers as the real one does, and can
//! be reached over links that lose, delay and break.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use http::{Method, Request, Response, StatusCode};
use kube::{Client, client::Body};
use serde_json::{Value, json};

/// What happens to one request on its way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Passage {
    /// It arrives and is answered, each way taking so long.
    Through(Duration),
    /// It never arrives.
    Lost,
    /// It is carried out after so long; its answer is lost.
    AnswerLost(Duration),
    /// The connection is refused.
    Refused,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct FakeApi {
    store: Arc<Mutex<Store>>,
}

#[derive(Debug, Default)]
struct Store {
    version: u64,
    /// By path of the object.
    objects: BTreeMap<String, Value>,
    writes: usize,
    creation_is_forbidden: bool,
}

impl FakeApi {
    pub(crate) fn client(&self) -> Client {
        self.client_over(|| Passage::Through(Duration::ZERO))
    }

    /// A client whose every request asks `link` for its fate.
    pub(crate) fn client_over(&self, link: impl FnMut() -> Passage + Send + 'static) -> Client {
        let api = self.clone();
        let link = Arc::new(Mutex::new(link));
        let service = tower::service_fn(move |request: Request<Body>| {
            let api = api.clone();
            let passage = link.lock().unwrap_or_else(PoisonError::into_inner)();
            async move { api.pass(request, passage).await }
        });
        Client::new(service, "default")
    }

    /// From now on nobody may create anything, as in the roles of the chart.
    pub(crate) fn forbid_creation(&self) {
        self.store.lock().unwrap().creation_is_forbidden = true;
    }

    /// Writes that were carried out.
    pub(crate) fn writes(&self) -> usize {
        self.store.lock().unwrap().writes
    }

    pub(crate) fn get(&self, path: &str) -> Option<Value> {
        self.store.lock().unwrap().objects.get(path).cloned()
    }

    pub(crate) fn put(&self, path: &str, object: Value) {
        self.store.lock().unwrap().store(path.to_owned(), object);
    }

    async fn pass(
        self,
        request: Request<Body>,
        passage: Passage,
    ) -> Result<Response<Body>, std::io::Error> {
        match passage {
            Passage::Through(delay) => {
                tokio::time::sleep(delay).await;
                let answer = self.answer(request).await;
                tokio::time::sleep(delay).await;
                Ok(answer)
            }
            Passage::Lost => std::future::pending().await,
            Passage::AnswerLost(delay) => {
                // What is on its way arrives, whether or not somebody still waits for the answer.
                tokio::spawn(async move {
                    tokio::time::sleep(delay).await;
                    self.answer(request).await;
                });
                std::future::pending().await
            }
            Passage::Refused => Err(std::io::ErrorKind::ConnectionRefused.into()),
        }
    }

    async fn answer(&self, request: Request<Body>) -> Response<Body> {
        let (parts, body) = request.into_parts();
        let body = body.collect_bytes().await.unwrap();
        let path = parts.uri.path().to_owned();
        let mut store = self.store.lock().unwrap();
        let (status, answer) = match parts.method {
            Method::GET => store.read(&path),
            Method::POST => {
                let object: Value = serde_json::from_slice(&body).unwrap();
                store.create(&path, object)
            }
            Method::PUT => store.replace(path, serde_json::from_slice(&body).unwrap()),
            method => panic!("{method} {path} is not known to this server"),
        };
        Response::builder()
            .status(status)
            .body(Body::from(serde_json::to_vec(&answer).unwrap()))
            .unwrap()
    }
}

impl Store {
    fn read(&self, path: &str) -> (StatusCode, Value) {
        match self.objects.get(path) {
            Some(object) => (StatusCode::OK, object.clone()),
            None => failure(StatusCode::NOT_FOUND, "NotFound"),
        }
    }

    fn create(&mut self, collection: &str, object: Value) -> (StatusCode, Value) {
        if self.creation_is_forbidden {
            return failure(StatusCode::FORBIDDEN, "Forbidden");
        }
        let name = object["metadata"]["name"].as_str().unwrap();
        let path = format!("{collection}/{name}");
        if self.objects.contains_key(&path) {
            return failure(StatusCode::CONFLICT, "AlreadyExists");
        }
        (StatusCode::CREATED, self.store(path, object))
    }

    fn replace(&mut self, path: String, object: Value) -> (StatusCode, Value) {
        let Some(stored) = self.objects.get(&path) else {
            return failure(StatusCode::NOT_FOUND, "NotFound");
        };
        let version = &object["metadata"]["resourceVersion"];
        if !version.is_null() && *version != stored["metadata"]["resourceVersion"] {
            return failure(StatusCode::CONFLICT, "Conflict");
        }
        (StatusCode::OK, self.store(path, object))
    }

    fn store(&mut self, path: String, mut object: Value) -> Value {
        self.version += 1;
        self.writes += 1;
        object["metadata"]["resourceVersion"] = json!(self.version.to_string());
        self.objects.insert(path, object.clone());
        object
    }
}

fn failure(status: StatusCode, reason: &str) -> (StatusCode, Value) {
    let body = json!({
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
        "message": reason, "reason": reason, "code": status.as_u16(),
    });
    (status, body)
}
