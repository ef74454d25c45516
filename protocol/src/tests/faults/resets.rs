//! Resets of GPUs: which nodes are told that they may, how many within the window and at the same time, and whoever leads.

use muster_api::Remediation;

use super::*;
use crate::ResetLimits;

/// How long a node wants a reset before it has leave, in seconds.
const PATIENCE: u64 = ResetLimits::SHIPPED.patience_seconds;
/// How long a reset may go on that was begun before leave was withdrawn, in seconds.
const RUN_OUT: u64 = ResetLimits::SHIPPED.run_out_seconds;
/// How long a node has leave while others wait, in seconds.
const TURN: u64 = ResetLimits::SHIPPED.turn_seconds;

/// The driver of a node tells of a fault, or an anomaly, of this class, or that there is none.
fn tell(bench: &mut Bench, node: &str, class: Option<&str>) {
    tell_all(bench, node, class.as_slice());
}

/// The same of all of these, of one GPU.
fn tell_all(bench: &mut Bench, node: &str, classes: &[&str]) {
    let mut devices = bench.server.node_devices(node).unwrap();
    let fault = |class: &&str| muster_api::GpuFault {
        device: "gpu-0".to_owned(),
        gpu: "GPU-0".to_owned(),
        class: (*class).to_owned(),
        ..muster_api::GpuFault::default()
    };
    let status = devices.status.get_or_insert_default();
    status.faults = Some(classes.iter().map(fault).collect());
    bench.server.put(Object::NodeDevices(Arc::new(devices)));
    bench.run_at_once();
}

/// The driver of a node tells of a fault of the class Reset, and whether it would reset nothing for it, whatever it may.
fn tell_hindered(bench: &mut Bench, node: &str, reset_hindered: bool) {
    let mut devices = bench.server.node_devices(node).unwrap();
    let fault = muster_api::GpuFault {
        device: "gpu-0".to_owned(),
        gpu: "GPU-0".to_owned(),
        class: "Reset".to_owned(),
        reset_hindered,
        ..muster_api::GpuFault::default()
    };
    let status = devices.status.get_or_insert_default();
    status.faults = Some(vec![fault]);
    bench.server.put(Object::NodeDevices(Arc::new(devices)));
    bench.run_at_once();
}

fn remediation(bench: &Bench, node: &str) -> Option<Remediation> {
    let devices = bench.server.node_devices(node);
    devices.unwrap().spec.remediation
}

fn set_breaker(bench: &mut Bench, breaker: Breaker) {
    let mut ledger = bench.server.ledger().unwrap();
    ledger.spec.breaker = breaker;
    bench.server.put(Object::Ledger(Arc::new(ledger)));
    bench.run_at_once();
}

fn allows(write: &ApiRequest) -> bool {
    matches!(write, ApiRequest::ReplaceNodeDevices { spec, .. } if spec.remediation == Some(Remediation::Allowed))
}

fn names(nodes: usize) -> Vec<String> {
    (0..nodes).map(|node| format!("n{node}")).collect()
}

/// The nodes that are told that they may reset GPUs.
fn allowed(bench: &Bench, nodes: usize) -> Vec<String> {
    let mut names = names(nodes);
    names.retain(|node| remediation(bench, node) == Some(Remediation::Allowed));
    names
}

/// What was written to the Ledger and to NodeDevices.
fn decisive(bench: &Bench) -> Vec<&ApiRequest> {
    let is_decisive = |write: &&ApiRequest| {
        matches!(
            write,
            ApiRequest::ReplaceLedger { .. } | ApiRequest::ReplaceNodeDevices { .. }
        )
    };
    bench.written.iter().filter(is_decisive).collect()
}

/// As many at the same time, and any number within the window.
fn at_a_time(most_nodes: usize) -> Config {
    let mut config = config();
    config.recovery.breaker.share_percent = 100;
    config.recovery.resets.most_nodes = most_nodes;
    config
}

/// Nodes on which nothing runs.
fn idle(config: Config, nodes: usize) -> Bench {
    running_with(config, &[], nodes)
}

/// Seconds pass, in none of which more nodes are told that they may than that.
fn pass_with_at_most(bench: &mut Bench, seconds: u64, nodes: usize, most: usize) {
    for _ in 0..seconds {
        pass(bench, 1);
        let allowed = allowed(bench, nodes);
        let second = bench.seconds;
        assert!(allowed.len() <= most, "{allowed:?} in second {second}");
    }
}

