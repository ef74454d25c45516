//! Our servers over real sockets.

use std::{
    collections::VecDeque,
    net::{Ipv4Addr, SocketAddr},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use axum::{
    Router,
    body::Bytes,
    routing::{get, post},
};
use rustls::{
    ClientConfig,
    pki_types::{CertificateDer, ServerName, pem::PemObject},
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpSocket, TcpStream},
    sync::{Notify, watch},
    task::JoinHandle,
    time::Instant,
};
use tokio_rustls::{TlsConnector, client::TlsStream};

use crate::{
    admin,
    certificates::{AuthoritySet, Policy, Subject},
    metrics::Metrics,
    readiness::Readiness,
    server::{ANSWERS_CONDITION, HttpsServer, Limits, SELF_CHECK_PATH},
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

/// Whether the path that serves is stuck.
type Stuck = Arc<AtomicBool>;

/// A server, and what it takes to talk to it.
struct Served {
    authority: Authority,
    address: SocketAddr,
    certificate: Arc<ServingCertificate>,
    clients: watch::Sender<Clients>,
    readiness: Readiness,
    stuck: Stuck,
    shutdown: Shutdown,
}

impl Served {
    /// The plain one: for anyone, with [`LIMITS`].
    async fn start() -> Self {
        Self::with(LIMITS).await
    }

    async fn with(limits: Limits) -> Self {
        Self::for_clients(|_| Clients::Anyone, limits, Router::new()).await
    }

    async fn for_clients(
        clients: impl FnOnce(&Authority) -> Clients,
        limits: Limits,
        more: Router,
    ) -> Self {
        let authority = Authority::new();
        let (readiness, shutdown) = (Readiness::default(), Shutdown::default());
        let stuck = Stuck::default();
        let certificate = ServingCertificate::new(&authority.server()).unwrap();
        let clients = watch::Sender::new(clients(&authority));
        let server = HttpsServer {
            name: "test server",
            address: LOOPBACK,
            router: routes(Arc::clone(&stuck)).merge(more),
            certificate: Arc::clone(&certificate),
            clients: clients.subscribe(),
            limits,
            answers: readiness.condition(ANSWERS_CONDITION),
        };
        Self {
            address: server.spawn(&shutdown).await.unwrap(),
            authority,
            certificate,
            clients,
            readiness,
            stuck,
            shutdown,
        }
    }

    async fn connect(&self) -> TlsStream<TcpStream> {
        self.try_connect(None).await.unwrap()
    }

    async fn try_connect(
        &self,
        client: Option<&CertificateAndKey>,
    ) -> std::io::Result<TlsStream<TcpStream>> {
        let stream = TcpStream::connect(self.address).await?;
        self.handshake(stream, client, &[]).await
    }

    async fn handshake(
        &self,
        stream: TcpStream,
        client: Option<&CertificateAndKey>,
        protocols: &[&[u8]],
    ) -> std::io::Result<TlsStream<TcpStream>> {
        let roots = tls::root_store(&self.authority.set.bundle_pem(), "bundle").unwrap();
        let builder = ClientConfig::builder().with_root_certificates(roots);
        let mut config = match client {
            None => builder.with_no_client_auth(),
            Some(pair) => {
                let (chain, key) = tls::decoded(pair).unwrap();
                builder.with_client_auth_cert(chain, key).unwrap()
            }
        };
        config.alpn_protocols = protocols.iter().map(|name| name.to_vec()).collect();
        let name = ServerName::try_from("127.0.0.1").unwrap();
        TlsConnector::from(Arc::new(config))
            .connect(name, stream)
            .await
    }

    /// Asks honestly: the answer comes, and soon.
    async fn answers(&self) {
        let asked = Instant::now();
        let answer = exchange(self.connect().await, &request("POST", "/length", 5_000)).await;
        assert!(answer.ends_with("5000"), "{answer}");
        let took = asked.elapsed();
        assert!(took < Duration::from_secs(1), "the answer took {took:?}");
    }
}

fn routes(stuck: Stuck) -> Router {
    Router::new()
        .route("/", get(|| async { "here\n" }))
        .route("/panic", get(panicking))
        .route(
            "/length",
            post(|body: Bytes| async move { body.len().to_string() }),
        )
        .route(
            SELF_CHECK_PATH,
            get(|| async move {
                while stuck.load(Ordering::SeqCst) {
                    tokio::time::sleep(Duration::from_millis(10)).await;
                }
            }),
        )
}

fn verified(authority: &Authority) -> Clients {
    Clients::Verified {
        ca_bundle_pem: authority.set.bundle_pem(),
        own: Some(authority.issue(&Subject::Client("self-check".to_owned()))),
    }
}

async fn panicking() -> &'static str {
    panic!("a handler that panics")
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
    let server = Served::start().await;
    let shown =
        |stream: &TlsStream<TcpStream>| stream.get_ref().1.peer_certificates().unwrap()[0].clone();
    let before = server.connect().await;
    let old = shown(&before);

    let renewed = server.authority.server();
    server.certificate.replace(&renewed).unwrap();
    let after = server.connect().await;
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
        key_pem: server.authority.server().key_pem,
        ..renewed
    };
    assert!(
        server.certificate.replace(&other_key).is_err(),
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
    let server = Served::for_clients(verified, LIMITS, Router::new()).await;
    let (authority, stranger) = (&server.authority, Authority::new());
    let subject = Subject::Client("scheduler".to_owned());
    for (client, welcome) in [
        (Some(authority.issue(&subject)), true),
        (Some(stranger.issue(&subject)), false),
        (Some(authority.server()), false),
        (None, false),
    ] {
        assert_eq!(
            lets_in(&server, client.as_ref()).await,
            welcome,
            "{client:?}"
        );
    }
}

