use muster_api::{CohortStatus, GangPhase, Permit, Reason};
use muster_cluster::object::Kind;
use muster_protocol::JobChange;
use serde_json::json;

use super::*;
use crate::scripted_api::{Asked, ScriptedApi, failure};

async fn perform(api: &ScriptedApi, write: ApiRequest) -> Outcome {
    let performer = Performer::new(api.client(), "replica-0".to_owned());
    performer.perform(&write, None).await
}

/// The same for a write that replaces the NodeDevices that is seen.
async fn perform_on(api: &ScriptedApi, write: ApiRequest, seen: Value) -> Outcome {
    let performer = Performer::new(api.client(), "replica-0".to_owned());
    let seen: NodeDevices = serde_json::from_value(seen).unwrap();
    performer.perform(&write, Some(&seen)).await
}

fn only(api: &ScriptedApi) -> Asked {
    let asked = api.asked();
    assert_eq!(asked.len(), 1, "{asked:?}");
    asked[0].clone()
}

fn key(kind: Kind, namespace: &str, name: &str) -> ObjectKey {
    ObjectKey {
        kind,
        namespace: namespace.to_owned(),
        name: name.to_owned(),
    }
}

fn node_devices(resource_version: &str, finalizers: &[&str]) -> Value {
    json!({
        "apiVersion": "muster.dev/v1alpha1", "kind": "NodeDevices",
        "metadata": {
            "name": "node-a", "uid": "u-1", "resourceVersion": resource_version,
            "labels": {"kept": "yes"}, "finalizers": finalizers,
        },
        "spec": {"nodeUid": "n-1", "leaderEpoch": 3},
    })
}

fn permits(count: usize) -> NodeDevicesSpec {
    NodeDevicesSpec {
        node_uid: "n-1".to_owned(),
        leader_epoch: 4,
        permits: vec![Permit::default(); count],
        ..NodeDevicesSpec::default()
    }
}

fn replace_node_devices(resource_version: &str, count: usize) -> ApiRequest {
    ApiRequest::ReplaceNodeDevices {
        node: "node-a".to_owned(),
        uid: "u-1".to_owned(),
        resource_version: resource_version.to_owned(),
        spec: permits(count),
        finalizer: count > 0,
    }
}

#[tokio::test]
async fn the_ledger_is_replaced_only_as_it_was_seen() {
    let spec = LedgerSpec {
        leader_epoch: 4,
        ..LedgerSpec::default()
    };
    let stored = json!({
        "apiVersion": "muster.dev/v1alpha1", "kind": "Ledger",
        "metadata": {"name": "cluster", "resourceVersion": "8", "managedFields": [{"manager": "x"}]},
        "spec": {"leaderEpoch": 4, "sequence": 0},
    });
    let api = ScriptedApi::new([(200, stored), failure(409, "modified")]);
    let write = ApiRequest::ReplaceLedger {
        resource_version: "7".to_owned(),
        spec,
    };
    let Outcome::Done(Some(Object::Ledger(ledger))) = perform(&api, write.clone()).await else {
        panic!("done")
    };
    assert_eq!(ledger.metadata.resource_version.as_deref(), Some("8"));
    assert_eq!(ledger.metadata.managed_fields, None);
    let asked = only(&api);
    assert_eq!(asked.what, "PUT /apis/muster.dev/v1alpha1/ledgers/cluster");
    assert_eq!(asked.query, "&fieldManager=muster-controller");
    assert_eq!(asked.body["metadata"]["resourceVersion"], "7");
    assert!(matches!(perform(&api, write).await, Outcome::Conflict));
}

#[tokio::test]
async fn a_gang_status_names_version_and_uid() {
    let status = GangStatus {
        leader_epoch: 4,
        phase: GangPhase::Pending,
        ..GangStatus::default()
    };
    let api = ScriptedApi::new([failure(
        409,
        "UID in precondition: u-1, UID in object meta: u-2",
    )]);
    let write = ApiRequest::ReplaceGangStatus {
        key: key(Kind::Gang, "team-a", "job-x"),
        uid: "u-1".to_owned(),
        resource_version: "7".to_owned(),
        status: Box::new(status),
        tells: true,
    };
    assert!(matches!(perform(&api, write).await, Outcome::Conflict));
    let asked = only(&api);
    assert_eq!(
        asked.what,
        "PUT /apis/muster.dev/v1alpha1/namespaces/team-a/gangs/job-x/status"
    );
    assert_eq!(asked.body["metadata"]["uid"], "u-1");
    assert_eq!(asked.body["metadata"]["resourceVersion"], "7");
    assert_eq!(asked.body["status"]["leaderEpoch"], 4);
}

