//! From when on what is still charged is overdue.

use super::*;

const LAST_POD: &str = "p0000000-0000-0000-0000-000000000002";

/// The last rank of the gang, which has no claim.
fn last_pod(phase: &str) -> Object {
    Object::Pod(Box::new(object(&json!({
        "metadata": {"name": "last", "namespace": "ml", "uid": LAST_POD},
        "spec": {"containers": [], "nodeName": "node-0"},
        "status": {"phase": phase}
    }))))
}

/// A gang of two, the first of which holds the claim.
fn gang_of_two() -> Value {
    let mut admission = admission(1);
    admission["pods"] = json!([{"uid": POD, "claims": [CLAIM]}, {"uid": LAST_POD, "claims": []}]);
    json!({
        "phase": "Admitted", "attempt": 1, "admission": admission,
        "placement": {"nodes": [{"node": "node-0", "nodeUid": "n0", "ranks": 2}]}
    })
}

/// A gang of two of which the rank with the claim has ended, as the node's permits say.
fn a_gang_of_which_a_rank_ended(left: Permits) -> Stage {
    let mut stage = a_gang_that_waits(1, 1);
    stage
        .shows(last_pod("Running"))
        .shows(gang(&gang_of_two()))
        .shows(permitted(true))
        .shows(ungated_pod(1, "node-0", false, "Pending"))
        .shows(ungated_pod(1, "node-0", true, "Running"))
        .starts("pod", CLAIM, "gpu-0")
        .exits("pod")
        .shows(ungated_pod(1, "node-0", true, "Succeeded"))
        .shows(freed_claim())
        .shows(permits(left));
    stage
}

/// A kubelet may take minutes to end all pods of a node, one after the other.
#[test]
fn a_gang_is_charged_as_a_whole_until_its_last_pod_has_ended_and_no_longer() {
    let mut stage = a_gang_of_which_a_rank_ended(Permits {
        given: false,
        ..WITHDRAWN
    });
    stage.passes(LATE_MILLIS).is_all_well();
    stage
        .shows(last_pod("Succeeded"))
        .passes(29_000)
        .is_all_well();
    stage.passes(2_000).is_seen_as("S6");
}

/// The last rank of the gang has failed; `owner`: the kind of who made it.
fn failed_pod_of(owner: &str, conditions: &Value) -> Object {
    Object::Pod(Box::new(object(&json!({
        "metadata": {
            "name": "last", "namespace": "ml", "uid": LAST_POD,
            "ownerReferences": [{"apiVersion": "v1", "kind": owner, "name": "o", "uid": "o", "controller": true}],
        },
        "spec": {"containers": [], "nodeName": "node-0"},
        "status": {"phase": "Failed", "conditions": conditions},
    }))))
}

/// Nothing is permitted any more.
const NOT_PERMITTED: Permits = Permits {
    given: false,
    ..WITHDRAWN
};

/// Its Job may fail by what is counted: for a minute it is looked whether anything else ended them (`docs/adr/0047`). Where it may not, or where a pod says what ended
/// it, nothing is waited for.
#[test]
fn a_gang_of_which_a_pod_of_a_job_failed_is_charged_for_a_minute_longer_if_that_may_matter() {
    let taken = json!([{"type": "DisruptionTarget", "status": "True"}]);
    let passed = json!([{"type": "DisruptionTarget", "status": "False"}]);
    for (owner, conditions, max_restarts, seconds) in [
        ("Job", &json!([]), None, 90),
        ("Job", &passed, None, 90),
        ("Job", &taken, None, 30),
        ("Job", &json!([]), Some(3), 30),
        ("StatefulSet", &json!([]), None, 30),
    ] {
        eprintln!("{owner}, {conditions}, {max_restarts:?}");
        let mut stage = a_gang_of_which_a_rank_ended(NOT_PERMITTED);
        let declared = json!({
            "metadata": {"name": "gang", "namespace": "ml", "uid": "g1"},
            "spec": {"size": 2, "restart": {"maxRestarts": max_restarts}},
            "status": gang_of_two(),
        });
        stage
            .shows(Object::Gang(Box::new(object(&declared))))
            .shows(failed_pod_of(owner, conditions))
            .passes(seconds * 1_000 - 1_000)
            .is_all_well();
        stage.passes(2_000).is_seen_as("S6");
    }
}

