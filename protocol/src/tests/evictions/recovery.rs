//! Gangs that recover: what their last attempt held is kept for them, whoever leads, and for no longer than it should be.

use super::*;
use crate::Recovery;

const KEEP_SECONDS: u64 = 600;

fn restarts_at_most(job: &mut Job, times: &str) {
    let annotations = job.metadata.annotations.get_or_insert_default();
    annotations.insert(keys::MAX_RESTARTS.to_owned(), times.to_owned());
}

/// The Gang that pods declare by this label, or that of the Job.
fn status_of(bench: &Bench, label: Option<&str>) -> GangStatus {
    let gangs = bench.server.list(Kind::Gang).into_iter();
    let mut gangs = gangs.filter_map(|object| match object {
        Object::Gang(gang) => Some(gang),
        _ => None,
    });
    let found = gangs.find(|it| it.spec.group.as_deref() == label);
    found.unwrap().status.clone().unwrap_or_default()
}

fn is_admitted(bench: &Bench, label: Option<&str>) -> bool {
    status_of(bench, label).admission.is_some()
}

/// A rank of a gang of two fails, which may be started anew so often; another gang waits for all GPUs that there are. Then the pods of the
/// attempt are gone, and none were made again.
fn between_attempts(config: Config, restarts: Option<&str>) -> Bench {
    let change = |job: &mut Job| {
        if let Some(times) = restarts {
            restarts_at_most(job, times);
        }
    };
    between_attempts_of(config, change, |_| {})
}

/// The same of a Job that says something else besides, after something happened.
fn between_attempts_of(
    config: Config,
    change: impl FnOnce(&mut Job),
    happens: impl FnOnce(&mut Bench),
) -> Bench {
    let mut bench = Bench::with(config);
    bench.server.put(job(2, 0));
    change_job(&mut bench, change);
    make_again(&mut bench, 0..2);
    bench.gang("next", 4);
    bench.run();
    assert!(!is_admitted(&bench, Some("next")));
    happens(&mut bench);
    bench.change_pod("fit-1", |pod| set_phase(pod, "Failed"));
    bench.run();
    bench.seconds += 60;
    bench.run();
    let evicted = status_of(&bench, None).evictions;
    assert_eq!(evicted.last().unwrap().reason, Reason::PodFailed);
    for pod in ["fit-0", "fit-1"] {
        bench.server.remove(&pod_key(pod));
    }
    bench.run();
    bench
}

/// The incident: an evicted gang lost its quota to whoever was asked first.
#[test]
fn a_gang_that_was_evicted_has_its_quota_and_its_place_again_whoever_leads() {
    for is_taken_over in [false, true] {
        let mut bench = between_attempts(config(), Some("3"));
        if is_taken_over {
            bench.take_over();
            bench.run();
        }
        assert!(!is_admitted(&bench, Some("next")), "{is_taken_over}");
        let status = status_of(&bench, None);
        assert_eq!((status.phase, status.attempt), (GangPhase::Recovering, 2));
        let recovery = status.recovery.unwrap();
        assert_eq!((recovery.attempt, recovery.reason), (1, Reason::PodFailed));
        let seconds = recovery.until.0.as_second() - recovery.since.0.as_second();
        assert_eq!(u64::try_from(seconds), Ok(KEEP_SECONDS));
        assert_eq!(status.proposal.unwrap().attempt, 1, "what was held");
        // Where only the text is another it is written each half minute.
        bench.seconds += 31;
        bench.run();
        let why = status_of(&bench, Some("next")).queue.unwrap();
        assert_eq!(why.reason, Reason::WaitingForQuota, "{}", why.details);
        assert!(why.details.contains("(which recovers)"), "{}", why.details);
        make_again(&mut bench, 0..2);
        let status = status_of(&bench, None);
        assert_eq!((status.phase, status.attempt), (GangPhase::Running, 2));
        assert_eq!((status.recovery, status.proposal), (None, None));
        assert!(!is_admitted(&bench, Some("next")));
    }
}

