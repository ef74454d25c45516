//! A place is kept for a large gang that lacked one for long; others run there meanwhile if they are gone in time.

#![allow(
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "tests"
)]

mod blips;
#[path = "../common/mod.rs"]
mod common;
mod found;
#[path = "../quota/random.rs"]
#[allow(dead_code, reason = "each test program uses its part")]
mod random;
mod starvation;
mod turns;
mod wakeups;

use common::*;
use muster_engine::{
    Budget, Decisions, Gang, GangUid, HeadReservation, RunTime, State, Team, Timestamp, Update,
    Why,
    quota::{PreemptionPolicy, WithinTeam},
};

/// For how long a gang lacks a place before one is kept for it, and for how long its GPUs may stand idle.
const LONG: i64 = 600;
const GPUS_PER_NODE: usize = 4;

/// A gang that runs no longer than this.
fn within(seconds: u64, mut gang: Gang) -> Gang {
    gang.run_time.max_seconds = Some(seconds);
    gang
}

/// Leaves of so many nodes of four GPUs, with these Teams.
fn cluster(leaves: usize, nodes: usize, teams: Vec<Team>) -> State {
    let nodes = (0..leaves).flat_map(|leaf| {
        let of_leaf = (0..nodes).map(move |at| (leaf, at));
        of_leaf.map(|(leaf, at)| {
            node(
                &format!("n{leaf}{at}"),
                &format!("s/l{leaf}"),
                GPUS_PER_NODE,
            )
        })
    });
    state(nodes.collect(), teams)
}

fn rich(name: &str) -> Team {
    team(name, None, limit(1_000))
}

/// Somebody runs on so many GPUs of a node, until then if that is known. It has its own Team, and the name of its pod.
fn runs(
    state: &mut State,
    name: &str,
    node: &str,
    gpus: std::ops::Range<usize>,
    until: Option<i64>,
) {
    let devices: Vec<usize> = gpus.collect();
    state.apply(Update::Hold(hold(name, "elsewhere", node, &devices)));
    state.apply(Update::Ends(gang_of_pod(name), until.map(Timestamp)));
}

fn ends(state: &mut State, name: &str) {
    state.apply(Update::HoldGone(pod_uid(name)));
    state.apply(Update::Ends(gang_of_pod(name), None));
}

fn gang_of_pod(name: &str) -> GangUid {
    GangUid::from(format!("gang-of-{name}"))
}

fn decide_at(state: &mut State, seconds: i64) -> Decisions {
    state.decide(Timestamp(seconds), &Budget::UNLIMITED)
}

fn kept(state: &State) -> Option<HeadReservation> {
    state.head_reservations().next().cloned()
}

/// The gang for which a place is kept, where, and when that is free.
fn kept_in_short(state: &State) -> Option<(String, Vec<String>, Option<i64>)> {
    let kept = kept(state)?;
    let nodes = kept.nodes.iter().map(ToString::to_string).collect();
    Some((kept.gang.to_string(), nodes, kept.starts_at.map(|at| at.0)))
}

/// One leaf of two nodes. On the first somebody runs, the second is free: a gang that needs both lacks a place.
fn half_full(until: Option<i64>) -> State {
    let mut state = cluster(1, 2, vec![rich("large"), rich("small")]);
    runs(&mut state, "old", "n00", 0..4, until);
    submit(&mut state, [gang("head", "large", 2, 4)]);
    assert_eq!(admitted(&decide_at(&mut state, 0)), Vec::<String>::new());
    state
}

#[test]
fn a_place_is_kept_once_a_gang_has_lacked_one_for_long() {
    let mut state = half_full(Some(1_000));
    let decisions = decide_at(&mut state, LONG - 1);
    assert_eq!(kept_in_short(&state), None);
    assert_eq!(decisions.look_again_at, Some(Timestamp(LONG)));
    decide_at(&mut state, LONG);
    let nodes = vec!["n00".to_owned(), "n01".to_owned()];
    let expected = ("head".to_owned(), nodes, Some(1_000));
    assert_eq!(kept_in_short(&state), Some(expected));
    // It is admitted there once all of it is free, and nothing is kept any more.
    ends(&mut state, "old");
    assert_eq!(admitted(&decide_at(&mut state, 900)), ["head"]);
    assert_eq!(kept_in_short(&state), None);
}

