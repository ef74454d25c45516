use muster_api::GangPhase;

use super::{
    ranks::{job, pod_of_job},
    voiding::{cordon, is_ungate},
    *,
};
use crate::objects::node_devices_object;

/// A gang of one on `n0` or `n1` that runs there.
fn running() -> (Bench, String) {
    let mut bench = Bench::new();
    bench.gang("train", 1);
    bench.run();
    let node = ["n0", "n1"]
        .into_iter()
        .find(|node| {
            !bench
                .server
                .node_devices(node)
                .unwrap()
                .spec
                .permits
                .is_empty()
        })
        .unwrap();
    bench.runs_on("train-0", node);
    bench.run();
    (bench, node.to_owned())
}

#[test]
fn a_permit_goes_when_its_withdrawal_is_acknowledged_and_nothing_is_held() {
    let (mut bench, node) = running();
    bench.server.remove(&pod_key("train-0"));
    bench.run_in_silence();
    let devices = bench.server.node_devices(&node).unwrap();
    assert!(
        devices.spec.permits[0].withdrawn,
        "withdrawn, and kept without an answer"
    );
    assert_eq!(devices.metadata.finalizers.as_ref().unwrap().len(), 1);

    let claim = "claim-of-train-0";
    bench.answer(devices, &[claim]);
    bench.run_in_silence();
    let devices = bench.server.node_devices(&node).unwrap();
    assert_eq!(
        devices.spec.permits.len(),
        1,
        "the driver still holds the claim"
    );

    bench.answer(devices, &[]);
    bench.run_in_silence();
    let devices = bench.server.node_devices(&node).unwrap();
    assert!(devices.spec.permits.is_empty());
    assert!(devices.metadata.finalizers.is_none());
}

#[test]
fn an_answer_for_another_object_or_an_earlier_generation_proves_nothing() {
    for (uid, behind) in [("another", 0), ("", 0), ("n0-uid", 1)] {
        let (mut bench, node) = running();
        bench.server.remove(&pod_key("train-0"));
        bench.run_in_silence();
        let mut devices = bench.server.node_devices(&node).unwrap();
        let uid = if uid == "n0-uid" {
            devices.metadata.uid.clone().unwrap()
        } else {
            uid.to_owned()
        };
        devices.status = Some(NodeDevicesStatus {
            uid,
            observed_generation: devices.metadata.generation.unwrap() - behind,
            ..NodeDevicesStatus::default()
        });
        bench.server.put(Object::NodeDevices(Arc::new(devices)));
        bench.run_in_silence();
        assert_eq!(
            bench.server.node_devices(&node).unwrap().spec.permits.len(),
            1
        );
    }
}

#[test]
fn a_gang_whose_pods_succeeded_is_finished_and_goes_an_hour_later() {
    let (mut bench, _) = running();
    bench.change_pod("train-0", |pod| {
        pod.status.as_mut().unwrap().phase = Some("Succeeded".into());
    });
    bench.run_at_once();
    let status = bench.gang_status();
    assert_eq!(status.phase, GangPhase::Finished);
    assert!(status.admission.is_none());
    bench.seconds += 3_599;
    bench.run_at_once();
    assert_eq!(bench.server.list(Kind::Gang).len(), 1);
    bench.seconds += 1;
    bench.run_at_once();
    assert!(bench.server.list(Kind::Gang).is_empty());
}

/// A claim that has a device of a node.
fn allocated(name: &str, node: &str) -> Object {
    let Object::ResourceClaim(claim) = claim(name, keys::DEVICE_CLASS_GPU) else {
        unreachable!()
    };
    let mut claim = Arc::unwrap_or_clone(claim);
    claim.status = serde_json::from_value(json!({"allocation": {"devices": {"results": [
        {"request": "gpu", "driver": keys::DRIVER, "pool": node, "device": "gpu-0"},
    ]}}}))
    .unwrap();
    Object::ResourceClaim(Arc::new(claim))
}

#[test]
fn what_a_driver_holds_without_a_permit_comes_back_as_a_withdrawn_one() {
    let mut bench = Bench::new();
    bench.server.put(allocated("lost", "n0"));
    bench.run();
    bench.acknowledge(&["claim-of-lost"]);
    bench.run_in_silence();
    let devices = bench.server.node_devices("n0").unwrap();
    let [permit] = devices.spec.permits.as_slice() else {
        panic!("one permit")
    };
    assert!(permit.withdrawn);
    assert_eq!(permit.claim_uids, ["claim-of-lost"]);
    assert_eq!(
        (permit.team.as_str(), permit.charge.claims[0].gpus_milli),
        ("vision", 1_000)
    );
    bench.acknowledge(&[]);
    bench.run_in_silence();
    assert!(!bench.has_permits("n0"));
}

