//! Clusters of four nodes and four Teams, and what becomes of them by what is told.

use std::collections::BTreeMap;

use muster_engine::{
    Amount, Budget, Decisions, Device, DeviceName, Gang, GangUid, Hold, Node, NodeBlock, NodeName,
    NodeRepair, PodUid, Queueing, QuotaLimit, Remedies, Resource, State, Stop, Team, Timestamp,
    Update,
    quota::{PreemptionPolicy, ReclaimWithinCohort, Sharing, WithinTeam},
};

use crate::{common::*, random::Random};

/// The engine, and what runs.
pub(crate) struct World {
    pub(crate) state: State,
    pub(crate) now: i64,
    pub(crate) nodes: BTreeMap<NodeName, Node>,
    pub(crate) teams: BTreeMap<String, Team>,
    pub(crate) gangs: BTreeMap<GangUid, Gang>,
    pub(crate) holds: BTreeMap<GangUid, Vec<Hold>>,
    pub(crate) waiting: Vec<GangUid>,
}

impl World {
    pub(crate) fn new(nodes: Vec<Node>, teams: Vec<Team>) -> Self {
        let by_name = teams.iter().cloned();
        let named = nodes.iter().cloned();
        Self {
            now: 0,
            nodes: named.map(|node| (node.name.clone(), node)).collect(),
            teams: by_name.map(|team| (team.name.to_string(), team)).collect(),
            state: state(nodes, teams),
            gangs: BTreeMap::new(),
            holds: BTreeMap::new(),
            waiting: Vec::new(),
        }
    }

    pub(crate) fn submit(&mut self, gang: Gang) {
        self.waiting.push(gang.uid.clone());
        self.gangs.insert(gang.uid.clone(), gang.clone());
        self.state.apply(Update::Waiting(gang));
    }

    /// Decides until nothing more is.
    pub(crate) fn settle(&mut self) {
        while self.decide() > 0 {}
    }

    /// Decides once; how many gangs are admitted.
    pub(crate) fn decide(&mut self) -> usize {
        let now = Timestamp(self.now);
        let admissions = self.state.decide(now, &Budget::UNLIMITED).admissions;
        let count = admissions.len();
        for admission in admissions {
            let gang = &self.gangs[&admission.gang];
            let holds = holds_of(gang, &admission);
            for hold in &holds {
                self.state.apply(Update::Hold(hold.clone()));
            }
            self.state.apply(Update::NotWaiting(gang.uid.clone()));
            self.state.apply(Update::Running(running_since(now, gang)));
            self.waiting.retain(|uid| *uid != gang.uid);
            self.holds.insert(gang.uid.clone(), holds);
        }
        count
    }

    /// Submits each and decides, so that they run in this order.
    pub(crate) fn run(&mut self, gangs: impl IntoIterator<Item = Gang>) {
        for gang in gangs {
            self.submit(gang);
            self.decide();
        }
    }

    /// A gang ends.
    pub(crate) fn end(&mut self, gang: &GangUid) {
        self.state.apply(Update::NotRunning(gang.clone()));
        for pod in self.pods_of(gang) {
            self.state.apply(Update::HoldGone(pod));
        }
        self.holds.remove(gang);
    }

    /// A node is another one from now on.
    pub(crate) fn change_node(&mut self, name: &str, change: impl FnOnce(&mut Node)) {
        let node = self.nodes.get_mut(&NodeName::from(name)).unwrap();
        change(node);
        self.state.apply(Update::Node(node.clone()));
    }

    pub(crate) fn remedies(&self, gang: &str) -> Remedies {
        let explained = self.state.explain(&gang.into()).expect("it waits");
        self.state.remedies(&explained)
    }

    pub(crate) fn pods_of(&self, gang: &GangUid) -> Vec<PodUid> {
        self.holds[gang]
            .iter()
            .map(|hold| hold.pod.clone())
            .collect()
    }

    /// What is decided after something else happened: a copy of the state decides.
    pub(crate) fn after(&self, happens: &dyn Fn(&mut State)) -> Decisions {
        let mut state = self.state.clone();
        happens(&mut state);
        state.decide(Timestamp(self.now + 1), &Budget::UNLIMITED)
    }

    /// The same where nobody waits but one gang.
    pub(crate) fn alone_after(&self, gang: &GangUid, happens: &dyn Fn(&mut State)) -> Decisions {
        self.after(&|state| {
            for other in self.waiting.iter().filter(|other| *other != gang) {
                state.apply(Update::NotWaiting(other.clone()));
            }
            happens(state);
        })
    }

    /// These gangs end.
    pub(crate) fn end_in(&self, state: &mut State, gangs: &[GangUid]) {
        for gang in gangs {
            state.apply(Update::NotRunning(gang.clone()));
            for pod in self.pods_of(gang) {
                state.apply(Update::HoldGone(pod));
            }
        }
    }

    /// The nominal quota of a Team is another one.
    pub(crate) fn raise_in(&self, state: &mut State, team: &str, by: Amount) {
        let mut team = self.teams[team].clone();
        team.generation += 1;
        let gpus = team.quota[0].1.get_mut(&Resource::Gpus).unwrap();
        gpus.nominal = Amount(gpus.nominal.0 + by.0);
        state.apply(Update::Team(team));
    }

    /// Nodes are repaired, each by its own update.
    pub(crate) fn repair_in(&self, state: &mut State, repairs: &[NodeRepair]) {
        for repair in repairs {
            let mut node = self.nodes[&repair.node].clone();
            if repair.block.is_some() {
                node.block = None;
            }
            for device in &mut node.devices {
                if repair.devices.contains(&device.name) {
                    (device.usable, device.healthy) = (true, true);
                }
            }
            state.apply(Update::Node(node));
        }
    }
}

