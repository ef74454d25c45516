//! Where shares are fair, and where they are not, whoever waits is asked again as soon as anything has changed for it: asking everybody
//! anew finds nobody else who can be admitted, or for whom others would give way.

use std::collections::{BTreeMap, BTreeSet};

use crate::{
    common::*,
    slices::{decide_in_slices, leaves_some},
};
use muster_engine::{
    Amount, Budget, Cohort, Decisions, Flavor, Gang, GangUid, Hold, Node, NodeBlock, NodeFilterId,
    QuotaLimit, Resource, Running, State, Team, Timestamp, Update,
    model::Quota,
    quota::{FairStrategy, PreemptionPolicy, ReclaimWithinCohort, Sharing, Weight, WithinTeam},
};
use proptest::prelude::*;

/// So many calls in a row that decide nothing, and nobody is left to be asked.
const CALLS_AT_REST: usize = 12;
const TEAMS: usize = 5;

/// A Team below one of three Cohorts.
#[derive(Clone, Debug)]
struct Limits {
    cohort: usize,
    nominal: i64,
    borrowing: Option<i64>,
    lending: Option<i64>,
    weight: u64,
    within_team: WithinTeam,
    reclaim: ReclaimWithinCohort,
}

/// One thing that happens.
#[derive(Clone, Debug)]
enum Event {
    /// A gang of a Team: priority, pods, GPUs of each.
    Comes(usize, i32, usize, u32),
    /// One that runs ends.
    Ends(prop::sample::Index),
    /// All that were told to go are gone, and wait again.
    VictimsGo,
    /// So much time passes.
    Passes(i64),
    /// A node is cordoned, or is not any more.
    Cordons(prop::sample::Index),
}

fn limits() -> impl Strategy<Value = Limits> {
    let within = prop_oneof![
        3 => Just(WithinTeam::Never),
        1 => Just(WithinTeam::LowerPriority),
        1 => Just(WithinTeam::LowerOrNewerEqualPriority)
    ];
    let reclaim = prop_oneof![
        4 => Just(ReclaimWithinCohort::Any),
        1 => Just(ReclaimWithinCohort::LowerPriority),
        1 => Just(ReclaimWithinCohort::Never)
    ];
    let bound = || prop_oneof![2 => Just(None), 1 => (0..4_i64).prop_map(Some)];
    let weight = prop_oneof![
        4 => Just(Weight::ONE.0),
        1 => Just(2 * Weight::ONE.0),
        1 => Just(Weight::ONE.0 / 2),
        1 => Just(0)
    ];
    (
        0..3_usize,
        0..5_i64,
        bound(),
        bound(),
        weight,
        within,
        reclaim,
    )
        .prop_map(
            |(cohort, nominal, borrowing, lending, weight, within_team, reclaim)| Limits {
                cohort,
                nominal,
                borrowing,
                lending,
                weight,
                within_team,
                reclaim,
            },
        )
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        6 => (0..TEAMS, 0..2_i32, 1..4_usize, 1..3_u32)
            .prop_map(|(team, priority, pods, gpus)| Event::Comes(team, priority, pods, gpus)),
        4 => any::<prop::sample::Index>().prop_map(Event::Ends),
        3 => Just(Event::VictimsGo),
        1 => (1..40_i64).prop_map(Event::Passes),
    ]
}

fn event_with_nodes() -> impl Strategy<Value = Event> {
    prop_oneof![
        6 => event(),
        1 => any::<prop::sample::Index>().prop_map(Event::Cordons),
    ]
}

/// GPUs, and cores if they are limited, too.
fn quota(gpu_limit: QuotaLimit, with_cores: bool) -> Quota {
    let mut quota = gpu_quota(gpu_limit);
    if with_cores {
        let cores = |amount: Amount| Amount(amount.0 * 3 / 4);
        let limit = QuotaLimit {
            nominal: cores(gpu_limit.nominal),
            borrowing_limit: gpu_limit.borrowing_limit.map(cores),
            lending_limit: gpu_limit.lending_limit.map(cores),
            automatic: false,
        };
        quota[0].1.insert(Resource::Cpu, limit);
    }
    quota
}

struct World {
    state: State,
    nodes: Vec<Node>,
    now: i64,
    protected_seconds: i64,
    gangs: BTreeMap<GangUid, Gang>,
    holds: BTreeMap<GangUid, Vec<Hold>>,
    going: BTreeSet<GangUid>,
    admissions: usize,
    preemptions: usize,
}

