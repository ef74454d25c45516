use futures::stream;
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use serde_json::json;

use super::decoded::{Missing, Partial};
use super::*;
use crate::{metrics::Metrics, readiness::Readiness};

fn metadata(name: &str) -> ObjectMeta {
    serde_json::from_value(
        json!({"name": name, "namespace": "team-a", "managedFields": [{"manager": "x"}]}),
    )
    .unwrap()
}

fn pod(name: &str) -> Decoded<Pod> {
    Decoded::Whole(Pod {
        metadata: metadata(name),
        ..Pod::default()
    })
}

fn broken(name: &str) -> Decoded<Pod> {
    Decoded::Partial(Box::new(Partial {
        metadata: metadata(name),
        object: Some(Pod {
            metadata: metadata(name),
            ..Pod::default()
        }),
        missing: vec![Missing {
            path: "spec".to_owned(),
            error: "expected a map".to_owned(),
        }],
    }))
}

fn told(seen: WatchEvent<Pod>) -> String {
    match seen {
        WatchEvent::Applied(pod) => {
            assert_eq!(pod.metadata.managed_fields, None);
            format!("applied {}", pod.name_any())
        }
        WatchEvent::Deleted(metadata) => format!("gone {}", metadata.name.unwrap_or_default()),
        WatchEvent::Listed(pods) => {
            let names: Vec<String> = pods.iter().map(ResourceExt::name_any).collect();
            format!("listed {}", names.join(" "))
        }
    }
}

#[tokio::test]
async fn lists_come_whole_and_what_cannot_be_decoded_costs_only_itself() {
    let metrics = Metrics::new("test", "0");
    let readiness = Readiness::default();
    let synced = readiness.condition("watch Pod");
    let (sender, mut receiver) = mpsc::channel(16);
    let events = stream::iter(vec![
        Ok(Event::Init),
        Ok(Event::InitApply(pod("half"))),
        Err(watcher::Error::NoResourceVersion),
        Ok(Event::Init),
        Ok(Event::InitApply(pod("a"))),
        Ok(Event::InitApply(broken("b"))),
        Ok(Event::InitApply(pod("c"))),
        Ok(Event::InitDone),
        Ok(Event::Apply(pod("d"))),
        Ok(Event::Apply(broken("a"))),
        Ok(Event::Delete(broken("b"))),
        Ok(Event::Delete(pod("c"))),
    ]);
    let sight = whole(&WatchMetrics::register(&metrics), synced.clone());
    pump(events, sight, sender, told).await;
    let mut all = Vec::new();
    while let Some(message) = receiver.recv().await {
        all.push(message);
    }
    assert_eq!(all, ["listed a c", "applied d", "gone b", "gone c"]);
    assert!(synced.holds());
    let text = metrics.encode().unwrap();
    for line in [
        "muster_watch_undecodable_objects{kind=\"Pod\"} 1",
        "muster_watch_errors_total{kind=\"Pod\"} 1",
        "muster_watch_stale_seconds{kind=\"Pod\"} 0",
    ] {
        assert!(text.contains(line), "{line} is missing in\n{text}");
    }
}

