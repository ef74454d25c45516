//! Somebody comes whom a gang that recovers may preempt, though nothing comes free and no time passes.

use crate::{
    common::*,
    recovering::{decide_at, made_again, preempting, recovers},
};
use muster_engine::{Cohort, Decisions, Hold, Running, State, Timestamp, Update, quota::Sharing};

const ALL_EIGHT: [usize; 8] = [0, 1, 2, 3, 4, 5, 6, 7];

/// A gang recovers that had eight GPUs of a node that is gone, and waits again. Its UID is `gang-of-` and this name.
fn waits_again(state: &mut State, name: &str, team: &str, priority: i32) {
    waits_again_with(state, (name, team, priority), 8);
}

/// The same with so many GPUs.
fn waits_again_with(state: &mut State, (name, team, priority): (&str, &str, i32), gpus: u32) {
    let devices: Vec<usize> = (0..gpus as usize).collect();
    let held = hold(name, team, "gone", &devices);
    let gang = with_priority(priority, gang(held.gang.as_str(), team, 1, gpus));
    state.apply(Update::Recovering(recovers(&gang, &[held], &[], &[])));
    state.apply(Update::Waiting(made_again(&gang)));
}

/// What is told of the gang of a hold.
fn runs_with(priority: i32, hold: &Hold) -> Running {
    Running {
        priority,
        ..held_since(Timestamp(5), hold)
    }
}

/// Whoever recovers is asked in vain, and is not asked again while nothing happens.
fn comes_to_rest(state: &mut State, case: &str) {
    let decisions = decide_at(state, 110);
    assert!(decisions.visited.recovering > 0, "{case}: it is asked");
    assert!(decisions.admissions.is_empty(), "{case}");
    assert!(victims(&decisions).is_empty(), "{case}");
    let at_rest = decide_at(state, 111);
    assert_eq!(at_rest.visited.recovering, 0, "{case}");
}

/// Who gives way for whom.
fn victims(decisions: &Decisions) -> Vec<String> {
    let preemptions = decisions.preemptions.iter();
    let victims = preemptions.flat_map(|preemption| {
        let victims = preemption.victims.iter();
        victims.map(|victim| format!("{} for {}", victim.gang, preemption.gang))
    });
    victims.collect()
}

#[test]
fn who_recovers_asks_whoever_may_be_preempted_from_now_on_at_once() {
    let held = hold("low", "a", "n0", &ALL_EIGHT);
    let low = runs_with(0, &held);
    let protected = |seconds| Running {
        protected_until: Some(Timestamp(seconds)),
        ..low.clone()
    };
    let never = Running {
        may_be_preempted: false,
        ..low.clone()
    };
    let as_high = runs_with(10, &held);
    let cases = [
        ("it is admitted", None, low.clone()),
        ("its tier says Never no more", Some(never), low.clone()),
        ("its tier is lower by now", Some(as_high), low.clone()),
        (
            "its minimum run time is shortened",
            Some(protected(600)),
            protected(115),
        ),
        (
            "it has no minimum run time any more",
            Some(protected(600)),
            low.clone(),
        ),
    ];
    for (case, before, now) in cases {
        let mut state = state(vec![node("n0", "s/l", 8)], vec![preempting("a", None, 16)]);
        waits_again(&mut state, "high", "a", 10);
        state.apply(Update::Hold(held.clone()));
        if let Some(before) = before {
            state.apply(Update::Running(before));
        }
        comes_to_rest(&mut state, case);
        state.apply(Update::Running(now));
        let decisions = decide_at(&mut state, 120);
        let expected = ["gang-of-low for gang-of-high"];
        assert_eq!(victims(&decisions), expected, "{case}");
    }
}

