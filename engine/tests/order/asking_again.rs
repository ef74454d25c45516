//! Who searched for victims in vain is asked again after whatever may help it: it may be what somebody else takes. And whose
//! victims are not enough any more, as others take their turns, leaves its turn to the gang behind it.

use std::collections::BTreeMap;

use crate::common::*;
use muster_engine::{
    Amount, Budget, Cohort, Decisions, Gang, Resource, Running, State, Team, Timestamp, Update,
    model::Quota,
    quota::{
        BorrowWithinCohort, FairStrategy, PreemptionPolicy, ReclaimWithinCohort, Sharing, Weight,
        WithinTeam,
    },
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

/// A gang runs.
fn running(gang: &Gang, may_be_preempted: bool) -> Update {
    Update::Running(Running {
        may_be_preempted,
        ..running_since(NOW, gang)
    })
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
        state.apply(running(gang, may_be_preempted));
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

#[test]
fn a_gang_preempts_within_what_its_team_keeps_for_itself_however_much_the_cohort_is_overdrawn() {
    let keeps = Team {
        preemption: PreemptionPolicy {
            within_team: WithinTeam::LowerPriority,
            ..PreemptionPolicy::NEVER
        },
        ..team(
            "keeps",
            Some("all"),
            muster_engine::QuotaLimit {
                lending_limit: Some(Amount(0)),
                ..limit(1)
            },
        )
    };
    let nodes = (0..5).map(|at| node(&format!("n{at}"), "s/l", 1));
    let overdraws = team("overdraws", Some("all"), limit(3));
    let mut state = state(nodes.collect(), vec![keeps, overdraws]);
    comes(&mut state, &gang("large", "overdraws", 3, 1), false);
    state.apply(Update::Team(team("overdraws", Some("all"), limit(0))));
    let own = gang("own", "keeps", 1, 1);
    comes(&mut state, &own, false);
    let waits = comes(
        &mut state,
        &with_priority(1, gang("waits", "keeps", 1, 1)),
        true,
    );
    assert_eq!((waits.admissions.len(), preempted(&waits)), (0, Vec::new()));
    state.apply(running(&own, true));
    let told = state.decide(NOW, &Budget::UNLIMITED);
    assert_eq!(
        preempted(&told),
        [("waits".to_owned(), vec!["own".to_owned()])]
    );
}

/// `owner` may have back what `borrows` borrows; a gang of `fills` holds five of the nine GPUs, and goes for nobody.
fn others_fill_what_an_owner_leaves() -> State {
    let owner = Team {
        preemption: RECLAIMS,
        ..team("owner", Some("all"), limit(4))
    };
    let nodes = (0..9).map(|at| node(&format!("n{at}"), "s/l", 1));
    let mut state = state(
        nodes.collect(),
        vec![
            owner,
            team("borrows", Some("all"), limit(2)),
            team("fills", Some("all"), limit(3)),
        ],
    );
    comes(&mut state, &gang("filling", "fills", 5, 1), false);
    state
}

#[test]
fn a_gang_reclaims_once_others_borrow_so_much_that_they_borrow_still_after_the_first_victim() {
    let mut state = others_fill_what_an_owner_leaves();
    let one = with_priority(-1, gang("one", "borrows", 1, 1));
    comes(&mut state, &one, true);
    comes(&mut state, &gang("two", "borrows", 2, 1), true);
    // One GPU is free. Without the first gang the others borrow nothing.
    let waits = comes(&mut state, &gang("waits", "owner", 3, 1), true);
    assert_eq!((waits.admissions.len(), preempted(&waits)), (0, Vec::new()));
    let taken = comes(
        &mut state,
        &with_priority(1, gang("taken", "borrows", 1, 1)),
        false,
    );
    assert_eq!(admitted(&taken), ["taken"]);
    let victims = vec!["one".to_owned(), "two".to_owned()];
    assert_eq!(preempted(&taken), [("waits".to_owned(), victims)]);
}

/// Two Teams share so many GPUs by their shares. Only the first may have others give way.
fn sharing(pool: i64, weight: u64, strategies: &'static [FairStrategy]) -> State {
    let asks = Team {
        preemption: RECLAIMS,
        weight: Weight(weight * Weight::ONE.0),
        ..team("asks", Some("all"), limit(0))
    };
    let nodes = (0..pool).map(|at| node(&format!("n{at:02}"), "s/l", 1));
    let teams = vec![asks, team("gives", Some("all"), limit(0))];
    let mut state = state(nodes.collect(), teams);
    state.apply(Update::Cohort(Cohort {
        sharing: Sharing::Fair(strategies),
        ..cohort("all", None, pool)
    }));
    state
}

#[test]
fn a_gang_asks_others_once_its_own_team_uses_so_little_that_their_share_is_as_large() {
    let mut state = sharing(10, 1, &FairStrategy::DEFAULT);
    comes(&mut state, &gang("stays", "asks", 1, 1), false);
    let ends = gang("ends", "asks", 3, 1);
    comes(&mut state, &ends, false);
    for at in 0..6 {
        comes(
            &mut state,
            &gang(&format!("other-{at}"), "gives", 1, 1),
            true,
        );
    }
    let waits = comes(&mut state, &gang("waits", "asks", 4, 1), true);
    assert_eq!((waits.admissions.len(), preempted(&waits)), (0, Vec::new()));
    // What comes free is one GPU less than it asks for.
    state.apply(Update::NotRunning(ends.uid.clone()));
    for pod in &ends.pods {
        state.apply(Update::HoldGone(pod.uid.clone()));
    }
    let victims = preempted(&state.decide(NOW, &Budget::UNLIMITED));
    let [(preemptor, victims)] = &victims[..] else {
        panic!("one gang preempts: {victims:?}");
    };
    assert_eq!((preemptor.as_str(), victims.len()), ("waits", 1));
}

#[test]
fn a_gang_asks_others_once_they_use_so_much_that_their_share_is_as_large() {
    const INITIAL: &[FairStrategy] = &[FairStrategy::LessThanInitialShare];
    let mut state = sharing(12, 2, INITIAL);
    comes(&mut state, &gang("large", "gives", 4, 1), true);
    // Half of ten, by weight, is more than four, and less than six.
    let waits = comes(&mut state, &gang("waits", "asks", 10, 1), true);
    assert_eq!((waits.admissions.len(), preempted(&waits)), (0, Vec::new()));
    let taken = with_priority(1, gang("taken", "gives", 2, 1));
    let taken = comes(&mut state, &taken, false);
    assert_eq!(admitted(&taken), ["taken"]);
    assert_eq!(
        preempted(&taken),
        [("waits".to_owned(), vec!["large".to_owned()])]
    );
}

/// What its Team keeps for itself is nothing that its Cohort borrows.
#[test]
fn shares_are_compared_at_the_cohort_where_both_sides_meet_by_what_is_asked_of_it() {
    const FINAL: &[FairStrategy] = &[FairStrategy::LessThanOrEqualToFinalShare];
    let keeps = Team {
        preemption: RECLAIMS,
        ..team(
            "keeps",
            Some("left"),
            muster_engine::QuotaLimit {
                lending_limit: Some(Amount(0)),
                ..limit(2)
            },
        )
    };
    let nodes = vec![node("n0", "s/l", 8)];
    let mut state = state(nodes, vec![keeps, team("gives", Some("right"), limit(0))]);
    for (name, parent, nominal) in [
        ("all", None, 2),
        ("left", Some("all"), 0),
        ("right", Some("all"), 0),
    ] {
        state.apply(Update::Cohort(Cohort {
            sharing: Sharing::Fair(FINAL),
            ..cohort(name, parent, nominal)
        }));
    }
    comes(&mut state, &gang("one", "gives", 1, 1), true);
    comes(&mut state, &gang("two", "gives", 1, 1), true);
    // One of three would be borrowed, of two that can be lent: as much as the other side has without one of its gangs.
    let waits = comes(&mut state, &gang("waits", "keeps", 1, 3), true);
    let victims = preempted(&waits);
    let [(preemptor, victims)] = &victims[..] else {
        panic!("one gang preempts: {victims:?}");
    };
    assert_eq!((preemptor.as_str(), victims.len()), ("waits", 1));
}

#[test]
fn a_gang_that_lacks_a_share_asks_its_own_team_as_soon_as_somebody_there_can_be_asked() {
    let asks = Team {
        preemption: PreemptionPolicy {
            within_team: WithinTeam::LowerPriority,
            ..RECLAIMS
        },
        ..team("asks", Some("all"), limit(0))
    };
    let mut state = sharing(2, 1, &FairStrategy::DEFAULT);
    state.apply(Update::Team(asks));
    let low = gang("low", "asks", 1, 1);
    comes(&mut state, &low, false);
    comes(&mut state, &gang("other", "gives", 1, 1), true);
    // With it, all would be borrowed by its Team: nobody's share is as large.
    let high = with_priority(1, gang("high", "asks", 1, 1));
    let waits = comes(&mut state, &high, true);
    assert_eq!((waits.admissions.len(), preempted(&waits)), (0, Vec::new()));
    state.apply(running(&low, true));
    let told = state.decide(NOW, &Budget::UNLIMITED);
    assert_eq!(
        preempted(&told),
        [("high".to_owned(), vec!["low".to_owned()])]
    );
}

/// Of what others borrow a gang would have enough if the second gang went first. It goes first once the first one would lose more
/// than it, or is asked no more.
fn waits_for_another_order() -> (State, [Gang; 2]) {
    let mut state = others_fill_what_an_owner_leaves();
    let [one, two] = [gang("one", "borrows", 1, 1), gang("two", "borrows", 2, 1)];
    comes(&mut state, &two, true);
    comes(&mut state, &one, true);
    // Without the first one the others borrow nothing.
    let waits = comes(&mut state, &gang("waits", "owner", 3, 1), true);
    assert_eq!((waits.admissions.len(), preempted(&waits)), (0, Vec::new()));
    (state, [one, two])
}

#[test]
fn a_gang_reclaims_once_others_go_in_another_order() {
    let is_made_again = |is_made_again, gang: &Gang| Running {
        is_made_again,
        ..running_since(NOW, gang)
    };
    let (state, [one, two]) = waits_for_another_order();
    let checkpoint = Running {
        checkpointed_at: Some(Timestamp(60)),
        ..running_since(NOW, &two)
    };
    let changes = [
        Update::Running(checkpoint),
        Update::Running(is_made_again(false, &one)),
        // It is over, and its release is not proved yet.
        Update::NotRunning(one.uid.clone()),
        running(&one, false),
    ];
    for change in changes {
        let mut state = state.clone();
        state.apply(change.clone());
        let decisions = state.decide(NOW, &Budget::UNLIMITED);
        let expected = [("waits".to_owned(), vec!["two".to_owned()])];
        assert_eq!(preempted(&decisions), expected, "{change:?}");
    }
}

/// A Team of so many cores and so much memory, in thousandths of a core and bytes.
fn owning(name: &str, [cpu, memory]: [i64; 2], preemption: PreemptionPolicy) -> Team {
    let amount = |nominal| muster_engine::QuotaLimit {
        nominal: Amount(nominal),
        ..limit(0)
    };
    let limits = [
        (Resource::Cpu, amount(cpu)),
        (Resource::Memory, amount(memory)),
    ];
    Team {
        quota: vec![(H100.into(), BTreeMap::from(limits))],
        preemption,
        ..team(name, Some("all"), limit(0))
    }
}

/// A gang of one pod that asks for so much of both.
fn asking(name: &str, team: &str, [cpu, memory]: [i64; 2]) -> Gang {
    let mut gang = gang(name, team, 1, 0);
    gang.pods[0].resources.cpu_milli = cpu;
    gang.pods[0].resources.memory_bytes = memory;
    gang
}

#[test]
fn a_gang_asks_its_own_team_again_once_only_that_lacks_to_which_it_has_a_right() {
    let in_team = PreemptionPolicy {
        within_team: WithinTeam::LowerPriority,
        ..PreemptionPolicy::NEVER
    };
    let mut state = state(
        (0..4).map(|at| node(&format!("n{at}"), "s/l", 1)).collect(),
        vec![
            owning("asks", [5, 1], in_team),
            owning("owns", [10, 7], RECLAIMS),
        ],
    );
    comes(&mut state, &asking("own", "asks", [2, 0]), true);
    let large = with_priority(-1, asking("large", "asks", [6, 3]));
    comes(&mut state, &large, true);
    comes(&mut state, &asking("other", "owns", [4, 1]), true);
    // It lacks both, and its Team owns too little memory.
    let waits = with_priority(1, asking("waits", "asks", [4, 5]));
    let waits = comes(&mut state, &waits, true);
    assert_eq!((waits.admissions.len(), preempted(&waits)), (0, Vec::new()));
    // There will be enough of both once the large gang is gone.
    let reclaims = comes(&mut state, &asking("reclaims", "owns", [4, 0]), true);
    assert_eq!(
        preempted(&reclaims),
        [("reclaims".to_owned(), vec!["large".to_owned()])]
    );
    // Less is left of the cores, which its Team owns.
    let taken = comes(&mut state, &asking("taken", "owns", [2, 2]), true);
    assert_eq!(admitted(&taken), ["taken"]);
    assert_eq!(
        preempted(&taken),
        [("waits".to_owned(), vec!["own".to_owned()])]
    );
}

#[test]
fn a_gang_asks_others_once_somebody_who_was_told_to_go_and_stays_is_counted_on_no_longer() {
    const INITIAL: &[FairStrategy] = &[FairStrategy::LessThanInitialShare];
    let asks = Team {
        preemption: PreemptionPolicy {
            borrow_within_cohort: BorrowWithinCohort::LowerPriority { highest: None },
            ..RECLAIMS
        },
        weight: Weight(Weight::ONE.0 / 2),
        ..team("asks", Some("all"), limit(3))
    };
    let nodes = (0..6).map(|at| node(&format!("n{at}"), "s/l", 1));
    let others = team("others", Some("all"), limit(1));
    let mut state = state(nodes.collect(), vec![asks, others]);
    state.apply(Update::Cohort(Cohort {
        sharing: Sharing::Fair(INITIAL),
        ..cohort("all", None, 2)
    }));
    let of_others = |name, priority, pods| with_priority(priority, gang(name, "others", pods, 1));
    comes(&mut state, &of_others("large", 2, 3), true);
    comes(&mut state, &of_others("pair", -1, 2), true);
    let stays = of_others("stays", 0, 1);
    comes(&mut state, &stays, true);
    state.apply(Update::Running(Running {
        ending_since: Some(NOW),
        ..running_since(NOW, &stays)
    }));
    let waits = with_priority(2, gang("waits", "asks", 4, 1));
    let waits = comes(&mut state, &waits, true);
    assert_eq!((waits.admissions.len(), preempted(&waits)), (0, Vec::new()));
    let overdue_at = Timestamp(NOW.0 + 600);
    assert_eq!(waits.look_again_at, Some(overdue_at));
    let then = state.decide(overdue_at, &Budget::UNLIMITED);
    let victims = vec!["pair".to_owned(), "large".to_owned()];
    assert_eq!(preempted(&then), [("waits".to_owned(), victims)]);
}

/// Decides for gangs that all come at once.
fn come_at_once(state: &mut State, gangs: impl IntoIterator<Item = Gang>) -> Decisions {
    submit(state, gangs);
    state.decide(NOW, &Budget::UNLIMITED)
}

#[test]
fn where_shares_are_fair_the_gang_behind_one_that_lost_its_victims_goes_before_a_larger_share() {
    let has_both = Team {
        preemption: PreemptionPolicy {
            within_team: WithinTeam::LowerPriority,
            ..PreemptionPolicy::NEVER
        },
        weight: Weight(Weight::ONE.0 / 2),
        ..team("has-both", Some("all"), limit(6))
    };
    let nodes = (0..10).map(|at| node(&format!("n{at}"), "s/l", 1));
    let mut state = state(
        nodes.collect(),
        vec![
            has_both,
            team("owns", Some("all"), limit(2)),
            team("fills", Some("all"), limit(2)),
            team("borrows", Some("all"), limit(0)),
        ],
    );
    state.apply(Update::Cohort(Cohort {
        sharing: Sharing::FAIR,
        ..cohort("all", None, 0)
    }));
    comes(&mut state, &gang("runs", "has-both", 2, 1), true);
    comes(&mut state, &gang("filling", "fills", 4, 1), false);
    // Of the four GPUs that are left the second Team takes two: with those of its victim the large gang has too few then.
    let decided = come_at_once(
        &mut state,
        [
            with_priority(2, gang("large", "has-both", 5, 1)),
            gang("small", "has-both", 2, 1),
            with_priority(1, gang("owned", "owns", 2, 1)),
            with_priority(1, gang("borrowed", "borrows", 1, 1)),
        ],
    );
    assert_eq!(admitted(&decided), ["owned", "small"]);
}

#[test]
fn the_gang_behind_one_that_lost_its_victims_goes_before_whoever_reaches_farther() {
    let has_both = Team {
        preemption: PreemptionPolicy {
            borrow_within_cohort: BorrowWithinCohort::LowerPriority { highest: None },
            ..RECLAIMS
        },
        ..team("has-both", Some("all"), limit(2))
    };
    let nodes = (0..5).map(|at| node(&format!("n{at}"), "s/l", 1));
    let mut state = state(
        nodes.collect(),
        vec![
            has_both,
            team("owns", Some("all"), limit(2)),
            team("runs", Some("all"), limit(0)),
            team("borrows", Some("all"), limit(0)),
        ],
    );
    state.apply(Update::Cohort(cohort("all", None, 1)));
    comes(
        &mut state,
        &with_priority(-1, gang("running", "runs", 2, 1)),
        true,
    );
    let decided = come_at_once(
        &mut state,
        [
            with_priority(2, gang("large", "has-both", 4, 1)),
            with_priority(1, gang("small", "has-both", 1, 1)),
            gang("owned", "owns", 2, 1),
            with_priority(3, gang("borrowed", "borrows", 1, 1)),
        ],
    );
    assert_eq!(admitted(&decided), ["owned", "small"]);
}

#[test]
fn where_shares_are_fair_a_gang_asks_its_own_team_again_once_others_have_taken_what_that_holds() {
    let within_team = PreemptionPolicy {
        within_team: WithinTeam::LowerPriority,
        ..PreemptionPolicy::NEVER
    };
    let asks = PreemptionPolicy {
        reclaim_within_cohort: ReclaimWithinCohort::Any,
        ..within_team
    };
    let pool = owning("pool", [4, 1], PreemptionPolicy::NEVER).quota;
    let mut state = state(
        (0..4).map(|at| node(&format!("n{at}"), "s/l", 1)).collect(),
        vec![
            owning("asks", [0, 0], asks),
            owning("owns", [0, 4], within_team),
            owning("takes", [0, 0], PreemptionPolicy::NEVER),
        ],
    );
    state.apply(Update::Cohort(Cohort {
        sharing: Sharing::FAIR,
        quota: pool,
        ..cohort("all", None, 0)
    }));
    comes(
        &mut state,
        &with_priority(-1, asking("own", "asks", [2, 0])),
        true,
    );
    comes(
        &mut state,
        &with_priority(-1, asking("lets", "owns", [0, 4])),
        true,
    );
    // It lacks memory, of which nobody borrows any.
    let waits = comes(&mut state, &asking("waits", "asks", [1, 3]), true);
    assert_eq!((waits.admissions.len(), preempted(&waits)), (0, Vec::new()));
    let taken = comes(&mut state, &asking("taken", "takes", [2, 0]), true);
    assert_eq!(admitted(&taken), ["taken"]);
    assert_eq!(preempted(&taken), [], "memory lacks still");
    // Memory will be there; it lacks cores only, which a gang of its own Team holds.
    let smaller = comes(&mut state, &asking("smaller", "owns", [0, 2]), true);
    let victims = |victim: &str| vec![victim.to_owned()];
    assert_eq!(
        preempted(&smaller),
        [
            ("smaller".to_owned(), victims("lets")),
            ("waits".to_owned(), victims("own"))
        ]
    );
}
