//! Claims that kube-scheduler makes for what pods ask for by the name of a resource, and claims that only say so of themselves.

use serde_json::{Value, json};

use crate::{
    index::Index,
    object::Kind,
    testing::{claim, gone, index_with, is, pod, settle, with},
};

const CLASS: &str = "deviceclass.resource.kubernetes.io/gpu.muster.dev";
/// What the claim of pod `solo` is charged and permitted as.
const NAME: &str = "uid-solo/deviceclass.resource.kubernetes.io/gpu.muster.dev";

/// A pod that asks for a GPU by the name of its class.
fn asking() -> Value {
    let pod = with(pod("solo", 5), "/spec/resourceClaims", json!([]));
    with(
        pod,
        "/spec/containers/0/resources/limits",
        json!({CLASS: "1"}),
    )
}

/// A claim that says that kube-scheduler made it for pod `solo`.
fn said(namespace: &str, name: &str) -> Value {
    let mark = json!({"resource.kubernetes.io/extended-resource-claim": "true"});
    let said = with(claim("solo", 1), "/metadata/annotations", mark);
    let said = with(said, "/metadata/namespace", json!(namespace));
    let said = with(said, "/metadata/name", json!(name));
    with(said, "/metadata/uid", json!(format!("{namespace}-{name}")))
}

/// The same with a GPU of node `a`.
fn allocated(name: &str, gpu: u32) -> Value {
    let device = json!({"request": "gpu", "driver": "gpu.muster.dev", "pool": "a", "device": format!("gpu-{gpu}")});
    with(
        said("ml", name),
        "/status/allocation/devices/results",
        json!([device]),
    )
}

/// Which claim is taken for that of pod `solo`.
fn found(index: &Index) -> Option<&str> {
    let claim = index.claim_by_uid(NAME)?;
    Some(&claim.name)
}

#[test]
fn a_claim_of_another_namespace_stands_for_nobodys_and_takes_nothing_with_it() {
    let mut index = index_with([asking(), said("other", "early")]);
    assert_eq!(found(&index), None);
    for claim in [allocated("solo-x", 0), said("other", "late")] {
        index.observe(is(claim));
    }
    settle(&mut index);
    assert_eq!(found(&index), Some("solo-x"));
    for name in ["early", "late"] {
        index.observe(gone(Kind::ResourceClaim, "other", name));
    }
    settle(&mut index);
    assert_eq!(found(&index), Some("solo-x"));
}

#[test]
fn of_several_in_its_own_namespace_the_pod_tells_which_is_its() {
    let mut index = index_with([asking(), said("ml", "forged"), allocated("solo-x", 0)]);
    assert_eq!(found(&index), None, "nobody knows");
    let status = json!({"requestMappings": [], "resourceClaimName": "solo-x"});
    let told = with(asking(), "/status/extendedResourceClaimStatus", status);
    index.observe(is(told));
    settle(&mut index);
    assert_eq!(found(&index), Some("solo-x"));
    index.observe(gone(Kind::ResourceClaim, "ml", "solo-x"));
    settle(&mut index);
    assert_eq!(found(&index), None, "what is left is not the one");
}

#[test]
fn what_kube_scheduler_makes_anew_after_a_binding_failed_is_known_like_the_first() {
    let mut index = index_with([asking(), allocated("solo-first", 0)]);
    index.observe(gone(Kind::ResourceClaim, "ml", "solo-first"));
    index.observe(is(allocated("solo-second", 1)));
    settle(&mut index);
    assert_eq!(found(&index), Some("solo-second"));
    let devices = &index.engine_node("a").unwrap().devices;
    let taken = devices
        .iter()
        .filter_map(|device| Some((device.name.as_str(), device.allocated_to.as_ref()?.as_str())));
    let taken: Vec<_> = taken.collect();
    assert_eq!(taken, [("gpu.muster.dev/a/gpu-1", NAME)]);
}

#[test]
fn a_pod_is_charged_for_each_claim_that_is_made_from_a_template_whatever_the_template_writes_on_it()
{
    let pod = with(
        pod("solo", 5),
        "/spec/resourceClaims",
        json!([
            {"name": "gpus", "resourceClaimTemplateName": "t"},
            {"name": "more", "resourceClaimTemplateName": "t"},
        ]),
    );
    let statuses = json!([
        {"name": "gpus", "resourceClaimName": "solo-gpus"},
        {"name": "more", "resourceClaimName": "solo-more"},
    ]);
    let pod = with(pod, "/status/resourceClaimStatuses", statuses);
    let made = |name: &str| {
        with(
            said("ml", &format!("solo-{name}")),
            "/metadata/annotations/resource.kubernetes.io~1pod-claim-name",
            json!(name),
        )
    };
    let index = index_with([pod, made("gpus"), made("more")]);
    let request = index.request_of_pod(&"uid-solo".into()).unwrap();
    let claims: Vec<&str> = request
        .claims
        .iter()
        .map(|claim| claim.uid.as_str())
        .collect();
    assert_eq!(claims, ["ml-solo-gpus", "ml-solo-more"]);
}