#[test]
fn a_node_has_leave_once_that_is_recorded_and_until_nothing_is_wrong_any_more() {
    let mut bench = running(&["train"]);
    let (node, _) = device_of(&bench, "train-0");
    for class in ["Info", "Link", "Reboot"] {
        tell(&mut bench, &node, Some(class));
        pass(&mut bench, 2 * PATIENCE);
        assert_eq!(remediation(&bench, &node), None, "{class}");
    }
    bench.written.clear();
    tell(&mut bench, &node, Some("Reset"));
    pass(&mut bench, PATIENCE - 1);
    assert_eq!(remediation(&bench, &node), None);
    assert_eq!(decisive(&bench).len(), 0);
    pass(&mut bench, 1);
    assert_eq!(remediation(&bench, &node), Some(Remediation::Allowed));
    let records = |write: &ApiRequest| match write {
        ApiRequest::ReplaceLedger { spec, .. } => {
            spec.breaker.drained.iter().any(|it| it.node == node)
        }
        _ => false,
    };
    let order: Vec<bool> = decisive(&bench).into_iter().map(records).collect();
    assert_eq!(order, [true, false], "recorded, then told, and no more");
    assert!(evictions(&bench, "train").is_empty());
    // It counts for as long as a reset may be under way, and for the window from then on.
    pass(&mut bench, 1_000);
    assert_eq!(remediation(&bench, &node), Some(Remediation::Allowed));
    assert_eq!(bench.machine.breaker().evacuated_nodes, 1);
    tell(&mut bench, &node, None);
    assert_eq!(remediation(&bench, &node), None);
    pass(&mut bench, 598);
    assert_eq!(bench.machine.breaker().evacuated_nodes, 1);
    pass(&mut bench, 5);
    assert_eq!(bench.machine.breaker().evacuated_nodes, 0);
}

#[test]
fn while_the_breaker_is_open_leave_is_withheld_and_what_was_begun_may_end_before_it_is_given_again()
{
    let mut bench = running(&["train"]);
    let (node, _) = device_of(&bench, "train-0");
    tell(&mut bench, &node, Some("Reset"));
    pass(&mut bench, PATIENCE);
    assert_eq!(remediation(&bench, &node), Some(Remediation::Allowed));
    let open = Breaker {
        opened_at: Some(Time(Timestamp::from_second(1_800_000_000).unwrap())),
        ..Breaker::default()
    };
    set_breaker(&mut bench, open);
    assert_eq!(remediation(&bench, &node), Some(Remediation::Withheld));
    set_breaker(&mut bench, Breaker::default());
    pass(&mut bench, RUN_OUT + PATIENCE - 2);
    assert_eq!(remediation(&bench, &node), Some(Remediation::Withheld));
    pass(&mut bench, 4);
    assert_eq!(remediation(&bench, &node), Some(Remediation::Allowed));
    tell(&mut bench, &node, None);
    assert_eq!(remediation(&bench, &node), None);
}

#[test]
fn where_faults_are_only_told_or_nothing_is_to_be_reset_nobody_is_told_to_reset_anything() {
    let observing = Config {
        recovery: Recovery::default(),
        ..config()
    };
    let mut none = config();
    none.recovery.resets.most_nodes = 0;
    for config in [observing, none] {
        let mut bench = idle(config, 5);
        for node in names(5) {
            tell(&mut bench, &node, Some("Reset"));
        }
        bench.written.clear();
        pass(&mut bench, 100);
        assert_eq!(allowed(&bench, 5), Vec::<String>::new());
        assert_eq!(decisive(&bench).len(), 0);
        assert!(!bench.machine.breaker().is_open);
    }
}

#[test]
fn s9_a_false_alarm_on_idle_nodes_opens_the_breaker_before_the_first_is_reset_whoever_leads() {
    const NODES: usize = 15;
    let mut bench = idle(config(), NODES);
    for node in names(NODES) {
        tell(&mut bench, &node, Some("Reset"));
    }
    bench.written.clear();
    pass(&mut bench, 2 * PATIENCE);
    let record = breaker(&bench);
    assert!(record.opened_at.is_some() && record.drained.is_empty());
    let message = record.message.unwrap();
    assert!(
        message.starts_with("15 of 15 nodes want GPUs reset"),
        "{message}"
    );
    assert!(message.contains("at most 3 may be"), "{message}");
    bench.take_over();
    pass(&mut bench, RUN_OUT + 2 * PATIENCE);
    assert!(!bench.written.iter().any(allows));
    assert!(bench.machine.breaker().is_open, "no time closes it");
    // Closed by a person while all of it stands, it opens again.
    set_breaker(&mut bench, Breaker::default());
    pass(&mut bench, 2 * PATIENCE);
    assert!(bench.machine.breaker().is_open);
    assert!(!bench.written.iter().any(allows));
}