#[test]
fn who_waits_for_quota_or_for_one_gpu_has_no_place_kept() {
    let poor = team("poor", None, limit(4));
    let mut state = cluster(1, 1, vec![poor, rich("rich")]);
    runs(&mut state, "old", "n00", 0..4, None);
    let mut quota = hold("mine", "poor", "elsewhere", &[0]);
    quota.claims[0].gpus = gpus(2);
    state.apply(Update::Hold(quota));
    submit(
        &mut state,
        [gang("no-quota", "poor", 1, 4), gang("one", "rich", 1, 1)],
    );
    decide_at(&mut state, 0);
    decide_at(&mut state, 10 * LONG);
    assert_eq!(kept_in_short(&state), None);
    // The same gang with quota, from the moment that it lacks a place only.
    state.apply(Update::HoldGone(pod_uid("mine")));
    decide_at(&mut state, 10 * LONG + 1);
    decide_at(&mut state, 11 * LONG);
    assert_eq!(kept_in_short(&state), None);
    decide_at(&mut state, 11 * LONG + 1);
    assert_eq!(kept(&state).expect("kept").gang, "no-quota".into());
}

#[test]
fn who_is_gone_in_time_is_let_in_and_nobody_else() {
    let last = 1_000 - LONG;
    let in_time = RunTime {
        max_seconds: Some(last.unsigned_abs()),
        ..RunTime::default()
    };
    let too_long = RunTime {
        max_seconds: Some(last.unsigned_abs() + 1),
        ..RunTime::default()
    };
    let yields_at_once = RunTime {
        preemptable_after_seconds: Some(0),
        ..RunTime::default()
    };
    let yields_too_late = RunTime {
        preemptable_after_seconds: Some(last.unsigned_abs() + 1),
        ..RunTime::default()
    };
    let ends_slowly = RunTime {
        ends_within_seconds: 1,
        ..in_time
    };
    // Run time, Team, priority, queued before the head, and whether it starts.
    let table = [
        (in_time, "small", 0, false, true),
        (too_long, "small", 0, false, false),
        (ends_slowly, "small", 0, false, false),
        (RunTime::default(), "small", 0, false, false),
        (RunTime::default(), "small", 1, false, true),
        (RunTime::default(), "large", 0, true, true),
        (RunTime::default(), "large", 0, false, false),
        (yields_at_once, "large", -1, false, true),
        (yields_too_late, "large", -1, false, false),
        (yields_at_once, "large", 0, false, false),
        (yields_at_once, "small", -1, false, false),
    ];
    for (run_time, of, priority, before, starts) in table {
        let mut state = half_full(Some(1_000));
        let preempts = Team {
            preemption: PreemptionPolicy {
                within_team: WithinTeam::LowerPriority,
                ..PreemptionPolicy::NEVER
            },
            ..rich("large")
        };
        state.apply(Update::Team(preempts));
        decide_at(&mut state, LONG);
        assert!(kept(&state).is_some());
        let mut other = with_priority(priority, gang("other", of, 1, 4));
        other.run_time = run_time;
        other.queued_at = Timestamp(if before { -1 } else { LONG });
        let what = format!("{run_time:?} {of} {priority} {before}");
        submit(&mut state, [other]);
        let expected: &[&str] = if starts { &["other"] } else { &[] };
        assert_eq!(admitted(&decide_at(&mut state, LONG)), expected, "{what}");
    }
}

#[test]
fn nobody_is_let_in_any_more_once_it_is_too_late() {
    let mut state = half_full(Some(1_000));
    decide_at(&mut state, LONG);
    submit(&mut state, [within(300, gang("first", "small", 1, 2))]);
    assert_eq!(admitted(&decide_at(&mut state, 650)), ["first"]);
    submit(&mut state, [within(300, gang("second", "small", 1, 2))]);
    assert_eq!(admitted(&decide_at(&mut state, 701)), Vec::<String>::new());
    let Why::HeldOff { behind, seconds } = why(&state, "second") else {
        panic!("{:?}", why(&state, "second"));
    };
    assert_eq!((behind.as_str(), seconds), ("large/head", Some(299)));
    let text = why(&state, "second").to_string();
    assert!(
        text.contains("max-runtime-seconds of at most 240"),
        "{text}"
    );
}

