//! Rules whose moment chance finds. So that few seeds suffice, each comes with the faults that it guards against, as in
//! the model of DESIGN section 6.

use muster_sim::{
    controllers, drivers,
    faults::{Fault, Faults},
    run::{Options, Planted, Report, run},
    scenario::{Hardship, Hardships},
    seeds,
};

/// Seeds that are tried before a bug counts as unseen.
const MOST_SEEDS: u64 = 1_000;

/// A broken rule, the faults it guards against, and what is to see it, if one check alone is meant for it.
#[derive(Clone, Copy)]
struct Case {
    planted: Planted,
    faults: &'static [(Fault, u64)],
    invariant: Option<&'static str>,
    /// Hardships that no fault of the list names.
    hardships: Option<&'static str>,
}

impl Case {
    /// This invariant sees it, and no other: else nothing would show that its check can fail.
    const fn by(self, invariant: &'static str) -> Self {
        Self {
            invariant: Some(invariant),
            ..self
        }
    }

    /// With these hardships.
    const fn with(self, hardships: &'static str) -> Self {
        Self {
            hardships: Some(hardships),
            ..self
        }
    }
}

const fn controller(bug: controllers::InjectedBug, faults: &'static [(Fault, u64)]) -> Case {
    Case {
        planted: Planted::Controller(bug),
        faults,
        invariant: None,
        hardships: None,
    }
}

const fn driver(bug: drivers::InjectedBug, faults: &'static [(Fault, u64)]) -> Case {
    Case {
        planted: Planted::Driver(bug),
        faults,
        invariant: None,
        hardships: None,
    }
}

const fn about_faults(bug: drivers::FaultBug, faults: &'static [(Fault, u64)]) -> Case {
    Case {
        planted: Planted::Faults(bug),
        faults,
        invariant: None,
        hardships: None,
    }
}

/// Leaders that follow each other quickly, and writes that arrive late.
const SUCCESSION: &[(Fault, u64)] = &[
    (Fault::LeaseLost, 6),
    (Fault::ControllerCrash, 4),
    (Fault::ControllerUnanswered, 12),
    (Fault::Delete, 6),
];
/// Pods that vanish under their containers.
const VANISHING: &[(Fault, u64)] = &[
    (Fault::ForceDelete, 6),
    (Fault::Delete, 3),
    (Fault::WatchLag, 2),
    (Fault::DriverUpdate, 4),
    (Fault::DriverCrash, 2),
];
/// Two instances of a driver, of which one sleeps while the other acknowledges.
const SLEEPING: &[(Fault, u64)] = &[
    (Fault::ForceDelete, 8),
    (Fault::DriverUpdate, 6),
    (Fault::DriverPause, 12),
    (Fault::KubeletPause, 12),
    (Fault::DriverUnanswered, 4),
];
const SWAPPING: &[(Fault, u64)] = &[(Fault::SwapClaim, 8), (Fault::WatchLag, 4)];
const LOSING_OBJECTS: &[(Fault, u64)] = &[
    (Fault::DeleteNodeDevices, 6),
    (Fault::ForceDelete, 6),
    (Fault::DeleteGang, 3),
    (Fault::DriverUpdate, 3),
];
/// Nodes that are silent for so long that they are lost, and pods that vanish from them.
const DYING: &[(Fault, u64)] = &[(Fault::NotReady, 12), (Fault::ForceDelete, 10)];
/// GPUs that break, and are mended, while nobody hears of it.
const BREAKING: &[(Fault, u64)] = &[
    (Fault::GpuBreaks, 20),
    (Fault::SliceWatchLag, 12),
    (Fault::RankFails, 6),
];
/// GPUs that break, and drivers that start anew while that stands.
const RESTARTING: &[(Fault, u64)] = &[
    (Fault::GpuBreaks, 12),
    (Fault::DriverCrash, 20),
    (Fault::DriverUpdate, 4),
];
/// Pods that do not die on nodes that are Ready.
const HANGING: &[(Fault, u64)] = &[(Fault::PodsHang, 12), (Fault::Delete, 12)];
/// Pods that do not die on nodes whose kubelets are silent.
const SILENT: &[(Fault, u64)] = &[(Fault::KubeletSilent, 12), (Fault::Delete, 12)];
/// Nodes and devices that administrators drain.
const DRAINING: &[(Fault, u64)] = &[
    (Fault::DrainNode, 10),
    (Fault::DrainDevice, 14),
    (Fault::Cordon, 6),
];
/// Gangs that stand still, or do not.
const STALLING: &[(Fault, u64)] = &[];
/// Leaders and nodes whose clocks are wrong, and are set.
const CLOCKS: &[(Fault, u64)] = &[(Fault::ClockJumps, 30), (Fault::ClockSkews, 6)];
/// Limits that fall below what is in use.
const SHRINKING: &[(Fault, u64)] = &[(Fault::LowerQuota, 12)];

