//! Whether a replica of the configured extender is ready to answer kube-scheduler.
//!
//! A pod that is released while none is makes the scheduler wait for its timeout, once per attempt, and every
//! other pod behind it. So releasing is withheld meanwhile, beginning before the first answer.

use std::time::Duration;

use futures::{StreamExt, stream::FuturesUnordered};
use http::{Request, Uri};
use hyper_util::{
    client::legacy::{Client, connect::HttpConnector},
    rt::TokioExecutor,
};
use kube::client::Body;
use muster_serve::Shutdown;
use tokio::sync::watch;

/// Pause between two rounds of questions.
const INTERVAL: Duration = Duration::from_secs(1);
/// Longest time for an answer.
const LIMIT: Duration = Duration::from_secs(1);

/// Asks until the shutdown, and tells whether at least one of the URLs answers 200. Without any URL no extender is
/// configured, and the answer is yes for good.
pub fn spawn(
    urls: &[String],
    shutdown: &Shutdown,
) -> Result<watch::Receiver<bool>, http::uri::InvalidUri> {
    let urls: Vec<Uri> = urls
        .iter()
        .filter(|url| !url.is_empty())
        .map(|url| url.parse())
        .collect::<Result<_, _>>()?;
    let (ready, receiver) = watch::channel(urls.is_empty());
    if urls.is_empty() {
        return Ok(receiver);
    }
    // Essential: were its end not noticed, pods would be released, or withheld, by its last answer for ever.
    shutdown.spawn_until_stopped("probe of the extender", async move {
        let client = Client::builder(TokioExecutor::new()).build_http();
        loop {
            let answer = any_is_ready(&client, &urls).await;
            if ready.send_replace(answer) != answer {
                tracing::info!(ready = answer, "readiness of the extender changed");
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

    async fn becomes(receiver: &mut watch::Receiver<bool>, ready: bool) {
        let limit = Duration::from_secs(10);
        let change = receiver.wait_for(|now| *now == ready);
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
        assert!(!*receiver.borrow(), "withheld until the first answer");
        becomes(&mut receiver, true).await;
        ready.store(false, Ordering::SeqCst);
        becomes(&mut receiver, false).await;
        shutdown.request();
    }

    #[tokio::test]
    async fn without_an_extender_nothing_is_withheld() {
        let receiver = spawn(&[String::new()], &Shutdown::default()).unwrap();
        assert!(*receiver.borrow());
        assert!(spawn(&["no url at all".to_owned()], &Shutdown::default()).is_err());
    }
}
