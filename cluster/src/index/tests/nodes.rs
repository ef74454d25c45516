//! Nodes and their devices, as the engine is told.

use muster_engine::{Amount, Node, NodeBlock, Timestamp, Update};
use serde_json::{Value, json};

use crate::{
    index::{Index, SLICES_GRACE_SECONDS},
    object::{Change, Kind},
    testing::{
        claim, flavor, gone, index_with, is, node, node_devices, pod, slice, topology, with,
    },
};

fn told<'a>(index: &'a Index, name: &str) -> &'a Node {
    index.engine_node(name).expect(name)
}

fn names(node: &Node) -> Vec<&str> {
    node.devices
        .iter()
        .map(|device| device.name.as_str())
        .collect()
}

fn node_updates(index: &mut Index, now: i64) -> Vec<String> {
    let updates = index.engine_updates(Timestamp(now)).into_iter();
    updates
        .filter_map(|update| match update {
            Update::Node(node) => Some(node.name.to_string()),
            Update::NodeGone(name) => Some(format!("-{name}")),
            _ => None,
        })
        .collect()
}

#[test]
fn a_node_is_told_with_its_devices_and_where_it_stands() {
    let index = index_with([]);
    let node = told(&index, "a");
    assert_eq!((node.uid.as_str(), node.block), ("node-a", None));
    assert_eq!(
        (
            node.allocatable.cpu_milli,
            node.allocatable.memory_bytes,
            node.allocatable.pods
        ),
        (128_000, 1 << 40, 110)
    );
    assert_eq!(node.fabric[&"fabric".into()], ["s1", "l1"]);
    assert_eq!(
        names(node),
        ["gpu.muster.dev/a/gpu-0", "gpu.muster.dev/a/gpu-1"]
    );
    let device = &node.devices[0];
    assert_eq!(
        (device.gpus, device.vram, device.usable),
        (Amount::ONE_GPU, Amount(80 << 30), true)
    );
    assert_eq!(device.nvlink_group.as_deref(), Some("0"));
    assert!(device.flavors.contains(&"h100".into()));
    let own = device
        .own_attributes
        .iter()
        .map(|(name, value)| (name, value));
    let mut attributes: Vec<_> = device
        .attributes
        .iter()
        .chain(own)
        .map(|(name, value)| format!("{name}={value}"))
        .collect();
    attributes.sort();
    assert_eq!(
        attributes,
        [
            "gpu.muster.dev/driverVersion=version 580.95.5",
            "gpu.muster.dev/nvlinkGroup=string 0",
            "gpu.muster.dev/productName=string NVIDIA H100 80GB HBM3",
            "gpu.muster.dev/uuid=string GPU-a-0",
            "resource.kubernetes.io/numaNode=int 0",
        ]
    );
}

