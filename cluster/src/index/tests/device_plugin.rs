//! GPUs of device plugins: what pods ask for, what nodes have, and what Flavors count.

use muster_api::Reason;
use muster_engine::{Timestamp, Update};
use serde_json::{Value, json};

use crate::{
    index::Index,
    object::Kind,
    testing::{
        claim, device_class, flavor, gone, index_with, is, node, only_gang, pod, settle, with,
    },
};

const GPU: &str = "nvidia.com/gpu";

/// A Flavor that counts the resource on all nodes.
fn counting(name: &str, resource: &str) -> Value {
    with(flavor(name), "/spec", json!({"extendedResource": resource}))
}

/// A node whose device plugin offers so many GPUs.
fn offering(name: &str, gpus: &str) -> Value {
    with(
        node(name, "s1", "l1"),
        "/status/allocatable/nvidia.com~1gpu",
        json!(gpus),
    )
}

/// A pod as most users write it: limits, and no claim.
fn asking(name: &str, limits: &Value) -> Value {
    let pod = with(pod(name, 5), "/spec/resourceClaims", json!([]));
    with(pod, "/spec/containers/0/resources/limits", limits.clone())
}

/// Whether each device of a node is free, by name.
fn devices(index: &Index, node: &str) -> Vec<(String, bool)> {
    let node = index.engine_node(node).unwrap();
    let devices = node.devices.iter();
    let devices = devices.map(|device| (device.name.to_string(), device.allocated_to.is_none()));
    devices.collect()
}

/// Name and count of what a pod asks for by claims.
fn asked(index: &Index, uid: &str) -> Vec<(String, u32)> {
    let request = index.request_of_pod(&uid.into());
    let claims = request.into_iter().flat_map(|pod| &pod.claims);
    let claims = claims.map(|claim| (claim.uid.to_string(), claim.requests[0].choices[0].count));
    claims.collect()
}

#[test]
fn a_pod_that_only_writes_limits_asks_for_devices_that_the_node_offers() {
    let index = index_with([
        counting("plugin", GPU),
        offering("p", "3"),
        asking("solo", &json!({GPU: "2"})),
    ]);
    let formed = only_gang(&index);
    assert_eq!(formed.wait, None);
    assert!(!formed.excepted);
    let request = index.request_of_pod(&"uid-solo".into()).unwrap();
    assert_eq!(
        asked(&index, "uid-solo"),
        [("uid-solo/nvidia.com/gpu".to_owned(), 2)]
    );
    // As kube-scheduler counts it, too.
    assert_eq!(request.resources.others[&GPU.into()], 2);
    let node = index.engine_node("p").unwrap();
    assert_eq!(node.devices.len(), 3);
    for device in &node.devices {
        assert!(
            device
                .selectors
                .contains(&request.claims[0].requests[0].choices[0].selector)
        );
        assert!(device.flavors.contains(&"plugin".into()));
        // The Flavor of our driver's devices does not count it.
        assert!(!device.flavors.contains(&"h100".into()));
    }
    assert_eq!(node.block, None, "no driver of ours is waited for");
    let count = index.flavor_count("plugin");
    assert_eq!(
        (count.nodes, count.devices, count.healthy_devices),
        (1, 3, 3)
    );
}

#[test]
fn containers_init_containers_and_sidecars_ask_together_for_what_kubernetes_gives_the_pod() {
    let with_gpus = |gpus: &str| json!({"name": "c", "resources": {"limits": {GPU: gpus}}});
    let sidecar = |gpus: &str| {
        let mut container = with_gpus(gpus);
        container["restartPolicy"] = json!("Always");
        container
    };
    for (containers, init, expected) in [
        (json!([with_gpus("1"), with_gpus("2")]), json!([]), 3),
        (json!([with_gpus("1")]), json!([with_gpus("4")]), 4),
        (json!([with_gpus("1")]), json!([sidecar("2")]), 3),
    ] {
        let pod = with(asking("solo", &json!({})), "/spec/containers", containers);
        let pod = with(pod, "/spec/initContainers", init);
        let index = index_with([counting("plugin", GPU), pod]);
        assert_eq!(
            asked(&index, "uid-solo"),
            [(format!("uid-solo/{GPU}"), expected)]
        );
    }
}

#[test]
fn what_pods_without_a_hold_use_is_taken_and_what_ended_is_not() {
    let bound = |name: &str, phase: &str| {
        let pod = with(
            asking(name, &json!({GPU: "1"})),
            "/spec/nodeName",
            json!("p"),
        );
        let pod = with(pod, "/spec/schedulingGates", json!([]));
        with(pod, "/status/phase", json!(phase))
    };
    let foreign = with(
        bound("agent", "Running"),
        "/metadata/namespace",
        json!("kube-system"),
    );
    let mut index = index_with([
        counting("plugin", GPU),
        offering("p", "4"),
        foreign,
        bound("ours", "Running"),
        bound("done", "Succeeded"),
    ]);
    let free = |index: &Index| devices(index, "p").iter().filter(|(_, free)| *free).count();
    assert_eq!(free(&index), 2);
    // What a hold counts is not counted again.
    index.set_hold(&"uid-ours".into(), true);
    settle(&mut index);
    assert_eq!(free(&index), 3);
    index.observe(gone(Kind::Pod, "kube-system", "agent"));
    settle(&mut index);
    assert_eq!(free(&index), 4);
}

