//! Memory of a part of a measurement.

use crate::{ALLOCATOR, report::mebibytes};

/// The most heap that was allocated at any look, beyond what was at the beginning.
pub(crate) struct HeapPeak {
    before: usize,
    most: usize,
}

impl HeapPeak {
    pub(crate) fn from_now() -> Self {
        let before = ALLOCATOR.allocated();
        Self {
            before,
            most: before,
        }
    }

    pub(crate) fn look(&mut self) {
        self.most = self.most.max(ALLOCATOR.allocated());
    }

    pub(crate) fn mebibytes(&self) -> f64 {
        mebibytes(self.most.saturating_sub(self.before))
    }
}
