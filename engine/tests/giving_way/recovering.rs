//! What an attempt held that ended by a fault is kept for its gang, and for nobody longer than it should be.

use std::collections::BTreeMap;

use crate::common::*;
use muster_engine::{
    Amount, Budget, Decisions, FlavorResource, Gang, GangUid, Hold, Node, NodeBlock, Queueing,
    Recovering, Reserved, Resource, ResourceCharge, Shrink, State, Stop, Team, Timestamp, Update,
    Why,
    quota::{PreemptionPolicy, PreemptionReason, ReclaimWithinCohort, WithinTeam},
};
use proptest::prelude::*;

/// Until when something is kept here.
const UNTIL: Timestamp = Timestamp(700);
/// When the attempts here end.
const SINCE: Timestamp = Timestamp(100);

pub(crate) fn decide_at(state: &mut State, seconds: i64) -> Decisions {
    state.decide(Timestamp(seconds), &Budget::UNLIMITED)
}

/// The gang starts; what its pods hold then.
pub(crate) fn start(state: &mut State, gang: &Gang) -> Vec<Hold> {
    state.apply(Update::Waiting(gang.clone()));
    let decisions = decide_at(state, 10);
    let mut admissions = decisions.admissions.iter();
    let admission = admissions.find(|it| it.gang == gang.uid);
    let holds = holds_of(gang, admission.expect("it has room"));
    runs(state, gang, &holds);
    holds
}

fn runs(state: &mut State, gang: &Gang, holds: &[Hold]) {
    for hold in holds {
        state.apply(Update::Hold(hold.clone()));
    }
    state.apply(Update::NotWaiting(gang.uid.clone()));
    let running = running_since(Timestamp(10), gang);
    state.apply(Update::Running(running));
}

pub(crate) fn recovers(gang: &Gang, holds: &[Hold], left: &[&str], domain: &[&str]) -> Recovering {
    Recovering {
        gang: gang.uid.clone(),
        attempt: gang.attempt,
        priority: gang.priority,
        queued_at: gang.queued_at,
        may_be_preempted: true,
        since: SINCE,
        until: UNTIL,
        held: holds.to_vec(),
        left: left.iter().map(|node| (*node).into()).collect(),
        domain: domain.iter().map(|name| (*name).to_owned()).collect(),
    }
}

/// All that these pods hold is proved released.
pub(crate) fn release(state: &mut State, gang: &Gang, holds: &[Hold]) {
    state.apply(Update::Ending(gang.uid.clone()));
    for hold in holds {
        let mut releasing = hold.clone();
        releasing.releasing = true;
        state.apply(Update::Hold(releasing));
    }
    for hold in holds {
        state.apply(Update::HoldGone(hold.pod.clone()));
    }
}

/// The attempt ends by a fault, and what it held is released.
pub(crate) fn fail(state: &mut State, gang: &Gang, holds: &[Hold]) {
    state.apply(Update::Recovering(recovers(gang, holds, &[], &[])));
    release(state, gang, holds);
}

/// The gang with pods that were made again.
pub(crate) fn made_again(gang: &Gang) -> Gang {
    let mut again = gang.clone();
    again.attempt += 1;
    for pod in &mut again.pods {
        pod.uid = format!("{}-{}", pod.uid, again.attempt).into();
        for claim in &mut pod.claims {
            claim.uid = format!("{}-{}", claim.uid, again.attempt).into();
        }
    }
    again
}

/// Where the pods of a gang go that is admitted now, if it is.
fn goes_to(decisions: &Decisions, gang: &str) -> Option<Vec<String>> {
    let mut admissions = decisions.admissions.iter();
    let admission = admissions.find(|it| it.gang.as_str() == gang)?;
    let nodes = admission.pods.iter().map(|pod| pod.node.to_string());
    Some(nodes.collect())
}

pub(crate) fn in_leaf(names: &[&str], leaf: &str) -> Vec<Node> {
    names.iter().map(|name| node(name, leaf, 8)).collect()
}

const PREEMPTS: PreemptionPolicy = PreemptionPolicy {
    within_team: WithinTeam::LowerPriority,
    reclaim_within_cohort: ReclaimWithinCohort::Any,
    ..PreemptionPolicy::NEVER
};

pub(crate) fn preempting(name: &str, cohort: Option<&str>, nominal: i64) -> Team {
    Team {
        preemption: PREEMPTS,
        ..team(name, cohort, limit(nominal))
    }
}

