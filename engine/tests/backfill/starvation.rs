//! Gangs of all sizes that come and go for hours: the large one starts, and what stands idle for it is bounded.

use std::collections::{BTreeMap, BTreeSet};

use muster_engine::{
    Amount, FlavorResource, Gang, GangUid, HeadReservation, NodeName, Resource, State, Timestamp,
    Update,
};

use super::{GPUS_PER_NODE, LONG, cluster, common::*, decide_at, kept, rich};

/// What really is so, step by step: who runs where until when, as the engine is told.
struct World {
    state: State,
    now: i64,
    random: u64,
    waiting: BTreeMap<GangUid, Gang>,
    running: BTreeMap<GangUid, Runs>,
    /// What stood idle on kept nodes, by which reservation.
    idle: i128,
    of: Option<(GangUid, Timestamp)>,
}

struct Runs {
    gang: Gang,
    nodes: Vec<NodeName>,
    ends_at: i64,
}

impl World {
    fn new(seed: u64) -> Self {
        Self {
            state: cluster(2, 3, vec![rich("large"), rich("small")]),
            now: 0,
            random: seed,
            waiting: BTreeMap::new(),
            running: BTreeMap::new(),
            idle: 0,
            of: None,
        }
    }

    fn draw(&mut self, below: u64) -> u64 {
        self.random = self
            .random
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.random >> 33) % below
    }

    fn submit(&mut self, gang: Gang) {
        self.state.apply(Update::Waiting(gang.clone()));
        self.waiting.insert(gang.uid.clone(), gang);
    }

    /// How many GPUs are taken on a node.
    fn taken(&self, node: &NodeName) -> usize {
        let pods = self.running.values().flat_map(|runs| {
            let each = runs.gang.pods.iter().zip(&runs.nodes);
            each.filter(|(_, on)| *on == node)
        });
        let claims = pods.flat_map(|(pod, _)| &pod.claims);
        claims
            .map(|claim| claim.requests[0].choices[0].count as usize)
            .sum()
    }

    /// Goes on to a time, and lets those end who end until then.
    fn go_to(&mut self, now: i64) {
        let seconds = i128::from(now - self.now);
        if let Some(kept) = kept(&self.state) {
            let free: usize = kept
                .nodes
                .iter()
                .map(|node| GPUS_PER_NODE - self.taken(node))
                .sum();
            self.idle += seconds * 1_000 * i128::try_from(free).expect("small");
        }
        self.now = now;
        let ended = self.running.iter().filter(|(_, runs)| runs.ends_at <= now);
        let ended: Vec<GangUid> = ended.map(|(uid, _)| uid.clone()).collect();
        for uid in ended {
            let runs = self.running.remove(&uid).expect("it runs");
            for pod in &runs.gang.pods {
                self.state.apply(Update::HoldGone(pod.uid.clone()));
            }
            self.state.apply(Update::Ends(uid, None));
        }
    }

    /// Decides, and holds what was decided against what may be.
    fn decide(&mut self, ends_at: impl Fn(&mut Self, &Gang) -> i64) -> Vec<GangUid> {
        let before = kept(&self.state);
        let decisions = decide_at(&mut self.state, self.now);
        let after = kept(&self.state);
        let stands = |one: &HeadReservation, other: &HeadReservation| {
            (&one.gang, one.since) == (&other.gang, other.since)
        };
        let stood = before
            .as_ref()
            .zip(after.as_ref())
            .filter(|(one, other)| stands(one, other));
        let mut started = Vec::new();
        for admission in &decisions.admissions {
            let gang = self.waiting.remove(&admission.gang).expect("it waits");
            let nodes: Vec<NodeName> = admission.pods.iter().map(|pod| pod.node.clone()).collect();
            if let Some((_, kept)) = stood {
                let inside = nodes.iter().any(|node| kept.nodes.contains(node));
                let end = gang
                    .run_time
                    .max_seconds
                    .map(|most| self.now + i64::try_from(most).expect("small"));
                let in_time = end
                    .zip(kept.starts_at)
                    .is_some_and(|(end, at)| Timestamp(end) <= at);
                let goes_first = self.waiting.get(&kept.gang).is_some_and(|head| {
                    let order = |gang: &Gang| (gang.queued_at, gang.uid.clone());
                    gang.team == head.team && order(&gang) < order(head)
                });
                let may_enter = in_time || goes_first;
                assert!(
                    !inside || may_enter,
                    "{} at {}: {kept:?}",
                    gang.uid,
                    self.now
                );
            }
            for hold in holds_of(&gang, admission) {
                self.state.apply(Update::Hold(hold));
            }
            self.state.apply(Update::NotWaiting(gang.uid.clone()));
            let most = gang.run_time.max_seconds;
            let until = most.map(|most| Timestamp(self.now + i64::try_from(most).expect("small")));
            self.state.apply(Update::Ends(gang.uid.clone(), until));
            let ends_at = ends_at(self, &gang);
            started.push(gang.uid.clone());
            self.running.insert(
                gang.uid.clone(),
                Runs {
                    gang,
                    nodes,
                    ends_at,
                },
            );
        }
        let of = after.as_ref().map(|kept| (kept.gang.clone(), kept.since));
        if of != self.of {
            (self.of, self.idle) = (of, 0);
        }
        if let Some(kept) = &after {
            assert_eq!(kept.idle_gpu_seconds, self.idle, "at {}", self.now);
            if let Some(most) = kept.most_idle_gpu_seconds {
                assert!(kept.idle_gpu_seconds < most, "at {}: {kept:?}", self.now);
            }
        }
        started
    }

    /// When something happens next by itself.
    fn next(&mut self, arrival: i64) -> i64 {
        let look_again = decide_at(&mut self.state.clone(), self.now).look_again_at;
        let ends = self.running.values().map(|runs| runs.ends_at).min();
        let due = look_again.map(|at| at.0).filter(|at| *at > self.now);
        [Some(arrival), ends, due]
            .into_iter()
            .flatten()
            .min()
            .unwrap_or(arrival)
    }

    fn small(&mut self, number: usize, most: Option<u64>) -> Gang {
        let (pods, each) = (1 + self.draw(2), 1 + self.draw(4));
        let pods = usize::try_from(pods).expect("small");
        let mut gang = gang(
            &format!("s{number:04}"),
            "small",
            pods,
            u32::try_from(each).expect("small"),
        );
        gang.queued_at = Timestamp(self.now);
        gang.run_time.max_seconds = most;
        gang
    }
}

