//! When a gang has ended, and how.

use serde_json::{Value, json};

use crate::{
    formed::Ended,
    testing::{
        admitted, gang, index_with, indexed_job, key, member, only_gang, owner, pod, rank_of, with,
    },
};

fn phase(pod: Value, phase: &str) -> Value {
    with(pod, "/status/phase", json!(phase))
}

fn ended_job(condition: &Value) -> Value {
    with(
        indexed_job("train", 2),
        "/status",
        json!({"conditions": [condition]}),
    )
}

fn failed(why: &str) -> Ended {
    Ended::Failed(why.to_owned())
}

#[test]
fn a_gang_ends_as_its_job_says_else_as_all_its_pods_say() {
    let rank = |index, at: &str| phase(rank_of("train", index, 5), at);
    let one = |at: &str| phase(member("w-0", 5, "train", "2"), at);
    let two = |at: &str| phase(member("w-1", 5, "train", "2"), at);
    let crashed = with(
        one("Failed"),
        "/status/containerStatuses",
        json!([
            {"name": "main", "ready": false, "restartCount": 0, "image": "i", "imageID": "i",
             "state": {"terminated": {"exitCode": 3}}},
        ]),
    );
    let evicted = with(
        with(one("Failed"), "/status/reason", json!("Evicted")),
        "/status/message",
        json!("low on memory"),
    );
    for (what, objects, ended) in [
        (
            "a Job that runs",
            vec![
                indexed_job("train", 2),
                rank(0, "Succeeded"),
                rank(1, "Running"),
            ],
            None,
        ),
        (
            "a Job whose pods ended, and that has not said so yet",
            vec![
                indexed_job("train", 2),
                rank(0, "Succeeded"),
                rank(1, "Failed"),
            ],
            None,
        ),
        (
            "a complete Job",
            vec![
                ended_job(&json!({"type": "Complete", "status": "True"})),
                rank(0, "Succeeded"),
            ],
            Some(Ended::Finished),
        ),
        (
            "a failed Job",
            vec![
                ended_job(
                    &json!({"type": "Failed", "status": "True", "reason": "BackoffLimitExceeded", "message": "7 failures"}),
                ),
                rank(0, "Failed"),
            ],
            Some(failed("its Job failed: BackoffLimitExceeded: 7 failures")),
        ),
        (
            "a condition that is not true",
            vec![
                ended_job(&json!({"type": "Failed", "status": "False"})),
                rank(0, "Running"),
            ],
            None,
        ),
        (
            "pods of which one runs",
            vec![one("Succeeded"), two("Running")],
            None,
        ),
        (
            "pods that all succeeded",
            vec![one("Succeeded"), two("Succeeded")],
            Some(Ended::Finished),
        ),
        (
            "pods of which one failed",
            vec![crashed, two("Succeeded")],
            Some(failed("pod w-0 failed: container main exited with code 3")),
        ),
        (
            "pods of which one was evicted",
            vec![evicted, two("Succeeded")],
            Some(failed("pod w-0 failed: Evicted: low on memory")),
        ),
    ] {
        assert_eq!(only_gang(&index_with(objects)).ended, ended, "{what}");
    }
}

#[test]
fn a_gang_without_pods_is_told_while_it_is_under_way() {
    let owned = |owner: Value| {
        with(
            gang("g", 2, "Pending"),
            "/metadata/ownerReferences",
            json!([owner]),
        )
    };
    let job = owner("batch/v1", "Job", "train", "job-train");
    for (what, objects, ended) in [
        (
            "no owner",
            vec![gang("g", 2, "Running")],
            Some(failed("all its pods are gone")),
        ),
        (
            "an owner that may make more",
            vec![owned(owner("apps/v1", "ReplicaSet", "r", "rs"))],
            None,
        ),
        (
            "a Job that may make more",
            vec![owned(job.clone()), indexed_job("train", 2)],
            None,
        ),
        (
            "a Job that completed",
            vec![
                owned(job.clone()),
                ended_job(&json!({"type": "Complete", "status": "True"})),
            ],
            Some(Ended::Finished),
        ),
        (
            "a Job that is gone",
            vec![owned(job)],
            Some(failed("its Job is gone")),
        ),
    ] {
        let index = index_with(objects);
        assert_eq!(only_gang(&index).ended, ended, "{what}");
        assert!(only_gang(&index).pods.is_empty());
    }
    let of_job = owner("batch/v1", "Job", "train", "job-train");
    let single = with(
        gang("pod-train-0-abcde", 1, "Running"),
        "/metadata/ownerReferences",
        json!([of_job]),
    );
    let index = index_with([single, indexed_job("train", 2)]);
    assert_eq!(
        only_gang(&index).ended,
        Some(failed("all its pods are gone")),
        "a gang of one ends with its pod"
    );

    let over = index_with([gang("g", 2, "Finished")]);
    assert!(
        over.formed_gang(&key("g")).is_none(),
        "a Gang that ended is not formed any more"
    );
}

#[test]
fn a_pod_outside_the_admission_does_not_keep_a_gang_alive() {
    let named = |name: &str, at: &str| {
        phase(
            with(
                pod(name, 5),
                "/metadata/annotations",
                json!({"muster.dev/gang-name": "g"}),
            ),
            at,
        )
    };
    let gang = admitted(gang("g", 1, "Running"), &["w-0"]);
    let index = index_with([gang, named("w-0", "Succeeded"), named("w-1", "Pending")]);
    assert_eq!(only_gang(&index).ended, Some(Ended::Finished));
}

#[test]
fn members_of_an_admitted_gang_that_ended_are_not_missing() {
    let index = index_with([
        member("w-0", 5, "train", "2"),
        member("w-1", 5, "train", "2"),
    ]);
    let name = only_gang(&index).key.name.clone();
    let gang = with(gang(&name, 2, "Running"), "/spec/group", json!("train"));
    let gang = admitted(gang, &["w-0", "w-1"]);
    let index = index_with([
        gang.clone(),
        phase(member("w-0", 5, "train", "2"), "Succeeded"),
        member("w-1", 5, "train", "2"),
        crate::testing::claim("w-1", 1),
    ]);
    assert_eq!(
        (only_gang(&index).wait.clone(), only_gang(&index).pods.len()),
        (None, 1)
    );

    let index = index_with([gang, member("w-1", 5, "train", "2")]);
    assert_eq!(
        only_gang(&index).wait.as_ref().unwrap().details,
        "1 of 2 pods exist"
    );
}