/// The incident: between the end of its old pods and the making of its new ones a gang lost its quota to whoever was asked first.
#[test]
fn an_evicted_gang_keeps_its_quota_and_its_place_while_its_pods_are_made_again() {
    for recovers in [true, false] {
        let mut state = state(
            in_leaf(&["n0", "n1"], "s/l"),
            vec![team("a", None, limit(16))],
        );
        let train = gang("train", "a", 2, 8);
        let holds = start(&mut state, &train);
        submit(&mut state, [at(5, gang("next", "a", 2, 8))]);
        assert!(decide_at(&mut state, 50).admissions.is_empty());
        if recovers {
            fail(&mut state, &train, &holds);
        } else {
            release(&mut state, &train, &holds);
        }
        let between = decide_at(&mut state, 110);
        let expected: &[&str] = if recovers { &[] } else { &["next"] };
        assert_eq!(admitted(&between), expected, "{recovers}");
        if recovers {
            assert_eq!(state.usage(&team_name("a"))[0].used, gpus(16));
            submit(&mut state, [made_again(&train)]);
            assert_eq!(admitted(&decide_at(&mut state, 120)), ["train"]);
            assert_eq!(
                state.usage(&team_name("a"))[0].used,
                gpus(16),
                "charged once"
            );
            assert!(state.recovery_of(&train.uid).is_none());
        }
    }
}

#[test]
fn whoever_waits_because_of_it_is_told_so_and_so_is_the_gang_itself() {
    let mut state = state(
        in_leaf(&["n0", "n1"], "s/l"),
        vec![team("a", None, limit(16))],
    );
    let train = gang("train", "a", 2, 8);
    let holds = start(&mut state, &train);
    submit(&mut state, [at(5, gang("next", "a", 1, 8))]);
    state.apply(Update::Recovering(recovers(&train, &holds, &["n1"], &[])));
    release(&mut state, &train, &holds);
    let mut broken = node("n1", "s/l", 8);
    broken.block = Some(NodeBlock::NotReady);
    state.apply(Update::Node(broken));
    submit(&mut state, [made_again(&train)]);
    assert!(decide_at(&mut state, 110).admissions.is_empty());
    let Why::Quota { blocker, .. } = why(&state, "next") else {
        panic!("{:?}", why(&state, "next"));
    };
    assert_eq!(blocker.gangs, ["a/train (which recovers)"]);
    let Why::Recovering { kept, now } = why(&state, "train") else {
        panic!("{:?}", why(&state, "train"));
    };
    assert_eq!((kept.attempt, kept.until, now), (1, UNTIL, Timestamp(110)));
    assert_eq!((kept.pods, kept.charged, kept.placed), (2, 2, 1));
    let text = why(&state, "train").to_string();
    assert_eq!(
        text,
        "it recovers from attempt 1, of which the quota of 2 and the place of 1 of 2 pods are kept for it, for 590 s more at most; \
         besides these there is no room for what it lost"
    );
}

/// A gang has all of the cluster, one GPU of it is broken, and there is no other: what is kept does not stand idle for ever.
#[test]
fn what_is_kept_is_kept_until_its_time_is_over_and_not_a_second_longer() {
    let mut state = state(
        in_leaf(&["n0", "n1"], "s/l"),
        vec![team("a", None, limit(16))],
    );
    let train = gang("train", "a", 2, 8);
    let holds = start(&mut state, &train);
    submit(&mut state, [at(5, gang("small", "a", 1, 8))]);
    fail(&mut state, &train, &holds);
    let mut broken = node("n1", "s/l", 8);
    broken.devices[3].healthy = false;
    broken.devices[3].usable = false;
    state.apply(Update::Node(broken));
    submit(&mut state, [made_again(&train)]);
    let decisions = decide_at(&mut state, 110);
    assert!(decisions.admissions.is_empty(), "there is none for train");
    assert_eq!(decisions.look_again_at, Some(UNTIL));
    let again = decide_at(&mut state, UNTIL.0 - 1);
    assert!(again.admissions.is_empty(), "{again:?}");
    assert_eq!(admitted(&decide_at(&mut state, UNTIL.0)), ["small"]);
    assert!(state.is_recovery_over(&train.uid, 1));
    assert!(
        !matches!(why(&state, "train"), Why::Recovering { .. }),
        "it waits like any other"
    );
    // Told again it changes nothing.
    state.apply(Update::Recovering(recovers(&train, &holds, &[], &[])));
    assert!(state.recovery_of(&train.uid).is_none());
}

#[test]
fn what_is_lost_is_replaced_in_the_domain_in_which_it_was() {
    let teams = vec![team("a", None, limit(40))];
    let mut state = state(in_leaf(&["m0", "m1", "m2"], "s/l1"), teams);
    let train = gang("train", "a", 2, 8);
    let holds = start(&mut state, &train);
    // Two nodes of another leaf, which comes first, hold the gang as tightly.
    for spare in in_leaf(&["a0", "a1"], "s/l0") {
        state.apply(Update::Node(spare));
    }
    let lost = holds[0].node.to_string();
    let told = recovers(&train, &holds, &[&lost], &["s", "l1"]);
    state.apply(Update::Recovering(told));
    release(&mut state, &train, &holds);
    let mut gone = node(&lost, "s/l1", 8);
    gone.block = Some(NodeBlock::Lost);
    state.apply(Update::Node(gone));
    // It takes nothing of what is kept: in that leaf there is one node besides.
    submit(&mut state, [at(5, gang("other", "a", 3, 8))]);
    let other = goes_to(&decide_at(&mut state, 110), "other");
    let kept = holds[1].node.to_string();
    assert!(!other.expect("there is room besides").contains(&kept));
    assert_eq!(state.usage(&team_name("a"))[0].used, gpus(40));
    let mut state_of_one = self::state(
        in_leaf(&["m0", "m1", "m2"], "s/l1"),
        vec![team("a", None, limit(40))],
    );
    let holds = start(&mut state_of_one, &train);
    for spare in in_leaf(&["a0", "a1"], "s/l0") {
        state_of_one.apply(Update::Node(spare));
    }
    let lost = holds[0].node.to_string();
    let told = recovers(&train, &holds, &[&lost], &["s", "l1"]);
    state_of_one.apply(Update::Recovering(told));
    release(&mut state_of_one, &train, &holds);
    submit(&mut state_of_one, [avoiding(&[&lost], made_again(&train))]);
    let places = goes_to(&decide_at(&mut state_of_one, 120), "train");
    let places = places.expect("there is a spare");
    assert!(
        places
            .iter()
            .all(|node| node.starts_with('m') && *node != lost),
        "{places:?}, and {lost} is lost"
    );
}

