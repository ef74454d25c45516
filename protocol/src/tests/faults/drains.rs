//! What a person drains by hand: who is moved, when, and who is told that it stays.

use k8s_openapi::api::core::v1::{Node, Taint, Toleration};

use super::*;
use crate::OnCordon;

fn moving(mode: Mode) -> Config {
    Config {
        recovery: Recovery {
            mode,
            on_cordon: OnCordon::Move,
            ..config().recovery
        },
        ..config()
    }
}

/// Gangs of one pod each run, whose pods somebody makes again.
fn made_and_running(config: Config, gangs: &[&str], nodes: usize) -> Bench {
    let mut bench = running_with(config, gangs, nodes);
    for gang in gangs {
        bench.change_pod(&format!("{gang}-0"), |pod| {
            let owner = json!([{
                "apiVersion": "apps/v1", "kind": "StatefulSet", "name": gang, "uid": format!("set-{gang}"), "controller": true,
            }]);
            pod.metadata.owner_references = serde_json::from_value(owner).unwrap();
        });
    }
    bench.run();
    bench
}

fn node_named(bench: &Bench, name: &str) -> Node {
    let nodes = bench.server.list(Kind::Node).into_iter();
    let mut nodes = nodes.filter_map(|object| match object {
        Object::Node(node) => Some(node),
        _ => None,
    });
    let node = nodes.find(|node| node.metadata.name.as_deref() == Some(name));
    Node::clone(&node.unwrap())
}

fn cordoned(bench: &Bench, name: &str, is_cordoned: bool) -> Object {
    let mut node = node_named(bench, name);
    node.spec.get_or_insert_default().unschedulable = is_cordoned.then_some(true);
    Object::Node(Arc::new(node))
}

fn cordon(bench: &mut Bench, name: &str, is_cordoned: bool) {
    let node = cordoned(bench, name, is_cordoned);
    bench.server.put(node);
}

fn reads(write: &ApiRequest) -> bool {
    matches!(
        write,
        ApiRequest::ReadObject { key } if matches!(key.kind, Kind::Node | Kind::DeviceTaintRule)
    )
}

/// The taint by which a node is drained.
fn taint_node(bench: &mut Bench, name: &str) {
    let mut node = node_named(bench, name);
    node.spec.get_or_insert_default().taints = Some(vec![Taint {
        key: keys::TAINT_DRAIN.to_owned(),
        value: Some("alice.fan".to_owned()),
        effect: "NoSchedule".to_owned(),
        time_added: None,
    }]);
    bench.server.put(Object::Node(Arc::new(node)));
}

/// The rule that drains the device of a pod.
fn rule_device(bench: &mut Bench, pod: &str) {
    let (node, gpu) = device_of(bench, pod);
    bench.server.put(Object::DeviceTaintRule(parse(json!({
        "metadata": {"name": "swap"},
        "spec": {
            "deviceSelector": {"driver": keys::DRIVER, "pool": node, "device": format!("gpu-{gpu}")},
            "taint": {"key": "example.com/swap", "value": "bob.xid", "effect": "NoSchedule"},
        },
    }))));
}

/// A claim that others use as well stays allocated while they end. Who was moved away does not come back to the device by it.
#[test]
fn a_gang_waits_for_a_claim_whose_device_is_drained_until_it_is_released_or_the_drain_is_over() {
    let allocated = |is_allocated: bool| {
        let devices = json!({"results": [
            {"request": "gpu", "driver": keys::DRIVER, "pool": "n0", "device": "gpu-1"},
        ]});
        Object::ResourceClaim(parse(json!({
            "metadata": {"name": "late-0", "namespace": "ml", "uid": "claim-of-late-0"},
            "spec": {"devices": {"requests": [
                {"name": "gpu", "exactly": {"deviceClassName": keys::DEVICE_CLASS_GPU, "allocationMode": "ExactCount", "count": 1}},
            ]}},
            "status": if is_allocated { json!({"allocation": {"devices": devices}}) } else { json!({}) },
        })))
    };
    for is_released in [true, false] {
        let mut bench = running_with(moving(Mode::Enforce), &[], 2);
        bench.server.put(Object::DeviceTaintRule(parse(json!({
            "metadata": {"name": "swap"},
            "spec": {
                "deviceSelector": {"driver": keys::DRIVER, "pool": "n0", "device": "gpu-1"},
                "taint": {"key": "example.com/swap", "value": "bob.xid", "effect": "NoSchedule"},
            },
        }))));
        bench.run();
        bench.gang("late", 1);
        bench.server.put(allocated(true));
        pass(&mut bench, 5);
        let queue = status_of(&bench, "late").queue.unwrap();
        assert_eq!(queue.reason, Reason::WaitingForRelease, "{}", queue.details);
        for said in [
            "late-0",
            "gpu-1",
            "DeviceTaintRule swap",
            "delete the claim",
        ] {
            assert!(queue.details.contains(said), "{said}: {}", queue.details);
        }
        if is_released {
            bench.server.put(allocated(false));
        } else {
            let rule = ObjectKey {
                kind: Kind::DeviceTaintRule,
                namespace: String::new(),
                name: "swap".to_owned(),
            };
            bench.server.remove(&rule);
        }
        pass(&mut bench, 60);
        let phase = status_of(&bench, "late").phase;
        assert_eq!(phase, GangPhase::Admitted, "released: {is_released}");
    }
}