#[tokio::test]
async fn permits_are_replaced_only_as_they_were_seen_and_the_rest_is_kept() {
    let api = ScriptedApi::new([(
        200,
        node_devices("8", &["other.dev/kept", keys::PERMITS_FINALIZER]),
    )]);
    let seen = node_devices("7", &["other.dev/kept"]);
    let outcome = perform_on(&api, replace_node_devices("7", 2), seen).await;
    assert!(
        matches!(outcome, Outcome::Done(Some(Object::NodeDevices(_)))),
        "{outcome:?}"
    );
    let written = only(&api);
    assert_eq!(
        written.what,
        "PUT /apis/muster.dev/v1alpha1/nodedevices/node-a"
    );
    assert_eq!(written.body["metadata"]["resourceVersion"], "7");
    assert_eq!(written.body["metadata"]["labels"]["kept"], "yes");
    assert_eq!(
        written.body["metadata"]["finalizers"],
        json!(["other.dev/kept", keys::PERMITS_FINALIZER])
    );
    assert_eq!(written.body["spec"]["permits"].as_array().unwrap().len(), 2);

    for seen in [Some(node_devices("8", &[])), None] {
        let api = ScriptedApi::new([]);
        let write = replace_node_devices("7", 0);
        let outcome = match seen {
            Some(seen) => perform_on(&api, write, seen).await,
            None => perform(&api, write).await,
        };
        assert!(matches!(outcome, Outcome::Conflict), "{outcome:?}");
        let asked = api.asked();
        assert_eq!(asked, [], "what was changed by others is not written");
    }
}

#[tokio::test]
async fn the_finalizer_goes_with_the_last_permit() {
    let finalizers = ["other.dev/kept", keys::PERMITS_FINALIZER];
    let api = ScriptedApi::new([(200, node_devices("8", &[]))]);
    let seen = node_devices("7", &finalizers);
    perform_on(&api, replace_node_devices("7", 0), seen).await;
    assert_eq!(
        only(&api).body["metadata"]["finalizers"],
        json!(["other.dev/kept"])
    );

    let api = ScriptedApi::new([(201, node_devices("1", &[]))]);
    let write = ApiRequest::CreateNodeDevices {
        node: "node-a".to_owned(),
        spec: permits(1),
    };
    perform(&api, write).await;
    assert_eq!(
        only(&api).body["metadata"]["finalizers"],
        json!([keys::PERMITS_FINALIZER])
    );
}

#[tokio::test]
async fn a_pod_patch_arrives_word_by_word_and_a_failed_test_is_a_conflict() {
    let patch = json!([
        {"op": "test", "path": "/metadata/resourceVersion", "value": "7"},
        {"op": "add", "path": "/metadata/annotations/muster.dev~1rank", "value": "3"},
    ]);
    let api = ScriptedApi::new([failure(
        422,
        "the server rejected our request due to an error in our request",
    )]);
    let write = ApiRequest::PatchPod {
        key: key(Kind::Pod, "team-a", "worker-3"),
        patch: patch.clone(),
    };
    assert!(matches!(perform(&api, write).await, Outcome::Conflict));
    let asked = only(&api);
    assert_eq!(asked.what, "PATCH /api/v1/namespaces/team-a/pods/worker-3");
    assert_eq!(asked.body, patch);
}

