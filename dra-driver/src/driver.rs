//! The machine of [`crate::prepare`] on a real node: performs its effects.
//!
//! One task owns the machine and feeds it one input at a time. Whatever takes time (disk, lock, NVML, API server)
//! runs in tasks of its own and comes back as an input, so that an Unprepare is never behind a slow call of
//! another kind. What this loop loses in a crash is calls, which the kubelet repeats. A task that panics would never
//! deliver its input, so it ends the driver, and with it the program.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Instant,
};

use muster_serve::{Condition, Shutdown};
use tokio::{
    sync::{mpsc, oneshot, watch},
    task::{JoinError, JoinSet},
};

use crate::{
    hardware::Hardware,
    kubernetes::Kubernetes,
    metrics::{DriverMetrics, SliceChange},
    prepare::{
        Answer, CallId, Claim, ClaimRef, Config, DiskFailure, Effect, InUse, Input, Inventory,
        LiveSlices, Locked, Machine, MadeSlice, Milliseconds, PlacedSlice, Probe, Record,
        RecordState, RecordedDevice, RecordedSlice, Sights, SliceMode, Ticket, Write,
    },
    probe::Prober,
    store::{Guard, Store},
    under_lock::{self, Judged},
};

/// Everything outside that the machine acts on.
#[derive(Clone, Debug)]
pub struct World {
    /// The checkpoint and the CDI files.
    pub store: Store,
    /// Who uses the hardware.
    pub prober: Prober,
    /// Slices, as they are made and removed.
    pub hardware: Hardware,
    /// The API server.
    pub kubernetes: Kubernetes,
}

/// A call of the kubelet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallKind {
    /// Prepare a claim.
    Prepare,
    /// Give it back.
    Unprepare,
}

/// How to reach the machine. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Handle {
    messages: mpsc::UnboundedSender<Message>,
}

/// What reaches the task.
enum Message {
    Call(CallKind, ClaimRef, oneshot::Sender<Answer>),
    Input(Input),
    /// The lock is held; the guard stays with the task until the commit.
    Locked(Ticket, Locked, Option<Guard>),
    /// Somebody wants a sign of life.
    Alive(oneshot::Sender<()>),
}

impl Handle {
    /// Has a claim prepared or given back, and waits for the answer. `None`: the driver is stopping.
    pub async fn call(&self, kind: CallKind, claim: ClaimRef) -> Option<Answer> {
        let (answer, wait) = oneshot::channel();
        self.messages
            .send(Message::Call(kind, claim, answer))
            .ok()?;
        wait.await.ok()
    }

    /// Waits for a sign of life of the task. Whether there was one.
    pub async fn is_alive(&self) -> bool {
        let (answer, wait) = oneshot::channel();
        self.messages.send(Message::Alive(answer)).is_ok() && wait.await.is_ok()
    }

    /// A handle of no driver, and what it is told.
    #[cfg(test)]
    pub(crate) fn unconnected() -> (Self, impl Sized) {
        let (messages, told) = mpsc::unbounded_channel();
        (Self { messages }, told)
    }

    /// Tells the machine something.
    pub fn tell(&self, input: Input) {
        // Nobody listens any more once the driver is stopping.
        let _ = self.messages.send(Message::Input(input));
    }
}

/// The task that owns the machine.
#[derive(Debug)]
pub struct Driver {
    machine: Machine,
    boot_id: String,
    world: World,
    handle: Handle,
    messages: mpsc::UnboundedReceiver<Message>,
    started: Instant,
    calls: BTreeMap<CallId, (CallKind, Instant, oneshot::Sender<Answer>)>,
    next_call: u64,
    guard: Option<Guard>,
    /// `None` before the GPUs were listed.
    inventory: Option<Inventory>,
    held: watch::Sender<BTreeSet<String>>,
    /// Holds once the node's state on disk is known to be good, and the status says so.
    acknowledged: Condition,
    metrics: DriverMetrics,
    /// Effects that take time.
    effects: JoinSet<()>,
}

