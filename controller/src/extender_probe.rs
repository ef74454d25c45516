//! Whether a replica of the configured extender is ready to answer kube-scheduler, and does so in time.
//!
//! A pod that is released while none is makes the scheduler wait for its timeout, once per attempt, and every
//! other pod behind it. So releasing is withheld meanwhile, beginning before the first answer. An extender that answers
//! now and then, or late, costs the scheduler as much for some of its pods: they are released a few at a time.

use std::time::Duration;

use futures::{StreamExt, stream::FuturesUnordered};
use http::{Request, Uri};
use hyper_util::{
    client::legacy::{Client, connect::HttpConnector},
    rt::TokioExecutor,
};
use kube::client::Body;
use muster_serve::Shutdown;
use tokio::{sync::watch, time::Instant};

/// Pause between two rounds of questions.
const INTERVAL: Duration = Duration::from_secs(1);
/// Longest time for an answer.
const LIMIT: Duration = Duration::from_secs(1);
/// A later answer is a slow one.
const SLOW: Duration = Duration::from_millis(500);
/// How long a failure or a slow answer is remembered: about as long as a pod counts that kube-scheduler does not bind.
const REMEMBERED: Duration = Duration::from_secs(30);

/// What is known of the extender. Without one it is ready for good.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExtenderState {
    /// No replica is ready, or none was asked yet.
    Unready,
    /// A replica is ready, and a short time ago none was, or it answered slowly.
    Unreliable,
    /// A replica is ready.
    Ready,
}

/// The last round of questions that failed, or was answered slowly.
#[derive(Debug, Default)]
struct History(Option<Instant>);

impl History {
    /// Takes in a round that ended now: how long the first replica that is ready took, if one is.
    fn note(&mut self, answered_after: Option<Duration>, now: Instant) -> ExtenderState {
        if answered_after.is_none_or(|time| time > SLOW) {
            self.0 = Some(now);
        }
        if answered_after.is_none() {
            return ExtenderState::Unready;
        }
        match self.0 {
            Some(failed) if now - failed < REMEMBERED => ExtenderState::Unreliable,
            _ => ExtenderState::Ready,
        }
    }
}

/// Asks until the shutdown, and says whether at least one of the URLs answers 200, and how reliably. Without any URL no
/// extender is configured.
pub fn spawn(
    urls: &[String],
    shutdown: &Shutdown,
) -> Result<watch::Receiver<ExtenderState>, http::uri::InvalidUri> {
    let urls: Vec<Uri> = urls
        .iter()
        .filter(|url| !url.is_empty())
        .map(|url| url.parse())
        .collect::<Result<_, _>>()?;
    if urls.is_empty() {
        return Ok(watch::channel(ExtenderState::Ready).1);
    }
    let (sender, receiver) = watch::channel(ExtenderState::Unready);
    // Essential: were its end not noticed, pods would be released, or withheld, by its last answer for ever.
    shutdown.spawn_until_stopped("probe of the extender", async move {
        let client = Client::builder(TokioExecutor::new()).build_http();
        let mut history = History::default();
        loop {
            let asked = Instant::now();
            let ready = any_is_ready(&client, &urls).await;
            let now = Instant::now();
            let state = history.note(ready.then(|| now - asked), now);
            let changed = sender.send_if_modified(|known| std::mem::replace(known, state) != state);
            if changed {
                tracing::info!(?state, "what is known of the extender changed");
            }
            tokio::time::sleep(INTERVAL).await;
        }
    });
    Ok(receiver)
}

async fn any_is_ready(client: &Client<HttpConnector, Body>, urls: &[Uri]) -> bool {
    let mut answers: FuturesUnordered<_> = urls.iter().map(|url| is_ready(client, url)).collect();
    while let Some(ready) = answers.next().await {
        if ready {
            return true;
        }
    }
    false
}

async fn is_ready(client: &Client<HttpConnector, Body>, url: &Uri) -> bool {
    let mut request = Request::new(Body::empty());
    *request.uri_mut() = url.clone();
    let answer = tokio::time::timeout(LIMIT, client.request(request)).await;
    matches!(answer, Ok(Ok(response)) if response.status().is_success())
}

#[cfg(test)]
mod tests {
    use std::{
        net::SocketAddr,
        sync::{
            Arc,
            atomic::{AtomicBool, Ordering},
        },
    };

    use tokio::{
        io::{AsyncReadExt, AsyncWriteExt},
        net::TcpListener,
    };

    use super::*;

    /// A replica that is ready as told.
    async fn replica(ready: Arc<AtomicBool>) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(async move {
            loop {
                let (mut stream, _) = listener.accept().await.unwrap();
                let status = if ready.load(Ordering::SeqCst) {
                    "200 OK"
                } else {
                    "503 Service Unavailable"
                };
                let answer =
                    format!("HTTP/1.1 {status}\r\ncontent-length: 0\r\nconnection: close\r\n\r\n");
                let _ = stream.read(&mut [0; 1024]).await;
                let _ = stream.write_all(answer.as_bytes()).await;
            }
        });
        address
    }

    async fn becomes(receiver: &mut watch::Receiver<ExtenderState>, state: ExtenderState) {
        let limit = Duration::from_secs(10);
        let change = receiver.wait_for(|now| *now == state);
        let _ = tokio::time::timeout(limit, change)
            .await
            .expect("in ten seconds")
            .unwrap();
    }

    #[tokio::test]
    async fn one_ready_replica_is_enough_and_none_is_noticed() {
        let ready = Arc::new(AtomicBool::new(true));
        let address = replica(Arc::clone(&ready)).await;
        // Port 1 of loopback refuses.
        let urls = [
            "http://127.0.0.1:1/readyz".to_owned(),
            format!("http://{address}/readyz"),
        ];
        let shutdown = Shutdown::default();
        let mut receiver = spawn(&urls, &shutdown).unwrap();
        let first = *receiver.borrow();
        assert_eq!(first, ExtenderState::Unready, "before the first answer");
        becomes(&mut receiver, ExtenderState::Ready).await;
        ready.store(false, Ordering::SeqCst);
        becomes(&mut receiver, ExtenderState::Unready).await;
        ready.store(true, Ordering::SeqCst);
        becomes(&mut receiver, ExtenderState::Unreliable).await;
        shutdown.request();
    }

    #[test]
    fn failures_and_slow_answers_are_remembered_for_30_seconds() {
        use ExtenderState::{Ready, Unready, Unreliable};
        let quick = Some(Duration::from_millis(500));
        let slow = Some(Duration::from_millis(501));
        let begin = Instant::now();
        let mut history = History::default();
        // When, in seconds; what the round found; what is known then.
        for (second, answer, expected) in [
            (0, quick, Ready),
            (1, slow, Unreliable),
            (2, quick, Unreliable),
            (30, quick, Unreliable),
            (31, quick, Ready),
            (32, None, Unready),
            (33, quick, Unreliable),
            (40, slow, Unreliable),
            (69, quick, Unreliable),
            (70, quick, Ready),
        ] {
            let now = begin + Duration::from_secs(second);
            assert_eq!(history.note(answer, now), expected, "at {second} s");
        }
    }

    #[tokio::test]
    async fn without_an_extender_nothing_is_withheld() {
        let receiver = spawn(&[String::new()], &Shutdown::default()).unwrap();
        assert_eq!(*receiver.borrow(), ExtenderState::Ready);
        assert!(spawn(&["no url at all".to_owned()], &Shutdown::default()).is_err());
    }
}
