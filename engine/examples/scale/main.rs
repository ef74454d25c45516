//! What decisions cost, by size: `cargo run --release -p muster-engine --example scale -- [NODES GANGS]`.
//!
//! Without sizes it compares 1,000 nodes and 1,000 gangs with 10,000 and 50,000. It prints and asserts nothing: tests
//! assert on what is visited, budgets are measured by the benchmarks, on a machine that does nothing else.

#![allow(clippy::print_stdout, reason = "a program that prints")]

mod generator;

use std::time::{Duration, Instant};

use generator::{FULL, Size, busy, flavor_of, gang, hold, idle, node, submit};
use muster_engine::{Budget, Decisions, NodeBlock, PodUid, State, Timestamp, Update};

const EVENTS: usize = 2000;
const DRAINED: usize = 18_000;

fn main() {
    let numbers: Vec<usize> = std::env::args()
        .skip(1)
        .filter_map(|argument| argument.parse().ok())
        .collect();
    let sizes = match numbers.as_slice() {
        [nodes, gangs, ..] => vec![Size {
            nodes: *nodes,
            gangs: *gangs,
        }],
        _ => vec![
            Size {
                nodes: 1000,
                gangs: 1000,
            },
            Size {
                nodes: 10_000,
                gangs: 50_000,
            },
        ],
    };
    for size in sizes {
        println!(
            "== {} nodes, {} gangs, {} Teams",
            size.nodes,
            size.gangs,
            size.teams()
        );
        events(size);
        plans(size);
    }
    drain(false);
    drain(true);
}

fn decide(state: &mut State) -> Decisions {
    state.decide(Timestamp(0), &Budget::UNLIMITED)
}

fn timed<T>(work: impl FnOnce() -> T) -> (T, Duration) {
    let start = Instant::now();
    let result = work();
    (result, start.elapsed())
}

