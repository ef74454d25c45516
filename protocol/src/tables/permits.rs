//! Where the permits of a pod, a gang and a claim are, and the highest attempt of each gang among them.

use std::collections::BTreeMap;

use muster_api::{NodeDevices, Permit};

use crate::links::Links;

/// Nodes by what their permits name.
#[derive(Debug, Default)]
pub(crate) struct PermitTable {
    by_node: BTreeMap<String, Vec<Named>>,
    of_pod: Links<String, String>,
    of_gang: Links<String, (String, i64)>,
}

/// What one permit names.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Named {
    pod: String,
    gang: String,
    gang_uid: String,
    attempt: i64,
}

impl Named {
    fn of(permit: &Permit) -> Self {
        Self {
            pod: permit.pod_uid.clone(),
            gang: permit.gang.clone(),
            gang_uid: permit.gang_uid.clone(),
            attempt: permit.attempt,
        }
    }
}

impl PermitTable {
    /// Reads the permits of a node as they are now. Returns the UIDs of the pods that a permit came, went or changed for.
    pub(crate) fn read(&mut self, node: &str, devices: Option<&NodeDevices>) -> Vec<String> {
        let permits = devices.iter().flat_map(|devices| &devices.spec.permits);
        let after: Vec<Named> = permits.map(Named::of).collect();
        if self.by_node.get(node).map_or(&[][..], Vec::as_slice) == after {
            return Vec::new();
        }
        let before = self.by_node.remove(node).unwrap_or_default();
        for named in &before {
            self.of_pod.unlink(named.pod.as_str(), &node.to_owned());
            let place = (node.to_owned(), named.attempt);
            self.of_gang.unlink(named.gang.as_str(), &place);
        }
        for named in &after {
            self.of_pod.link(named.pod.clone(), node.to_owned());
            let place = (node.to_owned(), named.attempt);
            self.of_gang.link(named.gang.clone(), place);
        }
        let changed = before.iter().filter(|named| !after.contains(named));
        let changed = changed.chain(after.iter().filter(|named| !before.contains(named)));
        let pods = changed.map(|named| named.pod.clone()).collect();
        if !after.is_empty() {
            self.by_node.insert(node.to_owned(), after);
        }
        pods
    }

    /// Nodes with any permit.
    pub(crate) fn nodes(&self) -> impl Iterator<Item = &String> {
        self.by_node.keys()
    }

    /// Nodes with a permit for the pod.
    pub(crate) fn of_pod(&self, uid: &str) -> impl Iterator<Item = &String> {
        self.of_pod.of(uid)
    }

    /// Nodes with a permit that names the gang (`namespace/name`). One may be named more than once.
    pub(crate) fn of_gang(&self, gang: &str) -> impl Iterator<Item = &String> {
        self.of_gang.of(gang).map(|(node, _)| node)
    }

    /// The highest attempt of any permit that names the gang; 0 without one.
    pub(crate) fn highest_attempt(&self, gang: &str) -> i64 {
        let attempts = self.of_gang.of(gang).map(|(_, attempt)| *attempt);
        attempts.max().unwrap_or(0)
    }
}
