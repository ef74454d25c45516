//! What decisions cost, by size: `cargo run --release -p muster-engine --example scale -- [NODES GANGS]`.
//!
//! Without sizes it compares 1,000 nodes and 1,000 gangs with 10,000 and 50,000. It prints and asserts nothing: tests
//! assert on what is visited, budgets are measured by the benchmarks, on a machine that does nothing else.

#![allow(clippy::print_stdout, reason = "a program that prints")]

mod generator;

use std::time::{Duration, Instant};

use generator::{FULL, Size, busy, flavor_of, gang, hold, idle, node, submit};
use muster_engine::{
    Budget, Decisions, Hold, NodeBlock, NodeFilterId, State, Timestamp, Update, Visited,
};

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

/// How often the same events are measured: of each the shortest time counts, since other programs share the machine and
/// the engine does the same each time.
const RUNS: usize = 3;

/// What happens, as it is reported.
const KINDS: [&str; 5] = [
    "  a pod of a full node ends",
    "  a pod of a spare node ends",
    "  a gang comes",
    "  a node changes",
    "  a pod begins to end",
];

/// What came of one event.
struct Measured {
    kind: usize,
    took: Duration,
    visited: Visited,
    looks: u64,
    admitted: usize,
}

/// Three events in ten are pods that end and admit somebody else; the others are gangs that come and go, nodes that are
/// cordoned and uncordoned, and pods that only wait for the proof of their release.
fn events(size: Size) {
    let mut best: Vec<Measured> = Vec::new();
    for run in 0..RUNS {
        let (mut state, built) = timed(|| busy(size));
        let ((), told) = timed(|| submit(&mut state, size));
        let (first, decided) = timed(|| decide(&mut state));
        println!(
            "cluster {built:?}, gangs {told:?}, first decision {decided:?} ({} admitted, {:?})",
            first.admissions.len(),
            first.visited
        );
        let measured = replay(&mut state, size);
        if run == 0 {
            best = measured;
        } else {
            for (best, again) in best.iter_mut().zip(measured) {
                best.took = best.took.min(again.took);
            }
        }
        if run + 1 == RUNS {
            report(&best);
            let polls = (0..1000).map(|_| timed(|| decide(&mut state)).1.as_nanos());
            Sample("idle decision", polls.collect()).print("ns");
            explain(&mut state, size);
        }
    }
}

fn replay(state: &mut State, size: Size) -> Vec<Measured> {
    let mut measured = Vec::new();
    let mut running: Vec<Hold> = generator::running(size)
        .into_iter()
        .filter(|hold| hold.claims.iter().all(|claim| claim.gpus.0 == 1000))
        .collect();
    let is_full = |hold: &Hold| {
        let mut claims = hold.claims.iter();
        claims.any(|claim| claim.flavor.as_str() == FULL)
    };
    for event in 0..EVENTS {
        let (kind, update) = match event % 10 {
            0 | 3 | 6 => {
                let full = event % 20 < 10;
                let at = (event * 131) % running.len().max(1);
                let mut all = (at..running.len()).chain(0..at);
                let found =
                    all.find(|at| running.get(*at).is_some_and(|hold| is_full(hold) == full));
                let Some(at) = found else { continue };
                let hold = running.swap_remove(at);
                (usize::from(!full), Update::HoldGone(hold.pod))
            }
            1 | 4 | 7 => {
                let number = size.gangs + event;
                let team = number.wrapping_mul(31) % size.teams();
                let gang = gang(number, team, generator::kind(number));
                (2, Update::Waiting(gang))
            }
            9 => {
                let at = (event * 173) % running.len().max(1);
                let Some(hold) = running.get_mut(at) else {
                    continue;
                };
                hold.releasing = !hold.releasing;
                (4, Update::Hold(hold.clone()))
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
        let looks = state.visited();
        let (decisions, took) = timed(|| {
            state.apply(update);
            decide(state)
        });
        for admission in &decisions.admissions {
            state.apply(Update::NotWaiting(admission.gang.clone()));
        }
        measured.push(Measured {
            kind,
            took,
            visited: decisions.visited,
            looks: state.visited() - looks,
            admitted: decisions.admissions.len(),
        });
    }
    measured
}

fn report(measured: &[Measured]) {
    let admitted: usize = measured.iter().map(|event| event.admitted).sum();
    println!("{} events, {admitted} gangs admitted", measured.len());
    let micros = |kind: Option<usize>| {
        let of_kind = measured
            .iter()
            .filter(|event| kind.is_none_or(|kind| event.kind == kind));
        of_kind.map(|event| event.took.as_micros()).collect()
    };
    Sample("event", micros(None)).print("us");
    for (kind, name) in KINDS.iter().enumerate() {
        Sample(name, micros(Some(kind))).print("us");
    }
    let visited = measured.iter().map(|event| event.visited.total() as u128);
    Sample("visited", visited.collect()).print("objects");
    let looks = measured.iter().map(|event| u128::from(event.looks));
    Sample("looks of placement", looks.collect()).print("nodes and domains");
    let most = measured.iter().max_by_key(|event| event.visited.total());
    if let Some(most) = most {
        println!(
            "most visited: {:?} ({})",
            most.visited,
            KINDS[most.kind].trim()
        );
    }
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
        for what in ["known shape", "other amounts", "new shape"] {
            let mut micros = Vec::new();
            for round in 0..50 {
                let mut gang = gang(if what == "other amounts" { round } else { 0 }, 0, kind);
                gang.uid = format!("plan-{what}-{round}").into();
                if what == "new shape" {
                    let filter = u32::try_from(round).unwrap_or(0) + 1;
                    for pod in &mut gang.pods {
                        pod.filter = NodeFilterId(filter);
                    }
                }
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
            Sample(what, micros).print(&format!("us to plan {name}"));
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
