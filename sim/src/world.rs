//! The simulated cluster: everything that acts, one step at a time, in an order that the seed decides.

use std::collections::{BTreeMap, BTreeSet};

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::{core::v1::Pod, resource::v1::ResourceClaim};
use muster_api::{Gang, Ledger, NodeDevices};
use muster_cluster::object::ObjectKey;

use crate::{
    api_server::{ApiServer, Precondition, Stored, has_ended, is_bound, key},
    claim_controller,
    controllers::{self, Controllers, LAGGING_KINDS},
    drivers::{self, Drivers},
    faults::{Fault, Faults},
    furniture,
    gpu_node::GpuNode,
    invariants::{Invariants, Violation},
    kubelet::{self, Kubelet},
    owners::{self, Owners},
    random::Random,
    scenario::Scenario,
    scheduler,
    trace::Trace,
    workload::{self, Workload},
};

/// Longest jump of the clock while nobody has anything to do.
const IDLE_MILLISECONDS: u64 = 2_000;

/// One step of anybody.
#[derive(Clone, Debug)]
enum Step {
    Controllers(controllers::Step),
    Scheduler(scheduler::Step),
    Claims(claim_controller::Step),
    Garbage(ObjectKey),
    Owners(owners::Step),
    Workload(workload::Step),
    Kubelet(String, kubelet::Step),
    Driver(String, drivers::Step),
}

/// Who may act, and how often relative to each other.
const ACTORS: [(Actor, u64); 8] = [
    (Actor::Controllers, 40),
    (Actor::Drivers, 24),
    (Actor::Kubelets, 12),
    (Actor::Scheduler, 6),
    (Actor::Claims, 6),
    (Actor::Owners, 5),
    (Actor::Workload, 4),
    (Actor::Garbage, 3),
];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Actor {
    Controllers,
    Drivers,
    Kubelets,
    Scheduler,
    Claims,
    Owners,
    Workload,
    Garbage,
}

/// The simulated cluster.
#[derive(Debug)]
pub struct World {
    /// Milliseconds since the run began.
    pub now: u64,
    /// Number of steps so far.
    pub steps: u64,
    /// The API server.
    pub api: ApiServer,
    /// The controllers.
    pub controllers: Controllers,
    /// Nodes by name.
    pub nodes: BTreeMap<String, GpuNode>,
    /// What goes wrong.
    pub faults: Faults,
    /// Those who make pods.
    pub owners: Owners,
    /// The checks.
    pub invariants: Invariants,
    /// The last steps.
    pub trace: Trace,
    random: Random,
    drivers: BTreeMap<String, Drivers>,
    kubelets: BTreeMap<String, Kubelet>,
    workload: Workload,
}

impl World {
    /// A cluster at its beginning: its administrator has set it up, and nothing runs yet.
    pub fn new(scenario: &Scenario, faults: Faults, random: Random) -> Self {
        let mut api = ApiServer::default();
        api.set_time(wall(0));
        furnish(&mut api, scenario);
        let names = || scenario.nodes.iter().map(|shape| shape.name.clone());
        Self {
            now: 0,
            steps: 0,
            api,
            controllers: Controllers::default(),
            nodes: scenario
                .nodes
                .iter()
                .map(|shape| (shape.name.clone(), GpuNode::new(shape.clone())))
                .collect(),
            faults,
            owners: Owners::new(scenario),
            invariants: Invariants::new(scenario.clone()),
            trace: Trace::default(),
            random,
            drivers: names().map(|name| (name, Drivers::default())).collect(),
            kubelets: names().map(|name| (name, Kubelet::default())).collect(),
            workload: Workload::default(),
        }
    }

    /// Breaks a rule of the controllers on purpose.
    #[cfg(feature = "mutations")]
    pub fn plant_in_controllers(&mut self, mutation: controllers::Mutation) {
        self.controllers.plant(Some(mutation));
    }

    /// Breaks a rule of the drivers on purpose.
    #[cfg(feature = "mutations")]
    pub fn plant_in_drivers(&mut self, mutation: drivers::Mutation) {
        for drivers in self.drivers.values_mut() {
            drivers.plant(Some(mutation));
        }
    }

