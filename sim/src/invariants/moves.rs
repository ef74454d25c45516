//! Gangs that are moved away from what a person drains by hand, by what the API server says alone.
//!
//! * **move** nobody is, where the administrator does not want it;
//! * **S8** a gang is only if a device that it was given, or the node of one, was drained at any time since then;
//! * **S10** and for each drain once. A device that kube-scheduler gives it though a rule drains it is drained under it anew.
//!
//! That it is moved whole is S4 of [`super::preemption`].

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use k8s_openapi::api::{core::v1::Node, resource::v1::DeviceTaintRule};
use muster_api::{Intent, IntentKind, Ledger, Reason, keys};
use muster_protocol::OnCordon;

use super::{
    Violation,
    holdings::{Device, Holdings},
};
use crate::{api_server::ApiServer, scenario::Scenario};

/// What is drained.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Drained {
    Node(String),
    Device(Device),
}

/// From when to when it is.
#[derive(Clone, Copy, Debug)]
struct Drain {
    /// Tells it from every other drain.
    number: u64,
    until: Option<Timestamp>,
}

/// A drain that an attempt was under; of a device, since when the attempt had that.
type Cause = (u64, Option<Timestamp>);

/// What was seen so far.
#[derive(Debug, Default)]
pub(super) struct Moves {
    are_wanted: bool,
    drains: BTreeMap<Drained, Vec<Drain>>,
    numbers: u64,
    /// What rules drain, by their names.
    rules: BTreeMap<String, Device>,
    /// Attempts of which an intent was seen that moves them.
    evicted: BTreeSet<(String, i64)>,
    /// For what gangs were moved, by their UID.
    moved: BTreeMap<String, BTreeSet<Cause>>,
}

impl Moves {
    pub(super) fn new(scenario: &Scenario) -> Self {
        Self {
            are_wanted: scenario.on_cordon == OnCordon::Move,
            ..Self::default()
        }
    }

    /// Whether a node is drained.
    pub(super) fn note_node(&mut self, node: &Node, now: Timestamp) {
        let spec = node.spec.as_ref();
        let is_cordoned = spec.is_some_and(|spec| spec.unschedulable == Some(true));
        let taints = spec.and_then(|spec| spec.taints.as_ref());
        let mut taints = taints.into_iter().flatten();
        let is_tainted = taints
            .any(|taint| taint.key == keys::TAINT_DRAIN && taint.effect != "PreferNoSchedule");
        let name = node.metadata.name.clone().unwrap_or_default();
        self.note(Drained::Node(name), is_cordoned || is_tainted, now);
    }

    /// A node is no more.
    pub(super) fn note_no_node(&mut self, name: &str, now: Timestamp) {
        self.note(Drained::Node(name.to_owned()), false, now);
    }

    /// Which device a rule drains: all of them name one here.
    pub(super) fn note_rule(&mut self, rule: &DeviceTaintRule, now: Timestamp) {
        let name = rule.metadata.name.clone().unwrap_or_default();
        self.note_no_rule(&name, now);
        let selector = rule.spec.device_selector.clone().unwrap_or_default();
        if let (Some(pool), Some(device)) = (selector.pool, selector.device)
            && rule.spec.taint.effect != "None"
        {
            self.note(Drained::Device((pool.clone(), device.clone())), true, now);
            self.rules.insert(name, (pool, device));
        }
    }

    /// A rule is no more.
    pub(super) fn note_no_rule(&mut self, name: &str, now: Timestamp) {
        if let Some(device) = self.rules.remove(name) {
            self.note(Drained::Device(device), false, now);
        }
    }

    fn note(&mut self, what: Drained, is_drained: bool, now: Timestamp) {
        let known = self.drains.entry(what).or_default();
        match known.last_mut().filter(|last| last.until.is_none()) {
            Some(last) if !is_drained => last.until = Some(now),
            None if is_drained => {
                self.numbers += 1;
                known.push(Drain {
                    number: self.numbers,
                    until: None,
                });
            }
            _ => {}
        }
    }

