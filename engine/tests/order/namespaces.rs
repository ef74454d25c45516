//! Who of one Team goes first where that depends on what namespaces used.

use std::collections::{BTreeMap, BTreeSet};

use crate::common::*;
use muster_engine::{
    AdmissionFairness, Amount, Budget, CommitRoom, Decisions, Gang, GangUid, NamespaceUse,
    Queueing, Resource, State, Team, Timestamp, Update, Why,
    quota::{PreemptionPolicy, Weight, WithinTeam},
};
use proptest::prelude::*;

/// Half of what was used counts after so long. Samples are taken as often, so that every factor is a power of two.
const HALF_LIFE: i64 = 600;

const TEAM: &str = "research";

fn fairness() -> AdmissionFairness {
    AdmissionFairness {
        half_life_seconds: HALF_LIFE.unsigned_abs(),
        sampling_interval_seconds: HALF_LIFE.unsigned_abs(),
        resource_weights: BTreeMap::from([(Resource::Gpus, Weight::ONE)]),
        namespace_weights: BTreeMap::new(),
    }
}

fn fair_team(nominal: i64) -> Team {
    Team {
        fairness: Some(fairness()),
        ..team(TEAM, None, limit(nominal))
    }
}

/// A gang of one pod.
fn asks(namespace: &str, name: &str, queued_at: i64, devices: u32) -> Gang {
    Gang {
        name: format!("{namespace}/{name}"),
        ..at(queued_at, gang(name, TEAM, 1, devices))
    }
}

fn decide_at(state: &mut State, seconds: i64) -> Decisions {
    state.decide(Timestamp(seconds), &Budget::UNLIMITED)
}

fn order(state: &State) -> Vec<String> {
    let team = team_name(TEAM);
    let queue = state.queue(&team);
    queue.map(|gang| gang.uid.to_string()).collect()
}

/// Thousandths of a GPU that a namespace used.
fn used(state: &State, namespace: &str) -> i64 {
    let told = state.namespace_use(&TEAM.into(), &namespace.into());
    told.map_or(0, |told| told.used[&Resource::Gpus].0)
}

/// All pods of what was admitted are told.
fn commit(state: &mut State, gangs: &[Gang], decisions: &Decisions) {
    for admission in &decisions.admissions {
        let gang = gangs.iter().find(|gang| gang.uid == admission.gang);
        for hold in holds_of(gang.expect("it was told"), admission) {
            state.apply(Update::Hold(hold));
        }
        state.apply(Update::NotWaiting(admission.gang.clone()));
    }
}

fn release(state: &mut State, name: &str) {
    state.apply(Update::HoldGone(format!("{name}-0").as_str().into()));
}

/// Namespaces a and b want one GPU each time, a since long before.
fn many_of_two(of_each: i64) -> Vec<Gang> {
    let all = (0..of_each).flat_map(|number| {
        [
            asks("a", &format!("a{number}"), number, 1),
            asks("b", &format!("b{number}"), 1_000 + number, 1),
        ]
    });
    all.collect()
}

#[test]
fn an_admission_counts_at_once_so_that_namespaces_take_turns() {
    let mut state = state(vec![node("n0", "", 4)], vec![fair_team(4)]);
    submit(&mut state, many_of_two(4));
    let decisions = decide_at(&mut state, 0);
    assert_eq!(admitted(&decisions), ["a0", "b0", "a1", "b1"]);
    // As much as one interval would count of it: half, twice.
    assert_eq!((used(&state, "a"), used(&state, "b")), (1_000, 1_000));
    assert_eq!(decisions.use_changed, [team_name(TEAM)]);
    assert_eq!(order(&state), ["a2", "a3", "b2", "b3"]);
}

#[test]
fn without_fairness_the_order_is_by_age_alone_and_nothing_is_told_of_use() {
    let mut state = state(vec![node("n0", "", 4)], vec![team(TEAM, None, limit(4))]);
    submit(&mut state, many_of_two(4));
    let decisions = decide_at(&mut state, 0);
    assert_eq!(admitted(&decisions), ["a0", "a1", "a2", "a3"]);
    assert!(decisions.use_changed.is_empty() && decisions.look_again_at.is_none());
    assert!(state.namespace_use(&TEAM.into(), &"a".into()).is_none());
}

