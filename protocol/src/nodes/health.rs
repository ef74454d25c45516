//! Since when nodes are not Ready and drivers do not answer, and whether so many nodes are not Ready that it must be the
//! network or the API server.
//!
//! Counted by the leader's monotonic clock, from the moment it sees the change. A new leader starts anew: it cannot know what the old one
//! saw. A leader that an outage of the API server keeps from renewing its lease is none afterwards, and one that was stopped
//! for a while counts anew as well, so the age of a node's last sign of life during an outage never counts.

use std::collections::{BTreeMap, BTreeSet};

/// From so many nodes of a Flavor that are not Ready at the same time on it is an outage, if they are more than a tenth of them.
const OUTAGE_NODES: usize = 3;
/// One part in so many of a Flavor's nodes.
const OUTAGE_SHARE: usize = 10;
/// A leader that was not asked for so long did not run, in seconds: it is asked every ten at least.
const STOPPED_SECONDS: u64 = 30;

/// What is seen of a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Seen {
    /// Whether it is there and Ready.
    pub(crate) is_ready: bool,
    /// Whether it counts among its Flavors' nodes: it is there, and nobody said that it is out of service; or it is gone, and
    /// something is permitted there.
    pub(crate) counts: bool,
    /// The Flavors of its devices; of a node that is gone, as they were.
    pub(crate) flavors: BTreeSet<String>,
}

/// A node as it was seen last.
#[derive(Clone, Debug)]
struct Known {
    seen: Seen,
    not_ready_since: Option<u64>,
}

/// The nodes of a Flavor, or those of none.
#[derive(Clone, Debug, Default)]
struct Pool {
    nodes: usize,
    not_ready: BTreeSet<String>,
}

impl Pool {
    fn is_in_outage(&self) -> bool {
        let not_ready = self.not_ready.len();
        not_ready >= OUTAGE_NODES && not_ready * OUTAGE_SHARE > self.nodes
    }
}

/// A driver that has not acknowledged what its node's object says.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Silence {
    /// What it has acknowledged: the object's UID, and the generation; neither, if nothing yet.
    acknowledged: (String, i64),
    since: u64,
}

/// How nodes fare.
#[derive(Debug, Default)]
pub(crate) struct NodeHealth {
    nodes: BTreeMap<String, Known>,
    /// By Flavor; nodes without devices of any are a pool of their own.
    pools: BTreeMap<String, Pool>,
    drivers: BTreeMap<String, Silence>,
    lost: BTreeSet<String>,
    /// Nodes whose charges no Team bears.
    off_account: BTreeSet<String>,
    asked_at: u64,
}

impl NodeHealth {
    /// Time goes on. Where it stood still for this leader, everything that lasts begins to last now.
    pub(crate) fn tick(&mut self, now: u64) {
        if now.saturating_sub(self.asked_at) > STOPPED_SECONDS {
            let clocks = self.nodes.values_mut();
            for since in clocks.filter_map(|known| known.not_ready_since.as_mut()) {
                *since = now;
            }
            for silence in self.drivers.values_mut() {
                silence.since = now;
            }
        }
        self.asked_at = now;
    }

