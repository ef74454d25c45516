//! Whether this leader was the newest one after it saw a node's `NodeDevices`: what permits wait for.
//!
//! **Why.** A leader that takes an attempt back writes the `NodeDevices` of its nodes first, so that a permit which an older one
//! still sends for it finds another version ([`crate::admission::void`]). That fence is the object's: it is gone if somebody deletes
//! the object, which nothing keeps them from while it has no permit. The next one has no past, and a superseded leader
//! that does not see the attempt as over yet would permit it there, on top of what its successor has admitted since (S1).
//!
//! **The rule.** A `NodeDevices` is created without permits. They are added only to one that this leader saw (by its UID), and
//! has been the newest leader after that: it **began** to commit to the Ledger, or to read it uncached, after it had seen the
//! object, and the answer was that the Ledger still has its UID and its epoch.
//!
//! **Why that is enough.** The object was there before any later leader raised the epoch. Such a leader reads everything
//! after its raise: either it finds that very object and moves its version before it takes anything back, or it is gone. Permits are
//! written by UID and resourceVersion, so they find neither, however late they come. A creation that comes late
//! permits nothing; what is made of it goes by the rule again, and by then the Ledger says who leads.
//!
//! **Where the Ledger cannot be read** nothing is added, and nothing is looked at either: a proof that fails tells no node anything. The
//! nodes that wait stay as they are, and one read is asked for all of them: as many seconds after the one that failed as the
//! configuration says for everything that is tried again. Only the nodes that a proof covers are looked at.
//!
//! **Who else writes.** An administrator may delete the object at any time, once or often, and drivers move its version: both only make
//! a write fail. A proof that is told twice, late or never covers less, never more. It costs nothing in the usual course: nodes
//! are planned whose objects were seen before, so the commit of an admission is itself the proof for its permits. What was weighed and left:
//! `docs/adr/0046-one-proof-each-of-release-and-of-leadership.md`.

use std::collections::{BTreeMap, BTreeSet};

use crate::{ApiRequest, EffectId, Machine, Now};

/// Which `NodeDevices` were seen while this leader was the newest for certain.
#[derive(Debug, Default)]
pub(crate) struct NewestLeader {
    /// How many objects came into sight so far.
    seen: u64,
    /// The objects that no proof covers, by their nodes, each with its number in the order in which they came into sight.
    unproved: BTreeMap<String, u64>,
    /// Proofs under way, and how many objects had come into sight when each began: those it covers.
    under_way: BTreeMap<EffectId, u64>,
    /// Nodes whose permits wait for a proof. One whose permits are not wanted any more stays until the next proof.
    waiting: BTreeSet<String>,
}

impl NewestLeader {
    /// The node has an object that was not seen before: its first, or one with another UID.
    pub(crate) fn note_seen(&mut self, node: &str) {
        self.seen += 1;
        self.unproved.insert(node.to_owned(), self.seen);
    }

    /// The node has no object any more.
    pub(crate) fn note_gone(&mut self, node: &str) {
        self.unproved.remove(node);
    }

    /// Whether this leader was the newest after it saw the object that the node has.
    pub(crate) fn has_seen(&self, node: &str) -> bool {
        !self.unproved.contains_key(node)
    }

    /// The permits of a node wait; whether a proof is to be asked for, since none is under way that would do.
    fn wait(&mut self, node: &str) -> bool {
        self.waiting.insert(node.to_owned());
        let seen = self.unproved.get(node).copied().unwrap_or_default();
        !self.under_way.values().any(|covered| *covered >= seen)
    }

    /// What succeeds only for the newest leader is sent.
    pub(crate) fn begin(&mut self, effect: EffectId) {
        self.under_way.insert(effect, self.seen);
    }