    /// Takes one step, and checks everything. False if nobody had anything to do but wait.
    pub fn step(&mut self) -> Result<bool, Violation> {
        self.steps += 1;
        if let Some(fault) = self.faults.due(&mut self.random)
            && self.inject(fault)
        {
            self.faults.spend(fault);
            self.invariants.check(&self.api, &self.nodes)?;
        }
        if self.random.one_in(25) {
            let by = self.random.between(20, 600);
            self.advance(by);
        }
        let Some(step) = self.next_step() else {
            let by = self.until_somebody_wakes();
            self.advance(by);
            return Ok(false);
        };
        let idle = matches!(step, Step::Controllers(controllers::Step::Poll(_)));
        let revision = self.api.revision();
        self.perform(&step);
        if self.api.revision() != revision {
            self.owners.look(&self.api);
            if self.has_intents() {
                self.faults.note_admission();
            }
        }
        self.invariants.check(&self.api, &self.nodes)?;
        Ok(!idle || revision != self.api.revision())
    }

    /// Nothing goes wrong any more, and what stood still moves again.
    pub fn heal(&mut self) {
        self.faults.heal();
        self.controllers.heal();
        self.drivers.values_mut().for_each(Drivers::heal);
        for kubelet in self.kubelets.values_mut() {
            kubelet.paused_until = 0;
        }
        self.trace.note(self.now, "--- healed ---".to_owned());
    }

    /// Whether nobody has anything to do, now or later, but poll.
    pub fn is_quiet(&mut self) -> bool {
        let later = [
            self.owners.wakes_at(),
            self.workload.wakes_at(self.now, &self.nodes),
            self.kubelets.values().filter_map(Kubelet::wakes_at).min(),
            self.drivers_wake_at(),
        ];
        later.iter().all(Option::is_none)
            && self.controllers.is_settled(self.now, &self.api)
            && ACTORS
                .iter()
                .filter(|(actor, _)| *actor != Actor::Controllers)
                .all(|(actor, _)| self.steps_of(*actor).is_empty())
    }

    fn drivers_wake_at(&self) -> Option<u64> {
        self.nodes
            .iter()
            .filter_map(|(name, node)| self.drivers[name].wakes_at(&self.api, node))
            .min()
    }

    fn advance(&mut self, by: u64) {
        self.now += by;
        self.api.set_time(wall(self.now));
    }

    fn until_somebody_wakes(&self) -> u64 {
        [
            self.owners.wakes_at(),
            self.workload.wakes_at(self.now, &self.nodes),
            self.kubelets.values().filter_map(Kubelet::wakes_at).min(),
            self.drivers_wake_at(),
        ]
        .into_iter()
        .flatten()
        .map(|at| at.saturating_sub(self.now))
        .filter(|by| *by > 0)
        .min()
        .unwrap_or(IDLE_MILLISECONDS)
        .min(IDLE_MILLISECONDS)
    }

    /// Somebody's step: who is drawn and has nothing to do passes the turn on.
    fn next_step(&mut self) -> Option<Step> {
        let mut actors = ACTORS.to_vec();
        while !actors.is_empty() {
            let total = actors.iter().map(|(_, weight)| weight).sum();
            let mut drawn = self.random.below(total);
            let position = actors.iter().position(|(_, weight)| {
                let hit = drawn < *weight;
                drawn = drawn.saturating_sub(*weight);
                hit
            })?;
            let (actor, _) = actors.swap_remove(position);
            let mut steps = self.steps_of(actor);
            if !self.faults.left().is_empty() {
                if !self.random.one_in(30) {
                    steps.retain(|step| !is_recovery(step));
                }
                if !self.random.one_in(4) {
                    steps.retain(|step| !is_late(step));
                }
            }
            if let Some(step) = self.random.pick(steps) {
                return Some(step);
            }
        }
        None
    }

