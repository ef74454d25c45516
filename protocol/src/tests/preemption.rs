//! Gangs that give way to others: who is told, when its attempt ends, and what stops that.

use muster_api::{GangPhase, GangStatus, Reason, keys};

use super::*;
use crate::objects::{is_deleting, is_gated};

const NOTICE_SECONDS: u64 = 40;

/// A tier of preemption. `says`: what else it says.
fn tier(name: &str, value: i32, preemption: &str, says: &Value) -> Object {
    let mut spec =
        json!({"value": value, "preemption": preemption, "noticeSeconds": NOTICE_SECONDS});
    let more = says.as_object().unwrap().clone();
    spec.as_object_mut().unwrap().extend(more);
    Object::PriorityTier(parse(json!({
        "apiVersion": "muster.dev/v1alpha1", "kind": "PriorityTier",
        "metadata": {"name": name}, "spec": spec,
    })))
}

/// A gang of single-GPU pods, by label, of a tier.
fn submit(bench: &mut Bench, label: &str, size: usize, tier: &str) {
    bench.gang(label, size);
    for rank in 0..size {
        bench.change_pod(&format!("{label}-{rank}"), |pod| {
            let labels = pod.metadata.labels.get_or_insert_default();
            labels.insert(keys::TIER.to_owned(), tier.to_owned());
        });
    }
}

/// Gang `low` holds all four GPUs and runs; its tier says so much.
fn low_runs(preemption: &str, says: &Value) -> Bench {
    let mut bench = Bench::new();
    bench.server.put(tier("low", 1, preemption, says));
    bench.server.put(tier("high", 10, "Never", &json!({})));
    submit(&mut bench, "low", 4, "low");
    bench.run();
    start(&mut bench, "low", 4);
    bench.written.clear();
    bench
}

/// The pods of a gang are bound where they are planned, and run.
fn start(bench: &mut Bench, label: &str, size: usize) {
    let status = status(bench, label);
    let (admission, placement) = (status.admission.unwrap(), status.placement.unwrap());
    for rank in 0..size {
        let name = format!("{label}-{rank}");
        let uid = bench.server.pod(&name).unwrap().metadata.uid.unwrap();
        let place = admission.pods.iter().position(|it| it.uid == uid).unwrap();
        let node = placement.node_of(place).unwrap().node.clone();
        bench.change_pod(&name, |pod| {
            pod.spec.as_mut().unwrap().node_name = Some(node);
            pod.status.as_mut().unwrap().phase = Some("Running".to_owned());
        });
    }
    bench.run();
}

fn status(bench: &Bench, label: &str) -> GangStatus {
    let gangs = bench.server.list(Kind::Gang);
    let mut gangs = gangs.iter().filter_map(|gang| match gang {
        Object::Gang(gang) => Some(gang),
        _ => None,
    });
    let gang = gangs.find(|gang| gang.spec.group.as_deref() == Some(label));
    gang.unwrap().status.clone().unwrap()
}

/// What the pods of `low` say about when it ends.
fn told(bench: &Bench) -> Vec<Option<String>> {
    let pods = (0..4).map(|rank| bench.server.pod(&format!("low-{rank}")).unwrap());
    let told = |pod: Pod| pod.metadata.annotations?.get(keys::PREEMPT_AT).cloned();
    pods.map(told).collect()
}

fn checkpoint(bench: &mut Bench, at: Timestamp) {
    bench.change_pod("low-2", |pod| {
        let annotations = pod.metadata.annotations.get_or_insert_default();
        annotations.insert(keys::CHECKPOINTED_AT.to_owned(), at.to_string());
    });
    bench.run();
}

fn is_evicted(bench: &Bench) -> bool {
    let status = status(bench, "low");
    let last = status.evictions.last();
    assert!(last.is_none_or(|eviction| eviction.reason == Reason::Preempted));
    last.is_some()
}

fn end_deleted(bench: &mut Bench) -> usize {
    let pods = bench.server.list(Kind::Pod);
    let gone = pods
        .iter()
        .filter(|pod| matches!(pod, Object::Pod(pod) if is_deleting(pod.as_ref())));
    let gone: Vec<ObjectKey> = gone.map(Object::key).collect();
    for key in &gone {
        bench.server.remove(key);
    }
    gone.len()
}

/// Seconds pass, one by one.
fn pass(bench: &mut Bench, seconds: u64) {
    let end = bench.seconds + seconds;
    while bench.seconds < end {
        bench.seconds += 1;
        bench.run_at_once();
    }
}

