//! Who gives way to whom, what is kept for whom meanwhile, and that nothing is taken for nothing.

use std::collections::{BTreeMap, BTreeSet};

use crate::{common::*, slices::decide_in_slices};
use muster_engine::{
    Cohort, Decisions, Gang, GangUid, Hold, Preemption, Reserved, Running, State, Team, Timestamp,
    Update, Why,
    quota::{PreemptionPolicy, PreemptionReason, ReclaimWithinCohort, Sharing, WithinTeam},
};
use proptest::prelude::*;

/// For how long something is kept for a gang.
const MOST_SECONDS: i64 = 600;

const LOWER: PreemptionPolicy = PreemptionPolicy {
    within_team: WithinTeam::LowerPriority,
    reclaim_within_cohort: ReclaimWithinCohort::Any,
    ..PreemptionPolicy::NEVER
};

/// A Team that may preempt.
fn preempting(name: &str, cohort: Option<&str>, nominal: i64) -> Team {
    Team {
        preemption: LOWER,
        ..team(name, cohort, limit(nominal))
    }
}

/// The engine, and what the protocol would tell it of what it decided.
struct World {
    state: State,
    now: i64,
    gangs: BTreeMap<GangUid, Gang>,
    holds: BTreeMap<GangUid, Vec<Hold>>,
    protected_seconds: i64,
}

impl World {
    fn new(nodes: usize, devices: usize, teams: Vec<Team>) -> Self {
        let nodes = (0..nodes).map(|at| node(&format!("n{at}"), "s/l", devices));
        Self {
            state: state(nodes.collect(), teams),
            now: 0,
            gangs: BTreeMap::new(),
            holds: BTreeMap::new(),
            protected_seconds: 0,
        }
    }

    fn submit(&mut self, gangs: impl IntoIterator<Item = Gang>) {
        for gang in gangs {
            self.gangs.insert(gang.uid.clone(), gang.clone());
            self.state.apply(Update::Waiting(gang));
        }
    }

    /// Decides once, a second later, and tells what came of it.
    fn decide(&mut self) -> Decisions {
        self.now += 1;
        let decisions = self
            .state
            .decide(Timestamp(self.now), &muster_engine::Budget::UNLIMITED);
        if decisions.look_again_at != Some(Timestamp(self.now + 1)) {
            let budget = muster_engine::Budget::UNLIMITED;
            let again = self.state.clone().decide(Timestamp(self.now), &budget);
            assert_eq!((again.admissions, again.preemptions), (vec![], vec![]));
        }
        for admission in &decisions.admissions {
            let gang = &self.gangs[&admission.gang];
            let holds = holds_of(gang, admission);
            for hold in &holds {
                self.state.apply(Update::Hold(hold.clone()));
            }
            self.state.apply(Update::NotWaiting(gang.uid.clone()));
            self.state.apply(Update::Running(Running {
                protected_until: (self.protected_seconds > 0)
                    .then_some(Timestamp(self.now + self.protected_seconds)),
                ..running_since(Timestamp(self.now), gang)
            }));
            self.holds.insert(gang.uid.clone(), holds);
        }
        decisions
    }

    /// All that a gang holds is proved released.
    fn released(&mut self, gang: &str) {
        let uid = GangUid::from(gang);
        self.state.apply(Update::NotRunning(uid.clone()));
        for hold in self.holds.remove(&uid).expect("it holds something") {
            self.state.apply(Update::HoldGone(hold.pod));
        }
    }

    fn running(&self) -> Vec<String> {
        self.holds.keys().map(ToString::to_string).collect()
    }
}

/// `preemptor: victim Reason, ...`
fn told(preemptions: &[Preemption]) -> Vec<String> {
    let preemptions = preemptions.iter().map(|preemption| {
        let victims = preemption.victims.iter();
        let victims = victims.map(|victim| format!("{} {:?}", victim.gang, victim.reason));
        let victims: Vec<String> = victims.collect();
        format!("{}: {}", preemption.gang, victims.join(", "))
    });
    preemptions.collect()
}

#[test]
fn in_its_team_a_gang_of_higher_priority_preempts_as_few_as_it_needs_and_starts_when_they_are_released()
 {
    let mut world = World::new(1, 8, vec![preempting("a", None, 8)]);
    world.submit([
        gang("old", "a", 1, 2),
        at(1, gang("young", "a", 1, 2)),
        with_priority(5, gang("middle", "a", 1, 4)),
    ]);
    assert_eq!(world.decide().admissions.len(), 3);
    world.submit([with_priority(10, at(9, gang("urgent", "a", 1, 2)))]);
    let decisions = world.decide();
    // Of equals admitted at the same time the smaller UID goes.
    assert_eq!(told(&decisions.preemptions), ["urgent: old InTeam"]);
    assert!(decisions.admissions.is_empty(), "before the proof");
    assert!(world.decide().preemptions.is_empty(), "once is enough");
    let Why::Preemption { victims } = why(&world.state, "urgent") else {
        panic!("{:?}", why(&world.state, "urgent"));
    };
    assert_eq!(victims.gangs, ["a/old"]);
    world.released("old");
    assert_eq!(admitted(&world.decide()), ["urgent"]);
}

#[test]
fn nobody_gives_way_on_a_node_that_is_closed_to_whoever_would_have_it() {
    for (closed, expected) in [
        (&[][..], &["urgent: low InTeam"][..]),
        (&["n0"], &[]),
        (&["n1"], &["urgent: low InTeam"]),
    ] {
        let mut world = World::new(1, 8, vec![preempting("a", None, 8)]);
        world.submit([gang("low", "a", 1, 8)]);
        assert_eq!(world.decide().admissions.len(), 1);
        let mut urgent = with_priority(10, at(9, gang("urgent", "a", 1, 8)));
        urgent.topology.closed = closed.iter().map(|node| (*node).into()).collect();
        world.submit([urgent]);
        assert_eq!(told(&world.decide().preemptions), expected, "{closed:?}");
    }
}

#[test]
fn of_equals_goes_first_who_loses_least_and_last_whose_pods_nobody_makes_again() {
    // (admitted at, checkpointed at, made again) of gangs a and b; who goes.
    let cases = [
        ((1, None, true), (2, None, true), "b"),
        ((1, Some(9), true), (2, None, true), "a"),
        ((1, Some(9), true), (2, Some(8), true), "a"),
        ((5, Some(3), true), (4, None, true), "a"),
        ((5, None, true), (4, Some(6), true), "b"),
        ((5, None, false), (5, None, true), "b"),
        ((6, None, false), (5, None, true), "a"),
    ];
    for (a, b, first) in cases {
        let mut world = World::new(1, 4, vec![preempting("t", None, 4)]);
        world.submit([gang("a", "t", 1, 2), gang("b", "t", 1, 2)]);
        assert_eq!(world.decide().admissions.len(), 2);
        for (uid, (admitted_at, checkpointed_at, is_made_again)) in [("a", a), ("b", b)] {
            let gang = &world.gangs[&GangUid::from(uid)];
            let running = Running {
                checkpointed_at: checkpointed_at.map(Timestamp),
                is_made_again,
                ..running_since(Timestamp(admitted_at), gang)
            };
            world.state.apply(Update::Running(running));
        }
        world.submit([with_priority(9, gang("urgent", "t", 1, 2))]);
        let decisions = world.decide();
        let expected = [format!("urgent: {first} InTeam")];
        assert_eq!(told(&decisions.preemptions), expected, "{a:?}, {b:?}");
    }
}

#[test]
fn a_team_reclaims_what_others_borrow_and_leaves_those_alone_who_borrow_nothing() {
    let teams = vec![
        preempting("lender", Some("all"), 4),
        preempting("borrower", Some("all"), 2),
        preempting("modest", Some("all"), 2),
    ];
    let mut world = World::new(1, 8, teams);
    world.submit([
        gang("b0", "borrower", 1, 2),
        at(1, gang("b1", "borrower", 1, 2)),
        at(2, gang("b2", "borrower", 1, 2)),
        with_priority(-5, gang("m", "modest", 1, 2)),
    ]);
    assert_eq!(world.decide().admissions.len(), 4);
    world.submit([at(9, gang("mine", "lender", 1, 4))]);
    let decisions = world.decide();
    assert_eq!(
        told(&decisions.preemptions),
        ["mine: b0 Reclaimed, b1 Reclaimed"]
    );
    world.released("b0");
    assert_eq!(admitted(&world.decide()), [""; 0], "one is not enough");
    world.released("b1");
    assert_eq!(admitted(&world.decide()), ["mine"]);
}

#[test]
fn what_is_freed_for_a_gang_nobody_else_takes_not_even_with_a_higher_priority() {
    let teams = vec![
        preempting("a", Some("all"), 4),
        team("b", Some("all"), limit(4)),
    ];
    let mut world = World::new(1, 8, teams);
    world.submit([gang("b0", "b", 1, 4), at(1, gang("b1", "b", 1, 4))]);
    world.decide();
    world.submit([gang("a0", "a", 1, 4)]);
    assert_eq!(told(&world.decide().preemptions), ["a0: b0 Reclaimed"]);
    world.submit([with_priority(100, gang("b2", "b", 1, 4))]);
    assert!(world.decide().admissions.is_empty());
    world.released("b0");
    assert_eq!(admitted(&world.decide()), ["a0"]);
    assert!(matches!(why(&world.state, "b2"), Why::Quota { .. }));
}

#[test]
fn nobody_gives_way_where_no_place_results() {
    // Four and four free on two nodes: whoever runs, eight on one node are had only without both of a node.
    let mut world = World::new(2, 8, vec![preempting("a", None, 100)]);
    world.submit([
        with_priority(20, gang("kept-0", "a", 1, 6)),
        with_priority(20, gang("kept-1", "a", 1, 6)),
    ]);
    world.decide();
    world.submit([with_priority(10, gang("large", "a", 1, 8))]);
    let decisions = world.decide();
    assert_eq!(decisions.preemptions, []);
    assert!(matches!(why(&world.state, "large"), Why::Placement { .. }));
    // With lower priority they would.
    world.submit([with_priority(30, gang("larger", "a", 1, 8))]);
    assert_eq!(world.decide().preemptions.len(), 1);
}

#[test]
fn where_quota_is_there_and_places_are_not_those_go_who_are_in_the_way() {
    let mut world = World::new(4, 8, vec![preempting("a", None, 100)]);
    // One on each node; the last comers are asked first.
    let small = (0..4).map(|at| self::at(at, gang(&format!("s{at}"), "a", 1, 5)));
    world.submit(small);
    assert_eq!(world.decide().admissions.len(), 4);
    world.submit([with_priority(10, gang("large", "a", 2, 8))]);
    let decisions = world.decide();
    let [preemption] = decisions.preemptions.as_slice() else {
        panic!("{:?}", decisions.preemptions);
    };
    let victims: Vec<&str> = preemption
        .victims
        .iter()
        .map(|victim| victim.gang.as_str())
        .collect();
    assert_eq!(victims.len(), 2, "{victims:?}");
    let freed: Vec<String> = victims.iter().map(ToString::to_string).collect();
    for victim in &freed {
        world.released(victim);
    }
    assert_eq!(admitted(&world.decide()), ["large"]);
}

