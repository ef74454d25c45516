//! What was seen of a GPU, in one form whoever saw it: NVML's events, the kernel's log, or a look at the GPU.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::{
    catalogue::{Catalogue, Extent, Meaning},
    class::FaultClass,
    log_line::{XidDetail, XidLine},
    signal::Signal,
};
use crate::mig::Placement;

/// Which part of a GPU something is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Scope {
    /// All of it.
    Gpu,
    /// A slice, by where it lies: the number of an instance is given away again.
    Slice(Placement),
}

impl Scope {
    /// Whether it reaches a device that is the whole GPU (`None`) or a slice of it.
    pub fn reaches(self, part: Option<Placement>) -> bool {
        match (self, part) {
            (Self::Gpu, _) | (_, None) => true,
            (Self::Slice(own), Some(part)) => own.overlaps(part),
        }
    }

    /// Whether all of another one is in it.
    pub fn holds(self, other: Self) -> bool {
        match (self, other) {
            (Self::Gpu, _) => true,
            (Self::Slice(_), Self::Gpu) => false,
            (Self::Slice(own), Self::Slice(other)) => {
                own.start <= other.start && other.end() <= own.end()
            }
        }
    }
}

/// What was seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// The driver reported an XID.
    Xid(u32),
    /// The driver reported an XID of which the kernel's log says more.
    DetailedXid(u32, XidDetail),
    /// The driver says what has to be done with the GPU (NVML's field 230).
    RecoveryAction(u32),
    /// Memory has an error that cannot be corrected.
    DoubleBitEcc,
    /// An application used memory that is known to be broken.
    ContainedPoison,
    /// Broken memory was used, and nobody can say by whom.
    FatalPoison,
    /// NVML says that the GPU is not available.
    Unavailable,
    /// Errors of memory were corrected.
    CorrectedEcc,
    /// Errors of memory could not be corrected, as a counter says.
    UncorrectedEcc,
    /// A row of memory was replaced by a spare one.
    RowRetired,
    /// A row of memory is to be replaced with the next reset.
    RowRemapPending,
    /// There is no spare row left for one that is broken.
    RowRemapFailure,
    /// So many of its NVLinks were active and are not any more.
    LinksDown(u32),
    /// Its NVLinks had errors, as counters say.
    LinkErrors,
    /// It is connected by fewer PCIe lanes than it could be.
    NarrowBus {
        /// Lanes now.
        lanes: u32,
        /// Lanes that it could have.
        most: u32,
    },
    /// It is slowed down for heat or for power.
    Throttled,
    /// The same came again and again.
    Repeated {
        /// The XID that did; `None`: the signal.
        xid: Option<u32>,
        /// The signal that did; `None`: the XID.
        signal: Option<Signal>,
        /// So often.
        count: u32,
        /// Within so many seconds.
        within_seconds: u32,
    },
    /// It was reset so often for what is wrong with it, and that was not the end of it.
    ResetInVain(u32),
    /// The command that checks it while nothing uses it found it out of order, and ended so; `None`: it did not end in time.
    CheckFailed(Option<i32>),
}

impl Cause {
    /// Whether it is so for as long as it is seen, so that to see it again is nothing new.
    pub fn lasts(self) -> bool {
        match self {
            Self::RecoveryAction(_)
            | Self::RowRemapPending
            | Self::RowRemapFailure
            | Self::LinksDown(_)
            | Self::NarrowBus { .. }
            | Self::Throttled
            | Self::ResetInVain(_) => true,
            Self::Xid(_)
            | Self::DetailedXid(..)
            | Self::UncorrectedEcc
            | Self::LinkErrors
            | Self::Repeated { .. }
            | Self::DoubleBitEcc
            | Self::ContainedPoison
            | Self::FatalPoison
            | Self::Unavailable
            | Self::CorrectedEcc
            | Self::RowRetired
            | Self::CheckFailed(_) => false,
        }
    }
}