/// A permit that came back as withdrawn would stay so, though its pod lives.
#[test]
fn what_a_starting_gang_holds_does_not_come_back_as_withdrawn_while_an_answer_about_the_gang_is_owed()
 {
    let mut bench = Bench::new();
    cordon(&mut bench, "n1");
    bench.gang("train", 2);
    let run_without_last_ungate = |bench: &mut Bench| {
        for _ in 0..10 {
            bench.acknowledge(&[]);
            for effect in &bench.poll() {
                let is_last = matches!(
                    &*effect.write,
                    ApiRequest::PatchPod { key, .. } if key.name == "train-1"
                );
                if is_last && is_ungate(&effect.write) {
                    bench.machine.settle(effect.id, Outcome::Unknown);
                } else {
                    bench.perform(effect);
                }
            }
            bench.seconds += 1;
        }
    };
    run_without_last_ungate(&mut bench);
    bench.runs_on("train-0", "n0");
    let standing = bench.server.node_devices("n0").unwrap().spec.permits;
    assert_eq!(standing.len(), 2);
    let intents = bench.server.ledger().unwrap().spec.intents;
    assert_eq!(
        intents.len(),
        1,
        "it stays until all of its pods are let go"
    );
    let gang = bench.server.list(Kind::Gang)[0].key();
    let unknown = BTreeMap::from([(gang.clone(), true)]);
    bench.machine.note_undecodable(unknown);
    bench.server.remove(&node_devices_object("n0"));
    bench.invented = vec![muster_api::Held {
        claim_uid: "claim-of-train-0".to_owned(),
        namespace: "ml".to_owned(),
        name: "train-0".to_owned(),
        pod_uid: Some("train-0-uid".to_owned()),
        devices: vec!["gpu-0".to_owned()],
    }];
    run_without_last_ungate(&mut bench);
    let devices = bench.server.node_devices("n0").unwrap();
    assert!(
        devices.spec.permits.is_empty(),
        "{:?}",
        devices.spec.permits
    );
    let known = BTreeMap::from([(gang, false)]);
    bench.machine.note_undecodable(known);
    bench.run();
    let again = bench.server.node_devices("n0").unwrap().spec.permits;
    assert_eq!(again, standing);
}

#[test]
fn a_node_charges_nobody_for_a_claim_that_has_no_device_of_it() {
    for (name, node) in [("invented", None), ("elsewhere", Some("n1"))] {
        let mut bench = Bench::new();
        if let Some(node) = node {
            bench.server.put(allocated(name, node));
        }
        bench.run();
        bench.acknowledge(&[&format!("claim-of-{name}")]);
        bench.run_in_silence();
        let devices = bench.server.node_devices("n0").unwrap();
        let permit = &devices.spec.permits[0];
        assert!(permit.withdrawn);
        assert_eq!(permit.team, "", "{name}");
        assert!(permit.charge.claims.is_empty(), "{name}");
    }
}

#[test]
fn a_pod_that_runs_without_an_admission_is_adopted_with_what_it_holds() {
    let mut bench = Bench::new();
    bench.gang("old", 1);
    bench.change_pod("old-0", |pod| {
        let spec = pod.spec.as_mut().unwrap();
        spec.scheduling_gates = None;
        spec.node_name = Some("n1".to_owned());
        pod.status.as_mut().unwrap().phase = Some("Running".to_owned());
    });
    bench.server.put(allocated("old-0", "n1"));
    bench.run();
    let admission = bench.gang_status().admission.unwrap();
    assert!(admission.adopted);
    assert_eq!(admission.charge.claims[0].flavor, "gpu");
    let devices = bench.server.node_devices("n1").unwrap();
    assert!(devices.spec.enforce);
    assert!(!devices.spec.permits[0].withdrawn);
}

#[test]
fn what_a_job_that_was_scaled_up_made_more_starts_after_the_ranks_that_succeeded() {
    let mut bench = Bench::new();
    bench.server.put(job(2, 0));
    pod_of_job(&mut bench, 0);
    pod_of_job(&mut bench, 1);
    bench.run();
    assert_eq!(bench.gang_status().phase, GangPhase::Admitted);
    bench.server.put(job(3, 0));
    pod_of_job(&mut bench, 2);
    bench.run();
    let is_gated = |bench: &Bench| {
        let pod = bench.server.pod("fit-2").unwrap();
        crate::objects::is_gated(&pod)
    };
    assert!(is_gated(&bench), "the attempt has its ranks");

    for name in ["fit-0", "fit-1"] {
        bench.ends(name);
    }
    bench.server.put(job(3, 2));
    bench.run();
    assert!(!is_gated(&bench));
    assert_eq!(bench.gang_status().attempt, 2);
}

