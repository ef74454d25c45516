//! Input that somebody may send by mistake or on purpose: it costs its sender, never another Team, and whatever came
//! before does not change what is decided or told.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use crate::common::*;
use muster_engine::{
    Amount, Budget, Decisions, GangUid, Node, NodeFilterId, Queueing, QuotaLimit, Resource, State,
    Team, TeamName, Update, Why, quota::Sharing,
};

/// Far more than any of this takes on a slow machine, far less than it took when it grew with the square of the input.
const PATIENCE: Duration = Duration::from_secs(60);

fn nodes(count: usize, gpus: usize) -> Vec<Node> {
    let nodes =
        (0..count).map(|at| node(&format!("n{at:05}"), &format!("s/l{:03}", at / 32), gpus));
    nodes.collect()
}

/// A node whose GPUs are all held by the Team `research`.
fn fill(state: &mut State, node: usize, gpus: usize) {
    for at in 0..gpus {
        let pod = format!("held-{node}-{at}");
        state.apply(Update::Hold(hold(
            &pod,
            "research",
            &format!("n{node:05}"),
            &[at],
        )));
    }
}

/// A gang whose pods ask for so many bytes.
fn with_memory(bytes: i64, mut gang: muster_engine::Gang) -> muster_engine::Gang {
    for pod in &mut gang.pods {
        pod.resources.memory_bytes = bytes;
    }
    gang
}

fn lending(nominal: i64, lending: i64) -> QuotaLimit {
    QuotaLimit {
        lending_limit: Some(gpus(lending)),
        ..limit(nominal)
    }
}

/// Quota for GPUs and their memory, of a Team outside every Cohort.
fn with_vram(gpu: i64, vram: i64) -> Team {
    let mut team = team("research", None, limit(gpu));
    let bytes = QuotaLimit {
        nominal: Amount(vram),
        ..QuotaLimit::default()
    };
    team.quota[0].1.insert(Resource::Vram, bytes);
    team
}

#[test]
fn what_is_asked_between_an_update_and_the_decision_is_judged_by_the_new_limits() {
    let teams = ["alpha", "beta", "gamma", "zeta"];
    let known = teams.map(|name| team(name, None, limit(1)));
    let mut state = state(nodes(1, 4), known.into());
    state.apply(Update::Waiting(gang("g", "zeta", 1, 2)));
    decide(&mut state);
    for gone in ["alpha", "beta", "gamma"] {
        state.apply(Update::TeamGone(TeamName::from(gone)));
    }
    let mut more = team("zeta", None, limit(1));
    more.quota[0].0 = "a100".into();
    state.apply(Update::Team(more));
    let told = state.explain(&GangUid::from("g"));
    decide(&mut state);
    assert_eq!(told, state.explain(&GangUid::from("g")));
}

#[test]
fn the_resource_that_is_told_does_not_depend_on_what_was_named_first() {
    let mut straight = state(nodes(1, 4), vec![with_vram(1, 80 * GIB)]);
    let mut roundabout = state(nodes(1, 4), Vec::new());
    let mut only_vram = with_vram(0, 80 * GIB);
    only_vram.quota[0].1.remove(&Resource::Gpus);
    roundabout.apply(Update::Team(only_vram));
    decide(&mut roundabout);
    roundabout.apply(Update::Team(with_vram(1, 80 * GIB)));
    for state in [&mut straight, &mut roundabout] {
        state.apply(Update::Waiting(gang("g", "research", 2, 1)));
        decide(state);
    }
    let told = why(&straight, "g");
    assert!(
        matches!(&told, Why::ExceedsMaxQuota { of, .. } if of.resource == Resource::Gpus),
        "{told:?}"
    );
    assert_eq!(why(&roundabout, "g"), told);
}

/// `large` would borrow. Once `first` took what it would borrow, the next of its Team is one that borrows nothing: it goes
/// before everybody who does.
#[test]
fn who_lost_what_would_be_borrowed_leaves_the_turn_to_the_next_of_the_team() {
    let teams = vec![
        team("borrower", Some("all"), lending(1, 0)),
        team("one", Some("all"), limit(0)),
        team("other", Some("all"), limit(0)),
    ];
    let mut state = state(nodes(4, 4), teams);
    state.apply(Update::Cohort(cohort("all", None, 4)));
    submit(
        &mut state,
        [
            at(1, gang("first", "one", 1, 3)),
            at(2, gang("second", "other", 1, 1)),
            at(3, gang("large", "borrower", 1, 3)),
            at(4, gang("small", "borrower", 1, 1)),
        ],
    );
    assert_eq!(admitted(&decide(&mut state)), ["first", "small", "second"]);
}

