//! What is seen of evictions for lost nodes, and what is not.

use k8s_openapi::{api::resource::v1::ResourceClaim, apimachinery::pkg::apis::meta::v1::Time};
use muster_api::{
    GangPlacement, GangSpec, IntentKind, Ledger, LedgerSpec, Reason,
    gang::{Admission, AdmittedPod, NodeRanks},
    keys,
};
use muster_cluster::object::Kind;
use muster_protocol::OnCordon;
use serde_json::{Value, json};

use super::{super::recovery::Recoveries, *};
use crate::{
    api_server::{Precondition, key},
    scenario::{Hardships, NodeShape},
};

/// When gangs are given their devices, and when they are evicted.
const GIVEN: i64 = 100;
const NOW: i64 = 1_000;

fn time(second: i64) -> Timestamp {
    Timestamp::from_second(1_790_000_000 + second).unwrap()
}

fn object<T: serde::de::DeserializeOwned>(value: Value) -> T {
    serde_json::from_value(value).unwrap()
}

fn name_of(node: usize) -> String {
    format!("node-{node}")
}

fn node(number: usize, ready: &str, taint: &str) -> Node {
    object(json!({
        "metadata": {"name": name_of(number)},
        "spec": {"taints": [{"key": taint, "effect": "NoSchedule"}]},
        "status": {"conditions": [{"type": "Ready", "status": ready}]},
    }))
}

/// Gangs with a pod each, whose claims have a device of node 0, 1, and so on since [`GIVEN`], and what was seen of all nodes.
struct Stage {
    api: ApiServer,
    recoveries: Recoveries,
    breaker_opened_at: Option<Time>,
}

impl Stage {
    /// So many nodes have GPUs of one kind, and as many of another.
    fn new(nodes: usize) -> Self {
        let shape = |number: usize| NodeShape {
            name: name_of(number),
            leaf: "leaf-0".to_owned(),
            product: Product::ALL[number / nodes],
            gpus: 2,
        };
        let scenario = Scenario {
            nodes: (0..2 * nodes).map(shape).collect(),
            teams: Vec::new(),
            gangs: Vec::new(),
            hardships: Hardships::named("BrokenDevices").unwrap(),
            keep_ended_seconds: 3_600,
            whole_intent_bytes: 0,
            on_cordon: OnCordon::Nothing,
        };
        let mut api = ApiServer::default();
        api.set_time(time(NOW));
        Self {
            api,
            recoveries: Recoveries::new(&scenario),
            breaker_opened_at: None,
        }
    }

    /// A gang runs on that node.
    fn run_on(&mut self, number: usize) {
        let name = name_of(number);
        let mut gang = Gang::new(&name, GangSpec::default());
        gang.metadata.namespace = Some("ml".to_owned());
        self.api.create(gang).unwrap();
        let pod: Pod = object(json!({
            "metadata": {"name": name, "namespace": "ml"},
            "spec": {"nodeName": name, "containers": []},
        }));
        self.api.create(pod).unwrap();
        let pod = self.api.get::<Pod>("ml", &name).unwrap();
        let pod = AdmittedPod {
            uid: pod.metadata.uid.clone().unwrap(),
            claims: vec![name.clone()],
        };
        let run = NodeRanks {
            node: name.clone(),
            ranks: 1,
            ..NodeRanks::default()
        };
        let any = Precondition::default();
        let done = self.api.update::<Gang>("ml", &name, any, |gang| {
            let status = gang.status.get_or_insert_default();
            status.attempt = 1;
            status.admission = Some(Admission {
                pods: vec![pod],
                ..Admission::default()
            });
            status.placement = Some(GangPlacement {
                nodes: vec![run],
                ..GangPlacement::default()
            });
        });
        done.unwrap();
        let claim: ResourceClaim = object(json!({
            "metadata": {"name": name, "uid": name}, "spec": {},
            "status": {"allocation": {"devices": {"results": [
                {"driver": keys::DRIVER, "pool": name, "device": "gpu-0", "request": "gpu"},
            ]}}},
        }));
        self.recoveries.note_claim(&claim, time(GIVEN));
    }

    /// Nothing is heard of a node from that second on.
    fn fall_silent(&mut self, number: usize, second: i64) {
        let node = node(number, "Unknown", "example.com/other");
        self.recoveries.note_node(&node, time(second));
    }

    fn come_back(&mut self, number: usize, second: i64) {
        let node = node(number, "True", "example.com/other");
        self.recoveries.note_node(&node, time(second));
    }

    fn say_that_it_is_off(&mut self, number: usize, second: i64) {
        let node = node(number, "Unknown", OUT_OF_SERVICE);
        self.recoveries.note_node(&node, time(second));
    }

    fn remove_node(&mut self, number: usize, second: i64) {
        let key = key(Kind::Node, "", &name_of(number));
        self.recoveries.note_gone(&key, time(second));
    }

    fn remove_pod(&mut self, number: usize) {
        let key = key(Kind::Pod, "ml", &name_of(number));
        let any = Precondition::default();
        self.api.delete_now(&key, any).unwrap();
    }

    fn intent(&self, number: usize) -> Intent {
        let name = name_of(number);
        let gang = self.api.get::<Gang>("ml", &name).unwrap();
        Intent {
            kind: IntentKind::Evict,
            namespace: "ml".to_owned(),
            gang_uid: gang.metadata.uid.clone().unwrap(),
            attempt: 1,
            cause: Some(Reason::NodeLost),
            nodes: vec![name.clone()],
            name,
            ..Intent::default()
        }
    }

