//! Pods that do not die, kubelets that are silent and machines that are off, while everything else goes wrong as well: controllers delete by force what
//! is fenced or consented to, in time and nothing else, and with it all other invariants hold: what containers that live on hold stays charged and
//! is given to nobody (S1, S2, S3), and in the end nothing is left (S6).

mod directed;

use muster_sim::faults::Fault;

/// Seeds of the ordinary run.
const RUNS: u64 = 60;

/// What goes wrong.
const FAULTS: [(Fault, u64); 15] = [
    (Fault::PodsHang, 6),
    (Fault::KubeletSilent, 5),
    (Fault::MachineOff, 3),
    (Fault::MachineLost, 2),
    (Fault::NodeMadeAgain, 3),
    (Fault::GpuBreaks, 3),
    (Fault::Delete, 6),
    (Fault::RankFails, 3),
    (Fault::WatchLag, 3),
    (Fault::LeaseLost, 2),
    (Fault::ControllerCrash, 3),
    (Fault::ControllerUnanswered, 6),
    (Fault::ControllerConflict, 3),
    (Fault::DriverCrash, 2),
    (Fault::KubeletRestart, 2),
];

/// By whose word pods are deleted by force, and how often at the least.
const EVENTFUL: [(&str, u64); 2] = [("forced by a fence", 2), ("forced by consent", 2)];

#[test]
fn nothing_is_forced_that_may_live_and_nothing_is_released_by_force() {
    let played = directed::play(&FAULTS, "HungPods,BrokenDevices,HangingRanks", RUNS);
    println!("{}", played.told);
    played.assert_eventful(&FAULTS, &EVENTFUL);
}
