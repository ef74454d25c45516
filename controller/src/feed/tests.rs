use kube::client::Body;

use super::*;

/// A client whose API server never answers.
pub(crate) fn silent() -> Client {
    let silent = tower::service_fn(|_: http::Request<Body>| {
        std::future::pending::<Result<http::Response<Body>, std::io::Error>>()
    });
    Client::new(silent, "default")
}

impl Feed {
    /// A feed in which so many changes wait, and nothing else ever comes.
    pub(crate) fn flooded(changes: usize) -> Self {
        let mut feed = Self::open(&Readiness::default(), &Metrics::new("test", "0"), silent());
        (feed.sender, feed.receiver) = mpsc::channel(changes.max(1));
        for _ in 0..changes {
            let change = Stamped {
                kind: Kind::Pod,
                generation: 1,
                seen: StreamEvent::ListEnded(BTreeSet::new()),
            };
            feed.sender.try_send(change).unwrap();
        }
        feed
    }
}

#[tokio::test]
async fn a_reopened_watch_tells_nothing_from_before() {
    let mut feed = Feed::open(&Readiness::default(), &Metrics::new("test", "0"), silent());
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
    let mut feed = Feed::flooded(0);
    feed.reopen(Kind::Pod);
    feed.tasks.spawn(async { panic!("broken") });
    let ended = feed.next().await;
    assert!(ended.is_err(), "{ended:?}");
}

/// Many objects that cannot be decoded are reported once each, not all of them each time.
#[tokio::test]
async fn of_objects_that_cannot_be_decoded_only_differences_are_told() {
    let mut feed = Feed::flooded(0);
    let job = |number: usize| {
        let mut job = k8s_openapi::api::batch::v1::Job::default();
        job.metadata.name = Some(format!("job-{number}"));
        job.metadata.namespace = Some("ml".to_owned());
        job
    };
    let received = |number: usize, stands_in: bool| Received {
        object: Object::Job(Arc::new(job(number))),
        stands_in,
    };
    let mut told = 0;
    for number in 0..1_000 {
        feed.noted(Kind::Job, StreamEvent::Seen(received(number, true)));
        told += feed.undecodable_news().len();
    }
    assert_eq!((told, feed.undecodable()), (1_000, 1_000));
    feed.noted(Kind::Job, StreamEvent::Seen(received(7, true)));
    assert!(feed.undecodable_news().is_empty(), "nothing new");
    feed.noted(Kind::Job, StreamEvent::Seen(received(7, false)));
    let news = feed.undecodable_news();
    assert_eq!(news.into_values().collect::<Vec<_>>(), [false]);
    let names = [ObjectName {
        namespace: "ml".to_owned(),
        name: "job-3".to_owned(),
    }];
    feed.noted(Kind::Job, StreamEvent::ListEnded(names.into()));
    assert_eq!(feed.undecodable_news().len(), 998);
    assert_eq!(feed.undecodable(), 1);
}
