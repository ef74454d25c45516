//! Where shares are fair, and gangs of the own Team may go first: what they leave is a smaller share.

use crate::common::*;
use muster_engine::{
    Cohort, Gang, State, Team, Update,
    quota::{PreemptionPolicy, PreemptionReason, ReclaimWithinCohort, Sharing, WithinTeam},
};

/// Two Teams that own nothing share so many GPUs.
const POOL: i64 = 10;

fn shared() -> State {
    let teams = ["asks", "gives"].map(|name| Team {
        preemption: PreemptionPolicy {
            within_team: WithinTeam::LowerPriority,
            reclaim_within_cohort: ReclaimWithinCohort::Any,
            ..PreemptionPolicy::NEVER
        },
        ..team(name, Some("all"), limit(0))
    });
    let nodes = (0..POOL).map(|at| node(&format!("n{at}"), "s/l", 1));
    let mut state = state(nodes.collect(), teams.into());
    state.apply(Update::Cohort(Cohort {
        sharing: Sharing::FAIR,
        ..cohort("all", None, POOL)
    }));
    state
}

/// Starts them all.
fn run(state: &mut State, gangs: &[Gang]) {
    submit(state, gangs.iter().cloned());
    let decisions = decide(state);
    assert_eq!(decisions.admissions.len(), gangs.len());
    for admission in &decisions.admissions {
        let gang = gangs.iter().find(|gang| gang.uid == admission.gang);
        let gang = gang.expect("it was submitted");
        for hold in holds_of(gang, admission) {
            state.apply(Update::Hold(hold));
        }
        state.apply(Update::NotWaiting(gang.uid.clone()));
        state.apply(Update::Running(running_since(NOW, gang)));
    }
}

/// With five more, a Team that has four has the larger share than one that has six.
fn victims_beside(own: Gang) -> Vec<PreemptionReason> {
    let mut state = shared();
    let others = (0..6).map(|at| gang(&format!("other-{at}"), "gives", 1, 1));
    let running: Vec<Gang> = others.chain([own]).collect();
    run(&mut state, &running);
    let asking = with_priority(1, gang("asking", "asks", 5, 1));
    submit(&mut state, [asking]);
    let preemptions = decide(&mut state).preemptions.into_iter();
    let victims = preemptions.flat_map(|preemption| preemption.victims);
    victims.map(|victim| victim.reason).collect()
}

#[test]
fn once_gangs_of_its_own_team_go_a_team_has_the_smaller_share_and_others_give_way_too() {
    let lower = gang("own", "asks", 4, 1);
    assert_eq!(
        victims_beside(lower.clone()),
        [PreemptionReason::InTeam, PreemptionReason::FairShare]
    );
    let equal = with_priority(1, lower);
    assert_eq!(victims_beside(equal), [], "nobody of its Team may go");
}
