//! HTTP servers that no client can hold up.
//!
//! * [`acceptor`]: a handshake, then a place among the connections; [`bounded_stream`]: silence ends it.
//! * [`intake`]: the body is read, then the request waits for its turn.
//! * [`shares`]: connections, handshakes and bytes are shared by peers, and who hoards gives way to newcomers.
//! * [`self_check`]: whether the server answers itself.
//! * [`json_bounds`]: how many values a body may hold before it is decoded.
//!
//! Limits that hyper and axum-server leave open are set here: hyper's header limit is inactive without a
//! timer, its protocol detection waits for a first byte without end, and neither counts connections. A request
//! has one limit for everything that happens in it, the reading of its body included. A handler that panics
//! costs its request (500), not the process.

mod acceptor;
mod bounded_stream;
mod intake;
pub mod json_bounds;
mod self_check;
mod shares;
#[cfg(test)]
mod tests;

use std::{net::SocketAddr, sync::Arc, time::Duration};

use axum::{
    Router,
    extract::DefaultBodyLimit,
    http::StatusCode,
    middleware::{self, AddExtension},
};
use axum_server::{
    Handle, Server,
    accept::Accept,
    tls_rustls::{RustlsAcceptor, RustlsConfig},
};
use hyper_util::rt::TokioTimer;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::{TcpListener, TcpStream},
    sync::watch,
};
use tower::ServiceBuilder;
use tower_http::{catch_panic::CatchPanicLayer, timeout::TimeoutLayer};

use acceptor::{Arrival, Arrivals, Connection, HandshakeAcceptor, OwnSockets, PlainAcceptor};
use intake::Intake;
pub use self_check::{ANSWERS_CONDITION, SELF_CHECK_PATH};
use shares::Shares;

use crate::{
    readiness::Condition,
    shutdown::Shutdown,
    tls::{self, Clients, ServingCertificate, TlsError},
};

/// Longest time for the headers of an HTTP/1 request, and thus for which such a connection may lie idle.
const HEADER_LIMIT: Duration = Duration::from_secs(5);
/// Longest time for a TLS handshake.
const HANDSHAKE_LIMIT: Duration = Duration::from_secs(5);
/// TLS handshakes at a time, of all peers.
///
/// With the connections of the largest server and of the probes they stay below 1,024 descriptors, which is all that
/// many container runtimes grant: who has none left cannot accept a probe either.
const HANDSHAKES: usize = 448;
/// How long an HTTPS server goes on accepting when it is told to stop: a pod that ends leaves its Service at once, but
/// every node's proxy, and so kube-apiserver and kube-scheduler, learn of it some seconds later.
const SERVE_ON: Duration = Duration::from_secs(5);
/// Longest time that requests in flight are given at the shutdown.
const DRAIN_LIMIT: Duration = Duration::from_secs(10);
/// HTTP/2: streams of one connection at a time. kube-apiserver multiplexes all its calls over one.
const HTTP2_STREAMS: u32 = 250;
/// HTTP/2: largest list of headers of a request.
const HTTP2_HEADER_BYTES: u32 = 16 * 1024;
/// HTTP/2: what a stream, and all streams of a connection, may send before it is read. Beside the budget of bodies.
const HTTP2_STREAM_WINDOW_BYTES: u32 = 128 * 1024;
/// See [`HTTP2_STREAM_WINDOW_BYTES`].
const HTTP2_CONNECTION_WINDOW_BYTES: u32 = 256 * 1024;
/// HTTP/1: largest buffer of a connection; the headers of a request must fit.
const HTTP1_BUFFER_BYTES: usize = 64 * 1024;
/// HTTP/2: a peer that is gone is noticed by unanswered pings.
const HTTP2_PING_INTERVAL: Duration = Duration::from_secs(20);
/// HTTP/2: longest time for the answer to a ping.
const HTTP2_PING_LIMIT: Duration = Duration::from_secs(10);

/// What a server grants its clients.
///
/// Of what is shared, one peer may have half. What is beyond does not turn newcomers away: the peer that holds most
/// gives way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Largest body of a request; a larger one is answered 413.
    pub body_bytes: usize,
    /// Longest time for a body to come; then its request is answered 408.
    pub body_limit: Duration,
    /// Bytes of bodies (and a constant for each request) that are being received, wait, or are worked on, and of answers
    /// until they are sent. A larger answer than half of it is none.
    pub buffered_bytes: usize,
    /// Longest time for a request, reading its body included; then it is answered 408.
    pub request_limit: Duration,
    /// Most connections at a time, handshakes apart.
    pub connections: usize,
}

impl Limits {
    /// For a server whose requests have no body.
    pub const SMALL: Self = Self {
        body_bytes: 4 * 1024,
        body_limit: Duration::from_secs(1),
        // The metrics of a large cluster are a megabyte or two.
        buffered_bytes: 16 * 1024 * 1024,
        request_limit: Duration::from_secs(5),
        connections: 64,
    };
    /// For a server whose requests carry Kubernetes objects: the largest that kube-apiserver sends to
    /// a webhook is twice the 3 MiB of its request limit, and some. It gives up after 3 s.
    pub const OBJECTS: Self = Self {
        body_bytes: 7 * 1024 * 1024,
        body_limit: Duration::from_secs(1),
        buffered_bytes: 64 * 1024 * 1024,
        request_limit: Duration::from_secs(3),
        connections: 400,
    };
}

/// Why a server could not be started.
#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    /// The address cannot be bound.
    #[error("{address} cannot be bound: {source}")]
    Bind {
        /// The address.
        address: SocketAddr,
        /// Why.
        source: std::io::Error,
    },
    /// The certificates are of no use.
    #[error(transparent)]
    Tls(#[from] TlsError),
}

