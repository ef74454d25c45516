//! The simulated cluster: everything that acts, one step at a time, in an order that the seed decides.

mod breaking;
mod clocks;
mod draining;
mod mishaps;
mod passing;
mod perform;
pub mod steering;
mod steps;
mod turns;

use std::collections::{BTreeMap, BTreeSet};

use muster_api::{Breaker, Gang, GangPhase, Ledger, Reason, keys};
use muster_cluster::object::ObjectKey;

use crate::{
    api_server::{ApiServer, Informer, Precondition},
    claim_controller,
    clock::wall,
    controllers::{self, Controllers},
    drivers::Drivers,
    faults::{Fault, Faults},
    fixtures,
    gpu_node::GpuNode,
    invariants::{Invariants, Violation},
    kubelet::Kubelet,
    matrix::Matrix,
    owners::Owners,
    random::Random,
    scenario::{Product, Scenario, TeamShape},
    scheduler,
    trace::Trace,
    workload::Workload,
};
pub use steps::Steps;
use turns::{ACTORS, Actor, Step};

/// Longest jump of the clock while nobody has anything to do.
const IDLE_MILLISECONDS: u64 = 2_000;
/// How long a state that nothing changes may go unchecked: some checks are about time.
const UNCHECKED_MILLISECONDS: u64 = 10_000;

