//! What is remembered, on the disk. Whoever writes has the turn: one write at a time, each of what is known by then.

use std::sync::PoisonError;

use muster_device::faults::{Change, FaultState};

use super::{
    super::memory::{self, Written},
    Eye,
};
use crate::prepare::DiskFailure;

/// How often it is written again after another instance. It has as much to write as this one, which is little.
const TRIES: u32 = 8;

/// What is on the disk.
#[derive(Debug)]
pub(super) struct Keeping {
    /// What was read or written last, by this instance or by the other.
    kept: FaultState,
    generation: u64,
}

impl Keeping {
    /// This was read.
    pub(super) fn of(state: &FaultState) -> Self {
        Self {
            kept: state.clone(),
            generation: state.generation(),
        }
    }
}

impl Eye {
    /// Writes what is remembered, if that is not on the disk. Blocking.
    pub(in crate::faults) fn keep(&self) -> Result<(), DiskFailure> {
        let mut keeping = self.keeping.lock().unwrap_or_else(PoisonError::into_inner);
        for _ in 0..TRIES {
            let state = self.state().clone();
            if state == keeping.kept {
                return Ok(());
            }
            match memory::write(&self.store, &state, keeping.generation)? {
                Written::Done(generation) => {
                    *keeping = Keeping {
                        kept: state,
                        generation,
                    };
                    return Ok(());
                }
                Written::Overtaken(theirs) => {
                    let change = self.state().take_in(&keeping.kept, &theirs);
                    if change != Change::None {
                        tracing::info!("another instance of the driver has written of faults");
                        self.news.notify_one();
                    }
                    // The number by which the own state began stays: it is what they are compared without.
                    let generation = theirs.generation();
                    let kept = theirs.with_generation(state.generation());
                    *keeping = Keeping { kept, generation };
                }
            }
        }
        Err(DiskFailure::new(
            "another instance of the driver writes of faults again and again",
        ))
    }
}
