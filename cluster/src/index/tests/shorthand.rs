//! Pods that only say how many GPUs they need: what is made of it is what they said.

use std::collections::BTreeMap;

use muster_api::Reason;
use muster_engine::Timestamp;
use serde_json::{Value, json};

use crate::{
    formed::PendingReason,
    index::{Index, NamespacedName},
    shorthand::Shorthand,
    testing::{admitted, claim, gang, index_with, is, only_gang, pod, team, with},
};

fn annotations() -> BTreeMap<String, String> {
    let pairs = [("muster.dev/gpus", "2"), ("muster.dev/vram", "40Gi")];
    pairs
        .map(|(key, value)| (key.to_owned(), value.to_owned()))
        .into()
}

fn shorthand() -> Shorthand {
    Shorthand::read(Some(&annotations())).unwrap().unwrap()
}

/// A pod as the webhook lets it in, its claim not made yet.
fn waiting_pod() -> Value {
    let pod = with(
        pod("solo", 5),
        "/metadata/annotations",
        json!(annotations()),
    );
    let pod = with(
        pod,
        "/spec/resourceClaims",
        json!([shorthand().reference()]),
    );
    with(pod, "/status", json!({"phase": "Pending"}))
}

/// The same once its claim is made.
fn pod_with_claim() -> Value {
    let status = json!({"phase": "Pending", "resourceClaimStatuses": [
        {"name": "muster-gpus", "resourceClaimName": "solo-gpus"}]});
    with(waiting_pod(), "/status", status)
}

fn made_claim() -> Value {
    with(claim("solo", 2), "/spec", json!(shorthand().claim_spec()))
}

fn wait(index: &Index) -> Option<PendingReason> {
    only_gang(index).wait.clone()
}

#[test]
fn a_claim_that_asks_for_what_the_annotations_say_is_planned() {
    let index = index_with([pod_with_claim(), made_claim()]);
    assert_eq!(wait(&index), None);
    let request = only_gang(&index).pods[0].request.clone().unwrap();
    assert_eq!(request.claims[0].requests[0].choices[0].count, 2);
}

#[test]
fn a_claim_of_a_template_that_somebody_else_made_is_not() {
    let greedy = with(
        made_claim(),
        "/spec/devices/requests/0/exactly/count",
        json!(8),
    );
    let told = wait(&index_with([pod_with_claim(), greedy])).unwrap();
    assert_eq!(told.reason, Reason::RequestNotUnderstood);
    assert!(
        told.details.starts_with(
            "pod solo: spec.resourceClaims[0] (muster-gpus): ResourceClaim solo-gpus does not ask for what the annotations say: delete ResourceClaimTemplate muster-2-gpus-40gi-"
        ),
        "{}",
        told.details
    );
}

#[test]
fn a_pod_that_waits_by_the_template_of_an_earlier_release_is_told_to_be_created_anew() {
    let reference =
        json!([{"name": "muster-gpus", "resourceClaimTemplateName": "muster-2-gpus-40gi-other"}]);
    let of_earlier = |pod: Value| with(pod, "/spec/resourceClaims", reference.clone());
    let other = with(
        made_claim(),
        "/spec/devices/requests/0/exactly/count",
        json!(1),
    );
    for objects in [
        vec![of_earlier(pod_with_claim()), other],
        vec![of_earlier(waiting_pod())],
    ] {
        let told = wait(&index_with(objects)).unwrap();
        assert_eq!(told.reason, Reason::RequestNotUnderstood);
        assert!(
            told.details
                .contains("muster-2-gpus-40gi-other, by which an earlier release")
                && told.details.ends_with("create the pod anew"),
            "{}",
            told.details
        );
    }
    // What asks for the same is what was meant.
    let index = index_with([of_earlier(pod_with_claim()), made_claim()]);
    assert_eq!(wait(&index), None);
}

#[test]
fn a_pod_that_was_let_go_is_not_judged_anew() {
    let other = with(
        made_claim(),
        "/spec/devices/requests/0/exactly/count",
        json!(1),
    );
    let placed = with(
        pod_with_claim(),
        "/metadata/annotations/muster.dev~1placement",
        json!("pinned"),
    );
    let index = index_with([placed, other]);
    assert_eq!(
        wait(&index),
        None,
        "a later release may write another template for the same words"
    );
}