#[tokio::test]
async fn a_kind_that_is_not_served_is_told_once_as_an_empty_list_and_is_no_failure() {
    let metrics = Metrics::new("test", "0");
    let synced = Readiness::default().condition("watch Pod");
    let (sender, mut receiver) = mpsc::channel(16);
    let refused = |code: u16| {
        kube::Error::Api(Box::new(
            kube::core::Status::failure("", "").with_code(code),
        ))
    };
    let listing = |code| Err(watcher::Error::InitialListFailed(refused(code)));
    let watching = |code| Err(watcher::Error::WatchStartFailed(refused(code)));
    let events = stream::iter(vec![
        Ok(Event::Init),
        listing(403),
        Ok(Event::Init),
        listing(404),
        Ok(Event::Init),
        listing(404),
        Ok(Event::Init),
        Ok(Event::InitApply(pod("a"))),
        Ok(Event::InitDone),
        watching(404),
        watching(404),
    ]);
    let health = |metrics: &WatchMetrics| WatchHealth::new::<Pod>(metrics, synced.clone());
    let registered = WatchMetrics::register(&metrics);
    let decoder = StreamDecoder::new(stands_in, health(&registered)).of_optional_kind();
    pump(events, decoder, sender, written).await;
    let mut all = Vec::new();
    while let Some(message) = receiver.recv().await {
        all.push(message);
    }
    assert_eq!(all, ["there are ", "a", "there are a", "there are "]);
    assert!(synced.holds());
    let text = metrics.encode().unwrap();
    let errors = "muster_watch_errors_total{kind=\"Pod\"} 1";
    assert!(
        text.contains(errors),
        "only what is forbidden fails:\n{text}"
    );

    let (sender, mut receiver) = mpsc::channel(16);
    let absent = stream::iter(vec![Ok(Event::Init), listing(404)]);
    let synced = Readiness::default().condition("watch Pod");
    let health = WatchHealth::new::<Pod>(&registered, synced.clone());
    pump(
        absent,
        StreamDecoder::new(stands_in, health),
        sender,
        written,
    )
    .await;
    assert_eq!(receiver.recv().await, None, "of a kind that must be there");
    assert!(!synced.holds());
}

#[tokio::test]
async fn a_watch_whose_receiver_is_gone_ends() {
    let metrics = WatchMetrics::register(&Metrics::new("test", "0"));
    let (sender, receiver) = mpsc::channel(1);
    drop(receiver);
    let synced = Readiness::default().condition("watch Pod");
    let sight = whole(&metrics, synced);
    pump(stream::pending(), sight, sender, told).await;
}

#[tokio::test(start_paused = true)]
async fn a_failing_watch_shows_its_age() {
    let metrics = Metrics::new("test", "0");
    let (sender, _receiver) = mpsc::channel::<String>(1);
    let synced = Readiness::default().condition("watch Pod");
    let failures = stream::iter(0..3).then(|_| async {
        tokio::time::sleep(std::time::Duration::from_secs(20)).await;
        Err(watcher::Error::NoResourceVersion)
    });
    let sight = whole(&WatchMetrics::register(&metrics), synced.clone());
    pump(failures, sight, sender, told).await;
    let text = metrics.encode().unwrap();
    assert!(
        text.contains("muster_watch_stale_seconds{kind=\"Pod\"} 40"),
        "{text}"
    );
    assert!(!synced.holds());
}

/// The watch of pods is said to be stale for so long.
fn shows_stale(metrics: &Metrics, seconds: u64) {
    let text = metrics.encode().unwrap();
    let line = format!("muster_watch_stale_seconds{{kind=\"Pod\"}} {seconds}\n");
    assert!(text.contains(&line), "{seconds} s:\n{text}");
}

/// Before each list kube's watcher tells that one begins, be it refused or not.
#[tokio::test(start_paused = true)]
async fn a_watch_whose_list_is_refused_again_and_again_is_stale_until_a_list_comes() {
    let metrics = Metrics::new("test", "0");
    let registered = WatchMetrics::register(&metrics);
    let shows = |seconds| shows_stale(&metrics, seconds);
    let mut beside = WatchHealth::beside_readiness::<Pod>(&registered);
    let mut took = whole(&registered, Readiness::default().condition("watch Pod"));
    let mut streamed = StreamDecoder::new(
        stands_in,
        WatchHealth::new::<Pod>(&registered, Readiness::default().condition("watch Pod")),
    );
    let pause = std::time::Duration::from_secs(20);
    let refused = watcher::Error::NoResourceVersion;
    for seconds in [0, 20, 40] {
        beside.note(&Ok(Event::<Pod>::Init));
        beside.note(&Err::<Event<Pod>, _>(watcher::Error::NoResourceVersion));
        shows(seconds);
        tokio::time::advance(pause).await;
    }
    beside.note(&Ok(Event::<Pod>::InitDone));
    shows(0);
    for seconds in [0, 20, 40] {
        took.take(Event::Init);
        took.failed(&refused);
        shows(seconds);
        tokio::time::advance(pause).await;
    }
    took.take(Event::InitDone);
    shows(0);
    for seconds in [0, 20, 40] {
        Decode::<Pod>::take(&mut streamed, Event::Init);
        Decode::<Pod>::failed(&mut streamed, &refused);
        shows(seconds);
        tokio::time::advance(pause).await;
    }
    Decode::<Pod>::take(&mut streamed, Event::InitDone);
    shows(0);
}

