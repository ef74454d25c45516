//! The drivers: on each node up to two instances of the machine that ships, on one disk.
//!
//! What a machine asks for is an [`Operation`]; each is carried out as a step of its own, a commit write by
//! write, so that an instance can crash, and anything else can happen, between any two.

use std::{
    collections::{BTreeSet, VecDeque},
    sync::Arc,
};

use k8s_openapi::api::resource::v1::{DeviceTaint, ResourceClaim, ResourceSlice};
use muster_api::{NodeDevices, NodeDevicesStatus, keys};
use muster_cluster::object::Kind;
use muster_dra_driver::prepare::{
    Answer, CallId, Claim, ClaimRef, Config, DiskFailure, Effect, Input, Locked, Machine,
    Milliseconds, Probe, Read, StatusOutcome, Ticket, Write,
};

use crate::{
    api_server::{ApiServer, Failure, Place, Precondition, Stored},
    furniture,
    gpu_node::GpuNode,
};

/// How long a Prepare waits inside the call.
const WAIT_MILLISECONDS: u64 = 35_000;

/// Between two looks for claims that the kubelet has forgotten.
const LOOK_MILLISECONDS: u64 = 300_000;

/// A rule of the driver's machine that can be broken on purpose.
#[cfg(feature = "mutations")]
pub type Mutation = muster_dra_driver::prepare::Mutation;

/// The instances of one node.
#[derive(Debug, Default)]
pub struct Drivers {
    /// Oldest first.
    pub instances: Vec<Instance>,
    started: u64,
    calls: u64,
    /// Status writes that nobody waits for any more, and that may still arrive.
    pub late: Vec<StatusWrite>,
    /// Recorded claims whose objects were gone at the last look, and when the next one is due.
    gone: BTreeSet<ClaimRef>,
    look_at: u64,
    #[cfg(feature = "mutations")]
    mutation: Option<Mutation>,
}

/// One running instance.
#[derive(Debug)]
pub struct Instance {
    /// Tells it from every other on the node.
    pub id: u64,
    machine: Machine,
    watch: Place,
    operations: Vec<Operation>,
    /// Until when it does nothing.
    paused_until: u64,
    /// What it publishes as tainted, once it said so.
    tainted: Option<BTreeSet<String>>,
}

/// A status write on its way.
#[derive(Clone, Debug)]
pub struct StatusWrite {
    uid: Option<String>,
    resource_version: Option<String>,
    status: NodeDevicesStatus,
}

/// What an instance waits to have done.
#[derive(Clone, Debug)]
enum Operation {
    Lock {
        ticket: Ticket,
        probe: Option<Probe>,
        read: bool,
    },
    Look {
        ticket: Ticket,
        probe: Option<Probe>,
        read: bool,
    },
    Commit {
        ticket: Ticket,
        writes: VecDeque<Write>,
    },
    ReadClaim(CallId, ClaimRef),
    ReadNodeDevices,
    Gather,
    WriteStatus(StatusWrite),
    Answer(CallId, Answer),
    Taint(BTreeSet<String>),
}

/// A step of a node's drivers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// An instance starts where none runs.
    Start,
    /// An instance is told the next change of its `NodeDevices`.
    Watch(u64),
    /// An instance is told the time.
    Tick(u64),
    /// An operation of an instance is carried out.
    Operate(u64, usize),
    /// A late status write arrives.
    Late(usize),
    /// The older of two instances stops.
    StopOld,
    /// Claims that the kubelet has forgotten are looked for.
    Look,
    /// The newest instance sees that its slice is not what it published, and publishes it again.
    Publish,
}

/// What goes wrong with an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mishap {
    /// The API server does not answer, and did nothing.
    NotDone,
    /// The API server did it, and the answer is lost.
    AnswerLost,
    /// The API server does it later, and the answer is lost.
    DoneLate,
    /// The disk refuses.
    DiskFull,
}

/// The call of a kubelet, answered.
#[derive(Clone, Debug)]
pub struct Answered {
    /// Which instance.
    pub instance: u64,
    /// Which call.
    pub call: CallId,
    /// The answer.
    pub answer: Answer,
}

impl Drivers {
    /// Breaks a rule in every instance that starts from now on.
    #[cfg(feature = "mutations")]
    pub fn plant(&mut self, mutation: Option<Mutation>) {
        self.mutation = mutation;
    }

