//! Rules are judged on a thread of their own, which may end or hang: that costs the rule that it was busy with.

#![expect(clippy::unwrap_used, reason = "a test")]
#![expect(
    clippy::default_trait_access,
    reason = "the type is of a room whose door this one does not use"
)]

use std::{
    sync::atomic::{AtomicUsize, Ordering},
    time::Duration,
};

use muster_cluster::{
    index::{Config, Index, NamespacedName},
    judgement::{Judgement, JudgementRequest},
    managed::ManagedPods,
    object::{Change, Object},
};
use muster_controller::judge::{Judge, MOST_LEFT_BEHIND, REQUESTS_AT_ONCE, evaluate};
use serde_json::{Value, json};

/// An index in which `count` pods with rules of their own about nodes wait to be judged, and its only node.
fn index(count: usize) -> Index {
    let mut index = Index::new(Config {
        managed: ManagedPods::new(["nvidia.com/gpu"]).unwrap(),
        excluded_namespaces: [].into(),
        excepted_device_classes: [].into(),
        default_team: None,
        start_timeout_seconds: muster_cluster::index::START_TIMEOUT_SECONDS,
    });
    index.judge_apart();
    let node = json!({"metadata": {"name": "a", "labels": {"rank": "0"}}});
    index.observe(Change::Applied(Object::Node(parsed(node))));
    let namespace = json!({"metadata": {"name": "ml", "labels": {"muster.dev/team": "vision"}}});
    index.observe(Change::Applied(Object::Namespace(parsed(namespace))));
    let team = json!({"metadata": {"name": "vision"}, "spec": {}});
    index.observe(Change::Applied(Object::Team(parsed(team))));
    for number in 0..count {
        let pod = json!({"metadata": {"name": format!("p{number}"), "namespace": "ml", "uid": format!("p{number}")},
            "spec": {"containers": [], "schedulingGates": [{"name": "muster.dev/admission"}],
                "nodeSelector": {"rank": number.to_string()}}});
        index.observe(Change::Applied(Object::Pod(parsed(pod))));
    }
    index.refresh(Default::default());
    index
}

fn parsed<T: serde::de::DeserializeOwned>(value: Value) -> std::sync::Arc<T> {
    std::sync::Arc::new(serde_json::from_value(value).unwrap())
}

/// Why the pod's gang is not admitted, as far as its rules go; `None`: they are judged.
fn wait(index: &mut Index, pod: &str) -> Option<String> {
    while index.refresh(Default::default()).more {}
    let key = index.gang_of_pod(&NamespacedName::new("ml", pod)).unwrap();
    let wait = index.formed_gang(key).unwrap().wait.clone();
    wait.map(|wait| wait.details)
}

#[tokio::test]
async fn what_is_handed_over_is_judged_on_another_thread_and_told() {
    let mut index = index(2);
    let mut judge = Judge::new(evaluate);
    assert!(wait(&mut index, "p0").is_some());
    loop {
        judge.begin(index.take_judgements(judge.room()));
        if judge.room() == REQUESTS_AT_ONCE {
            break;
        }
        index.give_judgements([judge.next().await]);
    }
    assert_eq!(wait(&mut index, "p0"), None);
    assert_eq!(wait(&mut index, "p1"), None);
}

#[tokio::test]
async fn a_request_that_ends_its_thread_is_given_up_and_the_others_are_judged() {
    static SEEN: AtomicUsize = AtomicUsize::new(0);
    fn breaks_off_once(request: &JudgementRequest) -> Judgement {
        assert!(
            SEEN.fetch_add(1, Ordering::SeqCst) > 0,
            "the first one breaks off"
        );
        evaluate(request)
    }
    let mut index = index(3);
    let mut judge = Judge::new(breaks_off_once);
    loop {
        judge.begin(index.take_judgements(judge.room()));
        if judge.room() == REQUESTS_AT_ONCE {
            break;
        }
        index.give_judgements([judge.next().await]);
    }
    let waits: Vec<String> = (0..3)
        .filter_map(|number| wait(&mut index, &format!("p{number}")))
        .collect();
    assert_eq!(waits.len(), 1, "{waits:?}");
    assert!(
        waits[0].ends_with("evaluating it ended the thread that did"),
        "{waits:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn a_request_that_never_ends_is_given_up_and_a_bounded_number_of_threads_is_left_behind() {
    fn hangs(_: &JudgementRequest) -> Judgement {
        loop {
            std::thread::park();
        }
    }
    let mut index = index(8);
    let mut judge = Judge::new(hangs);
    judge.begin(index.take_judgements(judge.room()));
    assert_eq!(judge.room(), 0, "no more than these wait");
    for _ in 0..MOST_LEFT_BEHIND {
        index.give_judgements([judge.next().await]);
    }
    let told = wait(&mut index, "p0").unwrap();
    assert!(told.contains("took longer than 2 s"), "{told}");
    let more = tokio::time::timeout(Duration::from_secs(60), judge.next()).await;
    assert!(
        more.is_err(),
        "nothing more is begun while they are all busy"
    );
}