#[test]
fn what_comes_free_where_a_place_is_kept_wakes_those_who_may_use_it() {
    let mut state = cluster(1, 2, vec![rich("large"), rich("small")]);
    runs(&mut state, "old", "n00", 0..4, Some(5_000));
    runs(&mut state, "other", "n01", 0..4, Some(4_000));
    submit(&mut state, [gang("head", "large", 2, 4)]);
    submit(
        &mut state,
        [
            gang("endless", "small", 1, 1),
            within(3_600, gang("brief", "small", 1, 1)),
        ],
    );
    decide_at(&mut state, 0);
    decide_at(&mut state, LONG);
    assert_eq!(
        kept(&state).expect("kept").starts_at,
        Some(Timestamp(5_000))
    );
    ends(&mut state, "other");
    assert_eq!(admitted(&decide_at(&mut state, 1_000)), ["brief"]);
}

#[test]
fn the_nodes_that_are_free_soonest_are_kept() {
    // For each leaf who runs on its two nodes: until when, or nobody knows.
    type Ends = [[Option<i64>; 2]; 3];
    let table: [(&str, Ends, &str, Option<i64>); 5] = [
        (
            "by the last to end",
            [
                [Some(900), Some(2_000)],
                [Some(1_500), Some(1_600)],
                [Some(3_000), Some(700)],
            ],
            "n1",
            Some(1_600),
        ),
        (
            "whoever is known to end before whoever is not",
            [
                [None, Some(700)],
                [Some(50_000), Some(50_000)],
                [None, None],
            ],
            "n1",
            Some(50_000),
        ),
        (
            "as few as possible of whom it is not known",
            [[None, None], [None, Some(40_000)], [None, None]],
            "n1",
            None,
        ),
        (
            "an end after more than a day says nothing",
            [
                [Some(90_000_000), Some(700)],
                [Some(700), Some(80_000)],
                [None, None],
            ],
            "n1",
            Some(80_000),
        ),
        (
            "whoever should have ended does so any time",
            [
                [Some(2_000), Some(2_000)],
                [Some(1), Some(700)],
                [None, None],
            ],
            "n1",
            Some(700),
        ),
    ];
    for (what, leaves, expected, starts_at) in table {
        let mut state = cluster(3, 2, vec![rich("large")]);
        for (leaf, ends) in leaves.into_iter().enumerate() {
            for (at, until) in ends.into_iter().enumerate() {
                runs(
                    &mut state,
                    &format!("r{leaf}{at}"),
                    &format!("n{leaf}{at}"),
                    0..4,
                    until,
                );
            }
        }
        submit(&mut state, [requiring("leaf", gang("head", "large", 2, 4))]);
        decide_at(&mut state, 0);
        decide_at(&mut state, LONG);
        let kept = kept_in_short(&state).expect("kept");
        assert!(
            kept.1.iter().all(|node| node.starts_with(expected)),
            "{what}: {kept:?}"
        );
        assert_eq!((kept.1.len(), kept.2), (2, starts_at), "{what}");
    }
}

#[test]
fn part_of_a_node_may_be_free_before_all_of_it_is() {
    let mut state = cluster(1, 2, vec![rich("large")]);
    runs(&mut state, "a", "n00", 0..2, Some(800));
    runs(&mut state, "b", "n00", 2..4, None);
    runs(&mut state, "c", "n01", 0..4, Some(5_000));
    submit(
        &mut state,
        [gang("head", "large", 1, 2), gang("more", "large", 1, 2)],
    );
    decide_at(&mut state, 0);
    decide_at(&mut state, LONG);
    let expected = ("head".to_owned(), vec!["n00".to_owned()], Some(800));
    assert_eq!(kept_in_short(&state), Some(expected));
}