#[test]
fn a_higher_tier_goes_first_whatever_its_namespace_used() {
    let mut state = state(vec![node("n0", "", 2)], vec![fair_team(2)]);
    submit(&mut state, [asks("a", "a0", 0, 1)]);
    assert_eq!(admitted(&decide_at(&mut state, 0)), ["a0"]);
    submit(
        &mut state,
        [
            with_priority(1, asks("a", "urgent", 9, 1)),
            asks("b", "b0", 5, 1),
            asks("a", "a1", 1, 1),
        ],
    );
    assert_eq!(order(&state), ["urgent", "b0", "a1"]);
    assert_eq!(admitted(&decide_at(&mut state, 0)), ["urgent"]);
}

/// Both ask for the same, so that only the first of them is judged. The one that is first by use came too late to have the one that runs
/// give way.
#[test]
fn who_comes_to_stand_first_by_what_was_used_is_asked_whether_others_give_way_to_it() {
    let preempting = Team {
        preemption: PreemptionPolicy {
            within_team: WithinTeam::LowerOrNewerEqualPriority,
            ..PreemptionPolicy::NEVER
        },
        ..fair_team(6)
    };
    let mut state = state(vec![node("n0", "", 6)], vec![preempting]);
    let first = [asks("x", "stays", 0, 1), asks("y", "short", 1, 2)];
    submit(&mut state, first.clone());
    let decisions = decide_at(&mut state, 0);
    commit(&mut state, &first, &decisions);
    release(&mut state, "short");
    let runs = [asks("r", "runs", 5, 5)];
    submit(&mut state, runs.clone());
    let decisions = decide_at(&mut state, 0);
    assert_eq!(admitted(&decisions), ["runs"]);
    commit(&mut state, &runs, &decisions);
    state.apply(Update::Running(running_since(Timestamp(0), &runs[0])));
    submit(
        &mut state,
        [asks("x", "younger", 10, 5), asks("y", "older", 2, 5)],
    );
    assert_eq!((used(&state, "x"), used(&state, "y")), (500, 1_000));
    assert_eq!(decide_at(&mut state, 1).preemptions, []);
    assert_eq!(order(&state), ["younger", "older"]);
    let decisions = decide_at(&mut state, HALF_LIFE);
    assert_eq!((used(&state, "x"), used(&state, "y")), (750, 500));
    let preempting = decisions.preemptions.iter().map(|it| it.gang.as_str());
    assert_eq!(preempting.collect::<Vec<_>>(), ["older"]);
}

/// A gang of namespace `a` was admitted then, and holds all that there is.
fn one_holds_all_since(second: i64) -> State {
    let mut state = state(vec![node("n0", "", 4)], vec![fair_team(4)]);
    let gangs = [asks("a", "a0", 0, 4)];
    submit(&mut state, gangs.clone());
    let decisions = decide_at(&mut state, second);
    commit(&mut state, &gangs, &decisions);
    state
}

#[test]
fn what_was_used_halves_with_each_half_life_and_what_is_held_comes_to_count_whole() {
    let mut state = one_holds_all_since(0);
    assert_eq!(used(&state, "a"), 2_000);
    // Nothing changes before the next sample is due, and the engine says when that is.
    let look_again_at = decide_at(&mut state, HALF_LIFE - 1).look_again_at;
    let due = Some(Timestamp(HALF_LIFE));
    assert_eq!((used(&state, "a"), look_again_at), (2_000, due));
}

#[test]
fn samples_are_taken_when_the_engine_says_that_they_are_due() {
    let mut state = one_holds_all_since(0);
    let mut now = 0;
    let mut told = Vec::new();
    for round in 0..12 {
        let decisions = decide_at(&mut state, now);
        told.push(used(&state, "a"));
        if round == 5 {
            release(&mut state, "a0");
        }
        let Some(next) = decisions.look_again_at else {
            break;
        };
        assert_eq!(next.0, now + HALF_LIFE);
        now = next.0;
    }
    let held = [2_000, 3_000, 3_500, 3_750, 3_875, 3_938];
    let let_go = [1_969, 984, 492, 246, 123, 62];
    assert_eq!(told, [held, let_go].concat());
    // Two at once are as good as one after the other, and in the end nothing is left to look at.
    decide_at(&mut state, now + 2 * HALF_LIFE);
    assert_eq!(used(&state, "a"), 8);
    let decisions = decide_at(&mut state, now + 60 * HALF_LIFE);
    assert_eq!((used(&state, "a"), decisions.look_again_at), (0, None));
    assert_eq!(decisions.use_changed, [team_name(TEAM)]);
}

