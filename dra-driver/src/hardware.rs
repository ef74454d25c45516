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
        Fence, Foreign, Lying, Made, MadeSlice, PlacedSlice, Record, SliceFailure, SliceOrder,
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
            self.use_whole(gpu, &mut made.minors)?;
        }
        for order in orders {
            let _lock = lock(store, &order.gpu)?;
            check(store, fence)?;
            let slice = self.make_one(order, &mut made.minors)?;
            made.slices.push(slice);
        }
        Ok(made)
    }

    fn use_whole(&self, gpu: &str, minors: &mut BTreeMap<String, u32>) -> Result<(), SliceFailure> {
        let live = self.backend.mig_instances(gpu);
        let live = live.map_err(|error| SliceFailure {
            reason: reason(&error),
            message: format!("which slices GPU {gpu} has cannot be told: {error}"),
        })?;
        if let Some(instance) = live.first() {
            return Err(held(gpu, instance));
        }
        self.switch(gpu, false, minors)
    }

    /// Puts a GPU into MIG mode, or out of it, where that may be done. What must stay as it is, is as it was published.
    fn switch(
        &self,
        gpu: &str,
        on: bool,
        minors: &mut BTreeMap<String, u32>,
    ) -> Result<(), SliceFailure> {
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
            message: format!("GPU {gpu} is not put {wanted}: {error}"),
        };
        let after = self.backend.set_mig_mode(gpu, on);
        let after = after.map_err(|error| failed(&error))?;
        if after.current != on {
            return Err(plain(format!(
                "GPU {gpu} is not put {wanted} before it is reset, which is for its administrator to do"
            )));
        }
        // The driver may have numbered it anew.
        let listed = self.backend.gpus().map_err(|error| failed(&error))?;
        let mut listed = listed.gpus.into_iter();
        let found = listed.find(|listed| listed.gpu.uuid == gpu && listed.silent.is_none());
        let found = found.ok_or_else(|| {
            plain(format!(
                "GPU {gpu} was put {wanted}, and does not answer since"
            ))
        })?;
        minors.insert(gpu.to_owned(), found.gpu.minor);
        Ok(())
    }

    fn make_one(
        &self,
        order: &SliceOrder,
        minors: &mut BTreeMap<String, u32>,
    ) -> Result<MadeSlice, SliceFailure> {
        let failed = |error: &BackendError| failed(order, error);
        let live = self.backend.mig_instances(&order.gpu);
        let live = live.map_err(|error| failed(&error))?;
        let there = match order.lying(&live) {
            Lying::Same(instance) => MadeSlice::of(instance),
            Lying::Nothing => None,
            Lying::Other(instance) => return Err(held(&order.gpu, instance)),
        };
        if let Some(made) = there {
            return Ok(made);
        }
        // With a slice on it it is in that mode.
        if live.is_empty() {
            self.switch(&order.gpu, true, minors)?;
        }
        let made = self
            .backend
            .create_slice(&order.gpu, &order.profile, order.placement);
        let instance = made.map_err(|error| {
            if live.is_empty() {
                // As it was, or as it may be: whoever wants it whole is not kept waiting. If not, the next claim switches it.
                drop(self.switch(&order.gpu, false, minors));
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
        message: Foreign { gpu, instance }.to_string(),
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

#[cfg(test)]
mod tests {
    use std::fs;

    use muster_device::{BackendConfig, Gpu, LibrarySource, Placement, cdi};
    use nvidia_ml_mock::{Failure, STATE_FILE, State, StateFile};

    use super::*;
    use crate::prepare::{ClaimRef, RecordState, Write};

    /// `nvmlReturn_t` for what nobody knows.
    const UNKNOWN: u32 = 999;

    /// An H100 in MIG mode, through the mock library, and a checkpoint.
    struct Fixture {
        _directory: tempfile::TempDir,
        card: StateFile,
        hardware: Hardware,
        store: Store,
        gpu: Gpu,
    }

    fn fixture() -> Fixture {
        let directory = tempfile::tempdir().unwrap();
        let library = directory.path().join("libnvidia-ml.so.1");
        fs::copy(nvidia_ml_mock::library().unwrap(), &library).unwrap();
        let card = StateFile::at(directory.path().join(STATE_FILE));
        let state = State {
            board: "h100-nvswitch-8".to_owned(),
            ..State::default()
        };
        card.write(&state).unwrap();
        let backend = Backend::new(BackendConfig::new(LibrarySource::File(library)));
        let gpu = backend.gpus().unwrap().gpus.swap_remove(0).gpu;
        let in_mig_mode = |state: &mut State| {
            let card = state.card(&gpu.uuid);
            card.mig_current = true;
            card.mig_pending = true;
        };
        card.change(in_mig_mode).unwrap();
        let cdi = cdi::Directory::new(directory.path(), "gpu.muster.dev", directory.path());
        let store = Store::open(directory.path().join("state"), cdi).unwrap();
        Fixture {
            card,
            hardware: Hardware::new(Arc::new(backend)),
            store,
            gpu,
            _directory: directory,
        }
    }

    impl Fixture {
        fn order(&self, name: &str, start: u32) -> SliceOrder {
            let profile = self.gpu.mig.as_ref().unwrap().profile(name).unwrap();
            let size = profile.memory_slices;
            SliceOrder {
                gpu: self.gpu.uuid.clone(),
                profile: Arc::new(profile.clone()),
                placement: Placement { start, size },
            }
        }

        fn record(&self, state: RecordState) {
            let lock = self.store.lock().unwrap();
            let record = Record {
                claim: ClaimRef {
                    uid: "c".to_owned(),
                    namespace: "ml".to_owned(),
                    name: "claim".to_owned(),
                },
                state,
                call: Some("i/1".to_owned()),
                pods: Vec::new(),
                devices: Vec::new(),
            };
            self.store.apply(&lock, &Write::PutRecord(record)).unwrap();
        }

        fn make(&self, orders: &[SliceOrder]) -> Result<Made, SliceFailure> {
            self.hardware.make(&self.store, &fence(), orders, &[])
        }

        fn remove(&self, order: &SliceOrder, uuid: Option<&str>) -> Result<(), SliceFailure> {
            let slice = PlacedSlice {
                gpu: order.gpu.clone(),
                gpu_instance_profile: order.profile.gpu_instance_profile,
                placement: order.placement,
                uuid: uuid.map(str::to_owned),
            };
            self.hardware.remove(&self.store, &fence(), &[slice])
        }

        fn starts(&self) -> Vec<u32> {
            let live = self.hardware.backend.mig_instances(&self.gpu.uuid);
            let live = live.unwrap().into_iter();
            live.map(|instance| instance.placement.start).collect()
        }
    }

    fn fence() -> Fence {
        Fence {
            claim: "c".to_owned(),
            call: Some("i/1".to_owned()),
        }
    }

    #[test]
    fn slices_are_made_once_and_removed_once_however_often_that_is_asked() {
        let f = fixture();
        f.record(RecordState::Preparing);
        let orders = [f.order("1g.10gb", 2), f.order("3g.40gb", 4)];
        let made = f.make(&orders).unwrap();
        assert_eq!(f.make(&orders).unwrap(), made);
        assert_eq!(f.starts(), [2, 4]);
        f.record(RecordState::Unpreparing);
        for _ in 0..2 {
            for (order, made) in orders.iter().zip(&made.slices) {
                f.remove(order, Some(&made.uuid)).unwrap();
            }
            assert_eq!(f.starts(), Vec::<u32>::new());
        }
    }

    #[test]
    fn nothing_is_made_or_removed_that_the_record_does_not_allow() {
        let f = fixture();
        let order = f.order("1g.10gb", 0);
        for state in [
            RecordState::Waiting,
            RecordState::Prepared,
            RecordState::Unpreparing,
        ] {
            f.record(state);
            f.make(std::slice::from_ref(&order)).unwrap_err();
            assert_eq!(f.starts(), Vec::<u32>::new(), "{state:?}");
        }
        f.record(RecordState::Preparing);
        f.make(std::slice::from_ref(&order)).unwrap();
        for state in [RecordState::Waiting, RecordState::Prepared] {
            f.record(state);
            f.remove(&order, None).unwrap();
            assert_eq!(f.starts(), [0], "{state:?}");
        }
    }

    #[test]
    fn what_lies_in_the_way_is_told_with_its_place_and_stays() {
        let f = fixture();
        f.record(RecordState::Preparing);
        f.make(&[f.order("2g.20gb", 2)]).unwrap();
        let failure = f.make(&[f.order("3g.40gb", 0)]).unwrap_err();
        assert_eq!(failure.reason, Some(Reason::DeviceHeld));
        assert!(failure.message.contains("memory slices 2..4"), "{failure}");
        f.remove(&f.order("2g.20gb", 2), Some("MIG-of-somebody-else"))
            .unwrap();
        assert_eq!(f.starts(), [2]);
    }

    #[test]
    fn a_compute_instance_that_fails_leaves_no_gpu_instance() {
        let f = fixture();
        f.record(RecordState::Preparing);
        let fails = |state: &mut State| {
            state.failures.push(Failure {
                function: "nvmlGpuInstanceCreateComputeInstance".to_owned(),
                code: UNKNOWN,
                times: Some(1),
                ..Failure::default()
            });
        };
        f.card.change(fails).unwrap();
        let order = f.order("1g.10gb", 0);
        f.make(std::slice::from_ref(&order)).unwrap_err();
        assert_eq!(f.starts(), Vec::<u32>::new());
        f.make(std::slice::from_ref(&order)).unwrap();
        assert_eq!(f.starts(), [0]);
    }
}
