//! The node: what is outside of the machine, done at once or step by step.

use std::collections::{BTreeMap, VecDeque};

use muster_api::NodeDevicesStatus;

use super::*;

/// Far more than anything here takes.
const MOST_STEPS: usize = 1_000;

/// A disk, an API server, and one instance of the driver or more.
#[expect(
    clippy::struct_excessive_bools,
    reason = "each is something that a test breaks by itself"
)]
pub(super) struct Node {
    pub(super) machines: Vec<Machine>,
    pub(super) now: u64,
    pub(super) disk: Disk,
    pub(super) disk_is_readable: bool,
    /// CDI files, by claim UID.
    pub(super) cdi: BTreeMap<String, Record>,
    pub(super) api: Option<NodeDevices>,
    /// Whether `NodeDevices` can be read.
    pub(super) api_answers: bool,
    /// Whether claims can be read.
    pub(super) claims_answer: bool,
    pub(super) claims: BTreeMap<String, Claim>,
    pub(super) in_use: InUse,
    /// What the GPUs are and can be cut into.
    pub(super) inventory: Inventory,
    /// Slices that are there, by UUID of their GPU.
    pub(super) live: BTreeMap<String, Vec<MigInstance>>,
    /// How many slices are made until one fails.
    pub(super) making_fails_after: Option<usize>,
    /// Why no slice is removed.
    pub(super) removing_fails: Option<String>,
    /// Number of the next instance.
    pub(super) next_instance: u32,
    pub(super) gathered: Vec<Record>,
    /// These instances are told what they gathered only by [`Node::release_gathers`].
    pub(super) slow: BTreeSet<usize>,
    held_gathers: Vec<(usize, Input)>,
    /// How many writes succeed until one fails.
    pub(super) disk_fails_after: Option<usize>,
    pub(super) answers: BTreeMap<u64, Answer>,
    pub(super) held: BTreeSet<String>,
    /// What was done, in order.
    pub(super) log: Vec<String>,
    pub(super) calls: u64,
    /// What the instances want done, in order.
    queue: VecDeque<(usize, Effect)>,
    lock: Option<Holder>,
    /// Turns at the lock that wait for it.
    blocked: VecDeque<(usize, Effect)>,
    /// Changes of slices take until [`Node::release_changes`].
    pub(super) holds_changes: bool,
    held_changes: VecDeque<(usize, Effect)>,
    /// GPUs that were looked at, in order.
    pub(super) asked: Vec<String>,
    /// How many changes of each GPU have begun.
    changes: BTreeMap<String, u64>,
    /// Looks at this GPU do not end until [`Node::release_looks`].
    pub(super) hanging: Option<String>,
    held_looks: VecDeque<(usize, Effect)>,
    /// This GPU does not say which slices it has.
    pub(super) unlisted: Option<String>,
}

/// Who has the lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Holder {
    Instance(usize),
    /// Another process, which is slow.
    Other,
}

impl Node {
    /// A node that has started and come to rest.
    pub(super) fn new(api: Option<NodeDevices>) -> Self {
        let mut node = Self::unstarted(api);
        node.restart("one");
        node
    }

    pub(super) fn unstarted(api: Option<NodeDevices>) -> Self {
        Self {
            machines: Vec::new(),
            now: 0,
            disk: Disk::default(),
            disk_is_readable: true,
            cdi: BTreeMap::new(),
            api,
            api_answers: true,
            claims_answer: true,
            claims: BTreeMap::new(),
            in_use: InUse::No,
            inventory: inventory(),
            live: BTreeMap::new(),
            making_fails_after: None,
            removing_fails: None,
            next_instance: 1,
            gathered: Vec::new(),
            slow: BTreeSet::new(),
            held_gathers: Vec::new(),
            disk_fails_after: None,
            answers: BTreeMap::new(),
            held: BTreeSet::new(),
            log: Vec::new(),
            calls: 0,
            queue: VecDeque::new(),
            lock: None,
            blocked: VecDeque::new(),
            holds_changes: false,
            held_changes: VecDeque::new(),
            asked: Vec::new(),
            changes: BTreeMap::new(),
            hanging: None,
            held_looks: VecDeque::new(),
            unlisted: None,
        }
    }