fn carries(write: &ApiRequest) -> bool {
    matches!(write, ApiRequest::ReplaceGangStatus { status, .. } if status.admission.is_some())
}

fn commits(write: &ApiRequest) -> bool {
    matches!(write, ApiRequest::ReplaceLedger { spec, .. }
        if spec.intents.iter().any(|it| it.leader_epoch == spec.leader_epoch))
}

/// The gang lacks a pod, and is made whole again.
fn is_kept_until_it_is_whole_again(bench: &mut Bench, attempt: i64) {
    assert!(!is_admitted(bench, Some("next")), "it would have had it");
    let status = status_of(bench, None);
    let found = (status.phase, status.attempt);
    assert_eq!(found, (GangPhase::Recovering, attempt));
    pod_of_job(bench, 1);
    bench.run();
    start(bench, &["fit-0", "fit-1"]);
    let status = status_of(bench, None);
    let found = (status.phase, status.attempt);
    assert_eq!(found, (GangPhase::Running, attempt));
    assert_eq!((status.recovery, status.proposal), (None, None));
    assert!(!is_admitted(bench, Some("next")));
}

/// A leader dies after it committed the next attempt, and before the Gang carried it: its successor takes that back.
#[test]
fn what_is_kept_outlasts_an_admission_that_a_successor_takes_back() {
    let mut bench = between_attempts(config(), Some("3"));
    let before = status_of(&bench, None).recovery.unwrap();
    for index in 0..2 {
        pod_of_job(&mut bench, index);
    }
    assert!(bench.run_until(carries), "committed, not carried");
    bench.server.remove(&pod_key("fit-1"));
    bench.take_over();
    bench.run();
    let status = status_of(&bench, None);
    let after = status.recovery.unwrap();
    assert_eq!((after.attempt, after.reason), (2, before.reason));
    assert_eq!((after.since, after.until), (before.since, before.until));
    assert_eq!(status.proposal.unwrap().attempt, 2, "what is kept");
    assert!(bench.server.ledger().unwrap().spec.intents.is_empty());
    is_kept_until_it_is_whole_again(&mut bench, 3);
}

/// A leader dies after it proposed the next attempt in place of what the ended one held, and before it committed that.
#[test]
fn what_is_kept_outlasts_the_proposal_of_the_next_attempt() {
    let proposing = || Config {
        whole_intent_bytes: 0,
        ..config()
    };
    let mut bench = between_attempts(proposing(), Some("3"));
    for index in 0..2 {
        pod_of_job(&mut bench, index);
    }
    assert!(bench.run_until(commits), "proposed, not committed");
    let status = status_of(&bench, None);
    assert_eq!(status.proposal.unwrap().attempt, 2, "in its place");
    assert_eq!(status.recovery.unwrap().attempt, 1);
    bench.server.remove(&pod_key("fit-1"));
    bench.machine = Machine::new(proposing());
    bench.run();
    is_kept_until_it_is_whole_again(&mut bench, 2);
}

#[test]
fn nothing_is_kept_where_nobody_wants_it_or_nobody_said_how_often_its_pods_may_fail() {
    let keeps_nothing = Config {
        recovery: Recovery {
            keep_seconds: 0,
            ..config().recovery
        },
        ..config()
    };
    for (case, config, restarts) in [
        ("it is off", keeps_nothing, Some("3")),
        ("no limit", config(), None),
        ("no restart is left", config(), Some("0")),
    ] {
        let bench = between_attempts(config, restarts);
        assert!(is_admitted(&bench, Some("next")), "{case}");
        assert_eq!(status_of(&bench, None).recovery, None, "{case}");
    }
}