/// Small gangs keep coming, each known to end within five minutes: the large one starts after it lacked a place for long and
/// those that ran by then have ended.
#[test]
fn small_gangs_never_starve_a_large_one() {
    for seed in 0..20 {
        let mut world = World::new(seed);
        let longest = 300;
        for number in 0..40 {
            let most = 60 + world.draw(longest - 60);
            let small = world.small(number, Some(most));
            world.submit(small);
        }
        let ends_at = |world: &mut World, gang: &Gang| {
            let most = i64::try_from(gang.run_time.max_seconds.unwrap_or(100)).expect("small");
            // Some end before they have to.
            world.now + most - i64::try_from(world.draw(30)).expect("small")
        };
        world.decide(ends_at);
        world.submit(requiring("leaf", gang("head", "large", 3, 4)));
        let mut arrival = 0;
        let mut number = 40;
        let started_at = loop {
            if world.decide(ends_at).contains(&"head".into()) {
                break world.now;
            }
            assert!(world.now < 5_000, "seed {seed}: it starves");
            let next = world.next(arrival);
            world.go_to(next);
            while arrival <= world.now {
                let most = 60 + world.draw(longest - 60);
                let small = world.small(number, Some(most));
                world.submit(small);
                number += 1;
                arrival += 7;
            }
        };
        let bound = LONG + i64::try_from(longest).expect("small");
        assert!(started_at <= bound, "seed {seed}: {started_at}");
    }
}

/// Nobody knows when anybody ends, and some never do: what stands idle for the large gang is bounded each time, and until as much could
/// have been used nothing does.
#[test]
fn an_endless_job_never_idles_a_cluster() {
    let mut kept_in_all = 0;
    for seed in 0..20 {
        let mut world = World::new(seed);
        for number in 0..30 {
            let most = [None, None, Some(200), Some(4_000)]
                [usize::try_from(world.draw(4)).expect("small")];
            let small = world.small(number, most);
            world.submit(small);
        }
        let ends_at = |world: &mut World, gang: &Gang| match gang.run_time.max_seconds {
            Some(most) => world.now + i64::try_from(most).expect("small"),
            None if world.draw(3) == 0 => i64::MAX,
            None => world.now + 50 + i64::try_from(world.draw(1_500)).expect("small"),
        };
        world.decide(ends_at);
        world.submit(requiring("leaf", gang("head", "large", 3, 4)));
        let (mut arrival, mut number) = (0, 30);
        let mut standing: Option<(GangUid, Timestamp)> = None;
        let mut may_stand_from = 0;
        let mut times = BTreeSet::new();
        while world.now < 20_000 {
            let stood_idle = world.idle;
            let started = world.decide(ends_at);
            if started.contains(&"head".into()) {
                break;
            }
            let now_kept = kept(&world.state).map(|kept| (kept.gang, kept.since));
            let since = now_kept.as_ref().map(|(_, since)| *since);
            if let Some((gang, _)) = standing.take().filter(|(_, before)| Some(*before) != since)
                && !started.contains(&gang)
            {
                let rest = stood_idle / i128::from(gpus(3 * 4).0);
                may_stand_from = world.now + i64::try_from(rest).expect("small").min(LONG);
            }
            if let Some(since) = since {
                assert!(
                    since.0 >= may_stand_from,
                    "seed {seed}: {since:?} {may_stand_from}"
                );
                times.insert(since);
            }
            standing = now_kept;
            let next = world.next(arrival);
            world.go_to(next);
            while arrival <= world.now {
                let most =
                    [None, Some(100), Some(1_000)][usize::try_from(world.draw(3)).expect("small")];
                let small = world.small(number, most);
                world.submit(small);
                number += 1;
                arrival += 40;
            }
        }
        kept_in_all += times.len();
        let of = FlavorResource {
            flavor: H100.into(),
            resource: Resource::Gpus,
        };
        let used = world.state.usage(&team_name("small"));
        assert!(
            used.iter()
                .any(|usage| usage.of == of && usage.used > Amount::ZERO)
        );
    }
    assert!(kept_in_all > 20, "{kept_in_all}");
}