#[test]
fn beside_one_gpu_that_is_kept_the_others_of_the_node_are_anybodys() {
    let mut state = state(in_leaf(&["n0"], "s/l"), vec![team("a", None, limit(8))]);
    let small = gang("small", "a", 1, 1);
    let holds = start(&mut state, &small);
    fail(&mut state, &small, &holds);
    submit(
        &mut state,
        [
            at(5, gang("seven", "a", 1, 7)),
            at(6, gang("eighth", "a", 1, 1)),
        ],
    );
    assert_eq!(admitted(&decide_at(&mut state, 110)), ["seven"]);
    submit(&mut state, [made_again(&small)]);
    assert_eq!(admitted(&decide_at(&mut state, 120)), ["small"]);
}

/// What it would be asked for if it ran it is asked for while it recovers: no tier rises by a fault.
#[test]
fn who_may_preempt_it_while_it_runs_has_what_is_kept_at_once() {
    for (priority, goes) in [(10, true), (0, false)] {
        let mut state = state(in_leaf(&["n0"], "s/l"), vec![preempting("a", None, 8)]);
        let train = gang("train", "a", 1, 8);
        let holds = start(&mut state, &train);
        fail(&mut state, &train, &holds);
        submit(
            &mut state,
            [with_priority(priority, at(9, gang("urgent", "a", 1, 8)))],
        );
        let decisions = decide_at(&mut state, 110);
        let expected: &[&str] = if goes { &["urgent"] } else { &[] };
        assert_eq!(admitted(&decisions), expected, "nobody has to be told");
        assert_eq!(decisions.preemptions.len(), usize::from(goes));
        for preemption in &decisions.preemptions {
            assert_eq!(preemption.victims[0].reason, PreemptionReason::InTeam);
        }
        assert!(state.gives_way_to(&train.uid).is_none());
        assert_eq!(state.is_recovery_over(&train.uid, 1), goes);
        if goes {
            // S15: it does not have it back.
            submit(&mut state, [made_again(&train)]);
            let decisions = decide_at(&mut state, 120);
            assert_eq!(
                (decisions.admissions.len(), decisions.preemptions),
                (0, vec![])
            );
        }
    }
}

/// One of two pods has released its half, which is kept; the other one's is not proved released yet.
#[test]
fn whoever_has_enough_with_what_is_kept_does_not_wait_for_what_is_still_held() {
    for (asked, is_enough) in [(4, true), (8, false)] {
        let mut state = state(
            in_leaf(&["n0", "n1"], "s/l"),
            vec![preempting("a", None, 8)],
        );
        let train = gang("train", "a", 2, 4);
        let holds = start(&mut state, &train);
        state.apply(Update::Recovering(recovers(&train, &holds, &[], &[])));
        release(&mut state, &train, &holds[..1]);
        assert!(decide_at(&mut state, 105).admissions.is_empty());
        let urgent = with_priority(10, at(9, gang("urgent", "a", 1, asked)));
        submit(&mut state, [urgent]);
        let decisions = decide_at(&mut state, 110);
        assert_eq!(decisions.preemptions.len(), 1, "{asked}");
        let expected: &[&str] = if is_enough { &["urgent"] } else { &[] };
        assert_eq!(admitted(&decisions), expected, "{asked}");
        let again = decide_at(&mut state, 110);
        assert!(again.admissions.is_empty(), "{asked}: nothing came since");
        assert!(again.preemptions.is_empty(), "{asked}: {again:?}");
        state.apply(Update::HoldGone(holds[1].pod.clone()));
        let expected: &[&str] = if is_enough { &[] } else { &["urgent"] };
        assert_eq!(admitted(&decide_at(&mut state, 111)), expected, "{asked}");
    }
}

