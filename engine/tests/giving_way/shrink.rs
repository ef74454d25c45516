//! Who goes where a Team uses more than it may, and who stays.

use std::collections::{BTreeMap, BTreeSet};

use crate::common::*;
use muster_engine::{
    Amount, Budget, Cohort, Decisions, GangUid, Hold, NodeBlock, QuotaLimit, Resource,
    ResourceCharge, Running, Shrink, State, Team, Timestamp, Update, Why,
    quota::{PreemptionPolicy, WithinTeam},
};
use proptest::prelude::*;

/// For how long somebody is chosen before it is to go.
const LASTS_SECONDS: i64 = 60;

fn evicting(name: &str, cohort: Option<&str>, nominal: i64) -> Team {
    Team {
        shrink: Shrink::Evict,
        ..team(name, cohort, limit(nominal))
    }
}

fn keeping(name: &str, cohort: Option<&str>, nominal: i64) -> Team {
    team(name, cohort, limit(nominal))
}

/// A gang that runs: its name, Team, priority, when it was admitted, and its GPUs.
type Gang<'a> = (&'a str, &'a str, i32, i64, usize);

fn hold_of((name, team, _, _, devices): Gang<'_>) -> Hold {
    let devices: Vec<usize> = (0..devices).collect();
    Hold {
        gang: name.into(),
        gang_name: format!("{team}/{name}"),
        ..hold(name, team, "n0", &devices)
    }
}

fn running((name, team, priority, admitted_at, _): Gang<'_>) -> Running {
    Running {
        uid: name.into(),
        team: team.into(),
        priority,
        queued_at: Timestamp(0),
        admitted_at: Timestamp(admitted_at),
        checkpointed_at: None,
        is_made_again: true,
        protected_until: None,
        ending_since: None,
        notice_seconds: 0,
        may_be_preempted: true,
        is_told_over_quota: false,
    }
}

fn with(teams: &[Team], gangs: &[Gang<'_>]) -> State {
    let mut state = state(vec![node("n0", "s/l", 64)], teams.to_vec());
    for gang in gangs {
        state.apply(Update::Hold(hold_of(*gang)));
        state.apply(Update::Running(running(*gang)));
    }
    state
}

fn decide_at(state: &mut State, seconds: i64) -> Decisions {
    let decisions = state.decide(Timestamp(seconds), &Budget::UNLIMITED);
    let again = state.clone().decide(Timestamp(seconds), &Budget::UNLIMITED);
    assert_eq!(again.look_again_at, decisions.look_again_at);
    decisions
}

/// Of these gangs, those that are to go.
fn going(state: &State, gangs: &[Gang<'_>]) -> Vec<String> {
    let names = gangs.iter().map(|gang| gang.0.to_owned());
    let going = names.filter(|name| state.over_quota(&GangUid::from(name.as_str())).is_some());
    going.collect()
}

/// What it is about; Cohorts, Teams, gangs; who goes.
type Case<'a> = (
    &'a str,
    Vec<Cohort>,
    Vec<Team>,
    &'a [Gang<'a>],
    &'a [&'a str],
);

