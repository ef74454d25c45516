//! Our servers over real sockets.

use std::{
    net::{Ipv4Addr, SocketAddr},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
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
    net::{TcpSocket, TcpStream},
    sync::Notify,
    time::Instant,
};
use tokio_rustls::{TlsConnector, client::TlsStream};

use crate::{
    admin,
    certificates::{AuthoritySet, Policy, Subject},
    metrics::Metrics,
    readiness::Readiness,
    server::{ANSWERS_CONDITION, HttpsServer, Limits, SELF_CHECK_PATH, SelfCheck},
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

/// What the servers of these tests grant.
const LIMITS: Limits = Limits {
    body_bytes: 100_000,
    body_limit: Duration::from_secs(1),
    buffered_bytes: 1_000_000,
    request_limit: Duration::from_secs(2),
    connections: 8,
};

async fn serve(
    authority: &Authority,
    clients: Clients,
    shutdown: &Shutdown,
) -> (SocketAddr, Arc<ServingCertificate>) {
    let readiness = Readiness::default();
    let (stuck, router) = (Arc::default(), Router::new());
    serve_with(
        authority, clients, LIMITS, &readiness, stuck, router, shutdown,
    )
    .await
}

/// Whether the path that serves is stuck.
type Stuck = Arc<AtomicBool>;

async fn serve_with(
    authority: &Authority,
    clients: Clients,
    limits: Limits,
    readiness: &Readiness,
    stuck: Stuck,
    more: Router,
    shutdown: &Shutdown,
) -> (SocketAddr, Arc<ServingCertificate>) {
    let certificate = ServingCertificate::new(&authority.server()).unwrap();
    let router = Router::new()
        .route("/", get(|| async { "here\n" }))
        .route("/panic", get(panicking))
        .route(
            "/length",
            post(|body: axum::body::Bytes| async move { body.len().to_string() }),
        )
        .route(
            SELF_CHECK_PATH,
            get(|| async move {
                while stuck.load(Ordering::SeqCst) {
                    tokio::time::sleep(Duration::from_millis(10)).await;
                }
            }),
        )
        .merge(more);
    let identity = matches!(clients, Clients::Verified { .. })
        .then(|| authority.issue(&Subject::Client("self-check".to_owned())));
    let server = HttpsServer {
        name: "test server",
        address: LOOPBACK,
        router,
        certificate: Arc::clone(&certificate),
        clients,
        limits,
        self_check: SelfCheck {
            answers: readiness.condition(ANSWERS_CONDITION),
            identity,
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

/// Opens a plain connection from this loopback address.
async fn connect_from(source: [u8; 4], address: SocketAddr) -> TcpStream {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind((Ipv4Addr::from(source), 0).into()).unwrap();
    socket.connect(address).await.unwrap()
}

/// Waits until something is so.
async fn eventually(what: &str, mut is_so: impl AsyncFnMut() -> bool) {
    let waited = tokio::time::timeout(DEADLINE, async {
        while !is_so().await {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    });
    waited.await.unwrap_or_else(|_| panic!("{what}"));
}

/// Whether the server has closed this connection, which says nothing otherwise.
async fn is_closed(stream: &mut (impl AsyncReadExt + Unpin)) -> bool {
    let mut buffer = [0; 16];
    tokio::time::timeout(Duration::from_millis(1), stream.read(&mut buffer))
        .await
        .is_ok()
}

#[tokio::test]
async fn who_hoards_connections_loses_the_oldest_to_a_newcomer() {
    let shutdown = Shutdown::default();
    let authority = Authority::new();
    let (address, _) = serve(&authority, Clients::Anyone, &shutdown).await;
    let mut hoard = Vec::new();
    // One peer may have four of the eight.
    for _ in 0..4 {
        hoard.push(connect(address, &authority, None).await.unwrap());
    }
    let honest = connect(address, &authority, None).await.unwrap();
    let answer = exchange(honest, &request("GET", "/", 0)).await;
    assert!(answer.ends_with("here\n"), "{answer}");
    eventually("the oldest is closed", async || {
        is_closed(&mut hoard[0]).await
    })
    .await;
    assert!(!is_closed(&mut hoard[3]).await, "the newest is kept");
}

#[tokio::test]
async fn a_connection_that_was_served_outlives_any_number_that_never_were() {
    let shutdown = Shutdown::default();
    let authority = Authority::new();
    let (address, _) = serve(&authority, Clients::Anyone, &shutdown).await;
    let mut honest = connect(address, &authority, None).await.unwrap();
    let ask = async |stream: &mut TlsStream<TcpStream>| {
        let request = b"GET / HTTP/1.1\r\nhost: test\r\n\r\n";
        stream.write_all(request).await.unwrap();
        let mut answer = vec![0; 1024];
        let bytes = stream.read(&mut answer).await.unwrap();
        String::from_utf8_lossy(&answer[..bytes]).into_owned()
    };
    assert!(ask(&mut honest).await.ends_with("here\n"));
    let mut hoard = Vec::new();
    for _ in 0..20 {
        hoard.push(connect(address, &authority, None).await.unwrap());
    }
    assert!(ask(&mut honest).await.ends_with("here\n"));
}

#[tokio::test]
async fn handshakes_that_never_end_take_no_connection_and_give_way() {
    let shutdown = Shutdown::default();
    let authority = Authority::new();
    let (address, _) = serve(&authority, Clients::Anyone, &shutdown).await;
    let mut silent = Vec::new();
    for _ in 0..400 {
        silent.push(TcpStream::connect(address).await.unwrap());
    }
    let begun = Instant::now();
    let honest = connect(address, &authority, None).await.unwrap();
    assert!(
        exchange(honest, &request("GET", "/", 0))
            .await
            .ends_with("here\n")
    );
    // Below the limit of a handshake: it did not wait for one to end.
    assert!(begun.elapsed() < Duration::from_secs(4));
    eventually("the oldest is closed", async || {
        is_closed(&mut silent[0]).await
    })
    .await;
}

#[tokio::test]
async fn bodies_that_never_end_take_no_turn_and_no_bytes_from_others() {
    let shutdown = Shutdown::default();
    let authority = Authority::new();
    let limits = Limits {
        connections: 512,
        ..LIMITS
    };
    let readiness = Readiness::default();
    let (address, _) = serve_with(
        &authority,
        Clients::Anyone,
        limits,
        &readiness,
        Arc::default(),
        Router::new(),
        &shutdown,
    )
    .await;
    // All but the last byte of bodies that fill the budget several times over, and more of them than there are turns.
    let mut greedy = Vec::new();
    for _ in 0..100 {
        let mut stream = connect(address, &authority, None).await.unwrap();
        let mut unfinished = request("POST", "/length", 100_000);
        unfinished.pop();
        let _ = stream.write_all(&unfinished).await;
        greedy.push(stream);
        let honest = connect(address, &authority, None).await.unwrap();
        let answer = exchange(honest, &request("POST", "/length", 5_000)).await;
        assert!(answer.ends_with("5000"), "{answer}");
    }
    let answers = greedy.into_iter().map(|stream| exchange(stream, b""));
    for answer in futures::future::join_all(answers).await {
        let refused = ["HTTP/1.1 408", "HTTP/1.1 503"];
        assert!(
            refused.iter().any(|status| answer.starts_with(status)),
            "{answer}"
        );
    }
}

#[tokio::test]
async fn a_body_has_one_second_however_long_its_request_may_take() {
    let shutdown = Shutdown::default();
    let authority = Authority::new();
    let limits = Limits {
        request_limit: Duration::from_secs(60),
        ..LIMITS
    };
    let readiness = Readiness::default();
    let (address, _) = serve_with(
        &authority,
        Clients::Anyone,
        limits,
        &readiness,
        Arc::default(),
        Router::new(),
        &shutdown,
    )
    .await;
    let stream = connect(address, &authority, None).await.unwrap();
    let unfinished = b"POST /length HTTP/1.1\r\nhost: test\r\ncontent-length: 10\r\n\r\nx";
    let answer = exchange(stream, unfinished).await;
    assert!(
        answer.ends_with("the body did not come within 1000 ms\n"),
        "{answer}"
    );
}

/// It asks itself, so it knows; a flood from outside, from every side, is not silence.
#[tokio::test]
async fn a_server_that_is_stuck_is_not_ready_and_one_that_is_flooded_is() {
    let shutdown = Shutdown::default();
    let authority = Authority::new();
    let (readiness, stuck) = (Readiness::default(), Stuck::default());
    let clients = Clients::Verified {
        ca_bundle_pem: authority.set.bundle_pem(),
    };
    let (address, _) = serve_with(
        &authority,
        clients,
        LIMITS,
        &readiness,
        Arc::clone(&stuck),
        Router::new(),
        &shutdown,
    )
    .await;
    eventually("it answers itself", async || readiness.is_ready()).await;

    let identity = authority.issue(&Subject::Client("scheduler".to_owned()));
    let flooded_until = Instant::now() + Duration::from_secs(5);
    let mut open = Vec::new();
    while Instant::now() < flooded_until {
        for last in 1..=20 {
            open.push(connect_from([127, 0, 0, last], address).await);
        }
        let stream = connect(address, &authority, Some(&identity)).await;
        if let Ok(mut stream) = stream {
            let unfinished = request("POST", "/length", 90_000);
            let _ = stream.write_all(&unfinished[..80_000]).await;
            open.push(stream.into_inner().0);
        }
        if open.len() > 600 {
            open.drain(..200);
        }
        assert!(readiness.is_ready(), "a flood made it unready");
    }
    drop(open);

    stuck.store(true, Ordering::SeqCst);
    eventually("it is found out", async || !readiness.is_ready()).await;
    stuck.store(false, Ordering::SeqCst);
    eventually("it is ready again", async || readiness.is_ready()).await;
}

#[tokio::test]
async fn what_is_in_flight_is_finished_and_nothing_new_is_accepted_at_the_end() {
    let shutdown = Shutdown::default();
    let authority = Authority::new();
    let (begun, may_end) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let (tell, wait) = (Arc::clone(&begun), Arc::clone(&may_end));
    let slow = Router::new().route(
        "/slow",
        get(|| async move {
            tell.notify_one();
            wait.notified().await;
            "finished\n"
        }),
    );
    let readiness = Readiness::default();
    let (address, _) = serve_with(
        &authority,
        Clients::Anyone,
        LIMITS,
        &readiness,
        Arc::default(),
        slow,
        &shutdown,
    )
    .await;
    let stream = connect(address, &authority, None).await.unwrap();
    let asked = tokio::spawn(async move { exchange(stream, &request("GET", "/slow", 0)).await });
    begun.notified().await;
    shutdown.request();
    eventually("it no longer listens", async || {
        TcpStream::connect(address).await.is_err()
    })
    .await;
    may_end.notify_one();
    assert!(asked.await.unwrap().ends_with("finished\n"));
    shutdown.finish(DEADLINE).await.unwrap();
}

#[tokio::test]
async fn probes_are_answered_while_somebody_holds_every_connection_of_their_port() {
    let shutdown = Shutdown::default();
    let metrics = Metrics::new("test", "0");
    let address = admin::spawn(LOOPBACK, metrics, Readiness::default(), &shutdown)
        .await
        .unwrap();
    let mut held = Vec::new();
    for number in 0..400_u16 {
        let [_, last] = number.to_be_bytes();
        let mut stream = connect_from([127, 0, 0, last % 4 + 1], address).await;
        stream
            .write_all(b"GET /healthz HTTP/1.1\r\nhost: te")
            .await
            .unwrap();
        held.push(stream);
    }
    for path in ["/healthz", "/readyz", "/metrics"] {
        let probe = TcpStream::connect(address).await.unwrap();
        let asked = Instant::now();
        let answer = exchange(probe, &request("GET", path, 0)).await;
        assert!(answer.starts_with("HTTP/1.1 200"), "{path}: {answer}");
        // The kubelet gives up after 2 s.
        assert!(asked.elapsed() < Duration::from_secs(2));
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
