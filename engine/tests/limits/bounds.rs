//! Every bound of a decision and of an explanation as a whole, met and passed by one.

use std::collections::{BTreeMap, BTreeSet};

use crate::common::*;
use muster_engine::{
    Budget, FlavorName, Hold, Node, Resource, SelectorId, State, Team, Update, Why,
};

/// What a decision may take: about two milliseconds, in looks.
const ONE_DECISION: u64 = 50_000;

/// A Team with quota for so many Flavors, all of which are on all nodes.
fn of_flavors(count: usize, mut nodes: Vec<Node>) -> State {
    let names: Vec<FlavorName> = (0..count).map(|at| format!("f{at:02}").into()).collect();
    for device in nodes.iter_mut().flat_map(|node| &mut node.devices) {
        device.flavors = names.iter().cloned().collect();
    }
    let quota = |name: &FlavorName| {
        (
            name.clone(),
            BTreeMap::from([(Resource::Gpus, limit(1_000))]),
        )
    };
    let team = Team {
        quota: names.iter().map(quota).collect(),
        ..team("research", None, limit(0))
    };
    let mut state = state(nodes, vec![team]);
    for name in &names {
        state.apply(Update::Flavor(flavor(name.as_str(), Some(FABRIC))));
    }
    state
}

/// Pods of two kinds, each of which fits by itself; together they do not, and to prove that takes more ways to be tried
/// than anybody has time for. No two nodes are alike.
fn puzzle() -> (Vec<Node>, muster_engine::Gang) {
    let nodes = (0..20).map(|at| {
        let mut node = node(&format!("n{at:02}"), "s/l", 2);
        node.allocatable.cpu_milli = 4_000;
        node.allocatable.memory_bytes += at;
        node
    });
    let pods = (0..31).map(|at| {
        let mut pod = pod(&format!("p{at}"), vec![claim(&format!("c{at}"), 1)]);
        pod.resources.cpu_milli = if at < 11 { 3_000 } else { 2_000 };
        pod
    });
    (nodes.collect(), gang_of("g", "research", pods.collect()))
}

/// A decision is about all Flavors; so is an explanation.
#[test]
fn the_steps_of_one_decision_are_for_all_flavors_together() {
    for flavors in [1, 2, 16] {
        let (nodes, gang) = puzzle();
        let mut state = of_flavors(flavors, nodes);
        submit(&mut state, [gang]);
        let before = state.visited();
        assert!(admitted(&decide(&mut state)).is_empty());
        let decided = state.visited() - before;
        let told = why(&state, "g");
        let explained = state.visited() - before - decided;
        assert!(
            matches!(told, Why::Placement { gave_up: true, .. }),
            "{flavors} Flavors: {told:?}"
        );
        // The steps are used up, and what is looked at besides (indexes, who has what) is little.
        let most = ONE_DECISION * 5 / 4;
        assert!(
            (ONE_DECISION / 4..most).contains(&decided) && explained < most,
            "{flavors} Flavors: decided with {decided} looks, explained with {explained}"
        );
    }
}

/// Many gangs that take all the steps of a decision and have no place, each with a memory request of its own, and another
/// Team's gang behind them; with the budget of a call that nothing else bounds.
fn an_easy_gang_behind_hard_ones() -> (State, Budget) {
    let (nodes, puzzle) = puzzle();
    let teams = ["research", "other"].map(|name| team(name, None, limit(1_000)));
    let mut state = state(nodes, teams.into());
    for number in 0..25 {
        let mut gang = puzzle.clone();
        gang.uid = format!("hard-{number:02}").into();
        gang.name = format!("research/hard-{number:02}");
        for pod in &mut gang.pods {
            pod.uid = format!("{number}-{}", pod.uid).into();
            pod.resources.memory_bytes += number;
            for claim in &mut pod.claims {
                claim.uid = format!("{number}-{}", claim.uid).into();
            }
        }
        submit(&mut state, [at(0, gang)]);
    }
    submit(&mut state, [at(1, gang("easy", "other", 1, 1))]);
    let budget = Budget {
        looks_in_vain: Budget::LOOKS_IN_VAIN,
        ..Budget::UNLIMITED
    };
    (state, budget)
}

