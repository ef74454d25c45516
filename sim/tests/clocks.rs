//! Clocks are wrong while leaders follow each other and everything else goes wrong as well: times of day by minutes, ahead and behind, set forwards and
//! backwards, and monotonic clocks by up to a tenth, those of the two controllers against each other; and times of day of nodes, by which drivers store
//! times and ranks date their checkpoints. All invariants hold. Those about time ask for what passes by the fastest clock at the least: notices, the window of the
//! breaker, how long a node is silent, and how long a pod may take before it is forced.
//!
//! Not seen here: how long a lease lasts (each holder counts that by itself, and here leases are lost by chance), the times that drivers wait for answers, and
//! what a new leader reads of a former one's time of day: the age of an admission by `max-runtime-seconds` or a minimum run time, which is shorter by as much as
//! its clock is ahead. The program goes by the clock of the API server for that.

mod directed;

use muster_sim::faults::Fault;

/// Seeds of the ordinary run.
const RUNS: u64 = 40;

/// What goes wrong where gangs give way, stand still, and lose nodes.
const FAULTS: [(Fault, u64); 10] = [
    (Fault::ClockSkews, 3),
    (Fault::ClockJumps, 12),
    (Fault::LeaseLost, 3),
    (Fault::ControllerCrash, 4),
    (Fault::ControllerUnanswered, 4),
    (Fault::WatchLag, 2),
    (Fault::Delete, 2),
    (Fault::RankFails, 2),
    (Fault::NotReady, 2),
    (Fault::LowerQuota, 1),
];

/// What goes wrong where GPUs break and pods hang.
const FAULTS_OF_MACHINES: [(Fault, u64); 11] = [
    (Fault::ClockSkews, 4),
    (Fault::ClockJumps, 12),
    (Fault::LeaseLost, 2),
    (Fault::ControllerCrash, 3),
    (Fault::GpuBreaks, 6),
    (Fault::DriverCrash, 3),
    (Fault::NodeReboots, 1),
    (Fault::PodsHang, 4),
    (Fault::KubeletSilent, 4),
    (Fault::MachineOff, 2),
    (Fault::Delete, 4),
];

#[test]
fn no_wrong_clock_ends_anybody_early_who_is_told_when_or_keeps_anybody_waiting_for_ever() {
    let played = directed::play(&FAULTS, "Stalls", RUNS);
    println!("{}", played.told);
    let happened = [
        ("evicted: Preempted", 1),
        ("evicted: NoProgress", 3),
        ("takeovers", 40),
    ];
    played.assert_eventful(&FAULTS, &happened);
}

#[test]
fn no_wrong_clock_opens_the_breaker_late_or_has_a_pod_forced_that_may_still_end() {
    let played = directed::play(
        &FAULTS_OF_MACHINES,
        "BrokenDevices,HungPods,HangingRanks",
        RUNS,
    );
    println!("{}", played.told);
    let happened = [("evicted: DeviceFault", 2), ("takeovers", 40)];
    played.assert_eventful(&FAULTS_OF_MACHINES, &happened);
}
