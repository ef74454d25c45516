//! Nodes that fall silent, die, come back, or are gone for good.

use k8s_openapi::api::core::v1::{Node, Taint};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use muster_api::{GangPhase, Reason};
use muster_engine::Amount;

use super::*;
use crate::objects::bound_node;

pub(super) fn node_key(name: &str) -> ObjectKey {
    ObjectKey {
        kind: Kind::Node,
        namespace: String::new(),
        name: name.to_owned(),
    }
}

fn change_node(bench: &mut Bench, name: &str, change: impl FnOnce(&mut Node)) {
    let nodes = bench.server.list(Kind::Node);
    let node = nodes.into_iter().find(|node| node.key().name == name);
    let Some(Object::Node(mut node)) = node else {
        panic!("there is no node {name}");
    };
    change(Arc::make_mut(&mut node));
    bench.server.put(Object::Node(node));
}

/// What the condition Ready of a node says.
pub(super) fn set_ready(bench: &mut Bench, name: &str, status: &str) {
    change_node(bench, name, |node| {
        let conditions = node.status.as_mut().unwrap().conditions.as_mut().unwrap();
        status.clone_into(&mut conditions[0].status);
    });
}

/// The kubelet is silent from now on, and so is the driver.
pub(super) fn die(bench: &mut Bench, name: &str) {
    bench.silent_drivers.insert(name.to_owned());
    set_ready(bench, name, "Unknown");
}

pub(super) fn set_out_of_service(bench: &mut Bench, name: &str) {
    change_node(bench, name, |node| {
        let taint = Taint {
            key: "node.kubernetes.io/out-of-service".to_owned(),
            effect: "NoExecute".to_owned(),
            ..Taint::default()
        };
        node.spec.get_or_insert_default().taints = Some(vec![taint]);
    });
}

/// Time passes, and whatever is owed is done.
fn pass(bench: &mut Bench, seconds: u64) {
    bench.run_at_once();
    for _ in 0..seconds {
        bench.seconds += 1;
        bench.run_at_once();
    }
}

fn used(bench: &Bench) -> Amount {
    let usage = bench.machine.engine().usage(&"vision".into());
    usage[0].used
}

fn spec(bench: &Bench, node: &str) -> muster_api::NodeDevicesSpec {
    bench.server.node_devices(node).unwrap().spec
}

fn is_lost(bench: &Bench, node: &str) -> bool {
    spec(bench, node).lost
}

fn add_nodes(bench: &mut Bench, numbers: std::ops::Range<usize>) {
    for number in numbers {
        for object in node_with_gpus(&format!("n{number}"), 2) {
            bench.server.put(object);
        }
    }
    bench.run();
}

/// The Team may have so many GPUs; a gang of one pod runs. Returns its node, and the other one.
fn running_of(gpus: usize) -> (Bench, &'static str, &'static str) {
    let mut bench = Bench::new();
    bench.server.put(team("vision", gpus));
    bench.gang("train", 1);
    bench.run();
    let (node, other) = if bench.has_permits("n0") {
        ("n0", "n1")
    } else {
        ("n1", "n0")
    };
    bench.runs_on("train-0", node);
    bench.run();
    (bench, node, other)
}

#[test]
fn a_node_that_is_not_ready_for_a_minute_is_lost_and_no_team_is_charged_for_it() {
    let (mut bench, node, _) = running_of(4);
    die(&mut bench, node);
    pass(&mut bench, 59);
    assert!(!is_lost(&bench, node));
    assert_eq!(used(&bench), Amount::ONE_GPU);
    pass(&mut bench, 2);
    assert!(is_lost(&bench, node));
    assert_eq!(used(&bench), Amount::ZERO);
    let permits = spec(&bench, node).permits;
    assert!(permits.len() == 1 && !permits[0].withdrawn, "{permits:?}");
    assert_eq!(bench.gang_status().phase, GangPhase::Running);
}

