//! GPUs of our driver that pods ask for by the name of their DeviceClass: kube-scheduler makes the claim, and our driver proves its release.

use super::*;

const CLASS: &str = "deviceclass.resource.kubernetes.io/gpu.muster.dev";

/// A gated pod that asks for one GPU.
fn pod(label: &str, rank: usize, size: usize) -> Pod {
    pod_by_limits(CLASS, label, rank, size)
}

/// What stands for the claim of a pod in charges and permits.
fn by_name(bench: &Bench, pod: &str) -> String {
    let uid = bench.server.pod(pod).unwrap().metadata.uid.unwrap();
    format!("{uid}/{CLASS}")
}

/// The claim that kube-scheduler makes for a pod, with a GPU of a node.
fn made(bench: &Bench, pod: &str, node: &str) -> Object {
    let uid = bench.server.pod(pod).unwrap().metadata.uid;
    Object::ResourceClaim(parse(json!({
        "metadata": {
            "name": format!("{pod}-x"), "namespace": "ml", "uid": format!("claim-for-{pod}"),
            "annotations": {keys::EXTENDED_RESOURCE_CLAIM: "true"},
            "ownerReferences": [{"apiVersion": "v1", "kind": "Pod", "name": pod, "uid": uid, "controller": true}],
        },
        "spec": {"devices": {"requests": [
            {"name": "container-0-request-0", "exactly": {"deviceClassName": keys::DEVICE_CLASS_GPU, "allocationMode": "ExactCount", "count": 1}},
        ]}},
        "status": {"allocation": {"devices": {"results": [
            {"request": "container-0-request-0", "driver": keys::DRIVER, "pool": node, "device": "gpu-0"},
        ]}}},
    })))
}

/// A gang of one pod, `train-0`, that was let go, and its node.
fn let_go() -> (Bench, String) {
    let mut bench = Bench::new();
    bench.server.put(Object::Pod(Arc::new(pod("train", 0, 1))));
    bench.run();
    let mut nodes = ["n0", "n1"].into_iter();
    let node = nodes.find(|node| bench.has_permits(node)).unwrap();
    bench.runs_on("train-0", node);
    bench.run();
    (bench, node.to_owned())
}

#[test]
fn what_a_pod_asks_for_by_the_name_of_a_class_is_released_by_the_drivers_answer_and_nothing_else() {
    let (mut bench, node) = let_go();
    let name = by_name(&bench, "train-0");
    let charge = bench.gang_status().admission.unwrap().charge;
    let [group] = charge.claims.as_slice() else {
        panic!("one group, not {charge:?}")
    };
    assert_eq!((group.flavor.as_str(), group.gpus_milli), ("gpu", 1_000));
    let permits = bench.server.node_devices(&node).unwrap().spec.permits;
    assert_eq!(permits[0].claim_uids, std::slice::from_ref(&name));

    let claim = made(&bench, "train-0", &node);
    let claim_key = claim.key();
    bench.server.put(claim);
    bench.run();
    // That pod and claim are gone proves nothing.
    bench.server.remove(&pod_key("train-0"));
    bench.server.remove(&claim_key);
    bench.run_in_silence();
    let devices = bench.server.node_devices(&node).unwrap();
    assert!(devices.spec.permits[0].withdrawn);

    // The driver lists it by the name that it is permitted by.
    bench.answer(devices, &[name.as_str()]);
    bench.run_in_silence();
    assert!(bench.has_permits(&node), "the driver still holds the claim");

    let devices = bench.server.node_devices(&node).unwrap();
    bench.answer(devices, &[]);
    bench.run_in_silence();
    assert!(!bench.has_permits(&node));
}

#[test]
fn a_claim_that_is_first_seen_with_its_devices_takes_these_and_no_others() {
    let (mut bench, node) = let_go();
    // The watch was away between its creation and its allocation. Two nodes have two GPUs each, so three are left.
    let claim = made(&bench, "train-0", &node);
    bench.server.put(claim);
    bench.gang("next", 3);
    bench.run();
    for rank in 0..3 {
        let next = bench.server.pod(&format!("next-{rank}")).unwrap();
        let gates = next.spec.unwrap().scheduling_gates.unwrap_or_default();
        assert!(gates.is_empty(), "next-{rank}");
    }
}

#[test]
fn what_ran_before_muster_came_is_adopted_at_the_devices_of_the_claim_that_kube_scheduler_made() {
    let mut bench = Bench::new();
    let mut runs = pod("old", 0, 1);
    runs.metadata.labels = None;
    let spec = runs.spec.as_mut().unwrap();
    spec.scheduling_gates = None;
    spec.node_name = Some("n0".to_owned());
    runs.status.as_mut().unwrap().phase = Some("Running".to_owned());
    bench.server.put(Object::Pod(Arc::new(runs)));
    let claim = made(&bench, "old-0", "n0");
    bench.server.put(claim);
    bench.run();
    let admission = bench.gang_status().admission.unwrap();
    assert!(admission.adopted);
    let [group] = admission.charge.claims.as_slice() else {
        panic!("one group, not {admission:?}")
    };
    assert_eq!((group.flavor.as_str(), group.gpus_milli), ("gpu", 1_000));
    assert_eq!(group.uids, [by_name(&bench, "old-0")]);
    let permits = bench.server.node_devices("n0").unwrap().spec.permits;
    assert_eq!(permits[0].claim_uids, group.uids);
}
