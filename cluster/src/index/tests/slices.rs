//! Devices that draw from shared counters, as the engine is told.

use std::sync::Arc;

use muster_engine::{Amount, Consumption, Node, NodeBlock, Timestamp};
use serde_json::{Value, json};

use crate::{
    index::{Index, SLICES_GRACE_SECONDS},
    object::Kind,
    testing::{gone, index_with, is, node, node_devices, partitioned, settle, slice, with},
};

pub(super) fn told<'a>(index: &'a Index, name: &str) -> &'a Node {
    index.engine_node(name).expect(name)
}

/// An index with node `c` of so many GPUs that can be partitioned, some of whose slices are changed.
pub(super) fn index_of(gpus: u32, change: impl FnOnce(&mut Vec<Value>)) -> Index {
    let mut slices = partitioned("c", gpus);
    change(&mut slices);
    let objects = [node("c", "s1", "l1"), node_devices("c")];
    index_with(objects.into_iter().chain(slices))
}

/// Set and amounts of the first of the sets that a device draws from.
fn first(consumes: &[Consumption]) -> (u32, Vec<(u32, i64)>) {
    (consumes[0].set, consumes[0].amounts.to_vec())
}

#[test]
fn a_gpu_and_its_partitions_are_told_with_what_they_share_and_what_they_cost() {
    let index = index_of(2, |_| {});
    let node = told(&index, "c");
    assert_eq!((node.block, index.fault_of_pools("c")), (None, None));
    let sets: Vec<_> = node
        .counter_sets
        .iter()
        .map(|set| (set.pool, set.counters.clone()))
        .collect();
    // Counters in the order of their names: compute slices, then memory slices.
    let of_gpu = (0, vec![7, 1, 1, 1, 1, 1, 1, 1, 1]);
    assert_eq!(sets, [of_gpu.clone(), of_gpu]);
    assert_eq!(node.devices.len(), 2 * 10);
    let device = |name: &str| {
        let mut devices = node.devices.iter();
        devices
            .find(|device| device.name.as_str() == format!("gpu.muster.dev/c/{name}"))
            .expect(name)
    };
    for (name, milli, gibibytes, draws) in [
        (
            "gpu-0",
            1000,
            80,
            (
                0,
                (0..9).map(|at| (at, if at == 0 { 7 } else { 1 })).collect(),
            ),
        ),
        ("gpu-0-mig-1g10gb-0", 142, 10, (0, vec![(0, 1), (1, 1)])),
        ("gpu-1-mig-1g10gb-6", 142, 10, (1, vec![(0, 1), (7, 1)])),
        (
            "gpu-1-mig-3g40gb-4",
            500,
            40,
            (1, vec![(0, 3), (5, 1), (6, 1), (7, 1), (8, 1)]),
        ),
    ] {
        let device = device(name);
        assert_eq!(device.gpus, Amount(milli), "{name}");
        assert_eq!(device.vram, Amount(gibibytes << 30), "{name}");
        assert_eq!(first(&device.consumes), draws, "{name}");
        assert!(device.usable && device.healthy, "{name}");
        assert!(device.flavors.contains(&"h100".into()), "{name}");
    }
}

#[test]
fn what_partitions_have_in_common_is_kept_once_for_all_nodes() {
    let mut index = index_of(8, |_| {});
    let kinds = index.device_kinds.len();
    let other = [node("d", "s1", "l1"), node_devices("d")];
    for object in other.into_iter().chain(partitioned("d", 8)) {
        index.observe(is(object));
    }
    settle(&mut index);
    // The GPU and two profiles, beside the GPUs of the other nodes.
    assert_eq!(index.device_kinds.len(), kinds);
    let (one, two) = (told(&index, "c"), told(&index, "d"));
    assert!(Arc::ptr_eq(&one.counter_sets, &two.counter_sets));
    for (of_one, of_two) in one.devices.iter().zip(&two.devices) {
        assert!(Arc::ptr_eq(&of_one.consumes, &of_two.consumes));
    }
}