    fn steps_of(&mut self, actor: Actor) -> Vec<Step> {
        let now = self.now;
        match actor {
            Actor::Controllers => wrap(self.controllers.steps(now, &self.api), Step::Controllers),
            Actor::Scheduler => wrap(scheduler::steps(&self.api), Step::Scheduler),
            Actor::Claims => wrap(claim_controller::steps(&self.api), Step::Claims),
            Actor::Garbage => wrap(self.api.garbage(), Step::Garbage),
            Actor::Owners => wrap(self.owners.steps(now, &self.api), Step::Owners),
            Actor::Workload => {
                let steps = self
                    .workload
                    .steps(now, &self.api, &self.nodes, &self.owners);
                wrap(steps, Step::Workload)
            }
            Actor::Kubelets => self
                .nodes
                .iter()
                .flat_map(|(name, node)| {
                    let kubelet = &self.kubelets[name];
                    kubelet
                        .steps(now, &self.api, node, &self.drivers[name])
                        .into_iter()
                        .map(|step| Step::Kubelet(name.clone(), step))
                })
                .collect(),
            Actor::Drivers => self
                .nodes
                .iter()
                .flat_map(|(name, node)| {
                    self.drivers[name]
                        .steps(now, &self.api, node)
                        .into_iter()
                        .map(|step| Step::Driver(name.clone(), step))
                })
                .collect(),
        }
    }

    fn perform(&mut self, step: &Step) {
        match step {
            Step::Controllers(step) => self.perform_controllers(step),
            Step::Scheduler(step) => {
                self.trace.note(self.now, step.to_string());
                scheduler::perform(&mut self.api, step);
            }
            Step::Claims(step) => {
                self.trace
                    .note(self.now, format!("claim controller: {step:?}"));
                let random = self.random.below(1 << 20);
                claim_controller::perform(&mut self.api, step, random);
            }
            Step::Garbage(key) => {
                self.trace
                    .note(self.now, format!("garbage: {:?} {}", key.kind, key.name));
                let _ = self.api.delete(key, Precondition::default());
            }
            Step::Owners(step) => {
                self.trace.note(self.now, format!("owner: {step:?}"));
                self.owners.perform(step, &mut self.api);
            }
            Step::Workload(step) => {
                let end = if step.succeeded { "succeeds" } else { "fails" };
                self.trace.note(
                    self.now,
                    format!("{}: container of {} {end}", step.node, step.pod),
                );
                self.finish(&step.node, &step.pod, step.succeeded);
            }
            Step::Kubelet(name, step) => self.perform_kubelet(name, step),
            Step::Driver(name, step) => self.perform_driver(name, step),
        }
    }

    fn perform_controllers(&mut self, step: &controllers::Step) {
        let mishap = match step {
            controllers::Step::Perform(..) => self.faults.controller_mishap(&mut self.random),
            _ => None,
        };
        let wall = wall(self.now);
        let told = self
            .controllers
            .perform(step, self.now, wall, &mut self.api, mishap);
        if let Some(told) = told {
            self.trace.note(self.now, told);
        }
    }

    fn perform_kubelet(&mut self, name: &str, step: &kubelet::Step) {
        self.trace
            .note(self.now, format!("{name}: kubelet: {step:?}"));
        if let (Some(kubelet), Some(node), Some(drivers)) = (
            self.kubelets.get_mut(name),
            self.nodes.get_mut(name),
            self.drivers.get_mut(name),
        ) {
            kubelet.perform(
                step,
                self.now,
                &mut self.random,
                &mut self.api,
                node,
                drivers,
            );
        }
    }

    fn perform_driver(&mut self, name: &str, step: &drivers::Step) {
        let (Some(kubelet), Some(node), Some(drivers)) = (
            self.kubelets.get_mut(name),
            self.nodes.get_mut(name),
            self.drivers.get_mut(name),
        ) else {
            return;
        };
        let mishap = if drivers.touches_disk(step) {
            self.faults.disk_mishap(&mut self.random)
        } else if drivers.touches_api(step) {
            self.faults.driver_mishap(&mut self.random)
        } else {
            None
        };
        let failed = mishap.map_or_else(String::new, |mishap| format!(" -> {mishap:?}"));
        let text = drivers.describe(step);
        self.trace.note(self.now, format!("{name}: {text}{failed}"));
        if *step == drivers::Step::StopOld
            && let Some(old) = drivers.instances.first()
        {
            kubelet.disconnected(self.now, &mut self.random, old.id);
        }
        let answered = drivers.perform(step, self.now, &mut self.api, node, mishap);
        if let Some(answered) = answered {
            kubelet.answered(self.now, &mut self.random, &answered);
        }
    }

    fn finish(&mut self, node: &str, pod: &str, succeeded: bool) {
        if let (Some(kubelet), Some(node)) = (self.kubelets.get_mut(node), self.nodes.get_mut(node))
        {
            kubelet.finish(pod, node, succeeded);
        }
    }

