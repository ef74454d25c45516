use super::*;

const GANGS: &str = "/apis/muster.dev/v1alpha1/namespaces/ml/gangs";
const GANG: &str = "/apis/muster.dev/v1alpha1/namespaces/ml/gangs/g";
const STATUS: &str = "/apis/muster.dev/v1alpha1/namespaces/ml/gangs/g/status";
const EVENTS: &str = "/apis/events.k8s.io/v1/namespaces/ml/events";
const JSON: &str = "application/json";
const JSON_PATCH: &str = "application/json-patch+json";
const MERGE_PATCH: &str = "application/merge-patch+json";

fn ask(api: &mut ApiServer, method: &str, path: &str, content_type: &str, body: &Value) -> Answer {
    let body = if body.is_null() {
        Vec::new()
    } else {
        body.to_string().into_bytes()
    };
    api.answer(&Request {
        method: method.parse().unwrap(),
        path,
        content_type,
        body: &body,
    })
}

fn gang(metadata: &Value) -> Value {
    let mut gang = json!({
        "apiVersion": "muster.dev/v1alpha1", "kind": "Gang",
        "metadata": {"name": "g", "namespace": "ml"},
        "spec": {"size": 2, "startTimeoutSeconds": 60},
        "status": {"leaderEpoch": 7, "phase": "Pending"},
    });
    json_patch::merge(&mut gang, &json!({"metadata": metadata}));
    gang
}

/// An API server with one Gang, and the Gang as it is stored.
fn stored() -> (ApiServer, Value) {
    let mut api = ApiServer::default();
    let answer = ask(&mut api, "POST", GANGS, JSON, &gang(&json!({})));
    assert_eq!(answer.code, StatusCode::CREATED, "{answer:?}");
    (api, answer.body)
}

#[test]
fn a_gang_is_created_without_status_and_with_what_the_server_gives_it() {
    let (mut api, created) = stored();
    assert_eq!(created.get("status"), None);
    assert_eq!(created["metadata"]["generation"], 1);
    assert!(created["metadata"]["uid"].is_string());
    let read = ask(&mut api, "GET", GANG, "", &Value::Null);
    assert_eq!((read.code, read.body), (StatusCode::OK, created));
}

#[test]
fn every_request_is_answered_as_kubernetes_answers_it() {
    let wrong_version = gang(&json!({"resourceVersion": "999"}));
    let wrong_uid = json!({"preconditions": {"uid": "another"}});
    let failing = json!([{"op": "test", "path": "/metadata/uid", "value": "another"}]);
    let homeless = json!([{"op": "remove", "path": "/metadata/annotations/none"}]);
    let event = json!({"metadata": {"name": "e"}, "eventTime": null});
    let nowhere = "/apis/muster.dev/v1alpha1/namespaces/ml/gangs/none";
    let nothing = Value::Null;
    let new = gang(&json!({}));
    for (method, path, content_type, body, code, reason) in [
        ("GET", nowhere, JSON, &nothing, 404, "NotFound"),
        ("PUT", nowhere, JSON, &wrong_version, 404, "NotFound"),
        ("DELETE", nowhere, JSON, &wrong_uid, 404, "NotFound"),
        ("GET", "/healthz", JSON, &nothing, 404, "NotFound"),
        ("PATCH", GANGS, JSON, &nothing, 405, "MethodNotAllowed"),
        ("POST", GANGS, JSON, &new, 409, "AlreadyExists"),
        ("POST", GANGS, JSON, &wrong_version, 400, "BadRequest"),
        ("POST", GANGS, JSON, &json!("text"), 400, "BadRequest"),
        ("PUT", GANG, JSON, &wrong_version, 409, "Conflict"),
        ("PUT", STATUS, JSON, &wrong_version, 409, "Conflict"),
        ("PUT", GANG, JSON, &new, 422, "Invalid"),
        ("DELETE", GANG, JSON, &wrong_uid, 409, "Conflict"),
        ("PATCH", GANG, JSON_PATCH, &failing, 422, "Invalid"),
        ("PATCH", GANG, JSON_PATCH, &homeless, 422, "Invalid"),
        ("PATCH", GANG, JSON, &failing, 415, "UnsupportedMediaType"),
        ("POST", EVENTS, JSON, &event, 422, "Invalid"),
    ] {
        let (mut api, before) = stored();
        let answer = ask(&mut api, method, path, content_type, body);
        let told = (answer.code.as_u16(), answer.body["reason"].as_str());
        assert_eq!(told, (code, Some(reason)), "{method} {path} {body}");
        let after = ask(&mut api, "GET", GANG, "", &Value::Null).body;
        assert_eq!(after, before, "{method} {path} {body}");
    }
}

