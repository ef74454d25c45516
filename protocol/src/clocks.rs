//! What the leader has seen happen, and when, on its monotonic clock. Starts again at each takeover: a
//! deadline that is missed late harms less than one that is missed early.

use std::collections::{BTreeMap, BTreeSet};

use muster_api::Reason;
use muster_cluster::table::Table;
use muster_engine::recovery::Answered;

use crate::Now;

/// How far a gang's start has come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Progress {
    /// Steps that its ranks have taken: ungated, bound, sandbox, each init container that is done, each container that was
    /// started, running. More of them than ever before in the attempt are progress.
    pub(crate) steps: usize,
    /// Ranks that run or ended.
    pub(crate) running: usize,
    /// Whether every rank that does not run yet is in an init container, which may take long.
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

/// How long a start may take without a step, at least, as long as init containers run, in seconds.
const INITIALIZING_SECONDS: u64 = 3_600;

/// The start of an attempt.
#[derive(Clone, Copy, Debug)]
struct Start {
    attempt: i64,
    most_steps: usize,
    /// When the last step was taken, or began to be waited for.
    step_at: u64,
    /// How long it made no progress since, while no init container ran; up to `noted_at`.
    stalled_seconds: u64,
    noted_at: u64,
    is_initializing: bool,
}

/// An admission, and how old it seemed to be when it was seen first.
#[derive(Clone, Copy, Debug)]
struct Admitted {
    /// In seconds of the wall clock of whoever wrote it.
    at: i64,
    seen_at: u64,
    /// By the wall clock of whoever leads; never negative.
    age_seconds: u64,
}

/// Ranks of an attempt that failed.
#[derive(Clone, Debug)]
struct Failures {
    attempt: i64,
    /// Since when that is seen.
    since: u64,
    /// Pods that failed by themselves, by UID, be they removed since.
    by_themselves: BTreeSet<String>,
}

/// When a start is late, and after how long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Late {
    /// The second from which on it is late if nothing happens.
    pub(crate) at: u64,
    /// For how long no step was taken by then, in seconds.
    pub(crate) after_seconds: u64,
}

/// Since when, in seconds of the monotonic clock.
#[derive(Debug, Default)]
pub(crate) struct Clocks {
    /// Pods that wait for their sandbox, by UID of their Gang and of the pod.
    nudges: Table<String, BTreeMap<String, Nudge>>,
    starts: Table<String, Start>,
    reasons: Table<String, (Reason, u64)>,
    /// Since when nobody wants a Gang to go that has a notice, and which one.
    unwanted: Table<String, (i64, u64)>,
    /// When it was first seen since when a Gang runs, or is admitted, and since when.
    runs: Table<String, (i64, u64)>,
    /// Since when a Gang is admitted, as it says, and when that was seen first.
    admissions: Table<String, Admitted>,
    /// When a Gang was first seen with a notice, and which one, by the second in which it was given.
    notices: Table<String, (i64, u64)>,
    /// Gangs that pause until a time that is taken by the wall clock, and since when that is known.
    pauses: Table<String, (i64, u64)>,
    /// When a Gang was first seen to have ended, and when it ended as it says.
    ends_of_gangs: Table<String, (i64, u64)>,
    /// When the status of a Gang was written.
    status_writes: Table<String, u64>,
    /// Since when it is seen that an attempt of a Gang holds what has a fault, and which attempt.
    faults: Table<String, (i64, BTreeMap<Answered, u64>)>,
    /// Ranks that failed of the attempt that a Gang carries.
    failures: Table<String, Failures>,
    ends: BTreeMap<String, u64>,
    /// While it stands still: ungating is withheld, or kube-scheduler is away, and no start can make progress.
    stands_still: bool,
    scheduler_is_away: bool,
    stood_still_until: u64,
}

impl Start {
    /// The same, some time later.
    fn at(self, now: u64) -> Self {
        let stalled = if self.is_initializing {
            0
        } else {
            now.saturating_sub(self.noted_at)
        };
        Self {
            stalled_seconds: self.stalled_seconds.saturating_add(stalled),
            noted_at: now,
            ..self
        }
    }
}

