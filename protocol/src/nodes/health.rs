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
/// A node that was not Ready for so long before an outage began was none of its first, in seconds.
const BEFORE_OUTAGE_SECONDS: u64 = 60;
/// A node that is not Ready for so long is no sign of an outage any more, in seconds: as long as at least half of its Flavor's nodes
/// are Ready.
const LONG_SECONDS: u64 = 3_600;
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
    /// Whether it has devices; of a node that is gone, whether it had.
    pub(crate) has_devices: bool,
}

/// A node as it was seen last.
#[derive(Clone, Debug)]
struct Known {
    seen: Seen,
    /// From when on it counts: what an outage took of it is left out.
    not_ready_since: Option<u64>,
    /// Since when it is not Ready, outage or not.
    seen_not_ready_at: Option<u64>,
    /// Whether that is longer than an outage is taken to last.
    is_long: bool,
}

/// The nodes of a Flavor, or those of none.
#[derive(Clone, Debug, Default)]
struct Pool {
    nodes: usize,
    not_ready: BTreeSet<String>,
    /// How many of those are so for long.
    long: usize,
    /// Since when there is an outage.
    outage_since: Option<u64>,
}

impl Known {
    /// An outage is over. Others have just come back, and those that fell silent with it are about to: what lasted while nobody was
    /// heard of says nothing about them. A node that was silent long before was dead before, and dies no later for the others: else
    /// one that comes and goes would keep all of them from being marked.
    fn leave_out(&mut self, began: u64, now: u64) {
        let Some(since) = &mut self.not_ready_since else {
            return;
        };
        *since = if since.saturating_add(BEFORE_OUTAGE_SECONDS) <= began {
            since.saturating_add(now.saturating_sub(began)).min(now)
        } else {
            now
        };
    }
}

impl Pool {
    /// Whether there are too many that are not Ready. What lasts for an hour are machines that nobody takes out of the cluster, unless
    /// it is more than half of them.
    fn is_too_much(&self) -> bool {
        let is_share = |not_ready: usize, nodes: usize, share: usize| {
            not_ready >= OUTAGE_NODES && not_ready * share > nodes
        };
        let not_ready = self.not_ready.len();
        is_share(not_ready - self.long, self.nodes - self.long, OUTAGE_SHARE)
            || is_share(not_ready, self.nodes, 2)
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
    /// Nodes by when they were seen not Ready, those left out that are so for long.
    by_time: BTreeSet<(u64, String)>,
    /// How many have devices.
    with_devices: usize,
    /// Nodes that were Ready at some time since they were noted last.
    ready_meanwhile: BTreeSet<String>,
    drivers: BTreeMap<String, Silence>,
    lost: BTreeSet<String>,
    /// Nodes whose charges no Team bears.
    off_account: BTreeSet<String>,
    asked_at: u64,
}

impl NodeHealth {
    /// Time goes on. Where it stood still for this leader, everything that lasts begins to last now. Returns what
    /// [`NodeHealth::note`] does: an outage may end because it lasts for too long. Those that count anew are named as well.
    pub(crate) fn tick(&mut self, now: u64) -> Vec<String> {
        let mut ended = Vec::new();
        if now.saturating_sub(self.asked_at) > STOPPED_SECONDS {
            self.count_anew(now);
            ended.extend(self.by_time.iter().map(|(_, node)| node.clone()));
        }
        self.asked_at = now;
        while let Some((at, _)) = self.by_time.first()
            && at + LONG_SECONDS <= now
            && let Some((_, node)) = self.by_time.pop_first()
        {
            let before = self.nodes.get(&node).cloned();
            if let Some(known) = self.nodes.get_mut(&node) {
                known.is_long = true;
            }
            let after = self.nodes.get(&node).cloned();
            ended.extend(self.count(&node, before.as_ref(), after.as_ref(), now));
        }
        ended
    }

    /// When the time alone changes what is an outage.
    pub(crate) fn next_due(&self) -> Option<u64> {
        self.by_time.first().map(|(at, _)| at + LONG_SECONDS)
    }

    fn count_anew(&mut self, now: u64) {
        self.by_time.clear();
        for pool in self.pools.values_mut() {
            pool.long = 0;
        }
        for (node, known) in &mut self.nodes {
            if known.not_ready_since.is_some() {
                known.not_ready_since = Some(now);
                known.seen_not_ready_at = Some(now);
                self.by_time.insert((now, node.clone()));
            }
            known.is_long = false;
        }
        for pool in self.pools.values_mut() {
            pool.outage_since = pool.is_too_much().then_some(now);
        }
        for silence in self.drivers.values_mut() {
            silence.since = now;
        }
    }