#[test]
fn where_no_end_is_known_no_more_stands_idle_than_the_gangs_own_for_a_while() {
    let mut state = half_full(None);
    decide_at(&mut state, LONG);
    submit(&mut state, [gang("small", "small", 1, 1)]);
    // Four of its eight GPUs stand idle: it takes twice as long.
    let decisions = decide_at(&mut state, LONG);
    assert_eq!(admitted(&decisions), Vec::<String>::new());
    let used_up = LONG + 2 * LONG;
    assert_eq!(decisions.look_again_at, Some(Timestamp(used_up)));
    assert_eq!(
        admitted(&decide_at(&mut state, used_up - 1)),
        Vec::<String>::new()
    );
    let last = kept(&state).expect("kept");
    assert_eq!(last.most_idle_gpu_seconds, Some(8_000 * i128::from(LONG)));
    assert_eq!(last.idle_gpu_seconds, 4_000 * i128::from(2 * LONG - 1));
    let decisions = decide_at(&mut state, used_up);
    assert_eq!(admitted(&decisions), ["small"]);
    assert_eq!(kept_in_short(&state), None);
    // Nothing is kept until the gang's own GPUs would have come to as much, and then again.
    let rested = used_up + LONG;
    assert_eq!(decisions.look_again_at, Some(Timestamp(rested)));
    decide_at(&mut state, rested - 1);
    assert_eq!(kept_in_short(&state), None);
    decide_at(&mut state, rested);
    assert!(kept(&state).is_some());
}

#[test]
fn who_does_not_end_in_time_makes_unknown_what_was_known() {
    let mut state = half_full(Some(1_000));
    decide_at(&mut state, LONG);
    assert_eq!(kept(&state).expect("kept").most_idle_gpu_seconds, None);
    let decisions = decide_at(&mut state, 1_000);
    let late = kept(&state).expect("kept");
    let so_far = 4_000 * 400;
    assert_eq!((late.starts_at, late.idle_gpu_seconds), (None, so_far));
    let most = so_far + 8_000 * i128::from(LONG);
    assert_eq!(late.most_idle_gpu_seconds, Some(most));
    assert_eq!(decisions.look_again_at, Some(Timestamp(1_000 + 2 * LONG)));
    decide_at(&mut state, 1_000 + 2 * LONG);
    assert_eq!(kept_in_short(&state), None);
}

#[test]
fn who_borrows_has_a_place_kept_at_no_more_cost_though_it_is_known_when_it_is_free() {
    let lender = team("lender", Some("all"), limit(1_000));
    let borrower = team("large", Some("all"), limit(0));
    let mut state = cluster(1, 2, vec![lender, borrower]);
    state.apply(Update::Cohort(cohort("all", None, 0)));
    runs(&mut state, "old", "n00", 0..4, Some(50_000));
    submit(&mut state, [gang("head", "large", 2, 4)]);
    decide_at(&mut state, 0);
    decide_at(&mut state, LONG);
    let kept = kept(&state).expect("kept");
    assert_eq!(kept.starts_at, Some(Timestamp(50_000)));
    assert_eq!(kept.most_idle_gpu_seconds, Some(8_000 * i128::from(LONG)));
}

#[test]
fn a_flavor_keeps_one_place_and_teams_take_turns() {
    let teams = ["a", "b", "c"];
    let mut state = cluster(1, 2, teams.map(rich).to_vec());
    runs(&mut state, "old", "n00", 0..4, None);
    for (at, of) in (0..).zip(teams) {
        // The first Team has many more that waited for longer.
        for number in 0..3 {
            let name = format!("{of}{number}");
            let large = within(1_000 + number, gang(&name, of, 2, 4));
            submit(&mut state, [with_priority(0, common::at(10 * at, large))]);
        }
    }
    decide_at(&mut state, 30);
    let mut now = 30 + LONG;
    let mut turns = Vec::new();
    for _ in 0..6 {
        let decisions = decide_at(&mut state, now);
        assert!(state.head_reservations().count() <= 1);
        turns.extend(kept(&state).map(|kept| kept.gang.to_string()));
        now = decisions.look_again_at.expect("something is due").0;
        let decisions = decide_at(&mut state, now);
        assert_eq!(kept_in_short(&state), None, "it is given up at {now}");
        now = decisions.look_again_at.expect("something is due").0;
    }
    assert_eq!(turns, ["a0", "b0", "c0", "a0", "b0", "c0"]);
}