    /// Notes what is seen of a node; `None`: neither it nor anything of it is there. Returns the nodes that are not Ready of
    /// Flavors whose outage ended by that: how long they are not Ready counts from now on.
    pub(crate) fn note(&mut self, node: &str, seen: Option<Seen>, now: u64) -> Vec<String> {
        let before = self.nodes.get(node);
        if before.map(|known| &known.seen) == seen.as_ref() {
            return Vec::new();
        }
        let since = before.and_then(|known| known.not_ready_since);
        let mut pools = BTreeSet::new();
        for of in before.map(|known| &known.seen).into_iter().chain(&seen) {
            pools.extend(pools_of(of));
        }
        let in_outage = |health: &Self, pool: &String| {
            let pool = health.pools.get(pool);
            pool.is_some_and(Pool::is_in_outage)
        };
        let mut ended: Vec<String> = pools.into_iter().collect();
        ended.retain(|pool| in_outage(self, pool));
        if let Some(before) = self.nodes.remove(node) {
            for name in pools_of(&before.seen) {
                if let Some(pool) = self.pools.get_mut(&name) {
                    pool.nodes -= 1;
                    pool.not_ready.remove(node);
                    if pool.nodes == 0 {
                        self.pools.remove(&name);
                    }
                }
            }
        }
        if let Some(seen) = seen {
            for name in pools_of(&seen) {
                let pool = self.pools.entry(name).or_default();
                pool.nodes += 1;
                if !seen.is_ready {
                    pool.not_ready.insert(node.to_owned());
                }
            }
            let not_ready_since = (!seen.is_ready).then(|| since.unwrap_or(now));
            let known = Known {
                seen,
                not_ready_since,
            };
            self.nodes.insert(node.to_owned(), known);
        }
        ended.retain(|pool| !in_outage(self, pool));
        let pools = ended.iter().filter_map(|pool| self.pools.get(pool));
        let still: BTreeSet<String> = pools
            .flat_map(|pool| pool.not_ready.iter().cloned())
            .collect();
        // Others have just come back, and these are about to: what lasted while nobody was heard of says nothing about them.
        for node in &still {
            if let Some(known) = self.nodes.get_mut(node) {
                known.not_ready_since = Some(now);
            }
        }
        still.into_iter().collect()
    }

    /// The Flavors of the node's devices as they were seen last.
    pub(crate) fn flavors(&self, node: &str) -> BTreeSet<String> {
        let known = self.nodes.get(node);
        known.map_or_else(BTreeSet::new, |known| known.seen.flavors.clone())
    }

    /// Since when the node is not Ready, or gone.
    pub(crate) fn not_ready_since(&self, node: &str) -> Option<u64> {
        self.nodes.get(node)?.not_ready_since
    }

    /// Whether more than a tenth of the nodes of one of its Flavors are not Ready, and at least three.
    pub(crate) fn is_in_outage(&self, node: &str) -> bool {
        let pools = self.nodes.get(node).map(|known| pools_of(&known.seen));
        let mut pools = pools.into_iter().flatten();
        pools.any(|pool| self.pools.get(&pool).is_some_and(Pool::is_in_outage))
    }

    /// Nodes of which something is kept.
    pub(crate) fn nodes(&self) -> impl Iterator<Item = &String> {
        self.nodes.keys()
    }

    /// Notes up to where a driver has answered while more is owed; `None`: nothing is owed. Whatever it acknowledges ends its
    /// silence.
    pub(crate) fn note_answer(&mut self, node: &str, behind: Option<(String, i64)>, now: u64) {
        let Some(acknowledged) = behind else {
            self.drivers.remove(node);
            return;
        };
        let known = self.drivers.get(node);
        if known.is_none_or(|known| known.acknowledged != acknowledged) {
            let silence = Silence {
                acknowledged,
                since: now,
            };
            self.drivers.insert(node.to_owned(), silence);
        }
    }

    /// Since when the driver of a Ready node owes an answer.
    pub(crate) fn driver_silent_since(&self, node: &str) -> Option<u64> {
        self.drivers.get(node).map(|silence| silence.since)
    }

    /// Notes whether the node is marked as lost.
    pub(crate) fn set_lost(&mut self, node: &str, is_lost: bool) {
        if is_lost {
            self.lost.insert(node.to_owned());
        } else {
            self.lost.remove(node);
        }
    }

    /// Nodes that are marked as lost.
    pub(crate) fn lost(&self) -> impl Iterator<Item = &String> {
        self.lost.iter()
    }

    /// Notes whether what the node holds is charged to no Team; whether that is news.
    pub(crate) fn set_off_account(&mut self, node: &str, is_off: bool) -> bool {
        if is_off {
            self.off_account.insert(node.to_owned())
        } else {
            self.off_account.remove(node)
        }
    }
}

