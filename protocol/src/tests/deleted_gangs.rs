//! A Gang that is deleted while its pods live.

use muster_api::GangPhase;

use super::*;

fn delete_gang(bench: &mut Bench) {
    let gang = bench.server.list(Kind::Gang).pop().unwrap();
    bench.server.remove(&gang.key());
}

/// The claim of a pod that is bound has a device of its node.
fn bind(bench: &mut Bench, name: &str, node: &str, device: &str, phase: &str) {
    bench.change_pod(name, |pod| {
        pod.spec.as_mut().unwrap().node_name = Some(node.to_owned());
        pod.status.as_mut().unwrap().phase = Some(phase.to_owned());
    });
    let Object::ResourceClaim(claim) = claim(name, keys::DEVICE_CLASS_GPU) else {
        unreachable!()
    };
    let mut claim = Arc::unwrap_or_clone(claim);
    let results =
        json!([{"request": "gpu", "driver": keys::DRIVER, "pool": node, "device": device}]);
    claim.status =
        serde_json::from_value(json!({"allocation": {"devices": {"results": results}}})).unwrap();
    bench.server.put(Object::ResourceClaim(Arc::new(claim)));
}

#[test]
fn devices_that_kube_scheduler_may_still_give_to_a_pod_are_planned_for_nobody_else() {
    let mut bench = Bench::new();
    bench.gang("train", 2);
    bench.run();
    delete_gang(&mut bench);
    bench.run();
    bench.gang("next", 4);
    bench.run();
    let phase = |bench: &Bench, size: i32| {
        let gangs = bench.server.list(Kind::Gang).into_iter();
        let mut phases = gangs.filter_map(|gang| match gang {
            Object::Gang(gang) if gang.spec.size == size => Some(gang.status.as_ref()?.phase),
            _ => None,
        });
        phases.next().unwrap()
    };
    assert_eq!(phase(&bench, 4), GangPhase::Pending, "two pods are let go");
    for name in ["train-0", "train-1"] {
        bench.server.remove(&pod_key(name));
    }
    bench.run();
    assert_eq!(phase(&bench, 4), GangPhase::Admitted);
}

#[test]
fn pods_that_are_bound_are_adopted_whether_or_not_all_of_them_run_yet() {
    let mut bench = Bench::new();
    bench.gang("train", 2);
    bench.run();
    let placement = bench.gang_status().placement.unwrap();
    for (place, phase) in [(0, "Running"), (1, "Pending")] {
        let node = placement.node_of(place).unwrap().node.clone();
        bind(
            &mut bench,
            &format!("train-{place}"),
            &node,
            &format!("gpu-{place}"),
            phase,
        );
    }
    bench.run();
    delete_gang(&mut bench);
    bench.run();
    let status = bench.gang_status();
    assert_eq!(status.attempt, 2);
    let admission = status.admission.unwrap();
    assert!(admission.adopted);
    assert_eq!(admission.pods.len(), 2);
    let nodes = ["n0", "n1"].map(|node| bench.server.node_devices(node).unwrap());
    let permits: Vec<_> = nodes.iter().flat_map(|it| &it.spec.permits).collect();
    assert_eq!(
        permits.len(),
        2,
        "those of the attempt before are released: {permits:?}"
    );
    assert!(
        permits
            .iter()
            .all(|permit| permit.attempt == 2 && !permit.withdrawn)
    );
}

#[test]
fn a_pod_that_is_left_of_a_deleted_gang_is_named_with_the_way_out() {
    let mut bench = Bench::new();
    bench.gang("train", 2);
    bench.run();
    delete_gang(&mut bench);
    bench.run();
    let queue = bench.gang_status().queue.unwrap();
    assert_eq!(queue.reason, muster_api::Reason::WaitingForRelease);
    let details = queue.details;
    assert!(
        details.contains("train-0") && details.contains("delete it"),
        "{details}"
    );
}