impl World {
    fn new(
        teams: &[Limits],
        sharing: Sharing<'static>,
        (with_cores, is_tight, protected_seconds): (bool, bool, i64),
    ) -> Self {
        let all: i64 = teams.iter().map(|team| team.nominal).sum::<i64>() + 3;
        let nodes: Vec<Node> = if is_tight {
            (0..all)
                .map(|at| node(&format!("n{at}"), "s/l", 1))
                .collect()
        } else {
            vec![node("n", "s/l", 64)]
        };
        let names = ["all", "left", "right"];
        let teams = teams.iter().enumerate().map(|(at, limits)| {
            let limit = QuotaLimit {
                nominal: gpus(limits.nominal),
                borrowing_limit: limits.borrowing.map(gpus),
                lending_limit: limits.lending.map(gpus),
                automatic: false,
            };
            Team {
                quota: quota(limit, with_cores),
                weight: Weight(limits.weight),
                preemption: PreemptionPolicy {
                    within_team: limits.within_team,
                    reclaim_within_cohort: limits.reclaim,
                    ..PreemptionPolicy::NEVER
                },
                ..team(&format!("t{at}"), Some(names[limits.cohort]), limit)
            }
        });
        let mut state = state(nodes.clone(), teams.collect());
        for (name, parent, nominal) in [
            ("all", None, 1),
            ("left", Some("all"), 2),
            ("right", Some("all"), 0),
        ] {
            state.apply(Update::Cohort(Cohort {
                quota: quota(limit(nominal), with_cores),
                sharing,
                ..cohort(name, parent, nominal)
            }));
        }
        Self {
            state,
            nodes,
            now: 0,
            protected_seconds,
            gangs: BTreeMap::new(),
            holds: BTreeMap::new(),
            going: BTreeSet::new(),
            admissions: 0,
            preemptions: 0,
        }
    }

    fn happens(&mut self, event: &Event) {
        match event {
            Event::Comes(team, priority, pods, gpus) => {
                let number = self.gangs.len();
                let gang = gang(&format!("g{number:03}"), &format!("t{team}"), *pods, *gpus);
                let gang = at(i64::try_from(number).expect("few"), gang);
                let gang = with_priority(*priority, gang);
                self.gangs.insert(gang.uid.clone(), gang.clone());
                self.state.apply(Update::Waiting(gang));
            }
            Event::Ends(index) => {
                let running: Vec<GangUid> = self.holds.keys().cloned().collect();
                if !running.is_empty() {
                    let gang = index.get(&running);
                    self.going.remove(gang);
                    self.release(gang);
                }
            }
            Event::VictimsGo => {
                for gang in std::mem::take(&mut self.going) {
                    self.release(&gang);
                    let mut again = self.gangs[&gang].clone();
                    again.attempt += 1;
                    self.state.apply(Update::Waiting(again));
                }
            }
            Event::Passes(seconds) => self.now += seconds,
            Event::Cordons(index) => {
                let at = index.index(self.nodes.len());
                let node = &mut self.nodes[at];
                node.block = match node.block {
                    None => Some(NodeBlock::Cordoned),
                    Some(_) => None,
                };
                self.state.apply(Update::Node(node.clone()));
            }
        }
    }

    fn release(&mut self, gang: &GangUid) {
        self.state.apply(Update::NotRunning(gang.clone()));
        for hold in self.holds.remove(gang).unwrap_or_default() {
            self.state.apply(Update::HoldGone(hold.pod));
        }
    }

    fn tell(&mut self, gang: &GangUid, admitted_at: i64, ending_since: Option<Timestamp>) {
        let protected = self.protected_seconds;
        let of = &self.gangs[gang];
        self.state.apply(Update::Running(Running {
            protected_until: (protected > 0).then_some(Timestamp(admitted_at + protected)),
            ending_since,
            ..running_since(Timestamp(admitted_at), of)
        }));
    }

