use k8s_openapi::api::resource::v1::{DeviceClass, DeviceTaintRule, ResourceSlice};
use muster_cluster::object::Kind;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::*;
use crate::api_server::{key, node_of};

fn object<T: DeserializeOwned>(value: Value) -> T {
    serde_json::from_value(value).unwrap()
}

/// A node's slice. Each of its devices has a NUMA node.
fn slice(node: &str, numa: &[i64]) -> ResourceSlice {
    let devices = numa.iter().enumerate().map(|(number, numa)| {
        json!({"name": format!("gpu-{number}"), "attributes": {"numa": {"int": numa}}})
    });
    let devices: Vec<Value> = devices.collect();
    object(json!({"metadata": {"name": node}, "spec": {
        "driver": "gpu.example.com", "nodeName": node, "devices": devices,
        "pool": {"name": node, "generation": 1, "resourceSliceCount": 1},
    }}))
}

/// `node-0` with devices of these NUMA nodes, and a class of them.
fn cluster(numa: &[i64]) -> ApiServer {
    let mut api = ApiServer::default();
    api.create(slice("node-0", numa)).unwrap();
    let class = json!({"metadata": {"name": "gpu"}, "spec": {
        "selectors": [{"cel": {"expression": "device.driver == 'gpu.example.com'"}}],
    }});
    api.create(object::<DeviceClass>(class)).unwrap();
    api
}

fn exactly(count: usize) -> Value {
    json!({"name": "gpu", "exactly": {"deviceClassName": "gpu", "count": count}})
}

fn same_numa() -> Value {
    json!([{"matchAttribute": "gpu.example.com/numa"}])
}

fn add_claim(api: &mut ApiServer, name: &str, request: &Value, constraints: &Value) {
    let claim = json!({"metadata": {"name": name, "namespace": "ml"}, "spec": {
        "devices": {"requests": [request], "constraints": constraints},
    }});
    api.create(object::<ResourceClaim>(claim)).unwrap();
}

