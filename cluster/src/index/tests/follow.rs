//! One change costs what it touches.

use muster_api::GangPhase;
use muster_engine::{NodeBlock, Timestamp};
use serde_json::{Value, json};

use crate::{
    index::{Changes, Index, SLICES_GRACE_SECONDS, Visits},
    object::Kind,
    testing::{
        admitted, claim, gang, gone, index_with, is, key, member, namespace, node, node_devices,
        only_gang, pod, slice, team, tier, time, topology, with,
    },
};

fn with_gangs(gangs: usize) -> Index {
    index_with((0..gangs).flat_map(|number| {
        let name = format!("g{number}");
        [0, 1].into_iter().flat_map(move |rank| {
            let pod = format!("{name}-{rank}");
            [member(&pod, 5, &name, "2"), claim(&pod, 1)]
        })
    }))
}

fn cost(index: &mut Index, change: Value) -> Visits {
    let before = index.visits();
    index.observe(is(change));
    index.refresh(Timestamp(0));
    let after = index.visits();
    Visits {
        gangs: after.gangs - before.gangs,
        pods: after.pods - before.pods,
        nodes: after.nodes - before.nodes,
        requests: after.requests - before.requests,
    }
}

#[test]
fn one_change_costs_the_same_with_100_and_with_5000_gangs() {
    let changes = || {
        [
            with(
                member("g7-0", 5, "g7", "2"),
                "/metadata/annotations/muster.dev~1seen",
                json!("yes"),
            ),
            with(member("g7-0", 5, "g7", "2"), "/spec/nodeName", json!("a")),
            with(
                claim("g9-1", 1),
                "/spec/devices/requests/0/exactly/count",
                json!(2),
            ),
            with(node("b", "s1", "l1"), "/spec/unschedulable", json!(true)),
            namespace("elsewhere", Some("research")),
            tier("unused", 7, false),
            with(team("nobody"), "/spec/queueing", json!("StrictFifo")),
        ]
    };
    let (mut few, mut many) = (with_gangs(100), with_gangs(5_000));
    for change in changes() {
        let (of_few, of_many) = (
            cost(&mut few, change.clone()),
            cost(&mut many, change.clone()),
        );
        assert_eq!(of_few, of_many, "{change}");
        assert!(
            of_many.gangs <= 2 && of_many.pods <= 4 && of_many.nodes <= 2,
            "{of_many:?} {change}"
        );
    }
}

#[test]
fn what_a_pod_asks_for_is_read_once_until_it_is_placed_and_no_more_afterwards() {
    let mut index = with_gangs(10);
    let placed = with(
        member("g7-0", 5, "g7", "2"),
        "/metadata/annotations/muster.dev~1placement",
        json!("{}"),
    );
    let bound = with(placed.clone(), "/spec/nodeName", json!("a"));
    let running = with(bound.clone(), "/status/phase", json!("Running"));
    let failed = with(bound.clone(), "/status/phase", json!("Failed"));
    for (change, reads) in [(placed, 1), (bound, 0), (running, 0), (failed, 0)] {
        let cost = cost(&mut index, change.clone());
        assert!((1..=2).contains(&cost.gangs), "{cost:?} {change}");
        assert_eq!(cost.requests, reads, "{change}");
    }
}