impl std::fmt::Debug for Message {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Call(kind, claim, _) => write!(formatter, "{kind:?} {claim}"),
            Self::Input(input) => write!(formatter, "{input:?}"),
            Self::Locked(ticket, ..) => write!(formatter, "Locked {ticket:?}"),
            Self::Alive(_) => formatter.write_str("Alive"),
        }
    }
}

impl Driver {
    /// A driver that has not started; `held` receives the devices to taint.
    pub fn new(
        config: Config,
        world: World,
        held: watch::Sender<BTreeSet<String>>,
        acknowledged: Condition,
        metrics: DriverMetrics,
    ) -> Self {
        let (sender, messages) = mpsc::unbounded_channel();
        Self {
            boot_id: config.boot_id.clone(),
            machine: Machine::new(config),
            world,
            handle: Handle { messages: sender },
            messages,
            started: Instant::now(),
            calls: BTreeMap::new(),
            next_call: 0,
            guard: None,
            inventory: None,
            held,
            acknowledged,
            metrics,
            effects: JoinSet::new(),
        }
    }

    /// How to reach it.
    pub fn handle(&self) -> Handle {
        self.handle.clone()
    }

    /// Runs it until the shutdown. Essential: without it no call of the kubelet is answered, and nothing else would show.
    pub fn spawn(self, shutdown: &Shutdown) {
        shutdown.spawn_until_stopped("driver", self.run());
    }

    /// Runs until it is dropped. Panics if an effect does.
    async fn run(mut self) {
        self.feed(Input::Tick);
        loop {
            let wake = self.machine.wake_at().map(|at| {
                let wait = at.0.saturating_sub(self.now().0);
                std::time::Duration::from_millis(wait)
            });
            let sleep = async {
                match wake {
                    Some(wait) => tokio::time::sleep(wait).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                message = self.messages.recv() => match message {
                    Some(message) => self.receive(message),
                    None => return,
                },
                () = sleep => self.feed(Input::Tick),
                Some(ended) = self.effects.join_next() => go_on_after(ended),
            }
        }
    }

    fn now(&self) -> Milliseconds {
        Milliseconds(u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX))
    }

    fn receive(&mut self, message: Message) {
        match message {
            Message::Call(kind, claim, answer) => {
                let call = CallId(self.next_call);
                self.next_call += 1;
                tracing::info!(?kind, call = call.0, %claim, "called");
                self.calls.insert(call, (kind, Instant::now(), answer));
                self.feed(match kind {
                    CallKind::Prepare => Input::Prepare(call, claim),
                    CallKind::Unprepare => Input::Unprepare(call, claim),
                });
            }
            Message::Input(input) => {
                if let Input::Inventory(inventory) = &input {
                    self.inventory = Some(inventory.clone());
                }
                self.feed(input);
            }
            // Whoever asked may have given up.
            Message::Alive(answer) => _ = answer.send(()),
            Message::Locked(ticket, locked, guard) => {
                self.guard = guard;
                let disk = locked.disk.as_ref();
                self.acknowledged
                    .set(disk.is_ok_and(|disk| disk.acknowledged.is_some()));
                self.feed(Input::Locked(ticket, locked));
            }
        }
    }

    fn feed(&mut self, input: Input) {
        let effects = self.machine.input(self.now(), input);
        for effect in effects {
            self.perform(effect);
        }
    }