    /// Starts one more instance.
    pub fn start(&mut self, now: u64, api: &ApiServer, node: &GpuNode) {
        self.started += 1;
        let id = self.started;
        let config = Config {
            instance: format!("instance-{id}"),
            node: node.shape.name.clone(),
            boot_id: node.boot_id.clone(),
            enforce_unless_told: true,
            wait_milliseconds: WAIT_MILLISECONDS,
            #[cfg(feature = "mutations")]
            mutation: self.mutation,
        };
        let mut instance = Instance {
            id,
            machine: Machine::new(config),
            watch: api.watch(Kind::NodeDevices),
            operations: Vec::new(),
            paused_until: 0,
            tainted: None,
        };
        instance.tell(now, Input::Inventory(node.inventory()));
        instance.tell(now, Input::Observed(current(api, &node.shape.name)));
        self.instances.push(instance);
    }

    /// An instance does nothing for a while; one that holds the lock would only hold up the other.
    pub fn pause(&mut self, position: usize, until: u64, node: &GpuNode) -> Option<u64> {
        let instance = self.instances.get_mut(position)?;
        if node.lock == Some(instance.id) {
            return None;
        }
        instance.paused_until = until;
        Some(instance.id)
    }

    /// Nobody is paused any more.
    pub fn heal(&mut self) {
        for instance in &mut self.instances {
            instance.paused_until = 0;
        }
    }

    /// An instance dies where it stands. What it had sent may still arrive.
    pub fn crash(&mut self, position: usize, node: &mut GpuNode) {
        if position >= self.instances.len() {
            return;
        }
        let instance = self.instances.remove(position);
        if node.lock == Some(instance.id) {
            node.lock = None;
        }
        self.late.extend(
            instance
                .operations
                .into_iter()
                .filter_map(|operation| match operation {
                    Operation::WriteStatus(write) => Some(write),
                    _ => None,
                }),
        );
    }

    /// All that may happen next.
    pub fn steps(&self, now: u64, api: &ApiServer, node: &GpuNode) -> Vec<Step> {
        let mut steps = Vec::new();
        if self.instances.is_empty() {
            steps.push(Step::Start);
        }
        if self.instances.len() > 1 {
            steps.push(Step::StopOld);
        }
        if self.look_at <= now && !self.instances.is_empty() && has_orphans(api, node) {
            steps.push(Step::Look);
        }
        if self.unpublished(api, &node.shape.name).is_some() {
            steps.push(Step::Publish);
        }
        steps.extend((0..self.late.len()).map(Step::Late));
        for instance in &self.instances {
            if instance.paused_until > now {
                continue;
            }
            if instance.next_change(api, &node.shape.name).is_some() {
                steps.push(Step::Watch(instance.id));
            }
            let due = instance.machine.wake_at();
            if due.is_some_and(|at| at <= Milliseconds(now)) {
                steps.push(Step::Tick(instance.id));
            }
            for (number, operation) in instance.operations.iter().enumerate() {
                let blocked = matches!(operation, Operation::Lock { .. }) && node.lock.is_some();
                if !blocked {
                    steps.push(Step::Operate(instance.id, number));
                }
            }
        }
        steps
    }

    /// When time alone will make a step possible.
    pub fn wakes_at(&self, api: &ApiServer, node: &GpuNode) -> Option<u64> {
        let look = has_orphans(api, node).then_some(self.look_at);
        self.instances
            .iter()
            .filter_map(|instance| instance.machine.wake_at())
            .map(|at| at.0)
            .chain(look)
            .chain(self.instances.iter().map(|instance| instance.paused_until))
            .filter(|at| *at > 0)
            .min()
    }

    /// Takes a step; returns the call that it answered, if one.
    pub fn perform(
        &mut self,
        step: &Step,
        now: u64,
        api: &mut ApiServer,
        node: &mut GpuNode,
        mishap: Option<Mishap>,
    ) -> Option<Answered> {
        match *step {
            Step::Start => self.start(now, api, node),
            Step::StopOld => self.crash(0, node),
            Step::Late(number) if number < self.late.len() => {
                let write = self.late.remove(number);
                let _ = write.arrive(api, &node.shape.name);
            }
            Step::Late(_) => {}
            Step::Look => self.look(now, api, node),
            Step::Publish => {
                if let Some(devices) = self.unpublished(api, &node.shape.name) {
                    taint(api, &node.shape.name, &devices);
                }
            }
            Step::Watch(id) => self.instance(id)?.watch(now, api, &node.shape.name),
            Step::Tick(id) => self.instance(id)?.tell(now, Input::Tick),
            Step::Operate(id, number) => {
                let instance = self.instance(id)?;
                if number >= instance.operations.len() {
                    return None;
                }
                let operation = instance.operations.swap_remove(number);
                let late = instance.operate(operation, now, api, node, mishap);
                match late {
                    Left::Nothing => {}
                    Left::Late(write) => self.late.push(write),
                    Left::Answer(call, answer) => {
                        return Some(Answered {
                            instance: id,
                            call,
                            answer,
                        });
                    }
                }
            }
        }
        None
    }