#[test]
fn an_admission_that_is_undone_leaves_no_trace_even_if_a_sample_was_taken_meanwhile() {
    let mut state = state(vec![node("n0", "", 8)], vec![fair_team(8)]);
    let first = [asks("a", "a0", 0, 1), asks("b", "b0", 1, 1)];
    submit(&mut state, first.clone());
    let decisions = decide_at(&mut state, 0);
    commit(&mut state, &first, &decisions);
    decide_at(&mut state, 0);
    let mut other = state.clone();
    submit(&mut state, [asks("a", "a1", 2, 3)]);
    assert_eq!(admitted(&decide_at(&mut state, 1)), ["a1"]);
    assert!(used(&state, "a") > used(&state, "b"));
    decide_at(&mut state, HALF_LIFE);
    state.undo(&"a1".into());
    state.apply(Update::NotWaiting("a1".into()));
    decide_at(&mut other, HALF_LIFE);
    for namespace in ["a", "b"] {
        let of = |state: &State| state.weighted_use(&TEAM.into(), &namespace.into());
        assert_eq!(of(&state), of(&other));
        assert_eq!(used(&state, namespace), used(&other, namespace));
    }
    // Once it is committed it counts like any other.
    submit(&mut state, [asks("a", "a2", 2, 3)]);
    let gangs = [asks("a", "a2", 2, 3)];
    let decisions = decide_at(&mut state, HALF_LIFE);
    commit(&mut state, &gangs, &decisions);
    assert_eq!(used(&state, "a"), used(&state, "b") + 1_500);
    state.undo(&"a2".into());
    assert_eq!(used(&state, "a"), used(&state, "b") + 1_500);
}

#[test]
fn a_new_leader_goes_on_with_what_was_recorded() {
    let mut before = state(vec![node("n0", "", 8)], vec![fair_team(8)]);
    let gangs = [asks("a", "a0", 0, 6), asks("b", "b0", 1, 1)];
    submit(&mut before, gangs.clone());
    let decisions = decide_at(&mut before, 0);
    commit(&mut before, &gangs, &decisions);
    decide_at(&mut before, 0);
    decide_at(&mut before, HALF_LIFE);
    release(&mut before, "a0");
    let recorded = |namespace: &str| before.namespace_use(&TEAM.into(), &namespace.into());
    let mut after = state(vec![node("n0", "", 8)], vec![fair_team(8)]);
    for namespace in ["a", "b"] {
        let recorded = recorded(namespace).expect("it used something");
        assert_eq!(recorded.as_of, Timestamp(HALF_LIFE));
        after.apply(Update::NamespaceUse(recorded));
    }
    for hold in holds_of(&gangs[1], &decisions.admissions[1]) {
        after.apply(Update::Hold(hold));
    }
    // What was recorded decays by the time since, as it would have for whoever led before.
    decide_at(&mut before, 2 * HALF_LIFE);
    decide_at(&mut after, 2 * HALF_LIFE);
    for namespace in ["a", "b"] {
        assert_eq!(used(&before, namespace), used(&after, namespace));
    }
    assert_eq!((used(&after, "a"), used(&after, "b")), (2_250, 875));
    let waiting = [asks("a", "a1", 0, 1), asks("b", "b1", 1, 1)];
    submit(&mut after, waiting);
    assert_eq!(order(&after), ["b1", "a1"]);
}

