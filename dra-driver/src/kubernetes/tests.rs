//! What an answer of the API server, or of what stands before it, is taken for.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex},
};

use axum::{Router, extract::State, http::StatusCode, response::IntoResponse};
use serde_json::{Value, json};

use super::*;

/// Answers in this order, whatever is asked; the last one for ever.
type Script = Arc<Mutex<VecDeque<(u16, String)>>>;

async fn answer(State(script): State<Script>) -> impl IntoResponse {
    let mut script = script.lock().unwrap();
    let next = if script.len() > 1 {
        script.pop_front()
    } else {
        script.front().cloned()
    };
    let (code, body) = next.unwrap();
    (StatusCode::from_u16(code).unwrap(), body)
}

async fn kubernetes(script: impl IntoIterator<Item = (u16, String)>) -> Kubernetes {
    muster_serve::tls::install_provider();
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    let script: Script = Arc::new(Mutex::new(script.into_iter().collect()));
    let router = Router::new().fallback(answer).with_state(script);
    tokio::spawn(async move { axum::serve(listener, router).await });
    let config = kube::Config::new(address.parse().unwrap());
    Kubernetes::new(Client::try_from(config).unwrap(), "node-0".to_owned())
}

fn reference() -> ClaimRef {
    ClaimRef {
        uid: "u-1".to_owned(),
        namespace: "ml".to_owned(),
        name: "train".to_owned(),
    }
}

fn not_found(details: &Value) -> Value {
    json!({
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "reason": "NotFound", "code": 404,
        "message": "not found", "details": details,
    })
}

/// As the API server says it of an object that is not there.
fn gone(group: &str, plural: &str, name: &str) -> Value {
    not_found(&json!({"name": name, "group": group, "kind": plural}))
}

/// What answers 404 without saying that there is no object of this name.
fn other_404s(group: &str, plural: &str, name: &str) -> Vec<(&'static str, String)> {
    let true_one = gone(group, plural, name);
    let with = |pointer: &str, value: Value| {
        let mut changed = true_one.clone();
        *changed.pointer_mut(pointer).unwrap() = value;
        changed.to_string()
    };
    let unexpected = json!({
        "name": name, "group": group, "kind": plural,
        "causes": [{"reason": "UnexpectedServerResponse", "message": "404 page not found"}],
    });
    vec![
        (
            "the API server for a group that it does not serve",
            "404 page not found\n".to_owned(),
        ),
        (
            "a proxy",
            "<html><body>404 Not Found</body></html>".to_owned(),
        ),
        ("nothing at all", String::new()),
        (
            "JSON of somebody else",
            json!({"error": "no such route"}).to_string(),
        ),
        (
            "the index of the API server",
            json!({"paths": ["/api", "/apis"]}).to_string(),
        ),
        ("a Status without details", with("/details", Value::Null)),
        (
            "a Status about another object",
            with("/details/name", json!("other")),
        ),
        (
            "a Status about another kind",
            with("/details/kind", json!("namespaces")),
        ),
        (
            "a Status about another group",
            with("/details/group", json!("")),
        ),
        (
            "a Status of another reason",
            with("/reason", json!("Unknown")),
        ),
        (
            "a client that wraps what it did not understand",
            not_found(&unexpected).to_string(),
        ),
    ]
}

#[tokio::test]
async fn a_claim_is_gone_only_if_the_api_server_says_so_of_that_claim() {
    let body = gone("resource.k8s.io", "resourceclaims", "train").to_string();
    let read = kubernetes([(404, body)])
        .await
        .claim_now(&reference())
        .await;
    assert!(matches!(read, Read::Absent), "{read:?}");
    for (what, body) in other_404s("resource.k8s.io", "resourceclaims", "train") {
        let read = kubernetes([(404, body)])
            .await
            .claim_now(&reference())
            .await;
        assert!(matches!(read, Read::Failed(_)), "{what}: {read:?}");
    }
}

#[tokio::test]
async fn a_prepare_reads_its_claim_past_a_404_that_proves_nothing() {
    let claim = json!({
        "apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim",
        "metadata": {"namespace": "ml", "name": "train", "uid": "u-1"}, "spec": {},
    });
    for (what, body) in other_404s("resource.k8s.io", "resourceclaims", "train") {
        let script = [(404, body), (200, claim.to_string())];
        let read = kubernetes(script).await.claim(&reference()).await;
        assert!(matches!(read, Read::Found(_)), "{what}: {read:?}");
    }
    // What is proved is not asked again.
    let script = [
        (
            404,
            gone("resource.k8s.io", "resourceclaims", "train").to_string(),
        ),
        (200, claim.to_string()),
    ];
    let read = kubernetes(script).await.claim(&reference()).await;
    assert!(matches!(read, Read::Absent), "{read:?}");
}

