//! What is seen of the GPUs, added to what is known at once. There is no queue between who hears and who remembers: a storm of events is as
//! many additions to the same few faults.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use muster_device::{
    Backend, Placement,
    faults::{
        Catalogue, Change, Condition, Device, FaultState, GpuEvent, KnownAddresses, Observation,
        PciAddress, Proof, Recovery, Scope, Validation, XidLine,
    },
};
use tokio::sync::{Notify, watch};

use super::mended::NOT_MENDED;
use crate::inventory::{KnownGpu, KnownGpus};

/// Who sees, and remembers.
#[derive(Debug)]
pub struct Eye {
    backend: Arc<Backend>,
    catalogue: Catalogue,
    gpus: watch::Receiver<Option<KnownGpus>>,
    state: Mutex<FaultState>,
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
        catalogue: Catalogue,
        gpus: watch::Receiver<Option<KnownGpus>>,
        state: FaultState,
    ) -> Self {
        Self {
            backend,
            catalogue,
            gpus,
            state: Mutex::new(state),
            news: Notify::new(),
            look: Notify::new(),
        }
    }

    /// NVML.
    pub(super) fn backend(&self) -> &Backend {
        &self.backend
    }

    /// What is remembered. Not to be held while anything is waited for.
    pub(super) fn state(&self) -> MutexGuard<'_, FaultState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
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

    /// Events of NVML.
    pub(super) fn heard(&self, events: Vec<GpuEvent>) {
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
            let seen = event.observation(&self.catalogue, action, |_| place);
            if let Some(observation) = seen {
                // One without a name is told, and is nobody's.
                let uuid = uuid.unwrap_or_else(|| "without a name".to_owned());
                self.saw(&known, &Device::Uuid(uuid), observation);
            }
        }
    }

    /// Lines of the kernel's log.
    pub(super) fn read(&self, lines: Vec<XidLine>) {
        if lines.is_empty() {
            return;
        }
        let known = self.known();
        let mut asked = Asked::default();
        for line in lines {
            let device = Device::Address(line.address);
            let uuid = known.uuid(&device);
            let action = uuid.and_then(|uuid| self.action(&mut asked, uuid));
            let place = self.place(&mut asked, uuid, line.gpu_instance);
            let observation = line.observation(&self.catalogue, action, |_| place);
            self.saw(&known, &device, observation);
        }
    }

    fn saw(&self, known: &KnownAddresses, device: &Device, observation: Observation) {
        let now = unix_seconds();
        let change = self.state().observe(device, observation, known, now);
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

    /// Looks at all GPUs: what no event told, and what the start of the machine has mended. Blocking.
    pub(super) fn look_at_all(&self) {
        let known = self.known();
        for gpu in self.gpus().iter().filter(|gpu| !gpu.gone && !gpu.silent) {
            let uuid = &gpu.gpu.uuid;
            let Ok(condition) = self.backend.condition(uuid) else {
                // Who lists the GPUs tells that it does not answer.
                continue;
            };
            let now = unix_seconds();
            // Links that the fabric manager has yet to set up are not down.
            let links = condition.active_links.filter(|_| !gpu.lacks_fabric());
            let looked_at = Condition {
                active_links: links,
                ..condition.clone()
            };
            let mut state = self.state();
            let change = state.look(uuid, &looked_at, &known, now);
            let recovery = Recovery {
                proof: Proof::Reboot,
                scope: Scope::Gpu,
                mark: state.boot_mark(),
            };
            let validation = Validation {
                condition: &condition,
                has_fabric: !gpu.lacks_fabric(),
                // Of this boot: what is connected may be other than before.
                best_links: None,
            };
            // What is not in order is tried again with the next look.
            let mended = state.recover(uuid, &recovery, &validation).unwrap_or(0);
            drop(state);
            if mended > 0 {
                tracing::info!(gpu = uuid, mended, "faults are mended by the reboot");
            }
            if mended > 0 || change != Change::None {
                self.news.notify_one();
            }
        }
        if self.state().fade(unix_seconds()) > 0 {
            self.news.notify_one();
        }
    }

    /// A person says that a GPU is in order, or, of one that is not there any more, that it does not come back. What is to be answered;
    /// `None`: it is not known yet which GPUs there are. Blocking.
    pub(super) fn said_to_be_mended(&self, name: &str) -> Option<String> {
        let known = self.gpus.borrow().clone()?;
        // What is seen from here on is newer.
        let mark = self.state().mark();
        let mut gpus = known.gpus.iter();
        let is_meant =
            |known: &&KnownGpu| known.gpu.uuid == name || known.gpu.device_name() == name;
        let Some(gpu) = gpus.find(is_meant) else {
            let forgotten = self.state().forget(name);
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

/// Now.
fn unix_seconds() -> i64 {
    jiff::Timestamp::now().as_second()
}