    /// What the newest instance published as tainted, if the slice says otherwise.
    fn unpublished(&self, api: &ApiServer, node: &str) -> Option<BTreeSet<String>> {
        let newest = self.instances.last()?;
        let wanted = newest.tainted.as_ref()?;
        let slice = api.get::<ResourceSlice>("", &furniture::slice_name(node))?;
        let devices = slice.spec.devices.iter().flatten();
        let is: BTreeSet<String> = devices
            .filter(|device| device.taints.is_some())
            .map(|device| device.name.clone())
            .collect();
        (is != *wanted).then(|| wanted.clone())
    }

    /// As the driver's own look for orphans: what was gone twice in a row is given back.
    fn look(&mut self, now: u64, api: &ApiServer, node: &GpuNode) {
        self.look_at = now + LOOK_MILLISECONDS;
        let gone = orphans(api, node);
        let twice: Vec<ClaimRef> = gone.intersection(&self.gone).cloned().collect();
        self.gone = gone;
        if let Some(instance) = self.instances.last_mut()
            && !twice.is_empty()
        {
            instance.tell(now, Input::Orphaned(twice));
        }
    }

    /// What an operation is, in a few words.
    pub fn describe(&self, step: &Step) -> String {
        let Step::Operate(id, number) = *step else {
            return format!("driver {step:?}");
        };
        let operation = self
            .instances
            .iter()
            .find(|instance| instance.id == id)
            .and_then(|instance| instance.operations.get(number));
        operation.map_or_else(String::new, |operation| {
            format!("driver {id}: {}", operation.describe())
        })
    }

    /// Whether the step asks the API server for something.
    pub fn touches_api(&self, step: &Step) -> bool {
        self.operation(step).is_some_and(|operation| {
            matches!(
                operation,
                Operation::WriteStatus(_)
                    | Operation::ReadClaim(..)
                    | Operation::ReadNodeDevices
                    | Operation::Look { read: true, .. }
            )
        })
    }

    /// Whether the step writes to the disk.
    pub fn touches_disk(&self, step: &Step) -> bool {
        self.operation(step)
            .is_some_and(|operation| matches!(operation, Operation::Commit { .. }))
    }

    fn operation(&self, step: &Step) -> Option<&Operation> {
        let Step::Operate(id, number) = *step else {
            return None;
        };
        self.instances
            .iter()
            .find(|instance| instance.id == id)?
            .operations
            .get(number)
    }

    /// A kubelet calls an instance: to prepare, or to unprepare.
    pub fn call(&mut self, id: u64, now: u64, claim: ClaimRef, prepare: bool) -> Option<CallId> {
        self.calls += 1;
        let call = CallId(self.calls);
        let input = if prepare {
            Input::Prepare(call, claim)
        } else {
            Input::Unprepare(call, claim)
        };
        self.instance(id)?.tell(now, input);
        Some(call)
    }

    fn instance(&mut self, id: u64) -> Option<&mut Instance> {
        self.instances.iter_mut().find(|instance| instance.id == id)
    }
}

/// Recorded claims whose objects are gone.
fn orphans(api: &ApiServer, node: &GpuNode) -> BTreeSet<ClaimRef> {
    node.disk
        .records
        .values()
        .chain(node.cdi.values())
        .map(|record| &record.claim)
        .filter(|claim| {
            api.get::<ResourceClaim>(&claim.namespace, &claim.name)
                .is_none_or(|object| object.metadata.uid.as_ref() != Some(&claim.uid))
        })
        .cloned()
        .collect()
}

fn has_orphans(api: &ApiServer, node: &GpuNode) -> bool {
    !orphans(api, node).is_empty()
}

/// What an operation leaves behind outside its instance.
enum Left {
    Nothing,
    Late(StatusWrite),
    Answer(CallId, Answer),
}

fn current(api: &ApiServer, node: &str) -> Option<Arc<NodeDevices>> {
    api.get::<NodeDevices>("", node).cloned().map(Arc::new)
}

