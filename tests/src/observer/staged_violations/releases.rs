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

/// A gang of two of which the rank with the claim has ended, as the node's permits say.
fn a_gang_of_which_a_rank_ended(left: Permits) -> Stage {
    let mut admission = admission(1);
    admission["pods"] = json!([{"uid": POD, "claims": [CLAIM]}, {"uid": LAST_POD, "claims": []}]);
    let status = json!({
        "phase": "Admitted", "attempt": 1, "admission": admission,
        "placement": {"nodes": [{"node": "node-0", "nodeUid": "n0", "ranks": 2}]}
    });
    let mut stage = a_gang_that_waits(1, 1);
    stage
        .shows(last_pod("Running"))
        .shows(gang(&status))
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

/// Its Job may fail by what is counted: for a minute it is looked whether anything else ended them (`docs/adr/0047`).
#[test]
fn a_gang_of_which_a_pod_of_a_job_failed_is_charged_for_a_minute_longer() {
    let failed = |owner: &str| {
        Object::Pod(Box::new(object(&json!({
            "metadata": {
                "name": "last", "namespace": "ml", "uid": LAST_POD,
                "ownerReferences": [{"apiVersion": "v1", "kind": owner, "name": "o", "uid": "o", "controller": true}],
            },
            "spec": {"containers": [], "nodeName": "node-0"},
            "status": {"phase": "Failed"},
        }))))
    };
    for (owner, seconds) in [("Job", 90), ("StatefulSet", 30)] {
        let mut stage = a_gang_of_which_a_rank_ended(Permits {
            given: false,
            ..WITHDRAWN
        });
        stage
            .shows(failed(owner))
            .passes(seconds * 1_000 - 1_000)
            .is_all_well();
        stage.passes(2_000).is_seen_as("S6");
    }
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
