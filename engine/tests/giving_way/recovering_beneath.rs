//! What an attempt held is kept once it is proved released, and may not be free yet: its claim is allocated still, say. When it is, nothing more is free on
//! the node, since it is kept; but who may have it has room by that.

use crate::{
    common::*,
    recovering::{decide_at, fail, made_again, preempting},
};
use muster_engine::{Device, Gang, Node, State, Team, Timestamp, Update};

const ALL_EIGHT: [usize; 8] = [0, 1, 2, 3, 4, 5, 6, 7];

type Change = fn(&mut Device);

/// Why devices are not free that were released: by the API server's account, or by their driver's.
const NOT_FREE_YET: [(&str, Change); 2] = [
    ("their claim is allocated", |device| {
        device.allocated_to = Some("claim-of-h".into());
    }),
    ("their driver taints them", |device| device.usable = false),
];

/// The node, with its devices so.
fn with_devices(change: impl Fn(&mut Device)) -> Node {
    let mut node = node("n0", "s/l", 8);
    node.devices.iter_mut().for_each(change);
    node
}

/// A gang recovers that had all GPUs of the only node, which it has released, and which are not free yet.
fn recovers_before_it_is_free(research: Team, not_free: Change) -> (State, Gang) {
    let mut state = state(vec![node("n0", "s/l", 8)], vec![research]);
    let train = gang("gang-of-h", "a", 1, 8);
    let held = [hold("h", "a", "n0", &ALL_EIGHT)];
    state.apply(Update::Hold(held[0].clone()));
    let running = running_since(Timestamp(0), &train);
    state.apply(Update::Running(running));
    state.apply(Update::Node(with_devices(not_free)));
    fail(&mut state, &train, &held);
    (state, train)
}

#[test]
fn a_gang_that_recovers_is_asked_again_once_what_is_kept_for_it_is_free() {
    for (case, not_free) in NOT_FREE_YET {
        for research in [team("a", None, limit(8)), preempting("a", None, 8)] {
            let policy = research.preemption;
            let (mut state, train) = recovers_before_it_is_free(research, not_free);
            submit(&mut state, [made_again(&train)]);
            let decisions = decide_at(&mut state, 110);
            assert!(decisions.visited.recovering > 0, "{case}, {policy:?}");
            assert!(decisions.admissions.is_empty(), "{case}, {policy:?}");
            let kept = state.recovery_of(&train.uid).map(|kept| kept.placed);
            assert_eq!(kept, Some(1), "{case}, {policy:?}: with its place");
            let at_rest = decide_at(&mut state, 111);
            assert_eq!(at_rest.visited.recovering, 0, "{case}, {policy:?}");
            state.apply(Update::Node(node("n0", "s/l", 8)));
            let decisions = decide_at(&mut state, 120);
            assert_eq!(admitted(&decisions), ["gang-of-h"], "{case}, {policy:?}");
        }
    }
}

#[test]
fn a_gang_that_recovers_is_not_asked_again_when_less_is_free_beneath_what_is_kept_for_it() {
    let [(_, allocated), (_, tainted)] = NOT_FREE_YET;
    let (mut state, train) = recovers_before_it_is_free(team("a", None, limit(8)), allocated);
    submit(&mut state, [made_again(&train)]);
    assert!(decide_at(&mut state, 110).visited.recovering > 0);
    state.apply(Update::Node(with_devices(|device| {
        allocated(device);
        tainted(device);
    })));
    assert_eq!(decide_at(&mut state, 120).visited.recovering, 0);
    // What its driver says is over helps nobody before its claim is.
    state.apply(Update::Node(with_devices(allocated)));
    assert_eq!(decide_at(&mut state, 130).visited.recovering, 0);
}

#[test]
fn who_may_preempt_a_gang_that_recovers_is_asked_again_once_what_is_kept_for_that_is_free() {
    let [(_, allocated), _] = NOT_FREE_YET;
    let (mut state, _) = recovers_before_it_is_free(preempting("a", None, 8), allocated);
    let urgent = with_priority(10, at(9, gang("urgent", "a", 1, 8)));
    submit(&mut state, [urgent]);
    let decisions = decide_at(&mut state, 110);
    assert!(decisions.admissions.is_empty(), "nothing is free for it");
    assert!(decisions.preemptions.is_empty(), "it would be in vain");
    assert!(decide_at(&mut state, 111).preemptions.is_empty());
    state.apply(Update::Node(node("n0", "s/l", 8)));
    let decisions = decide_at(&mut state, 120);
    let preemptions = decisions.preemptions.iter();
    let preemptors: Vec<&str> = preemptions.map(|it| it.gang.as_str()).collect();
    assert_eq!(preemptors, ["urgent"]);
}
