//! Thousands of gangs recover and wait: an event costs the same however many they are, and each has its turn.

use std::collections::BTreeSet;

use crate::common::*;
use muster_engine::{
    Budget, Decisions, Gang, GangUid, Recovering, State, Team, Timestamp, Update,
    quota::{PreemptionPolicy, ReclaimWithinCohort, WithinTeam},
};
use proptest::prelude::*;

const PREEMPTS: PreemptionPolicy = PreemptionPolicy {
    within_team: WithinTeam::LowerPriority,
    reclaim_within_cohort: ReclaimWithinCohort::Any,
    ..PreemptionPolicy::NEVER
};

/// A cluster in which gangs recover whose nodes are gone, and time.
struct Recovery {
    state: State,
    now: i64,
}

impl Recovery {
    /// So many gangs of one pod lost this many GPUs each, and wait again. The first in order is the one that came first.
    fn of(gpus: &[usize], preemption: PreemptionPolicy) -> Self {
        Self::with(gpus, preemption, 0, |_| Vec::new())
    }

    /// The same of gangs that were each in a domain of their own, which is gone: each is asked for itself.
    fn of_unlike(gpus: &[usize], preemption: PreemptionPolicy) -> Self {
        Self::with(gpus, preemption, 0, |at| vec![format!("gone-{at}")])
    }

    /// The same in a Team that may have so many GPUs besides. `domain`: in which each was.
    fn with(
        gpus: &[usize],
        preemption: PreemptionPolicy,
        besides: usize,
        domain: impl Fn(usize) -> Vec<String>,
    ) -> Self {
        let nominal = i64::try_from(8 * gpus.len() + besides).expect("few");
        let research = Team {
            preemption,
            ..team("a", None, limit(nominal))
        };
        let mut state = state(Vec::new(), vec![research]);
        for (at, gpus) in gpus.iter().enumerate() {
            waits_again(&mut state, (at, "a"), *gpus, domain(at));
        }
        let mut recovery = Self {
            state,
            now: 100_000,
        };
        assert!(recovery.settle().is_empty(), "there is no node");
        for at in [0, gpus.len() - 1] {
            let kept = recovery.state.recovery_of(&uid(at));
            assert_eq!(kept.map(|kept| kept.charged), Some(1), "{at}");
        }
        recovery
    }

    fn decide(&mut self) -> Decisions {
        self.now += 1;
        self.state.decide(Timestamp(self.now), &Budget::UNLIMITED)
    }

    /// Decides until nothing is left for the next second; who was admitted.
    fn settle(&mut self) -> Vec<String> {
        let mut all = Vec::new();
        for _ in 0..1_000 {
            let decisions = self.decide();
            all.extend(admitted(&decisions));
            if decisions.look_again_at != Some(Timestamp(self.now + 1)) {
                return all;
            }
        }
        panic!("it does not come to rest");
    }

    fn comes(&mut self, name: &str, gpus: usize) {
        self.state.apply(Update::Node(node(name, "s/l", gpus)));
    }
}

fn uid(at: usize) -> GangUid {
    GangUid::from(format!("gang-of-h{at:05}"))
}

/// The gang with pods that were made again.
fn waiting(at: usize, gpus: usize) -> Gang {
    waiting_of((at, "a"), gpus)
}

/// The same of another Team.
fn waiting_of((at, team): (usize, &str), gpus: usize) -> Gang {
    let gpus = u32::try_from(gpus).expect("few");
    let seconds = i64::try_from(at).expect("few");
    let mut gang = self::at(seconds, gang(uid(at).as_str(), team, 1, gpus));
    gang.attempt = 2;
    gang
}

/// A gang of one pod lost so many GPUs of a node that is gone, which was in this domain, and waits again.
fn waits_again(state: &mut State, (at, team): (usize, &str), gpus: usize, domain: Vec<String>) {
    let all: Vec<usize> = (0..gpus).collect();
    let held = hold(&format!("h{at:05}"), team, &format!("gone-{at}"), &all);
    let again = waiting_of((at, team), gpus);
    state.apply(Update::Recovering(Recovering {
        gang: again.uid.clone(),
        attempt: 1,
        priority: 0,
        queued_at: again.queued_at,
        may_be_preempted: true,
        since: Timestamp(100_000),
        until: Timestamp(1_000_000),
        held: vec![held],
        left: BTreeSet::new(),
        domain,
    }));
    state.apply(Update::Waiting(again));
}