    /// What the Ledger commits now.
    pub(super) fn check_ledger(
        &mut self,
        api: &ApiServer,
        holdings: &Holdings,
        ledger: &Ledger,
    ) -> Result<(), Violation> {
        for intent in &ledger.spec.intents {
            let attempt = (intent.gang_uid.clone(), intent.attempt);
            let moves = intent.kind == IntentKind::Evict && intent.cause == Some(Reason::Drained);
            if moves && self.evicted.insert(attempt) {
                self.check_move(api, holdings, intent)?;
            }
        }
        Ok(())
    }

    fn check_move(
        &mut self,
        api: &ApiServer,
        holdings: &Holdings,
        intent: &Intent,
    ) -> Result<(), Violation> {
        let name = &intent.name;
        if !self.are_wanted {
            let what = format!("{name} is moved, and its administrator wants nobody to be");
            return Err(Violation::new("move", what));
        }
        let Some(given) = holdings.of_attempt(api, intent) else {
            return Ok(());
        };
        let mut causes: BTreeSet<Cause> = BTreeSet::new();
        for (since, devices) in &given {
            for device in devices {
                let of_node = self.drains_since(&Drained::Node(device.0.clone()), *since);
                causes.extend(of_node.into_iter().map(|number| (number, None)));
                let of_device = self.drains_since(&Drained::Device(device.clone()), *since);
                let of_device = of_device.into_iter();
                causes.extend(of_device.map(|number| (number, Some(*since))));
            }
        }
        let before = self.moved.get(&intent.gang_uid);
        if before.is_none() && causes.is_empty() {
            let what = format!(
                "{name} is moved, and of what it was given nothing was drained since: {given:?}"
            );
            return Err(Violation::new("S8", what));
        }
        if let Some(before) = before.filter(|before| causes.is_subset(before)) {
            let what = format!(
                "attempt {} of {name} is moved for {causes:?}, and others of it were for {before:?}",
                intent.attempt
            );
            return Err(Violation::new("S10", what));
        }
        let moved = self.moved.entry(intent.gang_uid.clone()).or_default();
        moved.append(&mut causes);
        Ok(())
    }

    /// Numbers of its drains that stood at that time or later.
    fn drains_since(&self, what: &Drained, since: Timestamp) -> Vec<u64> {
        let drains = self.drains.get(what).into_iter().flatten();
        let since = drains.filter(|drain| drain.until.is_none_or(|until| until >= since));
        since.map(|drain| drain.number).collect()
    }
}

#[cfg(test)]
mod tests {
    use muster_api::{
        Gang, GangSpec, LedgerSpec,
        gang::{Admission, AdmittedPod},
    };
    use serde_json::{Value, json};

    use super::*;
    use crate::api_server::Precondition;

    fn time(second: i64) -> Timestamp {
        Timestamp::from_second(1_790_000_000 + second).unwrap()
    }

    fn object<T: serde::de::DeserializeOwned>(value: Value) -> T {
        serde_json::from_value(value).unwrap()
    }

    fn node(is_cordoned: bool, taint: &str) -> Node {
        object(json!({
            "metadata": {"name": "node-0"},
            "spec": {
                "unschedulable": is_cordoned,
                "taints": [{"key": taint, "effect": "NoSchedule"}],
            },
        }))
    }

    fn rule(device: &str) -> DeviceTaintRule {
        object(json!({
            "metadata": {"name": "swap"},
            "spec": {
                "deviceSelector": {"driver": keys::DRIVER, "pool": "node-0", "device": device},
                "taint": {"key": "example.com/swap", "effect": "NoSchedule"},
            },
        }))
    }

    /// A gang whose one claim has a device of a node since second 10, and what is known of that.
    struct Stage {
        api: ApiServer,
        holdings: Holdings,
        moves: Moves,
    }

    impl Stage {
        fn new(are_wanted: bool) -> Self {
            let mut api = ApiServer::default();
            let mut gang = Gang::new("train", GangSpec::default());
            gang.metadata.namespace = Some("ml".to_owned());
            api.create(gang).unwrap();
            Self {
                api,
                holdings: Holdings::default(),
                moves: Moves {
                    are_wanted,
                    ..Moves::default()
                },
            }
        }