#[test]
fn s9_of_an_alarm_that_comes_node_by_node_no_more_are_reset_than_may_be_and_none_after_that() {
    const NODES: usize = 15;
    let mut bench = idle(config(), NODES);
    for (number, node) in names(NODES).iter().enumerate() {
        tell(&mut bench, node, Some("Reset"));
        pass_with_at_most(&mut bench, PATIENCE + 5, NODES, 3);
        assert_eq!(bench.machine.breaker().is_open, number >= 3, "{node}");
    }
    assert_eq!(allowed(&bench, NODES), Vec::<String>::new());
    let withheld = names(NODES).into_iter();
    let withheld = withheld.filter(|node| remediation(&bench, node).is_some());
    assert_eq!(withheld.collect::<Vec<_>>(), ["n0", "n1", "n2"]);
}

#[test]
fn s9_nodes_that_are_reset_count_with_those_that_are_evacuated_and_each_once() {
    let gangs = ["a", "b", "c", "d", "e", "f"];
    // Of three nodes two may be. How many have a gang evicted, and how many want a reset: the first ones, and the last ones.
    for (evicted, first, last, opens) in [
        (1, 1, 0, false),
        (2, 2, 0, false),
        (1, 0, 1, false),
        (2, 0, 1, true),
        (1, 0, 2, true),
        (0, 3, 0, true),
    ] {
        let mut bench = running_with(config(), &gangs, 3);
        let mut by_node: BTreeMap<String, &str> = BTreeMap::new();
        for gang in gangs {
            let (node, _) = device_of(&bench, &format!("{gang}-0"));
            by_node.entry(node).or_insert(gang);
        }
        for gang in by_node.values().take(evicted) {
            taint(&mut bench, &format!("{gang}-0"), RESET);
        }
        bench.run();
        let case = format!("{evicted} {first} {last}");
        assert_eq!(breaker(&bench).drained.len(), evicted, "{case}");
        let nodes: Vec<String> = by_node.keys().cloned().collect();
        let wanting = nodes[..first].iter().chain(&nodes[3 - last..]);
        for node in wanting {
            tell(&mut bench, node, Some("Reset"));
        }
        pass(&mut bench, 2 * PATIENCE);
        assert_eq!(bench.machine.breaker().is_open, opens, "{case}");
        let expected = if opens { 0 } else { first + last };
        assert_eq!(allowed(&bench, 3).len(), expected, "{case}");
        if opens {
            continue;
        }
        // Whoever wants it keeps it, and an eviction on one more node is one too many.
        let counted = bench.machine.breaker().evacuated_nodes;
        assert_eq!(counted, evicted.max(first) + last, "{case}");
        for gang in by_node.values().skip(evicted) {
            taint(&mut bench, &format!("{gang}-0"), RESET);
        }
        pass(&mut bench, 40);
        assert!(bench.machine.breaker().is_open, "{case}");
        assert_eq!(allowed(&bench, 3), Vec::<String>::new(), "{case}");
    }
}

#[test]
fn no_more_nodes_are_at_it_at_a_time_than_may_be_and_each_has_its_turn() {
    const NODES: usize = 5;
    let mut bench = idle(at_a_time(2), NODES);
    let names = names(NODES);
    for node in &names {
        tell(&mut bench, node, Some("Reset"));
    }
    pass_with_at_most(&mut bench, PATIENCE + 5, NODES, 2);
    assert_eq!(allowed(&bench, NODES), names[..2]);
    // One is in order again, and the next has its turn.
    tell(&mut bench, &names[1], None);
    pass_with_at_most(&mut bench, 5, NODES, 2);
    assert_eq!(allowed(&bench, NODES), [&*names[0], &*names[2]]);
    // Of the others nothing comes: somebody has their GPUs open. They give way, once what they may have begun has ended.
    pass_with_at_most(&mut bench, TURN + RUN_OUT + 5, NODES, 2);
    assert_eq!(allowed(&bench, NODES), names[3..]);
    pass_with_at_most(&mut bench, TURN + RUN_OUT + 5, NODES, 2);
    assert_eq!(allowed(&bench, NODES), [&*names[0], &*names[2]]);
    assert!(!bench.machine.breaker().is_open);
}