#[test]
fn why_nothing_new_may_be_planned_on_a_node() {
    let spec =
        |field: &str, value: Value| with(node("a", "s1", "l1"), &format!("/spec/{field}"), value);
    let not_ready = with(
        node("a", "s1", "l1"),
        "/status/conditions/0/status",
        json!("Unknown"),
    );
    let both = with(not_ready.clone(), "/spec/unschedulable", json!(true));
    let lost = with(node_devices("a"), "/spec/lost", json!(true));
    for (what, object, block) in [
        ("not Ready", not_ready, NodeBlock::NotReady),
        (
            "cordoned",
            spec("unschedulable", json!(true)),
            NodeBlock::Cordoned,
        ),
        ("cordoned and not Ready", both, NodeBlock::Cordoned),
        (
            "drained by its taint",
            spec(
                "taints",
                json!([{"key": "muster.dev/drain", "value": "alice.fan", "effect": "NoSchedule"}]),
            ),
            NodeBlock::Drained,
        ),
        ("lost", lost, NodeBlock::Lost),
        (
            "incomplete slices",
            with(slice("a", 2), "/spec/pool/resourceSliceCount", json!(2)),
            NodeBlock::SlicesMissing,
        ),
        (
            "a device name that is used twice",
            with(slice("a", 2), "/spec/devices/1/name", json!("gpu-0")),
            NodeBlock::SlicesMissing,
        ),
        (
            "a driver that has not answered",
            with(node_devices("a"), "/status", json!(null)),
            NodeBlock::DriverSilent,
        ),
        (
            "an answer for an older object",
            with(node_devices("a"), "/metadata/uid", json!("nd-new")),
            NodeBlock::DriverSilent,
        ),
        (
            "an object of an older node",
            with(node("a", "s1", "l1"), "/metadata/uid", json!("node-new")),
            NodeBlock::DriverSilent,
        ),
        (
            "an allocatable that cannot be read",
            with(node("a", "s1", "l1"), "/status/allocatable/cpu", json!("x")),
            NodeBlock::NotReady,
        ),
    ] {
        assert_eq!(
            told(&index_with([object]), "a").block,
            Some(block),
            "{what}"
        );
    }
    let mut index = index_with([node("cpu-only", "s1", "l1")]);
    assert_eq!(
        told(&index, "cpu-only").block,
        None,
        "a node without our devices needs no driver"
    );
    index.observe(gone(Kind::NodeDevices, "", "a"));
    index.refresh(Timestamp(0));
    assert_eq!(told(&index, "a").block, Some(NodeBlock::DriverSilent));
}

#[test]
fn a_node_that_lacks_a_label_is_not_part_of_the_topology() {
    let mut bare = node("a", "s1", "");
    bare["metadata"]["labels"]["example.com/leaf"] = json!("");
    assert!(told(&index_with([bare]), "a").fabric.is_empty());
    let with_domain = with(
        topology(),
        "/spec/accelerator",
        json!({"nodeLabel": "kubernetes.io/hostname"}),
    );
    let index = index_with([with_domain]);
    assert_eq!(told(&index, "a").accelerator[&"fabric".into()], "a");
}

#[test]
fn devices_stand_in_the_order_in_which_the_allocator_tries_them() {
    let part = |name: &str, driver: &str, pool: &str, devices: Value| {
        let slice = with(slice("a", 0), "/metadata/name", json!(name));
        let slice = with(slice, "/spec/driver", json!(driver));
        let pool = json!({"name": pool, "generation": 2, "resourceSliceCount": 1});
        with(with(slice, "/spec/pool", pool), "/spec/devices", devices)
    };
    let two = |slice: Value| with(slice, "/spec/pool/resourceSliceCount", json!(2));
    let device = |name: &str| json!({"name": name});
    let late = json!({"name": "late", "bindingConditions": ["ready"], "bindingFailureConditions": ["failed"]});
    let mut index = index_with([
        two(part(
            "00001",
            "b.example.com",
            "a",
            json!([device("z"), device("y")]),
        )),
        two(part("00000", "b.example.com", "a", json!([device("x")]))),
        part("00002", "a.example.com", "p2", json!([device("w")])),
        part("00003", "a.example.com", "p1", json!([device("v")])),
        part("00004", "a.example.com", "p0", json!([late])),
        part("old", "b.example.com", "a", json!([device("superseded")])),
    ]);
    let old = with(
        part("old", "b.example.com", "a", json!([device("superseded")])),
        "/spec/pool/generation",
        json!(1),
    );
    index.observe(is(old));
    index.refresh(Timestamp(0));
    assert_eq!(
        names(told(&index, "a")),
        [
            "a.example.com/p1/v",
            "a.example.com/p2/w",
            "b.example.com/a/x",
            "b.example.com/a/z",
            "b.example.com/a/y",
            "gpu.muster.dev/a/gpu-0",
            "gpu.muster.dev/a/gpu-1",
            "a.example.com/p0/late",
        ]
    );
}

