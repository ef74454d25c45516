//! A takeover over real HTTP: pages, an expired continue token, and objects of every kind that cannot be decoded.

#[path = "fake_cluster/mod.rs"]
mod fake_cluster;
#[path = "fake_cluster/leading.rs"]
mod leading;

use std::time::Duration;

use fake_cluster::{FakeCluster, Make};
use leading::{take_over, value};
use serde_json::{Value, json};

const LIMIT: Duration = Duration::from_secs(60);

fn metadata(namespace: Option<&str>, name: &str) -> Value {
    let mut metadata = json!({"name": name, "uid": format!("uid-{name}"), "resourceVersion": "5"});
    if let Some(namespace) = namespace {
        metadata["namespace"] = json!(namespace);
    }
    metadata
}

/// Object 0 cannot be decoded; all others can, and stand in its kind's way.
fn broken_first(namespaced: bool, whole: Value) -> Make {
    Box::new(move |number| {
        let namespace = namespaced.then_some("lab");
        let mut object = whole.clone();
        object["metadata"] = metadata(namespace, &format!("object-{number}"));
        if number == 0 {
            object["spec"] = json!("of a later version");
            object["status"] = json!(["of a later version"]);
        }
        object
    })
}

const MUSTER: &str = "/apis/muster.dev/v1alpha1";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn objects_that_cannot_be_decoded_do_not_stop_a_takeover() {
    let spec = |spec: Value| json!({"spec": spec});
    let far = "9999-12-31T23:59:59Z";
    let job: Make = Box::new(move |number| {
        json!({"metadata": metadata(Some("lab"), &format!("job-{number}")), "spec": {
            "completions": 2, "parallelism": 2, "completionMode": "Indexed",
            "template": {"metadata": {"creationTimestamp": far}, "spec": {"containers": []}},
        }})
    });
    let cluster = FakeCluster::new([
        ("/apis/batch/v1/jobs", 3, job),
        ("/api/v1/nodes", 2, broken_first(false, spec(json!({})))),
        (
            "/api/v1/namespaces",
            2,
            broken_first(false, spec(json!({}))),
        ),
        (
            "/api/v1/pods",
            1_700,
            broken_first(true, spec(json!({"containers": []}))),
        ),
        (
            "/apis/resource.k8s.io/v1/resourceclaims",
            2,
            broken_first(true, spec(json!({}))),
        ),
        (
            "/apis/resource.k8s.io/v1/resourceslices",
            2,
            broken_first(
                false,
                spec(json!({
                    "driver": "gpu.muster.dev",
                    "pool": {"name": "n", "generation": 1, "resourceSliceCount": 1},
                })),
            ),
        ),
        (
            "/apis/resource.k8s.io/v1/deviceclasses",
            2,
            broken_first(false, spec(json!({}))),
        ),
        (
            "/apis/muster.dev/v1alpha1/gangs",
            2,
            broken_first(true, spec(json!({"size": 1, "startTimeoutSeconds": 60}))),
        ),
        (
            "/apis/muster.dev/v1alpha1/nodedevices",
            2,
            broken_first(false, spec(json!({"nodeUid": "n", "leaderEpoch": 0}))),
        ),
        (
            "/apis/muster.dev/v1alpha1/queues",
            2,
            broken_first(true, spec(json!({"team": "vision"}))),
        ),
        (
            "/apis/muster.dev/v1alpha1/teams",
            2,
            broken_first(false, spec(json!({}))),
        ),
        (
            "/apis/muster.dev/v1alpha1/cohorts",
            2,
            broken_first(false, spec(json!({}))),
        ),
        (
            "/apis/muster.dev/v1alpha1/flavors",
            2,
            broken_first(false, spec(json!({}))),
        ),
        (
            "/apis/muster.dev/v1alpha1/topologies",
            2,
            broken_first(false, spec(json!({"fabric": []}))),
        ),
        (
            "/apis/muster.dev/v1alpha1/prioritytiers",
            2,
            broken_first(false, spec(json!({"value": 1}))),
        ),
    ])
    // One of them may hit the list that is closed at that moment.
    .expire("/api/v1/pods", 2);
    let (_, metrics) = take_over(cluster.serve().await, LIMIT).await;

    let undecodable = |kind: &str| {
        value(
            &metrics,
            &format!("muster_watch_undecodable_objects{{kind=\"{kind}\"}}"),
        )
    };
    for kind in [
        "Node",
        "Pod",
        "ResourceClaim",
        "ResourceSlice",
        "DeviceClass",
        "Gang",
        "NodeDevices",
        "Queue",
        "Team",
        "Cohort",
        "Flavor",
        "Topology",
        "PriorityTier",
    ] {
        assert_eq!(undecodable(kind), Some(1.0), "{kind} in\n{metrics}");
    }
    for kind in ["Job", "Namespace"] {
        assert_eq!(
            undecodable(kind),
            Some(0.0),
            "all that is read of a {kind} can be"
        );
    }
    let standing_in = [
        "Node",
        "Pod",
        "ResourceClaim",
        "ResourceSlice",
        "Gang",
        "NodeDevices",
        "Team",
        "Cohort",
    ];
    let stand_ins = value(&metrics, "muster_stand_ins");
    assert_eq!(stand_ins, Some(8.0), "{standing_in:?}");
    for phase in ["raise-epoch", "read-all", "first-decision"] {
        let took = value(
            &metrics,
            &format!("muster_takeover_seconds{{phase=\"{phase}\"}}"),
        );
        assert!(
            took.is_some_and(|seconds| seconds >= 0.0),
            "{phase}: {took:?}"
        );
    }
    assert_eq!(
        value(&metrics, "muster_without_decisions_seconds"),
        Some(0.0)
    );

    let asked = cluster.asked();
    let protected = [
        format!("{MUSTER}/nodedevices/object-0"),
        "/gangs/object-0".to_owned(),
    ];
    let written = asked.iter().find(|asked| {
        !asked.starts_with("GET") && protected.iter().any(|path| asked.contains(path))
    });
    assert_eq!(written, None, "what cannot be decoded is not written to");
    let pages: Vec<&String> = asked
        .iter()
        .filter(|asked| asked.starts_with("GET /api/v1/pods ") && !asked.contains("watch=true"))
        .collect();
    assert!(
        pages.iter().all(|page| page.contains("limit=500")),
        "{pages:?}"
    );
    assert!(
        pages.iter().all(|page| !page.contains("resourceVersion")),
        "a list of any version may come from a cache: {pages:?}"
    );
    let refused = asked
        .iter()
        .rposition(|asked| asked == "expired /api/v1/pods");
    let after = &asked[refused.expect("a continue token had expired")..];
    let anew = after
        .iter()
        .position(|asked| asked.starts_with("GET /api/v1/pods ") && !asked.contains("continue="));
    let anew = &after[anew.expect("the list was begun anew")..];
    assert!(
        anew.iter().any(|asked| asked.contains("continue=1500")),
        "and read to its end: {anew:?}"
    );
}
