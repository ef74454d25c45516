//! Every effect meets every mishap: what a request of a controller or an operation of a driver is, what may go wrong
//! with it, and what did.
//!
//! Which pairs exist is written down once, in [`EffectKind::meets`]; a run aims at one pair of its seed's choice, so
//! that over many seeds each is met, and a pair that is not has a name.

use std::{collections::BTreeMap, fmt};

use muster_api::GangStatus;
use muster_protocol::ApiRequest;

/// What a controller or a driver asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum EffectKind {
    /// A controller reads one object uncached.
    ReadObject,
    /// A controller lists a kind, and watches it from there.
    ReadAll,
    /// A controller creates the Ledger.
    CreateLedger,
    /// A controller commits.
    ReplaceLedger,
    /// A controller creates a Gang.
    CreateGang,
    /// A controller writes the status of a Gang.
    ReplaceGangStatus,
    /// A controller writes to a Gang what the Ledger is to name.
    ProposeToGang,
    /// A controller deletes a Gang that ended.
    DeleteGang,
    /// A controller creates a `NodeDevices`.
    CreateNodeDevices,
    /// A controller writes permits.
    ReplaceNodeDevices,
    /// A controller removes the `NodeDevices` of a node that is gone.
    DeleteNodeDevices,
    /// A controller lets a pod go, stamps or nudges it.
    PatchPod,
    /// A controller tells a pod that it is evicted.
    PatchPodStatus,
    /// A controller deletes a pod that is evicted.
    DeletePod,
    /// A controller suspends a Job, resumes it, or raises its limit of failures.
    PatchJob,
    /// A controller writes a Queue.
    PublishQueue,
    /// A controller deletes a Queue.
    DeleteQueue,
    /// A controller publishes an Event.
    PublishEvent,
    /// A driver looks at a GPU, or takes the lock.
    DriverLock,
    /// A driver reads its disk, and `NodeDevices` where it must.
    DriverLook,
    /// A driver writes to its disk, or gives the lock back.
    DriverCommit,
    /// A driver is told what came of its commit.
    DriverHear,
    /// A driver reads a claim.
    DriverReadClaim,
    /// A driver reads `NodeDevices` uncached.
    DriverReadNodeDevices,
    /// A driver gathers what may be prepared.
    DriverGather,
    /// A driver writes its status.
    DriverWriteStatus,
    /// A driver answers its kubelet.
    DriverAnswer,
    /// A driver publishes taints.
    DriverTaint,
    /// A driver makes or removes slices. Clusters here have none: `tests/slices` plays them.
    DriverSlices,
}

/// What goes wrong with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Mishap {
    /// Its sender crashes before it is sent.
    CrashBefore,
    /// It is done, and its sender crashes before it hears of it.
    CrashAfter,
    /// It is said to conflict.
    Conflict,
    /// It is not done, and not answered.
    NotDone,
    /// It is done, and the answer is lost.
    AnswerLost,
    /// It is done later, and the answer is lost.
    DoneLate,
    /// It is done and answered, and arrives once more later.
    Duplicated,
    /// It is refused: by a policy, a webhook, a missing right, or a full disk.
    Refused,
    /// Its sender goes by a view of its object that is older than the object.
    StaleRead,
}

/// Every kind of effect that clusters of whole GPUs have.
pub const EFFECTS: [EffectKind; 28] = [
    EffectKind::ReadObject,
    EffectKind::ReadAll,
    EffectKind::CreateLedger,
    EffectKind::ReplaceLedger,
    EffectKind::CreateGang,
    EffectKind::ReplaceGangStatus,
    EffectKind::ProposeToGang,
    EffectKind::DeleteGang,
    EffectKind::CreateNodeDevices,
    EffectKind::ReplaceNodeDevices,
    EffectKind::DeleteNodeDevices,
    EffectKind::PatchPod,
    EffectKind::PatchPodStatus,
    EffectKind::DeletePod,
    EffectKind::PatchJob,
    EffectKind::PublishQueue,
    EffectKind::DeleteQueue,
    EffectKind::PublishEvent,
    EffectKind::DriverLock,
    EffectKind::DriverLook,
    EffectKind::DriverCommit,
    EffectKind::DriverHear,
    EffectKind::DriverReadClaim,
    EffectKind::DriverReadNodeDevices,
    EffectKind::DriverGather,
    EffectKind::DriverWriteStatus,
    EffectKind::DriverAnswer,
    EffectKind::DriverTaint,
];

