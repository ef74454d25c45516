//! Brings the GPUs of a node to their declared layout, or out of MIG mode ([`super::layout`] says when and how).
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
    layout::{Allocated, Applier, Goal, Next, Part, Sight, Step, Usage, awaited},
    settings::{OnGpus, Policy},
};
use crate::{
    inventory::{KnownGpu, KnownGpus},
    kubernetes::Kubernetes,
    prepare::{Claim, Disk, Milliseconds, Record, Slices, Unit},
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
    /// Which boot this is.
    pub boot_id: String,
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

/// A GPU with what it is to become, as tasks that block take it along.
#[derive(Clone, Debug)]
struct Wanted {
    uuid: String,
    mig: MigFacts,
    published: Vec<MigInstance>,
    goal: Goal,
    may_toggle: bool,
    /// All devices that it may be, by name: the slice, or the whole GPU.
    devices: BTreeMap<String, Option<Part>>,
}

impl Wanted {
    fn of(known: &KnownGpu, policy: &Policy) -> Option<Self> {
        let goal = policy.goal(known)?;
        let mig = known.gpu.mig.as_ref()?;
        (!known.gone && !known.silent).then(|| Self {
            uuid: known.gpu.uuid.clone(),
            mig: mig.clone(),
            published: known.instances.clone(),
            goal,
            may_toggle: policy.may_toggle(known),
            devices: devices(known),
        })
    }
}

fn devices(known: &KnownGpu) -> BTreeMap<String, Option<Part>> {
    let parts = known.parts();
    let devices = parts.map(|part| {
        let slice = part.slice;
        let slice = slice.map(|it| (it.profile.gpu_instance_profile, it.placement));
        (part.name, slice)
    });
    devices.collect()
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
                    let (uuid, goal) = (wanted.uuid.clone(), wanted.goal.clone());
                    match self.bring(&mut applier, now, wanted).await {
                        Ok((next, stepped)) => {
                            if stepped {
                                pause = LOOK_SOON;
                            }
                            tell(&mut told, uuid, &goal, &next);
                        }
                        Err(cause) => log(&mut told, uuid, &goal, cause),
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
                goal: &wanted.goal,
                may_toggle: wanted.may_toggle,
            };
            match applier.next(now, &wanted.uuid, &sight) {
                Next::Ask if allocated.is_none() => {
                    allocated = Some(self.allocated(&wanted.devices).await?);
                }
                Next::Step(step) => {
                    let uuid = wanted.uuid.clone();
                    let (backend, store) = (self.backend.clone(), self.store.clone());
                    let (boot_id, taken) = (self.boot_id.clone(), step.clone());
                    let awaited = awaited(allocated.as_deref().unwrap_or_default());
                    let take = move || take(&backend, &store, &boot_id, &wanted, &awaited, &taken);
                    let done = blocking(take).await;
                    applier.stepped(now, &uuid, done.is_ok());
                    done?;
                    tracing::info!(
                        gpu = uuid,
                        ?step,
                        "a step to what driver.mig says of the GPU"
                    );
                    return Ok((Next::Step(step), true));
                }
                next => return Ok((next, false)),
            }
        }
    }

    /// Which claims were allocated any of these devices.
    async fn allocated(
        &self,
        devices: &BTreeMap<String, Option<Part>>,
    ) -> Result<Vec<Allocated>, String> {
        let claims = self.kubernetes.allocated_here().await;
        let claims = claims.map_err(|error| format!("ResourceClaims: {error}"))?;
        let node = self.kubernetes.node();
        let claims = claims.iter();
        Ok(claims
            .flat_map(|claim| allocated_to(claim, node, devices))
            .collect())
    }
}

