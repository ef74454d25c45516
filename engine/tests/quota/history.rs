//! Random trees and what happens to them. A history is drawn whole, before it is played: any part of it can be played, too.

use std::collections::BTreeMap;

use muster_engine::quota::{
    BorrowWithinCohort, FairStrategy, PreemptionPolicy, ReclaimWithinCohort, Weight, WithinTeam,
};

use crate::{
    model::{Limit, Name, Node, Nodes, Pair},
    random::Random,
};

/// Events of a history.
pub(crate) const EVENTS: usize = 50;
/// Cohorts above a Team, at most.
const DEPTH: usize = 4;

#[derive(Clone, Debug)]
pub(crate) struct History {
    pub(crate) nodes: Nodes,
    /// `None`: by priority.
    pub(crate) strategies: Option<Vec<FairStrategy>>,
    pub(crate) pairs: Vec<Pair>,
    pub(crate) events: Vec<Event>,
}

/// A gang of a Team, and what it asks for.
#[derive(Clone, Debug)]
pub(crate) struct Arrival {
    pub(crate) uid: u32,
    pub(crate) team: Name,
    pub(crate) priority: i32,
    pub(crate) queued_at: i64,
    pub(crate) charges: Vec<(Pair, i128)>,
}

/// When there is a place for a gang.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Place {
    Always,
    /// Once so many of the gangs are gone whose UID leaves this remainder when divided by three.
    Without {
        gangs: usize,
        remainder: u32,
    },
}

#[derive(Clone, Debug)]
pub(crate) enum Event {
    /// It is admitted if it fits.
    Arrives(Arrival),
    /// It runs already, whether it fits or not.
    IsFound(Arrival),
    /// The running gang at this position, counted round.
    Ends(usize),
    BeginsToEnd(usize),
    Limit(Name, Pair, Option<Limit>),
    Weight(Name, u64),
    Policy(Name, PreemptionPolicy),
    Moves(Name, Option<Name>),
    /// A gang asks others to give way; where none do, the other Teams ask the same, one after the other.
    Preempts {
        arrival: Arrival,
        /// It asks for so many halves of what the running gang at this position, counted round, holds, and is more important.
        against: Option<(usize, u8)>,
        /// It asks for what is available and so much more.
        beyond_available: bool,
        /// All that it asks for is contested, not only what it lacks.
        all_contested: bool,
        place: Place,
    },
}

/// One unit of each resource.
fn unit(resource: u8) -> i128 {
    [1000, 1, 1000, 1 << 30, 1 << 33][usize::from(resource)]
}

struct Draw {
    random: Random,
    pairs: Vec<Pair>,
    uid: u32,
}

impl History {
    pub(crate) fn draw(seed: u64) -> Self {
        let mut draw = Draw {
            random: Random::new(seed),
            pairs: Vec::new(),
            uid: 0,
        };
        draw.pairs = draw.pairs();
        let nodes = draw.nodes();
        Self {
            strategies: draw.strategies(),
            events: (0..EVENTS).map(|_| draw.event(&nodes)).collect(),
            pairs: draw.pairs,
            nodes,
        }
    }
}

impl Draw {
    fn pairs(&mut self) -> Vec<Pair> {
        let mut resources = [0, 1, 2, 3, 4];
        self.random.shuffle(&mut resources);
        let kinds = self.random.pick(&[1, 1, 1, 2, 2, 3]);
        let flavors = self.random.pick(&[1, 1, 1, 1, 2, 2, 3]);
        let mut pairs = Vec::new();
        for flavor in 0..flavors {
            for resource in &resources[..kinds] {
                if flavor == 0 || self.random.percent(70) {
                    let resource = *resource;
                    pairs.push(Pair { flavor, resource });
                }
            }
        }
        pairs
    }

    fn nodes(&mut self) -> Nodes {
        let cohorts = self.random.pick(&[0, 1, 1, 2, 2, 3, 4, 6]);
        let teams = self.random.pick(&[1, 2, 3, 4, 4, 5, 6, 8]);
        let mut names: Vec<Name> = (0..cohorts + teams).collect();
        self.random.shuffle(&mut names);
        let (cohorts, teams) = names.split_at(usize::from(cohorts));
        let mut nodes = Nodes::new();
        let mut depths: BTreeMap<Name, usize> = BTreeMap::new();
        for name in cohorts {
            let mut above: Vec<Name> = depths.keys().copied().collect();
            above.retain(|cohort| depths[cohort] < DEPTH);
            let joins = !above.is_empty() && self.random.percent(85);
            let parent = joins.then(|| self.random.pick(&above));
            depths.insert(*name, parent.map_or(1, |parent| depths[&parent] + 1));
            let node = self.node(parent, None);
            nodes.insert(*name, node);
        }
        for name in teams {
            let joins = !cohorts.is_empty() && self.random.percent(92);
            let parent = joins.then(|| self.random.pick(cohorts));
            let policy = Some(self.policy());
            let node = self.node(parent, policy);
            nodes.insert(*name, node);
        }
        nodes
    }

