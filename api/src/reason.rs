//! The one list of reasons, shared by admission answers, extender messages, events, metrics and status.

use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Why something waits, was refused, or ended. The names are part of the API: they never change.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
)]
pub enum Reason {
    // --- why a gang waits
    /// Fewer pods exist than the gang has.
    MissingPods,
    /// The pod is surplus, or not a member of the admitted set.
    ExcessPod,
    /// The pods of a gang disagree on its size.
    SizeMismatch,
    /// A pod carries a scheduling gate that is not ours.
    ForeignGate,
    /// The namespace has no Team, or an unknown one.
    NoTeam,
    /// The Team is stopped.
    TeamStopped,
    /// A user suspended the gang.
    Suspended,
    /// Quota is used by others.
    WaitingForQuota,
    /// The gang asks for more than its Team may ever have.
    ExceedsMaxQuota,
    /// No quota of the Team names a resource that the gang asks for.
    NoQuotaForResource,
    /// Quota is there, but no free nodes that fit.
    WaitingForPlacement,
    /// The gang would not fit on the empty cluster.
    PlacementImpossible,
    /// What an earlier gang held is not proved released yet.
    WaitingForRelease,
    /// A claim of the gang is held by another gang.
    ClaimShared,
    /// A request of the gang cannot be evaluated.
    RequestNotUnderstood,
    /// The gang is larger than one commit may carry.
    GangTooLarge,
    /// The tier does not exist or the Team may not use it.
    TierNotAllowed,
    /// The Team requires that pods say how much GPU memory they need, and one does not.
    VramNotDeclared,
    /// Pods of an attempt that is over are being ended.
    Evicting,
    /// A pod of an attempt that is over did not die, and is deleted by force.
    ForcedDeletion,
    /// After an eviction the gang pauses before it is tried again.
    BackingOff,
    /// An attempt of the gang ran for as long as it may, and the gang is not started again.
    MaxRuntimeExceeded,
    /// Pods of the gang failed in more attempts than it may be started anew after, and it is not started again.
    RestartsExhausted,

    // --- how an admitted gang fares
    /// The gang was admitted.
    Admitted,
    /// All pods run.
    Running,
    /// A rank made no progress within the start limit.
    StartTimeout,
    /// A rank lost the place that was planned for it.
    PlaceLost,
    /// A node on which pods of the gang run is lost.
    NodeLost,
    /// A device that the gang holds has a fault.
    DeviceFault,
    /// The gang told no progress for as long as it may.
    NoProgress,
    /// A node or a device that the gang uses is drained by hand.
    Drained,
    /// A pod of the gang was taken by something else than its workload and Muster: kube-scheduler, the eviction API, a taint, its kubelet.
    PodDisrupted,
    /// A PodDisruptionBudget of somebody else selects pods of the gang, so it has none of Muster's.
    OtherDisruptionBudget,
    /// The pods of the attempt no longer match the admission.
    MembersChanged,
    /// The gang was told that it is to give way to another one, or to go since its Team uses more than it may.
    PreemptionNotice,
    /// The gang gave way to another one.
    Preempted,
    /// The gang was evicted since its Team uses more than it may, and says `shrink: Evict`.
    QuotaShrunk,
    /// The gang was found holding devices without an admission and charged as it is.
    Adopted,
    /// All pods ended well.
    Completed,
    /// A pod failed.
    PodFailed,

    // --- what a Team, a Cohort, a Flavor or a PriorityTier says of itself
    /// Nothing is wrong with it.
    Ready,
    /// It names a Flavor that does not exist.
    FlavorNotFound,
    /// It names a Cohort that does not exist.
    CohortNotFound,
    /// It names a PriorityTier that does not exist.
    TierNotFound,
    /// It names a Topology that does not exist.
    TopologyNotFound,
    /// No device counts as one of the Flavor.
    NoDevices,
    /// The PriorityTier is not the one that gangs get that name none.
    NotDefault,

    // --- why a request was refused
    /// A field has an invalid value.
    InvalidValue,
    /// A guarded field was changed.
    Immutable,
    /// Only the controller may do that.
    NotPermitted,
    /// The Cohorts would form a cycle.
    CohortCycle,

    // --- what the extender says
    /// The pod's gang is not admitted.
    NotAdmitted,
    /// The pod is planned on another node.
    PlannedElsewhere,
    /// The pod's attempt is over.
    AttemptSuperseded,