#[test]
fn with_move_each_way_to_drain_moves_who_runs_there_once_the_store_has_said_so() {
    for (how, says) in [
        ("cordon", "is cordoned"),
        ("taint", "(taint muster.dev/drain: \"alice.fan\")"),
        (
            "rule",
            "DeviceTaintRule swap (example.com/swap: \"bob.xid\")",
        ),
    ] {
        let mut bench = made_and_running(moving(Mode::Enforce), &["train"], 2);
        let node = node_of(&bench, "train-0");
        match how {
            "cordon" => cordon(&mut bench, &node, true),
            "taint" => taint_node(&mut bench, &node),
            _ => rule_device(&mut bench, "train-0"),
        }
        bench.written.clear();
        bench.run();
        assert_eq!(evictions(&bench, "train"), [Reason::Drained], "{how}");
        let eviction = status_of(&bench, "train").evictions.remove(0);
        assert_eq!(eviction.node.as_deref(), Some(node.as_str()), "{how}");
        let message = &eviction.message;
        assert!(message.contains(says), "{how}: {message}");
        assert!(message.contains("moved elsewhere"), "{how}: {message}");
        assert_eq!(breaker(&bench), Breaker::default(), "a person asked for it");
        let writes = bench.written.iter();
        let order: Vec<bool> = writes
            .filter(|write| reads(write) || evicts(write))
            .map(reads)
            .collect();
        assert!(order.starts_with(&[true, false]), "{how}: {order:?}");
        assert_eq!(order.iter().filter(|read| **read).count(), 1, "{how}");
    }
}

#[test]
fn as_it_ships_a_drain_moves_nobody() {
    let mut bench = made_and_running(config(), &["train"], 2);
    let node = node_of(&bench, "train-0");
    rule_device(&mut bench, "train-0");
    taint_node(&mut bench, &node);
    cordon(&mut bench, &node, true);
    bench.written.clear();
    pass(&mut bench, 100);
    assert!(evictions(&bench, "train").is_empty());
    assert_eq!(degraded(&bench, "train"), "");
    assert!(!bench.written.iter().any(reads));
}

#[test]
fn who_only_observes_is_told_and_moves_nobody() {
    let mut bench = made_and_running(moving(Mode::Observe), &["train"], 2);
    let node = node_of(&bench, "train-0");
    cordon(&mut bench, &node, true);
    bench.written.clear();
    pass(&mut bench, 100);
    assert!(evictions(&bench, "train").is_empty());
    assert!(!bench.written.iter().any(reads));
    let degraded = degraded(&bench, "train");
    assert!(degraded.starts_with("Drained: rank 0: node"), "{degraded}");
    assert!(degraded.contains("only observes"), "{degraded}");
    cordon(&mut bench, &node, false);
    pass(&mut bench, 5);
    assert_eq!(self::degraded(&bench, "train"), "");
}

#[test]
fn while_the_circuit_breaker_is_open_nobody_is_moved() {
    let mut bench = made_and_running(moving(Mode::Enforce), &["train"], 2);
    let node = node_of(&bench, "train-0");
    let mut ledger = bench.server.ledger().unwrap();
    ledger.spec.breaker.opened_at = Some(Time(Timestamp::from_second(1_800_000_900).unwrap()));
    bench.server.put(Object::Ledger(Arc::new(ledger)));
    cordon(&mut bench, &node, true);
    pass(&mut bench, 100);
    assert!(evictions(&bench, "train").is_empty());
    let told = degraded(&bench, "train");
    assert!(told.contains("circuit breaker"), "{told}");
    let mut ledger = bench.server.ledger().unwrap();
    ledger.spec.breaker.opened_at = None;
    bench.server.put(Object::Ledger(Arc::new(ledger)));
    bench.run();
    assert_eq!(evictions(&bench, "train"), [Reason::Drained]);
}