#[test]
fn a_permit_for_another_drivers_devices_goes_with_its_pod_though_no_driver_of_ours_answers() {
    for (of_other_driver, stays) in [(true, false), (false, true)] {
        let mut bench = Bench::new();
        bench.run_in_silence();
        let mut devices = bench.server.node_devices("n0").unwrap();
        let charge = json!({"claims": [{"flavor": "rented", "gpusMilli": 1000, "vramBytes": 0, "uids": ["c"]}]});
        let permit = json!({
            "podUid": "gone", "claimUids": ["c"], "gang": "ml/old", "gangUid": "old", "attempt": 1, "team": "vision",
            "charge": charge, "ofOtherDriver": of_other_driver,
        });
        devices.spec.permits = vec![serde_json::from_value(permit).unwrap()];
        bench.server.put(Object::NodeDevices(Arc::new(devices)));
        bench.run_in_silence();
        assert_eq!(bench.has_permits("n0"), stays, "{of_other_driver}");
    }
}

/// DeviceClass of another driver's devices.
const RENTED: &str = "rented.example.com";

/// A cluster with a node `r0` that has so many devices of another driver, all of them the Team's, and no driver of ours.
fn rented(gpus: usize) -> Bench {
    let driver = "gpu.example.com";
    let mut bench = Bench::new();
    bench.server.put(Object::DeviceClass(parse(json!({
        "metadata": {"name": RENTED},
        "spec": {"selectors": [{"cel": {"expression": format!("device.driver == '{driver}'")}}]},
    }))));
    bench.server.put(Object::Flavor(parse(json!({
        "apiVersion": "muster.dev/v1alpha1", "kind": "Flavor", "metadata": {"name": "rented"},
        "spec": {"devices": {"driver": driver}},
    }))));
    bench.server.put(Object::Team(parse(json!({
        "apiVersion": "muster.dev/v1alpha1", "kind": "Team", "metadata": {"name": "vision"},
        "spec": {"quota": [{"flavor": "rented", "resources": [{"name": "gpus", "nominal": gpus}]}]},
    }))));
    let [node, slice] = node_with_gpus("r0", gpus);
    let Object::ResourceSlice(slice) = slice else {
        panic!("a slice")
    };
    let mut slice = Arc::unwrap_or_clone(slice);
    slice.spec.driver = driver.to_owned();
    bench.server.put(node);
    bench.server.put(Object::ResourceSlice(Arc::new(slice)));
    bench.silent_drivers.insert("r0".to_owned());
    bench
}

#[test]
fn a_gang_on_devices_of_another_driver_is_released_when_its_pods_are_terminal() {
    let mut bench = rented(1);
    bench.pod("train", 0, 1, RENTED);
    bench.run_in_silence();
    let admission = bench.gang_status().admission.unwrap();
    assert_eq!(admission.charge.claims[0].flavor, "rented");
    assert!(bench.has_permits("r0"));
    bench.change_pod("train-0", |pod| {
        pod.spec.as_mut().unwrap().node_name = Some("r0".to_owned());
        pod.status.as_mut().unwrap().phase = Some("Succeeded".to_owned());
    });
    bench.run_in_silence();
    assert!(!bench.has_permits("r0"), "no driver of ours ever answered");
    let devices = bench.server.node_devices("r0").unwrap();
    assert_eq!(devices.metadata.finalizers, None);
    // The Team has its one GPU again.
    bench.pod("next", 0, 1, RENTED);
    bench.run_in_silence();
    assert!(bench.has_permits("r0"));
}

/// Whose the devices are the permit says since it was written: no driver of ours answers there, whatever became of the Flavor.
#[test]
fn a_gang_on_devices_of_another_driver_is_released_though_its_flavor_was_deleted_or_is_of_our_driver_now()
 {
    let edited = Object::Flavor(parse(json!({
        "apiVersion": "muster.dev/v1alpha1", "kind": "Flavor", "metadata": {"name": "rented"}, "spec": {},
    })));
    for is_deleted in [true, false] {
        let mut bench = rented(1);
        bench.pod("train", 0, 1, RENTED);
        bench.run_in_silence();
        bench.runs_on("train-0", "r0");
        bench.run_in_silence();
        if is_deleted {
            bench.server.remove(&edited.key());
        } else {
            bench.server.put(edited.clone());
        }
        bench.run_in_silence();
        assert!(bench.has_permits("r0"), "{is_deleted}: it runs on");
        bench.ends("train-0");
        bench.run_in_silence();
        assert!(!bench.has_permits("r0"), "deleted: {is_deleted}");
    }
}