#[test]
fn so_many_go_as_it_takes_and_the_first_to_go_is_who_matters_least() {
    let pool = |nominal| vec![cohort("all", None, nominal)];
    let limited = |name: &str, nominal, borrowing| Team {
        shrink: Shrink::Evict,
        ..team(
            name,
            Some("all"),
            QuotaLimit {
                borrowing_limit: Some(gpus(borrowing)),
                ..limit(nominal)
            },
        )
    };
    let two: &[Gang<'_>] = &[("a", "t", 5, 1, 4), ("b", "t", 5, 2, 4)];
    let cases: Vec<Case<'_>> = vec![
        (
            "nobody where nothing is over",
            vec![],
            vec![evicting("t", None, 8)],
            two,
            &[],
        ),
        (
            "nobody of a Team that keeps its gangs",
            vec![],
            vec![keeping("t", None, 0)],
            two,
            &[],
        ),
        (
            "of equals who was admitted last",
            vec![],
            vec![evicting("t", None, 4)],
            two,
            &["b"],
        ),
        (
            "the lower priority first",
            vec![],
            vec![evicting("t", None, 5)],
            &[("a", "t", 1, 1, 4), ("b", "t", 5, 2, 4)],
            &["a"],
        ),
        (
            "all if nothing is left",
            vec![],
            vec![evicting("t", None, 0)],
            two,
            &["a", "b"],
        ),
        (
            "who was taken in vain is put back",
            vec![],
            vec![evicting("t", None, 5)],
            &[
                ("large", "t", 1, 1, 4),
                ("small", "t", 1, 2, 1),
                ("high", "t", 9, 0, 4),
            ],
            &["large"],
        ),
        (
            "what a pool has no more is given back by who borrows it, and not by who lends",
            pool(0),
            vec![
                evicting("t", Some("all"), 2),
                evicting("lends", Some("all"), 4),
            ],
            &[
                ("a", "t", 9, 1, 2),
                ("b", "t", 9, 2, 2),
                ("low", "lends", 0, 3, 4),
            ],
            &["b"],
        ),
        (
            "of all that borrow the lower priority, whatever its Team",
            pool(2),
            vec![evicting("t", Some("all"), 0), evicting("u", Some("all"), 0)],
            &[("a", "t", 9, 1, 2), ("b", "u", 1, 2, 2)],
            &["b"],
        ),
        (
            "who keeps what it borrows costs nobody what is its own",
            pool(0),
            vec![
                keeping("keeps", Some("all"), 0),
                evicting("t", Some("all"), 2),
            ],
            &[
                ("k", "keeps", 0, 1, 3),
                ("small", "t", 0, 9, 1),
                ("large", "t", 0, 1, 3),
            ],
            &["large"],
        ),
        (
            "what may be borrowed is a limit as well",
            pool(16),
            vec![limited("t", 2, 2)],
            two,
            &["b"],
        ),
        (
            "within a Cohort that borrows nothing nobody goes for the one above",
            vec![
                cohort("all", None, 0),
                cohort("below", Some("all"), 4),
                cohort("beside", Some("all"), 0),
            ],
            vec![
                evicting("t", Some("below"), 0),
                evicting("u", Some("beside"), 0),
            ],
            &[("a", "t", 0, 9, 4), ("b", "u", 9, 1, 4)],
            &["b"],
        ),
    ];
    for (about, cohorts, teams, gangs, expected) in cases {
        let mut state = with(&teams, gangs);
        for cohort in cohorts {
            state.apply(Update::Cohort(cohort));
        }
        decide_at(&mut state, 0);
        assert_eq!(going(&state, gangs), [""; 0], "{about}: not at once");
        decide_at(&mut state, LASTS_SECONDS);
        assert_eq!(going(&state, gangs), expected, "{about}");
        // Whoever goes is waited for, and nobody goes for it besides.
        for gang in expected {
            state.apply(Update::Ending((*gang).into()));
        }
        decide_at(&mut state, 2 * LASTS_SECONDS);
        decide_at(&mut state, 3 * LASTS_SECONDS);
        assert_eq!(going(&state, gangs), [""; 0], "{about}: they end");
        for gang in expected {
            state.apply(Update::HoldGone((*gang).into()));
        }
        decide_at(&mut state, 4 * LASTS_SECONDS);
        decide_at(&mut state, 5 * LASTS_SECONDS);
        assert_eq!(going(&state, gangs), [""; 0], "{about}: they are gone");
    }
}

#[test]
fn it_is_said_what_is_over_where_and_by_how_much() {
    let gangs = [("a", "t", 0, 1, 4), ("b", "t", 0, 2, 2)];
    let mut state = with(&[evicting("t", None, 4)], &gangs);
    decide_at(&mut state, 0);
    decide_at(&mut state, LASTS_SECONDS);
    let why = state.over_quota(&"b".into()).unwrap().to_string();
    assert_eq!(
        why,
        "Team t uses 6 GPUs of h100 where 4 may be used, and the Team says shrink: Evict"
    );
    let mut state = with(&[evicting("t", Some("all"), 0)], &gangs);
    state.apply(Update::Cohort(cohort("all", None, 4)));
    decide_at(&mut state, 0);
    decide_at(&mut state, LASTS_SECONDS);
    let why = state.over_quota(&"b".into()).unwrap().to_string();
    let expected =
        "Cohort all, from which Team t borrows, uses 6 GPUs of h100 where 4 may be used, ";
    assert!(why.starts_with(expected), "{why}");
}