#[test]
fn s18_a_drain_that_the_store_does_not_show_moves_nobody() {
    let mut bench = made_and_running(moving(Mode::Enforce), &["train"], 2);
    let node = node_of(&bench, "train-0");
    // What the watch tells is from before: it is uncordoned by now.
    let mut stale = cordoned(&bench, &node, true);
    if let Object::Node(node) = &mut stale {
        Arc::make_mut(node).metadata.resource_version = Some("1000000".to_owned());
    }
    bench.machine.observe(Change::Applied(stale));
    bench.written.clear();
    pass(&mut bench, 100);
    assert!(evictions(&bench, "train").is_empty());
    let reads = bench.written.iter().filter(|it| reads(it)).count();
    assert!((2..=5).contains(&reads), "{reads} reads in 100 s");
}

#[test]
fn no_more_are_moved_than_there_is_room_for_and_who_stays_is_told_what_is_missing() {
    // Two nodes of two GPUs, all of them in use.
    let gangs = ["a", "b", "c", "d"];
    let mut bench = made_and_running(moving(Mode::Enforce), &gangs, 2);
    let drained = node_of(&bench, "a-0");
    let pods = gangs.map(|gang| (gang, node_of(&bench, &format!("{gang}-0"))));
    let (there, elsewhere): (Vec<_>, Vec<_>) =
        pods.into_iter().partition(|(_, node)| *node == drained);
    cordon(&mut bench, &drained, true);
    pass(&mut bench, 100);
    let moved = |bench: &Bench| {
        let moved = there
            .iter()
            .filter(|(gang, _)| !evictions(bench, gang).is_empty());
        moved.count()
    };
    assert_eq!(moved(&bench), 0);
    let told = degraded(&bench, there[0].0);
    let expected = "it stays, as without what is drained there is no place";
    assert!(told.contains(expected), "{told}");
    assert!(told.contains("cordoned"), "{told}");
    // One of the others ends, and its GPU comes free.
    let (gang, _) = &elsewhere[0];
    let pod = format!("{gang}-0");
    bench.ends(&pod);
    bench.server.put(claim(&pod, keys::DEVICE_CLASS_GPU));
    let is_under_way = (0..60).any(|_| {
        bench.seconds += 1;
        bench.run_for(0, ends_pod)
    });
    assert!(is_under_way, "it is looked again now and then");
    assert_eq!(moved(&bench), 1, "there is room for one");
}

fn ends_pod(write: &ApiRequest) -> bool {
    matches!(write, ApiRequest::DeletePod { .. })
}

#[test]
fn one_node_is_drained_after_another() {
    let gangs = ["a", "b", "c"];
    let mut bench = made_and_running(moving(Mode::Enforce), &gangs, 6);
    // Three gangs are on more than one node of two GPUs.
    let nodes = gangs.map(|gang| node_of(&bench, &format!("{gang}-0")));
    for node in &nodes {
        cordon(&mut bench, node, true);
    }
    bench.run_until(ends_pod);
    let mut later = 0;
    for (gang, node) in gangs.iter().zip(&nodes) {
        let found = evictions(&bench, gang);
        let expected: &[Reason] = if *node == nodes[0] {
            &[Reason::Drained]
        } else {
            later += 1;
            &[]
        };
        assert_eq!(found, expected, "{gang} on {node}");
    }
    assert!(later > 0);
    // Nobody makes their pods anew, so the turn of their node ends by time.
    pass(&mut bench, 700);
    for gang in gangs {
        assert_eq!(evictions(&bench, gang), [Reason::Drained], "{gang}");
    }
}

#[test]
fn whose_pods_nobody_makes_again_stays_and_is_told_so() {
    let mut bench = running_with(moving(Mode::Enforce), &["train"], 2);
    let node = node_of(&bench, "train-0");
    cordon(&mut bench, &node, true);
    bench.written.clear();
    pass(&mut bench, 100);
    assert!(evictions(&bench, "train").is_empty());
    assert!(!bench.written.iter().any(reads));
    let told = degraded(&bench, "train");
    let says_why = told.contains("it is not moved, since nobody would make its pods again");
    assert!(says_why, "{told}");
}

#[test]
fn s18_what_drains_others_moves_nobody_who_tolerates_it() {
    let mut bench = made_and_running(moving(Mode::Enforce), &["train"], 2);
    bench.change_pod("train-0", |pod| {
        let spec = pod.spec.as_mut().unwrap();
        spec.tolerations = Some(vec![Toleration {
            key: Some(keys::TAINT_DRAIN.to_owned()),
            operator: Some("Exists".to_owned()),
            ..Toleration::default()
        }]);
    });
    let node = node_of(&bench, "train-0");
    taint_node(&mut bench, &node);
    pass(&mut bench, 40);
    assert_eq!(degraded(&bench, "train"), "");
    // What the watch tells is from before: it is uncordoned by now, and still drained for others.
    let mut stale = cordoned(&bench, &node, true);
    if let Object::Node(node) = &mut stale {
        Arc::make_mut(node).metadata.resource_version = Some("1000000".to_owned());
    }
    bench.machine.observe(Change::Applied(stale));
    bench.written.clear();
    pass(&mut bench, 40);
    assert!(bench.written.iter().any(reads), "the store is asked");
    assert!(evictions(&bench, "train").is_empty());
}

