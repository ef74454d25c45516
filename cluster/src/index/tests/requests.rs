//! What claims ask for, and what of it is not understood.

use muster_api::Reason;
use muster_engine::Timestamp;
use serde_json::{Value, json};

use crate::{
    formed::PendingReason,
    index::Index,
    object::Kind,
    testing::{claim, gone, index_with, is, node, node_devices, only_gang, pod, slice, with},
};

pub(super) fn solo(claim: Value) -> Index {
    index_with([pod("solo", 5), claim])
}

pub(super) fn wait(index: &Index) -> Option<PendingReason> {
    only_gang(index).wait.clone()
}

pub(super) fn selecting(expression: &str) -> Value {
    with(
        claim("solo", 1),
        "/spec/devices/requests/0/exactly/selectors",
        json!([{"cel": {"expression": expression}}]),
    )
}

/// A claim whose request has so many alternatives, `n-0` and so on, each with one device more.
pub(super) fn alternatives(count: usize) -> Value {
    let alternatives = (0..count).map(|number| {
        json!({"name": format!("n-{number}"), "deviceClassName": "gpu.muster.dev", "count": number + 1})
    });
    with(
        claim("solo", 1),
        "/spec/devices/requests/0",
        json!({"name": "gpu", "firstAvailable": alternatives.collect::<Vec<_>>()}),
    )
}

fn capacities(count: usize) -> Value {
    let capacities = (0..count).map(|number| (format!("c{number}"), json!("1")));
    Value::Object(capacities.collect())
}

#[test]
fn a_request_that_is_not_planned_waits_with_its_field_named() {
    let exactly = |field: &str, value: Value| {
        with(
            claim("solo", 1),
            &format!("/spec/devices/requests/0/exactly/{field}"),
            value,
        )
    };
    let constraint = |value: Value| {
        with(
            claim("solo", 1),
            "/spec/devices/constraints",
            json!([value]),
        )
    };
    let base = "spec.devices.requests[0].exactly";
    for (claim, field, why) in [
        (
            with(
                claim("solo", 1),
                "/spec/devices/requests/0",
                json!({"name": "g", "firstAvailable": []}),
            ),
            "spec.devices.requests[0].firstAvailable",
            "names 0 alternatives; a request has 1 to 8",
        ),
        (
            alternatives(9),
            "spec.devices.requests[0].firstAvailable",
            "names 9 alternatives; a request has 1 to 8",
        ),
        (
            with(
                alternatives(2),
                "/spec/devices/requests/0/firstAvailable/1/name",
                json!("n-0"),
            ),
            "spec.devices.requests[0].firstAvailable[1].name",
            "another alternative is called n-0",
        ),
        (
            with(
                alternatives(2),
                "/spec/devices/requests/0/firstAvailable/1/tolerations",
                json!([{"operator": "Exists"}]),
            ),
            "spec.devices.requests[0].firstAvailable[1].tolerations",
            "tainted devices are not planned",
        ),
        (
            with(
                alternatives(2),
                "/spec/devices/requests/0/firstAvailable/1/deviceClassName",
                json!("nic.example.com"),
            ),
            "spec.devices.requests",
            "names excepted DeviceClasses beside others; put them into a claim of their own",
        ),
        (
            with(
                alternatives(2),
                "/spec/devices/requests/0/exactly",
                json!({"deviceClassName": "gpu.muster.dev"}),
            ),
            "spec.devices.requests[0]",
            "says both exactly and firstAvailable; use one of them",
        ),
        (
            with(
                claim("solo", 1),
                "/spec/devices/requests/0",
                json!({"name": "g"}),
            ),
            "spec.devices.requests[0]",
            "is of a kind that is not known; use exactly or firstAvailable",
        ),
        (
            with(
                alternatives(2),
                "/spec/devices/constraints",
                json!([{"matchAttribute": "d/a", "requests": ["gpu/n-2"]}]),
            ),
            "spec.devices.constraints[0].requests[0]",
            "there is no request gpu/n-2",
        ),
        (
            with(
                claim("solo", 1),
                "/spec/devices/requests",
                json!([
                    {"name": "many", "exactly": {"deviceClassName": "gpu.muster.dev", "count": 30}},
                    {"name": "some", "firstAvailable": [
                        {"name": "few", "deviceClassName": "gpu.muster.dev", "count": 2},
                        {"name": "more", "deviceClassName": "gpu.muster.dev", "count": 3},
                    ]},
                ]),
            ),
            "spec.devices.requests",
            "asks for 33 devices; a claim has at most 32",
        ),
        (
            exactly("allocationMode", json!("All")),
            &format!("{base}.allocationMode"),
            "All is not planned; use ExactCount with a count",
        ),
        (
            exactly("adminAccess", json!(true)),
            &format!("{base}.adminAccess"),
            "devices that others hold are not planned",
        ),
        (
            exactly("capacity", json!({"requests": {"memory": "-1Gi"}})),
            &format!("{base}.capacity.requests[memory]"),
            "\"-1Gi\" is negative; it must be 0 or more",
        ),
        (
            exactly("capacity", json!({"requests": capacities(33)})),
            &format!("{base}.capacity.requests"),
            "names 33 capacities; a device has at most 32",
        ),
        (
            exactly("tolerations", json!([{"operator": "Exists"}])),
            &format!("{base}.tolerations"),
            "tainted devices are not planned",
        ),
        (
            exactly("count", json!(0)),
            &format!("{base}.count"),
            "is 0; a claim has 1 to 32 devices",
        ),
        (
            exactly("count", json!(33)),
            &format!("{base}.count"),
            "is 33; a claim has 1 to 32 devices",
        ),
        (
            exactly("deviceClassName", json!("gpu.example.com")),
            &format!("{base}.deviceClassName"),
            "there is no DeviceClass gpu.example.com; `kubectl get deviceclasses` lists those that exist",
        ),
        (
            with(
                claim("solo", 1),
                "/spec/devices/requests",
                json!([
                    {"name": "g", "exactly": {"deviceClassName": "gpu.muster.dev"}},
                    {"name": "n", "exactly": {"deviceClassName": "nic.example.com"}},
                ]),
            ),
            "spec.devices.requests",
            "names excepted DeviceClasses beside others; put them into a claim of their own",
        ),
        (
            constraint(json!({"distinctAttribute": "d/a"})),
            "spec.devices.constraints[0].distinctAttribute",
            "is not planned",
        ),
        (
            constraint(json!({"matchAttribute": "d/a", "requests": ["gpu", "other"]})),
            "spec.devices.constraints[0].requests[1]",
            "there is no request other",
        ),
    ] {
        let wait = wait(&solo(claim)).expect(why);
        assert_eq!(wait.reason, Reason::RequestNotUnderstood);
        assert_eq!(
            wait.details,
            format!("ResourceClaim solo-gpus: {field}: {why}")
        );
    }
}