fn pools_of(seen: &Seen) -> Vec<String> {
    if !seen.counts {
        return Vec::new();
    }
    if seen.flavors.is_empty() {
        return vec![String::new()];
    }
    seen.flavors.iter().cloned().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(is_ready: bool, flavor: &str) -> Seen {
        Seen {
            is_ready,
            counts: true,
            flavors: std::iter::once(flavor.to_owned()).collect(),
        }
    }

    /// Of so many nodes so many are not Ready.
    fn health(nodes: usize, not_ready: usize) -> NodeHealth {
        let mut health = NodeHealth::default();
        for node in 0..nodes {
            let is_ready = node >= not_ready;
            health.note(&format!("n{node}"), Some(seen(is_ready, "h100")), 10);
        }
        health
    }

    #[test]
    fn it_is_an_outage_from_three_nodes_and_more_than_a_tenth_on() {
        for (nodes, not_ready, is_outage) in [
            (2, 2, false),
            (3, 3, true),
            (20, 2, false),
            (20, 3, true),
            (30, 3, false),
            (30, 4, true),
            (1_000, 100, false),
            (1_000, 101, true),
        ] {
            let health = health(nodes, not_ready);
            let case = format!("{not_ready} of {nodes}");
            assert_eq!(health.is_in_outage("n0"), is_outage, "{case}");
        }
    }

    #[test]
    fn an_outage_of_one_flavor_says_nothing_about_the_others() {
        let mut health = health(20, 5);
        health.note("other", Some(seen(false, "a100")), 10);
        assert!(health.is_in_outage("n0"));
        assert!(!health.is_in_outage("other"));
        let mut both = seen(false, "a100");
        both.flavors.insert("h100".to_owned());
        health.note("other", Some(both), 20);
        assert!(health.is_in_outage("other"), "it has devices of both");
        assert_eq!(health.not_ready_since("other"), Some(10));
    }

    #[test]
    fn the_end_of_an_outage_names_the_nodes_that_are_still_not_ready() {
        let mut health = health(20, 3);
        let named = health.note("n0", Some(seen(true, "h100")), 50);
        assert_eq!(named, ["n1", "n2"]);
        assert_eq!(health.not_ready_since("n1"), Some(50), "counted anew");
        assert!(health.note("n1", Some(seen(true, "h100")), 50).is_empty());
        // A node that is out of service, as an administrator said, is no sign of an outage.
        let mut health = self::health(20, 3);
        let mut out_of_service = seen(false, "h100");
        out_of_service.counts = false;
        assert_eq!(health.note("n0", Some(out_of_service), 50), ["n1", "n2"]);
        assert_eq!(health.not_ready_since("n0"), Some(10));
    }

    #[test]
    fn a_leader_that_did_not_run_counts_anew() {
        let mut health = health(20, 1);
        health.note_answer("n5", Some((String::new(), 0)), 10);
        health.tick(10);
        health.tick(40);
        let since = |health: &NodeHealth| {
            let node = health.not_ready_since("n0");
            (node, health.driver_silent_since("n5"))
        };
        assert_eq!(since(&health), (Some(10), Some(10)));
        health.tick(71);
        assert_eq!(since(&health), (Some(71), Some(71)));
    }

    #[test]
    fn whatever_a_driver_acknowledges_ends_its_silence() {
        let mut health = NodeHealth::default();
        let at = |generation| Some(("uid".to_owned(), generation));
        health.note_answer("n0", at(1), 10);
        health.note_answer("n0", at(1), 20);
        assert_eq!(health.driver_silent_since("n0"), Some(10));
        health.note_answer("n0", at(2), 30);
        assert_eq!(health.driver_silent_since("n0"), Some(30));
        health.note_answer("n0", None, 40);
        assert_eq!(health.driver_silent_since("n0"), None);
    }
}