    // --- what the driver says
    /// The claim's pod has no live permit here.
    NoPermit,
    /// The allocation takes more than the permit's charge covers.
    ChargeExceeded,
    /// Another claim holds the device.
    DeviceHeld,
    /// Whether the device is free cannot be told.
    DeviceUnknown,
    /// The node lacks something of NVIDIA's driver that a container needs.
    DriverIncomplete,
    /// Devices are held without an admission.
    Bypass,
    /// Processes use a device, and no claim and no device plugin explains them.
    QuotaBypassDetected,
    /// A fault of the GPU keeps what is new off the device.
    DeviceFaulty,
    /// A GPU has a fault.
    GpuFault,
    /// Something is odd about a GPU, and it can be used.
    GpuAnomaly,
    /// A GPU was reset for a fault, or could not be.
    GpuReset,
    /// The administrator's command that checks a GPU found it out of order, or could not be run.
    GpuCheck,
}

impl Reason {
    /// The name as it stands in status, events and metrics.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::MissingPods => "MissingPods",
            Self::ExcessPod => "ExcessPod",
            Self::SizeMismatch => "SizeMismatch",
            Self::ForeignGate => "ForeignGate",
            Self::NoTeam => "NoTeam",
            Self::TeamStopped => "TeamStopped",
            Self::Suspended => "Suspended",
            Self::WaitingForQuota => "WaitingForQuota",
            Self::ExceedsMaxQuota => "ExceedsMaxQuota",
            Self::NoQuotaForResource => "NoQuotaForResource",
            Self::WaitingForPlacement => "WaitingForPlacement",
            Self::PlacementImpossible => "PlacementImpossible",
            Self::WaitingForRelease => "WaitingForRelease",
            Self::ClaimShared => "ClaimShared",
            Self::RequestNotUnderstood => "RequestNotUnderstood",
            Self::GangTooLarge => "GangTooLarge",
            Self::TierNotAllowed => "TierNotAllowed",
            Self::VramNotDeclared => "VramNotDeclared",
            Self::Evicting => "Evicting",
            Self::ForcedDeletion => "ForcedDeletion",
            Self::BackingOff => "BackingOff",
            Self::MaxRuntimeExceeded => "MaxRuntimeExceeded",
            Self::RestartsExhausted => "RestartsExhausted",
            Self::Admitted => "Admitted",
            Self::Running => "Running",
            Self::StartTimeout => "StartTimeout",
            Self::PlaceLost => "PlaceLost",
            Self::NodeLost => "NodeLost",
            Self::DeviceFault => "DeviceFault",
            Self::NoProgress => "NoProgress",
            Self::Drained => "Drained",
            Self::PodDisrupted => "PodDisrupted",
            Self::OtherDisruptionBudget => "OtherDisruptionBudget",
            Self::MembersChanged => "MembersChanged",
            Self::PreemptionNotice => "PreemptionNotice",
            Self::Preempted => "Preempted",
            Self::QuotaShrunk => "QuotaShrunk",
            Self::Adopted => "Adopted",
            Self::Completed => "Completed",
            Self::PodFailed => "PodFailed",
            Self::Ready => "Ready",
            Self::FlavorNotFound => "FlavorNotFound",
            Self::CohortNotFound => "CohortNotFound",
            Self::TierNotFound => "TierNotFound",
            Self::TopologyNotFound => "TopologyNotFound",
            Self::NoDevices => "NoDevices",
            Self::NotDefault => "NotDefault",
            Self::InvalidValue => "InvalidValue",
            Self::Immutable => "Immutable",
            Self::NotPermitted => "NotPermitted",
            Self::CohortCycle => "CohortCycle",
            Self::NotAdmitted => "NotAdmitted",
            Self::PlannedElsewhere => "PlannedElsewhere",
            Self::AttemptSuperseded => "AttemptSuperseded",
            Self::NoPermit => "NoPermit",
            Self::ChargeExceeded => "ChargeExceeded",
            Self::DeviceHeld => "DeviceHeld",
            Self::DeviceUnknown => "DeviceUnknown",
            Self::DriverIncomplete => "DriverIncomplete",
            Self::Bypass => "Bypass",
            Self::QuotaBypassDetected => "QuotaBypassDetected",
            Self::DeviceFaulty => "DeviceFaulty",
            Self::GpuFault => "GpuFault",
            Self::GpuAnomaly => "GpuAnomaly",
            Self::GpuReset => "GpuReset",
            Self::GpuCheck => "GpuCheck",
        }
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reason_is_displayed_as_it_is_serialised() {
        for reason in [
            Reason::MissingPods,
            Reason::PlacementImpossible,
            Reason::Bypass,
        ] {
            assert_eq!(serde_json::to_value(reason).unwrap(), reason.as_str());
        }
    }

    #[test]
    fn every_reason_is_explained_to_users() {
        let page = include_str!("../../docs/reasons.md");
        let schema = serde_json::to_value(schemars::schema_for!(Reason)).unwrap();
        let names = schema["oneOf"].as_array().unwrap();
        assert!(names.len() > 30, "{schema}");
        for name in names {
            let name = name["const"].as_str().unwrap();
            let row = format!("| `{name}` |");
            assert_eq!(page.matches(&row).count(), 1, "a row of {name}");
        }
    }
}