#[test]
fn what_was_lent_goes_back_to_its_owner_though_the_borrower_recovers() {
    let mut state = state(
        in_leaf(&["n0"], "s/l"),
        vec![
            team("borrower", Some("all"), limit(0)),
            preempting("owner", Some("all"), 8),
        ],
    );
    let train = gang("train", "borrower", 1, 8);
    let holds = start(&mut state, &train);
    fail(&mut state, &train, &holds);
    submit(&mut state, [gang("mine", "owner", 1, 8)]);
    let decisions = decide_at(&mut state, 110);
    assert_eq!(admitted(&decisions), ["mine"]);
    let [preemption] = decisions.preemptions.as_slice() else {
        panic!("{decisions:?}");
    };
    assert_eq!(preemption.victims[0].reason, PreemptionReason::Reclaimed);
}

#[test]
fn an_admission_that_is_taken_back_leaves_kept_what_was() {
    let mut state = state(in_leaf(&["n0"], "s/l"), vec![team("a", None, limit(8))]);
    let train = gang("train", "a", 1, 8);
    let holds = start(&mut state, &train);
    fail(&mut state, &train, &holds);
    submit(
        &mut state,
        [made_again(&train), at(5, gang("next", "a", 1, 8))],
    );
    assert_eq!(admitted(&decide_at(&mut state, 110)), ["train"]);
    state.undo(&train.uid);
    state.apply(Update::NotWaiting(train.uid.clone()));
    assert!(decide_at(&mut state, 120).admissions.is_empty());
    assert_eq!(state.usage(&team_name("a"))[0].used, gpus(8));
    submit(&mut state, [made_again(&train)]);
    assert_eq!(admitted(&decide_at(&mut state, 130)), ["train"]);
}

/// A new process is told of what is held and of who recovers, in any order; what is released already it keeps as far as nobody has it.
#[test]
fn a_new_process_keeps_the_same() {
    let train = gang("train", "a", 2, 8);
    for (released, taken) in [(0, false), (1, false), (2, false), (2, true)] {
        for recovering_first in [true, false] {
            let mut before = state(
                in_leaf(&["n0", "n1"], "s/l"),
                vec![team("a", None, limit(16))],
            );
            let mut holds = start(&mut before, &train);
            // Which devices they were is known to nobody any more.
            for hold in &mut holds[..released] {
                hold.claims[0].request = None;
            }
            let mut state = state(
                in_leaf(&["n0", "n1"], "s/l"),
                vec![team("a", None, limit(16))],
            );
            let told = Update::Recovering(recovers(&train, &holds, &[], &[]));
            if recovering_first {
                state.apply(told.clone());
            }
            for hold in &holds[released..] {
                state.apply(Update::Hold(hold.clone()));
            }
            if taken {
                state.apply(Update::Hold(hold("other", "a", "n0", &[0, 1])));
            }
            if !recovering_first {
                state.apply(told);
            }
            submit(&mut state, [at(5, gang("next", "a", 1, 8))]);
            let case = format!("{released} {taken} {recovering_first}");
            assert!(decide_at(&mut state, 110).admissions.is_empty(), "{case}");
            let kept = state.recovery_of(&train.uid).expect("it recovers");
            // Beside the other one there is quota for one of two pods.
            let pods = if taken { 1 } else { 2 };
            assert_eq!(kept.charged, pods, "{case}");
            release(&mut state, &train, &holds[released..]);
            let used = state.usage(&team_name("a"))[0].used;
            assert_eq!(used, gpus(if taken { 10 } else { 16 }), "{case}");
        }
    }
}

#[test]
fn a_team_that_is_stopped_or_may_use_less_keeps_no_more_than_it_may() {
    for (change, kept) in [
        (team("a", None, limit(16)), 2),
        (team("a", None, limit(15)), 1),
        (team("a", None, limit(8)), 1),
        (team("a", None, limit(7)), 0),
        (
            Team {
                stop: Stop::Hold,
                ..team("a", None, limit(16))
            },
            0,
        ),
        (
            Team {
                shrink: Shrink::Evict,
                ..team("a", None, limit(8))
            },
            1,
        ),
    ] {
        let mut state = state(
            in_leaf(&["n0", "n1"], "s/l"),
            vec![team("a", None, limit(16))],
        );
        let train = gang("train", "a", 2, 8);
        let holds = start(&mut state, &train);
        fail(&mut state, &train, &holds);
        decide_at(&mut state, 110);
        let told = format!("{change:?}");
        state.apply(Update::Team(change));
        decide_at(&mut state, 120);
        let charged = state.recovery_of(&train.uid).map_or(0, |it| it.charged);
        assert_eq!(charged, kept, "{told}");
        let used = state.usage(&team_name("a"))[0].used;
        assert_eq!(used, gpus(8 * i64::try_from(kept).expect("few")), "{told}");
    }
}

