//! What goes wrong, and how often at most.

use std::collections::BTreeMap;

use crate::{
    matrix::{self, EffectKind, Mishap},
    random::Random,
    scenario::{Hardship, Hardships, apart},
};

/// A kind of fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Fault {
    /// The leader loses the lease, lives on, and its watches of any kinds stand still.
    LeaseLost,
    /// The leader crashes before or after a write.
    ControllerCrash,
    /// A write of the leader is not done, or done, or done later, and never answered.
    ControllerUnanswered,
    /// A write of the leader is said to conflict.
    ControllerConflict,
    /// A watch of the leader stands still.
    WatchLag,
    /// A list that a leader asks for comes late, as it was when it was read.
    StaleList,
    /// A watch of the leader tells its last change once more.
    WatchRepeats,
    /// An instance of a driver crashes, also between two writes to the disk.
    DriverCrash,
    /// A second instance of a driver starts beside the first.
    DriverUpdate,
    /// A request of a driver is not done, or done, or done later, and never answered.
    DriverUnanswered,
    /// A driver's disk refuses a write.
    DiskFull,
    /// A driver's checkpoint is lost.
    CheckpointLost,
    /// An instance of a driver does nothing for a while.
    DriverPause,
    /// A kubelet restarts.
    KubeletRestart,
    /// A kubelet loses its checkpoint, and restarts: it forgets which claims it had prepared.
    KubeletForgets,
    /// A kubelet does nothing for a while.
    KubeletPause,
    /// A user deletes a pod by force.
    ForceDelete,
    /// A user deletes a pod.
    Delete,
    /// A user deletes a Gang object.
    DeleteGang,
    /// An administrator deletes a `NodeDevices`.
    DeleteNodeDevices,
    /// An administrator deletes the `Ledger`.
    DeleteLedger,
    /// A user deletes a whole gang.
    Cancel,
    /// A user deletes a claim, and the pod gets another.
    SwapClaim,
    /// A rank fails.
    RankFails,
    /// A Namespace leaves its Team for a while.
    LeaveTeam,
    /// An administrator cordons a node for a while.
    Cordon,
    /// An administrator lowers the limits of a Team for a while.
    LowerQuota,
    /// A node is not Ready for a while, and its kubelet does nothing.
    NotReady,
    /// A Node object is deleted, and made again under its name; what runs there lives on.
    NodeMadeAgain,
    /// A machine is lost with all that runs on it, and another one comes up under its name.
    MachineLost,
    /// A user suspends a Job for a while.
    SuspendJob,
    /// A user resumes a Job that somebody suspended.
    ResumeJob,
    /// Images of pods that come to a node for a while never arrive.
    ImageMissing,
    /// A machine dies, and its Node stays: for five minutes nothing happens, then its pods are deleted, which nobody there
    /// hears. Later it boots, or an administrator says that it is out of service.
    MachineDies,
    /// The same, once its pods were deleted. It is not drawn, but follows.
    MachineStaysDead,
    /// An administrator holds a Team for a while.
    HoldTeam,
    /// An administrator holds and drains a Team for a while.
    DrainTeam,
    /// A user changes the tier of a gang.
    ChangeTier,
    /// The history of the API server is compacted.
    Compaction,
    /// The one effect that the seed aims at meets the one mishap that it aims at.
    Aimed,
    /// A GPU has a fault for a while, and its driver says so. The rank on it may die of that.
    GpuBreaks,
    /// The leader's watch of what drivers publish stands still.
    SliceWatchLag,
    /// A machine is started anew, with its disk: what ran there has failed.
    NodeReboots,
    /// An administrator has recovery only observe for a while: whoever leads is started anew with it.
    RecoveryObserves,
    /// Nobody reaches the API server for some minutes, or everything of ours is away: what runs goes on. Then the kubelets come
    /// back one by one.
    Outage,
    /// No container of a node that is told to end does for a while, though the node is Ready.
    PodsHang,
    /// A kubelet is silent for longer than anybody waits for it, and what runs there lives on.
    KubeletSilent,
    /// A machine is switched off, and its administrator says that it is out of service, until it boots.
    MachineOff,
    /// An administrator drains a node by the taint for it for a while.
    DrainNode,
    /// An administrator drains a device by a rule for a while.
    DrainDevice,
    /// The leader's watch of rules about devices stands still.
    RuleWatchLag,
    /// The clocks of a machine are wrong from now on: its time of day by minutes, and the rate of its monotonic clock by up to a tenth. Those of the two controllers' are
    /// as wrong the other way round.
    ClockSkews,
    /// Somebody sets the time of day of a machine forwards or backwards, by minutes. The monotonic clock goes on.
    ClockJumps,
}

