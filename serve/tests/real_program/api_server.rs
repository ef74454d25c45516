//! An API server on which nothing ever happens: lists are empty, watches silent, and Secrets are kept.

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

/// What was written, by path.
#[derive(Clone, Default)]
pub(crate) struct Objects(Arc<Mutex<HashMap<String, Value>>>);

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

    fn in_secret(&self, key: &str) -> Option<String> {
        let objects = self.0.lock().unwrap();
        let secret = objects.values().find(|object| object["kind"] == "Secret");
        let value = secret.unwrap()["data"].get(key)?.clone();
        let value: ByteString = serde_json::from_value(value).unwrap();
        Some(String::from_utf8(value.0).unwrap())
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
    if head.method == Method::GET {
        let known = objects.0.lock().unwrap().get(path).cloned();
        let missing = json!({"kind": "Status", "apiVersion": "v1", "metadata": {},
            "status": "Failure", "reason": "NotFound", "code": 404, "message": "none"});
        return known.map_or_else(
            || (StatusCode::NOT_FOUND, Json(missing)).into_response(),
            |object| Json(object).into_response(),
        );
    }
    let body = axum::body::to_bytes(axum::body::Body::new(body), usize::MAX)
        .await
        .unwrap();
    let mut secret: Value = serde_json::from_slice(&body).unwrap();
    secret["kind"] = json!("Secret");
    secret["metadata"]["resourceVersion"] = json!("1");
    let name = secret["metadata"]["name"].as_str().unwrap();
    let kept_at = format!("{}/{name}", path.trim_end_matches(&format!("/{name}")));
    objects.0.lock().unwrap().insert(kept_at, secret.clone());
    Json(secret).into_response()
}