/// A device has a fault.
pub(crate) fn fail(node: &mut Node, at: usize) {
    let device: &mut Device = &mut node.devices[at];
    (device.usable, device.healthy) = (false, false);
}

pub(crate) fn device_name(at: usize) -> DeviceName {
    device(at).name
}

/// What happens in random worlds.
#[derive(Clone, Copy, Debug)]
#[allow(
    clippy::struct_excessive_bools,
    reason = "each is one thing that happens or does not"
)]
pub(crate) struct Setting {
    pub(crate) preempts: bool,
    pub(crate) sharing: Sharing<'static>,
    /// Nodes are blocked and devices have faults.
    pub(crate) fails: bool,
    /// The nominal quota of two Teams follows what is healthy.
    pub(crate) follows: bool,
    /// Gangs lack a place for so long that one is kept for them.
    pub(crate) keeps: bool,
}

impl Setting {
    pub(crate) const PLAIN: Self = Self {
        preempts: false,
        sharing: Sharing::ByPriority,
        fails: false,
        follows: false,
        keeps: false,
    };
}

/// A Cohort of three Teams with all kinds of limits, and a Team by itself.
pub(crate) fn random_world(random: &mut Random, setting: Setting) -> World {
    let limits = |nominal, borrowing: Option<i64>, lending: Option<i64>| QuotaLimit {
        nominal: gpus(nominal),
        borrowing_limit: borrowing.map(gpus),
        lending_limit: lending.map(gpus),
        automatic: false,
    };
    let mut teams = vec![
        team("t0", Some("all"), limits(4, Some(4), Some(2))),
        team("t1", Some("all"), limits(6, None, None)),
        team("t2", Some("inner"), limits(2, Some(2), Some(0))),
        team("t3", None, limit(5)),
    ];
    if random.percent(30) {
        teams[random.index(4)].queueing = Queueing::StrictFifo;
    }
    for team in &mut teams {
        if setting.preempts && random.percent(70) {
            team.preemption = PreemptionPolicy {
                within_team: random.pick(&[WithinTeam::Never, WithinTeam::LowerPriority]),
                reclaim_within_cohort: ReclaimWithinCohort::Any,
                ..PreemptionPolicy::NEVER
            };
        }
    }
    if setting.follows {
        for at in [1, 3] {
            let gpus = teams[at].quota[0].1.get_mut(&Resource::Gpus).unwrap();
            gpus.automatic = true;
        }
    }
    let nodes = [
        ("n0", "s/l0"),
        ("n1", "s/l0"),
        ("n2", "s/l1"),
        ("n3", "s/l1"),
    ];
    let mut nodes: Vec<Node> = nodes.map(|(name, path)| node(name, path, 4)).into();
    if setting.fails {
        for node in &mut nodes {
            spoil(random, node);
        }
    }
    let mut world = World::new(nodes, teams);
    let mut all = cohort("all", None, 3);
    all.sharing = setting.sharing;
    world.state.apply(Update::Cohort(all));
    world
        .state
        .apply(Update::Cohort(cohort("inner", Some("all"), 1)));
    for number in 0..random.between(6, 24) {
        world.submit(random_gang(random, number, setting));
        if random.percent(60) {
            world.decide();
        }
        if random.percent(25) && !world.holds.is_empty() {
            let running: Vec<GangUid> = world.holds.keys().cloned().collect();
            world.end(&random.pick(&running));
        }
        if setting.fails && random.percent(20) {
            let name = random.pick(&["n0", "n1", "n2", "n3"]);
            world.change_node(name, |node| spoil(random, node));
        }
    }
    world.settle();
    if setting.keeps {
        // Those that lacked a place in the beginning have lacked it for long.
        world.now = 1_000;
        world.settle();
    }
    if random.percent(10) {
        let mut stopped = world.teams["t1"].clone();
        stopped.stop = Stop::Hold;
        world.teams.insert("t1".to_owned(), stopped.clone());
        world.state.apply(Update::Team(stopped));
        world.settle();
    }
    world
}

fn random_gang(random: &mut Random, number: i64, setting: Setting) -> Gang {
    let (name, of) = (format!("g{number:02}"), format!("t{}", random.index(4)));
    let pods = usize::try_from(random.between(1, 4)).unwrap();
    let mut gang = gang(&name, &of, pods, random.pick(&[1, 1, 2, 4]));
    if random.percent(30) {
        gang = requiring("leaf", gang);
    }
    if random.percent(25) {
        gang = within_nominal(gang);
    }
    if random.percent(20) {
        gang.min_count = Some(1);
    }
    if setting.keeps && random.percent(40) {
        gang.run_time.max_seconds = Some(random.pick(&[100, 2_000, 5_000]));
    }
    let tier = i32::try_from(random.between(0, 2)).unwrap();
    with_priority(tier, at(number, gang))
}

/// Something else is wrong with a node than before, or nothing.
fn spoil(random: &mut Random, node: &mut Node) {
    let blocks = [
        None,
        None,
        None,
        Some(NodeBlock::Cordoned),
        Some(NodeBlock::NotReady),
        Some(NodeBlock::DriverSilent),
    ];
    node.block = random.pick(&blocks);
    for at in 0..node.devices.len() {
        let is_well = random.percent(70);
        let device = &mut node.devices[at];
        (device.usable, device.healthy) = (is_well, is_well);
    }
}
