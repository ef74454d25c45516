//! What decisions cost at 10,000 nodes of 8 GPUs. Times are printed and not asserted: budgets are measured by the
//! benchmarks, on a machine that does nothing else. Looks at nodes and domains are the same on every machine.

#![allow(
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "tests"
)]

mod common;

use std::{
    collections::BTreeSet,
    mem::Discriminant,
    time::{Duration, Instant},
};

use common::*;
use muster_engine::{GangUid, Node, Recovering, State, Stop, Timestamp, Update, Why};

const SPINES: usize = 16;
const LEAVES: usize = 20;
const NODES: usize = 10_000;

fn big_cluster() -> Vec<Node> {
    cluster_of(NODES)
}

fn cluster_of(nodes: usize) -> Vec<Node> {
    let nodes = (0..nodes).map(|at| {
        let leaf = at % (SPINES * LEAVES);
        let path = format!("s{:02}/l{:02}", leaf / LEAVES, leaf % LEAVES);
        let mut node = node(&format!("n{at:05}"), &path, 8);
        for device in &mut node.devices {
            device.nvlink_group = Some("switch".into());
        }
        node
    });
    nodes.collect()
}

fn timed<T>(what: &str, work: impl FnOnce() -> T) -> T {
    let start = Instant::now();
    let result = work();
    println!("{what}: {:?}", start.elapsed());
    result
}

/// Every third GPU of every node but each fifth is taken.
fn fragment(state: &mut State) {
    for at in (0..NODES).filter(|at| at % 5 != 0) {
        let pod = format!("running-{at}");
        state.apply(Update::Hold(hold(
            &pod,
            "research",
            &format!("n{at:05}"),
            &[0, 3, 6],
        )));
    }
}

#[test]
fn a_gang_of_1024_gpus_on_10_000_nodes() {
    let nodes = big_cluster();
    let mut state = timed("tell 10,000 nodes", || open_state(nodes));
    timed("first decision, nothing waits", || decide(&mut state));
    state.apply(Update::Waiting(gang("first", "research", 128, 8)));
    let decisions = timed("plan 128 x 8 on the idle cluster", || decide(&mut state));
    assert_eq!(admitted(&decisions), ["first"]);

    timed("tell 8,000 holds", || fragment(&mut state));
    timed("decide, nothing waits", || decide(&mut state));
    let mut worst = Duration::ZERO;
    for round in 0..5 {
        let name = format!("next-{round}");
        state.apply(Update::Waiting(gang(&name, "research", 128, 8)));
        let start = Instant::now();
        assert_eq!(admitted(&decide(&mut state)), [name]);
        worst = worst.max(start.elapsed());
    }
    println!("plan 128 x 8 on the fragmented cluster, worst of 5: {worst:?}");

    state.apply(Update::Waiting(gang("small", "research", 1, 1)));
    timed("plan 1 x 1", || decide(&mut state));
    state.apply(Update::Waiting(gang("pieces", "research", 1024, 1)));
    let decisions = timed("plan 1,024 x 1", || decide(&mut state));
    assert_eq!(admitted(&decisions), ["pieces"]);
    state.apply(Update::Waiting(gang("large", "research", 2000, 8)));
    timed("say that 2,000 x 8 do not fit now", || decide(&mut state));
    assert!(matches!(why(&state, "large"), Why::Placement { .. }));
    state.apply(Update::Waiting(requiring(
        "leaf",
        gang("never", "research", 128, 8),
    )));
    timed("say that 128 x 8 never fit into one leaf", || {
        decide(&mut state)
    });
    assert!(matches!(
        why(&state, "never"),
        Why::PlacementImpossible { .. }
    ));
}

