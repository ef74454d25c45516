//! The plain HTTP server for probes and metrics. It reveals no tenant and takes no input.

use std::net::SocketAddr;

use axum::{
    Router,
    extract::State,
    http::{StatusCode, header},
    response::{IntoResponse, Response},
    routing::get,
};
use tokio::net::TcpListener;

use crate::{
    metrics::{self, Metrics},
    readiness::Readiness,
    server::{self, Limits},
    shutdown::Shutdown,
};

#[derive(Clone)]
struct Administered {
    metrics: Metrics,
    readiness: Readiness,
    shutdown: Shutdown,
}

/// Binds `address` and serves `/healthz`, `/readyz` and `/metrics` until the shutdown. Returns the address
/// that was bound (of interest with port 0).
pub async fn spawn(
    address: SocketAddr,
    metrics: Metrics,
    readiness: Readiness,
    shutdown: &Shutdown,
) -> std::io::Result<SocketAddr> {
    let listener = TcpListener::bind(address).await?;
    let bound = listener.local_addr()?;
    let router = Router::new()
        .route("/healthz", get(|| async { "ok\n" }))
        .route("/readyz", get(ready))
        .route("/metrics", get(encode))
        .with_state(Administered {
            metrics,
            readiness,
            shutdown: shutdown.clone(),
        });
    server::spawn_plain("admin server", listener, router, Limits::SMALL, shutdown);
    Ok(bound)
}

/// A program that is stopping is not ready: its endpoint leaves the Service before it stops accepting.
async fn ready(State(administered): State<Administered>) -> Response {
    if administered.shutdown.is_requested() {
        return (StatusCode::SERVICE_UNAVAILABLE, "stopping\n").into_response();
    }
    let missing = administered.readiness.missing();
    if missing.is_empty() {
        return "ok\n".into_response();
    }
    let body = format!("not ready: {}\n", missing.join(", "));
    (StatusCode::SERVICE_UNAVAILABLE, body).into_response()
}

async fn encode(State(administered): State<Administered>) -> Response {
    match administered.metrics.encode() {
        Ok(text) => ([(header::CONTENT_TYPE, metrics::CONTENT_TYPE)], text).into_response(),
        Err(error) => (
            StatusCode::INTERNAL_SERVER_ERROR,
            format!("metrics cannot be written: {error}\n"),
        )
            .into_response(),
    }
}