#[test]
fn what_is_over_when_a_gang_is_to_go_is_said_and_not_what_was_when_it_was_chosen() {
    let limits = [
        (Resource::Gpus, limit(4)),
        (
            Resource::Cpu,
            QuotaLimit {
                nominal: Amount(4_000),
                ..QuotaLimit::default()
            },
        ),
    ];
    let both = Team {
        quota: vec![(H100.into(), BTreeMap::from(limits))],
        ..evicting("t", None, 0)
    };
    let gangs = [("ends", "t", 9, 1, 2), ("goes", "t", 0, 2, 4)];
    let mut state = with(&[both], &gangs);
    state.apply(Update::Hold(Hold {
        charged: vec![ResourceCharge::new(
            H100.into(),
            Resource::Cpu,
            Amount(6_000),
        )],
        ..hold_of(gangs[1])
    }));
    decide_at(&mut state, 0);
    state.apply(Update::HoldGone("ends".into()));
    decide_at(&mut state, 30);
    decide_at(&mut state, LASTS_SECONDS);
    let over = state.over_quota(&"goes".into()).expect("it is to go");
    assert_eq!(
        (&over.of.resource, over.used, over.most),
        (&Resource::Cpu, Amount(6_000), Amount(4_000))
    );
}

#[test]
fn of_those_that_were_told_the_last_one_chosen_stays_if_one_may() {
    // By name they would be in the other order.
    let gangs = [("a", "t", 9, 1, 4), ("b", "t", 0, 2, 4)];
    let mut state = with(&[evicting("t", None, 0)], &gangs);
    decide_at(&mut state, 0);
    decide_at(&mut state, LASTS_SECONDS);
    assert_eq!(going(&state, &gangs), ["a", "b"]);
    state.apply(Update::Team(evicting("t", None, 4)));
    decide_at(&mut state, 2 * LASTS_SECONDS);
    assert_eq!(going(&state, &gangs), ["b"]);
}

#[test]
fn who_was_told_and_ends_counts_once_beside_another_that_has_to_go() {
    let gangs = [
        ("a", "t", 0, 9, 4),
        ("b", "t", 1, 8, 4),
        ("c", "t", 2, 7, 4),
    ];
    let mut state = with(&[evicting("t", None, 8)], &gangs);
    decide_at(&mut state, 0);
    decide_at(&mut state, LASTS_SECONDS);
    assert_eq!(going(&state, &gangs), ["a"]);
    state.apply(Update::Ending("a".into()));
    state.apply(Update::Team(evicting("t", None, 4)));
    decide_at(&mut state, 2 * LASTS_SECONDS);
    decide_at(&mut state, 3 * LASTS_SECONDS);
    assert_eq!(going(&state, &gangs), ["b"]);
}

#[test]
fn an_edit_that_is_taken_back_costs_nobody_and_the_time_begins_anew() {
    let gangs = [("a", "t", 0, 1, 4)];
    let mut state = with(&[evicting("t", None, 4)], &gangs);
    assert_eq!(decide_at(&mut state, 0).look_again_at, None);
    let lower = |state: &mut State, nominal| {
        state.apply(Update::Team(evicting("t", None, nominal)));
    };
    lower(&mut state, 0);
    let due = Some(Timestamp(100 + LASTS_SECONDS));
    assert_eq!(decide_at(&mut state, 100).look_again_at, due);
    // Limits that change once more, and are too low still, do not begin it anew.
    lower(&mut state, 1);
    assert_eq!(decide_at(&mut state, 130).look_again_at, due);
    lower(&mut state, 4);
    assert_eq!(decide_at(&mut state, 140).look_again_at, None);
    lower(&mut state, 0);
    decide_at(&mut state, 150);
    decide_at(&mut state, 150 + LASTS_SECONDS - 1);
    assert_eq!(going(&state, &gangs), [""; 0]);
    decide_at(&mut state, 150 + LASTS_SECONDS);
    assert_eq!(going(&state, &gangs), ["a"]);
    assert_eq!(state.take_changed_preemptions().len(), 1);
    // Until it is gone it may stay again, and that is told.
    lower(&mut state, 4);
    decide_at(&mut state, 300);
    assert_eq!(going(&state, &gangs), [""; 0]);
    assert_eq!(state.take_changed_preemptions().len(), 1);
    // So it is with a Team that does not ask for it any more.
    lower(&mut state, 0);
    decide_at(&mut state, 400);
    decide_at(&mut state, 400 + LASTS_SECONDS);
    assert_eq!(going(&state, &gangs), ["a"]);
    state.apply(Update::Team(keeping("t", None, 0)));
    decide_at(&mut state, 600);
    assert_eq!(going(&state, &gangs), [""; 0]);
    assert!(state.take_changed_preemptions().contains(&"a".into()));
}