    /// The driver dies and starts again on the same disk.
    pub(super) fn restart(&mut self, instance: &str) {
        self.boot(config(instance));
    }

    pub(super) fn boot(&mut self, config: Config) {
        let seen = self.api.clone();
        self.boot_seeing(config, seen);
    }

    /// The same with a watch that may lag.
    pub(super) fn boot_seeing(&mut self, config: Config, seen: Option<NodeDevices>) {
        self.queue.clear();
        self.blocked.clear();
        self.held_changes.clear();
        self.held_looks.clear();
        self.held_gathers.clear();
        self.lock = None;
        self.machines.clear();
        self.start(config, seen);
    }

    /// One more instance starts; its number.
    pub(super) fn start_another(&mut self, instance: &str) -> usize {
        let seen = self.api.clone();
        self.start(config(instance), seen);
        self.machines.len() - 1
    }

    fn start(&mut self, config: Config, seen: Option<NodeDevices>) {
        let instance = self.machines.len();
        self.machines.push(Machine::new(config));
        self.begin(instance, Input::Inventory(self.inventory.clone()));
        self.settle();
        self.begin(instance, Input::Observed(seen.map(Arc::new)));
        self.settle();
    }

    /// Tells the first instance, and does everything that comes of it.
    pub(super) fn tell(&mut self, input: Input) {
        self.begin(0, input);
        self.settle();
    }

    /// Tells an instance, and does nothing yet.
    pub(super) fn begin(&mut self, instance: usize, input: Input) {
        let effects = self.machines[instance].input(Milliseconds(self.now), input);
        self.queue
            .extend(effects.into_iter().map(|effect| (instance, effect)));
    }

    /// Does the next thing; whether there was one.
    pub(super) fn step(&mut self) -> bool {
        let Some((instance, effect)) = self.queue.pop_front() else {
            return false;
        };
        self.perform(instance, effect);
        true
    }

    /// Does everything there is to do, which must end.
    pub(super) fn settle(&mut self) {
        for _ in 0..MOST_STEPS {
            if !self.step() {
                return;
            }
        }
        panic!("it does not come to rest; the end of what it did: {:?}", {
            let done = self.log.len();
            self.log.get(done.saturating_sub(10)..)
        });
    }

    /// Another process takes the lock.
    pub(super) fn take_lock(&mut self) {
        assert_eq!(self.lock.replace(Holder::Other), None);
    }

    /// And gives it back.
    pub(super) fn release_lock(&mut self) {
        assert_eq!(self.lock.take(), Some(Holder::Other));
        self.queue.append(&mut self.blocked);
    }

    /// The changes of slices that were held are made, and so are those to come.
    pub(super) fn release_changes(&mut self) {
        self.holds_changes = false;
        self.queue.append(&mut self.held_changes);
        self.settle();
    }

    /// The GPU that hung answers.
    pub(super) fn release_looks(&mut self) {
        self.hanging = None;
        self.queue.append(&mut self.held_looks);
        self.settle();
    }

    /// Nobody is slow any more: in the order in which they gathered they are told what they found then.
    pub(super) fn release_gathers(&mut self) {
        self.slow.clear();
        for (instance, told) in std::mem::take(&mut self.held_gathers) {
            self.begin(instance, told);
            self.settle();
        }
    }

    /// The watch of an instance shows the object once more, and it does all that comes of it.
    pub(super) fn look_again(&mut self, instance: usize) {
        let seen = self.api.clone().map(Arc::new);
        self.begin(instance, Input::Observed(seen));
        self.settle();
    }

    /// How many changes of a GPU have begun.
    fn changes_of(&self, gpu: &str) -> u64 {
        self.changes.get(gpu).copied().unwrap_or_default()
    }

    /// Time passes, with every tick that an instance asks for.
    pub(super) fn pass(&mut self, milliseconds: u64) {
        let end = self.now + milliseconds;
        loop {
            let wakes = self.machines.iter().enumerate();
            let due = wakes
                .filter_map(|(instance, machine)| Some((machine.wake_at()?, instance)))
                .min()
                .filter(|(at, _)| at.0 <= end);
            let Some((at, instance)) = due else { break };
            self.now = self.now.max(at.0);
            self.begin(instance, Input::Tick);
            self.settle();
        }
        self.now = end;
    }

