//! Resets that this driver has done, as far as the faults of a GPU remember them.

use super::{
    super::{class::FaultClass, observation::recovery_class, recovery::Proof},
    GpuFaults,
};

impl GpuFaults {
    /// How often the GPU was reset already for what it is to be reset for; `None`: it is not to be reset. It is for a fault of the class Reset, and
    /// for others that a reset mends where the driver itself asks for one. Where something is worse a reset would not be the end of it.
    pub fn wants_reset(&self, recovery_action: Option<u32>) -> Option<u32> {
        let is_worse = self.faults.iter().any(|it| it.class > FaultClass::Reset);
        if is_worse {
            return None;
        }
        let asks = recovery_action.and_then(recovery_class) == Some(FaultClass::Reset);
        let is_meant = |class: FaultClass| match class {
            FaultClass::Reset => true,
            FaultClass::Contained | FaultClass::Link => asks,
            _ => false,
        };
        let meant = self.faults.iter().filter(|fault| is_meant(fault.class));
        meant.map(|fault| fault.resets).max()
    }

    /// Whether it was reset after all that was seen of what a reset mends, and was not found in order yet.
    pub fn awaits_proof_of_reset(&self) -> bool {
        self.reset_done_mark.is_some_and(|mark| {
            let mut faults = self.faults.iter();
            faults.all(|fault| !is_mended_by_reset(fault.class) || fault.newest <= mark)
        })
    }

    /// Notes that this is the `number`th reset for what is wrong with it. Said twice it counts once.
    pub(in crate::faults) fn count_reset(&mut self, number: u32) -> bool {
        let faults = self.faults.iter_mut();
        let counted = faults.filter(|it| is_mended_by_reset(it.class) && it.resets < number);
        counted.fold(false, |_, fault| {
            fault.resets = number;
            true
        })
    }

    /// Whether it has a fault that a reset mends.
    pub(super) fn awaits_reset(&self) -> bool {
        let mut faults = self.faults.iter();
        faults.any(|fault| is_mended_by_reset(fault.class))
    }

    /// A reset was done that was begun when the observations had reached this number.
    pub(in crate::faults) fn note_reset(&mut self, mark: u64) {
        if self.awaits_reset() {
            self.reset_done_mark = self.reset_done_mark.max(Some(mark));
        }
    }

    /// The number of the last observation before a reset that was done and has proved nothing yet.
    pub(in crate::faults) fn reset_done_mark(&self) -> Option<u64> {
        self.reset_done_mark
    }
}

fn is_mended_by_reset(class: FaultClass) -> bool {
    class.is_fault() && Proof::Reset.heals(class)
}