/// Else who is let in for so long would hold its place for longer, again and again, and whoever waits for that was told otherwise.
#[test]
fn nothing_is_kept_for_longer_than_the_attempt_might_have_run() {
    let change = |job: &mut Job| {
        restarts_at_most(job, "3");
        runs_at_most(job, "300");
    };
    let bench = between_attempts_of(config(), change, |_| {});
    let recovery = status_of(&bench, None).recovery.unwrap();
    let seconds = recovery.until.0.as_second() - recovery.since.0.as_second();
    // It waited a minute for its other rank.
    assert!((1..=240).contains(&seconds), "{seconds}");
}

#[test]
fn a_clock_that_was_set_before_it_failed_keeps_nothing_for_a_shorter_time_or_for_longer() {
    for by_seconds in [-3_600, 3_600] {
        let mut bench = between_attempts_of(
            config(),
            |job| restarts_at_most(job, "3"),
            |bench| bench.wall_set_by_seconds = by_seconds,
        );
        assert!(!is_admitted(&bench, Some("next")), "{by_seconds}");
        bench.seconds += KEEP_SECONDS - 60;
        bench.run();
        assert!(!is_admitted(&bench, Some("next")), "{by_seconds}");
        bench.seconds += 60;
        bench.run();
        assert!(is_admitted(&bench, Some("next")), "{by_seconds}");
    }
}

#[test]
fn what_is_kept_goes_to_others_once_its_time_is_over_and_not_before() {
    let mut bench = between_attempts(config(), Some("3"));
    let until = status_of(&bench, None)
        .recovery
        .unwrap()
        .until
        .0
        .as_second();
    let now = bench.now().wall.as_second();
    bench.seconds += u64::try_from(until - now).unwrap() - 1;
    bench.run_at_once();
    assert!(!is_admitted(&bench, Some("next")), "a second is left");
    bench.seconds += 1;
    bench.run();
    assert!(is_admitted(&bench, Some("next")));
    let status = status_of(&bench, None);
    assert_eq!((status.recovery, status.proposal), (None, None));
    assert_ne!(status.phase, GangPhase::Recovering);
}

#[test]
fn what_is_kept_is_given_up_where_somebody_holds_the_gang_back() {
    for case in ["suspended", "stopped"] {
        let mut bench = between_attempts(config(), Some("3"));
        assert!(!is_admitted(&bench, Some("next")), "{case}");
        if case == "stopped" {
            stop(&mut bench, "Hold");
        } else {
            let gangs = bench.server.list(Kind::Gang).into_iter();
            let mut gangs = gangs.filter_map(|object| match object {
                Object::Gang(gang) if gang.spec.group.is_none() => Some(gang),
                _ => None,
            });
            let mut gang = gangs.next().unwrap();
            Arc::make_mut(&mut gang).spec.suspend = true;
            bench.server.put(Object::Gang(gang));
            bench.run();
            assert!(is_admitted(&bench, Some("next")), "{case}");
        }
        assert_eq!(status_of(&bench, None).recovery, None, "{case}");
    }
}

/// Nothing but the Team changes, which has no namespace by then: a poll that overlooks whoever recovers fails ([`Bench::poll`]).
#[test]
fn what_is_kept_of_a_team_is_given_up_once_that_is_stopped_though_the_namespace_has_left_it() {
    for case in ["Hold", "HoldAndDrain", "deleted"] {
        let mut bench = between_attempts(config(), Some("3"));
        bench.server.put(Object::Namespace(parse(
            json!({"metadata": {"name": "ml"}}),
        )));
        bench.run();
        let status = status_of(&bench, None);
        assert_eq!(status.team.as_deref(), Some("vision"), "{case}");
        assert_eq!(status.phase, GangPhase::Recovering, "{case}");
        assert!(status.recovery.is_some(), "{case}: it is still kept");
        if case == "deleted" {
            bench.server.remove(&team("vision", 4).key());
            bench.run();
        } else {
            stop(&mut bench, case);
        }
        let status = status_of(&bench, None);
        assert_eq!((status.recovery, status.proposal), (None, None), "{case}");
        assert_ne!(status.phase, GangPhase::Recovering, "{case}");
    }
}

