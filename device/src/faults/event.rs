//! Events of NVML.

use super::{
    catalogue::{Catalogue, Extent},
    observation::{Cause, Observation, Scope, of_xid, recovery_class},
    signal::{Signal, Subject},
};
use crate::mig::Placement;

/// An event of NVML.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GpuEvent {
    /// UUID of the GPU; `None` if NVML does not say, or it is none that it was asked about.
    pub gpu: Option<String>,
    /// What it is.
    pub kind: GpuEventKind,
    /// The GPU instance that it is about; `None`: the whole GPU.
    pub gpu_instance: Option<u32>,
    /// Its compute instance; `None`: all of them.
    pub compute_instance: Option<u32>,
}

/// What an event is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GpuEventKind {
    /// An XID.
    Xid(u32),
    /// An ECC error that was corrected, or many of them.
    CorrectedEcc,
    /// An ECC error that cannot be corrected.
    DoubleBitEcc,
    /// A row or page of memory was replaced.
    RowRetired,
    /// A row or page of memory could not be replaced.
    RowRemapFailure,
    /// Broken memory was used; whoever did is known.
    ContainedPoison,
    /// Broken memory was used.
    FatalPoison,
    /// The GPU is not available.
    Unavailable,
    /// Another recovery action than before.
    RecoveryAction,
}

impl GpuEvent {
    /// What it says; `None` where only a look at the GPU can tell. For `recovery_action` and `slice`: [`of_xid`].
    pub fn observation(
        &self,
        catalogue: &Catalogue,
        recovery_action: Option<u32>,
        slice: impl FnOnce(u32) -> Option<Placement>,
    ) -> Option<Observation> {
        let cause = match self.kind {
            GpuEventKind::Xid(xid) => {
                let seen = of_xid(xid, self.gpu_instance, catalogue, recovery_action, slice);
                return Some(seen);
            }
            GpuEventKind::RecoveryAction => {
                let action = recovery_action?;
                return Some(Observation {
                    class: recovery_class(action)?,
                    scope: Scope::Gpu,
                    cause: Cause::RecoveryAction(action),
                });
            }
            GpuEventKind::ContainedPoison => Cause::ContainedPoison,
            GpuEventKind::CorrectedEcc => Cause::CorrectedEcc,
            GpuEventKind::RowRetired => Cause::RowRetired,
            GpuEventKind::DoubleBitEcc => Cause::DoubleBitEcc,
            GpuEventKind::FatalPoison => Cause::FatalPoison,
            GpuEventKind::Unavailable => Cause::Unavailable,
            GpuEventKind::RowRemapFailure => Cause::RowRemapFailure,
        };
        let Some(Subject::Signal(signal)) = cause.subject() else {
            return None;
        };
        // Only of the use of broken memory does NVML say in which slice that was.
        let usual = match signal {
            Signal::ContainedPoison => Extent::Slice,
            _ => Extent::Gpu,
        };
        let scope = match catalogue.signal(signal).extent.unwrap_or(usual) {
            Extent::Gpu => Scope::Gpu,
            Extent::Slice => {
                let placement = self.gpu_instance.and_then(slice);
                placement.map_or(Scope::Gpu, Scope::Slice)
            }
        };
        Some(Observation {
            class: catalogue.class_of(signal),
            scope,
            cause,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::{
        super::FaultClass::{Contained, Info, Reboot, Reset, Retire},
        *,
    };

    #[test]
    fn events_have_the_class_of_what_they_are() {
        let catalogue = Catalogue::shipped();
        let seen = |kind, action| {
            let event = GpuEvent {
                gpu: Some("GPU-1".to_owned()),
                kind,
                gpu_instance: Some(3),
                compute_instance: Some(0),
            };
            let place = |_| Some(Placement { start: 2, size: 1 });
            let seen = event.observation(&catalogue, action, place);
            seen.map(|seen| (seen.class, seen.scope == Scope::Gpu))
        };
        for (kind, action, expected) in [
            (GpuEventKind::Xid(94), None, Some((Contained, false))),
            (GpuEventKind::Xid(48), Some(0), Some((Reset, true))),
            (
                GpuEventKind::ContainedPoison,
                None,
                Some((Contained, false)),
            ),
            (GpuEventKind::FatalPoison, None, Some((Reset, true))),
            (GpuEventKind::DoubleBitEcc, Some(0), Some((Reset, true))),
            (GpuEventKind::CorrectedEcc, None, Some((Info, true))),
            (GpuEventKind::RowRetired, None, Some((Info, true))),
            (GpuEventKind::RowRemapFailure, None, Some((Retire, true))),
            (GpuEventKind::Unavailable, None, Some((Reset, true))),
            (GpuEventKind::RecoveryAction, Some(2), Some((Reboot, true))),
            (GpuEventKind::RecoveryAction, Some(0), None),
            (GpuEventKind::RecoveryAction, None, None),
        ] {
            assert_eq!(seen(kind, action), expected, "{kind:?}");
        }
    }
}