/// S1: others have their turn after a gang that recovers was admitted, and then that is taken back.
#[test]
fn s1_what_others_were_given_meanwhile_is_not_kept_again() {
    for (is_next_taken_back, kept) in [(false, 1), (true, 2)] {
        let mut state = state(
            in_leaf(&["n0", "n1"], "s/l"),
            vec![team("a", None, limit(16))],
        );
        let train = gang("train", "a", 2, 8);
        let holds = start(&mut state, &train);
        fail(&mut state, &train, &holds);
        let smaller = made_again(&gang("train", "a", 1, 8));
        submit(&mut state, [smaller, at(5, gang("next", "a", 1, 8))]);
        let decisions = decide_at(&mut state, 110);
        assert_eq!(admitted(&decisions), ["train", "next"]);
        state.undo(&train.uid);
        if is_next_taken_back {
            state.undo(&"next".into());
        }
        state.apply(Update::NotWaiting(train.uid.clone()));
        assert!(decide_at(&mut state, 120).admissions.is_empty());
        assert_eq!(state.usage(&team_name("a"))[0].used, gpus(16));
        let charged = state.recovery_of(&train.uid).map(|it| it.charged);
        assert_eq!(charged, Some(kept), "{is_next_taken_back}");
    }
}

/// Else whoever lets a small gang fail would be served with a large one before all others, of whatever tier.
#[test]
fn whoever_asks_for_more_than_it_held_or_another_team_waits_for_that_like_any_other() {
    let partial = |mut gang: Gang| {
        gang.min_count = Some(1);
        gang
    };
    for (asked, first) in [
        (gang("train", "a", 1, 4), ["train"]),
        (gang("train", "a", 1, 3), ["train"]),
        (gang("train", "a", 1, 8), ["older"]),
        (gang("train", "a", 2, 2), ["older"]),
        (gang("train", "a", 2, 4), ["older"]),
        (gang("train", "b", 1, 4), ["older"]),
        (partial(gang("train", "a", 2, 4)), ["train"]),
    ] {
        let teams = vec![team("a", None, limit(8)), team("b", None, limit(8))];
        let mut state = state(in_leaf(&["n0"], "s/l"), teams);
        let train = gang("train", "a", 1, 4);
        let holds = start(&mut state, &train);
        fail(&mut state, &train, &holds);
        let older = with_priority(10, gang("older", "a", 1, 8));
        let told = format!("{} pods for Team {}", asked.pods.len(), asked.team);
        submit(&mut state, [made_again(&asked), older]);
        let decisions = decide_at(&mut state, 110);
        assert_eq!(admitted(&decisions), first, "{told}");
        let pods = decisions.admissions[0].pods.len();
        assert_eq!(pods, 1, "{told}");
    }
}

#[test]
fn what_one_gives_up_helps_another_one_that_was_judged_before_it() {
    let mut state = state(
        in_leaf(&["n0", "n1", "n2"], "s/l"),
        vec![team("a", None, limit(24))],
    );
    let first = gang("first", "a", 2, 8);
    let second = gang("second", "a", 1, 8);
    let of_first = start(&mut state, &first);
    let of_second = start(&mut state, &second);
    fail(&mut state, &first, &of_first);
    fail(&mut state, &second, &of_second);
    let mut broken = node(of_first[1].node.as_str(), "s/l", 8);
    broken.block = Some(NodeBlock::NotReady);
    state.apply(Update::Node(broken));
    // It asks for more than it held, so nothing is kept for it any more.
    let larger = made_again(&gang("second", "a", 2, 8));
    let next = at(5, gang("next", "a", 1, 8));
    submit(&mut state, [made_again(&first), larger, next]);
    assert_eq!(admitted(&decide_at(&mut state, 110)), ["first"]);
}

/// A GPU that breaks leaves an automatic quota at once, and what is held on it is released later.
#[test]
fn limits_that_are_lowered_before_or_after_the_release_leave_the_same_kept() {
    let kept = |is_lowered_first: bool, is_last_first: bool| {
        let mut state = state(
            in_leaf(&["n0", "n1"], "s/l"),
            vec![team("a", None, limit(16))],
        );
        let train = gang("train", "a", 2, 8);
        let mut holds = start(&mut state, &train);
        let mut broken = node("n1", "s/l", 8);
        broken.devices[3].healthy = false;
        broken.devices[3].usable = false;
        state.apply(Update::Node(broken));
        let lowered = Update::Team(team("a", None, limit(15)));
        if is_lowered_first {
            state.apply(lowered.clone());
            decide_at(&mut state, 105);
        }
        state.apply(Update::Recovering(recovers(&train, &holds, &[], &[])));
        state.apply(Update::Ending(train.uid.clone()));
        if is_last_first {
            holds.reverse();
        }
        for hold in &holds {
            state.apply(Update::HoldGone(hold.pod.clone()));
            decide_at(&mut state, 110);
        }
        if !is_lowered_first {
            state.apply(lowered);
        }
        decide_at(&mut state, 120);
        let kept = state.recovery_of(&train.uid).expect("it recovers");
        let used = state.usage(&team_name("a"))[0].used;
        (kept.charged, kept.placed, used)
    };
    for is_lowered_first in [true, false] {
        for is_last_first in [true, false] {
            assert_eq!(
                kept(is_lowered_first, is_last_first),
                (1, 1, gpus(8)),
                "{is_lowered_first} {is_last_first}"
            );
        }
    }
}