#[test]
fn amounts_of_counters_are_never_more_than_there_are() {
    // A part of a unit serves nobody, and whoever takes a part takes it all.
    let index = index_of(1, |slices| {
        let pointer = "/spec/sharedCounters/0/counters/compute-slices/value";
        slices[0] = with(slices[0].clone(), pointer, json!("7900m"));
        let pointer = "/spec/devices/1/consumesCounters/0/counters/compute-slices/value";
        slices[1] = with(slices[1].clone(), pointer, json!("100m"));
    });
    let node = told(&index, "c");
    assert_eq!(node.counter_sets[0].counters[0], 7);
    assert_eq!(first(&node.devices[1].consumes).1[0], (0, 1));
}

#[test]
fn pools_of_one_node_have_sets_of_their_own() {
    let mut other = partitioned("c", 1);
    for slice in &mut other {
        slice["spec"]["driver"] = json!("gpu.example.com");
        slice["metadata"]["name"] = json!(format!("other-{}", slice["metadata"]["name"]));
        slice["metadata"]["uid"] = json!(format!("other-{}", slice["metadata"]["uid"]));
    }
    let index = index_of(2, |slices| slices.extend(other));
    let node = told(&index, "c");
    let pools: Vec<u32> = node.counter_sets.iter().map(|set| set.pool).collect();
    // By driver: the other one has one GPU and comes first.
    assert_eq!(pools, [0, 1, 1]);
    let sets = |driver: &str| {
        let devices = node.devices.iter();
        let devices = devices.filter(|device| device.name.as_str().starts_with(driver));
        let mut sets: Vec<u32> = devices.map(|device| device.consumes[0].set).collect();
        sets.dedup();
        sets
    };
    assert_eq!(
        (sets("gpu.example.com"), sets("gpu.muster.dev")),
        (vec![0], vec![1, 2])
    );
}

#[test]
fn devices_count_once_the_slice_with_their_counters_is_there() {
    let mut slices = partitioned("c", 1).into_iter();
    let counters = slices.next().unwrap();
    let devices = slices.next().unwrap();
    let mut index = index_with([node("c", "s1", "l1"), node_devices("c"), devices]);
    assert_eq!(told(&index, "c").block, Some(NodeBlock::SlicesMissing));
    assert_eq!(
        index.fault_of_pools("c"),
        None,
        "it is not complete, which passes"
    );
    let name = counters["metadata"]["name"].as_str().unwrap().to_owned();
    index.observe(is(counters));
    index.refresh(Timestamp(0));
    assert_eq!(
        (told(&index, "c").block, told(&index, "c").devices.len()),
        (None, 10)
    );

    index.observe(gone(Kind::ResourceSlice, "", &name));
    index.refresh(Timestamp(1_000));
    let node = told(&index, "c");
    assert_eq!(
        (node.block, node.devices.len()),
        (Some(NodeBlock::SlicesMissing), 10)
    );
    assert_eq!(
        node.counter_sets.len(),
        1,
        "as last seen, with what they draw from"
    );
    index.refresh(Timestamp(1_000 + SLICES_GRACE_SECONDS));
    let node = told(&index, "c");
    assert_eq!((node.devices.len(), node.counter_sets.len()), (0, 0));
}

#[test]
fn what_a_device_draws_follows_its_slice() {
    let change = |slices: &mut Vec<Value>| {
        let pointer = "/spec/devices/1/consumesCounters/0/counters/compute-slices/value";
        slices[1] = with(slices[1].clone(), pointer, json!("2"));
    };
    let mut index = index_of(1, |_| {});
    let mut changed = partitioned("c", 1);
    change(&mut changed);
    let visits = index.visits().nodes;
    index.observe(is(with(
        changed[1].clone(),
        "/metadata/uid",
        json!("changed"),
    )));
    settle(&mut index);
    assert_eq!(index.visits().nodes, visits + 1, "its node alone");
    let afresh = index_of(1, change);
    assert_eq!(told(&index, "c").devices, told(&afresh, "c").devices);
    assert_eq!(told(&index, "c").devices[1].gpus, Amount(285));
}

