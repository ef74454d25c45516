//! Gangs that nobody may preempt borrow nothing, so that what is lent can always come back.

use crate::common::*;
use muster_engine::{
    Admission, Gang, Node, State, Team, Timestamp, Update, Why,
    quota::{PreemptionPolicy, ReclaimWithinCohort, WithinTeam},
};

/// Two Teams of a Cohort that lend each other what they have, on one node with all of it.
fn lending(devices: usize, nominal: [i64; 2]) -> State {
    lending_on(vec![node("n0", "s/l0", devices)], nominal)
}

/// The same on these nodes.
fn lending_on(nodes: Vec<Node>, nominal: [i64; 2]) -> State {
    let team = |(name, nominal)| Team {
        preemption: PreemptionPolicy {
            within_team: WithinTeam::LowerPriority,
            reclaim_within_cohort: ReclaimWithinCohort::Any,
            ..PreemptionPolicy::NEVER
        },
        ..team(name, Some("all"), limit(nominal))
    };
    let teams = ["a", "b"].into_iter().zip(nominal).map(team);
    state(nodes, teams.collect())
}

/// Commits an admission.
fn runs(state: &mut State, gang: &Gang, admission: &Admission) {
    for hold in holds_of(gang, admission) {
        state.apply(Update::Hold(hold));
    }
    state.apply(Update::NotWaiting(gang.uid.clone()));
    // Whoever may borrow may be preempted.
    if gang.may_borrow {
        state.apply(Update::Running(running_since(Timestamp(0), gang)));
    }
}

/// Submits a gang and decides; whether it runs.
fn run(state: &mut State, gang: &Gang) -> bool {
    submit(state, [gang.clone()]);
    let decisions = decide(state);
    assert!(decisions.preemptions.is_empty(), "{decisions:?}");
    let mut admissions = decisions.admissions.iter();
    let admission = admissions.find(|it| it.gang == gang.uid);
    if let Some(admission) = admission {
        runs(state, gang, admission);
    }
    admission.is_some()
}

fn ends(state: &mut State, gang: &Gang) {
    state.apply(Update::NotRunning(gang.uid.clone()));
    for pod in &gang.pods {
        state.apply(Update::HoldGone(pod.uid.clone()));
    }
}

#[test]
fn it_is_admitted_within_nominal_quota_waits_though_quota_is_idle_and_starts_when_its_team_has_its_own_back()
 {
    let mut state = lending(16, [8, 8]);
    let first = within_nominal(gang("first", "a", 1, 6));
    let second = within_nominal(gang("second", "a", 1, 4));
    assert!(run(&mut state, &first));
    assert!(!run(&mut state, &second));
    let told = why(&state, "second").to_string();
    assert_eq!(
        told,
        "asks for 4 GPUs of h100, 2 can be had now; 8 more could be borrowed, but a gang that nobody may preempt (its \
         PriorityTier says preemption: Never, or it has none) borrows nothing; used by a/first"
    );
    assert!(
        run(&mut state, &gang("borrows", "a", 1, 4)),
        "the same, of another tier"
    );
    ends(&mut state, &first);
    assert_eq!(admitted(&decide(&mut state)), ["second"]);
}

#[test]
fn more_than_the_nominal_quota_is_more_than_it_may_ever_have() {
    let mut state = lending(16, [8, 8]);
    assert!(!run(&mut state, &within_nominal(gang("large", "a", 3, 4))));
    let told = why(&state, "large");
    assert!(
        matches!(&told, Why::ExceedsMaxQuota { most, may_borrow: false, .. } if *most == gpus(8)),
        "{told:?}"
    );
    assert!(told.to_string().contains("use another tier"), "{told}");
}

#[test]
fn it_has_back_what_others_borrow_and_preempts_nobody_to_borrow() {
    let mut state = lending(16, [8, 8]);
    let borrower = gang("borrower", "b", 1, 12);
    assert!(run(&mut state, &borrower));
    submit(&mut state, [within_nominal(gang("own", "a", 1, 8))]);
    let preemptions = decide(&mut state).preemptions;
    assert_eq!(preemptions.len(), 1);
    assert_eq!(preemptions[0].victims[0].gang, borrower.uid);

    let mut state = lending(16, [8, 8]);
    let own = gang("own", "a", 1, 6);
    assert!(run(&mut state, &own));
    assert!(run(&mut state, &gang("borrower", "b", 1, 10)));
    let urgent = with_priority(9, within_nominal(gang("urgent", "a", 1, 4)));
    submit(&mut state, [urgent]);
    let preemptions = decide(&mut state).preemptions;
    // Within its quota it would be without its own Team's gang alone.
    let victims = preemptions.iter().flat_map(|it| &it.victims);
    let victims: Vec<&str> = victims.map(|it| it.gang.as_str()).collect();
    assert!(victims.contains(&"own"), "{victims:?}");
}