/// Whoever holds something and is recorded with nothing would be taken to have held it for ever.
#[test]
fn what_used_less_than_is_shown_is_recorded_as_nothing_and_not_as_unknown() {
    let slow = || Team {
        fairness: Some(AdmissionFairness {
            half_life_seconds: 10_000 * HALF_LIFE.unsigned_abs(),
            ..fairness()
        }),
        ..fair_team(8)
    };
    let mut before = state(vec![node("n0", "", 8)], vec![slow()]);
    let gangs = [asks("a", "a0", 0, 1)];
    submit(&mut before, gangs.clone());
    let decisions = decide_at(&mut before, 0);
    commit(&mut before, &gangs, &decisions);
    decide_at(&mut before, 1);
    let recorded = |state: &State| state.namespace_use(&TEAM.into(), &"a".into());
    let told = recorded(&before).expect("it holds something");
    assert_eq!((told.used.len(), told.as_of), (0, Timestamp(0)));
    let mut after = state(vec![node("n0", "", 8)], vec![slow()]);
    after.apply(Update::NamespaceUse(told));
    for hold in holds_of(&gangs[0], &decisions.admissions[0]) {
        after.apply(Update::Hold(hold));
    }
    for state in [&mut before, &mut after] {
        decide_at(state, 20 * HALF_LIFE);
    }
    assert_eq!((used(&before, "a"), used(&after, "a")), (1, 1));
    // Once it holds nothing there is nothing to be told.
    release(&mut after, "a0");
    decide_at(&mut after, 50_000 * HALF_LIFE);
    assert_eq!(recorded(&after), None);
}

#[test]
fn of_whom_nothing_is_recorded_is_taken_to_have_held_for_ever_what_it_holds() {
    let mut state = state(vec![node("n0", "", 8)], vec![fair_team(8)]);
    let held = hold("elsewhere", TEAM, "n0", &[0, 1, 2]);
    state.apply(Update::Hold(held));
    submit(
        &mut state,
        [
            Gang {
                name: format!("{TEAM}/again"),
                ..asks("x", "again", 0, 1)
            },
            asks("b", "b0", 9, 1),
        ],
    );
    let decisions = decide_at(&mut state, 0);
    assert_eq!(used(&state, TEAM), 3_000 + 500);
    assert_eq!(admitted(&decisions), ["b0", "again"]);
}

#[test]
fn who_weighs_twice_as_much_may_use_twice_as_much_and_who_weighs_nothing_is_last() {
    let mut fair = fairness();
    let weights = [("a", 2 * Weight::ONE.0), ("z", 0)];
    let weights = weights.map(|(name, weight)| (name.into(), Weight(weight)));
    fair.namespace_weights = BTreeMap::from(weights);
    let weighted = Team {
        fairness: Some(fair),
        ..fair_team(6)
    };
    let mut state = state(vec![node("n0", "", 6)], vec![weighted]);
    submit(&mut state, many_of_two(6));
    submit(&mut state, [asks("z", "z0", -5, 1)]);
    let decisions = decide_at(&mut state, 0);
    // With equal use by weight, age decides.
    assert_eq!(admitted(&decisions), ["a0", "b0", "a1", "a2", "b1", "a3"]);
    assert_eq!(order(&state).last().map(String::as_str), Some("z0"));
}

#[test]
fn weights_that_are_changed_move_everybody_at_once() {
    let mut state = state(vec![node("n0", "", 2)], vec![fair_team(2)]);
    submit(&mut state, many_of_two(2));
    assert_eq!(admitted(&decide_at(&mut state, 0)), ["a0", "b0"]);
    assert_eq!(order(&state), ["a1", "b1"]);
    let mut fair = fairness();
    fair.namespace_weights = BTreeMap::from([("b".into(), Weight(2 * Weight::ONE.0))]);
    let weighted = |fairness| Team {
        fairness,
        ..fair_team(2)
    };
    state.apply(Update::Team(weighted(Some(fair))));
    assert_eq!(order(&state), ["b1", "a1"]);
    // Off, and on again: what is held now counts as held for ever.
    state.apply(Update::Team(weighted(None)));
    assert_eq!(order(&state), ["a1", "b1"]);
    decide_at(&mut state, 0);
    state.apply(Update::Team(weighted(Some(fairness()))));
    assert_eq!(order(&state), ["a1", "b1"]);
    decide_at(&mut state, 0);
    assert_eq!((used(&state, "a"), used(&state, "b")), (1_000, 1_000));
}