impl fmt::Display for Cause {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Xid(code) => write!(formatter, "XID {code}"),
            Self::DetailedXid(code, detail) => write!(formatter, "XID {code} ({detail})"),
            Self::UncorrectedEcc => formatter.write_str("uncorrected ECC errors"),
            Self::LinkErrors => formatter.write_str("NVLink errors"),
            Self::Repeated {
                xid,
                signal,
                count,
                within_seconds,
            } => {
                match (xid, signal) {
                    (Some(code), _) => write!(formatter, "XID {code}")?,
                    (None, Some(signal)) => formatter.write_str(signal.as_str())?,
                    (None, None) => formatter.write_str("the same")?,
                }
                write!(formatter, " {count} times within {within_seconds} s")
            }
            Self::RecoveryAction(action) => write!(formatter, "recovery action {action}"),
            Self::DoubleBitEcc => formatter.write_str("double-bit ECC error"),
            Self::ContainedPoison => formatter.write_str("contained use of broken memory"),
            Self::FatalPoison => formatter.write_str("use of broken memory"),
            Self::Unavailable => formatter.write_str("GPU unavailable"),
            Self::CorrectedEcc => formatter.write_str("corrected ECC errors"),
            Self::RowRetired => formatter.write_str("row replaced"),
            Self::RowRemapPending => formatter.write_str("row remap pending"),
            Self::RowRemapFailure => formatter.write_str("row remap failure"),
            Self::LinksDown(count) => write!(formatter, "{count} NVLinks down"),
            Self::NarrowBus { lanes, most } => {
                write!(formatter, "{lanes} of {most} PCIe lanes")
            }
            Self::Throttled => formatter.write_str("throttled"),
            Self::ResetInVain(count) => write!(formatter, "{count} resets in vain"),
            Self::CheckFailed(Some(status)) => {
                write!(formatter, "check failed with exit status {status}")
            }
            Self::CheckFailed(None) => formatter.write_str("check did not end in time"),
        }
    }
}

/// Something that was seen of a GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Observation {
    /// How bad it is.
    pub class: FaultClass,
    /// What it is about.
    pub scope: Scope,
    /// What it is.
    pub cause: Cause,
}

/// The class of a recovery action, NVML's field 230; `None`: there is nothing to recover from. An action that is newer than this
/// program is at least as bad as a reset.
pub fn recovery_class(action: u32) -> Option<FaultClass> {
    match action {
        0 => None,
        // Drain the peers; recover the IMEX domain.
        3 | 5 => Some(FaultClass::Link),
        // Reboot of the node, and of the system.
        2 | 7 => Some(FaultClass::Reboot),
        // 1: reset; 4: drain and reset; 6: reset by the bus.
        _ => Some(FaultClass::Reset),
    }
}

/// What an XID says. `recovery_action` is what the driver said of this GPU just after it, where it says so: that wins over the table,
/// which is about all GPUs, unless the table says that nothing is to be done with the GPU: then the action has another cause, which is
/// seen by itself. That there is nothing to recover from makes nothing milder: the driver may not have come that far.
///
/// `slice` says where a GPU instance lies. One that is not known, or is gone, may lie anywhere.
pub fn of_xid(
    xid: u32,
    gpu_instance: Option<u32>,
    catalogue: &Catalogue,
    recovery_action: Option<u32>,
    slice: impl FnOnce(u32) -> Option<Placement>,
) -> Observation {
    let seen = Reported {
        xid,
        detail: None,
        gpu_instance,
    };
    seen.observation(catalogue, recovery_action, slice)
}

/// An XID with all that is said of it.
struct Reported {
    xid: u32,
    detail: Option<XidDetail>,
    gpu_instance: Option<u32>,
}

impl Reported {
    fn observation(
        &self,
        catalogue: &Catalogue,
        recovery_action: Option<u32>,
        slice: impl FnOnce(u32) -> Option<Placement>,
    ) -> Observation {
        let cause = match self.detail {
            Some(detail) => Cause::DetailedXid(self.xid, detail),
            None => Cause::Xid(self.xid),
        };
        let rule = catalogue.xid(self.xid, self.detail);
        let verdict = recovery_action.and_then(recovery_class);
        let class = match (rule.meaning, verdict) {
            (Meaning::Class(class), _) if !class.is_fault() => class,
            (_, Some(verdict)) => {
                return Observation {
                    class: verdict,
                    // It is about the whole GPU, whatever led to it.
                    scope: Scope::Gpu,
                    cause,
                };
            }
            (Meaning::Class(class), None) => class,
            (Meaning::Companion, None) => FaultClass::Info,
        };
        let usual = if class.is_of_slices() {
            Extent::Slice
        } else {
            Extent::Gpu
        };
        let scope = match rule.extent.unwrap_or(usual) {
            Extent::Gpu => Scope::Gpu,
            Extent::Slice => {
                let placement = self.gpu_instance.and_then(slice);
                placement.map_or(Scope::Gpu, Scope::Slice)
            }
        };
        Observation {
            class,
            scope,
            cause,
        }
    }
}

impl XidLine {
    /// What it says ([`of_xid`]).
    pub fn observation(
        &self,
        catalogue: &Catalogue,
        recovery_action: Option<u32>,
        slice: impl FnOnce(u32) -> Option<Placement>,
    ) -> Observation {
        let seen = Reported {
            xid: self.xid,
            detail: self.detail,
            gpu_instance: self.gpu_instance,
        };
        seen.observation(catalogue, recovery_action, slice)
    }
}