#[test]
fn of_a_pod_only_what_is_read_is_news() {
    let mut index = with_gangs(10);
    let changed = |index: &mut Index, change: Value| {
        index.observe(is(change));
        index.refresh(Timestamp(0))
    };
    let version = |index: &Index| {
        let name = crate::index::NamespacedName::new("ml", "g7-0");
        let version = index.pod(&name).unwrap().resource_version();
        version.map(str::to_owned)
    };
    let versioned =
        |number: u64, pod: Value| with(pod, "/metadata/resourceVersion", json!(number.to_string()));
    let member = || member("g7-0", 5, "g7", "2");
    changed(&mut index, versioned(1_000, member()));
    for (number, pointer, value) in [
        (
            1_001,
            "/metadata/finalizers",
            json!(["batch.kubernetes.io/job-tracking"]),
        ),
        (
            1_002,
            "/metadata/annotations/example.com~1seen",
            json!("yes"),
        ),
        (1_003, "/status/podIP", json!("10.0.0.1")),
    ] {
        let of = changed(
            &mut index,
            versioned(number, with(member(), pointer, value)),
        );
        assert!(of.is_empty(), "{pointer}: {of:?}");
        assert_eq!(version(&index), Some(number.to_string()), "{pointer}");
    }
    let of = changed(
        &mut index,
        versioned(1_004, with(member(), "/status/phase", json!("Running"))),
    );
    assert_eq!((of.pods.len(), of.gangs.len()), (1, 1));
}

#[test]
fn a_pod_with_a_hold_is_counted_by_it_and_its_binding_makes_no_node_again() {
    let mut index = with_gangs(10);
    let uid = |index: &Index| {
        let name = crate::index::NamespacedName::new("ml", "g7-0");
        crate::pod::uid(index.pod(&name).unwrap()).to_owned()
    };
    let uid = uid(&index);
    let bound = with(member("g7-0", 5, "g7", "2"), "/spec/nodeName", json!("a"));
    index.set_hold(&uid.as_str().into(), true);
    assert_eq!(cost(&mut index, bound).nodes, 0);
    // Without it, what the pod uses counts again.
    index.set_hold(&uid.as_str().into(), false);
    let before = index.visits().nodes;
    index.refresh(Timestamp(0));
    assert_eq!(index.visits().nodes - before, 1);
}

#[test]
fn who_has_reserved_a_claim_derives_nothing_anew() {
    let mut index = with_gangs(10);
    let reserved = with(
        claim("g7-0", 1),
        "/status",
        json!({"reservedFor": [{"resource": "pods", "name": "g7-0", "uid": "uid-g7-0"}]}),
    );
    assert_eq!(cost(&mut index, reserved), Visits::default());
    let going = with(
        claim("g7-0", 1),
        "/metadata/deletionTimestamp",
        json!("2026-11-22T00:00:00Z"),
    );
    assert_eq!(cost(&mut index, going).gangs, 1);
}

/// What a life of a gang tells often, and nothing is derived from.
#[test]
fn how_a_gang_fares_and_what_a_driver_acknowledges_derive_nothing_anew() {
    let nothing = Visits::default();
    let of = gang("g", 1, "Pending");
    let permitted = with(
        node_devices("a"),
        "/spec/permits",
        json!([{"podUid": "uid-p", "claimUids": [], "gang": "ml/g", "gangUid": "gang-g",
            "attempt": 1, "team": "research", "charge": {}, "withdrawn": false}]),
    );
    let acknowledged = with(permitted.clone(), "/status/observedGeneration", json!(2));
    let mut index = index_with([of.clone(), node_devices("a")]);
    for change in [
        with(of.clone(), "/status/conditions", json!([])),
        with(of.clone(), "/status/phase", json!("Assembling")),
        permitted,
        acknowledged.clone(),
    ] {
        assert_eq!(cost(&mut index, change.clone()), nothing, "{change}");
    }
    assert_eq!(
        index
            .gang(&key("g"))
            .unwrap()
            .status
            .as_ref()
            .unwrap()
            .phase,
        GangPhase::Assembling
    );
    let one_gang = Visits {
        gangs: 1,
        ..nothing
    };
    let one_node = Visits {
        nodes: 1,
        ..nothing
    };
    for (change, expected) in [
        (admitted(of.clone(), &[]), one_gang),
        (
            with(of.clone(), "/status/phase", json!("Finished")),
            one_gang,
        ),
        (with(of, "/spec/size", json!(2)), one_gang),
        (
            with(acknowledged.clone(), "/spec/lost", json!(true)),
            one_node,
        ),
        (
            with(acknowledged.clone(), "/spec/nodeUid", json!("other")),
            one_node,
        ),
        (with(acknowledged, "/status/uid", json!("other")), one_node),
    ] {
        assert_eq!(cost(&mut index, change.clone()), expected, "{change}");
    }
}

