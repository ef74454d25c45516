//! What would help a gang that waits: what is told does help, and nothing less does.

#![allow(
    clippy::expect_used,
    clippy::panic,
    clippy::unwrap_used,
    reason = "tests"
)]

mod common;
#[path = "quota/random.rs"]
#[allow(dead_code, reason = "each test program uses its part")]
mod random;

use std::collections::BTreeMap;

use common::*;
use muster_engine::{
    Amount, Budget, Gang, GangUid, Hold, Node, Order, PodUid, Queueing, QuotaLimit, Remedies,
    RemedyEvent, Resource, Running, State, Team, Timestamp, Update, Why,
    quota::{PreemptionPolicy, ReclaimWithinCohort, Sharing, WithinTeam},
};
use random::Random;

/// The engine, and what runs.
struct World {
    state: State,
    teams: BTreeMap<String, Team>,
    gangs: BTreeMap<GangUid, Gang>,
    holds: BTreeMap<GangUid, Vec<Hold>>,
    waiting: Vec<GangUid>,
}

impl World {
    fn new(nodes: Vec<Node>, teams: Vec<Team>) -> Self {
        let by_name = teams.iter().cloned();
        Self {
            teams: by_name.map(|team| (team.name.to_string(), team)).collect(),
            state: state(nodes, teams),
            gangs: BTreeMap::new(),
            holds: BTreeMap::new(),
            waiting: Vec::new(),
        }
    }

    fn submit(&mut self, gang: Gang) {
        self.waiting.push(gang.uid.clone());
        self.gangs.insert(gang.uid.clone(), gang.clone());
        self.state.apply(Update::Waiting(gang));
    }

    fn decide(&mut self) {
        for admission in decide(&mut self.state).admissions {
            let gang = &self.gangs[&admission.gang];
            let holds = holds_of(gang, &admission);
            for hold in &holds {
                self.state.apply(Update::Hold(hold.clone()));
            }
            self.state.apply(Update::NotWaiting(gang.uid.clone()));
            self.state.apply(Update::Running(Running {
                uid: gang.uid.clone(),
                team: gang.team.clone(),
                priority: gang.priority,
                queued_at: gang.queued_at,
                admitted_at: Timestamp(0),
                protected_until: None,
                checkpointed_at: None,
                is_made_again: true,
                ending_since: None,
                may_be_preempted: true,
                is_told_over_quota: false,
            }));
            self.waiting.retain(|uid| *uid != gang.uid);
            self.holds.insert(gang.uid.clone(), holds);
        }
    }

    /// Submits each and decides, so that they run in this order.
    fn run(&mut self, gangs: impl IntoIterator<Item = Gang>) {
        for gang in gangs {
            self.submit(gang);
            self.decide();
        }
    }

    fn remedies(&self, gang: &str) -> Remedies {
        let explained = self.state.explain(&gang.into()).expect("it waits");
        self.state.remedies(&explained)
    }

    /// Who is admitted after some end.
    fn after_the_end_of(&self, gangs: &[GangUid]) -> Vec<String> {
        let mut state = self.state.clone();
        for gang in gangs {
            state.apply(Update::NotRunning(gang.clone()));
            for pod in self.pods_of(gang) {
                state.apply(Update::HoldGone(pod));
            }
        }
        let decisions = state.decide(Timestamp(1), &Budget::UNLIMITED);
        if decisions.admissions.is_empty() && !decisions.preemptions.is_empty() {
            return vec![format!("{:?}", decisions.preemptions)];
        }
        admitted(&decisions)
    }

    fn pods_of(&self, gang: &GangUid) -> Vec<PodUid> {
        self.holds[gang]
            .iter()
            .map(|hold| hold.pod.clone())
            .collect()
    }

    /// Who is admitted once the nominal quota of a Team is another one.
    fn after_a_raise(&self, team: &str, by: Amount) -> Vec<String> {
        let mut state = self.state.clone();
        let mut team = self.teams[team].clone();
        team.generation += 1;
        let gpus = team.quota[0].1.get_mut(&Resource::Gpus).unwrap();
        gpus.nominal = Amount(gpus.nominal.0 + by.0);
        state.apply(Update::Team(team));
        admitted(&state.decide(Timestamp(1), &Budget::UNLIMITED))
    }
}