/// Every kind of fault.
pub const FAULTS: [Fault; 51] = [
    Fault::LeaseLost,
    Fault::ControllerCrash,
    Fault::ControllerUnanswered,
    Fault::ControllerConflict,
    Fault::WatchLag,
    Fault::StaleList,
    Fault::WatchRepeats,
    Fault::DriverCrash,
    Fault::DriverUpdate,
    Fault::DriverUnanswered,
    Fault::DiskFull,
    Fault::CheckpointLost,
    Fault::DriverPause,
    Fault::KubeletRestart,
    Fault::KubeletForgets,
    Fault::KubeletPause,
    Fault::ForceDelete,
    Fault::Delete,
    Fault::DeleteGang,
    Fault::DeleteNodeDevices,
    Fault::DeleteLedger,
    Fault::Cancel,
    Fault::SwapClaim,
    Fault::RankFails,
    Fault::LeaveTeam,
    Fault::Cordon,
    Fault::LowerQuota,
    Fault::NotReady,
    Fault::NodeMadeAgain,
    Fault::MachineLost,
    Fault::SuspendJob,
    Fault::ResumeJob,
    Fault::ImageMissing,
    Fault::MachineDies,
    Fault::HoldTeam,
    Fault::DrainTeam,
    Fault::ChangeTier,
    Fault::Compaction,
    Fault::GpuBreaks,
    Fault::SliceWatchLag,
    Fault::NodeReboots,
    Fault::RecoveryObserves,
    Fault::Outage,
    Fault::PodsHang,
    Fault::KubeletSilent,
    Fault::MachineOff,
    Fault::DrainNode,
    Fault::DrainDevice,
    Fault::RuleWatchLag,
    Fault::ClockSkews,
    Fault::ClockJumps,
];

/// Those that are drawn apart.
const DRAINS: [Fault; 3] = [Fault::DrainNode, Fault::DrainDevice, Fault::RuleWatchLag];
/// The same of clocks.
const CLOCKS: [Fault; 2] = [Fault::ClockSkews, Fault::ClockJumps];

/// Whether a fault is not drawn with the others.
fn is_drawn_apart(fault: Fault) -> bool {
    fault == Fault::KubeletForgets || DRAINS.contains(&fault) || CLOCKS.contains(&fault)
}

impl Fault {
    /// The hardship that it is, if it is one.
    pub fn hardship(self) -> Option<Hardship> {
        match self {
            Self::SuspendJob | Self::ResumeJob => Some(Hardship::Suspensions),
            Self::ImageMissing => Some(Hardship::MissingImages),
            Self::MachineDies | Self::MachineStaysDead => Some(Hardship::DeadMachines),
            Self::HoldTeam | Self::DrainTeam => Some(Hardship::TeamStops),
            Self::GpuBreaks
            | Self::SliceWatchLag
            | Self::NodeReboots
            | Self::RecoveryObserves
            | Self::Outage => Some(Hardship::BrokenDevices),
            Self::PodsHang | Self::KubeletSilent | Self::MachineOff => Some(Hardship::HungPods),
            Self::DrainNode | Self::DrainDevice | Self::RuleWatchLag => Some(Hardship::Drains),
            _ => None,
        }
    }
}

/// How often each may still happen, and how often it did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Faults {
    budget: BTreeMap<Fault, u64>,
    injected: BTreeMap<Fault, u64>,
    /// A fault is considered in one of so many steps; never, if 0.
    odds: u64,
    /// Nothing goes wrong before something was admitted: what happens earlier proves little.
    waits_for_admission: bool,
    /// What is to meet what, besides.
    aim: Option<(EffectKind, Mishap)>,
}