#[test]
fn a_request_is_understood_with_its_selector_count_and_constraints() {
    let claim = with(
        claim("solo", 2),
        "/spec/devices/constraints",
        json!([
            {"matchAttribute": "gpu.muster.dev/nvlinkGroup", "requests": ["gpu"]},
        ]),
    );
    let index = solo(claim);
    let request = only_gang(&index).pods[0].request.clone().unwrap();
    let [claim] = &request.claims[..] else {
        panic!("{request:?}")
    };
    assert_eq!(claim.requests[0].choices[0].count, 2);
    assert_eq!(
        claim.constraints[0].attribute.as_str(),
        "gpu.muster.dev/nvlinkGroup"
    );
    let devices = &index.engine_node("a").unwrap().devices;
    assert!(devices.iter().all(|device| {
        device
            .selectors
            .contains(&claim.requests[0].choices[0].selector)
    }));
}

#[test]
fn equal_requests_share_a_selector_and_different_ones_do_not() {
    let other = with(selecting("true"), "/metadata/name", json!("other-gpus"));
    let other = with(
        with(other, "/metadata/uid", json!("claim-other")),
        "/metadata/ownerReferences/0/uid",
        json!("uid-other"),
    );
    let index = index_with([
        pod("one", 5),
        claim("one", 1),
        pod("two", 5),
        claim("two", 2),
        pod("other", 5),
        other,
    ]);
    let selectors: Vec<_> = ["uid-one", "uid-two", "uid-other"]
        .map(|uid| {
            index.request_of_pod(&uid.into()).unwrap().claims[0].requests[0].choices[0].selector
        })
        .into();
    assert_eq!(selectors[0], selectors[1]);
    assert_ne!(selectors[0], selectors[2]);
}

#[test]
fn an_expression_that_does_not_parse_or_that_kubernetes_reads_otherwise_is_not_understood() {
    for expression in [
        "device.",
        "device.attributes['d'].x.y == 1",
        "device.nothing",
        "quantity('1').x",
    ] {
        let wait = wait(&solo(selecting(expression))).expect(expression);
        assert_eq!(wait.reason, Reason::RequestNotUnderstood);
        let field = "ResourceClaim solo-gpus: spec.devices.requests[0].exactly.selectors[0].cel.expression: ";
        assert!(wait.details.starts_with(field), "{}", wait.details);
    }
}

#[test]
fn an_expression_that_fails_everywhere_is_not_understood() {
    for expression in [
        "device.attributes['gpu.muster.dev'].nothing == 1",
        "'neither true nor false'",
        "device.attributes['other.example.com'].model == 'x'",
    ] {
        let wait = wait(&solo(selecting(expression))).expect(expression);
        assert_eq!(wait.reason, Reason::RequestNotUnderstood, "{expression}");
        let text = "ResourceClaim solo-gpus: spec.devices.requests[0].exactly.selectors: match no device, and cannot be evaluated for some: ";
        assert!(wait.details.starts_with(text), "{}", wait.details);
    }
}