/// An HTTPS server (HTTP/2 and HTTP/1.1).
#[derive(Debug)]
pub struct HttpsServer {
    /// What it is called in logs.
    pub name: &'static str,
    /// Where it listens.
    pub address: SocketAddr,
    /// What it serves.
    pub router: Router,
    /// The certificate that it shows.
    pub certificate: Arc<ServingCertificate>,
    /// Who may connect, from the next handshake on.
    pub clients: watch::Receiver<Clients>,
    /// What it grants.
    pub limits: Limits,
    /// Holds while it answers itself.
    pub answers: Condition,
}

impl HttpsServer {
    /// Binds the address and serves until some seconds after the shutdown, then finishes what is in flight. Returns the
    /// address that was bound (of interest with port 0). Must be called within a tokio runtime.
    pub async fn spawn(self, shutdown: &Shutdown) -> Result<SocketAddr, ServerError> {
        shutdown.serve_on_for(SERVE_ON);
        let mut clients = self.clients;
        let first = clients.borrow_and_update().clone();
        let config = tls::server_config(Arc::clone(&self.certificate), &first)?;
        let config = RustlsConfig::from_config(Arc::new(config));
        let acceptor = RustlsAcceptor::new(config.clone()).handshake_timeout(HANDSHAKE_LIMIT);
        let bind_failed = |source| ServerError::Bind {
            address: self.address,
            source,
        };
        let listener = TcpListener::bind(self.address).await.map_err(bind_failed)?;
        let bound = listener.local_addr().map_err(bind_failed)?;
        let own_sockets = OwnSockets::default();
        let places = Shares::new(self.limits.connections);
        let acceptor = HandshakeAcceptor::new(acceptor, places, HEADER_LIMIT);
        let server = Server::from_listener(listener).acceptor(acceptor);
        let router = limited(self.router, self.limits);
        let arrivals = Arrivals::new(router, Shares::new(HANDSHAKES), own_sockets.clone());
        spawn_server(self.name, server, arrivals, shutdown);
        let asked_by = clients.clone();
        self_check::spawn(self.answers, bound, own_sockets, asked_by, shutdown)?;
        let follows = follow(self.name, config, self.certificate, clients);
        shutdown.spawn_until_stopped("follower of the clients' authorities", follows);
        Ok(bound)
    }
}

/// Lets in whoever may connect now. Another configuration resumes no session of an earlier one, so whoever may not connect any
/// more does not come in by a ticket either; connections that stand go on.
async fn follow(
    name: &'static str,
    config: RustlsConfig,
    certificate: Arc<ServingCertificate>,
    mut clients: watch::Receiver<Clients>,
) {
    while clients.changed().await.is_ok() {
        let current = clients.borrow_and_update().clone();
        match tls::server_config(Arc::clone(&certificate), &current) {
            Ok(changed) => {
                config.reload_from_config(Arc::new(changed));
                tracing::info!(
                    server = name,
                    "the authorities of its clients are others now"
                );
            }
            Err(error) => {
                tracing::warn!(server = name, %error, "the authorities of its clients cannot be used, and the old ones stay");
            }
        }
    }
    // Nobody will say anything else.
    std::future::pending::<()>().await;
}

/// Serves plain HTTP on a listener until the shutdown.
pub(crate) fn spawn_plain(
    name: &'static str,
    listener: TcpListener,
    router: Router,
    limits: Limits,
    shutdown: &Shutdown,
) {
    let server = Server::from_listener(listener).acceptor(PlainAcceptor::new(HEADER_LIMIT));
    let places = Shares::new(limits.connections);
    let arrivals = Arrivals::new(limited(router, limits), places, OwnSockets::default());
    spawn_server(name, server, arrivals, shutdown);
}

fn limited(router: Router, limits: Limits) -> Router {
    let intake = Intake::new(limits);
    router.layer(
        ServiceBuilder::new()
            .layer(TimeoutLayer::with_status_code(
                StatusCode::REQUEST_TIMEOUT,
                limits.request_limit,
            ))
            // What comes to the routes is whole and bounded already.
            .layer(DefaultBodyLimit::disable())
            .layer(middleware::from_fn_with_state(intake, intake::take_in))
            .layer(CatchPanicLayer::new()),
    )
}

fn spawn_server<A>(
    name: &'static str,
    mut server: Server<SocketAddr, A>,
    arrivals: Arrivals<Router>,
    shutdown: &Shutdown,
) where
    A: Accept<TcpStream, Arrival<Router>, Service = AddExtension<Router, Connection>>,
    A: Clone + Send + Sync + 'static,
    A::Stream: AsyncRead + AsyncWrite + Unpin + Send,
    A::Future: Send,
{
    let http = server.http_builder();
    // A limit without a timer panics, a timer without a limit does nothing: always both.
    http.http1()
        .timer(TokioTimer::new())
        .header_read_timeout(HEADER_LIMIT)
        .max_buf_size(HTTP1_BUFFER_BYTES);
    http.http2()
        .timer(TokioTimer::new())
        .max_concurrent_streams(HTTP2_STREAMS)
        .initial_stream_window_size(HTTP2_STREAM_WINDOW_BYTES)
        .initial_connection_window_size(HTTP2_CONNECTION_WINDOW_BYTES)
        .max_header_list_size(HTTP2_HEADER_BYTES)
        .keep_alive_interval(HTTP2_PING_INTERVAL)
        .keep_alive_timeout(HTTP2_PING_LIMIT);
    let handle = Handle::new();
    let server = server.handle(handle.clone());
    let stops = shutdown.clone();
    shutdown.spawn(async move {
        stops.servers_stop().await;
        handle.graceful_shutdown(Some(DRAIN_LIMIT));
    });
    shutdown.spawn_essential(name, server.serve(arrivals));
}
