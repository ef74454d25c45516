//! How many nodes may be evacuated, or have GPUs reset, in a while: more at once are rather a false alarm than so many broken machines.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
};

use crate::names::{NodeName, Timestamp};

/// How many nodes may be evacuated, or have GPUs reset, within a window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BreakerLimits {
    /// Share of the nodes with devices, in percent, rounded down.
    pub share_percent: u32,
    /// So many always.
    pub least_nodes: usize,
}

/// The nodes about which something is to be done.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WantedNodes {
    /// Gangs on them are to be evicted.
    pub evacuated: BTreeSet<NodeName>,
    /// They want GPUs reset.
    pub reset: BTreeSet<NodeName>,
}

/// That more nodes would be evacuated, or have GPUs reset, than may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooManyNodes {
    /// How many it would be, those of the window included, each counted once.
    pub wanted: usize,
    /// How many of them want GPUs reset.
    pub to_reset: usize,
    /// How many may be.
    pub most: usize,
    /// Of how many.
    pub of: usize,
}

impl fmt::Display for TooManyNodes {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            wanted,
            to_reset,
            most,
            of,
        } = self;
        if *to_reset == 0 {
            return write!(
                formatter,
                "gangs on {wanted} of {of} nodes would be evicted, and at most {most} may be"
            );
        }
        write!(
            formatter,
            "{to_reset} of {of} nodes want GPUs reset, which makes {wanted} with those that are evacuated or were reset, and at most {most} may be"
        )
    }
}

impl BreakerLimits {
    /// What ships: a fifth, and two always.
    pub const SHIPPED: Self = Self {
        share_percent: 20,
        least_nodes: 2,
    };

    /// How many of so many nodes may be evacuated, or have GPUs reset, within a window.
    pub fn most_nodes(self, nodes: usize) -> usize {
        let share = usize::try_from(self.share_percent).unwrap_or(usize::MAX);
        // Divided first where the product would be too large; nobody has so many nodes.
        let part = nodes
            .checked_mul(share)
            .map_or_else(|| (nodes / 100).saturating_mul(share), |it| it / 100);
        part.max(self.least_nodes)
    }

    /// Whether these may be evacuated and reset as well, of so many nodes, beside those that were within the window or are at it. All that are wanted
    /// count together, and each once, whatever is wanted of it: a false alarm on many nodes stops before the first.
    pub fn judge(
        self,
        nodes: usize,
        counted: &BTreeSet<NodeName>,
        wanted: &WantedNodes,
    ) -> Result<(), TooManyNodes> {
        let to_reset = wanted.reset.len();
        let all = counted.iter().chain(&wanted.evacuated);
        let all: BTreeSet<&NodeName> = all.chain(&wanted.reset).collect();
        let most = self.most_nodes(nodes);
        if all.len() <= most {
            return Ok(());
        }
        Err(TooManyNodes {
            wanted: all.len(),
            to_reset,
            most,
            of: nodes,
        })
    }
}

/// Since when it is known that nodes were evacuated, or had GPUs reset. It is counted from when their record was first seen, whatever time that names:
/// a clock that is set lets nobody evacuate more.
#[derive(Clone, Debug, Default)]
pub struct BreakerWindow {
    seen: BTreeMap<(NodeName, Timestamp), u64>,
}

impl BreakerWindow {
    /// Takes in the whole record: which nodes were evacuated or reset, and when by the clock of whoever recorded it. What is not recorded any more is
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

    /// An entry of the record counts from now on: what it is about has lasted until now.
    pub fn renew(&mut self, entry: (NodeName, Timestamp), now_seconds: u64) {
        self.seen.insert(entry, now_seconds);
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

    /// The nodes that were evacuated, or had GPUs reset, within so many seconds.
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
        let counted = nodes(0..2);
        let evacuated = |range| WantedNodes {
            evacuated: nodes(range),
            ..WantedNodes::default()
        };
        assert_eq!(limits.judge(15, &counted, &evacuated(0..2)), Ok(()));
        assert_eq!(limits.judge(15, &counted, &evacuated(2..3)), Ok(()));
        let too_many = TooManyNodes {
            wanted: 4,
            to_reset: 0,
            most: 3,
            of: 15,
        };
        let judged = limits.judge(15, &counted, &evacuated(2..4));
        assert_eq!(judged, Err(too_many));
        let none = limits.judge(15, &BTreeSet::new(), &evacuated(0..9));
        assert!(none.is_err(), "a false alarm stops before the first");
    }

    #[test]
    fn s9_nodes_that_are_reset_count_beside_those_that_are_evacuated_and_each_once() {
        let limits = BreakerLimits::SHIPPED;
        // Of 15 nodes 3 may be. Those of the window, to be evacuated, to be reset; how many that is.
        for (counted, evacuated, reset, wanted) in [
            (0..0, 0..0, 0..0, 0),
            (0..0, 0..0, 0..3, 3),
            (0..0, 0..0, 0..4, 4),
            (0..2, 0..0, 2..3, 3),
            (0..2, 0..0, 2..4, 4),
            (0..0, 0..2, 2..4, 4),
            (0..3, 0..3, 0..3, 3),
            (0..1, 1..2, 2..3, 3),
            (0..0, 0..0, 0..15, 15),
        ] {
            let case = format!("{counted:?} {evacuated:?} {reset:?}");
            let to_reset = reset.len();
            let all = WantedNodes {
                evacuated: nodes(evacuated),
                reset: nodes(reset),
            };
            let judged = limits.judge(15, &nodes(counted), &all);
            let too_many = TooManyNodes {
                wanted,
                to_reset,
                most: 3,
                of: 15,
            };
            let expected = if wanted > 3 { Err(too_many) } else { Ok(()) };
            assert_eq!(judged, expected, "{case}");
        }
    }

    #[test]
    fn it_says_how_many_would_be_evacuated_or_want_a_reset_of_how_many() {
        for (to_reset, text) in [
            (
                0,
                "gangs on 1500 of 1500 nodes would be evicted, and at most 300 may be",
            ),
            (
                1_400,
                "1400 of 1500 nodes want GPUs reset, which makes 1500 with those that are evacuated or were reset, and at most 300 may be",
            ),
        ] {
            let too_many = TooManyNodes {
                wanted: 1_500,
                to_reset,
                most: 300,
                of: 1_500,
            };
            assert_eq!(too_many.to_string(), text);
        }
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
        // What lasted counts from its end on.
        window.renew(entry(i64::MAX), 2_000);
        assert_eq!(window.evacuated(600, 2_599).len(), 1);
        assert_eq!(window.evacuated(600, 2_600).len(), 0);
        // A new leader counts all of it anew.
        let mut other = BreakerWindow::default();
        other.read([entry(5)], 7);
        assert_eq!(other.evacuated(600, 606).len(), 1);
        other.read([], 8);
        assert_eq!(other.evacuated(600, 8).len(), 0);
    }
}