#[test]
fn a_gang_is_told_before_it_gives_way_and_comes_back_with_its_age() {
    let mut bench = low_runs("Immediate", &json!({}));
    let queued_at = status(&bench, "low").queued_at;
    submit(&mut bench, "high", 4, "high");
    let before = bench.now().wall;
    bench.run();
    let low = status(&bench, "low");
    assert_eq!((low.phase, low.attempt), (GangPhase::Running, 1));
    let notice = low.preemption.unwrap();
    assert_eq!(notice.attempt, 1);
    assert!(notice.preemptor.starts_with("ml/"), "{}", notice.preemptor);
    let expected = "which goes first in its Team";
    assert!(notice.message.ends_with(expected), "{}", notice.message);
    let seconds = notice.preempt_at.0.as_second() - notice.noticed_at.0.as_second();
    assert_eq!(u64::try_from(seconds), Ok(NOTICE_SECONDS));
    assert!(notice.noticed_at.0 >= before);
    assert_eq!(told(&bench), vec![Some(notice.preempt_at.0.to_string()); 4]);
    let waits = status(&bench, "high").queue.unwrap();
    assert_eq!(waits.reason, Reason::WaitingForRelease);
    assert!(
        waits.details.contains("gives way to it"),
        "{}",
        waits.details
    );
    // Nothing is done to it before.
    let left = u64::try_from(notice.preempt_at.0.as_second()).unwrap()
        - u64::try_from(bench.now().wall.as_second()).unwrap();
    pass(&mut bench, left - 4);
    assert!(!is_evicted(&bench));
    pass(&mut bench, 8);
    assert!(is_evicted(&bench));
    let low = status(&bench, "low");
    assert_eq!((low.phase, low.attempt), (GangPhase::Evicting, 2));
    assert_eq!((low.preemption, low.requeue_at), (None, None));
    assert!(
        is_gated(&bench.server.pod("high-0").unwrap()),
        "they are still there"
    );
    assert_eq!(end_deleted(&mut bench), 4);
    submit(&mut bench, "low", 4, "low");
    bench.run();
    assert!((0..4).all(|rank| !is_gated(&bench.server.pod(&format!("high-{rank}")).unwrap())));
    let low = status(&bench, "low");
    assert_eq!((low.phase, low.attempt), (GangPhase::Pending, 2));
    assert_eq!(low.queued_at, queued_at);
    for rank in 0..4 {
        bench.server.remove(&pod_key(&format!("high-{rank}")));
    }
    bench.run();
    assert_eq!(status(&bench, "low").phase, GangPhase::Admitted);
}

#[test]
fn a_gang_that_ends_after_a_checkpoint_ends_at_the_first_one_since_the_notice() {
    let mut bench = low_runs("AfterCheckpoint", &json!({}));
    let now = bench.now().wall;
    checkpoint(&mut bench, now);
    submit(&mut bench, "high", 4, "high");
    pass(&mut bench, 3);
    let notice = status(&bench, "low").preemption.unwrap();
    checkpoint(&mut bench, notice.noticed_at.0);
    assert!(!is_evicted(&bench), "it may be from before the notice");
    pass(&mut bench, 5);
    let now = bench.now().wall;
    checkpoint(&mut bench, now);
    assert!(is_evicted(&bench));
    let eviction = status(&bench, "low").evictions.remove(0);
    assert!(
        eviction.message.contains("it wrote a checkpoint at"),
        "{}",
        eviction.message
    );
}

#[test]
fn a_gang_that_writes_no_checkpoint_ends_with_its_notice() {
    let mut bench = low_runs("AfterCheckpoint", &json!({}));
    submit(&mut bench, "high", 4, "high");
    pass(&mut bench, 3);
    // What cannot be read is none.
    bench.change_pod("low-0", |pod| {
        let annotations = pod.metadata.annotations.get_or_insert_default();
        annotations.insert(keys::CHECKPOINTED_AT.to_owned(), "soon".to_owned());
    });
    pass(&mut bench, NOTICE_SECONDS - 6);
    assert!(!is_evicted(&bench));
    pass(&mut bench, 10);
    assert!(is_evicted(&bench));
    let eviction = status(&bench, "low").evictions.remove(0);
    assert!(
        eviction.message.contains("no checkpoint for 40 s"),
        "{}",
        eviction.message
    );
}