#[test]
fn who_was_told_before_goes_first_and_at_once() {
    let gangs = [("a", "t", 9, 1, 4), ("b", "t", 0, 2, 4)];
    for is_told in [true, false] {
        let mut state = with(&[evicting("t", None, 4)], &gangs);
        state.apply(Update::Running(Running {
            ending_since: is_told.then_some(Timestamp(900)),
            is_told_over_quota: is_told,
            ..running(gangs[0])
        }));
        decide_at(&mut state, 1_000);
        let expected: &[&str] = if is_told { &["a"] } else { &[] };
        assert_eq!(going(&state, &gangs), expected);
        decide_at(&mut state, 1_000 + LASTS_SECONDS);
        let expected: &[&str] = if is_told { &["a"] } else { &["b"] };
        assert_eq!(going(&state, &gangs), expected);
    }
}

#[test]
fn a_checkpoint_moves_no_notice_and_who_came_to_a_lower_tier_no_other() {
    let gangs = [("a", "t", 0, 1, 4), ("b", "t", 0, 2, 4)];
    let mut state = with(&[evicting("t", None, 4)], &gangs);
    decide_at(&mut state, 0);
    let checkpoint = |state: &mut State, gang, at| {
        state.apply(Update::Running(Running {
            checkpointed_at: Some(Timestamp(at)),
            ..running(gang)
        }));
    };
    checkpoint(&mut state, gangs[0], 30);
    decide_at(&mut state, 30);
    // Other limits have those chosen anew that are not told yet, but nobody for another's checkpoint.
    state.apply(Update::Team(evicting("t", None, 5)));
    decide_at(&mut state, 40);
    decide_at(&mut state, LASTS_SECONDS);
    assert_eq!(going(&state, &gangs), ["b"]);
    state.apply(Update::Running(running(("a", "t", -5, 1, 4))));
    decide_at(&mut state, 2 * LASTS_SECONDS);
    assert_eq!(going(&state, &gangs), ["b"]);
}

#[test]
fn nobody_goes_who_was_not_told_as_running_and_whom_nobody_may_preempt_goes_last() {
    let gangs = [("a", "t", 0, 1, 4), ("b", "t", 100, 2, 4)];
    let mut state = with(&[evicting("t", None, 0)], &[]);
    for gang in gangs {
        state.apply(Update::Hold(hold_of(gang)));
    }
    state.apply(Update::Running(Running {
        may_be_preempted: false,
        protected_until: Some(Timestamp(10_000)),
        ..running(gangs[1])
    }));
    decide_at(&mut state, 0);
    decide_at(&mut state, LASTS_SECONDS);
    assert_eq!(going(&state, &gangs), ["b"]);
    // Once the other one is told, it is not too late for it.
    state.apply(Update::Team(evicting("t", None, 4)));
    state.apply(Update::Running(running(gangs[0])));
    decide_at(&mut state, 2 * LASTS_SECONDS);
    assert_eq!(going(&state, &gangs), ["b"], "it was told");
    state.apply(Update::NotRunning("b".into()));
    decide_at(&mut state, 3 * LASTS_SECONDS);
    decide_at(&mut state, 4 * LASTS_SECONDS);
    assert_eq!(going(&state, &gangs), ["a"]);
}