#[test]
fn a_call_ends_once_searches_were_in_vain_for_long_enough_and_the_next_goes_on() {
    let (mut state, budget) = an_easy_gang_behind_hard_ones();
    let mut calls = Vec::new();
    let mut admissions = Vec::new();
    loop {
        let before = state.visited();
        let decisions = state.decide(NOW, &budget);
        calls.push(state.visited() - before);
        assert!(!decisions.exhausted);
        admissions.extend(admitted(&decisions));
        if !decisions.interrupted {
            break;
        }
    }
    assert_eq!(admissions, ["easy"]);
    assert!(calls.len() > 1, "{calls:?} looks");
    let most = (Budget::LOOKS_IN_VAIN + ONE_DECISION) * 5 / 4;
    assert!(calls.iter().all(|looks| *looks < most), "{calls:?} looks");
    assert!(matches!(
        why(&state, "hard-24"),
        Why::Placement { gave_up: true, .. }
    ));
}

/// The last that is looked at is refused, and the call ends there: the round is over nevertheless.
#[test]
fn a_round_ends_also_where_a_call_was_interrupted_after_the_last_of_it() {
    let teams = ["a", "b"].map(|name| team(name, None, limit(100)));
    let mut state = state(vec![node("n0", "s/l", 1)], teams.into());
    submit(
        &mut state,
        [at(1, gang("a1", "a", 1, 1)), at(2, gang("b1", "b", 1, 2))],
    );
    let budget = Budget {
        looks_in_vain: 0,
        ..Budget::UNLIMITED
    };
    let decisions = state.decide(NOW, &budget);
    assert_eq!(admitted(&decisions), ["a1"]);
    assert!(decisions.interrupted);
    while state.decide(NOW, &budget).is_cut_short() {}
    // Both Teams may have a turn again, and the higher priority goes first.
    state.apply(Update::Node(node("n1", "s/l", 1)));
    submit(
        &mut state,
        [
            with_priority(10, gang("a2", "a", 1, 1)),
            with_priority(0, gang("b2", "b", 1, 1)),
        ],
    );
    assert_eq!(admitted(&decide(&mut state)), ["a2"]);
}

/// Before each call that goes on something comes free that may help all of those who were judged already.
#[test]
fn what_comes_free_again_and_again_keeps_nobody_from_being_judged() {
    let (mut state, budget) = an_easy_gang_behind_hard_ones();
    let mut admissions = Vec::new();
    for call in 0..10 {
        let decisions = state.decide(NOW, &budget);
        admissions.extend(admitted(&decisions));
        if call == 0 {
            assert!(decisions.interrupted);
        }
        // One pod more has a place, and two lack one.
        let mut free = node("free", "s/l", 1);
        free.allocatable.cpu_milli = 2_000;
        free.allocatable.memory_bytes += call;
        state.apply(Update::Node(free));
    }
    assert_eq!(admissions, ["easy"]);
}

/// A gang of two pods of which one takes all devices of a node, and the other all but one.
fn unequal(name: &str, team: &str) -> muster_engine::Gang {
    let pods = [7, 8].map(|count| {
        let uid = format!("{name}-{count}");
        pod(&uid, vec![claim(&format!("{uid}-gpus"), count)])
    });
    gang_of(name, team, pods.into())
}

/// So many empty nodes, all beneath one switch.
fn flat(count: usize) -> Vec<Node> {
    let nodes = (0..count).map(|at| node(&format!("n{at:05}"), "s/l", 8));
    nodes.collect()
}

