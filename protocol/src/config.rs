//! What the machine is told about its surroundings.

use std::collections::BTreeSet;

use jiff::Timestamp;

use muster_cluster::index;
use muster_engine::{
    self as engine,
    recovery::{BreakerLimits, ForcePolicy, ResetLimits},
};

/// Whether Muster decides, or only shows what it would decide.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// Nothing is gated, so nothing is ungated; gangs and their reasons are computed and shown.
    Observe,
    /// Pods start when they are admitted, and drivers prepare only what has a permit.
    #[default]
    Enforce,
}

/// What is done about gangs on nodes that a person cordons, or drains by hand.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnCordon {
    /// Nothing: nothing new is planned there, and who runs there goes on.
    #[default]
    Nothing,
    /// They are moved whole, if they have a place elsewhere.
    Move,
}

/// What is done, without proof and without a user's word, about what may have gone wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Recovery {
    /// Observe: it is told what would be done, and nothing is ended.
    pub mode: Mode,
    /// Which pods of attempts that are over may be deleted by force.
    pub force_deletion: ForcePolicy,
    /// How long after the end of its grace period such a pod may take to die, in seconds.
    pub force_after_seconds: u64,
    /// How long a rank may have failed while others go on where its gang does not say, in seconds: so long is the attempt left alone, so that
    /// a fault that explains it may be told.
    pub failure_grace_seconds: u64,
    /// Pause after the first of consecutive attempts that got nowhere, in seconds; each time twice as long.
    pub retry_pause_seconds: u32,
    /// The longest such pause, in seconds; never less than the first.
    pub most_retry_pause_seconds: u32,
    /// How many nodes may be evacuated, or have GPUs reset, within the window.
    pub breaker: BreakerLimits,
    /// The window, in seconds.
    pub breaker_window_seconds: u64,
    /// How many nodes may have GPUs reset at the same time.
    pub resets: ResetLimits,
    /// What is done about gangs on what a person drains.
    pub on_cordon: OnCordon,
    /// For how long what an attempt held is kept for its gang after it ended by a fault or the like, in seconds; with 0 nothing is.
    pub keep_seconds: u64,
}

impl Recovery {
    /// The pause after so many consecutive attempts that got nowhere, in seconds; 0 after none.
    pub(crate) fn pause_seconds(&self, attempts_in_vain: usize) -> i64 {
        let Some(doublings) = attempts_in_vain.checked_sub(1) else {
            return 0;
        };
        let doublings = u32::try_from(doublings).unwrap_or(u32::MAX).min(16);
        let pause = i64::from(self.retry_pause_seconds) << doublings;
        pause.min(self.longest_pause_seconds())
    }

    /// The longest pause, in seconds.
    pub(crate) fn longest_pause_seconds(&self) -> i64 {
        let longest = self.most_retry_pause_seconds.max(self.retry_pause_seconds);
        i64::from(longest)
    }
}

impl Default for Recovery {
    /// What the chart ships.
    fn default() -> Self {
        Self {
            mode: Mode::Observe,
            force_deletion: ForcePolicy::Fenced,
            force_after_seconds: 60,
            failure_grace_seconds: 60,
            retry_pause_seconds: 30,
            most_retry_pause_seconds: 1_800,
            breaker: BreakerLimits::SHIPPED,
            breaker_window_seconds: 600,
            resets: ResetLimits::SHIPPED,
            on_cordon: OnCordon::Nothing,
            keep_seconds: 600,
        }
    }
}

