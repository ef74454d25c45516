//! The plain HTTP server for probes and metrics. It reveals no tenant and takes no input.
//!
//! Metrics take milliseconds to write, on the threads that everything else runs on. So they are written a few times a
//! second at most, however often they are asked for.

use std::{
    fmt,
    net::SocketAddr,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use axum::{
    Router,
    body::Bytes,
    extract::State,
    http::{StatusCode, header},
    response::{IntoResponse, Response},
    routing::get,
};
use tokio::{net::TcpListener, time::Instant};

use crate::{
    metrics::{self, Metrics},
    readiness::Readiness,
    server::{self, Limits},
    shutdown::Shutdown,
};

/// How long metrics that were written are good.
const FRESH: Duration = Duration::from_millis(250);

#[derive(Clone)]
struct Administered {
    metrics: WrittenMetrics,
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
            metrics: WrittenMetrics::new(metrics),
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
    match administered.metrics.text() {
        Ok(text) => ([(header::CONTENT_TYPE, metrics::CONTENT_TYPE)], text).into_response(),
        Err(error) => (
            StatusCode::INTERNAL_SERVER_ERROR,
            format!("metrics cannot be written: {error}\n"),
        )
            .into_response(),
    }
}

/// Metrics, and what was written of them last.
#[derive(Clone)]
struct WrittenMetrics {
    metrics: Metrics,
    written: Arc<Mutex<Option<(Instant, Bytes)>>>,
}

impl WrittenMetrics {
    fn new(metrics: Metrics) -> Self {
        Self {
            metrics,
            written: Arc::default(),
        }
    }

    /// The metrics, at most [`FRESH`] old.
    fn text(&self) -> Result<Bytes, fmt::Error> {
        let mut written = self.written.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((when, text)) = &*written
            && when.elapsed() < FRESH
        {
            return Ok(text.clone());
        }
        let text = Bytes::from(self.metrics.encode()?);
        *written = Some((Instant::now(), text.clone()));
        Ok(text)
    }
}

#[cfg(test)]
mod tests {
    use prometheus_client::metrics::counter::Counter;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn metrics_are_written_a_few_times_a_second_however_often_they_are_asked_for() {
        let metrics = Metrics::new("test", "0");
        let asked: Counter = Counter::default();
        metrics.register(|registry| registry.register("asked", "Asked", asked.clone()));
        let written = WrittenMetrics::new(metrics);
        let shows = |count: u64| {
            let text = String::from_utf8(written.text().unwrap().to_vec()).unwrap();
            text.contains(&format!("muster_asked_total {count}\n"))
        };
        assert!(shows(0));
        asked.inc();
        tokio::time::advance(FRESH / 2).await;
        assert!(shows(0), "it was written again");
        tokio::time::advance(FRESH / 2).await;
        assert!(shows(1), "it is too old");
    }
}
