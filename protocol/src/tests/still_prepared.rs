//! A claim that a node has prepared for pods that were there before, and that nobody is charged for.

use super::{voiding::cordon, *};

/// The claim of pod `train-0`.
const CLAIM: &str = "claim-of-train-0";

/// The driver of a node lists the claim as held, whatever it is asked.
fn hold(bench: &mut Bench, node: &str) {
    bench.holding = Some((node.to_owned(), vec![CLAIM.to_owned()]));
}

fn is_gated(bench: &Bench) -> bool {
    let spec = bench.server.pod("train-0").unwrap().spec.unwrap();
    spec.scheduling_gates.is_some_and(|gates| !gates.is_empty())
}

/// Permits of a node for pod `train-0` that are not withdrawn.
fn standing(bench: &Bench, node: &str) -> usize {
    let permits = bench.server.node_devices(node).unwrap().spec.permits;
    let own = permits
        .iter()
        .filter(|permit| permit.pod_uid == "train-0-uid");
    own.filter(|permit| !permit.withdrawn).count()
}

/// The gang is planned on `n0`, whose driver lists its claim, and starts when it does so no longer.
fn starts_once_it_is_released(bench: &mut Bench) {
    let status = bench.gang_status();
    assert_eq!(status.phase, muster_api::GangPhase::Admitted);
    assert!(is_gated(bench));
    assert_eq!(standing(bench, "n0"), 0);
    bench.holding = None;
    bench.run();
    assert!(!is_gated(bench), "{:?}", bench.gang_status());
    assert_eq!(standing(bench, "n0"), 1);
    let permits = bench.server.node_devices("n0").unwrap().spec.permits;
    assert_eq!(permits.len(), 1, "{permits:?}");
}

#[test]
fn no_pod_is_let_go_to_a_node_that_has_its_claim_prepared_before_the_release_is_proved() {
    let mut bench = Bench::new();
    cordon(&mut bench, "n1");
    hold(&mut bench, "n0");
    bench.run();
    assert!(bench.has_permits("n0"), "withdrawn, and charged to nobody");
    bench.gang("train", 1);
    bench.run();
    starts_once_it_is_released(&mut bench);
}

#[test]
fn what_a_driver_lists_only_once_the_gang_is_planned_there_keeps_its_pods_back_as_well() {
    let mut bench = Bench::new();
    cordon(&mut bench, "n1");
    bench.gang("train", 1);
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
    starts_once_it_is_released(&mut bench);
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
            assert!(!is_gated(&bench));
        }
    }
}

#[test]
fn a_node_is_avoided_no_longer_than_it_has_the_claim_prepared() {
    let mut bench = Bench::new();
    bench.server.put(team("vision", 0));
    bench.gang("train", 1);
    hold(&mut bench, "n0");
    bench.run();
    let avoided = |bench: &Bench| {
        let gangs = bench.server.list(Kind::Gang);
        let [Object::Gang(gang)] = gangs.as_slice() else {
            panic!("one Gang, not {gangs:?}");
        };
        let uid = gang.metadata.uid.as_deref().unwrap().into();
        let waiting = bench.machine.engine().waiting(&uid).unwrap();
        waiting.topology.avoided.len()
    };
    assert_eq!(avoided(&bench), 1);
    bench.holding = None;
    bench.run();
    assert_eq!(avoided(&bench), 0);
    bench.server.put(team("vision", 4));
    bench.run();
    assert!(!is_gated(&bench));
}