#[tokio::test]
async fn a_queue_is_made_where_there_is_none() {
    let queue = json!({
        "apiVersion": "muster.dev/v1alpha1", "kind": "Queue",
        "metadata": {"name": "ml", "namespace": "team-a"}, "spec": {"team": "ml"},
    });
    let api = ScriptedApi::new([
        failure(404, "not found"),
        (201, queue.clone()),
        (200, queue),
    ]);
    let write = ApiRequest::PublishQueue {
        namespace: "team-a".to_owned(),
        team: "ml".to_owned(),
        status: Box::default(),
    };
    assert!(matches!(
        perform(&api, write).await,
        Outcome::Done(Some(Object::Queue(_)))
    ));
    let what: Vec<String> = api.asked().into_iter().map(|asked| asked.what).collect();
    let queues = "/apis/muster.dev/v1alpha1/namespaces/team-a/queues";
    assert_eq!(
        what,
        [
            format!("PATCH {queues}/ml/status"),
            format!("POST {queues}"),
            format!("PATCH {queues}/ml/status")
        ]
    );
}

#[tokio::test]
async fn a_team_that_is_gone_gets_no_status_and_is_not_made_again() {
    let api = ScriptedApi::new([failure(404, "not found")]);
    let write = ApiRequest::PublishTeam {
        team: "ml".to_owned(),
        status: Box::default(),
    };
    assert!(matches!(perform(&api, write).await, Outcome::NotFound));
    let asked = only(&api);
    assert_eq!(
        asked.what,
        "PATCH /apis/muster.dev/v1alpha1/teams/ml/status"
    );
}

#[tokio::test]
async fn a_gang_or_a_nodes_object_is_deleted_only_if_it_is_the_one_that_was_seen() {
    let (uid, resource_version) = ("u-1".to_owned(), "7".to_owned());
    let gang = ApiRequest::DeleteGang {
        key: key(Kind::Gang, "team-a", "job-x"),
        uid: uid.clone(),
        resource_version: resource_version.clone(),
    };
    let node_devices = ApiRequest::DeleteNodeDevices {
        node: "node-a".to_owned(),
        uid,
        resource_version,
    };
    for (write, path) in [
        (gang, "namespaces/team-a/gangs/job-x"),
        (node_devices, "nodedevices/node-a"),
    ] {
        let deleted =
            json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success"});
        let api = ScriptedApi::new([(200, deleted)]);
        assert!(matches!(perform(&api, write).await, Outcome::Done(None)));
        let asked = only(&api);
        let expected = format!("DELETE /apis/muster.dev/v1alpha1/{path}");
        assert_eq!(asked.what, expected);
        assert_eq!(asked.body["preconditions"]["uid"], "u-1");
        assert_eq!(asked.body["preconditions"]["resourceVersion"], "7");
    }
}

#[tokio::test]
async fn an_answer_that_never_comes_is_unknown_and_nothing_is_sent_twice() {
    let api = ScriptedApi::new([]);
    let write = ApiRequest::CreateLedger {
        spec: LedgerSpec::default(),
    };
    assert!(matches!(perform(&api, write).await, Outcome::Unknown));
    only(&api);
    let api = ScriptedApi::new([failure(504, "timeout")]);
    let write = ApiRequest::CreateLedger {
        spec: LedgerSpec::default(),
    };
    assert!(matches!(perform(&api, write).await, Outcome::Unknown));
    only(&api);
}

#[tokio::test]
async fn an_object_is_read_from_the_store() {
    let api = ScriptedApi::new([(200, node_devices("7", &[])), failure(404, "not found")]);
    let read = || ApiRequest::ReadObject {
        key: key(Kind::NodeDevices, "", "node-a"),
    };
    assert!(matches!(
        perform(&api, read()).await,
        Outcome::Done(Some(Object::NodeDevices(_)))
    ));
    assert!(matches!(perform(&api, read()).await, Outcome::NotFound));
    assert!(
        api.asked()
            .iter()
            .all(|asked| !asked.query.contains("resourceVersion")),
        "any resourceVersion would allow an answer from a cache"
    );
}

#[tokio::test]
async fn a_ledger_that_cannot_be_read_is_neither_there_nor_gone() {
    let ledger = json!({
        "apiVersion": "muster.dev/v1alpha1", "kind": "Ledger",
        "metadata": {"name": "cluster", "resourceVersion": "7"}, "spec": {"leaderEpoch": "high"},
    });
    let api = ScriptedApi::new([(200, ledger)]);
    let read = ApiRequest::ReadObject {
        key: key(Kind::Ledger, "", "cluster"),
    };
    assert!(matches!(perform(&api, read).await, Outcome::Unknown));
}

