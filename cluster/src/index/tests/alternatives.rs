//! Requests with alternatives, and what they ask of each device.

use serde_json::{Value, json};

use super::requests::{alternatives, selecting, solo, wait};
use crate::{
    index::Index,
    object::Kind,
    shares::RULES_PER_NAMESPACE,
    testing::{claim, device_class, gone, index_with, is, only_gang, settle, with},
};

/// The devices of node `a` that match a choice of the only request of the only gang.
fn matching(index: &Index, choice: usize) -> usize {
    let request = only_gang(index).pods[0].request.clone().unwrap();
    let selector = request.claims[0].requests[0].choices[choice].selector;
    let devices = index.engine_node("a").unwrap().devices.iter();
    devices
        .filter(|device| device.selectors.contains(&selector))
        .count()
}

#[test]
fn alternatives_are_understood_in_their_order_and_constraints_may_name_them() {
    let asked = with(
        alternatives(3),
        "/spec/devices/constraints",
        json!([
            {"matchAttribute": "gpu.muster.dev/nvlinkGroup", "requests": ["gpu/n-1"]},
            {"matchAttribute": "gpu.muster.dev/nvlinkGroup", "requests": ["gpu"]},
        ]),
    );
    let index = solo(asked);
    assert_eq!(wait(&index), None);
    let request = only_gang(&index).pods[0].request.clone().unwrap();
    let choices = &request.claims[0].requests[0].choices;
    let named: Vec<_> = choices
        .iter()
        .map(|choice| (choice.name.as_deref(), choice.count))
        .collect();
    assert_eq!(
        named,
        [(Some("n-0"), 1), (Some("n-1"), 2), (Some("n-2"), 3)]
    );
    let constrained = request.claims[0].constraints.iter();
    let constrained: Vec<_> = constrained
        .map(|constraint| constraint.requests[0].as_str())
        .collect();
    assert_eq!(constrained, ["gpu/n-1", "gpu"]);
    // They ask for the same of each device, so they share a selector.
    assert_eq!(choices[0].selector, choices[2].selector);
    assert_eq!(matching(&index, 1), 2);
}

#[test]
fn a_device_matches_if_it_has_as_much_of_each_capacity_as_is_asked_for() {
    for (asked, matches) in [
        (json!({"memory": "80Gi"}), 2),
        (json!({"memory": "81920Mi"}), 2),
        (json!({"memory": "85899345921"}), 0),
        (json!({"memory": "1Gi", "multiprocessors": "1"}), 0),
        // kube-scheduler takes names as they are written.
        (json!({"gpu.muster.dev/memory": "1Gi"}), 0),
        (json!({}), 2),
    ] {
        let index = solo(with(
            claim("solo", 1),
            "/spec/devices/requests/0/exactly/capacity",
            json!({"requests": asked}),
        ));
        assert_eq!(wait(&index), None, "{asked}");
        assert_eq!(matching(&index, 0), matches, "{asked}");
    }
}

#[test]
fn expressions_are_evaluated_before_capacity_and_one_that_fails_fails_all_the_same() {
    let claim = with(
        selecting("device.attributes['gpu.muster.dev'].nothing == 1"),
        "/spec/devices/requests/0/exactly/capacity",
        json!({"requests": {"memory": "1Ti"}}),
    );
    let wait = wait(&solo(claim)).unwrap();
    assert!(
        wait.details.contains("cannot be evaluated for some"),
        "{}",
        wait.details
    );
}

#[test]
fn a_fault_of_an_alternative_is_told_at_its_place() {
    let second = "/spec/devices/requests/0/firstAvailable/1";
    for (expression, place) in [
        ("device.", "selectors[0].cel.expression: "),
        (
            "device.attributes['gpu.muster.dev'].nothing == 1",
            "selectors: match no device",
        ),
    ] {
        let selectors = json!([{"cel": {"expression": expression}}]);
        let claim = with(alternatives(2), &format!("{second}/selectors"), selectors);
        let wait = wait(&solo(claim)).expect(expression);
        let field = format!("spec.devices.requests[0].firstAvailable[1].{place}");
        assert!(wait.details.contains(&field), "{}", wait.details);
    }
}

