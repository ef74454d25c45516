//! What the leader has seen happen, and when, on its monotonic clock. Starts again at each takeover: a
//! deadline that is missed late harms less than one that is missed early.

use std::collections::BTreeMap;

use muster_api::Reason;
use muster_cluster::table::Table;

/// How far a gang's start has come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Progress {
    /// Steps that its ranks have taken: ungated, bound, sandbox, each init container that is done, each container that was
    /// started, running. More of them than ever before in the attempt are progress.
    pub(crate) steps: usize,
    /// Ranks that run or ended.
    pub(crate) running: usize,
    /// Whether every rank that does not run yet is in an init container, in its first run: those take as long as they take.
    pub(crate) is_initializing: bool,
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

/// The start of an attempt.
#[derive(Clone, Copy, Debug)]
struct Start {
    attempt: i64,
    most_steps: usize,
    /// Since when it made no progress; `None` while its clock stands still.
    since: Option<u64>,
}

/// Since when, in seconds of the monotonic clock.
#[derive(Debug, Default)]
pub(crate) struct Clocks {
    /// Pods that wait for their sandbox, by UID of their Gang and of the pod.
    nudges: Table<String, BTreeMap<String, Nudge>>,
    not_ready: BTreeMap<String, u64>,
    starts: Table<String, Start>,
    reasons: Table<String, (Reason, u64)>,
    /// When the status of a Gang was written.
    status_writes: Table<String, u64>,
    ends: BTreeMap<String, u64>,
    /// While it stands still: ungating is withheld, or kube-scheduler is away, and no start can make progress.
    stands_still: bool,
    scheduler_is_away: bool,
    stood_still_until: u64,
}

impl Clocks {
    /// Notes whether a node is Ready; `None`: it is gone.
    pub(crate) fn note_node(&mut self, node: &str, ready: Option<bool>, now: u64) {
        if ready == Some(false) {
            self.not_ready.entry(node.to_owned()).or_insert(now);
        } else {
            self.not_ready.remove(node);
        }
    }

    /// Nodes of which a time is kept.
    pub(crate) fn nodes(&self) -> impl Iterator<Item = &String> {
        self.not_ready.keys().chain(self.ends.keys())
    }

    /// Notes whether pods of a node ended whose permits stand as if they lived.
    pub(crate) fn note_ends(&mut self, node: &str, owed: bool, now: u64) {
        if owed {
            self.ends.entry(node.to_owned()).or_insert(now);
        } else {
            self.ends.remove(node);
        }
    }

    /// Since when.
    pub(crate) fn ends_since(&self, node: &str) -> Option<u64> {
        self.ends.get(node).copied()
    }

    /// Since when the node is not Ready.
    pub(crate) fn not_ready_since(&self, node: &str) -> Option<u64> {
        self.not_ready.get(node).copied()
    }

    /// Notes which pods of a Gang wait for their sandbox now, by UID. Returns those that are to be nudged, 3 s after they
    /// began to wait, then after twice the time, and so on up to once a minute; and when the next is.
    pub(crate) fn note_sandboxes(
        &mut self,
        gang_uid: &str,
        waiting: Vec<String>,
        now: u64,
    ) -> (Vec<String>, Option<u64>) {
        let before = self.nudges.remove(gang_uid).unwrap_or_default();
        let mut due = Vec::new();
        let mut after = BTreeMap::new();
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
            after.insert(pod, nudge);
        }
        let next = after.values().map(|nudge| nudge.at).min();
        if !after.is_empty() {
            self.nudges.insert(gang_uid.to_owned(), after);
        }
        (due, next)
    }

    /// Notes how far the start of an attempt of a Gang has come; `None`: it is not starting.
    pub(crate) fn note_start(
        &mut self,
        gang_uid: &str,
        progress: Option<(i64, Progress)>,
        now: u64,
    ) {
        let Some((attempt, progress)) = progress else {
            self.starts.remove(gang_uid);
            return;
        };
        let known = self.starts.get(gang_uid).copied();
        let known = known.filter(|start| start.attempt == attempt);
        let is_progress = known.is_none_or(|start| start.most_steps < progress.steps);
        let since = known.and_then(|start| start.since).filter(|_| !is_progress);
        let start = Start {
            attempt,
            most_steps: known
                .map_or(0, |start| start.most_steps)
                .max(progress.steps),
            since: (!progress.is_initializing).then_some(since.unwrap_or(now)),
        };
        self.starts.insert(gang_uid.to_owned(), start);
    }

    /// Notes whether kube-scheduler is away; whether that is news.
    pub(crate) fn note_scheduler_away(&mut self, is_away: bool) -> bool {
        std::mem::replace(&mut self.scheduler_is_away, is_away) != is_away
    }

    /// While time stands still no start is late, and afterwards every clock starts again.
    pub(crate) fn stand_still(&mut self, is_withheld: bool, now: u64) {
        let still = is_withheld || self.scheduler_is_away;
        if self.stands_still && !still {
            self.stood_still_until = now;
        }
        self.stands_still = still;
    }

    /// Since when the start of a Gang made no progress; `None`: it is not starting, or time stands still.
    pub(crate) fn stalled_since(&self, gang_uid: &str) -> Option<u64> {
        let since = self.starts.get(gang_uid)?.since?;
        (!self.stands_still).then(|| since.max(self.stood_still_until))
    }

    /// Notes why a Gang waits, or does not run as planned.
    pub(crate) fn note_reason(&mut self, gang_uid: &str, reason: Option<Reason>, now: u64) {
        match reason {
            None => {
                self.reasons.remove(gang_uid);
            }
            Some(reason) if self.reasons.get(gang_uid).is_some_and(|it| it.0 == reason) => {}
            Some(reason) => {
                self.reasons.insert(gang_uid.to_owned(), (reason, now));
            }
        }
    }

    /// Since when that is the reason.
    pub(crate) fn reason_since(&self, gang_uid: &str) -> Option<u64> {
        self.reasons.get(gang_uid).map(|(_, since)| *since)
    }

    /// Since when that very reason is the reason.
    pub(crate) fn is_reason_since(&self, gang_uid: &str, reason: Reason) -> Option<u64> {
        let (_, since) = self.reasons.get(gang_uid).filter(|it| it.0 == reason)?;
        Some(*since)
    }

    /// The status of a Gang is written.
    pub(crate) fn note_status_write(&mut self, gang_uid: &str, now: u64) {
        self.status_writes.insert(gang_uid.to_owned(), now);
    }

    /// When the status of a Gang was written last in this leadership.
    pub(crate) fn status_written_at(&self, gang_uid: &str) -> Option<u64> {
        self.status_writes.get(gang_uid).copied()
    }

    /// A Gang is gone.
    pub(crate) fn forget(&mut self, gang_uid: &str) {
        self.nudges.remove(gang_uid);
        self.starts.remove(gang_uid);
        self.reasons.remove(gang_uid);
        self.status_writes.remove(gang_uid);
    }
}