#[test]
fn an_event_costs_the_same_with_10_000_gangs_that_recover_and_wait_as_with_1_000() {
    let looks = |count: usize| {
        let mut recovery = Recovery::of(&vec![8; count], PreemptionPolicy::NEVER);
        let at_rest = recovery.decide();
        assert_eq!(at_rest.visited.recovering, 0, "nothing came free");
        let late = gang("late", "a", 1, 8);
        recovery.state.apply(Update::Waiting(late));
        let beside = recovery.decide();
        assert_eq!(beside.visited.recovering, 0, "nothing came free for them");
        // It is too small for each of them, which each of them has to find out.
        recovery.comes("small", 4);
        let before = recovery.state.visited();
        let decisions = recovery.decide();
        assert!(decisions.admissions.is_empty(), "{count}");
        let next = Some(Timestamp(recovery.now + 1));
        let is_any_left = decisions.look_again_at == next;
        assert_eq!(is_any_left, count > 1_000, "there are more");
        let looks = recovery.state.visited() - before;
        (decisions.visited.recovering, looks)
    };
    let (few, many) = (looks(1_000), looks(10_000));
    println!("{few:?}, then {many:?}");
    assert!(few.0 > 0, "somebody was asked");
    assert!(many.0 <= 2 * few.0, "asked: {few:?}, then {many:?}");
    assert!(many.1 <= 2 * few.1, "looks: {few:?}, then {many:?}");
}

/// It is too small for each of them, which they have to find out.
#[test]
fn somebody_whom_they_may_preempt_costs_the_same_with_10_000_that_recover_as_with_1_000() {
    let looks = |count: usize| {
        let mut recovery = Recovery::with(&vec![8; count], PREEMPTS, 100, |_| Vec::new());
        recovery.happens(0, &[], Beside::Comes(4, 0));
        let held = hold(&victim_pod(0), "a", "n00", &[0, 1, 2, 3]);
        recovery.state.apply(Update::Hold(held));
        assert!(recovery.settle().is_empty(), "{count}");
        let at_rest = recovery.decide();
        assert_eq!(at_rest.visited.recovering, 0, "{count}");
        let low = with_priority(-1, gang(&victim(0), "a", 1, 1));
        let running = running_since(Timestamp(recovery.now), &low);
        recovery.state.apply(Update::Running(running));
        let before = recovery.state.visited();
        let decisions = recovery.decide();
        assert!(decisions.preemptions.is_empty(), "{count}");
        let looks = recovery.state.visited() - before;
        (decisions.visited.recovering, looks)
    };
    let (few, many) = (looks(1_000), looks(10_000));
    println!("{few:?}, then {many:?}");
    assert!(few.0 > 0, "somebody was asked");
    assert!(many.0 <= 2 * few.0, "asked: {few:?}, then {many:?}");
    assert!(many.1 <= 2 * few.1, "looks: {few:?}, then {many:?}");
}

