//! What the slow, the silent and the greedy client do to a server, from the address that honest requests have and from
//! another. Each function fails unless honest requests are answered in time meanwhile.

use std::{collections::VecDeque, net::Ipv4Addr, time::Duration};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpSocket, TcpStream},
};
use tokio_rustls::client::TlsStream;

use super::{
    client::{Client, JSON},
    target::{HONEST, PACE, STRANGER, Target},
};

/// Longest time for which an attacker waits for one thing before it goes on to the next.
const PATIENCE: Duration = Duration::from_millis(200);
/// More connections than a server grants, from one address.
const MANY: usize = 400;

/// Opens connections and sends on each, as far as the server takes it; they stay open.
pub(crate) async fn send_on_many(
    client: Client,
    source: [u8; 4],
    connections: usize,
    bytes: Vec<u8>,
) -> Vec<TlsStream<TcpStream>> {
    let mut open = Vec::new();
    for _ in 0..connections {
        if let Ok(mut stream) = client.connect(source).await {
            let _ = tokio::time::timeout(PATIENCE, stream.write_all(&bytes)).await;
            open.push(stream);
        }
    }
    open
}

/// Bodies that begin and never end, on some connections and on more than the server grants.
pub(crate) async fn unfinished_bodies(target: &Target) {
    let mut unfinished = target.head(1000);
    unfinished.extend_from_slice(b"{");
    for (source, connections) in [
        (HONEST, 40),
        (STRANGER, 40),
        (HONEST, MANY),
        (STRANGER, MANY),
    ] {
        let attack = send_on_many(target.client(), source, connections, unfinished.clone());
        drop(target.ask_during(attack).await);
    }
}

/// Bodies of the largest size that lack their last byte, together more than the server keeps.
pub(crate) async fn unfinished_large_bodies(target: &Target) {
    let length = target.terms.body_limit_bytes;
    let mut unfinished = target.head(length);
    unfinished.resize(unfinished.len() + length - 1, b' ');
    for source in [STRANGER, HONEST] {
        let attack = send_on_many(target.client(), source, 20, unfinished.clone());
        drop(target.ask_during(attack).await);
    }
}

/// Whole requests with the largest body.
pub(crate) async fn large_requests(target: &Target, body: &str) {
    assert!(body.len() <= target.terms.body_limit_bytes);
    let mut request = target.head(body.len());
    request.extend_from_slice(body.as_bytes());
    let attack = send_on_many(target.client(), STRANGER, 12, request);
    drop(target.ask_during(attack).await);
}

/// Heads that never end, and handshakes that never begin.
pub(crate) async fn slow_heads_and_silent_handshakes(target: &Target) {
    for source in [HONEST, STRANGER] {
        let begin = target.head(0)[..20].to_vec();
        let attack = send_on_many(target.client(), source, MANY, begin);
        drop(target.ask_during(attack).await);
        let client = target.client();
        let attack = async move {
            let mut silent = Vec::new();
            for _ in 0..MANY {
                silent.push(client.dial(source).await.unwrap());
            }
            silent
        };
        drop(target.ask_during(attack).await);
    }
}

/// Connections that were served once and stay open.
pub(crate) async fn kept_connections(target: &Target) {
    let request = target.request();
    let client = target.client();
    let attack = async move {
        let mut kept = Vec::new();
        for _ in 0..MANY {
            let mut stream = client.connect(HONEST).await.unwrap();
            stream.write_all(&request).await.unwrap();
            let bytes = stream.read(&mut [0; 512]).await.unwrap();
            assert!(bytes > 0, "it is answered");
            kept.push(stream);
        }
        kept
    };
    drop(target.ask_during(attack).await);
}

/// Ten thousand connections, 700 of them at a time and half of them from an address of their own.
pub(crate) async fn ten_thousand_connections(target: &Target) {
    let client = target.client();
    let attack = async move {
        let mut open = VecDeque::new();
        for number in 0..10_000_u16 {
            let [high, low] = number.to_be_bytes();
            let source = if number % 2 == 0 {
                HONEST
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
        open
    };
    drop(target.ask_during(attack).await);
}

/// Two thousand requests on each of some connections, and not one answer read.
pub(crate) async fn unread_answers(target: &Target) {
    let pipelined = target.request().repeat(2_000);
    let attack = send_on_many(target.client(), HONEST, 20, pipelined);
    drop(target.ask_during(attack).await);
}

/// Bodies that come one byte at a time.
pub(crate) async fn dripping_bodies(target: &Target) {
    let path = target.terms.path;
    let head = format!(
        "POST {path} HTTP/1.1\r\nHost: x\r\nContent-Type: {JSON}\r\nTransfer-Encoding: chunked\r\n\r\n"
    );
    for source in [HONEST, STRANGER] {
        let client = target.client();
        let head = head.clone().into_bytes();
        let attack = async move {
            let mut open = send_on_many(client, source, 150, head).await;
            for _ in 0..10 {
                for stream in &mut open {
                    let drop = stream.write_all(b"1\r\n{\r\n");
                    let _ = tokio::time::timeout(PATIENCE, drop).await;
                }
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
            open
        };
        drop(target.ask_during(attack).await);
    }
}

/// The port of the probes, held by requests that never end and by answers that are never read.
pub(crate) async fn held_probes(target: &Target) {
    let admin = target.admin;
    let attack = async move {
        let mut held = Vec::new();
        for number in 0..400_u16 {
            let [_, last] = number.to_be_bytes();
            let socket = TcpSocket::new_v4().unwrap();
            let source = Ipv4Addr::new(127, 0, 0, last % 4 + 1);
            socket.bind((source, 0).into()).unwrap();
            let mut stream = socket.connect(admin).await.unwrap();
            let bytes = if number % 2 == 0 {
                b"GET /healthz HTTP/1.1\r\nHost: te".to_vec()
            } else {
                b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n".repeat(200)
            };
            let _ = tokio::time::timeout(PATIENCE, stream.write_all(&bytes)).await;
            held.push(stream);
        }
        held
    };
    drop(target.ask_during(attack).await);
}