fn cases() -> Vec<Case> {
    use controllers::InjectedBug as C;
    use drivers::InjectedBug as D;
    vec![
        controller(C::VoidWithoutGang, SUCCESSION),
        controller(C::ChargeLiteral, VANISHING),
        controller(C::UngateBeforePlan, &[]),
        controller(C::NoFinalizer, LOSING_OBJECTS),
        controller(C::NoFence, SUCCESSION),
        controller(C::NodeDevicesWakeNobody, &[]),
        controller(C::NoTimers, &[]),
        controller(C::ReleaseOnLostNode, DYING),
        controller(C::LeastIgnored, &[]),
        controller(C::KeepIgnored, SHRINKING),
        controller(C::NodeForDevice, BREAKING).by("S8"),
        controller(C::FaultUnconfirmed, BREAKING).by("S8"),
        controller(C::ForcedWhileReady, HANGING).by("forced"),
        controller(C::ConsentNotAsked, SILENT).by("forced"),
        controller(C::MovedWithNothing, DRAINING).by("move"),
        controller(C::NodeForDrainedDevice, DRAINING).by("S8"),
        controller(C::MovedAgain, DRAINING).by("S10"),
        controller(C::MovedInPart, DRAINING).by("S4"),
        controller(C::ProgressIgnored, STALLING)
            .with("Stalls")
            .by("stalled"),
        controller(C::StallNotForgotten, STALLING)
            .with("Stalls")
            .by("S10"),
        controller(C::NoticeByTimeOfDay, CLOCKS).by("S14"),
        controller(C::CheckpointByTimeOfDay, CLOCKS).by("S14"),
        driver(D::PermitBeforeWaitOnly, SLEEPING),
        driver(D::NoPermitCheck, SWAPPING),
        driver(D::UnprepareWithProcess, VANISHING),
        driver(D::ClaimUidUnchecked, SWAPPING),
        about_faults(drivers::FaultBug::ForgottenAtStart, RESTARTING).by("S7"),
        about_faults(drivers::FaultBug::LastEventWins, BREAKING).by("S7"),
    ]
}

/// The rules that are broken here.
pub(crate) fn planted() -> impl Iterator<Item = Planted> {
    cases().into_iter().map(|case| case.planted)
}

fn play(seed: u64, case: &Case, planted: &[Planted]) -> Report {
    let mut hardships = case.faults.iter().map(|(fault, _)| fault.hardship());
    let named = hardships.find_map(|hardship| match hardship? {
        Hardship::BrokenDevices => Some("BrokenDevices"),
        Hardship::HungPods => Some("HungPods"),
        // Whose ranks hang goes on for as long as nobody ends it.
        Hardship::Drains => Some("Drains,HangingRanks"),
        _ => None,
    });
    let options = Options {
        faults: Some(Faults::directed(case.faults)),
        hardships: case.hardships.or(named).and_then(Hardships::named),
        planted: planted.to_vec(),
        ..Options::default()
    };
    run(seed, &options)
}

/// The first seed that shows the bug. A rule about every step must be seen to break at a step: that something is left
/// over in the end would prove less. One that a check of its own is meant for must be seen by that.
///
/// # Panics
///
/// If a seed breaks something without the bug as well: that seed has found a bug that nobody planted.
fn first_seen(case: &Case, most: u64) -> Option<(u64, String)> {
    (1..=most).find_map(|seed| {
        let violation = play(seed, case, &[case.planted]).violation?;
        let intact = play(seed, case, &[]);
        assert_eq!(
            intact.violation, None,
            "{:?}, seed {seed}, intact\n{}",
            case.planted, intact.story
        );
        let in_the_end = matches!(violation.invariant, "S6" | "L-6");
        let is_meant = case.invariant.is_none_or(|it| it == violation.invariant);
        (!in_the_end && is_meant).then(|| (seed, violation.to_string()))
    })
}

#[test]
fn every_broken_rule_of_the_list_is_seen() {
    let most = std::env::var("MUSTER_RUNS")
        .ok()
        .and_then(|runs| runs.parse().ok())
        .unwrap_or(MOST_SEEDS);
    let only = std::env::var("MUSTER_ONLY").unwrap_or_default();
    let cases: Vec<Case> = cases()
        .into_iter()
        .filter(|case| format!("{:?}", case.planted).contains(&only))
        .collect();
    let numbers = 0..cases.len() as u64;
    let seen = seeds::all(numbers, |number| {
        let case = usize::try_from(number)
            .ok()
            .and_then(|number| cases.get(number));
        case.map(|case| (case.planted, first_seen(case, most)))
    });
    let mut unseen = Vec::new();
    for (planted, seen) in seen.into_iter().flatten() {
        if let Some((seed, violation)) = seen {
            println!("{planted:?}: seed {seed}, {violation}");
        } else {
            println!("{planted:?}: NOT SEEN in {most} seeds");
            unseen.push(planted);
        }
    }
    assert!(unseen.is_empty(), "not seen: {unseen:?}");
}