fn read(api: &ApiServer, node: &str, mishap: Option<Mishap>) -> Read<Arc<NodeDevices>> {
    if mishap.is_some() {
        return Read::Failed("no answer".to_owned());
    }
    current(api, node).map_or(Read::Absent, Read::Found)
}

impl StatusWrite {
    fn arrive(&self, api: &mut ApiServer, node: &str) -> StatusOutcome {
        let precondition = Precondition {
            uid: self.uid.as_deref(),
            resource_version: self.resource_version.as_deref(),
        };
        let written = api.update::<NodeDevices>("", node, precondition, |object| {
            object.status = Some(self.status.clone());
        });
        match written {
            Ok(object) => match NodeDevices::of(&object) {
                Some(object) => StatusOutcome::Written(object.clone()),
                None => StatusOutcome::Conflict,
            },
            Err(Failure::Refused(cause)) => StatusOutcome::Unknown(cause),
            Err(Failure::Conflict | Failure::NotFound) => StatusOutcome::Conflict,
        }
    }
}

impl Instance {
    fn tell(&mut self, now: u64, input: Input) {
        for effect in self.machine.input(Milliseconds(now), input) {
            let operation = operation(effect);
            if let Operation::Taint(devices) = &operation {
                self.tainted = Some(devices.clone());
                // What is published is what was said last.
                self.operations
                    .retain(|older| !matches!(older, Operation::Taint(_)));
            }
            self.operations.push(operation);
        }
    }

    /// The next change of this node's object, and where it stands.
    fn next_change<'a>(
        &self,
        api: &'a ApiServer,
        node: &str,
    ) -> Option<(Place, &'a crate::api_server::Event)> {
        let mut place = self.watch;
        loop {
            let event = api.next_event(place)?;
            if event.key.name == node {
                return Some((place, event));
            }
            place = place.after();
        }
    }

    fn watch(&mut self, now: u64, api: &ApiServer, node: &str) {
        let Some((place, event)) = self.next_change(api, node) else {
            return;
        };
        let object = event.object.as_ref().and_then(NodeDevices::of).cloned();
        self.watch = place.after();
        self.tell(now, Input::Observed(object));
    }

    fn operate(
        &mut self,
        operation: Operation,
        now: u64,
        api: &mut ApiServer,
        node: &mut GpuNode,
        mishap: Option<Mishap>,
    ) -> Left {
        let name = node.shape.name.clone();
        match operation {
            Operation::Lock {
                ticket,
                probe,
                read,
            } => {
                node.lock = Some(self.id);
                self.operations.push(Operation::Look {
                    ticket,
                    probe,
                    read,
                });
            }
            Operation::Look {
                ticket,
                probe,
                read: wanted,
            } => {
                let locked = Locked {
                    disk: Ok(node.disk.clone()),
                    in_use: probe.map(|probe| node.probe(&probe)),
                    node_devices: wanted.then(|| read(api, &name, mishap)),
                };
                self.tell(now, Input::Locked(ticket, locked));
            }
            Operation::Commit { ticket, mut writes } => {
                if mishap == Some(Mishap::DiskFull) && !writes.is_empty() {
                    node.lock = None;
                    let failure = DiskFailure("no space left on device".to_owned());
                    self.tell(now, Input::Committed(ticket, Err(failure)));
                } else if let Some(write) = writes.pop_front() {
                    node.write(write);
                    self.operations.push(Operation::Commit { ticket, writes });
                } else {
                    node.lock = None;
                    self.tell(now, Input::Committed(ticket, Ok(())));
                }
            }
            Operation::ReadClaim(call, claim) => {
                let read = read_claim(api, &claim, mishap);
                self.tell(now, Input::ClaimRead(call, read));
            }
            Operation::ReadNodeDevices => {
                let read = read(api, &name, mishap);
                self.tell(now, Input::NodeDevicesRead(read));
            }
            Operation::Gather => self.tell(now, Input::Gathered(Ok(node.gather()))),
            Operation::WriteStatus(write) => {
                return self.write_status(write, now, api, &name, mishap);
            }
            Operation::Answer(call, answer) => return Left::Answer(call, answer),
            Operation::Taint(devices) => taint(api, &name, &devices),
        }
        Left::Nothing
    }

    fn write_status(
        &mut self,
        write: StatusWrite,
        now: u64,
        api: &mut ApiServer,
        node: &str,
        mishap: Option<Mishap>,
    ) -> Left {
        let unknown = || StatusOutcome::Unknown("no answer".to_owned());
        let (outcome, left) = match mishap {
            None | Some(Mishap::DiskFull) => (write.arrive(api, node), Left::Nothing),
            Some(Mishap::NotDone) => (unknown(), Left::Nothing),
            Some(Mishap::AnswerLost) => {
                let _ = write.arrive(api, node);
                (unknown(), Left::Nothing)
            }
            Some(Mishap::DoneLate) => (unknown(), Left::Late(write)),
        };
        self.tell(now, Input::StatusWritten(outcome));
        left
    }
}

