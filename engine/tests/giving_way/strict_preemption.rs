//! A gang to which others give way keeps its place in a line whose order is strict, until it starts.

use crate::common::*;
use muster_engine::{
    Budget, CommitRoom, Gang, GangUid, Node, PodUid, Queueing, State, Team, Update, Why,
    quota::{PreemptionPolicy, ReclaimWithinCohort, WithinTeam},
};

const LOWER: PreemptionPolicy = PreemptionPolicy {
    within_team: WithinTeam::LowerPriority,
    reclaim_within_cohort: ReclaimWithinCohort::Any,
    ..PreemptionPolicy::NEVER
};

fn nodes(count: usize) -> Vec<Node> {
    (0..count)
        .map(|at| node(&format!("n{at}"), "s/l", 8))
        .collect()
}

fn preempting(name: &str, queueing: Queueing, nominal: i64) -> Team {
    Team {
        preemption: LOWER,
        queueing,
        ..team(name, Some("all"), limit(nominal))
    }
}

/// A gang starts, and can be preempted from then on.
fn start(state: &mut State, gang: &Gang) -> Vec<PodUid> {
    submit(state, [gang.clone()]);
    let decisions = decide(state);
    let admission = decisions.admissions.first().expect("it fits");
    assert_eq!(admission.gang, gang.uid);
    let holds = holds_of(gang, admission);
    let pods = holds.iter().map(|hold| hold.pod.clone()).collect();
    for hold in holds {
        state.apply(Update::Hold(hold));
    }
    state.apply(Update::NotWaiting(gang.uid.clone()));
    state.apply(Update::Running(running_since(NOW, gang)));
    pods
}

/// `head` of Team `a`, in strict order, waits for `victim` of Team `b`; with the end of `other` of Team `c` it would have room without that. Returns
/// the pods of `other`.
fn head_waits_for_its_victim(
    node_count: usize,
    further: Vec<Team>,
    running: &[Gang],
) -> (State, Vec<PodUid>) {
    let mut teams = vec![
        preempting("a", Queueing::StrictFifo, 8),
        team("b", Some("all"), limit(0)),
        team("c", Some("all"), limit(8)),
    ];
    teams.extend(further);
    let mut state = state(nodes(node_count), teams);
    start(&mut state, &gang("victim", "b", 1, 6));
    let of_other = start(&mut state, &gang("other", "c", 1, 8));
    for gang in running {
        start(&mut state, gang);
    }
    submit(&mut state, [at(1, gang("head", "a", 1, 6))]);
    assert_eq!(preempted(&mut state), ["victim"]);
    (state, of_other)
}

fn release(state: &mut State, gang: &str, pods: Vec<PodUid>) {
    state.apply(Update::NotRunning(gang.into()));
    for pod in pods {
        state.apply(Update::HoldGone(pod));
    }
}

fn preempted(state: &mut State) -> Vec<String> {
    let decisions = decide(state);
    assert_eq!(admitted(&decisions), [""; 0]);
    let victims = decisions.preemptions.iter().flat_map(|it| &it.victims);
    victims.map(|victim| victim.gang.to_string()).collect()
}

#[test]
fn in_strict_order_nobody_starts_before_a_gang_to_which_others_give_way() {
    for (queueing, meanwhile) in [
        (Queueing::BestEffort, vec!["small"]),
        (Queueing::StrictFifo, vec![]),
    ] {
        let teams = vec![
            preempting("a", queueing, 8),
            team("b", Some("all"), limit(0)),
        ];
        let mut state = state(nodes(3), teams);
        let of_victim = start(&mut state, &gang("victim", "b", 1, 6));
        submit(&mut state, [at(1, gang("head", "a", 1, 6))]);
        assert_eq!(preempted(&mut state), ["victim"], "{queueing:?}");
        // Two GPUs are free now, and will be.
        submit(&mut state, [at(2, gang("small", "a", 1, 2))]);
        assert_eq!(admitted(&decide(&mut state)), meanwhile, "{queueing:?}");
        release(&mut state, "victim", of_victim);
        let afterwards = admitted(&decide(&mut state));
        if meanwhile.is_empty() {
            assert_eq!(afterwards, ["head", "small"], "{queueing:?}");
        } else {
            assert_eq!(afterwards, ["head"], "{queueing:?}");
        }
    }
}

#[test]
fn who_stands_behind_a_gang_to_which_others_give_way_is_told_so_and_moves_up_when_that_is_withdrawn()
 {
    let teams = vec![
        preempting("a", Queueing::StrictFifo, 8),
        team("b", Some("all"), limit(0)),
    ];
    let mut state = state(nodes(3), teams);
    start(&mut state, &gang("victim", "b", 1, 6));
    submit(&mut state, [at(1, gang("head", "a", 1, 6))]);
    assert_eq!(preempted(&mut state), ["victim"]);
    submit(&mut state, [at(2, gang("small", "a", 1, 2))]);
    assert_eq!(preempted(&mut state), [""; 0]);
    let head = Why::BehindHead {
        head: "a/head".into(),
        flavor: Some(H100.into()),
    };
    assert_eq!(why(&state, "small"), head);
    assert!(matches!(why(&state, "head"), Why::Preemption { .. }));
    state.apply(Update::NotWaiting("head".into()));
    assert_eq!(admitted(&decide(&mut state)), ["small"]);
}

