//! Random Teams and Cohorts, and what happens to them and to their gangs. A history is drawn whole, before it is played.

use std::collections::{BTreeMap, BTreeSet};

use muster_engine::quota::{
    AtAPrice, BorrowWithinCohort, FairStrategy, FlavorFungibility, FlavorPreference,
    PreemptionPolicy, ReclaimWithinCohort, Weight, WithinTeam,
};

use crate::{
    model::{Limit, Name, Node, Nodes, Pair},
    random::Random,
    seeds::Seeded,
};

/// Events of a history.
pub(super) const EVENTS: usize = 50;
/// The resources, by their numbers: cores and memory.
pub(super) const RESOURCES: [u8; 2] = [0, 3];

#[derive(Clone, Debug)]
pub(super) struct History {
    pub(super) nodes: Nodes,
    /// `None`: by priority.
    pub(super) strategies: Option<Vec<FairStrategy>>,
    pub(super) fungibility: BTreeMap<Name, FlavorFungibility>,
    /// Teams whose order is strict.
    pub(super) strict: BTreeSet<Name>,
    pub(super) events: Vec<Step>,
}

/// Something happens; then the engine decides, or not yet.
#[derive(Clone, Debug)]
pub(super) struct Step {
    pub(super) event: Event,
    pub(super) decides: bool,
    /// Which of its admissions, counted round, cannot be committed.
    pub(super) undo: Option<usize>,
}

/// A gang as it comes.
#[derive(Clone, Debug)]
pub(super) struct Arrival {
    pub(super) uid: u32,
    pub(super) team: Name,
    pub(super) priority: i32,
    pub(super) queued_at: i64,
    /// How many pods it has.
    pub(super) pods: usize,
    /// With how many of them it may start, if not with all only.
    pub(super) least: Option<usize>,
    /// What each pod asks for, of each resource.
    pub(super) asks: [i128; 2],
    pub(super) may_borrow: bool,
    /// For how many seconds nobody may preempt it.
    pub(super) min_run_time: i64,
    /// For how many seconds it may run on once it was told to go.
    pub(super) notice: i64,
}

impl Arrival {
    /// With how many pods it starts at the least.
    pub(super) fn fewest(&self) -> usize {
        self.least.unwrap_or(self.pods)
    }

    /// What so many of its pods ask for.
    pub(super) fn asks_with(&self, pods: usize) -> [i128; 2] {
        let pods = i128::try_from(pods).expect("few");
        self.asks.map(|asks| asks * pods)
    }
}

/// Positions are counted round.
#[derive(Clone, Debug)]
pub(super) enum Event {
    Arrives(Arrival),
    IsWithdrawn(usize),
    /// A gang that waits has another priority from now on.
    Priority(usize, i32),
    BeginsToEnd(usize),
    /// A gang that runs is over.
    Ends(usize),
    /// A gang that is to give way is told so.
    Notice(usize),
    /// A gang that was told to give way, and gives way to nobody any more, is told that, too.
    Spared(usize),
    /// A gang that is to go, or ends, holds nothing any more; if it gave way it may wait again.
    Released {
        gang: usize,
        comes_back: bool,
    },
    /// A gang that is to give way waits as its next attempt before it holds nothing any more.
    ComesBackEarly(usize),
    Passes(i64),
    Limit(Name, Pair, Option<Limit>),
    Weight(Name, u64),
    Policy(Name, PreemptionPolicy),
    Fungibility(Name, FlavorFungibility),
    Moves(Name, Option<Name>),
    Stops(Name, bool),
    /// The order of a Team is strict from now on, or is not.
    IsStrict(Name, bool),
    /// The attempt of a gang that runs ends by a fault, and all that it held is released. It does not come back. Not drawn: see
    /// [`History::with_recoveries`].
    Fails(usize),
}

impl History {
    /// The same with gangs that recover in place of limits that change.
    pub(super) fn with_recoveries(&self) -> Self {
        let mut history = self.clone();
        for (index, step) in history.events.iter_mut().enumerate() {
            if let Event::Limit(..)
            | Event::Weight(..)
            | Event::Policy(..)
            | Event::Fungibility(..)
            | Event::Moves(..)
            | Event::Stops(..)
            | Event::IsStrict(..) = step.event
            {
                step.event = Event::Fails(index);
            }
        }
        history
    }
}

impl Seeded for History {
    type Event = Step;