#[test]
fn spec_and_status_are_written_apart() {
    let (mut api, created) = stored();
    let version = created["metadata"]["resourceVersion"].clone();
    let mut both = gang(&json!({"resourceVersion": version}));
    both["spec"]["size"] = json!(3);
    let status = ask(&mut api, "PUT", STATUS, JSON, &both).body;
    assert_eq!(status["status"]["leaderEpoch"], 7);
    assert_eq!(status["spec"]["size"], 2);
    assert_eq!(status["metadata"]["generation"], 1);
    let version = status["metadata"]["resourceVersion"].clone();
    let mut both = gang(&json!({"resourceVersion": version, "uid": created["metadata"]["uid"]}));
    both["spec"]["size"] = json!(3);
    both["status"]["leaderEpoch"] = json!(8);
    let spec = ask(&mut api, "PUT", GANG, JSON, &both).body;
    assert_eq!(spec["status"]["leaderEpoch"], 7);
    assert_eq!(spec["spec"]["size"], 3);
    assert_eq!(spec["metadata"]["generation"], 2);
}

#[test]
fn a_merge_patch_of_the_status_is_judged_by_the_version_that_it_names() {
    let (mut api, created) = stored();
    let version = created["metadata"]["resourceVersion"].clone();
    let status = json!({"leaderEpoch": 9, "phase": "Pending"});
    let patch = json!({"metadata": {"resourceVersion": version}, "status": status});
    let answer = ask(&mut api, "PATCH", STATUS, MERGE_PATCH, &patch);
    assert_eq!(answer.body["status"]["leaderEpoch"], 9);
    let again = ask(&mut api, "PATCH", STATUS, MERGE_PATCH, &patch);
    assert_eq!(again.code, StatusCode::CONFLICT);
}

#[test]
fn what_a_finalizer_holds_is_answered_as_it_is_and_gets_no_new_one() {
    let mut api = ApiServer::default();
    let held = gang(&json!({"finalizers": ["muster.dev/a"]}));
    ask(&mut api, "POST", GANGS, JSON, &held);
    let deleted = ask(&mut api, "DELETE", GANG, JSON, &json!({}));
    assert_eq!(deleted.code, StatusCode::OK);
    assert!(deleted.body["metadata"]["deletionTimestamp"].is_string());
    let version = deleted.body["metadata"]["resourceVersion"].clone();
    let more = json!({"resourceVersion": version, "finalizers": ["muster.dev/a", "muster.dev/b"]});
    let answer = ask(&mut api, "PUT", GANG, JSON, &gang(&more));
    assert_eq!(answer.code, StatusCode::UNPROCESSABLE_ENTITY);
    let none = json!({"resourceVersion": version, "finalizers": []});
    ask(&mut api, "PUT", GANG, JSON, &gang(&none));
    assert!(api.get::<Gang>("ml", "g").is_none());
}

#[test]
fn a_bound_pod_stays_until_it_is_deleted_without_grace_as_it_was_seen() {
    const PODS: &str = "/api/v1/namespaces/ml/pods";
    const POD: &str = "/api/v1/namespaces/ml/pods/p";
    let mut api = ApiServer::default();
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"},
        "spec": {"nodeName": "n0", "containers": []},
    });
    let created = ask(&mut api, "POST", PODS, JSON, &pod).body;
    let as_seen = |pod: &Value| {
        let metadata = &pod["metadata"];
        let seen = json!({"uid": metadata["uid"], "resourceVersion": metadata["resourceVersion"]});
        json!({"gracePeriodSeconds": 0, "preconditions": seen})
    };
    let deleted = ask(&mut api, "DELETE", POD, JSON, &json!({})).body;
    assert_eq!(deleted["metadata"]["deletionGracePeriodSeconds"], 30);
    let stale = ask(&mut api, "DELETE", POD, JSON, &as_seen(&created));
    assert_eq!(stale.code, StatusCode::CONFLICT);
    let gone = ask(&mut api, "DELETE", POD, JSON, &as_seen(&deleted));
    assert_eq!(
        (gone.code, &gone.body["kind"]),
        (StatusCode::OK, &json!("Status"))
    );
    let read = ask(&mut api, "GET", POD, "", &Value::Null);
    assert_eq!(read.code, StatusCode::NOT_FOUND);
}

#[test]
fn paths_name_kinds_namespaces_and_subresources() {
    let namespace = Target::parse("/api/v1/namespaces/ml").unwrap();
    assert_eq!(
        (namespace.plural, namespace.name, namespace.namespace),
        ("namespaces", Some("ml"), "")
    );
    let status = Target::parse("/api/v1/namespaces/ml/status").unwrap();
    assert_eq!(
        (status.plural, status.name, status.subresource),
        ("namespaces", Some("ml"), Some("status"))
    );
    let pod = Target::parse("/api/v1/namespaces/ml/pods/p").unwrap();
    assert_eq!(
        (pod.plural, pod.name, pod.namespace),
        ("pods", Some("p"), "ml")
    );
    assert_eq!(Target::parse("/healthz"), None);
}