#[test]
fn a_minimum_run_time_protects_until_its_end_and_the_time_is_told() {
    let mut world = World::new(1, 8, vec![preempting("a", None, 8)]);
    world.protected_seconds = 100;
    world.submit([gang("low", "a", 1, 8)]);
    world.decide();
    world.submit([with_priority(10, gang("high", "a", 1, 8))]);
    let decisions = world.decide();
    assert_eq!(decisions.preemptions, []);
    assert_eq!(decisions.look_again_at, Some(Timestamp(101)));
    world.now = 99;
    assert_eq!(world.decide().preemptions, []);
    assert_eq!(told(&world.decide().preemptions), ["high: low InTeam"]);
}

#[test]
fn a_victim_that_does_not_go_is_counted_on_for_so_long_and_then_others_go() {
    let mut world = World::new(1, 8, vec![preempting("a", None, 8)]);
    world.submit([
        gang("stuck", "a", 1, 4),
        with_priority(5, gang("other", "a", 1, 4)),
    ]);
    world.decide();
    world.submit([with_priority(10, gang("high", "a", 1, 4))]);
    let decisions = world.decide();
    assert_eq!(told(&decisions.preemptions), ["high: stuck InTeam"]);
    let decided_at = world.now;
    assert_eq!(
        decisions.look_again_at,
        Some(Timestamp(decided_at + MOST_SECONDS))
    );
    with_notice(&mut world, 0, Some(decided_at));
    world.now = decided_at + MOST_SECONDS - 2;
    assert_eq!(world.decide().preemptions, []);
    assert_eq!(told(&world.decide().preemptions), ["high: other InTeam"]);
}

/// `stuck` has so long a notice, and was told to go then, if it was.
fn with_notice(world: &mut World, notice_seconds: i64, ending_since: Option<i64>) {
    let running = Running {
        ending_since: ending_since.map(Timestamp),
        notice_seconds,
        ..as_running(world, "stuck", 0)
    };
    world.state.apply(Update::Running(running));
}

#[test]
fn a_victim_is_counted_on_until_so_long_after_its_notice_and_what_it_frees_is_kept_until_then() {
    for (notice, counted) in [(-1, 0), (0, 0), (900, 900), (i64::MAX, i64::MAX)] {
        let mut world = World::new(1, 8, vec![preempting("a", None, 8)]);
        world.submit([
            gang("stuck", "a", 1, 4),
            with_priority(5, gang("other", "a", 1, 4)),
        ]);
        world.decide();
        with_notice(&mut world, notice, None);
        world.submit([with_priority(10, gang("high", "a", 1, 4))]);
        let decisions = world.decide();
        assert_eq!(told(&decisions.preemptions), ["high: stuck InTeam"]);
        let since = world.now;
        let until = since.saturating_add(counted).saturating_add(MOST_SECONDS);
        let kept = world.state.kept_for(&"high".into()).unwrap();
        assert_eq!(kept.until, Timestamp(until), "{notice}");
        with_notice(&mut world, notice, Some(since));
        if counted < i64::MAX {
            world.now = until - 2;
            assert_eq!(world.decide().preemptions, [], "{notice}");
            let asked = told(&world.decide().preemptions);
            assert_eq!(asked, ["high: other InTeam"], "{notice}");
        }
    }
}

/// Nobody waits for it, so it was spared; then it is asked to go for another gang, and goes when it was told.
#[test]
fn who_was_told_to_go_before_is_counted_on_from_when_it_was_told() {
    let mut world = World::new(1, 8, vec![preempting("a", None, 8)]);
    world.submit([gang("stuck", "a", 1, 8)]);
    world.decide();
    let told_at = world.now - 100;
    with_notice(&mut world, 900, Some(told_at));
    world.submit([with_priority(10, gang("high", "a", 1, 4))]);
    assert_eq!(told(&world.decide().preemptions), ["high: stuck InTeam"]);
    let kept = world.state.kept_for(&"high".into()).unwrap();
    assert_eq!(kept.until, Timestamp(told_at + 900 + MOST_SECONDS));
}

#[test]
fn who_gives_up_waiting_gives_up_what_is_kept_for_it() {
    let mut world = World::new(2, 8, vec![preempting("a", None, 16)]);
    world.submit([gang("low", "a", 1, 8), gang("lower", "a", 1, 8)]);
    world.decide();
    world.submit([with_priority(10, gang("high", "a", 1, 8))]);
    assert_eq!(world.decide().preemptions.len(), 1);
    world.state.apply(Update::NotWaiting("high".into()));
    world.released("low");
    world.submit([gang("next", "a", 1, 8)]);
    assert_eq!(admitted(&world.decide()), ["next"]);
}

#[test]
fn a_gang_of_the_same_shape_with_a_higher_priority_is_asked_anew() {
    let mut world = World::new(1, 8, vec![preempting("a", None, 8)]);
    world.submit([with_priority(5, gang("runs", "a", 1, 8))]);
    world.decide();
    world.submit([gang("waits", "a", 1, 8)]);
    assert_eq!(world.decide().preemptions, []);
    world.submit([with_priority(9, gang("urgent", "a", 1, 8))]);
    assert_eq!(told(&world.decide().preemptions), ["urgent: runs InTeam"]);
}

#[test]
fn a_team_that_may_not_preempt_waits() {
    let mut world = World::new(1, 8, vec![team("a", None, limit(8))]);
    world.submit([gang("low", "a", 1, 8)]);
    world.decide();
    world.submit([with_priority(10, gang("high", "a", 1, 8))]);
    let decisions = world.decide();
    assert_eq!(
        (decisions.preemptions, decisions.look_again_at),
        (vec![], None)
    );
    // From now on it may.
    world.state.apply(Update::Team(Team {
        generation: 2,
        ..preempting("a", None, 8)
    }));
    assert_eq!(world.decide().preemptions.len(), 1);
}

#[test]
fn whom_nobody_told_as_running_nobody_preempts() {
    let mut world = World::new(1, 8, vec![preempting("a", None, 8)]);
    world.submit([gang("low", "a", 1, 8)]);
    world.decide();
    world.state.apply(Update::NotRunning("low".into()));
    world.submit([with_priority(10, gang("high", "a", 1, 8))]);
    assert_eq!(world.decide().preemptions, []);
}

/// One thing that happens.
#[derive(Clone, Debug)]
enum Event {
    Comes {
        team: usize,
        priority: i32,
        pods: usize,
        gpus: u32,
    },
    /// One that runs ends by itself, or a victim is gone at last.
    Ends(prop::sample::Index),
    /// All victims are gone.
    VictimsEnd,
    Decide,
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        4 => (0..3_usize, 0..3_i32, 1..4_usize, 1..9_u32)
            .prop_map(|(team, priority, pods, gpus)| Event::Comes { team, priority, pods, gpus }),
        1 => any::<prop::sample::Index>().prop_map(Event::Ends),
        2 => Just(Event::VictimsEnd),
        4 => Just(Event::Decide),
    ]
}

/// Three Teams with 8 GPUs each in one Cohort, on three nodes of 8.
fn three_teams() -> World {
    let teams = (0..3).map(|at| preempting(&format!("t{at}"), Some("all"), 8));
    World::new(3, 8, teams.collect())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// S1, S14 and that nothing is taken for nothing: what runs never exceeds the cohort's quota; in a Team victims have a
    /// lower priority; those to whom others gave way start, at the latest when nobody gives way any more; what was decided is not
    /// decided again, unless a gang that was counted on as gone stays.
    #[test]
    fn whoever_gives_way_does_so_for_a_gang_that_starts_then(
        events in prop::collection::vec(event(), 1..60),
    ) {
        let mut world = three_teams();
        let mut open: BTreeMap<GangUid, BTreeSet<GangUid>> = BTreeMap::new();
        // Those that may have counted as gone on somebody who stays: once their own victims are gone, they ask for more, or wait.
        let mut counted_on_others: BTreeSet<GangUid> = BTreeSet::new();
        let mut count = 0;
        for event in events {
            match event {
                Event::Comes { team, priority, pods, gpus } => {
                    count += 1;
                    let name = format!("g{count}");
                    let gang = gang(&name, &format!("t{team}"), pods, gpus);
                    world.submit([with_priority(priority, at(count, gang))]);
                }
                Event::Ends(index) => {
                    let running = world.running();
                    if !running.is_empty() {
                        let gang = index.get(&running).clone();
                        world.released(&gang);
                        for victims in open.values_mut() {
                            victims.remove(&GangUid::from(gang.as_str()));
                        }
                    }
                }
                Event::VictimsEnd => {
                    let victims: BTreeSet<GangUid> = open.values().flatten().cloned().collect();
                    for victim in victims {
                        world.released(victim.as_str());
                    }
                    open.values_mut().for_each(BTreeSet::clear);
                }
                Event::Decide => {}
            }
            let decisions = world.decide();
            let admitted: BTreeSet<GangUid> =
                decisions.admissions.iter().map(|it| it.gang.clone()).collect();
            let is_anybody_going = open.values().any(|victims| !victims.is_empty());
            // Its victims stay.
            let is_anybody_spared = open
                .iter()
                .any(|(gang, victims)| admitted.contains(gang) && !victims.is_empty());
            open.retain(|gang, _| !admitted.contains(gang));
            if is_anybody_spared {
                counted_on_others.extend(open.keys().cloned());
            }
            open.retain(|gang, victims| !victims.is_empty() || !counted_on_others.remove(gang));
            let mut due = open.iter().filter(|(_, victims)| victims.is_empty());
            prop_assert!(is_anybody_going || due.next().is_none(), "{open:?} do not start");
            for preemption in decisions.preemptions {
                let preemptor = &world.gangs[&preemption.gang];
                let is_new = !open.contains_key(&preemption.gang);
                prop_assert!(is_new || counted_on_others.remove(&preemption.gang), "twice");
                for victim in &preemption.victims {
                    let gang = &world.gangs[&victim.gang];
                    prop_assert!(world.holds.contains_key(&victim.gang));
                    if gang.team == preemptor.team {
                        prop_assert!(gang.priority < preemptor.priority);
                        prop_assert_eq!(victim.reason, PreemptionReason::InTeam);
                    } else {
                        prop_assert_eq!(victim.reason, PreemptionReason::Reclaimed);
                    }
                }
                let victims = preemption.victims.into_iter().map(|victim| victim.gang);
                open.insert(preemption.gang, victims.collect());
            }
            let used: i64 = world.holds.values().flatten().flat_map(|hold| &hold.claims)
                .map(|claim| claim.gpus.0).sum();
            prop_assert!(used <= gpus(24).0, "{used}");
        }
    }

    /// Without any one of its victims the gang would not have preempted: spared, it still lacks something.
    #[test]
    fn no_victim_can_be_spared(
        running in prop::collection::vec((0..3_i32, 1..5_u32), 1..12),
        asked in 1..9_u32,
    ) {
        let mut world = World::new(3, 8, vec![preempting("a", None, 24)]);
        let gangs = running.iter().enumerate().map(|(number, (priority, gpus))| {
            with_priority(*priority, gang(&format!("r{number:02}"), "a", 1, *gpus))
        });
        world.submit(gangs);
        world.decide();
        world.submit([with_priority(9, gang("urgent", "a", 1, asked))]);
        let before = world.state.clone();
        let decisions = world.decide();
        for spared in decisions.preemptions.iter().flat_map(|it| &it.victims) {
            let mut without = before.clone();
            for victim in decisions.preemptions.iter().flat_map(|it| &it.victims) {
                if victim.gang != spared.gang {
                    for hold in &world.holds[&victim.gang] {
                        without.apply(Update::HoldGone(hold.pod.clone()));
                    }
                }
            }
            // Nobody may preempt here: it fits, or it does not.
            without.apply(Update::Team(team("a", None, limit(24))));
            let decisions = without.decide(Timestamp(99), &muster_engine::Budget::UNLIMITED);
            let admitted = admitted(&decisions);
            prop_assert!(!admitted.contains(&"urgent".to_owned()), "{} was not needed", spared.gang);
        }
    }
}