#[test]
fn an_event_is_one_that_kubernetes_accepts() {
    let note = EventNote {
        api_version: "v1".to_owned(),
        kind: "Pod".to_owned(),
        namespace: "team-a".to_owned(),
        name: "p".repeat(253),
        uid: "u-1".to_owned(),
        warning: true,
        reason: Reason::WaitingForQuota,
        note: "asked for 8 GPUs, 4 are left".to_owned(),
    };
    let now = Timestamp::from_second(1_800_000_000).unwrap();
    let event = event(&note, &"i".repeat(200), now);
    let name = event.metadata.name.unwrap();
    assert!(name.len() <= 253, "{}", name.len());
    assert_eq!(event.reason.as_deref(), Some("WaitingForQuota"));
    assert_eq!(event.type_.as_deref(), Some("Warning"));
    assert_eq!(event.reporting_instance.unwrap().len(), 128);
    assert_eq!(event.regarding.unwrap().uid.as_deref(), Some("u-1"));
}

#[tokio::test]
async fn an_evicted_pod_is_told_in_its_status_and_deleted_by_its_uid_with_a_grace_of_its_own() {
    let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "w-0", "resourceVersion": "8"}});
    let status = json!({"apiVersion": "v1", "kind": "Status", "metadata": {}, "status": "Success"});
    let api = ScriptedApi::new([
        (200, pod.clone()),
        (200, pod),
        (200, status),
        failure(409, "UID"),
    ]);
    let patch = json!([{"op": "test", "path": "/metadata/uid", "value": "u-1"}]);
    let told = ApiRequest::PatchPodStatus {
        key: key(Kind::Pod, "team-a", "w-0"),
        patch: patch.clone(),
    };
    let outcome = perform(&api, told).await;
    assert!(
        matches!(outcome, Outcome::Done(Some(Object::Pod(_)))),
        "{outcome:?}"
    );
    let delete = ApiRequest::DeletePod {
        key: key(Kind::Pod, "team-a", "w-0"),
        uid: "u-1".to_owned(),
        grace_period_seconds: None,
    };
    let ending = perform(&api, delete.clone()).await;
    assert!(
        matches!(ending, Outcome::Done(Some(Object::Pod(_)))),
        "{ending:?}"
    );
    let gone = perform(&api, delete.clone()).await;
    assert!(matches!(gone, Outcome::Done(None)), "{gone:?}");
    assert!(matches!(perform(&api, delete).await, Outcome::Conflict));
    let asked = api.asked();
    let path = "/api/v1/namespaces/team-a/pods/w-0";
    assert_eq!(asked[0].what, format!("PATCH {path}/status"));
    assert_eq!(asked[0].body, patch);
    assert_eq!(asked[1].what, format!("DELETE {path}"));
    assert_eq!(asked[1].body["preconditions"], json!({"uid": "u-1"}));
    assert_eq!(asked[1].body.get("gracePeriodSeconds"), None);
}

#[tokio::test]
async fn an_evicted_pod_that_has_no_grace_of_its_own_is_given_some() {
    let api = ScriptedApi::new([failure(409, "UID")]);
    let delete = ApiRequest::DeletePod {
        key: key(Kind::Pod, "team-a", "w-0"),
        uid: "u-1".to_owned(),
        grace_period_seconds: Some(1),
    };
    assert!(matches!(perform(&api, delete).await, Outcome::Conflict));
    assert_eq!(api.asked()[0].body["gracePeriodSeconds"], json!(1));
}

#[tokio::test]
async fn a_pod_is_deleted_by_force_without_grace_and_only_as_it_was_judged() {
    let status = json!({"apiVersion": "v1", "kind": "Status", "metadata": {}, "status": "Success"});
    let api = ScriptedApi::new([(200, status), failure(409, "resourceVersion")]);
    let force = ApiRequest::ForceDeletePod {
        key: key(Kind::Pod, "team-a", "w-0"),
        uid: "u-1".to_owned(),
        resource_version: "8".to_owned(),
    };
    let gone = perform(&api, force.clone()).await;
    assert!(matches!(gone, Outcome::Done(None)), "{gone:?}");
    assert!(matches!(perform(&api, force).await, Outcome::Conflict));
    let asked = api.asked();
    assert_eq!(asked[0].what, "DELETE /api/v1/namespaces/team-a/pods/w-0");
    assert_eq!(
        asked[0].body["preconditions"],
        json!({"uid": "u-1", "resourceVersion": "8"})
    );
    assert_eq!(asked[0].body["gracePeriodSeconds"], json!(0));
}