#[test]
fn what_does_not_help_a_lowered_limit_is_not_given_up_for_it() {
    let limits = |nominal| Team {
        quota: vec![(
            H100.into(),
            BTreeMap::from([(Resource::Gpus, limit(nominal)), (Resource::Cpu, limit(8))]),
        )],
        ..team("a", None, limit(nominal))
    };
    let mut state = state(in_leaf(&["n0"], "s/l"), vec![limits(8)]);
    let train = gang("train", "a", 2, 8);
    let mut worker = hold("train-0", "a", "n0", &[0, 1, 2, 3, 4, 5, 6, 7]);
    let mut launcher = hold("train-1", "a", "n0", &[]);
    launcher.claims.clear();
    launcher.charged = vec![ResourceCharge {
        of: FlavorResource {
            flavor: H100.into(),
            resource: Resource::Cpu,
        },
        amount: Amount(4_000),
    }];
    for hold in [&mut worker, &mut launcher] {
        hold.gang = train.uid.clone();
        state.apply(Update::Hold(hold.clone()));
    }
    fail(&mut state, &train, &[worker, launcher]);
    decide_at(&mut state, 110);
    let used = |state: &State, resource: Resource| {
        let usage = state.usage(&team_name("a"));
        let mut of_it = usage.iter().filter(|it| it.of.resource == resource);
        of_it.next().expect("it is named").used
    };
    assert_eq!(used(&state, Resource::Gpus), gpus(8));
    state.apply(Update::Team(limits(4)));
    decide_at(&mut state, 120);
    assert_eq!(used(&state, Resource::Gpus), gpus(0));
    assert_eq!(used(&state, Resource::Cpu), Amount(4_000));
}

/// A former leader told it to go for another gang; then its attempt failed by itself, and somebody else leads.
#[test]
fn what_a_victim_of_a_former_leader_held_goes_to_whom_it_was_to_go_for() {
    for is_released in [false, true] {
        let teams = || vec![team("a", None, limit(8))];
        let train = gang("train", "a", 1, 8);
        let mut before = state(in_leaf(&["n0"], "s/l"), teams());
        let holds = start(&mut before, &train);
        let mut state = state(in_leaf(&["n0"], "s/l"), teams());
        if !is_released {
            state.apply(Update::Hold(holds[0].clone()));
        }
        state.apply(Update::Recovering(recovers(&train, &holds, &[], &[])));
        submit(&mut state, [gang("urgent", "a", 1, 8)]);
        state.apply(Update::Reserved(Reserved {
            gang: "urgent".into(),
            flavor: H100.into(),
            victims: BTreeMap::from([(train.uid.clone(), PreemptionReason::InTeam)]),
            since: Timestamp(90),
            until: Timestamp(690),
        }));
        let first = decide_at(&mut state, 110);
        if !is_released {
            release(&mut state, &train, &holds);
        }
        let second = decide_at(&mut state, 120);
        let admitted = [admitted(&first), admitted(&second)].concat();
        assert_eq!(admitted, ["urgent"], "{is_released}");
        assert!(state.is_recovery_over(&train.uid, 1), "{is_released}");
    }
}

/// While it ran it was held up by nobody who came later, of whatever tier. Else each would wait for the other until its time is over.
#[test]
fn whoever_is_before_it_in_a_strict_order_holds_it_up_no_more_than_while_it_ran() {
    let strict = Team {
        queueing: Queueing::StrictFifo,
        ..team("a", None, limit(16))
    };
    let mut state = state(in_leaf(&["n0", "n1"], "s/l"), vec![strict]);
    let train = gang("train", "a", 1, 8);
    let other = gang("other", "a", 1, 8);
    let holds = start(&mut state, &train);
    start(&mut state, &other);
    fail(&mut state, &train, &holds);
    let urgent = with_priority(10, gang("urgent", "a", 1, 8));
    submit(&mut state, [made_again(&train), urgent]);
    assert_eq!(admitted(&decide_at(&mut state, 110)), ["train"]);
}

/// A gang of which all others are told the same, whether it runs or recovers.
struct Twins {
    /// In which it recovers.
    recovers: State,
    /// In which it runs.
    runs: State,
    gangs: Vec<Gang>,
    holds: BTreeMap<GangUid, [Vec<Hold>; 2]>,
    now: i64,
}

/// Who is admitted, and who gives way to whom and by what right.
type Turns = (
    Vec<GangUid>,
    Vec<(GangUid, Vec<(GangUid, PreemptionReason)>)>,
);

impl Twins {
    fn new(teams: &[Team]) -> Self {
        let new = || state(in_leaf(&["n0", "n1", "n2", "n3"], "s/l"), teams.to_vec());
        Self {
            recovers: new(),
            runs: new(),
            gangs: Vec::new(),
            holds: BTreeMap::new(),
            now: 100,
        }
    }

    fn both(&mut self, update: &Update) {
        self.recovers.apply(update.clone());
        self.runs.apply(update.clone());
    }

    fn arrives(&mut self, gang: Gang) {
        self.both(&Update::Waiting(gang.clone()));
        self.gangs.push(gang);
    }

    fn is_over(&mut self, gang: &GangUid) {
        let Some([recovers, runs]) = self.holds.remove(gang) else {
            return;
        };
        self.both(&Update::NotRunning(gang.clone()));
        for hold in recovers {
            self.recovers.apply(Update::HoldGone(hold.pod));
        }
        for hold in runs {
            self.runs.apply(Update::HoldGone(hold.pod));
        }
    }