#[test]
fn whom_nobody_may_preempt_gives_way_to_nobody_whether_or_not_it_ends() {
    let preempting = Team {
        preemption: PreemptionPolicy {
            within_team: WithinTeam::LowerPriority,
            ..PreemptionPolicy::NEVER
        },
        ..evicting("t", None, 4)
    };
    for ends in [true, false] {
        let mut state = with(std::slice::from_ref(&preempting), &[]);
        let low = ("low", "t", 0, 1, 4);
        state.apply(Update::Hold(hold_of(low)));
        state.apply(Update::Running(Running {
            may_be_preempted: false,
            ..running(low)
        }));
        if ends {
            state.apply(Update::Ending("low".into()));
        }
        submit(&mut state, [with_priority(9, gang("high", "t", 1, 4))]);
        assert_eq!(decide_at(&mut state, 1).preemptions, []);
        assert!(matches!(why(&state, "high"), Why::Quota { .. }));
    }
}

#[test]
fn who_gives_way_to_another_gang_counts_as_gone() {
    let preempting = |nominal| Team {
        preemption: PreemptionPolicy {
            within_team: WithinTeam::LowerPriority,
            ..PreemptionPolicy::NEVER
        },
        ..evicting("t", None, nominal)
    };
    let gangs = [("low", "t", 0, 1, 4), ("middle", "t", 5, 1, 4)];
    let mut state = with(&[preempting(8)], &gangs);
    submit(&mut state, [with_priority(9, gang("high", "t", 1, 4))]);
    assert_eq!(decide_at(&mut state, 1).preemptions.len(), 1);
    state.apply(Update::Team(preempting(4)));
    // What is kept has no room any more, with one of four that stays: it is given up, or both go.
    decide_at(&mut state, 2);
    decide_at(&mut state, 2 + LASTS_SECONDS);
    let low: GangUid = "low".into();
    let goes = state.gives_way_to(&low).is_some() || state.over_quota(&low).is_some();
    assert!(goes, "it goes for one reason or the other");
    let is_both = state.gives_way_to(&low).is_some() && state.over_quota(&low).is_some();
    assert!(!is_both, "for one of them");
}

#[test]
fn drained_gpus_take_the_slack_first_and_then_who_runs_beyond_what_is_left() {
    let automatic = Team {
        quota: gpu_quota(QuotaLimit {
            automatic: true,
            ..QuotaLimit::default()
        }),
        ..evicting("t", None, 0)
    };
    let gangs = [("a", "t", 0, 1, 8), ("b", "t", 0, 2, 4)];
    let mut state = with(&[automatic], &gangs);
    let nodes = ["n1", "n2"];
    for name in nodes {
        state.apply(Update::Node(node(name, "s/l", 4)));
    }
    state.apply(Update::Node(node("n0", "s/l", 8)));
    let drain = |state: &mut State, name: &str, is_drained: bool| {
        state.apply(Update::Node(muster_engine::Node {
            block: is_drained.then_some(NodeBlock::Lost),
            ..node(name, "s/l", 4)
        }));
    };
    decide_at(&mut state, 0);
    // Sixteen GPUs, of which twelve are used.
    drain(&mut state, "n1", true);
    decide_at(&mut state, 10);
    decide_at(&mut state, 10 + LASTS_SECONDS);
    assert_eq!(going(&state, &gangs), [""; 0], "that was slack");
    // A node that comes and goes costs nobody.
    for at in 0..5 {
        drain(&mut state, "n2", at % 2 == 0);
        decide_at(&mut state, 100 + at * 30);
        assert_eq!(going(&state, &gangs), [""; 0]);
    }
    decide_at(&mut state, 220 + LASTS_SECONDS);
    assert_eq!(going(&state, &gangs), ["b"]);
}

