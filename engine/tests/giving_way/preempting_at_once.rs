//! What it costs when many Teams preempt at once, or could and need not.

use crate::common::*;
use muster_engine::{
    Budget, Gang, State, Team, Timestamp, Update,
    quota::{BorrowWithinCohort, PreemptionPolicy, ReclaimWithinCohort, WithinTeam},
};

/// Teams in Cohorts of a hundred, each with a gang that runs and one that is more important, within the own quota or with
/// borrowed one. How many looks a decision takes in which all of them preempt.
fn looks(teams: usize, borrow: bool) -> u64 {
    let all = (0..teams).map(|number| Team {
        preemption: PreemptionPolicy {
            within_team: WithinTeam::LowerPriority,
            reclaim_within_cohort: ReclaimWithinCohort::Any,
            borrow_within_cohort: BorrowWithinCohort::LowerPriority { highest: None },
        },
        ..team(
            &format!("t{number}"),
            Some(&format!("c{}", number / 100)),
            limit(i64::from(!borrow)),
        )
    });
    let lenders = (0..teams.div_ceil(100)).filter(|_| borrow);
    let lenders =
        lenders.map(|at| team(&format!("lender{at}"), Some(&format!("c{at}")), limit(100)));
    let nodes = (0..teams).map(|at| node(&format!("n{at}"), "s/l", 1));
    let mut state: State = state(nodes.collect(), all.chain(lenders).collect());
    let named = |name: &str, number: usize| -> Gang {
        gang(&format!("{name}{number}"), &format!("t{number}"), 1, 1)
    };
    for number in 0..teams {
        state.apply(Update::Waiting(named("low", number)));
    }
    let decisions = state.decide(Timestamp(1), &Budget::UNLIMITED);
    assert_eq!(decisions.admissions.len(), teams);
    for admission in &decisions.admissions {
        let number: usize = admission.gang.as_str()[3..].parse().expect("a number");
        let gang = named("low", number);
        for hold in holds_of(&gang, admission) {
            state.apply(Update::Hold(hold));
        }
        state.apply(Update::NotWaiting(gang.uid.clone()));
        state.apply(Update::Running(running_since(Timestamp(1), &gang)));
    }
    for number in 0..teams {
        state.apply(Update::Waiting(with_priority(5, named("high", number))));
    }
    let before = state.visited();
    let decisions = state.decide(Timestamp(2), &Budget::UNLIMITED);
    assert_eq!(decisions.preemptions.len(), teams);
    state.visited() - before
}

#[test]
fn four_times_as_many_teams_that_preempt_at_once_take_four_times_the_looks() {
    for borrow in [false, true] {
        let (few, many) = (looks(250, borrow), looks(1000, borrow));
        assert!(many <= 5 * few, "borrow: {borrow}: {few}, then {many}");
    }
}

/// Teams that borrow, each from a Cohort of its own, and find their gangs places on the same node, as long as there is room.
/// How many classes are judged.
fn judged(teams: usize) -> usize {
    let all = (0..teams).map(|number| Team {
        preemption: PreemptionPolicy {
            reclaim_within_cohort: ReclaimWithinCohort::Any,
            ..PreemptionPolicy::NEVER
        },
        ..team(&format!("t{number}"), Some(&format!("c{number}")), limit(0))
    });
    let lenders =
        (0..teams).map(|at| team(&format!("lender{at}"), Some(&format!("c{at}")), limit(1)));
    let nodes = (0..teams / 50).map(|at| node(&format!("n{at}"), "s/l", 64));
    let mut state: State = state(nodes.collect(), all.chain(lenders).collect());
    for number in 0..teams {
        let gang = gang(&format!("g{number}"), &format!("t{number}"), 1, 1);
        state.apply(Update::Waiting(gang));
    }
    let decisions = state.decide(Timestamp(1), &Budget::UNLIMITED);
    assert_eq!(decisions.admissions.len(), teams);
    decisions.visited.classes
}

#[test]
fn who_has_its_place_still_is_not_judged_again_each_time_that_somebody_else_is_admitted() {
    for teams in [200, 800] {
        // Once to know its turn, once when that comes, and when the node on which it would go is full.
        let most = 2 * teams + teams * teams / 50;
        let judged = judged(teams);
        assert!(judged <= most, "{judged} of {teams} Teams");
    }
}