/// Four pods of the Job recover in a Team with a strict order, in which another gang waits that asks for one GPU, and are made again while one of both
/// nodes is cordoned.
fn recovering_without_a_place() -> Bench {
    let mut bench = Bench::new();
    let mut object = team("vision", 4);
    if let Object::Team(team) = &mut object {
        Arc::make_mut(team).spec.queueing = muster_api::team::Queueing::StrictFifo;
    }
    bench.server.put(object);
    bench.server.put(job(4, 0));
    change_job(&mut bench, |job| restarts_at_most(job, "3"));
    make_again(&mut bench, 0..4);
    bench.gang("next", 1);
    bench.change_pod("next-0", |pod| {
        let created = serde_json::from_value(json!("2027-01-01T01:00:00Z"));
        pod.metadata.creation_timestamp = created.unwrap();
    });
    bench.run();
    bench.change_pod("fit-1", |pod| set_phase(pod, "Failed"));
    bench.run();
    bench.seconds += 60;
    bench.run();
    for index in 0..4 {
        bench.server.remove(&pod_key(&format!("fit-{index}")));
    }
    bench.run();
    cordon(&mut bench, "n1", true);
    for index in 0..4 {
        pod_of_job(&mut bench, index);
    }
    bench.run();
    let status = status_of(&bench, None);
    assert_eq!((status.phase, status.attempt), (GangPhase::Recovering, 2));
    assert!(!is_admitted(&bench, Some("next")));
    bench
}

/// This one of both nodes may be planned on no more, or again.
fn cordon(bench: &mut Bench, name: &str, is_cordoned: bool) {
    let nodes = bench.server.list(Kind::Node).into_iter();
    let mut nodes = nodes.filter_map(|object| match object {
        Object::Node(node) => Some(node),
        _ => None,
    });
    let node = nodes.find(|node| node.metadata.name.as_deref() == Some(name));
    let mut node = node.unwrap();
    let spec = Arc::make_mut(&mut node).spec.get_or_insert_default();
    spec.unschedulable = is_cordoned.then_some(true);
    bench.server.put(Object::Node(node));
}

/// A defect once: the write that took back what it had held before made it wait no more until it was seen. By then whoever stood behind it had what it
/// waits for.
#[test]
fn a_gang_that_recovers_no_more_stands_in_line_while_that_is_being_written() {
    let mut bench = recovering_without_a_place();
    let recovery = status_of(&bench, None).recovery.unwrap();
    let left = recovery.until.0.as_second() - bench.now().wall.as_second();
    bench.seconds += u64::try_from(left).unwrap() - 1;
    bench.run_at_once();
    bench.seconds += 1;
    let takes_back = |write: &ApiRequest| {
        matches!(write, ApiRequest::ReplaceGangStatus { status, .. }
            if status.attempt == 2 && status.recovery.is_none() && status.proposal.is_none())
    };
    let effects = bench.poll();
    assert!(
        effects.iter().any(|effect| takes_back(&effect.write)),
        "{effects:?}"
    );
    let team = "vision".into();
    let line: Vec<&str> = bench
        .machine
        .engine()
        .queue(&team)
        .map(|gang| gang.name.as_str())
        .collect();
    assert_eq!(line.len(), 2, "{line:?}");
    for effect in &effects {
        bench.perform(effect);
    }
    bench.run();
    assert_eq!(status_of(&bench, None).phase, GangPhase::Pending);
    assert!(!is_admitted(&bench, Some("next")), "it is behind");
    cordon(&mut bench, "n1", false);
    bench.run();
    assert!(is_admitted(&bench, None));
}

/// Two pods of the Job, of the higher tier.
fn make_of_high_tier(bench: &mut Bench) {
    for index in 0..2 {
        pod_of_job(bench, index);
        set_tier(bench, &format!("fit-{index}"), "high");
    }
    bench.run();
}