#[test]
fn a_lost_node_is_back_when_it_is_ready_and_its_driver_has_acknowledged_that() {
    let (mut bench, node, _) = running_of(4);
    die(&mut bench, node);
    pass(&mut bench, 70);
    set_ready(&mut bench, node, "True");
    pass(&mut bench, 30);
    assert!(is_lost(&bench, node), "its driver says nothing yet");
    bench.silent_drivers.clear();
    set_ready(&mut bench, node, "Unknown");
    bench.run();
    assert!(is_lost(&bench, node), "it is not Ready");
    set_ready(&mut bench, node, "True");
    bench.run();
    assert!(!is_lost(&bench, node));
    assert_eq!(used(&bench), Amount::ONE_GPU, "what it holds counts again");
}

#[test]
fn a_new_leader_counts_anew_and_keeps_what_is_marked() {
    let (mut bench, node, other) = running_of(4);
    die(&mut bench, node);
    pass(&mut bench, 50);
    bench.take_over();
    pass(&mut bench, 50);
    assert!(!is_lost(&bench, node));
    pass(&mut bench, 15);
    assert!(is_lost(&bench, node));
    bench.take_over();
    bench.run();
    assert!(is_lost(&bench, node) && !is_lost(&bench, other));
    assert_eq!(used(&bench), Amount::ZERO);
}

#[test]
fn a_gang_on_a_lost_node_is_evicted_before_kubernetes_deletes_its_pods_and_starts_elsewhere_within_its_quota()
 {
    let (mut bench, node, other) = running_of(1);
    die(&mut bench, node);
    pass(&mut bench, 235);
    assert_eq!(bench.gang_status().attempt, 1);
    let degraded = bench.gang_status();
    let mut degraded = degraded.conditions.iter();
    assert!(degraded.any(|it| it.type_ == "Degraded" && it.reason == "NodeLost"));
    pass(&mut bench, 10);
    let status = bench.gang_status();
    let causes: Vec<Reason> = status.evictions.iter().map(|it| it.reason).collect();
    assert_eq!((status.attempt, causes), (2, vec![Reason::NodeLost]));
    // Its pod stays, since no kubelet ends it; whoever owns it makes another one.
    assert!(bench.server.pod("train-0").is_some());
    bench.pod("train", 1, 1, keys::DEVICE_CLASS_GPU);
    pass(&mut bench, 40);
    assert!(bench.gang_status().admission.is_some());
    assert!(bench.has_permits(node) && bench.has_permits(other));
    assert_eq!(used(&bench), Amount::ONE_GPU);

    // The node comes back, and what it still holds is charged beside: nothing more is admitted until it has let go.
    bench.silent_drivers.clear();
    set_ready(&mut bench, node, "True");
    let held = ["claim-of-train-0"];
    let held = held.map(str::to_owned).to_vec();
    bench.holding.insert(node.to_owned(), held);
    bench.run();
    assert!(!is_lost(&bench, node));
    assert_eq!(used(&bench), Amount(2 * Amount::ONE_GPU.0));
    bench.holding.clear();
    bench.server.remove(&pod_key("train-0"));
    bench.run();
    assert!(!bench.has_permits(node));
    assert_eq!(used(&bench), Amount::ONE_GPU);
}

/// A gang whose pod names a claim that its user made lost its node, its pod was deleted by force, and the next one has the claim on the other
/// node. Returns what [`running_of`] does.
fn has_its_claim_elsewhere(gpus: usize) -> (Bench, &'static str, &'static str) {
    let (mut bench, node, other) = running_of(gpus);
    let next = json!({
        "metadata": {
            "name": "train-1", "namespace": "ml", "creationTimestamp": "2027-01-01T00:00:00Z",
            "labels": {keys::GANG: "train"}, "annotations": {keys::GANG_SIZE: "1"},
        },
        "spec": {
            "containers": [{"name": "rank", "resources": {"claims": [{"name": "gpu"}]}}],
            "resourceClaims": [{"name": "gpu", "resourceClaimName": "train-0"}],
            "schedulingGates": [{"name": keys::ADMISSION_GATE}],
        },
        "status": {"phase": "Pending"},
    });
    die(&mut bench, node);
    pass(&mut bench, 245);
    assert_eq!(bench.gang_status().attempt, 2);
    bench.server.put(Object::Pod(parse(next)));
    bench.server.remove(&pod_key("train-0"));
    pass(&mut bench, 40);
    assert!(is_lost(&bench, node));
    assert!(bench.has_permits(node) && bench.has_permits(other));
    assert_eq!(used(&bench), Amount::ONE_GPU);
    (bench, node, other)
}