#[test]
fn s18_a_rule_that_selects_another_device_by_now_moves_nobody() {
    let mut bench = made_and_running(moving(Mode::Enforce), &["train"], 2);
    let (node, gpu) = device_of(&bench, "train-0");
    let rule = |gpu: usize, version: &str| {
        Object::DeviceTaintRule(parse(json!({
            "metadata": {"name": "swap", "resourceVersion": version},
            "spec": {
                "deviceSelector": {"driver": keys::DRIVER, "pool": node, "device": format!("gpu-{gpu}")},
                "taint": {"key": "example.com/swap", "effect": "NoSchedule"},
            },
        })))
    };
    bench.server.put(rule(1 - gpu, "1"));
    pass(&mut bench, 5);
    // What the watch tells is from before.
    bench.machine.observe(Change::Applied(rule(gpu, "1000000")));
    bench.written.clear();
    pass(&mut bench, 40);
    assert!(bench.written.iter().any(reads), "the store is asked");
    assert!(evictions(&bench, "train").is_empty());
}

#[test]
fn a_drain_that_the_store_does_not_show_keeps_no_other_node_waiting() {
    let gangs = ["a", "b", "c"];
    let mut bench = made_and_running(moving(Mode::Enforce), &gangs, 6);
    let first = node_of(&bench, "a-0");
    let other = gangs
        .into_iter()
        .find(|gang| node_of(&bench, &format!("{gang}-0")) != first);
    let other = other.unwrap();
    let mut stale = cordoned(&bench, &first, true);
    if let Object::Node(node) = &mut stale {
        Arc::make_mut(node).metadata.resource_version = Some("1000000".to_owned());
    }
    bench.machine.observe(Change::Applied(stale));
    pass(&mut bench, 5);
    let node = node_of(&bench, &format!("{other}-0"));
    cordon(&mut bench, &node, true);
    bench.run();
    assert_eq!(evictions(&bench, other), [Reason::Drained]);
    assert!(evictions(&bench, "a").is_empty());
}

#[test]
fn each_of_many_that_have_no_place_is_told_so() {
    let names: Vec<String> = (0..12).map(|gang| format!("g{gang}")).collect();
    let gangs: Vec<&str> = names.iter().map(String::as_str).collect();
    // All GPUs of six nodes are in use.
    let mut bench = made_and_running(moving(Mode::Enforce), &gangs, 6);
    for node in 0..6 {
        cordon(&mut bench, &format!("n{node}"), true);
    }
    let told = |bench: &Bench| {
        let told = gangs
            .iter()
            .filter(|gang| degraded(bench, gang).contains("no place"));
        told.count()
    };
    bench.run_at_once();
    assert_eq!(told(&bench), 0, "nobody at once: the nodes are read first");
    // How many in a second the table's own tests say: what is told comes in one write each, later.
    pass(&mut bench, 5);
    assert_eq!(told(&bench), 12, "each has its look");
}

#[test]
fn whose_team_is_on_hold_would_not_start_again_and_is_moved_once_it_may() {
    let mut bench = made_and_running(moving(Mode::Enforce), &["train"], 2);
    let hold = |stop: &str| {
        let mut object = team("vision", 4);
        if let Object::Team(team) = &mut object {
            Arc::make_mut(team).spec.stop = serde_json::from_value(stop.into()).unwrap();
        }
        object
    };
    bench.server.put(hold("Hold"));
    bench.run();
    let node = node_of(&bench, "train-0");
    cordon(&mut bench, &node, true);
    pass(&mut bench, 100);
    assert!(evictions(&bench, "train").is_empty());
    let told = degraded(&bench, "train");
    assert!(told.contains("is on hold"), "{told}");
    bench.server.put(hold("None"));
    bench.run();
    assert_eq!(evictions(&bench, "train"), [Reason::Drained]);
}

#[test]
fn pods_whose_gang_is_deleted_are_planned_anew_no_more() {
    let mut bench = made_and_running(moving(Mode::Enforce), &["train"], 2);
    let uid = bench.server.pod("train-0").unwrap().metadata.uid.unwrap();
    for node in ["n0", "n1"] {
        cordon(&mut bench, node, true);
    }
    pass(&mut bench, 5);
    assert!(bench.machine.index.filter_anew(&uid).is_some());
    for gang in bench.server.list(Kind::Gang) {
        bench.server.remove(&gang.key());
    }
    for node in ["n0", "n1"] {
        cordon(&mut bench, node, false);
    }
    pass(&mut bench, 5);
    assert!(bench.machine.index.filter_anew(&uid).is_none());
}
