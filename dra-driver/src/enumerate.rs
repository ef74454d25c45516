//! Keeps looking which GPUs there are, and tells those who need to know.
//!
//! While NVML is closed nobody hears of other GPUs than before: what is published stays, and so does what is held. Claims are not
//! prepared meanwhile, because each asks NVML itself whether its GPUs are free; none is given back whose GPUs may be in use.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use muster_device::{Backend, BackendError, LibraryStatus, Listed, MigInstance, Placement};
use muster_serve::{Condition, Shutdown};
use tokio::sync::watch;

use crate::{
    driver::Handle,
    inventory::KnownGpus,
    kubelet::health::NvmlReport,
    metrics::DriverMetrics,
    mig::{OnGpus, Policy},
    prepare::{Disk, Input, Inventory, SliceMode},
    store::{self, Store},
};

/// How often NVML is asked for its list.
const LOOK_EVERY: Duration = Duration::from_secs(10);
/// How soon again while it does not answer: the driver may be loading.
const LOOK_SOON: Duration = Duration::from_secs(1);
/// File in the state directory.
const FILE: &str = "devices.json";

/// What looking needs.
#[derive(Debug)]
pub struct Enumerator {
    /// NVML.
    pub backend: Arc<Backend>,
    /// Where the names are kept.
    pub store: Store,
    /// Boot id of the node.
    pub boot_id: String,
    /// Who prepares claims.
    pub driver: Handle,
    /// What the administrator says about this node; nothing is prepared before that is known.
    pub policy: watch::Receiver<Option<Policy>>,
    /// Receives the UUIDs of the GPUs whose MIG mode is switched as claims need it.
    pub switchable: watch::Sender<BTreeSet<String>>,
    /// Holds while NVML answers.
    pub listed: Condition,
    /// What is counted.
    pub metrics: DriverMetrics,
}

/// Where the results are seen.
#[derive(Debug)]
pub struct Results {
    /// For slices: the last good list; `None` before the first.
    pub gpus: watch::Receiver<Option<KnownGpus>>,
    /// For health: the list, and whether NVML answers.
    pub report: watch::Receiver<NvmlReport>,
}

/// Starts to look, until shutdown; then the senders are dropped and streams that follow them end.
pub fn spawn(enumerator: Enumerator, shutdown: &Shutdown) -> Results {
    let (gpus_sender, gpus) = watch::channel(None);
    let (report_sender, report) = watch::channel(NvmlReport::default());
    let teller = Teller {
        gpus: gpus.clone(),
        policy: enumerator.policy,
        switchable: enumerator.switchable,
        driver: enumerator.driver,
    };
    let telling = teller.run();
    let looker = Looker {
        backend: enumerator.backend,
        store: enumerator.store,
        boot_id: enumerator.boot_id,
        listed: enumerator.listed,
        metrics: enumerator.metrics,
    };
    shutdown.spawn_until_stopped("tell what may be held", telling);
    let looking = looker.run(gpus_sender, report_sender);
    shutdown.spawn_until_stopped("look at the GPUs", looking);
    Results { gpus, report }
}

/// What did not answer in a look, in words.
type Silence = Vec<String>;

/// Slices that no claim of ours accounts for: UUID of the GPU, and where it lies.
type Unaccounted = BTreeSet<(String, Placement)>;

/// What a look brought.
struct Looked {
    known: KnownGpus,
    silence: Silence,
    unaccounted: Unaccounted,
}

/// Looks at the hardware.
struct Looker {
    backend: Arc<Backend>,
    store: Store,
    boot_id: String,
    listed: Condition,
    metrics: DriverMetrics,
}