    fn draw(seed: u64) -> Self {
        let mut draw = Draw {
            random: Random::new(seed ^ 0x5157_11ce),
            pairs: Vec::new(),
            uid: 0,
            two_resources: false,
            largest: 1,
        };
        draw.pairs();
        let nodes = draw.nodes();
        let is_team = |name: &Name| nodes[name].policy.is_some();
        let teams: Vec<Name> = nodes.keys().copied().filter(is_team).collect();
        let fungibility = teams.iter().map(|team| (*team, draw.fungibility()));
        let fungibility = fungibility.collect();
        let strategies = draw.strategies();
        let strict = teams.iter().copied();
        let strict = strict.filter(|_| draw.random.percent(35)).collect();
        let events = (0..EVENTS).map(|_| draw.step(&nodes, &teams)).collect();
        Self {
            nodes,
            strategies,
            fungibility,
            strict,
            events,
        }
    }

    fn events(&mut self) -> &mut Vec<Step> {
        &mut self.events
    }
}

struct Draw {
    random: Random,
    pairs: Vec<Pair>,
    uid: u32,
    two_resources: bool,
    /// The most that a gang asks for.
    largest: i64,
}

impl Draw {
    fn pairs(&mut self) {
        self.two_resources = self.random.percent(30);
        self.largest = self.random.pick(&[3, 4, 6]);
        let flavors = self.random.pick(&[1, 1, 2]);
        for flavor in 0..flavors {
            for resource in &RESOURCES[..=usize::from(self.two_resources)] {
                self.pairs.push(Pair {
                    flavor,
                    resource: *resource,
                });
            }
        }
    }

    fn nodes(&mut self) -> Nodes {
        let cohorts = self.random.pick(&[1, 1, 1, 2, 3, 4]);
        let teams = self.random.pick(&[2, 2, 3, 3, 4, 5]);
        let mut names: Vec<Name> = (0..cohorts + teams).collect();
        self.random.shuffle(&mut names);
        let (cohorts, teams) = names.split_at(usize::from(cohorts));
        let mut nodes = Nodes::new();
        for (at, name) in cohorts.iter().enumerate() {
            let joins = at > 0 && self.random.percent(85);
            let parent = joins.then(|| self.random.pick(&cohorts[..at]));
            let node = self.node(parent, None);
            nodes.insert(*name, node);
        }
        for name in teams {
            let joins = self.random.percent(95);
            let parent = joins.then(|| self.random.pick(cohorts));
            let policy = Some(self.policy());
            let node = self.node(parent, policy);
            nodes.insert(*name, node);
        }
        nodes
    }

    fn node(&mut self, parent: Option<Name>, policy: Option<PreemptionPolicy>) -> Node {
        let mut limits = BTreeMap::new();
        let has_limits = if policy.is_some() { 97 } else { 35 };
        if self.random.percent(has_limits) {
            for pair in self.pairs.clone() {
                if self.random.percent(92) {
                    limits.insert(pair, self.limit(policy.is_some()));
                }
            }
        }
        Node {
            parent,
            limits,
            weight: self.weight(),
            policy,
        }
    }

    fn limit(&mut self, is_team: bool) -> Limit {
        let most = if is_team {
            self.random.pick(&[2, 4, 6])
        } else {
            4
        };
        let nominal = self.random.between(0, most);
        let mut some = |percent, most| {
            let is_set = self.random.percent(percent);
            is_set.then(|| i128::from(self.random.between(0, most)))
        };
        Limit {
            nominal: i128::from(nominal),
            borrowing: some(20, 6),
            lending: some(20, nominal + 2),
        }
    }

    fn weight(&mut self) -> u64 {
        let one = Weight::ONE.0;
        if self.random.percent(60) {
            one
        } else {
            self.random.pick(&[0, one / 2, 2 * one, 3 * one])
        }
    }

    fn policy(&mut self) -> PreemptionPolicy {
        let within_team = self.random.pick(&[
            WithinTeam::Never,
            WithinTeam::LowerPriority,
            WithinTeam::LowerOrNewerEqualPriority,
        ]);
        let reclaim_within_cohort = self.random.pick(&[
            ReclaimWithinCohort::Never,
            ReclaimWithinCohort::LowerPriority,
            ReclaimWithinCohort::Any,
            ReclaimWithinCohort::Any,
        ]);
        let highest = self.random.percent(50).then(|| self.priority());
        let borrow_within_cohort = self.random.pick(&[
            BorrowWithinCohort::Never,
            BorrowWithinCohort::LowerPriority { highest },
        ]);
        PreemptionPolicy {
            within_team,
            reclaim_within_cohort,
            borrow_within_cohort,
        }
    }