#[test]
fn the_steps_of_one_decision_place_pods_of_two_kinds_among_10000_nodes_beneath_one_switch() {
    let mut state = open_state(flat(10_000));
    submit(&mut state, [unequal("g", "research")]);
    assert_eq!(admitted(&decide(&mut state)), ["g"]);
}

/// There is a place, which takes most of the steps of a decision to find, and the quota does not suffice for its devices.
#[test]
fn an_explanation_has_the_steps_to_find_what_the_decision_found() {
    let mut nodes = flat(10_000);
    let mut lesser = node("lesser", "s/l", 1);
    lesser.devices[0].vram = muster_engine::Amount(40 * GIB);
    nodes.push(lesser);
    let vram = muster_engine::QuotaLimit {
        nominal: muster_engine::Amount(2_000 * GIB),
        ..Default::default()
    };
    let quota = BTreeMap::from([(Resource::Gpus, limit(1_000)), (Resource::Vram, vram)]);
    let research = Team {
        quota: vec![(H100.into(), quota)],
        ..team("research", None, limit(0))
    };
    let mut state = state(nodes, vec![research]);
    let mut held = hold("old", "research", "n00000", &[0]);
    held.claims[0].vram = muster_engine::Amount(1_000 * GIB);
    state.apply(Update::Hold(held));
    // At the least 15 devices of 40 GiB; the place that there is has 15 of 80 GiB.
    submit(&mut state, [unequal("g", "research")]);
    assert!(admitted(&decide(&mut state)).is_empty());
    let told = why(&state, "g");
    assert!(
        matches!(&told, Why::Quota { of, asked, .. }
            if of.resource == Resource::Vram && asked.0 == 1_200 * GIB),
        "{told:?}"
    );
}

#[test]
fn flavors_without_enough_devices_take_no_steps_from_the_one_that_has_them() {
    let mut state = of_flavors(16, flat(2_000));
    for at in 0..2_000 {
        let mut node = node(&format!("n{at:05}"), "s/l", 8);
        for device in &mut node.devices {
            device.flavors = BTreeSet::from(["f15".into()]);
        }
        state.apply(Update::Node(node));
    }
    submit(&mut state, [unequal("g", "research")]);
    assert_eq!(admitted(&decide(&mut state)), ["g"]);
}

/// The search that gave up had a sixteenth of the steps that the other Team's has.
#[test]
fn who_gave_up_with_few_steps_refuses_nobody_who_has_more() {
    for first in ["many", "one"] {
        let mut state = of_flavors(16, flat(2_000));
        let quota = BTreeMap::from([(Resource::Gpus, limit(1_000))]);
        state.apply(Update::Team(Team {
            quota: vec![("f00".into(), quota)],
            ..team("other", None, limit(0))
        }));
        let order = |name: &str| i64::from(name != first);
        submit(
            &mut state,
            [
                at(order("many"), unequal("many", "research")),
                at(order("one"), unequal("one", "other")),
            ],
        );
        let admitted = admitted(&decide(&mut state));
        assert!(
            admitted.contains(&"one".to_owned()),
            "{first}: {admitted:?}"
        );
    }
}

/// Devices of which no two have a value in common: 16 of them can be chosen in millions of ways, each of which leaves no
/// pair for the second claim.
#[test]
fn too_many_ways_to_allocate_devices_are_not_taken_for_none() {
    let alone = |pairs: bool| {
        let mut node = node("n", "s/l", 32);
        for (at, device) in node.devices.iter_mut().enumerate() {
            let pair = if pairs { at / 2 } else { at };
            device.attributes = BTreeMap::from([("pair".into(), format!("{pair}"))]).into();
        }
        let mut state = open_state(vec![node]);
        let claims = vec![claim("many", 16), paired(claim("pair", 2))];
        let gang = gang_of("g", "research", vec![pod("p", claims)]);
        submit(&mut state, [gang]);
        let is_admitted = !admitted(&decide(&mut state)).is_empty();
        (is_admitted, state)
    };
    assert!(alone(true).0, "any 16 leave a pair");
    let (is_admitted, state) = alone(false);
    assert!(!is_admitted);
    let told = why(&state, "g");
    assert!(
        matches!(told, Why::Placement { gave_up: true, .. }),
        "{told:?}"
    );
    assert!(
        told.to_string()
            .contains("too many ways to allocate its devices: 1"),
        "{told}"
    );
}