impl Faults {
    /// No faults.
    pub fn none() -> Self {
        Self::default()
    }

    /// Any faults: some kinds up to three times, others not at all, so that each meets each; and one pair of effect and
    /// mishap, of which consecutive seeds have different ones.
    pub fn draw(random: &mut Random, seed: u64, hardships: &Hardships) -> Self {
        let is_borne = |fault: &Fault| fault.hardship().is_none_or(|it| hardships.have(it));
        let mut budget: BTreeMap<Fault, u64> = FAULTS
            .into_iter()
            .filter(is_borne)
            .filter(|fault| !is_drawn_apart(*fault))
            .map(|fault| (fault, random.below(4).saturating_sub(random.below(2))))
            .collect();
        // What a kubelet forgets is found only minutes later, and nothing else goes on there until then.
        if seed.is_multiple_of(4) {
            budget.insert(Fault::KubeletForgets, 2);
        }
        if hardships.have(Hardship::Drains) && apart::is_drawn(seed, apart::DRAINS) {
            let mut own = apart::stream(seed, apart::DRAINS.rotate_left(1));
            budget.extend(DRAINS.map(|fault| (fault, own.between(1, 2))));
        }
        if apart::is_drawn(seed, apart::CLOCKS) {
            let mut own = apart::stream(seed, apart::CLOCKS.rotate_left(1));
            budget.extend(CLOCKS.map(|fault| (fault, own.between(1, 3))));
        }
        budget.insert(Fault::Aimed, 3);
        let pairs = matrix::pairs();
        let aim = usize::try_from(seed).map_or(0, |seed| seed % pairs.len());
        // What brings about effects that are rare by themselves.
        match pairs.get(aim) {
            Some((EffectKind::DeleteQueue, _)) => budget.insert(Fault::LeaveTeam, 8),
            Some((EffectKind::DriverReadNodeDevices, _)) => budget.insert(Fault::DriverPause, 12),
            _ => None,
        };
        Self {
            budget,
            injected: BTreeMap::new(),
            odds: random.between(10, 60),
            waits_for_admission: false,
            aim: pairs.get(aim).copied(),
        }
    }

    /// Only these, and often, once something was admitted.
    pub fn directed(budget: &[(Fault, u64)]) -> Self {
        Self {
            budget: budget.iter().copied().collect(),
            injected: BTreeMap::new(),
            odds: 12,
            waits_for_admission: true,
            aim: None,
        }
    }

    /// Whether the seed aims at this effect.
    pub fn aims_at(&self, effect: EffectKind) -> bool {
        self.aim.is_some_and(|(aim, _)| aim == effect)
    }

    /// Something was admitted.
    pub fn note_admission(&mut self) {
        self.waits_for_admission = false;
    }

    /// Nothing goes wrong any more.
    pub fn heal(&mut self) {
        self.budget.clear();
    }

    /// How often each happened.
    pub fn injected(&self) -> &BTreeMap<Fault, u64> {
        &self.injected
    }

    /// Kinds that may still happen.
    pub fn left(&self) -> Vec<Fault> {
        self.budget
            .iter()
            .filter(|(_, left)| **left > 0)
            .map(|(fault, _)| *fault)
            .collect()
    }

    /// Notes that one happened.
    pub fn spend(&mut self, fault: Fault) {
        if let Some(left) = self.budget.get_mut(&fault) {
            *left = left.saturating_sub(1);
        }
        *self.injected.entry(fault).or_default() += 1;
    }

    fn takes_place(&mut self, random: &mut Random, fault: Fault) -> bool {
        let left = self.budget.get(&fault).copied().unwrap_or_default();
        let happens =
            left > 0 && self.odds > 0 && !self.waits_for_admission && random.one_in(self.odds);
        if happens {
            self.spend(fault);
        }
        happens
    }