/// What a claim was allocated of these devices of a node: for itself, and for administrative access.
fn allocated_to(
    claim: &Claim,
    node: &str,
    devices: &BTreeMap<String, Option<Part>>,
) -> Vec<Allocated> {
    let allocated = [false, true].into_iter().filter_map(|is_for_admin| {
        let its = claim.devices.iter().flatten();
        let here = its.filter(|it| it.pool == node && it.admin_access == is_for_admin);
        let parts: Vec<Option<Part>> = here
            .filter_map(|it| devices.get(&it.device).copied())
            .collect();
        (!parts.is_empty()).then(|| Allocated {
            claim: format!("claim {}", claim.reference),
            slices: parts.into_iter().collect(),
            is_for_admin,
        })
    });
    allocated.collect()
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
    let has_it = |record: &&Record| record.units().any(|unit| unit.gpu == wanted.uuid);
    let holders: Vec<&Record> = disk.records.values().filter(has_it).collect();
    let who = match (holders.first(), processes.first()) {
        (Some(record), _) => Some(format!("claim {}", record.claim)),
        (None, Some(process)) => Some(format!("process {}", process.pid)),
        (None, None) => None,
    };
    // A record may be about a slice that is only to be made.
    let lies = |unit: &Unit| {
        let Slices { start, end } = unit.slices;
        let covers = |it: &MigInstance| {
            it.placement.start == u32::from(start) && it.placement.end() == u32::from(end)
        };
        unit.gpu != wanted.uuid || live.iter().any(covers)
    };
    let is_in_slices = holders.iter().all(|record| record.units().all(lies))
        && processes.iter().all(|process| {
            let own = process.gpu_instance;
            own.is_some_and(|own| live.iter().any(|it| it.gpu_instance == own))
        });
    // Without a generation the records are being rebuilt, and who holds what nobody knows.
    let usage = match who {
        _ if disk.acknowledged.is_none() => Usage::Used("records are being rebuilt".to_owned()),
        None => Usage::Idle,
        Some(who) if is_in_slices => Usage::UsedInSlices(who),
        Some(who) => Usage::Used(who),
    };
    Ok(Looked { live, usage })
}

/// Takes a step, if it is still the next one and nobody has a part of the GPU.
fn take(
    backend: &Backend,
    store: &Store,
    boot_id: &str,
    wanted: &Wanted,
    awaited: &[Part],
    step: &Step,
) -> Result<(), String> {
    let locked = store.try_lock_gpu_and_load(&wanted.uuid);
    let Some((gpu, disk)) = locked.map_err(|failure| failure.to_string())? else {
        return Err("a slice is being made or removed".to_owned());
    };
    let looked = looked(backend, &disk, wanted)?;
    if let Some(who) = looked.usage.forbids(step) {
        return Err(format!("{who} has a part of it by now"));
    }
    let steps = wanted
        .goal
        .steps(&wanted.mig, &looked.live, awaited, wanted.may_toggle)?;
    if steps.first() != Some(step) {
        // Another instance took it.
        return Ok(());
    }
    let failed = |error: muster_device::BackendError| error.to_string();
    match step {
        Step::SwitchOn => switch_on(backend, &wanted.uuid),
        Step::SwitchOff => switch_off(backend, &wanted.uuid),
        Step::Destroy {
            gpu_instance,
            placement,
        } => {
            let mut live = looked.live.iter();
            let uuid = live.find(|it| it.gpu_instance == *gpu_instance);
            let uuid = uuid.and_then(|it| it.uuid.clone());
            backend
                .destroy_slice(&wanted.uuid, *gpu_instance, *placement)
                .map_err(failed)?;
            drop(gpu);
            note(store, boot_id, uuid, false);
            Ok(())
        }
        Step::Create { profile, placement } => {
            let made = backend
                .create_slice(&wanted.uuid, profile, *placement)
                .map_err(failed)?;
            // The lock of the checkpoint is never waited for under that of a GPU.
            drop(gpu);
            note(store, boot_id, made.uuid, true);
            Ok(())
        }
    }
}

/// Notes that a slice of a layout was made, or is gone. One that is not noted counts as an administrator's, if the node should have no layout any more:
/// then he removes it himself.
fn note(store: &Store, boot_id: &str, uuid: Option<String>, is_made: bool) {
    let Some(uuid) = uuid else { return };
    let noted = store.lock().map_err(|error| error.to_string());
    let noted = noted.and_then(|lock| {
        let noted = store.note_layout_slice(&lock, boot_id, &uuid, is_made);
        noted.map_err(|failure| failure.to_string())
    });
    if let Err(cause) = noted {
        tracing::warn!(slice = uuid, cause, "a slice of a layout is not noted");
    }
}