#[test]
fn while_nobody_owes_anything_a_gang_that_comes_or_goes_costs_no_look_at_others() {
    let visits = |teams: usize| {
        let names: Vec<String> = (0..teams).map(|at| format!("t{at}")).collect();
        let evicting = names.iter().map(|name| evicting(name, Some("all"), 8));
        let mut state = with(&evicting.collect::<Vec<_>>(), &[]);
        let gangs: Vec<Gang<'_>> = names
            .iter()
            .map(|name| (&**name, &**name, 0, 1, 1))
            .collect();
        for gang in &gangs {
            state.apply(Update::Hold(hold_of(*gang)));
            state.apply(Update::Running(running(*gang)));
        }
        decide_at(&mut state, 0);
        let before = state.visited();
        let comes = ("comes", "t0", 0, 1, 1);
        state.apply(Update::Hold(hold_of(comes)));
        state.apply(Update::Running(running(comes)));
        decide_at(&mut state, 1);
        state.apply(Update::HoldGone("comes".into()));
        decide_at(&mut state, 2);
        state.visited() - before
    };
    assert_eq!(visits(2), visits(40));
}

/// The Teams of the model: their Cohort, and whether they evict.
const TEAMS: [(&str, Option<&str>); 5] = [
    ("alone", None),
    ("b", Some("left")),
    ("c", Some("left")),
    ("d", Some("right")),
    ("e", Some("top")),
];

#[derive(Clone, Debug)]
enum Step {
    Limits(usize, i64, Option<i64>, bool),
    Pool(usize, i64),
    Starts(usize, i32, usize),
    Ends(usize),
    Released(usize),
    Passes(i64),
}

fn step() -> impl Strategy<Value = Step> {
    let team = 0..TEAMS.len();
    prop_oneof![
        3 => (team.clone(), 0..8_i64, prop::option::of(0..4_i64), any::<bool>())
            .prop_map(|(team, nominal, borrowing, evicts)| Step::Limits(team, nominal, borrowing, evicts)),
        1 => (0..3_usize, 0..6_i64).prop_map(|(at, nominal)| Step::Pool(at, nominal)),
        4 => (team, 0..3_i32, 1..5_usize).prop_map(|(team, priority, devices)| Step::Starts(team, priority, devices)),
        1 => (0..20_usize).prop_map(Step::Ends),
        2 => (0..20_usize).prop_map(Step::Released),
        2 => (1..90_i64).prop_map(Step::Passes),
    ]
}

/// Quota as its documentation says, without lending limits: sums over all below.
struct Model {
    teams: Vec<(i64, Option<i64>, bool)>,
    pools: [i64; 3],
    /// Name, Team, GPUs, and whether it ends.
    gangs: Vec<(String, usize, i64, bool)>,
}

const POOLS: [(&str, Option<&str>); 3] =
    [("top", None), ("left", Some("top")), ("right", Some("top"))];