/// Many gangs of a size that a single free GPU does not help, each with a memory request of its own.
#[test]
fn what_helps_none_of_many_gangs_is_found_out_once() {
    let mut state = open_state(nodes(40, 4));
    for node in 0..40 {
        fill(&mut state, node, 4);
    }
    let gangs =
        (0..60).map(|at| with_memory(GIB + at, gang(&format!("g{at:02}"), "research", 16, 1)));
    submit(&mut state, gangs);
    assert!(admitted(&decide(&mut state)).is_empty());
    for end in 0..12 {
        state.apply(Update::HoldGone(pod_uid(&format!("held-{end}-0"))));
        let visited = decide(&mut state).visited;
        assert!(
            visited.total() <= 3,
            "{visited:?} after {} GPUs came free",
            end + 1
        );
    }
    for end in 12..16 {
        state.apply(Update::HoldGone(pod_uid(&format!("held-{end}-0"))));
    }
    assert_eq!(admitted(&decide(&mut state)), ["g00"]);
}

/// All gangs are of one group, the first in order ask for the most, and only the last has a place.
#[test]
fn a_gang_that_asks_for_less_is_found_behind_many_that_ask_for_too_much() {
    let mut state = open_state(nodes(3, 4));
    for node in 0..3 {
        fill(&mut state, node, 4);
    }
    // Three nodes of 512 GiB: two pods of up to 255 GiB each, no more.
    let bytes = |at: i64| if at == 39 { 129 * GIB } else { 250 * GIB + at };
    let gangs = (0..40).map(|number| {
        let name = format!("g{number:02}");
        at(
            number,
            with_memory(bytes(number), gang(&name, "research", 7, 1)),
        )
    });
    submit(&mut state, gangs);
    assert!(admitted(&decide(&mut state)).is_empty());
    for node in 0..3 {
        for at in 0..3 {
            state.apply(Update::HoldGone(pod_uid(&format!("held-{node}-{at}"))));
        }
    }
    let decisions = decide(&mut state);
    assert_eq!(admitted(&decisions), ["g39"]);
    // The first that was tried in vain speaks for all that ask for as much.
    assert!(decisions.visited.plans <= 6, "{:?}", decisions.visited);
}

#[test]
fn pods_that_share_a_claim_cost_no_more_for_being_many() {
    let mut state = open_state(nodes(2000, 8));
    let pods = (0..4096).map(|rank| pod(&format!("p{rank}"), vec![claim("shared", 1)]));
    state.apply(Update::Waiting(gang_of("g", "research", pods.collect())));
    let start = Instant::now();
    assert!(admitted(&decide(&mut state)).is_empty());
    assert!(matches!(why(&state, "g"), Why::PlacementImpossible { .. }));
    assert!(start.elapsed() < PATIENCE, "{:?}", start.elapsed());
}

/// An earlier attempt of the gang holds all its claims, which come back one by one.
#[test]
fn claims_that_come_back_one_by_one_are_counted_and_not_searched_for() {
    const PODS: usize = 4096;
    let mut state = open_state(nodes(PODS / 8, 8));
    let claims = |rank: usize| vec![claim(&format!("c{rank}"), 1)];
    let pods = (0..PODS).map(|rank| pod(&format!("new-{rank}"), claims(rank)));
    let new = gang_of("g", "research", pods.collect());
    for rank in 0..PODS {
        let mut old = hold(
            &format!("old-{rank}"),
            "research",
            &format!("n{:05}", rank / 8),
            &[rank % 8],
        );
        old.gang = new.uid.clone();
        old.claims[0].uid = format!("c{rank}").as_str().into();
        state.apply(Update::Hold(old));
    }
    state.apply(Update::Waiting(new));
    let start = Instant::now();
    for rank in 0..PODS {
        assert!(admitted(&decide(&mut state)).is_empty());
        state.apply(Update::HoldGone(pod_uid(&format!("old-{rank}"))));
    }
    assert_eq!(admitted(&decide(&mut state)), ["g"]);
    assert!(start.elapsed() < PATIENCE, "{:?}", start.elapsed());
}