    /// Its answer: whether it succeeded. Returns the nodes that waited and wait no more; if it did not, nobody has anything to
    /// look at for it.
    fn end(&mut self, effect: EffectId, is_proof: bool) -> BTreeSet<String> {
        let Some(covered) = self.under_way.remove(&effect) else {
            return BTreeSet::new();
        };
        if !is_proof {
            return BTreeSet::new();
        }
        self.unproved.retain(|_, seen| *seen > covered);
        let waiting = std::mem::take(&mut self.waiting).into_iter();
        let (unproved, proved) = waiting.partition(|node| self.unproved.contains_key(node));
        self.waiting = unproved;
        proved
    }

    /// Whether a node waits for a proof, and none is under way that would do.
    fn lacks_proof(&self) -> bool {
        let newest = self.under_way.values().max();
        self.waiting.iter().any(|node| {
            let seen = self.unproved.get(node).copied().unwrap_or_default();
            newest.is_none_or(|covered| *covered < seen)
        })
    }
}

impl Machine {
    /// The permits of a node wait until it is known that this leader still leads: the Ledger is read for that, unless its answer
    /// is awaited anyway. It may be read a second later only, if it was read just now.
    pub(crate) fn await_newest(&mut self, node: &str, now: Now) {
        if self.newest.wait(node) {
            self.ledger_check.ask(now.monotonic_seconds);
        }
    }

    /// Notes a commit that is sent.
    pub(crate) fn begin_commit(&mut self, effect: EffectId, write: &ApiRequest) {
        if matches!(write, ApiRequest::ReplaceLedger { .. }) {
            self.newest.begin(effect);
        }
    }

    /// Takes the answer of a commit or of a read of the Ledger; whether there is something to look at for it. Where it is no proof and
    /// nodes wait for one, the Ledger is read for them, once for all: after a read that failed not before the usual pause.
    pub(crate) fn end_proof(&mut self, effect: EffectId, is_proof: bool, now: Now) -> bool {
        if !self.newest.under_way.contains_key(&effect) {
            return false;
        }
        let nodes = self.newest.end(effect, is_proof);
        for node in &nodes {
            self.agenda.node(node);
        }
        if self.newest.lacks_proof() {
            self.ledger_check.ask(now.monotonic_seconds);
        }
        !nodes.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_proof_covers_what_was_seen_before_it_began_and_only_if_it_succeeds() {
        let mut newest = NewestLeader::default();
        newest.note_seen("n0");
        newest.begin(EffectId(1));
        newest.note_seen("n1");
        assert!(!newest.has_seen("n0"), "not answered yet");
        assert!(!newest.wait("n0"), "what is under way will do");
        assert!(newest.wait("n1"), "that began too early");
        let proved = newest.end(EffectId(1), true);
        assert_eq!(proved, BTreeSet::from(["n0".to_owned()]));
        assert!(newest.has_seen("n0"));
        assert!(!newest.has_seen("n1"));
        newest.begin(EffectId(2));
        assert!(newest.end(EffectId(2), false).is_empty());
        assert!(!newest.has_seen("n1"), "somebody else may lead");
        // Another answer of the same effect, or of one that is no proof, says nothing.
        assert!(newest.end(EffectId(2), true).is_empty());
        assert!(!newest.has_seen("n1"));
        assert!(
            newest.lacks_proof(),
            "it waits on, and nothing is under way"
        );
        newest.begin(EffectId(3));
        assert!(!newest.lacks_proof());
        let proved = newest.end(EffectId(3), true);
        assert_eq!(proved, BTreeSet::from(["n1".to_owned()]));
        assert!(newest.has_seen("n1") && !newest.lacks_proof());
    }

    #[test]
    fn an_object_that_is_made_again_while_a_proof_is_under_way_is_not_covered_by_it() {
        let mut newest = NewestLeader::default();
        newest.note_seen("n0");
        newest.begin(EffectId(1));
        newest.note_gone("n0");
        newest.note_seen("n0");
        newest.end(EffectId(1), true);
        assert!(!newest.has_seen("n0"));
    }
}