#[test]
fn a_plugin_that_drops_to_zero_takes_its_devices_along_and_no_other_node_is_told() {
    let mut index = index_with([
        counting("plugin", GPU),
        offering("p", "4"),
        offering("q", "4"),
    ]);
    index.engine_updates(Timestamp(0));
    index.observe(is(with(
        offering("p", "0"),
        "/metadata/resourceVersion",
        json!("2"),
    )));
    let updates = index.engine_updates(Timestamp(0));
    assert!(
        matches!(updates.as_slice(), [Update::Node(node)] if node.name.as_str() == "p" && node.devices.is_empty()),
        "{updates:?}"
    );
    assert_eq!(index.flavor_count("plugin").devices, 4);
}

#[test]
fn what_runs_keeps_its_devices_while_the_plugin_offers_fewer() {
    let pod = |name: &str, phase: &str, version: &str| {
        let pod = with(
            asking(name, &json!({GPU: "1"})),
            "/spec/nodeName",
            json!("p"),
        );
        let pod = with(pod, "/spec/schedulingGates", json!([]));
        let pod = with(pod, "/metadata/resourceVersion", json!(version));
        with(pod, "/status/phase", json!(phase))
    };
    let offers = |gpus: &str, version: &str| {
        with(
            offering("p", gpus),
            "/metadata/resourceVersion",
            json!(version),
        )
    };
    let mut index = index_with([
        counting("plugin", GPU),
        offers("4", "1"),
        pod("held", "Running", "1"),
        pod("new", "Running", "1"),
    ]);
    index.set_hold(&"uid-held".into(), true);
    settle(&mut index);
    let count = |index: &Index| {
        let devices = devices(index, "p");
        let free = devices.iter().filter(|(_, free)| *free).count();
        (devices.len(), free)
    };
    assert_eq!(count(&index), (4, 3));
    // It restarts: what has a hold finds its device, and what has none has one of its own.
    index.observe(is(offers("0", "2")));
    settle(&mut index);
    assert_eq!(count(&index), (2, 1));
    assert_eq!(index.flavor_count("plugin").devices, 2);
    index.observe(is(pod("held", "Succeeded", "2")));
    settle(&mut index);
    assert_eq!(count(&index), (1, 0));
    index.observe(is(offers("4", "3")));
    settle(&mut index);
    assert_eq!(count(&index), (4, 3));
}

#[test]
fn a_flavor_counts_the_resource_on_its_nodes_only() {
    let labelled = with(offering("p", "2"), "/metadata/labels/pool", json!("plugin"));
    let on_pool = with(
        counting("plugin", GPU),
        "/spec/nodeSelector",
        json!({"pool": "plugin"}),
    );
    let index = index_with([on_pool, labelled, offering("q", "2")]);
    let flavors = |node: &str| {
        let node = index.engine_node(node).unwrap();
        let devices = node.devices.iter().map(|device| device.flavors.len());
        devices.collect::<Vec<_>>()
    };
    assert_eq!((flavors("p"), flavors("q")), (vec![1, 1], vec![0, 0]));
}

#[test]
fn pods_wait_for_a_flavor_that_counts_their_resource_and_are_read_again_when_it_comes_and_goes() {
    let mut index = index_with([
        offering("p", "2"),
        asking("solo", &json!({GPU: "1"})),
        with(
            asking("other", &json!({})),
            "/metadata/annotations",
            json!({"muster.dev/gang-size": "1"}),
        ),
    ]);
    let reason = |index: &Index| {
        let gang = index
            .formed_gangs()
            .find(|gang| gang.pods.iter().any(|pod| pod.identity.name == "solo"));
        gang.unwrap()
            .wait
            .clone()
            .map(|wait| (wait.reason, wait.details))
    };
    let (why, details) = reason(&index).unwrap();
    assert_eq!(why, Reason::NoQuotaForResource);
    assert_eq!(
        details,
        "pod solo: resources.limits[nvidia.com/gpu]: no Flavor counts it; an administrator makes one with spec.extendedResource \
         nvidia.com/gpu and gives the Team quota of it, or the pod asks by spec.resourceClaims"
    );
    let requests = index.visits().requests;
    index.observe(is(counting("plugin", GPU)));
    settle(&mut index);
    assert_eq!(reason(&index), None);
    assert_eq!(
        index.visits().requests - requests,
        1,
        "the other pod is not read again"
    );
    let selector =
        index.request_of_pod(&"uid-solo".into()).unwrap().claims[0].requests[0].choices[0].selector;
    index.observe(gone(Kind::Flavor, "", "plugin"));
    settle(&mut index);
    assert_eq!(reason(&index).unwrap().0, Reason::NoQuotaForResource);
    assert!(devices(&index, "p").is_empty());
    let mut again = counting("plugin", GPU);
    again["metadata"]["uid"] = json!("flavor-again");
    index.observe(is(again));
    settle(&mut index);
    let request = index.request_of_pod(&"uid-solo".into()).unwrap();
    assert_eq!(
        request.claims[0].requests[0].choices[0].selector, selector,
        "what is held by it still matches"
    );
}