#[test]
fn pods_of_a_thousand_kinds_are_explained_within_bounds() {
    let mut state = open_state(nodes(2000, 8));
    let pods = (0..1024).map(|rank| {
        let mut pod = pod(&format!("p{rank}"), vec![claim(&format!("c{rank}"), 8)]);
        pod.resources.memory_bytes = GIB + rank;
        pod.filter = NodeFilterId(7);
        pod
    });
    state.apply(Update::Waiting(gang_of("g", "research", pods.collect())));
    let start = Instant::now();
    assert!(admitted(&decide(&mut state)).is_empty());
    let Why::PlacementImpossible { fit, nodes, .. } = why(&state, "g") else {
        panic!("no node passes");
    };
    assert_eq!((fit, nodes), (0, 2000));
    assert!(start.elapsed() < PATIENCE, "{:?}", start.elapsed());
}

/// Thousands of Flavors, of which each Team names a few, all below one Cohort.
#[test]
fn thousands_of_flavors_cost_what_is_named() {
    const FLAVORS: usize = 10_000;
    let start = Instant::now();
    let mut state = state(nodes(8, 8), Vec::new());
    state.apply(Update::Cohort(cohort("all", None, 0)));
    for number in 0..FLAVORS {
        state.apply(Update::Flavor(flavor(&format!("f{number}"), None)));
    }
    for number in 0..500 {
        let name = format!("t{number:03}");
        let mut one = team(&name, Some("all"), limit(1));
        let named = (0..20).map(|at| {
            let flavor = format!("f{}", (number * 20 + at) % FLAVORS);
            (
                flavor.as_str().into(),
                BTreeMap::from([(Resource::Gpus, limit(1))]),
            )
        });
        one.quota.extend(named);
        state.apply(Update::Team(one));
        state.apply(Update::Waiting(gang(&name, &name, 1, 1)));
    }
    assert_eq!(
        admitted(&decide(&mut state)).len(),
        64,
        "as many as there are GPUs"
    );
    assert_eq!(decide(&mut state), Decisions::default());
    assert!(start.elapsed() < PATIENCE, "{:?}", start.elapsed());
}

/// Each Cohort below the next, ten thousand of them, and Teams at both ends.
#[test]
fn a_tree_ten_thousand_cohorts_deep_is_decided_about() {
    const DEPTH: usize = 10_000;
    for sharing in [Sharing::ByPriority, Sharing::FAIR] {
        let start = Instant::now();
        let mut state = state(nodes(2, 2), Vec::new());
        for at in 0..DEPTH {
            let above = at.checked_sub(1).map(|above| format!("c{above:05}"));
            let mut one = cohort(&format!("c{at:05}"), above.as_deref(), i64::from(at == 0));
            one.sharing = sharing;
            state.apply(Update::Cohort(one));
        }
        let lowest = format!("c{:05}", DEPTH - 1);
        state.apply(Update::Team(team("deep", Some(&lowest), limit(1))));
        state.apply(Update::Team(team("shallow", Some("c00000"), limit(1))));
        let gangs = ["a", "b", "c"].map(|name| gang(name, "deep", 1, 1));
        submit(&mut state, gangs);
        submit(&mut state, [gang("d", "shallow", 1, 1)]);
        let decisions = decide(&mut state);
        assert_eq!(
            admitted(&decisions).len(),
            3,
            "its own, the pool at the root, and what the other one lends or takes"
        );
        assert_eq!(decide(&mut state), Decisions::default());
        assert!(!why(&state, "c").to_string().is_empty());
        assert!(start.elapsed() < PATIENCE, "{:?}", start.elapsed());
    }
}

