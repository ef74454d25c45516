//! Slices of GPUs: where they go, what they are charged, and what those are told who wait for whole GPUs.

use crate::{common::*, cut_gpus::*};
use muster_engine::{Amount, Resource, State, Update, Why};

fn taken(state: &mut State, holds: impl IntoIterator<Item = muster_engine::Hold>) {
    for hold in holds {
        state.apply(Update::Hold(hold));
    }
}

fn used(state: &State, team: &str, resource: &Resource) -> Amount {
    let usage = state.usage(&team_name(team));
    let of = usage.iter().find(|usage| usage.of.resource == *resource);
    of.map_or(Amount::ZERO, |usage| usage.used)
}

#[test]
fn a_slice_is_cut_from_a_gpu_that_is_cut_then_from_a_whole_one_and_a_whole_one_is_taken_last() {
    let nodes = || {
        vec![
            cut_node("a", "s/l", 1),
            cut_node("b", "s/l", 2),
            node("c", "s/l", 1),
        ]
    };
    let one = |pod: &str, gpu| hold_part(pod, "other", "b", (gpu, ONE_SLICE, 0));
    let whole = |pod: &str, node: &str, gpu| hold_part(pod, "other", node, (gpu, ANY_GPU, 0));
    let table = [
        (vec![], "a", 142),
        (vec![one("x", 1)], "b", 142),
        (vec![one("x", 0), whole("y", "b", 1)], "b", 142),
        (vec![whole("x", "b", 0), whole("y", "b", 1)], "a", 142),
        (
            vec![whole("x", "a", 0), whole("y", "b", 0), whole("z", "b", 1)],
            "c",
            1000,
        ),
    ];
    for (holds, expected, charge) in table {
        let mut state = open_state(nodes());
        taken(&mut state, holds.clone());
        let gang = memory_gang("g", "research", 1, 1);
        assert_eq!(
            nodes_of(&mut state, gang),
            Some(vec![expected.to_owned()]),
            "{holds:?}"
        );
        assert_eq!(
            used(&state, "research", &Resource::Gpus),
            Amount(charge),
            "{holds:?}"
        );
    }
}

#[test]
fn what_is_left_of_a_gpu_decides_what_is_cut_from_it() {
    let mut state = open_state(vec![cut_node("a", "s/l", 1), cut_node("b", "s/l", 1)]);
    let mut small: Vec<_> = (4..7)
        .map(|start| hold_part(&format!("a{start}"), "other", "a", (0, ONE_SLICE, start)))
        .collect();
    small.extend(
        (0..6).map(|start| hold_part(&format!("b{start}"), "other", "b", (0, ONE_SLICE, start))),
    );
    taken(&mut state, small);
    let gang = gang_of(
        "g",
        "research",
        vec![pod("p", vec![first_of("c", &[THREE_SLICES])])],
    );
    assert_eq!(nodes_of(&mut state, gang), Some(vec!["a".to_owned()]));
    let gang = memory_gang("h", "research", 1, 1);
    assert_eq!(nodes_of(&mut state, gang), Some(vec!["b".to_owned()]));
}

#[test]
fn a_gang_of_slices_fills_a_gpu_and_none_is_promised_twice() {
    let mut state = open_state(vec![cut_node("a", "s/l", 1)]);
    assert_eq!(
        nodes_of(&mut state, memory_gang("eight", "research", 8, 1)),
        None
    );
    assert!(matches!(
        why(&state, "eight"),
        Why::PlacementImpossible { fit: 7, .. }
    ));
    state.apply(Update::NotWaiting("eight".into()));
    for (name, pods) in [("four", 4), ("three", 3)] {
        let gang = memory_gang(name, "research", pods, 1);
        submit(&mut state, [gang.clone()]);
        let decisions = decide(&mut state);
        let admission = decisions.admissions.first().expect("there is room");
        // Nothing is allocated yet.
        taken(&mut state, holds_of(&gang, admission));
        state.apply(Update::NotWaiting(gang.uid));
    }
    assert_eq!(used(&state, "research", &Resource::Gpus), Amount(7 * 142));
    assert_eq!(
        nodes_of(&mut state, memory_gang("one", "research", 1, 1)),
        None
    );
}