/// Values in order, and what they are called.
struct Sample(&'static str, Vec<u128>);

impl Sample {
    fn print(mut self, unit: &str) {
        self.1.sort_unstable();
        let at = |share: usize| {
            self.1
                .get(self.1.len() * share / 1000)
                .copied()
                .unwrap_or(0)
        };
        println!(
            "{}: p50 {} p99 {} max {} {unit}",
            self.0,
            at(500),
            at(990),
            self.1.last().copied().unwrap_or(0)
        );
    }
}

/// Three events in ten are pods that end and admit somebody else; the others are gangs that come and go, and nodes
/// that are cordoned and uncordoned.
fn events(size: Size) {
    let (mut state, built) = timed(|| busy(size));
    let ((), told) = timed(|| submit(&mut state, size));
    let (first, decided) = timed(|| decide(&mut state));
    println!(
        "cluster {built:?}, gangs {told:?}, first decision {decided:?} ({} admitted, {:?})",
        first.admissions.len(),
        first.visited
    );
    let mut micros = Sample("event", Vec::new());
    let mut visited = Sample("visited", Vec::new());
    let mut by_kind = [
        Sample("  a pod of a full node ends", Vec::new()),
        Sample("  a pod of a spare node ends", Vec::new()),
        Sample("  a gang comes", Vec::new()),
        Sample("  a node changes", Vec::new()),
    ];
    let mut ending = generator::running(size)
        .into_iter()
        .filter(|hold| hold.claims.iter().all(|claim| claim.gpus.0 == 1000))
        .map(|hold| {
            (
                hold.pod,
                hold.claims.first().map(|claim| claim.flavor.clone()),
            )
        })
        .collect::<Vec<_>>();
    let mut admitted = 0;
    let mut most = [muster_engine::Visited::default(); 4];
    for event in 0..EVENTS {
        let (kind, update) = match event % 10 {
            0 | 3 | 6 => {
                let full = event % 20 < 10;
                let wanted = |entry: &(PodUid, Option<muster_engine::FlavorName>)| {
                    entry
                        .1
                        .as_ref()
                        .is_some_and(|flavor| (flavor.as_str() == FULL) == full)
                };
                let at = (event * 131) % ending.len().max(1);
                let found = (at..ending.len())
                    .chain(0..at)
                    .find(|at| ending.get(*at).is_some_and(wanted));
                let Some(at) = found else { continue };
                let (pod, _) = ending.swap_remove(at);
                (usize::from(!full), Update::HoldGone(pod))
            }
            1 | 4 | 7 | 9 => {
                let number = size.gangs + event;
                let team = number.wrapping_mul(31) % size.teams();
                (
                    2,
                    Update::Waiting(gang(number, team, generator::kind(number))),
                )
            }
            _ => {
                let number = (event * 97) % size.nodes;
                let mut node = node(number);
                if event % 4 < 2 && flavor_of(number) == FULL {
                    node.block = Some(NodeBlock::Cordoned);
                }
                (3, Update::Node(node))
            }
        };
        let (decisions, took) = timed(|| {
            state.apply(update);
            decide(&mut state)
        });
        admitted += decisions.admissions.len();
        for admission in &decisions.admissions {
            state.apply(Update::NotWaiting(admission.gang.clone()));
        }
        micros.1.push(took.as_micros());
        visited
            .1
            .push(u128::try_from(decisions.visited.total()).unwrap_or(0));
        by_kind[kind].1.push(took.as_micros());
        if decisions.visited.total() > most[kind].total() {
            most[kind] = decisions.visited;
        }
    }
    println!("{EVENTS} events, {admitted} gangs admitted");
    micros.print("us");
    for sample in by_kind {
        sample.print("us");
    }
    visited.print("objects");
    println!("most visited, by kind: {most:?}");
    let polls = (0..1000).map(|_| timed(|| decide(&mut state)).1.as_nanos());
    Sample("idle decision", polls.collect()).print("ns");
    explain(&mut state, size);
}

fn explain(state: &mut State, size: Size) {
    let step = (size.gangs / 500).max(1);
    let mut micros = Vec::new();
    for number in (0..size.gangs).step_by(step) {
        let uid = format!("g{number:06}").into();
        micros.push(timed(|| state.explain(&uid)).1.as_micros());
    }
    Sample("explain", micros).print("us");
}

/// A small gang's plan on the cluster, by what it asks for; its shape is known, and new.
fn plans(size: Size) {
    for (name, kind) in [
        ("1x1", (1, 1)),
        ("1x8", (1, 8)),
        ("64x8", (64, 8)),
        ("512x1", (512, 1)),
    ] {
        let mut state = idle(size);
        for number in (0..size.nodes).filter(|number| number % 10 != 0) {
            let team = "t0000";
            let taken = if number % 3 == 0 { 8 } else { 4 };
            let pod = format!("r{number}");
            state.apply(Update::Hold(hold(&pod, team, number, 0, taken)));
        }
        decide(&mut state);
        for (what, step) in [("known shape", 0), ("new shape", 1)] {
            let mut micros = Vec::new();
            for round in 0..50 {
                let mut gang = gang(round * step, 0, kind);
                gang.uid = format!("plan-{what}-{round}").into();
                let uid = gang.uid.clone();
                let (decisions, took) = timed(|| {
                    state.apply(Update::Waiting(gang));
                    decide(&mut state)
                });
                if decisions.admissions.is_empty() {
                    println!("{name}: not admitted");
                }
                micros.push(took.as_micros());
                state.apply(Update::NotWaiting(uid.clone()));
                state.undo(&uid);
                decide(&mut state);
            }
            Sample(
                if step == 0 {
                    "plan, known shape"
                } else {
                    "plan, new shape"
                },
                micros,
            )
            .print(&format!("us ({name})"));
        }
    }
}

/// Gangs of one pod, from an idle cluster.
fn drain(own_requests: bool) {
    let size = Size {
        nodes: 10_000,
        gangs: DRAINED,
    };
    let mut state = idle(size);
    for number in 0..DRAINED {
        let mut gang = gang(number, number % size.teams(), (1, 1));
        if !own_requests && let Some(pod) = gang.pods.first_mut() {
            pod.resources.memory_bytes = 1 << 34;
        }
        state.apply(Update::Waiting(gang));
    }
    let (decisions, took) = timed(|| decide(&mut state));
    println!(
        "drain of {DRAINED} gangs of one pod ({}): {took:?}, {} admitted, {:?}",
        if own_requests {
            "each with a request of its own"
        } else {
            "all alike"
        },
        decisions.admissions.len(),
        decisions.visited
    );
}