fn operation(effect: Effect) -> Operation {
    match effect {
        Effect::Lock {
            ticket,
            probe,
            read_node_devices,
        } => Operation::Lock {
            ticket,
            probe,
            read: read_node_devices,
        },
        Effect::Commit { ticket, writes } => Operation::Commit {
            ticket,
            writes: writes.into(),
        },
        Effect::ReadClaim(call, claim) => Operation::ReadClaim(call, claim),
        Effect::ReadNodeDevices => Operation::ReadNodeDevices,
        Effect::Gather => Operation::Gather,
        Effect::WriteStatus {
            uid,
            resource_version,
            status,
        } => Operation::WriteStatus(StatusWrite {
            uid,
            resource_version,
            status,
        }),
        Effect::Answer(call, answer) => Operation::Answer(call, answer),
        Effect::TaintHeld(devices) => Operation::Taint(devices),
    }
}

impl Operation {
    fn describe(&self) -> String {
        match self {
            Self::Lock { .. } => "takes the lock".to_owned(),
            Self::Look { read, .. } => {
                let more = if *read { " and NodeDevices" } else { "" };
                format!("reads its disk{more}")
            }
            Self::Commit { writes, .. } => match writes.front() {
                None => "releases the lock".to_owned(),
                Some(Write::PutRecord(record)) => {
                    format!("disk: {} is {:?}", record.claim.uid, record.state)
                }
                Some(Write::RemoveRecord(uid)) => format!("disk: record of {uid} goes"),
                Some(Write::PutCdi(record)) => format!("disk: CDI file of {}", record.claim.uid),
                Some(Write::RemoveCdi(uid)) => format!("disk: CDI file of {uid} goes"),
                Some(Write::PutNode { acknowledged, .. }) => match acknowledged {
                    Some(heard) => format!(
                        "disk: heard generation {} of {}",
                        heard.generation,
                        heard.uid.as_deref().unwrap_or("no object")
                    ),
                    None => "disk: boot id".to_owned(),
                },
            },
            Self::ReadClaim(_, claim) => format!("reads claim {}", claim.uid),
            Self::ReadNodeDevices => "reads NodeDevices uncached".to_owned(),
            Self::Gather => "gathers what may be prepared".to_owned(),
            Self::WriteStatus(write) => {
                let held: Vec<&str> = write
                    .status
                    .held
                    .iter()
                    .map(|held| held.claim_uid.as_str())
                    .collect();
                format!(
                    "status: generation {} of {}, held {held:?}",
                    write.status.observed_generation, write.status.uid
                )
            }
            Self::Answer(_, Answer::Prepared(_)) => "answers: prepared".to_owned(),
            Self::Answer(_, Answer::Unprepared) => "answers: unprepared".to_owned(),
            Self::Answer(_, Answer::Refused(refusal)) => format!("answers: {refusal}"),
            Self::Taint(devices) => format!("taints {devices:?}"),
        }
    }
}

fn read_claim(api: &ApiServer, claim: &ClaimRef, mishap: Option<Mishap>) -> Read<Claim> {
    if mishap.is_some() {
        return Read::Failed("no answer".to_owned());
    }
    let Some(object) = api.get::<ResourceClaim>(&claim.namespace, &claim.name) else {
        return Read::Absent;
    };
    match Claim::read(object, keys::DRIVER) {
        Ok(claim) => Read::Found(claim),
        Err(error) => Read::Failed(error.to_string()),
    }
}

/// Publishes these devices with the taint, and no others.
fn taint(api: &mut ApiServer, node: &str, devices: &BTreeSet<String>) {
    let name = furniture::slice_name(node);
    let taint = DeviceTaint {
        key: keys::TAINT_HELD.to_owned(),
        effect: "NoSchedule".to_owned(),
        ..DeviceTaint::default()
    };
    let _ = api.update::<ResourceSlice>("", &name, Precondition::default(), |slice| {
        for device in slice.spec.devices.iter_mut().flatten() {
            let is_tainted = devices.contains(&device.name);
            device.taints = is_tainted.then(|| vec![taint.clone()]);
        }
    });
}
