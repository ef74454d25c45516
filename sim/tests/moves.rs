//! Administrators drain nodes and devices by hand, and gangs stand still, while everything else goes wrong as well. Who holds what is drained is moved whole,
//! once for each drain, where the administrator wants that, and nobody else ever; who stands still is started anew once for each time, and nobody who makes
//! progress in time. With all crashes, late answers and watches that stand still all other invariants hold, and everything comes to rest.

mod directed;

use muster_sim::faults::Fault;

/// Seeds of the ordinary run.
const RUNS: u64 = 60;

/// What goes wrong with drains.
const FAULTS_OF_DRAINS: [(Fault, u64); 13] = [
    (Fault::Cordon, 2),
    (Fault::DrainNode, 2),
    (Fault::DrainDevice, 3),
    (Fault::RuleWatchLag, 1),
    (Fault::WatchLag, 2),
    (Fault::WatchRepeats, 2),
    (Fault::LeaseLost, 1),
    (Fault::ControllerCrash, 2),
    (Fault::ControllerUnanswered, 3),
    (Fault::ControllerConflict, 2),
    (Fault::RecoveryObserves, 1),
    (Fault::RankFails, 1),
    (Fault::NodeMadeAgain, 1),
];

/// What goes wrong with gangs that stand still.
const FAULTS_OF_STALLS: [(Fault, u64); 10] = [
    (Fault::WatchLag, 3),
    (Fault::WatchRepeats, 2),
    (Fault::LeaseLost, 2),
    (Fault::ControllerCrash, 3),
    (Fault::ControllerUnanswered, 6),
    (Fault::ControllerConflict, 3),
    (Fault::RecoveryObserves, 1),
    (Fault::Outage, 1),
    (Fault::Delete, 1),
    (Fault::KubeletRestart, 2),
];

#[test]
fn who_holds_what_is_drained_is_moved_whole_and_once_and_nobody_else_is() {
    let played = directed::play(&FAULTS_OF_DRAINS, "Drains", RUNS);
    println!("{}", played.told);
    played.assert_eventful(&FAULTS_OF_DRAINS, &[("evicted: Drained", 20)]);
}

#[test]
fn who_stands_still_is_started_anew_once_and_nobody_who_makes_progress_is() {
    let played = directed::play(&FAULTS_OF_STALLS, "Stalls", RUNS);
    println!("{}", played.told);
    played.assert_eventful(&FAULTS_OF_STALLS, &[("evicted: NoProgress", 10)]);
}
