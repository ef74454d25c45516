//! Gangs of a Team that uses more than it may, and says `shrink: Evict`.

use std::cell::Cell;

use muster_api::{gang::PreemptionRight, team::Shrink};
use muster_engine as engine;

use super::*;
use crate::admission::{admit, preempt};

/// For how long a gang is chosen before it is told.
const LASTS_SECONDS: u64 = 60;

/// An administrator says how many GPUs the Team has, and what becomes of those who run.
fn set_quota(bench: &mut Bench, gpus: usize, shrink: Shrink) {
    let mut object = team("vision", gpus);
    if let Object::Team(team) = &mut object {
        Arc::make_mut(team).spec.shrink = shrink;
    }
    bench.server.put(object);
}

/// Gangs `low` and `high` hold two GPUs each, and run.
fn both_run(preemption: &str) -> Bench {
    let mut bench = Bench::new();
    bench.server.put(tier("low", 1, preemption, &json!({})));
    bench.server.put(tier("high", 10, "Never", &json!({})));
    submit(&mut bench, "high", 2, "high");
    submit(&mut bench, "low", 2, "low");
    bench.run();
    start(&mut bench, "high", 2);
    start(&mut bench, "low", 2);
    bench.written.clear();
    bench
}

fn reasons(bench: &Bench, label: &str) -> Vec<Reason> {
    let evictions = status(bench, label).evictions.into_iter();
    evictions.map(|eviction| eviction.reason).collect()
}

fn is_told(bench: &Bench) -> bool {
    let told = (0..2).map(|rank| bench.server.pod(&format!("low-{rank}")).unwrap());
    let mut told = told.map(|pod| pod.metadata.annotations.unwrap());
    let is_told = told.all(|annotations| annotations.contains_key(keys::PREEMPT_AT));
    assert_eq!(is_told, status(bench, "low").preemption.is_some());
    is_told
}

/// The Gangs and pods of `low` that were written since.
fn writes_about_low(bench: &Bench) -> usize {
    let targets = bench.written.iter().filter_map(ApiRequest::target);
    targets.filter(|target| target.name.contains("low")).count()
}

#[test]
fn who_is_over_a_lowered_quota_is_told_evicted_and_comes_back_with_its_age() {
    let mut bench = both_run("Immediate");
    let queued_at = status(&bench, "low").queued_at;
    set_quota(&mut bench, 2, Shrink::Evict);
    pass(&mut bench, LASTS_SECONDS - 3);
    assert_eq!(writes_about_low(&bench), 0, "not before it has lasted");
    pass(&mut bench, 6);
    let notice = status(&bench, "low").preemption.unwrap();
    assert_eq!(notice.right, PreemptionRight::QuotaShrunk);
    assert_eq!((notice.preemptor.as_str(), notice.attempt), ("", 1));
    let expected = "it is to go, since Team vision uses 4 GPUs of gpu where 2 may be used, and the Team says shrink: Evict";
    assert_eq!(notice.message, expected);
    let seconds = notice.preempt_at.0.as_second() - notice.noticed_at.0.as_second();
    assert_eq!(u64::try_from(seconds), Ok(NOTICE_SECONDS));
    assert!(is_told(&bench));
    pass(&mut bench, NOTICE_SECONDS - 5);
    assert_eq!(reasons(&bench, "low"), []);
    pass(&mut bench, 8);
    assert_eq!(reasons(&bench, "low"), [Reason::QuotaShrunk]);
    let low = status(&bench, "low");
    assert_eq!((low.phase, low.attempt), (GangPhase::Evicting, 2));
    assert_eq!(low.evictions[0].message, expected);
    assert_eq!(end_deleted(&mut bench), 2);
    submit(&mut bench, "low", 2, "low");
    pass(&mut bench, 5 * LASTS_SECONDS);
    let low = status(&bench, "low");
    assert_eq!((low.phase, low.attempt), (GangPhase::Pending, 2));
    assert_eq!(low.queue.unwrap().reason, Reason::WaitingForQuota);
    assert_eq!((low.queued_at, low.preemption), (queued_at, None));
    assert_eq!(reasons(&bench, "high"), [], "that is enough");
    set_quota(&mut bench, 4, Shrink::Evict);
    bench.run();
    assert_eq!(status(&bench, "low").phase, GangPhase::Admitted);
}