    /// A node that was not Ready is. Whatever is seen of it by the next time that it is noted, it was heard of.
    pub(crate) fn note_ready(&mut self, node: &str) {
        self.ready_meanwhile.insert(node.to_owned());
    }

    /// Notes what is seen of a node; `None`: neither it nor anything of it is there. Returns the nodes that are not Ready of
    /// Flavors whose outage ended by that. What they were not Ready for during it does not count; those that were not a minute
    /// before it, either, count from now on.
    pub(crate) fn note(&mut self, node: &str, seen: Option<Seen>, now: u64) -> Vec<String> {
        let was_ready = self.ready_meanwhile.remove(node);
        if !was_ready && self.nodes.get(node).map(|known| &known.seen) == seen.as_ref() {
            return Vec::new();
        }
        let before = self.nodes.remove(node);
        let known = before.as_ref();
        let known = known.filter(|known| !known.seen.is_ready && !was_ready);
        let after = seen.map(|seen| {
            let known = known.filter(|_| !seen.is_ready);
            let first = (!seen.is_ready).then_some(now);
            Known {
                not_ready_since: known.and_then(|it| it.not_ready_since).or(first),
                seen_not_ready_at: known.and_then(|it| it.seen_not_ready_at).or(first),
                is_long: known.is_some_and(|it| it.is_long),
                seen,
            }
        });
        let has = |known: &Option<Known>| {
            usize::from(known.as_ref().is_some_and(|it| it.seen.has_devices))
        };
        self.with_devices = self.with_devices + has(&after) - has(&before);
        let waits = |known: &Option<Known>| {
            let at = known.as_ref().filter(|it| !it.is_long)?.seen_not_ready_at;
            Some((at?, node.to_owned()))
        };
        if let Some(waits) = waits(&before) {
            self.by_time.remove(&waits);
        }
        self.by_time.extend(waits(&after));
        if let Some(after) = &after {
            self.nodes.insert(node.to_owned(), after.clone());
        }
        self.count(node, before.as_ref(), after.as_ref(), now)
    }

    /// Counts a node among its Flavors as it is by now; returns the nodes that are not Ready of those whose outage ended by that.
    fn count(
        &mut self,
        node: &str,
        before: Option<&Known>,
        after: Option<&Known>,
        now: u64,
    ) -> Vec<String> {
        let mut touched = BTreeSet::new();
        if let Some(before) = before {
            for name in pools_of(&before.seen) {
                let pool = self.pools.entry(name.clone()).or_default();
                pool.nodes -= 1;
                pool.long -= usize::from(before.is_long);
                pool.not_ready.remove(node);
                touched.insert(name);
            }
        }
        if let Some(after) = after {
            for name in pools_of(&after.seen) {
                let pool = self.pools.entry(name.clone()).or_default();
                pool.nodes += 1;
                pool.long += usize::from(after.is_long);
                if !after.seen.is_ready {
                    pool.not_ready.insert(node.to_owned());
                }
                touched.insert(name);
            }
        }
        let mut still = BTreeSet::new();
        for name in touched {
            let Some(pool) = self.pools.get_mut(&name) else {
                continue;
            };
            if pool.is_too_much() {
                pool.outage_since.get_or_insert(now);
                continue;
            }
            if let Some(began) = pool.outage_since.take() {
                for node in &pool.not_ready {
                    if let Some(known) = self.nodes.get_mut(node) {
                        known.leave_out(began, now);
                    }
                }
                still.extend(pool.not_ready.iter().cloned());
            }
            if pool.nodes == 0 {
                self.pools.remove(&name);
            }
        }
        still.into_iter().collect()
    }

    /// The Flavors of the node's devices as they were seen last.
    pub(crate) fn flavors(&self, node: &str) -> BTreeSet<String> {
        let known = self.nodes.get(node);
        known.map_or_else(BTreeSet::new, |known| known.seen.flavors.clone())
    }

    /// Whether the node had devices when it was seen last.
    pub(crate) fn has_devices(&self, node: &str) -> bool {
        let known = self.nodes.get(node);
        known.is_some_and(|known| known.seen.has_devices)
    }

    /// How many nodes have devices.
    pub(crate) fn nodes_with_devices(&self) -> usize {
        self.with_devices
    }

    /// Since when the node is not Ready, or gone, without what an outage took of that.
    pub(crate) fn not_ready_since(&self, node: &str) -> Option<u64> {
        self.nodes.get(node)?.not_ready_since
    }