#[tokio::test]
async fn a_claim_is_read_however_deep_the_parameters_of_some_driver_are_nested() {
    let config = json!([{"opaque": {"driver": "example.com", "parameters": {"a": "DEEP"}}}]);
    let result =
        json!({"request": "gpu", "driver": "gpu.muster.dev", "pool": "node-0", "device": "gpu-0"});
    let claim = json!({
        "apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim",
        "metadata": {"namespace": "ml", "name": "train", "uid": "u-1"},
        "spec": {"devices": {"config": config}},
        "status": {
            "reservedFor": [{"resource": "pods", "name": "p", "uid": "p-1"}],
            "allocation": {"devices": {"config": config, "results": [result]}},
        },
    });
    // One level more than can be read at once, and far more.
    for levels in [128, 5_000] {
        let deep = "[".repeat(levels) + &"]".repeat(levels);
        let body = claim.to_string().replace("\"DEEP\"", &deep);
        let kubernetes = kubernetes([(200, body)]).await;
        for read in [
            kubernetes.claim(&reference()).await,
            kubernetes.claim_now(&reference()).await,
        ] {
            let Read::Found(claim) = read else {
                panic!("{levels}: {read:?}");
            };
            assert_eq!(claim.pods, ["p-1"]);
            let devices = claim.devices.unwrap().into_iter();
            let names: Vec<String> = devices.map(|device| device.device).collect();
            assert_eq!(names, ["gpu-0"]);
        }
    }
}

#[tokio::test]
async fn claims_of_this_node_that_are_reserved_are_listed_whoever_they_are_reserved_for() {
    let claim = |name: &str, pool: &str, reserved: Value| {
        let result =
            json!({"request": "gpu", "driver": "gpu.muster.dev", "pool": pool, "device": "gpu-0"});
        let status =
            json!({"reservedFor": reserved, "allocation": {"devices": {"results": [result]}}});
        json!({"metadata": {"namespace": "ml", "name": name, "uid": name}, "spec": {}, "status": status})
    };
    let pod = json!([{"resource": "pods", "name": "p", "uid": "p-1"}]);
    let group = json!([
        {"apiGroup": "scheduling.k8s.io", "resource": "podgroups", "name": "g", "uid": "g-1"},
    ]);
    // The API server takes it, nested as deep as it is, from anybody.
    let mut nested = claim("nested", "node-0", pod.clone());
    let parameters = json!({"driver": "example.com", "parameters": {"a": "DEEP"}});
    nested["spec"] = json!({"devices": {"config": [{"opaque": parameters}]}});
    let items = [
        nested,
        claim("of-a-pod", "node-0", pod.clone()),
        claim("of-a-group", "node-0", group),
        claim("of-nobody", "node-0", json!([])),
        claim("elsewhere", "node-1", pod),
    ];
    let list = json!({
        "kind": "ResourceClaimList", "apiVersion": "resource.k8s.io/v1", "metadata": {}, "items": items,
    });
    let deep = "[".repeat(5_000) + &"]".repeat(5_000);
    let list = list.to_string().replace("\"DEEP\"", &deep);
    let kubernetes = kubernetes([(200, list)]).await;
    let claims = kubernetes.claims_here().await.unwrap().into_iter();
    let names: Vec<String> = claims.map(|claim| claim.reference.name).collect();
    assert_eq!(names, ["nested", "of-a-pod", "of-a-group"]);
}

#[tokio::test]
async fn node_devices_are_absent_only_if_the_api_server_says_so_of_them() {
    let body = gone("muster.dev", "nodedevices", "node-0").to_string();
    let read = kubernetes([(404, body)]).await.node_devices().await;
    assert!(matches!(read, Read::Absent), "{read:?}");
    for (what, body) in other_404s("muster.dev", "nodedevices", "node-0") {
        let read = kubernetes([(404, body)]).await.node_devices().await;
        assert!(matches!(read, Read::Failed(_)), "{what}: {read:?}");
    }
}

#[tokio::test]
async fn a_status_that_cannot_be_written_for_a_404_that_proves_nothing_is_written_later() {
    let status = NodeDevicesStatus::default();
    let body = gone("muster.dev", "nodedevices", "node-0").to_string();
    let kubernetes_of = |body| kubernetes([(404, body)]);
    let outcome = kubernetes_of(body)
        .await
        .write_status(None, None, &status)
        .await;
    assert!(matches!(outcome, StatusOutcome::Conflict), "{outcome:?}");
    for (what, body) in other_404s("muster.dev", "nodedevices", "node-0") {
        let outcome = kubernetes_of(body)
            .await
            .write_status(None, None, &status)
            .await;
        assert!(
            matches!(outcome, StatusOutcome::Unknown(_)),
            "{what}: {outcome:?}"
        );
    }
}