#[test]
fn fifty_thousand_gangs_that_wait() {
    let teams = (0..50)
        .map(|at| team(&format!("team-{at}"), Some("all"), limit(4)))
        .collect();
    let mut state = timed("tell 10,000 nodes", || state(big_cluster(), teams));
    let gangs = (0..50_000).map(|at| {
        gang(
            &format!("g{at}"),
            &format!("team-{}", at % 50),
            1 + at % 7,
            8,
        )
    });
    timed("tell 50,000 gangs", || submit(&mut state, gangs));
    let decisions = timed("decide for all", || decide(&mut state));
    println!("admitted {}", admitted(&decisions).len());
    assert!(!admitted(&decisions).is_empty());
    state.apply(Update::Waiting(gang("late", "team-1", 1, 8)));
    timed("decide after one more", || decide(&mut state));
}

/// A cluster nine tenths full, Teams below Cohorts three deep whose quota is used up, and as many gangs that wait.
fn busy(nodes: usize, teams: usize, gangs: usize) -> State {
    let nominal = i64::try_from(nodes * 9 / 10 * 8 / teams).expect("small");
    let limits = |at: usize| {
        let group = format!("group-{}", at % 100);
        team(&format!("team-{at}"), Some(&group), limit(nominal))
    };
    let mut state = state(cluster_of(nodes), (0..teams).map(limits).collect());
    for at in 0..100 {
        let division = format!("division-{}", at % 10);
        let group = cohort(&format!("group-{at}"), Some(&division), 0);
        state.apply(Update::Cohort(group));
    }
    for at in 0..10 {
        let division = cohort(&format!("division-{at}"), Some("all"), 0);
        state.apply(Update::Cohort(division));
    }
    for at in 0..nodes * 9 / 10 {
        let all = [0, 1, 2, 3, 4, 5, 6, 7];
        let (team, node) = (format!("team-{}", at % teams), format!("n{at:05}"));
        let held = hold(&format!("h{at}"), &team, &node, &all);
        state.apply(Update::Hold(held));
    }
    let gangs = (0..gangs).map(|number| {
        let team = format!("team-{}", number % teams);
        let gang = gang(&format!("g{number}"), &team, 1 + number % 7, 8);
        at(i64::try_from(number).expect("small"), gang)
    });
    submit(&mut state, gangs);
    assert_eq!(admitted(&decide(&mut state)), [""; 0]);
    // The first place that is searched takes a look at every node, once.
    state.apply(Update::HoldGone(pod_uid("h0")));
    assert_eq!(admitted(&decide(&mut state)), ["g0"]);
    state
}

/// What is looked at for one event: by placement, and the Teams, classes and groups that are judged or asked.
fn looks_at(state: &mut State, event: Update) -> (u64, usize, Vec<String>) {
    let before = state.visited();
    state.apply(event);
    let decisions = decide(state);
    let visited = decisions.visited;
    let judged = visited.teams + visited.classes + visited.groups + visited.plans;
    (state.visited() - before, judged, admitted(&decisions))
}

/// The attempt that holds a whole node ends by a fault.
fn fails(at: usize, team: &str) -> Update {
    let all = [0, 1, 2, 3, 4, 5, 6, 7];
    let held = hold(&format!("h{at}"), team, &format!("n{at:05}"), &all);
    Update::Recovering(Recovering {
        gang: held.gang.clone(),
        attempt: 1,
        priority: 0,
        queued_at: NOW,
        may_be_preempted: true,
        since: NOW,
        until: Timestamp(600),
        held: vec![held],
        left: BTreeSet::new(),
        domain: Vec::new(),
    })
}

