//! Brings the GPUs of a node to their declared layout ([`super::layout`] says when and how).
//!
//! A step is taken under the lock of the GPU, under which slices are made and removed: what was seen before is looked at once more there, and only
//! if it is still so the step is taken, on a GPU that has been tainted for half a minute. What is recorded is read when that lock is taken, under
//! the lock of the checkpoint, which is free again before anything is asked of the hardware: no claim for this GPU is recorded before the step has
//! ended, and claims for others are not held up by it ([`crate::store`]). A GPU whose lock is taken is left for the next look.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::{Duration, Instant},
};

use muster_device::{Backend, MigFacts, MigInstance};
use muster_serve::Shutdown;
use tokio::sync::watch;

use super::{
    layout::{Applier, Next, Sight, Step, Usage, steps},
    settings::{Cut, Policy},
};
use crate::{
    inventory::{KnownGpu, KnownGpus},
    kubernetes::Kubernetes,
    prepare::{Disk, Milliseconds},
    store::Store,
};

/// How often GPUs with a layout are looked at.
const LOOK_EVERY: Duration = Duration::from_secs(5);
/// How soon again after a step, and before anything is known.
const LOOK_SOON: Duration = Duration::from_secs(1);

/// What bringing GPUs to their layout needs.
#[derive(Debug)]
pub struct Layouts {
    /// NVML.
    pub backend: Arc<Backend>,
    /// The checkpoint.
    pub store: Store,
    /// The API server, for claims.
    pub kubernetes: Kubernetes,
    /// The GPUs.
    pub gpus: watch::Receiver<Option<KnownGpus>>,
    /// What holds for this node.
    pub policy: watch::Receiver<Option<Policy>>,
    /// Receives the UUIDs of the GPUs that are to be tainted; `None` before the first look.
    pub fences: watch::Sender<Option<BTreeSet<String>>>,
    /// Those whose taint is published.
    pub fenced: watch::Receiver<BTreeSet<String>>,
}

/// Starts it, until shutdown.
pub fn spawn(layouts: Layouts, shutdown: &Shutdown) {
    shutdown.spawn_until_stopped("layouts of GPUs", layouts.run());
}

/// A GPU with its layout, as tasks that block take it along.
#[derive(Clone, Debug)]
struct Wanted {
    uuid: String,
    mig: MigFacts,
    published: Vec<MigInstance>,
    cut: Cut,
    may_toggle: bool,
    /// Names of all devices that it may be.
    devices: BTreeSet<String>,
}

impl Wanted {
    fn of(known: &KnownGpu, policy: &Policy) -> Option<Self> {
        let cut = policy.cut(&known.gpu.device_name())?;
        let mig = known.gpu.mig.as_ref()?;
        (!known.gone && !known.silent).then(|| Self {
            uuid: known.gpu.uuid.clone(),
            mig: mig.clone(),
            published: known.instances.clone(),
            cut: cut.clone(),
            may_toggle: policy.may_toggle(known),
            devices: known.parts().map(|part| part.name).collect(),
        })
    }
}

impl Layouts {
    /// Runs until it is dropped.
    async fn run(self) {
        let started = Instant::now();
        let mut applier = Applier::default();
        let mut told: BTreeMap<String, String> = BTreeMap::new();
        loop {
            let known = self.gpus.borrow().clone();
            let policy = self.policy.borrow().clone();
            let mut pause = LOOK_SOON;
            if let (Some(known), Some(policy)) = (known, policy) {
                let wanted = known.gpus.iter();
                let wanted: Vec<Wanted> = wanted
                    .filter_map(|known| Wanted::of(known, &policy))
                    .collect();
                let uuids = wanted.iter().map(|wanted| wanted.uuid.clone()).collect();
                applier.keep(&uuids);
                told.retain(|uuid, _| uuids.contains(uuid));
                pause = LOOK_EVERY;
                for wanted in wanted {
                    let milliseconds = started.elapsed().as_millis();
                    let now = Milliseconds(u64::try_from(milliseconds).unwrap_or(u64::MAX));
                    let uuid = wanted.uuid.clone();
                    match self.bring(&mut applier, now, wanted).await {
                        Ok((next, stepped)) => {
                            if stepped {
                                pause = LOOK_SOON;
                            }
                            tell(&mut told, uuid, &next);
                        }
                        Err(cause) => log(&mut told, uuid, cause),
                    }
                }
                self.fences.send_if_modified(|before| {
                    let fences = Some(applier.fenced());
                    let is_new = *before != fences;
                    *before = fences;
                    is_new
                });
            }
            tokio::time::sleep(pause).await;
        }
    }

