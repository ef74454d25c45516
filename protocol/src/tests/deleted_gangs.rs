//! A Gang that is deleted while its pods live.

use k8s_openapi::api::resource::v1::ResourceClaim;
use muster_api::GangPhase;

use super::*;
use crate::objects::{is_deleting, ledger_object};

fn delete_gang(bench: &mut Bench) {
    let gang = bench.server.list(Kind::Gang).pop().unwrap();
    bench.server.remove(&gang.key());
}

/// Whether each pod that is left is being deleted: those that are bound go once their kubelets have ended them.
fn are_ended(bench: &Bench) -> bool {
    let pods = bench.server.list(Kind::Pod);
    pods.iter()
        .all(|pod| matches!(pod, Object::Pod(pod) if is_deleting(pod.as_ref())))
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

/// The pods of the gang `train` are bound to the nodes that they are planned on, each in its phase.
fn bind_as_planned(bench: &mut Bench, phases: &[&str]) {
    let placement = bench.gang_status().placement.unwrap();
    for (place, phase) in phases.iter().enumerate() {
        let node = placement.node_of(place).unwrap().node.clone();
        let (pod, device) = (format!("train-{place}"), format!("gpu-{place}"));
        bind(bench, &pod, &node, &device, phase);
    }
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
    bind_as_planned(&mut bench, &["Running", "Pending"]);
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

/// With the Gang goes what says that its attempt was being evicted, or that a rank was gone by then.
#[test]
fn s4_what_is_left_of_a_deleted_gang_does_not_go_on_in_part() {
    let mut bench = Bench::new();
    bench.gang("train", 2);
    bench.run();
    bind_as_planned(&mut bench, &["Running", "Running"]);
    bench.run();
    bench.server.remove(&pod_key("train-1"));
    delete_gang(&mut bench);
    bench.run();
    bench.seconds += 5;
    bench.run();
    assert!(are_ended(&bench));
    let is_adopted = |write: &ApiRequest| matches!(write, ApiRequest::ReplaceGangStatus { status, .. } if status.admission.as_ref().is_some_and(|it| it.adopted));
    assert!(!bench.written.iter().any(is_adopted));
}

/// A rank may be missed only because its Job has not told yet that it is done.
#[test]
fn what_is_left_of_a_deleted_gang_is_ended_once_it_was_a_part_for_a_while_however_long_it_was_waited_for()
 {
    let mut bench = Bench::new();
    bench.gang("train", 3);
    bench.run();
    // kube-scheduler takes its time for the third.
    bind_as_planned(&mut bench, &["Running", "Running"]);
    bench.run();
    delete_gang(&mut bench);
    bench.run();
    bench.seconds += 10;
    bench.run();
    let waits_for = |bench: &Bench| bench.gang_status().queue.map(|queue| queue.reason);
    assert_eq!(
        waits_for(&bench),
        Some(muster_api::Reason::WaitingForRelease)
    );
    bench.server.remove(&pod_key("train-0"));
    bench.run();
    assert_eq!(waits_for(&bench), Some(muster_api::Reason::MembersChanged));
    assert_eq!(bench.server.list(Kind::Pod).len(), 2);
    bench.seconds += 5;
    bench.run();
    assert!(are_ended(&bench));
}

#[test]
fn a_rank_that_is_done_is_not_missed_where_the_gang_of_the_others_is_made_again() {
    let mut bench = Bench::new();
    bench.gang("train", 2);
    bench.run();
    bind_as_planned(&mut bench, &["Running", "Succeeded"]);
    bench.run();
    delete_gang(&mut bench);
    bench.run();
    let admission = bench.gang_status().admission.unwrap();
    assert!(admission.adopted);
    assert_eq!(admission.pods.len(), 1);
}

#[test]
fn pods_that_run_are_left_alone_while_nobody_can_be_charged_for_them() {
    let mut bench = Bench::new();
    bench.gang("train", 2);
    bench.run();
    bind_as_planned(&mut bench, &["Running", "Running"]);
    bench.run();
    let namespace = |labels: Value| {
        Object::Namespace(parse(json!({"metadata": {"name": "ml", "labels": labels}})))
    };
    bench.server.put(namespace(json!({})));
    delete_gang(&mut bench);
    bench.run();
    bench.seconds += 600;
    bench.run();
    let deletes = |write: &ApiRequest| matches!(write, ApiRequest::DeletePod { .. });
    assert!(!bench.written.iter().any(deletes));
    bench.server.put(namespace(json!({keys::TEAM: "vision"})));
    bench.run();
    assert!(bench.gang_status().admission.unwrap().adopted);
}

#[test]
fn a_pod_that_is_left_of_a_deleted_gang_and_holds_nothing_yet_is_named_and_then_evicted() {
    let mut bench = Bench::new();
    bench.gang("train", 2);
    bench.run();
    delete_gang(&mut bench);
    bench.run();
    let queue = bench.gang_status().queue.unwrap();
    assert_eq!(queue.reason, muster_api::Reason::WaitingForRelease);
    let details = queue.details;
    assert!(details.contains("train-0 of attempt 1"), "{details}");
    bench.seconds += 30;
    bench.run();
    // Nobody makes them again.
    assert!(bench.server.list(Kind::Pod).is_empty());
    assert_eq!(bench.gang_status().phase, GangPhase::Failed);
}

#[test]
fn a_claim_that_was_made_again_is_not_adopted_with_its_gang_since_nothing_was_charged_for_it() {
    let mut bench = Bench::new();
    bench.gang("train", 2);
    bench.run();
    bind_as_planned(&mut bench, &["Pending", "Pending"]);
    let swapped = bench.server.list(Kind::ResourceClaim).into_iter();
    let mut swapped = swapped.filter_map(|object| match object {
        Object::ResourceClaim(claim) => Some(Arc::unwrap_or_clone(claim)),
        _ => None,
    });
    let is_first = |claim: &ResourceClaim| claim.metadata.name.as_deref() == Some("train-0");
    let mut claim = swapped.find(is_first).unwrap();
    claim.metadata.uid = Some("made-again".to_owned());
    bench.server.put(Object::ResourceClaim(Arc::new(claim)));
    bench.run();
    delete_gang(&mut bench);
    bench.run();
    let status = bench.gang_status();
    let admission = status.admission.unwrap();
    assert!(admission.adopted);
    let charged = admission.charge.claims.iter().flat_map(|it| &it.uids);
    let charged: Vec<_> = charged.collect();
    assert_eq!(charged, ["claim-of-train-0", "claim-of-train-1"]);
    let degraded = status
        .conditions
        .iter()
        .find(|it| it.type_ == muster_api::conditions::DEGRADED)
        .unwrap();
    assert_eq!(degraded.reason, "MembersChanged", "{}", degraded.message);
}

#[test]
fn a_permit_that_comes_late_for_a_gang_that_was_deleted_is_not_that_of_the_one_made_again() {
    let mut bench = Bench::new();
    bench.gang("train", 2);
    let permits = |write: &ApiRequest| matches!(write, ApiRequest::ReplaceNodeDevices { spec, .. } if !spec.permits.is_empty());
    assert!(bench.run_until(permits));
    // Its Ledger was lost, so that the first that is written is the permits, by what the Gang carries.
    bench.server.remove(&ledger_object());
    bench.take_over();
    let mut late = Vec::new();
    while late.is_empty() {
        for effect in bench.poll() {
            if permits(&effect.write) {
                late.push(effect);
            } else {
                bench.perform(&effect);
            }
        }
    }
    delete_gang(&mut bench);
    // No driver answers in between: that would make the late write conflict.
    for _ in 0..4 {
        for effect in bench.poll() {
            bench.perform(&effect);
        }
    }
    let uid = |bench: &Bench| match bench.server.list(Kind::Gang).pop() {
        Some(Object::Gang(gang)) => gang.metadata.uid.clone(),
        _ => None,
    };
    let made_again = uid(&bench);
    assert!(made_again.is_some());
    for effect in &late {
        bench.perform(effect);
    }
    bench.run();
    let status = bench.gang_status();
    assert_eq!(status.phase, GangPhase::Admitted, "{:?}", status.queue);
    assert_eq!(uid(&bench), made_again);
    let nodes = ["n0", "n1"].map(|node| bench.server.node_devices(node).unwrap());
    let permits: Vec<_> = nodes.iter().flat_map(|it| &it.spec.permits).collect();
    assert_eq!(permits.len(), 2, "{permits:?}");
    for permit in permits {
        assert_eq!(Some(&permit.gang_uid), made_again.as_ref());
        assert!(!permit.withdrawn);
    }
}

/// Its end may have been dated by a clock that was ahead, or be read by one that is behind.
#[test]
fn s6_an_ended_gang_goes_an_hour_after_that_is_seen_at_the_latest_whatever_clock_dated_it() {
    let mut bench = Bench::new();
    bench.wall_set_by_seconds = 24 * 3_600;
    bench.gang("train", 2);
    bench.run();
    bind_as_planned(&mut bench, &["Succeeded"; 2]);
    bench.run();
    for name in ["train-0", "train-1"] {
        bench.server.remove(&pod_key(name));
    }
    bench.run();
    bench.wall_set_by_seconds = 0;
    bench.take_over();
    bench.run();
    bench.seconds += 3_500;
    bench.run();
    assert!(bench.gang_status().finished_at.is_some());
    bench.seconds += 200;
    bench.run();
    assert!(bench.server.list(Kind::Gang).is_empty());
}
