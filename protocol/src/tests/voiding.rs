use muster_api::GangPhase;

use super::*;
use crate::objects::stamp;

pub(super) fn is_ungate(write: &ApiRequest) -> bool {
    matches!(write, ApiRequest::PatchPod { patch, .. } if patch.to_string().contains("\"remove\""))
}

fn carries(write: &ApiRequest) -> bool {
    matches!(write, ApiRequest::ReplaceGangStatus { status, .. } if status.admission.is_some())
}

#[test]
fn a_pod_that_vanishes_before_the_first_ungate_voids_the_attempt() {
    let mut bench = Bench::new();
    bench.gang("train", 2);
    assert!(
        bench.run_until(is_ungate),
        "all permits stand, no pod is free"
    );
    bench.server.remove(&pod_key("train-1"));
    // What was asked for before is refused by the version that it tests, or never sent.
    bench.take_over();
    bench.run();
    assert_eq!(stamp(&bench.server.pod("train-0").unwrap()), 2);
    let status = bench.gang_status();
    assert_eq!((status.phase, status.attempt), (GangPhase::Assembling, 2));
    assert!(status.admission.is_none());
    assert!(bench.server.ledger().unwrap().spec.intents.is_empty());
    for node in ["n0", "n1"] {
        assert!(!bench.has_permits(node));
    }
}

#[test]
fn a_successor_completes_what_the_gang_carries() {
    let mut bench = Bench::new();
    bench.gang("train", 2);
    assert!(bench.run_until(is_ungate));
    bench.take_over();
    bench.run();
    let status = bench.gang_status();
    assert_eq!((status.phase, status.attempt), (GangPhase::Admitted, 1));
    for name in ["train-0", "train-1"] {
        assert_eq!(stamp(&bench.server.pod(name).unwrap()), 1);
    }
    assert!(bench.server.ledger().unwrap().spec.intents.is_empty());
}

#[test]
fn a_successor_voids_what_the_gang_does_not_carry_and_writes_every_node_of_the_plan() {
    let mut bench = Bench::new();
    bench.gang("train", 4);
    assert!(bench.run_until(carries), "committed, not carried");
    bench.take_over();
    bench.written.clear();
    // It is admitted again afterwards, in the next attempt.
    assert!(bench.run_until(carries));
    let status = bench.gang_status();
    assert_eq!(status.attempt, 2);
    for node in ["n0", "n1"] {
        let spec = bench.server.node_devices(node).unwrap().spec;
        let own = bench.machine.leading_epoch().unwrap();
        assert_eq!((spec.leader_epoch, spec.permits.len()), (own, 0), "{node}");
    }
    let order: Vec<&str> = bench
        .written
        .iter()
        .filter_map(|write| match write {
            ApiRequest::PatchPod { .. } => Some("stamp"),
            ApiRequest::ReplaceGangStatus { status, .. } if status.attempt == 2 => Some("gang"),
            ApiRequest::ReplaceNodeDevices { .. } => Some("node"),
            ApiRequest::ReplaceLedger { spec, .. } if spec.intents.is_empty() => Some("ledger"),
            _ => None,
        })
        .collect();
    // The first write of the Ledger only raises the epoch; it carries the intent.
    assert!(
        order.starts_with(&[
            "stamp", "stamp", "stamp", "stamp", "gang", "node", "node", "ledger"
        ]),
        "{order:?}"
    );
}

#[test]
fn a_gang_that_was_deleted_while_its_pods_wait_is_made_again_above_their_stamps() {
    let mut bench = Bench::new();
    bench.gang("train", 2);
    assert!(bench.run_until(carries));
    bench.take_over();
    assert!(bench.run_until(carries), "stamped with attempt 2");
    let gangs = bench.server.list(Kind::Gang);
    bench.server.remove(&gangs[0].key());
    bench.take_over();
    bench.run();
    let status = bench.gang_status();
    assert_eq!(status.phase, GangPhase::Admitted);
    assert!(status.attempt > 2, "attempt {}", status.attempt);
}

#[test]
fn a_cordoned_node_costs_the_attempt_before_the_first_ungate() {
    let mut bench = Bench::new();
    bench.gang("train", 1);
    assert!(bench.run_until(is_ungate));
    let node = bench.gang_status().placement.unwrap().nodes[0].node.clone();
    let other = if node == "n0" { "n1" } else { "n0" };
    cordon(&mut bench, &node);
    bench.take_over();
    bench.run();
    let status = bench.gang_status();
    assert_eq!(status.attempt, 2);
    assert_eq!(status.placement.unwrap().nodes[0].node, other);
}

/// It kept the reason of the attempt before, or none.
#[test]
fn a_voided_gang_says_that_it_waits_until_its_permits_are_proved_released() {
    let mut bench = Bench::new();
    bench.gang("train", 1);
    assert!(bench.run_until(is_ungate));
    let node = bench.gang_status().placement.unwrap().nodes[0].node.clone();
    cordon(&mut bench, &node);
    bench.take_over();
    bench.run_in_silence();
    let status = bench.gang_status();
    assert_eq!((status.phase, status.attempt), (GangPhase::Pending, 2));
    let queue = status.queue.unwrap();
    assert_eq!(queue.reason, muster_api::Reason::WaitingForRelease);
    assert!(
        queue.details.contains("1 of 1 pods") && queue.details.contains(&node),
        "{}",
        queue.details
    );
    bench.run();
    assert_eq!(bench.gang_status().phase, GangPhase::Admitted);
}

pub(super) fn cordon(bench: &mut Bench, node: &str) {
    set_unschedulable(bench, node, true);
}

pub(super) fn set_unschedulable(bench: &mut Bench, node: &str, is_unschedulable: bool) {
    let mut object = bench
        .server
        .list(Kind::Node)
        .into_iter()
        .find(|it| it.key().name == node)
        .unwrap();
    if let Object::Node(node) = &mut object {
        Arc::make_mut(node)
            .spec
            .get_or_insert_default()
            .unschedulable = Some(is_unschedulable);
    }
    bench.server.put(object);
}