/// The GPU falls off the bus in the middle of its reset, say, or is to be exchanged after the second one.
#[test]
fn a_gpu_that_gets_worse_in_its_reset_keeps_the_place_until_what_was_begun_must_have_ended() {
    for worse in ["Reboot", "Retire"] {
        let mut bench = idle(at_a_time(1), 2);
        tell(&mut bench, "n0", Some("Reset"));
        pass(&mut bench, PATIENCE);
        assert_eq!(allowed(&bench, 2), ["n0"]);
        tell(&mut bench, "n1", Some("Reset"));
        tell_all(&mut bench, "n0", &["Reset", worse]);
        assert_eq!(remediation(&bench, "n0"), None, "{worse}");
        pass_with_at_most(&mut bench, RUN_OUT - 2, 2, 0);
        pass(&mut bench, 4);
        assert_eq!(allowed(&bench, 2), ["n1"], "{worse}");
    }
}

#[test]
fn s9_a_reset_that_is_under_way_for_longer_than_the_window_stays_in_the_record() {
    let gangs = ["a", "b", "c", "d"];
    for is_forgotten in [false, true] {
        let mut bench = running(&gangs);
        let by_node = gangs.map(|gang| (device_of(&bench, &format!("{gang}-0")).0, gang));
        let by_node = BTreeMap::from(by_node);
        let (at_it, other) = ("n0", by_node["n1"]);
        tell(&mut bench, at_it, Some("Reset"));
        pass(&mut bench, PATIENCE);
        assert_eq!(remediation(&bench, at_it), Some(Remediation::Allowed));
        if is_forgotten {
            // A person closes the breaker, which is not even open.
            set_breaker(&mut bench, Breaker::default());
        }
        // Whoever has leave is recorded, and no more than once for it.
        assert_eq!(
            breaker(&bench).drained.len(),
            1,
            "forgotten: {is_forgotten}"
        );
        bench.written.clear();
        pass(&mut bench, 5);
        assert_eq!(decisive(&bench).len(), 0, "forgotten: {is_forgotten}");
        pass(&mut bench, 695);
        // Whatever is written next says so.
        taint(&mut bench, &format!("{other}-0"), RESET);
        pass(&mut bench, 40);
        assert_eq!(evictions(&bench, other), [Reason::DeviceFault]);
        let recorded = breaker(&bench).drained.into_iter();
        let recorded: Vec<String> = recorded.map(|it| it.node).collect();
        assert_eq!(recorded, ["n0", "n1"], "forgotten: {is_forgotten}");
        // It ends, and counts from then on.
        pass(&mut bench, 700);
        tell(&mut bench, at_it, None);
        pass(&mut bench, 590);
        let counted = bench.machine.breaker().evacuated_nodes;
        assert_eq!(counted, 1, "forgotten: {is_forgotten}");
        pass(&mut bench, 20);
        let counted = bench.machine.breaker().evacuated_nodes;
        assert_eq!(counted, 0, "forgotten: {is_forgotten}");
    }
}

#[test]
fn whoever_takes_over_goes_on_with_those_that_have_leave_and_gives_none_beside_them() {
    const NODES: usize = 4;
    let mut bench = idle(at_a_time(2), NODES);
    for node in names(NODES) {
        tell(&mut bench, &node, Some("Reset"));
    }
    pass(&mut bench, PATIENCE + 5);
    let before = allowed(&bench, NODES);
    assert_eq!(before.len(), 2);
    bench.machine = Machine::new(at_a_time(2));
    pass_with_at_most(&mut bench, RUN_OUT + 2 * PATIENCE, NODES, 2);
    assert_eq!(allowed(&bench, NODES), before);
    tell(&mut bench, &before[0], None);
    pass_with_at_most(&mut bench, 5, NODES, 2);
    assert_eq!(allowed(&bench, NODES).len(), 2);
}

