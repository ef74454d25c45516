//! Nodes that fall silent: where their gangs are left alone for all that, and that they count for the circuit breaker.

use super::{
    super::nodes::{die, node_key, set_out_of_service, set_ready},
    *,
};

/// How the node of a rank is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Loss {
    /// Nothing is heard of its kubelet any more.
    Silent,
    /// Its Node is gone, and its pod may run there.
    NodeGone,
    /// Its Node is gone, and so is its pod.
    NodeAndPodGone,
    /// Nothing is heard of its kubelet any more, and somebody says that the machine is off.
    OutOfService,
}

impl Loss {
    const ALL: [Self; 4] = [
        Self::Silent,
        Self::NodeGone,
        Self::NodeAndPodGone,
        Self::OutOfService,
    ];

    /// Whether it needs nobody to believe in silence.
    fn is_proof(self) -> bool {
        matches!(self, Self::NodeAndPodGone | Self::OutOfService)
    }

    /// It happens to the node of that pod.
    fn befall(self, bench: &mut Bench, node: &str, pod: &str) {
        die(bench, node);
        if matches!(self, Self::NodeGone | Self::NodeAndPodGone) {
            bench.server.remove(&node_key(node));
        }
        if self == Self::NodeAndPodGone {
            bench.server.remove(&pod_key(pod));
        }
        if self == Self::OutOfService {
            set_out_of_service(bench, node);
        }
    }
}

/// A gang of two pods runs, each of which has a node of its own. Returns the node of the first.
fn pair(mode: Mode) -> (Bench, String) {
    let mut bench = Bench::with(Config {
        recovery: Recovery {
            mode,
            ..config().recovery
        },
        ..config()
    });
    for node in ["n0", "n1"] {
        for object in node_with_gpus(node, 1) {
            bench.server.put(object);
        }
    }
    bench.gang("pair", 2);
    bench.run();
    let nodes = ["pair-0", "pair-1"].map(|pod| (pod, node_of(&bench, pod)));
    for (pod, node) in &nodes {
        bench.runs_on(pod, node);
    }
    bench.run();
    let [(_, node), _] = nodes;
    (bench, node)
}

fn set_breaker(bench: &mut Bench, breaker: Breaker) {
    let mut ledger = bench.server.ledger().unwrap();
    ledger.spec.breaker = breaker;
    bench.server.put(Object::Ledger(Arc::new(ledger)));
    bench.run();
}

/// The nodes that the Ledger says gangs were evicted for.
fn evacuated(bench: &Bench) -> Vec<String> {
    let evacuated = breaker(bench).drained.into_iter();
    evacuated.map(|it| it.node).collect()
}

#[test]
fn s9_by_silence_nobody_is_evicted_while_that_is_held_back_and_by_proof_everybody_is() {
    let is_lost: &[Reason] = &[Reason::NodeLost];
    for loss in Loss::ALL {
        for (mode, is_open, told) in [
            (Mode::Enforce, false, None),
            (Mode::Observe, false, Some("only observes")),
            (Mode::Enforce, true, Some("circuit breaker")),
            (Mode::Observe, true, Some("only observes")),
        ] {
            let case = format!("{loss:?}, {mode:?}, open: {is_open}");
            let (mut bench, node) = pair(mode);
            if is_open {
                let opened_at = Timestamp::from_second(1_800_000_000).unwrap();
                let open = Breaker {
                    opened_at: Some(Time(opened_at)),
                    ..Breaker::default()
                };
                set_breaker(&mut bench, open);
            }
            loss.befall(&mut bench, &node, "pair-0");
            pass(&mut bench, 20);
            let expected: &[Reason] = if loss.is_proof() { is_lost } else { &[] };
            assert_eq!(evictions(&bench, "pair"), expected, "{case}, at once");
            assert_eq!(bench.machine.breaker().is_open, is_open, "{case}");
            if loss.is_proof() {
                assert!(evacuated(&bench).is_empty(), "{case}: nothing to count");
                continue;
            }
            pass(&mut bench, 280);
            let Some(told) = told else {
                assert_eq!(evictions(&bench, "pair"), is_lost, "{case}");
                assert_eq!(evacuated(&bench), [node], "{case}: counted");
                continue;
            };
            assert!(evictions(&bench, "pair").is_empty(), "{case}");
            assert!(evacuated(&bench).is_empty(), "{case}");
            let degraded = degraded(&bench, "pair");
            assert!(degraded.starts_with("NodeLost: "), "{case}: {degraded}");
            assert!(degraded.contains(told), "{case}: {degraded}");
            // A person closes the breaker, if that is what it was.
            set_breaker(&mut bench, Breaker::default());
            pass(&mut bench, 40);
            let expected: &[Reason] = if mode == Mode::Enforce { is_lost } else { &[] };
            assert_eq!(evictions(&bench, "pair"), expected, "{case}, then closed");
        }
    }
}

