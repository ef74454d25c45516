use std::time::Duration;

use muster_cluster::{index, managed::ManagedPods};
use muster_protocol::Config;
use muster_serve::{Readiness, metrics::Metrics};

use tokio::time::Instant;

use super::{
    work::{BREATH, BUSY_AFTER, CHANGES_PER_POLL, LONGER_REST, PAUSE, REST},
    *,
};
use crate::feed::tests::silent;

fn machine() -> Machine {
    Machine::new(Config::new(index::Config {
        managed: ManagedPods::new(["nvidia.com/gpu"]).unwrap(),
        excluded_namespaces: [].into(),
        excepted_device_classes: [].into(),
        default_team: None,
        start_timeout_seconds: muster_cluster::index::START_TIMEOUT_SECONDS,
    }))
}

/// A leader whose API server never answers, and the handle of its lease.
fn leader() -> (Leader, watch::Sender<Leadership>) {
    let client = silent();
    let metrics = Metrics::new("test", "0");
    let (lease, leadership) = watch::channel(Leadership::Leader);
    let leader = Leader {
        feed: Feed::open(&Readiness::default(), &metrics, client.clone()),
        machine: machine(),
        performer: Performer::new(client, "replica-0".to_owned()),
        pace: Pace::new(0, 0),
        metrics: ControllerMetrics::register(&metrics),
        leadership,
        extender: watch::channel(ExtenderState::Ready).1,
        scheduler_is_away: watch::channel(false).1,
        waiting_for_templates: claim_templates::Waiting::default(),
        refused_templates: watch::channel(claim_templates::Refused::new()).1,
        node_conditions: node_conditions::Reported::default(),
        guarded_gangs: crate::disruption_budgets::Gangs::default(),
        stop: CancellationToken::new(),
    };
    (leader, lease)
}

#[tokio::test(start_paused = true)]
async fn a_leader_whose_lease_is_lost_ends_at_once_whatever_is_under_way() {
    let (leader, lease) = leader();
    let leading = tokio::spawn(leader.lead());
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert!(!leading.is_finished());
    let lost_at = Instant::now();
    lease.send_replace(Leadership::Follower);
    let end = leading.await.unwrap();
    assert!(matches!(end, Err(End::LeaseLost)), "{end:?}");
    assert_eq!(lost_at.elapsed(), Duration::ZERO);
}

/// As after a poll that took longer than all that: of what happened meanwhile only the last is to be seen.
#[tokio::test(start_paused = true)]
async fn a_lease_that_was_lost_and_is_won_again_is_lost() {
    const LIMIT: Duration = Duration::from_secs(5);
    for lost_after in [Duration::ZERO, LIMIT, 2 * LIMIT] {
        let (leader, lease) = leader();
        let leading = tokio::spawn(leader.lead());
        tokio::time::sleep(lost_after).await;
        lease.send_replace(Leadership::Follower);
        lease.send_replace(Leadership::Leader);
        let end = tokio::time::timeout(LIMIT, leading).await;
        let end = end.expect("it leads on").unwrap();
        assert!(matches!(end, Err(End::LeaseLost)), "{end:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_leader_whose_lease_nobody_renews_any_more_ends() {
    const LIMIT: Duration = Duration::from_secs(5);
    let (leader, lease) = leader();
    let leading = tokio::spawn(leader.lead());
    tokio::time::sleep(LIMIT).await;
    drop(lease);
    let end = tokio::time::timeout(LIMIT, leading).await.unwrap().unwrap();
    assert!(matches!(end, Err(End::LeaseLost)), "{end:?}");
}

#[tokio::test(start_paused = true)]
async fn a_leader_that_is_told_to_stop_ends_well() {
    let (leader, _lease) = leader();
    let stop = leader.stop.clone();
    let leading = tokio::spawn(leader.lead());
    tokio::time::sleep(Duration::from_secs(5)).await;
    stop.cancel();
    assert!(leading.await.unwrap().is_ok());
}

#[tokio::test]
async fn of_a_flood_of_changes_so_many_are_taken_in_before_the_machine_is_polled() {
    for (told, left) in [
        (CHANGES_PER_POLL - 1, 0),
        (CHANGES_PER_POLL, 0),
        (CHANGES_PER_POLL + 1, 1),
    ] {
        let mut feed = Feed::flooded(told);
        let mut work = Work::new(
            machine(),
            Performer::new(silent(), "replica-0".to_owned()),
            Pace::new(0, 0),
            ControllerMetrics::register(&Metrics::new("test", "0")),
            claim_templates::Waiting::default(),
            TimeOfDay::from(jiff::Timestamp::now()),
        );
        work.take_in_what_is_ready(&mut feed).unwrap();
        let waits = std::iter::from_fn(|| feed.ready()).count();
        assert_eq!(waits, left, "{told} told");
    }
}

#[tokio::test(start_paused = true)]
async fn after_a_poll_the_machine_rests_so_that_what_follows_comes_together() {
    let metrics = Metrics::new("test", "0");
    let mut feed = Feed::flooded(1);
    let mut work = Work::new(
        machine(),
        Performer::new(silent(), "replica-0".to_owned()),
        Pace::new(0, 0),
        ControllerMetrics::register(&metrics),
        claim_templates::Waiting::default(),
        TimeOfDay::from(jiff::Timestamp::now()),
    );
    assert_eq!(
        work.rests_until(),
        None,
        "the first change is answered at once"
    );
    work.take_in_what_is_ready(&mut feed).unwrap();
    let polled_at = Instant::now();
    work.poll(ExtenderState::Ready, &mut feed);
    let rests_until = polled_at + REST;
    assert_eq!(work.rests_until(), Some(rests_until));
    assert!(rests_until <= work.next_turn(), "nothing is late by it");
    // What is due since then, and was not when it was polled, is nothing that the poll left over.
    tokio::time::advance(Duration::from_secs(2)).await;
    assert!(work.next_turn() <= Instant::now() + BREATH, "it is due");
    assert_eq!(work.rests_until(), Some(rests_until));
    // As long as a person does not see it.
    assert!(REST <= Duration::from_millis(20), "{REST:?}");
}

#[tokio::test(start_paused = true)]
async fn a_machine_is_busy_when_its_polls_have_followed_one_another_for_long_and_after_a_pause_no_more()
 {
    const MOMENT: Duration = Duration::from_millis(1);
    for (first, second, expected) in [
        (BUSY_AFTER, Duration::ZERO, LONGER_REST),
        (BUSY_AFTER.saturating_sub(REST), Duration::ZERO, REST),
        (BUSY_AFTER, PAUSE, LONGER_REST),
        (BUSY_AFTER, PAUSE + MOMENT, REST),
    ] {
        let metrics = Metrics::new("test", "0");
        let mut feed = Feed::flooded(0);
        let mut work = Work::new(
            machine(),
            Performer::new(silent(), "replica-0".to_owned()),
            Pace::new(0, 0),
            ControllerMetrics::register(&metrics),
            claim_templates::Waiting::default(),
            TimeOfDay::from(jiff::Timestamp::now()),
        );
        work.poll(ExtenderState::Ready, &mut feed);
        let begun = Instant::now();
        while begun.elapsed() < first {
            tokio::time::advance(REST).await;
            work.poll(ExtenderState::Ready, &mut feed);
        }
        tokio::time::advance(second).await;
        work.poll(ExtenderState::Ready, &mut feed);
        // What is sent does not wait any more.
        work.start();
        let rests_until = Instant::now() + expected;
        assert_eq!(
            work.rests_until(),
            Some(rests_until),
            "{second:?} after {first:?}"
        );
    }
}
