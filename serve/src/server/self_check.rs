//! Whether a server serves: it asks itself, through the port that everybody uses.
//!
//! Readiness must fail when the path that serves is stuck (nobody accepts, the handshake hangs, a lock is never let go),
//! or kube-apiserver and kube-scheduler go on sending requests into it. Yet nobody may be able to make it fail, or a
//! flood would take one replica after the other out of service. So:
//!
//! * The question takes the way of every request: accept loop, handshake, body, turn, and the lock of what is known.
//! * A refusal for lack of room is a good answer: a server that refuses is alive, and taking it away would send its share
//!   of the flood to the others. Only silence (the limit of a request, status 408, included: the question has no body
//!   that could be late) and broken connections count against it.
//! * The process is a peer of its own ([`super::shares::Peer::Itself`], known by the port that it connects from), and
//!   what it holds never gives way: one connection and some bytes. So nobody's connections push the question out, not
//!   even those of a program that shares the loopback address.
//! * It fails after [`FAILURES`] silences in a row, and holds again with the first answer.

use std::{
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use axum::{
    body::Body,
    http::{Request, StatusCode},
};
use hyper_util::rt::TokioIo;
use rustls::{
    ClientConfig, DigitallySignedStruct, SignatureScheme,
    client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
    crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature},
    pki_types::{CertificateDer, ServerName, UnixTime},
};
use tokio::{net::TcpSocket, sync::watch, time::MissedTickBehavior};
use tokio_rustls::TlsConnector;

use super::acceptor::OwnSockets;
use crate::{
    readiness::Condition,
    shutdown::Shutdown,
    tls::{self, CertificateAndKey, Clients, TlsError},
};

/// Path of the question. A router answers it as it answers its requests: with the same locks.
pub const SELF_CHECK_PATH: &str = "/self-check";
/// Name of the condition of readiness that holds while a server answers itself.
pub const ANSWERS_CONDITION: &str = "https server answers";
/// Pause between two questions.
const INTERVAL: Duration = Duration::from_secs(1);
/// Longest time for an answer.
const ANSWER_LIMIT: Duration = Duration::from_secs(3);
/// Silences in a row after which the server counts as stuck.
const FAILURES: u32 = 3;

/// Begins to ask the server at `address`, as one of its clients; `answers` holds while it answers.
pub(crate) fn spawn(
    answers: Condition,
    address: SocketAddr,
    own_sockets: OwnSockets,
    mut clients: watch::Receiver<Clients>,
    shutdown: &Shutdown,
) -> Result<(), TlsError> {
    let connector = connector(&clients.borrow_and_update())?;
    let question = Question {
        address: reachable(address),
        connector,
        own_sockets,
    };
    shutdown.spawn_until_stopped("self-check", keep_asking(question, clients, answers));
    Ok(())
}

async fn keep_asking(
    mut question: Question,
    mut clients: watch::Receiver<Clients>,
    answers: Condition,
) {
    let mut failures = 0_u32;
    let mut times = tokio::time::interval(INTERVAL);
    times.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        times.tick().await;
        // Whoever says who may connect may be gone; then nothing changes any more.
        if clients.has_changed().unwrap_or(false) {
            match connector(&clients.borrow_and_update()) {
                Ok(connector) => question.connector = connector,
                Err(error) => tracing::warn!(%error, "the server goes on to ask itself as before"),
            }
        }
        let asked = tokio::time::timeout(ANSWER_LIMIT, question.ask()).await;
        let why = match asked {
            Ok(Ok(())) => {
                failures = 0;
                answers.set(true);
                continue;
            }
            Ok(Err(error)) => error.to_string(),
            Err(_) => format!("no answer within {} s", ANSWER_LIMIT.as_secs()),
        };
        failures = failures.saturating_add(1);
        tracing::warn!(failures, why, "the server does not answer itself");
        if failures >= FAILURES {
            answers.set(false);
        }
    }
}

/// One way to ask.
struct Question {
    address: SocketAddr,
    connector: TlsConnector,
    own_sockets: OwnSockets,
}

impl Question {
    async fn ask(&self) -> io::Result<()> {
        let (socket, any) = match self.address {
            SocketAddr::V4(_) => (TcpSocket::new_v4()?, IpAddr::from(Ipv4Addr::UNSPECIFIED)),
            SocketAddr::V6(_) => (TcpSocket::new_v6()?, IpAddr::from(Ipv6Addr::UNSPECIFIED)),
        };
        // The address is known to the acceptor before it can see the connection.
        let host = if self.address.ip().is_loopback() {
            self.address.ip()
        } else {
            any
        };
        socket.bind(SocketAddr::new(host, 0))?;
        let own = SocketAddr::new(self.address.ip(), socket.local_addr()?.port());
        self.own_sockets.add(own);
        let answered = self.ask_through(socket).await;
        self.own_sockets.remove(own);
        answered
    }

    async fn ask_through(&self, socket: TcpSocket) -> io::Result<()> {
        let stream = socket.connect(self.address).await?;
        let name = ServerName::from(self.address.ip());
        let stream = self.connector.connect(name, stream).await?;
        let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream))
            .await
            .map_err(io::Error::other)?;
        let request = Request::get(SELF_CHECK_PATH)
            .header("host", "self-check")
            .body(Body::empty())
            .map_err(io::Error::other)?;
        let answer = tokio::select! {
            answer = sender.send_request(request) => answer.map_err(io::Error::other)?,
            ended = connection => {
                ended.map_err(io::Error::other)?;
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        };
        if answer.status() == StatusCode::REQUEST_TIMEOUT {
            return Err(io::ErrorKind::TimedOut.into());
        }
        Ok(())
    }
}

/// A server that listens on every address is reached by the loopback one.
fn reachable(address: SocketAddr) -> SocketAddr {
    let ip = match address.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        ip => ip,
    };
    SocketAddr::new(ip, address.port())
}

/// What shows a certificate where clients must.
fn connector(clients: &Clients) -> Result<TlsConnector, TlsError> {
    let identity = match clients {
        Clients::Anyone => None,
        Clients::Verified { own, .. } => own.as_ref(),
    };
    Ok(TlsConnector::from(Arc::new(client_config(identity)?)))
}

fn client_config(identity: Option<&CertificateAndKey>) -> Result<ClientConfig, TlsError> {
    let provider = CryptoProvider::get_default().ok_or(TlsError::NoProvider)?;
    let builder = ClientConfig::builder_with_provider(Arc::clone(provider))
        .with_safe_default_protocol_versions()?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(AnyCertificate(Arc::clone(provider))));
    let Some(identity) = identity else {
        return Ok(builder.with_no_client_auth());
    };
    let (chain, key) = tls::decoded(identity)?;
    Ok(builder.with_client_auth_cert(chain, key)?)
}

/// The question goes to a port of this very process and says nothing secret, and certificates are replaced while it is
/// asked: whose the certificate is does not matter, only that the handshake comes to its end.
#[derive(Debug)]
struct AnyCertificate(Arc<CryptoProvider>);

impl ServerCertVerifier for AnyCertificate {
    fn verify_server_cert(
        &self,
        _end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.0.signature_verification_algorithms;
        verify_tls12_signature(message, certificate, signature, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.0.signature_verification_algorithms;
        verify_tls13_signature(message, certificate, signature, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}