/// Four gangs fill two nodes of twenty, of which one may be evacuated. Two of twenty that are silent are no outage: that takes three.
fn one_may_be_evacuated(gangs: &[&str; 4], lost_after_seconds: u64) -> Bench {
    let breaker = BreakerLimits {
        share_percent: 5,
        least_nodes: 1,
    };
    let few = Config {
        recovery: Recovery {
            breaker,
            ..config().recovery
        },
        lost_after_seconds,
        ..config()
    };
    let mut bench = running_with(few, gangs, 2);
    for node in 2..20 {
        for object in node_with_gpus(&format!("n{node}"), 2) {
            bench.server.put(object);
        }
    }
    bench.run();
    bench
}

#[test]
fn s9_more_silent_nodes_than_may_be_evacuated_open_the_breaker_and_end_nothing_whoever_leads() {
    let gangs = ["a", "b", "c", "d"];
    for (silent, is_too_much) in [(1, false), (2, true)] {
        let mut bench = one_may_be_evacuated(&gangs, 60);
        let silent: Vec<String> = (0..silent).map(|node| format!("n{node}")).collect();
        for node in &silent {
            die(&mut bench, node);
        }
        pass(&mut bench, 230);
        let is_lost = |node: &String| bench.server.node_devices(node).unwrap().spec.lost;
        assert!(silent.iter().all(is_lost), "{silent:?}: it is no outage");
        assert!(!bench.written.iter().any(evicts), "{silent:?}: too early");
        pass(&mut bench, 30);
        assert_eq!(bench.machine.breaker().is_open, is_too_much, "{silent:?}");
        if !is_too_much {
            let gone = gangs.iter().filter(|it| !evictions(&bench, it).is_empty());
            assert_eq!(gone.count(), 2, "who runs there");
            assert_eq!(evacuated(&bench), silent);
            continue;
        }
        let record = breaker(&bench);
        assert!(record.opened_at.is_some() && record.drained.is_empty());
        let message = record.message.unwrap();
        assert!(message.contains("2 of 20 nodes"), "{message}");
        pass(&mut bench, 5);
        for gang in gangs {
            let degraded = degraded(&bench, gang);
            assert!(degraded.contains("circuit breaker"), "{degraded}");
        }
        bench.take_over();
        pass(&mut bench, 400);
        assert!(!bench.written.iter().any(evicts), "no time closes it");
        assert!(bench.machine.breaker().is_open);
    }
}

fn reads_node(write: &ApiRequest) -> bool {
    matches!(write, ApiRequest::ReadObject { key } if key.kind == Kind::Node)
}

/// Node `n1` is silent until what runs there is to be evicted for that, and so is `n0`, or it has a fault. The store has answered for `n0`, and the
/// read of `n1`, which is returned, is under way. A node that is silent is lost after so many seconds.
fn awaiting_the_second(by_fault: bool, lost_after_seconds: u64) -> (Bench, Effect) {
    let gangs = ["a", "b", "c", "d"];
    let mut bench = one_may_be_evacuated(&gangs, lost_after_seconds);
    die(&mut bench, "n1");
    if !by_fault {
        die(&mut bench, "n0");
    }
    pass(&mut bench, 239);
    bench.written.clear();
    bench.seconds += 1;
    if by_fault {
        let mut pods = gangs.iter().map(|gang| format!("{gang}-0"));
        let sick = pods.find(|pod| device_of(&bench, pod).0 == "n0");
        taint(&mut bench, &sick.unwrap(), RESET);
    }
    let mut asked = owed(&mut bench, reads_node);
    assert_eq!(asked.len(), if by_fault { 1 } else { 2 });
    let is_second = |effect: &Effect| matches!(&*effect.write, ApiRequest::ReadObject { key } if key.name == "n1");
    let second = asked.iter().position(is_second).unwrap();
    let second = asked.swap_remove(second);
    for read in &asked {
        bench.perform(read);
    }
    assert!(
        owed(&mut bench, reads_node).is_empty(),
        "each is asked once"
    );
    assert!(!bench.written.iter().any(evicts), "an answer is awaited");
    assert!(!bench.machine.breaker().is_open);
    (bench, second)
}