impl Clocks {
    /// Nodes of which a time is kept.
    pub(crate) fn nodes(&self) -> impl Iterator<Item = &String> {
        self.ends.keys()
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
        let begun = Start {
            attempt,
            most_steps: progress.steps,
            step_at: now,
            stalled_seconds: 0,
            noted_at: now,
            is_initializing: progress.is_initializing,
        };
        let known = self.starts.get(gang_uid);
        let known = known.filter(|start| {
            // What happened before time went on again does not count.
            let is_current = start.attempt == attempt && start.step_at >= self.stood_still_until;
            is_current && start.most_steps >= progress.steps
        });
        let start = known.map_or(begun, |start| Start {
            is_initializing: progress.is_initializing,
            ..start.at(now)
        });
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

    /// When the start of a Gang that may stall for so long is late; `None`: it is not starting, or time stands still. While init
    /// containers run it does not stall, but not for ever: they may hang.
    pub(crate) fn late(&self, gang_uid: &str, limit_seconds: u64) -> Option<Late> {
        let start = self.starts.get(gang_uid).filter(|_| !self.stands_still)?;
        let most = limit_seconds.max(INITIALIZING_SECONDS);
        let at_most = Late {
            at: start.step_at.saturating_add(most),
            after_seconds: most,
        };
        if start.is_initializing {
            return Some(at_most);
        }
        let left = limit_seconds.saturating_sub(start.stalled_seconds);
        let stalled = Late {
            at: start.noted_at.saturating_add(left),
            after_seconds: limit_seconds,
        };
        Some(if at_most.at < stalled.at {
            at_most
        } else {
            stalled
        })
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

    /// Notes until when a Gang pauses, in seconds of the wall clock of whoever wrote that.
    pub(crate) fn note_pause(&mut self, gang_uid: &str, until: Option<i64>, now: u64) {
        note_value(&mut self.pauses, gang_uid, until, now);
    }

    /// Since when it is known that the Gang pauses until the time that it names.
    pub(crate) fn pauses_since(&self, gang_uid: &str) -> Option<u64> {
        self.pauses.get(gang_uid).map(|(_, since)| *since)
    }

    /// Notes the notice that a Gang carries, by the second in which it was given.
    pub(crate) fn note_notice(&mut self, gang_uid: &str, noticed_at: Option<i64>, now: u64) {
        note_value(&mut self.notices, gang_uid, noticed_at, now);
    }

    /// Notes since when a Gang runs, or is admitted, as it says.
    pub(crate) fn note_running(&mut self, gang_uid: &str, since: Option<i64>, now: u64) {
        note_value(&mut self.runs, gang_uid, since, now);
    }

    /// When it was seen first that a Gang runs, or is admitted.
    pub(crate) fn running_seen_at(&self, gang_uid: &str) -> Option<u64> {
        self.runs.get(gang_uid).map(|(_, seen)| *seen)
    }

    /// Notes since when a Gang is admitted, as it says.
    pub(crate) fn note_admission(&mut self, gang_uid: &str, at: Option<i64>, now: Now) {
        let Some(at) = at else {
            self.admissions.remove(gang_uid);
            return;
        };
        if self.admissions.get(gang_uid).is_some_and(|it| it.at == at) {
            return;
        }
        let age = now.wall.as_second().saturating_sub(at);
        let admitted = Admitted {
            at,
            seen_at: now.monotonic_seconds,
            age_seconds: u64::try_from(age).unwrap_or(0),
        };
        self.admissions.insert(gang_uid.to_owned(), admitted);
    }

    /// The second in which a Gang has been admitted for so long. The time of day is asked once, when its admission is seen: a clock
    /// that is set later changes nothing, and nobody is admitted for longer because one is behind.
    pub(crate) fn admitted_for(&self, gang_uid: &str, seconds: u64) -> Option<u64> {
        let admitted = self.admissions.get(gang_uid)?;
        let left = seconds.saturating_sub(admitted.age_seconds);
        Some(admitted.seen_at.saturating_add(left))
    }

    /// Notes which notice of a Gang nobody wants any more, by the second in which it was given.
    pub(crate) fn note_unwanted(&mut self, gang_uid: &str, noticed_at: Option<i64>, now: u64) {
        note_value(&mut self.unwanted, gang_uid, noticed_at, now);
    }

    /// Since when nobody wants a Gang to go that has a notice.
    pub(crate) fn unwanted_since(&self, gang_uid: &str) -> Option<u64> {
        self.unwanted.get(gang_uid).map(|(_, since)| *since)
    }

    /// When the notice that a Gang carries was seen first.
    pub(crate) fn notice_seen_at(&self, gang_uid: &str) -> Option<u64> {
        self.notices.get(gang_uid).map(|(_, seen)| *seen)
    }

    /// Notes when a Gang ended, as it says.
    pub(crate) fn note_gang_end(&mut self, gang_uid: &str, finished_at: Option<i64>, now: u64) {
        note_value(&mut self.ends_of_gangs, gang_uid, finished_at, now);
    }

    /// When it was seen first that a Gang has ended.
    pub(crate) fn gang_end_seen_at(&self, gang_uid: &str) -> Option<u64> {
        self.ends_of_gangs.get(gang_uid).map(|(_, seen)| *seen)
    }

    /// The status of a Gang is written.
    pub(crate) fn note_status_write(&mut self, gang_uid: &str, now: u64) {
        self.status_writes.insert(gang_uid.to_owned(), now);
    }

    /// When the status of a Gang was written last in this leadership.
    pub(crate) fn status_written_at(&self, gang_uid: &str) -> Option<u64> {
        self.status_writes.get(gang_uid).copied()
    }

    /// Notes which faults reach what an attempt of a Gang holds; those that do not any more are forgotten.
    pub(crate) fn note_faults(
        &mut self,
        gang_uid: &str,
        attempt: i64,
        faults: impl IntoIterator<Item = Answered>,
        now: u64,
    ) {
        let before = self.faults.remove(gang_uid);
        let before = before.filter(|(of, _)| *of == attempt);
        let since = |fault: &Answered| before.as_ref()?.1.get(fault).copied();
        let faults = faults.into_iter();
        let after: BTreeMap<Answered, u64> = faults
            .map(|fault| {
                let since = since(&fault).unwrap_or(now);
                (fault, since)
            })
            .collect();
        if !after.is_empty() {
            self.faults.insert(gang_uid.to_owned(), (attempt, after));
        }
    }

    /// Since when it is seen that the attempt holds what has the fault.
    pub(crate) fn fault_seen_at(
        &self,
        gang_uid: &str,
        attempt: i64,
        fault: &Answered,
    ) -> Option<u64> {
        let (of, faults) = self.faults.get(gang_uid)?;
        faults.get(fault).copied().filter(|_| *of == attempt)
    }

    /// Notes that ranks of an attempt of a Gang have failed, and of which pods it is seen that they did by themselves.
    pub(crate) fn note_failures(
        &mut self,
        gang_uid: &str,
        attempt: i64,
        by_themselves: impl IntoIterator<Item = String>,
        now: u64,
    ) {
        let before = self.failures.remove(gang_uid);
        let before = before.filter(|it| it.attempt == attempt);
        let mut failures = before.unwrap_or_else(|| Failures {
            attempt,
            since: now,
            by_themselves: BTreeSet::new(),
        });
        failures.by_themselves.extend(by_themselves);
        self.failures.insert(gang_uid.to_owned(), failures);
    }

    /// Notes that no pod shows any more that a rank of the attempt failed which a Gang carries; `None`: it carries none. Those that failed by themselves stay
    /// known until it is over.
    pub(crate) fn note_no_failure(&mut self, gang_uid: &str, attempt: Option<i64>) {
        let known = self.failures.get(gang_uid);
        let stays =
            known.is_some_and(|it| Some(it.attempt) == attempt && !it.by_themselves.is_empty());
        if !stays {
            self.failures.remove(gang_uid);
        }
    }

    /// Since when it is seen that a rank of the attempt that a Gang carries has failed.
    pub(crate) fn failed_since(&self, gang_uid: &str) -> Option<u64> {
        self.failures.get(gang_uid).map(|failures| failures.since)
    }

    /// Whether it was seen that a pod of the attempt failed by itself.
    pub(crate) fn has_failed_by_itself(&self, gang_uid: &str, attempt: i64, pod: &str) -> bool {
        let failures = self.failures.get(gang_uid);
        failures.is_some_and(|it| it.attempt == attempt && it.by_themselves.contains(pod))
    }

    /// A Gang is gone.
    pub(crate) fn forget(&mut self, gang_uid: &str) {
        self.nudges.remove(gang_uid);
        self.starts.remove(gang_uid);
        self.reasons.remove(gang_uid);
        self.notices.remove(gang_uid);
        self.unwanted.remove(gang_uid);
        self.runs.remove(gang_uid);
        self.admissions.remove(gang_uid);
        self.pauses.remove(gang_uid);
        self.status_writes.remove(gang_uid);
        self.ends_of_gangs.remove(gang_uid);
        self.faults.remove(gang_uid);
        self.failures.remove(gang_uid);
    }
}

/// Notes a value of a Gang, and since when it has been that one.
fn note_value(
    values: &mut Table<String, (i64, u64)>,
    gang_uid: &str,
    value: Option<i64>,
    now: u64,
) {
    let known = values.get(gang_uid).map(|(known, _)| *known);
    match value {
        None => {
            values.remove(gang_uid);
        }
        Some(value) if known == Some(value) => {}
        Some(value) => {
            values.insert(gang_uid.to_owned(), (value, now));
        }
    }
}