/// Of most gangs that are admitted nobody who recovers has anything.
#[test]
fn nobody_is_looked_at_for_a_gang_that_none_of_those_who_recover_may_ask() {
    let elsewhere = || {
        let mut hold = hold("other", "a", "n0", &ALL_EIGHT);
        for claim in &mut hold.claims {
            claim.flavor = "l40".into();
        }
        hold
    };
    let of = |team: &str| hold("other", team, "n0", &ALL_EIGHT);
    let cases = [
        ("of the same tier", of("a"), 10, false),
        ("of its Team", of("a"), 0, true),
        ("on another Flavor", elsewhere(), 0, false),
        ("of a Team within its quota", of("b"), 0, false),
        ("of a Team that borrows", of("c"), 0, true),
        ("of another tree", of("d"), 0, false),
    ];
    for (case, held, priority, is_asked_again) in cases {
        let teams = vec![
            preempting("a", Some("all"), 8),
            team("b", Some("all"), limit(8)),
            team("c", Some("all"), limit(0)),
            team("d", None, limit(8)),
        ];
        let mut state = state(vec![node("n0", "s/l", 8)], teams);
        state.apply(Update::Cohort(cohort("all", None, 0)));
        state.apply(Update::Flavor(flavor("l40", None)));
        waits_again(&mut state, "high", "a", 10);
        state.apply(Update::Hold(held.clone()));
        comes_to_rest(&mut state, case);
        state.apply(Update::Running(runs_with(priority, &held)));
        let visited = decide_at(&mut state, 120).visited.recovering;
        assert_eq!(visited > 0, is_asked_again, "{case}: {visited}");
    }
}

/// Nothing is new of who runs there: another gang of its Team, of which nobody has told yet who may ask it, takes what is lent.
#[test]
fn who_recovers_asks_a_gang_at_once_whose_team_begins_to_borrow() {
    let teams = vec![
        preempting("a", Some("all"), 8),
        team("b", Some("all"), limit(8)),
    ];
    let nodes = vec![node("n0", "s/l", 8), node("small", "s/l", 1)];
    let mut state = state(nodes, teams);
    state.apply(Update::Cohort(cohort("all", None, 8)));
    waits_again(&mut state, "high", "a", 10);
    let held = hold("low", "b", "n0", &ALL_EIGHT);
    state.apply(Update::Hold(held.clone()));
    state.apply(Update::Running(runs_with(0, &held)));
    comes_to_rest(&mut state, "it is within the quota of its Team");
    let more = hold("more", "b", "small", &ALL_EIGHT[..1]);
    state.apply(Update::Hold(more));
    let decisions = decide_at(&mut state, 120);
    assert_eq!(victims(&decisions), ["gang-of-low for gang-of-high"]);
}

/// Where shares are fair nobody gives way whose share is smaller. It need not be the gang that is asked of which its Team has more.
#[test]
fn who_recovers_asks_a_gang_at_once_whose_team_has_the_larger_share_from_now_on() {
    let teams = vec![
        preempting("a", Some("all"), 0),
        team("b", Some("all"), limit(0)),
    ];
    let nodes = [("n0", 8), ("three", 3), ("seven", 7)];
    let nodes = nodes.map(|(name, devices)| node(name, "s/l", devices));
    let mut state = state(nodes.to_vec(), teams);
    state.apply(Update::Cohort(Cohort {
        sharing: Sharing::FAIR,
        ..cohort("all", None, 24)
    }));
    waits_again(&mut state, "high", "a", 10);
    let low = hold("low", "b", "n0", &ALL_EIGHT[..2]);
    let beside = hold("beside", "b", "three", &ALL_EIGHT[..3]);
    for held in [&low, &beside] {
        state.apply(Update::Hold(held.clone()));
    }
    state.apply(Update::Running(runs_with(0, &low)));
    comes_to_rest(&mut state, "its Team has 5, and 8 are asked for");
    let more = hold("more", "b", "seven", &ALL_EIGHT[..7]);
    state.apply(Update::Hold(more));
    let decisions = decide_at(&mut state, 120);
    assert_eq!(victims(&decisions), ["gang-of-low for gang-of-high"]);
}

