//! What the store says about a Node, read uncached, before anything is concluded from its silence.
//!
//! A watch lags, and may stand still. Two things are concluded from a Node that cannot be taken back by seeing better later:
//! that what was permitted there is released, though its driver said nothing, and that no Team is charged for it any more.
//! Both go by a read that was **begun after the object of the node's permits was seen as it is now**. So no permit that it shows as withdrawn was
//! prepared after the Node fell silent: a kubelet tells of its Node before it starts any driver, and a driver that starts
//! later reads the withdrawal.
//!
//! A third, that gangs are evicted for a node, goes by a read that was begun **after the time had come**: a watch that stands still
//! since the node was marked does not show that it is back.
//!
//! Reads are no hurry: they go beside the writes that carry out a commit, and few at a time ([`crate::lanes`]). One that is not answered,
//! or says something else than the watch, is repeated after twice the pause.
//!
//! So many answers come one after the other, too. Where they may add up to more nodes than may be evacuated, they are waited for
//! before anybody is evicted ([`crate::faults::breaker::awaits_answers`]); for each node only once.
//!
//! Whatever the answer, it changes nothing by itself: what follows is written to that very version of the object.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::Node;
use muster_api::NodeDevices;

use crate::{
    ApiRequest, Effect, EffectId, Machine, Now, Outcome,
    nodes::loss::{self, NodeState},
    objects::node_object,
};
use muster_cluster::object::Object;

/// Most seconds between two reads of a node for the same reason.
const MOST_PAUSE_SECONDS: u64 = 32;

/// Which state of a node's object: its UID, and its generation.
type Version = (String, i64);

/// A read under way.
#[derive(Debug)]
struct Question {
    node: String,
    /// The object as it was seen when the read began.
    version: Version,
    /// UID of the Node that is asked about.
    uid: String,
    begun_at: u64,
    /// When the read before it began.
    before_at: Option<u64>,
}

/// What the last read of a node said.
#[derive(Debug)]
struct Answer {
    version: Version,
    state: NodeState,
    begun_at: u64,
}

/// When a node is read again.
#[derive(Debug)]
struct Pause {
    version: Version,
    /// When it was read last.
    begun_at: u64,
    not_before: u64,
    seconds: u64,
}

/// Reads under way, and what the last ones said.
#[derive(Debug, Default)]
pub(crate) struct NodeChecks {
    under_way: BTreeMap<EffectId, Question>,
    /// The nodes that those are about.
    being_read: BTreeSet<String>,
    found: BTreeMap<String, Answer>,
    pauses: BTreeMap<String, Pause>,
}

impl NodeChecks {
    /// What the store said about the Node, if it was asked after the object was seen as it is now.
    pub(crate) fn found(&self, node: &str, devices: &NodeDevices) -> Option<NodeState> {
        let answer = self.found.get(node)?;
        (Some(&answer.version) == version_of(devices).as_ref()).then_some(answer.state)
    }

    /// What the store said about the Node, if it was asked in that second or later.
    pub(crate) fn found_since(&self, node: &str, second: u64) -> Option<NodeState> {
        let answer = self.found.get(node)?;
        (answer.begun_at >= second).then_some(answer.state)
    }

    /// The second from which on the node may be read; `None`: it is being read.
    pub(crate) fn may_ask_at(&self, node: &str, devices: &NodeDevices) -> Option<u64> {
        if self.being_read.contains(node) {
            return None;
        }
        // What was written since is another question.
        let pause = self.pauses.get(node);
        let pause = pause.filter(|pause| Some(&pause.version) == version_of(devices).as_ref());
        Some(pause.map_or(0, |pause| pause.not_before))
    }

    /// The nodes that are being read, and when the read of each before that began, if it has been read since it was well.
    pub(crate) fn being_asked(&self) -> impl Iterator<Item = (&String, Option<u64>)> {
        let questions = self.under_way.values();
        questions.map(|question| (&question.node, question.before_at))
    }

    /// The nodes of which the store has said something, and when the read of each began.
    pub(crate) fn answered(&self) -> impl Iterator<Item = (&String, u64)> {
        let found = self.found.iter();
        found.map(|(node, answer)| (node, answer.begun_at))
    }

