//! Gangs that give way to others: who is told, when its attempt ends, and what stops that.

mod by_index;
mod over_quota;

use muster_api::{Gang, GangPhase, GangStatus, Reason, gang::Reservation, keys};

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
        bench.runs_on(&name, &node);
    }
    bench.run();
}

fn gang(bench: &Bench, label: &str) -> Arc<Gang> {
    let mut gangs = bench
        .server
        .list(Kind::Gang)
        .into_iter()
        .filter_map(|gang| match gang {
            Object::Gang(gang) => Some(gang),
            _ => None,
        });
    let gang = gangs.find(|gang| gang.spec.group.as_deref() == Some(label));
    gang.unwrap()
}

fn status(bench: &Bench, label: &str) -> GangStatus {
    gang(bench, label).status.clone().unwrap()
}

/// The attempts that a Gang says give way to it.
fn victims(status: &GangStatus) -> Vec<(String, i64)> {
    let reservation = status.reservation.as_ref().unwrap();
    let named = reservation.victims.iter();
    let named: Vec<_> = named.map(|it| (it.gang.clone(), it.attempt)).collect();
    assert_eq!(
        usize::try_from(reservation.victim_count),
        Ok(named.len()),
        "all are named"
    );
    named
}

fn full_name(bench: &Bench, label: &str) -> String {
    let name = gang(bench, label).metadata.name.clone().unwrap();
    format!("ml/{name}")
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
    assert_eq!(low.requeue_at, None);
    assert_eq!(low.preemption.map(|notice| notice.attempt), Some(1));
    assert_eq!(
        victims(&status(&bench, "high")),
        [(full_name(&bench, "low"), 1)]
    );
    assert!(
        is_gated(&bench.server.pod("high-0").unwrap()),
        "they are still there"
    );
    assert_eq!(end_deleted(&mut bench), 4);
    submit(&mut bench, "low", 4, "low");
    bench.run();
    assert!((0..4).all(|rank| !is_gated(&bench.server.pod(&format!("high-{rank}")).unwrap())));
    assert_eq!(status(&bench, "high").reservation, None);
    let low = status(&bench, "low");
    assert_eq!((low.phase, low.attempt), (GangPhase::Pending, 2));
    assert_eq!(low.preemption, None);
    assert_eq!(low.queued_at, queued_at);
    for rank in 0..4 {
        bench.server.remove(&pod_key(&format!("high-{rank}")));
    }
    bench.run();
    assert_eq!(status(&bench, "low").phase, GangPhase::Admitted);
}

/// By as much the clock by which checkpoints are dated is ahead of the leader's: that of another machine.
const CLOCKS_AHEAD_SECONDS: [i64; 3] = [0, -3_600, 3_600];

#[test]
fn a_gang_that_ends_after_a_checkpoint_ends_at_the_first_one_since_it_was_told() {
    for ahead in CLOCKS_AHEAD_SECONDS {
        let dated = |bench: &Bench| bench.now().wall + jiff::SignedDuration::from_secs(ahead);
        let mut bench = low_runs("AfterCheckpoint", &json!({}));
        let before = dated(&bench);
        checkpoint(&mut bench, before);
        submit(&mut bench, "high", 4, "high");
        pass(&mut bench, 5);
        assert!(told(&bench).iter().all(Option::is_some), "{ahead}");
        checkpoint(&mut bench, before);
        assert!(!is_evicted(&bench), "{ahead}: it is from before the notice");
        let since = dated(&bench);
        checkpoint(&mut bench, since);
        assert!(is_evicted(&bench), "{ahead}");
        let eviction = status(&bench, "low").evictions.remove(0);
        let said = format!("it wrote a checkpoint at {since}");
        assert!(eviction.message.contains(&said), "{}", eviction.message);
    }
}