/// A pod that was let go to `node-0`.
fn add_pod(api: &mut ApiServer, name: &str, claims: &[&str]) {
    let claims = claims
        .iter()
        .map(|claim| json!({"name": claim, "resourceClaimName": claim}));
    let claims: Vec<Value> = claims.collect();
    let terms = json!([{"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["node-0"]}]}]);
    let pod = json!({"metadata": {"name": name, "namespace": "ml"}, "spec": {
        "containers": [{"name": "main", "image": "i"}],
        "resourceClaims": claims,
        "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}},
    }});
    api.create(object::<Pod>(pod)).unwrap();
}

fn bind(scheduler: &mut Scheduler, api: &mut ApiServer, pods: &[&str]) {
    let pods = pods.iter().map(|pod| key(Kind::Pod, "ml", pod));
    scheduler.bind(api, pods.collect());
}

/// What a claim is allocated: requests and devices.
fn devices_of(api: &ApiServer, claim: &str) -> Vec<String> {
    let claim = api.get::<ResourceClaim>("ml", claim).unwrap();
    let devices = allocation_of(claim).and_then(|allocation| allocation.devices.as_ref());
    let results = devices.and_then(|devices| devices.results.as_ref());
    let results = results.into_iter().flatten();
    results
        .map(|result| format!("{} {}", result.request, result.device))
        .collect()
}

fn is_bound(api: &ApiServer, pod: &str) -> bool {
    let pod = api.get::<Pod>("ml", pod).unwrap();
    node_of(pod) == Some("node-0")
}

#[test]
fn devices_agree_as_constraints_ask_and_whoever_finds_none_waits_until_some_are_released() {
    let mut api = cluster(&[0, 1, 1, 2]);
    for (name, count) in [("a", 2), ("b", 1), ("c", 2)] {
        add_claim(&mut api, name, &exactly(count), &same_numa());
        add_pod(&mut api, name, &[name]);
    }
    let mut scheduler = Scheduler::default();
    bind(&mut scheduler, &mut api, &["a", "b", "c"]);
    assert_eq!(devices_of(&api, "a"), ["gpu gpu-1", "gpu gpu-2"]);
    assert_eq!(devices_of(&api, "b"), ["gpu gpu-0"]);
    assert_eq!(devices_of(&api, "c"), [""; 0]);
    let bound = ["a", "b", "c"].map(|pod| is_bound(&api, pod));
    assert_eq!(bound, [true, true, false]);
    let warnings = scheduler.warnings(&api);
    assert_eq!(warnings.len(), 1, "{warnings:?}");
    assert!(warnings[0].contains("ml/c"), "{warnings:?}");

    let any = Precondition::default();
    let released = api.update::<ResourceClaim>("ml", "a", any, |claim| claim.status = None);
    let key = released.unwrap().key();
    let claim = api.get::<ResourceClaim>("ml", "a");
    scheduler.note(&key, claim);
    bind(&mut scheduler, &mut api, &[]);
    assert_eq!(devices_of(&api, "c"), ["gpu gpu-1", "gpu gpu-2"]);
    assert!(is_bound(&api, "c"));
    assert_eq!(scheduler.warnings(&api), [""; 0]);
}

#[test]
fn a_claim_that_pods_share_is_allocated_once() {
    let mut api = cluster(&[0, 0]);
    add_claim(&mut api, "shared", &exactly(1), &Value::Null);
    for name in ["a", "b"] {
        add_pod(&mut api, name, &["shared"]);
    }
    let mut scheduler = Scheduler::default();
    bind(&mut scheduler, &mut api, &["a", "b"]);
    assert_eq!(devices_of(&api, "shared"), ["gpu gpu-0"]);
    assert!(is_bound(&api, "a") && is_bound(&api, "b"));
    let claim = api.get::<ResourceClaim>("ml", "shared").unwrap();
    let consumers = claim.status.as_ref().unwrap().reserved_for.iter().flatten();
    let names: Vec<&str> = consumers.map(|consumer| consumer.name.as_str()).collect();
    assert_eq!(names, ["a", "b"]);
    let before = api.revision();
    bind(&mut scheduler, &mut api, &["a", "b"]);
    assert_eq!(api.revision(), before, "what is bound is left alone");
}

#[test]
fn all_claims_of_a_pod_are_allocated_or_none() {
    let mut api = cluster(&[0; 4]);
    add_claim(&mut api, "three", &exactly(3), &Value::Null);
    add_claim(&mut api, "two", &exactly(2), &Value::Null);
    add_pod(&mut api, "both", &["three", "two"]);
    add_pod(&mut api, "one", &["two"]);
    let mut scheduler = Scheduler::default();
    bind(&mut scheduler, &mut api, &["both", "one"]);
    assert!(!is_bound(&api, "both"));
    assert_eq!(devices_of(&api, "three"), [""; 0]);
    assert!(is_bound(&api, "one"));
    assert_eq!(devices_of(&api, "two"), ["gpu gpu-0", "gpu gpu-1"]);
}

#[test]
fn the_first_alternative_that_is_there_is_taken_and_nothing_that_is_tainted() {
    let mut api = cluster(&[0, 1, 1]);
    let rule = json!({"metadata": {"name": "r"}, "spec": {
        "deviceSelector": {"device": "gpu-1"}, "taint": {"key": "example.com/off", "effect": "NoSchedule"},
    }});
    api.create(object::<DeviceTaintRule>(rule)).unwrap();
    let on = |numa: i64, name: &str, count: usize| {
        let expression = format!("device.attributes['gpu.example.com'].numa == {numa}");
        json!({"name": name, "deviceClassName": "gpu", "count": count, "selectors": [{"cel": {"expression": expression}}]})
    };
    let request = json!({"name": "gpu", "firstAvailable": [on(1, "two", 2), on(1, "one", 1), on(0, "other", 1)]});
    for name in ["a", "b", "c"] {
        add_claim(&mut api, name, &request, &Value::Null);
        add_pod(&mut api, name, &[name]);
    }
    let mut scheduler = Scheduler::default();
    bind(&mut scheduler, &mut api, &["a", "b", "c"]);
    assert_eq!(devices_of(&api, "a"), ["gpu/one gpu-2"]);
    assert_eq!(devices_of(&api, "b"), ["gpu/other gpu-0"]);
    assert!(!is_bound(&api, "c"));
}

#[test]
fn claims_have_devices_up_to_their_limit_and_a_search_comes_to_an_end() {
    let two_halves: Vec<i64> = (0..62).map(|number| number / 31).collect();
    for (numa, count, constraints, is_found) in [
        (vec![0; 40], 32, Value::Null, true),
        (vec![0; 40], 33, Value::Null, false),
        (vec![0; 40], 0, Value::Null, false),
        (two_halves.clone(), 31, same_numa(), true),
        // Every choice among 31 devices that agree would be tried before the last one is found to be lacking.
        (two_halves, 32, same_numa(), false),
    ] {
        let mut api = cluster(&numa);
        add_claim(&mut api, "c", &exactly(count), &constraints);
        add_pod(&mut api, "p", &["c"]);
        let mut scheduler = Scheduler::default();
        bind(&mut scheduler, &mut api, &["p"]);
        assert_eq!(is_bound(&api, "p"), is_found, "{count} of {numa:?}");
        let expected = if is_found { count } else { 0 };
        assert_eq!(devices_of(&api, "c").len(), expected, "{count} of {numa:?}");
    }
}

#[test]
fn what_cannot_be_allocated_leaves_its_pod_unbound_with_the_cause() {
    let of = |field: &str, value: Value| {
        let mut request = exactly(1);
        request["exactly"][field] = value;
        request
    };
    let none_free = "no free devices as its ResourceClaims c ask for";
    for (request, constraints) in [
        (exactly(3), Value::Null),
        (of("deviceClassName", json!("unknown")), Value::Null),
        (of("allocationMode", json!("All")), Value::Null),
        (of("adminAccess", json!(true)), Value::Null),
        (
            of("selectors", json!([{"cel": {"expression": "device."}}])),
            Value::Null,
        ),
        (of("selectors", json!([{}])), Value::Null),
        (json!({"name": "gpu"}), Value::Null),
        (
            exactly(2),
            json!([{"distinctAttribute": "gpu.example.com/numa"}]),
        ),
        (
            exactly(1),
            json!([{"matchAttribute": "gpu.example.com/unknown"}]),
        ),
    ] {
        let mut api = cluster(&[0, 1]);
        add_claim(&mut api, "c", &request, &constraints);
        assert_unbound(&mut api, none_free, &format!("{request} {constraints}"));
    }

    let mut api = cluster(&[0]);
    assert_unbound(&mut api, "there is no ResourceClaim c", "no claim");

    let mut api = cluster(&[0]);
    add_claim(&mut api, "c", &exactly(1), &Value::Null);
    let any = Precondition::default();
    let kept = api.update::<ResourceClaim>("ml", "c", any, |claim| {
        claim.metadata.finalizers = Some(vec!["example.com/kept".to_owned()]);
    });
    api.delete(&kept.unwrap().key(), any).unwrap();
    assert_unbound(&mut api, "c is being deleted", "a claim that goes");

    let mut api = cluster(&[0]);
    api.create(slice("node-1", &[0])).unwrap();
    add_claim(&mut api, "c", &exactly(1), &Value::Null);
    let result =
        json!({"request": "gpu", "driver": "gpu.example.com", "pool": "node-1", "device": "gpu-0"});
    let elsewhere = api.update::<ResourceClaim>("ml", "c", any, |claim| {
        let allocation = object(json!({"devices": {"results": [result]}}));
        devices::give(claim, allocation);
    });
    elsewhere.unwrap();
    assert_unbound(&mut api, "c has devices of another node", "another node");
}

/// The pod of a claim stays unbound, which is told with this cause.
fn assert_unbound(api: &mut ApiServer, cause: &str, case: &str) {
    add_pod(api, "p", &["c"]);
    let mut scheduler = Scheduler::default();
    bind(&mut scheduler, api, &["p"]);
    assert!(!is_bound(api, "p"), "{case}");
    let warnings = scheduler.warnings(api);
    assert_eq!(warnings.len(), 1, "{case}: {warnings:?}");
    assert!(warnings[0].contains(cause), "{case}: {warnings:?}");
}
