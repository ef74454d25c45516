//! What is seen of the GPUs, added to what is known at once. There is no queue between who hears and who remembers: a storm of events is as
//! many additions to the same few faults.

mod keep;
mod look;
mod remedies;
mod validation;

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Instant,
};

use muster_device::{
    Backend, Placement,
    faults::{
        Catalogue, Change, Device, FaultState, GpuEvent, KnownAddresses, LogPosition, Observation,
        PciAddress, Proof, Recovery, Scope, Validation, XidLine,
    },
};
use tokio::sync::{Notify, watch};

use self::{keep::Keeping, validation::Validations};
use super::{
    mended::NOT_MENDED,
    postponed::Postponed,
    remembering::{self, FaultBugs},
};
use crate::{
    inventory::{KnownGpu, KnownGpus},
    store::Store,
};

/// Who sees, and remembers.
#[derive(Debug)]
pub struct Eye {
    backend: Arc<Backend>,
    /// Which claims hold what.
    store: Store,
    catalogue: watch::Receiver<Arc<Catalogue>>,
    gpus: watch::Receiver<Option<KnownGpus>>,
    state: Mutex<FaultState>,
    /// Number that the observations had reached when this began: what was said to an earlier run of the program is about no newer ones.
    begin_mark: u64,
    postponed: Mutex<Postponed>,
    /// What is on the disk.
    keeping: Mutex<Keeping>,
    /// Whether a command of the administrator has to find a GPU in order before its fault is over.
    validates: bool,
    validations: Mutex<Validations>,
    /// Told when there is something new.
    pub(super) news: Notify,
    /// Told when all GPUs are to be looked at.
    pub(super) look: Notify,
}

/// What was asked about GPUs since a batch of events began, so that each is asked once, however many events there are.
#[derive(Default)]
struct Asked {
    actions: BTreeMap<String, Option<u32>>,
    places: BTreeMap<(String, u32), Option<Placement>>,
}

impl Eye {
    /// One that remembers this.
    pub fn new(
        backend: Arc<Backend>,
        store: Store,
        catalogue: watch::Receiver<Arc<Catalogue>>,
        gpus: watch::Receiver<Option<KnownGpus>>,
        state: FaultState,
    ) -> Self {
        Self {
            backend,
            store,
            catalogue,
            gpus,
            begin_mark: state.mark(),
            keeping: Mutex::new(Keeping::of(&state)),
            state: Mutex::new(state),
            postponed: Mutex::default(),
            validates: false,
            validations: Mutex::default(),
            news: Notify::new(),
            look: Notify::new(),
        }
    }

    /// The same, where a fault is not over before a command of the administrator has found the GPU in order.
    #[must_use]
    pub fn with_validation(self, validates: bool) -> Self {
        Self { validates, ..self }
    }

    /// NVML.
    pub(super) fn backend(&self) -> &Backend {
        &self.backend
    }

    /// What is remembered. Not to be held while anything is waited for.
    pub(super) fn state(&self) -> MutexGuard<'_, FaultState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What means what now.
    fn catalogue(&self) -> Arc<Catalogue> {
        Arc::clone(&self.catalogue.borrow())
    }

    fn postponed(&self) -> MutexGuard<'_, Postponed> {
        self.postponed
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// The GPUs that are known.
    pub(super) fn gpus(&self) -> Vec<KnownGpu> {
        let known = self.gpus.borrow();
        known
            .as_ref()
            .map(|known| known.gpus.clone())
            .unwrap_or_default()
    }

    fn known(&self) -> KnownAddresses {
        let known = self.gpus();
        let address = |gpu: KnownGpu| {
            let at = PciAddress::parse(&gpu.gpu.pci_bus_id);
            (gpu.gpu.uuid, at)
        };
        KnownAddresses(known.into_iter().map(address).collect())
    }

    /// What waited for GPUs that are known by now is theirs.
    pub(super) fn adopt(&self) -> Change {
        let known = self.known();
        self.state().adopt(&known)
    }