/// Every kind of effect that the drivers of one node have, whose GPUs can be cut: `tests/slices` plays them.
pub const DRIVER_EFFECTS: [EffectKind; 11] = [
    EffectKind::DriverLock,
    EffectKind::DriverLook,
    EffectKind::DriverCommit,
    EffectKind::DriverHear,
    EffectKind::DriverReadClaim,
    EffectKind::DriverReadNodeDevices,
    EffectKind::DriverGather,
    EffectKind::DriverWriteStatus,
    EffectKind::DriverAnswer,
    EffectKind::DriverTaint,
    EffectKind::DriverSlices,
];

/// Effects that too few of the histories drawn here have for each of their pairs to be met: most owners are Jobs that are not
/// evicted, and nodes that are gone come back soon.
const RARE: [EffectKind; 4] = [
    EffectKind::DeleteNodeDevices,
    EffectKind::PatchPodStatus,
    EffectKind::DeletePod,
    EffectKind::PatchJob,
];

/// Every mishap.
pub const MISHAPS: [Mishap; 9] = [
    Mishap::CrashBefore,
    Mishap::CrashAfter,
    Mishap::Conflict,
    Mishap::NotDone,
    Mishap::AnswerLost,
    Mishap::DoneLate,
    Mishap::Duplicated,
    Mishap::Refused,
    Mishap::StaleRead,
];

impl EffectKind {
    /// What a request of a controller is.
    pub fn of(request: &ApiRequest) -> Self {
        match request {
            ApiRequest::ReadObject { .. } => Self::ReadObject,
            ApiRequest::ReadAll { .. } => Self::ReadAll,
            ApiRequest::CreateLedger { .. } => Self::CreateLedger,
            ApiRequest::ReplaceLedger { .. } => Self::ReplaceLedger,
            ApiRequest::CreateGang { .. } => Self::CreateGang,
            ApiRequest::ReplaceGangStatus { status, tells, .. } if !tells && proposes(status) => {
                Self::ProposeToGang
            }
            ApiRequest::ReplaceGangStatus { .. } => Self::ReplaceGangStatus,
            ApiRequest::DeleteGang { .. } => Self::DeleteGang,
            ApiRequest::CreateNodeDevices { .. } => Self::CreateNodeDevices,
            ApiRequest::ReplaceNodeDevices { .. } => Self::ReplaceNodeDevices,
            ApiRequest::DeleteNodeDevices { .. } => Self::DeleteNodeDevices,
            ApiRequest::PatchPod { .. } => Self::PatchPod,
            ApiRequest::PatchPodStatus { .. } => Self::PatchPodStatus,
            ApiRequest::DeletePod { .. } | ApiRequest::ForceDeletePod { .. } => Self::DeletePod,
            ApiRequest::PatchJob { .. } => Self::PatchJob,
            ApiRequest::PublishQueue { .. }
            | ApiRequest::PublishTeam { .. }
            | ApiRequest::PublishCohort { .. }
            | ApiRequest::PublishFlavor { .. }
            | ApiRequest::PublishPriorityTier { .. } => Self::PublishQueue,
            ApiRequest::DeleteQueue { .. } => Self::DeleteQueue,
            ApiRequest::PublishEvent(_) => Self::PublishEvent,
        }
    }

    /// Whether such a mishap can happen to it at all. Whoever asks for something can crash at any time.
    pub fn meets(self, mishap: Mishap) -> bool {
        let besides: &[Mishap] = match self {
            // An uncached read has no precondition, changes nothing, and is of no use to anybody when it comes late.
            Self::ReadObject
            | Self::ReadAll
            | Self::DriverReadClaim
            | Self::DriverReadNodeDevices => &[Mishap::NotDone, Mishap::Refused],
            Self::DriverLook => &[Mishap::NotDone],
            // The disk answers always, and says no when it is full.
            Self::DriverCommit | Self::DriverSlices => &[Mishap::Refused],
            // What happens inside a node, or is published again whenever it is found otherwise.
            Self::DriverLock
            | Self::DriverHear
            | Self::DriverGather
            | Self::DriverAnswer
            | Self::DriverTaint => &[],
            Self::PublishEvent => &[
                Mishap::NotDone,
                Mishap::AnswerLost,
                Mishap::DoneLate,
                Mishap::Duplicated,
                Mishap::Refused,
            ],
            // Not made from a view of their object: it does not exist yet, is known by its name alone, or has ended.
            Self::CreateLedger
            | Self::CreateGang
            | Self::CreateNodeDevices
            | Self::PublishQueue
            | Self::DeleteQueue
            | Self::DeletePod
            | Self::DeleteGang
            | Self::DeleteNodeDevices => &[
                Mishap::Conflict,
                Mishap::NotDone,
                Mishap::AnswerLost,
                Mishap::DoneLate,
                Mishap::Duplicated,
                Mishap::Refused,
            ],
            Self::ReplaceLedger
            | Self::ReplaceGangStatus
            | Self::ProposeToGang
            | Self::ReplaceNodeDevices
            | Self::PatchPod
            | Self::PatchPodStatus
            | Self::PatchJob
            | Self::DriverWriteStatus => &MISHAPS,
        };
        matches!(mishap, Mishap::CrashBefore | Mishap::CrashAfter) || besides.contains(&mishap)
    }
}