/// What may happen besides.
#[derive(Clone, Debug)]
enum Mishap {
    Event(Event),
    /// A gang that waits is given up, or is another one.
    GivenUp(prop::sample::Index),
    Renewed(prop::sample::Index),
    /// A node is cordoned, or no longer.
    Cordoned(usize, bool),
    /// A Team has another quota.
    Quota(usize, i64),
    /// An admission could not be committed.
    Undone,
    /// Much time passes.
    Waits(i64),
}

fn mishap() -> impl Strategy<Value = Mishap> {
    prop_oneof![
        8 => event().prop_map(Mishap::Event),
        1 => any::<prop::sample::Index>().prop_map(Mishap::GivenUp),
        1 => any::<prop::sample::Index>().prop_map(Mishap::Renewed),
        1 => (0..3_usize, any::<bool>()).prop_map(|(node, is)| Mishap::Cordoned(node, is)),
        1 => (0..3_usize, 0..16_i64).prop_map(|(team, nominal)| Mishap::Quota(team, nominal)),
        1 => Just(Mishap::Undone),
        1 => (1..700_i64).prop_map(Mishap::Waits),
    ]
}

fn happens(world: &mut World, count: &mut i64, mishap: &Mishap) {
    let waiting = |world: &World| -> Vec<GangUid> {
        let gangs = world.gangs.keys();
        gangs
            .filter(|uid| world.state.waiting(uid).is_some())
            .cloned()
            .collect()
    };
    match mishap {
        Mishap::Event(Event::Comes {
            team,
            priority,
            pods,
            gpus,
        }) => {
            *count += 1;
            let gang = gang(&format!("g{count}"), &format!("t{team}"), *pods, *gpus);
            world.submit([with_priority(*priority, at(*count, gang))]);
        }
        Mishap::Event(Event::Ends(index)) => {
            let running = world.running();
            if !running.is_empty() {
                world.released(&index.get(&running).clone());
            }
        }
        Mishap::Event(Event::VictimsEnd | Event::Decide) => {}
        Mishap::GivenUp(index) => {
            let waiting = waiting(world);
            if !waiting.is_empty() {
                world
                    .state
                    .apply(Update::NotWaiting(index.get(&waiting).clone()));
            }
        }
        Mishap::Renewed(index) => {
            let waiting = waiting(world);
            if !waiting.is_empty() {
                let mut gang = world.gangs[index.get(&waiting)].clone();
                gang.priority += 1;
                world.submit([gang]);
            }
        }
        Mishap::Cordoned(at, is) => {
            let mut node = node(&format!("n{at}"), "s/l", 8);
            node.block = is.then_some(muster_engine::NodeBlock::Cordoned);
            world.state.apply(Update::Node(node));
        }
        Mishap::Quota(at, nominal) => {
            let team = preempting(&format!("t{at}"), Some("all"), *nominal);
            world.state.apply(Update::Team(team));
        }
        Mishap::Undone => {
            world.now += 1;
            let budget = muster_engine::Budget::UNLIMITED;
            let decisions = world.state.decide(Timestamp(world.now), &budget);
            for admission in decisions.admissions {
                world.state.undo(&admission.gang);
            }
        }
        Mishap::Waits(seconds) => world.now += seconds,
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// S6: whatever happened, once nobody runs and nobody waits nothing is charged and nothing is kept.
    #[test]
    fn nothing_stays_kept_when_everybody_is_gone(
        mishaps in prop::collection::vec(mishap(), 1..60),
    ) {
        let mut world = three_teams();
        let mut count = 0;
        for mishap in &mishaps {
            happens(&mut world, &mut count, mishap);
            let decisions = world.decide();
            for preemption in &decisions.preemptions {
                prop_assert!(world.state.waiting(&preemption.gang).is_some());
            }
            // What was kept up change by change is what comes of all that is known.
            let mut anew = world.state.clone();
            anew.apply(Update::Team(team("stranger", None, limit(1))));
            for at in 0..3 {
                let name = format!("t{at}").as_str().into();
                prop_assert_eq!(world.state.usage(&name), anew.usage(&name));
            }
        }
        for gang in world.running() {
            world.released(&gang);
        }
        let gangs: Vec<GangUid> = world.gangs.keys().cloned().collect();
        for gang in gangs {
            world.state.apply(Update::NotWaiting(gang));
        }
        for at in 0..3 {
            world.state.apply(Update::Node(node(&format!("n{at}"), "s/l", 8)));
            world.state.apply(Update::Team(preempting(&format!("t{at}"), Some("all"), 8)));
        }
        let decisions = world.decide();
        prop_assert_eq!((&decisions.preemptions, decisions.look_again_at), (&vec![], None));
        world.submit([gang("everything", "t1", 3, 8)]);
        prop_assert_eq!(admitted(&world.decide()), ["everything"]);
    }
}

#[test]
fn two_teams_preempt_at_once_though_both_are_charged_beside_their_victims() {
    let teams = vec![
        preempting("a", Some("all"), 4),
        preempting("b", Some("all"), 4),
    ];
    let mut world = World::new(2, 4, teams);
    world.submit([gang("a0", "a", 1, 4), gang("b0", "b", 1, 4)]);
    world.decide();
    world.submit([
        with_priority(5, gang("a1", "a", 1, 4)),
        with_priority(5, gang("b1", "b", 1, 4)),
    ]);
    assert_eq!(
        told(&world.decide().preemptions),
        ["a1: a0 InTeam", "b1: b0 InTeam"]
    );
    world.released("b0");
    assert_eq!(admitted(&world.decide()), ["b1"]);
    world.released("a0");
    assert_eq!(admitted(&world.decide()), ["a1"]);
}

/// A gang that runs on two nodes gives way to one that needs one of them; another one has the third node.
fn one_of_two_nodes_is_freed_for_nobody() -> World {
    let mut world = World::new(3, 8, vec![preempting("a", None, 24)]);
    world.submit([
        gang("large", "a", 2, 8),
        with_priority(1, gang("small", "a", 1, 8)),
    ]);
    world.decide();
    world.submit([with_priority(5, gang("first", "a", 1, 8))]);
    assert_eq!(told(&world.decide().preemptions), ["first: large InTeam"]);
    world
}

#[test]
fn what_others_freed_is_no_reason_to_preempt_more() {
    let mut world = one_of_two_nodes_is_freed_for_nobody();
    world.submit([with_priority(5, gang("second", "a", 1, 8))]);
    assert_eq!(world.decide().preemptions, []);
    world.released("large");
    assert_eq!(admitted(&world.decide()), ["first", "second"]);
}

#[test]
fn who_needs_what_the_victims_of_others_hold_waits_for_them_and_keeps_its_own() {
    let mut world = one_of_two_nodes_is_freed_for_nobody();
    world.submit([with_priority(5, gang("second", "a", 2, 8))]);
    assert_eq!(told(&world.decide().preemptions), ["second: small InTeam"]);
    world.released("small");
    world.submit([with_priority(9, gang("greedy", "a", 1, 8))]);
    assert!(world.decide().admissions.is_empty(), "it is kept");
    world.released("large");
    assert_eq!(admitted(&world.decide()), ["first", "second"]);
}

#[test]
fn what_is_kept_stays_kept_when_limits_change() {
    let teams = vec![
        preempting("a", Some("all"), 4),
        team("b", Some("all"), limit(4)),
    ];
    let mut world = World::new(2, 8, teams);
    let gangs = (0..4).map(|at| self::at(at, gang(&format!("b{at}"), "b", 1, 2)));
    world.submit(gangs);
    world.decide();
    world.submit([gang("a0", "a", 1, 4)]);
    assert_eq!(
        told(&world.decide().preemptions),
        ["a0: b0 Reclaimed, b1 Reclaimed"]
    );
    world.state.apply(Update::Team(team("c", None, limit(1))));
    world.submit([with_priority(9, gang("b4", "b", 1, 2))]);
    world.released("b0");
    assert!(world.decide().admissions.is_empty(), "half is kept");
    world.released("b1");
    assert_eq!(admitted(&world.decide()), ["a0"]);
}

/// A Team of its own borrows all that is there, and another one takes back what is its own: that is under way.
fn a_borrower_gives_way_to_one_of_two_lenders() -> World {
    let teams = vec![
        preempting("borrower", Some("all"), 4),
        preempting("first", Some("all"), 4),
        preempting("second", Some("all"), 4),
    ];
    let mut world = World::new(3, 4, teams);
    let gangs = (0..3).map(|number| at(number, gang(&format!("b{number}"), "borrower", 1, 4)));
    world.submit(gangs);
    assert_eq!(world.decide().admissions.len(), 3);
    world.submit([gang("f", "first", 1, 4)]);
    assert_eq!(told(&world.decide().preemptions), ["f: b0 Reclaimed"]);
    world
}

/// A gang of two pods takes back what two of three gangs borrow; that is under way. Another Team has quota, too.
fn two_of_three_borrowers_give_way() -> World {
    let teams = vec![
        preempting("borrower", Some("all"), 0),
        preempting("first", Some("all"), 8),
        preempting("second", Some("all"), 4),
    ];
    let mut world = World::new(3, 4, teams);
    let gangs = (0..3).map(|number| at(number, gang(&format!("b{number}"), "borrower", 1, 4)));
    world.submit(gangs);
    assert_eq!(world.decide().admissions.len(), 3);
    world.submit([gang("f", "first", 2, 4)]);
    let expected = ["f: b0 Reclaimed, b1 Reclaimed"];
    assert_eq!(told(&world.decide().preemptions), expected);
    world
}

#[test]
fn while_victims_go_others_start_who_take_nothing_of_what_is_freed() {
    let mut world = two_of_three_borrowers_give_way();
    // One that was not asked to ends by itself: what it held is free now, and is not what was freed for anybody.
    world.released("b2");
    world.submit([gang("s", "second", 1, 4)]);
    assert_eq!(admitted(&world.decide()), ["s"]);
    world.submit([with_priority(9, gang("more", "borrower", 1, 4))]);
    assert_eq!(admitted(&world.decide()), [""; 0]);
    world.released("b0");
    world.released("b1");
    assert_eq!(admitted(&world.decide()), ["f"]);
}

#[test]
fn two_lenders_never_count_on_the_same_victim() {
    let mut world = a_borrower_gives_way_to_one_of_two_lenders();
    world.submit([gang("s", "second", 1, 4)]);
    assert_eq!(told(&world.decide().preemptions), ["s: b1 Reclaimed"]);
    world.released("b1");
    assert_eq!(admitted(&world.decide()), ["s"]);
    world.released("b0");
    assert_eq!(admitted(&world.decide()), ["f"]);
}

/// A gang of two pods for which two gangs give way, of which one is gone already; another Team has quota, too.
fn half_of_what_a_gang_needs_is_freed() -> World {
    let mut world = two_of_three_borrowers_give_way();
    world.released("b0");
    assert_eq!(admitted(&world.decide()), [""; 0]);
    world
}

/// What is kept for a gang that does not start is kept no longer, and nobody gives way to it any more.
#[test]
fn what_is_kept_for_a_gang_of_a_team_that_is_stopped_moved_or_gone_is_free_again() {
    let stopped = Team {
        stop: muster_engine::Stop::Hold,
        generation: 2,
        ..preempting("first", Some("all"), 8)
    };
    let moved = Team {
        generation: 2,
        ..preempting("first", Some("elsewhere"), 0)
    };
    let starts = (vec!["s"], vec![]);
    // Its quota went with it.
    let preempts = (vec![], vec!["s: b1 Reclaimed, b2 Reclaimed"]);
    for (what, update, expected) in [
        ("stopped", Update::Team(stopped), starts),
        ("moved", Update::Team(moved), preempts.clone()),
        ("gone", Update::TeamGone("first".into()), preempts),
    ] {
        let mut world = half_of_what_a_gang_needs_is_freed();
        world.state.apply(update);
        world.submit([gang("s", "second", 1, 4)]);
        let decisions = world.decide();
        let (admissions, preemptions) = (admitted(&decisions), told(&decisions.preemptions));
        let [admissions, preemptions]: [Vec<&str>; 2] =
            [&admissions, &preemptions].map(|names| names.iter().map(String::as_str).collect());
        assert_eq!((admissions, preemptions), expected, "{what}");
    }
}

#[test]
fn nothing_is_kept_for_a_gang_that_was_admitted_by_somebody_else() {
    let mut world = half_of_what_a_gang_needs_is_freed();
    let mut hold = world.holds[&GangUid::from("b2")][0].clone();
    world.released("b2");
    (hold.gang, hold.team) = ("f".into(), "first".into());
    hold.pod = world.gangs[&GangUid::from("f")].pods[0].uid.clone();
    world.state.apply(Update::Hold(hold));
    // Beside what it holds, nothing is charged for it, and no node is kept.
    world.submit([gang("s", "second", 1, 4)]);
    assert_eq!(admitted(&world.decide()), ["s"]);
}

#[test]
fn what_was_freed_for_a_gang_is_kept_for_it_when_its_admission_cannot_be_committed() {
    let mut world = a_borrower_gives_way_to_one_of_two_lenders();
    world.released("b0");
    let budget = muster_engine::Budget::UNLIMITED;
    let decisions = world.state.decide(Timestamp(world.now + 1), &budget);
    assert_eq!(admitted(&decisions), ["f"]);
    world.state.undo(&"f".into());
    // By its place in line this one would go first.
    world.submit([with_priority(9, at(-1, gang("s", "second", 1, 4)))]);
    let decisions = world.decide();
    assert_eq!(admitted(&decisions), ["f"]);
    assert_eq!(told(&decisions.preemptions), ["s: b1 Reclaimed"]);
}

#[test]
fn a_victim_that_begins_to_end_late_is_not_counted_on_again() {
    let mut world = World::new(1, 8, vec![preempting("a", None, 8)]);
    world.submit([
        gang("stuck", "a", 1, 4),
        with_priority(5, gang("other", "a", 1, 4)),
    ]);
    world.decide();
    world.submit([with_priority(10, gang("high", "a", 1, 4))]);
    assert_eq!(told(&world.decide().preemptions), ["high: stuck InTeam"]);
    let decided_at = world.now;
    with_notice(&mut world, 0, Some(decided_at + 30));
    world.now = decided_at + MOST_SECONDS - 1;
    assert_eq!(told(&world.decide().preemptions), ["high: other InTeam"]);
}

#[test]
fn who_is_released_and_has_no_place_waits_on_only_while_others_make_one() {
    let mut world = a_borrower_gives_way_to_one_of_two_lenders();
    // Elsewhere somebody gives way, too.
    world.state.apply(Update::Node(node("n3", "s/l", 4)));
    world
        .state
        .apply(Update::Team(preempting("alone", None, 4)));
    world.submit([gang("low", "alone", 1, 4)]);
    assert_eq!(admitted(&world.decide()), ["low"]);
    world.submit([with_priority(5, gang("high", "alone", 1, 4))]);
    assert_eq!(told(&world.decide().preemptions), ["high: low InTeam"]);
    world.released("b0");
    for at in 0..3 {
        let mut node = node(&format!("n{at}"), "s/l", 4);
        node.block = Some(muster_engine::NodeBlock::Cordoned);
        world.state.apply(Update::Node(node));
    }
    assert_eq!(admitted(&world.decide()), [""; 0]);
    let why = why(&world.state, "f");
    assert!(
        !matches!(why, Why::Preemption { .. }),
        "nobody makes a place for it: {why:?}"
    );
    world.state.apply(Update::Node(node("n1", "s/l", 4)));
    world.released("b1");
    assert_eq!(admitted(&world.decide()), ["f"]);
}

/// A gang of four devices for which one gave way whose devices are allocated still, and one of one device that would fit
/// beside it: the quota is for four.
fn what_was_freed_is_allocated_still() -> World {
    let mut world = World::new(1, 4, vec![preempting("a", None, 4)]);
    world.state.apply(Update::Node(node("n1", "s/l", 1)));
    world.submit([gang("low", "a", 1, 4)]);
    assert_eq!(admitted(&world.decide()), ["low"]);
    world.submit([with_priority(5, gang("high", "a", 1, 4))]);
    assert_eq!(told(&world.decide().preemptions), ["high: low InTeam"]);
    allocate_all_of_n0(&mut world, Some("low-0"));
    world.released("low");
    world.submit([gang("small", "a", 1, 1)]);
    world
}

fn allocate_all_of_n0(world: &mut World, claim: Option<&str>) {
    let mut node = node("n0", "s/l", 4);
    for device in &mut node.devices {
        device.allocated_to = claim.map(Into::into);
    }
    world.state.apply(Update::Node(node));
}

#[test]
fn what_was_freed_stays_kept_while_the_devices_of_those_who_gave_way_are_allocated_still() {
    let mut world = what_was_freed_is_allocated_still();
    for _ in 0..3 {
        assert_eq!(admitted(&world.decide()), [""; 0], "nobody takes its quota");
    }
    allocate_all_of_n0(&mut world, None);
    assert_eq!(admitted(&world.decide()), ["high"]);
}

/// Their driver says in one place that it released them, and in another one that they can be allocated: which of both is seen first is not
/// certain, nor whether the second is seen before their claims are deallocated.
#[test]
fn what_was_freed_stays_kept_while_a_driver_taints_it_still() {
    for allocated in [Some("low-0"), None] {
        // Whether nothing is wrong with the devices, but that they are held; who is admitted.
        for (healthy, expected) in [(true, &[][..]), (false, &["small"])] {
            let case = format!("allocated to {allocated:?}, healthy: {healthy}");
            let mut world = what_was_freed_is_allocated_still();
            let mut tainted = node("n0", "s/l", 4);
            for device in &mut tainted.devices {
                device.allocated_to = allocated.map(Into::into);
                (device.usable, device.healthy) = (false, healthy);
            }
            world.state.apply(Update::Node(tainted));
            assert_eq!(admitted(&world.decide()), expected, "{case}");
            allocate_all_of_n0(&mut world, None);
            let afterwards: &[&str] = if healthy { &["high"] } else { &[] };
            assert_eq!(admitted(&world.decide()), afterwards, "{case}");
        }
    }
}

/// It is waited for as long as claims that are allocated still, and not for longer.
#[test]
fn devices_that_a_driver_taints_for_ever_are_waited_for_so_long() {
    let mut world = what_was_freed_is_allocated_still();
    let mut tainted = node("n0", "s/l", 4);
    for device in &mut tainted.devices {
        device.usable = false;
    }
    world.state.apply(Update::Node(tainted));
    assert_eq!(admitted(&world.decide()), [""; 0]);
    let kept = world.state.kept_for(&"high".into()).map(|kept| kept.until);
    world.now = kept.expect("it is kept").0 - 2;
    assert_eq!(admitted(&world.decide()), [""; 0]);
    assert_eq!(admitted(&world.decide()), ["small"]);
}

#[test]
fn devices_that_nobody_ever_gives_back_are_waited_for_so_long() {
    let mut world = what_was_freed_is_allocated_still();
    assert_eq!(admitted(&world.decide()), [""; 0]);
    let kept = world.state.kept_for(&"high".into()).map(|kept| kept.until);
    world.now = kept.expect("it is kept").0 - 2;
    assert_eq!(admitted(&world.decide()), [""; 0]);
    assert_eq!(admitted(&world.decide()), ["small"]);
}

/// A gang of one pod that names a claim for all devices of `n0`, and nothing else.
fn naming(uid: &str, named: &str, is_allocated: bool) -> Gang {
    let mut named = claim(named, 4);
    if is_allocated {
        let devices = (0..4).map(|index| device(index).name);
        named.allocated = Some((node_name("n0"), devices.collect()));
    }
    gang_of(uid, "a", vec![pod(&format!("{uid}-again"), vec![named])])
}

/// Who shares a claim needs nothing but that claim. As long as it is allocated still, whoever names it would take it back, and give way
/// again, time after time.
#[test]
fn s15_what_was_freed_stays_kept_though_somebody_names_the_claim_that_is_allocated_still() {
    // The next attempt of the victim, and another gang.
    for uid in ["low", "other"] {
        let mut world = what_was_freed_is_allocated_still();
        world.submit([naming(uid, "low-0", true)]);
        for _ in 0..3 {
            assert_eq!(admitted(&world.decide()), [""; 0], "{uid} waits");
        }
        allocate_all_of_n0(&mut world, None);
        world.submit([naming(uid, "low-0", false)]);
        assert_eq!(admitted(&world.decide()), ["high"], "{uid} waits");
    }
}

#[test]
fn a_claim_that_was_made_in_advance_and_that_no_victim_held_is_not_waited_for() {
    let mut world = what_was_freed_is_allocated_still();
    allocate_all_of_n0(&mut world, Some("made"));
    world.submit([naming("other", "made", true)]);
    assert!(world.state.kept_for(&"high".into()).is_some());
    world.decide();
    assert!(world.state.kept_for(&"high".into()).is_none());
}

/// A gang as it was told as running, with another priority.
fn told_as_running(world: &mut World, uid: &str, priority: i32) {
    let running = as_running(world, uid, priority);
    world.state.apply(Update::Running(running));
}

/// Its Gang carries a notice.
fn told_to_go(world: &mut World, uid: &str) {
    let running = Running {
        ending_since: Some(Timestamp(world.now)),
        ..as_running(world, uid, world.gangs[&GangUid::from(uid)].priority)
    };
    world.state.apply(Update::Running(running));
}

fn as_running(world: &World, uid: &str, priority: i32) -> Running {
    let gang = &world.gangs[&GangUid::from(uid)];
    Running {
        priority,
        ..running_since(Timestamp(1), gang)
    }
}

#[test]
fn a_gang_is_asked_again_when_less_comes_free_than_it_lacks_and_others_can_give_up_the_rest() {
    // By quota: two of its own Team are too important, one is not.
    let mut world = World::new(1, 16, vec![preempting("a", None, 8)]);
    world.submit([
        gang("low", "a", 1, 3),
        with_priority(9, gang("high", "a", 1, 2)),
        with_priority(9, gang("higher", "a", 1, 3)),
    ]);
    assert_eq!(world.decide().admissions.len(), 3);
    world.submit([with_priority(5, gang("middle", "a", 1, 6))]);
    assert_eq!(world.decide().preemptions, []);
    world.released("high");
    assert_eq!(world.decide().preemptions, [], "one lacks still");
    world.released("higher");
    assert_eq!(told(&world.decide().preemptions), ["middle: low InTeam"]);

    // By place: both are on its node.
    let mut world = World::new(1, 8, vec![preempting("a", None, 100)]);
    world.submit([
        gang("low", "a", 1, 4),
        with_priority(9, gang("high", "a", 1, 4)),
    ]);
    assert_eq!(world.decide().admissions.len(), 2);
    world.submit([with_priority(5, gang("middle", "a", 1, 8))]);
    assert_eq!(world.decide().preemptions, []);
    world.released("high");
    assert_eq!(told(&world.decide().preemptions), ["middle: low InTeam"]);
}

#[test]
fn a_gang_is_asked_again_when_somebody_becomes_one_who_can_be_asked() {
    let refused = || {
        let mut world = World::new(1, 8, vec![preempting("a", None, 8)]);
        world.submit([with_priority(9, gang("runs", "a", 1, 8))]);
        world.decide();
        world
    };
    let waits = |world: &mut World| {
        world.submit([with_priority(5, gang("waits", "a", 1, 8))]);
        assert_eq!(world.decide().preemptions, []);
    };
    // Its tier changes.
    let mut world = refused();
    waits(&mut world);
    told_as_running(&mut world, "runs", 0);
    assert_eq!(told(&world.decide().preemptions), ["waits: runs InTeam"]);

    // It is told as running after what it holds.
    let mut world = refused();
    world.state.apply(Update::NotRunning("runs".into()));
    waits(&mut world);
    told_as_running(&mut world, "runs", 0);
    assert_eq!(told(&world.decide().preemptions), ["waits: runs InTeam"]);

    // What it holds is told after it was told as running: that of somebody else was in the way first.
    let mut world = refused();
    waits(&mut world);
    let hold = world.holds[&GangUid::from("runs")][0].clone();
    let found = Hold {
        gang: "found".into(),
        team: "a".into(),
        ..hold
    };
    told_as_running(&mut world, "runs", 0);
    world.state.apply(Update::Running(Running {
        protected_until: Some(Timestamp(world.now + 100)),
        ..running_since(Timestamp(1), &gang("found", "a", 1, 4))
    }));
    world.state.apply(Update::Hold(found));
    let decisions = world.decide();
    assert_eq!(decisions.preemptions, []);
    assert_eq!(decisions.look_again_at, Some(Timestamp(world.now + 99)));
    world.now += 99;
    assert_eq!(told(&world.decide().preemptions), ["waits: found InTeam"]);
}

/// A Team that borrows nothing cannot be asked for anything; from the first that it borrows, for all that it holds.
#[test]
fn a_gang_is_asked_again_when_another_team_begins_to_borrow() {
    let mut lender = preempting("lender", Some("all"), 8);
    lender.preemption.reclaim_within_cohort = ReclaimWithinCohort::LowerPriority;
    let teams = vec![
        lender,
        team("borrower", Some("all"), limit(8)),
        team("important", Some("all"), limit(0)),
    ];
    let mut world = World::new(4, 16, teams);
    world.submit([
        with_priority(-5, gang("large", "borrower", 1, 8)),
        with_priority(9, gang("i7", "important", 1, 7)),
        with_priority(9, gang("i1", "important", 1, 1)),
    ]);
    assert_eq!(world.decide().admissions.len(), 3);
    world.submit([with_priority(5, gang("waits", "lender", 1, 8))]);
    assert_eq!(world.decide().preemptions, []);
    world.released("i1");
    assert_eq!(world.decide().preemptions, []);
    world.submit([gang("small", "borrower", 1, 1)]);
    let decisions = world.decide();
    assert_eq!(admitted(&decisions), ["small"]);
    assert_eq!(told(&decisions.preemptions), ["waits: large Reclaimed"]);
}

/// A victim is released when it is told so, not when what it holds is told as something else.
#[test]
fn a_victim_of_one_pod_whose_hold_shrinks_is_waited_for() {
    let mut world = half_of_what_a_gang_needs_is_freed();
    let mut hold = world.holds[&GangUid::from("b1")][0].clone();
    hold.claims[0].gpus.0 -= 1;
    world.state.apply(Update::Hold(hold.clone()));
    world.submit([with_priority(9, gang("s", "second", 1, 4))]);
    let decisions = world.decide();
    assert_eq!(told(&decisions.preemptions), ["s: b2 Reclaimed"]);
    assert_eq!(admitted(&decisions), [""; 0], "b0's room is kept");
    world.released("b1");
    assert_eq!(admitted(&world.decide()), ["f"]);
}

/// What it held is still on its way then: what it comes back for would be taken for what gives way.
#[test]
fn a_victim_that_comes_back_waits_for_the_release_of_what_it_held() {
    let mut world = World::new(3, 4, vec![preempting("a", None, 8)]);
    let mut cordoned = node("n2", "s/l", 4);
    cordoned.block = Some(muster_engine::NodeBlock::Cordoned);
    world.state.apply(Update::Node(cordoned));
    world.submit([gang("g", "a", 1, 4), with_priority(9, gang("h", "a", 1, 4))]);
    assert_eq!(world.decide().admissions.len(), 2);
    world.submit([with_priority(5, gang("p", "a", 1, 4))]);
    assert_eq!(told(&world.decide().preemptions), ["p: g InTeam"]);
    let again = Gang {
        uid: "g".into(),
        attempt: 2,
        ..gang("g2", "a", 1, 4)
    };
    world.submit([again]);
    world.released("h");
    // The other one needs it no more.
    assert_eq!(admitted(&world.decide()), ["p"]);
    let why = why(&world.state, "g");
    assert!(matches!(why, Why::Release { pods: 1, .. }), "{why:?}");
    world.released("g");
    assert_eq!(admitted(&world.decide()), ["g"]);
}

#[test]
fn who_only_waits_for_the_victims_of_others_is_asked_again_when_these_are_spared() {
    let mut world = World::new(1, 8, vec![preempting("a", None, 9)]);
    world.state.apply(Update::Node(node("n1", "s/l", 4)));
    world.state.apply(Update::Node(node("n2", "s/l", 1)));
    // One that can be asked, so that it is no reason to ask again that nobody can.
    world.submit([gang("v", "a", 1, 8), gang("w", "a", 1, 1)]);
    assert_eq!(admitted(&world.decide()), ["v", "w"]);
    world.submit([with_priority(5, gang("p", "a", 1, 4))]);
    assert_eq!(told(&world.decide().preemptions), ["p: v InTeam"]);
    world.submit([with_priority(4, gang("g", "a", 1, 3))]);
    assert_eq!(world.decide().preemptions, []);
    let mut cordoned = node("n1", "s/l", 4);
    cordoned.block = Some(muster_engine::NodeBlock::Cordoned);
    world.state.apply(Update::Node(cordoned));
    world.state.apply(Update::NotWaiting("p".into()));
    assert_eq!(told(&world.decide().preemptions), ["g: v InTeam"]);
}

#[test]
fn a_gang_that_lacks_a_place_is_asked_again_when_it_has_a_right_to_have_one_made() {
    let teams = vec![
        preempting("a", Some("part"), 0),
        team("b", Some("part"), limit(0)),
        team("z", Some("all"), limit(16)),
        team("y", Some("all"), limit(0)),
    ];
    let mut world = World::new(1, 8, teams);
    world.state.apply(Update::Node(node("n1", "s/l", 1)));
    world.state.apply(Update::Cohort(cohort("all", None, 0)));
    world
        .state
        .apply(Update::Cohort(cohort("part", Some("all"), 8)));
    world.submit([gang("b", "b", 1, 1), gang("y", "y", 1, 8)]);
    assert_eq!(world.decide().admissions.len(), 2);
    world.submit([gang("a", "a", 1, 8)]);
    assert_eq!(world.decide().preemptions, []);
    world.released("b");
    assert_eq!(told(&world.decide().preemptions), ["a: y Reclaimed"]);
}

#[test]
fn a_victim_that_does_not_go_is_not_counted_on_again_when_it_is_told_as_before() {
    let mut world = World::new(1, 8, vec![preempting("a", None, 8)]);
    world.submit([
        gang("stuck", "a", 1, 4),
        with_priority(5, gang("other", "a", 1, 4)),
    ]);
    world.decide();
    world.submit([with_priority(10, gang("high", "a", 1, 4))]);
    assert_eq!(told(&world.decide().preemptions), ["high: stuck InTeam"]);
    world.now += MOST_SECONDS - 1;
    let mut at_its_end = world.state.clone();
    let budget = muster_engine::Budget::UNLIMITED;
    let decisions = at_its_end.decide(Timestamp(world.now + 1), &budget);
    assert_eq!(told(&decisions.preemptions), ["high: other InTeam"]);
    // As soon as its time is over it is told once more, and the other one is gone with its preemptor.
    world.state = at_its_end;
    world.state.apply(Update::NotWaiting("high".into()));
    told_as_running(&mut world, "stuck", 0);
    world.submit([with_priority(10, gang("next", "a", 1, 4))]);
    assert_eq!(told(&world.decide().preemptions), ["next: other InTeam"]);
}

#[test]
fn who_waits_for_nobody_any_more_is_not_asked_when_a_minimum_run_time_ends() {
    let mut world = World::new(1, 8, vec![preempting("a", None, 8)]);
    world.protected_seconds = 100;
    world.submit([gang("low", "a", 1, 8)]);
    world.decide();
    world.submit([with_priority(5, gang("high", "a", 1, 8))]);
    assert_eq!(world.decide().look_again_at, Some(Timestamp(101)));
    world.state.apply(Update::NotWaiting("high".into()));
    assert_eq!(world.decide().look_again_at, None);
}

#[test]
fn what_was_freed_stays_kept_while_somebody_else_holds_a_claim_that_is_named() {
    let mut world = half_of_what_a_gang_needs_is_freed();
    world.released("b1");
    let hold = world.holds[&GangUid::from("b2")][0].clone();
    let mut other = Hold {
        pod: "x-0".into(),
        gang: "x".into(),
        charged_to_node: true,
        ..hold
    };
    other.claims[0].uid = "f-0".into();
    other.claims[0].gpus.0 = 0;
    other.claims[0].request = None;
    world.state.apply(Update::Hold(other));
    world.submit([with_priority(9, gang("s", "second", 1, 4))]);
    let decisions = world.decide();
    assert_eq!(admitted(&decisions), [""; 0]);
    world.state.apply(Update::HoldGone("x-0".into()));
    assert_eq!(admitted(&world.decide()), ["f"]);
}

#[test]
fn who_holds_a_claim_with_somebody_else_frees_nothing_by_going() {
    let mut world = World::new(2, 8, vec![preempting("a", None, 8)]);
    world.submit([gang("v", "a", 1, 8)]);
    assert_eq!(admitted(&world.decide()), ["v"]);
    let hold = world.holds[&GangUid::from("v")][0].clone();
    let other = Hold {
        pod: "w-0".into(),
        gang: "w".into(),
        gang_name: "a/w".into(),
        ..hold
    };
    world.state.apply(Update::Hold(other));
    world.submit([with_priority(5, gang("p", "a", 1, 8))]);
    assert_eq!(world.decide().preemptions, []);
    world.state.apply(Update::HoldGone("w-0".into()));
    assert_eq!(told(&world.decide().preemptions), ["p: v InTeam"]);
}

#[test]
fn who_waits_is_not_asked_again_when_somebody_runs_whom_it_may_not_ask() {
    let mut world = World::new(1, 8, vec![preempting("a", None, 8)]);
    world.submit([with_priority(9, gang("high", "a", 1, 8))]);
    assert_eq!(admitted(&world.decide()), ["high"]);
    world.submit([with_priority(5, gang("low", "a", 1, 4))]);
    assert_eq!(world.decide().preemptions, []);
    // With the least priority that it may not ask, and with the highest that it may.
    for (priority, expected) in [(5, &[""; 0][..]), (4, &["low: high InTeam"])] {
        told_as_running(&mut world, "high", priority);
        let before = world.state.visited();
        assert_eq!(told(&world.decide().preemptions), expected);
        let is_asked = world.state.visited() > before;
        assert_eq!(is_asked, !expected.is_empty(), "priority {priority}");
    }
}

/// The same cluster as a new process sees it: who waits, what is held, who runs, and what was recorded of what is kept.
fn taken_over(world: &World, mut after: World) -> World {
    after.now = world.now;
    after.gangs = world.gangs.clone();
    after.holds = world.holds.clone();
    for (uid, gang) in &world.gangs {
        let holds = world.holds.get(uid);
        let Some(holds) = holds else {
            after.state.apply(Update::Waiting(gang.clone()));
            continue;
        };
        for hold in holds {
            after.state.apply(Update::Hold(hold.clone()));
        }
        told_as_running(&mut after, uid.as_str(), gang.priority);
    }
    let kept = world.gangs.keys().filter_map(|uid| {
        let kept = world.state.kept_for(uid)?;
        Some(Update::Reserved(Reserved {
            gang: uid.clone(),
            flavor: kept.flavor.clone(),
            victims: kept.victims.clone(),
            since: kept.since,
            until: kept.until,
        }))
    });
    for reserved in kept {
        after.state.apply(reserved.clone());
        after.state.apply(reserved);
    }
    after
}

/// Team a has its quota back from b; c goes first where it finds room.
fn mine_has_both_nodes_back(released: usize) -> (World, World) {
    let world = || {
        let teams = vec![
            preempting("a", Some("all"), 8),
            team("b", Some("all"), limit(0)),
            team("c", Some("all"), limit(4)),
        ];
        World::new(2, 4, teams)
    };
    let mut before = world();
    before.submit([gang("b0", "b", 1, 4), gang("b1", "b", 1, 4)]);
    assert_eq!(before.decide().admissions.len(), 2);
    before.submit([gang("mine", "a", 2, 4)]);
    let expected = ["mine: b0 Reclaimed, b1 Reclaimed"];
    assert_eq!(told(&before.decide().preemptions), expected);
    before.submit([with_priority(100, gang("third", "c", 1, 4))]);
    assert_eq!(admitted(&before.decide()), [""; 0]);
    for victim in ["b0", "b1"].into_iter().take(released) {
        before.released(victim);
    }
    (before, world())
}

#[test]
fn whoever_decides_next_keeps_what_was_freed_for_a_gang() {
    for released in 0..=2 {
        let (before, after) = mine_has_both_nodes_back(released);
        let since = before.state.kept_for(&"mine".into()).unwrap().since;
        let mut after = taken_over(&before, after);
        let first = after.decide();
        assert_eq!(
            first.preemptions,
            [],
            "{released} released: nobody new goes"
        );
        if released == 2 {
            assert_eq!(admitted(&first), ["mine"]);
            continue;
        }
        assert_eq!(admitted(&first), [""; 0], "{released} released");
        let kept = after.state.kept_for(&"mine".into()).unwrap();
        assert_eq!((kept.since, kept.victims.len()), (since, 2 - released));
        for victim in ["b0", "b1"].into_iter().skip(released) {
            after.released(victim);
        }
        assert_eq!(admitted(&after.decide()), ["mine"]);
    }
}

/// Its place is none any more: they would end in vain.
#[test]
fn nobody_gives_way_any_longer_for_a_place_with_a_node_that_is_closed_meanwhile() {
    for (closed, is_kept) in [("n0", false), ("n1", false), ("n7", true)] {
        let (mut world, _) = mine_has_both_nodes_back(0);
        let mut mine = gang("mine", "a", 2, 4);
        mine.topology.closed = [closed.into()].into();
        world.submit([mine]);
        let kept = world.state.kept_for(&"mine".into());
        assert_eq!(kept.is_some(), is_kept, "{closed}");
        let decisions = world.decide();
        let mut spared = vec![GangUid::from("b0"), GangUid::from("b1")];
        spared.retain(|_| !is_kept);
        assert_eq!(decisions.spared, spared, "{closed}");
        assert_eq!(
            (admitted(&decisions), told(&decisions.preemptions)),
            (vec![], vec![]),
            "{closed}"
        );
    }
}

#[test]
fn what_is_kept_for_a_gang_stays_where_nothing_changes_that_others_give_way_for() {
    let mut avoiding = gang("mine", "a", 2, 4);
    avoiding.topology.avoided = ["n7".into()].into();
    avoiding.queued_at = Timestamp(-5);
    avoiding.run_time.preemptable_after_seconds = Some(60);
    let mut borrowing = gang("mine", "a", 2, 4);
    borrowing.may_borrow = !borrowing.may_borrow;
    let mut closed = gang("mine", "a", 2, 4);
    closed.topology.closed = ["n7".into()].into();
    for (changed, is_kept) in [
        (avoiding, true),
        (closed, true),
        (borrowing, false),
        (gang("mine", "a", 1, 8), false),
        (with_priority(3, gang("mine", "a", 2, 4)), false),
    ] {
        let (mut world, _) = mine_has_both_nodes_back(0);
        let before = world.state.kept_for(&"mine".into()).unwrap().since;
        world.now += 100;
        world.submit([changed.clone()]);
        let since = world.state.kept_for(&"mine".into()).map(|kept| kept.since);
        assert_eq!(since, is_kept.then_some(before), "{changed:?}");
        if !is_kept {
            continue;
        }
        let decisions = world.decide();
        assert_eq!(
            (admitted(&decisions), told(&decisions.preemptions)),
            (vec![], vec![])
        );
        assert!(decisions.spared.is_empty());
        for victim in ["b0", "b1"] {
            assert!(world.state.gives_way_to(&victim.into()).is_some());
            world.released(victim);
        }
        assert_eq!(admitted(&world.decide()), ["mine"]);
    }
}

#[test]
fn what_was_recorded_is_kept_for_no_longer_than_it_was_meant_to_be() {
    let (before, after) = mine_has_both_nodes_back(1);
    let mut after = taken_over(&before, after);
    told_to_go(&mut after, "b1");
    after.now += MOST_SECONDS;
    let first = after.decide();
    assert_eq!(admitted(&first), ["third"]);
    assert_eq!(first.preemptions, [], "b1 was to go, and did not");

    // The clock of whoever recorded it was an hour ahead.
    let (mut before, after) = mine_has_both_nodes_back(1);
    let now = before.now;
    before.now += 3_600;
    let mut after = taken_over(&before, after);
    after.now = now - 3_600;
    after.decide();
    let kept = after.state.kept_for(&"mine".into()).unwrap();
    assert_eq!(kept.until, Timestamp(after.now + MOST_SECONDS));
}

/// A victim may be told its whole notice again.
#[test]
fn what_was_recorded_and_is_not_over_lasts_as_long_again_as_notices_do() {
    let (before, after) = mine_has_both_nodes_back(0);
    let mut after = taken_over(&before, after);
    after.now += 400;
    after.decide();
    let [known, kept] =
        [&before, &after].map(|world| world.state.kept_for(&"mine".into()).unwrap());
    assert_eq!(kept.since, known.since);
    assert_eq!(kept.until, Timestamp(after.now + MOST_SECONDS));
}

/// Whoever is admitted after the record was told was not chosen by it.
#[test]
fn who_is_admitted_anew_gives_way_to_nobody_by_what_was_recorded_of_its_attempt_before() {
    for is_anew in [true, false] {
        let (mut before, after) = mine_has_both_nodes_back(0);
        before.gangs.remove(&GangUid::from("third"));
        let mut after = taken_over(&before, after);
        // Whoever it was kept for does not wait yet: a pod of it is made again.
        after.state.apply(Update::NotWaiting("mine".into()));
        if is_anew {
            after.released("b0");
            after.submit([gang("b0", "b", 1, 4)]);
            assert_eq!(admitted(&after.decide()), ["b0"]);
        } else {
            assert_eq!(admitted(&after.decide()), [""; 0]);
        }
        // Nor may it ask for anything itself by now.
        after.state.apply(Update::Team(Team {
            preemption: PreemptionPolicy::NEVER,
            ..preempting("a", Some("all"), 8)
        }));
        after.submit([gang("mine", "a", 2, 4)]);
        after.decide();
        let gives_way = after.state.gives_way_to(&"b0".into());
        assert_eq!(gives_way.is_some(), !is_anew);
    }
}

/// Whoever decided it may be gone before it says so to the victims.
#[test]
fn who_was_recorded_as_a_victim_and_never_told_can_be_asked_once_the_record_is_over() {
    for is_told in [true, false] {
        let (mut before, after) = mine_has_both_nodes_back(0);
        before.gangs.remove(&GangUid::from("third"));
        let mut after = taken_over(&before, after);
        if is_told {
            told_to_go(&mut after, "b0");
            told_to_go(&mut after, "b1");
        }
        after.now += MOST_SECONDS;
        let asked = told(&after.decide().preemptions);
        if is_told {
            assert_eq!(asked, [""; 0], "they did not go");
        } else {
            assert_eq!(asked, ["mine: b0 Reclaimed, b1 Reclaimed"]);
        }
    }
}

#[test]
fn what_was_recorded_of_a_gang_that_has_no_room_any_more_is_kept_for_nobody() {
    let (before, after) = mine_has_both_nodes_back(1);
    let mut after = taken_over(&before, after);
    for team in [preempting("a", None, 4), team("b", Some("all"), limit(4))] {
        after.state.apply(Update::Team(team));
    }
    assert_eq!(admitted(&after.decide()), ["third"]);
    assert_eq!(after.state.kept_for(&"mine".into()), None);
    assert_eq!(after.state.gives_way_to(&"b1".into()), None);
}

#[test]
fn a_gang_that_finds_room_elsewhere_takes_it_and_its_victims_stay() {
    // By quota and by place: (nominal quota, nodes).
    for (nominal, nodes) in [(100, 2), (8, 3)] {
        let mut world = World::new(nodes, 4, vec![preempting("a", None, nominal)]);
        world.submit([
            gang("low", "a", 1, 4),
            with_priority(20, gang("other", "a", 1, 4)),
        ]);
        assert_eq!(world.decide().admissions.len(), 2);
        world.submit([with_priority(10, gang("high", "a", 1, 4))]);
        assert_eq!(told(&world.decide().preemptions), ["high: low InTeam"]);
        world.submit([at(9, gang("late", "a", 1, 4))]);
        assert_eq!(admitted(&world.decide()), [""; 0]);
        world.released("other");
        let decisions = world.decide();
        assert_eq!(admitted(&decisions), ["high"], "nominal {nominal}");
        assert_eq!(decisions.spared, [GangUid::from("low")]);
        assert_eq!(world.state.gives_way_to(&"low".into()), None);
        assert_eq!(decisions.preemptions, []);
    }
}

/// No hold comes free by it: only nodes can hold more.
#[test]
fn a_gang_starts_on_a_node_that_comes_while_its_victim_goes() {
    let mut world = World::new(1, 4, vec![preempting("a", None, 100)]);
    world.submit([gang("low", "a", 1, 4)]);
    world.decide();
    world.submit([with_priority(10, gang("high", "a", 1, 4))]);
    assert_eq!(told(&world.decide().preemptions), ["high: low InTeam"]);
    assert_eq!(admitted(&world.decide()), [""; 0]);
    world.state.apply(Update::Node(node("n1", "s/l", 4)));
    let decisions = world.decide();
    assert_eq!(admitted(&decisions), ["high"]);
    assert_eq!(decisions.spared, [GangUid::from("low")]);
}

#[test]
fn room_that_a_gang_has_only_with_its_victims_gone_is_none_elsewhere() {
    // The place is there, and the quota only once the victim is gone.
    let mut world = World::new(2, 4, vec![preempting("a", None, 4)]);
    world.submit([gang("low", "a", 1, 4)]);
    world.decide();
    world.submit([with_priority(10, gang("high", "a", 1, 4))]);
    assert_eq!(told(&world.decide().preemptions), ["high: low InTeam"]);
    world.state.apply(Update::Node(node("n2", "s/l", 4)));
    assert_eq!(admitted(&world.decide()), [""; 0]);
    world.released("low");
    assert_eq!(admitted(&world.decide()), ["high"]);
}

#[test]
fn nobody_is_told_to_go_where_those_that_end_by_themselves_free_enough() {
    let mut world = World::new(2, 4, vec![preempting("a", None, 8)]);
    world.protected_seconds = 1_000;
    world.submit([gang("ends", "a", 1, 4), at(1, gang("stays", "a", 1, 4))]);
    assert_eq!(world.decide().admissions.len(), 2);
    told_as_running(&mut world, "stays", 0);
    world.state.apply(Update::Ending("ends".into()));
    world.submit([with_priority(10, gang("high", "a", 1, 4))]);
    world.decide();
    assert_eq!(
        world.state.gives_way_to(&"ends".into()),
        None,
        "it goes anyway"
    );
    assert_eq!(world.state.gives_way_to(&"stays".into()), None);
    assert_eq!(
        world.state.kept_for(&"high".into()),
        None,
        "nothing to record"
    );
    let why = why(&world.state, "high");
    let Why::Release {
        pods: 1, blocker, ..
    } = &why
    else {
        panic!("{why:?}");
    };
    assert_eq!(blocker.gangs, ["a/ends"]);
    // It is not told as running any more, and another one that comes does not have its room.
    world.submit([with_priority(5, gang("late", "a", 1, 4))]);
    assert!(
        told(&world.decide().preemptions)
            .iter()
            .all(|it| !it.contains("ends"))
    );
    for hold in world.holds.remove(&GangUid::from("ends")).unwrap() {
        world.state.apply(Update::HoldGone(hold.pod));
    }
    assert_eq!(admitted(&world.decide()), ["high"]);
}

#[test]
fn who_ends_by_itself_and_does_not_go_is_counted_on_for_so_long() {
    let mut world = World::new(2, 4, vec![preempting("a", None, 8)]);
    world.submit([gang("ends", "a", 1, 4), at(1, gang("stays", "a", 1, 4))]);
    world.decide();
    world.state.apply(Update::Ending("ends".into()));
    world.submit([with_priority(10, gang("high", "a", 1, 4))]);
    world.decide();
    assert_eq!(world.state.gives_way_to(&"stays".into()), None);
    world.now += MOST_SECONDS;
    assert_eq!(told(&world.decide().preemptions), ["high: stays InTeam"]);
}

/// Nodes of so many GPUs, each a leaf of its own. Team `a` runs nothing, and `b` has borrowed what is `a`'s.
fn lent(gpus: &[usize], nominal: [i64; 2], sharing: Sharing<'static>) -> World {
    let teams = vec![
        preempting("a", Some("all"), nominal[0]),
        team("b", Some("all"), limit(nominal[1])),
    ];
    let mut world = World::new(0, 0, teams);
    world.state.apply(Update::Cohort(Cohort {
        sharing,
        ..cohort("all", None, 0)
    }));
    for (at, gpus) in gpus.iter().enumerate() {
        let node = node(&format!("n{at}"), &format!("s/l{at}"), *gpus);
        world.state.apply(Update::Node(node));
    }
    world
}

/// The last comer goes first, and gives back all that is borrowed: one GPU on each of two nodes.
#[test]
fn where_those_that_go_first_free_no_place_the_cheapest_domain_decides() {
    for sharing in [Sharing::ByPriority, Sharing::FAIR] {
        for mine in [
            gang("mine", "a", 1, 2),
            requiring("node", gang("mine", "a", 2, 1)),
            requiring("leaf", gang("mine", "a", 2, 1)),
        ] {
            let mut world = lent(&[1, 1, 2], [2, 2], sharing);
            for gang in [gang("compact", "b", 1, 2), gang("spread", "b", 2, 1)] {
                world.submit([gang]);
                assert_eq!(world.decide().admissions.len(), 1);
            }
            world.submit([at(9, mine)]);
            let told = told(&world.decide().preemptions);
            assert_eq!(told, ["mine: compact Reclaimed"]);
            world.released("compact");
            assert_eq!(admitted(&world.decide()), ["mine"]);
        }
    }
}

#[test]
fn a_gang_that_needs_several_nodes_has_the_cheapest_of_them() {
    for sharing in [Sharing::ByPriority, Sharing::FAIR] {
        let mut world = lent(&[3, 3, 2, 2, 2], [6, 6], sharing);
        let compact = |name| gang(name, "b", 1, 3);
        let spread = |name| gang(name, "b", 3, 1);
        for gangs in [[compact("one"), compact("two")], [spread("x"), spread("y")]] {
            world.submit(gangs);
            assert_eq!(world.decide().admissions.len(), 2);
        }
        world.submit([at(9, gang("mine", "a", 2, 3))]);
        let told = told(&world.decide().preemptions);
        assert_eq!(told, ["mine: one Reclaimed, two Reclaimed"]);
        world.released("one");
        world.released("two");
        assert_eq!(admitted(&world.decide()), ["mine"]);
    }
}

#[test]
fn who_ends_by_itself_is_counted_on_wherever_it_runs() {
    for sharing in [Sharing::ByPriority, Sharing::FAIR] {
        let mut world = lent(&[1, 1, 3, 1], [3, 2], sharing);
        world
            .state
            .apply(Update::Hold(hold("p", "elsewhere", "n2", &[2])));
        for gang in [
            gang("compact", "b", 1, 2),
            gang("ends", "b", 1, 1),
            gang("spread", "b", 2, 1),
        ] {
            world.submit([gang]);
            assert_eq!(world.decide().admissions.len(), 1);
        }
        world.state.apply(Update::HoldGone(pod_uid("p")));
        world.state.apply(Update::Ending("ends".into()));
        world.submit([at(9, gang("mine", "a", 1, 3))]);
        let told = told(&world.decide().preemptions);
        assert_eq!(told, ["mine: ends Reclaimed, compact Reclaimed"]);
        world.released("ends");
        world.released("compact");
        assert_eq!(admitted(&world.decide()), ["mine"]);
    }
}

/// A defect once: who finds room without its victims was asked before another one's place was given up, and not again.
#[test]
fn who_finds_room_elsewhere_finds_it_as_soon_as_another_ones_place_is_given_up() {
    let mut world = three_teams();
    happens(&mut world, &mut 0, &Mishap::Quota(0, 5));
    happens(&mut world, &mut 0, &Mishap::Quota(1, 5));
    world.submit([at(1, gang("whole", "t2", 2, 7))]);
    world.submit([at(2, gang("small", "t2", 1, 3))]);
    assert_eq!(admitted(&world.decide()), ["whole", "small"]);
    world.submit([at(3, gang("first", "t0", 2, 1))]);
    assert_eq!(
        told(&world.decide().preemptions),
        ["first: small Reclaimed"]
    );
    happens(&mut world, &mut 0, &Mishap::Cordoned(0, true));
    world.submit([at(4, gang("second", "t1", 1, 5))]);
    assert_eq!(
        told(&world.decide().preemptions),
        ["second: whole Reclaimed"]
    );
    // What is kept for the second is all that would be room for the first, until the second is on it.
    world.released("whole");
    assert_eq!(admitted(&world.decide()), ["second", "first"]);
}

/// A defect once: nobody was told that nothing is kept any more for a gang that was admitted and waits no longer.
#[test]
fn whose_admission_is_taken_back_is_told_that_nothing_is_kept_for_it_any_more() {
    let mut world = three_teams();
    world.submit([at(1, gang("lent", "t1", 3, 8))]);
    world.decide();
    world.submit([at(2, gang("own", "t0", 1, 8))]);
    assert_eq!(told(&world.decide().preemptions), ["own: lent Reclaimed"]);
    world.released("lent");
    world.now += 1;
    let budget = muster_engine::Budget::UNLIMITED;
    let decided = world.state.decide(Timestamp(world.now), &budget);
    assert_eq!(admitted(&decided), ["own"]);
    world.state.take_changed_preemptions();
    world.state.apply(Update::NotWaiting("own".into()));
    world.state.undo(&"own".into());
    assert!(world.state.kept_for(&"own".into()).is_none());
    let changed = world.state.take_changed_preemptions();
    assert!(changed.contains(&GangUid::from("own")), "{changed:?}");
}

/// A small gang waits for one victim, a larger one for another and counts on both being gone. The small one starts in what
/// the other victim leaves, so the first stays: the larger one has to ask it itself.
#[test]
fn who_counted_on_the_victim_of_another_asks_it_itself_once_the_other_needs_it_no_more() {
    let mut world = three_teams();
    world.submit([at(1, gang("low", "t1", 3, 5))]);
    assert_eq!(admitted(&world.decide()), ["low"]);
    world.submit([with_priority(1, at(2, gang("high", "t1", 3, 3)))]);
    assert_eq!(admitted(&world.decide()), ["high"]);
    world.submit([at(3, gang("small", "t0", 1, 1))]);
    assert_eq!(told(&world.decide().preemptions), ["small: low Reclaimed"]);
    world.submit([at(4, gang("large", "t0", 1, 6))]);
    assert_eq!(told(&world.decide().preemptions), ["large: high Reclaimed"]);
    world.released("high");
    let decisions = world.decide();
    assert_eq!(admitted(&decisions), ["small"]);
    assert_eq!(told(&decisions.preemptions), ["large: low Reclaimed"]);
    world.released("low");
    assert_eq!(admitted(&world.decide()), ["large"]);
}

#[test]
fn others_give_way_for_the_least_of_a_gang_and_it_takes_what_is_free_besides() {
    let mut world = World::new(4, 8, vec![preempting("a", None, 100)]);
    let low = |at: usize| gang(&format!("low{at}"), "a", 1, 8);
    world.submit((0..3).map(low));
    assert_eq!(world.decide().admissions.len(), 3);
    // One node is free: for its least it needs another one, for all of it three more.
    let mut high = with_priority(1, gang("high", "a", 4, 8));
    high.min_count = Some(2);
    world.submit([high.clone()]);
    let preemptions = world.decide().preemptions;
    assert_eq!(preemptions.len(), 1);
    assert_eq!(
        preemptions[0].victims.len(),
        1,
        "nobody for more than its least"
    );
    // Meanwhile a third one ends by itself.
    let victim = preemptions[0].victims[0].gang.clone();
    let other = (0..3).map(low).find(|it| it.uid != victim).unwrap();
    world.released(other.uid.as_str());
    world.released(victim.as_str());
    let admissions = world.decide().admissions;
    assert_eq!(admissions.len(), 1);
    assert_eq!((admissions[0].pods.len(), admissions[0].gang_pods), (3, 4));
}

/// Of quota alone: there is a place for everybody.
#[test]
fn who_waits_for_victims_is_judged_again_once_others_go_for_somebody_else() {
    let mut world = World::new(6, 8, vec![preempting("a", None, 16)]);
    world.submit([
        gang("v1", "a", 1, 2),
        with_priority(1, gang("v2", "a", 1, 4)),
        with_priority(2, gang("v3", "a", 1, 8)),
    ]);
    assert_eq!(world.decide().admissions.len(), 3);
    // Two are free. Once `v1` is gone and `q` is there, nothing is: `p` has to wait for that.
    // `r` needs three of the eight that `v3` leaves: `p` has enough then, at once and once all others are gone, though `v2` stays.
    for (preemptor, victim, starts, stays) in [
        (with_priority(5, gang("q", "a", 1, 4)), "v1", vec![], vec![]),
        (with_priority(3, gang("p", "a", 1, 2)), "v2", vec![], vec![]),
        (
            with_priority(4, gang("r", "a", 1, 3)),
            "v3",
            vec!["p"],
            vec![GangUid::from("v2")],
        ),
    ] {
        let gang = preemptor.uid.clone();
        world.submit([preemptor]);
        let decisions = world.decide();
        assert_eq!(admitted(&decisions), starts, "{gang}");
        assert_eq!(decisions.spared, stays, "{gang}");
        let [preemption] = decisions.preemptions.as_slice() else {
            panic!("{gang}: {:?}", decisions.preemptions);
        };
        let victims = preemption.victims.iter().map(|it| it.gang.as_str());
        assert_eq!(preemption.gang, gang);
        assert_eq!(victims.collect::<Vec<_>>(), [victim]);
        let is_due = decisions.look_again_at == Some(Timestamp(world.now + 1));
        assert!(!is_due, "{gang}: everybody was judged");
    }
}

/// A defect once: who was behind it in the line took what others left by giving way to a third one, unless a commit ended in between.
#[test]
fn who_has_room_as_others_go_for_somebody_else_has_it_before_those_behind_it_however_commits_are_cut()
 {
    let mut world = World::new(
        6,
        8,
        vec![preempting("a", None, 16), preempting("z", None, 1)],
    );
    world.submit([
        gang("v1", "a", 1, 2),
        with_priority(1, gang("v2", "a", 1, 4)),
        with_priority(2, gang("v3", "a", 1, 8)),
    ]);
    assert_eq!(world.decide().admissions.len(), 3);
    for preemptor in [
        with_priority(5, gang("q", "a", 1, 4)),
        with_priority(3, gang("p", "a", 1, 2)),
    ] {
        world.submit([preemptor]);
        assert_eq!(world.decide().preemptions.len(), 1);
    }
    // Two are free, for `p` or for `behind`. `other` has its turn between `third` and whoever takes them.
    world.submit([
        with_priority(4, gang("third", "a", 1, 3)),
        gang("other", "z", 1, 1),
        gang("behind", "a", 1, 2),
    ]);
    for gangs in [1, 2, usize::MAX] {
        let now = Timestamp(world.now + 1);
        let slices = decide_in_slices(&mut world.state.clone(), now, gangs);
        let starting: Vec<String> = slices.iter().flat_map(admitted).collect();
        assert_eq!(starting, ["p", "other"], "{gangs} in a commit");
        let going = slices.iter().flat_map(|slice| told(&slice.preemptions));
        let going: Vec<String> = going.collect();
        assert_eq!(going, ["third: v3 InTeam"], "{gangs} in a commit");
        let spared = slices.iter().flat_map(|slice| &slice.spared);
        let spared: Vec<&str> = spared.map(GangUid::as_str).collect();
        assert_eq!(spared, ["v2"], "{gangs} in a commit");
    }
}

/// A defect once: it was kept for as long besides as the clock had been ahead.
#[test]
fn what_is_kept_for_a_gang_is_kept_no_longer_though_the_clock_goes_back() {
    let mut world = World::new(1, 8, vec![preempting("a", None, 8)]);
    world.now = 100_000;
    world.submit([gang("stuck", "a", 1, 8)]);
    assert_eq!(admitted(&world.decide()), ["stuck"]);
    world.submit([with_priority(5, gang("high", "a", 1, 8))]);
    assert_eq!(told(&world.decide().preemptions), ["high: stuck InTeam"]);
    let until = |world: &World| world.state.kept_for(&"high".into()).map(|kept| kept.until);
    let lasts = |world: &World| {
        let kept = world.state.kept_for(&"high".into());
        kept.map(|kept| kept.until.0 - kept.since.0)
    };
    let first = until(&world);
    assert_eq!(first, Some(Timestamp(world.now + MOST_SECONDS)));
    let lasts_at_first = lasts(&world);
    // A little is nothing that anybody has to be told.
    world.now -= 30;
    world.decide();
    assert_eq!(until(&world), first);
    let was_at = 100_002;
    world.now = 1_000;
    world.decide();
    let ahead = was_at - world.now;
    assert_eq!(until(&world), first.map(|at| Timestamp(at.0 - ahead)));
    // A new leader takes up what is kept for as long as it was to be kept.
    assert_eq!(lasts(&world), lasts_at_first);
    let changed = world.state.take_changed_preemptions();
    assert!(changed.contains(&GangUid::from("high")), "{changed:?}");
    world.now = 1_000 + MOST_SECONDS;
    world.decide();
    assert_eq!(until(&world), None);
    assert!(!matches!(why(&world.state, "high"), Why::Preemption { .. }));
}

/// A defect once: a gang that ends was forgotten when its only pod was charged otherwise from then on, and somebody else went.
#[test]
fn who_ends_is_counted_on_though_what_it_holds_is_charged_otherwise_by_now() {
    let mut world = World::new(1, 8, vec![preempting("a", None, 8)]);
    world.submit([
        gang("ends", "a", 1, 4),
        with_priority(-1, gang("low", "a", 1, 4)),
    ]);
    assert_eq!(admitted(&world.decide()), ["ends", "low"]);
    world.state.apply(Update::Ending("ends".into()));
    // Its node is lost for a moment.
    let mut hold = world.holds[&GangUid::from("ends")][0].clone();
    for is_lost in [true, false] {
        hold.charged_to_node = is_lost;
        world.state.apply(Update::Hold(hold.clone()));
    }
    world.submit([with_priority(10, gang("high", "a", 1, 4))]);
    assert_eq!(told(&world.decide().preemptions), ["high: ends InTeam"]);
    world.released("ends");
    assert_eq!(admitted(&world.decide()), ["high"]);
    assert!(world.running().contains(&"low".to_owned()));
}