#[tokio::test]
async fn a_job_is_patched_as_it_was_seen() {
    let job = json!({"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "fit", "resourceVersion": "8"}});
    let api = ScriptedApi::new([(200, job)]);
    let patch = json!([
        {"op": "test", "path": "/metadata/resourceVersion", "value": "7"},
        {"op": "add", "path": "/spec/suspend", "value": true},
    ]);
    let write = ApiRequest::PatchJob {
        key: key(Kind::Job, "team-a", "fit"),
        change: JobChange::Suspend,
        patch: patch.clone(),
    };
    let outcome = perform(&api, write).await;
    assert!(
        matches!(outcome, Outcome::Done(Some(Object::Job(_)))),
        "{outcome:?}"
    );
    let asked = only(&api);
    assert_eq!(
        asked.what,
        "PATCH /apis/batch/v1/namespaces/team-a/jobs/fit"
    );
    assert_eq!(asked.body, patch);
}

#[tokio::test]
async fn of_an_answer_metadata_is_asked_for_and_the_version_is_read() {
    // What is more than the version cannot be read: nobody tries to.
    let stored = json!({
        "metadata": {"name": 7, "resourceVersion": "8", "managedFields": 7},
        "spec": 7, "status": 7,
    });
    let patch = json!([{"op": "test", "path": "/metadata/resourceVersion", "value": "7"}]);
    let pod = || key(Kind::Pod, "team-a", "w-0");
    let mut gang = Gang::new("job-x", GangSpec::default());
    gang.metadata.namespace = Some("team-a".to_owned());
    for (write, asked_for, kind) in [
        (
            ApiRequest::PatchPod {
                key: pod(),
                patch: patch.clone(),
            },
            "PATCH /api/v1/namespaces/team-a/pods/w-0",
            Kind::Pod,
        ),
        (
            ApiRequest::PatchPodStatus {
                key: pod(),
                patch: patch.clone(),
            },
            "PATCH /api/v1/namespaces/team-a/pods/w-0/status",
            Kind::Pod,
        ),
        (
            ApiRequest::PatchJob {
                key: key(Kind::Job, "team-a", "fit"),
                change: JobChange::Suspend,
                patch,
            },
            "PATCH /apis/batch/v1/namespaces/team-a/jobs/fit",
            Kind::Job,
        ),
        (
            ApiRequest::CreateGang {
                gang: Box::new(gang),
            },
            "POST /apis/muster.dev/v1alpha1/namespaces/team-a/gangs",
            Kind::Gang,
        ),
        (
            ApiRequest::ReplaceGangStatus {
                key: key(Kind::Gang, "team-a", "job-x"),
                uid: "u-1".to_owned(),
                resource_version: "7".to_owned(),
                status: Box::default(),
                tells: true,
            },
            "PUT /apis/muster.dev/v1alpha1/namespaces/team-a/gangs/job-x/status",
            Kind::Gang,
        ),
        (
            ApiRequest::PublishQueue {
                namespace: "team-a".to_owned(),
                team: "ml".to_owned(),
                status: Box::default(),
            },
            "PATCH /apis/muster.dev/v1alpha1/namespaces/team-a/queues/ml/status",
            Kind::Queue,
        ),
        (
            ApiRequest::PublishTeam {
                team: "ml".to_owned(),
                status: Box::default(),
            },
            "PATCH /apis/muster.dev/v1alpha1/teams/ml/status",
            Kind::Team,
        ),
        (
            ApiRequest::PublishCohort {
                cohort: "all".to_owned(),
                status: Box::default(),
            },
            "PATCH /apis/muster.dev/v1alpha1/cohorts/all/status",
            Kind::Cohort,
        ),
        (
            ApiRequest::PublishFlavor {
                flavor: "gpu".to_owned(),
                status: Box::default(),
            },
            "PATCH /apis/muster.dev/v1alpha1/flavors/gpu/status",
            Kind::Flavor,
        ),
        (
            ApiRequest::PublishPriorityTier {
                tier: "high".to_owned(),
                status: Box::default(),
            },
            "PATCH /apis/muster.dev/v1alpha1/prioritytiers/high/status",
            Kind::PriorityTier,
        ),
    ] {
        let api = ScriptedApi::new([(200, stored.clone())]);
        let Outcome::Done(Some(object)) = perform(&api, write).await else {
            panic!("{asked_for} is done")
        };
        assert_eq!(object.kind(), kind);
        let version = object.metadata().resource_version.as_deref();
        assert_eq!(version, Some("8"), "{asked_for}");
        let asked = only(&api);
        assert_eq!(asked.what, asked_for);
        assert!(
            asked.accept.contains("as=PartialObjectMetadata"),
            "{asked:?}"
        );
    }
}

#[tokio::test]
async fn of_the_answer_to_an_event_nothing_is_read() {
    let note = EventNote {
        api_version: "v1".to_owned(),
        kind: "Pod".to_owned(),
        namespace: "team-a".to_owned(),
        name: "w-0".to_owned(),
        uid: "u-1".to_owned(),
        warning: false,
        reason: Reason::Admitted,
        note: "2 ranks on 1 nodes".to_owned(),
    };
    let api = ScriptedApi::new([(201, json!(7)), failure(403, "quota of Events")]);
    let write = || ApiRequest::PublishEvent(note.clone());
    let told = perform(&api, write()).await;
    assert!(matches!(told, Outcome::Done(None)), "{told:?}");
    let asked = only(&api);
    assert_eq!(
        asked.what,
        "POST /apis/events.k8s.io/v1/namespaces/team-a/events"
    );
    assert!(
        asked.accept.contains("as=PartialObjectMetadata"),
        "{asked:?}"
    );
    let refused = perform(&api, write()).await;
    assert!(matches!(refused, Outcome::Refused(_)), "{refused:?}");
}

#[tokio::test]
async fn what_is_published_replaces_the_status_whole() {
    let api = ScriptedApi::new([(200, json!({"metadata": {"resourceVersion": "8"}}))]);
    let status = CohortStatus {
        weighted_share: Some(7),
        ..CohortStatus::default()
    };
    let expected = json!([{"op": "add", "path": "/status", "value": &status}]);
    let write = ApiRequest::PublishCohort {
        cohort: "all".to_owned(),
        status: Box::new(status),
    };
    perform(&api, write).await;
    assert_eq!(only(&api).body, expected);
}

#[tokio::test]
async fn of_the_ledger_its_version_and_the_epoch_that_its_leader_leads_by_are_read() {
    let answer = |epoch: Value| {
        json!({
            "apiVersion": "muster.dev/v1alpha1", "kind": "Ledger",
            "metadata": {"name": "cluster", "uid": "u-1", "resourceVersion": "8", "managedFields": 7},
            // What is more cannot be read: nobody tries to.
            "spec": {"intents": [{"plan": "none"}], "leaderEpoch": epoch, "sequence": 0},
        })
    };
    let write = || ApiRequest::ReplaceLedger {
        resource_version: "7".to_owned(),
        spec: LedgerSpec::default(),
    };
    let api = ScriptedApi::new([
        (200, answer(json!(3))),
        (200, answer(json!("high"))),
        (200, answer(Value::Null)),
        (200, json!({"metadata": {"resourceVersion": "8"}})),
    ]);
    let Outcome::Done(Some(Object::Ledger(ledger))) = perform(&api, write()).await else {
        panic!("done")
    };
    assert_eq!(ledger.metadata.uid.as_deref(), Some("u-1"));
    assert_eq!(ledger.metadata.resource_version.as_deref(), Some("8"));
    assert_eq!(ledger.spec.leader_epoch, 3);
    // Whether that was stored as it was sent is not known.
    for _ in 0..3 {
        assert!(matches!(perform(&api, write()).await, Outcome::Unknown));
    }
}