#[test]
fn what_a_namespace_used_stays_with_its_team_when_it_moves_to_another() {
    let other = Team {
        fairness: Some(fairness()),
        ..team("other", None, limit(8))
    };
    let mut state = state(vec![node("n0", "", 8)], vec![fair_team(8), other]);
    let gangs = [asks("a", "a0", 0, 4)];
    submit(&mut state, gangs.clone());
    let decisions = decide_at(&mut state, 0);
    commit(&mut state, &gangs, &decisions);
    let moved = |name: &str, namespace: &str, queued_at| Gang {
        team: "other".into(),
        ..asks(namespace, name, queued_at, 1)
    };
    submit(&mut state, [moved("a1", "a", 0), moved("c0", "c", 1)]);
    let told = |state: &State, team: &str| {
        let told = state.namespace_use(&team.into(), &"a".into());
        told.map(|told| told.used[&Resource::Gpus].0)
    };
    assert_eq!(told(&state, "other"), None);
    assert_eq!(told(&state, TEAM), Some(2_000));
    let other = team_name("other");
    let queue = state.queue(&other);
    let names: Vec<String> = queue.map(|gang| gang.uid.to_string()).collect();
    assert_eq!(names, ["a1", "c0"]);
}

#[test]
fn memory_and_extended_resources_count_where_they_are_weighed() {
    let mut fair = fairness();
    fair.resource_weights = BTreeMap::from([
        (Resource::Gpus, Weight::ZERO),
        (Resource::Memory, Weight::ONE),
    ]);
    let mut quota = gpu_quota(limit(8));
    let memory = muster_engine::QuotaLimit {
        nominal: Amount(100 * GIB),
        ..limit(0)
    };
    quota[0].1.insert(Resource::Memory, memory);
    let weighted = Team {
        fairness: Some(fair),
        quota,
        ..fair_team(8)
    };
    let mut state = state(vec![node("n0", "", 8)], vec![weighted]);
    submit(&mut state, many_of_two(1));
    submit(&mut state, [asks("b", "large", 5, 4)]);
    decide_at(&mut state, 0);
    let told = |namespace: &str| state.namespace_use(&TEAM.into(), &namespace.into());
    let (a, b) = (told("a").unwrap(), told("b").unwrap());
    // Each pod asks for one GiB; GPUs are not even counted.
    assert_eq!(
        a.used,
        BTreeMap::from([(Resource::Memory, Amount(GIB / 2))])
    );
    assert_eq!(b.used, BTreeMap::from([(Resource::Memory, Amount(GIB))]));
}

#[test]
fn in_strict_order_the_head_is_of_the_namespace_that_used_least() {
    let strict = Team {
        queueing: Queueing::StrictFifo,
        ..fair_team(4)
    };
    let mut state = state(vec![node("n0", "", 4)], vec![strict]);
    let gangs = [asks("a", "a0", 0, 1), asks("b", "b0", 1, 1)];
    submit(&mut state, gangs.clone());
    let decisions = decide_at(&mut state, 0);
    commit(&mut state, &gangs, &decisions);
    submit(
        &mut state,
        [
            asks("b", "b-large", 2, 3),
            asks("a", "a-large", 3, 3),
            asks("c", "c-large", 9, 4),
            asks("a", "a-small", 4, 1),
        ],
    );
    // Whoever used nothing goes first, does not fit yet, and holds up the others.
    assert_eq!(admitted(&decide_at(&mut state, 1)), Vec::<String>::new());
    assert!(matches!(why(&state, "a-small"), Why::BehindHead { .. }));
    assert_eq!(order(&state), ["c-large", "b-large", "a-large", "a-small"]);
    assert_eq!(state.explain(&"a-small".into()).unwrap().position, 4);
    release(&mut state, "a0");
    release(&mut state, "b0");
    assert_eq!(admitted(&decide_at(&mut state, 1)), ["c-large"]);
    assert_eq!(order(&state), ["b-large", "a-large", "a-small"]);
}

#[test]
fn of_equals_of_one_team_those_give_way_whose_namespace_used_more() {
    let preempting = Team {
        preemption: PreemptionPolicy {
            within_team: WithinTeam::LowerPriority,
            ..PreemptionPolicy::NEVER
        },
        ..fair_team(4)
    };
    let mut state = state(vec![node("n0", "", 4)], vec![preempting]);
    let gangs = [
        asks("a", "a0", 0, 1),
        asks("b", "b0", 1, 1),
        asks("a", "a1", 2, 1),
        asks("c", "c0", 3, 1),
    ];
    submit(&mut state, gangs.clone());
    let decisions = decide_at(&mut state, 0);
    commit(&mut state, &gangs, &decisions);
    // Admitted last would go first, if it were not for what was used.
    for (gang, admitted_at) in gangs.iter().zip([10, 20, 15, 30]) {
        state.apply(Update::Running(running_since(Timestamp(admitted_at), gang)));
    }
    submit(&mut state, [with_priority(1, asks("d", "d0", 50, 1))]);
    let decisions = decide_at(&mut state, 100);
    let victims = decisions.preemptions[0].victims.iter();
    let victims: Vec<GangUid> = victims.map(|victim| victim.gang.clone()).collect();
    assert_eq!(victims, [GangUid::from("a1")]);
}