impl Model {
    fn path(team: usize) -> Vec<&'static str> {
        let mut path = Vec::new();
        let mut at = TEAMS[team].1;
        while let Some(name) = at {
            path.push(name);
            at = POOLS.iter().find(|pool| pool.0 == name).unwrap().1;
        }
        path
    }

    fn used(&self, team: usize, gone: &BTreeSet<String>) -> i64 {
        let gangs = self.gangs.iter();
        let stay = gangs.filter(|gang| gang.1 == team && !gang.3 && !gone.contains(&gang.0));
        stay.map(|gang| gang.2).sum()
    }

    /// Whether a Team has to give something back once these are gone.
    fn owes(&self, team: usize, gone: &BTreeSet<String>) -> bool {
        let (nominal, borrowing, _) = self.teams[team];
        let used = self.used(team, gone);
        let path = Self::path(team);
        if path.is_empty() {
            return used > nominal;
        }
        if borrowing.is_some_and(|most| used > nominal + most) {
            return true;
        }
        if used <= nominal {
            return false;
        }
        for (height, name) in path.iter().enumerate() {
            let below = |team: &usize| Self::path(*team).contains(name);
            let teams = || (0..TEAMS.len()).filter(below);
            let used: i64 = teams().map(|team| self.used(team, gone)).sum();
            let pools = POOLS.iter().zip(&self.pools);
            let pools = pools.filter(|(pool, _)| pool.0 == *name || pool.1 == Some(*name));
            let has: i64 = teams().map(|team| self.teams[team].0).sum::<i64>()
                + pools.map(|(_, nominal)| nominal).sum::<i64>();
            if height + 1 == path.len() {
                return used > has;
            }
            if used <= has {
                return false;
            }
        }
        false
    }

    /// Whether any Team that evicts owes something and has somebody left for it.
    fn is_any_owed(&self, gone: &BTreeSet<String>) -> bool {
        (0..TEAMS.len())
            .any(|team| self.teams[team].2 && self.used(team, gone) > 0 && self.owes(team, gone))
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn those_who_stay_are_within_the_limits_and_nobody_goes_who_could_be_spared(
        steps in prop::collection::vec(step(), 1..40),
    ) {
        let mut model = Model {
            teams: vec![(4, None, true); TEAMS.len()],
            pools: [0; 3],
            gangs: Vec::new(),
        };
        let of_team = |at: usize, (nominal, borrowing, evicts): (i64, Option<i64>, bool)| {
            let (name, cohort) = TEAMS[at];
            let borrowing_limit = borrowing.filter(|_| cohort.is_some()).map(gpus);
            Team {
                shrink: if evicts { Shrink::Evict } else { Shrink::Keep },
                ..team(name, cohort, QuotaLimit { borrowing_limit, ..limit(nominal) })
            }
        };
        let of_pool = |at: usize, nominal| cohort(POOLS[at].0, POOLS[at].1, nominal);
        let teams: Vec<Team> = (0..TEAMS.len()).map(|at| of_team(at, model.teams[at])).collect();
        let mut state = with(&teams, &[]);
        for at in 0..3 {
            state.apply(Update::Cohort(of_pool(at, 0)));
        }
        let mut now = 0;
        for (number, step) in steps.into_iter().enumerate() {
            match step {
                Step::Limits(at, nominal, borrowing, evicts) => {
                    model.teams[at] = (nominal, borrowing, evicts);
                    state.apply(Update::Team(of_team(at, model.teams[at])));
                }
                Step::Pool(at, nominal) => {
                    model.pools[at] = nominal;
                    state.apply(Update::Cohort(of_pool(at, nominal)));
                }
                Step::Starts(at, priority, devices) => {
                    let name = format!("g{number}");
                    let gang = (&*name, TEAMS[at].0, priority, now, devices);
                    state.apply(Update::Hold(hold_of(gang)));
                    state.apply(Update::Running(running(gang)));
                    model.gangs.push((name, at, i64::try_from(devices).unwrap(), false));
                }
                Step::Ends(at) => {
                    let count = model.gangs.len();
                    if let Some(gang) = model.gangs.get_mut(at % count.max(1)) {
                        gang.3 = true;
                        state.apply(Update::Ending(gang.0.as_str().into()));
                    }
                }
                Step::Released(at) => {
                    if !model.gangs.is_empty() {
                        let gang = model.gangs.remove(at % model.gangs.len());
                        state.apply(Update::HoldGone(gang.0.as_str().into()));
                    }
                }
                Step::Passes(seconds) => now += seconds,
            }
            decide_at(&mut state, now);
        }
        decide_at(&mut state, now + LASTS_SECONDS);
        let names = model.gangs.iter().map(|gang| gang.0.clone());
        let going: BTreeSet<String> =
            names.filter(|name| state.over_quota(&name.as_str().into()).is_some()).collect();
        prop_assert!(!model.is_any_owed(&going), "{going:?} do not suffice");
        for name in &going {
            let gang = model.gangs.iter().find(|gang| gang.0 == *name).unwrap();
            prop_assert!(model.teams[gang.1].2, "{name} is of a Team that keeps its gangs");
            prop_assert!(!gang.3, "{name} ends anyway");
            let mut others = going.clone();
            others.remove(name);
            prop_assert!(model.is_any_owed(&others), "of {going:?}, {name} could be spared");
        }
        if !model.is_any_owed(&BTreeSet::new()) {
            prop_assert!(going.is_empty());
        }
        // Once they are gone that is all.
        for name in &going {
            state.apply(Update::HoldGone(name.as_str().into()));
        }
        model.gangs.retain(|gang| !going.contains(&gang.0));
        decide_at(&mut state, now + 2 * LASTS_SECONDS);
        decide_at(&mut state, now + 3 * LASTS_SECONDS);
        let mut left = model.gangs.iter();
        prop_assert!(left.all(|gang| state.over_quota(&gang.0.as_str().into()).is_none()));
    }
}