    fn perform(&mut self, effect: Effect) {
        let world = self.world.clone();
        let handle = self.handle.clone();
        match effect {
            Effect::Look { look, gpu } => {
                self.effects.spawn_blocking(move || {
                    let sight = under_lock::look(&world.store, &world.prober, &gpu);
                    handle.tell(Input::Looked(look, sight));
                });
            }
            Effect::Lock {
                ticket,
                probe,
                read_node_devices,
                read_claim,
                sights,
            } => {
                let look = UnderLock {
                    probe,
                    read_node_devices,
                    read_claim,
                    sights,
                };
                self.effects.spawn(async move {
                    let (locked, guard) = lock(world, look).await;
                    let _ = handle.messages.send(Message::Locked(ticket, locked, guard));
                });
            }
            Effect::Commit { ticket, writes } => {
                let guard = self.guard.take();
                self.effects.spawn_blocking(move || {
                    let result = commit(&world.store, guard, &writes);
                    handle.tell(Input::Committed(ticket, result));
                });
            }
            Effect::ReadClaim(call, claim) => {
                self.effects.spawn(async move {
                    let read = world.kubernetes.claim(&claim).await;
                    handle.tell(Input::ClaimRead(call, read));
                });
            }
            Effect::ReadNodeDevices => {
                self.effects.spawn(async move {
                    let read = world.kubernetes.node_devices().await;
                    handle.tell(Input::NodeDevicesRead(read));
                });
            }
            Effect::Gather => {
                let inventory = self.inventory.clone();
                let boot_id = self.boot_id.clone();
                self.effects.spawn(async move {
                    let found = gather(world, inventory, boot_id).await;
                    if let Err(cause) = &found {
                        tracing::warn!(cause, "the records cannot be rebuilt yet");
                    }
                    handle.tell(Input::Gathered(found));
                });
            }
            Effect::WriteStatus {
                uid,
                resource_version,
                status,
            } => {
                self.effects.spawn(async move {
                    let outcome = world
                        .kubernetes
                        .write_status(uid, resource_version, &status)
                        .await;
                    handle.tell(Input::StatusWritten(outcome));
                });
            }
            Effect::MakeSlices {
                call,
                fence,
                slices,
                wholes,
            } => {
                let metrics = self.metrics.clone();
                self.effects.spawn_blocking(move || {
                    let since = Instant::now();
                    let hardware = &world.hardware;
                    let made = hardware.make(&world.store, &fence, &slices, &wholes);
                    if !slices.is_empty() {
                        let took = since.elapsed();
                        metrics.changed_slices(SliceChange::Make, made.is_ok(), took);
                    }
                    if let Err(failure) = &made {
                        tracing::warn!(claim = fence.claim, %failure, "slices are not made");
                    }
                    handle.tell(Input::SlicesMade(call, made));
                });
            }
            Effect::RemoveSlices {
                removal,
                fence,
                slices,
            } => {
                let metrics = self.metrics.clone();
                self.effects.spawn_blocking(move || {
                    let since = Instant::now();
                    let removed = world.hardware.remove(&world.store, &fence, &slices);
                    metrics.changed_slices(SliceChange::Remove, removed.is_ok(), since.elapsed());
                    if let Err(failure) = &removed {
                        tracing::warn!(claim = fence.claim, %failure, "slices are not removed");
                    }
                    handle.tell(Input::SlicesRemoved(removal, removed));
                });
            }
            Effect::Answer(call, answer) => self.answer(call, answer),
            Effect::TaintHeld(devices) => {
                self.metrics
                    .held
                    .set(i64::try_from(devices.len()).unwrap_or(i64::MAX));
                self.held.send_replace(devices);
            }
        }
    }

    fn answer(&mut self, call: CallId, answer: Answer) {
        let Some((kind, since, sender)) = self.calls.remove(&call) else {
            return;
        };
        let seconds = since.elapsed();
        self.metrics.answered(kind, &answer, seconds);
        match &answer {
            Answer::Refused(refusal) => {
                tracing::warn!(?kind, call = call.0, %refusal, ?seconds, "refused");
            }
            Answer::Prepared(devices) => {
                let devices: Vec<_> = devices.iter().map(|device| &device.device).collect();
                tracing::info!(?kind, call = call.0, ?devices, ?seconds, "prepared");
            }
            Answer::Unprepared => tracing::info!(?kind, call = call.0, ?seconds, "unprepared"),
        }
        // The kubelet may have given up.
        let _ = sender.send(answer);
    }
}

/// Goes on with the panic of an effect, if that is how it ended. (Nobody cancels one.)
fn go_on_after(ended: Result<(), JoinError>) {
    if let Err(panic) = ended.or_else(|broken| broken.try_into_panic().map_or(Ok(()), Err)) {
        std::panic::resume_unwind(panic);
    }
}

/// What is asked while the lock is held.
struct UnderLock {
    probe: Option<Probe>,
    read_node_devices: bool,
    read_claim: Option<ClaimRef>,
    sights: Sights,
}