#[test]
fn an_event_costs_the_same_with_50_000_gangs_of_1_000_teams_as_with_1_000_of_100() {
    let mut small = busy(1_000, 100, 1_000);
    let mut large = busy(10_000, 1_000, 50_000);
    let cordoned = |name: &str| {
        let mut node = node(name, "s00/l00", 8);
        node.block = Some(muster_engine::NodeBlock::Cordoned);
        node
    };
    for (event, happens, starts) in [
        ("a pod ends", Update::HoldGone(pod_uid("h7")), 1),
        (
            "a gang comes",
            Update::Waiting(gang("late", "team-8", 64, 8)),
            0,
        ),
        ("a node changes", Update::Node(cordoned("n00950")), 0),
        ("an attempt fails", fails(9, "team-9"), 0),
    ] {
        let few = looks_at(&mut small, happens.clone());
        let many = looks_at(&mut large, happens);
        println!("{event}: {few:?}, then {many:?}");
        assert_eq!(few.2.len(), starts, "{event}: {few:?}");
        assert_eq!(few.2, many.2, "{event}");
        assert!(many.0 <= 2 * few.0.max(16), "{event}: looks at nodes");
        assert!(many.1 <= 2 * few.1.max(4), "{event}: judged");
    }
}

/// Whose reason to wait is worked out anew after an event: single gangs, and all that wait of some Teams.
fn explained_anew(state: &mut State, event: Update) -> BTreeSet<GangUid> {
    state.apply(event);
    let changed = decide(state).reasons_changed;
    let of_teams = changed.teams.iter().flat_map(|team| state.queue(team));
    let of_teams: Vec<GangUid> = of_teams.map(|gang| gang.uid.clone()).collect();
    changed.gangs.into_iter().chain(of_teams).collect()
}

/// What is told of a gang, without its numbers.
fn reason(state: &State, gang: &GangUid) -> Option<Discriminant<Why>> {
    let explanation = state.explain(gang)?;
    Some(std::mem::discriminant(&explanation.why))
}

#[test]
fn of_50_000_gangs_only_those_are_explained_anew_whose_team_an_event_touches() {
    const TEAMS: usize = 1_000;
    const GANGS: usize = 50_000;
    let mut state = busy(10_000, TEAMS, GANGS);
    let nominal = |gpus| team("team-9", Some("group-9"), limit(gpus));
    let stopped = |stop| muster_engine::Team {
        stop,
        ..nominal(72)
    };
    let of_team = |number: usize| -> BTreeSet<GangUid> {
        let gangs = (number..GANGS).step_by(TEAMS);
        gangs
            .map(|gang| format!("g{gang}").as_str().into())
            .collect()
    };
    // One gang of every twentieth Team, and all of those that are touched.
    let watched: BTreeSet<GangUid> = (0..TEAMS)
        .step_by(20)
        .map(|gang| format!("g{}", GANGS / 2 + gang).as_str().into())
        .chain(of_team(7))
        .chain(of_team(9))
        .collect();
    let mut before: Vec<_> = watched.iter().map(|gang| reason(&state, gang)).collect();
    for (what, event, number, fewest) in [
        ("a pod ends", Update::HoldGone(pod_uid("h7")), 7, 0),
        ("quota is raised", Update::Team(nominal(80)), 9, 1),
        ("quota is lowered", Update::Team(nominal(72)), 9, 1),
        (
            "a Team is stopped",
            Update::Team(stopped(Stop::Hold)),
            9,
            40,
        ),
        (
            "it is not any more",
            Update::Team(stopped(Stop::None)),
            9,
            40,
        ),
        ("an attempt fails", fails(2_007, "team-7"), 7, 1),
    ] {
        let anew = explained_anew(&mut state, event);
        println!("{what}: {} explained anew", anew.len());
        assert!(anew.is_subset(&of_team(number)), "{what}: {anew:?}");
        assert!(anew.len() >= fewest, "{what}: {anew:?}");
        for (gang, before) in watched.iter().zip(&mut before) {
            let after = reason(&state, gang);
            let known = std::mem::replace(before, after);
            assert!(
                after == known || after.is_none() || anew.contains(gang),
                "{what}: {gang} is told something else"
            );
        }
    }
}

