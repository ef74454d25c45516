//! GPUs break while everything else goes wrong as well: whoever holds them goes, once, and nobody else (S8, S9, S10), and with every
//! crash, late answer and watch that stands still all other invariants hold.

use std::collections::BTreeMap;

use muster_sim::{
    faults::{Fault, Faults},
    run::{Options, run},
    scenario::Hardships,
    seeds,
};

/// Seeds of the ordinary run.
const RUNS: u64 = 60;

/// What goes wrong besides.
const FAULTS: [(Fault, u64); 11] = [
    (Fault::GpuBreaks, 8),
    (Fault::SliceWatchLag, 3),
    (Fault::WatchLag, 3),
    (Fault::WatchRepeats, 3),
    (Fault::LeaseLost, 3),
    (Fault::ControllerCrash, 6),
    (Fault::ControllerUnanswered, 6),
    (Fault::ControllerConflict, 3),
    (Fault::RankFails, 2),
    (Fault::Delete, 2),
    (Fault::MachineDies, 1),
];

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

#[test]
fn a_fault_costs_whoever_holds_the_device_one_attempt_whatever_else_goes_wrong() {
    let runs = number("MUSTER_RUNS").unwrap_or(RUNS);
    let first = number("MUSTER_SEED").unwrap_or(1);
    let hardships = Hardships::named("BrokenDevices,HangingRanks");
    assert!(hardships.is_some(), "they have these names");
    let options = Options {
        faults: Some(Faults::directed(&FAULTS)),
        hardships,
        trace_lines: number("MUSTER_TRACE").and_then(|lines| usize::try_from(lines).ok()),
        ..Options::default()
    };
    let mut tally: BTreeMap<String, u64> = BTreeMap::new();
    let mut faults: BTreeMap<Fault, u64> = BTreeMap::new();
    let mut broken = Vec::new();
    for report in seeds::all(first..first + runs, |seed| run(seed, &options)) {
        if let Some(violation) = &report.violation {
            println!("seed {} breaks {violation}", report.seed);
            broken.push(report);
            continue;
        }
        for (what, times) in report.tally {
            *tally.entry(what).or_default() += times;
        }
        for (fault, times) in report.faults {
            *faults.entry(fault).or_default() += times;
        }
    }
    println!("{runs} seeds from {first}: {faults:?}");
    println!("happened: {tally:#?}");
    if let Some(report) = broken.iter().min_by_key(|report| report.steps) {
        println!("{}", report.story);
        panic!(
            "{} of {runs} seeds break an invariant; the shortest, above, is seed {}",
            broken.len(),
            report.seed
        );
    }
    if runs >= RUNS {
        let evicted = tally.get("evicted: DeviceFault").copied();
        assert!(
            evicted.unwrap_or_default() >= 5,
            "hardly any gang was evicted for a fault: {tally:?}"
        );
        for (fault, _) in FAULTS {
            assert!(faults.contains_key(&fault), "{fault:?} never happened");
        }
    }
}