/// Many namespaces, of which each has gangs that wait; all ask for the same.
fn crowd(namespaces: usize, gangs_of_each: usize) -> (State, Vec<Gang>) {
    let preempting = Team {
        preemption: PreemptionPolicy {
            within_team: WithinTeam::LowerPriority,
            ..PreemptionPolicy::NEVER
        },
        ..fair_team(8)
    };
    let mut state = state(vec![node("n0", "", 8)], vec![preempting]);
    let gangs = (0..namespaces).flat_map(|namespace| {
        (0..gangs_of_each).map(move |number| {
            let name = format!("g{namespace:04}-{number:02}");
            let queued_at = i64::try_from(namespace + number).expect("small");
            asks(&format!("ns{namespace:04}"), &name, queued_at, 1)
        })
    });
    let gangs: Vec<Gang> = gangs.collect();
    submit(&mut state, gangs.clone());
    let decisions = decide_at(&mut state, 0);
    assert_eq!(decisions.admissions.len(), 8);
    commit(&mut state, &gangs, &decisions);
    decide_at(&mut state, 0);
    (state, gangs)
}

/// Looks and classes judged when one gang ends and another one takes its place, and when a sample is taken.
fn costs(namespaces: usize, gangs_of_each: usize) -> [u64; 3] {
    let (mut state, gangs) = crowd(namespaces, gangs_of_each);
    let first = gangs.iter().find(|gang| state.waiting(&gang.uid).is_none());
    let first = first.expect("some run").uid.to_string();
    let before = state.visited();
    release(&mut state, &first);
    let decisions = decide_at(&mut state, 1);
    assert_eq!(decisions.admissions.len(), 1);
    let of_release = state.visited() - before;
    let judged = decisions.visited.classes as u64;
    commit(&mut state, &gangs, &decisions);
    let before = state.visited();
    decide_at(&mut state, HALF_LIFE);
    [of_release, judged, state.visited() - before]
}

#[test]
fn a_release_and_a_sample_cost_the_same_with_a_thousand_namespaces_as_with_ten() {
    let (few, many) = (costs(10, 20), costs(1_000, 20));
    for (few, many) in few.into_iter().zip(many) {
        assert!(
            many <= few + few / 2 + 8,
            "{few} with 10, {many} with 1,000"
        );
    }
    // However many gangs wait in each, as well.
    let longer = costs(1_000, 40);
    assert_eq!(many, longer);
}

/// What happens to a Team whose gangs all ask for one GPU.
#[derive(Clone, Copy, Debug)]
enum Step {
    /// Somebody submits a gang: namespace, priority.
    Submit(usize, i32),
    /// The oldest gang that runs ends.
    End,
    /// So many half-lives pass.
    Pass(i64),
    /// All that was admitted now is undone.
    Undo,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => (0..4_usize, 0..2_i32).prop_map(|(of, priority)| Step::Submit(of, priority)),
        3 => Just(Step::End),
        1 => (1..4_i64).prop_map(Step::Pass),
        1 => Just(Step::Undo),
    ]
}

/// The same in the plainest words: amounts in units of 2^-32 of a thousandth, every half-life a halving.
#[derive(Clone, Default)]
struct Naive {
    consumed: BTreeMap<String, u128>,
    running: Vec<(String, String)>,
    waiting: Vec<(i32, String, i64, String)>,
}

const ONE_GPU: u128 = 1_000 << 32;

impl Naive {
    fn in_order(&self) -> Vec<String> {
        let mut waiting = self.waiting.clone();
        waiting.sort_by_key(|(priority, namespace, queued_at, name)| {
            let used = self.consumed.get(namespace).copied().unwrap_or(0);
            // As fine as what is compared: 2^-32 of a GPU.
            (-priority, used / 1_000, *queued_at, name.clone())
        });
        waiting.into_iter().map(|(.., name)| name).collect()
    }