#[test]
fn a_refresh_names_the_gangs_nodes_teams_and_queues_that_changed() {
    let mut index = index_with([pod("solo", 5), claim("solo", 1)]);
    let mut changes = |object: Value| -> Changes {
        index.observe(is(object));
        index.refresh(Timestamp(0))
    };
    let of = changes(with(pod("solo", 5), "/spec/nodeName", json!("a")));
    assert_eq!(
        (of.gangs.len(), of.nodes, of.teams.len()),
        (1, ["a".to_owned()].into(), 0)
    );
    let of = changes(namespace("ml", Some("other")));
    assert_eq!(of.teams, ["other".to_owned(), "research".to_owned()].into());
    assert_eq!(of.gangs.len(), 1);
    let of = changes(with(team("research"), "/metadata/generation", json!(2)));
    assert_eq!(
        (of.teams.len(), of.gangs.len()),
        (1, 0),
        "no namespace is of it any more"
    );
    assert!(changes(with(topology(), "/metadata/labels", json!({"x": "y"}))).is_empty());
}

#[test]
fn a_slice_of_one_node_never_displaces_the_devices_of_another() {
    let mut index = index_with([]);
    let mut forged = slice("b", 2);
    forged["metadata"] = json!({"name": "forged", "uid": "forged"});
    forged["spec"]["nodeName"] = json!("a");
    forged["spec"]["pool"]["generation"] = json!(1_000_000_000);
    index.observe(is(forged));
    index.refresh(Timestamp(0));
    let b = index.engine_node("b").unwrap();
    assert_eq!((b.devices.len(), b.block), (2, None));
    let home = index.home_of(&crate::pools::PoolKey {
        driver: "gpu.muster.dev".to_owned(),
        name: "b".to_owned(),
    });
    assert_eq!(home.as_deref(), Some("b"), "the pool stays where it was");
}

