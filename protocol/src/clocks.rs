//! What the leader has seen happen, and when, on its monotonic clock. Starts anew at each takeover: a
//! deadline that is missed late harms less than one that is missed early.

use std::collections::BTreeMap;

/// How far a gang's start has come; any change of it is progress.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Progress {
    /// Ranks that are ungated.
    pub(crate) ungated: usize,
    /// Ranks that are bound.
    pub(crate) bound: usize,
    /// Ranks that run or ended.
    pub(crate) running: usize,
}

/// How long a kubelet may take to make a sandbox before it is asked to look again, in seconds: longer than it takes
/// where nothing is wrong.
const FIRST_NUDGE_SECONDS: u64 = 3;
/// Most seconds between two nudges: what a kubelet waits by itself.
const MOST_NUDGE_SECONDS: u64 = 60;

/// When a pod is nudged next, and how long after that.
#[derive(Clone, Copy, Debug)]
struct Nudge {
    at: u64,
    pause_seconds: u64,
}

/// Since when, in seconds of the monotonic clock.
#[derive(Debug, Default)]
pub(crate) struct Clocks {
    nudges: BTreeMap<String, Nudge>,
    not_ready: BTreeMap<String, u64>,
    starts: BTreeMap<String, (Progress, u64)>,
}

impl Clocks {
    /// Notes which nodes are not Ready now.
    pub(crate) fn note_not_ready(&mut self, nodes: impl Iterator<Item = String>, now: u64) {
        let before = std::mem::take(&mut self.not_ready);
        self.not_ready = nodes
            .map(|node| {
                let since = before.get(&node).copied().unwrap_or(now);
                (node, since)
            })
            .collect();
    }

    /// Since when the node is not Ready.
    pub(crate) fn not_ready_since(&self, node: &str) -> Option<u64> {
        self.not_ready.get(node).copied()
    }

    /// Notes which pods wait for their sandbox now, by UID, and returns those that are to be nudged: 3 s after they
    /// began to wait, then after twice the time, and so on up to once a minute.
    pub(crate) fn nudges_due(&mut self, waiting: Vec<String>, now: u64) -> Vec<String> {
        let before = std::mem::take(&mut self.nudges);
        let mut due = Vec::new();
        for pod in waiting {
            let mut nudge = before.get(&pod).copied().unwrap_or(Nudge {
                at: now + FIRST_NUDGE_SECONDS,
                pause_seconds: FIRST_NUDGE_SECONDS,
            });
            if nudge.at <= now {
                nudge.pause_seconds = (nudge.pause_seconds * 2).min(MOST_NUDGE_SECONDS);
                nudge.at = now + nudge.pause_seconds;
                due.push(pod.clone());
            }
            self.nudges.insert(pod, nudge);
        }
        due
    }

    /// Notes how far the starting gangs have come, by UID of the Gang. While time stands still (ungating is
    /// withheld) every clock starts anew.
    pub(crate) fn note_starts(
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
    pub(crate) fn stalled_since(&self, gang_uid: &str) -> Option<u64> {
        self.starts.get(gang_uid).map(|(_, since)| *since)
    }
}
