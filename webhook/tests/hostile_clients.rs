//! The slow, the silent and the greedy client against the program itself, while kube-apiserver goes on asking.
//!
//! The webhook listens to everybody who reaches its port. Whatever the others do, from the address that kube-apiserver
//! has or from another, an honest review is answered in time: kube-apiserver gives up after 3 s.

#![expect(
    clippy::panic,
    clippy::unwrap_used,
    reason = "a test fails by panicking"
)]

mod support;

use std::{
    collections::VecDeque,
    net::Ipv4Addr,
    thread::JoinHandle,
    time::{Duration, Instant},
};

use axum::body::Bytes;
use h2::client::SendRequest;
use rustix::process::setpriority_process;
use serde_json::{Value, json};
use support::{Client, JSON, claiming_pod, program::Program, review};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpSocket, TcpStream},
    runtime::Builder,
    sync::Mutex,
};
use tokio_rustls::client::TlsStream;

/// The address that honest reviews come from.
const API_SERVER: [u8; 4] = [127, 0, 0, 1];
/// Another one.
const STRANGER: [u8; 4] = [127, 0, 0, 66];
/// Longest time for an honest review, in the debug build, on two cores that the flood shares: kube-apiserver waits 3 s.
const HONEST_LIMIT: Duration = Duration::from_secs(2);
/// Between two bursts of a flood. It is about what a flood holds, not about who has more processors.
const PACE: Duration = Duration::from_millis(5);
const BODY_LIMIT_BYTES: usize = 7 * 1024 * 1024;

/// One flood at a time: each takes hundreds of sockets of this process.
static FLOODS: Mutex<()> = Mutex::const_new(());

/// Asks honestly, and fails unless the answer comes in time.
async fn ask_honestly(webhook: &Client) {
    let asked = Instant::now();
    let request = review("Pod", &claiming_pod(&json!({})));
    let answer = tokio::time::timeout(HONEST_LIMIT, webhook.review("/mutate/pods", &request)).await;
    let answer: Value = answer.unwrap_or_else(|_| panic!("no answer within {HONEST_LIMIT:?}"));
    assert_eq!(answer["allowed"], true, "{answer}");
    let took = asked.elapsed();
    assert!(took < HONEST_LIMIT, "the answer took {took:?}");
}

/// Runs a flood on a thread of its own that yields to everybody else. A flood comes from other machines: what it costs to
/// send is not taken from the server, nor from those who ask honestly.
fn elsewhere<T: Send + 'static>(flood: impl Future<Output = T> + Send + 'static) -> JoinHandle<T> {
    std::thread::spawn(|| {
        // Of this thread alone, on Linux.
        setpriority_process(None, 19).unwrap();
        let runtime = Builder::new_current_thread().enable_all().build();
        runtime.unwrap().block_on(flood)
    })
}

/// Asks for as long as a flood goes on, and at least five times.
async fn ask_honestly_during<T: Send + 'static>(
    webhook: &Program,
    flood: impl Future<Output = T> + Send + 'static,
) -> T {
    let flood = elsewhere(flood);
    let mut answers = 0;
    while !flood.is_finished() || answers < 5 {
        ask_honestly(webhook).await;
        answers += 1;
    }
    let asked = Instant::now();
    assert_eq!(webhook.probe("/readyz").await.0, 200);
    assert_eq!(webhook.probe("/healthz").await.0, 200);
    assert!(asked.elapsed() < HONEST_LIMIT);
    let mebibytes = webhook.resident_bytes().await >> 20;
    // What the chart grants.
    assert!(mebibytes < 512, "{mebibytes} MiB");
    flood.join().unwrap()
}

fn head(length: usize) -> Vec<u8> {
    format!(
        "POST /mutate/pods HTTP/1.1\r\nHost: webhook\r\nContent-Type: {JSON}\r\nContent-Length: {length}\r\n\r\n"
    )
    .into_bytes()
}

