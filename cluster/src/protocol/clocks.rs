//! What the leader has seen happen, and when, on its monotonic clock. Starts anew at each takeover: a
//! deadline that is missed late harms less than one that is missed early.

use std::collections::BTreeMap;

/// How far a gang's start has come; any change of it is progress.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Progress {
    /// Ranks that are ungated.
    pub(super) ungated: usize,
    /// Ranks that are bound.
    pub(super) bound: usize,
    /// Ranks that run or ended.
    pub(super) running: usize,
}

/// Since when, in seconds of the monotonic clock.
#[derive(Debug, Default)]
pub(super) struct Clocks {
    not_ready: BTreeMap<String, u64>,
    starts: BTreeMap<String, (Progress, u64)>,
}

impl Clocks {
    /// Notes which nodes are not Ready now.
    pub(super) fn note_not_ready(&mut self, nodes: impl Iterator<Item = String>, now: u64) {
        let before = std::mem::take(&mut self.not_ready);
        self.not_ready = nodes
            .map(|node| {
                let since = before.get(&node).copied().unwrap_or(now);
                (node, since)
            })
            .collect();
    }

    /// Since when the node is not Ready.
    pub(super) fn not_ready_since(&self, node: &str) -> Option<u64> {
        self.not_ready.get(node).copied()
    }

    /// Notes how far the starting gangs have come, by UID of the Gang. While time stands still (ungating is
    /// withheld) every clock starts anew.
    pub(super) fn note_starts(
        &mut self,
        starts: impl Iterator<Item = (String, Progress)>,
        stand_still: bool,
        now: u64,
    ) {
        let before = std::mem::take(&mut self.starts);
        self.starts = starts
            .map(|(gang, progress)| {
                let since = match before.get(&gang) {
                    Some((was, since)) if *was == progress && !stand_still => *since,
                    _ => now,
                };
                (gang, (progress, since))
            })
            .collect();
    }

    /// Since when the start of a Gang made no progress.
    pub(super) fn stalled_since(&self, gang_uid: &str) -> Option<u64> {
        self.starts.get(gang_uid).map(|(_, since)| *since)
    }
}
