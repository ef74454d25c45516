//! Who searched for victims in vain is asked again after whatever may help it: it may be what somebody else takes.

#![allow(clippy::expect_used, reason = "tests")]

mod common;

use std::collections::BTreeMap;

use common::*;
use muster_engine::{
    Amount, Budget, Cohort, Decisions, Gang, Resource, Running, State, Team, Update,
    model::Quota,
    quota::{FairStrategy, PreemptionPolicy, ReclaimWithinCohort, Sharing, Weight},
};

const RECLAIMS: PreemptionPolicy = PreemptionPolicy {
    reclaim_within_cohort: ReclaimWithinCohort::Any,
    ..PreemptionPolicy::NEVER
};

/// GPUs and cores.
fn both(gpu_count: i64, cores: i64) -> Quota {
    let resources = BTreeMap::from([
        (Resource::Gpus, limit(gpu_count)),
        (
            Resource::Cpu,
            muster_engine::QuotaLimit {
                nominal: Amount(cores * 1000),
                ..limit(0)
            },
        ),
    ]);
    vec![(H100.into(), resources)]
}

/// A gang comes; what is admitted runs from then on.
fn comes(state: &mut State, gang: &Gang, may_be_preempted: bool) -> Decisions {
    submit(state, [gang.clone()]);
    let decisions = state.decide(NOW, &Budget::UNLIMITED);
    for admission in &decisions.admissions {
        assert_eq!(admission.gang, gang.uid, "nobody else is admitted");
        for hold in holds_of(gang, admission) {
            state.apply(Update::Hold(hold));
        }
        state.apply(Update::NotWaiting(gang.uid.clone()));
        state.apply(Update::Running(Running {
            uid: gang.uid.clone(),
            team: gang.team.clone(),
            priority: gang.priority,
            queued_at: gang.queued_at,
            admitted_at: NOW,
            checkpointed_at: None,
            is_made_again: true,
            protected_until: None,
            ending_since: None,
            may_be_preempted,
            is_told_over_quota: false,
        }));
    }
    decisions
}

/// Who gives way to whom.
fn preempted(decisions: &Decisions) -> Vec<(String, Vec<String>)> {
    let preemptions = decisions.preemptions.iter();
    let named = preemptions.map(|preemption| {
        let victims = preemption.victims.iter();
        let victims = victims.map(|victim| victim.gang.to_string());
        (preemption.gang.to_string(), victims.collect())
    });
    named.collect()
}

#[test]
fn a_gang_that_lacks_gpus_has_them_back_once_their_team_borrows_the_cores_that_it_lacks_then() {
    let team_of = |name, quota, preemption| Team {
        quota,
        preemption,
        ..team(name, Some("all"), limit(0))
    };
    let nodes = ["n0", "n1", "n2"].map(|name| node(name, "s/l", 4));
    let mut state = state(
        nodes.into(),
        vec![
            team_of("asks", both(4, 2), RECLAIMS),
            team_of("owns", both(4, 4), PreemptionPolicy::NEVER),
            team_of("borrows", both(0, 2), PreemptionPolicy::NEVER),
        ],
    );
    comes(&mut state, &gang("owned", "owns", 4, 1), true);
    comes(&mut state, &gang("borrowed", "borrows", 2, 2), false);
    // Of the GPUs that it lacks, nobody who can be asked borrows any.
    let waits = comes(&mut state, &gang("waits", "asks", 2, 1), true);
    assert_eq!((waits.admissions.len(), preempted(&waits)), (0, Vec::new()));
    let taken = comes(
        &mut state,
        &with_priority(1, gang("taken", "owns", 1, 0)),
        true,
    );
    assert_eq!(admitted(&taken), ["taken"]);
    assert_eq!(
        preempted(&taken),
        [("waits".to_owned(), vec!["owned".to_owned()])]
    );
}

#[test]
fn a_gang_with_the_smaller_share_preempts_once_the_share_of_others_has_become_the_larger_one() {
    const FINAL: &[FairStrategy] = &[FairStrategy::LessThanOrEqualToFinalShare];
    let heavy = Team {
        preemption: RECLAIMS,
        weight: Weight(3 * Weight::ONE.0),
        ..team("heavy", Some("all"), limit(0))
    };
    let nodes = (0..8).map(|at| node(&format!("n{at}"), "s/l", 1));
    let mut state = state(
        nodes.collect(),
        vec![heavy, team("light", Some("all"), limit(0))],
    );
    state.apply(Update::Cohort(Cohort {
        sharing: Sharing::Fair(FINAL),
        ..cohort("all", None, 4)
    }));
    comes(&mut state, &gang("large", "light", 3, 1), true);
    // Without the large gang the light Team would have no share at all.
    let waits = comes(&mut state, &gang("waits", "heavy", 3, 1), true);
    assert_eq!((waits.admissions.len(), preempted(&waits)), (0, Vec::new()));
    let taken = comes(&mut state, &gang("small", "light", 1, 1), true);
    assert_eq!(admitted(&taken), ["small"]);
    assert_eq!(
        preempted(&taken),
        [("waits".to_owned(), vec!["large".to_owned()])]
    );
}
