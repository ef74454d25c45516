//! Slices of the node's GPUs, as claims have them made and removed (`prepare::slice` says when, and why that is safe).
//!
//! Each slice is made, or removed, under the lock of its GPU, and only as far as the claim's record on disk still allows it. What is
//! there is looked at first: NVML answers INSUFFICIENT_RESOURCES to a place that is taken, whoever has it, and a slice that half went
//! last time answers otherwise than a whole one.

use std::sync::Arc;

use muster_api::Reason;
use muster_device::{Backend, BackendError};

use crate::{
    prepare::{Fence, Foreign, Lying, MadeSlice, PlacedSlice, Record, SliceFailure, SliceOrder},
    store::{Guard, Store},
};

/// The GPUs, as far as they can be cut. Blocking; each step is bounded by the limit of the backend. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Hardware {
    backend: Arc<Backend>,
}

impl Hardware {
    /// The GPUs that the backend knows.
    pub fn new(backend: Arc<Backend>) -> Self {
        Self { backend }
    }

    /// Makes slices one after the other, and stops at the first that fails: whoever asked has them removed.
    pub fn make(
        &self,
        store: &Store,
        fence: &Fence,
        orders: &[SliceOrder],
    ) -> Result<Vec<MadeSlice>, SliceFailure> {
        orders
            .iter()
            .map(|order| {
                let _lock = lock(store, &order.gpu)?;
                if !Record::lets_make(record(store, fence)?.as_ref(), fence) {
                    return Err(plain(
                        "it was unprepared, or asked for again, before its slices were made",
                    ));
                }
                self.make_one(order)
            })
            .collect()
    }

    fn make_one(&self, order: &SliceOrder) -> Result<MadeSlice, SliceFailure> {
        let failed = |error: &BackendError| failed(order, error);
        let live = self.backend.mig_instances(&order.gpu);
        let live = live.map_err(|error| failed(&error))?;
        let there = match order.lying(&live) {
            Lying::Same(instance) => MadeSlice::of(instance),
            Lying::Nothing => None,
            Lying::Other(instance) => {
                let gpu = &order.gpu;
                return Err(SliceFailure {
                    reason: Some(Reason::DeviceHeld),
                    message: Foreign { gpu, instance }.to_string(),
                });
            }
        };
        if let Some(made) = there {
            return Ok(made);
        }
        let made = self
            .backend
            .create_slice(&order.gpu, &order.profile, order.placement);
        let instance = made.map_err(|error| failed(&error))?;
        MadeSlice::of(&instance).ok_or_else(|| {
            plain(format!(
                "GPU {}: the slice {} at memory slice {} is there, and NVML does not say its UUID",
                order.gpu, order.profile.name, order.placement.start
            ))
        })
    }

    /// Removes slices, as far as they are there; goes on after a failure, and tells the first.
    pub fn remove(
        &self,
        store: &Store,
        fence: &Fence,
        slices: &[PlacedSlice],
    ) -> Result<(), SliceFailure> {
        let mut result = Ok(());
        for slice in slices {
            let removed = self.remove_under_lock(store, fence, slice);
            if result.is_ok() {
                result = removed;
            }
        }
        result
    }

    fn remove_under_lock(
        &self,
        store: &Store,
        fence: &Fence,
        slice: &PlacedSlice,
    ) -> Result<(), SliceFailure> {
        let _lock = lock(store, &slice.gpu)?;
        if Record::lets_remove(record(store, fence)?.as_ref(), fence) {
            self.remove_one(slice)
        } else {
            Ok(())
        }
    }

    /// Removes a slice if it is there. Whoever calls holds the lock of its GPU.
    pub(crate) fn remove_one(&self, slice: &PlacedSlice) -> Result<(), SliceFailure> {
        let failed = |error: BackendError| SliceFailure {
            reason: reason(&error),
            message: format!("{slice} is not removed: {error}"),
        };
        let live = match self.backend.mig_instances(&slice.gpu) {
            // With the GPU its slices are gone.
            Err(BackendError::Gone(_)) => return Ok(()),
            live => live.map_err(failed)?,
        };
        let Some(instance) = slice.find(&live) else {
            return Ok(());
        };
        self.ask_who_uses(slice, instance.gpu_instance)?;
        let number = instance.gpu_instance;
        match self
            .backend
            .destroy_slice(&slice.gpu, number, slice.placement)
        {
            Err(BackendError::Gone(_)) => Ok(()),
            removed => removed.map_err(failed),
        }
    }

    /// NVML says only that a slice is in use; who uses it helps whoever waits.
    fn ask_who_uses(&self, slice: &PlacedSlice, number: u32) -> Result<(), SliceFailure> {
        // What cannot be told here NVML knows when it is asked to destroy it.
        let processes = self.backend.processes(&slice.gpu).unwrap_or_default();
        let mut processes = processes.iter();
        match processes.find(|process| process.gpu_instance == Some(number)) {
            None => Ok(()),
            Some(process) => Err(SliceFailure {
                reason: Some(Reason::DeviceHeld),
                message: format!("{slice} is still in use by process {}", process.pid),
            }),
        }
    }
}

fn lock(store: &Store, gpu: &str) -> Result<Guard, SliceFailure> {
    let locked = store.lock_gpu(gpu);
    locked.map_err(|error| plain(format!("the lock of GPU {gpu}: {error}")))
}

fn record(store: &Store, fence: &Fence) -> Result<Option<Record>, SliceFailure> {
    let record = store.record(&fence.claim);
    record.map_err(|failure| plain(failure.to_string()))
}

fn failed(order: &SliceOrder, error: &BackendError) -> SliceFailure {
    let SliceOrder {
        gpu,
        profile,
        placement,
    } = order;
    SliceFailure {
        reason: reason(error),
        message: format!(
            "the slice {} at memory slices {}..{} of GPU {gpu} is not made: {error}",
            profile.name,
            placement.start,
            placement.end()
        ),
    }
}

fn reason(error: &BackendError) -> Option<Reason> {
    match error {
        BackendError::InUse(_) => Some(Reason::DeviceHeld),
        BackendError::Unresponsive | BackendError::Unavailable(_) => Some(Reason::DeviceUnknown),
        BackendError::Gone(_) | BackendError::Failed(_) => None,
    }
}

fn plain(message: impl Into<String>) -> SliceFailure {
    SliceFailure {
        reason: None,
        message: message.into(),
    }
}