impl Looker {
    async fn run(self, gpus: watch::Sender<Option<KnownGpus>>, report: watch::Sender<NvmlReport>) {
        let mut told = Told::default();
        let mut unaccounted = Unaccounted::new();
        loop {
            let result = self.look(unaccounted.clone()).await;
            let status = self.backend.status();
            self.metrics.nvml(&status, told.openings);
            told.openings = status.openings;
            let is_listed = result.is_ok();
            self.listed.set(is_listed);
            match result {
                Ok(looked) => {
                    told.cause = None;
                    told.silence(looked.silence, &status);
                    unaccounted = looked.unaccounted;
                    self.found(looked.known, &gpus, &report);
                }
                Err(cause) => {
                    self.metrics.nvml_failures.inc();
                    told.failure(&cause);
                    report.send_if_modified(|report| {
                        let news = report.failure.as_ref() != Some(&cause);
                        report.failure = Some(cause);
                        news
                    });
                }
            }
            tokio::time::sleep(if is_listed { LOOK_EVERY } else { LOOK_SOON }).await;
        }
    }

    fn found(
        &self,
        known: KnownGpus,
        gpus: &watch::Sender<Option<KnownGpus>>,
        report: &watch::Sender<NvmlReport>,
    ) {
        let there = known.gpus.iter().filter(|known| !known.gone).count();
        let silent = known.gpus.iter().filter(|known| known.silent).count();
        let count = |number: usize| i64::try_from(number).unwrap_or(i64::MAX);
        self.metrics.gpus.set(count(there));
        self.metrics.unresponsive.set(count(silent));
        if gpus.borrow().as_ref() != Some(&known) {
            tracing::info!(gpus = there, silent, known = known.gpus.len(), "GPUs");
            gpus.send_replace(Some(known.clone()));
        }
        report.send_if_modified(|report| {
            let next = NvmlReport {
                known: Some(known),
                failure: None,
            };
            let news = *report != next;
            *report = next;
            news
        });
    }

    /// Lists the GPUs and their slices, and keeps their names on disk before anybody hears of them.
    ///
    /// A slice is ours as long as a record names its place: the record is there before the slice, and goes after it. The records are read after
    /// the slices were listed, so the record of one that was removed in between may be gone: only what is `unaccounted` for twice is foreign.
    async fn look(&self, before: Unaccounted) -> Result<Looked, String> {
        let backend = self.backend.clone();
        let store = self.store.clone();
        let boot_id = self.boot_id.clone();
        let look = move || -> Result<Looked, String> {
            let listed = backend.gpus().map_err(|error| error.to_string())?;
            let slices = instances(&backend, &listed);
            let lock = store.lock().map_err(|error| error.to_string())?;
            let earlier = store::load_beside::<KnownGpus>(&store, FILE)
                .map_err(|failure| failure.to_string())?;
            let disk = store.load(&lock).map_err(|failure| failure.to_string())?;
            let made = store
                .made_slices(&lock, &boot_id)
                .map_err(|failure| failure.to_string())?;
            let unaccounted = unaccounted(&slices, &disk, &made);
            let is_foreign = |gpu: &str, placement: Placement| {
                let slice = (gpu.to_owned(), placement);
                unaccounted.contains(&slice) && before.contains(&slice)
            };
            let known = earlier.clone().unwrap_or_default();
            let known = known
                .after(&boot_id, &listed)
                .with_instances(&slices, is_foreign);
            if earlier.as_ref() != Some(&known) {
                store::put_beside(&store, FILE, &known).map_err(|failure| failure.to_string())?;
            }
            Ok(Looked {
                known,
                silence: silence(&listed),
                unaccounted,
            })
        };
        tokio::task::spawn_blocking(look)
            .await
            .map_err(|panicked| panicked.to_string())?
    }
}

/// The slices of each GPU that answers: none where the mode is off. Of one that cannot tell nothing is said.
fn instances(backend: &Backend, listed: &Listed) -> BTreeMap<String, Vec<MigInstance>> {
    let answering = listed.gpus.iter().filter(|listed| listed.silent.is_none());
    let mut found = BTreeMap::new();
    for listed in answering {
        let Some(mig) = &listed.gpu.mig else {
            continue;
        };
        let uuid = &listed.gpu.uuid;
        let slices = if mig.current {
            backend.mig_instances(uuid)
        } else {
            Ok(Vec::new())
        };
        match slices {
            Ok(slices) => {
                found.insert(uuid.clone(), slices);
            }
            Err(error) => {
                tracing::warn!(gpu = uuid, %error, "the slices of a GPU cannot be listed");
            }
        }
    }
    found
}