/// On each node 48 devices are tried with 99 others before two of one group are found; and the pods do not fit together.
#[test]
fn allocations_that_take_long_are_paid_for_with_the_steps_of_the_decision() {
    let nodes = (0..20).map(|at| {
        let mut node = node(&format!("n{at:02}"), "s/l", 147);
        node.allocatable.memory_bytes += at;
        for (at, device) in node.devices.iter_mut().enumerate() {
            let group = if at < 47 { at } else { 1_000 };
            let selector = SelectorId(if at < 48 { 1 } else { 2 });
            device.attributes = BTreeMap::from([("pair".into(), format!("{group}"))]).into();
            device.selectors = BTreeSet::from([selector]).into();
        }
        node
    });
    let pods = (0..23).map(|at| {
        let mut claim = paired(claim(&format!("c{at}"), 1));
        let mut second = claim.requests[0].clone();
        claim.requests[0].choices[0].selector = SelectorId(1);
        second.choices[0].selector = SelectorId(2);
        second.name = "other".into();
        claim.requests.push(second);
        let mut pod = pod(&format!("p{at}"), vec![claim]);
        pod.resources.cpu_milli = if at < 11 { 3_000 } else { 2_000 };
        pod
    });
    let mut state = open_state(nodes.collect());
    submit(&mut state, [gang_of("g", "research", pods.collect())]);
    let before = state.visited();
    assert!(admitted(&decide(&mut state)).is_empty());
    let looks = state.visited() - before;
    // Each way that is tried to its end puts 20 pods.
    assert!(
        (ONE_DECISION / 2..4 * ONE_DECISION).contains(&looks),
        "{looks} looks"
    );
    assert!(matches!(
        why(&state, "g"),
        Why::Placement { gave_up: true, .. }
    ));
}

/// The first Flavors are searched in vain, and the last one has a place.
#[test]
fn a_flavor_on_which_a_search_gives_up_leaves_steps_for_the_next() {
    let (mut nodes, gang) = puzzle();
    let wide = (0..31).map(|at| node(&format!("w{at:02}"), "s/w", 1));
    nodes.extend(wide);
    let mut state = of_flavors(3, nodes.clone());
    for node in &mut nodes {
        let of: BTreeSet<FlavorName> = if node.name.as_str().starts_with('w') {
            BTreeSet::from(["f02".into()])
        } else {
            BTreeSet::from(["f00".into(), "f01".into()])
        };
        for device in &mut node.devices {
            device.flavors = of.clone();
        }
        state.apply(Update::Node(node.clone()));
    }
    let placed = nodes_of(&mut state, gang).expect("a place on the third Flavor");
    assert!(
        placed.iter().all(|node| node.starts_with('w')),
        "{placed:?}"
    );
}

/// Of 16 gangs of one kind each is named when their reason changes; of 17 their Team is.
#[test]
fn of_a_class_so_many_gangs_are_named_one_by_one() {
    for (gangs, one_by_one) in [(16, true), (17, false)] {
        let mut state = state(vec![node("n0", "s/l", 8)], vec![team("a", None, limit(8))]);
        let all = [0, 1, 2, 3, 4, 5, 6, 7];
        let held = hold("p", "a", "n0", &all);
        state.apply(Update::Hold(held.clone()));
        submit(
            &mut state,
            (0..gangs).map(|at| gang(&format!("g{at:02}"), "a", 1, 8)),
        );
        decide(&mut state);
        assert!(matches!(why(&state, "g00"), Why::Quota { .. }));
        // The node is lost, and bears what is held there: now a place is what lacks.
        let borne = Hold {
            charged_to_node: true,
            ..held
        };
        state.apply(Update::Hold(borne));
        let changed = decide(&mut state).reasons_changed;
        assert!(matches!(why(&state, "g00"), Why::Placement { .. }));
        let named = (changed.gangs.len(), changed.teams.len());
        assert_eq!(named, if one_by_one { (gangs, 0) } else { (0, 1) });
    }
}

