//! A new process is told who recovers, and of what was released nothing but what it was: it keeps what the former one kept, as far as that can be told.

use std::collections::BTreeMap;

use crate::{
    common::*,
    cut_gpus::*,
    recovering::{decide_at, fail, in_leaf, preempting, recovers, release, start},
};
use muster_engine::{
    Gang, HeldClaim, Hold, Recovering, Reserved, State, Timestamp, Update, quota::PreemptionReason,
};

/// What pods held, of which nobody knows any more which devices they were.
fn forgotten(holds: &[Hold]) -> Vec<Hold> {
    let mut holds = holds.to_vec();
    for claim in holds.iter_mut().flat_map(|hold| &mut hold.claims) {
        claim.request = None;
        claim.devices = None;
    }
    holds
}

/// How many pods of a gang have their quota kept, and how many their place.
fn kept(state: &State, gang: &Gang) -> (usize, usize) {
    let kept = state.recovery_of(&gang.uid);
    kept.map_or((0, 0), |kept| (kept.charged, kept.placed))
}

/// As what is kept is given up once a limit is lowered: first what has no place.
#[test]
fn where_a_part_is_left_to_be_kept_it_is_what_has_its_place_still() {
    for taken in ["n0", "n1"] {
        let teams = || vec![team("a", None, limit(16))];
        let train = gang("train", "a", 2, 8);
        let mut before = state(in_leaf(&["n0", "n1"], "s/l"), teams());
        let holds = forgotten(&start(&mut before, &train));
        let mut state = state(in_leaf(&["n0", "n1"], "s/l"), teams());
        state.apply(Update::Hold(hold("other", "a", taken, &[0, 1])));
        state.apply(Update::Recovering(recovers(&train, &holds, &[], &[])));
        assert!(decide_at(&mut state, 110).admissions.is_empty());
        assert_eq!(kept(&state, &train), (1, 1), "{taken}");
    }
}

/// Of a node on which two pods were, others have the half by now.
#[test]
fn where_one_of_two_has_its_place_still_the_other_goes_behind_whoever_has_its_own() {
    let train = gang("train", "a", 3, 4);
    let mut before = state(
        in_leaf(&["n0", "n1"], "s/l"),
        vec![team("a", None, limit(12))],
    );
    let mut holds = forgotten(&start(&mut before, &train));
    for (hold, node) in holds.iter_mut().zip(["n0", "n0", "n1"]) {
        hold.node = node.into();
    }
    let mut state = state(
        in_leaf(&["n0", "n1"], "s/l"),
        vec![team("a", None, limit(8))],
    );
    let other = hold("other", "elsewhere", "n0", &[0, 1, 2, 3]);
    state.apply(Update::Hold(other));
    state.apply(Update::Recovering(recovers(&train, &holds, &[], &[])));
    decide_at(&mut state, 110);
    assert_eq!(kept(&state, &train), (2, 2));
}

/// The claims of one pod go one by one.
#[test]
fn a_device_that_one_claim_is_known_to_have_had_is_not_kept_for_another_one_as_well() {
    for known_last in [true, false] {
        let train = gang("gang-of-h", "a", 1, 2);
        let mut held = hold("h", "a", "n0", &[0]);
        let known = held.claims[0].clone();
        held.claims.push(HeldClaim {
            uid: "forgotten".into(),
            devices: None,
            ..known
        });
        if known_last {
            held.claims.reverse();
        }
        let teams = vec![team("a", None, limit(8))];
        let mut state = state(vec![node("n0", "s/l", 2)], teams);
        state.apply(Update::Recovering(recovers(&train, &[held], &[], &[])));
        decide_at(&mut state, 110);
        assert_eq!(kept(&state, &train), (1, 1), "{known_last}");
        submit(&mut state, [gang("late", "a", 1, 1)]);
        let decisions = decide_at(&mut state, 120);
        assert!(
            decisions.admissions.is_empty(),
            "{known_last}: both are kept"
        );
    }
}

/// A limit is lowered while nobody leads, or while somebody does.
#[test]
fn where_limits_are_lowered_the_same_gangs_go_on_recovering_whoever_leads() {
    let (nodes, teams) = (
        || in_leaf(&["n0", "n1"], "s/l"),
        |nominal| vec![team("a", None, limit(nominal))],
    );
    let low = gang("low", "a", 1, 8);
    let high = with_priority(10, gang("high", "a", 1, 8));
    let mut former = state(nodes(), teams(16));
    let gangs = [&low, &high];
    let holds = gangs.map(|gang| start(&mut former, gang));
    for (gang, holds) in gangs.into_iter().zip(&holds) {
        fail(&mut former, gang, holds);
    }
    for team in teams(8) {
        former.apply(Update::Team(team));
    }
    let mut next = state(nodes(), teams(8));
    for (at, (gang, holds)) in (90..).zip(gangs.into_iter().zip(&holds)) {
        next.apply(Update::Recovering(Recovering {
            since: Timestamp(at),
            ..recovers(gang, &forgotten(holds), &[], &[])
        }));
    }
    for state in [&mut former, &mut next] {
        decide_at(state, 110);
        assert_eq!(kept(state, &high), (1, 1), "who comes first");
        assert_eq!(kept(state, &low), (0, 0), "though it recovered first");
    }
}