/// The node is Ready, and its driver still lists the claim.
fn comes_back_with_the_claim(bench: &mut Bench, node: &str) {
    let held = vec!["claim-of-train-0".to_owned()];
    bench.holding.insert(node.to_owned(), held);
    bench.silent_drivers.clear();
    set_ready(bench, node, "True");
    bench.run();
    assert!(!is_lost(bench, node) && bench.has_permits(node));
}

/// The claim has one UID, and devices on two nodes: one of these uses hid the other, and a gang was admitted above the limit.
#[test]
fn what_a_node_that_is_back_holds_of_a_claim_is_charged_beside_what_that_has_elsewhere() {
    let (mut bench, node, _) = has_its_claim_elsewhere(1);
    comes_back_with_the_claim(&mut bench, node);
    assert_eq!(used(&bench), Amount(2 * Amount::ONE_GPU.0));
    bench.holding.clear();
    bench.run();
    assert!(!bench.has_permits(node));
    assert_eq!(used(&bench), Amount::ONE_GPU);
}

#[test]
fn nothing_is_planned_on_devices_that_a_node_holds_of_a_claim_that_is_allocated_elsewhere() {
    let (mut bench, node, other) = has_its_claim_elsewhere(5);
    let Object::ResourceClaim(claim) = claim("train-0", keys::DEVICE_CLASS_GPU) else {
        unreachable!()
    };
    let mut claim = Arc::unwrap_or_clone(claim);
    claim.status = serde_json::from_value(json!({"allocation": {"devices": {"results": [
        {"request": "gpu", "driver": keys::DRIVER, "pool": other, "device": "gpu-0"},
    ]}}}))
    .unwrap();
    bench.server.put(Object::ResourceClaim(Arc::new(claim)));
    bench.runs_on("train-1", other);
    comes_back_with_the_claim(&mut bench, node);
    // Its quota is enough; of the four GPUs two are free.
    bench.gang("next", 3);
    bench.run();
    let is_gated = |bench: &Bench, pod: &str| {
        let spec = bench.server.pod(pod).unwrap().spec.unwrap();
        spec.scheduling_gates.is_some_and(|gates| !gates.is_empty())
    };
    assert!(is_gated(&bench, "next-0"), "one has no device");
    bench.holding.clear();
    bench.run();
    assert!(!is_gated(&bench, "next-0"), "what was held is free");
}

#[test]
fn a_gang_says_which_node_it_lost_avoids_it_and_pauses_if_it_loses_it_soon_again() {
    let (mut bench, node, other) = running_of(4);
    die(&mut bench, node);
    pass(&mut bench, 250);
    let status = bench.gang_status();
    let named = status.evictions[0].node.as_deref();
    assert_eq!(
        (status.evictions[0].reason, named),
        (Reason::NodeLost, Some(node))
    );
    assert_eq!(status.requeue_at, None, "the gang is not to blame");
    bench.silent_drivers.clear();
    set_ready(&mut bench, node, "True");
    bench.run();
    bench.pod("train", 1, 1, keys::DEVICE_CLASS_GPU);
    bench.server.remove(&pod_key("train-0"));
    pass(&mut bench, 5);
    let placement = bench.gang_status().placement.unwrap();
    assert_eq!(placement.node_of(0).unwrap().node, other);
    bench.runs_on("train-1", other);
    bench.run();
    die(&mut bench, other);
    pass(&mut bench, 250);
    let status = bench.gang_status();
    let evicted = status.evictions[1].at.0.as_second();
    assert_eq!(status.requeue_at.unwrap().0.as_second() - evicted, 30);
}