#[test]
fn an_expression_that_is_false_everywhere_is_understood() {
    for expression in [
        "device.attributes['gpu.muster.dev'].productName == 'nothing'",
        "has(device.attributes['gpu.muster.dev'].nothing)",
        // Kubernetes has an empty map for a domain that a device lacks.
        "has(device.attributes['other.example.com'].model)",
        "'other.example.com' in device.attributes",
        "device.driver != 'gpu.muster.dev' && device.attributes['x'].y == 1",
    ] {
        assert_eq!(wait(&solo(selecting(expression))), None, "{expression}");
    }
}

#[test]
fn a_selector_that_fails_on_one_device_of_a_node_matches_none_there() {
    let odd = with(slice("b", 2), "/spec/devices/1/attributes", json!({}));
    let objects = [
        pod("solo", 5),
        selecting("device.attributes['gpu.muster.dev'].productName.contains('H100')"),
        odd,
    ];
    let index = index_with(objects);
    assert_eq!(wait(&index), None, "it is understood: node a matches");
    let selector = only_gang(&index).pods[0].request.as_ref().unwrap().claims[0].requests[0]
        .choices[0]
        .selector;
    let matching = |node: &str| {
        let devices = &index.engine_node(node).unwrap().devices;
        devices
            .iter()
            .filter(|device| device.selectors.contains(&selector))
            .count()
    };
    assert_eq!((matching("a"), matching("b")), (2, 0));
}

/// The slice of a node of which the second device is given out in a way that is never planned.
fn with_unplanned(node: &str, field: &str, value: Value) -> Value {
    with(slice(node, 2), &format!("/spec/devices/1/{field}"), value)
}

#[test]
fn a_node_is_left_out_for_a_selector_that_matches_a_device_which_is_never_planned() {
    let any = "device.attributes['gpu.muster.dev'].productName.contains('H100')";
    let unshared = format!("{any} && !device.allowMultipleAllocations");
    for (field, value, expression, on_b) in [
        ("allowMultipleAllocations", json!(true), any, 0),
        ("bindingConditions", json!(["ready"]), any, 0),
        ("allowMultipleAllocations", json!(false), any, 2),
        // An expression may tell them apart, where what they differ in can be read.
        (
            "allowMultipleAllocations",
            json!(true),
            unshared.as_str(),
            1,
        ),
    ] {
        let what = format!("{field} is {value}: {expression}");
        let objects = [
            pod("solo", 5),
            selecting(expression),
            with_unplanned("b", field, value),
        ];
        let index = index_with(objects);
        assert_eq!(wait(&index), None, "{what}: node a matches");
        let selector = only_gang(&index).pods[0].request.as_ref().unwrap().claims[0].requests[0]
            .choices[0]
            .selector;
        let matching = |node: &str| {
            let devices = &index.engine_node(node).unwrap().devices;
            devices
                .iter()
                .filter(|device| device.selectors.contains(&selector))
                .count()
        };
        assert_eq!((matching("a"), matching("b")), (2, on_b), "{what}");
    }
}

#[test]
fn a_selector_that_every_node_is_left_out_for_names_the_device_until_one_is_not() {
    let shared = |node: &str| with_unplanned(node, "allowMultipleAllocations", json!(true));
    let any = "device.attributes['gpu.muster.dev'].productName.contains('H100')";
    let objects = [pod("solo", 5), selecting(any), shared("a"), shared("b")];
    let mut index = index_with(objects);
    let waits = wait(&index).unwrap();
    assert_eq!(waits.reason, Reason::RequestNotUnderstood);
    let text = "ResourceClaim solo-gpus: spec.devices.requests[0].exactly.selectors: match nothing without a device that is never planned: \
                device gpu.muster.dev/";
    assert!(waits.details.starts_with(text), "{}", waits.details);
    // The Flavor counts the others all the same.
    assert_eq!(index.failure_of_flavor("h100"), None);

    index.observe(is(slice("a", 2)));
    index.refresh(Timestamp(0));
    assert_eq!(wait(&index), None);
    index.observe(is(shared("a")));
    index.refresh(Timestamp(0));
    assert!(wait(&index).is_some());
}