/// The smallest slices that together were charged as much were taken for it, or none.
#[test]
fn a_slice_of_which_nobody_knows_any_more_where_it_lay_is_kept_as_another_of_its_size() {
    for (selector, spares) in [
        (ONE_SLICE, 6),
        (TWO_SLICES, 2),
        (THREE_SLICES, 1),
        (ANY_GPU, 0),
    ] {
        let train = gang("gang-of-h", "a", 1, 1);
        let held = forgotten(&[hold_part("h", "a", "n0", (0, selector, 0))]);
        let teams = vec![team("a", None, limit(8))];
        let mut state = state(vec![cut_node("n0", "s/l", 1)], teams);
        state.apply(Update::Recovering(recovers(&train, &held, &[], &[])));
        decide_at(&mut state, 110);
        assert_eq!(kept(&state, &train), (1, 1), "{selector:?}");
        let others = (0..8).map(|at| {
            let uid = format!("other-{at}");
            let claim = first_of(&format!("{uid}-claim"), &[selector]);
            gang_of(&uid, "a", vec![pod(&uid, vec![claim])])
        });
        submit(&mut state, others);
        let admitted = decide_at(&mut state, 120).admissions.len();
        assert_eq!(
            admitted, spares,
            "{selector:?}: what is kept is in the way of others"
        );
    }
}

/// An admission is taken back before any of its pods ran: they wait for the next one, and what they were to have is released later.
#[test]
fn what_pods_that_wait_again_were_to_have_is_kept_for_them_once_it_is_released() {
    for is_told_late in [false, true] {
        let teams = vec![team("a", None, limit(16))];
        let mut state = state(in_leaf(&["n0", "n1"], "s/l"), teams);
        let train = gang("train", "a", 2, 8);
        let holds = start(&mut state, &train);
        submit(&mut state, [at(5, gang("next", "a", 1, 8))]);
        let told = Update::Recovering(recovers(&train, &holds, &[], &[]));
        if !is_told_late {
            state.apply(told.clone());
        }
        let again = Gang {
            attempt: train.attempt + 1,
            ..train.clone()
        };
        submit(&mut state, [again]);
        if is_told_late {
            state.apply(told);
        }
        for hold in &holds {
            let decisions = decide_at(&mut state, 110);
            assert!(decisions.admissions.is_empty(), "{is_told_late}");
            state.apply(Update::HoldGone(hold.pod.clone()));
        }
        let decisions = decide_at(&mut state, 120);
        assert_eq!(admitted(&decisions), ["train"], "{is_told_late}");
        let used = state.usage(&team_name("a"))[0].used;
        assert_eq!(used, gpus(16), "{is_told_late}: charged once");
    }
}

/// A former leader told it to go, it did not in time, and then its attempt failed by itself. Nobody counts on it before it has released what it holds.
#[test]
fn a_victim_that_did_not_go_in_time_is_counted_on_no_sooner_by_that_somebody_else_leads() {
    let teams = || vec![preempting("a", None, 8)];
    let train = gang("train", "a", 1, 8);
    let mut before = state(in_leaf(&["n0"], "s/l"), teams());
    let holds = start(&mut before, &train);
    let mut state = state(in_leaf(&["n0"], "s/l"), teams());
    state.apply(Update::Hold(holds[0].clone()));
    state.apply(Update::Recovering(recovers(&train, &holds, &[], &[])));
    state.apply(Update::Reserved(Reserved {
        gang: "urgent".into(),
        flavor: H100.into(),
        victims: BTreeMap::from([(train.uid.clone(), PreemptionReason::InTeam)]),
        since: Timestamp(0),
        until: Timestamp(100),
    }));
    submit(&mut state, [with_priority(10, gang("urgent", "a", 1, 8))]);
    let decisions = decide_at(&mut state, 110);
    assert!(decisions.preemptions.is_empty(), "it did not go before");
    assert!(decisions.admissions.is_empty());
    release(&mut state, &train, &holds);
    let decisions = decide_at(&mut state, 120);
    assert_eq!(admitted(&decisions), ["urgent"], "nobody has to end");
    assert!(state.is_recovery_over(&train.uid, 1));
}
