//! Slices and whole GPUs on one node: random histories of Prepare and Unprepare, with a crash, a full disk, a refusal of NVML or a
//! reboot between any two steps, two instances at a time, and an administrator who makes slices of his own, and who says now and then that
//! they are all his (`Static`, `Off`), or all the driver's (`Dynamic`).
//!
//! After every step S3 is judged by intervals of hardware, and what runs has its slice; in the end nothing is left (S6). Calls are
//! repeated, late and lost throughout (S10). Then each rule about slices is broken, and must be seen to be.
//!
//! `MUSTER_SEED` and `MUSTER_RUNS` choose the seeds; a failure prints its own.

mod history;

use history::{Report, play};
use muster_sim::{drivers::InjectedBug, seeds};

/// Seeds of an ordinary run.
const RUNS: u64 = 400;
/// Seeds within which a broken rule shows.
const BROKEN_RUNS: u64 = 200;

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

#[test]
fn no_history_gives_hardware_twice_takes_it_from_who_runs_or_leaves_a_slice_behind() {
    let first = number("MUSTER_SEED").unwrap_or(1);
    let runs = number("MUSTER_RUNS").unwrap_or(RUNS);
    let reports = seeds::all(first..first + runs, |seed| play(seed, None));
    let broken: Vec<&Report> = reports
        .iter()
        .filter(|report| report.violation.is_some())
        .collect();
    if let Some(report) = broken.first() {
        panic!(
            "{} of {runs} seeds; seed {}: {:?}\n{}",
            broken.len(),
            report.seed,
            report.violation,
            report.story.join("\n")
        );
    }
    let sum = |of: fn(&Report) -> u64| reports.iter().map(of).sum::<u64>();
    // What these histories are about has to happen in them.
    for (what, times) in [
        ("slices prepared", sum(|report| report.slices_prepared)),
        ("whole GPUs prepared", sum(|report| report.wholes_prepared)),
        ("crashes", sum(|report| report.crashes)),
        (
            "crashes with a GPU locked",
            sum(|report| report.crashes_while_locked),
        ),
        ("refusals of NVML", sum(|report| report.refusals)),
        ("full disks", sum(|report| report.full_disks)),
        ("reboots", sum(|report| report.reboots)),
        ("slices of an administrator", sum(|report| report.foreign)),
        ("changes of mode", sum(|report| report.mode_changes)),
        (
            "claims with an administrator's slices",
            sum(|report| report.foreign_prepared),
        ),
    ] {
        println!("{what}: {times}");
        assert!(times >= runs / 10, "{what}: only {times} in {runs} runs");
    }
}

#[test]
fn every_rule_about_slices_is_seen_when_it_is_broken() {
    for bug in InjectedBug::OF_SLICES {
        let reports = seeds::all(0..BROKEN_RUNS, |seed| play(seed, Some(bug)));
        let seen = reports.iter().find(|report| report.violation.is_some());
        let Some(report) = seen else {
            panic!("{bug:?} shows in none of {BROKEN_RUNS} seeds");
        };
        println!("{bug:?}: seed {}, {:?}", report.seed, report.violation);
    }
}