    /// The controller writes `NodeDevices`; the watch shows it if `seen`.
    pub(super) fn write_api(&mut self, object: NodeDevices, seen: bool) {
        let before = self
            .api
            .as_ref()
            .filter(|old| old.metadata.uid == object.metadata.uid);
        let status = before.and_then(|old| old.status.clone());
        let object = NodeDevices { status, ..object };
        self.api = Some(object.clone());
        if seen {
            self.tell(Input::Observed(Some(Arc::new(object))));
        }
    }

    /// The kubelet asks the first instance to prepare; the call.
    pub(super) fn prepare(&mut self, claim: Claim) -> u64 {
        let call = self.begin_prepare(0, claim);
        self.settle();
        call
    }

    pub(super) fn begin_prepare(&mut self, instance: usize, claim: Claim) -> u64 {
        self.calls += 1;
        let reference = claim.reference.clone();
        self.claims.insert(reference.name.clone(), claim);
        self.begin(instance, Input::Prepare(CallId(self.calls), reference));
        self.calls
    }

    /// The kubelet asks the first instance to give back; the call.
    pub(super) fn unprepare(&mut self, uid: &str) -> u64 {
        let call = self.begin_unprepare(0, uid);
        self.settle();
        call
    }

    pub(super) fn begin_unprepare(&mut self, instance: usize, uid: &str) -> u64 {
        self.calls += 1;
        let call = CallId(self.calls);
        self.begin(instance, Input::Unprepare(call, reference(uid)));
        self.calls
    }

    fn read(&self) -> Read<Arc<NodeDevices>> {
        match (&self.api, self.api_answers) {
            (_, false) => Read::Failed("no answer".to_owned()),
            (Some(object), true) => Read::Found(Arc::new(object.clone())),
            (None, true) => Read::Absent,
        }
    }

    fn read_claim(&self, claim: &ClaimRef) -> Read<Claim> {
        if !self.claims_answer {
            return Read::Failed("no answer".to_owned());
        }
        let found = self.claims.get(&claim.name).cloned();
        found.map_or(Read::Absent, Read::Found)
    }

    fn perform(&mut self, instance: usize, effect: Effect) {
        match effect {
            Effect::Lock { .. } if self.lock.is_some() => {
                self.blocked.push_back((instance, effect));
            }
            Effect::MakeSlices { .. } | Effect::RemoveSlices { .. } if self.holds_changes => {
                self.held_changes.push_back((instance, effect));
            }
            Effect::Look { ref gpu, .. } if self.hanging.as_ref() == Some(gpu) => {
                self.held_looks.push_back((instance, effect));
            }
            Effect::Look { look, gpu } => {
                let live = if self.unlisted.as_ref() == Some(&gpu) {
                    Err("NVML did not answer".to_owned())
                } else {
                    Ok(self.live.get(&gpu).cloned().unwrap_or_default())
                };
                let sight = Sight {
                    changes: Ok(self.changes_of(&gpu)),
                    processes: Ok(Vec::new()),
                    live,
                };
                self.asked.push(gpu);
                self.begin(instance, Input::Looked(look, sight));
            }
            Effect::Lock {
                ticket,
                probe,
                read_node_devices,
                read_claim,
                sights,
            } => {
                self.lock = Some(Holder::Instance(instance));
                if let Some(claim) = &read_claim {
                    self.log.push(format!("claim {} under the lock", claim.uid));
                }
                let changes = |gpu: &str| Ok(self.changes_of(gpu));
                let verified = Verified::of(probe.as_ref(), &sights, changes);
                let locked = Locked {
                    disk: self.load(),
                    in_use: probe.map(|_| self.in_use.clone()),
                    node_devices: read_node_devices.then(|| self.read()),
                    claim: read_claim.map(|claim| Box::new(self.read_claim(&claim))),
                    live: verified.live,
                };
                self.begin(instance, Input::Locked(ticket, locked));
            }
            Effect::Commit { ticket, writes } => {
                let result = writes.into_iter().try_for_each(|write| self.write(write));
                assert_eq!(self.lock.take(), Some(Holder::Instance(instance)));
                self.queue.append(&mut self.blocked);
                self.begin(instance, Input::Committed(ticket, result));
            }
            Effect::ReadClaim(call, claim) => {
                let read = self.read_claim(&claim);
                self.begin(instance, Input::ClaimRead(call, read));
            }
            Effect::ReadNodeDevices => {
                self.log.push("read".to_owned());
                self.begin(instance, Input::NodeDevicesRead(self.read()));
            }
            Effect::Gather => {
                self.log.push("gather".to_owned());
                let told = Input::Gathered(Ok(self.gathered.clone()));
                if self.slow.contains(&instance) {
                    self.held_gathers.push((instance, told));
                } else {
                    self.begin(instance, told);
                }
            }
            Effect::WriteStatus {
                uid,
                resource_version,
                status,
            } => {
                let outcome = self.write_status(uid.as_ref(), resource_version, status);
                self.begin(instance, Input::StatusWritten(outcome));
            }
            Effect::Answer(call, answer) => {
                assert!(
                    self.answers.insert(call.0, answer).is_none(),
                    "answered twice"
                );
            }
            Effect::TaintHeld(devices) => self.held = devices,
            Effect::MakeSlices {
                call,
                fence,
                slices,
                wholes,
            } => {
                let made: Result<Vec<_>, _> = slices
                    .iter()
                    .map(|order| self.make(&fence, order))
                    .collect();
                // A GPU whose mode was switched has another minor number.
                let minors = wholes.into_iter().map(|gpu| (gpu, 7)).collect();
                let made = made.map(|slices| Made { slices, minors });
                self.begin(instance, Input::SlicesMade(call, made));
            }
            Effect::RemoveSlices {
                removal,
                fence,
                slices,
            } => {
                let removed = slices
                    .iter()
                    .try_for_each(|slice| self.remove(&fence, slice));
                self.begin(instance, Input::SlicesRemoved(removal, removed));
            }
        }
    }