/// All of them borrow, and may have back what others do. To be asked, each gives up what is kept for it, and has it again: its Team ceases to borrow, and begins.
#[test]
fn a_question_costs_the_same_whether_200_or_2_000_teams_may_ask_whoever_begins_to_borrow() {
    let looks = |count: usize| {
        let name = |at: usize| format!("t{at:05}");
        let teams = (0..count).map(|at| Team {
            preemption: PREEMPTS,
            ..team(&name(at), Some("all"), limit(0))
        });
        let mut state = state(Vec::new(), teams.collect());
        let nominal = i64::try_from(8 * count).expect("few");
        state.apply(Update::Cohort(cohort("all", None, nominal)));
        for at in 0..count {
            waits_again(&mut state, (at, name(at).as_str()), 8, Vec::new());
        }
        let mut recovery = Recovery {
            state,
            now: 100_000,
        };
        assert!(recovery.settle().is_empty(), "there is no node");
        for at in [0, count - 1] {
            let kept = recovery.state.recovery_of(&uid(at));
            assert_eq!(kept.map(|kept| kept.charged), Some(1), "{at}");
        }
        recovery.comes("small", 4);
        let before = recovery.state.visited();
        let decisions = recovery.decide();
        assert!(decisions.admissions.is_empty() && decisions.preemptions.is_empty());
        let looks = recovery.state.visited() - before;
        (decisions.visited.recovering, looks)
    };
    let (few, many) = (looks(200), looks(2_000));
    println!("{few:?}, then {many:?}");
    assert!(few.0 > 100, "many are asked");
    assert!(many.0 <= 2 * few.0, "asked: {few:?}, then {many:?}");
    assert!(many.1 <= 2 * few.1, "looks: {few:?}, then {many:?}");
}

#[test]
fn all_of_300_are_served_in_order_once_room_comes_free() {
    for preemption in [PreemptionPolicy::NEVER, PREEMPTS] {
        let count = 300;
        let in_order: Vec<String> = (0..count).map(|at| uid(at).to_string()).collect();
        let mut at_once = Recovery::of(&vec![8; count], preemption);
        for at in 0..count {
            at_once.comes(&format!("n{at}"), 8);
        }
        assert_eq!(at_once.settle(), in_order, "at once: {preemption:?}");
        let mut one_by_one = Recovery::of(&vec![8; count], preemption);
        for (at, expected) in in_order.iter().enumerate() {
            one_by_one.comes(&format!("n{at}"), 8);
            let served = one_by_one.settle();
            assert_eq!(served, [expected.as_str()], "{preemption:?}");
        }
    }
}

/// One is asked for all that are like it.
#[test]
fn the_last_of_10_000_is_asked_within_20_seconds_though_something_comes_free_in_each() {
    for preemption in [PreemptionPolicy::NEVER, PREEMPTS] {
        let mut gpus = vec![8; 10_000];
        gpus[9_999] = 4;
        let mut recovery = Recovery::of(&gpus, preemption);
        recovery.comes("fits-the-last", 4);
        let mut served = Vec::new();
        let mut seconds = 0;
        while served.is_empty() {
            recovery.comes(&format!("small-{seconds}"), 2);
            served = admitted(&recovery.decide());
            seconds += 1;
            assert!(seconds <= 20, "{preemption:?}");
        }
        assert_eq!(served, [uid(9_999).to_string()], "{preemption:?}");
    }
}

/// In each second something comes free that helps nobody, and what helps the last one is there from the beginning. No two of them are alike.
#[test]
fn the_last_of_1_000_is_asked_though_something_comes_free_again_and_again() {
    // To search for victims as well takes more looks, so that a call asks fewer.
    for (preemption, most_calls) in [(PreemptionPolicy::NEVER, 40), (PREEMPTS, 1_000)] {
        let mut gpus = [8; 1_000];
        gpus[999] = 4;
        let mut recovery = Recovery::of_unlike(&gpus, preemption);
        recovery.comes("fits-the-last", 4);
        let mut served = Vec::new();
        let mut calls = 0;
        while served.is_empty() {
            recovery.comes(&format!("small-{calls}"), 2);
            served = admitted(&recovery.decide());
            calls += 1;
            assert!(calls <= most_calls, "two passes take no longer");
        }
        assert_eq!(served, [uid(999).to_string()], "{preemption:?}");
    }
}

/// What is not asked by one call is not forgotten, and whoever wakes late is asked for itself.
#[test]
fn whoever_begins_to_wait_among_1_000_is_asked_by_the_next_call() {
    let mut recovery = Recovery::of(&[8; 1_000], PreemptionPolicy::NEVER);
    recovery.state.apply(Update::NotWaiting(uid(700)));
    recovery.comes("n0", 4);
    assert!(recovery.settle().is_empty(), "it is too small for all");
    // Of its eight it asks for four.
    recovery.state.apply(Update::Waiting(waiting(700, 4)));
    let decisions = recovery.decide();
    assert_eq!(admitted(&decisions), [uid(700).to_string()]);
}