    /// The invariant that breaks where the gang of a node is evicted since that is lost.
    fn evicted(&mut self, number: usize) -> Option<&'static str> {
        let mut ledger = Ledger::new(keys::LEDGER_NAME, LedgerSpec::default());
        ledger.spec.breaker.opened_at = self.breaker_opened_at.clone();
        ledger.spec.intents.push(self.intent(number));
        let checked = self.recoveries.check_ledger(&self.api, &ledger);
        checked.err().map(|violation| violation.invariant)
    }
}

/// What becomes of a node, the invariant that breaks if its gang is evicted for it, and whether its loss is proved.
type Case = (&'static str, fn(&mut Stage), Option<&'static str>, bool);

#[test]
fn s18_whoever_is_evicted_for_a_node_that_was_not_lost_is_seen_and_what_proves_it_is_told_from_silence()
 {
    let cases: [Case; 9] = [
        ("nothing", |_| {}, Some("S18"), false),
        (
            "silent too short",
            |it| it.fall_silent(0, NOW - 229),
            Some("S18"),
            false,
        ),
        (
            "silent long enough",
            |it| it.fall_silent(0, NOW - 230),
            None,
            false,
        ),
        (
            "silent and back, before it was given anything",
            |it| {
                it.fall_silent(0, GIVEN - 300);
                it.come_back(0, GIVEN - 1);
            },
            Some("S18"),
            false,
        ),
        (
            "silent and back since",
            |it| {
                it.fall_silent(0, GIVEN - 300);
                it.come_back(0, GIVEN);
            },
            None,
            false,
        ),
        ("off", |it| it.say_that_it_is_off(0, NOW), None, true),
        (
            "off, before it was given anything",
            |it| {
                it.say_that_it_is_off(0, GIVEN - 300);
                it.come_back(0, GIVEN - 1);
            },
            Some("S18"),
            false,
        ),
        (
            "gone, and the pod is there",
            |it| it.remove_node(0, NOW),
            None,
            false,
        ),
        (
            "gone with the pod",
            |it| {
                it.remove_node(0, NOW);
                it.remove_pod(0);
            },
            None,
            true,
        ),
    ];
    for (case, befall, breaks, is_proved) in cases {
        let mut stage = Stage::new(30);
        stage.run_on(0);
        befall(&mut stage);
        let intent = stage.intent(0);
        let is_without = stage.recoveries.is_without_proof(&stage.api, &intent);
        assert_eq!(is_without, !is_proved, "{case}");
        assert_eq!(stage.evicted(0), breaks, "{case}");
    }
}

#[test]
fn s18_whoever_is_evicted_for_silence_in_an_outage_is_seen() {
    for (nodes, silent, since, breaks) in [
        (3, 0..3, NOW - 240, Some("S18")),
        (29, 0..3, NOW - 240, Some("S18")),
        (30, 0..3, NOW - 240, None),
        (2, 0..2, NOW - 240, None),
        // Those of another kind say nothing.
        (3, 2..5, NOW - 240, None),
        // They are dead rather.
        (29, 0..3, NOW - LONG_SECONDS, None),
    ] {
        let case = format!("{silent:?} of {nodes} and {nodes} since {since}");
        let mut stage = Stage::new(nodes);
        let first = silent.start;
        stage.run_on(first);
        for node in silent {
            stage.fall_silent(node, since);
        }
        assert_eq!(stage.evicted(first), breaks, "{case}");
    }
    // Whether those that fell silent with it a moment ago were seen nobody knows.
    for (seconds, breaks) in [(SEEN_SECONDS - 1, None), (SEEN_SECONDS, Some("S18"))] {
        let mut stage = Stage::new(3);
        stage.run_on(0);
        stage.fall_silent(0, NOW - 240);
        stage.fall_silent(1, NOW - 240);
        stage.fall_silent(2, NOW - seconds);
        assert_eq!(stage.evicted(0), breaks, "{seconds}");
    }
    // Proof is proof.
    let mut stage = Stage::new(3);
    stage.run_on(0);
    for node in 0..3 {
        stage.fall_silent(node, NOW - 240);
    }
    stage.say_that_it_is_off(0, NOW - 1);
    assert_eq!(stage.evicted(0), None);
}

#[test]
fn s9_whoever_is_evicted_for_silence_beyond_the_breaker_or_while_it_is_open_is_seen_and_for_proof_may_be()
 {
    for (is_proved, is_open, broken) in [
        (false, false, [None, None, Some("S9")]),
        (false, true, [Some("S9"), Some("S9"), Some("S9")]),
        (true, false, [None; 3]),
        (true, true, [None; 3]),
    ] {
        // A fifth of ten nodes may be evacuated.
        let mut stage = Stage::new(5);
        stage.breaker_opened_at = is_open.then(|| Time(time(0)));
        for (number, breaks) in broken.into_iter().enumerate() {
            stage.run_on(number);
            stage.fall_silent(number, NOW - 240);
            if is_proved {
                stage.say_that_it_is_off(number, NOW - 1);
            }
            let case = format!("{number}, proved: {is_proved}, open: {is_open}");
            assert_eq!(stage.evicted(number), breaks, "{case}");
            stage.come_back(number, NOW);
        }
    }
}