fn set_tier(bench: &mut Bench, pod: &str, tier: &str) {
    bench.change_pod(pod, |pod| {
        let labels = pod.metadata.labels.get_or_insert_default();
        labels.insert(keys::TIER.to_owned(), tier.to_owned());
    });
}

fn pass_until(bench: &mut Bench, second: u64) {
    while bench.seconds < second {
        bench.seconds += 1;
        bench.run_at_once();
    }
}

fn put_tier(bench: &mut Bench, name: &str, value: i32, preemption: &str, min_run_seconds: u64) {
    bench.server.put(Object::PriorityTier(parse(json!({
        "apiVersion": "muster.dev/v1alpha1", "kind": "PriorityTier", "metadata": {"name": name},
        "spec": {"value": value, "preemption": preemption, "minRuntimeSeconds": min_run_seconds},
    }))));
}

/// Two pods of the Job, of a higher tier, recover while the node is cordoned on which they were. On the other one gang `low` runs since the second that is
/// returned, by a tier that says this.
fn recovering_beside_low(preemption: &str, min_run_seconds: u64) -> (Bench, u64) {
    let mut bench = Bench::new();
    put_tier(&mut bench, "low", 1, preemption, min_run_seconds);
    put_tier(&mut bench, "high", 10, "Immediate", 0);
    bench.gang("low", 2);
    set_tier(&mut bench, "low-0", "low");
    set_tier(&mut bench, "low-1", "low");
    bench.run();
    start(&mut bench, &["low-0", "low-1"]);
    let runs_since = bench.seconds;
    bench.server.put(job(2, 0));
    change_job(&mut bench, |job| restarts_at_most(job, "3"));
    make_of_high_tier(&mut bench);
    start(&mut bench, &["fit-0", "fit-1"]);
    let spec = bench.server.pod("fit-0").unwrap().spec.unwrap();
    bench.change_pod("fit-1", |pod| set_phase(pod, "Failed"));
    bench.run();
    bench.seconds += 60;
    bench.run();
    for pod in ["fit-0", "fit-1"] {
        bench.server.remove(&pod_key(pod));
    }
    bench.run();
    cordon(&mut bench, &spec.node_name.unwrap(), true);
    make_of_high_tier(&mut bench);
    (bench, runs_since)
}

fn is_low_told(bench: &Bench) -> bool {
    status_of(bench, Some("low")).preemption.is_some()
}

/// The gang of the Job recovers and waits, and nobody gives way to it.
fn waits_in_vain(bench: &Bench) {
    let status = status_of(bench, None);
    assert_eq!((status.phase, status.attempt), (GangPhase::Recovering, 2));
    assert!(!is_low_told(bench), "it may not go yet");
}

#[test]
fn who_recovers_and_may_preempt_another_one_only_later_does_so_then_though_nothing_else_happens() {
    const MIN_RUN_TIME_SECONDS: u64 = 300;
    let (mut bench, runs_since) = recovering_beside_low("Immediate", MIN_RUN_TIME_SECONDS);
    let may_go_from = runs_since + MIN_RUN_TIME_SECONDS;
    pass_until(&mut bench, may_go_from - 10);
    waits_in_vain(&bench);
    pass_until(&mut bench, may_go_from + 1);
    assert!(is_low_told(&bench), "nobody asked again");
}

#[test]
fn who_recovers_asks_a_gang_at_once_whose_tier_lets_it_be_preempted_from_now_on() {
    for (preemption, min_run_seconds) in [("Never", 0), ("Immediate", 100_000)] {
        let (mut bench, _) = recovering_beside_low(preemption, min_run_seconds);
        let waits_until = bench.seconds + 30;
        pass_until(&mut bench, waits_until);
        waits_in_vain(&bench);
        put_tier(&mut bench, "low", 1, "Immediate", 0);
        pass_until(&mut bench, waits_until + 2);
        let case = format!("{preemption}, {min_run_seconds} s");
        assert!(is_low_told(&bench), "{case}: nobody asked again");
    }
}
