//! What hostile clients do over HTTP/2. See [`super::attacks`].

use std::{
    collections::VecDeque,
    time::{Duration, Instant},
};

use axum::body::Bytes;
use h2::client::SendRequest;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::{
    client::Client,
    target::{HONEST, PACE, STRANGER, Target},
};

/// How long streams are opened.
const FLOOD: Duration = Duration::from_secs(3);
/// Longest time until a connection that offends is closed. The attacker reads on a thread that yields to all others.
const CLOSE_LIMIT: Duration = Duration::from_secs(30);

/// What a hostile client does with a stream.
#[derive(Clone, Copy, Debug)]
enum Stream {
    /// Takes it back at once.
    Reset,
    /// Never sends the body.
    NoBody,
    /// Never fetches the answer.
    Unfetched,
}

/// HTTP/2 from this address, granting the server so many bytes of each answer.
async fn connect(
    client: &Client,
    source: [u8; 4],
    window_bytes: u32,
) -> Option<SendRequest<Bytes>> {
    let stream = client.connect_speaking(source, &[b"h2"]).await.ok()?;
    let mut builder = h2::client::Builder::new();
    let handshake = builder.initial_window_size(window_bytes).handshake(stream);
    let (requests, connection) = handshake.await.ok()?;
    tokio::spawn(async { _ = connection.await });
    Some(requests)
}

/// Streams on one connection, and on another one when that is ended, until the time is over.
async fn flood_connection(
    client: Client,
    path: &'static str,
    source: [u8; 4],
    what: Stream,
    until: Instant,
) {
    let is_whole = matches!(what, Stream::Unfetched);
    let window_bytes = if is_whole { 0 } else { 65_535 };
    while Instant::now() < until {
        tokio::time::sleep(PACE).await;
        let Some(mut requests) = connect(&client, source, window_bytes).await else {
            continue;
        };
        let (mut open, mut sent) = (VecDeque::new(), 0);
        while Instant::now() < until {
            let ready = tokio::time::timeout(Duration::from_millis(50), requests.ready());
            let Ok(Ok(ready)) = ready.await else {
                break;
            };
            requests = ready;
            let post = http::Request::post(format!("https://server{path}")).body(());
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

/// Streams that are taken back, whose body never comes, and whose answer is never fetched.
pub(crate) async fn streams_of_no_use(target: &Target) {
    for what in [Stream::Reset, Stream::NoBody, Stream::Unfetched] {
        let until = Instant::now() + FLOOD;
        let mut floods = Vec::new();
        for source in [HONEST, STRANGER].repeat(10) {
            let path = target.terms.path;
            floods.push(flood_connection(target.client(), path, source, what, until));
        }
        target.ask_during(futures::future::join_all(floods)).await;
    }
}

/// A frame.
fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    let mut frame = length[1..].to_vec();
    frame.extend([kind, flags]);
    frame.extend(stream.to_be_bytes());
    frame.extend(payload);
    frame
}

/// A megabyte of headers on each of some connections: they are closed.
pub(crate) async fn endless_headers(target: &Target) {
    const HEADERS: u8 = 1;
    const SETTINGS: u8 = 4;
    const CONTINUATION: u8 = 9;
    const CONNECTIONS: u32 = 20;
    let mut begin = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
    begin.extend(frame(SETTINGS, 0, 0, &[]));
    // ":method: POST" of the static table, and no end.
    begin.extend(frame(HEADERS, 0, 1, &[0x83]));
    // A header of 1,000 bytes that is not to be remembered, again and again.
    let mut header = vec![0, 1, b'x', 0x7f, 0xe9, 0x06];
    header.extend([b'y'; 1000]);
    let go_on = frame(CONTINUATION, 0, 1, &header);
    let client = target.client();
    let attack = async move {
        let mut cut_off = 0;
        for _ in 0..CONNECTIONS {
            let stream = client.connect_speaking(HONEST, &[b"h2"]).await;
            let mut stream = stream.unwrap();
            stream.write_all(&begin).await.unwrap();
            for _ in 0..1_000 {
                if stream.write_all(&go_on).await.is_err() {
                    break;
                }
            }
            let closed = tokio::time::timeout(CLOSE_LIMIT, async {
                while matches!(stream.read(&mut [0; 512]).await, Ok(bytes) if bytes > 0) {}
            });
            cut_off += u32::from(closed.await.is_ok());
        }
        cut_off
    };
    let cut_off = target.ask_during(attack).await;
    assert_eq!(cut_off, CONNECTIONS, "a megabyte of headers was taken");
}
