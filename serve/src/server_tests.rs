//! Our servers over real sockets.

use std::{
    net::{Ipv4Addr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use axum::{
    Router,
    routing::{get, post},
};
use rustls::{
    ClientConfig,
    pki_types::{CertificateDer, PrivateKeyDer, ServerName, pem::PemObject},
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    time::Instant,
};
use tokio_rustls::{TlsConnector, client::TlsStream};

use crate::{
    admin,
    certificates::{AuthoritySet, Policy, Subject},
    metrics::Metrics,
    readiness::Readiness,
    server::{HttpsServer, Limits},
    shutdown::Shutdown,
    tls::{self, CertificateAndKey, Clients, ServingCertificate},
};

const LOOPBACK: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 0);
/// A server that has not answered by then will not.
const DEADLINE: Duration = Duration::from_secs(15);

struct Authority {
    set: AuthoritySet,
    now: i64,
}

impl Authority {
    fn new() -> Self {
        tls::install_provider();
        let now = jiff::Timestamp::now().as_second();
        let set = AuthoritySet::generate("test", &Policy::PINNED, now).unwrap();
        Self { set, now }
    }

    fn issue(&self, subject: &Subject) -> CertificateAndKey {
        self.set.authorities()[0]
            .issue(subject, self.now, 600)
            .unwrap()
    }

    fn server(&self) -> CertificateAndKey {
        self.issue(&Subject::Server(vec!["127.0.0.1".to_owned()]))
    }
}

async fn serve(
    authority: &Authority,
    clients: Clients,
    shutdown: &Shutdown,
) -> (SocketAddr, Arc<ServingCertificate>) {
    let certificate = ServingCertificate::new(&authority.server()).unwrap();
    let router = Router::new()
        .route("/", get(|| async { "here\n" }))
        .route("/panic", get(panicking))
        .route(
            "/length",
            post(|body: axum::body::Bytes| async move { body.len().to_string() }),
        );
    let server = HttpsServer {
        name: "test server",
        address: LOOPBACK,
        router,
        certificate: Arc::clone(&certificate),
        clients,
        limits: Limits {
            body_bytes: 100_000,
            request_limit: Duration::from_secs(2),
            connections: 8,
        },
    };
    (server.spawn(shutdown).await.unwrap(), certificate)
}

async fn panicking() -> &'static str {
    panic!("a handler that panics")
}

async fn connect(
    address: SocketAddr,
    authority: &Authority,
    client: Option<&CertificateAndKey>,
) -> std::io::Result<TlsStream<TcpStream>> {
    let roots = tls::root_store(&authority.set.bundle_pem(), "bundle").unwrap();
    let builder = ClientConfig::builder().with_root_certificates(roots);
    let config = match client {
        None => builder.with_no_client_auth(),
        Some(pair) => {
            let chain =
                vec![CertificateDer::from_pem_slice(pair.certificate_pem.as_bytes()).unwrap()];
            let key = PrivateKeyDer::from_pem_slice(pair.key_pem.as_bytes()).unwrap();
            builder.with_client_auth_cert(chain, key).unwrap()
        }
    };
    let name = ServerName::try_from("127.0.0.1").unwrap();
    let stream = TcpStream::connect(address).await?;
    TlsConnector::from(Arc::new(config))
        .connect(name, stream)
        .await
}

/// Sends and reads until the server closes; empty if it closed without an answer.
async fn exchange(mut stream: impl AsyncReadExt + AsyncWriteExt + Unpin, request: &[u8]) -> String {
    // A server that refuses may close while we still send.
    let _ = stream.write_all(request).await;
    let mut answer = Vec::new();
    let _ = tokio::time::timeout(DEADLINE, stream.read_to_end(&mut answer))
        .await
        .expect("the server closes the connection");
    String::from_utf8(answer).unwrap()
}

fn request(method: &str, path: &str, body_bytes: usize) -> Vec<u8> {
    let mut request = format!(
        "{method} {path} HTTP/1.1\r\nhost: test\r\nconnection: close\r\ncontent-length: {body_bytes}\r\n\r\n"
    )
    .into_bytes();
    request.resize(request.len() + body_bytes, b'x');
    request
}

#[tokio::test]
async fn a_new_certificate_is_shown_at_the_next_handshake_and_old_connections_go_on() {
    let shutdown = Shutdown::default();
    let authority = Authority::new();
    let (address, certificate) = serve(&authority, Clients::Anyone, &shutdown).await;
    let shown =
        |stream: &TlsStream<TcpStream>| stream.get_ref().1.peer_certificates().unwrap()[0].clone();
    let before = connect(address, &authority, None).await.unwrap();
    let old = shown(&before);

    let renewed = authority.server();
    certificate.replace(&renewed).unwrap();
    let after = connect(address, &authority, None).await.unwrap();
    assert_ne!(shown(&after), old);
    assert_eq!(
        shown(&after),
        CertificateDer::from_pem_slice(renewed.certificate_pem.as_bytes()).unwrap()
    );
    assert!(
        exchange(before, &request("GET", "/", 0))
            .await
            .ends_with("here\n")
    );

    let other_key = CertificateAndKey {
        key_pem: authority.server().key_pem,
        ..renewed
    };
    assert!(
        certificate.replace(&other_key).is_err(),
        "a key of another certificate"
    );
    assert!(
        exchange(after, &request("GET", "/", 0))
            .await
            .ends_with("here\n")
    );
}