#[test]
fn a_gang_that_was_not_let_go_waits_for_no_release_on_a_lost_node() {
    let mut bench = Bench::new();
    bench.server.put(team("vision", 1));
    bench.gang("train", 1);
    let ungates = |write: &ApiRequest| matches!(write, ApiRequest::PatchPod { .. });
    assert!(bench.run_until(ungates));
    let node = if bench.has_permits("n0") { "n0" } else { "n1" };
    bench.machine.withhold_ungating(true);
    die(&mut bench, node);
    // The ungate that was under way is lost.
    bench.take_over();
    bench.machine.withhold_ungating(true);
    pass(&mut bench, 55);
    let waits = bench.gang_status().queue.unwrap().reason;
    assert_eq!(waits, Reason::WaitingForRelease);
    pass(&mut bench, 15);
    assert!(is_lost(&bench, node));
    assert!(bench.gang_status().admission.is_some(), "planned elsewhere");
    let other = if node == "n0" { "n1" } else { "n0" };
    assert!(bench.has_permits(other));
}

#[test]
fn out_of_service_is_proof_at_once_if_the_kubelet_is_silent() {
    for (readiness, is_proof) in [("Unknown", true), ("False", false), ("True", false)] {
        let (mut bench, node, _) = running_of(4);
        bench.silent_drivers.insert(node.to_owned());
        set_ready(&mut bench, node, readiness);
        set_out_of_service(&mut bench, node);
        pass(&mut bench, 20);
        let evicted = bench.gang_status().attempt == 2;
        let seen = (evicted, !bench.has_permits(node), is_lost(&bench, node));
        assert_eq!(seen, (is_proof, is_proof, is_proof), "Ready is {readiness}");
    }
}

/// Its kubelet takes the slices away when it starts and no driver comes. The permits are gone by then, and only the driver knows better.
#[test]
fn a_node_that_was_out_of_service_is_back_when_its_driver_says_what_it_holds_though_it_publishes_nothing_yet()
 {
    let (mut bench, node, _) = running_of(4);
    let claims = vec!["claim-of-train-0".to_owned()];
    bench.silent_drivers.insert(node.to_owned());
    set_ready(&mut bench, node, "Unknown");
    set_out_of_service(&mut bench, node);
    bench.server.remove(&pod_key("train-0"));
    pass(&mut bench, 20);
    assert!(is_lost(&bench, node) && !bench.has_permits(node));
    bench.server.remove(&ObjectKey {
        kind: Kind::ResourceSlice,
        namespace: String::new(),
        name: format!("{node}-gpus"),
    });
    pass(&mut bench, 130);
    change_node(&mut bench, node, |node| {
        node.spec.as_mut().unwrap().taints = None;
    });
    set_ready(&mut bench, node, "True");
    pass(&mut bench, 10);
    assert!(is_lost(&bench, node), "its driver says nothing yet");
    bench.silent_drivers.clear();
    bench.holding.insert(node.to_owned(), claims.clone());
    let [_, slice] = node_with_gpus(node, 2);
    bench.server.put(slice);
    bench.run();
    let back = spec(&bench, node);
    assert!(!back.lost && !back.awaits_driver, "{back:?}");
    let permits: Vec<_> = back.permits.iter().map(|it| &it.claim_uids).collect();
    assert_eq!(permits, [&claims]);
}