    fn make(&mut self, fence: &Fence, order: &SliceOrder) -> Result<MadeSlice, SliceFailure> {
        let failure = |message: String| SliceFailure {
            reason: None,
            foreign: None,
            message,
        };
        *self.changes.entry(order.gpu.clone()).or_default() += 1;
        if !Record::lets_make(self.disk.records.get(&fence.claim), fence) {
            return Err(failure("the record does not allow it".to_owned()));
        }
        if let Some(left) = &mut self.making_fails_after {
            let Some(fewer) = left.checked_sub(1) else {
                self.making_fails_after = None;
                return Err(failure("NVML: unknown error".to_owned()));
            };
            *left = fewer;
        }
        let live = self.live.entry(order.gpu.clone()).or_default();
        match order.lying(live) {
            Lying::Same(instance) if order.is_new => {
                let foreign = PlacedSlice {
                    gpu: order.gpu.clone(),
                    gpu_instance_profile: instance.profile,
                    placement: instance.placement,
                    uuid: instance.uuid.clone(),
                };
                return Err(SliceFailure {
                    reason: Some(Reason::DeviceHeld),
                    foreign: Some(Box::new(foreign)),
                    message: "somebody else made it".to_owned(),
                });
            }
            Lying::Same(instance) => {
                return MadeSlice::of(instance)
                    .ok_or_else(|| failure("it is not whole".to_owned()));
            }
            Lying::Other(_) => return Err(failure("insufficient resources".to_owned())),
            Lying::Nothing => {}
        }
        let number = self.next_instance;
        self.next_instance += 1;
        let instance = MigInstance {
            placement: order.placement,
            gpu_instance: number,
            compute_instance: Some(0),
            is_divided: false,
            profile: order.profile.gpu_instance_profile,
            uuid: Some(format!("MIG-{number}")),
        };
        self.log
            .push(format!("{} made at {}", fence.claim, order.placement.start));
        let made = MadeSlice::of(&instance);
        live.push(instance);
        made.ok_or_else(|| failure("it is not whole".to_owned()))
    }

    fn remove(&mut self, fence: &Fence, slice: &PlacedSlice) -> Result<(), SliceFailure> {
        *self.changes.entry(slice.gpu.clone()).or_default() += 1;
        if !Record::lets_remove(self.disk.records.get(&fence.claim), fence) {
            return Ok(());
        }
        if let Some(message) = self.removing_fails.clone() {
            let reason = Some(Reason::DeviceHeld);
            return Err(SliceFailure {
                reason,
                foreign: None,
                message,
            });
        }
        let live = self.live.entry(slice.gpu.clone()).or_default();
        let Some(found) = slice.find(live).cloned() else {
            return Ok(());
        };
        live.retain(|instance| *instance != found);
        self.log.push(format!(
            "{} removed at {}",
            fence.claim, slice.placement.start
        ));
        Ok(())
    }