#[test]
fn a_selector_is_understood_once_a_device_matches_and_not_any_more_when_it_goes() {
    let by_model = "device.attributes['gpu.muster.dev'].model == 'B200'";
    let mut index = solo(selecting(by_model));
    assert!(wait(&index).is_some());

    let mut new = slice("c", 1);
    new["spec"]["devices"][0]["attributes"]["model"] = json!({"string": "B200"});
    for object in [node("c", "s1", "l1"), new, node_devices("c")] {
        index.observe(is(object));
    }
    assert_eq!(index.refresh(Timestamp(0)).gangs.len(), 1);
    assert_eq!(wait(&index), None);

    index.observe(gone(Kind::Node, "", "c"));
    index.refresh(Timestamp(0));
    assert!(wait(&index).is_some());
}

#[test]
fn functions_of_kubernetes_are_known() {
    for (expression, matches) in [
        (
            "device.capacity['gpu.muster.dev'].memory.compareTo(quantity('80Gi')) >= 0",
            true,
        ),
        (
            "device.capacity['gpu.muster.dev'].memory.isGreaterThan(quantity('80Gi'))",
            false,
        ),
        (
            "device.attributes['gpu.muster.dev'].driverVersion.isGreaterThan(semver('570.0.0'))",
            true,
        ),
        (
            "device.attributes['gpu.muster.dev'].productName.lowerAscii().matches('.*h100.*')",
            true,
        ),
        (
            "device.attributes['resource.kubernetes.io'].numaNode == 0",
            true,
        ),
        (
            "device.attributes['gpu.muster.dev'].uuid in ['GPU-a-0', 'GPU-b-1']",
            true,
        ),
        ("device.allowMultipleAllocations", false),
    ] {
        let index = solo(selecting(expression));
        assert_eq!(wait(&index), None, "{expression}");
        let selector = only_gang(&index).pods[0].request.as_ref().unwrap().claims[0].requests[0]
            .choices[0]
            .selector;
        let devices = &index.engine_node("a").unwrap().devices;
        assert_eq!(
            devices[0].selectors.contains(&selector),
            matches,
            "{expression}"
        );
    }
}

#[test]
fn a_claim_that_is_allocated_names_its_node_and_devices() {
    let allocated = with(
        claim("solo", 1),
        "/status/allocation",
        json!({"devices": {"results": [
            {"request": "gpu", "driver": "gpu.muster.dev", "pool": "b", "device": "gpu-1"},
        ]}}),
    );
    let index = solo(allocated.clone());
    let (node, devices) = only_gang(&index).pods[0].request.clone().unwrap().claims[0]
        .allocated
        .clone()
        .unwrap();
    assert_eq!(
        (node.as_str(), devices[0].as_str()),
        ("b", "gpu.muster.dev/b/gpu-1")
    );
    let device = &index.engine_node("b").unwrap().devices[1];
    assert_eq!(
        device
            .allocated_to
            .as_ref()
            .map(muster_engine::ClaimUid::as_str),
        Some("claim-solo")
    );

    let elsewhere = with(
        allocated,
        "/status/allocation/devices/results/0/pool",
        json!("nowhere"),
    );
    let details = wait(&solo(elsewhere)).unwrap().details;
    assert!(
        details.ends_with("no node publishes the pool gpu.muster.dev/nowhere"),
        "{details}"
    );
}

#[test]
fn a_claim_that_two_pods_share_stands_with_each_of_them() {
    let shared = with(claim("solo", 1), "/metadata/name", json!("shared"));
    let named = |name: &str| {
        let pod = crate::testing::member(name, 5, "train", "2");
        with(
            pod,
            "/spec/resourceClaims",
            json!([{"name": "g", "resourceClaimName": "shared"}, {"name": "again", "resourceClaimName": "shared"}]),
        )
    };
    let index = index_with([named("w-0"), named("w-1"), shared]);
    let gang = only_gang(&index);
    let claims: Vec<_> = gang
        .pods
        .iter()
        .flat_map(|pod| &pod.request.as_ref().unwrap().claims)
        .map(|claim| claim.uid.as_str())
        .collect();
    assert_eq!(claims, ["claim-solo", "claim-solo"], "once per pod");
}

#[test]
fn rules_that_nobody_uses_any_more_are_swept() {
    let mut index = index_with([]);
    for round in 0..200_u32 {
        let name = format!("solo-{round}");
        let selector = json!([{"cel": {"expression": format!("device.driver == 'd{round}'")}}]);
        index.observe(is(with(
            pod(&name, 5),
            "/spec/nodeSelector",
            json!({"round": round.to_string()}),
        )));
        index.observe(is(with(
            claim(&name, 1),
            "/spec/devices/requests/0/exactly/selectors",
            selector,
        )));
        index.refresh(Timestamp(0));
        index.observe(gone(Kind::Pod, "ml", &name));
        index.observe(gone(Kind::ResourceClaim, "ml", &format!("{name}-gpus")));
        index.refresh(Timestamp(0));
    }
    assert!(index.filters.len() < 100, "{}", index.filters.len());
    assert!(index.selectors.len() < 100, "{}", index.selectors.len());
}