#[tokio::test(start_paused = true)]
async fn how_long_a_watch_has_failed_is_told_between_two_failures_too_and_of_one_that_is_opened_again()
 {
    let metrics = Metrics::new("test", "0");
    let registered = WatchMetrics::register(&metrics);
    let shows = |seconds| shows_stale(&metrics, seconds);
    let pause = std::time::Duration::from_secs(100);
    let mut health = WatchHealth::beside_readiness::<Pod>(&registered);
    shows(0);
    health.failed(&watcher::Error::NoResourceVersion);
    for seconds in [0, 100, 200] {
        shows(seconds);
        tokio::time::advance(pause).await;
    }
    // The next one is of the same kind, and has seen nothing yet.
    drop(health);
    let mut health = WatchHealth::beside_readiness::<Pod>(&registered);
    shows(300);
    // Of a list that comes in pages the next one may be refused.
    for event in [Event::Init, Event::InitApply(pod("a"))] {
        health.note(&Ok(event));
        shows(300);
    }
    health.note(&Ok(Event::<Pod>::InitDone));
    shows(0);
    tokio::time::advance(pause).await;
    shows(0);
}

/// kube's watcher does not tell that a watch works again, and of some kinds nothing changes for days.
#[tokio::test(start_paused = true)]
async fn a_watch_that_broke_off_and_has_nothing_to_tell_since_is_not_stale_for_ever() {
    let metrics = Metrics::new("test", "0");
    let registered = WatchMetrics::register(&metrics);
    let shows = |seconds| shows_stale(&metrics, seconds);
    let pass = |seconds| tokio::time::advance(std::time::Duration::from_secs(seconds));
    let status = |code| kube::core::Status::failure("", "").with_code(code);
    let refused = |code| kube::Error::Api(Box::new(status(code)));
    let broken_off = [
        watcher::Error::WatchFailed(refused(500)),
        watcher::Error::WatchStartFailed(refused(403)),
        watcher::Error::WatchError(Box::new(status(500))),
    ];
    for error in &broken_off {
        let mut health = WatchHealth::beside_readiness::<Pod>(&registered);
        health.failed(error);
        pass(100).await;
        shows(0);
        health.failed(error);
        shows(100);
        pass(400).await;
        shows(100);
        pass(1).await;
        shows(0);
        health.failed(error);
        shows(0);
        health.works();
    }
    // A list comes, or fails.
    let listed_next = [
        watcher::Error::InitialListFailed(refused(403)),
        watcher::Error::WatchError(Box::new(status(410))),
        watcher::Error::NoResourceVersion,
    ];
    for error in &listed_next {
        let mut health = WatchHealth::beside_readiness::<Pod>(&registered);
        health.failed(&broken_off[0]);
        pass(100).await;
        health.failed(error);
        pass(1_000).await;
        shows(1_100);
        health.works();
        shows(0);
    }
}

fn whole(metrics: &WatchMetrics, synced: Condition) -> WatchDecoder<Pod> {
    WatchDecoder::new(WatchHealth::new::<Pod>(metrics, synced))
}

/// What is reported to a consumer of these events.
fn tell(
    sight: &mut WatchDecoder<Pod>,
    events: impl IntoIterator<Item = Event<Decoded<Pod>>>,
) -> Vec<String> {
    let seen = events.into_iter().flat_map(|event| {
        let seen = sight.take(event);
        sight.handed_over();
        seen
    });
    seen.map(told).collect()
}

fn list<const N: usize>(objects: [Decoded<Pod>; N]) -> impl Iterator<Item = Event<Decoded<Pod>>> {
    let begin = std::iter::once(Event::Init);
    let objects = objects.into_iter().map(Event::InitApply);
    begin.chain(objects).chain([Event::InitDone])
}

