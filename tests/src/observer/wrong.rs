//! What is wrong with a GPU that a test broke: how it has to be told, what ends it, and whom it costs.
//!
//! A table of its own, by NVIDIA's catalogue of XIDs (as of 2025-10-29: the immediate resolution of each code) and by what
//! `ARCHITECTURE.md` and the guides promise. No table of ours is read for it.

use muster_api::keys;

use crate::faults::{Fault, Mend};

/// What is wrong, from the mildest class to the worst, and that a GPU is not there, which is no class.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Wrong {
    Contained,
    Link,
    Unknown,
    Reset,
    Reboot,
    Retire,
    Gone,
}

impl Wrong {
    /// What is wrong after this was injected; `None`: nothing that keeps the GPU out of use.
    pub(super) fn after(fault: Fault) -> Option<Self> {
        match fault {
            Fault::Lost => Some(Self::Gone),
            Fault::RowRemapFailure => Some(Self::Retire),
            Fault::TooHot => None,
            Fault::Xid(code) => match code {
                // RESTART_APP and IGNORE, as far as tests inject them.
                8 | 11 | 13 | 31 | 43 | 45 | 63 | 92 | 154 => None,
                94 => Some(Self::Contained),
                74 | 144..=150 => Some(Self::Link),
                46 | 48 | 62 | 64 | 95 | 109 | 110 | 119 | 120 | 136 | 140 | 143 | 155 | 156
                | 158 | 171 | 172 => Some(Self::Reset),
                79 | 151 => Some(Self::Reboot),
                _ => Some(Self::Unknown),
            },
        }
    }

    /// Key of the taint that tells it.
    pub(super) fn key(self) -> &'static str {
        match self {
            Self::Gone => keys::TAINT_GONE,
            Self::Link => keys::TAINT_LINK_FAULT,
            Self::Contained | Self::Unknown | Self::Reset | Self::Reboot | Self::Retire => {
                keys::TAINT_FAULT
            }
        }
    }

    /// Whether a taint of its key with this value tells it, or something worse.
    pub(super) fn is_told_by(self, value: &str) -> bool {
        self == Self::Gone || Self::named(value) >= self
    }

    /// A class by its name. One that a later version gives is one that nobody knows.
    fn named(name: &str) -> Self {
        match name {
            "Contained" => Self::Contained,
            "Link" => Self::Link,
            "Reset" => Self::Reset,
            "Reboot" => Self::Reboot,
            "Retire" => Self::Retire,
            _ => Self::Unknown,
        }
    }

    /// Whether that ends it.
    pub(super) fn is_mended_by(self, mend: Mend) -> bool {
        match self {
            Self::Contained | Self::Link | Self::Reset => true,
            Self::Reboot => matches!(mend, Mend::Reboot | Mend::Operator),
            Self::Unknown | Self::Retire => mend == Mend::Operator,
            // It is there again, or it is not; no word makes it so.
            Self::Gone => matches!(mend, Mend::Reset | Mend::Reboot),
        }
    }

    /// Whether a gang that holds the device is to be started anew for it.
    pub(super) fn costs(self, needs_links: bool) -> bool {
        match self {
            Self::Contained | Self::Reset | Self::Reboot | Self::Gone => true,
            Self::Link => needs_links,
            Self::Unknown | Self::Retire => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_fault_is_told_ended_and_paid_for_as_its_row_says() {
        use Mend::{Operator, Reboot, Reset};
        // What breaks, key and value of the taint, what ends it, whom it costs: those who need no links, and those who do.
        type Row = (
            Fault,
            Option<(&'static str, &'static str, &'static [Mend], [bool; 2])>,
        );
        let rows: [Row; 10] = [
            (
                Fault::Xid(79),
                Some(("fault", "Reboot", &[Reboot, Operator], [true; 2])),
            ),
            (
                Fault::Xid(48),
                Some(("fault", "Reset", &[Reset, Reboot, Operator], [true; 2])),
            ),
            (
                Fault::Xid(94),
                Some(("fault", "Contained", &[Reset, Reboot, Operator], [true; 2])),
            ),
            (Fault::Xid(63), None),
            (Fault::Xid(31), None),
            (Fault::Xid(13), None),
            (
                Fault::Xid(74),
                Some((
                    "link-fault",
                    "Link",
                    &[Reset, Reboot, Operator],
                    [false, true],
                )),
            ),
            (Fault::Lost, Some(("gone", "", &[Reset, Reboot], [true; 2]))),
            (
                Fault::RowRemapFailure,
                Some(("fault", "Retire", &[Operator], [false; 2])),
            ),
            (Fault::TooHot, None),
        ];
        for (fault, expected) in rows {
            let wrong = Wrong::after(fault);
            let Some((key, value, mends, costs)) = expected else {
                assert_eq!(wrong, None, "{fault:?}");
                continue;
            };
            let wrong = wrong.unwrap();
            assert_eq!(wrong.key(), format!("gpu.muster.dev/{key}"), "{fault:?}");
            assert!(wrong.is_told_by(value), "{fault:?}");
            for mend in [Reset, Reboot, Operator] {
                let ends = wrong.is_mended_by(mend);
                assert_eq!(ends, mends.contains(&mend), "{fault:?} {mend:?}");
            }
            assert_eq!([false, true].map(|it| wrong.costs(it)), costs, "{fault:?}");
        }
    }

    #[test]
    fn a_milder_class_does_not_tell_a_worse_one() {
        assert!(!Wrong::Reset.is_told_by("Contained"));
        assert!(Wrong::Reset.is_told_by("Reboot"));
        assert!(!Wrong::Reset.is_told_by("Sinking"), "nobody knows it");
        assert!(Wrong::Contained.is_told_by("Sinking"));
    }
}
