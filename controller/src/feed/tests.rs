use kube::client::Body;

use super::*;

#[tokio::test]
async fn a_reopened_watch_tells_nothing_from_before() {
    let silent = tower::service_fn(|_: http::Request<Body>| {
        std::future::pending::<Result<http::Response<Body>, std::io::Error>>()
    });
    let client = Client::new(silent, "default");
    let mut feed = Feed::open(&Readiness::default(), &Metrics::new("test", "0"), client);
    let stamped = |generation| Stamped {
        kind: Kind::Pod,
        generation,
        seen: StreamEvent::ListEnded(BTreeSet::new()),
    };
    feed.sender.send(stamped(1)).await.unwrap();
    let change = feed.next().await.unwrap();
    assert!(matches!(change, Change::ListedKeys(Kind::Pod, _)));
    feed.sender.send(stamped(1)).await.unwrap();
    feed.reopen(Kind::Pod);
    feed.sender.send(stamped(1)).await.unwrap();
    assert!(feed.ready().is_none(), "both are of the closed watch");
    feed.sender.send(stamped(2)).await.unwrap();
    assert!(feed.ready().is_some());
}

#[tokio::test]
async fn a_watch_that_panics_is_noticed() {
    let silent = tower::service_fn(|_: http::Request<Body>| {
        std::future::pending::<Result<http::Response<Body>, std::io::Error>>()
    });
    let client = Client::new(silent, "default");
    let mut feed = Feed::open(&Readiness::default(), &Metrics::new("test", "0"), client);
    feed.reopen(Kind::Pod);
    feed.tasks.spawn(async { panic!("broken") });
    let ended = feed.next().await;
    assert!(ended.is_err(), "{ended:?}");
}
