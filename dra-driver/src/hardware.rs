//! Slices of the node's GPUs, as claims have them made and removed (`prepare::slice` says when, and why that is safe).
//!
//! Each slice is made, or removed, under the lock of its GPU, and only as far as the claim's record on disk still allows it. What is
//! there is looked at first: NVML answers INSUFFICIENT_RESOURCES to a place that is taken, whoever has it, and a slice that half went
//! last time answers otherwise than a whole one.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use muster_api::Reason;
use muster_device::{Backend, BackendError, MigInstance};
use tokio::sync::watch;

use crate::{
    prepare::{
        Fence, Foreign, Lying, Made, MadeSlice, PlacedSlice, Record, RecordState, SliceFailure,
        SliceOrder,
    },
    store::{Guard, Store},
};

/// The GPUs, as far as they can be cut. Blocking; each step is bounded by the limit of the backend. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Hardware {
    backend: Arc<Backend>,
    /// UUIDs of the GPUs whose MIG mode may be switched, while nothing uses them.
    switchable: watch::Receiver<BTreeSet<String>>,
}

impl Hardware {
    /// The GPUs that the backend knows. None is switched into MIG mode, or out of it.
    pub fn new(backend: Arc<Backend>) -> Self {
        let (_, switchable) = watch::channel(BTreeSet::new());
        Self {
            backend,
            switchable,
        }
    }

    /// The MIG mode of the GPUs with these UUIDs is switched as claims need it.
    #[must_use]
    pub fn with_switchable(self, switchable: watch::Receiver<BTreeSet<String>>) -> Self {
        Self { switchable, ..self }
    }

    /// Makes slices one after the other, and stops at the first that fails: whoever asked has them removed. GPUs in `wholes` are out of
    /// MIG mode after that.
    pub fn make(
        &self,
        store: &Store,
        fence: &Fence,
        orders: &[SliceOrder],
        wholes: &[String],
    ) -> Result<Made, SliceFailure> {
        let mut made = Made::default();
        for gpu in wholes {
            let _lock = lock(store, gpu)?;
            check(store, fence)?;
            self.use_whole(gpu)?;
            self.tell_minor(gpu, &mut made.minors)?;
        }
        for order in orders {
            let _lock = lock(store, &order.gpu)?;
            check(store, fence)?;
            let slice = self.make_one(order)?;
            made.slices.push(slice);
            self.tell_minor(&order.gpu, &mut made.minors)?;
        }
        Ok(made)
    }

    /// The driver may have numbered a GPU anew when its mode was switched: for this claim, or for one before it since the GPUs were listed.
    fn tell_minor(
        &self,
        gpu: &str,
        minors: &mut BTreeMap<String, u32>,
    ) -> Result<(), SliceFailure> {
        let minor = self.backend.minor(gpu).map_err(|error| SliceFailure {
            reason: reason(&error),
            foreign: None,
            message: format!("the minor number of GPU {gpu} cannot be told: {error}"),
        })?;
        minors.insert(gpu.to_owned(), minor);
        Ok(())
    }

    fn use_whole(&self, gpu: &str) -> Result<(), SliceFailure> {
        let live = self.backend.mig_instances(gpu);
        let live = live.map_err(|error| SliceFailure {
            reason: reason(&error),
            foreign: None,
            message: format!("which slices GPU {gpu} has cannot be told: {error}"),
        })?;
        if let Some(instance) = live.first() {
            return Err(held(gpu, instance));
        }
        if self.switchable.borrow().contains(gpu) {
            return self.switch(gpu, false);
        }
        // Somebody may have switched it since it was published: a container that got it would find nothing.
        let mode = self.backend.mig_mode(gpu).map_err(|error| SliceFailure {
            reason: reason(&error),
            foreign: None,
            message: format!("whether GPU {gpu} is in MIG mode cannot be told: {error}"),
        })?;
        if mode.is_some_and(|mode| mode.current) {
            return Err(plain(format!(
                "GPU {gpu} is in MIG mode, in which nothing runs on it as a whole, and may not be put out of it here: take it out of the \
                 mode (nvidia-smi -i {gpu} -mig 0), or let the mode be switched (driver.mig.toggle: WhenIdle)"
            )));
        }
        Ok(())
    }