#[test]
fn a_deleted_node_is_proof_together_with_the_pod_and_its_object_goes_without_a_hand() {
    let (mut bench, node, _) = running_of(4);
    bench.silent_drivers.insert(node.to_owned());
    bench.server.remove(&node_key(node));
    pass(&mut bench, 55);
    assert_eq!(used(&bench), Amount::ONE_GPU);
    pass(&mut bench, 180);
    assert_eq!(bench.gang_status().attempt, 1);
    pass(&mut bench, 10);
    assert_eq!(bench.gang_status().attempt, 2, "evicted after 240 s");
    assert!(bench.has_permits(node), "its pod may run there");
    bench.server.remove(&pod_key("train-0"));
    pass(&mut bench, 10);
    assert_eq!(used(&bench), Amount::ZERO);
    assert!(bench.server.node_devices(node).is_none());
    // One that comes again gets one of its own.
    for object in node_with_gpus(node, 2) {
        bench.server.put(object);
    }
    bench.silent_drivers.clear();
    bench.run();
    let again = spec(&bench, node);
    assert_eq!(again.node_uid, format!("{node}-uid-1"));
}

/// A defect once: it was permitted again and released again without end, each time by a write.
#[test]
fn what_a_machine_without_its_node_still_lists_as_held_comes_back_with_the_node_and_not_before() {
    let (mut bench, node, _) = running_of(4);
    let claims = vec!["claim-of-train-0".to_owned()];
    bench.holding.insert(node.to_owned(), claims.clone());
    bench.run();
    bench.server.remove(&node_key(node));
    bench.server.remove(&pod_key("train-0"));
    pass(&mut bench, 10);
    assert_eq!(spec(&bench, node).permits, []);
    assert_eq!(used(&bench), Amount::ZERO);
    for object in node_with_gpus(node, 2) {
        bench.server.put(object);
    }
    bench.run();
    let again = spec(&bench, node).permits;
    assert_eq!(again.len(), 1);
    assert!(
        again[0].withdrawn && again[0].claim_uids == claims,
        "{again:?}"
    );
}

#[test]
fn a_pod_that_is_gone_with_its_node_costs_its_gang_the_attempt_at_once() {
    let mut bench = Bench::new();
    for node in ["n0", "n1"] {
        for object in node_with_gpus(node, 1) {
            bench.server.put(object);
        }
    }
    bench.gang("train", 2);
    bench.run();
    for (pod, node) in [("train-0", "n0"), ("train-1", "n1")] {
        bench.runs_on(pod, node);
    }
    bench.run();
    bench.silent_drivers.insert("n0".to_owned());
    bench.server.remove(&node_key("n0"));
    bench.server.remove(&pod_key("train-0"));
    bench.run_at_once();
    let status = bench.gang_status();
    let causes: Vec<Reason> = status.evictions.iter().map(|it| it.reason).collect();
    assert_eq!((status.attempt, causes), (2, vec![Reason::NodeLost]));
    pass(&mut bench, 3);
    assert!(!bench.has_permits("n0"), "released with the pod");
}

#[test]
fn what_the_watch_says_of_a_node_is_no_proof_unless_the_store_says_so_too() {
    let (mut bench, node, _) = running_of(4);
    bench.silent_drivers.insert(node.to_owned());
    bench.server.remove(&pod_key("train-0"));
    pass(&mut bench, 5);
    // A watch that tells late: the Node is there again.
    bench.machine.observe(Change::Deleted(node_key(node)));
    bench.checks_polls = false;
    pass(&mut bench, 70);
    assert!(bench.has_permits(node));
    assert!(!is_lost(&bench, node));
}