#[cfg(test)]
mod tests {
    use super::{
        FaultClass::{App, Contained, Info, Link, Reboot, Reset, Unknown},
        *,
    };

    const SLICE: Placement = Placement { start: 4, size: 2 };

    fn seen(xid: u32, action: Option<u32>) -> (FaultClass, Scope) {
        let place = |id| (id == 5).then_some(SLICE);
        let seen = of_xid(xid, Some(5), &Catalogue::shipped(), action, place);
        assert_eq!(seen.cause, Cause::Xid(xid));
        (seen.class, seen.scope)
    }

    #[test]
    fn an_xid_is_about_its_slice_unless_slices_share_what_it_is_about() {
        let slice = Scope::Slice(SLICE);
        for (xid, expected) in [
            (13, (App, slice)),
            (31, (App, slice)),
            (94, (Contained, slice)),
            (7_777, (Unknown, slice)),
            (63, (Info, slice)),
            (48, (Reset, Scope::Gpu)),
            (74, (Link, Scope::Gpu)),
            (79, (Reboot, Scope::Gpu)),
        ] {
            assert_eq!(seen(xid, None), expected, "{xid}");
        }
        // Where it lies nobody knows: it may be any of them.
        let lost = of_xid(94, Some(6), &Catalogue::shipped(), None, |_| None);
        assert_eq!(lost.scope, Scope::Gpu);
    }

    #[test]
    fn the_recovery_action_wins_where_there_is_one() {
        for (xid, action, expected) in [
            (48, 0, Reset),
            (79, 1, Reset),
            (94, 2, Reboot),
            (109, 3, Link),
            (154, 7, Reboot),
            (154, 0, Info),
            (45, 4, Reset),
            (74, 5, Link),
            (167, 6, Reset),
            (95, 99, Reset),
            // An application's own fault stays one.
            (31, 1, App),
            (63, 1, Info),
        ] {
            assert_eq!(seen(xid, Some(action)).0, expected, "{xid} {action}");
        }
        assert_eq!(seen(94, Some(1)).1, Scope::Gpu);
    }

    #[test]
    fn what_the_log_says_of_an_xid_counts_and_so_does_how_much_of_a_gpu_a_rule_is_about() {
        use crate::faults::{PciAddress, Rule, RuleKey};
        let line = |is_fatal| XidLine {
            address: PciAddress::parse("0000:01:00").unwrap(),
            xid: 149,
            gpu_instance: Some(5),
            compute_instance: None,
            detail: Some(XidDetail {
                is_fatal,
                sub_code: Some(37),
            }),
        };
        let shipped = Catalogue::shipped();
        let place = |_| Some(SLICE);
        let mild = line(false).observation(&shipped, None, place);
        assert_eq!((mild.class, mild.scope), (Info, Scope::Slice(SLICE)));
        assert_eq!(mild.cause.to_string(), "XID 149 (Nonfatal, sub-code 37)");
        let grave = line(true).observation(&shipped, None, place);
        assert_eq!((grave.class, grave.scope), (Link, Scope::Gpu));
        let degraded = line(true).observation(&shipped, Some(1), place);
        assert_eq!(degraded.class, Reset);
        let rule = |class, extent| Rule {
            extent: Some(extent),
            ..Rule::from(Meaning::Class(class))
        };
        let changed = shipped.with_rules(&[
            (RuleKey::xid(94), rule(Contained, Extent::Gpu)),
            (RuleKey::xid(95), rule(Reset, Extent::Slice)),
        ]);
        for (xid, scope) in [(94, Scope::Gpu), (95, Scope::Slice(SLICE))] {
            assert_eq!(of_xid(xid, Some(5), &changed, None, place).scope, scope);
        }
    }

    #[test]
    fn a_scope_reaches_what_overlaps_it() {
        let other = Placement { start: 0, size: 4 };
        let around = Placement { start: 4, size: 4 };
        let slice = Scope::Slice(SLICE);
        for (scope, part, reaches) in [
            (Scope::Gpu, None, true),
            (Scope::Gpu, Some(other), true),
            (slice, None, true),
            (slice, Some(SLICE), true),
            (slice, Some(around), true),
            (slice, Some(other), false),
        ] {
            assert_eq!(scope.reaches(part), reaches, "{scope:?} {part:?}");
        }
        assert!(Scope::Gpu.holds(slice) && Scope::Slice(around).holds(slice));
        assert!(!slice.holds(Scope::Slice(around)) && !slice.holds(Scope::Gpu));
    }
}