    fn fungibility(&mut self) -> FlavorFungibility {
        if self.random.percent(50) {
            return FlavorFungibility::default();
        }
        let at_a_price = [AtAPrice::MayStopSearch, AtAPrice::TryNextFlavor];
        FlavorFungibility {
            when_can_borrow: self.random.pick(&at_a_price),
            when_can_preempt: self.random.pick(&at_a_price),
            preference: self.random.pick(&[
                FlavorPreference::BorrowingOverPreemption,
                FlavorPreference::PreemptionOverBorrowing,
            ]),
        }
    }

    fn strategies(&mut self) -> Option<Vec<FairStrategy>> {
        let [first, second] = FairStrategy::DEFAULT;
        self.random.pick(&[
            None,
            None,
            None,
            Some(vec![first, second]),
            Some(vec![first]),
            Some(vec![second]),
        ])
    }

    fn priority(&mut self) -> i32 {
        self.random.pick(&[-1, 0, 0, 1, 2])
    }

    fn arrival(&mut self, teams: &[Name]) -> Arrival {
        self.uid += 1;
        let (pods, least) = self.pods();
        let most = if pods > 1 { 2 } else { self.largest };
        let mut asks = [i128::from(self.random.between(1, most)), 0];
        if self.two_resources && self.random.percent(70) {
            asks[1] = i128::from(self.random.between(1, most));
            if self.random.percent(20) {
                asks[0] = 0;
            }
        }
        Arrival {
            // In another order than that of the arrivals.
            uid: (self.uid * 7919) % 10_007,
            team: self.random.pick(teams),
            priority: self.priority(),
            queued_at: self.random.between(0, 9),
            pods,
            least,
            asks,
            may_borrow: self.random.percent(93),
            min_run_time: self.random.pick(&[0, 0, 0, 0, 50, 400]),
            notice: self.random.pick(&[0, 0, 60, 300, 900]),
        }
    }

    /// How many pods, and with how many of them a gang may start.
    fn pods(&mut self) -> (usize, Option<usize>) {
        let pods = self.random.pick(&[1, 1, 1, 2, 3, 5]);
        let least = self.random.index(pods) + 1;
        (pods, self.random.percent(70).then_some(least))
    }

    fn step(&mut self, nodes: &Nodes, teams: &[Name]) -> Step {
        Step {
            event: self.event(nodes, teams),
            decides: self.random.percent(85),
            undo: self.random.percent(6).then(|| self.random.index(1000)),
        }
    }

    fn event(&mut self, nodes: &Nodes, teams: &[Name]) -> Event {
        let all: Vec<Name> = nodes.keys().copied().collect();
        let any = self.random.index(1000);
        match self.random.between(0, 99) {
            0..46 => Event::Arrives(self.arrival(teams)),
            46..49 => Event::IsWithdrawn(any),
            49..51 => Event::Priority(any, self.priority()),
            51..54 => Event::BeginsToEnd(any),
            54..60 => Event::Ends(any),
            60..65 => Event::Notice(any),
            65..67 => Event::Spared(any),
            67..80 => Event::Released {
                gang: any,
                comes_back: self.random.percent(70),
            },
            80..82 => Event::ComesBackEarly(any),
            82..88 => Event::Passes(
                self.random
                    .pick(&[1, 30, 60, 300, 400, 600, 700, 900, 1_500]),
            ),
            88..92 => {
                let name = self.random.pick(&all);
                let pair = self.random.pick(&self.pairs);
                let is_set = self.random.percent(90);
                let limit = self.limit(nodes[&name].policy.is_some());
                Event::Limit(name, pair, is_set.then_some(limit))
            }
            92 => Event::Weight(self.random.pick(&all), self.weight()),
            93..95 => Event::Policy(self.random.pick(teams), self.policy()),
            95 => Event::Fungibility(self.random.pick(teams), self.fungibility()),
            96..98 => {
                let is_cohort = |name: &Name| nodes[name].policy.is_none();
                let cohorts: Vec<Name> = all.iter().copied().filter(is_cohort).collect();
                let joins = self.random.percent(90);
                let parent = joins.then(|| self.random.pick(&cohorts));
                // A Cohort may come to hang in a cycle.
                let those = if self.random.percent(80) { teams } else { &all };
                Event::Moves(self.random.pick(those), parent)
            }
            98 => Event::Stops(self.random.pick(teams), self.random.percent(40)),
            _ => Event::IsStrict(self.random.pick(teams), self.random.percent(50)),
        }
    }
}