/// So many classes are tried, in order; to those behind nothing is promised.
#[test]
fn a_release_is_promised_to_one_of_the_first_16() {
    for (before, is_promised) in [(15, true), (16, false)] {
        let mut state = state(
            vec![node("n0", "s/l", 8)],
            vec![team("a", None, limit(1_000))],
        );
        let all = [0, 1, 2, 3, 4, 5, 6, 7];
        let mut ending = hold("p", "a", "n0", &all);
        state.apply(Update::Hold(ending.clone()));
        // More memory than there is, less than would be another group.
        let mut gangs: Vec<_> = (0..before)
            .map(|number| {
                let mut gang = at(number, gang(&format!("g{number:02}"), "a", 1, 8));
                gang.pods[0].resources.memory_bytes = 600 * GIB + number;
                gang
            })
            .collect();
        gangs.push(at(100, gang("last", "a", 1, 8)));
        submit(&mut state, gangs);
        decide(&mut state);
        ending.releasing = true;
        state.apply(Update::Hold(ending));
        decide(&mut state);
        let told = why(&state, "last");
        assert_eq!(matches!(told, Why::Release { .. }), is_promised, "{told:?}");
    }
}

/// Each of some gangs is a puzzle; whether one of them is to have what is released is found out for all of them together.
#[test]
fn what_is_promised_of_a_release_takes_the_steps_of_one_decision() {
    let (mut nodes, gang) = puzzle();
    // One of the lesser pods has a place there, which is one too few.
    let mut small = node("ending", "s/l", 1);
    small.allocatable.cpu_milli = 2_000;
    nodes.push(small);
    let mut state = open_state(nodes);
    let mut ending = hold("p", "research", "ending", &[0]);
    ending.resources.cpu_milli = 2_000;
    ending.releasing = true;
    state.apply(Update::Hold(ending));
    let gangs = (0..4).map(|number| {
        let mut gang = gang.clone();
        gang.uid = format!("g{number}").as_str().into();
        for (at, pod) in gang.pods.iter_mut().enumerate() {
            let name = format!("{number}-{at}");
            pod.resources.memory_bytes += number;
            pod.uid = name.as_str().into();
            pod.claims[0].uid = name.as_str().into();
        }
        gang
    });
    submit(&mut state, gangs);
    assert!(admitted(&decide(&mut state)).is_empty());
    let before = state.visited();
    let told = why(&state, "g0");
    let looks = state.visited() - before;
    assert!(
        matches!(told, Why::Placement { gave_up: true, .. }),
        "{told:?}"
    );
    assert!(
        (ONE_DECISION / 4..ONE_DECISION * 5 / 2).contains(&looks),
        "{looks} looks"
    );
}

/// To count those before a gang takes a look for every eight.
#[test]
fn the_place_in_a_line_costs_a_look_for_every_eight_gangs() {
    let mut state = state(Vec::new(), vec![team("a", None, limit(0))]);
    submit(
        &mut state,
        (0..17).map(|number| at(number, gang(&format!("g{number:02}"), "a", 1, 1))),
    );
    decide(&mut state);
    let looks = |number: usize| {
        let before = state.visited();
        let explanation = state
            .explain(&format!("g{number:02}").into())
            .expect("it waits");
        assert_eq!(explanation.position, number + 1);
        state.visited() - before
    };
    let first = looks(0);
    for (number, counted) in [(7, 0), (8, 1), (15, 1), (16, 2)] {
        assert_eq!(looks(number) - first, counted, "{number} gangs before it");
    }
}