/// Gangs that are not told as running go for no limit, as all of them in Observe and those that were found running: what their Team owes
/// it owes for as long as they run.
#[test]
fn while_a_team_owes_what_nobody_can_give_back_no_look_is_taken_at_all_of_its_gangs() {
    let visits = |gangs: usize| {
        let mut state = with(&[evicting("t", None, 1)], &[]);
        for at in 0..gangs {
            let name = format!("g{at}");
            state.apply(Update::Hold(hold_of((&name, "t", 0, 1, 1))));
        }
        decide_at(&mut state, 0);
        let before = state.visited();
        for at in 1..10 {
            state.apply(Update::Hold(hold_of(("comes", "t", 0, 1, 1))));
            decide_at(&mut state, 2 * at);
            state.apply(Update::HoldGone("comes".into()));
            decide_at(&mut state, 2 * at + 1);
        }
        state.visited() - before
    };
    assert_eq!(visits(4), visits(400));
}

/// A driver that is down for long has its slices wiped by the kubelet. What runs there runs on, and its GPUs are no fewer.
#[test]
fn nobody_goes_for_gpus_of_which_a_driver_says_nothing_while_they_are_held() {
    let automatic = Team {
        quota: gpu_quota(QuotaLimit {
            automatic: true,
            ..QuotaLimit::default()
        }),
        ..evicting("t", None, 0)
    };
    let on_n1 = ("silent", "t", 0, 2, 4);
    let gangs = [("a", "t", 0, 1, 8), on_n1];
    let mut state = with(std::slice::from_ref(&automatic), &gangs);
    state.apply(Update::Node(node("n0", "s/l", 8)));
    state.apply(Update::Node(node("n1", "s/l", 4)));
    state.apply(Update::Hold(Hold {
        node: "n1".into(),
        ..hold_of(on_n1)
    }));
    decide_at(&mut state, 0);
    state.apply(Update::Node(node("n1", "s/l", 0)));
    for at in 1..10 {
        decide_at(&mut state, at * LASTS_SECONDS);
        assert_eq!(going(&state, &gangs), [""; 0], "after {at} minutes");
    }
    // Nor for those of its gangs that hold nothing there, though a new leader never saw the devices.
    let mut new = with(&[automatic], &gangs);
    new.apply(Update::Node(node("n0", "s/l", 8)));
    new.apply(Update::Hold(Hold {
        node: "n1".into(),
        ..hold_of(on_n1)
    }));
    new.apply(Update::Node(node("n1", "s/l", 0)));
    decide_at(&mut new, 0);
    decide_at(&mut new, LASTS_SECONDS);
    assert_eq!(going(&new, &gangs), [""; 0]);
    // A limit that is lowered meanwhile is heeded once the driver is back.
    state.apply(Update::Team(evicting("t", None, 8)));
    decide_at(&mut state, 700);
    decide_at(&mut state, 700 + LASTS_SECONDS);
    assert_eq!(going(&state, &gangs), [""; 0]);
    state.apply(Update::Node(node("n1", "s/l", 4)));
    decide_at(&mut state, 800);
    assert_eq!(going(&state, &gangs), [""; 0]);
    decide_at(&mut state, 800 + LASTS_SECONDS);
    assert_eq!(going(&state, &gangs), ["silent"]);
}

/// A defect once: nobody went before the clock was as late again as it had been.
#[test]
fn whoever_goes_for_a_limit_goes_no_later_though_the_clock_goes_back() {
    let gangs: &[Gang<'_>] = &[("a", "t", 5, 1, 4), ("b", "t", 5, 2, 4)];
    let mut state = with(&[evicting("t", None, 4)], gangs);
    decide_at(&mut state, 100_000);
    let decisions = decide_at(&mut state, 1_000);
    let due = Timestamp(1_000 + LASTS_SECONDS);
    assert_eq!(decisions.look_again_at, Some(due));
    decide_at(&mut state, due.0 - 1);
    assert_eq!(going(&state, gangs), [""; 0]);
    decide_at(&mut state, due.0);
    assert_eq!(going(&state, gangs), ["b"]);
}