#[test]
fn who_withdraws_and_comes_again_keeps_nothing_idle_by_that() {
    let mut state = half_full(None);
    submit(&mut state, [common::at(1, gang("next", "large", 2, 4))]);
    decide_at(&mut state, LONG);
    decide_at(&mut state, 2 * LONG);
    assert_eq!(kept(&state).expect("kept").gang, "head".into());
    state.apply(Update::NotWaiting("head".into()));
    let decisions = decide_at(&mut state, 2 * LONG);
    assert_eq!(kept_in_short(&state), None);
    // Half of its eight GPUs stood idle.
    let rested = 2 * LONG + LONG / 2;
    assert_eq!(decisions.look_again_at, Some(Timestamp(rested)));
    decide_at(&mut state, rested - 1);
    assert_eq!(kept_in_short(&state), None);
    decide_at(&mut state, rested);
    assert_eq!(kept(&state).expect("kept").gang, "next".into());
}

#[test]
fn a_new_leader_goes_on_counting() {
    let mut state = cluster(1, 2, vec![rich("large")]);
    runs(&mut state, "old", "n00", 0..4, Some(90_000));
    let mut head = gang("head", "large", 2, 4);
    head.lacks_place_since = Some(Timestamp(9_500));
    submit(&mut state, [head]);
    let decisions = decide_at(&mut state, 10_000);
    assert_eq!(kept_in_short(&state), None);
    assert_eq!(decisions.look_again_at, Some(Timestamp(9_500 + LONG)));
    decide_at(&mut state, 9_500 + LONG);
    assert!(kept(&state).is_some());
    // What was seen before is not another gang, and no reason to begin anew.
    let mut told = gang("head", "large", 2, 4);
    told.lacks_place_since = Some(Timestamp(9_700));
    submit(&mut state, [told]);
    decide_at(&mut state, 9_500 + LONG + 1);
    assert!(kept(&state).is_some());
}

/// Whoever led before kept a place for it: those who come later do not get that because somebody else leads.
#[test]
fn a_new_leader_gives_away_no_place_that_was_kept() {
    for since in [None, Some(Timestamp(0))] {
        let mut state = cluster(1, 2, vec![rich("large"), rich("small")]);
        runs(&mut state, "old", "n00", 0..4, Some(90_000));
        let mut head = gang("head", "large", 2, 4);
        head.lacks_place_since = since;
        submit(
            &mut state,
            [head, common::at(1, gang("small", "small", 1, 1))],
        );
        let first = admitted(&decide_at(&mut state, 10_000));
        assert_eq!(first.is_empty(), since.is_some(), "{since:?}");
        assert_eq!(kept(&state).is_some(), since.is_some(), "{since:?}");
    }
}

#[test]
fn a_place_is_given_up_with_its_nodes_its_quota_or_its_gang() {
    type Change = fn(&mut State);
    let table: [(&str, Change); 5] = [
        ("a node is cordoned", |state| {
            let mut cordoned = node("n01", "s/l0", GPUS_PER_NODE);
            cordoned.block = Some(muster_engine::NodeBlock::Cordoned);
            state.apply(Update::Node(cordoned));
        }),
        ("a node is gone", |state| {
            state.apply(Update::NodeGone("n01".into()));
        }),
        ("the Team has less quota", |state| {
            state.apply(Update::Team(team("large", None, limit(7))));
        }),
        ("the Team is stopped", |state| {
            state.apply(Update::Team(Team {
                stop: muster_engine::Stop::Hold,
                ..rich("large")
            }));
        }),
        ("the gang is withdrawn", |state| {
            state.apply(Update::NotWaiting("head".into()));
        }),
    ];
    for (what, change) in table {
        let mut state = half_full(Some(5_000));
        decide_at(&mut state, LONG);
        assert!(kept(&state).is_some());
        change(&mut state);
        decide_at(&mut state, LONG + 10);
        assert_eq!(kept_in_short(&state), None, "{what}");
    }
}

#[test]
fn it_is_told_with_its_cost() {
    let mut state = half_full(Some(3_000));
    let changed = decide_at(&mut state, LONG).reasons_changed;
    assert_eq!(changed.gangs, Vec::<GangUid>::new());
    assert_eq!(changed.teams, [team_name("large")]);
    decide_at(&mut state, LONG + 450);
    assert_eq!(
        why(&state, "head").to_string(),
        "2 nodes of h100 in s/l0, where it fits soonest, are kept for it for 8 minutes now; who runs there ends within 33 \
         minutes; 0.5 GPU hours stood idle for that"
    );
    let mut state = half_full(None);
    decide_at(&mut state, LONG);
    let text = why(&state, "head").to_string();
    assert!(
        text.contains("when who runs there ends is not known"),
        "{text}"
    );
    assert!(
        text.ends_with("0 GPU hours stood idle for that, of 1.333 GPU hours at most"),
        "{text}"
    );
}

