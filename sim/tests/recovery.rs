//! GPUs break while everything else goes wrong as well: whoever holds them goes, once, and nobody else (S8, S9, S10); what is published of a fault
//! falls only when it is mended (S7); nobody goes for a node that was silent in an outage, or where recovery only observes (S18); and with every crash, late answer and watch that
//! stands still all other invariants hold.

use std::collections::BTreeMap;

use muster_sim::{
    faults::{Fault, Faults},
    run::{Options, run},
    scenario::Hardships,
    seeds,
};

/// Seeds of the ordinary run.
const RUNS: u64 = 60;
/// The same where drivers and machines go as well.
const RUNS_OF_DRIVERS: u64 = 40;

/// What goes wrong besides, mostly with the leader.
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

/// What goes wrong besides with drivers, machines, and everything at once.
const FAULTS_OF_DRIVERS: [(Fault, u64); 11] = [
    (Fault::GpuBreaks, 8),
    (Fault::DriverCrash, 8),
    (Fault::DriverUpdate, 4),
    (Fault::DriverPause, 4),
    (Fault::KubeletRestart, 2),
    (Fault::NodeReboots, 3),
    (Fault::RecoveryObserves, 2),
    (Fault::Outage, 1),
    (Fault::ControllerCrash, 3),
    (Fault::NodeMadeAgain, 1),
    (Fault::RankFails, 2),
];

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

/// What happened in all seeds.
struct Played {
    /// In words.
    told: String,
    /// How often each thing was done.
    tally: BTreeMap<String, u64>,
    /// How often each fault was injected.
    injected: BTreeMap<Fault, u64>,
    /// Whether there were as many seeds as usual.
    is_usual: bool,
}

/// Plays so many seeds, unless it is said how many.
///
/// # Panics
///
/// If a seed breaks an invariant.
fn play(faults: &[(Fault, u64)], usual: u64) -> Played {
    let runs = number("MUSTER_RUNS").unwrap_or(usual);
    let first = number("MUSTER_SEED").unwrap_or(1);
    let hardships = Hardships::named("BrokenDevices,HangingRanks");
    assert!(hardships.is_some(), "they have these names");
    let options = Options {
        faults: Some(Faults::directed(faults)),
        hardships,
        trace_lines: number("MUSTER_TRACE").and_then(|lines| usize::try_from(lines).ok()),
        ..Options::default()
    };
    let mut tally: BTreeMap<String, u64> = BTreeMap::new();
    let mut injected: BTreeMap<Fault, u64> = BTreeMap::new();
    let mut broken = Vec::new();
    for report in seeds::all(first..first + runs, |seed| run(seed, &options)) {
        if report.violation.is_some() {
            broken.push(report);
            continue;
        }
        for (what, times) in report.tally {
            *tally.entry(what).or_default() += times;
        }
        for (fault, times) in report.faults {
            *injected.entry(fault).or_default() += times;
        }
    }
    let violations: Vec<String> = broken
        .iter()
        .filter_map(|report| {
            Some(format!(
                "seed {}: {}",
                report.seed,
                report.violation.as_ref()?
            ))
        })
        .collect();
    let shortest = broken.iter().min_by_key(|report| report.steps);
    let story = shortest.map(|report| format!("seed {}\n{}", report.seed, report.story));
    assert!(
        broken.is_empty(),
        "{} of {runs} seeds break an invariant: {violations:#?}; the shortest: {}",
        broken.len(),
        story.unwrap_or_default()
    );
    Played {
        told: format!("{runs} seeds from {first}: {injected:?}; happened: {tally:#?}"),
        tally,
        injected,
        is_usual: runs >= usual,
    }
}

impl Played {
    /// Each fault was injected, and gangs were evicted for those of devices; in as many seeds as usual.
    fn assert_eventful(&self, faults: &[(Fault, u64)]) {
        if !self.is_usual {
            return;
        }
        for (fault, _) in faults {
            assert!(
                self.injected.contains_key(fault),
                "{fault:?} never happened"
            );
        }
        let evicted = self.tally.get("evicted: DeviceFault").copied();
        assert!(
            evicted.unwrap_or_default() >= 5,
            "hardly any gang was evicted for a fault: {:?}",
            self.tally
        );
    }
}

#[test]
fn a_fault_costs_whoever_holds_the_device_one_attempt_whatever_else_goes_wrong() {
    let played = play(&FAULTS, RUNS);
    println!("{}", played.told);
    played.assert_eventful(&FAULTS);
}

#[test]
fn a_fault_stands_until_it_is_mended_whichever_drivers_and_machines_go_and_come_back() {
    let played = play(&FAULTS_OF_DRIVERS, RUNS_OF_DRIVERS);
    println!("{}", played.told);
    played.assert_eventful(&FAULTS_OF_DRIVERS);
}