        /// An attempt has a device of that node.
        fn give(&mut self, claim: &str, node: &str, second: i64) {
            let any = Precondition::default();
            let done = self.api.update::<Gang>("ml", "train", any, |gang| {
                let pod = AdmittedPod {
                    claims: vec![claim.to_owned()],
                    ..AdmittedPod::default()
                };
                let admission = Admission {
                    pods: vec![pod],
                    ..Admission::default()
                };
                gang.status.get_or_insert_default().admission = Some(admission);
            });
            done.unwrap();
            let claim = object(json!({
                "metadata": {"name": claim, "uid": claim}, "spec": {},
                "status": {"allocation": {"devices": {"results": [
                    {"driver": keys::DRIVER, "pool": node, "device": "gpu-1", "request": "gpu"},
                ]}}},
            }));
            self.holdings.note_claim(&claim, time(second));
        }

        /// The invariant that breaks where an attempt is moved.
        fn moved(&mut self, attempt: i64) -> Option<&'static str> {
            let gang = self.api.get::<Gang>("ml", "train").unwrap();
            let mut ledger = Ledger::new(keys::LEDGER_NAME, LedgerSpec::default());
            ledger.spec.intents.push(Intent {
                kind: IntentKind::Evict,
                namespace: "ml".to_owned(),
                name: "train".to_owned(),
                gang_uid: gang.metadata.uid.clone().unwrap(),
                attempt,
                cause: Some(Reason::Drained),
                ..Intent::default()
            });
            let checked = self.moves.check_ledger(&self.api, &self.holdings, &ledger);
            checked.err().map(|violation| violation.invariant)
        }
    }

    #[test]
    fn whoever_is_moved_unasked_or_from_what_was_not_drained_since_is_seen() {
        let none = "example.com/other";
        for (drained, undrained_at, are_wanted, breaks) in [
            (node(true, none), None, true, None),
            (node(false, keys::TAINT_DRAIN), None, true, None),
            (node(false, none), None, true, Some("S8")),
            (node(true, none), Some(20), true, None),
            (node(true, none), Some(5), true, Some("S8")),
            (node(true, none), None, false, Some("move")),
        ] {
            let mut stage = Stage::new(are_wanted);
            stage.moves.note_node(&drained, time(0));
            if let Some(second) = undrained_at {
                stage.moves.note_node(&node(false, none), time(second));
            }
            stage.give("claim", "node-0", 10);
            assert_eq!(stage.moved(1), breaks, "{drained:?} {undrained_at:?}");
        }
    }

    #[test]
    fn a_rule_drains_its_device_and_no_other() {
        for (device, breaks) in [("gpu-1", None), ("gpu-0", Some("S8"))] {
            let mut stage = Stage::new(true);
            stage.give("claim", "node-0", 10);
            stage.moves.note_rule(&rule(device), time(20));
            assert_eq!(stage.moved(1), breaks, "{device}");
        }
    }

    #[test]
    fn a_gang_is_moved_once_for_a_drain() {
        let mut stage = Stage::new(true);
        stage.give("claim", "node-0", 10);
        stage.moves.note_node(&node(true, "none"), time(20));
        assert_eq!(stage.moved(1), None);
        assert_eq!(stage.moved(1), None, "the same attempt is told of again");
        stage.give("elsewhere", "node-1", 30);
        assert_eq!(
            stage.moved(2),
            Some("S10"),
            "it holds nothing that is drained"
        );
        let mut stage = Stage::new(true);
        stage.give("claim", "node-0", 10);
        stage.moves.note_node(&node(true, "none"), time(20));
        assert_eq!(stage.moved(1), None);
        stage.moves.note_node(&node(false, "none"), time(30));
        stage.give("again", "node-0", 40);
        stage.moves.note_node(&node(true, "none"), time(50));
        assert_eq!(stage.moved(2), None, "that is another drain");
    }
}
