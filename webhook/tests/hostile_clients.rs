//! The slow, the silent and the greedy client, while kube-apiserver goes on asking.
//!
//! The webhook listens to everybody who reaches its port. Whatever the others do, from the address that kube-apiserver
//! has or from another, an honest review is answered in time: kube-apiserver gives up after 3 s.

#![expect(clippy::panic, reason = "a test fails by panicking")]

mod support;

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use support::{JSON, Running, claiming_pod, review};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    sync::Mutex,
};
use tokio_rustls::client::TlsStream;

/// The address that honest reviews come from.
const API_SERVER: [u8; 4] = [127, 0, 0, 1];
/// Another one.
const STRANGER: [u8; 4] = [127, 0, 0, 66];
/// Longest time for an honest review, in the debug build and beside seven other tests: a third of what kube-apiserver
/// waits.
const HONEST_LIMIT: Duration = Duration::from_secs(1);
const BODY_LIMIT_BYTES: usize = 7 * 1024 * 1024;

/// One flood at a time: each takes hundreds of sockets of this process.
static FLOODS: Mutex<()> = Mutex::const_new(());

/// Asks honestly, and fails unless the answer comes in time.
async fn ask_honestly(webhook: &Running) {
    let asked = Instant::now();
    let request = review("Pod", &claiming_pod(&json!({})));
    let answer = tokio::time::timeout(HONEST_LIMIT, webhook.review("/mutate/pods", &request)).await;
    let answer: Value = answer.unwrap_or_else(|_| panic!("no answer within {HONEST_LIMIT:?}"));
    assert_eq!(answer["allowed"], true, "{answer}");
    assert!(asked.elapsed() < HONEST_LIMIT);
}

fn head(length: usize) -> Vec<u8> {
    format!(
        "POST /mutate/pods HTTP/1.1\r\nHost: webhook\r\nContent-Type: {JSON}\r\nContent-Length: {length}\r\n\r\n"
    )
    .into_bytes()
}

/// Opens connections and sends on each, as far as the server takes it; they stay open.
async fn send_on_many(
    webhook: &Running,
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
    let webhook = Running::start().await;
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
    let webhook = Running::start().await;
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
    let webhook = Running::start().await;
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
    let webhook = Running::start().await;
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
    let webhook = Running::start().await;
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

/// 2 bytes of JSON are a container, and a container is kilobytes.
#[tokio::test]
async fn seven_mebibytes_of_empty_containers_are_refused_before_they_are_decoded() {
    let webhook = Running::start().await;
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