#[test]
fn of_many_nodes_none_is_lost_until_a_minute_after_the_outage() {
    let (mut bench, node, _) = running_of(4);
    add_nodes(&mut bench, 2..12);
    let dying = ["n0", "n1", "n2"];
    for node in dying {
        die(&mut bench, node);
    }
    pass(&mut bench, 400);
    assert!(dying.iter().all(|node| !is_lost(&bench, node)));
    assert_eq!(bench.gang_status().attempt, 1, "nobody is evicted for it");
    bench.silent_drivers.remove("n2");
    set_ready(&mut bench, "n2", "True");
    // The others are about to come back as well.
    pass(&mut bench, 55);
    assert!(dying.iter().all(|node| !is_lost(&bench, node)));
    pass(&mut bench, 10);
    assert!(is_lost(&bench, "n0") && is_lost(&bench, "n1"));
    assert!(!is_lost(&bench, "n2"));
    pass(&mut bench, 170);
    assert_eq!(bench.gang_status().attempt, 1);
    bench.silent_drivers.remove(node);
    set_ready(&mut bench, node, "True");
    pass(&mut bench, 10);
    assert_eq!(bench.gang_status().attempt, 1, "its node came back in time");
}

#[test]
fn a_node_that_was_lost_before_an_outage_costs_no_gang_its_attempt_during_it() {
    let (mut bench, node, other) = running_of(4);
    add_nodes(&mut bench, 2..12);
    die(&mut bench, node);
    pass(&mut bench, 70);
    assert!(is_lost(&bench, node));
    die(&mut bench, other);
    die(&mut bench, "n2");
    pass(&mut bench, 300);
    assert_eq!(bench.gang_status().attempt, 1);
    for back in [other, "n2"] {
        bench.silent_drivers.remove(back);
        set_ready(&mut bench, back, "True");
    }
    pass(&mut bench, 160);
    assert_eq!(bench.gang_status().attempt, 1, "it counts for nothing");
    pass(&mut bench, 20);
    assert_eq!(bench.gang_status().attempt, 2);
}

#[test]
fn one_node_that_comes_and_goes_keeps_no_dead_one_from_being_marked_and_its_gang_from_being_evicted()
 {
    let (mut bench, node, other) = running_of(4);
    add_nodes(&mut bench, 2..12);
    die(&mut bench, node);
    die(&mut bench, other);
    let causes = |bench: &Bench| {
        let status = bench.gang_status();
        let causes = status.evictions.iter().map(|it| it.reason);
        causes.collect::<Vec<_>>()
    };
    // A kubelet that is starved for 40 seconds each two minutes.
    for round in 0..6 {
        assert_eq!(is_lost(&bench, node), round > 0);
        pass(&mut bench, 80);
        die(&mut bench, "n2");
        pass(&mut bench, 40);
        bench.silent_drivers.remove("n2");
        set_ready(&mut bench, "n2", "True");
    }
    assert!(is_lost(&bench, other) && !is_lost(&bench, "n2"));
    assert_eq!(causes(&bench), [Reason::NodeLost]);
}

#[test]
fn dead_nodes_that_nobody_removes_keep_their_flavor_in_an_outage_for_an_hour_only() {
    let (mut bench, node, other) = running_of(4);
    add_nodes(&mut bench, 2..12);
    for dead in [node, other, "n2"] {
        die(&mut bench, dead);
    }
    let pass = |bench: &mut Bench, seconds: u64| {
        let end = bench.seconds + seconds;
        while bench.seconds < end {
            // A leader is asked every ten seconds at least.
            let most = end.min(bench.seconds + 10);
            let due = bench.machine.next_due();
            bench.seconds = due.map_or(most, |due| due.clamp(bench.seconds + 1, most));
            bench.run_at_once();
        }
    };
    pass(&mut bench, 3_590);
    assert!(!is_lost(&bench, node));
    pass(&mut bench, 80);
    assert!(is_lost(&bench, node) && is_lost(&bench, "n2"));
    assert_eq!(bench.gang_status().attempt, 1);
    pass(&mut bench, 190);
    assert_eq!(bench.gang_status().attempt, 2);
}

