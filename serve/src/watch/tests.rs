use futures::stream;
use k8s_openapi::api::core::v1::Pod;
use kube::{ResourceExt, core::error_boundary::InvalidObject};
use serde_json::json;

use super::*;
use crate::{metrics::Metrics, readiness::Readiness};

fn metadata(name: &str) -> ObjectMeta {
    serde_json::from_value(
        json!({"name": name, "namespace": "team-a", "managedFields": [{"manager": "x"}]}),
    )
    .unwrap()
}

fn pod(name: &str) -> DeserializeGuard<Pod> {
    DeserializeGuard(Ok(Pod {
        metadata: metadata(name),
        ..Pod::default()
    }))
}

fn broken(name: &str) -> DeserializeGuard<Pod> {
    DeserializeGuard(Err(InvalidObject {
        error: "spec: expected a map".to_owned(),
        metadata: metadata(name),
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
    let sight = WatchDecoder::new(
        Undecodable::IsLeftOut,
        &WatchMetrics::register(&metrics),
        synced.clone(),
    );
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
async fn a_watch_whose_receiver_is_gone_ends() {
    let metrics = WatchMetrics::register(&Metrics::new("test", "0"));
    let (sender, receiver) = mpsc::channel(1);
    drop(receiver);
    let synced = Readiness::default().condition("watch Pod");
    let sight = WatchDecoder::new(Undecodable::IsLeftOut, &metrics, synced);
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
    let sight = WatchDecoder::new(
        Undecodable::IsLeftOut,
        &WatchMetrics::register(&metrics),
        synced.clone(),
    );
    pump(failures, sight, sender, told).await;
    let text = metrics.encode().unwrap();
    assert!(
        text.contains("muster_watch_stale_seconds{kind=\"Pod\"} 40"),
        "{text}"
    );
    assert!(!synced.holds());
}

/// What a consumer is told of these events.
fn tell(
    sight: &mut WatchDecoder<Pod>,
    events: impl IntoIterator<Item = Event<DeserializeGuard<Pod>>>,
) -> Vec<String> {
    let seen = events.into_iter().flat_map(|event| {
        let seen = sight.take(event);
        sight.handed_over();
        seen
    });
    seen.map(told).collect()
}

fn list<const N: usize>(
    objects: [DeserializeGuard<Pod>; N],
) -> impl Iterator<Item = Event<DeserializeGuard<Pod>>> {
    let begin = std::iter::once(Event::Init);
    let objects = objects.into_iter().map(Event::InitApply);
    begin.chain(objects).chain([Event::InitDone])
}

fn remade(name: &str) -> DeserializeGuard<Pod> {
    let mut guarded = pod(name);
    if let Ok(pod) = &mut guarded.0 {
        pod.metadata.uid = Some("another".to_owned());
    }
    guarded
}

#[test]
fn what_cannot_be_decoded_any_more_counts_as_last_seen_also_after_a_gap() {
    let metrics = Metrics::new("test", "0");
    let synced = Readiness::default().condition("watch Pod");
    for policy in [Undecodable::IsLeftOut, Undecodable::HoldsTheListBack] {
        let metrics = WatchMetrics::register(&metrics);
        let mut sight = WatchDecoder::new(policy, &metrics, synced.clone());
        let first = tell(&mut sight, list([pod("a"), pod("b"), pod("c"), pod("d")]));
        assert_eq!(first, ["listed a b c d"]);
        let again = list([pod("a"), broken("b"), remade("d"), pod("e")]);
        assert_eq!(
            tell(&mut sight, again),
            ["applied a", "gone d", "applied d", "applied e", "gone c"],
            "nothing of b, {policy:?}"
        );
        assert_eq!(
            tell(&mut sight, [Event::Apply(broken("e"))]),
            Vec::<String>::new()
        );
        assert_eq!(tell(&mut sight, list([pod("a"), pod("b")])), ["listed a b"]);
    }
}

#[test]
fn a_first_list_that_must_be_whole_is_told_once_all_of_it_can_be_decoded() {
    let metrics = Metrics::new("test", "0");
    let synced = Readiness::default().condition("watch Pod");
    let mends: [(Event<DeserializeGuard<Pod>>, &str); 2] = [
        (Event::Apply(pod("b")), "listed a b"),
        (Event::Delete(broken("b")), "listed a"),
    ];
    for (mend, whole) in mends {
        synced.set(true);
        let mut sight = WatchDecoder::new(
            Undecodable::HoldsTheListBack,
            &WatchMetrics::register(&metrics),
            synced.clone(),
        );
        assert!(tell(&mut sight, list([pod("a"), broken("b"), pod("c")])).is_empty());
        assert!(!synced.holds(), "the kind is not synced any more");
        assert!(tell(&mut sight, [Event::Delete(pod("c"))]).is_empty());
        assert_eq!(tell(&mut sight, [mend]), [whole]);
        assert!(synced.holds());
    }
}