/// What the pod died of is told neither sooner nor later by that: the minute has begun when it ended.
#[test]
fn a_gang_in_doubt_is_due_as_late_and_no_later_when_its_failed_pod_is_removed() {
    let failed = || failed_pod_of("Job", &json!([]));
    let mut stage = a_gang_of_which_a_rank_ended(NOT_PERMITTED);
    stage.shows(failed()).passes(50_000).loses(failed());
    stage.passes(90_000 - 50_000 - 2_000).is_all_well();
    stage.passes(3_000).is_seen_as("S6");
}

/// No leader tells the next one since when it doubts. What is not in doubt is due as ever, whoever leads.
#[test]
fn each_leader_may_doubt_for_a_minute_of_its_own() {
    let led_by = |epoch: i64| {
        Object::Ledger(Box::new(object(&json!({
            "metadata": {"name": "cluster", "uid": "l1"},
            "spec": {"leaderEpoch": epoch, "sequence": 1, "intents": []},
        }))))
    };
    for (owner, until_next, well_for, late_after) in [
        ("Job", 50_000, 88_000, 3_000),
        ("StatefulSet", 20_000, 8_000, 3_000),
    ] {
        let mut stage = a_gang_of_which_a_rank_ended(NOT_PERMITTED);
        stage
            .shows(led_by(1))
            .shows(failed_pod_of(owner, &json!([])))
            .passes(until_next)
            .shows(led_by(2))
            .passes(well_for)
            .is_all_well();
        stage.passes(late_after).is_seen_as("S6");
    }
}

/// There is an intent that names its claim only once nothing is in doubt.
#[test]
fn what_the_ledger_says_of_a_gang_whose_pod_failed_is_due_as_ever() {
    let intent = json!({
        "sequence": 2, "leaderEpoch": 1, "kind": "Evict", "namespace": "ml", "name": "gang", "gangUid": "g1", "attempt": 1,
        "cause": "PodFailed", "team": "research", "teamGeneration": 1, "charge": charge(1), "plan": [],
        "pods": [{"name": "pod", "uid": POD, "claims": [CLAIM]}, {"name": "last", "uid": LAST_POD}],
    });
    let ledger = json!({
        "metadata": {"name": "cluster", "uid": "l1"},
        "spec": {"leaderEpoch": 1, "sequence": 2, "intents": [intent]},
    });
    let mut stage = a_gang_of_which_a_rank_ended(NOT_PERMITTED);
    stage
        .shows(failed_pod_of("Job", &json!([])))
        .shows(Object::Ledger(Box::new(object(&ledger))))
        .passes(29_000)
        .is_all_well();
    stage.passes(2_000).is_seen_as("S6");
}

#[test]
fn a_permit_is_due_by_its_own_pod_however_long_the_gang_lives() {
    for left in [LIVE, WITHDRAWN] {
        let mut stage = a_gang_of_which_a_rank_ended(left);
        stage.passes(LATE_MILLIS).is_seen_as("S6");
    }
}

#[test]
fn what_a_driver_lists_as_held_is_due_from_when_it_does_not_any_more() {
    let held = Permits {
        acknowledged: 2,
        is_held: true,
        ..WITHDRAWN
    };
    let mut stage = a_gang_of_which_a_rank_ended(held);
    stage.passes(LATE_MILLIS).is_all_well();
    let proved = Permits {
        is_held: false,
        ..held
    };
    stage.shows(permits(proved)).passes(29_000).is_all_well();
    stage.passes(2_000).is_seen_as("S6");
}
