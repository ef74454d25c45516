//! The drivers: on each node up to two instances of the machine that ships, on one disk.
//!
//! What a machine asks for is an [`Operation`]; each is carried out as a step of its own, a commit write by
//! write, so that an instance can crash, and anything else can happen, between any two.

mod fault_watch;
mod instance;
mod operation;
mod slices;
mod upkeep;

use std::collections::BTreeSet;

use muster_cluster::object::Kind;
use muster_dra_driver::{
    faults::remembering::FaultBugs,
    prepare::{Answer, CallId, ClaimRef, Config, Input, Machine, Milliseconds, Orphan},
};

use crate::{
    api_server::ApiServer,
    gpu_node::GpuNode,
    matrix::{EffectKind, Mishap},
};
pub use fault_watch::FaultStep;
use fault_watch::FaultWatch;
pub use instance::Instance;
use instance::{Left, current};
use operation::Operation;
pub use operation::{Deed, StatusWrite};
use upkeep::{has_orphans, taint};

/// A rule of the driver's machine that can be broken on purpose.
#[cfg(feature = "injected-bugs")]
pub type InjectedBug = muster_dra_driver::prepare::InjectedBug;

/// A rule of the driver about faults that can be broken on purpose.
#[cfg(feature = "injected-bugs")]
pub type FaultBug = muster_dra_driver::faults::remembering::FaultBug;

/// The instances of one node.
#[derive(Debug, Default)]
pub struct Drivers {
    /// Oldest first.
    pub instances: Vec<Instance>,
    started: u64,
    calls: u64,
    /// Status writes that nobody waits for any more, and that may still arrive.
    pub late: Vec<StatusWrite>,
    /// Orphans of the last look, and when the next one is due.
    orphans: BTreeSet<Orphan>,
    look_at: u64,
    /// What the newest instance knows of faults.
    fault_watch: Option<FaultWatch>,
    fault_bugs: FaultBugs,
    #[cfg(feature = "injected-bugs")]
    bug: Option<InjectedBug>,
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
    /// The newest instance takes a step about faults.
    Faults(FaultStep),
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
    #[cfg(feature = "injected-bugs")]
    pub fn plant(&mut self, bug: Option<InjectedBug>) {
        self.bug = bug;
    }

    /// Starts one more instance.
    pub fn start(&mut self, now: u64, api: &ApiServer, node: &GpuNode) {
        self.started += 1;
        let id = self.started;
        let config = Config {
            #[cfg(feature = "injected-bugs")]
            bug: self.bug,
            ..Config::new(
                format!("instance-{id}"),
                node.shape.name.clone(),
                node.boot_id.clone(),
            )
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
        self.load_faults(now, node);
    }

    /// What the administrator says of the node's GPUs is otherwise: every instance is told.
    pub fn tell_inventory(&mut self, now: u64, node: &GpuNode) {
        for instance in &mut self.instances {
            instance.tell(now, Input::Inventory(node.inventory()));
        }
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
        for operation in &instance.operations {
            if let Some((_, Some(lock))) = operation.gpu_lock() {
                node.slices.unlock(lock);
            }
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

    /// Whether anything that an instance has seen of a GPU waits to be judged under the lock.
    pub fn hold_sights(&self) -> bool {
        let mut instances = self.instances.iter();
        instances.any(|instance| instance.machine.holds_sights())
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
        let fault_steps = self.fault_steps(now, api, node).into_iter();
        steps.extend(fault_steps.map(Step::Faults));
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
                let is_locked = |(gpu, lock): (&str, _)| node.slices.is_locked(gpu, lock);
                let blocked = matches!(operation, Operation::Lock { .. }) && node.lock.is_some()
                    || operation.gpu_lock().is_some_and(is_locked);
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
            Step::Faults(step) => self.take_fault_step(step, now, api, node),
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

    /// What the step asks for, if it carries out an operation.
    pub fn effect(&self, step: &Step) -> Option<EffectKind> {
        self.operation(step).map(Operation::effect)
    }

    /// Whether what the step asks for can fail as it stands.
    pub fn can_fail(&self, step: &Step) -> bool {
        self.operation(step).is_some_and(Operation::can_fail)
    }

    /// Whether the instance that the step is of has not been told yet of a change of its `NodeDevices`.
    pub fn is_stale(&self, step: &Step, api: &ApiServer, node: &str) -> bool {
        let Step::Operate(id, _) = *step else {
            return false;
        };
        self.instances
            .iter()
            .any(|instance| instance.id == id && instance.next_change(api, node).is_some())
    }

    /// The instance that the step is of.
    pub fn position(&self, step: &Step) -> Option<usize> {
        let Step::Operate(id, _) = *step else {
            return None;
        };
        self.instances.iter().position(|instance| instance.id == id)
    }

    /// What an instance does in this step, and which.
    pub fn deed(&self, step: &Step) -> Option<(u64, Deed)> {
        let Step::Operate(id, _) = *step else {
            return None;
        };
        Some((id, self.operation(step)?.deed()))
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
