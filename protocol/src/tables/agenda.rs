//! What is to be looked at: because something changed, or because it is due.

use std::collections::{BTreeMap, BTreeSet};

use muster_cluster::{formed::GangKey, table::Table};

/// Something that is looked at as a whole.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Subject {
    /// A gang: its object, its pods, its intent.
    Gang(GangKey),
    /// A node, and its `NodeDevices`.
    Node(String),
}

/// Subjects that are to be looked at, now or at a second of the monotonic clock. A subject has at most one time: it says
/// each time that it is looked at when it wants to be looked at again.
#[derive(Debug, Default)]
pub(crate) struct Agenda {
    now: BTreeSet<Subject>,
    by_second: BTreeMap<u64, BTreeSet<Subject>>,
    due: Table<Subject, u64>,
    /// Pods, by UID, that changed, and whether nodes go by what did: whose gangs and nodes these are is looked up when they are
    /// known.
    pods: BTreeMap<String, bool>,
    everything: bool,
}

impl Agenda {
    /// A gang is to be looked at.
    pub(crate) fn gang(&mut self, key: &GangKey) {
        self.now.insert(Subject::Gang(key.clone()));
    }

    /// A node is to be looked at.
    pub(crate) fn node(&mut self, name: &str) {
        self.now.insert(Subject::Node(name.to_owned()));
    }

    /// Whatever concerns a pod is to be looked at.
    pub(crate) fn pod(&mut self, uid: &str) {
        self.pods.insert(uid.to_owned(), true);
    }

    /// The gang of a pod is to be looked at; of its nodes only those that know something else of it.
    pub(crate) fn gang_of_pod(&mut self, uid: &str) {
        self.pods.entry(uid.to_owned()).or_insert(false);
    }

    /// Everything is to be looked at.
    pub(crate) fn everything(&mut self) {
        self.everything = true;
    }

    /// Whether everything is to be looked at; asked once.
    pub(crate) fn take_everything(&mut self) -> bool {
        std::mem::take(&mut self.everything)
    }

    /// The pods that changed, each with whether its nodes are to be looked at in any case.
    pub(crate) fn take_pods(&mut self) -> BTreeMap<String, bool> {
        std::mem::take(&mut self.pods)
    }

    /// The gangs that are to be looked at now, in order.
    pub(crate) fn take_gangs(&mut self) -> Vec<GangKey> {
        let nodes = self.now.split_off(&Subject::Node(String::new()));
        let gangs = std::mem::replace(&mut self.now, nodes);
        let gangs = gangs.into_iter().filter_map(|subject| match subject {
            Subject::Gang(key) => Some(key),
            Subject::Node(_) => None,
        });
        gangs.collect()
    }

    /// The nodes that are to be looked at now, in order.
    pub(crate) fn take_nodes(&mut self) -> Vec<String> {
        let nodes = self.now.split_off(&Subject::Node(String::new()));
        let nodes = nodes.into_iter().filter_map(|subject| match subject {
            Subject::Node(name) => Some(name),
            Subject::Gang(_) => None,
        });
        nodes.collect()
    }

    /// The gangs among what is to be looked at now.
    pub(crate) fn gangs(&self) -> impl Iterator<Item = &GangKey> {
        self.now.iter().filter_map(|subject| match subject {
            Subject::Gang(key) => Some(key),
            Subject::Node(_) => None,
        })
    }

    /// The nodes among what is to be looked at now.
    pub(crate) fn nodes(&self) -> impl Iterator<Item = &String> {
        self.now.iter().filter_map(|subject| match subject {
            Subject::Node(name) => Some(name),
            Subject::Gang(_) => None,
        })
    }

    /// Whether nothing is to be looked at now.
    pub(crate) fn is_idle(&self) -> bool {
        self.now.is_empty() && self.pods.is_empty() && !self.everything
    }

    /// Sets when a subject is to be looked at next by time alone; `None`: not.
    pub(crate) fn set_due(&mut self, subject: Subject, second: Option<u64>) {
        let before = match second {
            Some(second) => self.due.insert(subject.clone(), second),
            None => self.due.remove(&subject),
        };
        if before == second {
            return;
        }
        if let Some(before) = before
            && let Some(subjects) = self.by_second.get_mut(&before)
        {
            subjects.remove(&subject);
            if subjects.is_empty() {
                self.by_second.remove(&before);
            }
        }
        if let Some(second) = second {
            self.by_second.entry(second).or_default().insert(subject);
        }
    }

    /// Takes what is due by then among what is to be looked at now.
    pub(crate) fn come_due(&mut self, second: u64) {
        while let Some(entry) = self
            .by_second
            .first_entry()
            .filter(|it| *it.key() <= second)
        {
            for subject in entry.remove() {
                self.due.remove(&subject);
                self.now.insert(subject);
            }
        }
    }

    /// The second at which something is due next.
    pub(crate) fn next_due(&self) -> Option<u64> {
        self.by_second.keys().next().copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_subject_has_one_time_and_comes_due_once() {
        let node = || Subject::Node("n1".to_owned());
        let mut agenda = Agenda::default();
        agenda.set_due(node(), Some(10));
        agenda.set_due(node(), Some(20));
        agenda.come_due(19);
        assert!(agenda.is_idle());
        assert_eq!(agenda.next_due(), Some(20));
        agenda.come_due(20);
        assert_eq!(agenda.take_nodes(), ["n1"]);
        assert!(agenda.is_idle());
        assert_eq!(agenda.next_due(), None);
        agenda.set_due(node(), Some(30));
        agenda.set_due(node(), None);
        assert_eq!(agenda.next_due(), None);
    }

    #[test]
    fn gangs_and_nodes_are_taken_apart_and_in_order() {
        let key = |name: &str| GangKey::new("ml", name);
        let mut agenda = Agenda::default();
        agenda.node("n2");
        agenda.gang(&key("b"));
        agenda.node("n1");
        agenda.gang(&key("a"));
        agenda.gang(&key("b"));
        assert_eq!(agenda.take_gangs(), [key("a"), key("b")]);
        assert_eq!(agenda.take_nodes(), ["n1", "n2"]);
        assert!(agenda.is_idle());
    }
}