    fn node(&mut self, parent: Option<Name>, policy: Option<PreemptionPolicy>) -> Node {
        let mut limits = BTreeMap::new();
        let has_limits = if policy.is_some() { 95 } else { 45 };
        if self.random.percent(has_limits) {
            for pair in self.pairs.clone() {
                if self.random.percent(85) {
                    limits.insert(pair, self.limit(pair, policy.is_some()));
                }
            }
        }
        let is_plain = policy.is_none() && limits.is_empty() && parent.is_none();
        Node {
            parent,
            limits,
            weight: if is_plain {
                Weight::ONE.0
            } else {
                self.weight()
            },
            policy,
        }
    }

    fn limit(&mut self, pair: Pair, is_team: bool) -> Limit {
        let unit = unit(pair.resource);
        let most = if is_team {
            self.random.pick(&[1, 3, 5])
        } else {
            4
        };
        let nominal = self.random.between(0, most);
        let mut some = |percent, most| {
            let is_set = self.random.percent(percent);
            is_set.then(|| i128::from(self.random.between(0, most)) * unit)
        };
        Limit {
            nominal: i128::from(nominal) * unit,
            borrowing: some(25, 6),
            lending: some(30, nominal + 2),
        }
    }

    fn weight(&mut self) -> u64 {
        let one = Weight::ONE.0;
        let others = [0, 0, 2, one / 3, one / 2, 2 * one, 3 * one];
        if self.random.percent(55) {
            one
        } else {
            self.random.pick(&others)
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
            ReclaimWithinCohort::LowerPriority,
            ReclaimWithinCohort::Any,
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
        let pairs = self.random.pick(&[1, 1, 1, 1, 2, 3]);
        let most = self.random.pick(&[2, 4, 7]);
        let charges = (0..pairs).map(|_| {
            let pair = self.random.pick(&self.pairs);
            let halves = self.random.between(1, most);
            (pair, (i128::from(halves) * unit(pair.resource) + 1) / 2)
        });
        let charges = charges.collect();
        self.uid += 1;
        // In another order than that of the arrivals.
        let uid = (self.uid * 7919) % 10_007;
        Arrival {
            uid,
            team: self.random.pick(teams),
            priority: self.priority(),
            queued_at: self.random.between(0, 9),
            charges,
        }
    }

    fn event(&mut self, nodes: &Nodes) -> Event {
        let is_team = |name: &&Name| nodes[*name].policy.is_some();
        let teams: Vec<Name> = nodes.keys().filter(is_team).copied().collect();
        let all: Vec<Name> = nodes.keys().copied().collect();
        match self.random.between(0, 99) {
            0..38 => self.preemption(&teams),
            38..78 => Event::Arrives(self.arrival(&teams)),
            78..82 => Event::IsFound(self.arrival(&teams)),
            82..89 => Event::Ends(self.random.index(1000)),
            89..91 => Event::BeginsToEnd(self.random.index(1000)),
            91..94 => {
                let name = self.random.pick(&all);
                let pair = self.random.pick(&self.pairs);
                let is_set = self.random.percent(90);
                let limit = self.limit(pair, nodes[&name].policy.is_some());
                Event::Limit(name, pair, is_set.then_some(limit))
            }
            94..96 => Event::Weight(self.random.pick(&all), self.weight()),
            96..98 => Event::Policy(self.random.pick(&teams), self.policy()),
            98 => self.move_of(nodes, &teams),
            // A Cohort may come to hang in a cycle.
            _ => self.move_of(nodes, &all),
        }
    }

    fn move_of(&mut self, nodes: &Nodes, those: &[Name]) -> Event {
        let is_cohort = |name: &&Name| nodes[*name].policy.is_none();
        let cohorts: Vec<Name> = nodes.keys().filter(is_cohort).copied().collect();
        let joins = !cohorts.is_empty() && self.random.percent(85);
        let parent = joins.then(|| self.random.pick(&cohorts));
        Event::Moves(self.random.pick(those), parent)
    }

    fn preemption(&mut self, teams: &[Name]) -> Event {
        let gangs = self.random.pick(&[1, 1, 2, 3]);
        let place = Place::Without {
            gangs,
            remainder: self.random.pick(&[0, 1, 2]),
        };
        let mut arrival = self.arrival(teams);
        // Those that ask are mostly of some priority.
        arrival.priority += self.random.pick(&[0, 1, 2]);
        Event::Preempts {
            arrival,
            against: self
                .random
                .percent(80)
                .then(|| (self.random.index(1000), self.random.pick(&[1, 2, 3, 5]))),
            beyond_available: self.random.percent(65),
            all_contested: self.random.percent(15),
            place: if self.random.percent(12) {
                place
            } else {
                Place::Always
            },
        }
    }
}
