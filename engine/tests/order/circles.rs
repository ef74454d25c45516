//! S15: gangs that preempt each other come to rest, though the rules of quota alone would let them go round for ever.

use std::collections::BTreeMap;

use crate::common::*;
use muster_engine::{
    Budget, Cohort, Gang, GangUid, Hold, Node, NodeBlock, QuotaLimit, State, Team, Timestamp,
    Update,
    quota::{BorrowWithinCohort, PreemptionPolicy, ReclaimWithinCohort, Sharing, WithinTeam},
};
use proptest::prelude::*;

/// After so many decisions everybody is at rest.
const DECISIONS: usize = 300;
/// Of these the last ones, in which nobody preempts.
const AT_REST: usize = 100;

/// Gangs that come at once. Who is preempted goes at once and comes back as it was.
struct Play {
    state: State,
    gangs: BTreeMap<GangUid, Gang>,
    holds: BTreeMap<GangUid, Vec<Hold>>,
}

impl Play {
    fn new(gpus: usize, sharing: Sharing<'static>, teams: Vec<Team>) -> Self {
        let nodes = (0..gpus).map(|at| node(&format!("n{at}"), "s/l", 1));
        let mut state = state(nodes.collect(), teams);
        state.apply(Update::Cohort(Cohort {
            sharing,
            ..cohort("all", None, 0)
        }));
        Self {
            state,
            gangs: BTreeMap::new(),
            holds: BTreeMap::new(),
        }
    }

    fn submit(&mut self, gang: Gang) {
        self.gangs.insert(gang.uid.clone(), gang.clone());
        self.state.apply(Update::Waiting(gang));
    }

    /// Decides once; how many gangs were told to go.
    fn decide(&mut self, now: i64) -> usize {
        let decisions = self.state.decide(Timestamp(now), &Budget::UNLIMITED);
        for admission in &decisions.admissions {
            let gang = &self.gangs[&admission.gang];
            let holds = holds_of(gang, admission);
            for hold in &holds {
                self.state.apply(Update::Hold(hold.clone()));
            }
            self.state.apply(Update::NotWaiting(gang.uid.clone()));
            self.state
                .apply(Update::Running(running_since(Timestamp(now), gang)));
            self.holds.insert(gang.uid.clone(), holds);
        }
        let victims = decisions.preemptions.iter().flat_map(|it| &it.victims);
        let victims: Vec<GangUid> = victims.map(|victim| victim.gang.clone()).collect();
        for victim in &victims {
            self.state.apply(Update::NotRunning(victim.clone()));
            for hold in self.holds.remove(victim).unwrap_or_default() {
                self.state.apply(Update::HoldGone(hold.pod));
            }
            let mut gang = self.gangs[victim].clone();
            gang.attempt += 1;
            self.submit(gang);
        }
        victims.len()
    }

    /// How many were told to go in each decision.
    fn all_decisions(&mut self) -> Vec<usize> {
        let times = (0..).take(DECISIONS);
        times.map(|now| self.decide(now)).collect()
    }
}

fn policed(name: &str, nominal: i64, preemption: PreemptionPolicy) -> Team {
    Team {
        preemption,
        ..team(name, Some("all"), limit(nominal))
    }
}

/// Three gangs that would go round for ever, each of which runs or waits.
fn three_gangs() -> Play {
    let policy = PreemptionPolicy {
        reclaim_within_cohort: ReclaimWithinCohort::Any,
        borrow_within_cohort: BorrowWithinCohort::LowerPriority { highest: None },
        ..PreemptionPolicy::NEVER
    };
    let automatic = QuotaLimit {
        automatic: true,
        ..QuotaLimit::default()
    };
    let teams = vec![
        policed("lender", 1, policy),
        policed("other", 2, policy),
        team("rest", None, automatic),
    ];
    let mut play = Play::new(3, Sharing::ByPriority, teams);
    play.submit(gang("1-small", "lender", 1, 1));
    play.submit(at(1, gang("2-large", "lender", 2, 1)));
    assert_eq!(play.decide(0), 0);
    play.submit(with_priority(1, at(2, gang("important", "other", 3, 1))));
    play
}

fn come_to_rest(told: &[usize]) {
    assert!(told.iter().sum::<usize>() >= 3, "{told:?}");
    let mut last = told.iter().rev().take(AT_REST);
    assert!(last.all(|told| *told == 0), "{told:?}");
}