/// Takes the lock and answers what is asked. Without the lock there is no disk to decide on.
async fn lock(world: World, look: UnderLock) -> (Locked, Option<Guard>) {
    let World {
        store,
        prober,
        kubernetes,
        ..
    } = world;
    let UnderLock {
        probe,
        read_node_devices,
        read_claim,
        sights,
    } = look;
    let judge = move || -> Result<_, DiskFailure> {
        let guard = store
            .lock()
            .map_err(|error| DiskFailure::new(error.to_string()))?;
        let disk = store.load(&guard)?;
        let judged = under_lock::judge(&store, &guard, &prober, probe.as_ref(), &sights, &disk);
        Ok((guard, disk, judged))
    };
    match tokio::task::spawn_blocking(judge).await {
        Ok(Ok((guard, disk, Judged { in_use, live }))) => {
            let node_devices = if read_node_devices {
                Some(kubernetes.node_devices().await)
            } else {
                None
            };
            let claim = match read_claim {
                Some(reference) => Some(Box::new(kubernetes.claim_now(&reference).await)),
                None => None,
            };
            let locked = Locked {
                disk: Ok(disk),
                in_use,
                node_devices,
                claim,
                live,
            };
            (locked, Some(guard))
        }
        Ok(Err(failure)) => (without_disk(failure), None),
        Err(panicked) => (without_disk(DiskFailure::new(panicked.to_string())), None),
    }
}

fn without_disk(failure: DiskFailure) -> Locked {
    tracing::error!(%failure, "the checkpoint cannot be used");
    Locked {
        disk: Err(failure),
        in_use: None,
        node_devices: None,
        claim: None,
        live: LiveSlices::new(),
    }
}

fn commit(store: &Store, guard: Option<Guard>, writes: &[Write]) -> Result<(), DiskFailure> {
    match guard {
        Some(guard) => writes
            .iter()
            .try_for_each(|change| store.apply(&guard, change)),
        None if writes.is_empty() => Ok(()),
        None => Err(DiskFailure::new("the lock is not held")),
    }
}

/// What may have been prepared before the checkpoint was lost: what has a CDI file, and what is allocated here and
/// in use. A claim of neither kind may be prepared again without harm. Which GPU a claim has only the list of GPUs says, where its
/// CDI file does not; and whether its slice was made, the slices that are there.
async fn gather(
    world: World,
    inventory: Option<Inventory>,
    boot_id: String,
) -> Result<Vec<Record>, String> {
    let store = world.store.clone();
    let on_disk = move || -> Result<_, DiskFailure> {
        let lock = store.lock();
        let lock = lock.map_err(|error| DiskFailure::new(error.to_string()))?;
        Ok((store.records_in_cdi()?, store.made_slices(&lock, &boot_id)?))
    };
    let (in_cdi, made) = tokio::task::spawn_blocking(on_disk)
        .await
        .map_err(|panicked| panicked.to_string())?
        .map_err(|failure| failure.to_string())?;
    let claims = world
        .kubernetes
        .claims_here()
        .await
        .map_err(|error| format!("ResourceClaims: {error}"))?;
    let is_recorded = |claim: &Claim| matches!(in_cdi.get(&claim.reference.uid), Some(Some(_)));
    let inventory = match inventory {
        Some(inventory) => inventory,
        None if claims.iter().all(is_recorded) => Inventory::new(),
        None => return Err("claims have GPUs here, and none was listed yet".to_owned()),
    };
    let mut records: Vec<Record> = Vec::new();
    let mut broken = Vec::new();
    let mut missing = Vec::new();
    for claim in claims {
        match in_cdi.get(&claim.reference.uid) {
            Some(Some(_)) => {}
            Some(None) => broken.push(claim),
            None => missing.push(claim),
        }
    }
    let in_cdi = in_cdi.into_values().flatten();
    records.extend(in_cdi.map(|record| leaving_unproved(record, &made)));
    let prober = world.prober.clone();
    let found = tokio::task::spawn_blocking(move || -> Result<Vec<Record>, String> {
        let live = listed(&prober, &inventory, broken.iter().chain(&missing))?;
        let recorded = |claim: &Claim| {
            let record = recorded(claim, &inventory, &live)?;
            Some(leaving_unproved(record, &made))
        };
        let in_use = |record: &Record| {
            // A slice that was made for the claim and that nobody uses any more has to be removed all the same.
            let was_made = !record.removable().is_empty() && is_made(record);
            was_made || prober.claim(record.units(), &record.pods, None) != InUse::No
        };
        let broken = broken.iter().filter_map(recorded);
        let missing = missing.iter().filter_map(recorded).filter(in_use);
        Ok(broken.chain(missing).collect())
    })
    .await
    .map_err(|panicked| panicked.to_string())??;
    records.extend(found);
    for record in &mut records {
        record.state = RecordState::Prepared;
    }
    Ok(records)
}