/// A leader dies when a node's leave is recorded and not told yet. What it sent may come late, until the next one writes.
#[test]
fn leave_that_a_former_leader_gives_late_is_counted_whether_it_comes_or_not() {
    const NODES: usize = 3;
    for comes in [true, false] {
        let mut bench = idle(at_a_time(1), NODES);
        for node in names(NODES) {
            tell(&mut bench, &node, Some("Reset"));
        }
        bench.seconds += PATIENCE;
        let mut late = None;
        for _ in 0..20 {
            for effect in bench.poll() {
                if allows(&effect.write) {
                    late = Some(effect);
                } else {
                    bench.perform(&effect);
                }
            }
        }
        let late = late.expect("it is sent");
        assert_eq!(breaker(&bench).drained.len(), 1, "recorded");
        assert_eq!(allowed(&bench, NODES), Vec::<String>::new());
        bench.machine = Machine::new(at_a_time(1));
        if comes {
            let outcome = bench.server.perform(&late.write);
            assert!(matches!(outcome, Outcome::Done(_)), "{outcome:?}");
        }
        pass_with_at_most(&mut bench, RUN_OUT - 2, NODES, usize::from(comes));
        // Whoever leads has written since.
        let outcome = bench.server.perform(&late.write);
        assert!(matches!(outcome, Outcome::Conflict), "{outcome:?}");
        pass_with_at_most(&mut bench, 2 * RUN_OUT, NODES, 1);
        assert_eq!(allowed(&bench, NODES).len(), 1, "comes: {comes}");
    }
}

#[test]
fn s9_where_the_api_server_drops_what_is_recorded_nothing_is_reset() {
    let mut bench = idle(config(), 2);
    bench.server.prunes = Some(without_breaker);
    tell(&mut bench, "n0", Some("Reset"));
    pass_with_at_most(&mut bench, 100, 2, 0);
}

/// A monitor has their GPUs open, which nobody ends.
#[test]
fn nodes_that_would_reset_nothing_open_no_breaker_and_keep_no_other_from_its_reset() {
    const NODES: usize = 10;
    let mut bench = idle(config(), NODES);
    // As many as may be reset.
    for node in &names(2) {
        tell_hindered(&mut bench, node, true);
    }
    bench.written.clear();
    pass(&mut bench, 2 * PATIENCE);
    assert_eq!(decisive(&bench).len(), 0, "they cost no write");
    for node in ["n2", "n3"] {
        tell(&mut bench, node, Some("Reset"));
    }
    pass(&mut bench, PATIENCE + 5);
    assert_eq!(allowed(&bench, NODES), ["n2", "n3"]);
    assert!(!bench.machine.breaker().is_open);
    // One of them would by now: it is one too many.
    tell_hindered(&mut bench, "n0", false);
    pass(&mut bench, PATIENCE + 5);
    assert!(bench.machine.breaker().is_open);
    assert_eq!(remediation(&bench, "n0"), None);
}

#[test]
fn s9_nodes_that_would_reset_nothing_are_counted_before_the_first_of_them_is_reset_once_they_would()
{
    const NODES: usize = 15;
    const ALARMED: usize = 9;
    let mut bench = idle(config(), NODES);
    for node in names(ALARMED) {
        tell_hindered(&mut bench, &node, true);
    }
    pass(&mut bench, 2 * PATIENCE);
    assert!(!bench.machine.breaker().is_open);
    bench.written.clear();
    // Somebody ends the monitor on all nodes. Their drivers see it one after the other.
    for node in names(ALARMED) {
        tell_hindered(&mut bench, &node, false);
        pass(&mut bench, 2);
    }
    pass(&mut bench, PATIENCE + 5);
    let record = breaker(&bench);
    assert!(record.opened_at.is_some() && record.drained.is_empty());
    let message = record.message.unwrap();
    let says = "9 of 15 nodes want GPUs reset";
    assert!(message.starts_with(says), "{message}");
    assert!(!bench.written.iter().any(allows));
}

