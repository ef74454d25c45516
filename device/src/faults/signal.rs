//! What is seen of GPUs beside XIDs, by the names that a table of classes uses, and what it is about.

use std::fmt;

use super::{log_line::XidDetail, observation::Cause};

/// Something that is seen of a GPU, and is no XID.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Signal {
    /// Errors of memory were corrected, as an event or a counter tells.
    CorrectedEcc,
    /// A counter of errors of memory that could not be corrected has grown. The XID that goes with it says how bad that is.
    UncorrectedEcc,
    /// NVML tells of an error that cannot be corrected.
    DoubleBitEcc,
    /// Broken memory was used; whoever did is known.
    ContainedPoison,
    /// Broken memory was used, and nobody can say by whom.
    FatalPoison,
    /// NVML says that the GPU is not available.
    Unavailable,
    /// A row of memory was replaced.
    RowRetired,
    /// A row of memory is replaced with the next reset.
    RowRemapPending,
    /// A row of memory could not be replaced.
    RowRemapFailure,
    /// NVLinks were active and are not any more.
    LinksDown,
    /// Counters of errors of NVLinks have grown.
    LinkErrors,
    /// Fewer PCIe lanes than there could be.
    NarrowBus,
    /// It is slowed down for heat or for power.
    Throttled,
}

impl Signal {
    /// All of them.
    pub const ALL: [Self; 13] = [
        Self::CorrectedEcc,
        Self::UncorrectedEcc,
        Self::DoubleBitEcc,
        Self::ContainedPoison,
        Self::FatalPoison,
        Self::Unavailable,
        Self::RowRetired,
        Self::RowRemapPending,
        Self::RowRemapFailure,
        Self::LinksDown,
        Self::LinkErrors,
        Self::NarrowBus,
        Self::Throttled,
    ];

    /// Its name in tables.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::CorrectedEcc => "CorrectedEcc",
            Self::UncorrectedEcc => "UncorrectedEcc",
            Self::DoubleBitEcc => "DoubleBitEcc",
            Self::ContainedPoison => "ContainedPoison",
            Self::FatalPoison => "FatalPoison",
            Self::Unavailable => "Unavailable",
            Self::RowRetired => "RowRetired",
            Self::RowRemapPending => "RowRemapPending",
            Self::RowRemapFailure => "RowRemapFailure",
            Self::LinksDown => "LinksDown",
            Self::LinkErrors => "LinkErrors",
            Self::NarrowBus => "NarrowBus",
            Self::Throttled => "Throttled",
        }
    }

    /// The signal of this name.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|signal| signal.as_str() == name)
    }
}

/// What a rule of a table is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Subject {
    /// An XID, with what the kernel's log says beside it.
    Xid(u32, Option<XidDetail>),
    /// Anything else.
    Signal(Signal),
}

impl fmt::Display for Subject {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Xid(code, None) => write!(formatter, "XID {code}"),
            Self::Xid(code, Some(detail)) => write!(formatter, "XID {code} {detail}"),
            Self::Signal(signal) => formatter.write_str(signal.as_str()),
        }
    }
}

impl Cause {
    /// What a table says something about; `None` of what the driver wants done, and of what follows from a rule.
    pub fn subject(self) -> Option<Subject> {
        let signal = match self {
            Self::Xid(code) => return Some(Subject::Xid(code, None)),
            Self::DetailedXid(code, detail) => return Some(Subject::Xid(code, Some(detail))),
            Self::RecoveryAction(_)
            | Self::Repeated { .. }
            | Self::ResetInVain(_)
            | Self::CheckFailed(_) => return None,
            Self::CorrectedEcc => Signal::CorrectedEcc,
            Self::UncorrectedEcc => Signal::UncorrectedEcc,
            Self::DoubleBitEcc => Signal::DoubleBitEcc,
            Self::ContainedPoison => Signal::ContainedPoison,
            Self::FatalPoison => Signal::FatalPoison,
            Self::Unavailable => Signal::Unavailable,
            Self::RowRetired => Signal::RowRetired,
            Self::RowRemapPending => Signal::RowRemapPending,
            Self::RowRemapFailure => Signal::RowRemapFailure,
            Self::LinksDown(_) => Signal::LinksDown,
            Self::LinkErrors => Signal::LinkErrors,
            Self::NarrowBus { .. } => Signal::NarrowBus,
            Self::Throttled => Signal::Throttled,
        };
        Some(Subject::Signal(signal))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signals_are_read_by_their_names() {
        for signal in Signal::ALL {
            assert_eq!(Signal::named(signal.as_str()), Some(signal));
        }
        assert_eq!(Signal::named("Xid"), None);
    }
}