    /// Puts a GPU into MIG mode, or out of it, where that may be done. What must stay as it is, is as it was published.
    fn switch(&self, gpu: &str, on: bool) -> Result<(), SliceFailure> {
        if !self.switchable.borrow().contains(gpu) {
            return Ok(());
        }
        let wanted = if on {
            "into MIG mode"
        } else {
            "out of MIG mode"
        };
        let failed = |error: &BackendError| SliceFailure {
            reason: reason(error),
            foreign: None,
            message: format!("GPU {gpu} is not put {wanted}: {error}"),
        };
        let after = self.backend.set_mig_mode(gpu, on);
        let after = after.map_err(|error| failed(&error))?;
        if after.current != on {
            // Else it would come by surprise, with a reset that somebody does for another reason.
            let rest = match self.backend.set_mig_mode(gpu, after.current) {
                Ok(back) if back.pending == after.current => "it stays as it was".to_owned(),
                Ok(_) => "it will change with the next reset".to_owned(),
                Err(error) => format!("and that it is pending could not be taken back: {error}"),
            };
            return Err(plain(format!(
                "GPU {gpu} is not put {wanted} before it is reset, which is for its administrator to do; {rest}"
            )));
        }
        Ok(())
    }

    /// A Prepare failed: a GPU without slices is left as it was, or as it may be, so that whoever wants it whole is not kept waiting. If that fails
    /// the next claim switches it, and so it is after a crash. One that has slices keeps its mode: the backend takes it from none. Whoever calls holds
    /// the lock of the GPU, under which others switch it and make their first slice in one go.
    fn take_mode_back(&self, gpu: &str) {
        drop(self.switch(gpu, false));
    }

    fn make_one(&self, order: &SliceOrder) -> Result<MadeSlice, SliceFailure> {
        let failed = |error: &BackendError| failed(order, error);
        let live = self.backend.mig_instances(&order.gpu);
        let live = live.map_err(|error| failed(&error))?;
        let there = match order.lying(&live) {
            Lying::Same(instance) if order.is_new => return Err(not_ours(order, instance)),
            Lying::Same(instance) => MadeSlice::of(instance),
            Lying::Nothing => None,
            Lying::Other(instance) => return Err(held(&order.gpu, instance)),
        };
        if let Some(made) = there {
            return Ok(made);
        }
        // With a slice on it it is in that mode.
        if live.is_empty() {
            self.switch(&order.gpu, true)?;
        }
        let made = self
            .backend
            .create_slice(&order.gpu, &order.profile, order.placement);
        let instance = made.map_err(|error| {
            // One that hangs changes nothing, and to ask it again would have NVML closed for all others.
            if live.is_empty() && error != BackendError::Unresponsive {
                self.take_mode_back(&order.gpu);
            }
            failed(&error)
        })?;
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
        let record = record(store, fence)?;
        if !Record::lets_remove(record.as_ref(), fence) {
            return Ok(());
        }
        self.remove_one(slice)?;
        // A claim that has ended leaves the mode to the next; one whose slices were only begun leaves no trace.
        if record.is_some_and(|record| record.state == RecordState::Preparing) {
            self.take_mode_back(&slice.gpu);
        }
        Ok(())
    }

    /// Removes a slice if it is there. Whoever calls holds the lock of its GPU.
    pub(crate) fn remove_one(&self, slice: &PlacedSlice) -> Result<(), SliceFailure> {
        let failed = |error: BackendError| SliceFailure {
            reason: reason(&error),
            foreign: None,
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
                foreign: None,
                message: format!("{slice} is still in use by process {}", process.pid),
            }),
        }
    }
}

/// Whether the claim's record still says that its hardware is to be made ready.
fn check(store: &Store, fence: &Fence) -> Result<(), SliceFailure> {
    if Record::lets_make(record(store, fence)?.as_ref(), fence) {
        return Ok(());
    }
    Err(plain(
        "it was unprepared, or asked for again, before its slices were made",
    ))
}

fn held(gpu: &str, instance: &MigInstance) -> SliceFailure {
    SliceFailure {
        reason: Some(Reason::DeviceHeld),
        foreign: None,
        message: Foreign { gpu, instance }.to_string(),
    }
}

/// What lies there was made since the place was seen to be empty, and not by us. It is not to be removed with what was.
fn not_ours(order: &SliceOrder, instance: &MigInstance) -> SliceFailure {
    let foreign = PlacedSlice {
        gpu: order.gpu.clone(),
        gpu_instance_profile: instance.profile,
        placement: instance.placement,
        uuid: instance.uuid.clone(),
    };
    SliceFailure {
        foreign: Some(Box::new(foreign)),
        ..held(&order.gpu, instance)
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
        is_new: _,
    } = order;
    SliceFailure {
        reason: reason(error),
        foreign: None,
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
        foreign: None,
        message: message.into(),
    }
}

#[cfg(test)]
mod tests;
