//! An API server for tests that answers by a script and remembers what it was asked.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex},
};

use http::{Request, Response};
use kube::{Client, client::Body};
use serde_json::{Value, json};

/// One request, as it arrived.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Asked {
    /// `METHOD path`, without query.
    pub(crate) what: String,
    pub(crate) query: String,
    /// What it accepts as an answer.
    pub(crate) accept: String,
    pub(crate) body: Value,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct ScriptedApi {
    answers: Arc<Mutex<VecDeque<(u16, Value)>>>,
    asked: Arc<Mutex<Vec<Asked>>>,
}

impl ScriptedApi {
    /// Answers with these, one after the other.
    pub(crate) fn new(answers: impl IntoIterator<Item = (u16, Value)>) -> Self {
        Self {
            answers: Arc::new(Mutex::new(answers.into_iter().collect())),
            asked: Arc::default(),
        }
    }

    pub(crate) fn client(&self) -> Client {
        let api = self.clone();
        let service = tower::service_fn(move |request: Request<Body>| {
            let api = api.clone();
            async move { api.answer(request).await }
        });
        Client::new(service, "default")
    }

    pub(crate) fn asked(&self) -> Vec<Asked> {
        self.asked.lock().unwrap().clone()
    }

    async fn answer(self, request: Request<Body>) -> Result<Response<Body>, std::io::Error> {
        let (parts, body) = request.into_parts();
        let body = body.collect_bytes().await.unwrap();
        self.asked.lock().unwrap().push(Asked {
            what: format!("{} {}", parts.method, parts.uri.path()),
            query: parts.uri.query().unwrap_or_default().to_owned(),
            accept: parts
                .headers
                .get(http::header::ACCEPT)
                .map_or_else(String::new, |it| it.to_str().unwrap().to_owned()),
            body: serde_json::from_slice(&body).unwrap_or_default(),
        });
        let next = self.answers.lock().unwrap().pop_front();
        let Some((status, answer)) = next else {
            return Err(std::io::ErrorKind::ConnectionReset.into());
        };
        let body = Body::from(serde_json::to_vec(&answer).unwrap());
        Ok(Response::builder().status(status).body(body).unwrap())
    }
}

/// An answer under which whoever asks breaks off: there is no such status.
pub(crate) fn breaks_off() -> (u16, Value) {
    (0, Value::Null)
}

/// The body of a failure.
pub(crate) fn failure(code: u16, message: &str) -> (u16, Value) {
    let reason = if code == 404 { "NotFound" } else { "Any" };
    let body = json!({
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
        "message": message, "reason": reason, "code": code,
    });
    (code, body)
}
