//! A claim that a node has prepared for pods that were there before, and that nobody is charged for.

use muster_api::{GangPhase, GangStatus, Reason};

use super::{
    voiding::{cordon, set_unschedulable},
    *,
};

/// The claim of pod `train-0`.
const CLAIM: &str = "claim-of-train-0";

/// The driver of a node lists the claim as held, whatever it is asked.
fn hold(bench: &mut Bench, node: &str) {
    bench
        .holding
        .insert(node.to_owned(), vec![CLAIM.to_owned()]);
}

fn is_gated(bench: &Bench, pod: &str) -> bool {
    let spec = bench.server.pod(pod).unwrap().spec.unwrap();
    spec.scheduling_gates.is_some_and(|gates| !gates.is_empty())
}

/// Permits of a node for a pod that are not withdrawn.
fn standing_of(bench: &Bench, node: &str, pod: &str) -> usize {
    let uid = bench.server.pod(pod).unwrap().metadata.uid.unwrap();
    let permits = bench.server.node_devices(node).unwrap().spec.permits;
    let own = permits.iter().filter(|permit| permit.pod_uid == uid);
    own.filter(|permit| !permit.withdrawn).count()
}

fn standing(bench: &Bench, node: &str) -> usize {
    standing_of(bench, node, "train-0")
}

/// The status of the gang of that label.
fn status_of(bench: &Bench, label: &str) -> GangStatus {
    let gangs = bench.server.list(Kind::Gang).into_iter();
    let mut statuses = gangs.filter_map(|gang| match gang {
        Object::Gang(gang) if gang.spec.group.as_deref() == Some(label) => gang.status.clone(),
        _ => None,
    });
    statuses.next().unwrap()
}

/// The gang waits in the queue for node `n0`, whose driver lists its claim, and holds nothing.
fn waits_for_n0(bench: &Bench, attempt: i64) {
    let status = status_of(bench, "train");
    assert_eq!(
        (status.phase, status.attempt),
        (GangPhase::Pending, attempt)
    );
    assert!(status.admission.is_none());
    let queue = status.queue.unwrap();
    assert_eq!(queue.reason, Reason::WaitingForPlacement);
    let told = format!("it does not get node n0, which still has claim {CLAIM} prepared");
    assert!(queue.details.contains(&told), "{}", queue.details);
    assert!(bench.server.ledger().unwrap().spec.intents.is_empty());
    assert!(is_gated(bench, "train-0"));
    assert_eq!((standing(bench, "n0"), standing(bench, "n1")), (0, 0));
}

/// The gang starts on `n0` when its driver lists the claim no longer.
fn starts_once_it_is_released(bench: &mut Bench) {
    assert!(is_gated(bench, "train-0"));
    assert_eq!(standing(bench, "n0"), 0);
    bench.holding.clear();
    bench.run();
    assert!(!is_gated(bench, "train-0"), "{:?}", bench.gang_status());
    assert_eq!(standing(bench, "n0"), 1);
    let permits = bench.server.node_devices("n0").unwrap().spec.permits;
    assert_eq!(permits.len(), 1, "{permits:?}");
}

/// A gang that is admitted on `n0`, the only node that may be used, whose driver lists its claim only then.
fn admitted_before_it_is_listed() -> Bench {
    let mut bench = Bench::new();
    cordon(&mut bench, "n1");
    listed_once_planned(bench, 1)
}

/// A gang of so many pods that is admitted, the first of them on `n0`, whose driver lists its claim only then.
fn listed_once_planned(mut bench: Bench, size: usize) -> Bench {
    bench.gang("train", size);
    let is_permit = |write: &ApiRequest| {
        matches!(
            write,
            ApiRequest::ReplaceNodeDevices { spec, .. }
                if spec.permits.iter().any(|permit| !permit.withdrawn)
        )
    };
    assert!(bench.run_until(is_permit));
    hold(&mut bench, "n0");
    bench.acknowledge(&[]);
    // That write was never sent.
    bench.take_over();
    bench.run();
    assert_eq!(bench.gang_status().phase, GangPhase::Admitted);
    assert_eq!(standing(&bench, "n0"), 0);
    bench
}

/// The start is late.
fn time_out(bench: &mut Bench) {
    bench.seconds += 600;
    bench.run();
}

#[test]
fn no_gang_is_planned_on_a_node_that_has_its_claim_prepared_before_the_release_is_proved() {
    let mut bench = Bench::new();
    cordon(&mut bench, "n1");
    hold(&mut bench, "n0");
    bench.run();
    assert!(bench.has_permits("n0"), "withdrawn, and charged to nobody");
    bench.gang("train", 1);
    bench.run();
    waits_for_n0(&bench, 1);
    starts_once_it_is_released(&mut bench);
}

#[test]
fn what_a_driver_lists_only_once_the_gang_is_planned_there_keeps_its_pods_back_as_well() {
    let mut bench = admitted_before_it_is_listed();
    starts_once_it_is_released(&mut bench);
}