    /// Lets a fault happen, if there is something that it can happen to.
    fn inject(&mut self, fault: Fault) -> bool {
        let told = match fault {
            Fault::LeaseLost => self.lose_lease(),
            Fault::WatchLag => self
                .random
                .pick(LAGGING_KINDS.to_vec())
                .filter(|_| self.controllers.holder().is_some())
                .map(|kind| {
                    self.controllers.freeze(kind);
                    format!("the leader's watch of {kind:?} stands still")
                }),
            Fault::DriverCrash => self.crash_driver(),
            Fault::DriverUpdate => self.update_driver(),
            Fault::CheckpointLost => self.lose_checkpoint(),
            Fault::KubeletRestart => self.pick_node().map(|name| {
                if let Some(kubelet) = self.kubelets.get_mut(&name) {
                    kubelet.restart(self.now);
                }
                format!("{name}: kubelet restarts")
            }),
            Fault::DriverPause => self.pause_driver(),
            Fault::KubeletPause => self.pick_node().map(|name| {
                let until = self.now + self.random.between(1_000, 20_000);
                if let Some(kubelet) = self.kubelets.get_mut(&name) {
                    kubelet.paused_until = until;
                }
                format!("{name}: kubelet does nothing for a while")
            }),
            Fault::ForceDelete => self.delete::<Pod>(true, |pod| !has_ended(pod) && is_bound(pod)),
            Fault::Delete => {
                let planned = self.planned_pods();
                self.delete::<Pod>(false, |pod| {
                    let uid = pod.metadata.uid.as_ref();
                    !has_ended(pod)
                        && (planned.is_empty() || uid.is_some_and(|uid| planned.contains(uid)))
                })
            }
            Fault::DeleteGang => self.delete::<Gang>(false, |_| true),
            Fault::DeleteNodeDevices => self.delete::<NodeDevices>(false, |_| true),
            Fault::SwapClaim => self
                .delete::<ResourceClaim>(false, |claim| scheduler::allocated_node(claim).is_none()),
            Fault::Cancel => {
                let gangs = self.owners.cancellable(&self.api);
                self.random.pick(gangs).map(|gang| {
                    self.owners.cancel(&gang, &mut self.api);
                    format!("{gang} is deleted by its user")
                })
            }
            Fault::RankFails => self.fail_rank(),
            Fault::ControllerCrash
            | Fault::ControllerUnanswered
            | Fault::ControllerConflict
            | Fault::DriverUnanswered
            | Fault::DiskFull => None,
        };
        let happened = told.is_some();
        if let Some(told) = told {
            self.trace
                .note(self.now, format!("FAULT {fault:?}: {told}"));
        }
        happened
    }

    fn has_intents(&self) -> bool {
        self.api
            .list::<Ledger>()
            .any(|ledger| !ledger.spec.intents.is_empty())
    }

    /// Mostly while something is under way: at other times there is little to lose.
    fn lose_lease(&mut self) -> Option<String> {
        if !self.has_intents() && !self.random.one_in(4) {
            return None;
        }
        let everything = self.random.one_in(3);
        let mut frozen = BTreeSet::new();
        for kind in LAGGING_KINDS {
            if everything || self.random.one_in(3) {
                frozen.insert(kind);
            }
        }
        let text = format!("the old leader lives on, and lags on {frozen:?}");
        self.controllers.supersede(frozen).then_some(text)
    }

    fn pick_node(&mut self) -> Option<String> {
        let names = self.nodes.keys().cloned().collect();
        self.random.pick(names)
    }

    fn crash_driver(&mut self) -> Option<String> {
        let name = self.pick_node()?;
        let drivers = self.drivers.get_mut(&name)?;
        let position = self.random.index(drivers.instances.len());
        let id = drivers.instances.get(position)?.id;
        drivers.crash(position, self.nodes.get_mut(&name)?);
        let kubelet = self.kubelets.get_mut(&name)?;
        kubelet.disconnected(self.now, &mut self.random, id);
        Some(format!("{name}: driver {id} crashes"))
    }

    fn pause_driver(&mut self) -> Option<String> {
        let name = self.pick_node()?;
        let drivers = self.drivers.get_mut(&name)?;
        let position = self.random.index(drivers.instances.len());
        let until = self.now + self.random.between(1_000, 20_000);
        let id = drivers.pause(position, until, self.nodes.get(&name)?)?;
        Some(format!("{name}: driver {id} does nothing for a while"))
    }