fn remove(bench: &mut Bench, label: &str) {
    for rank in 0..4 {
        bench.server.remove(&pod_key(&format!("{label}-{rank}")));
    }
}

#[test]
fn a_notice_is_taken_back_when_whoever_it_is_for_is_gone_for_a_while() {
    let mut bench = low_runs("Immediate", &json!({}));
    submit(&mut bench, "high", 4, "high");
    pass(&mut bench, 5);
    assert!(status(&bench, "low").preemption.is_some());
    remove(&mut bench, "high");
    pass(&mut bench, 25);
    assert!(status(&bench, "low").preemption.is_some());
    pass(&mut bench, 7);
    assert_eq!(status(&bench, "low").preemption, None);
    assert_eq!(told(&bench), vec![None; 4]);
    pass(&mut bench, 2 * NOTICE_SECONDS);
    assert!(!is_evicted(&bench));
    assert_eq!(status(&bench, "low").phase, GangPhase::Running);
}

#[test]
fn whoever_blinks_while_others_are_told_costs_them_no_writes() {
    let mut bench = low_runs("Immediate", &json!({}));
    submit(&mut bench, "high", 4, "high");
    pass(&mut bench, 5);
    let notice = status(&bench, "low").preemption;
    let pod = bench.server.pod("high-3").unwrap();
    bench.written.clear();
    bench.server.remove(&pod_key("high-3"));
    pass(&mut bench, 3);
    bench.server.put(Object::Pod(Arc::new(Pod {
        metadata: k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta {
            uid: None,
            ..pod.metadata
        },
        ..pod
    })));
    pass(&mut bench, 3);
    assert_eq!(status(&bench, "low").preemption, notice);
    let tells = |write: &&ApiRequest| {
        let target = write.target();
        target.is_some_and(|target| target.name.contains("low"))
    };
    let told: Vec<&ApiRequest> = bench.written.iter().filter(tells).collect();
    assert!(told.is_empty(), "{told:?}");
    pass(&mut bench, NOTICE_SECONDS);
    assert!(is_evicted(&bench));
}

#[test]
fn nobody_is_evicted_for_a_gang_that_is_gone_by_the_moment_of_the_commit() {
    let mut bench = low_runs("Immediate", &json!({}));
    submit(&mut bench, "high", 4, "high");
    bench.run_at_once();
    let notice = status(&bench, "low").preemption.unwrap();
    let noticed_at = u64::try_from(notice.noticed_at.0.as_second() - 1_800_000_000).unwrap();
    // The last second of the notice, and the end of whom it is for, come in one poll.
    let left = noticed_at + NOTICE_SECONDS - bench.seconds;
    pass(&mut bench, left);
    assert!(!is_evicted(&bench));
    bench.seconds += 1;
    remove(&mut bench, "high");
    bench.run_at_once();
    pass(&mut bench, 2 * NOTICE_SECONDS);
    assert!(!is_evicted(&bench));
}

#[test]
fn a_tier_that_changes_during_the_notice_saves_nobody() {
    for is_put_back in [true, false] {
        let mut bench = low_runs("Immediate", &json!({}));
        submit(&mut bench, "high", 4, "high");
        pass(&mut bench, 5);
        bench.server.put(tier("low", 1, "Never", &json!({})));
        pass(&mut bench, 3);
        if is_put_back {
            bench.server.put(tier("low", 1, "Immediate", &json!({})));
        }
        pass(&mut bench, NOTICE_SECONDS);
        assert!(is_evicted(&bench), "put back: {is_put_back}");
    }
}

#[test]
fn a_checkpoint_of_the_future_is_newer_than_any_notice() {
    let mut bench = low_runs("AfterCheckpoint", &json!({}));
    let far = bench.now().wall + jiff::SignedDuration::from_hours(24);
    checkpoint(&mut bench, far);
    submit(&mut bench, "high", 4, "high");
    pass(&mut bench, 5);
    assert!(is_evicted(&bench));
}

#[test]
fn a_notice_names_whoever_it_is_for_by_now() {
    let mut bench = low_runs("Immediate", &json!({}));
    submit(&mut bench, "high", 4, "high");
    pass(&mut bench, 5);
    let first = status(&bench, "low").preemption.unwrap();
    submit(&mut bench, "next", 4, "high");
    pass(&mut bench, 3);
    remove(&mut bench, "high");
    pass(&mut bench, 5);
    let second = status(&bench, "low").preemption.unwrap();
    assert!(second.preemptor.contains("next"), "{second:?}");
    assert!(second.message.contains("next"), "{second:?}");
    assert_eq!(second.preempt_at, first.preempt_at);
}

