//! An attempt that is evicted ends whole.

use super::*;

const LAST_POD: &str = "p0000000-0000-0000-0000-000000000002";
/// Shorter than the bound.
const SHORTLY_MILLIS: u64 = 50_000;

/// The last rank of the gang, which has no claim and runs in attempt 1.
fn last_pod() -> Object {
    Object::Pod(Box::new(object(&json!({
        "metadata": {"name": "last", "namespace": "ml", "uid": LAST_POD, "annotations": {
            "muster.dev/gang-name": "gang", "muster.dev/attempt": "1", "muster.dev/placement": "pinned"}},
        "spec": {"containers": [], "nodeName": "node-0"},
        "status": {"phase": "Running"}
    }))))
}

/// The pod is told to end.
fn told_to_end(pod: Object) -> Object {
    let Object::Pod(mut pod) = pod else {
        panic!("only pods are told");
    };
    pod.metadata.deletion_timestamp = Some(object(&json!("2026-11-27T00:00:00Z")));
    Object::Pod(pod)
}

fn first_pod() -> Object {
    ungated_pod(1, "node-0", true, "Running")
}

/// A gang of two runs, and the Ledger evicts its attempt.
fn a_gang_that_is_evicted() -> Stage {
    let pods = json!([{"uid": POD, "claims": [CLAIM]}, {"uid": LAST_POD, "claims": []}]);
    let mut admission = admission(1);
    admission["pods"] = pods;
    let status = json!({
        "phase": "Admitted", "attempt": 1, "admission": admission,
        "placement": {"nodes": [{"node": "node-0", "nodeUid": "n0", "ranks": 2}]}
    });
    let evict = json!({
        "sequence": 2, "leaderEpoch": 1, "kind": "Evict", "namespace": "ml", "name": "gang", "gangUid": "g1", "attempt": 1,
        "cause": "PodFailed", "team": "research", "teamGeneration": 1, "charge": charge(1), "plan": [],
        "pods": [{"name": "pod", "uid": POD, "claims": [CLAIM]}, {"name": "last", "uid": LAST_POD}]
    });
    let ledger = object(&json!({
        "metadata": {"name": "cluster", "uid": "l1"},
        "spec": {"leaderEpoch": 1, "sequence": 2, "intents": [evict]}
    }));
    let mut stage = a_gang_that_waits(1, 1);
    stage
        .shows(last_pod())
        .shows(gang(&status))
        .shows(permitted(true))
        .shows(ungated_pod(1, "node-0", false, "Pending"))
        .shows(first_pod())
        .starts("pod", CLAIM, "gpu-0")
        .shows(Object::Ledger(Box::new(ledger)));
    stage
}

#[test]
fn an_attempt_of_which_a_pod_ends_and_another_goes_on_is_seen_as_s4() {
    type Ends = fn(&mut Stage);
    let ways: [(&str, Ends); 2] = [
        ("it is gone", |stage| {
            stage.loses(last_pod());
        }),
        ("it is told to end, and hangs", |stage| {
            stage.shows(told_to_end(last_pod()));
        }),
    ];
    for (way, ends) in ways {
        eprintln!("{way}");
        let mut stage = a_gang_that_is_evicted();
        ends(&mut stage);
        stage.passes(SHORTLY_MILLIS).is_all_well();
        stage.passes(LATE_MILLIS).is_seen_as("S4");
    }
}

/// A kubelet may be silent, and a process may hang.
#[test]
fn an_attempt_of_which_all_pods_are_told_to_end_is_all_well_however_long_they_take() {
    let mut stage = a_gang_that_is_evicted();
    stage
        .shows(told_to_end(last_pod()))
        .passes(SHORTLY_MILLIS)
        .shows(told_to_end(first_pod()))
        .passes(LATE_MILLIS)
        .is_all_well();
}

/// Of what nobody has begun nothing is partly done.
#[test]
fn an_attempt_that_is_evicted_and_of_which_no_pod_ends_yet_is_whole() {
    let mut stage = a_gang_that_is_evicted();
    stage.passes(LATE_MILLIS).is_all_well();
}

#[test]
fn an_attempt_is_partly_ended_while_muster_is_stopped_on_purpose_and_not_for_long_after() {
    let mut stage = a_gang_that_is_evicted();
    stage.judge.suspend_bounds(true);
    stage
        .loses(last_pod())
        .passes(LATE_MILLIS)
        .passes(LATE_MILLIS)
        .is_all_well();
    stage.judge.suspend_bounds(false);
    stage.passes(SHORTLY_MILLIS).is_all_well();
    stage.passes(LATE_MILLIS).is_seen_as("S4");
}