/// The slices that no record names, and that were not `made` by claims in this boot.
fn unaccounted(
    slices: &BTreeMap<String, Vec<MigInstance>>,
    disk: &Disk,
    made: &BTreeSet<String>,
) -> Unaccounted {
    let is_named = |gpu: &str, slice: &MigInstance| {
        let is_made = slice.uuid.as_ref().is_some_and(|uuid| made.contains(uuid));
        is_made || disk.records.values().any(|record| record.names(gpu, slice))
    };
    let all = slices
        .iter()
        .flat_map(|(gpu, slices)| slices.iter().map(move |slice| (gpu, slice)));
    all.filter(|(gpu, slice)| !is_named(gpu, slice))
        .map(|(gpu, slice)| (gpu.clone(), slice.placement))
        .collect()
}

/// Tells what may be held, and which GPUs may be switched for it, once it is known who makes slices on this node, and whenever that or
/// the hardware changes.
struct Teller {
    gpus: watch::Receiver<Option<KnownGpus>>,
    policy: watch::Receiver<Option<Policy>>,
    switchable: watch::Sender<BTreeSet<String>>,
    driver: Handle,
}

impl Teller {
    async fn run(mut self) {
        let mut told: Option<Inventory> = None;
        loop {
            let known = self.gpus.borrow_and_update().clone();
            let policy = self.policy.borrow_and_update().clone();
            if let (Some(known), Some(policy)) = (known, policy) {
                // First, so that nobody is given a GPU before it is known that its mode may be switched.
                self.switchable.send_replace(switchable(&known, &policy));
                let inventory = known.inventory(policy.slice_mode());
                if told.as_ref() != Some(&inventory) {
                    self.driver.tell(Input::Inventory(inventory.clone()));
                    told = Some(inventory);
                }
            }
            tokio::select! {
                Ok(()) = self.gpus.changed() => {}
                Ok(()) = self.policy.changed() => {}
                else => return,
            }
        }
    }
}

/// UUIDs of the GPUs whose MIG mode is switched as claims need it: where slices are made for them, and that may be done.
fn switchable(known: &KnownGpus, policy: &Policy) -> BTreeSet<String> {
    let makes_slices = policy.slice_mode() == SliceMode::Dynamic;
    let gpus = known.gpus.iter().filter(|_| makes_slices);
    let gpus = gpus.filter(|known| policy.may_toggle(known));
    gpus.map(|known| known.gpu.uuid.clone()).collect()
}

/// What was logged last, so that each change is logged once.
#[derive(Debug, Default)]
struct Told {
    cause: Option<String>,
    silence: Silence,
    openings: u64,
}

impl Told {
    fn failure(&mut self, cause: &str) {
        if self.cause.as_deref() != Some(cause) {
            tracing::warn!(
                cause,
                "the GPUs cannot be listed; what is published and what is held stays as it is"
            );
            self.cause = Some(cause.to_owned());
        }
    }

    fn silence(&mut self, silence: Silence, status: &LibraryStatus) {
        if self.silence != silence {
            if silence.is_empty() {
                tracing::info!("all GPUs answer again");
            } else {
                let stuck_calls = status.stuck_calls;
                tracing::warn!(?silence, stuck_calls, "GPUs that do not answer");
            }
            self.silence = silence;
        }
    }
}

fn silence(listed: &Listed) -> Silence {
    let known = listed.gpus.iter().filter_map(|listed| {
        let cause = listed.silent.as_ref()?;
        Some(format!("{}: {cause}", listed.gpu.uuid))
    });
    let unidentified = listed.unidentified.iter();
    let unknown = unidentified.map(|cause: &BackendError| format!("of unknown UUID: {cause}"));
    known.chain(unknown).collect()
}