fn remade(name: &str) -> Decoded<Pod> {
    let mut remade = pod(name);
    remade.meta_mut().uid = Some("another".to_owned());
    remade
}

#[test]
fn what_is_left_out_counts_as_last_seen_also_after_a_gap() {
    let metrics = WatchMetrics::register(&Metrics::new("test", "0"));
    let synced = Readiness::default().condition("watch Pod");
    let mut sight = whole(&metrics, synced);
    let first = tell(&mut sight, list([pod("a"), pod("b"), pod("c"), pod("d")]));
    assert_eq!(first, ["listed a b c d"]);
    let again = list([pod("a"), broken("b"), remade("d"), pod("e")]);
    assert_eq!(
        tell(&mut sight, again),
        ["applied a", "gone d", "applied d", "applied e", "gone c"],
        "nothing of b"
    );
    let nothing: Vec<String> = Vec::new();
    assert_eq!(tell(&mut sight, [Event::Apply(broken("e"))]), nothing);
    assert_eq!(tell(&mut sight, list([pod("a"), pod("b")])), ["listed a b"]);
}

fn stands_in(object: Decoded<Pod>) -> Taken<String> {
    match object {
        Decoded::Whole(pod) => Taken::Whole(pod.name_any()),
        Decoded::Partial(partial) => match partial.metadata.name.as_deref() {
            Some("left-out") => Taken::LeftOut,
            name => Taken::StandIn(format!("for {}", name.unwrap_or_default())),
        },
    }
}

fn streamed(
    decoder: &mut impl Decode<Pod, Told = StreamEvent<String>>,
    events: impl IntoIterator<Item = Event<Decoded<Pod>>>,
) -> Vec<String> {
    let told = events.into_iter().flat_map(|event| {
        let told = decoder.take(event);
        decoder.handed_over();
        told
    });
    told.map(written).collect()
}

fn written(told: StreamEvent<String>) -> String {
    match told {
        StreamEvent::Seen(name) => name,
        StreamEvent::Deleted(metadata) => format!("gone {}", metadata.name.unwrap_or_default()),
        StreamEvent::ListEnded(names) => {
            let names: Vec<String> = names.into_iter().map(|object| object.name).collect();
            format!("there are {}", names.join(" "))
        }
    }
}

#[test]
fn a_streamed_list_is_told_as_it_comes_and_concluded_at_its_end() {
    let registry = Metrics::new("test", "0");
    let metrics = WatchMetrics::register(&registry);
    let synced = Readiness::default().condition("watch Pod");
    let counted = |count: usize| {
        let text = registry.encode().unwrap();
        let line = format!("muster_watch_undecodable_objects{{kind=\"Pod\"}} {count}");
        assert!(text.contains(&line), "{line} is missing in\n{text}");
    };
    let health = WatchHealth::new::<Pod>(&metrics, synced.clone());
    let mut decoder = StreamDecoder::new(stands_in, health);
    let broken_off = [
        Event::Init,
        Event::InitApply(pod("a")),
        Event::InitApply(pod("z")),
    ];
    assert_eq!(streamed(&mut decoder, broken_off), ["a", "z"]);
    assert!(!synced.holds(), "half a list is none");
    let whole = list([pod("a"), broken("b"), broken("left-out")]);
    assert_eq!(
        streamed(&mut decoder, whole),
        ["a", "for b", "there are a b left-out"],
        "z is gone, and what is left out is not"
    );
    assert!(
        synced.holds(),
        "what cannot be decoded does not hold the kind back"
    );
    counted(2);
    assert_eq!(streamed(&mut decoder, [Event::Apply(pod("b"))]), ["b"]);
    counted(1);
    let gone = Event::Delete(broken("left-out"));
    assert_eq!(streamed(&mut decoder, [gone]), ["gone left-out"]);
    counted(0);
    assert_eq!(
        streamed(&mut decoder, list([broken("c")])),
        ["for c", "there are c"]
    );
    counted(1);
}