/// Limits and choices of the protocol. [`Config::new`] is what the chart ships.
#[derive(Clone, Debug)]
pub struct Config {
    /// What the installation says about pods and namespaces.
    pub index: index::Config,
    /// Observe or Enforce.
    pub mode: Mode,
    /// Most pods that may be ungated and not yet bound. Keeps one gang from flooding kube-scheduler and lets a larger one
    /// at the head go alone. Not counted are pods that kube-scheduler calls Unschedulable, those of other schedulers, and
    /// those that were counted for `window_seconds`.
    pub ungated_unbound_limit: usize,
    /// The same while kube-scheduler's extender fails now and then, or is slow. Each of these pods costs the scheduler, and
    /// everybody's pods behind it, up to 1 s for each try; so it is less than a third of `window_seconds`.
    pub careful_ungated_unbound_limit: usize,
    /// How long a pod that was ungated counts as one that kube-scheduler is busy with, in seconds.
    pub window_seconds: u64,
    /// The schedulers that the limit protects. No other one's pods are counted.
    pub scheduler_names: BTreeSet<String>,
    /// Most bytes of the Ledger's content as JSON: one compare-and-swap, far below what etcd takes.
    pub ledger_bytes: usize,
    /// Most bytes of the Evicts among it, which `ledger_bytes` does not count: what is to be taken back must not wait for what
    /// is to be given.
    pub evict_bytes: usize,
    /// Bytes of an intent, as JSON, up to which the Ledger has it whole. A larger one is proposed to its Gang first and
    /// named by its digest.
    pub whole_intent_bytes: usize,
    /// Most bytes of a proposal, as JSON: what a Gang carries has to stay far below the 1.5 MiB that etcd takes, together
    /// with all else that the object says.
    pub proposal_bytes: usize,
    /// How long an ended Gang is kept, in seconds.
    pub keep_ended_seconds: i64,
    /// How long a node may be NotReady before ranks that are planned on it have lost their place.
    pub not_ready_seconds: u64,
    /// How long a node is not Ready, or gone, before it is lost, and how long a driver may owe an answer before nothing new
    /// is planned on its node, in seconds.
    pub lost_after_seconds: u64,
    /// How long a node is not Ready before gangs on it are evicted, once it is lost, in seconds. A minute less than Kubernetes
    /// waits by its default tolerations: after 300 s it deletes the pods there itself, which a Job counts as failures.
    pub node_loss_seconds: u64,
    /// How long the driver of a Ready node may owe an answer before what was withdrawn there counts for nobody's Team, in
    /// seconds.
    pub silent_driver_seconds: u64,
    /// After how many looks of searches in vain the engine ends a call; see [`muster_engine::Budget`]. What came meanwhile is
    /// taken in before it goes on.
    pub looks_in_vain: u64,
    /// What is done about faults of devices and silent nodes.
    pub recovery: Recovery,
    /// Pause before an effect that was not answered, refused or in conflict is tried again.
    pub retry_seconds: u64,
}

impl Config {
    /// The values that the chart ships, for an installation.
    pub fn new(index: index::Config) -> Self {
        Self {
            index,
            mode: Mode::Enforce,
            ungated_unbound_limit: 256,
            careful_ungated_unbound_limit: 8,
            window_seconds: 30,
            scheduler_names: std::iter::once("default-scheduler".to_owned()).collect(),
            ledger_bytes: 256 * 1024,
            evict_bytes: 64 * 1024,
            whole_intent_bytes: 32 * 1024,
            proposal_bytes: 1_152 * 1024,
            keep_ended_seconds: 3_600,
            not_ready_seconds: 30,
            lost_after_seconds: 60,
            node_loss_seconds: 240,
            silent_driver_seconds: 300,
            looks_in_vain: muster_engine::Budget::LOOKS_IN_VAIN,
            recovery: Recovery::default(),
            retry_seconds: 1,
        }
    }
}

/// The time, on two clocks: deadlines count on the first, objects carry the second.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Now {
    /// Seconds on a clock that never jumps, since a moment that only the caller knows.
    pub monotonic_seconds: u64,
    /// The time of day, for fields of objects.
    pub wall: Timestamp,
}

impl Now {
    /// A second of the monotonic clock as the engine is told it by a leader that began at this moment: the time of day then, and what
    /// has passed since. A clock that is set meanwhile neither ends what is kept for a gang nor keeps it for longer.
    pub(crate) fn engine_time(&self, monotonic_seconds: u64) -> engine::Timestamp {
        let seconds = |seconds| i64::try_from(seconds).unwrap_or(i64::MAX);
        let passed = seconds(monotonic_seconds).saturating_sub(seconds(self.monotonic_seconds));
        engine::Timestamp(self.wall.as_second().saturating_add(passed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pause_is_twice_as_long_each_time_up_to_the_longest_one() {
        let recovery = |first, most| Recovery {
            retry_pause_seconds: first,
            most_retry_pause_seconds: most,
            ..Recovery::default()
        };
        for (first, most, times, pause) in [
            (30, 1_800, 0, 0),
            (30, 1_800, 1, 30),
            (30, 1_800, 2, 60),
            (30, 1_800, 6, 960),
            (30, 1_800, 7, 1_800),
            (30, 1_800, usize::MAX, 1_800),
            (1, 65_536, 17, 65_536),
            // Less than the first one is meant by nobody.
            (60, 1, 1, 60),
            (60, 1, 2, 60),
            (u32::MAX, u32::MAX, 100, i64::from(u32::MAX)),
        ] {
            let found = recovery(first, most).pause_seconds(times);
            assert_eq!(found, pause, "{first}, {most}, {times}");
        }
    }
}