#[tokio::test]
async fn where_clients_are_verified_others_get_no_answer() {
    let shutdown = Shutdown::default();
    let authority = Authority::new();
    let stranger = Authority::new();
    let clients = Clients::Verified {
        ca_bundle_pem: authority.set.bundle_pem(),
    };
    let (address, _) = serve(&authority, clients, &shutdown).await;
    let subject = Subject::Client("scheduler".to_owned());
    for (client, welcome) in [
        (Some(authority.issue(&subject)), true),
        (Some(stranger.issue(&subject)), false),
        (Some(authority.server()), false),
        (None, false),
    ] {
        // In TLS 1.3 a client learns of its refusal only when it reads.
        let answer = match connect(address, &authority, client.as_ref()).await {
            Ok(stream) => exchange(stream, &request("GET", "/", 0)).await,
            Err(_) => String::new(),
        };
        assert_eq!(answer.ends_with("here\n"), welcome, "{client:?}: {answer}");
    }
}

#[tokio::test]
async fn bodies_are_limited_and_a_panic_costs_one_request() {
    let shutdown = Shutdown::default();
    let authority = Authority::new();
    let (address, _) = serve(&authority, Clients::Anyone, &shutdown).await;
    for (method, path, body_bytes, status) in [
        ("POST", "/length", 100_000, "200"),
        ("POST", "/length", 100_001, "413"),
        ("GET", "/panic", 0, "500"),
        ("GET", "/nowhere", 0, "404"),
        ("GET", "/length", 0, "405"),
        ("GET", "/", 0, "200"),
    ] {
        let stream = connect(address, &authority, None).await.unwrap();
        let answer = exchange(stream, &request(method, path, body_bytes)).await;
        assert!(
            answer.starts_with(&format!("HTTP/1.1 {status}")),
            "{method} {path}: {answer}"
        );
    }
}

#[tokio::test]
async fn slow_clients_are_cut_off_and_honest_ones_are_answered_meanwhile() {
    let shutdown = Shutdown::default();
    let authority = Authority::new();
    let (address, _) = serve(&authority, Clients::Anyone, &shutdown).await;
    let begun = Instant::now();
    let silent = connect(address, &authority, None).await.unwrap();
    let slow_headers = connect(address, &authority, None).await.unwrap();
    let slow_body = connect(address, &authority, None).await.unwrap();
    let no_handshake = TcpStream::connect(address).await.unwrap();

    let honest = connect(address, &authority, None).await.unwrap();
    let asked = Instant::now();
    assert!(
        exchange(honest, &request("GET", "/", 0))
            .await
            .ends_with("here\n")
    );
    assert!(
        asked.elapsed() < Duration::from_secs(1),
        "{:?}",
        asked.elapsed()
    );

    let (silent, slow_headers, slow_body, no_handshake) = tokio::join!(
        exchange(silent, b""),
        exchange(slow_headers, b"GET / HTTP/1.1\r\nhost: te"),
        exchange(
            slow_body,
            b"POST /length HTTP/1.1\r\nhost: test\r\ncontent-length: 10\r\n\r\nx"
        ),
        exchange(no_handshake, b""),
    );
    assert_eq!((silent.as_str(), no_handshake.as_str()), ("", ""));
    assert!(!slow_headers.starts_with("HTTP/1.1 200"), "{slow_headers}");
    assert!(slow_body.starts_with("HTTP/1.1 408"), "{slow_body}");
    assert!(begun.elapsed() < DEADLINE);
}

#[tokio::test]
async fn connections_are_limited_and_places_come_back() {
    let shutdown = Shutdown::default();
    let authority = Authority::new();
    let (address, _) = serve(&authority, Clients::Anyone, &shutdown).await;
    let mut held = Vec::new();
    for _ in 0..8 {
        held.push(connect(address, &authority, None).await.unwrap());
    }
    assert!(
        connect(address, &authority, None).await.is_err(),
        "the ninth is closed"
    );
    held.clear();
    let begun = Instant::now();
    loop {
        if let Ok(stream) = connect(address, &authority, None).await {
            assert!(
                exchange(stream, &request("GET", "/", 0))
                    .await
                    .ends_with("here\n")
            );
            return;
        }
        assert!(begun.elapsed() < DEADLINE, "no place came back");
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn the_admin_server_tells_health_readiness_and_metrics() {
    let shutdown = Shutdown::default();
    let readiness = Readiness::default();
    let pods = readiness.condition("watch Pod");
    let address = admin::spawn(LOOPBACK, Metrics::new("test", "0"), readiness, &shutdown)
        .await
        .unwrap();
    let get = async |path| {
        let stream = TcpStream::connect(address).await.unwrap();
        exchange(stream, &request("GET", path, 0)).await
    };
    assert!(get("/healthz").await.starts_with("HTTP/1.1 200"));
    let answer = get("/readyz").await;
    assert!(
        answer.starts_with("HTTP/1.1 503") && answer.ends_with("not ready: watch Pod\n"),
        "{answer}"
    );
    pods.set(true);
    assert!(get("/readyz").await.starts_with("HTTP/1.1 200"));
    assert!(
        get("/metrics")
            .await
            .contains("process_resident_memory_bytes")
    );
    assert!(get("/debug").await.starts_with("HTTP/1.1 404"));
    shutdown.request();
    shutdown.finish(DEADLINE).await.unwrap();
    assert!(
        TcpStream::connect(address).await.is_err(),
        "it no longer listens"
    );
}