#[test]
fn a_flavor_of_a_resource_that_is_not_managed_counts_nothing_and_says_why() {
    let index = index_with([counting("plugin", "amd.com/gpu"), offering("p", "2")]);
    assert_eq!(index.flavor_count("plugin").devices, 0);
    let fault = &index.faults["Flavor/plugin"];
    assert!(
        fault.starts_with("spec.extendedResource: \"amd.com/gpu\" is not among"),
        "{fault}"
    );
    assert!(index.references_of_flavor("plugin").faults[0].contains("managedResources"));
}

#[test]
fn a_pod_that_asks_for_both_waits_and_one_that_runs_is_counted_as_it_runs() {
    let both = with(
        pod("solo", 5),
        "/spec/containers/0/resources/limits",
        json!({GPU: "1"}),
    );
    let index = index_with([counting("plugin", GPU), claim("solo", 1), both.clone()]);
    let wait = only_gang(&index).wait.clone().unwrap();
    assert_eq!(wait.reason, Reason::RequestNotUnderstood);
    assert!(
        wait.details.contains("is asked for beside ResourceClaims"),
        "{}",
        wait.details
    );
    let runs = with(both, "/spec/nodeName", json!("a"));
    let runs = with(runs, "/spec/schedulingGates", json!([]));
    let index = index_with([counting("plugin", GPU), claim("solo", 1), runs]);
    assert_eq!(asked(&index, "uid-solo").len(), 2);
}

#[test]
fn the_claims_by_name_of_a_pod_are_known_whatever_flavors_there_are() {
    let index = index_with([asking("solo", &json!({GPU: "1"}))]);
    let pod = index.pod_by_uid("uid-solo").unwrap();
    let uids = index.claim_uids_of_pod(pod).unwrap();
    assert_eq!(uids, ["uid-solo/nvidia.com/gpu".into()]);
}

/// The resource that is called after the class of whole GPUs.
const OWN: &str = "deviceclass.resource.kubernetes.io/gpu.muster.dev";

#[test]
fn whole_gpus_may_be_asked_for_by_the_names_that_their_class_stands_behind() {
    for resource in [OWN, GPU] {
        let named = with(device_class(), "/spec/extendedResourceName", json!(GPU));
        let mut index = index_with([named, asking("solo", &json!({resource: "2"}))]);
        assert_eq!(only_gang(&index).wait, None, "{resource}");
        let name = format!("uid-solo/{OWN}");
        assert_eq!(asked(&index, "uid-solo"), [(name.clone(), 2)]);
        let request = index.request_of_pod(&"uid-solo".into()).unwrap();
        assert!(request.resources.others.is_empty(), "no node lists it");
        let selector = request.claims[0].requests[0].choices[0].selector;
        let node = index.engine_node("a").unwrap();
        assert!(
            node.devices
                .iter()
                .all(|it| it.selectors.contains(&selector))
        );

        // kube-scheduler makes the claim, and its devices are those of the name.
        let made = with(
            claim("solo", 2),
            "/metadata/annotations",
            json!({
                "resource.kubernetes.io/extended-resource-claim": "true",
            }),
        );
        let results: Vec<Value> = (0..2)
            .map(|gpu| {
                json!({"request": "gpu", "driver": "gpu.muster.dev", "pool": "a", "device": format!("gpu-{gpu}")})
            })
            .collect();
        let made = with(made, "/status/allocation/devices/results", json!(results));
        index.observe(is(made));
        settle(&mut index);
        let node = index.engine_node("a").unwrap();
        for device in &node.devices {
            let holder = device.allocated_to.as_ref().map(ToString::to_string);
            assert_eq!(holder.as_ref(), Some(&name));
        }
    }
}

#[test]
fn no_other_class_may_be_asked_for_so_and_nobody_names_what_kube_scheduler_made() {
    let mig = "deviceclass.resource.kubernetes.io/mig.muster.dev";
    let index = index_with([asking("solo", &json!({mig: "1"}))]);
    let wait = only_gang(&index).wait.clone().unwrap();
    assert_eq!(wait.reason, Reason::RequestNotUnderstood);
    assert!(
        wait.details.contains("gpu.muster.dev only"),
        "{}",
        wait.details
    );

    let made = with(
        claim("other", 1),
        "/metadata/annotations",
        json!({
            "resource.kubernetes.io/extended-resource-claim": "true",
        }),
    );
    let naming = with(
        pod("solo", 5),
        "/spec/resourceClaims",
        json!([{"name": "gpus", "resourceClaimName": "other-gpus"}]),
    );
    let wait = only_gang(&index_with([made, naming])).wait.clone().unwrap();
    assert_eq!(wait.reason, Reason::RequestNotUnderstood);
    assert!(
        wait.details.contains("kube-scheduler's"),
        "{}",
        wait.details
    );
}