    /// Notes that a node is read now, and when at the earliest again: after twice the pause of the last time, if that was for the same
    /// reason and a short while ago. When it was read before, whatever for.
    fn note_pause(
        &mut self,
        node: &str,
        version: Version,
        shortest_seconds: u64,
        now: u64,
    ) -> Option<u64> {
        let last = self.pauses.get(node).filter(|pause| {
            pause.version == version && now <= pause.not_before + MOST_PAUSE_SECONDS
        });
        let seconds = last.map_or(shortest_seconds, |pause| {
            (pause.seconds * 2).min(MOST_PAUSE_SECONDS)
        });
        let pause = Pause {
            version,
            begun_at: now,
            not_before: now + seconds,
            seconds,
        };
        let before = self.pauses.insert(node.to_owned(), pause);
        before.map(|pause| pause.begun_at)
    }

    /// Nothing is to be known about the node any more.
    fn forget(&mut self, node: &str) {
        self.found.remove(node);
        self.pauses.remove(node);
    }
}

fn version_of(devices: &NodeDevices) -> Option<Version> {
    Some((devices.metadata.uid.clone()?, devices.metadata.generation?))
}

impl Machine {
    /// The read that says what has become of a node.
    pub(crate) fn check_node(&mut self, node: &str, now: Now) -> Option<Effect> {
        let devices = self.index.node_devices(node)?;
        let (version, uid) = (version_of(devices)?, devices.spec.node_uid.clone());
        let id = self.flights.number();
        let now = now.monotonic_seconds;
        let shortest = self.config.retry_seconds;
        let before_at = self
            .node_checks
            .note_pause(node, version.clone(), shortest, now);
        let question = Question {
            node: node.to_owned(),
            version,
            uid,
            begun_at: now,
            before_at,
        };
        self.node_checks.under_way.insert(id, question);
        self.node_checks.being_read.insert(node.to_owned());
        let key = node_object(node);
        Some(Effect::new(id, ApiRequest::ReadObject { key }))
    }

    /// Takes the answer of such a read; whether it was one. Without an answer it is asked again.
    pub(crate) fn take_node_check(&mut self, effect: EffectId, outcome: &Outcome) -> bool {
        let Some(question) = self.node_checks.under_way.remove(&effect) else {
            return false;
        };
        let node = question.node;
        self.node_checks.being_read.remove(&node);
        let stored: Option<Option<&Node>> = match outcome {
            Outcome::Done(Some(Object::Node(stored))) => Some(Some(stored.as_ref())),
            Outcome::NotFound => Some(None),
            _ => None,
        };
        if let Some(stored) = stored {
            let answer = Answer {
                version: question.version,
                state: loss::state_of(stored, &question.uid),
                begun_at: question.begun_at,
            };
            self.node_checks.found.insert(node.clone(), answer);
        }
        self.agenda.node(&node);
        for key in self.plans.on_node(&node) {
            self.agenda.gang(key);
        }
        true
    }

    /// Forgets what was read about a node that is well, or no more.
    pub(crate) fn forget_node_check(&mut self, node: &str) {
        self.node_checks.forget(node);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_read_in_vain_is_repeated_after_twice_the_pause_up_to_half_a_minute() {
        let mut checks = NodeChecks::default();
        let mut devices = NodeDevices::new("n0", muster_api::NodeDevicesSpec::default());
        devices.metadata.uid = Some("uid".to_owned());
        devices.metadata.generation = Some(1);
        let mut now = 100;
        let mut pauses = Vec::new();
        let mut read_at = None;
        for _ in 0..7 {
            let before = checks.note_pause("n0", version_of(&devices).unwrap(), 1, now);
            assert_eq!(before, read_at);
            read_at = Some(now);
            let at = checks.may_ask_at("n0", &devices).unwrap();
            pauses.push(at - now);
            now = at;
        }
        assert_eq!(pauses, [1, 2, 4, 8, 16, 32, 32]);
        devices.metadata.generation = Some(2);
        assert_eq!(
            checks.may_ask_at("n0", &devices),
            Some(0),
            "another question"
        );
        checks.being_read.insert("n0".to_owned());
        assert_eq!(checks.may_ask_at("n0", &devices), None);
    }
}
