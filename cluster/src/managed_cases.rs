//! The table of cases that every form of the definition of *managed* is tested with.

use serde_json::{Value, json};

/// A pod and what is to be said about it.
#[derive(Clone, Debug)]
pub struct ManagedCase {
    /// What is special about the pod.
    pub name: &'static str,
    /// The pod, as it is created.
    pub pod: Value,
    /// Whether it is managed.
    pub managed: bool,
    /// Whether policy (a) lets it be created.
    pub may_be_created: bool,
}

/// The extended resources that the cases assume: the default of the chart.
pub const MANAGED_CASES_RESOURCES: [&str; 2] = ["nvidia.com/gpu", "nvidia.com/mig-*"];

/// The cases. Each form of the definition (webhook, policy, Rust) must agree with every one of them,
/// for a [`crate::managed::ManagedPods`] of [`MANAGED_CASES_RESOURCES`].
pub fn managed_cases() -> Vec<ManagedCase> {
    let mut cases = unmanaged();
    for (name, pod) in managed() {
        cases.push(ManagedCase {
            name,
            pod: pod.clone(),
            managed: true,
            may_be_created: false,
        });
        cases.push(ManagedCase {
            name,
            pod: gated(pod.clone(), None),
            managed: true,
            may_be_created: true,
        });
        cases.push(ManagedCase {
            name,
            pod: gated(pod, Some("node-1")),
            managed: true,
            may_be_created: false,
        });
    }
    cases.push(ManagedCase {
        name: "a managed pod with a gate that is not ours",
        pod: json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": "p", "labels": {"muster.dev/gang": "g"}},
            "spec": {"containers": [{"name": "c"}], "schedulingGates": [{"name": "example.com/other"}]},
        }),
        managed: true,
        may_be_created: false,
    });
    cases
}

fn unmanaged() -> Vec<ManagedCase> {
    let resources = |resources: Value| json!([{"name": "c", "image": "i", "resources": resources}]);
    let cases = [
        (
            "nothing but a container",
            json!({}),
            json!({"containers": [{"name": "c"}]}),
        ),
        (
            "cpu and memory, and a node name",
            json!({}),
            json!({"nodeName": "node-1", "containers": resources(json!({
                "limits": {"cpu": "1", "memory": "1Gi"}, "requests": {"cpu": "1"}
            }))}),
        ),
        (
            "an empty list of claims",
            json!({}),
            json!({"resourceClaims": [], "containers": [{"name": "c"}]}),
        ),
        (
            "a resource whose name only begins like a listed one",
            json!({}),
            json!({"containers": resources(json!({"limits": {"nvidia.com/gpux": "1"}}))}),
        ),
        (
            "labels and annotations of ours that declare nothing",
            json!({
                "labels": {"muster.dev/tier": "standard", "muster.dev/gang-size": "2"},
                "annotations": {"muster.dev/gang": "g", "muster.dev/gang-size": "2"}
            }),
            json!({"containers": [{"name": "c"}]}),
        ),
        (
            "the marker alone",
            json!({}),
            json!({"containers": resources(json!({"limits": {"muster.dev/managed": "0"}}))}),
        ),
    ];
    let case = |(name, metadata, spec)| ManagedCase {
        name,
        pod: pod(metadata, spec),
        managed: false,
        may_be_created: true,
    };
    cases.into_iter().map(case).collect()
}

fn managed() -> Vec<(&'static str, Value)> {
    let with = |list: &str, name: &str, amount: &str| {
        json!({"containers": [
            {"name": "first"},
            {"name": "second", "resources": {list: {name: amount}}},
        ]})
    };
    let annotated = |key: &str| {
        pod(
            json!({"annotations": {key: "1"}}),
            json!({"containers": [{"name": "c"}]}),
        )
    };
    vec![
        (
            "a claim",
            pod(
                json!({}),
                json!({
                    "containers": [{"name": "c"}],
                    "resourceClaims": [{"name": "gpus", "resourceClaimTemplateName": "t"}],
                }),
            ),
        ),
        (
            "a listed resource in limits",
            pod(json!({}), with("limits", "nvidia.com/gpu", "1")),
        ),
        (
            "a listed resource in requests only",
            pod(json!({}), with("requests", "nvidia.com/gpu", "1")),
        ),
        (
            "a listed resource of quantity zero",
            pod(json!({}), with("limits", "nvidia.com/gpu", "0")),
        ),
        (
            "a resource listed by its beginning",
            pod(json!({}), with("limits", "nvidia.com/mig-1g.10gb", "1")),
        ),
        (
            "a resource that a DeviceClass stands behind",
            pod(
                json!({}),
                with(
                    "limits",
                    "deviceclass.resource.kubernetes.io/gpu.muster.dev",
                    "1",
                ),
            ),
        ),
        (
            "a listed resource of an init container",
            pod(
                json!({}),
                json!({
                    "containers": [{"name": "c"}],
                    "initContainers": [{"name": "i", "resources": {"limits": {"nvidia.com/gpu": "1"}}}],
                }),
            ),
        ),
        ("the shorthand gpus", annotated("muster.dev/gpus")),
        ("the shorthand vram", annotated("muster.dev/vram")),
        (
            "the shorthand interconnect",
            annotated("muster.dev/interconnect"),
        ),
        ("the shorthand container", annotated("muster.dev/container")),
        (
            "the gang label, and no devices",
            pod(
                json!({"labels": {"muster.dev/gang": "g"}}),
                json!({"containers": [{"name": "c"}]}),
            ),
        ),
        (
            "the gang label without a value",
            pod(
                json!({"labels": {"muster.dev/gang": ""}}),
                json!({"containers": [{"name": "c"}]}),
            ),
        ),
    ]
}

/// A pod of the namespace `ml`.
pub(crate) fn pod(mut metadata: Value, mut spec: Value) -> Value {
    metadata["name"] = json!("p");
    metadata["namespace"] = json!("ml");
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": metadata.take(), "spec": spec.take()})
}

fn gated(mut pod: Value, node: Option<&str>) -> Value {
    pod["spec"]["schedulingGates"] =
        json!([{"name": "example.com/other"}, {"name": "muster.dev/admission"}]);
    if let Some(node) = node {
        pod["spec"]["nodeName"] = json!(node);
    }
    pod
}