#[test]
fn of_gangs_that_ask_for_the_same_those_that_may_borrow_are_not_refused_with_those_that_may_not() {
    let mut state = lending(16, [4, 12]);
    assert!(run(&mut state, &gang("runs", "a", 1, 4)));
    submit(
        &mut state,
        [
            within_nominal(gang("first", "a", 1, 4)),
            at(1, gang("second", "a", 1, 4)),
        ],
    );
    assert_eq!(admitted(&decide(&mut state)), ["second"]);
}

/// A gang of its Team that borrows meanwhile would have it preempt, or wait, for ever.
#[test]
fn what_others_give_way_for_it_has_though_gangs_of_its_team_borrow_by_then() {
    let nodes = ["n0", "n1", "n2"]
        .map(|name| node(name, "s/l0", 8))
        .to_vec();
    let mut state = lending_on(nodes, [8, 16]);
    let own = gang("own", "a", 1, 8);
    assert!(run(&mut state, &own));
    let urgent = with_priority(9, within_nominal(gang("urgent", "a", 1, 4)));
    submit(&mut state, [urgent.clone()]);
    assert_eq!(decide(&mut state).preemptions.len(), 1);
    let borrows = run(&mut state, &gang("borrows", "a", 1, 8));
    assert!(
        borrows,
        "on a node that is kept for nobody: {}",
        why(&state, "borrows")
    );
    ends(&mut state, &own);
    let decisions = decide(&mut state);
    assert!(decisions.preemptions.is_empty(), "{decisions:?}");
    assert_eq!(admitted(&decisions), ["urgent"]);
    runs(&mut state, &urgent, &decisions.admissions[0]);
    assert!(
        !run(&mut state, &within_nominal(gang("late", "a", 1, 2))),
        "for it nothing was kept"
    );
}

/// By the same right each time. It is no circle: the other one gets a rank done by it, and has as many attempts as ranks at most.
#[test]
fn a_gang_that_borrows_gives_way_to_every_attempt_of_one_that_does_its_work_rank_by_rank() {
    const RANKS: usize = 6;
    let mut state = lending(6, [1, 5]);
    let mut high = with_priority(9, within_nominal(gang("high", "a", RANKS, 1)));
    high.min_count = Some(1);
    let mut low = gang("low", "a", 1, 4);
    assert!(run(&mut state, &high));
    let mut gave_way = 0;
    for done in 1..=RANKS {
        assert!(run(&mut state, &low), "{}", why(&state, "low"));
        // The one rank that it started with has ended.
        state.apply(Update::HoldGone(high.pods.remove(0).uid));
        if done == RANKS {
            break;
        }
        high.attempt += 1;
        submit(&mut state, [high.clone()]);
        let decisions = decide(&mut state);
        assert!(decisions.admissions.is_empty(), "{decisions:?}");
        let victims = decisions.preemptions.iter().flat_map(|it| &it.victims);
        let victims: Vec<&str> = victims.map(|it| it.gang.as_str()).collect();
        assert_eq!(victims, ["low"], "{done} ranks are done");
        gave_way += 1;
        ends(&mut state, &low);
        low.attempt += 1;
        let decisions = decide(&mut state);
        assert!(decisions.preemptions.is_empty(), "{decisions:?}");
        assert_eq!(admitted(&decisions), ["high"]);
        let [admission] = decisions.admissions.as_slice() else {
            panic!("one admission, not {:?}", decisions.admissions);
        };
        assert_eq!(admission.pods.len(), 1, "its Team has no more");
        runs(&mut state, &high, admission);
    }
    assert_eq!(gave_way, RANKS - 1);
    let decisions = decide(&mut state);
    assert!(
        decisions.preemptions.is_empty() && decisions.admissions.is_empty(),
        "{decisions:?}"
    );
}