/// Opens connections and sends on each, as far as the server takes it; they stay open.
async fn send_on_many(
    webhook: &Client,
    source: [u8; 4],
    connections: usize,
    bytes: &[u8],
) -> Vec<TlsStream<TcpStream>> {
    let mut open = Vec::new();
    for _ in 0..connections {
        if let Ok(mut stream) = webhook.connect(source).await {
            let writing = stream.write_all(bytes);
            let _ = tokio::time::timeout(Duration::from_millis(200), writing).await;
            open.push(stream);
        }
    }
    open
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bodies_that_never_end_hold_up_nobody_from_forty_connections_or_four_hundred() {
    let _alone = FLOODS.lock().await;
    let webhook = Program::start().await;
    let mut unfinished = head(1000);
    unfinished.extend_from_slice(b"{");
    for (source, connections) in [
        (API_SERVER, 40),
        (STRANGER, 40),
        (API_SERVER, 400),
        (STRANGER, 400),
    ] {
        let open = send_on_many(&webhook, source, connections, &unfinished).await;
        for _ in 0..5 {
            ask_honestly(&webhook).await;
        }
        drop(open);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn large_bodies_of_one_peer_do_not_use_up_the_bytes_of_small_ones() {
    let _alone = FLOODS.lock().await;
    let webhook = Program::start().await;
    let mut greedy = head(BODY_LIMIT_BYTES);
    greedy.resize(greedy.len() + BODY_LIMIT_BYTES - 1, b' ');
    for source in [STRANGER, API_SERVER] {
        // Twenty of them are more than twice the budget.
        let open = send_on_many(&webhook, source, 20, &greedy).await;
        for _ in 0..5 {
            ask_honestly(&webhook).await;
        }
        drop(open);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn large_reviews_wait_for_each_other_and_not_the_small_ones_for_them() {
    let _alone = FLOODS.lock().await;
    let webhook = Program::start().await;
    let padding = "x".repeat(BODY_LIMIT_BYTES - 2000);
    let large = review("Pod", &claiming_pod(&json!({"padding": padding}))).to_string();
    let mut request = head(large.len());
    request.extend_from_slice(large.as_bytes());
    let flood = send_on_many(&webhook, STRANGER, 12, &request);
    let honest = async {
        for _ in 0..30 {
            ask_honestly(&webhook).await;
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::join!(flood, honest);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slow_headers_and_handshakes_that_never_end_hold_up_nobody() {
    let _alone = FLOODS.lock().await;
    let webhook = Program::start().await;
    for source in [API_SERVER, STRANGER] {
        let slow = send_on_many(&webhook, source, 400, b"POST /mutate/pods HT").await;
        ask_honestly(&webhook).await;
        drop(slow);
        let mut silent = Vec::new();
        for _ in 0..400 {
            silent.push(webhook.dial(source).await.unwrap());
        }
        for _ in 0..5 {
            ask_honestly(&webhook).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connections_that_are_kept_open_after_a_review_hold_up_nobody() {
    let _alone = FLOODS.lock().await;
    let webhook = Program::start().await;
    let body = review("Pod", &claiming_pod(&json!({}))).to_string();
    let mut request = head(body.len());
    request.extend_from_slice(body.as_bytes());
    let mut kept = Vec::new();
    for _ in 0..400 {
        let mut stream = webhook.connect(API_SERVER).await.unwrap();
        stream.write_all(&request).await.unwrap();
        assert!(
            stream.read(&mut [0; 512]).await.unwrap() > 0,
            "it is answered"
        );
        kept.push(stream);
    }
    ask_honestly(&webhook).await;
}

/// HTTP/2 from this address, granting the server so many bytes of each answer.
async fn connect_http2(
    webhook: &Client,
    source: [u8; 4],
    window_bytes: u32,
) -> Option<SendRequest<Bytes>> {
    let stream = webhook.connect_speaking(source, &[b"h2"]).await.ok()?;
    let mut builder = h2::client::Builder::new();
    let handshake = builder.initial_window_size(window_bytes).handshake(stream);
    let (requests, connection) = handshake.await.ok()?;
    tokio::spawn(async { _ = connection.await });
    Some(requests)
}

/// What a hostile client does with a stream of HTTP/2.
#[derive(Clone, Copy, Debug)]
enum Stream {
    /// Takes it back at once.
    Reset,
    /// Never sends the body.
    NoBody,
    /// Never fetches the answer.
    Unfetched,
}

/// Streams on one connection, and on another one when that is ended, until the time is over.
async fn flood_connection(webhook: Client, source: [u8; 4], what: Stream, until: Instant) {
    let is_whole = matches!(what, Stream::Unfetched);
    let window_bytes = if is_whole { 0 } else { 65_535 };
    while Instant::now() < until {
        tokio::time::sleep(PACE).await;
        let Some(mut requests) = connect_http2(&webhook, source, window_bytes).await else {
            continue;
        };
        let (mut open, mut sent) = (VecDeque::new(), 0);
        while Instant::now() < until {
            let ready = tokio::time::timeout(Duration::from_millis(50), requests.ready());
            let Ok(Ok(ready)) = ready.await else {
                break;
            };
            requests = ready;
            let post = http::Request::post("https://webhook/mutate/pods").body(());
            let Ok(mut stream) = requests.send_request(post.unwrap(), is_whole) else {
                break;
            };
            if matches!(what, Stream::Reset) {
                stream.1.send_reset(h2::Reason::CANCEL);
            }
            open.push_back(stream);
            if open.len() > 240 && matches!(what, Stream::Reset) {
                open.pop_front();
            }
            sent += 1;
            if sent % 20 == 0 {
                tokio::time::sleep(PACE).await;
            }
        }
    }
}

/// The same on some connections.
async fn flood_streams(webhook: Client, source: [u8; 4], what: Stream, until: Instant) {
    let connections = (0..10).map(|_| flood_connection(webhook.clone(), source, what, until));
    futures::future::join_all(connections).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn streams_that_are_reset_never_sent_or_never_fetched_hold_up_nobody() {
    let _alone = FLOODS.lock().await;
    let mut webhook = Program::start().await;
    for what in [Stream::Reset, Stream::NoBody, Stream::Unfetched] {
        let until = Instant::now() + Duration::from_secs(3);
        let floods = [API_SERVER, STRANGER]
            .map(|source| flood_streams(webhook.client(), source, what, until));
        let floods = async move { _ = futures::future::join_all(floods).await };
        ask_honestly_during(&webhook, floods).await;
    }
    assert!(webhook.runs());
}

/// A frame of HTTP/2.
fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    let mut frame = length[1..].to_vec();
    frame.extend([kind, flags]);
    frame.extend(stream.to_be_bytes());
    frame.extend(payload);
    frame
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn headers_that_never_end_hold_up_nobody() {
    const HEADERS: u8 = 1;
    const SETTINGS: u8 = 4;
    const CONTINUATION: u8 = 9;
    let _alone = FLOODS.lock().await;
    let webhook = Program::start().await;
    let mut begin = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
    begin.extend(frame(SETTINGS, 0, 0, &[]));
    // ":method: POST" of the static table, and no end.
    begin.extend(frame(HEADERS, 0, 1, &[0x83]));
    // A header of 1,000 bytes that is not to be remembered, again and again.
    let mut header = vec![0, 1, b'x', 0x7f, 0xe9, 0x06];
    header.extend([b'y'; 1000]);
    let go_on = frame(CONTINUATION, 0, 1, &header);
    let client = webhook.client();
    let flood = async move {
        let mut cut_off = 0;
        for _ in 0..20 {
            let stream = client.connect_speaking(API_SERVER, &[b"h2"]).await;
            let mut stream = stream.unwrap();
            stream.write_all(&begin).await.unwrap();
            for _ in 0..1_000 {
                if stream.write_all(&go_on).await.is_err() {
                    break;
                }
            }
            let closed = tokio::time::timeout(Duration::from_secs(10), async {
                while matches!(stream.read(&mut [0; 512]).await, Ok(bytes) if bytes > 0) {}
            });
            cut_off += u32::from(closed.await.is_ok());
        }
        cut_off
    };
    let cut_off = ask_honestly_during(&webhook, flood).await;
    assert_eq!(cut_off, 20, "a megabyte of headers was taken");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_thousand_connections_and_answers_that_are_never_read_hold_up_nobody() {
    let _alone = FLOODS.lock().await;
    let webhook = Program::start().await;
    let client = webhook.client();
    let flood = async move {
        let mut open = VecDeque::new();
        for number in 0..10_000_u16 {
            let [high, low] = number.to_be_bytes();
            let source = if number % 2 == 0 {
                API_SERVER
            } else {
                [127, 1, high, low.max(1)]
            };
            if let Ok(stream) = client.dial(source).await {
                open.push_back(stream);
            }
            if open.len() > 700 {
                open.pop_front();
            }
            if number % 20 == 0 {
                tokio::time::sleep(PACE).await;
            }
        }
    };
    ask_honestly_during(&webhook, flood).await;
    let body = review("Pod", &claiming_pod(&json!({}))).to_string();
    let mut pipelined = head(body.len());
    pipelined.extend_from_slice(body.as_bytes());
    let pipelined = pipelined.repeat(2_000);
    let client = webhook.client();
    let flood = async move { drop(send_on_many(&client, API_SERVER, 20, &pipelined).await) };
    ask_honestly_during(&webhook, flood).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bodies_in_pieces_that_drip_hold_up_nobody() {
    let _alone = FLOODS.lock().await;
    let webhook = Program::start().await;
    let head = format!(
        "POST /mutate/pods HTTP/1.1\r\nHost: x\r\nContent-Type: {JSON}\r\nTransfer-Encoding: chunked\r\n\r\n"
    );
    let client = webhook.client();
    let flood = async move {
        for source in [API_SERVER, STRANGER] {
            let mut open = send_on_many(&client, source, 150, head.as_bytes()).await;
            for _ in 0..10 {
                for stream in &mut open {
                    let _ = stream.write_all(b"1\r\n{\r\n").await;
                }
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
    };
    ask_honestly_during(&webhook, flood).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn probes_are_answered_while_their_port_is_held_and_asked_without_end() {
    let _alone = FLOODS.lock().await;
    let webhook = Program::start().await;
    let mut held = Vec::new();
    for number in 0..400_u16 {
        let [_, last] = number.to_be_bytes();
        let socket = TcpSocket::new_v4().unwrap();
        let source = Ipv4Addr::new(127, 0, 0, last % 4 + 1);
        socket.bind((source, 0).into()).unwrap();
        let mut stream = socket.connect(webhook.admin).await.unwrap();
        let unfinished = if number % 2 == 0 {
            b"GET /healthz HTTP/1.1\r\nHost: te".to_vec()
        } else {
            b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n".repeat(200)
        };
        let writing = stream.write_all(&unfinished);
        let _ = tokio::time::timeout(Duration::from_millis(50), writing).await;
        held.push(stream);
    }
    for path in ["/healthz", "/readyz", "/metrics", "/healthz", "/readyz"] {
        let asked = Instant::now();
        assert_eq!(webhook.probe(path).await.0, 200, "{path}");
        let took = asked.elapsed();
        // The kubelet gives up after 2 s.
        assert!(took < Duration::from_secs(2), "{path} took {took:?}");
    }
    ask_honestly(&webhook).await;
}

/// 2 bytes of JSON are a container, and a container is kilobytes.
#[tokio::test]
async fn seven_mebibytes_of_empty_containers_are_refused_before_they_are_decoded() {
    let webhook = Program::start().await;
    let with = |containers: usize| {
        let pod = review("Pod", &claiming_pod(&json!({}))).to_string();
        let list = vec!["{}"; containers].join(",");
        pod.replace(r#"[{"name":"c","resources":{}}]"#, &format!("[{list}]"))
    };
    let most = (BODY_LIMIT_BYTES - 2000) / 3;
    for (containers, expected) in [(4_000, 200), (5_001, 400), (most, 400)] {
        let (status, answer) = webhook
            .post("/validate/pods", JSON, &with(containers))
            .await;
        assert_eq!(status, expected, "{containers}: {answer}");
        let holds_too_much = answer.contains("more than 5000 elements");
        assert_eq!(holds_too_much, expected == 400, "{answer}");
    }
}