/// What happens beside gangs that recover: a node comes, with so many GPUs, of which somebody of a lower tier holds some; or one of the gangs has its pods made
/// again, and asks for so many GPUs.
#[derive(Clone, Copy, Debug)]
enum Beside {
    Comes(usize, usize),
    IsMadeAgain(usize, usize),
}

fn beside() -> impl Strategy<Value = Beside> {
    prop_oneof![
        3 => (1..=8_usize, 0..=8_usize)
            .prop_map(|(gpus, held)| Beside::Comes(gpus, held.min(gpus))),
        1 => (0..40_usize, 1..=8_usize).prop_map(|(at, gpus)| Beside::IsMadeAgain(at, gpus)),
    ]
}

impl Recovery {
    fn happens(&mut self, number: usize, lost: &[usize], beside: Beside) {
        match beside {
            Beside::Comes(gpus, held) => {
                let name = format!("n{number:02}");
                self.comes(&name, gpus);
                if held > 0 {
                    let all: Vec<usize> = (0..held).collect();
                    self.state
                        .apply(Update::Hold(hold(&victim_pod(number), "a", &name, &all)));
                    let victim = with_priority(-1, gang(&victim(number), "a", 1, 1));
                    let running = running_since(Timestamp(self.now), &victim);
                    self.state.apply(Update::Running(running));
                }
            }
            Beside::IsMadeAgain(at, gpus) => {
                let at = at % lost.len();
                // Whoever was served does not wait any more.
                if self.state.recovery_of(&uid(at)).is_some() {
                    self.state.apply(Update::NotWaiting(uid(at)));
                    self.state.apply(Update::Waiting(waiting(at, gpus)));
                }
            }
        }
    }

    /// Decides until nothing is left; who was admitted, and who gave way to whom and is gone by now.
    fn settles(&mut self, comings: usize) -> Vec<String> {
        let mut all = Vec::new();
        for _ in 0..100 {
            let decisions = self.decide();
            all.extend(admitted(&decisions));
            for preemption in &decisions.preemptions {
                for victim in &preemption.victims {
                    all.push(format!("{} for {}", victim.gang, preemption.gang));
                }
            }
            let is_any_left = decisions.look_again_at == Some(Timestamp(self.now + 1));
            if decisions.preemptions.is_empty() && decisions.admissions.is_empty() && !is_any_left {
                return all;
            }
            for number in 0..comings {
                let gone = GangUid::from(victim(number));
                if self.state.gives_way_to(&gone).is_some() {
                    self.state.apply(Update::Ending(gone));
                    self.state
                        .apply(Update::HoldGone(victim_pod(number).as_str().into()));
                }
            }
        }
        panic!("it does not come to rest: {all:?}");
    }
}

fn victim_pod(number: usize) -> String {
    format!("low{number:02}")
}

/// As [`hold`] names the gang of that pod.
fn victim(number: usize) -> String {
    format!("gang-of-{}", victim_pod(number))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    /// Where one is asked for all that are like it the same are served, in the same order, and the same give way, as where each is asked for itself.
    #[test]
    fn who_is_asked_by_another_is_served_as_if_it_were_asked_itself(
        lost in prop::collection::vec(prop_oneof![Just(2_usize), Just(4), Just(8)], 2..40),
        preempts in any::<bool>(),
        besides in prop::collection::vec(beside(), 1..12),
    ) {
        let preemption = if preempts { PREEMPTS } else { PreemptionPolicy::NEVER };
        let mut alike = Recovery::with(&lost, preemption, 100, |_| Vec::new());
        let mut unlike = Recovery::with(&lost, preemption, 100, |at| vec![format!("gone-{at}")]);
        let comings = besides.len();
        for (number, beside) in besides.into_iter().enumerate() {
            alike.happens(number, &lost, beside);
            unlike.happens(number, &lost, beside);
            let (one, other) = (alike.settles(comings), unlike.settles(comings));
            prop_assert_eq!(one, other, "{:?}", beside);
        }
    }
}