/// The slices of the GPUs that these claims have slices of.
fn listed<'a>(
    prober: &Prober,
    inventory: &Inventory,
    claims: impl Iterator<Item = &'a Claim>,
) -> Result<LiveSlices, String> {
    let gpus: BTreeSet<String> = claims
        .flat_map(|claim| claim.devices.iter().flatten())
        .filter_map(|allocated| inventory.get(&allocated.device))
        .filter(|facts| facts.slice.is_some())
        .map(|facts| facts.unit.gpu.clone())
        .collect();
    let gpus: Vec<String> = gpus.into_iter().collect();
    let live = prober.live(&gpus);
    for (gpu, found) in &live {
        if let Err(cause) = found {
            return Err(format!("slices of GPU {gpu}: {cause}"));
        }
    }
    Ok(live)
}

/// The record, by which no slice goes that was not made here in this boot as far as anything on disk tells: it may be an administrator's at the place
/// where one of ours was. The claim holds it, and leaves it.
fn leaving_unproved(mut record: Record, made: &BTreeSet<String>) -> Record {
    let slices = record.devices.iter_mut();
    for slice in slices.filter_map(|device| device.slice.as_mut()) {
        let uuid = slice.made.as_ref().map(|made| &made.uuid);
        slice.stays |= uuid.is_some_and(|uuid| !made.contains(uuid));
    }
    record
}

/// Whether any of its slices is there.
fn is_made(record: &Record) -> bool {
    let mut slices = record.devices.iter().filter_map(|it| it.slice.as_ref());
    slices.any(|slice| slice.made.is_some())
}

/// The record that a claim would have. A device that is not there has no Unit to protect.
fn recorded(claim: &Claim, inventory: &Inventory, live: &LiveSlices) -> Option<Record> {
    let devices: Vec<RecordedDevice> = claim
        .devices
        .iter()
        .flatten()
        .filter_map(|allocated| {
            let facts = inventory.get(&allocated.device)?;
            Some(RecordedDevice {
                request: allocated.request.clone(),
                pool: allocated.pool.clone(),
                device: allocated.device.clone(),
                unit: facts.unit.clone(),
                minor: facts.minor,
                admin_access: allocated.admin_access,
                slice: facts.slice.as_ref().map(|slice| {
                    let placed = PlacedSlice {
                        gpu: facts.unit.gpu.clone(),
                        gpu_instance_profile: slice.profile.gpu_instance_profile,
                        placement: slice.placement,
                        uuid: None,
                    };
                    let found = live.get(&facts.unit.gpu).and_then(|it| it.as_ref().ok());
                    let there = found.and_then(|found| placed.find(found));
                    RecordedSlice {
                        profile: slice.profile.name.clone(),
                        gpu_instance_profile: slice.profile.gpu_instance_profile,
                        placement: slice.placement,
                        stays: slice.mode == SliceMode::Static || allocated.admin_access,
                        made: there.and_then(MadeSlice::of),
                    }
                }),
            })
        })
        .collect();
    (!devices.is_empty()).then(|| Record {
        claim: claim.reference.clone(),
        state: RecordState::Prepared,
        call: None,
        by_name: claim.by_name.clone(),
        pods: claim.pods.clone(),
        devices,
    })
}

