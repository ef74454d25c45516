//! Rules whose moment is brought about. One script is many schedules: what it does not speak of is drawn.

use muster_sim::{
    controllers::InjectedBug as Controllers,
    drivers::InjectedBug as Drivers,
    run::{Options, Planted, Report, run},
    script::Script,
};

use crate::scripts;

/// Seeds that each script is played with.
const SEEDS: u64 = 10;

/// Rules, broken together, and the schedule that shows it.
struct Case {
    planted: Vec<Planted>,
    name: &'static str,
    script: Script,
    /// Whether it shows in the end only (S6), with no step wrong by itself.
    shows_in_the_end: bool,
    /// What is to see it, if one check alone is meant for it.
    invariant: Option<&'static str>,
}

impl Case {
    /// This invariant sees it, and no other: else nothing would show that its check can fail.
    fn by(self, invariant: &'static str) -> Self {
        Self {
            invariant: Some(invariant),
            ..self
        }
    }
}

macro_rules! case {
    ($($planted:expr),+ => $module:ident::$script:ident) => {
        Case {
            planted: vec![$($planted),+],
            name: stringify!($script),
            script: scripts::$module::$script(),
            shows_in_the_end: false,
            invariant: None,
        }
    };
}

fn cases() -> Vec<Case> {
    let controllers = Planted::Controller;
    let drivers = Planted::Driver;
    vec![
        case!(controllers(Controllers::NoStampGated) => leaders::a_pod_is_let_go_late),
        case!(controllers(Controllers::VoidWithoutNodeDevices) => leaders::a_permit_is_written_late),
        case!(
            controllers(Controllers::IntentDropsEarly)
            => leaders::a_permit_is_written_late_for_a_pod_that_is_gone
        ),
        case!(controllers(Controllers::EpochNotRaised) => leaders::a_permit_is_written_late),
        case!(controllers(Controllers::PermitsUnproved) => leaders::node_devices_are_made_late),
        case!(
            controllers(Controllers::ReleaseOnVanished)
            => instances::a_status_arrives_at_the_successor_of_its_object
        ),
        case!(
            controllers(Controllers::ReleaseWithdrawnUnacknowledged)
            => instances::a_status_arrives_at_the_successor_of_its_object
        ),
        case!(drivers(Drivers::AckBeforeDisk) => instances::an_instance_sleeps_over_a_withdrawal),
        case!(drivers(Drivers::PrepareByOlderView) => instances::an_instance_sleeps_over_a_withdrawal),
        case!(drivers(Drivers::UidBlindAck) => instances::an_instance_sleeps_over_the_loss_of_its_object),
        case!(drivers(Drivers::NoUidInStatus) => instances::an_instance_sleeps_over_the_loss_of_its_object),
        case!(
            controllers(Controllers::NoUidInStatus), drivers(Drivers::NoUidInStatus)
            => instances::a_status_arrives_at_the_successor_of_its_object
        ),
        Case {
            shows_in_the_end: true,
            ..case!(controllers(Controllers::NoRevival) => leaders::a_gang_is_taken_for_ended)
        },
        case!(controllers(Controllers::LostLedgerUnfenced) => losses::a_permit_outlives_the_ledger_that_it_was_for),
        Case {
            shows_in_the_end: true,
            ..case!(controllers(Controllers::NoRaise) => losses::a_stamp_outlives_the_ledger_that_it_was_for)
        },
        Case {
            shows_in_the_end: true,
            ..case!(controllers(Controllers::LostIntentsForgotten) => losses::an_admission_outlives_its_intent)
        },
        case!(
            controllers(Controllers::ProposedNodesForgotten)
            => proposals::a_permit_is_written_late_for_a_gang_that_is_gone
        ),
        case!(
            controllers(Controllers::LostProposalIgnored)
            => proposals::a_permit_is_written_before_anybody_could_refuse_it
        ),
        case!(
            controllers(Controllers::FaultNotRemembered)
            => faults::a_gang_is_given_the_device_that_it_was_evicted_for
        ),
        case!(
            controllers(Controllers::EvacuatedNotCounted)
            => faults::a_third_node_has_a_fault_under_the_next_leader
        ),
        case!(controllers(Controllers::OutageIgnored) => silence::everybody_is_silent).by("S18"),
        case!(
            controllers(Controllers::SilenceNotHeldBack)
            => silence::a_node_is_silent_before_an_observer
        )
        .by("S18"),
        case!(
            controllers(Controllers::SilentNotCounted)
            => silence::a_third_node_is_silent_after_two
        )
        .by("S9"),
    ]
}

/// The rules that are broken here.
pub(crate) fn planted() -> impl Iterator<Item = Planted> {
    cases().into_iter().flat_map(|case| case.planted)
}

fn play(seed: u64, script: &Script, planted: &[Planted]) -> Report {
    let options = Options {
        script: Some(script.clone()),
        planted: planted.to_vec(),
        trace_lines: Some(400),
        ..Options::default()
    };
    run(seed, &options)
}

#[test]
fn every_rule_is_seen_when_it_is_broken_and_only_then() {
    for case in cases() {
        let mut seen = String::new();
        for seed in 1..=SEEDS {
            let intact = play(seed, &case.script, &[]);
            if let Some(violation) = intact.violation {
                panic!(
                    "{}, seed {seed}, intact: {violation}\n{}",
                    case.name, intact.story
                );
            }
            let broken = play(seed, &case.script, &case.planted);
            let named: &[&str] = if case.shows_in_the_end {
                &["S6", "L-6"]
            } else {
                &["S1", "S2", "S3", "S4", "S9", "S10", "S16", "S18"]
            };
            let is_meant = |seen: &'static str| {
                let only = case.invariant;
                named.contains(&seen) && only.is_none_or(|only| only == seen)
            };
            match broken.violation {
                Some(violation) if is_meant(violation.invariant) => {
                    seen = violation.to_string();
                }
                other => panic!(
                    "{}, seed {seed}, {:?} broken: {other:?}\n{}",
                    case.name, case.planted, broken.story
                ),
            }
        }
        println!(
            "{:?}: {}, {SEEDS} seeds, {seen}; intact: nothing",
            case.planted, case.name
        );
    }
}

#[test]
fn one_end_of_the_rule_about_the_uid_in_the_status_is_enough() {
    let script = scripts::instances::a_status_arrives_at_the_successor_of_its_object();
    for planted in [
        Planted::Controller(Controllers::NoUidInStatus),
        Planted::Driver(Drivers::NoUidInStatus),
    ] {
        for seed in 1..=SEEDS {
            let report = play(seed, &script, &[planted]);
            assert_eq!(
                report.violation, None,
                "{planted:?}, seed {seed}\n{}",
                report.story
            );
        }
    }
}

#[test]
fn a_permit_whose_gang_goes_by_another_name_now_holds_nobody_up() {
    let script = scripts::losses::a_permit_outlives_the_name_of_its_gang();
    for seed in 1..=SEEDS {
        let report = play(seed, &script, &[]);
        assert_eq!(report.violation, None, "seed {seed}\n{}", report.story);
    }
}

#[test]
fn a_moment_that_never_comes_fails_the_script() {
    let violation = play(1, &scripts::nothing_happens(), &[]).violation.unwrap();
    assert_eq!(violation.invariant, "script", "{violation}");
}