#[test]
fn an_alternative_waits_for_its_class_and_is_read_again_when_it_is_there() {
    let class = |name: &str| {
        with(
            device_class(),
            "/metadata",
            json!({"name": name, "uid": name}),
        )
    };
    let claim = with(
        alternatives(2),
        "/spec/devices/requests/0/firstAvailable/1/deviceClassName",
        json!("mig.example.com"),
    );
    let mut index = solo(claim);
    let details = wait(&index).unwrap().details;
    let field = "spec.devices.requests[0].firstAvailable[1].deviceClassName: there is no DeviceClass mig.example.com";
    assert!(details.contains(field), "{details}");
    index.observe(is(class("mig.example.com")));
    settle(&mut index);
    assert_eq!(wait(&index), None);
    index.observe(gone(Kind::DeviceClass, "", "mig.example.com"));
    settle(&mut index);
    assert!(wait(&index).is_some());
}

#[test]
fn what_comes_before_a_field_that_is_not_understood_is_judged_by_nobody() {
    let mut index = index_with([]);
    let selectors = index.selectors.len();
    for number in 0..200 {
        let first = json!([{"cel": {"expression": format!("device.driver != '{number}'")}}]);
        let claim = with(
            alternatives(2),
            "/spec/devices/requests/0/firstAvailable/0/selectors",
            first,
        );
        let claim = with(
            claim,
            "/spec/devices/requests/0/firstAvailable/1/allocationMode",
            json!("All"),
        );
        let name = format!("c-{number}");
        index.observe(is(with(
            claim,
            "/metadata",
            json!({"name": name, "namespace": "ml", "uid": name}),
        )));
    }
    settle(&mut index);
    assert_eq!(index.selectors.len(), selectors);
}

#[test]
fn one_claim_uses_no_more_selectors_than_a_namespace_may() {
    // As many requests as Kubernetes allows, with as many alternatives: twice as many selectors as there is room for.
    let asks = |requests: usize| {
        let requests = (0..requests).map(|request| {
            let alternatives = (0..8).map(|number| {
                let expression = format!("device.driver != '{request}/{number}'");
                json!({"name": format!("n-{number}"), "deviceClassName": "gpu.muster.dev",
                    "selectors": [{"cel": {"expression": expression}}]})
            });
            json!({"name": format!("r-{request}"), "firstAvailable": alternatives.collect::<Vec<_>>()})
        });
        let requests: Vec<Value> = requests.collect();
        with(claim("solo", 1), "/spec/devices/requests", json!(requests))
    };
    let rules = RULES_PER_NAMESPACE;
    assert_eq!(wait(&solo(asks(rules / 8))), None);
    let index = solo(asks(rules / 8 + 1));
    let details = wait(&index).unwrap().details;
    assert!(
        details.contains(&format!("use {rules} different selectors")),
        "{details}"
    );
}

#[test]
fn what_an_alternative_got_is_held_like_anything_else() {
    let allocated = with(
        alternatives(2),
        "/status/allocation",
        json!({"devices": {"results": [
            {"request": "gpu/n-1", "driver": "gpu.muster.dev", "pool": "b", "device": "gpu-0"},
            {"request": "gpu/n-1", "driver": "gpu.muster.dev", "pool": "b", "device": "gpu-1"},
        ]}}),
    );
    let index = solo(allocated);
    let request = only_gang(&index).pods[0].request.clone().unwrap();
    let (node, devices) = request.claims[0].allocated.clone().unwrap();
    assert_eq!((node.as_str(), devices.len()), ("b", 2));
    let devices = index.engine_node("b").unwrap().devices.iter();
    let holders: Vec<_> = devices
        .filter_map(|device| device.allocated_to.as_ref())
        .collect();
    assert_eq!(holders.len(), 2);
    assert!(holders.iter().all(|claim| claim.as_str() == "claim-solo"));
}
