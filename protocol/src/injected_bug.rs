//! Faults that can be planted into the protocol, one by one, to show that the simulator would see them.
//!
//! Each is named after a mutation, or a rule that can be left out, of the checked model of the protocol; or it is a fault that other
//! schedulers of its kind once had.
//! Without the cargo feature `injected-bugs` none can be planted and [`InjectedBugs::has`] is `false` at compile
//! time; a program that ships never has the feature.

/// A fault of the controller's side of the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum InjectedBug {
    /// A permit is released because its pod vanished, whatever the driver holds.
    ReleaseOnVanished,
    /// A permit is released once withdrawn, though the driver did not acknowledge that generation.
    ReleaseWithdrawnUnacknowledged,
    /// The driver's answer counts whichever object it is about.
    NoUidInStatus,
    /// Gated pods are not stamped before an attempt is voided.
    NoStampGated,
    /// An attempt is voided without writing the `NodeDevices` of its plan.
    VoidWithoutNodeDevices,
    /// An attempt is voided without raising the Gang.
    VoidWithoutGang,
    /// A leader takes over without raising the epoch.
    EpochNotRaised,
    /// What is withdrawn is no longer charged.
    ChargeLiteral,
    /// Pods are ungated before the Gang carries the plan.
    UngateBeforePlan,
    /// An intent leaves the Ledger as soon as the Gang carries it.
    IntentDropsEarly,
    /// `NodeDevices` have no finalizer while they have permits.
    NoFinalizer,
    /// Epochs are neither written nor heeded.
    NoFence,
    /// A Gang below its pods' attempts is not raised.
    NoRaise,
    /// A Ledger that stands for a lost one is committed to at once.
    LostLedgerUnfenced,
    /// What only a lost Ledger said about gangs that are being started is not made again.
    LostIntentsForgotten,
    /// A Gang that was declared ended too early stays so.
    NoRevival,
    /// What a driver says of its node has nothing looked at.
    NodeDevicesWakeNobody,
    /// What is to be looked at by time alone is forgotten.
    NoTimers,
    /// The nodes of an intent whose proposal is gone are not written before it leaves the Ledger.
    ProposedNodesForgotten,
    /// Gangs are admitted while nobody knows what an intent in the Ledger charges.
    LostProposalIgnored,
    /// What a pod holds is free for others as soon as it is being deleted.
    FreedAtDeletion,
    /// Once the limits of a Team were changed, what it may borrow has none.
    BorrowingLimitDropped,
    /// What was decided and is not committed yet is free for others.
    DecidedNotHeld,
    /// A leader leaves alone the pods that its predecessor was to let go.
    StartNotResumed,
    /// A write that is never answered counts as done, and is waited for.
    UnansweredCountsAsDone,
    /// A gang that was evicted begins to queue anew.
    AgeLost,
    /// Who is to give way goes at once.
    NoticeIgnored,
    /// Gangs of any tier may be preempted.
    TierIgnored,
    /// What a pod holds stays charged if it failed.
    FailedPodsKeepPermits,
    /// What a pod held on a lost node counts as released once the pod is gone.
    ReleaseOnLostNode,
    /// A gang starts with a single pod, whatever it needs at the least.
    LeastIgnored,
    /// Gangs beyond a lowered limit are evicted though their Team keeps them.
    KeepIgnored,
    /// Whoever runs on the node of a faulty device is evicted, whatever it holds.
    NodeForDevice,
    /// A gang is evicted for a fault whether or not the store says that it is there.
    FaultUnconfirmed,
    /// A gang is evicted for a fault as often as it is given the device that has it.
    FaultNotRemembered,
    /// Nodes that were evacuated before do not count for the circuit breaker.
    EvacuatedNotCounted,
    /// A pod is deleted by force though its node is Ready.
    ForcedWhileReady,
    /// Permits are added to any `NodeDevices`, by its creation too, whoever may lead by then.
    PermitsUnproved,
    /// Gangs are moved away from what is drained whatever the administrator wants.
    MovedWithNothing,
    /// Whoever holds any device of a node is moved away from the one that is drained.
    NodeForDrainedDevice,
    /// A gang that was moved counts as being where it was.
    MovedAgain,
    /// Only the pods on the node that is drained are ended.
    MovedInPart,
    /// A gang that tells of progress counts as telling the same.
    ProgressIgnored,
    /// How long a gang told the same counts on when it is started anew.
    StallNotForgotten,
    /// A pod is deleted by force without its owner's consent.
    ConsentNotAsked,
    /// It is by the time of day that the notice of who is to give way is over.
    NoticeByTimeOfDay,
    /// A checkpoint counts as written since the notice if it is dated later, whatever the clocks say that date the two.
    CheckpointByTimeOfDay,
    /// What is concluded from the silence of a node is so though so many are silent that it must be an outage.
    OutageIgnored,
    /// A gang is evicted since its node is silent though nothing is to be ended without proof.
    SilenceNotHeldBack,
    /// Nodes that are evacuated since they are silent do not count for the circuit breaker.
    SilentNotCounted,
}