/// Numbers at the end of what can be counted, everywhere at once.
#[test]
fn numbers_without_measure_stop_nobody_else() {
    let huge = QuotaLimit {
        nominal: Amount(i64::MAX),
        borrowing_limit: Some(Amount(i64::MAX)),
        lending_limit: Some(Amount(i64::MAX)),
        automatic: false,
    };
    let mut nodes = nodes(2, 2);
    nodes[1].allocatable.memory_bytes = i64::MAX;
    nodes[1].allocatable.cpu_milli = i64::MAX;
    for device in &mut nodes[1].devices {
        device.vram = Amount(i64::MAX);
    }
    let mut state = state(
        nodes,
        vec![
            team("research", Some("all"), huge),
            team("modest", Some("all"), limit(1)),
        ],
    );
    let mut pool = cohort("all", None, 0);
    pool.quota[0].1.insert(Resource::Gpus, huge);
    state.apply(Update::Cohort(pool));
    let everything = with_memory(i64::MAX, gang("everything", "research", 1, 1));
    let mut twice = with_memory(i64::MAX, gang("twice", "research", 2, 1));
    for pod in &mut twice.pods {
        pod.resources.cpu_milli = i64::MAX;
        pod.resources.pods = i64::MAX;
    }
    submit(
        &mut state,
        [everything, twice, gang("modest", "modest", 1, 1)],
    );
    let decisions = decide(&mut state);
    assert_eq!(admitted(&decisions), ["everything", "modest"]);
    assert!(!why(&state, "twice").to_string().is_empty());
    assert_eq!(decide(&mut state), Decisions::default());
}

/// What is released by name comes back to a gang that stands in no queue and goes first: nothing is promised to others.
#[test]
fn what_a_gang_waits_for_by_name_is_promised_to_nobody_else() {
    let mut state = open_state(nodes(1, 2));
    let shared = |name: &str| {
        gang_of(
            name,
            "research",
            vec![pod(&format!("{name}-0"), vec![claim("shared", 2)])],
        )
    };
    let mut held = hold("old", "research", "n00000", &[0, 1]);
    held.claims[0].uid = "shared".into();
    state.apply(Update::Hold(held.clone()));
    submit(
        &mut state,
        [at(1, shared("named")), at(2, gang("any", "research", 1, 2))],
    );
    decide(&mut state);
    held.releasing = true;
    state.apply(Update::Hold(held));
    decide(&mut state);
    assert!(matches!(why(&state, "named"), Why::ClaimShared { .. }));
    let told = why(&state, "any");
    assert!(!matches!(told, Why::Release { .. }), "{told:?}");
    state.apply(Update::HoldGone(pod_uid("old")));
    assert_eq!(admitted(&decide(&mut state)), ["named"]);
}

/// Of gangs that were not judged yet, because the commit had no room, any may go first.
#[test]
fn nothing_is_promised_while_somebody_waits_for_the_next_commit() {
    let mut state = open_state(nodes(2, 2));
    let mut held = hold("old", "research", "n00000", &[0, 1]);
    state.apply(Update::Hold(held.clone()));
    submit(&mut state, [at(1, gang("late", "research", 2, 2))]);
    decide(&mut state);
    held.releasing = true;
    state.apply(Update::Hold(held));
    state.apply(Update::Waiting(with_priority(
        9,
        gang("first", "research", 1, 1),
    )));
    let none = muster_engine::CommitRoom {
        gangs: 0,
        ..muster_engine::CommitRoom::UNLIMITED
    };
    let budget = Budget {
        left: none,
        empty: muster_engine::CommitRoom::UNLIMITED,
        ..Budget::UNLIMITED
    };
    assert!(state.decide(NOW, &budget).exhausted);
    let told = why(&state, "late");
    assert!(!matches!(told, Why::Release { .. }), "{told:?}");
}

/// A strict line whose head leaves, is passed over, or gets what it lacks, in each order of events.
#[test]
fn whoever_stands_behind_a_head_that_leaves_is_looked_at() {
    let strict = |name: &str| Team {
        queueing: Queueing::StrictFifo,
        ..team(name, None, limit(8))
    };
    for leave in [true, false] {
        let mut state = state(nodes(2, 4), vec![strict("strict")]);
        submit(
            &mut state,
            [
                at(1, gang("head", "strict", 2, 4)),
                at(2, gang("next", "strict", 1, 4)),
            ],
        );
        let mut cordoned = node("n00000", "s/l000", 4);
        cordoned.block = Some(muster_engine::NodeBlock::Cordoned);
        state.apply(Update::Node(cordoned));
        assert!(admitted(&decide(&mut state)).is_empty());
        assert!(matches!(why(&state, "next"), Why::BehindHead { .. }));
        if leave {
            state.apply(Update::NotWaiting("head".into()));
            assert_eq!(admitted(&decide(&mut state)), ["next"]);
        } else {
            state.apply(Update::Node(node("n00000", "s/l000", 4)));
            assert_eq!(admitted(&decide(&mut state)), ["head"]);
        }
    }
}
