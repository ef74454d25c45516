//! Many seeds, each a small cluster on which everything goes wrong, and then nothing any more.

use std::{collections::BTreeMap, fmt::Display};

use muster_sim::{
    faults::FAULTS,
    matrix::Matrix,
    run::{Options, run},
    scenario::Hardships,
    seeds::{self, Progress},
};

/// Seeds of the ordinary run: as many as a few minutes allow without optimisation. Enough for every fault.
const RUNS: u64 = 300;

/// Enough seeds for every effect to meet every mishap: `cargo xtask simulate` plays more.
const THOROUGH_RUNS: u64 = 2_000;

/// What has to happen in so many, besides.
const EVENTFUL: [&str; 23] = [
    "admitted after others gave way",
    "admitted again with another number of pods",
    "admitted with fewer pods than all",
    "evicted: DeviceFault",
    "evicted: Drained",
    "evicted: MembersChanged",
    "evicted: NoProgress",
    "evicted: NodeLost",
    "evicted: PlaceLost",
    "evicted: PodFailed",
    "evicted: Preempted",
    "evicted: QuotaShrunk",
    "evicted: StartTimeout",
    "evicted: TeamStopped",
    "forced by a fence",
    "forced by consent",
    "notices",
    "notices taken back",
    "preempted at a checkpoint",
    "takeovers while an attempt is evicted",
    "the rest of a gang admitted in a later attempt",
    "takeovers while somebody is to give way",
    "takeovers while use is recorded",
];

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

#[test]
fn no_seed_breaks_an_invariant_every_run_comes_to_rest_and_every_effect_meets_every_mishap() {
    let runs = number("MUSTER_RUNS").unwrap_or(RUNS);
    let first = number("MUSTER_SEED").unwrap_or(1);
    // Names of what only an eviction puts right, or `all` of it: every seed has these. Without, each seed draws of all.
    let names = std::env::var("MUSTER_HARDSHIPS").ok();
    let hardships = Hardships::named(names.as_deref().unwrap_or("all"));
    let hardships = hardships.expect("names of hardships");
    let options = Options {
        hardships: Some(hardships.clone()),
        draws_hardships: names.is_none(),
        trace_lines: number("MUSTER_TRACE").and_then(|lines| usize::try_from(lines).ok()),
        ..Options::default()
    };
    let mut faults = BTreeMap::new();
    let mut given_up = BTreeMap::new();
    let mut matrix = Matrix::default();
    let mut broken = Vec::new();
    let (mut steps, mut effects, mut admitted, mut finished, mut cancelled) = (0, 0, 0, 0, 0);
    let mut tally: BTreeMap<String, u64> = BTreeMap::new();
    let mut waited_for_claims = 0;
    let progress = Progress::new(runs);
    let play = |seed| {
        let mut report = run(seed, &options);
        let violation = report.violation.as_ref();
        progress.note(seed, violation.map(|it| it as &dyn Display));
        if violation.is_none() {
            // Nobody reads it, and twenty thousand of them are hundreds of megabytes.
            report.story = String::new();
        }
        report
    };
    for report in seeds::all(first..first + runs, play) {
        if report.violation.is_some() {
            broken.push(report);
            continue;
        }
        steps += report.steps;
        effects += report.effects;
        admitted += report.admitted;
        finished += report.finished;
        cancelled += report.cancelled;
        waited_for_claims += report.waited_for_claims;
        matrix.add(&report.matrix);
        for (fault, times) in report.faults {
            *faults.entry(fault).or_insert(0) += times;
        }
        for (what, times) in report.tally {
            *tally.entry(what).or_default() += times;
        }
        for (kept_by, pods) in report.given_up {
            *given_up.entry(kept_by).or_insert(0) += pods;
        }
    }
    println!(
        "{runs} seeds from {first}: {steps} steps, {effects} effects, {admitted} attempts admitted, \
         {finished} gangs finished, {cancelled} deleted by their users; faults: {faults:?}"
    );
    println!("happened: {tally:#?}");
    println!("Gangs that waited for a claim that another gang held: {waited_for_claims}");
    println!("pods given up by their users after ten minutes: {given_up:#?}");
    println!("{matrix}");
    if let Some(report) = broken.iter().min_by_key(|report| report.steps) {
        println!("{}", report.story);
        panic!(
            "{} of {runs} seeds break an invariant; the shortest, above: \
             cargo xtask test sim/seeds --runs 1 --seed {}",
            broken.len(),
            report.seed
        );
    }
    assert!(admitted > 0 && finished > 0, "nothing happened");
    if runs >= RUNS {
        let absent: Vec<_> = FAULTS
            .iter()
            .filter(|fault| fault.hardship().is_none_or(|it| hardships.have(it)))
            .filter(|fault| !faults.contains_key(*fault))
            .collect();
        assert!(
            absent.is_empty(),
            "never injected in {runs} seeds: {absent:?}"
        );
        assert!(
            waited_for_claims > 0,
            "no gang ever waited for another's claim in {runs} seeds"
        );
    }
    if runs >= THOROUGH_RUNS {
        let unseen: Vec<_> = EVENTFUL
            .iter()
            .filter(|what| !tally.contains_key(**what))
            .collect();
        assert!(
            unseen.is_empty(),
            "never happened in {runs} seeds: {unseen:?}"
        );
        let missing = matrix.missing();
        assert!(missing.is_empty(), "never met in {runs} seeds: {missing:?}");
    }
}