#[test]
fn devices_that_may_not_be_given_out_are_not_usable() {
    let device =
        |field: &str, value: Value| with(slice("a", 1), &format!("/spec/devices/0/{field}"), value);
    for (what, slice, usable, healthy) in [
        ("no taint", slice("a", 1), true, true),
        (
            "NoSchedule",
            device("taints", json!([{"key": "k", "effect": "NoSchedule"}])),
            false,
            false,
        ),
        (
            "held by what is being released",
            device(
                "taints",
                json!([{"key": "gpu.muster.dev/held", "effect": "NoSchedule"}]),
            ),
            false,
            true,
        ),
        (
            "used by what bypassed quota",
            device(
                "taints",
                json!([{"key": "gpu.muster.dev/bypassed", "effect": "NoSchedule"}]),
            ),
            false,
            false,
        ),
        (
            "NoExecute",
            device("taints", json!([{"key": "k", "effect": "NoExecute"}])),
            false,
            false,
        ),
        (
            "None",
            device("taints", json!([{"key": "k", "effect": "None"}])),
            true,
            true,
        ),
        (
            "shared",
            device("allowMultipleAllocations", json!(true)),
            false,
            false,
        ),
        (
            "binding conditions",
            device("bindingConditions", json!(["c"])),
            false,
            false,
        ),
    ] {
        let index = index_with([slice]);
        let node = told(&index, "a");
        let is = (node.devices[0].usable, node.devices[0].healthy);
        assert_eq!(is, (usable, healthy), "{what}");
    }
}

#[test]
fn a_device_that_is_never_planned_is_there_for_no_request() {
    let with_field = |field: &str, value: Value| {
        let slice = with(slice("a", 1), &format!("/spec/devices/0/{field}"), value);
        let index = index_with([slice, pod("p", 5), claim("p", 1)]);
        let device = &told(&index, "a").devices[0];
        !device.selectors.is_empty()
    };
    let taint = json!([{"key": "k", "effect": "NoSchedule"}]);
    assert!(with_field("taints", taint), "it may be planned later");
    for (field, value) in [
        ("allowMultipleAllocations", json!(true)),
        ("bindingConditions", json!(["c"])),
    ] {
        assert!(!with_field(field, value), "{field}");
    }
}

#[test]
fn a_flavor_counts_the_devices_that_its_node_selector_driver_and_selector_say() {
    let devices = |devices: Value| with(flavor("other"), "/spec/devices", devices);
    let by_leaf = with(
        flavor("other"),
        "/spec/nodeSelector",
        json!({"example.com/leaf": "l2"}),
    );
    for (what, flavor, counted) in [
        ("all of our driver", flavor("other"), true),
        ("nodes of another leaf", by_leaf, false),
        (
            "another driver",
            devices(json!({"driver": "gpu.example.com"})),
            false,
        ),
        (
            "a selector that matches",
            devices(
                json!({"driver": "gpu.muster.dev", "selector": "device.attributes['gpu.muster.dev'].productName.contains('H100')"}),
            ),
            true,
        ),
        (
            "a selector that does not",
            devices(
                json!({"driver": "gpu.muster.dev", "selector": "device.attributes['gpu.muster.dev'].productName.contains('A100')"}),
            ),
            false,
        ),
        (
            "a selector that fails",
            devices(json!({"driver": "gpu.muster.dev", "selector": "device.attributes['x'].y"})),
            false,
        ),
    ] {
        let index = index_with([flavor]);
        assert_eq!(
            told(&index, "a").devices[0]
                .flavors
                .contains(&"other".into()),
            counted,
            "{what}"
        );
        assert_eq!(index.faults.len(), 0, "{what}");
    }
    let index = index_with([devices(
        json!({"driver": "gpu.muster.dev", "selector": "device."}),
    )]);
    assert!(
        !told(&index, "a").devices[0]
            .flavors
            .contains(&"other".into())
    );
    assert!(index.faults["Flavor/other"].starts_with("spec.devices.selector: "));
}