    /// Events of NVML. To be called also if there are none: some wait for a while.
    pub(super) fn heard(&self, events: Vec<GpuEvent>) {
        let catalogue = self.catalogue();
        let events = self.postponed().due(events, &catalogue, Instant::now());
        if events.is_empty() {
            return;
        }
        let known = self.known();
        let mut asked = Asked::default();
        for event in events {
            let uuid = event.gpu.clone();
            let action = uuid
                .as_deref()
                .and_then(|uuid| self.action(&mut asked, uuid));
            let place = self.place(&mut asked, uuid.as_deref(), event.gpu_instance);
            let seen = event.observation(&catalogue, action, |_| place);
            if let Some(observation) = seen {
                // One without a name is told, and is nobody's.
                let uuid = uuid.unwrap_or_else(|| "without a name".to_owned());
                self.saw(&catalogue, &known, &Device::Uuid(uuid), observation);
            }
        }
    }

    /// Lines of the kernel's log. Those of a time when nobody watched are nothing until the GPU was looked at.
    pub(super) fn read(&self, lines: Vec<XidLine>) {
        if lines.is_empty() {
            return;
        }
        let is_old = self.state().is_log_old();
        if is_old {
            let lines = lines.len();
            tracing::info!(
                lines,
                "XIDs were logged before the GPUs of this node were watched"
            );
        }
        let (known, catalogue) = (self.known(), self.catalogue());
        let mut asked = Asked::default();
        for line in lines {
            let device = Device::Address(line.address);
            let uuid = known.uuid(&device);
            let place = self.place(&mut asked, uuid, line.gpu_instance);
            if is_old {
                // What the driver wants done now the look finds.
                let observation = line.observation(&catalogue, None, |_| place);
                let now = unix_seconds();
                self.state().observe_old(&device, observation, &known, now);
                continue;
            }
            if let Some(uuid) = uuid.filter(|_| line.detail.is_some()) {
                self.postponed().told(uuid, line.xid, Instant::now());
            }
            let action = uuid.and_then(|uuid| self.action(&mut asked, uuid));
            let observation = line.observation(&catalogue, action, |_| place);
            self.saw(&catalogue, &known, &device, observation);
        }
    }

    /// The log was read this far, and what it says was observed. `is_whole`: to its end.
    pub(super) fn read_log(&self, position: Option<LogPosition>, is_whole: bool) {
        let mut state = self.state();
        if let Some(position) = position {
            state.read_log(position);
        }
        if is_whole && state.is_log_old() {
            state.log_is_read();
            drop(state);
            self.look.notify_one();
            // It is to be on the disk before anything new is logged.
            self.news.notify_one();
        }
    }

    /// Whether the log can be read, and all of it is there.
    pub(super) fn log_is_read(&self, is_so: bool) {
        self.postponed().log_is_read(is_so, Instant::now());
    }

    /// Whether faults are heard of while NVML is closed.
    pub(super) fn hears_the_log(&self) -> bool {
        self.postponed().is_log_read()
    }

    fn saw(
        &self,
        catalogue: &Catalogue,
        known: &KnownAddresses,
        device: &Device,
        observation: Observation,
    ) {
        let now = unix_seconds();
        let change = remembering::see(
            &mut self.state(),
            catalogue,
            known,
            device,
            observation,
            now,
            FaultBugs::default(),
        );
        if change == Change::New {
            let Observation {
                class,
                scope,
                cause,
            } = observation;
            if class.is_fault() {
                tracing::error!(?device, %class, ?scope, %cause, "a fault of a GPU");
            } else {
                tracing::warn!(?device, %class, ?scope, %cause, "an anomaly of a GPU");
            }
            self.news.notify_one();
        }
    }

    /// What the driver wants done with a GPU. One that hangs says nothing.
    fn action(&self, asked: &mut Asked, uuid: &str) -> Option<u32> {
        if let Some(action) = asked.actions.get(uuid) {
            return *action;
        }
        let action = self.backend.recovery_action(uuid).ok().flatten();
        asked.actions.insert(uuid.to_owned(), action);
        action
    }