/// Whether the Gang carries a proposal for the attempt that it is in.
fn proposes(status: &GangStatus) -> bool {
    let proposal = status.proposal.as_ref();
    proposal.is_some_and(|proposal| proposal.attempt == status.attempt)
}

/// How often each effect met each mishap.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Matrix {
    met: BTreeMap<(EffectKind, Mishap), u64>,
}

impl Matrix {
    /// An effect met a mishap.
    pub fn note(&mut self, effect: EffectKind, mishap: Mishap) {
        *self.met.entry((effect, mishap)).or_default() += 1;
    }

    /// Adds what another run met.
    pub fn add(&mut self, other: &Self) {
        for (pair, times) in &other.met {
            *self.met.entry(*pair).or_default() += times;
        }
    }

    /// Pairs that exist and were not met, by name; those that are rare left out.
    pub fn missing(&self) -> Vec<String> {
        self.missing_of(EFFECTS.into_iter().filter(|effect| !RARE.contains(effect)))
    }

    /// Pairs of these effects that exist and were not met, by name.
    pub fn missing_of(&self, effects: impl IntoIterator<Item = EffectKind>) -> Vec<String> {
        pairs_of(effects)
            .into_iter()
            .filter(|pair| !self.met.contains_key(pair))
            .map(|(effect, mishap)| format!("{effect:?} x {mishap:?}"))
            .collect()
    }

    /// How often an effect met a mishap.
    pub fn times(&self, effect: EffectKind, mishap: Mishap) -> u64 {
        let times = self.met.get(&(effect, mishap));
        times.copied().unwrap_or_default()
    }
}

/// All pairs that exist in clusters of whole GPUs.
pub fn pairs() -> Vec<(EffectKind, Mishap)> {
    pairs_of(EFFECTS)
}

/// All pairs of these effects that exist.
pub fn pairs_of(effects: impl IntoIterator<Item = EffectKind>) -> Vec<(EffectKind, Mishap)> {
    effects
        .into_iter()
        .flat_map(|effect| MISHAPS.map(|mishap| (effect, mishap)))
        .filter(|(effect, mishap)| effect.meets(*mishap))
        .collect()
}

impl fmt::Display for Matrix {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{:22}", "")?;
        for mishap in MISHAPS {
            write!(formatter, "{:>12}", format!("{mishap:?}"))?;
        }
        writeln!(formatter)?;
        for effect in EFFECTS {
            write!(formatter, "{:22}", format!("{effect:?}"))?;
            for mishap in MISHAPS {
                let cell = if effect.meets(mishap) {
                    self.times(effect, mishap).to_string()
                } else {
                    "-".to_owned()
                };
                write!(formatter, "{cell:>12}")?;
            }
            writeln!(formatter)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pair_that_was_not_met_has_a_name() {
        let mut matrix = Matrix::default();
        for (effect, mishap) in pairs() {
            if (effect, mishap) != (EffectKind::PatchPod, Mishap::DoneLate) {
                matrix.note(effect, mishap);
            }
        }
        assert_eq!(matrix.missing(), ["PatchPod x DoneLate"]);
    }

    #[test]
    fn what_clusters_of_whole_gpus_met_does_not_stand_for_slices() {
        let mut matrix = Matrix::default();
        for (effect, mishap) in pairs() {
            matrix.note(effect, mishap);
        }
        assert_eq!(
            matrix.missing_of(DRIVER_EFFECTS),
            [
                "DriverSlices x CrashBefore",
                "DriverSlices x CrashAfter",
                "DriverSlices x Refused"
            ]
        );
        for effect in DRIVER_EFFECTS {
            let is_of_slices = effect == EffectKind::DriverSlices;
            assert_ne!(EFFECTS.contains(&effect), is_of_slices, "{effect:?}");
        }
    }
}