    /// Looks at a GPU, and takes the step that is due, if one is. Returns what is to be done, and whether a step was taken.
    async fn bring(
        &self,
        applier: &mut Applier,
        now: Milliseconds,
        wanted: Wanted,
    ) -> Result<(Next, bool), String> {
        let looked = {
            let (backend, store) = (self.backend.clone(), self.store.clone());
            let wanted = wanted.clone();
            blocking(move || look(&backend, &store, &wanted)).await?
        };
        let is_fenced = self.fenced.borrow().contains(&wanted.uuid);
        let mut allocated = None;
        loop {
            let sight = Sight {
                mig: &wanted.mig,
                live: &looked.live,
                published: &wanted.published,
                usage: looked.usage.clone(),
                allocated: allocated.clone(),
                is_fenced,
                cut: &wanted.cut,
                may_toggle: wanted.may_toggle,
            };
            match applier.next(now, &wanted.uuid, &sight) {
                Next::Ask if allocated.is_none() => {
                    allocated = Some(self.allocated(&wanted.devices).await?);
                }
                Next::Step(step) => {
                    let uuid = wanted.uuid.clone();
                    let (backend, store) = (self.backend.clone(), self.store.clone());
                    let taken = step.clone();
                    let done = blocking(move || take(&backend, &store, &wanted, &taken)).await;
                    applier.stepped(now, &uuid, done.is_ok());
                    done?;
                    tracing::info!(gpu = uuid, ?step, "a step to the declared layout");
                    return Ok((Next::Step(step), true));
                }
                next => return Ok((next, false)),
            }
        }
    }

    /// Which claim was allocated any of these devices.
    async fn allocated(&self, devices: &BTreeSet<String>) -> Result<Usage, String> {
        let claims = self.kubernetes.allocated_here().await;
        let claims = claims.map_err(|error| format!("ResourceClaims: {error}"))?;
        let node = self.kubernetes.node();
        let has = claims.iter().find(|claim| {
            let mut its = claim.devices.iter().flatten();
            its.any(|it| it.pool == node && devices.contains(&it.device))
        });
        Ok(has.map_or(Usage::Idle, |claim| {
            Usage::Used(format!("claim {}", claim.reference))
        }))
    }
}

/// What is seen of a GPU on this node.
struct Looked {
    live: Vec<MigInstance>,
    usage: Usage,
}

fn look(backend: &Backend, store: &Store, wanted: &Wanted) -> Result<Looked, String> {
    let lock = store.lock().map_err(|error| error.to_string())?;
    let disk = store.load(&lock).map_err(|failure| failure.to_string())?;
    drop(lock);
    looked(backend, &disk, wanted)
}

/// Records first: what was given back since was not in use any more.
fn looked(backend: &Backend, disk: &Disk, wanted: &Wanted) -> Result<Looked, String> {
    let failed = |error: muster_device::BackendError| error.to_string();
    let live = backend.mig_instances(&wanted.uuid).map_err(failed)?;
    let processes = backend.processes(&wanted.uuid).map_err(failed)?;
    let holder = disk
        .records
        .values()
        .find(|record| record.units().any(|unit| unit.gpu == wanted.uuid));
    // Without a generation the records are being rebuilt, and who holds what nobody knows.
    let usage = match (holder, processes.first()) {
        _ if disk.acknowledged.is_none() => Usage::Used("records are being rebuilt".to_owned()),
        (Some(record), _) => Usage::Used(format!("claim {}", record.claim)),
        (None, Some(process)) => Usage::Used(format!("process {}", process.pid)),
        (None, None) => Usage::Idle,
    };
    Ok(Looked { live, usage })
}

/// Takes a step, if it is still the next one and nobody has a part of the GPU.
fn take(backend: &Backend, store: &Store, wanted: &Wanted, step: &Step) -> Result<(), String> {
    let locked = store.try_lock_gpu_and_load(&wanted.uuid);
    let Some((_gpu, disk)) = locked.map_err(|failure| failure.to_string())? else {
        return Err("a slice is being made or removed".to_owned());
    };
    let looked = looked(backend, &disk, wanted)?;
    if let Usage::Used(who) = looked.usage {
        return Err(format!("{who} has a part of it by now"));
    }
    let steps = steps(&wanted.mig, &looked.live, &wanted.cut, wanted.may_toggle)?;
    if steps.first() != Some(step) {
        // Another instance took it.
        return Ok(());
    }
    let failed = |error: muster_device::BackendError| error.to_string();
    match step {
        Step::SwitchOn => switch_on(backend, &wanted.uuid),
        Step::Destroy {
            gpu_instance,
            placement,
        } => backend
            .destroy_slice(&wanted.uuid, *gpu_instance, *placement)
            .map_err(failed),
        Step::Create { profile, placement } => backend
            .create_slice(&wanted.uuid, profile, *placement)
            .map(drop)
            .map_err(failed),
    }
}

