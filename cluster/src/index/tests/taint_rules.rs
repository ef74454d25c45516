//! DeviceTaintRules, as they come and go.

use muster_engine::Timestamp;
use serde_json::{Value, json};

use crate::{
    index::Index,
    object::Kind,
    testing::{
        claim, gone, index_with, is, member, node, node_devices, partitioned, settle, slice, with,
    },
};

fn rule(selector: &Value, key: &str, effect: &str) -> Value {
    json!({
        "kind": "DeviceTaintRule", "metadata": {"name": "rule", "uid": "rule"},
        "spec": {"deviceSelector": selector, "taint": {"key": key, "effect": effect}},
    })
}

/// The devices that may be planned and those that are healthy, of all nodes.
fn devices(index: &Index) -> (Vec<String>, Vec<String>) {
    let nodes = ["a", "b"].map(|name| index.engine_node(name).unwrap());
    let named = |is_meant: fn(&muster_engine::Device) -> bool| {
        let devices = nodes.iter().flat_map(|node| &node.devices);
        let meant = devices.filter(|device| is_meant(device));
        let names = meant.map(|device| device.name.as_str().replace("gpu.muster.dev/", ""));
        names.collect()
    };
    (
        named(|device| device.usable),
        named(|device| device.healthy),
    )
}

#[test]
fn a_rule_takes_devices_out_and_gives_them_back_when_it_goes() {
    const ALL: [&str; 4] = ["a/gpu-0", "a/gpu-1", "b/gpu-0", "b/gpu-1"];
    const NONE: [&str; 0] = [];
    let held = muster_api::keys::TAINT_HELD;
    for (selector, key, effect, usable, healthy) in [
        (json!({}), "k", "NoSchedule", &NONE[..], &NONE[..]),
        (json!({}), "k", "NoExecute", &NONE[..], &NONE[..]),
        (json!({}), "k", "None", &ALL[..], &ALL[..]),
        (Value::Null, "k", "NoSchedule", &ALL[..], &ALL[..]),
        (json!({}), held, "NoSchedule", &NONE[..], &ALL[..]),
        (
            json!({"pool": "a"}),
            "k",
            "NoSchedule",
            &ALL[2..],
            &ALL[2..],
        ),
        (
            json!({"driver": "gpu.muster.dev", "pool": "b", "device": "gpu-1"}),
            "k",
            "NoSchedule",
            &ALL[..3],
            &ALL[..3],
        ),
        (
            json!({"driver": "other.example.com"}),
            "k",
            "NoSchedule",
            &ALL[..],
            &ALL[..],
        ),
    ] {
        let rule = rule(&selector, key, effect);
        let mut index = index_with([]);
        index.observe(is(rule.clone()));
        settle(&mut index);
        let (may_be_planned, are_healthy) = devices(&index);
        assert_eq!(may_be_planned, usable, "{rule}");
        assert_eq!(are_healthy, healthy, "{rule}");
        assert_eq!(
            devices(&index),
            devices(&index_with([rule.clone()])),
            "{rule}"
        );
        index.observe(gone(Kind::DeviceTaintRule, "", "rule"));
        settle(&mut index);
        assert_eq!(devices(&index), devices(&index_with([])), "{rule}");
    }
}

#[test]
fn a_rule_costs_the_nodes_whose_devices_it_selects_and_no_others() {
    let mut index = index_with([]);
    let mut touched = |change| {
        let before = index.visits().nodes;
        index.observe(change);
        index.refresh(Timestamp(0));
        index.visits().nodes - before
    };
    let of_pool = |pool: &str, effect: &str| rule(&json!({"pool": pool}), "k", effect);
    assert_eq!(touched(is(of_pool("a", "NoSchedule"))), 1);
    let told = with(of_pool("a", "NoSchedule"), "/status/conditions", json!([]));
    assert_eq!(
        touched(is(told)),
        0,
        "what Kubernetes says of it is not news"
    );
    assert_eq!(
        touched(is(of_pool("b", "NoSchedule"))),
        2,
        "the old one and the new one"
    );
    assert_eq!(touched(is(of_pool("b", "None"))), 1);
    assert_eq!(
        touched(is(of_pool("a", "None"))),
        0,
        "it tainted nothing, and taints nothing"
    );
    assert_eq!(touched(is(rule(&json!({}), "k", "NoSchedule"))), 2);
    assert_eq!(touched(is(of_pool("nowhere", "NoSchedule"))), 2);
    assert_eq!(touched(gone(Kind::DeviceTaintRule, "", "rule")), 0);
}

/// Who waits for a claim waits for what drains its device.
#[test]
fn a_rule_costs_the_gangs_that_name_a_claim_with_a_device_in_the_pool_and_no_others() {
    let named = |pod: &str, pool: &str| {
        let devices = json!({"devices": {"results": [
            {"request": "gpu", "driver": "gpu.muster.dev", "pool": pool, "device": "gpu-1"},
        ]}});
        let claim = with(claim(pod, 1), "/status/allocation", devices);
        [member(pod, 1, pod, "1"), claim]
    };
    let mut index = index_with(
        [named("here", "a"), named("there", "b")]
            .into_iter()
            .flatten(),
    );
    let key_of = |index: &Index, pod: &str| {
        let mut gangs = index.formed_gangs();
        let gang = gangs.find(|gang| gang.pods[0].identity.name == pod);
        gang.unwrap().key.clone()
    };
    let (here, there) = (key_of(&index, "here"), key_of(&index, "there"));
    for selector in [
        json!({"pool": "a"}),
        json!({"driver": "gpu.muster.dev", "pool": "a"}),
        json!({"driver": "gpu.muster.dev", "pool": "a", "device": "gpu-1"}),
    ] {
        // What is made again after it was deleted is another object.
        let made = with(
            rule(&selector, "k", "NoSchedule"),
            "/metadata/uid",
            json!(selector.to_string()),
        );
        for change in [is(made), gone(Kind::DeviceTaintRule, "", "rule")] {
            index.observe(change);
            let gangs = index.refresh(Timestamp(0)).gangs;
            assert!(gangs.contains(&here), "{selector}: {gangs:?}");
            assert!(!gangs.contains(&there), "{selector}: {gangs:?}");
            settle(&mut index);
        }
    }
}

#[test]
fn devices_that_appear_later_are_under_the_rules_that_are_there() {
    let everything = rule(&json!({"driver": "gpu.muster.dev"}), "k", "NoSchedule");
    let mut index = index_with([everything, node("c", "s1", "l1"), node_devices("c")]);
    index.observe(is(slice("c", 2)));
    settle(&mut index);
    let usable = |index: &Index| {
        let devices = index.engine_node("c").unwrap().devices.iter();
        devices.filter(|device| device.usable).count()
    };
    assert_eq!(usable(&index), 0);
    index.observe(gone(Kind::DeviceTaintRule, "", "rule"));
    settle(&mut index);
    assert_eq!(usable(&index), 2);
}

#[test]
fn a_rule_for_one_partition_leaves_its_gpu_and_the_other_partitions() {
    let name = "gpu-0-mig-1g10gb-3";
    let of_one = rule(&json!({"pool": "c", "device": name}), "k", "NoSchedule");
    let objects = [of_one, node("c", "s1", "l1"), node_devices("c")];
    let index = index_with(objects.into_iter().chain(partitioned("c", 1)));
    let devices = &index.engine_node("c").unwrap().devices;
    let tainted: Vec<&str> = devices
        .iter()
        .filter(|device| !device.usable)
        .map(|device| device.name.as_str())
        .collect();
    assert_eq!(tainted, [format!("gpu.muster.dev/c/{name}")]);
}
