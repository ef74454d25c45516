//! Nodes that are closed to a gang: it waits rather than get them.

use crate::common::*;
use muster_engine::{Gang, MOST_AVOIDED_NODES, Node, Update, Why};

fn nodes(names: &[&str]) -> Vec<Node> {
    names.iter().map(|name| node(name, "s/l", 8)).collect()
}

fn closed_on<'a>(nodes: impl IntoIterator<Item = &'a str>, mut gang: Gang) -> Gang {
    gang.topology.closed = nodes.into_iter().map(Into::into).collect();
    gang
}

fn one_node() -> Gang {
    gang("g", "research", 1, 8)
}

#[test]
fn a_gang_gets_a_node_that_is_closed_to_it_in_no_case_and_is_told_so() {
    for (closed, expected) in [
        (&[][..], Some("n0")),
        (&["n0"], Some("n1")),
        (&["n1"], Some("n0")),
        (&["n0", "n1"], None),
        (&["gone"], Some("n0")),
    ] {
        let mut state = open_state(nodes(&["n0", "n1"]));
        let gang = closed_on(closed.iter().copied(), one_node());
        let placed = nodes_of(&mut state, gang);
        let expected = expected.map(|node| vec![node.to_owned()]);
        assert_eq!(placed, expected, "{closed:?}");
        if placed.is_some() {
            continue;
        }
        // It waits, and nobody says that it never fits.
        let why = why(&state, "g");
        let Why::Placement { excluded, .. } = &why else {
            panic!("{why:?}");
        };
        let cause = "claim still prepared there for pods that were there before";
        assert_eq!(*excluded, [(cause.to_owned(), 2)]);
        for (closed, expected) in [(&["n0"][..], "n1"), (&[], "n0")] {
            let mut state = state.clone();
            let gang = closed_on(closed.iter().copied(), one_node());
            let placed = nodes_of(&mut state, gang);
            assert_eq!(placed, Some(vec![expected.to_owned()]), "{closed:?}");
        }
    }
}

#[test]
fn a_node_is_closed_to_nobody_else() {
    let mut state = open_state(nodes(&["n0"]));
    submit(
        &mut state,
        [
            closed_on(["n0"], one_node()),
            at(1, gang("other", "research", 1, 8)),
        ],
    );
    assert_eq!(admitted(&decide(&mut state)), ["other"]);
}

#[test]
fn no_pod_of_a_gang_gets_a_node_that_is_closed_to_it() {
    for pods in 1..=3 {
        let mut state = open_state(nodes(&["n0", "n1", "n2"]));
        let gang = closed_on(["n1"], gang("g", "research", pods, 8));
        let placed = nodes_of(&mut state, gang);
        assert_eq!(placed.is_some(), pods < 3, "{pods} pods");
        let placed = placed.unwrap_or_default();
        assert!(!placed.contains(&"n1".to_owned()), "{placed:?}");
    }
}

#[test]
fn a_gang_does_not_grow_onto_a_node_that_is_closed_to_it() {
    let mut state = open_state(nodes(&["n0", "n1", "n2"]));
    let mut gang = closed_on(["n1"], gang("g", "research", 3, 8));
    gang.min_count = Some(1);
    submit(&mut state, [gang]);
    let admissions = decide(&mut state).admissions;
    let on = admissions.iter().flat_map(|admission| &admission.pods);
    let on: Vec<&str> = on.map(|pod| pod.node.as_str()).collect();
    assert_eq!(on, ["n0", "n2"]);
}

#[test]
fn however_many_nodes_are_closed_those_that_are_avoided_stay_so() {
    let closed: Vec<String> = (0..=MOST_AVOIDED_NODES)
        .map(|at| format!("a{at}"))
        .collect();
    let closed: Vec<&str> = closed.iter().map(String::as_str).collect();
    let mut state = open_state(nodes(&closed));
    for node in nodes(&["n0", "n1"]) {
        state.apply(Update::Node(node));
    }
    let gang = closed_on(closed.iter().copied(), avoiding(&["n0"], one_node()));
    let placed = nodes_of(&mut state, gang.clone());
    assert_eq!(placed, Some(vec!["n1".to_owned()]));
    // Where there is no room without it, it is taken, and those are not.
    let mut state = open_state(nodes(&closed));
    for node in nodes(&["n0"]) {
        state.apply(Update::Node(node));
    }
    assert_eq!(nodes_of(&mut state, gang), Some(vec!["n0".to_owned()]));
}