    /// What goes wrong with a request of a controller.
    pub fn controller_mishap(&mut self, random: &mut Random, effect: EffectKind) -> Option<Mishap> {
        if let Some(mishap) = self.aimed(random, effect) {
            return Some(mishap);
        }
        if self.takes_place(random, Fault::ControllerCrash) {
            return random.pick(vec![Mishap::CrashBefore, Mishap::CrashAfter]);
        }
        if self.takes_place(random, Fault::ControllerUnanswered) {
            let mishaps = [Mishap::NotDone, Mishap::AnswerLost, Mishap::DoneLate];
            return random.pick(possible(effect, &mishaps));
        }
        let conflicts =
            effect.meets(Mishap::Conflict) && self.takes_place(random, Fault::ControllerConflict);
        conflicts.then_some(Mishap::Conflict)
    }

    /// What goes wrong with an operation of a driver.
    pub fn driver_mishap(&mut self, random: &mut Random, effect: EffectKind) -> Option<Mishap> {
        if let Some(mishap) = self.aimed(random, effect) {
            return Some(mishap);
        }
        if effect == EffectKind::DriverCommit {
            return self
                .takes_place(random, Fault::DiskFull)
                .then_some(Mishap::Refused);
        }
        let mishaps = [Mishap::NotDone, Mishap::AnswerLost, Mishap::DoneLate];
        let possible = possible(effect, &mishaps);
        if !possible.is_empty() && self.takes_place(random, Fault::DriverUnanswered) {
            return random.pick(possible);
        }
        None
    }

    /// The mishap that the seed aims at, if this is the effect that it aims at. Every other time, so that not only the
    /// first of them meets it.
    fn aimed(&mut self, random: &mut Random, effect: EffectKind) -> Option<Mishap> {
        let (_, mishap) = self
            .aim
            .filter(|(aim, mishap)| *aim == effect && *mishap != Mishap::StaleRead)?;
        let left = self.budget.get(&Fault::Aimed).copied().unwrap_or_default();
        if left == 0 || !random.one_in(2) {
            return None;
        }
        self.spend(Fault::Aimed);
        Some(mishap)
    }

    /// A fault of the surroundings, if one is due.
    pub fn due(&mut self, random: &mut Random) -> Option<Fault> {
        if self.odds == 0 || self.waits_for_admission || !random.one_in(self.odds) {
            return None;
        }
        let here = self.left().into_iter().filter(|fault| {
            !matches!(
                fault,
                Fault::Aimed
                    | Fault::ControllerCrash
                    | Fault::ControllerUnanswered
                    | Fault::ControllerConflict
                    | Fault::DriverUnanswered
                    | Fault::DiskFull
            )
        });
        random.pick(here.collect())
    }
}

fn possible(effect: EffectKind, mishaps: &[Mishap]) -> Vec<Mishap> {
    mishaps
        .iter()
        .copied()
        .filter(|mishap| effect.meets(*mishap))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clocks_go_wrong_in_some_seeds_and_all_others_mean_what_they_meant() {
        let mut wrong = 0;
        for seed in 0..400 {
            let mut random = Random::new(seed);
            let mut faults = Faults::draw(&mut random, seed, &Hardships::borne());
            let clocks: Vec<u64> = CLOCKS
                .iter()
                .filter_map(|fault| faults.budget.remove(fault))
                .collect();
            assert_eq!(
                clocks.len() == CLOCKS.len(),
                apart::is_drawn(seed, apart::CLOCKS)
            );
            assert!(clocks.iter().all(|times| (1..=3).contains(times)), "{seed}");
            wrong += usize::from(!clocks.is_empty());
            // What is drawn with the others, in the order in which it is.
            let mut others = Random::new(seed);
            for fault in FAULTS {
                let is_borne = fault
                    .hardship()
                    .is_none_or(|it| Hardships::borne().have(it));
                if !is_borne || is_drawn_apart(fault) {
                    continue;
                }
                let times = others.below(4).saturating_sub(others.below(2));
                // Of these there are more where the seed aims at what they bring about.
                if !matches!(fault, Fault::LeaveTeam | Fault::DriverPause) {
                    assert_eq!(faults.budget.get(&fault), Some(&times), "{seed}: {fault:?}");
                }
            }
        }
        assert!((60..=140).contains(&wrong), "{wrong} of 400");
    }
}