    /// Admits the first ones, one by one: each admission moves its namespace.
    fn admit(&mut self, free: usize) -> Vec<String> {
        let mut admitted = Vec::new();
        while admitted.len() < free
            && let Some(name) = self.in_order().first().cloned()
        {
            let at = self.waiting.iter().position(|it| it.3 == name).unwrap();
            let (_, namespace, ..) = self.waiting.remove(at);
            *self.consumed.entry(namespace.clone()).or_default() += ONE_GPU / 2;
            self.running.push((namespace, name.clone()));
            admitted.push(name);
        }
        admitted
    }

    fn pass(&mut self, half_lives: i64) {
        for used in self.consumed.values_mut() {
            *used >>= half_lives;
        }
        let names: BTreeSet<String> = self.running.iter().map(|(it, _)| it.clone()).collect();
        for namespace in names {
            let held = self
                .running
                .iter()
                .filter(|(it, _)| *it == namespace)
                .count() as u128;
            let held = held * ONE_GPU;
            let counted = held - (held >> half_lives);
            *self.consumed.entry(namespace).or_default() += counted;
        }
        // What is less than 2^-10 of a thousandth is forgotten.
        self.consumed.retain(|_, used| *used >= 1 << 22);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    /// S14 and the order within a tier, whatever happened, by whatever budget, and with every gang of a shape of its own or of one.
    #[test]
    fn the_order_is_that_of_the_plain_model(
        steps in proptest::collection::vec(step(), 1..60),
        shapes in 1..3_u32,
        is_sliced: bool,
        is_strict: bool,
    ) {
        let team = Team {
            queueing: if is_strict { Queueing::StrictFifo } else { Queueing::BestEffort },
            ..fair_team(5)
        };
        let mut state = state(vec![node("n0", "", 5)], vec![team]);
        let (mut naive, mut now, mut gangs) = (Naive::default(), 0, Vec::new());
        decide_at(&mut state, now);
        for (number, step) in steps.into_iter().enumerate() {
            let mut undo = false;
            match step {
                Step::Submit(of, priority) => {
                    let name = format!("g{number:02}");
                    let queued_at = i64::try_from(number * 7 % 13).unwrap();
                    let namespace = format!("ns{of}");
                    let mut gang = with_priority(priority, asks(&namespace, &name, queued_at, 1));
                    // Gangs of several shapes stand in several classes, of one namespace and of all.
                    let shape = i64::try_from(number).unwrap() % i64::from(shapes);
                    gang.pods[0].resources.cpu_milli += shape;
                    naive.waiting.push((priority, namespace, queued_at, name));
                    gangs.push(gang.clone());
                    state.apply(Update::Waiting(gang));
                }
                Step::End => {
                    if !naive.running.is_empty() {
                        let (_, name) = naive.running.remove(0);
                        release(&mut state, &name);
                    }
                }
                Step::Pass(half_lives) => {
                    // Where nobody used or holds anything, no time counts.
                    now += half_lives * HALF_LIFE;
                    naive.pass(half_lives);
                }
                Step::Undo => undo = true,
            }
            let mut naive_after = naive.clone();
            let expected = naive_after.admit(5 - naive.running.len());
            let mut told = Vec::new();
            loop {
                let left = CommitRoom { gangs: if is_sliced { 1 } else { 64 }, ..CommitRoom::UNLIMITED };
                let budget = Budget { left, ..Budget::UNLIMITED };
                let decisions = state.decide(Timestamp(now), &budget);
                told.extend(admitted(&decisions));
                if undo {
                    for admission in decisions.admissions.iter().rev() {
                        state.undo(&admission.gang);
                    }
                } else {
                    commit(&mut state, &gangs, &decisions);
                }
                if undo || !decisions.is_cut_short() {
                    break;
                }
            }
            if undo {
                prop_assert!(expected.starts_with(&told));
            } else {
                prop_assert_eq!(told, expected);
                naive = naive_after;
            }
            prop_assert_eq!(order(&state), naive.in_order());
            let ranked: Vec<String> = (1..).zip(order(&state)).map(|(rank, name)| {
                let position = state.explain(&name.as_str().into()).unwrap().position;
                assert_eq!(position, rank);
                name
            }).collect();
            prop_assert_eq!(ranked.len(), naive.waiting.len());
        }
    }
}

/// Two Teams: between them neither goes first for what its namespaces used.
#[test]
fn between_teams_use_decides_nothing() {
    let plain = team("plain", None, limit(8));
    let mut state = state(vec![node("n0", "", 4)], vec![fair_team(8), plain]);
    submit(&mut state, [asks("a", "a0", 0, 2)]);
    assert_eq!(admitted(&decide_at(&mut state, 0)), ["a0"]);
    let of_plain = |name: &str, queued_at| at(queued_at, gang(name, "plain", 1, 1));
    submit(&mut state, [asks("a", "a1", 1, 1), of_plain("p0", 2)]);
    submit(&mut state, [of_plain("p1", 3)]);
    assert_eq!(admitted(&decide_at(&mut state, 0)), ["a1", "p0"]);
}

/// Who is first of its Team need not wait longest: where it does not fit, who waits longer has its turn before other Teams.
#[test]
fn whoever_waits_longer_behind_one_that_does_not_fit_goes_before_other_teams() {
    let plain = team("plain", None, limit(8));
    let mut state = state(vec![node("n0", "", 3)], vec![fair_team(8), plain]);
    submit(&mut state, [asks("a", "a0", 0, 2)]);
    assert_eq!(admitted(&decide_at(&mut state, 0)), ["a0"]);
    submit(
        &mut state,
        [
            asks("b", "b-large", 9, 2),
            asks("a", "a1", 1, 1),
            at(5, gang("p0", "plain", 1, 1)),
        ],
    );
    assert_eq!(order(&state), ["b-large", "a1"]);
    assert_eq!(admitted(&decide_at(&mut state, 0)), ["a1"]);
}

/// It is known already that the first of its Team fits, when another Team takes the place of that.
#[test]
fn whoever_waits_longer_behind_one_that_lost_its_place_goes_before_other_teams() {
    let teams = ["early", "late"].map(|name| team(name, None, limit(8)));
    let mut teams = teams.to_vec();
    teams.push(fair_team(8));
    let mut state = state(vec![node("n0", "", 6)], teams);
    submit(&mut state, [asks("a", "a0", 0, 2)]);
    assert_eq!(admitted(&decide_at(&mut state, 0)), ["a0"]);
    submit(
        &mut state,
        [
            asks("b", "b-large", 10, 4),
            asks("a", "a1", 1, 2),
            at(5, gang("e0", "early", 1, 2)),
            at(7, gang("l0", "late", 1, 2)),
        ],
    );
    assert_eq!(order(&state), ["b-large", "a1"]);
    assert_eq!(admitted(&decide_at(&mut state, 0)), ["e0", "a1"]);
}

#[test]
fn recorded_use_of_a_clock_that_is_ahead_counts_as_of_now() {
    let mut state = state(vec![node("n0", "", 8)], vec![fair_team(8)]);
    state.apply(Update::NamespaceUse(NamespaceUse {
        team: TEAM.into(),
        namespace: "a".into(),
        used: BTreeMap::from([
            (Resource::Gpus, Amount(i64::MAX)),
            (Resource::Vram, Amount(-1)),
        ]),
        as_of: Timestamp(i64::MAX),
    }));
    submit(&mut state, [asks("a", "a0", 0, 1), asks("b", "b0", 1, 1)]);
    assert_eq!(admitted(&decide_at(&mut state, 0)), ["b0", "a0"]);
    assert_eq!(used(&state, "a"), i64::MAX);
}

/// A defect once: no sample was taken before the clock was as late again as it had been.
#[test]
fn use_is_sampled_as_often_though_the_clock_goes_back() {
    let mut state = one_holds_all_since(100_000);
    assert_eq!(used(&state, "a"), 2_000);
    let due = Timestamp(1_000 + HALF_LIFE);
    let look_again_at = decide_at(&mut state, 1_000).look_again_at;
    assert_eq!((used(&state, "a"), look_again_at), (2_000, Some(due)));
    decide_at(&mut state, due.0);
    assert_eq!(used(&state, "a"), 3_000);
}
