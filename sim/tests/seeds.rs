//! Many seeds, each a small cluster on which everything goes wrong, and then nothing any more.

use std::collections::BTreeMap;

use muster_sim::run::{Options, run};

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

#[test]
fn no_seed_breaks_an_invariant_and_every_run_comes_to_rest() {
    let runs = number("MUSTER_RUNS").unwrap_or(500);
    let first = number("MUSTER_SEED").unwrap_or(1);
    let options = Options {
        trace_lines: number("MUSTER_TRACE").and_then(|lines| usize::try_from(lines).ok()),
        ..Options::default()
    };
    let mut faults = BTreeMap::new();
    let mut broken = Vec::new();
    let (mut steps, mut effects, mut admitted, mut finished, mut given_up) = (0, 0, 0, 0, 0);
    for seed in first..first + runs {
        let report = run(seed, &options);
        if let Some(violation) = &report.violation {
            println!("seed {seed} breaks {violation}");
            broken.push(report);
            continue;
        }
        steps += report.steps;
        effects += report.effects;
        admitted += report.admitted;
        finished += report.finished;
        given_up += report.given_up;
        for (fault, times) in report.faults {
            *faults.entry(fault).or_insert(0) += times;
        }
    }
    println!(
        "{runs} seeds from {first}: {steps} steps, {effects} effects, {admitted} attempts admitted, \
         {finished} gangs finished, {given_up} given up by their users; faults: {faults:?}"
    );
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
}