impl InjectedBug {
    /// All of them.
    pub const ALL: [Self; 50] = [
        Self::ReleaseOnVanished,
        Self::ReleaseWithdrawnUnacknowledged,
        Self::NoUidInStatus,
        Self::NoStampGated,
        Self::VoidWithoutNodeDevices,
        Self::VoidWithoutGang,
        Self::EpochNotRaised,
        Self::ChargeLiteral,
        Self::UngateBeforePlan,
        Self::IntentDropsEarly,
        Self::NoFinalizer,
        Self::NoFence,
        Self::NoRaise,
        Self::LostLedgerUnfenced,
        Self::LostIntentsForgotten,
        Self::NoRevival,
        Self::NodeDevicesWakeNobody,
        Self::NoTimers,
        Self::ProposedNodesForgotten,
        Self::LostProposalIgnored,
        Self::FreedAtDeletion,
        Self::BorrowingLimitDropped,
        Self::DecidedNotHeld,
        Self::StartNotResumed,
        Self::UnansweredCountsAsDone,
        Self::AgeLost,
        Self::NoticeIgnored,
        Self::TierIgnored,
        Self::FailedPodsKeepPermits,
        Self::ReleaseOnLostNode,
        Self::LeastIgnored,
        Self::KeepIgnored,
        Self::NodeForDevice,
        Self::FaultUnconfirmed,
        Self::FaultNotRemembered,
        Self::EvacuatedNotCounted,
        Self::ForcedWhileReady,
        Self::PermitsUnproved,
        Self::MovedWithNothing,
        Self::NodeForDrainedDevice,
        Self::MovedAgain,
        Self::MovedInPart,
        Self::ProgressIgnored,
        Self::StallNotForgotten,
        Self::ConsentNotAsked,
        Self::NoticeByTimeOfDay,
        Self::CheckpointByTimeOfDay,
        Self::OutageIgnored,
        Self::SilenceNotHeldBack,
        Self::SilentNotCounted,
    ];
}

/// The faults that are planted: at most one, and none without the feature.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct InjectedBugs {
    #[cfg(feature = "injected-bugs")]
    planted: Option<InjectedBug>,
}

impl InjectedBugs {
    /// Plants a fault.
    #[cfg(feature = "injected-bugs")]
    pub(crate) fn plant(bug: InjectedBug) -> Self {
        Self { planted: Some(bug) }
    }

    /// Whether the fault is planted.
    #[cfg(feature = "injected-bugs")]
    pub(crate) fn has(self, bug: InjectedBug) -> bool {
        self.planted == Some(bug)
    }

    /// Whether the fault is planted: never.
    #[cfg(not(feature = "injected-bugs"))]
    #[expect(
        clippy::unused_self,
        reason = "the same call with and without the feature"
    )]
    pub(crate) fn has(self, _: InjectedBug) -> bool {
        false
    }

    /// Whether any fault is planted.
    #[cfg(feature = "injected-bugs")]
    pub(crate) fn has_any(self) -> bool {
        self.planted.is_some()
    }

    /// Whether any fault is planted: never.
    #[cfg(not(feature = "injected-bugs"))]
    #[expect(
        clippy::unused_self,
        reason = "the same call with and without the feature"
    )]
    pub(crate) fn has_any(self) -> bool {
        false
    }
}