#[cfg(test)]
mod tests {
    use std::{sync::Arc, time::Duration};

    use muster_device::{Backend, BackendConfig, LibrarySource, cdi};
    use muster_serve::{Readiness, metrics::Metrics, shutdown::ShutdownError};

    use super::*;

    const LIMIT: Duration = Duration::from_secs(10);

    #[test]
    fn a_record_that_is_found_again_removes_no_slice_that_was_not_made_in_this_boot() {
        let placement = muster_device::Placement { start: 4, size: 1 };
        let device = |uuid: Option<&str>| RecordedDevice {
            request: "gpu".to_owned(),
            pool: "node".to_owned(),
            device: "gpu-0-mig-1g10gb-4".to_owned(),
            unit: crate::prepare::Unit::slice("GPU-0", placement, 1),
            minor: 0,
            admin_access: false,
            slice: Some(RecordedSlice {
                profile: "1g.10gb".to_owned(),
                gpu_instance_profile: 19,
                placement,
                stays: false,
                made: uuid.map(|uuid| MadeSlice {
                    gpu_instance: 1,
                    compute_instance: 0,
                    uuid: uuid.to_owned(),
                }),
            }),
        };
        let made = BTreeSet::from(["MIG-ours".to_owned()]);
        for (uuid, goes) in [
            (Some("MIG-ours"), true),
            (Some("MIG-of-who-knows"), false),
            // Nothing is there yet.
            (None, true),
        ] {
            let record = Record {
                claim: ClaimRef {
                    uid: "c".to_owned(),
                    namespace: "ml".to_owned(),
                    name: "claim".to_owned(),
                },
                state: RecordState::Prepared,
                call: None,
                by_name: None,
                pods: Vec::new(),
                devices: vec![device(uuid)],
            };
            let record = leaving_unproved(record, &made);
            assert_eq!(!record.removable().is_empty(), goes, "{uuid:?}");
            assert_eq!(record.units().count(), 1, "{uuid:?}: it holds all the same");
        }
    }

    fn driver(directory: &std::path::Path) -> Driver {
        let unreachable = "http://127.0.0.1:1".parse().unwrap();
        let client = kube::Client::try_from(kube::Config::new(unreachable)).unwrap();
        let library = LibrarySource::File(directory.join("none"));
        let backend = Arc::new(Backend::new(BackendConfig::new(library)));
        let cdi = cdi::Directory::new(directory, "gpu.muster.dev", directory);
        let world = World {
            store: Store::open(directory, cdi).unwrap(),
            prober: Prober::new(backend.clone(), directory.to_owned()),
            hardware: Hardware::new(backend),
            kubernetes: Kubernetes::new(client, "node".to_owned()),
        };
        let (held, _) = watch::channel(BTreeSet::new());
        let config = Config::new("test".to_owned(), "node".to_owned(), "boot".to_owned());
        let acknowledged = Readiness::default().condition("checkpoint good");
        let metrics = DriverMetrics::register(&Metrics::new("test", "0"));
        Driver::new(config, world, held, acknowledged, metrics)
    }

    /// Its input never comes: the machine would wait for it without end, and the program look healthy.
    #[tokio::test]
    async fn an_effect_that_panics_is_the_end_of_the_program() {
        muster_serve::tls::install_provider();
        let directory = tempfile::tempdir().unwrap();
        let effects: [fn(&mut JoinSet<()>); 2] = [
            |effects| _ = effects.spawn(async { panic!("broken") }),
            |effects| _ = effects.spawn_blocking(|| panic!("broken")),
        ];
        for effect in effects {
            let mut driver = driver(directory.path());
            effect(&mut driver.effects);
            let shutdown = Shutdown::default();
            driver.spawn(&shutdown);
            let ended = tokio::time::timeout(LIMIT, shutdown.requested()).await;
            ended.expect("the program goes on without its driver");
            match shutdown.finish(LIMIT).await {
                Err(ShutdownError::TaskFailed(why)) => {
                    assert!(why.starts_with("driver broke off"), "{why}");
                }
                other => panic!("{other:?}"),
            }
        }
    }
}
