use serde_json::json;

use super::*;
use crate::fake_api::{FakeApi, Passage};

const PATH: &str = "/apis/coordination.k8s.io/v1/namespaces/muster/leases/controller";

fn settings(identity: &str) -> LeaseSettings {
    LeaseSettings {
        namespace: "muster".into(),
        name: "controller".into(),
        identity: identity.into(),
        duration: Duration::from_secs(15),
        renew_limit: Duration::from_secs(10),
        retry: Duration::from_secs(2),
    }
}

struct Replica {
    leadership: watch::Receiver<Leadership>,
    stop: CancellationToken,
    task: JoinHandle<()>,
}

fn replica(client: Client, identity: &str) -> Replica {
    let stop = CancellationToken::new();
    let (leadership, task) = spawn(client, settings(identity), stop.clone()).unwrap();
    Replica {
        leadership,
        stop,
        task,
    }
}

impl Replica {
    fn leads(&self) -> bool {
        *self.leadership.borrow() == Leadership::Leader
    }

    /// Virtual time until it leads.
    async fn led(&mut self) -> Duration {
        let begun = Instant::now();
        let leader = |leadership: &Leadership| *leadership == Leadership::Leader;
        let limit = Duration::from_mins(1);
        let led = tokio::time::timeout(limit, self.leadership.wait_for(leader)).await;
        drop(led.expect("leads within a minute").unwrap());
        begun.elapsed()
    }
}