    /// Pods that an intent is about, every other time: what is under way is what is worth disturbing.
    fn planned_pods(&mut self) -> BTreeSet<String> {
        if self.random.one_in(2) {
            return BTreeSet::new();
        }
        self.api
            .list::<Ledger>()
            .flat_map(|ledger| &ledger.spec.intents)
            .flat_map(|intent| &intent.pods)
            .map(|pod| pod.uid.clone())
            .collect()
    }

    fn update_driver(&mut self) -> Option<String> {
        let name = self.pick_node()?;
        let drivers = self.drivers.get_mut(&name)?;
        if drivers.instances.len() != 1 {
            return None;
        }
        drivers.start(self.now, &self.api, self.nodes.get(&name)?);
        Some(format!("{name}: a second instance of the driver starts"))
    }

    fn lose_checkpoint(&mut self) -> Option<String> {
        let name = self.pick_node()?;
        let node = self.nodes.get_mut(&name)?;
        if node.lock.is_some() {
            return None;
        }
        node.lose_checkpoint();
        Some(format!("{name}: checkpoint lost"))
    }

    fn delete<T: Stored + 'static>(
        &mut self,
        by_force: bool,
        may: impl Fn(&T) -> bool,
    ) -> Option<String> {
        let candidates = self
            .api
            .list::<T>()
            .filter(|object| may(object))
            .map(|object| {
                let metadata = object.metadata();
                let namespace = metadata.namespace.clone().unwrap_or_default();
                key(
                    T::KIND,
                    &namespace,
                    metadata.name.as_deref().unwrap_or_default(),
                )
            })
            .collect();
        let key = self.random.pick(candidates)?;
        let any = Precondition::default();
        let done = if by_force {
            self.api.delete_now(&key, any)
        } else {
            self.api.delete(&key, any)
        };
        done.ok().map(|()| format!("{:?} {}", key.kind, key.name))
    }

    fn fail_rank(&mut self) -> Option<String> {
        let running = self
            .nodes
            .iter()
            .flat_map(|(name, node)| {
                node.containers
                    .keys()
                    .map(move |pod| (name.clone(), pod.clone()))
            })
            .collect();
        let (node, pod) = self.random.pick(running)?;
        self.finish(&node, &pod, false);
        Some(format!("{node}: container of {pod} fails"))
    }
}

/// Steps that end a fault: rare while faults are still to come, so that the fault lasts.
fn is_recovery(step: &Step) -> bool {
    matches!(
        step,
        Step::Controllers(controllers::Step::Notice(_) | controllers::Step::Thaw(..))
            | Step::Driver(_, drivers::Step::StopOld)
    )
}

/// Requests that nobody waits for any more.
fn is_late(step: &Step) -> bool {
    matches!(
        step,
        Step::Controllers(controllers::Step::Arrive(_)) | Step::Driver(_, drivers::Step::Late(_))
    )
}

fn wrap<T>(steps: Vec<T>, make: fn(T) -> Step) -> Vec<Step> {
    steps.into_iter().map(make).collect()
}

/// The time of day: runs begin at the same moment, for ever.
fn wall(now: u64) -> Timestamp {
    const BEGINNING_SECONDS: i64 = 1_790_000_000;
    let since = SignedDuration::from_millis(i64::try_from(now).unwrap_or_default());
    Timestamp::from_second(BEGINNING_SECONDS).unwrap_or_default() + since
}

/// What an administrator sets up, and what nodes and drivers say of themselves.
fn furnish(api: &mut ApiServer, scenario: &Scenario) {
    let mut done = vec![
        api.create(furniture::device_class()),
        api.create(furniture::flavor()),
        api.create(furniture::topology()),
        api.create(furniture::cohort()),
        api.create(furniture::priority_tier()),
    ];
    for team in &scenario.teams {
        done.push(api.create(furniture::team(team)));
        done.push(api.create(furniture::namespace(&team.name)));
    }
    for node in &scenario.nodes {
        done.push(api.create(furniture::node(node)));
        done.push(api.create(furniture::resource_slice(node)));
    }
    debug_assert!(done.iter().all(Result::is_ok), "every name is used once");
}