#[test]
fn devices_that_go_with_some_others_only_are_there_and_never_planned() {
    for (field, value, is_planned) in [
        (
            "consumesCounters/0/compatibilityGroups",
            json!(["a"]),
            false,
        ),
        ("consumesCounters/0/compatibilityGroups", json!([]), true),
        ("allowMultipleAllocations", json!(true), false),
        ("bindingConditions", json!(["ready"]), false),
    ] {
        let index = index_of(1, |slices| {
            let pointer = format!("/spec/devices/1/{field}");
            slices[1] = with(slices[1].clone(), &pointer, value.clone());
        });
        let node = told(&index, "c");
        assert_eq!(node.devices.len(), 10, "{field}");
        let name = "gpu.muster.dev/c/gpu-0-mig-1g10gb-0";
        let device = node
            .devices
            .iter()
            .find(|device| device.name.as_str() == name);
        assert_eq!(device.unwrap().usable, is_planned, "{field} is {value}");
    }
}

#[test]
fn partitions_of_another_driver_cost_their_share_of_memory_where_counters_tell_it() {
    let flavor = json!({
        "apiVersion": "muster.dev/v1alpha1", "kind": "Flavor", "metadata": {"name": "other", "uid": "other"},
        "spec": {"devices": {"driver": "gpu.example.com"}},
    });
    let memory = |start: u32, end: u32| {
        let slices =
            (start..end).map(|slice| (format!("memory-slice-{slice}"), json!({"value": "1"})));
        Value::Object(slices.collect())
    };
    let plain = |value: &str| json!({"memory": {"value": value}});
    for (what, all, own, charged) in [
        ("a quarter", memory(0, 8), memory(2, 4), 250),
        ("all of it", memory(0, 8), memory(0, 8), 1000),
        ("more than one GPU has", memory(0, 16), memory(0, 1), 1000),
        (
            "bytes, which could be of anything",
            plain("80Gi"),
            plain("10Gi"),
            1000,
        ),
    ] {
        let slice = |name: &str, content: &str, of: Value| {
            let mut slice = json!({
                "kind": "ResourceSlice", "metadata": {"name": name, "uid": name},
                "spec": {"driver": "gpu.example.com", "nodeName": "a",
                    "pool": {"name": "a", "generation": 1, "resourceSliceCount": 2}},
            });
            slice["spec"][content] = of;
            slice
        };
        let index = index_with([
            flavor.clone(),
            slice(
                "s-0",
                "sharedCounters",
                json!([{"name": "gpu-0", "counters": all}]),
            ),
            slice(
                "s-1",
                "devices",
                json!([
                    {"name": "part", "consumesCounters": [{"counterSet": "gpu-0", "counters": own}]},
                ]),
            ),
        ]);
        let node = told(&index, "a");
        let part = node
            .devices
            .iter()
            .find(|device| device.name.as_str().ends_with("/part"));
        assert_eq!(part.expect(what).gpus, Amount(charged), "{what}");
    }
}

#[test]
fn partitions_that_are_there_for_good_cost_what_they_say() {
    let mut fixed = slice("c", 2);
    fixed["spec"]["devices"][1]["attributes"] = json!({
        "type": {"string": "mig"}, "computeSlices": {"int": 3}, "memorySlices": {"int": 4},
    });
    let index = index_with([node("c", "s1", "l1"), node_devices("c"), fixed]);
    let charged: Vec<i64> = told(&index, "c")
        .devices
        .iter()
        .map(|device| device.gpus.0)
        .collect();
    assert_eq!(charged, [1000, 500]);
}