#[test]
fn a_node_that_dies_after_it_was_registered_again_is_lost_to_what_still_runs_there() {
    let (mut bench, node, _) = running_of(4);
    bench.server.remove(&node_key(node));
    for object in node_with_gpus(node, 2) {
        bench.server.put(object);
    }
    bench.run();
    assert_eq!(spec(&bench, node).node_uid, format!("{node}-uid-1"));
    assert_eq!(bench.gang_status().attempt, 1, "its pod lives on");
    die(&mut bench, node);
    pass(&mut bench, 250);
    let status = bench.gang_status();
    let causes: Vec<Reason> = status.evictions.iter().map(|it| it.reason).collect();
    assert_eq!((status.attempt, causes), (2, vec![Reason::NodeLost]));
}

#[test]
fn no_gang_is_evicted_for_a_node_that_is_back_while_the_watch_stands_still() {
    let (mut bench, node, _) = running_of(4);
    die(&mut bench, node);
    pass(&mut bench, 70);
    assert!(is_lost(&bench, node));
    set_ready(&mut bench, node, "True");
    drop(bench.server.news());
    pass(&mut bench, 300);
    assert_eq!(bench.gang_status().attempt, 1);
}

#[test]
fn nodes_that_are_deleted_all_at_once_with_pods_on_them_are_an_outage() {
    let (mut bench, node, _) = running_of(30);
    add_nodes(&mut bench, 2..12);
    bench.gang("more", 15);
    bench.run();
    let mut deleted = vec![node.to_owned()];
    for name in (0..12).map(|number| format!("n{number}")) {
        for permit in spec(&bench, &name).permits {
            let pods = bench.server.list(Kind::Pod).into_iter();
            let mut keys = pods.filter_map(|pod| match &pod {
                Object::Pod(it) if it.metadata.uid.as_ref() == Some(&permit.pod_uid) => {
                    Some(pod.key())
                }
                _ => None,
            });
            let pod = keys.next().unwrap().name;
            bench.runs_on(&pod, &name);
        }
        if name != node && deleted.len() < 3 && bench.has_permits(&name) {
            deleted.push(name);
        }
    }
    bench.run();
    assert_eq!(deleted.len(), 3);
    for name in &deleted {
        bench.silent_drivers.insert(name.clone());
        bench.server.remove(&node_key(name));
    }
    pass(&mut bench, 400);
    assert!(deleted.iter().all(|name| !is_lost(&bench, name)));
    let mut permits = deleted.iter().flat_map(|name| spec(&bench, name).permits);
    assert!(permits.all(|permit| !permit.withdrawn), "none is evicted");
}

#[test]
fn a_pod_that_is_being_deleted_is_waited_for_until_its_node_is_lost() {
    let (mut bench, node, _) = running_of(4);
    add_nodes(&mut bench, 2..12);
    let dying = ["n2", "n3", node];
    for node in dying {
        die(&mut bench, node);
    }
    pass(&mut bench, 60);
    bench.change_pod("train-0", |pod| {
        pod.metadata.deletion_timestamp = Some(Time(Timestamp::UNIX_EPOCH));
    });
    bench.pod("train", 1, 1, keys::DEVICE_CLASS_GPU);
    pass(&mut bench, 100);
    let status = bench.gang_status();
    assert_eq!(status.attempt, 2, "its pod is to be replaced");
    assert!(status.admission.is_none(), "its old pod may run on");
    bench.silent_drivers.remove("n2");
    set_ready(&mut bench, "n2", "True");
    pass(&mut bench, 100);
    assert!(is_lost(&bench, node));
    assert!(bench.gang_status().admission.is_some());
}

#[test]
fn a_gang_that_was_deleted_is_left_alone_though_its_last_pod_hangs_on_a_lost_node() {
    for is_deleted in [true, false] {
        let (mut bench, node, _) = running_of(4);
        die(&mut bench, node);
        pass(&mut bench, 100);
        if is_deleted {
            bench.change_pod("train-0", |pod| {
                pod.metadata.deletion_timestamp = Some(Time(Timestamp::UNIX_EPOCH));
            });
        }
        pass(&mut bench, 200);
        let attempt = if is_deleted { 1 } else { 2 };
        assert_eq!(bench.gang_status().attempt, attempt, "{is_deleted}");
    }
}

