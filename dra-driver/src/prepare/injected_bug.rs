//! Rules that can be broken on purpose, to prove that the tests would notice.

/// One broken rule. The names are those of the model in DESIGN 6.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(
    not(feature = "injected-bugs"),
    expect(unreachable_pub, reason = "public only with the feature")
)]
pub enum InjectedBug {
    /// The status is written before the generation is on disk.
    AckBeforeDisk,
    /// A view older than the disk's prepares.
    PrepareByOlderView,
    /// The permit is looked at before the wait, not in the transaction that records.
    PermitBeforeWaitOnly,
    /// No permit is asked for.
    NoPermitCheck,
    /// The status is written to whatever object has the name.
    NoUidInStatus,
    /// A view of another object than the disk's is acknowledged without an uncached read.
    UidBlindAck,
    /// A device in use is given back.
    UnprepareWithProcess,
    /// A permit for the pod permits any claim.
    ClaimUidUnchecked,
    /// Names of devices are compared, and not the hardware.
    NamesCompared,
    /// Only what is prepared holds its hardware, and not what is being prepared or given back.
    OnlyPreparedHolds,
    /// What a Prepare that failed had made stays.
    SliceLeftOnFailure,
    /// The record of a claim goes before its slices.
    RecordGoesBeforeSlice,
    /// A slice that nobody here made is taken, and removed, like one of ours.
    ForeignSliceTaken,
}

#[cfg(feature = "injected-bugs")]
impl InjectedBug {
    /// Those that only slices show.
    pub const OF_SLICES: [Self; 5] = [
        Self::NamesCompared,
        Self::OnlyPreparedHolds,
        Self::SliceLeftOnFailure,
        Self::RecordGoesBeforeSlice,
        Self::ForeignSliceTaken,
    ];

    /// All others.
    pub const ALL: [Self; 8] = [
        Self::AckBeforeDisk,
        Self::PrepareByOlderView,
        Self::PermitBeforeWaitOnly,
        Self::NoPermitCheck,
        Self::NoUidInStatus,
        Self::UidBlindAck,
        Self::UnprepareWithProcess,
        Self::ClaimUidUnchecked,
    ];
}
