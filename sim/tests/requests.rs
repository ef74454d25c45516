//! The requests that the shipping controller makes of what its machine asks for.

use std::collections::BTreeSet;

use muster_sim::{
    run::{Options, Report, Writes, run},
    seeds,
};

/// Enough that every kind of write is met.
const RUNS: u64 = 40;
/// Every kind of write but the list of a kind, which is its watch's.
const KINDS: [&str; 20] = [
    "CreateGang",
    "CreateLedger",
    "CreateNodeDevices",
    "DeleteGang",
    "DeleteNodeDevices",
    "DeletePod",
    "DeleteQueue",
    "PatchJob",
    "PatchPod",
    "PatchPodStatus",
    "PublishCohort",
    "PublishEvent",
    "PublishFlavor",
    "PublishPriorityTier",
    "PublishQueue",
    "PublishTeam",
    "ReadObject",
    "ReplaceGangStatus",
    "ReplaceLedger",
    "ReplaceNodeDevices",
];

fn play(seed: u64, writes: Writes) -> Report {
    let options = Options {
        writes,
        trace_lines: Some(100_000),
        ..Options::default()
    };
    run(seed, &options)
}

/// Every write, with its outcome and what follows, is a line of the story.
#[track_caller]
fn assert_same(requested: &Report, applied: &Report) {
    let seed = requested.seed;
    let mut lines = requested.story.lines().zip(applied.story.lines());
    let differ = lines.find(|(requested, applied)| requested != applied);
    assert_eq!(differ, None, "seed {seed}: by requests, and done directly");
    assert_eq!(requested.violation, applied.violation, "seed {seed}");
    assert_eq!(requested.steps, applied.steps, "seed {seed}");
}

#[test]
fn a_run_is_the_same_whether_its_writes_are_requested_or_done_directly() {
    let reports = seeds::all(1..1 + RUNS, |seed| {
        (play(seed, Writes::Requested), play(seed, Writes::Applied))
    });
    let mut met = BTreeSet::new();
    for (requested, applied) in &reports {
        assert_same(requested, applied);
        assert!(applied.requested.is_empty());
        met.extend(requested.requested.keys().copied());
    }
    assert_eq!(met, BTreeSet::from(KINDS), "in {RUNS} seeds");
}