#[test]
fn a_limit_that_is_raised_again_in_time_costs_nobody() {
    for (passed, was_told) in [
        (LASTS_SECONDS / 2, false),
        (LASTS_SECONDS + 5, true),
        (LASTS_SECONDS + NOTICE_SECONDS - 5, true),
    ] {
        let mut bench = both_run("Immediate");
        set_quota(&mut bench, 2, Shrink::Evict);
        pass(&mut bench, passed);
        assert_eq!(is_told(&bench), was_told);
        set_quota(&mut bench, 4, Shrink::Evict);
        pass(&mut bench, 3 * LASTS_SECONDS);
        assert!(!is_told(&bench));
        assert_eq!(writes_about_low(&bench) > 0, was_told);
        assert_eq!(reasons(&bench, "low"), []);
        assert_eq!(status(&bench, "low").phase, GangPhase::Running);
    }
}

#[test]
fn nobody_is_evicted_for_a_limit_that_is_raised_by_the_moment_of_the_commit() {
    let mut bench = both_run("Immediate");
    set_quota(&mut bench, 2, Shrink::Evict);
    while status(&bench, "low").preemption.is_none() {
        pass(&mut bench, 1);
    }
    // The last second of the notice, and the limit, come in one poll.
    pass(&mut bench, NOTICE_SECONDS);
    assert_eq!(reasons(&bench, "low"), []);
    bench.seconds += 1;
    set_quota(&mut bench, 4, Shrink::Evict);
    bench.run_at_once();
    pass(&mut bench, 3 * LASTS_SECONDS);
    assert_eq!(reasons(&bench, "low"), []);
}

/// Whether an eviction of `low` that is due by a limit would be left out of a commit now.
fn is_spared(bench: &Bench) -> bool {
    let wake = Cell::new(None);
    let epoch = bench.machine.leading_epoch().unwrap();
    let context = bench.machine.context(epoch, bench.now(), &wake);
    let uid = gang(bench, "low").metadata.uid.clone().unwrap();
    preempt::is_spared(context, Reason::QuotaShrunk, &uid)
}

#[test]
fn whom_the_engine_lets_stay_enters_no_commit_though_its_eviction_was_found_due() {
    let mut bench = both_run("Immediate");
    set_quota(&mut bench, 2, Shrink::Evict);
    pass(&mut bench, LASTS_SECONDS + 3);
    assert!(is_told(&bench));
    assert!(!is_spared(&bench));
    set_quota(&mut bench, 4, Shrink::Evict);
    bench.observe();
    // The engine decides by the new limit, and nobody has looked at the gang since.
    let (now, wake) = (bench.now(), Cell::new(None));
    let machine = &mut bench.machine;
    machine.take_engine_updates(now);
    let epoch = machine.leading_epoch().unwrap();
    let budget = admit::budget(machine.context(epoch, now, &wake), &[]);
    let seconds = i64::try_from(now.monotonic_seconds).unwrap();
    machine.feed.decide(engine::Timestamp(seconds), &budget, 0);
    assert!(is_spared(&bench));
}

#[test]
fn a_team_that_keeps_its_gangs_keeps_them() {
    let mut bench = both_run("Immediate");
    for gpus in [2, 0] {
        set_quota(&mut bench, gpus, Shrink::Keep);
        pass(&mut bench, 5 * LASTS_SECONDS);
        assert!(!is_told(&bench));
    }
    assert_eq!(writes_about_low(&bench), 0);
}

#[test]
fn a_new_leader_goes_on_with_a_notice_and_waits_no_minute_more() {
    for is_raised in [false, true] {
        let mut bench = both_run("Immediate");
        set_quota(&mut bench, 2, Shrink::Evict);
        pass(&mut bench, LASTS_SECONDS + 3);
        let notice = status(&bench, "low").preemption;
        assert!(notice.is_some());
        if is_raised {
            set_quota(&mut bench, 4, Shrink::Evict);
        }
        bench.take_over();
        bench.run_at_once();
        pass(&mut bench, NOTICE_SECONDS - 5);
        assert_eq!(reasons(&bench, "low"), [], "its clock starts anew");
        if is_raised {
            assert!(!is_told(&bench));
        } else {
            assert_eq!(status(&bench, "low").preemption, notice, "it stands");
        }
        pass(&mut bench, 10);
        let expected: &[Reason] = if is_raised {
            &[]
        } else {
            &[Reason::QuotaShrunk]
        };
        assert_eq!(reasons(&bench, "low"), expected);
    }
}