#[test]
fn a_new_leader_counts_no_checkpoint_that_may_be_older_than_the_notice() {
    for ahead in CLOCKS_AHEAD_SECONDS {
        let dated = |bench: &Bench| bench.now().wall + jiff::SignedDuration::from_secs(ahead);
        let mut bench = low_runs("AfterCheckpoint", &json!({}));
        submit(&mut bench, "high", 4, "high");
        pass(&mut bench, 5);
        let unseen = dated(&bench);
        bench.change_pod("low-2", |pod| {
            let annotations = pod.metadata.annotations.get_or_insert_default();
            annotations.insert(keys::CHECKPOINTED_AT.to_owned(), unseen.to_string());
        });
        bench.take_over();
        pass(&mut bench, 5);
        assert!(status(&bench, "low").preemption.is_some(), "{ahead}");
        assert!(!is_evicted(&bench), "{ahead}: nobody saw which came first");
        let since = dated(&bench);
        checkpoint(&mut bench, since);
        assert!(is_evicted(&bench), "{ahead}");
    }
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

/// Gang `low` runs by a tier that says `Immediate`, and its user has it follow this one since.
fn low_follows(tier_now: &str) -> Bench {
    let mut bench = low_runs("Immediate", &json!({}));
    let says = json!({"minRuntimeSeconds": 100_000});
    bench.server.put(tier("kept", 5, "Never", &says));
    let mut low = gang(&bench, "low");
    Arc::make_mut(&mut low).spec.tier = Some(tier_now.to_owned());
    bench.server.put(Object::Gang(low));
    bench.run();
    assert_eq!(status(&bench, "low").tier.as_deref(), Some(tier_now));
    bench
}

/// Whoever may edit a Gang may have it follow another tier of the Team, at any time.
#[test]
fn a_gang_that_may_have_borrowed_gives_it_back_though_its_user_has_it_follow_another_tier() {
    for (follows, is_taken_over) in [("low", false), ("kept", false), ("kept", true)] {
        let mut bench = low_follows(follows);
        if is_taken_over {
            bench.take_over();
        }
        submit(&mut bench, "high", 4, "high");
        pass(&mut bench, NOTICE_SECONDS + 10);
        assert!(is_evicted(&bench), "{follows}, taken over: {is_taken_over}");
    }
}

/// The administrators of a tier may have its gangs stay, those that borrowed included.
#[test]
fn a_tier_that_becomes_never_keeps_the_gangs_that_were_admitted_by_it() {
    for follows in ["low", "kept"] {
        let mut bench = low_follows(follows);
        bench.server.put(tier("low", 1, "Never", &json!({})));
        bench.run();
        submit(&mut bench, "high", 4, "high");
        pass(&mut bench, NOTICE_SECONDS + 10);
        assert!(!is_evicted(&bench), "{follows}");
    }
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
        let notice = status(&bench, "low").preemption;
        assert_eq!(notice.is_none(), is_gone, "it holds something still");
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

/// A gang of one GPU in namespace `talk`.
fn voice(bench: &mut Bench, tier: &str) {
    let name = "voice-0";
    let mut claim = claim(name, keys::DEVICE_CLASS_GPU);
    if let Object::ResourceClaim(claim) = &mut claim {
        Arc::make_mut(claim).metadata.namespace = Some("talk".to_owned());
    }
    bench.server.put(claim);
    bench.server.put(Object::Pod(parse(json!({
        "metadata": {
            "name": name, "namespace": "talk", "creationTimestamp": "2027-01-01T00:00:00Z",
            "labels": {keys::TIER: tier},
        },
        "spec": {
            "containers": [{"name": "rank", "resources": {"claims": [{"name": "gpu"}]}}],
            "resourceClaims": [{"name": "gpu", "resourceClaimName": name}],
            "schedulingGates": [{"name": keys::ADMISSION_GATE}],
        },
        "status": {"phase": "Pending"},
    }))));
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
    voice(&mut bench, "low");
    bench.run();
    let notice = status(&bench, "low").preemption.unwrap();
    let expected = "whose Team has quota back that others borrowed";
    assert!(notice.message.contains(expected), "{}", notice.message);
}

/// Takes over at a moment at which gang `high` waits for what gang `low` holds; a gang of another Team wants it too.
fn new_leader_keeps_what_is_freed(until: fn(&mut Bench)) {
    let mut bench = low_runs("Immediate", &json!({}));
    // The third Team may borrow all, and its gang goes before everybody.
    bench.server.put(tier("first", 100, "Never", &json!({})));
    let teams = |cohort: &str, gpus: usize, name: &str| {
        Object::Team(parse(json!({
            "apiVersion": "muster.dev/v1alpha1", "kind": "Team", "metadata": {"name": name},
            "spec": {"cohort": cohort, "quota": [{"flavor": "gpu", "resources": [{"name": "gpus", "nominal": gpus}]}]},
        })))
    };
    bench.server.put(teams("all", 4, "vision"));
    bench.server.put(teams("all", 4, "speech"));
    bench.server.put(Object::Namespace(parse(
        json!({"metadata": {"name": "talk", "labels": {keys::TEAM: "speech"}}}),
    )));
    submit(&mut bench, "high", 4, "high");
    bench.run();
    let since = status(&bench, "high").reservation.unwrap().since;
    voice(&mut bench, "first");
    bench.run();
    until(&mut bench);
    bench.take_over();
    bench.run();
    let voice = || bench.server.list(Kind::Pod);
    let waits = voice().iter().any(|pod| match pod {
        Object::Pod(pod) => {
            pod.metadata.name.as_deref() == Some("voice-0") && is_gated(pod.as_ref())
        }
        _ => false,
    });
    assert!(waits, "it takes what is kept for another gang");
    let high = status(&bench, "high");
    if high.phase == GangPhase::Pending {
        assert_eq!(high.reservation.unwrap().since, since, "its time goes on");
        pass(&mut bench, NOTICE_SECONDS + 5);
        assert!(is_evicted(&bench));
        end_deleted(&mut bench);
        bench.run();
    }
    let high = status(&bench, "high");
    assert_eq!((high.phase, high.reservation), (GangPhase::Admitted, None));
}

#[test]
fn what_is_kept_is_told_at_once_though_the_first_decision_of_a_new_leader_is_interrupted() {
    let mut bench = low_runs("Immediate", &json!({}));
    submit(&mut bench, "high", 4, "high");
    submit(&mut bench, "behind", 3, "low");
    let is_told = bench.run_until(|write| matches!(write, ApiRequest::ReplaceGangStatus { .. }));
    assert!(is_told, "a leader decides, and dies before it says so");
    bench.machine = Machine::new(Config {
        looks_in_vain: 0,
        ..config()
    });
    // A look at everything goes on deciding, too.
    bench.checks_polls = false;
    bench.run_at_once();
    let high = status(&bench, "high");
    assert!(high.reservation.is_some(), "{high:?}");
}

#[test]
fn a_new_leader_keeps_for_a_gang_what_others_free_during_the_notice() {
    new_leader_keeps_what_is_freed(|_| {});
}

#[test]
fn a_new_leader_keeps_for_a_gang_what_others_free_while_they_end() {
    new_leader_keeps_what_is_freed(|bench| {
        pass(bench, NOTICE_SECONDS + 5);
        assert!(is_evicted(bench));
        assert_eq!(status(bench, "low").attempt, 2);
    });
}

#[test]
fn a_new_leader_keeps_for_a_gang_what_others_have_freed() {
    new_leader_keeps_what_is_freed(|bench| {
        pass(bench, NOTICE_SECONDS + 5);
        end_deleted(bench);
        // The former leader dies before it admits anybody.
        let admits = |write: &ApiRequest| matches!(write, ApiRequest::ReplaceLedger { spec, .. } if spec.intents.iter().any(|it| it.kind == muster_api::IntentKind::Admit));
        assert!(bench.run_until(admits));
    });
}

/// Each leader counts the notice anew, so the gang may have to go later than what was kept until then.
#[test]
fn what_is_freed_is_kept_until_ten_minutes_after_a_long_notice_that_two_leaders_count() {
    const LONG_SECONDS: u64 = 900;
    let mut bench = low_runs("Immediate", &json!({"noticeSeconds": LONG_SECONDS}));
    submit(&mut bench, "high", 4, "high");
    bench.run();
    let seconds = |reservation: &Reservation| {
        let (since, until) = (reservation.since.0, reservation.until.0);
        until.as_second() - since.as_second()
    };
    let kept = status(&bench, "high").reservation.unwrap();
    assert_eq!(seconds(&kept), 1_500);
    pass(&mut bench, LONG_SECONDS - 100);
    assert_eq!(status(&bench, "high").reservation, Some(kept.clone()));
    bench.take_over();
    bench.run();
    let again = status(&bench, "high").reservation.unwrap();
    assert_eq!(again.since, kept.since);
    let by_seconds = seconds(&again) - seconds(&kept);
    assert!((800..810).contains(&by_seconds), "{by_seconds}");
    pass(&mut bench, LONG_SECONDS - 10);
    assert!(!is_evicted(&bench), "its notice is counted anew");
    pass(&mut bench, 15);
    assert!(is_evicted(&bench));
    assert_eq!(status(&bench, "high").reservation, Some(again));
    end_deleted(&mut bench);
    bench.run();
    let high = status(&bench, "high");
    assert_eq!((high.phase, high.reservation), (GangPhase::Admitted, None));
}

#[test]
fn nobody_is_evicted_before_the_gang_that_it_is_for_says_so() {
    let mut bench = low_runs("Immediate", &json!({}));
    submit(&mut bench, "high", 4, "high");
    bench.server.prunes = Some(|object| {
        if let Object::Gang(gang) = object
            && let Some(status) = &mut Arc::make_mut(gang).status
        {
            status.reservation = None;
        }
    });
    pass(&mut bench, 2 * NOTICE_SECONDS);
    assert!(status(&bench, "low").preemption.is_some());
    assert!(!is_evicted(&bench));
    bench.server.prunes = None;
    // What is not stored is tried again ten minutes later; by then others would have been asked.
    bench.take_over();
    pass(&mut bench, NOTICE_SECONDS + 10);
    assert!(is_evicted(&bench));
}

#[test]
fn a_notice_is_taken_back_when_the_gang_that_it_is_for_finds_room_elsewhere() {
    let mut bench = low_runs("Immediate", &json!({}));
    bench.server.put(super::team("vision", 8));
    submit(&mut bench, "high", 4, "high");
    pass(&mut bench, 5);
    assert!(status(&bench, "low").preemption.is_some());
    for node in ["n2", "n3"] {
        for object in node_with_gpus(node, 2) {
            bench.server.put(object);
        }
    }
    pass(&mut bench, 5);
    let high = status(&bench, "high");
    assert_eq!((high.phase, high.reservation), (GangPhase::Admitted, None));
    pass(&mut bench, 2 * NOTICE_SECONDS);
    assert!(!is_evicted(&bench));
    assert_eq!(status(&bench, "low").preemption, None);
    assert_eq!(told(&bench), vec![None; 4]);
}

#[test]
fn nobody_is_told_to_go_beside_a_gang_that_ends_by_itself() {
    let mut bench = low_runs("Immediate", &json!({}));
    bench.server.put(super::team("vision", 8));
    for node in ["n2", "n3"] {
        for object in node_with_gpus(node, 2) {
            bench.server.put(object);
        }
    }
    submit(&mut bench, "late", 4, "low");
    bench.run();
    start(&mut bench, "late", 4);
    bench.change_pod("late-0", |pod| {
        pod.status.as_mut().unwrap().phase = Some("Failed".to_owned());
    });
    pass(&mut bench, 70);
    let evictions = status(&bench, "late").evictions;
    assert_eq!(evictions.last().unwrap().reason, Reason::PodFailed);
    // Its pods are there still.
    submit(&mut bench, "high", 4, "high");
    bench.run();
    assert_eq!(status(&bench, "low").preemption, None);
    let high = status(&bench, "high");
    assert_eq!(high.reservation, None, "nobody is told to go");
    let waits = high.queue.unwrap();
    assert_eq!(waits.reason, Reason::WaitingForRelease);
    let expected = format!("held by {}", full_name(&bench, "late"));
    assert!(waits.details.contains(&expected), "{}", waits.details);
    end_deleted(&mut bench);
    bench.run();
    assert_eq!(status(&bench, "high").phase, GangPhase::Admitted);
}

#[test]
fn a_clock_that_is_set_neither_ends_what_is_kept_for_a_gang_nor_keeps_it_for_longer() {
    for by_seconds in [600, -3_600] {
        let mut bench = low_runs("Immediate", &json!({}));
        submit(&mut bench, "high", 4, "high");
        pass(&mut bench, 5);
        let kept = status(&bench, "high").reservation;
        let notice = status(&bench, "low").preemption;
        bench.wall_set_by_seconds = by_seconds;
        pass(&mut bench, 10);
        assert_eq!(status(&bench, "high").reservation, kept, "{by_seconds}");
        assert_eq!(status(&bench, "low").preemption, notice, "{by_seconds}");
        pass(&mut bench, NOTICE_SECONDS);
        assert!(is_evicted(&bench));
        // Its pods do not go.
        pass(&mut bench, 520 + NOTICE_SECONDS);
        assert_eq!(status(&bench, "high").reservation, kept, "{by_seconds}");
        pass(&mut bench, 40);
        assert_eq!(status(&bench, "high").reservation, None, "{by_seconds}");
    }
}

#[test]
fn a_minimum_run_time_is_no_longer_for_a_clock_that_was_set() {
    let mut bench = Bench::new();
    bench.run();
    bench.wall_set_by_seconds = 3_600;
    let says = json!({"minRuntimeSeconds": 100});
    bench.server.put(tier("low", 1, "Immediate", &says));
    bench.server.put(tier("high", 10, "Never", &json!({})));
    submit(&mut bench, "low", 4, "low");
    bench.run();
    start(&mut bench, "low", 4);
    submit(&mut bench, "high", 4, "high");
    pass(&mut bench, 90);
    assert_eq!(status(&bench, "low").preemption, None);
    pass(&mut bench, 15);
    assert!(status(&bench, "low").preemption.is_some());
}

#[test]
fn a_pod_that_could_not_be_told_its_end_is_told_that_it_is_evicted() {
    let mut bench = low_runs("Immediate", &json!({}));
    submit(&mut bench, "high", 4, "high");
    let is_note = |write: &ApiRequest| matches!(write, ApiRequest::PatchPod { .. });
    let mut is_refused = false;
    for _ in 0..60 {
        for effect in bench.poll() {
            if is_note(&effect.write) && !is_refused {
                is_refused = true;
                let answer = Outcome::Refused("denied by a webhook".to_owned());
                bench.machine.settle(effect.id, answer);
            } else {
                bench.perform(&effect);
            }
        }
        bench.seconds += 1;
        bench.acknowledge(&[]);
    }
    bench.run();
    assert!(is_refused && is_evicted(&bench));
    for rank in 0..4 {
        let pod = bench.server.pod(&format!("low-{rank}")).unwrap();
        let conditions = pod.status.unwrap().conditions.unwrap_or_default();
        let told = conditions.iter().any(|it| it.type_ == "DisruptionTarget");
        assert!(told, "rank {rank}: {conditions:?}");
    }
}

#[test]
fn a_gang_names_the_first_of_many_victims_and_a_new_leader_knows_all_of_them() {
    let count = 2 * Reservation::VICTIMS_NAMED;
    let mut bench = Bench::new();
    bench.server.put(tier("low", 1, "Immediate", &json!({})));
    bench.server.put(tier("high", 10, "Never", &json!({})));
    bench.server.put(super::team("vision", count));
    for node in 2..count / 2 {
        for object in node_with_gpus(&format!("n{node}"), 2) {
            bench.server.put(object);
        }
    }
    for low in 0..count {
        submit(&mut bench, &format!("low-{low}"), 1, "low");
    }
    bench.run();
    for low in 0..count {
        start(&mut bench, &format!("low-{low}"), 1);
    }
    submit(&mut bench, "high", count, "high");
    pass(&mut bench, 5);
    let reservation = status(&bench, "high").reservation.unwrap();
    assert_eq!(usize::try_from(reservation.victim_count), Ok(count));
    assert_eq!(reservation.victims.len(), Reservation::VICTIMS_NAMED);
    pass(&mut bench, NOTICE_SECONDS + 10);
    let is_evicting = |low| status(&bench, &format!("low-{low}")).phase == GangPhase::Evicting;
    assert!((0..count).all(is_evicting));
    bench.take_over();
    bench.run();
    let taken_up = status(&bench, "high").reservation.unwrap();
    let until = taken_up.until.clone();
    assert!(until.0 > reservation.until.0, "notices are counted anew");
    assert_eq!(
        taken_up,
        Reservation {
            until,
            ..reservation
        }
    );
    let uid = gang(&bench, "high").metadata.uid.clone().unwrap();
    let kept = bench.machine.engine().kept_for(&uid.as_str().into());
    assert_eq!(kept.unwrap().victims.len(), count);
    assert_eq!(end_deleted(&mut bench), count);
    bench.run();
    assert_eq!(status(&bench, "high").phase, GangPhase::Admitted);
}

/// What is kept for a gang may be given up and decided anew within one second.
#[test]
fn a_gang_that_has_other_victims_a_moment_later_says_so_before_any_of_them_goes() {
    let mut bench = Bench::new();
    bench
        .server
        .put(tier("low", 1, "Immediate", &json!({"noticeSeconds": 0})));
    bench.server.put(tier("high", 10, "Never", &json!({})));
    for label in ["left", "right"] {
        submit(&mut bench, label, 2, "low");
    }
    bench.run();
    for label in ["left", "right"] {
        start(&mut bench, label, 2);
    }
    submit(&mut bench, "high", 2, "high");
    bench.run_at_once();
    let first = status(&bench, "high").reservation.unwrap();
    let [victim] = first.victims.as_slice() else {
        panic!("{first:?}");
    };
    let (told, other) = if victim.gang == full_name(&bench, "left") {
        ("left", "right")
    } else {
        ("right", "left")
    };
    // As if it had been decided for the other one before, in the same second.
    let mut high = Gang::clone(&gang(&bench, "high"));
    let reservation = high.status.as_mut().unwrap().reservation.as_mut().unwrap();
    reservation.victims[0].gang = full_name(&bench, other);
    reservation.victims[0].uid = gang(&bench, other).metadata.uid.clone().unwrap();
    bench.server.put(Object::Gang(Arc::new(high)));
    bench.written.clear();
    pass(&mut bench, 5);
    let says = |write: &ApiRequest| matches!(write, ApiRequest::ReplaceGangStatus { status, .. } if status.reservation.as_ref() == Some(&first));
    let evicts = |write: &ApiRequest| matches!(write, ApiRequest::ReplaceLedger { spec, .. } if spec.intents.iter().any(|it| it.kind == muster_api::IntentKind::Evict));
    let said = bench.written.iter().position(says);
    let evicted = bench.written.iter().position(evicts);
    assert!(said.is_some() && said < evicted, "{said:?}, {evicted:?}");
    assert_eq!(status(&bench, told).attempt, 2);
    assert_eq!(status(&bench, other).attempt, 1);
}

/// Of an attempt of which only the Ledger knows that it began.
#[test]
fn a_new_leader_makes_nobody_go_in_an_attempt_that_was_committed_after_it_was_to_give_way() {
    let mut bench = low_runs("Immediate", &json!({}));
    submit(&mut bench, "high", 4, "high");
    pass(&mut bench, NOTICE_SECONDS + 5);
    assert!(is_evicted(&bench));
    let recorded = status(&bench, "high").reservation.unwrap();
    end_deleted(&mut bench);
    // Whoever it was for is not complete for a while, and the evicted gang has what it freed.
    bench.server.remove(&pod_key("high-3"));
    submit(&mut bench, "low", 4, "low");
    let is_raised = |write: &ApiRequest| matches!(write, ApiRequest::ReplaceGangStatus { status, .. } if status.admission.is_some());
    assert!(bench.run_until(is_raised));
    assert!(status(&bench, "low").admission.is_none());
    // As if the Gang had not been written since: the last leader died with the commit.
    let mut high = Gang::clone(&gang(&bench, "high"));
    high.status.as_mut().unwrap().reservation = Some(recorded);
    bench.server.put(Object::Gang(Arc::new(high)));
    bench.pod("high", 3, 4, keys::DEVICE_CLASS_GPU);
    bench.change_pod("high-3", |pod| {
        let labels = pod.metadata.labels.get_or_insert_default();
        labels.insert(keys::TIER.to_owned(), "high".to_owned());
    });
    bench.server.put(tier("low", 1, "Never", &json!({})));
    bench.take_over();
    let low = gang(&bench, "low").metadata.uid.clone().unwrap();
    let mut has_decided = false;
    for _ in 0..50 {
        bench.acknowledge(&[]);
        for effect in bench.poll() {
            let is_unanswered =
                matches!(&*effect.write, ApiRequest::ReplaceGangStatus { uid, .. } if *uid == low);
            if !is_unanswered {
                bench.perform(&effect);
            }
        }
        bench.seconds += 1;
        has_decided |= bench.machine.feed.has_decided;
        let gives_way = bench.machine.engine().gives_way_to(&low.as_str().into());
        assert_eq!(gives_way, None, "its tier says that nobody may ask it");
    }
    assert!(has_decided && status(&bench, "low").admission.is_none());
}

/// What decides nothing is no reason to take the gang out of the line until it is written.
#[test]
fn a_notice_that_is_left_on_a_gang_that_waits_is_taken_off_while_it_waits_on() {
    let mut bench = low_runs("Immediate", &json!({}));
    submit(&mut bench, "high", 4, "high");
    submit(&mut bench, "behind", 3, "low");
    bench.run();
    let mut behind = Gang::clone(&gang(&bench, "behind"));
    let name = behind.metadata.name.clone();
    behind.status.as_mut().unwrap().preemption = status(&bench, "low").preemption;
    assert!(behind.status.as_ref().unwrap().preemption.is_some());
    bench.server.put(Object::Gang(Arc::new(behind)));
    bench.written.clear();
    bench.run();
    assert_eq!(status(&bench, "behind").preemption, None);
    let mut writes = bench.written.iter().filter_map(|write| match write {
        ApiRequest::ReplaceGangStatus { key, tells, .. } if Some(&key.name) == name.as_ref() => {
            Some(*tells)
        }
        _ => None,
    });
    assert_eq!(writes.next(), Some(true));
}