    /// Slices that are there, by the first memory slice of each.
    pub(super) fn starts(&self) -> Vec<u32> {
        let live = self.live.values().flatten();
        live.map(|instance| instance.placement.start).collect()
    }

    fn load(&self) -> Result<Disk, DiskFailure> {
        let readable = self.disk_is_readable.then(|| self.disk.clone());
        readable.ok_or_else(|| DiskFailure::new("Input/output error"))
    }

    fn write(&mut self, write: Write) -> Result<(), DiskFailure> {
        if let Some(left) = &mut self.disk_fails_after {
            let Some(fewer) = left.checked_sub(1) else {
                self.disk_fails_after = None;
                return Err(DiskFailure::new("No space left on device"));
            };
            *left = fewer;
        }
        match write {
            Write::PutRecord(record) => {
                self.log
                    .push(format!("{} {:?}", record.claim.uid, record.state));
                self.disk.records.insert(record.claim.uid.clone(), record);
            }
            Write::RemoveRecord(uid) => {
                self.log.push(format!("{uid} removed"));
                self.disk.records.remove(&uid);
            }
            Write::PutCdi(record) => {
                self.log.push(format!("{} CDI", record.claim.uid));
                self.cdi.insert(record.claim.uid.clone(), record);
            }
            Write::RemoveCdi(uid) => {
                self.cdi.remove(&uid);
            }
            Write::PutNode {
                boot_id,
                acknowledged,
            } => {
                if let Some(acknowledged) = &acknowledged {
                    self.log.push(format!("disk {}", acknowledged.generation));
                }
                self.disk.boot_id = Some(boot_id);
                self.disk.acknowledged = acknowledged;
                self.disk.rebuild = None;
            }
            Write::BeginRebuild { boot_id, rebuild } => {
                self.disk.boot_id = Some(boot_id);
                self.disk.acknowledged = None;
                self.disk.rebuild = Some(rebuild);
            }
        }
        Ok(())
    }

    fn write_status(
        &mut self,
        uid: Option<&String>,
        resource_version: Option<String>,
        status: NodeDevicesStatus,
    ) -> StatusOutcome {
        let Some(object) = &mut self.api else {
            return StatusOutcome::Conflict;
        };
        let metadata = &mut object.metadata;
        if metadata.uid.as_ref() != uid || metadata.resource_version != resource_version {
            return StatusOutcome::Conflict;
        }
        metadata.resource_version = resource_version.map(|version| format!("{version}+"));
        let held: Vec<_> = status.held.iter().map(|held| &*held.claim_uid).collect();
        self.log.push(format!(
            "status {} held [{}]",
            status.observed_generation,
            held.join(" ")
        ));
        object.status = Some(status);
        StatusOutcome::Written(Arc::new(object.clone()))
    }

    pub(super) fn state(&self, uid: &str) -> Option<RecordState> {
        self.disk.records.get(uid).map(|record| record.state)
    }

    /// The answer to a call, if there is one yet.
    pub(super) fn answered(&self, call: u64) -> Option<&Answer> {
        self.answers.get(&call)
    }

    #[track_caller]
    pub(super) fn prepared(&self, call: u64) -> Vec<&str> {
        match self.answered(call) {
            Some(Answer::Prepared(devices)) => {
                devices.iter().map(|device| &*device.cdi_id).collect()
            }
            other => panic!("{other:?}"),
        }
    }

    #[track_caller]
    pub(super) fn refused(&self, call: u64) -> &Refusal {
        match self.answered(call) {
            Some(Answer::Refused(refusal)) => refusal,
            other => panic!("{other:?}"),
        }
    }

    pub(super) fn status(&self) -> NodeDevicesStatus {
        let status = self.api.as_ref().and_then(|object| object.status.clone());
        status.unwrap_or_default()
    }

    pub(super) fn held_by_status(&self) -> Vec<String> {
        let held = self.status().held.into_iter();
        held.map(|held| held.claim_uid).collect()
    }
}
