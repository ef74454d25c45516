//! GPUs break while everything else goes wrong as well: whoever holds them goes, once, and nobody else (S8, S9, S10); what is published of a fault
//! falls only when it is mended (S7); nobody goes for a node that was silent in an outage, or where recovery only observes (S18); and with every crash, late answer and watch that
//! stands still all other invariants hold.

mod directed;

use muster_sim::faults::Fault;

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

/// What is borne besides.
const HARDSHIPS: &str = "BrokenDevices,HangingRanks";
/// How often gangs are evicted for faults at the least, in as many seeds as usual.
const EVENTFUL: [(&str, u64); 1] = [("evicted: DeviceFault", 5)];

#[test]
fn a_fault_costs_whoever_holds_the_device_one_attempt_whatever_else_goes_wrong() {
    let played = directed::play(&FAULTS, HARDSHIPS, RUNS);
    println!("{}", played.told);
    played.assert_eventful(&FAULTS, &EVENTFUL);
}

#[test]
fn a_fault_stands_until_it_is_mended_whichever_drivers_and_machines_go_and_come_back() {
    let played = directed::play(&FAULTS_OF_DRIVERS, HARDSHIPS, RUNS_OF_DRIVERS);
    println!("{}", played.told);
    played.assert_eventful(&FAULTS_OF_DRIVERS, &EVENTFUL);
}