/// splitmix64.
fn next(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut z = *state;
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// A link with good and bad spells: in a bad one most requests, or their answers, are lost or late.
fn unreliable_link(mut seed: u64) -> impl FnMut() -> Passage + Send {
    let mut bad_until = Instant::now();
    let mut good_until = Instant::now();
    move || {
        let now = Instant::now();
        if now >= bad_until && now >= good_until {
            good_until = now + Duration::from_secs(next(&mut seed) % 40);
            bad_until = good_until + Duration::from_secs(next(&mut seed) % 40);
        }
        let delay = Duration::from_millis(next(&mut seed) % 200);
        if now < good_until {
            return Passage::Through(delay);
        }
        match next(&mut seed) % 5 {
            0 => Passage::Lost,
            1 => Passage::AnswerLost(delay * 20),
            2 => Passage::Refused,
            3 => Passage::Through(delay * 20),
            _ => Passage::Through(delay),
        }
    }
}

#[tokio::test(start_paused = true)]
async fn of_three_replicas_never_two_lead_at_once_whatever_the_network_does() {
    let mut terms = 0;
    let mut led_samples = 0_u32;
    for seed in 0..24_u64 {
        let api = FakeApi::default();
        let replicas: Vec<Replica> = (0..3)
            .map(|index| {
                replica(
                    api.client_over(unreliable_link(seed * 3 + index)),
                    &format!("replica-{index}"),
                )
            })
            .collect();
        let mut last_leader = None;
        for _ in 0..6_000 {
            tokio::time::sleep(Duration::from_millis(100)).await;
            let leaders: Vec<usize> = (0..3).filter(|index| replicas[*index].leads()).collect();
            assert!(leaders.len() <= 1, "seed {seed}: {leaders:?} lead at once");
            if let Some(leader) = leaders.first() {
                led_samples += 1;
                terms += u32::from(last_leader != Some(*leader));
                last_leader = Some(*leader);
            }
        }
        for replica in &replicas {
            replica.task.abort();
        }
    }
    // The links are bad enough to matter, and good enough to lead at all.
    assert!(terms > 100, "only {terms} terms");
    assert!(
        led_samples > 24 * 6_000 / 2,
        "somebody led in only {led_samples} samples"
    );
}

#[tokio::test(start_paused = true)]
async fn a_leader_that_stops_hands_over_at_once() {
    let api = FakeApi::default();
    let mut first = replica(api.client(), "first");
    first.led().await;
    let mut second = replica(api.client(), "second");
    tokio::time::sleep(Duration::from_secs(30)).await;
    assert!(first.leads() && !second.leads());
    first.stop.cancel();
    first.task.await.unwrap();
    assert!(second.led().await <= Duration::from_secs(3));
}

#[tokio::test(start_paused = true)]
async fn a_lease_whose_receivers_are_dropped_is_given_up() {
    let api = FakeApi::default();
    let mut only = replica(api.client(), "only");
    only.led().await;
    drop(only.leadership);
    only.task.await.unwrap();
    assert_eq!(api.get(PATH).unwrap()["spec"]["holderIdentity"], "");
}

#[tokio::test(start_paused = true)]
async fn a_leader_that_is_cut_off_stops_before_another_begins() {
    let api = FakeApi::default();
    let cut_at = Instant::now() + Duration::from_secs(20);
    let mut cut_off = replica(
        api.client_over(move || {
            if Instant::now() < cut_at {
                Passage::Through(Duration::ZERO)
            } else {
                Passage::Lost
            }
        }),
        "cut off",
    );
    cut_off.led().await;
    let mut other = replica(api.client(), "other");
    tokio::time::sleep_until(cut_at).await;
    assert!(cut_off.leads());
    let follower = |leadership: &Leadership| *leadership == Leadership::Follower;
    cut_off.leadership.wait_for(follower).await.unwrap();
    assert!(
        cut_at.elapsed() <= Duration::from_secs(10),
        "{:?}",
        cut_at.elapsed()
    );
    assert!(!other.leads());
    other.led().await;
    assert!(
        cut_at.elapsed() <= Duration::from_secs(18),
        "{:?}",
        cut_at.elapsed()
    );
}

#[tokio::test(start_paused = true)]
async fn the_times_in_the_lease_count_for_nothing() {
    for renew_time in ["1970-01-01T00:00:00.000000Z", "2999-01-01T00:00:00.000000Z"] {
        let api = FakeApi::default();
        api.put(
            PATH,
            json!({
                "apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
                "metadata": {"namespace": "muster", "name": "controller"},
                "spec": {
                    "holderIdentity": "dead", "leaseDurationSeconds": 15,
                    "renewTime": renew_time, "leaseTransitions": 4,
                },
            }),
        );
        let mut candidate = replica(api.client(), "candidate");
        let waited = candidate.led().await;
        assert!(
            (Duration::from_secs(15)..Duration::from_secs(18)).contains(&waited),
            "{renew_time}: led after {waited:?}"
        );
        let spec = api.get(PATH).unwrap()["spec"].clone();
        assert_eq!(
            (&spec["holderIdentity"], &spec["leaseTransitions"]),
            (&json!("candidate"), &json!(5))
        );
    }
}

#[tokio::test(start_paused = true)]
async fn a_renewal_keeps_the_term() {
    let api = FakeApi::default();
    let mut only = replica(api.client(), "only");
    only.led().await;
    let first = api.get(PATH).unwrap()["spec"].clone();
    let writes = api.writes();
    tokio::time::sleep(Duration::from_secs(20)).await;
    let later = api.get(PATH).unwrap()["spec"].clone();
    assert!(api.writes() >= writes + 8, "it renews every two seconds");
    assert_eq!(first["acquireTime"], later["acquireTime"]);
    assert_eq!(later["leaseTransitions"], 0);
}

#[tokio::test]
async fn times_under_which_two_could_lead_are_refused() {
    for (duration, renew_limit, retry) in [(10, 10, 2), (15, 4, 2), (15, 10, 0)] {
        let settings = LeaseSettings {
            duration: Duration::from_secs(duration),
            renew_limit: Duration::from_secs(renew_limit),
            retry: Duration::from_secs(retry),
            ..settings("any")
        };
        let refused = spawn(
            FakeApi::default().client(),
            settings,
            CancellationToken::new(),
        );
        assert!(refused.is_err(), "{duration} {renew_limit} {retry}");
    }
}