#[test]
fn nothing_is_planned_on_a_node_that_was_made_again_before_its_driver_has_answered() {
    let (mut bench, node, other) = running_of(4);
    bench.silent_drivers.insert(node.to_owned());
    // Its kubelet registers it again; what runs there lives on.
    bench.server.remove(&node_key(node));
    for object in node_with_gpus(node, 2) {
        bench.server.put(object);
    }
    bench.run();
    let again = spec(&bench, node);
    assert_eq!(again.node_uid, format!("{node}-uid-1"));
    assert!(again.awaits_driver && !again.lost);
    assert_eq!(again.permits.len(), 1, "its pod is still bound there");
    assert_eq!(used(&bench), Amount::ONE_GPU);
    bench.gang("more", 3);
    bench.run();
    let permits = |bench: &Bench, node: &str| spec(bench, node).permits.len();
    assert_eq!((permits(&bench, node), permits(&bench, other)), (1, 0));
    bench.silent_drivers.clear();
    bench.run();
    assert!(!spec(&bench, node).awaits_driver);
    assert_eq!((permits(&bench, node), permits(&bench, other)), (2, 2));
}

#[test]
fn a_driver_that_is_silent_on_a_ready_node_takes_no_gangs_and_holds_no_quota_for_ever() {
    let (mut bench, node, other) = running_of(2);
    bench.silent_drivers.insert(node.to_owned());
    bench.server.remove(&pod_key("train-0"));
    pass(&mut bench, 70);
    bench.gang("more", 1);
    pass(&mut bench, 10);
    assert!(bench.has_permits(other), "planned where a driver answers");
    assert_eq!(used(&bench), Amount(2 * Amount::ONE_GPU.0));
    pass(&mut bench, 230);
    assert!(bench.has_permits(node), "nothing is proved");
    assert_eq!(used(&bench), Amount::ONE_GPU);
    bench.silent_drivers.clear();
    bench.run();
    assert!(!bench.has_permits(node));
}

#[test]
fn a_silent_driver_frees_nothing_that_a_live_permit_covers() {
    let (mut bench, node, _) = running_of(4);
    // Something is written that it does not acknowledge.
    bench.silent_drivers.insert(node.to_owned());
    let mut devices = bench.server.node_devices(node).unwrap();
    devices.metadata.generation = devices.metadata.generation.map(|it| it + 1);
    bench.server.put(Object::NodeDevices(Arc::new(devices)));
    pass(&mut bench, 400);
    let pod = bench.server.pod("train-0").unwrap();
    assert_eq!(bound_node(&pod), Some(node));
    assert_eq!(used(&bench), Amount::ONE_GPU);
}

#[test]
fn a_cluster_in_which_nothing_happens_reads_no_node() {
    let (mut bench, ..) = running_of(4);
    let mut read = BTreeSet::new();
    for _ in 0..200 {
        bench.seconds += 1;
        for effect in bench.poll() {
            if let ApiRequest::ReadObject { key } = &*effect.write {
                read.insert(key.name.clone());
            }
            bench.perform(&effect);
        }
    }
    assert!(read.is_empty(), "{read:?}");
}

#[test]
fn a_node_that_was_made_again_is_read_once_while_the_write_of_its_permits_is_under_way() {
    let (mut bench, node, _) = running_of(4);
    // Its driver says nothing: only the Node can prove that what its pod held is released.
    bench.silent_drivers.insert(node.to_owned());
    bench.server.remove(&pod_key("train-0"));
    bench.run();
    bench.server.remove(&node_key(node));
    for object in node_with_gpus(node, 2) {
        bench.server.put(object);
    }
    let mut reads = 0;
    for _ in 0..20 {
        for effect in bench.poll() {
            if matches!(&*effect.write, ApiRequest::ReadObject { key } if key.kind == Kind::Node) {
                reads += 1;
                bench.perform(&effect);
            }
        }
    }
    assert_eq!(reads, 1);
}
