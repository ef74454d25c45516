//! Slices and whole GPUs on one node: random histories of Prepare and Unprepare, with a crash, a full disk, a refusal of NVML, an answer of
//! the API server that is lost or late, or a reboot between any two steps, two instances at a time, and an administrator who makes slices of his own, and who says now and then that
//! they are all his (`Static`, `Off`), or all the driver's (`Dynamic`).
//!
//! After every step S3 is judged by intervals of hardware, and what runs has its slice; in the end nothing is left (S6). Calls are
//! repeated, late and lost throughout (S10). In half of the histories a controller permits claims and withdraws permits, and nothing is
//! recorded without one. Then each rule about slices and permits is broken, and must be seen to be.
//!
//! Every effect of a driver, those on slices included, meets each mishap that it can meet (`EffectKind::meets`). Left out are pairs that say
//! nothing: the disk and NVML either do a thing or refuse it, and have no answer to lose, no view to be older, and nobody to write in between;
//! what happens within an instance (it takes a lock, hears, gathers, answers its kubelet) cannot fail at all. An NVML that does not answer
//! is no pair here, for it is waited for: the real driver meets it (`dra-driver/tests/driver/nvml.rs`).
//!
//! `MUSTER_SEED` and `MUSTER_RUNS` choose the seeds; a failure prints its own.

mod history;

use history::{Report, play};
use muster_sim::{
    drivers::InjectedBug,
    matrix::{self, DRIVER_EFFECTS, Matrix},
    seeds,
};

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
    if let [report] = reports.as_slice() {
        println!("{}", report.story.join("\n"));
    }
    // What these histories are about has to happen in them.
    let mut rare = Vec::new();
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
        (
            "slices prepared by a permit",
            sum(|report| report.slices_permitted),
        ),
        (
            "whole GPUs prepared by a permit",
            sum(|report| report.wholes_permitted),
        ),
        (
            "permits withdrawn from claims that are wanted",
            sum(|report| report.permits_withdrawn),
        ),
        (
            "permits removed from claims that are wanted",
            sum(|report| report.permits_lost),
        ),
    ] {
        println!("{what}: {times}");
        if times < runs / 20 {
            rare.push(what);
        }
    }
    assert!(rare.is_empty(), "seldom in {runs} runs: {rare:?}");
    let mut met = Matrix::default();
    for report in &reports {
        met.add(&report.matrix);
    }
    for (effect, mishap) in matrix::pairs_of(DRIVER_EFFECTS) {
        println!("{effect:?} x {mishap:?}: {}", met.times(effect, mishap));
    }
    // Fewer histories do not aim at every pair.
    if runs >= RUNS {
        let missing = met.missing_of(DRIVER_EFFECTS);
        assert!(missing.is_empty(), "never met in {runs} runs: {missing:?}");
    }
}

/// What keeps a claim from being recorded without a permit.
const OF_PERMITS: [InjectedBug; 3] = [
    InjectedBug::NoPermitCheck,
    InjectedBug::ClaimUidUnchecked,
    InjectedBug::PermitBeforeWaitOnly,
];

#[test]
fn every_rule_about_slices_and_permits_is_seen_when_it_is_broken() {
    for bug in InjectedBug::OF_SLICES.into_iter().chain(OF_PERMITS) {
        let reports = seeds::all(0..BROKEN_RUNS, |seed| play(seed, Some(bug)));
        let seen = reports.iter().find(|report| report.violation.is_some());
        let Some(report) = seen else {
            panic!("{bug:?} shows in none of {BROKEN_RUNS} seeds");
        };
        println!("{bug:?}: seed {}, {:?}", report.seed, report.violation);
    }
}