    /// Whether more than a tenth of the nodes of one of its Flavors are not Ready, and at least three: without those that are so for
    /// an hour, unless they are more than half of all.
    pub(crate) fn is_in_outage(&self, node: &str) -> bool {
        let pools = self.nodes.get(node).map(|known| pools_of(&known.seen));
        let mut pools = pools.into_iter().flatten();
        pools.any(|pool| {
            let pool = self.pools.get(&pool);
            pool.is_some_and(|pool| pool.outage_since.is_some())
        })
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
            has_devices: true,
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
    fn a_node_that_was_heard_of_between_two_looks_counts_anew() {
        let mut health = health(20, 1);
        assert_eq!(health.not_ready_since("n0"), Some(10));
        health.note_ready("n0");
        health.note("n0", Some(seen(false, "h100")), 50);
        assert_eq!(health.not_ready_since("n0"), Some(50));
        health.note("n0", Some(seen(false, "h100")), 60);
        assert_eq!(health.not_ready_since("n0"), Some(50));
        assert_eq!(health.next_due(), Some(50 + LONG_SECONDS));
    }

    #[test]
    fn nodes_with_devices_are_counted_as_they_come_change_and_go() {
        let mut health = health(3, 1);
        assert_eq!(health.nodes_with_devices(), 3);
        let mut without = seen(true, "h100");
        without.has_devices = false;
        health.note("n1", Some(without.clone()), 20);
        health.note("n1", Some(without), 21);
        assert_eq!(health.nodes_with_devices(), 2);
        assert!(health.has_devices("n0") && !health.has_devices("n1"));
        health.note("n0", None, 30);
        health.note("n1", Some(seen(true, "h100")), 31);
        assert_eq!(health.nodes_with_devices(), 2);
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
    fn a_node_that_comes_and_goes_keeps_no_dead_ones_from_being_marked_and_evicted() {
        let mut health = health(20, 2);
        let dead = |health: &NodeHealth| {
            let since = ["n0", "n1"].map(|node| health.not_ready_since(node).unwrap());
            assert_eq!(since[0], since[1]);
            since[0]
        };
        // It is Ready for half of the time.
        for minute in 2..20 {
            health.note("n2", Some(seen(false, "h100")), 60 * minute);
            assert!(health.is_in_outage("n0"));
            let again = health.note("n2", Some(seen(true, "h100")), 60 * minute + 30);
            assert_eq!(again, ["n0", "n1"]);
            assert!(!health.is_in_outage("n0"));
            assert_eq!(dead(&health), 10 + 30 * (minute - 1), "minute {minute}");
        }
        // Who fell silent within a minute before an outage may be one of it.
        let mut health = self::health(20, 2);
        health.note("n2", Some(seen(false, "h100")), 69);
        health.note("n2", Some(seen(true, "h100")), 80);
        assert_eq!(dead(&health), 80);
    }

    #[test]
    fn who_is_not_ready_for_an_hour_is_no_sign_of_an_outage_unless_it_is_more_than_half() {
        for (nodes, dead, is_over) in [
            (20, 3, true),
            (20, 10, true),
            (20, 11, false),
            (3, 3, false),
        ] {
            let mut health = health(nodes, dead);
            let case = format!("{dead} of {nodes}");
            let mut second = 10;
            health.tick(second);
            while second < 3_609 {
                second = (second + 10).min(3_609);
                assert_eq!(health.tick(second), [""; 0], "{case}");
                assert!(health.is_in_outage("n0"), "{case}");
            }
            assert_eq!(health.next_due(), Some(3_610));
            let again = health.tick(3_610);
            assert_eq!(again.len(), if is_over { dead } else { 0 }, "{case}");
            assert_eq!(health.is_in_outage("n0"), !is_over, "{case}");
            assert_eq!(health.next_due(), None);
            let since = if is_over { 3_610 } else { 10 };
            assert_eq!(health.not_ready_since("n0"), Some(since), "{case}");
            // Others that fall silent now are another outage, of those that were left.
            for node in dead..dead + 2 {
                health.note(&format!("n{node}"), Some(seen(false, "h100")), 3_620);
            }
            let is_outage = 2 * (dead + 2) > nodes;
            assert_eq!(health.is_in_outage("n0"), is_outage, "{case}");
            // Whoever comes back counts like any other.
            for node in 0..dead {
                health.note(&format!("n{node}"), Some(seen(true, "h100")), 3_630);
            }
            assert!(!health.is_in_outage("n0"), "{case}");
        }
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
        assert_eq!(health.tick(71), ["n0"], "what was concluded is looked at");
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