/// Switches a GPU without slices that nothing uses out of MIG mode. One that would have to be reset is left as it was.
fn switch_off(backend: &Backend, uuid: &str) -> Result<(), String> {
    let set = |on: bool| {
        let set = backend.set_mig_mode(uuid, on);
        set.map_err(|error| error.to_string())
    };
    if !set(false)?.current {
        return Ok(());
    }
    // Else it would change with a reset that somebody does for another reason.
    let taken_back = set(true).map_or_else(|cause| format!(" ({cause})"), |_| String::new());
    Err(format!(
        "the MIG mode of GPU {uuid} changes with a reset only; it is left as it was{taken_back}"
    ))
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
fn tell(told: &mut BTreeMap<String, String>, gpu: String, goal: &Goal, next: &Next) {
    match next {
        Next::Done => {
            if told.remove(&gpu).is_some() {
                match goal {
                    Goal::Cut(_) => tracing::info!(gpu, "the GPU is cut as its layout says"),
                    Goal::Whole => tracing::info!(gpu, "the GPU is out of MIG mode"),
                }
            }
        }
        Next::CannotBe(why) => log(told, gpu, goal, format!("it cannot be: {why}")),
        Next::Waits(who) => log(
            told,
            gpu,
            goal,
            format!("it waits until the GPU is idle: {who}"),
        ),
        Next::Shows | Next::Fence | Next::Ask | Next::Step(_) => {
            log(told, gpu, goal, "it is being applied".to_owned());
        }
    }
}

fn log(told: &mut BTreeMap<String, String>, gpu: String, goal: &Goal, state: String) {
    if told.get(&gpu) != Some(&state) {
        match goal {
            Goal::Cut(_) => tracing::warn!(gpu, state, "the GPU is not cut as its layout says"),
            Goal::Whole => tracing::info!(gpu, state, "the GPU is still in MIG mode"),
        }
        told.insert(gpu, state);
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use muster_device::{Gpu, Placement};
    use nvidia_ml_mock::{Hang, State, StateFile};

    use super::*;
    use crate::{
        mock_node::{self, BOOT, MockNode},
        prepare::{AllocatedDevice, Write},
    };

    /// A node with one board, of which the first GPU is looked at.
    struct Stage {
        directory: tempfile::TempDir,
        card: StateFile,
        backend: Arc<Backend>,
        store: Store,
        gpu: Gpu,
    }

    impl Stage {
        fn new() -> Self {
            let node = MockNode::new();
            node.acknowledge();
            let MockNode {
                directory,
                card,
                backend,
                store,
            } = node;
            let gpu = backend.gpus().unwrap().gpus.swap_remove(0).gpu;
            Self {
                directory,
                card,
                backend,
                store,
                gpu,
            }
        }

        /// The GPU as it is now, with what it is to become.
        fn wanted(&self, goal: Goal) -> Wanted {
            let gpu = self.backend.gpus().unwrap().gpus.swap_remove(0).gpu;
            Wanted {
                uuid: gpu.uuid,
                mig: gpu.mig.unwrap(),
                published: Vec::new(),
                goal,
                may_toggle: true,
                devices: BTreeMap::new(),
            }
        }

        /// Takes all steps to a goal.
        fn bring(&self, goal: &Goal) {
            for _ in 0..9 {
                let wanted = self.wanted(goal.clone());
                let live = self.backend.mig_instances(&wanted.uuid).unwrap_or_default();
                let steps = goal.steps(&wanted.mig, &live, &[], true).unwrap();
                let Some(step) = steps.first() else { return };
                take(&self.backend, &self.store, BOOT, &wanted, &[], step).unwrap();
            }
            panic!("{goal:?} is not reached");
        }

        fn noted(&self) -> BTreeSet<String> {
            let lock = self.store.lock().unwrap();
            self.store.layout_slices(&lock, BOOT).unwrap()
        }
    }

    #[test]
    fn slices_of_a_layout_are_noted_as_its_own_until_it_removes_them_and_then_the_gpu_can_be_made_whole()
     {
        let stage = Stage::new();
        let cut = |slices: &[(&str, u32)]| {
            let slices = slices.iter();
            Goal::Cut(
                slices
                    .map(|(name, count)| ((*name).to_owned(), *count))
                    .collect(),
            )
        };
        for (slices, noted) in [
            (vec![("1g.10gb", 2)], 2),
            (vec![("1g.10gb", 1), ("3g.40gb", 1)], 2),
        ] {
            stage.bring(&cut(&slices));
            assert_eq!(stage.noted().len(), noted, "{slices:?}");
            let live = stage.backend.mig_instances(&stage.gpu.uuid).unwrap();
            let live: BTreeSet<String> = live.into_iter().filter_map(|it| it.uuid).collect();
            assert_eq!(stage.noted(), live, "{slices:?}");
        }
        // Slices are never removed for it.
        let wanted = stage.wanted(Goal::Whole);
        let refused = take(
            &stage.backend,
            &stage.store,
            BOOT,
            &wanted,
            &[],
            &Step::SwitchOff,
        );
        assert!(refused.unwrap_err().contains("2 slices"));
        stage.bring(&cut(&[]));
        assert!(stage.noted().is_empty());
        stage.bring(&Goal::Whole);
        assert!(!stage.wanted(Goal::Whole).mig.current);
    }

    #[test]
    fn a_gpu_that_somebody_uses_stays_in_mig_mode() {
        let stage = Stage::new();
        let uuid = stage.gpu.uuid.clone();
        assert!(stage.backend.set_mig_mode(&uuid, true).unwrap().current);
        let lock = stage.store.lock().unwrap();
        let record = mock_node::prepared(Unit::whole(uuid.clone()));
        stage.store.apply(&lock, &Write::PutRecord(record)).unwrap();
        drop(lock);
        let wanted = stage.wanted(Goal::Whole);
        let refused = take(
            &stage.backend,
            &stage.store,
            BOOT,
            &wanted,
            &[],
            &Step::SwitchOff,
        );
        assert!(refused.unwrap_err().contains("claim"));
        assert!(stage.wanted(Goal::Whole).mig.current);
    }

    /// As what is recorded for it takes the GPU from nobody.
    #[test]
    fn what_is_allocated_for_administrative_access_is_told_apart() {
        let slice: Part = (19, Placement { start: 2, size: 1 });
        let devices = BTreeMap::from([("gpu-0".to_owned(), None), ("s".to_owned(), Some(slice))]);
        let device = |pool: &str, device: &str, admin_access: bool| AllocatedDevice {
            request: "gpu".to_owned(),
            pool: pool.to_owned(),
            device: device.to_owned(),
            admin_access,
            tolerations: Vec::new(),
        };
        let told = |allocated: Vec<AllocatedDevice>| {
            let claim = Claim {
                reference: mock_node::claim(),
                by_name: None,
                invalid_config: None,
                pods: Vec::new(),
                devices: Some(allocated),
            };
            let found = allocated_to(&claim, "node-0", &devices).into_iter();
            let found = found.map(|it| (it.slices, it.is_for_admin));
            found.collect::<Vec<_>>()
        };
        let watched = device("node-0", "gpu-0", true);
        let own = device("node-0", "s", false);
        let whole: Option<Vec<Part>> = None;
        assert_eq!(told(vec![watched.clone()]), [(whole.clone(), true)]);
        assert_eq!(
            told(vec![watched, own]),
            [(Some(vec![slice]), false), (whole, true)]
        );
        let elsewhere = vec![
            device("node-1", "s", false),
            device("node-0", "gpu-1", false),
        ];
        assert!(told(elsewhere).is_empty());
    }

    #[test]
    fn a_gpu_that_hangs_while_it_is_changed_holds_up_no_claim_of_another() {
        let stage = Stage::new();
        let goal = Goal::Cut(BTreeMap::from([("1g.10gb".to_owned(), 1)]));
        let wanted = stage.wanted(goal);
        let Stage {
            directory: _directory,
            card,
            backend,
            store,
            gpu,
        } = stage;
        let hangs = |state: &mut State| {
            state.hangs.push(Hang {
                function: "nvmlDeviceSetMigMode".to_owned(),
                gpu: gpu.uuid.clone(),
            });
        };
        card.change(hangs).unwrap();
        let taking = {
            let store = store.clone();
            thread::spawn(move || take(&backend, &store, BOOT, &wanted, &[], &Step::SwitchOn))
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