#[test]
fn three_gangs_that_would_go_round_by_priority_come_to_rest() {
    let mut play = three_gangs();
    come_to_rest(&play.all_decisions());
    // Who is within its Team's quota has it.
    assert!(play.holds.contains_key(&GangUid::from("1-small")));
}

#[test]
fn quota_that_follows_nodes_which_come_and_go_sets_nobody_going_round_again() {
    let mut play = three_gangs();
    let blocks = [NodeBlock::Cordoned, NodeBlock::NotReady];
    let times = (0..).zip(blocks.into_iter().cycle()).take(DECISIONS);
    let told = times.map(|(now, block)| {
        play.state.apply(Update::Node(Node {
            block: Some(block),
            ..node("spare", "s/l", 1)
        }));
        let before = play.state.limits_version();
        let told = play.decide(now);
        let follows = play.state.limits_version() > before;
        assert!(
            follows || now == 0,
            "a cordoned node that is new counts for nothing"
        );
        told
    });
    let told: Vec<usize> = told.collect();
    come_to_rest(&told);
}

#[test]
fn two_gangs_that_would_go_round_by_shares_come_to_rest() {
    let policy = PreemptionPolicy {
        within_team: WithinTeam::LowerOrNewerEqualPriority,
        reclaim_within_cohort: ReclaimWithinCohort::Any,
        ..PreemptionPolicy::NEVER
    };
    let teams = ["first", "second"].map(|name| policed(name, 2, policy));
    let pool = policed("pool", 2, PreemptionPolicy::NEVER);
    let mut play = Play::new(6, Sharing::FAIR, teams.into_iter().chain([pool]).collect());
    play.submit(at(2, gang("stays", "first", 2, 1)));
    play.submit(at(3, gang("other", "second", 4, 1)));
    assert_eq!(play.decide(0), 0);
    play.submit(at(1, gang("older", "first", 3, 1)));
    let told = play.all_decisions();
    assert!(
        told.iter().rev().take(AT_REST).all(|told| *told == 0),
        "{told:?}"
    );
}

fn policy() -> impl Strategy<Value = PreemptionPolicy> {
    let within = prop_oneof![
        Just(WithinTeam::Never),
        Just(WithinTeam::LowerPriority),
        Just(WithinTeam::LowerOrNewerEqualPriority)
    ];
    let reclaim = prop_oneof![
        1 => Just(ReclaimWithinCohort::LowerPriority),
        3 => Just(ReclaimWithinCohort::Any)
    ];
    let borrow = prop_oneof![
        Just(BorrowWithinCohort::Never),
        Just(BorrowWithinCohort::LowerPriority { highest: None })
    ];
    (within, reclaim, borrow).prop_map(
        |(within_team, reclaim_within_cohort, borrow_within_cohort)| PreemptionPolicy {
            within_team,
            reclaim_within_cohort,
            borrow_within_cohort,
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(150))]

    #[test]
    fn whoever_comes_and_whatever_the_rules_are_everybody_comes_to_rest(
        is_fair in any::<bool>(),
        teams in prop::collection::vec((0..5_i64, policy()), 2..4),
        gangs in prop::collection::vec((0..4_usize, 0..3_i32, 1..5_usize), 2..9),
    ) {
        let sharing = if is_fair { Sharing::FAIR } else { Sharing::ByPriority };
        let gpus: i64 = teams.iter().map(|(nominal, _)| nominal).sum();
        let count = teams.len();
        let teams = teams.into_iter().enumerate();
        let teams = teams.map(|(at, (nominal, policy))| policed(&format!("t{at}"), nominal, policy));
        let gpus = usize::try_from(gpus).expect("few").max(1);
        let mut play = Play::new(gpus, sharing, teams.collect());
        for (number, (team, priority, pods)) in gangs.into_iter().enumerate() {
            let team = format!("t{}", team % count);
            let number = i64::try_from(number).expect("few");
            play.submit(with_priority(priority, at(number, gang(&format!("g{number}"), &team, pods, 1))));
            // Some come while others run already.
            play.decide(0);
        }
        let told = play.all_decisions();
        prop_assert!(told.iter().rev().take(AT_REST).all(|told| *told == 0), "{:?}", told);
    }
}
