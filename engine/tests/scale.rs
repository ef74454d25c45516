//! What decisions cost at 10,000 nodes of 8 GPUs. Prints times and asserts none: budgets are measured by the
//! benchmarks, on a machine that does nothing else.

#![allow(
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "tests"
)]

mod common;

use std::time::{Duration, Instant};

use common::*;
use muster_engine::{Node, State, Update, Why};

const SPINES: usize = 16;
const LEAVES: usize = 20;
const NODES: usize = 10_000;

fn big_cluster() -> Vec<Node> {
    let nodes = (0..NODES).map(|at| {
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