#[test]
fn s9_leave_of_which_nothing_would_come_is_withheld_and_counts_until_what_was_begun_is_long_over() {
    let mut bench = idle(config(), 10);
    tell(&mut bench, "n0", Some("Reset"));
    pass(&mut bench, PATIENCE);
    assert_eq!(remediation(&bench, "n0"), Some(Remediation::Allowed));
    tell_hindered(&mut bench, "n0", true);
    assert_eq!(remediation(&bench, "n0"), Some(Remediation::Withheld));
    // Also where its word is another by then.
    tell_hindered(&mut bench, "n0", false);
    pass(&mut bench, RUN_OUT - 10);
    assert_eq!(remediation(&bench, "n0"), Some(Remediation::Withheld));
    tell_hindered(&mut bench, "n0", true);
    pass(&mut bench, 15);
    // From the end of what may have been begun on it counts for the window.
    pass(&mut bench, 580);
    assert_eq!(bench.machine.breaker().evacuated_nodes, 1);
    pass(&mut bench, 30);
    assert_eq!(bench.machine.breaker().evacuated_nodes, 0);
    assert_eq!(remediation(&bench, "n0"), None, "that is over");
    // Nobody has it open any more.
    tell_hindered(&mut bench, "n0", false);
    pass(&mut bench, PATIENCE - 1);
    assert_eq!(remediation(&bench, "n0"), None);
    pass(&mut bench, 3);
    assert_eq!(remediation(&bench, "n0"), Some(Remediation::Allowed));
}

#[test]
fn s9_whoever_takes_over_counts_a_node_that_had_leave_a_moment_ago_whatever_it_says() {
    const NODES: usize = 3;
    let mut bench = idle(at_a_time(1), NODES);
    for node in names(NODES) {
        tell(&mut bench, &node, Some("Reset"));
    }
    pass(&mut bench, PATIENCE + 5);
    assert_eq!(allowed(&bench, NODES), ["n0"]);
    tell_hindered(&mut bench, "n0", true);
    assert_eq!(remediation(&bench, "n0"), Some(Remediation::Withheld));
    bench.machine = Machine::new(at_a_time(1));
    pass_with_at_most(&mut bench, RUN_OUT - 2, NODES, 0);
    pass_with_at_most(&mut bench, 2 * PATIENCE, NODES, 1);
    assert_eq!(allowed(&bench, NODES), ["n1"]);
}

/// A monitor came before their resets did, and nobody has ended it since.
#[test]
fn of_nodes_that_would_reset_nothing_whoever_takes_over_long_after_their_turn_counts_none() {
    const NODES: usize = 10;
    let mut bench = idle(config(), NODES);
    // As many as may be reset.
    let stuck = names(2);
    for node in &stuck {
        tell(&mut bench, node, Some("Reset"));
    }
    pass(&mut bench, PATIENCE + 5);
    assert_eq!(allowed(&bench, NODES), stuck);
    for node in &stuck {
        tell_hindered(&mut bench, node, true);
        assert_eq!(remediation(&bench, node), Some(Remediation::Withheld));
    }
    pass(&mut bench, RUN_OUT - 5);
    for node in &stuck {
        let told = remediation(&bench, node);
        assert_eq!(told, Some(Remediation::Withheld), "it may be under way");
    }
    pass(&mut bench, 10);
    for node in &stuck {
        assert_eq!(remediation(&bench, node), None);
    }
    bench.written.clear();
    pass(&mut bench, 700);
    let is_told = |write: &ApiRequest| matches!(write, ApiRequest::ReplaceNodeDevices { .. });
    assert!(
        !bench.written.iter().any(is_told),
        "it costs no more writes"
    );
    // Whatever was written to the Ledger since has forgotten them.
    set_breaker(&mut bench, Breaker::default());
    bench.machine = Machine::new(config());
    pass(&mut bench, 5);
    tell(&mut bench, "n2", Some("Reset"));
    pass(&mut bench, PATIENCE + 5);
    assert!(!bench.machine.breaker().is_open);
    assert_eq!(allowed(&bench, NODES), ["n2"]);
}

#[test]
fn s18_a_node_that_is_silent_wants_nothing_and_does_not_count() {
    const NODES: usize = 15;
    let mut bench = idle(config(), NODES);
    for node in &names(NODES)[..4] {
        tell(&mut bench, node, Some("Reset"));
        let is_ready = if node == "n3" { "False" } else { "True" };
        bench.server.put(Object::Node(parse(json!({
            "metadata": {"name": node},
            "status": {
                "allocatable": {"cpu": "64", "memory": "512Gi", "pods": "110"},
                "conditions": [{"type": "Ready", "status": is_ready}],
            },
        }))));
    }
    pass(&mut bench, PATIENCE + 5);
    assert_eq!(allowed(&bench, NODES), names(3));
    assert!(!bench.machine.breaker().is_open);
}