#[test]
fn a_cordon_with_its_taint_and_a_drain_block_a_node_and_do_not_make_it_unsuitable() {
    for (spec, block) in [
        (
            json!({"unschedulable": true, "taints": [{"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}]}),
            NodeBlock::Cordoned,
        ),
        (
            json!({"taints": [{"key": "muster.dev/drain", "effect": "NoExecute"}]}),
            NodeBlock::Drained,
        ),
    ] {
        let mut index = index_with([pod("solo", 5), claim("solo", 1)]);
        let before = index.engine_node("a").unwrap().filters.clone();
        let blocked = with(node("a", "s1", "l1"), "/spec", spec);
        index.observe(is(blocked));
        index.refresh(Timestamp(0));
        let node = index.engine_node("a").unwrap();
        assert_eq!((node.block, &node.filters), (Some(block), &before));
        let filter = only_gang(&index).pods[0].request.as_ref().unwrap().filter;
        assert!(node.filters.contains(&filter));
    }
}

#[test]
fn a_device_is_no_gpu_if_no_flavor_counts_any_of_its_driver() {
    let mut card = slice("c", 1);
    card["spec"]["driver"] = json!("nic.example.com");
    let index = index_with([node("c", "s1", "l1"), card]);
    let gpus = |node: &str| index.engine_node(node).unwrap().devices[0].gpus.0;
    assert_eq!((gpus("a"), gpus("c")), (1000, 0));
}

/// Free of charge, it would be planned for whoever asks, and the driver would refuse it.
#[test]
fn a_gpu_that_no_flavor_counts_is_nobodys_and_not_free() {
    let elsewhere = |driver: &str| {
        let flavor = json!({
            "apiVersion": "muster.dev/v1alpha1", "kind": "Flavor", "metadata": {"name": driver, "uid": driver},
            "spec": {"nodeSelector": {"no-node": "has-it"}, "devices": {"driver": driver}},
        });
        flavor
    };
    let mut other = slice("c", 1);
    other["spec"]["driver"] = json!("gpu.example.com");
    for (flavors, gpus) in [
        (vec!["gpu.muster.dev"], (1000, 0)),
        (vec!["gpu.example.com"], (1000, 1000)),
        (vec![], (1000, 0)),
    ] {
        let mut index = index_with([node("c", "s1", "l1"), other.clone()]);
        index.observe(gone(Kind::Flavor, "", "h100"));
        for flavor in &flavors {
            index.observe(is(elsewhere(flavor)));
        }
        index.refresh(Timestamp(0));
        let device = |node: &str| index.engine_node(node).unwrap().devices[0].clone();
        let found = (device("a").gpus.0, device("c").gpus.0);
        assert_eq!(found, gpus, "{flavors:?}");
        assert!(device("a").flavors.is_empty() && device("c").flavors.is_empty());
    }
}

#[test]
fn a_pod_that_keeps_pods_like_itself_off_its_node_repels_and_is_repelled() {
    let own = json!({"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [
        {"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": {"muster.dev/gang": "g"}}},
    ]}});
    let apart = |name: &str| with(member(name, 5, "g", "2"), "/spec/affinity", own.clone());
    let index = index_with([apart("w-0"), claim("w-0", 1), apart("w-1"), claim("w-1", 1)]);
    let gang = only_gang(&index);
    assert_eq!(gang.wait, None);
    let resources: Vec<_> = gang
        .pods
        .iter()
        .map(|pod| &pod.request.as_ref().unwrap().resources)
        .collect();
    assert_eq!(resources[0].repels.len(), 1);
    assert_eq!(resources[0].repels, resources[1].matched_by);
}

#[test]
fn a_gang_keeps_its_age_when_a_pod_is_made_again() {
    let of_gang = with(
        gang("group-g-aaaaa", 1, "Pending"),
        "/metadata/creationTimestamp",
        json!(time(9)),
    );
    let labelled = with(of_gang, "/spec/group", json!("g"));
    let mut index = index_with([labelled, member("w-0", 5, "g", "1")]);
    let before = only_gang(&index).queued_since;
    let again = with(
        member("w-0", 500, "g", "1"),
        "/metadata/uid",
        json!("uid-again"),
    );
    index.observe(is(again));
    index.refresh(Timestamp(0));
    assert_eq!(only_gang(&index).queued_since, before);
    assert!(only_gang(&index).last_pod_created_at > before);
}

#[test]
fn a_pod_in_the_place_of_one_with_a_hold_is_counted_though_nobody_told_that_the_other_is_gone() {
    let bound = with(member("w-0", 5, "g", "1"), "/spec/nodeName", json!("a"));
    let again = with(bound.clone(), "/metadata/uid", json!("uid-again"));
    let mut index = index_with([member("w-0", 5, "g", "1")]);
    index.set_hold(&"uid-w-0".into(), true);
    index.observe(is(bound));
    index.refresh(Timestamp(0));
    assert_eq!(index.engine_node("a").unwrap().used.pods, 0, "the hold");
    index.observe(is(again.clone()));
    index.refresh(Timestamp(0));
    let afresh = index_with([again]);
    assert_eq!(afresh.engine_node("a").unwrap().used.pods, 1);
    assert_eq!(
        index.engine_node("a").unwrap().used,
        afresh.engine_node("a").unwrap().used
    );
}

#[test]
fn what_is_allocated_on_a_node_is_understood_again_when_the_node_and_its_slices_come_back() {
    let allocated = with(
        claim("solo", 1),
        "/status/allocation",
        json!({"devices": {"results": [
            {"request": "gpu", "driver": "gpu.muster.dev", "pool": "a", "device": "gpu-1"},
        ]}}),
    );
    let uid = "uid-solo".into();
    let node_goes = || gone(Kind::Node, "", "a");
    let slices_go = || gone(Kind::ResourceSlice, "", "00000-gpu.muster.dev-a-x");
    // As another Node and other slices: what was told gone does not come back.
    let node_is_back = || {
        is(with(
            node("a", "s1", "l1"),
            "/metadata/uid",
            json!("node-new"),
        ))
    };
    let slices_are_back = || is(with(slice("a", 2), "/metadata/uid", json!("slice-new")));
    // What is understood by whoever sees the pod and its claim only afterwards.
    let afresh = |has_node: bool, has_slices: bool| {
        let mut index = index_with([]);
        for (is_there, goes) in [(has_node, node_goes()), (has_slices, slices_go())] {
            if !is_there {
                index.observe(goes);
            }
        }
        for at in [0, SLICES_GRACE_SECONDS] {
            index.refresh(Timestamp(at));
        }
        index.observe(is(pod("solo", 5)));
        index.observe(is(allocated.clone()));
        index.refresh(Timestamp(SLICES_GRACE_SECONDS));
        index.request_of_pod(&uid).map(|pod| pod.claims.clone())
    };
    assert!(afresh(true, true).is_some() && afresh(true, false).is_some());
    assert_eq!(afresh(false, false), None, "no node has it");
    for grace in [0, SLICES_GRACE_SECONDS] {
        for node_is_first in [true, false] {
            let mut index = index_with([pod("solo", 5), allocated.clone()]);
            let mut at = 1_000;
            let back = if node_is_first {
                [
                    (node_is_back(), (true, false)),
                    (slices_are_back(), (true, true)),
                ]
            } else {
                [
                    (slices_are_back(), (false, true)),
                    (node_is_back(), (true, true)),
                ]
            };
            let gone = [(node_goes(), (false, true)), (slices_go(), (false, false))];
            for (change, (has_node, has_slices)) in gone.into_iter().chain(back) {
                index.observe(change);
                index.refresh(Timestamp(at));
                at += grace;
                index.refresh(Timestamp(at));
                let understood = index.request_of_pod(&uid).map(|pod| pod.claims.clone());
                let case = format!(
                    "after {grace} seconds, the node first: {node_is_first}; node: {has_node}, slices: {has_slices}"
                );
                assert_eq!(understood, afresh(has_node, has_slices), "{case}");
            }
        }
    }
}

#[test]
fn what_is_allocated_of_a_pool_that_nobody_publishes_is_understood_until_the_grace_time_is_over() {
    let named = |object: Value| with(object, "/metadata", json!({"name": "rack", "uid": "rack"}));
    let rack = with(named(slice("a", 2)), "/spec/pool/name", json!("rack-7"));
    let allocated = with(
        claim("solo", 1),
        "/status/allocation",
        json!({"devices": {"results": [
            {"request": "gpu", "driver": "gpu.muster.dev", "pool": "rack-7", "device": "gpu-1"},
        ]}}),
    );
    let uid = "uid-solo".into();
    let mut index = index_with([rack, pod("solo", 5), allocated.clone()]);
    assert!(index.request_of_pod(&uid).is_some());
    index.observe(gone(Kind::ResourceSlice, "", "rack"));
    for (after, is_understood) in [
        (0, true),
        (SLICES_GRACE_SECONDS - 1, true),
        (SLICES_GRACE_SECONDS, false),
    ] {
        index.refresh(Timestamp(1_000 + after));
        let request = index.request_of_pod(&uid);
        assert_eq!(request.is_some(), is_understood, "after {after} seconds");
    }
    let afresh = index_with([pod("solo", 5), allocated]);
    assert_eq!(afresh.request_of_pod(&uid), None);
}