/// It kept quota, and the devices of its other nodes, for as long as the driver listed the claim.
#[test]
fn a_start_that_a_node_keeps_back_for_too_long_is_taken_back_and_made_elsewhere() {
    let mut bench = admitted_before_it_is_listed();
    set_unschedulable(&mut bench, "n1", false);
    bench.run();
    assert_eq!(bench.gang_status().attempt, 1, "its start is not late yet");
    time_out(&mut bench);
    let status = bench.gang_status();
    assert_eq!(status.attempt, 2);
    assert_eq!(status.evictions, [], "nothing of it was let go");
    assert_eq!((standing(&bench, "n0"), standing(&bench, "n1")), (0, 1));
    assert!(!is_gated(&bench, "train-0"));
    assert!(bench.server.ledger().unwrap().spec.intents.is_empty());
}

#[test]
fn a_gang_that_no_other_node_takes_waits_in_the_queue_and_is_not_admitted_again_and_again() {
    let mut bench = admitted_before_it_is_listed();
    time_out(&mut bench);
    for _ in 0..5 {
        waits_for_n0(&bench, 2);
        time_out(&mut bench);
    }
    waits_for_n0(&bench, 2);
    starts_once_it_is_released(&mut bench);
}

#[test]
fn a_gang_whose_start_was_taken_back_keeps_no_quota_from_others() {
    let mut bench = admitted_before_it_is_listed();
    bench.server.put(team("vision", 1));
    bench.gang("other", 1);
    bench.run();
    assert!(is_gated(&bench, "other-0"), "the quota is used");
    time_out(&mut bench);
    let status = status_of(&bench, "train");
    assert_eq!((status.phase, status.attempt), (GangPhase::Pending, 2));
    assert!(!is_gated(&bench, "other-0"), "on the other GPU of n0");
    assert_eq!(standing_of(&bench, "n0", "other-0"), 1);
}

#[test]
fn what_a_start_that_is_taken_back_held_on_other_nodes_is_given_back() {
    let mut bench = listed_once_planned(Bench::new(), 4);
    assert!(bench.has_permits("n1"));
    bench.gang("other", 2);
    bench.run();
    assert!(
        is_gated(&bench, "other-0"),
        "there is neither room nor quota"
    );
    time_out(&mut bench);
    let status = status_of(&bench, "train");
    assert_eq!((status.phase, status.attempt), (GangPhase::Pending, 2));
    assert!(!is_gated(&bench, "other-0") && !is_gated(&bench, "other-1"));
}

#[test]
fn whoever_takes_over_goes_on_taking_such_a_start_back() {
    type IsWrite = fn(&ApiRequest) -> bool;
    let stamp: IsWrite = |write| matches!(write, ApiRequest::PatchPod { .. });
    let raise: IsWrite = |write| matches!(write, ApiRequest::ReplaceGangStatus { status, .. } if status.attempt == 2);
    let leaves_the_ledger: IsWrite =
        |write| matches!(write, ApiRequest::ReplaceLedger { spec, .. } if spec.intents.is_empty());
    for (before, write) in [
        ("stamp", stamp),
        ("raise", raise),
        ("leaves the Ledger", leaves_the_ledger),
    ] {
        let mut bench = admitted_before_it_is_listed();
        set_unschedulable(&mut bench, "n1", false);
        bench.seconds += 600;
        assert!(bench.run_until(write), "{before}");
        bench.take_over();
        bench.run();
        if before == "stamp" {
            // Nothing says that it was to be taken back.
            assert_eq!(bench.gang_status().attempt, 1);
            time_out(&mut bench);
        }
        assert_eq!(bench.gang_status().attempt, 2, "{before}");
        let permits = (standing(&bench, "n0"), standing(&bench, "n1"));
        assert_eq!(permits, (0, 1), "{before}");
        assert!(!is_gated(&bench, "train-0"), "{before}");
    }
}

#[test]
fn a_gang_goes_where_its_claim_is_not_prepared_if_there_is_room() {
    for (node, other) in [("n0", "n1"), ("n1", "n0")] {
        for waits_first in [false, true] {
            let mut bench = Bench::new();
            // Nobody of the Team may have anything yet.
            bench.server.put(team("vision", 0));
            if waits_first {
                bench.gang("train", 1);
                bench.run();
            }
            hold(&mut bench, node);
            bench.run();
            if !waits_first {
                bench.gang("train", 1);
                bench.run();
            }
            bench.server.put(team("vision", 4));
            bench.run();
            let permits = (standing(&bench, node), standing(&bench, other));
            assert_eq!(
                permits,
                (0, 1),
                "held on {node}, waits first: {waits_first}"
            );
            assert!(!is_gated(&bench, "train-0"));
        }
    }
}

#[test]
fn a_node_is_closed_to_a_gang_no_longer_than_it_has_the_claim_prepared() {
    let mut bench = Bench::new();
    bench.server.put(team("vision", 0));
    bench.gang("train", 1);
    hold(&mut bench, "n0");
    bench.run();
    let closed = |bench: &Bench| {
        let gangs = bench.server.list(Kind::Gang);
        let [Object::Gang(gang)] = gangs.as_slice() else {
            panic!("one Gang, not {gangs:?}");
        };
        let uid = gang.metadata.uid.as_deref().unwrap().into();
        let waiting = bench.machine.engine().waiting(&uid).unwrap();
        waiting.topology.closed.len()
    };
    assert_eq!(closed(&bench), 1);
    bench.holding.clear();
    bench.run();
    assert_eq!(closed(&bench), 0);
    bench.server.put(team("vision", 4));
    bench.run();
    assert!(!is_gated(&bench, "train-0"));
}