/// A Cohort of three Teams with all kinds of limits, and a Team by itself.
fn random_world(random: &mut Random, preempts: bool, sharing: Sharing<'static>) -> World {
    let limits = |nominal, borrowing: Option<i64>, lending: Option<i64>| QuotaLimit {
        nominal: gpus(nominal),
        borrowing_limit: borrowing.map(gpus),
        lending_limit: lending.map(gpus),
        automatic: false,
    };
    let mut teams = vec![
        team("t0", Some("all"), limits(4, Some(4), Some(2))),
        team("t1", Some("all"), limits(6, None, None)),
        team("t2", Some("inner"), limits(2, Some(2), Some(0))),
        team("t3", None, limit(5)),
    ];
    if random.percent(30) {
        teams[random.index(4)].queueing = Queueing::StrictFifo;
    }
    for team in &mut teams {
        if preempts && random.percent(70) {
            team.preemption = PreemptionPolicy {
                within_team: random.pick(&[WithinTeam::Never, WithinTeam::LowerPriority]),
                reclaim_within_cohort: ReclaimWithinCohort::Any,
                ..PreemptionPolicy::NEVER
            };
        }
    }
    let nodes = [
        ("n0", "s/l0"),
        ("n1", "s/l0"),
        ("n2", "s/l1"),
        ("n3", "s/l1"),
    ];
    let nodes = nodes.map(|(name, path)| node(name, path, 4)).into();
    let mut world = World::new(nodes, teams);
    let mut all = cohort("all", None, 3);
    all.sharing = sharing;
    world.state.apply(Update::Cohort(all));
    world
        .state
        .apply(Update::Cohort(cohort("inner", Some("all"), 1)));
    for number in 0..random.between(6, 24) {
        let (name, of) = (format!("g{number:02}"), format!("t{}", random.index(4)));
        let pods = usize::try_from(random.between(1, 4)).unwrap();
        let mut gang = gang(&name, &of, pods, random.pick(&[1, 1, 2, 4]));
        if random.percent(30) {
            gang = requiring("leaf", gang);
        }
        if random.percent(25) {
            gang = within_nominal(gang);
        }
        let tier = i32::try_from(random.between(0, 2)).unwrap();
        world.submit(with_priority(tier, at(number, gang)));
        if random.percent(60) {
            world.decide();
        }
        if random.percent(25) && !world.holds.is_empty() {
            let running: Vec<GangUid> = world.holds.keys().cloned().collect();
            let ended = random.pick(&running);
            world.state.apply(Update::NotRunning(ended.clone()));
            for pod in world.pods_of(&ended) {
                world.state.apply(Update::HoldGone(pod));
            }
            world.holds.remove(&ended);
        }
    }
    world.decide();
    world
}

/// How often what was told.
#[derive(Debug, Default)]
struct Told {
    preempts: bool,
    ends: usize,
    several_end: usize,
    raises: usize,
    after_others: usize,
    open: usize,
    nothing: usize,
}

/// Checks all that is told in a world.
fn check(world: &World, told: &mut Told, seed: u64) {
    for uid in &world.waiting {
        let gang = &world.gangs[uid];
        let Remedies { each, gave_up } = world.remedies(uid.as_str());
        // While something is kept for somebody, what other limits would do is left open.
        assert!(!gave_up || told.preempts, "seed {seed}: the world is small");
        told.nothing += usize::from(each.is_empty());
        for remedy in each {
            let says = format!("seed {seed}: {uid}: {remedy}");
            let (helped, by_less) = match &remedy.event {
                RemedyEvent::GangsEnd(holders) => {
                    told.ends += 1;
                    told.several_end += usize::from(holders.len() > 1);
                    let gangs: Vec<GangUid> = holders.iter().map(|it| it.gang.clone()).collect();
                    let without = |left_out: usize| {
                        let mut gangs = gangs.clone();
                        gangs.remove(left_out);
                        world.after_the_end_of(&gangs)
                    };
                    let by_less: Vec<_> = (0..gangs.len()).map(without).collect();
                    (world.after_the_end_of(&gangs), by_less)
                }
                RemedyEvent::QuotaRaised(by) => {
                    told.raises += 1;
                    let [more] = &by[..] else {
                        panic!("{says}: only GPUs have a limit here");
                    };
                    let team = gang.team.as_str();
                    let less = Amount(more.amount.0 - 1);
                    let by_less = vec![world.after_a_raise(team, less)];
                    (world.after_a_raise(team, more.amount), by_less)
                }
            };
            match &remedy.order {
                Order::Itself => assert!(helped.contains(&uid.to_string()), "{says}: {helped:?}"),
                Order::After(first) => {
                    told.after_others += 1;
                    let (_, first) = first.split_once('/').unwrap();
                    assert!(helped.contains(&first.to_owned()), "{says}: {helped:?}");
                }
                Order::Open => told.open += 1,
            }
            for helped in by_less {
                let suffices = helped.contains(&uid.to_string());
                assert!(!suffices || gave_up, "{says}: less suffices");
            }
        }
    }
}