/// How long an administrator looks at a circuit breaker that is open before closing it.
const BREAKER_OPEN_MILLISECONDS: u64 = 60_000;

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
    /// What met what.
    pub matrix: Matrix,
    random: Random,
    drivers: BTreeMap<String, Drivers>,
    scheduler: Informer,
    claim_controller: Informer,
    kubelets: BTreeMap<String, Kubelet>,
    workload: Workload,
    /// What a script holds back.
    held: Vec<Steps>,
    /// When everything was checked last, and of which revision; nothing else has changed since, if there is one.
    checked: Option<(u64, u64)>,
    /// The Teams as their administrator wants them.
    teams: Vec<TeamShape>,
    /// Faults that last for a while, with what they happen to, and when they are over.
    passing: BTreeMap<(Fault, String), u64>,
    /// Gangs that somebody made ones that nobody may preempt, and that may be too large for that.
    promoted: BTreeSet<ObjectKey>,
    /// Since when the circuit breaker was seen to be open.
    breaker_open_since: Option<u64>,
    /// What a leader ended without proof that was only to observe.
    ended_by_observer: Option<String>,
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
            controllers: Controllers::new(scenario),
            nodes: scenario
                .nodes
                .iter()
                .map(|shape| (shape.name.clone(), GpuNode::new(shape.clone())))
                .collect(),
            faults,
            owners: Owners::new(scenario),
            invariants: Invariants::new(scenario.clone()),
            trace: Trace::default(),
            matrix: Matrix::default(),
            teams: scenario.teams.clone(),
            passing: BTreeMap::new(),
            promoted: BTreeSet::new(),
            breaker_open_since: None,
            ended_by_observer: None,
            random,
            scheduler: Informer::new(&scheduler::WATCHED),
            claim_controller: Informer::new(&claim_controller::WATCHED),
            drivers: names().map(|name| (name, Drivers::default())).collect(),
            kubelets: names().map(|name| (name, Kubelet::default())).collect(),
            workload: Workload::default(),
            held: Vec::new(),
            checked: None,
        }
    }

    /// Breaks a rule of the controllers on purpose.
    #[cfg(feature = "injected-bugs")]
    pub fn plant_in_controllers(&mut self, bug: controllers::InjectedBug) {
        self.controllers.plant(Some(bug));
    }

    /// Breaks a rule of the drivers on purpose.
    #[cfg(feature = "injected-bugs")]
    pub fn plant_in_drivers(&mut self, bug: crate::drivers::InjectedBug) {
        for drivers in self.drivers.values_mut() {
            drivers.plant(Some(bug));
        }
    }

    /// Breaks a rule about what drivers know of faults on purpose.
    #[cfg(feature = "injected-bugs")]
    pub fn plant_about_faults(&mut self, bug: crate::drivers::FaultBug) {
        for drivers in self.drivers.values_mut() {
            drivers.plant_about_faults(bug);
        }
    }

    /// Takes one step, and checks everything. False if nobody had anything to do but wait.
    pub fn step(&mut self) -> Result<bool, Violation> {
        self.steps += 1;
        self.end_passing();
        self.mind_breaker();
        if let Some(fault) = self.faults.due(&mut self.random)
            && self.may_happen(fault)
            && self.inject(fault)
        {
            self.faults.spend(fault);
            self.check()?;
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
        self.take(&step)
    }

    /// Whether it can happen now: without the API server only what needs it not.
    fn may_happen(&self, fault: Fault) -> bool {
        let is_of_machines = matches!(
            fault,
            Fault::GpuBreaks
                | Fault::NodeReboots
                | Fault::RankFails
                | Fault::DriverCrash
                | Fault::ClockSkews
                | Fault::ClockJumps
        );
        is_of_machines || !self.is_away(breaking::API_SERVER)
    }

    /// Takes this step, and checks everything. False if it was a look at things that changed nothing.
    fn take(&mut self, step: &Step) -> Result<bool, Violation> {
        let idle = matches!(step, Step::Controllers(controllers::Step::Poll(_)));
        let revision = self.api.revision();
        self.perform(step);
        if self.api.revision() != revision {
            self.owners.look(&self.api);
            if self.has_intents() {
                self.faults.note_admission();
            }
        }
        if let Some(what) = self.owners.stranded() {
            return Err(Violation {
                invariant: "L-6",
                what: format!("after healing a user had to give up {what}"),
            });
        }
        if let Some(what) = self.ended_by_observer.take() {
            return Err(Violation {
                invariant: "S18",
                what,
            });
        }
        if let Some(what) = self.controllers.overlooked() {
            return Err(Violation {
                invariant: "wakeup",
                what: format!("a poll overlooked: {what}"),
            });
        }
        if step.may_change_nodes() || !self.is_checked() {
            self.check()?;
        }
        Ok(!idle || revision != self.api.revision())
    }

    /// Whether what is there now was checked, and not long ago. Most steps tell somebody something, and change nothing.
    fn is_checked(&self) -> bool {
        self.checked.is_some_and(|(at, revision)| {
            revision == self.api.revision() && self.now < at + UNCHECKED_MILLISECONDS
        })
    }

    fn check(&mut self) -> Result<(), Violation> {
        self.checked = Some((self.now, self.api.revision()));
        if let Some(what) = self.owners.wronged(&self.api) {
            return Err(Violation {
                invariant: "S5",
                what,
            });
        }
        self.invariants.check(&self.api, &self.nodes)
    }

    /// Nothing goes wrong any more, and what stood still moves again.
    pub fn heal(&mut self) {
        self.checked = None;
        self.faults.heal();
        self.held.clear();
        self.owners.heal();
        self.end_all_passing();
        self.nodes.values_mut().for_each(|node| node.faults.mend());
        self.take_promotions_back();
        self.invariants.heal(&self.api);
        self.controllers.heal(&self.api);
        self.mend_clocks();
        self.drivers.values_mut().for_each(Drivers::heal);
        for kubelet in self.kubelets.values_mut() {
            kubelet.paused_until = 0;
        }
        self.trace.note(self.now, "--- healed ---".to_owned());
    }

    /// An administrator closes the circuit breaker once it was open for a while.
    fn mind_breaker(&mut self) {
        if self.is_away(breaking::API_SERVER) {
            return;
        }
        let mut ledgers = self.api.list::<Ledger>();
        let is_open = ledgers.any(|ledger| ledger.spec.breaker.opened_at.is_some());
        drop(ledgers);
        if !is_open {
            self.breaker_open_since = None;
            return;
        }
        let since = *self.breaker_open_since.get_or_insert(self.now);
        if self.now < since + BREAKER_OPEN_MILLISECONDS {
            return;
        }
        self.breaker_open_since = None;
        self.checked = None;
        let any = Precondition::default();
        let closed = self
            .api
            .update::<Ledger>("", keys::LEDGER_NAME, any, |ledger| {
                ledger.spec.breaker = Breaker::default();
            });
        if closed.is_ok() {
            self.invariants.note_breaker_closed();
        }
        let told = "an administrator closes the circuit breaker".to_owned();
        self.trace.note(self.now, told);
    }

    /// Whether nobody has anything to do, now or later, but poll.
    pub fn is_quiet(&mut self) -> bool {
        if self.breaker_open_since.is_some() {
            return false;
        }
        let later = [
            self.owners.wakes_at(self.now, &self.api),
            self.workload
                .wakes_at(self.now, &self.api, &self.nodes, &self.owners),
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

    /// Whether a gang's state may change by nothing but the time that the controllers give it: an attempt of it does not run yet, has a
    /// pod that is lost, or is being ended; or it pauses after one that did not start.
    pub fn awaits_limit(&self) -> bool {
        let mut statuses = self
            .api
            .list::<Gang>()
            .filter_map(|gang| gang.status.as_ref());
        statuses.any(|status| {
            let queue = status.queue.as_ref();
            matches!(status.phase, GangPhase::Admitted | GangPhase::Evicting)
                || queue.is_some_and(|queue| queue.reason == Reason::BackingOff)
        })
    }

    fn has_intents(&self) -> bool {
        self.api
            .list::<Ledger>()
            .any(|ledger| !ledger.spec.intents.is_empty())
    }

    fn drivers_wake_at(&self) -> Option<u64> {
        self.drivers_that_run()
            .filter_map(|(name, drivers)| drivers.wakes_at(&self.api, &self.nodes[name]))
            .min()
    }

    fn advance(&mut self, by: u64) {
        self.now += by;
        self.api.set_time(wall(self.now));
    }

    fn until_somebody_wakes(&self) -> u64 {
        [
            self.owners.wakes_at(self.now, &self.api),
            self.workload
                .wakes_at(self.now, &self.api, &self.nodes, &self.owners),
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
}

/// What an administrator sets up, and what nodes and drivers say of themselves.
fn furnish(api: &mut ApiServer, scenario: &Scenario) {
    let mut done = vec![
        api.create(fixtures::device_class()),
        api.create(fixtures::topology()),
        api.create(fixtures::cohort()),
    ];
    for number in 0..fixtures::TIERS.len() {
        let tier = fixtures::priority_tier(number);
        done.push(api.create(tier));
    }
    for product in Product::ALL {
        done.push(api.create(fixtures::flavor(product)));
    }
    for team in &scenario.teams {
        done.push(api.create(fixtures::team(team, &scenario.hardships)));
        for namespace in &team.namespaces {
            done.push(api.create(fixtures::namespace(namespace, &team.name)));
        }
    }
    for node in &scenario.nodes {
        done.push(api.create(fixtures::node(node)));
        done.push(api.create(fixtures::resource_slice(node)));
    }
    debug_assert!(done.iter().all(Result::is_ok), "every name is used once");
}