#[test]
fn hostile_numbers_are_as_good_as_none() {
    for most in [0, 1, u64::MAX, u64::MAX - 1, 1 << 63] {
        let mut state = half_full(Some(1_000));
        decide_at(&mut state, LONG);
        submit(&mut state, [within(most, gang("other", "small", 1, 4))]);
        let starts = admitted(&decide_at(&mut state, LONG)).len() == 1;
        assert_eq!(starts, most <= 1, "{most}");
    }
    for until in [i64::MIN, i64::MAX, -1] {
        for queued_at in [i64::MIN, i64::MAX, 0] {
            let mut state = cluster(1, 2, vec![rich("large")]);
            runs(&mut state, "old", "n00", 0..4, Some(until));
            submit(
                &mut state,
                [common::at(queued_at, gang("head", "large", 2, 4))],
            );
            for now in [0, LONG, i64::MAX, 0, i64::MIN, LONG, i64::MAX] {
                decide_at(&mut state, now);
            }
        }
    }
}

/// A clock that goes back stands still: nothing is given up, counted twice, or kept anew.
#[test]
fn a_clock_that_goes_back_stands_still() {
    let mut state = half_full(None);
    decide_at(&mut state, LONG);
    decide_at(&mut state, LONG + 100);
    let before = kept(&state);
    for now in [LONG, 0, -5_000, LONG + 100] {
        decide_at(&mut state, now);
        assert_eq!(kept(&state), before, "{now}");
    }
}

/// Ten thousand heads: one search in each call, and what a call costs does not grow with those who wait.
#[test]
fn of_many_heads_one_has_a_place_looked_for_in_a_call() {
    let cost = |heads: usize| {
        let teams = (0..heads).map(|at| rich(&format!("t{at:05}")));
        let mut state = cluster(1, 2, teams.collect());
        runs(&mut state, "old", "n00", 0..4, None);
        for at in 0..heads {
            submit(
                &mut state,
                [gang(&format!("g{at:05}"), &format!("t{at:05}"), 2, 4)],
            );
        }
        decide_at(&mut state, 0);
        decide_at(&mut state, LONG);
        assert!(kept(&state).is_some());
        let before = state.visited();
        // Somebody comes and goes where nothing is kept for anybody.
        for at in 0..10 {
            decide_at(&mut state, LONG + at);
        }
        state.visited() - before
    };
    let (few, many) = (cost(10), cost(10_000));
    assert!(many <= few + 10, "{few} {many}");
}

#[test]
fn a_place_in_a_large_cluster_costs_a_look_at_each_node_once() {
    let cost = |leaves: usize| {
        let mut state = cluster(leaves, 10, vec![rich("large"), rich("small")]);
        for leaf in 0..leaves {
            for at in 0..10 {
                let (name, node) = (format!("r{leaf}-{at}"), format!("n{leaf}{at}"));
                runs(
                    &mut state,
                    &name,
                    &node,
                    0..4,
                    Some(10_000 + i64::try_from(leaf).expect("small")),
                );
            }
        }
        submit(&mut state, [requiring("leaf", gang("head", "large", 8, 4))]);
        decide_at(&mut state, 0);
        let before = state.visited();
        decide_at(&mut state, LONG);
        assert!(kept(&state).is_some());
        let looks = state.visited() - before;
        submit(&mut state, [within(60, gang("s0", "small", 1, 1))]);
        decide_at(&mut state, LONG);
        let before = state.visited();
        for at in 1..50 {
            submit(
                &mut state,
                [within(60, gang(&format!("s{at}"), "small", 1, 1))],
            );
            decide_at(&mut state, LONG + at);
        }
        (looks, state.visited() - before)
    };
    let ((few, few_events), (many, many_events)) = (cost(10), cost(100));
    assert!(many <= 10 * few + 1_000, "{few} {many}");
    assert!(many_events <= few_events + 50, "{few_events} {many_events}");
}
