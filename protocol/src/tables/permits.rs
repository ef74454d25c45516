//! Where the permits of a pod, a gang and a claim are, and the highest attempt of each gang among them.

use std::collections::HashSet;

use muster_api::{NodeDevices, Permit};

use crate::admission::charge;
use muster_cluster::{formed::GangKey, links::Links, table::Table};

/// Nodes by what their permits name.
#[derive(Debug, Default)]
pub(crate) struct PermitTable {
    by_node: Table<String, Vec<Named>>,
    of_pod: Links<String, String>,
    of_gang: Links<String, (String, i64)>,
    /// Of claims that are charged to nobody.
    of_claim: Links<String, String>,
}

/// What a permit says that gangs go by.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Named {
    /// UID of its pod.
    pub(crate) pod: String,
    /// Its gang, as `namespace/name`.
    pub(crate) gang: String,
    gang_uid: String,
    attempt: i64,
    withdrawn: bool,
    /// UIDs of its claims that are charged to nobody, if it is withdrawn.
    pub(crate) claims: Vec<String>,
}

impl Named {
    fn of(permit: &Permit) -> Self {
        Self {
            pod: permit.pod_uid.clone(),
            gang: permit.gang.clone(),
            gang_uid: permit.gang_uid.clone(),
            attempt: permit.attempt,
            withdrawn: permit.withdrawn,
            claims: held_by_node_alone(permit).cloned().collect(),
        }
    }

    fn is_of(&self, permit: &Permit) -> bool {
        self.pod == permit.pod_uid
            && self.gang == permit.gang
            && self.gang_uid == permit.gang_uid
            && self.attempt == permit.attempt
            && self.withdrawn == permit.withdrawn
            && self.claims.iter().eq(held_by_node_alone(permit))
    }
}

/// The claims of a withdrawn permit that are charged to nobody: the node's driver alone says that it holds them.
fn held_by_node_alone(permit: &Permit) -> impl Iterator<Item = &String> {
    charge::uncharged(permit).filter(move |_| permit.withdrawn)
}

/// What is in one of the two and not in the other, in their order.
fn differences(before: &[Named], after: &[Named]) -> Vec<Named> {
    let stood: HashSet<&Named> = before.iter().collect();
    let stands: HashSet<&Named> = after.iter().collect();
    let gone = before.iter().filter(|named| !stands.contains(named));
    let came = after.iter().filter(|named| !stood.contains(named));
    gone.chain(came).cloned().collect()
}

impl PermitTable {
    /// Reads the permits of a node as they are now. Returns what those name that came, went or changed.
    pub(crate) fn read(&mut self, node: &str, devices: Option<&NodeDevices>) -> Vec<Named> {
        let permits = devices.map_or(&[][..], |devices| &devices.spec.permits);
        let known = self.by_node.get(node).map_or(&[][..], Vec::as_slice);
        let is_same = |(known, permit): (&Named, &Permit)| known.is_of(permit);
        if known.len() == permits.len() && known.iter().zip(permits).all(is_same) {
            return Vec::new();
        }
        let after: Vec<Named> = permits.iter().map(Named::of).collect();
        let before = self.by_node.remove(node).unwrap_or_default();
        let changed = differences(&before, &after);
        for named in &changed {
            self.of_pod.unlink(named.pod.as_str(), &node.to_owned());
            let place = (node.to_owned(), named.attempt);
            self.of_gang.unlink(named.gang.as_str(), &place);
            for claim in &named.claims {
                self.of_claim.unlink(claim.as_str(), &node.to_owned());
            }
        }
        for claim in after.iter().flat_map(|named| &named.claims) {
            self.of_claim.link(claim.clone(), node.to_owned());
        }
        // A pod or a gang may have another permit here that did not change.
        let concerned = |named: &&Named| {
            let mut changed = changed.iter();
            changed.any(|it| it.pod == named.pod || it.gang == named.gang)
        };
        for named in after.iter().filter(concerned) {
            self.of_pod.link(named.pod.clone(), node.to_owned());
            let place = (node.to_owned(), named.attempt);
            self.of_gang.link(named.gang.clone(), place);
        }
        if !after.is_empty() {
            self.by_node.insert(node.to_owned(), after);
        }
        changed
    }

    /// Nodes with any permit.
    pub(crate) fn nodes(&self) -> impl Iterator<Item = &String> {
        self.by_node.in_order().map(|(node, _)| node)
    }

    /// Nodes with a permit for the pod.
    pub(crate) fn of_pod(&self, uid: &str) -> impl Iterator<Item = &String> {
        self.of_pod.of(uid)
    }

    /// Whether all permits of the pod on the node name that gang.
    pub(crate) fn is_of(&self, node: &str, pod: &str, gang: &GangKey) -> bool {
        let named = self.by_node.get(node).into_iter().flatten();
        let mut named = named.filter(|named| named.pod == pod).peekable();
        named.peek().is_none() || {
            let gang = gang.to_string();
            named.all(|named| named.gang == gang)
        }
    }

    /// Whether all permits of the pod on the node are of that attempt and none is withdrawn, and it has any.
    pub(crate) fn is_standing(&self, node: &str, pod: &str, attempt: i64) -> bool {
        let named = self.by_node.get(node).into_iter().flatten();
        let mut named = named.filter(|named| named.pod == pod).peekable();
        named.peek().is_some() && named.all(|named| !named.withdrawn && named.attempt == attempt)
    }

    /// Nodes with a permit that names the gang (`namespace/name`). One may be named more than once.
    pub(crate) fn of_gang(&self, gang: &str) -> impl Iterator<Item = &String> {
        self.of_gang.of(gang).map(|(node, _)| node)
    }

    /// Nodes with a withdrawn permit that names the claim and charges it to nobody.
    pub(crate) fn of_claim(&self, uid: &str) -> impl Iterator<Item = &String> {
        self.of_claim.of(uid)
    }

    /// The highest attempt of any permit that names the gang; 0 without one.
    pub(crate) fn highest_attempt(&self, gang: &str) -> i64 {
        let attempts = self.of_gang.of(gang).map(|(_, attempt)| *attempt);
        attempts.max().unwrap_or(0)
    }
}