    /// Decides in both; what came of it in each.
    fn decide(&mut self) -> [Turns; 2] {
        self.now += 2;
        let decided = [&mut self.recovers, &mut self.runs]
            .map(|state| state.decide(Timestamp(self.now), &Budget::UNLIMITED));
        let turns = decided.each_ref().map(|decisions| {
            let admissions = decisions.admissions.iter();
            let preemptions = decisions.preemptions.iter().map(|preemption| {
                let victims = preemption.victims.iter();
                let victims = victims.map(|victim| (victim.gang.clone(), victim.reason));
                (preemption.gang.clone(), victims.collect())
            });
            let admitted = admissions.map(|it| it.gang.clone()).collect();
            (admitted, preemptions.collect())
        });
        let [recovers, runs] = decided;
        let both = recovers.admissions.iter().zip(&runs.admissions);
        for (one, other) in both.filter(|(one, other)| one.gang == other.gang) {
            let mut gangs = self.gangs.iter();
            let gang = gangs.find(|it| it.uid == one.gang).cloned();
            let gang = gang.expect("it has come");
            let holds = [holds_of(&gang, one), holds_of(&gang, other)];
            for (state, holds) in [&mut self.recovers, &mut self.runs].into_iter().zip(&holds) {
                for hold in holds {
                    state.apply(Update::Hold(hold.clone()));
                }
                state.apply(Update::NotWaiting(gang.uid.clone()));
                let running = running_since(Timestamp(self.now), &gang);
                state.apply(Update::Running(running));
            }
            self.holds.insert(gang.uid.clone(), holds);
        }
        turns
    }

    /// An attempt ends by a fault in one of them, and is told as admitted just now in the other.
    fn fails(&mut self, gang: &Gang) {
        let [holds, _] = self.holds.remove(&gang.uid).expect("it runs");
        let since = Timestamp(self.now);
        let told = Recovering {
            since,
            until: Timestamp(self.now + 600),
            ..recovers(gang, &holds, &[], &[])
        };
        self.recovers.apply(Update::Recovering(told));
        release(&mut self.recovers, gang, &holds);
        let running = running_since(since, gang);
        self.runs.apply(Update::Running(running));
    }
}

fn with_age(seconds: i64, gang: Gang) -> Gang {
    at(seconds, gang)
}

/// What happens beside the gang that recovers: somebody comes (Team, priority, pods, age), or whoever runs ends.
#[derive(Clone, Debug)]
enum Beside {
    Comes(bool, i32, usize, i64),
    Ends(usize),
}

fn beside() -> impl Strategy<Value = Beside> {
    prop_oneof![
        3 => (any::<bool>(), 0..3_i32, 1..3_usize, 0..9_i64)
            .prop_map(|(team, priority, pods, age)| Beside::Comes(team, priority, pods, age)),
        1 => (0..4_usize).prop_map(Beside::Ends),
    ]
}

fn policy() -> impl Strategy<Value = PreemptionPolicy> {
    let within = prop_oneof![
        Just(WithinTeam::Never),
        Just(WithinTeam::LowerPriority),
        Just(WithinTeam::LowerOrNewerEqualPriority),
    ];
    let reclaim = prop_oneof![
        Just(ReclaimWithinCohort::Never),
        Just(ReclaimWithinCohort::LowerPriority),
        Just(ReclaimWithinCohort::Any),
    ];
    (within, reclaim).prop_map(|(within_team, reclaim_within_cohort)| PreemptionPolicy {
        within_team,
        reclaim_within_cohort,
        ..PreemptionPolicy::NEVER
    })
}

proptest! {
    /// To all others a gang that recovers is one that runs: the same are admitted, in the same order, and the same give way, by the same right, until
    /// it is the one that does.
    #[test]
    fn to_others_a_gang_that_recovers_is_one_that_runs(
        policies in (policy(), policy()),
        nominal in (0..5_i64, 0..5_i64),
        before in prop::collection::vec(beside(), 1..6),
        which in 0..4_usize,
        after in prop::collection::vec(beside(), 1..12),
    ) {
        let teams = [
            Team { preemption: policies.0, ..team("a", Some("all"), limit(8 * nominal.0)) },
            Team { preemption: policies.1, ..team("b", Some("all"), limit(8 * nominal.1)) },
        ];
        let mut twins = Twins::new(&teams);
        let mut failed: Option<GangUid> = None;
        let count = before.len();
        for (at, beside) in before.into_iter().chain(after).enumerate() {
            if at == count {
                let running: Vec<GangUid> = twins.holds.keys().cloned().collect();
                let Some(uid) = running.get(which % running.len().max(1)) else { return Ok(()) };
                let gang = twins.gangs.iter().find(|it| it.uid == *uid).cloned();
                let gang = gang.expect("it has come");
                // Whoever goes already is not meant.
                if twins.runs.gives_way_to(uid).is_some() {
                    return Ok(());
                }
                twins.fails(&gang);
                failed = Some(uid.clone());
            }
            match beside {
                Beside::Comes(is_first, priority, pods, age) => {
                    let team = if is_first { "a" } else { "b" };
                    let name = format!("g{at:02}");
                    let gang = with_age(age, gang(&name, team, pods, 8));
                    twins.arrives(with_priority(priority, gang));
                }
                Beside::Ends(place) => {
                    let running: Vec<GangUid> = twins.holds.keys().cloned().collect();
                    if let Some(uid) = running.get(place % running.len().max(1)) {
                        twins.is_over(uid);
                    }
                }
            }
            let [recovers, runs] = twins.decide();
            let names_it = |turns: &Turns| {
                let mut victims = turns.1.iter().flat_map(|(_, victims)| victims);
                victims.any(|(victim, _)| Some(victim) == failed.as_ref())
            };
            if names_it(&runs) {
                prop_assert!(names_it(&recovers), "{recovers:?} {runs:?}");
                return Ok(());
            }
            prop_assert_eq!(&recovers, &runs);
            for (_, victims) in &runs.1 {
                for (victim, _) in victims {
                    twins.is_over(victim);
                }
            }
        }
    }
}