/// Looks that it takes to see that one of many gangs can be placed after a hold ended on a full cluster, and the
/// others cannot.
fn looks_after_a_release(nodes: usize) -> u64 {
    let mut state = open_state(cluster_of(nodes));
    for at in 0..nodes {
        let all = [0, 1, 2, 3, 4, 5, 6, 7];
        let node = format!("n{at:05}");
        let held = hold(&format!("h{at}"), "research", &node, &all);
        state.apply(Update::Hold(held));
    }
    let gangs = (0..200).map(|at| {
        let mut gang = gang(&format!("g{at}"), "research", 1 + at % 2, 8);
        for pod in &mut gang.pods {
            pod.resources.memory_bytes = GIB + i64::try_from(at).expect("small");
        }
        gang
    });
    submit(&mut state, gangs);
    assert!(admitted(&decide(&mut state)).is_empty());
    let before = state.visited();
    state.apply(Update::HoldGone(pod_uid(&format!("h{}", nodes / 2))));
    assert_eq!(admitted(&decide(&mut state)).len(), 1);
    state.visited() - before
}

#[test]
fn the_end_of_one_hold_costs_the_same_on_ten_times_the_nodes() {
    let (small, large) = (looks_after_a_release(1_000), looks_after_a_release(10_000));
    println!("{small} looks at 1,000 nodes, {large} at 10,000");
    assert!(large <= 2 * small.max(64), "{small} looks, then {large}");
}

/// Looks that it takes to see that another gang has no place after one node changed: no Topology knows the nodes, each has free GPUs
/// and too little memory.
fn looks_where_memory_lacks(nodes: usize) -> u64 {
    let without_memory = (0..nodes).map(|at| {
        let mut node = node(&format!("n{at:05}"), "", 8);
        node.used.memory_bytes = node.allocatable.memory_bytes - 2 * GIB;
        node
    });
    let mut state = open_state(without_memory.collect());
    for at in 0..nodes {
        let held = hold(&format!("h{at}"), "research", &format!("n{at:05}"), &[0]);
        state.apply(Update::Hold(held));
    }
    let asking = |name: &str, memory: i64| {
        let mut gang = gang(name, "research", 1, 1);
        for pod in &mut gang.pods {
            pod.resources.memory_bytes = memory;
        }
        gang
    };
    submit(&mut state, [asking("first", 4 * GIB)]);
    assert!(admitted(&decide(&mut state)).is_empty());
    let before = state.visited();
    state.apply(Update::HoldGone(pod_uid(&format!("h{}", nodes / 2))));
    submit(&mut state, [asking("second", 3 * GIB)]);
    assert!(admitted(&decide(&mut state)).is_empty());
    state.visited() - before
}

#[test]
fn without_a_topology_too_a_node_that_changes_makes_only_its_neighbours_be_looked_at() {
    let [small, large] = [1_000, 10_000].map(looks_where_memory_lacks);
    println!("{small} looks at 1,000 nodes, {large} at 10,000");
    assert!(large <= small + 8, "{small} looks, then {large}");
}

/// The pod has ended; what it holds comes back with the proof, and nothing has come free.
#[test]
fn that_a_pod_waits_for_its_release_is_no_news_for_placement() {
    let mut state = open_state(cluster_of(100));
    let held = |at: usize, releasing: bool| {
        let all = [0, 1, 2, 3, 4, 5, 6, 7];
        let mut held = hold(&format!("h{at}"), "research", &format!("n{at:05}"), &all);
        held.releasing = releasing;
        held
    };
    for at in 0..100 {
        state.apply(Update::Hold(held(at, false)));
    }
    submit(
        &mut state,
        (0..20).map(|at| gang(&format!("g{at}"), "research", 1 + at, 8)),
    );
    assert!(admitted(&decide(&mut state)).is_empty());
    let before = state.visited();
    state.apply(Update::Hold(held(50, true)));
    let decisions = decide(&mut state);
    assert!(admitted(&decisions).is_empty());
    assert_eq!(decisions.visited.groups, 0, "nobody is asked again");
    assert_eq!(state.visited(), before);
}
