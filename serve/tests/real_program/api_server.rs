//! An API server on which nothing ever happens: lists are empty, watches silent, and Secrets are kept. Nobody may create any, as
//! in the roles of the chart: there is one empty Secret of each name until the test takes it away.

use std::{
    collections::HashMap,
    net::{Ipv4Addr, SocketAddr},
    sync::{Arc, Mutex},
};

use axum::{
    Json, Router,
    extract::{Request, State},
    http::{Method, StatusCode},
    response::{IntoResponse, Response},
};
use k8s_openapi::ByteString;
use muster_serve::{authority_secret, tls::CertificateAndKey};
use serde_json::{Value, json};
use tokio::net::TcpListener;

/// How it is reached.
pub(crate) fn kubeconfig_of(api_server: SocketAddr) -> String {
    json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "c",
        "clusters": [{"name": "c", "cluster": {"server": format!("http://{api_server}")}}],
        "users": [{"name": "c", "user": {}}],
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "c"}}],
    })
    .to_string()
}

/// The Secrets, by path.
#[derive(Clone, Default)]
pub(crate) struct Objects(Arc<Mutex<Stored>>);

#[derive(Default)]
struct Stored {
    secrets: HashMap<String, Value>,
    /// Of the latest write.
    version: u64,
    /// Whether those that nobody has written yet are not there either.
    deleted: bool,
}

impl Stored {
    fn get(&mut self, path: &str) -> Option<Value> {
        if let Some(secret) = self.secrets.get(path) {
            return Some(secret.clone());
        }
        if self.deleted {
            return None;
        }
        let name = path.rsplit('/').next().unwrap();
        let secret = json!({"apiVersion": "v1", "metadata": {"name": name}});
        Some(self.put(path, secret))
    }

    fn put(&mut self, path: &str, mut secret: Value) -> Value {
        self.version += 1;
        secret["kind"] = json!("Secret");
        secret["metadata"]["resourceVersion"] = json!(self.version.to_string());
        self.secrets.insert(path.to_owned(), secret.clone());
        secret
    }
}

impl Objects {
    /// The CA that the program has put into its Secret.
    pub(crate) fn bundle_pem(&self) -> String {
        self.in_secret(authority_secret::BUNDLE).unwrap()
    }

    /// The client that the program has issued a certificate to, if it lets in nobody else.
    pub(crate) fn identity(&self) -> Option<CertificateAndKey> {
        Some(CertificateAndKey {
            certificate_pem: self.in_secret(authority_secret::CLIENT_CERTIFICATE)?,
            key_pem: self.in_secret(authority_secret::CLIENT_KEY)?,
        })
    }

    /// What the Secret of the programs holds at this key.
    pub(crate) fn in_secret(&self, key: &str) -> Option<String> {
        let stored = self.0.lock().unwrap();
        let value = stored.secrets.values().next()?["data"].get(key)?.clone();
        let value: ByteString = serde_json::from_value(value).unwrap();
        Some(String::from_utf8(value.0).unwrap())
    }

    /// Writes what it holds, as somebody else.
    pub(crate) fn write_secret(&self, change: impl FnOnce(&mut Value)) {
        let mut stored = self.0.lock().unwrap();
        let (path, mut secret) = stored.secrets.clone().into_iter().next().unwrap();
        change(&mut secret["data"]);
        stored.put(&path, secret);
    }

    /// Takes all Secrets away; or lets empty ones be there again.
    pub(crate) fn delete_secrets(&self, deleted: bool) {
        let mut stored = self.0.lock().unwrap();
        stored.secrets.clear();
        stored.deleted = deleted;
    }
}

/// Serves on a free port of loopback.
pub(crate) async fn serve(objects: Objects) -> SocketAddr {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let address = listener.local_addr().unwrap();
    let router = Router::new().fallback(answer).with_state(objects);
    tokio::spawn(async move { axum::serve(listener, router).await });
    address
}

async fn answer(State(objects): State<Objects>, request: Request) -> Response {
    let (head, body) = request.into_parts();
    let path = head.uri.path();
    if !path.contains("/secrets") {
        let query = head.uri.query().unwrap_or_default();
        if query.contains("watch=true") {
            std::future::pending::<()>().await;
        }
        let list = json!({"metadata": {"resourceVersion": "1"}, "items": []});
        return Json(list).into_response();
    }
    let failure = |status: StatusCode, reason: &str| {
        let body = json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
            "reason": reason, "code": status.as_u16(), "message": reason});
        (status, Json(body)).into_response()
    };
    let body = axum::body::to_bytes(axum::body::Body::new(body), usize::MAX)
        .await
        .unwrap();
    if head.method == Method::POST {
        return failure(StatusCode::FORBIDDEN, "Forbidden");
    }
    let mut stored = objects.0.lock().unwrap();
    let known = stored.get(path);
    match (head.method, known) {
        (_, None) => failure(StatusCode::NOT_FOUND, "NotFound"),
        (Method::GET, Some(secret)) => Json(secret).into_response(),
        (_, Some(known)) => {
            let secret: Value = serde_json::from_slice(&body).unwrap();
            let version = |secret: &Value| secret["metadata"]["resourceVersion"].clone();
            if version(&secret) != version(&known) {
                return failure(StatusCode::CONFLICT, "Conflict");
            }
            Json(stored.put(path, secret)).into_response()
        }
    }
}
