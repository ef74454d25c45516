//! How many nodes may be evacuated in a while: more at once are rather a false alarm than so many broken machines.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
};

use crate::names::{NodeName, Timestamp};

/// How many nodes may be evacuated within a window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BreakerLimits {
    /// Share of the nodes with devices, in percent, rounded down.
    pub share_percent: u32,
    /// So many always.
    pub least_nodes: usize,
}

/// That more nodes would be evacuated than may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooManyNodes {
    /// How many it would be, those that were evacuated within the window included.
    pub wanted: usize,
    /// How many may be.
    pub most: usize,
    /// Of how many.
    pub of: usize,
}

impl fmt::Display for TooManyNodes {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            formatter,
            "gangs on {} of {} nodes would be evicted, and at most {} may be",
            self.wanted, self.of, self.most
        )
    }
}

impl BreakerLimits {
    /// What ships: a fifth, and two always.
    pub const SHIPPED: Self = Self {
        share_percent: 20,
        least_nodes: 2,
    };

    /// How many of so many nodes may be evacuated within a window.
    pub fn most_nodes(self, nodes: usize) -> usize {
        let share = usize::try_from(self.share_percent).unwrap_or(usize::MAX);
        // Divided first where the product would be too large; nobody has so many nodes.
        let part = nodes
            .checked_mul(share)
            .map_or_else(|| (nodes / 100).saturating_mul(share), |it| it / 100);
        part.max(self.least_nodes)
    }

    /// Whether these may be evacuated as well, of so many nodes. All that are wanted count together: a false alarm on many nodes stops
    /// before the first.
    pub fn judge(
        self,
        nodes: usize,
        evacuated: &BTreeSet<NodeName>,
        wanted: &BTreeSet<NodeName>,
    ) -> Result<(), TooManyNodes> {
        let wanted = evacuated.union(wanted).count();
        let most = self.most_nodes(nodes);
        if wanted <= most {
            return Ok(());
        }
        Err(TooManyNodes {
            wanted,
            most,
            of: nodes,
        })
    }
}

/// Since when it is known that nodes were evacuated. It is counted from when their record was first seen, whatever time that names: a clock that
/// is set lets nobody evacuate more.
#[derive(Clone, Debug, Default)]
pub struct BreakerWindow {
    seen: BTreeMap<(NodeName, Timestamp), u64>,
}

impl BreakerWindow {
    /// Takes in the whole record: which nodes were evacuated, and when by the clock of whoever recorded it. What is not recorded any more is
    /// forgotten.
    pub fn read(
        &mut self,
        recorded: impl IntoIterator<Item = (NodeName, Timestamp)>,
        now_seconds: u64,
    ) {
        let before = std::mem::take(&mut self.seen);
        for entry in recorded {
            let since = before.get(&entry).copied().unwrap_or(now_seconds);
            self.seen.insert(entry, since);
        }
    }

    /// Whether an entry was recorded when the record was read last.
    pub fn has(&self, entry: &(NodeName, Timestamp)) -> bool {
        self.seen.contains_key(entry)
    }

    /// Whether an entry of the record still counts.
    pub fn counts(&self, entry: &(NodeName, Timestamp), window_seconds: u64, now: u64) -> bool {
        let since = self.seen.get(entry).copied();
        since.is_some_and(|since| now < since.saturating_add(window_seconds))
    }

    /// The second from which on the first of the entries that count does not any more; `None`: none counts.
    pub fn first_end(&self, window_seconds: u64, now: u64) -> Option<u64> {
        let ends = self.seen.values();
        let ends = ends.map(|since| since.saturating_add(window_seconds));
        ends.filter(|end| *end > now).min()
    }

    /// The nodes that were evacuated within so many seconds.
    pub fn evacuated(&self, window_seconds: u64, now: u64) -> BTreeSet<NodeName> {
        let entries = self.seen.keys();
        let counted = entries.filter(|entry| self.counts(entry, window_seconds, now));
        counted.map(|(node, _)| node.clone()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nodes(range: std::ops::Range<usize>) -> BTreeSet<NodeName> {
        range.map(|node| format!("n{node}").into()).collect()
    }

    #[test]
    fn a_fifth_of_the_nodes_may_be_evacuated_and_two_always() {
        for (of, most) in [
            (0, 2),
            (1, 2),
            (10, 2),
            (14, 2),
            (15, 3),
            (1_500, 300),
            (usize::MAX, usize::MAX / 100 * 20),
        ] {
            let limits = BreakerLimits::SHIPPED;
            assert_eq!(limits.most_nodes(of), most, "{of}");
        }
    }

    #[test]
    fn s9_one_node_beyond_the_limit_is_too_many_and_the_same_one_again_is_none_more() {
        let limits = BreakerLimits::SHIPPED;
        let evacuated = nodes(0..2);
        assert_eq!(limits.judge(15, &evacuated, &nodes(0..2)), Ok(()));
        assert_eq!(limits.judge(15, &evacuated, &nodes(2..3)), Ok(()));
        let too_many = TooManyNodes {
            wanted: 4,
            most: 3,
            of: 15,
        };
        assert_eq!(limits.judge(15, &evacuated, &nodes(2..4)), Err(too_many));
        let none = limits.judge(15, &BTreeSet::new(), &nodes(0..9));
        assert!(none.is_err(), "a false alarm stops before the first");
    }

    #[test]
    fn an_entry_counts_from_when_it_was_seen_whatever_time_it_names() {
        let mut window = BreakerWindow::default();
        let entry = |at| (NodeName::from("n0"), Timestamp(at));
        window.read([entry(5)], 1_000);
        window.read([entry(5)], 1_400);
        assert!(window.has(&entry(5)) && !window.has(&entry(6)));
        assert_eq!(
            window.evacuated(600, 1_599).len(),
            1,
            "until its last second"
        );
        assert_eq!(window.first_end(600, 1_599), Some(1_600));
        assert_eq!(window.evacuated(600, 1_600).len(), 0);
        assert_eq!(window.first_end(600, 1_600), None);
        // Evacuated again, it counts anew; in the future or in the past is all the same.
        window.read([entry(i64::MAX)], 1_600);
        assert_eq!(window.evacuated(600, 2_199).len(), 1);
        // A new leader counts all of it anew.
        let mut other = BreakerWindow::default();
        other.read([entry(5)], 7);
        assert_eq!(other.evacuated(600, 606).len(), 1);
        other.read([], 8);
        assert_eq!(other.evacuated(600, 8).len(), 0);
    }
}