    /// Decides until nothing comes of it any more.
    fn come_to_rest(&mut self) {
        let mut in_vain = 0;
        while in_vain < CALLS_AT_REST {
            let Decisions {
                admissions,
                preemptions,
                ..
            } = self.state.decide(Timestamp(self.now), &Budget::UNLIMITED);
            in_vain += 1;
            self.admissions += admissions.len();
            self.preemptions += preemptions.len();
            for admission in &admissions {
                in_vain = 0;
                let holds = holds_of(&self.gangs[&admission.gang], admission);
                for hold in &holds {
                    self.state.apply(Update::Hold(hold.clone()));
                }
                self.state.apply(Update::NotWaiting(admission.gang.clone()));
                self.tell(&admission.gang, self.now, None);
                self.holds.insert(admission.gang.clone(), holds);
            }
            for victim in preemptions.iter().flat_map(|it| &it.victims) {
                in_vain = 0;
                if self.going.insert(victim.gang.clone()) {
                    self.tell(&victim.gang, self.now, Some(Timestamp(self.now)));
                }
            }
        }
    }

    /// Who would be admitted, and for whom others would go, with so many gangs in one commit; `None` if some are left to a later call.
    fn turns(&self, gangs: usize) -> Option<(Vec<String>, Vec<String>)> {
        let now = Timestamp(self.now);
        let slices = decide_in_slices(&mut self.state.clone(), now, gangs);
        if slices.iter().any(|slice| leaves_some(slice, now)) {
            return None;
        }
        let starting = slices.iter().flat_map(admitted).collect();
        let preempting = slices.iter().flat_map(|slice| &slice.preemptions);
        let preempting = preempting.map(|it| it.gang.to_string()).collect();
        Some((starting, preempting))
    }

    /// What would come of asking everybody anew.
    fn of_asking_everybody(&self) -> (Vec<String>, Vec<String>) {
        let mut state = self.state.clone();
        // Nobody asks for nodes that this is about: it only has everybody judged again.
        state.apply(Update::Flavor(Flavor {
            excluded: BTreeSet::from([NodeFilterId(99)]),
            ..flavor(H100, Some(FABRIC))
        }));
        let decisions = state.decide(Timestamp(self.now), &Budget::UNLIMITED);
        let preempting = decisions.preemptions.iter().map(|it| it.gang.to_string());
        (admitted(&decisions), preempting.collect())
    }
}

const STRATEGIES: [&[FairStrategy]; 3] = [
    &FairStrategy::DEFAULT,
    &[FairStrategy::LessThanOrEqualToFinalShare],
    &[FairStrategy::LessThanInitialShare],
];

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn asking_everybody_anew_finds_nobody_who_was_not_asked_when_things_changed(
        teams in prop::collection::vec(limits(), TEAMS..=TEAMS),
        strategies in 0..STRATEGIES.len(),
        with_cores in any::<bool>(),
        is_tight in prop::bool::weighted(0.3),
        protected_seconds in prop_oneof![2 => Just(0), 1 => Just(30_i64)],
        events in prop::collection::vec(event(), 1..60),
    ) {
        let settings = (with_cores, is_tight, protected_seconds);
        let mut world = World::new(&teams, Sharing::Fair(STRATEGIES[strategies]), settings);
        for (number, event) in events.iter().enumerate() {
            world.happens(event);
            world.come_to_rest();
            let found = world.of_asking_everybody();
            prop_assert_eq!(found, (vec![], vec![]), "after event {}", number);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// Where places lack as often as quota does, and quota is had by priority as often as by shares.
    #[test]
    fn so_it_is_as_nodes_are_cordoned_whatever_decides_whose_turn_it_is(
        teams in prop::collection::vec(limits(), TEAMS..=TEAMS),
        strategies in prop::option::of(0..STRATEGIES.len()),
        with_cores in any::<bool>(),
        is_tight in prop::bool::weighted(0.7),
        bursts in prop::collection::vec(prop::collection::vec(event_with_nodes(), 1..8), 1..15),
    ) {
        let sharing = strategies.map_or(Sharing::ByPriority, |at| Sharing::Fair(STRATEGIES[at]));
        let mut world = World::new(&teams, sharing, (with_cores, is_tight, 0));
        for (number, burst) in bursts.iter().enumerate() {
            for event in burst {
                world.happens(event);
            }
            // With room for one gang in each commit, everybody is judged anew after each turn.
            let (at_once, in_slices) = (world.turns(usize::MAX), world.turns(1));
            if at_once.is_some() && in_slices.is_some() {
                prop_assert_eq!(at_once, in_slices, "burst {}", number);
            }
            world.come_to_rest();
            let found = world.of_asking_everybody();
            prop_assert_eq!(found, (vec![], vec![]), "after burst {}", number);
        }
    }
}
