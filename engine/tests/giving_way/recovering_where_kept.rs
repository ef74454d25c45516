//! Gangs recover while a place is kept for the head of a line: whoever may be planned there is.

use std::collections::BTreeSet;

use crate::{
    common::*,
    recovering::{decide_at, made_again, preempting, recovers, release},
};
use muster_engine::{Gang, GangUid, Hold, Recovering, State, Team, Timestamp, Update};

/// When a gang has lacked a place for so long that one is kept for it.
const KEPT_AT: i64 = 600;

/// A node of eight GPUs: on four somebody runs, nobody knows for how long, and it is kept for a gang that needs all eight.
fn kept_for_head(research: Team) -> State {
    let mut state = state(vec![node("n0", "s/l", 8)], vec![research]);
    let old = hold("old", "elsewhere", "n0", &[0, 1, 2, 3]);
    state.apply(Update::Hold(old));
    submit(&mut state, [with_priority(5, gang("head", "a", 1, 8))]);
    for seconds in [0, KEPT_AT] {
        assert!(decide_at(&mut state, seconds).admissions.is_empty());
    }
    let kept = state.head_reservations().next().map(|kept| &kept.gang);
    assert_eq!(kept.map(GangUid::as_str), Some("head"));
    state
}

/// A gang that held four GPUs of a node that is gone waits again.
fn lost_its_node(state: &mut State, gang: &Gang) {
    let held = Hold {
        gang: gang.uid.clone(),
        gang_name: gang.name.clone(),
        ..hold(&format!("{}-lost", gang.uid), "a", "gone", &[0, 1, 2, 3])
    };
    state.apply(Update::Recovering(Recovering {
        gang: gang.uid.clone(),
        attempt: gang.attempt,
        priority: gang.priority,
        queued_at: gang.queued_at,
        may_be_preempted: true,
        since: Timestamp(KEPT_AT),
        until: Timestamp(2 * KEPT_AT),
        held: vec![held],
        left: BTreeSet::new(),
        domain: Vec::new(),
    }));
    let again = Gang {
        attempt: gang.attempt + 1,
        ..gang.clone()
    };
    submit(state, [again]);
}

/// Both lost the same, ask for the same, and have as much quota kept. The head may preempt the second one once it needs its place.
#[test]
fn whoever_is_let_in_is_asked_for_itself_though_one_before_it_that_is_like_it_is_not() {
    let mut state = kept_for_head(preempting("a", None, 100));
    let stays_out = gang("stays-out", "a", 1, 4);
    let mut gives_way = at(1, gang("gives-way", "a", 1, 4));
    gives_way.run_time.preemptable_after_seconds = Some(0);
    for gang in [&stays_out, &gives_way] {
        lost_its_node(&mut state, gang);
    }
    let decisions = decide_at(&mut state, KEPT_AT + 10);
    assert_eq!(admitted(&decisions), ["gives-way"]);
    assert!(state.recovery_of(&stays_out.uid).is_some());
}

#[test]
fn who_goes_before_the_head_is_let_in_whether_or_not_its_team_preempts() {
    for research in [team("a", None, limit(100)), preempting("a", None, 100)] {
        let policy = research.preemption;
        let mut state = kept_for_head(research);
        let high = with_priority(9, gang("high", "a", 1, 4));
        lost_its_node(&mut state, &high);
        let decisions = decide_at(&mut state, KEPT_AT + 10);
        assert_eq!(admitted(&decisions), ["high"], "{policy:?}");
    }
}

/// The head waits for it to leave, which it did not while it ran. If it had to wait for the head, both would wait until what is kept is given up.
#[test]
fn a_gang_has_its_own_place_again_though_one_is_kept_there_for_who_waits_for_it_to_leave() {
    for research in [team("a", None, limit(100)), preempting("a", None, 100)] {
        let policy = research.preemption;
        let mut state = state(vec![node("n0", "s/l", 8)], vec![research]);
        let train = gang("gang-of-h", "a", 1, 4);
        let held = [hold("h", "a", "n0", &[0, 1, 2, 3])];
        state.apply(Update::Hold(held[0].clone()));
        let running = running_since(Timestamp(0), &train);
        state.apply(Update::Running(running));
        submit(&mut state, [at(5, gang("head", "a", 1, 8))]);
        for seconds in [10, 10 + KEPT_AT] {
            assert!(decide_at(&mut state, seconds).admissions.is_empty());
        }
        let kept = state.head_reservations().next().map(|kept| &kept.gang);
        assert_eq!(kept.map(GangUid::as_str), Some("head"));
        state.apply(Update::Recovering(recovers(&train, &held, &[], &[])));
        release(&mut state, &train, &held);
        submit(&mut state, [made_again(&train)]);
        let decisions = decide_at(&mut state, 20 + KEPT_AT);
        assert_eq!(admitted(&decisions), ["gang-of-h"], "{policy:?}");
        // That admission is not committed.
        state.undo(&train.uid);
        let decisions = decide_at(&mut state, 30 + KEPT_AT);
        assert_eq!(admitted(&decisions), ["gang-of-h"], "{policy:?}");
    }
}