#[test]
fn a_template_that_cannot_be_made_is_said_until_it_can() {
    let mut index = index_with([waiting_pod()]);
    assert_eq!(wait(&index).unwrap().reason, Reason::MissingPods);

    let refused = (
        NamespacedName::new("ml", "solo"),
        "exceeded quota".to_owned(),
    );
    index.set_refused_templates([refused].into());
    assert_eq!(index.refresh(Timestamp(0)).gangs.len(), 1);
    let told = wait(&index).unwrap();
    assert_eq!(told.reason, Reason::RequestNotUnderstood);
    assert!(
        told.details.ends_with("cannot be made: exceeded quota"),
        "{}",
        told.details
    );

    index.set_refused_templates(BTreeMap::new());
    index.refresh(Timestamp(0));
    assert_eq!(wait(&index).unwrap().reason, Reason::MissingPods);

    index.observe(is(made_claim()));
    index.observe(is(pod_with_claim()));
    index.refresh(Timestamp(0));
    assert_eq!(wait(&index), None);
}

#[test]
fn a_shorthand_that_was_past_the_webhook_says_what_is_wrong_with_it() {
    for (key, value, details) in [
        (
            "gpus",
            "many",
            "pod solo: metadata.annotations[muster.dev/gpus]: \"many\": must be a whole number from 1 to 32, in plain digits",
        ),
        (
            "gpus",
            "3",
            "pod solo: spec.resourceClaims[0] (muster-gpus): names ResourceClaimTemplate muster-2-gpus-40gi-",
        ),
    ] {
        let pointer = format!("/metadata/annotations/muster.dev~1{key}");
        let index = index_with([with(pod_with_claim(), &pointer, json!(value)), made_claim()]);
        let told = wait(&index).unwrap();
        assert_eq!(told.reason, Reason::RequestNotUnderstood);
        assert!(told.details.starts_with(details), "{}", told.details);
    }
}

/// The Team of the tests, which requires that pods say how much memory they need.
fn strict_team() -> Value {
    with(team("research"), "/spec/vram", json!("Required"))
}

#[test]
fn a_claim_that_says_nothing_about_memory_waits_where_the_team_requires_it_and_only_there() {
    let silent = [pod("solo", 5), claim("solo", 1)];
    assert_eq!(wait(&index_with(silent.clone())), None);

    let mut index = index_with(silent.into_iter().chain([strict_team()]));
    let told = wait(&index).unwrap();
    assert_eq!(told.reason, Reason::VramNotDeclared);
    assert!(
        told.details.starts_with(
            "pod solo: ResourceClaim solo-gpus: spec.devices.requests[0].exactly: Team research requires"
        ),
        "{}",
        told.details
    );

    index.observe(is(team("research")));
    index.refresh(Timestamp(0));
    assert_eq!(wait(&index), None, "the Team requires it no more");
}

#[test]
fn a_claim_that_says_how_much_memory_is_planned_where_the_team_requires_it() {
    let index = index_with([pod_with_claim(), made_claim(), strict_team()]);
    assert_eq!(wait(&index), None);
    let asking = with(
        claim("solo", 1),
        "/spec/devices/requests/0/exactly/selectors",
        json!([{"cel": {"expression": "has(device.attributes['gpu.muster.dev'].profile) && device.attributes['gpu.muster.dev'].profile == '1g.10gb'"}}]),
    );
    let index = index_with([pod("solo", 5), asking, strict_team()]);
    assert_eq!(wait(&index), None);
}

#[test]
fn what_is_admitted_already_is_not_asked_for_its_memory() {
    let key = only_gang(&index_with([pod("solo", 5), claim("solo", 1)]))
        .key
        .clone();
    let named = with(
        pod("solo", 5),
        "/metadata/annotations/muster.dev~1gang-name",
        json!(key.name),
    );
    let waiting = gang(&key.name, 1, "Pending");
    let holding = admitted(gang(&key.name, 1, "Admitted"), &["solo"]);
    for (gang, is_asked) in [(waiting, true), (holding, false)] {
        let index = index_with([named.clone(), claim("solo", 1), gang, strict_team()]);
        let reason = wait(&index).map(|told| told.reason);
        assert_eq!(reason == Some(Reason::VramNotDeclared), is_asked);
    }
}