/// Then the permit is written anew, and no Flavor says whose the devices are.
#[test]
fn a_gang_on_devices_of_another_driver_is_released_though_flavor_and_permits_were_deleted() {
    let mut bench = rented(1);
    bench.pod("train", 0, 1, RENTED);
    bench.run_in_silence();
    bench.runs_on("train-0", "r0");
    let Object::ResourceClaim(claim) = claim("train-0", RENTED) else {
        unreachable!()
    };
    let mut claim = Arc::unwrap_or_clone(claim);
    claim.status = serde_json::from_value(json!({"allocation": {"devices": {"results": [
        {"request": "gpu", "driver": "gpu.example.com", "pool": "r0", "device": "gpu-0"},
    ]}}}))
    .unwrap();
    bench.server.put(Object::ResourceClaim(Arc::new(claim)));
    bench.run_in_silence();
    for (kind, name) in [(Kind::Flavor, "rented"), (Kind::NodeDevices, "r0")] {
        bench.server.remove(&ObjectKey {
            kind,
            namespace: String::new(),
            name: name.to_owned(),
        });
    }
    bench.run_in_silence();
    assert!(bench.has_permits("r0"), "it runs on");
    bench.ends("train-0");
    bench.run_in_silence();
    assert!(!bench.has_permits("r0"), "no driver of ours ever answered");
}

#[test]
fn what_our_driver_handed_out_needs_its_answer_though_its_flavor_counts_others_devices_now() {
    for spec in [
        json!({"extendedResource": "nvidia.com/gpu"}),
        json!({"devices": {"driver": "gpu.example.com"}}),
    ] {
        let (mut bench, node) = running();
        bench.server.put(Object::Flavor(parse(json!({
            "apiVersion": "muster.dev/v1alpha1", "kind": "Flavor", "metadata": {"name": "gpu"}, "spec": spec,
        }))));
        bench.server.remove(&pod_key("train-0"));
        bench.run_in_silence();
        let devices = bench.server.node_devices(&node).unwrap();
        let [permit] = devices.spec.permits.as_slice() else {
            panic!("{spec}: gone without an answer")
        };
        assert!(permit.withdrawn, "{spec}");
        bench.answer(devices, &[]);
        bench.run_in_silence();
        assert!(!bench.has_permits(&node), "{spec}");
    }
}

#[test]
fn a_gang_on_devices_of_another_driver_whose_pod_is_made_anew_before_it_was_let_go_is_planned_again()
 {
    let mut bench = rented(2);
    for rank in 0..2 {
        bench.pod("train", rank, 2, RENTED);
    }
    let is_gated =
        |bench: &Bench, pod: &str| crate::objects::is_gated(&bench.server.pod(pod).unwrap());
    assert!(bench.run_until(|write| matches!(write, ApiRequest::PatchPod { .. })));
    assert!(bench.has_permits("r0") && is_gated(&bench, "train-0"));
    // What was under way is lost.
    bench.take_over();
    bench.server.remove(&pod_key("train-1"));
    bench.pod("train", 1, 2, RENTED);
    bench.run();
    for pod in ["train-0", "train-1"] {
        assert!(!is_gated(&bench, pod), "{pod}: {:?}", bench.gang_status());
    }
    let permits = bench.server.node_devices("r0").unwrap().spec.permits;
    assert_eq!(permits.iter().filter(|permit| !permit.withdrawn).count(), 2);
}

#[test]
fn a_gang_waits_for_the_release_of_what_a_finished_rank_of_a_running_gang_still_holds() {
    let mut bench = Bench::new();
    // More quota than there are devices: the second gang lacks a place.
    bench.server.put(team("vision", 8));
    bench.gang("train", 4);
    bench.run();
    bench.gang("next", 1);
    bench.run();
    let reason = |bench: &Bench| {
        let gangs = bench.server.list(Kind::Gang);
        let mut statuses = gangs.iter().filter_map(|gang| match gang {
            Object::Gang(gang) => gang.status.as_ref(),
            _ => None,
        });
        let queue = statuses.find_map(|status| status.queue.as_ref());
        queue.unwrap().reason
    };
    assert_eq!(reason(&bench), muster_api::Reason::WaitingForPlacement);

    bench.ends("train-0");
    // No driver answers: the permit is withdrawn, and the Gang goes on carrying the plan.
    bench.run_in_silence();
    assert_eq!(reason(&bench), muster_api::Reason::WaitingForRelease);
}