/// Switches a GPU that nothing uses into MIG mode. One that would have to be reset is left as it was.
fn switch_on(backend: &Backend, uuid: &str) -> Result<(), String> {
    let set = |on: bool| {
        let set = backend.set_mig_mode(uuid, on);
        set.map_err(|error| error.to_string())
    };
    if set(true)?.current {
        return Ok(());
    }
    let rest = match set(false) {
        Ok(after) if !after.pending => "it is left as it was".to_owned(),
        Ok(_) => "it will change with the next reset".to_owned(),
        Err(cause) => format!("it could not be left as it was: {cause}"),
    };
    Err(format!(
        "the MIG mode of GPU {uuid} changes with a reset only; {rest}"
    ))
}

async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, String> + Send + 'static,
) -> Result<T, String> {
    tokio::task::spawn_blocking(work)
        .await
        .map_err(|panicked| panicked.to_string())?
}

/// Each change is told once.
fn tell(told: &mut BTreeMap<String, String>, gpu: String, next: &Next) {
    match next {
        Next::Done => {
            if told.remove(&gpu).is_some() {
                tracing::info!(gpu, "the GPU is cut as its layout says");
            }
        }
        Next::CannotBe(why) => log(told, gpu, format!("it cannot be: {why}")),
        Next::Waits(who) => log(told, gpu, format!("it waits until the GPU is idle: {who}")),
        Next::Shows | Next::Fence | Next::Ask | Next::Step(_) => {
            log(told, gpu, "it is being applied".to_owned());
        }
    }
}

fn log(told: &mut BTreeMap<String, String>, gpu: String, state: String) {
    if told.get(&gpu) != Some(&state) {
        tracing::warn!(gpu, state, "the GPU is not cut as its layout says");
        told.insert(gpu, state);
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, thread};

    use muster_device::{BackendConfig, LibrarySource, cdi};
    use nvidia_ml_mock::{Hang, STATE_FILE, State, StateFile};

    use super::*;
    use crate::prepare::{Acknowledged, Write};

    #[test]
    fn a_gpu_that_hangs_while_it_is_changed_holds_up_no_claim_of_another() {
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
        let hangs = |state: &mut State| {
            state.hangs.push(Hang {
                function: "nvmlDeviceSetMigMode".to_owned(),
                gpu: gpu.uuid.clone(),
            });
        };
        card.change(hangs).unwrap();
        let cdi = cdi::Directory::new(directory.path(), "gpu.muster.dev", directory.path());
        let store = Store::open(directory.path().join("state"), cdi).unwrap();
        let lock = store.lock().unwrap();
        let known = Write::PutNode {
            boot_id: "boot".to_owned(),
            acknowledged: Some(Acknowledged {
                uid: None,
                generation: 0,
                enforce: false,
            }),
        };
        store.apply(&lock, &known).unwrap();
        drop(lock);
        let wanted = Wanted {
            uuid: gpu.uuid.clone(),
            mig: gpu.mig.clone().unwrap(),
            published: Vec::new(),
            cut: Cut::from([("1g.10gb".to_owned(), 1)]),
            may_toggle: true,
            devices: BTreeSet::new(),
        };
        let taking = {
            let store = store.clone();
            thread::spawn(move || take(&backend, &store, &wanted, &Step::SwitchOn))
        };
        // Whoever has the lock of the checkpoint, and finds that of the GPU taken, saw that the first is free while it is changed.
        let mut is_free = false;
        while !is_free && !taking.is_finished() {
            let lock = store.lock().unwrap();
            is_free = store.try_lock_gpu(&gpu.uuid).unwrap().is_none();
            drop(lock);
            thread::yield_now();
        }
        card.change(|state| state.hangs.clear()).unwrap();
        let taken = taking.join().unwrap();
        assert!(is_free, "{taken:?}");
        taken.unwrap();
        assert!(store.try_lock_gpu(&gpu.uuid).unwrap().is_some());
    }
}