#[test]
fn who_asks_for_something_else_waits_until_what_is_promised_is_allocated() {
    let mut state = open_state(vec![cut_node("a", "s/l", 1)]);
    let small = memory_gang("small", "research", 1, 1);
    submit(&mut state, [small.clone()]);
    let decisions = decide(&mut state);
    let mut holds = holds_of(&small, &decisions.admissions[0]);
    taken(&mut state, holds.clone());
    state.apply(Update::NotWaiting(small.uid));
    assert_eq!(
        nodes_of(&mut state, memory_gang("large", "research", 1, 2)),
        None
    );
    let told = why(&state, "large").to_string();
    assert!(told.contains("not allocated yet"), "{told}");
    holds[0].claims[0].devices = Some(vec![device(part(0, ONE_SLICE, 0)).name]);
    taken(&mut state, holds);
    assert_eq!(admitted(&decide(&mut state)), ["large"]);
}

#[test]
fn who_wants_a_whole_gpu_is_told_that_slices_have_to_end_and_whose_they_are() {
    let mut state = open_state(vec![cut_node("a", "s/l", 1), node("b", "s/l", 1)]);
    taken(
        &mut state,
        [
            hold_part("notebook", "research", "a", (0, ONE_SLICE, 3)),
            hold("training", "research", "b", &[0]),
        ],
    );
    assert_eq!(nodes_of(&mut state, gang("whole", "research", 1, 1)), None);
    let told = why(&state, "whole").to_string();
    assert!(
        told.contains("whole GPUs wait for slices to end: 1"),
        "{told}"
    );
    // Without the other node the slices are all that lacks.
    state.apply(Update::NodeGone(node_name("b")));
    let told = why(&state, "whole").to_string();
    assert!(told.contains("used by research/notebook"), "{told}");
    state.apply(Update::HoldGone(pod_uid("notebook")));
    assert_eq!(admitted(&decide(&mut state)), ["whole"]);
}

#[test]
fn who_wants_more_memory_than_any_gpu_has_left_is_told_so() {
    let mut state = open_state(vec![cut_node("a", "s/l", 1)]);
    taken(
        &mut state,
        [
            hold_part("one", "research", "a", (0, THREE_SLICES, 0)),
            hold_part("two", "research", "a", (0, TWO_SLICES, 4)),
        ],
    );
    let small = memory_gang("small", "research", 1, 1);
    let gang = gang_of(
        "g",
        "research",
        vec![pod("p", vec![first_of("c", &[TWO_SLICES, THREE_SLICES])])],
    );
    // One memory slice and one compute slice are left, and nothing fits in them.
    submit(&mut state, [small.clone()]);
    let decisions = decide(&mut state);
    let mut holds = holds_of(&small, &decisions.admissions[0]);
    holds[0].claims[0].devices = Some(vec![device(part(0, ONE_SLICE, 6)).name]);
    taken(&mut state, holds);
    state.apply(Update::NotWaiting(small.uid));
    assert_eq!(nodes_of(&mut state, gang), None);
    let told = why(&state, "g").to_string();
    assert!(
        told.contains("enough memory on no GPU: slices in use: 1"),
        "{told}"
    );
}

/// Finding E5: what is asked of quota and what is charged is the same.
#[test]
fn a_slice_needs_quota_for_a_slice_and_a_whole_gpu_instead_of_it_for_a_whole_one() {
    let limited = |milli: i64| {
        let mut team = team("a", None, limit(0));
        for (_, quota) in &mut team.quota {
            quota.insert(
                Resource::Gpus,
                muster_engine::QuotaLimit {
                    nominal: Amount(milli),
                    ..muster_engine::QuotaLimit::default()
                },
            );
        }
        team
    };
    for (milli, on_cut, on_whole) in [
        (141, false, false),
        (142, true, false),
        (999, true, false),
        (1000, true, true),
    ] {
        for (node, expected) in [
            (cut_node("n", "s/l", 1), on_cut),
            (node("n", "s/l", 1), on_whole),
        ] {
            let mut state = state(vec![node], vec![limited(milli)]);
            let placed = nodes_of(&mut state, memory_gang("g", "a", 1, 1));
            assert_eq!(placed.is_some(), expected, "{milli}");
        }
    }
}