#[test]
fn slices_that_vanish_block_the_node_and_their_devices_count_for_120_seconds() {
    let mut index = index_with([]);
    let slice_name = "00000-gpu.muster.dev-a-x";
    index.observe(gone(Kind::ResourceSlice, "", slice_name));
    index.refresh(Timestamp(1000));
    assert_eq!(
        (told(&index, "a").block, told(&index, "a").devices.len()),
        (Some(NodeBlock::SlicesMissing), 2)
    );
    assert!(index.is_served("a"));

    index.refresh(Timestamp(1000 + SLICES_GRACE_SECONDS - 1));
    assert_eq!(told(&index, "a").devices.len(), 2);
    index.refresh(Timestamp(1000 + SLICES_GRACE_SECONDS));
    assert_eq!(
        (told(&index, "a").block, told(&index, "a").devices.len()),
        (None, 0),
        "a node without devices"
    );
    index.observe(is(with(slice("a", 2), "/metadata/uid", json!("slice-new"))));
    index.refresh(Timestamp(1121));
    assert_eq!(
        (told(&index, "a").block, told(&index, "a").devices.len()),
        (None, 2)
    );
}

#[test]
fn a_pool_that_is_being_replaced_blocks_until_its_new_generation_is_whole() {
    let mut index = index_with([]);
    let next = |name: &str, uid: &str| {
        let slice = with(
            with(slice("a", 1), "/metadata/name", json!(name)),
            "/metadata/uid",
            json!(uid),
        );
        with(
            slice,
            "/spec/pool",
            json!({"name": "a", "generation": 2, "resourceSliceCount": 2}),
        )
    };
    index.observe(is(next("00001-gpu", "s-1")));
    index.refresh(Timestamp(0));
    assert_eq!(
        (told(&index, "a").block, told(&index, "a").devices.len()),
        (Some(NodeBlock::SlicesMissing), 2)
    );

    index.refresh(Timestamp(SLICES_GRACE_SECONDS));
    assert_eq!(
        (told(&index, "a").block, told(&index, "a").devices.len()),
        (Some(NodeBlock::SlicesMissing), 0)
    );

    index.observe(is(with(
        next("00002-gpu", "s-2"),
        "/spec/devices/0/name",
        json!("gpu-1"),
    )));
    index.refresh(Timestamp(SLICES_GRACE_SECONDS + 1));
    assert_eq!(
        (told(&index, "a").block, told(&index, "a").devices.len()),
        (None, 2)
    );
}

#[test]
fn what_bound_pods_without_a_hold_use_is_told() {
    let bound = |name: &str| with(pod(name, 5), "/spec/nodeName", json!("a"));
    let ended = with(bound("ended"), "/status/phase", json!("Succeeded"));
    let plain = with(
        with(bound("plain"), "/spec/resourceClaims", json!([])),
        "/metadata/namespace",
        json!("kube-system"),
    );
    let mut index = index_with([bound("held"), ended, plain]);
    let used = |index: &Index| (told(index, "a").used.cpu_milli, told(index, "a").used.pods);
    assert_eq!(used(&index), (8000, 2));

    index.set_hold(&"uid-held".into(), true);
    index.refresh(Timestamp(0));
    assert_eq!(used(&index), (4000, 1));

    index.set_hold(&"uid-held".into(), false);
    index.refresh(Timestamp(0));
    assert_eq!(used(&index), (8000, 2));

    index.observe(gone(Kind::Pod, "kube-system", "plain"));
    index.refresh(Timestamp(0));
    assert_eq!(used(&index), (4000, 1));

    // The object stays, and uses nothing any more.
    let ends = with(pod("held", 6), "/spec/nodeName", json!("a"));
    index.observe(is(with(ends, "/status/phase", json!("Succeeded"))));
    index.refresh(Timestamp(0));
    assert_eq!(used(&index), (0, 0));
}