#[test]
fn a_leader_that_dies_before_anybody_is_told_leaves_the_decision_to_the_next() {
    let mut bench = both_run("Immediate");
    set_quota(&mut bench, 2, Shrink::Evict);
    pass(&mut bench, LASTS_SECONDS - 5);
    bench.take_over();
    bench.run_at_once();
    pass(&mut bench, LASTS_SECONDS - 5);
    assert!(!is_told(&bench), "its minute begins anew");
    pass(&mut bench, 10);
    assert!(is_told(&bench));
}

#[test]
fn a_gang_that_ends_after_a_checkpoint_does_so_for_a_limit_as_well() {
    let mut bench = both_run("AfterCheckpoint");
    set_quota(&mut bench, 2, Shrink::Evict);
    pass(&mut bench, LASTS_SECONDS + 5);
    assert_eq!(reasons(&bench, "low"), []);
    let at = bench.now().wall;
    bench.change_pod("low-1", |pod| {
        let annotations = pod.metadata.annotations.get_or_insert_default();
        annotations.insert(keys::CHECKPOINTED_AT.to_owned(), at.to_string());
    });
    bench.run();
    assert_eq!(reasons(&bench, "low"), [Reason::QuotaShrunk]);
    let message = &status(&bench, "low").evictions[0].message;
    assert!(message.contains("it wrote a checkpoint at"), "{message}");
}

#[test]
fn whom_nobody_may_preempt_is_told_and_goes_last() {
    let mut bench = both_run("Immediate");
    set_quota(&mut bench, 0, Shrink::Evict);
    pass(&mut bench, LASTS_SECONDS + 5);
    for label in ["low", "high"] {
        let notice = status(&bench, label).preemption.unwrap();
        assert_eq!(notice.right, PreemptionRight::QuotaShrunk, "{label}");
    }
    // One of them may stay.
    set_quota(&mut bench, 3, Shrink::Evict);
    pass(&mut bench, NOTICE_SECONDS + 5);
    assert_eq!(reasons(&bench, "low"), [Reason::QuotaShrunk]);
    assert_eq!(reasons(&bench, "high"), []);
    assert_eq!(status(&bench, "high").preemption, None);
}

#[test]
fn a_gang_without_a_tier_is_told_a_minute_before() {
    let mut bench = Bench::new();
    bench.gang("low", 2);
    bench.run();
    start(&mut bench, "low", 2);
    set_quota(&mut bench, 1, Shrink::Evict);
    pass(&mut bench, LASTS_SECONDS + 5);
    let notice = status(&bench, "low").preemption.unwrap();
    let seconds = notice.preempt_at.0.as_second() - notice.noticed_at.0.as_second();
    assert_eq!(
        seconds,
        muster_api::PriorityTierSpec::DEFAULT_NOTICE_SECONDS
    );
    pass(&mut bench, 70);
    assert_eq!(reasons(&bench, "low"), [Reason::QuotaShrunk]);
}

#[test]
fn a_notice_says_for_what_it_is_by_now_and_keeps_its_time() {
    let mut bench = both_run("Immediate");
    submit(&mut bench, "urgent", 2, "high");
    pass(&mut bench, 5);
    let first = status(&bench, "low").preemption.unwrap();
    assert_eq!(first.right, PreemptionRight::InTeam);
    // Whoever preempts it has no quota any more, and so it goes for that, or stays.
    set_quota(&mut bench, 2, Shrink::Evict);
    pass(&mut bench, 5);
    for rank in 0..2 {
        bench.server.remove(&pod_key(&format!("urgent-{rank}")));
    }
    pass(&mut bench, LASTS_SECONDS + 5);
    let second = status(&bench, "low").preemption.unwrap();
    assert_eq!(second.right, PreemptionRight::QuotaShrunk);
    assert_eq!(second.preemptor, "");
    pass(&mut bench, NOTICE_SECONDS + 5);
    assert_eq!(reasons(&bench, "low"), [Reason::QuotaShrunk]);
}