/// It is in line from the decision on by which others give way, whether the order became strict before or after.
#[test]
fn an_order_that_becomes_strict_counts_those_to_which_others_give_way() {
    let teams = vec![
        preempting("a", Queueing::BestEffort, 8),
        team("b", Some("all"), limit(0)),
    ];
    let mut state = state(nodes(3), teams);
    start(&mut state, &gang("victim", "b", 1, 6));
    submit(&mut state, [at(1, gang("head", "a", 1, 6))]);
    assert_eq!(preempted(&mut state), ["victim"]);
    state.apply(Update::Team(preempting("a", Queueing::StrictFifo, 8)));
    submit(&mut state, [at(2, gang("small", "a", 1, 2))]);
    assert_eq!(admitted(&decide(&mut state)), [""; 0]);
    state.apply(Update::Team(preempting("a", Queueing::BestEffort, 8)));
    assert_eq!(admitted(&decide(&mut state)), ["small"]);
}

/// Limits changed, so everybody stands in line again until it is known who can never run; and the victim is released by then.
#[test]
fn what_was_given_up_for_a_gang_it_gets_though_one_that_can_never_run_stands_before_it() {
    let strict = |name| preempting(name, Queueing::StrictFifo, 4);
    let teams = vec![
        strict("a"),
        team("b", Some("all"), limit(0)),
        team("c", Some("all"), limit(4)),
    ];
    let mut state = state(nodes(3), teams);
    let of_victim = start(&mut state, &gang("victim", "b", 1, 4));
    start(&mut state, &with_priority(5, gang("stays", "b", 1, 4)));
    submit(
        &mut state,
        [
            with_priority(9, gang("never", "a", 2, 5)),
            gang("head", "a", 1, 4),
            with_priority(9, gang("other", "c", 1, 4)),
        ],
    );
    assert_eq!(preempted(&mut state), ["victim"]);
    assert!(matches!(why(&state, "never"), Why::ExceedsMaxQuota { .. }));
    state.apply(Update::Team(team("elsewhere", None, limit(1))));
    release(&mut state, "victim", of_victim);
    assert_eq!(admitted(&decide(&mut state)), ["head"]);
}

/// It has room before its victim is gone, and may not use it as long as another one stands before it.
#[test]
fn a_gang_for_which_something_is_kept_starts_once_nobody_stands_before_it_any_more() {
    let (mut state, of_other) = head_waits_for_its_victim(3, vec![], &[]);
    let before = at(2, gang("before", "a", 2, 6));
    submit(&mut state, [with_priority(9, before.clone())]);
    assert_eq!(preempted(&mut state), [""; 0]);
    release(&mut state, "other", of_other);
    assert_eq!(preempted(&mut state), [""; 0]);
    submit(&mut state, [before]);
    assert_eq!(admitted(&decide(&mut state)), ["head"]);
}

/// A defect once: it waited for the next call, and none was due. Whoever was before it had been refused in the middle of this one.
#[test]
fn a_gang_for_which_something_is_kept_starts_at_once_where_whoever_stands_before_it_is_too_large() {
    let (mut state, of_other) = head_waits_for_its_victim(3, vec![], &[]);
    // It would run one day, if a commit held two pods.
    submit(
        &mut state,
        [with_priority(9, at(2, gang("huge", "a", 2, 6)))],
    );
    release(&mut state, "other", of_other);
    let one_pod = CommitRoom {
        pods: 1,
        ..CommitRoom::UNLIMITED
    };
    let budget = Budget {
        left: one_pod,
        empty: one_pod,
        ..Budget::UNLIMITED
    };
    let decisions = state.decide(NOW, &budget);
    assert_eq!(decisions.too_large.len(), 1, "{decisions:?}");
    assert_eq!(admitted(&decisions), ["head"]);
    assert_eq!(decisions.spared, [GangUid::from("victim")]);
}

/// A defect once: with each turn all that contended were found anew, though it had no use of that, and the call did not end before.
#[test]
fn a_call_ends_however_often_a_gang_that_stands_behind_another_one_could_have_room() {
    let pairs = 16;
    let names: Vec<String> = (0..pairs).map(|at| format!("z{at:02}")).collect();
    let best_effort = |name: &String| preempting(name, Queueing::BestEffort, 1);
    // What is kept for a gang is kept on a node of its own.
    let further = names.iter().map(best_effort).collect();
    let low = |name: &String| with_priority(-1, gang(&format!("low-{name}"), name, 1, 1));
    let running: Vec<Gang> = names.iter().map(low).collect();
    let (mut state, of_other) = head_waits_for_its_victim(24, further, &running);
    // It asks for more than is left, now and once others go: whoever is behind it waits for that.
    submit(
        &mut state,
        [with_priority(9, at(2, gang("before", "a", 2, 6)))],
    );
    assert_eq!(preempted(&mut state), [""; 0]);
    release(&mut state, "other", of_other);
    let high = names.iter().map(|name| {
        let high = gang(&format!("high-{name}"), name, 1, 1);
        with_priority(5, within_nominal(high))
    });
    submit(&mut state, high);
    let budget = Budget {
        looks_in_vain: Budget::LOOKS_IN_VAIN,
        ..Budget::UNLIMITED
    };
    let first = state.decide(NOW, &budget);
    assert!(first.interrupted, "{first:?}");
    let mut preemptions = first.preemptions.len();
    assert!((1..pairs).contains(&preemptions), "{first:?}");
    for _ in 0..pairs {
        let decisions = state.decide(NOW, &budget);
        assert_eq!(admitted(&decisions), [""; 0]);
        preemptions += decisions.preemptions.len();
        if !decisions.is_cut_short() {
            break;
        }
    }
    assert_eq!(preemptions, pairs, "each of them has its turn");
}