/// For a question what is kept is given up and kept again, by which its Team ceases to borrow, and begins.
#[test]
fn that_one_is_asked_is_no_reason_to_ask_another_one_that_may_preempt_it() {
    let teams = vec![
        preempting("a", Some("all"), 0),
        preempting("b", Some("all"), 0),
    ];
    let mut state = state(vec![node("small", "s/l", 4)], teams);
    state.apply(Update::Cohort(cohort("all", None, 16)));
    waits_again(&mut state, "one", "a", 0);
    waits_again(&mut state, "other", "b", 5);
    comes_to_rest(&mut state, "both");
    // Whoever comes for both of them makes no other difference.
    let held = hold("low", "a", "small", &ALL_EIGHT[..2]);
    state.apply(Update::Hold(held.clone()));
    decide_at(&mut state, 112);
    state.apply(Update::Running(runs_with(-1, &held)));
    let decisions = decide_at(&mut state, 120);
    assert!(decisions.visited.recovering > 0, "they may ask it");
    let at_rest = decide_at(&mut state, 121);
    assert_eq!(at_rest.visited.recovering, 0, "it is too small for both");
}

/// What is taken of a place for which it waits is charged in another tree, to a gang that it may not ask.
#[test]
fn who_waits_for_the_victims_of_others_asks_somebody_itself_once_their_place_is_taken() {
    let teams = vec![
        preempting("a", None, 16),
        preempting("b", None, 16),
        team("c", None, limit(8)),
    ];
    let nodes = ["n0", "n1", "n2"].map(|name| node(name, "s/l", 8));
    let mut state = state(nodes.to_vec(), teams);
    // It leaves a whole node, which is kept for whom it goes, and a part of another one.
    let victim = hold("victim", "b", "n0", &ALL_EIGHT);
    let beside = Hold {
        gang: victim.gang.clone(),
        gang_name: victim.gang_name.clone(),
        ..hold("victim-1", "b", "n1", &ALL_EIGHT[..4])
    };
    let low = hold("low", "a", "n2", &ALL_EIGHT);
    let stays = hold("stays", "c", "n1", &ALL_EIGHT[4..5]);
    for held in [&victim, &beside, &low, &stays] {
        state.apply(Update::Hold(held.clone()));
    }
    for held in [&victim, &low] {
        state.apply(Update::Running(runs_with(0, held)));
    }
    let preemptor = with_priority(10, gang("preemptor", "b", 1, 8));
    state.apply(Update::Waiting(preemptor));
    let decisions = decide_at(&mut state, 105);
    assert_eq!(victims(&decisions), ["gang-of-victim for preemptor"]);
    waits_again_with(&mut state, ("high", "a", 10), 5);
    comes_to_rest(
        &mut state,
        "seven will be free beside the place that is kept",
    );
    let taken = hold("taken", "c", "n1", &ALL_EIGHT[5..]);
    state.apply(Update::Hold(taken));
    let decisions = decide_at(&mut state, 115);
    assert_eq!(victims(&decisions), ["gang-of-low for gang-of-high"]);
}

/// Whoever is told of its Team is looked at by nobody any more.
#[test]
fn nobody_is_looked_at_for_whom_only_a_gang_might_have_asked_that_waits_no_more() {
    for does_wait in [true, false] {
        let teams = vec![preempting("a", None, 16), preempting("b", None, 16)];
        let mut state = state(vec![node("n0", "s/l", 8)], teams);
        waits_again(&mut state, "high", "a", 10);
        waits_again(&mut state, "other", "b", 10);
        let held = hold("low", "b", "n0", &ALL_EIGHT);
        state.apply(Update::Hold(held.clone()));
        comes_to_rest(&mut state, "both");
        if !does_wait {
            state.apply(Update::NotWaiting("gang-of-other".into()));
        }
        decide_at(&mut state, 112);
        let at_rest = decide_at(&mut state, 113);
        assert_eq!(at_rest.visited.recovering, 0, "{does_wait}");
        state.apply(Update::Running(runs_with(0, &held)));
        let visited = decide_at(&mut state, 115).visited.recovering;
        assert_eq!(visited > 0, does_wait, "{visited}");
    }
}