/// By a fault of the first or not, and when silent nodes are lost: long before what runs there is evicted, and only then.
const AWAITED: [(bool, u64); 4] = [(false, 60), (true, 60), (false, 240), (true, 240)];

#[test]
fn s9_while_the_store_is_asked_about_one_silent_node_too_many_nobody_is_evicted_for_the_others() {
    for (by_fault, lost_after_seconds) in AWAITED {
        let case = format!("by a fault: {by_fault}, lost after {lost_after_seconds} s");
        // That it is silent as well is one too many.
        let (mut bench, second) = awaiting_the_second(by_fault, lost_after_seconds);
        bench.perform(&second);
        bench.run_at_once();
        assert!(bench.machine.breaker().is_open, "{case}");
        assert!(!bench.written.iter().any(evicts), "{case}");
        assert!(evacuated(&bench).is_empty(), "{case}");
        // The store says something else of it: as many as may be are evacuated.
        let (mut bench, second) = awaiting_the_second(by_fault, lost_after_seconds);
        bench.machine.settle(second.id, Outcome::NotFound);
        bench.run_at_once();
        assert!(!bench.machine.breaker().is_open, "{case}");
        assert_eq!(evacuated(&bench), ["n0"], "{case}");
    }
}

#[test]
fn whoever_is_silent_for_certain_waits_once_for_an_answer_about_another_that_never_comes() {
    for (by_fault, lost_after_seconds) in AWAITED {
        let case = format!("by a fault: {by_fault}, lost after {lost_after_seconds} s");
        let (mut bench, second) = awaiting_the_second(by_fault, lost_after_seconds);
        // It is asked again at once, and not answered either.
        bench.seconds += 2;
        bench.machine.settle(second.id, Outcome::Unknown);
        assert_eq!(owed(&mut bench, reads_node).len(), 1, "{case}");
        assert_eq!(evacuated(&bench), ["n0"], "{case}");
        assert!(!bench.machine.breaker().is_open, "{case}");
    }
}

/// The store has said that it is silent as well, and the write that marks it is never answered.
#[test]
fn whoever_is_silent_for_certain_waits_a_minute_for_another_to_be_marked() {
    let marks_second = |write: &ApiRequest| matches!(write, ApiRequest::ReplaceNodeDevices { node, .. } if node == "n1");
    for by_fault in [false, true] {
        let (mut bench, second) = awaiting_the_second(by_fault, 240);
        bench.perform(&second);
        assert_eq!(owed(&mut bench, marks_second).len(), 1);
        for _ in 0..59 {
            bench.seconds += 1;
            owed(&mut bench, marks_second);
        }
        assert!(!bench.written.iter().any(evicts), "by a fault: {by_fault}");
        bench.seconds += 1;
        owed(&mut bench, marks_second);
        assert_eq!(evacuated(&bench), ["n0"], "by a fault: {by_fault}");
        assert!(!bench.machine.breaker().is_open);
    }
}

/// As shipped: two of three nodes may be evacuated within ten minutes, for whatever.
#[test]
fn s9_a_silent_node_counts_with_those_that_were_evacuated_before_for_silence_or_faults() {
    let gangs = ["a", "b", "c", "d", "e", "f"];
    for by_silence in [true, false] {
        let mut bench = running_with(config(), &gangs, 3);
        let on = |bench: &Bench, node: &str| {
            let runs_there = |gang: &&str| device_of(bench, &format!("{gang}-0")).0 == node;
            gangs.into_iter().filter(runs_there).collect::<Vec<_>>()
        };
        let [first, second, third] = ["n0", "n1", "n2"].map(|node| on(&bench, node));
        assert!(!third.is_empty(), "they fill three nodes");
        if by_silence {
            for node in ["n0", "n1"] {
                die(&mut bench, node);
            }
            pass(&mut bench, 260);
            for node in ["n0", "n1"] {
                bench.silent_drivers.remove(node);
                set_ready(&mut bench, node, "True");
            }
        } else {
            for gang in [first[0], second[0]] {
                taint(&mut bench, &format!("{gang}-0"), RESET);
            }
        }
        pass(&mut bench, 20);
        let case = format!("by silence: {by_silence}");
        assert_eq!(evacuated(&bench), ["n0", "n1"], "{case}");
        assert!(!bench.machine.breaker().is_open, "{case}");
        die(&mut bench, "n2");
        pass(&mut bench, 260);
        assert!(bench.machine.breaker().is_open, "{case}");
        assert_eq!(evacuated(&bench), ["n0", "n1"], "{case}");
        for gang in third {
            assert!(evictions(&bench, gang).is_empty(), "{case}: {gang}");
        }
    }
}
