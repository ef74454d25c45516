//! What the store says about a Node, read uncached, before anything is concluded from its silence.
//!
//! A watch lags, and may stand still. Two things are concluded from a Node that cannot be taken back by seeing better later:
//! that what was permitted there is released, though its driver said nothing, and that no Team is charged for it any more.
//! Both go by a read that was **begun after the object of the node's permits was seen as it is now**. So no permit that it shows as withdrawn was
//! prepared after the Node fell silent: a kubelet tells of its Node before it starts any driver, and a driver that starts
//! later reads the withdrawal.
//!
//! Whatever the answer, it changes nothing by itself: what follows is written to that very version of the object.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Node;
use muster_api::NodeDevices;

use crate::{
    ApiRequest, Effect, EffectId, Machine, Now, Outcome,
    nodes::loss::{self, NodeState},
};
use muster_cluster::object::{Kind, Object, ObjectKey};

/// Which state of a node's object: its UID, and its generation.
type Version = (String, i64);

/// Reads under way, and what the last ones said.
#[derive(Debug, Default)]
pub(crate) struct NodeChecks {
    under_way: BTreeMap<EffectId, (String, Version, String)>,
    found: BTreeMap<String, (Version, NodeState)>,
    /// When a node is read again at the earliest.
    not_before: BTreeMap<String, u64>,
}

impl NodeChecks {
    /// What the store said about the Node, if it was asked after the object was seen as it is now.
    pub(crate) fn found(&self, node: &str, devices: &NodeDevices) -> Option<NodeState> {
        let (version, state) = self.found.get(node)?;
        (Some(version) == version_of(devices).as_ref()).then_some(*state)
    }

    /// The second from which on the node may be read; `None`: it is being read.
    pub(crate) fn may_ask_at(&self, node: &str) -> Option<u64> {
        let mut asked = self.under_way.values();
        let is_asked = asked.any(|(asked, ..)| asked == node);
        (!is_asked).then(|| self.not_before.get(node).copied().unwrap_or(0))
    }

    /// Nothing is to be known about the node any more.
    fn forget(&mut self, node: &str) {
        self.found.remove(node);
        self.not_before.remove(node);
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
        let second = now.monotonic_seconds + self.config.retry_seconds;
        self.node_checks.not_before.insert(node.to_owned(), second);
        let asked = (node.to_owned(), version, uid);
        self.node_checks.under_way.insert(id, asked);
        let key = ObjectKey {
            kind: Kind::Node,
            namespace: String::new(),
            name: node.to_owned(),
        };
        Some(Effect::new(id, ApiRequest::ReadObject { key }))
    }

    /// Takes the answer of such a read; whether it was one. Without an answer it is asked again.
    pub(crate) fn take_node_check(&mut self, effect: EffectId, outcome: &Outcome) -> bool {
        let Some((node, version, uid)) = self.node_checks.under_way.remove(&effect) else {
            return false;
        };
        let stored: Option<Option<&Node>> = match outcome {
            Outcome::Done(Some(Object::Node(stored))) => Some(Some(stored.as_ref())),
            Outcome::NotFound => Some(None),
            _ => None,
        };
        if let Some(stored) = stored {
            let state = loss::state_of(stored, &uid);
            self.node_checks
                .found
                .insert(node.clone(), (version, state));
        }
        self.agenda.node(&node);
        true
    }

    /// Forgets what was read about a node that is well, or no more.
    pub(crate) fn forget_node_check(&mut self, node: &str) {
        self.node_checks.forget(node);
    }
}