#[test]
fn in_observe_pods_are_told_that_they_may_stay() {
    let mut bench = low_runs("Immediate", &json!({}));
    submit(&mut bench, "high", 4, "high");
    pass(&mut bench, 5);
    assert!(told(&bench).iter().all(Option::is_some));
    bench.machine = Machine::new(Config {
        mode: crate::Mode::Observe,
        ..config()
    });
    pass(&mut bench, 2 * NOTICE_SECONDS);
    assert_eq!(told(&bench), vec![None; 4]);
    assert_eq!(status(&bench, "low").preemption, None);
    assert!(!is_evicted(&bench));
}

#[test]
fn nobody_is_evicted_on_a_notice_that_a_new_leader_does_not_confirm() {
    for is_gone in [false, true] {
        let mut bench = low_runs("Immediate", &json!({}));
        submit(&mut bench, "high", 4, "high");
        pass(&mut bench, 5);
        assert!(status(&bench, "low").preemption.is_some());
        if is_gone {
            for rank in 0..4 {
                bench.server.remove(&pod_key(&format!("high-{rank}")));
            }
        }
        bench.take_over();
        bench.seconds += NOTICE_SECONDS;
        bench.run_at_once();
        assert!(!is_evicted(&bench), "its clock starts anew");
        pass(&mut bench, NOTICE_SECONDS + 5);
        assert_eq!(is_evicted(&bench), !is_gone, "preemptor gone: {is_gone}");
        assert_eq!(status(&bench, "low").preemption, None);
    }
}

#[test]
fn whose_tier_says_never_gives_way_to_nobody_and_the_minimum_run_time_is_waited_for() {
    let mut bench = low_runs("Never", &json!({}));
    submit(&mut bench, "high", 4, "high");
    pass(&mut bench, 2 * NOTICE_SECONDS);
    assert_eq!(status(&bench, "low").preemption, None);

    let mut bench = low_runs("Immediate", &json!({"minRuntimeSeconds": 100}));
    let started = bench.seconds;
    submit(&mut bench, "high", 4, "high");
    pass(&mut bench, 80);
    assert_eq!(status(&bench, "low").preemption, None);
    // Nothing but time passes.
    let left = started + 101 - bench.seconds;
    pass(&mut bench, left);
    assert!(status(&bench, "low").preemption.is_some());
}

#[test]
fn a_team_has_back_what_another_one_borrows() {
    let mut bench = Bench::new();
    bench.server.put(tier("low", 1, "Immediate", &json!({})));
    let teams = |bench: &mut Bench| {
        for (name, gpus) in [("vision", 2), ("speech", 2)] {
            bench.server.put(Object::Team(parse(json!({
                "apiVersion": "muster.dev/v1alpha1", "kind": "Team", "metadata": {"name": name},
                "spec": {"cohort": "all", "quota": [{"flavor": "gpu", "resources": [{"name": "gpus", "nominal": gpus}]}]},
            }))));
        }
    };
    teams(&mut bench);
    bench.server.put(Object::Namespace(parse(
        json!({"metadata": {"name": "talk", "labels": {keys::TEAM: "speech"}}}),
    )));
    submit(&mut bench, "low", 4, "low");
    bench.run();
    start(&mut bench, "low", 4);
    let name = "voice-0";
    let mut claim = claim(name, keys::DEVICE_CLASS_GPU);
    if let Object::ResourceClaim(claim) = &mut claim {
        Arc::make_mut(claim).metadata.namespace = Some("talk".to_owned());
    }
    bench.server.put(claim);
    bench.server.put(Object::Pod(parse(json!({
        "metadata": {
            "name": name, "namespace": "talk", "creationTimestamp": "2027-01-01T00:00:00Z",
            "labels": {keys::TIER: "low"},
        },
        "spec": {
            "containers": [{"name": "rank", "resources": {"claims": [{"name": "gpu"}]}}],
            "resourceClaims": [{"name": "gpu", "resourceClaimName": name}],
            "schedulingGates": [{"name": keys::ADMISSION_GATE}],
        },
        "status": {"phase": "Pending"},
    }))));
    bench.run();
    let notice = status(&bench, "low").preemption.unwrap();
    let expected = "whose Team has quota back that others borrowed";
    assert!(notice.message.contains(expected), "{}", notice.message);
}