#[test]
fn what_would_help_does_help_and_nothing_less_does() {
    let mut told = Told::default();
    for seed in 0..600 {
        let world = random_world(&mut Random::new(seed), false, Sharing::ByPriority);
        check(&world, &mut told, seed);
    }
    assert!(told.ends > 500 && told.several_end > 50, "{told:?}");
    assert!(told.raises > 100 && told.after_others > 50, "{told:?}");
}

#[test]
fn where_gangs_preempt_or_shares_are_fair_it_helps_too_or_is_left_open() {
    for (preempts, sharing) in [
        (true, Sharing::ByPriority),
        (false, Sharing::FAIR),
        (true, Sharing::FAIR),
    ] {
        let mut told = Told {
            preempts,
            ..Told::default()
        };
        for seed in 0..200 {
            let world = random_world(&mut Random::new(seed), preempts, sharing);
            check(&world, &mut told, seed);
        }
        let certain = told.ends + told.raises - told.open;
        // Where gangs preempt, who goes first is mostly left open.
        assert!(certain > if preempts { 0 } else { 50 }, "{told:?}");
        assert!(told.ends > 100, "{told:?}");
    }
}

#[test]
fn the_smallest_event_is_told_and_who_holds_what() {
    let mut world = World::new(
        vec![node("n0", "s/l0", 8), node("n1", "s/l1", 8)],
        vec![
            team("a", Some("all"), limit(4)),
            team("b", Some("all"), limit(8)),
        ],
    );
    world.run([
        gang("b-large", "b", 2, 4),
        gang("b-small", "b", 1, 1),
        gang("a-old", "a", 1, 2),
        gang("a-new", "a", 1, 4),
    ]);
    assert!(matches!(why(&world.state, "a-new"), Why::Quota { .. }));
    assert_eq!(
        world.remedies("a-new").to_string(),
        "as things are, it is admitted once b/b-large of Team b (8 GPUs of h100) ends, or once the Team's nominal quota is \
         raised by 3 GPUs of h100"
    );
    assert_eq!(world.after_a_raise("a", gpus(3)), ["a-new"]);
}

#[test]
fn who_is_in_the_way_of_a_place_is_told_though_it_holds_no_quota_that_lacks() {
    let mut world = World::new(
        vec![node("n0", "s/l0", 4), node("n1", "s/l1", 4)],
        vec![team("a", None, limit(100))],
    );
    world.run([
        gang("one", "a", 1, 3),
        gang("two", "a", 1, 2),
        gang("wide", "a", 2, 4),
    ]);
    let remedies = world.remedies("wide");
    assert_eq!(
        remedies.to_string(),
        "as things are, it is admitted once a/one of Team a (3 GPUs of h100) and a/two of Team a (2 GPUs of h100) end"
    );
    world.run([gang("wider", "a", 3, 4)]);
    let never = world.remedies("wider");
    assert_eq!((never.each.len(), never.gave_up), (0, false));
}

#[test]
fn whoever_goes_first_is_named() {
    let mut world = World::new(vec![node("n0", "s/l0", 4)], vec![team("a", None, limit(4))]);
    world.run([
        gang("runs", "a", 1, 4),
        at(1, gang("first", "a", 1, 2)),
        at(2, gang("second", "a", 1, 2)),
        at(3, gang("third", "a", 1, 3)),
    ]);
    let order = |gang| world.remedies(gang).each[0].order.clone();
    assert_eq!(order("first"), Order::Itself);
    assert_eq!(order("second"), Order::After("a/first".to_owned()));
    assert_eq!(order("third"), Order::After("a/first".to_owned()));
}

#[test]
fn a_search_among_more_than_it_may_consider_says_so() {
    let nodes = (0..40).map(|at| node(&format!("n{at:02}"), "s/l0", 4));
    let mut world = World::new(nodes.collect(), vec![team("a", None, limit(160))]);
    world.run((0..160).map(|at| gang(&format!("g{at:03}"), "a", 1, 1)));
    world.run([gang("all", "a", 40, 4)]);
    let remedies = world.remedies("all");
    assert!(remedies.gave_up, "{remedies}");
    let explained = world.state.explain(&"all".into()).unwrap();
    let before = world.state.visited();
    world.state.remedies(&explained);
    let looks = world.state.visited() - before;
    assert!(looks < 200_000, "{looks}");
}