    /// Where a GPU instance lies now; if NVML does not say, where it lay when it was seen last.
    fn place(
        &self,
        asked: &mut Asked,
        uuid: Option<&str>,
        gpu_instance: Option<u32>,
    ) -> Option<Placement> {
        let key = (uuid?.to_owned(), gpu_instance?);
        if let Some(place) = asked.places.get(&key) {
            return *place;
        }
        let live = self.backend.mig_instances(&key.0).unwrap_or_default();
        let mut live = live.iter();
        let found = live.find(|instance| instance.gpu_instance == key.1);
        let place = found.map(|instance| instance.placement).or_else(|| {
            let known = self.gpus();
            let known = known.iter().find(|known| known.gpu.uuid == key.0)?;
            known.placement(key.1)
        });
        asked.places.insert(key, place);
        place
    }

    /// Whether it is known which GPUs there are.
    pub(super) fn knows_gpus(&self) -> bool {
        self.gpus.borrow().is_some()
    }

    /// Number that the observations have reached: what is seen from here on is newer than a word that is taken up now.
    pub(super) fn mark(&self) -> u64 {
        self.state().mark()
    }

    /// A person says that a GPU is in order, or, of one that is not there any more, that it does not come back. `mark`: what the
    /// observations had reached when that was taken up, perhaps by an earlier run of this program, which has not told all that it saw to the
    /// disk: so nothing counts that is newer than the begin of this one. What is to be answered; `None`: it is not known yet which GPUs there
    /// are. Blocking.
    pub(super) fn said_to_be_mended(&self, name: &str, taken_up: TakenUp) -> Option<String> {
        let known = self.gpus.borrow().clone()?;
        let mark = match taken_up {
            TakenUp::Now(mark) => mark,
            TakenUp::Before(mark) => mark.min(self.begin_mark),
        };
        let address = PciAddress::parse(name);
        let mut gpus = known.gpus.iter();
        let is_meant = |known: &&KnownGpu| {
            let gpu = &known.gpu;
            let is_there = address.is_some() && PciAddress::parse(&gpu.pci_bus_id) == address;
            gpu.uuid == name || gpu.device_name() == name || is_there
        };
        let Some(gpu) = gpus.find(is_meant) else {
            // However it is written.
            let name = address.map_or_else(|| name.to_owned(), |address| address.to_string());
            let forgotten = self.state().forget(&name);
            if forgotten == 0 {
                return Some(format!(
                    "{NOT_MENDED}: {name} is no GPU of this node, and nothing is remembered of it"
                ));
            }
            self.news.notify_one();
            return Some(format!(
                "{name} is no GPU of this node; faults and anomalies of it that are forgotten: {forgotten}"
            ));
        };
        let uuid = &gpu.gpu.uuid;
        if gpu.gone || gpu.silent {
            return Some(format!("{NOT_MENDED}: {name} does not answer NVML"));
        }
        let condition = match self.backend.condition(uuid) {
            Ok(condition) => condition,
            Err(error) => return Some(format!("{NOT_MENDED}: {error}")),
        };
        let recovery = Recovery {
            proof: Proof::Operator,
            scope: Scope::Gpu,
            mark,
        };
        let validation = Validation {
            condition: &condition,
            has_fabric: !gpu.lacks_fabric(),
            // As many as are active now are those that it has.
            best_links: None,
        };
        let mended = self.state().recover(uuid, &recovery, &validation);
        self.news.notify_one();
        Some(match mended {
            Ok(mended) => {
                format!("{name} is in order; faults and anomalies that are over: {mended}")
            }
            Err(error) => error.to_string(),
        })
    }
}

/// When a person's word was taken up, by the number that the observations had reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TakenUp {
    /// By this run of the program.
    Now(u64),
    /// By an earlier one, which ended before it had answered.
    Before(u64),
}

/// Now.
fn unix_seconds() -> i64 {
    jiff::Timestamp::now().as_second()
}

#[cfg(test)]
mod tests;