async fn lets_in(server: &Served, client: Option<&CertificateAndKey>) -> bool {
    // In TLS 1.3 a client learns of its refusal only when it reads.
    match server.try_connect(client).await {
        Ok(stream) => {
            let answer = exchange(stream, &request("GET", "/", 0)).await;
            answer.ends_with("here\n")
        }
        Err(_) => false,
    }
}

#[tokio::test]
async fn other_authorities_count_from_the_next_handshake_on_and_the_server_still_answers_itself() {
    let server = Served::for_clients(verified, LIMITS, Router::new()).await;
    let readiness = &server.readiness;
    eventually("it answers itself", async || readiness.is_ready()).await;
    let subject = Subject::Client("scheduler".to_owned());
    let (old, other) = (server.authority.issue(&subject), Authority::new());
    let new = other.issue(&subject);
    let before = server.try_connect(Some(&old)).await.unwrap();

    // What is no certificate changes nothing.
    server.clients.send_replace(Clients::Verified {
        ca_bundle_pem: "garbage".to_owned(),
        own: None,
    });
    assert!(lets_in(&server, Some(&old)).await);

    server.clients.send_replace(verified(&other));
    let new_is_let_in = async || lets_in(&server, Some(&new)).await;
    eventually("the new one is let in", new_is_let_in).await;
    assert!(!lets_in(&server, Some(&old)).await);
    let answer = exchange(before, &request("GET", "/", 0)).await;
    assert!(answer.ends_with("here\n"), "{answer}");
    // It would be found out after three questions that nobody answers, one a second.
    let asked_until = Instant::now() + Duration::from_secs(5);
    while Instant::now() < asked_until {
        assert!(readiness.is_ready(), "it asks itself as who is not let in");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

#[tokio::test]
async fn bodies_are_limited_and_a_panic_costs_one_request() {
    let server = Served::start().await;
    for (method, path, body_bytes, status) in [
        ("POST", "/length", 100_000, "200"),
        ("POST", "/length", 100_001, "413"),
        ("GET", "/panic", 0, "500"),
        ("GET", "/nowhere", 0, "404"),
        ("GET", "/length", 0, "405"),
        ("GET", "/", 0, "200"),
    ] {
        let stream = server.connect().await;
        let answer = exchange(stream, &request(method, path, body_bytes)).await;
        assert!(
            answer.starts_with(&format!("HTTP/1.1 {status}")),
            "{method} {path}: {answer}"
        );
    }
}

#[tokio::test]
async fn slow_clients_are_cut_off_and_honest_ones_are_answered_meanwhile() {
    let server = Served::start().await;
    let begun = Instant::now();
    let silent = server.connect().await;
    let slow_headers = server.connect().await;
    let slow_body = server.connect().await;
    let no_handshake = TcpStream::connect(server.address).await.unwrap();

    let honest = server.connect().await;
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

#[test]
fn all_that_a_program_accepts_fits_into_1024_descriptors() {
    let most = super::HANDSHAKES + Limits::OBJECTS.connections + Limits::SMALL.connections;
    assert!(most + 100 <= 1024, "{most}");
}

#[tokio::test]
async fn who_hoards_connections_loses_the_oldest_to_a_newcomer() {
    let server = Served::start().await;
    let mut hoard = Vec::new();
    // One peer may have four of the eight.
    for _ in 0..4 {
        hoard.push(server.connect().await);
    }
    let honest = server.connect().await;
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
    let server = Served::start().await;
    let mut honest = server.connect().await;
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
        hoard.push(server.connect().await);
    }
    assert!(ask(&mut honest).await.ends_with("here\n"));
}

#[tokio::test]
async fn handshakes_that_never_end_take_no_connection_and_give_way() {
    let server = Served::start().await;
    let mut silent = Vec::new();
    // One peer may have 224 handshakes.
    for _ in 0..400 {
        silent.push(TcpStream::connect(server.address).await.unwrap());
    }
    let begun = Instant::now();
    let honest = server.connect().await;
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

/// On one thread, so that what is worked on first is no question of luck.
#[tokio::test]
async fn many_requests_that_were_sent_at_once_take_turns_with_those_of_others() {
    let order: Arc<Mutex<Vec<&str>>> = Arc::default();
    let note = |who| {
        let order = Arc::clone(&order);
        get(move || async move { order.lock().unwrap().push(who) })
    };
    let more = Router::new()
        .route("/greedy", note("greedy"))
        .route("/honest", note("honest"));
    let server = Served::for_clients(|_| Clients::Anyone, LIMITS, more).await;
    let mut greedy = server.connect().await;
    let mut honest = server.connect().await;
    let many = b"GET /greedy HTTP/1.1\r\nhost: test\r\n\r\n".repeat(200);
    greedy.write_all(&many).await.unwrap();
    let one = b"GET /honest HTTP/1.1\r\nhost: test\r\n\r\n";
    honest.write_all(one).await.unwrap();
    assert!(honest.read(&mut [0; 512]).await.unwrap() > 0);
    let order = order.lock().unwrap();
    let before = order.iter().position(|who| *who == "honest").unwrap();
    assert!(before < 8, "{before} requests of one client come first");
}

#[tokio::test]
async fn bodies_that_never_end_take_no_turn_and_no_bytes_from_others() {
    let server = Served::with(Limits {
        connections: 512,
        ..LIMITS
    })
    .await;
    // All but the last byte of bodies that fill the budget several times over, and more of them than there are turns.
    let mut greedy = Vec::new();
    for _ in 0..100 {
        let mut stream = server.connect().await;
        let mut unfinished = request("POST", "/length", 100_000);
        unfinished.pop();
        let _ = stream.write_all(&unfinished).await;
        greedy.push(stream);
        let honest = server.connect().await;
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

/// HTTP/2, granting the server so many bytes of each answer.
async fn connect_http2(
    server: &Served,
    window_bytes: u32,
) -> (h2::client::SendRequest<Bytes>, JoinHandle<()>) {
    let stream = TcpStream::connect(server.address).await.unwrap();
    let stream = server.handshake(stream, None, &[b"h2"]).await.unwrap();
    let mut builder = h2::client::Builder::new();
    let handshake = builder.initial_window_size(window_bytes).handshake(stream);
    let (requests, connection) = handshake.await.unwrap();
    (requests, tokio::spawn(async { _ = connection.await }))
}

#[tokio::test]
async fn answers_that_nobody_fetches_end_their_connection_and_are_at_nobody_elses_cost() {
    let server = Served::start().await;
    let get = || http::Request::get("https://test/").body(()).unwrap();
    let (mut patient, _connection) = connect_http2(&server, 65_535).await;
    let (mut silent, silent_connection) = connect_http2(&server, 0).await;
    let mut unfetched = Vec::new();
    // One peer may have 30 requests of 16 KiB each.
    for _ in 0..100 {
        let Ok(ready) = silent.ready().await else {
            break;
        };
        silent = ready;
        let (answer, _) = silent.send_request(get(), true).unwrap();
        match answer.await {
            Ok(answer) => unfetched.push(answer),
            Err(_) => break,
        }
        server.answers().await;
        patient = patient.ready().await.unwrap();
        let (answer, _) = patient.send_request(get(), true).unwrap();
        let mut body = answer.await.unwrap().into_body();
        assert_eq!(body.data().await.unwrap().unwrap(), "here\n");
    }
    assert!(unfetched.len() < 60, "{} are kept", unfetched.len());
    let ended = tokio::time::timeout(DEADLINE, silent_connection).await;
    assert!(ended.is_ok(), "the connection goes on");
}

/// As little as a request can hold, from two addresses, on few connections.
#[tokio::test]
async fn requests_whose_bodies_never_begin_leave_room_for_those_that_have_one() {
    let server = Served::with(Limits {
        connections: 64,
        buffered_bytes: 16_000_000,
        ..LIMITS
    })
    .await;
    let until = Instant::now() + Duration::from_secs(3);
    let mut floods = Vec::new();
    // One peer may have 488 such requests, and one connection 250.
    for last in [1, 1, 1, 2, 2, 2] {
        let stream = connect_from([127, 0, 0, last], server.address).await;
        let stream = server.handshake(stream, None, &[b"h2"]).await.unwrap();
        let (requests, connection) = h2::client::handshake(stream).await.unwrap();
        floods.push(tokio::spawn(async { _ = connection.await }));
        floods.push(tokio::spawn(send_no_bodies(requests, until)));
    }
    while Instant::now() < until {
        server.answers().await;
    }
    for flood in floods {
        flood.abort();
    }
}

/// As many requests as the server lets one connection have, again and again.
async fn send_no_bodies(mut requests: h2::client::SendRequest<Bytes>, until: Instant) {
    let mut open = VecDeque::new();
    while Instant::now() < until {
        let Ok(ready) = requests.ready().await else {
            return;
        };
        requests = ready;
        let post = http::Request::post("https://test/length").body(()).unwrap();
        let Ok(stream) = requests.send_request(post, false) else {
            return;
        };
        open.push_back(stream);
        // Those before it have been answered: their bodies were late.
        if open.len() > 500 {
            open.pop_front();
        }
    }
}

#[tokio::test]
async fn a_body_has_one_second_however_long_its_request_may_take() {
    let server = Served::with(Limits {
        request_limit: Duration::from_secs(60),
        ..LIMITS
    })
    .await;
    let stream = server.connect().await;
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
    let server = Served::for_clients(verified, LIMITS, Router::new()).await;
    let readiness = &server.readiness;
    eventually("it answers itself", async || readiness.is_ready()).await;

    let scheduler = Subject::Client("scheduler".to_owned());
    let identity = server.authority.issue(&scheduler);
    let flooded_until = Instant::now() + Duration::from_secs(5);
    let mut open = Vec::new();
    while Instant::now() < flooded_until {
        for last in 1..=20 {
            open.push(connect_from([127, 0, 0, last], server.address).await);
        }
        let stream = server.try_connect(Some(&identity)).await;
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

    server.stuck.store(true, Ordering::SeqCst);
    eventually("it is found out", async || !readiness.is_ready()).await;
    server.stuck.store(false, Ordering::SeqCst);
    eventually("it is ready again", async || readiness.is_ready()).await;
}

#[tokio::test]
async fn at_the_end_requests_are_answered_until_clients_know_and_what_is_in_flight_is_finished() {
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
    let limits = Limits {
        request_limit: Duration::from_secs(60),
        ..LIMITS
    };
    let server = Served::for_clients(|_| Clients::Anyone, limits, slow).await;
    let stopped = Instant::now();
    let stream = server.connect().await;
    let asked = tokio::spawn(async move { exchange(stream, &request("GET", "/slow", 0)).await });
    begun.notified().await;
    server.shutdown.request();
    // Who sends requests has not learned of it yet.
    let mut answered = Duration::ZERO;
    while TcpStream::connect(server.address).await.is_ok() {
        if stopped.elapsed() + Duration::from_secs(1) < super::SERVE_ON {
            server.answers().await;
            answered = stopped.elapsed();
        }
        assert!(stopped.elapsed() < DEADLINE, "it still listens");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    assert!(answered > super::SERVE_ON / 2, "refused after {answered:?}");
    may_end.notify_one();
    assert!(asked.await.unwrap().ends_with("finished\n"));
    server.shutdown.finish(DEADLINE).await.unwrap();
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