#[test]
fn a_hold_that_is_told_before_the_pod_is_bound_counts_all_the_same() {
    let mut index = index_with([pod("held", 5)]);
    index.set_hold(&"uid-held".into(), true);
    index.observe(is(with(pod("held", 5), "/spec/nodeName", json!("a"))));
    index.refresh(Timestamp(0));
    assert_eq!(told(&index, "a").used.pods, 0);
}

#[test]
fn only_what_differs_is_told_again() {
    let mut index = index_with([claim("solo", 1)]);
    assert_eq!(node_updates(&mut index, 0), ["a", "b"]);
    assert_eq!(node_updates(&mut index, 0), [""; 0]);

    let heartbeat = with(
        node("a", "s1", "l1"),
        "/status/conditions/0/lastHeartbeatTime",
        json!("2026-11-21T00:00:10Z"),
    );
    index.observe(is(heartbeat));
    assert_eq!(node_updates(&mut index, 0), [""; 0]);

    let allocated = with(
        claim("solo", 1),
        "/status/allocation",
        json!({"devices": {"results": [
            {"request": "gpu", "driver": "gpu.muster.dev", "pool": "b", "device": "gpu-1"},
        ]}}),
    );
    index.observe(is(allocated));
    assert_eq!(node_updates(&mut index, 0), ["b"]);

    index.observe(gone(Kind::Node, "", "a"));
    assert_eq!(node_updates(&mut index, 0), ["-a"]);
}

#[test]
fn a_list_replaces_what_was_held() {
    let mut index = index_with([]);
    index.engine_updates(Timestamp(0));
    index.observe(Change::Listed(
        Kind::Node,
        vec![crate::testing::object(node("b", "s1", "l1"))],
    ));
    assert_eq!(node_updates(&mut index, 0), ["-a"]);
    assert!(index.node("a").is_none());
    assert!(!index.unsynced().contains(&Kind::Node));
    assert!(!index.is_synced());
}

#[test]
fn limits_are_told_before_nodes_and_faults_of_them_are_named() {
    let mut team = crate::testing::team("odd");
    team["spec"]["quota"][0]["resources"][0]["nominal"] = json!("many");
    let mut index = index_with([team]);
    let updates = index.engine_updates(Timestamp(0));
    let first_node = updates
        .iter()
        .position(|update| matches!(update, Update::Node(_)))
        .unwrap();
    assert!(
        updates[first_node..]
            .iter()
            .all(|update| matches!(update, Update::Node(_)))
    );
    let odd = updates.iter().find_map(|update| match update {
        Update::Team(team) if team.name.as_str() == "odd" => Some(team.clone()),
        _ => None,
    });
    assert!(
        odd.unwrap().quota[0].1.is_empty(),
        "a limit that is not understood grants nothing"
    );
    assert!(
        index.faults["Team/odd"]
            .starts_with("spec.quota[0].resources[0].nominal: \"many\" is not a quantity")
    );

    index.observe(gone(Kind::Team, "", "odd"));
    assert!(
        matches!(&index.engine_updates(Timestamp(0))[..], [Update::TeamGone(name)] if name.as_str() == "odd")
    );
    assert!(index.faults.is_empty());
}

#[test]
fn a_status_that_we_write_ourselves_touches_nothing() {
    let mut index = index_with([pod("solo", 5), claim("solo", 1)]);
    index.engine_updates(Timestamp(0));
    index.refresh(Timestamp(0));
    index.observe(is(with(
        crate::testing::team("research"),
        "/status",
        json!({"admittedGangs": 1}),
    )));
    index.observe(is(with(flavor("h100"), "/status", json!({"gpus": 4}))));
    assert!(index.engine_updates(Timestamp(0)).is_empty());
    assert!(index.refresh(Timestamp(0)).is_empty());
}