/// One step of a history.
#[derive(Clone, Copy, Debug)]
enum Step {
    Fails(usize),
    IsReleased(usize),
    IsMadeAgain(usize),
    HasNoLuck(usize),
    Passes(i64),
}

/// A gang of a history.
struct Member {
    gang: Gang,
    holds: Vec<Hold>,
    /// Whether its attempt ended and holds something still.
    ends: bool,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = (0..5_u8, 0..4_usize, 1..400_i64).prop_map(|(kind, at, seconds)| match kind {
        0 => Step::Fails(at),
        1 => Step::IsReleased(at),
        2 => Step::IsMadeAgain(at),
        3 => Step::HasNoLuck(at),
        _ => Step::Passes(seconds),
    });
    prop::collection::vec(step, 1..40)
}

proptest! {
    /// S1, S6: whoever fails, is released, made again or not, and in whatever order: no Team is over its quota, nothing is kept for whom it is over,
    /// and once all time is over nothing is.
    #[test]
    fn s1_what_is_kept_is_within_the_quota_and_ends(steps in steps()) {
        let mut state = state(in_leaf(&["n0", "n1"], "s/l"), vec![team("a", None, limit(16))]);
        let mut now = 1_000;
        let mut members: Vec<Member> = (0..4)
            .map(|at| Member {
                gang: gang(&format!("g{at}"), "a", 1, if at == 0 { 8 } else { 4 }),
                holds: Vec::new(),
                ends: false,
            })
            .collect();
        for member in &members {
            state.apply(Update::Waiting(member.gang.clone()));
        }
        for step in steps {
            match step {
                Step::Fails(at) => {
                    let member = &mut members[at];
                    if !member.holds.is_empty() && !member.ends {
                        member.ends = true;
                        let told = Recovering {
                            since: Timestamp(now),
                            until: Timestamp(now + 600),
                            ..recovers(&member.gang, &member.holds, &[], &[])
                        };
                        state.apply(Update::Recovering(told));
                    }
                }
                Step::HasNoLuck(at) => {
                    let member = &mut members[at];
                    if !member.holds.is_empty() && !member.ends {
                        member.ends = true;
                    }
                }
                Step::IsReleased(at) => {
                    let member = &mut members[at];
                    if member.ends {
                        release(&mut state, &member.gang, &member.holds);
                        member.holds.clear();
                        member.ends = false;
                        member.gang = made_again(&member.gang);
                    }
                }
                Step::IsMadeAgain(at) => {
                    let member = &members[at];
                    if member.holds.is_empty() {
                        state.apply(Update::Waiting(member.gang.clone()));
                    }
                }
                Step::Passes(seconds) => now += seconds,
            }
            now += 1;
            let decisions = decide_at(&mut state, now);
            for admission in &decisions.admissions {
                let mut found = members.iter_mut();
                let member = found.find(|it| it.gang.uid == admission.gang);
                let member = member.expect("it was told");
                member.holds = holds_of(&member.gang, admission);
                runs(&mut state, &member.gang, &member.holds);
                state.apply(Update::NotRecovering(member.gang.uid.clone()));
            }
            let used = state.usage(&team_name("a"))[0].used;
            prop_assert!(used <= gpus(16), "{used:?}");
            for member in &members {
                if state.recovery_of(&member.gang.uid).is_some() {
                    prop_assert!(member.ends || member.holds.is_empty());
                }
            }
        }
        // Whoever does not come back keeps nothing.
        decide_at(&mut state, now + 700);
        let held: i64 = members
            .iter()
            .flat_map(|member| &member.holds)
            .map(|hold| hold.claims[0].gpus.0)
            .sum();
        for member in &members {
            prop_assert!(state.recovery_of(&GangUid::from(member.gang.uid.as_str())).is_none());
        }
        let used = state.usage(&team_name("a"))[0].used.0;
        prop_assert!(used >= held, "{used} {held}");
    }
}
