//! What the observer found: how often it looked at each invariant, and what was wrong.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
};

/// An invariant of ARCHITECTURE.md.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Invariant {
    /// No quota node is ever over its limit.
    S1,
    /// No running GPU pod without a charge.
    S2,
    /// No physical unit prepared for two claims, none without a permit.
    S3,
    /// The first ungate happens after the plan is stored and all pods exist, and no attempt is partly ended for long.
    S4,
    /// An accepted gang exists until it ended with a stated reason.
    S5,
    /// Nothing stays charged, reserved, prepared or tainted without a cause.
    S6,
    /// A fault of a GPU is over only by a proof that is newer than the fault and fits its class.
    S7,
    /// A gang is evicted for a fault only if it reaches a device that the gang holds, and once for each; nothing ends single pods for it.
    S8,
    /// A stale leader commits nothing.
    S16,
    /// An outage of Muster or of the API server ends nothing that runs.
    S18,
}

impl fmt::Display for Invariant {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, formatter)
    }
}

/// How much was seen: an observer that saw nothing proves nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Gangs that were admitted.
    pub gangs: u64,
    /// Pods with claims.
    pub pods: u64,
    /// Containers that got GPUs.
    pub containers: u64,
    /// Single checks, by invariant.
    pub checks: BTreeMap<Invariant, u64>,
}

impl fmt::Display for Counts {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let checks = self.checks.iter();
        let checks: Vec<String> = checks
            .map(|(invariant, count)| format!("{invariant} {count}"))
            .collect();
        write!(
            formatter,
            "observed {} gangs, {} pods, {} containers with GPUs; checks: {}",
            self.gangs,
            self.pods,
            self.containers,
            if checks.is_empty() {
                "none".to_owned()
            } else {
                checks.join(", ")
            }
        )
    }
}

/// Collects what the checks find.
#[derive(Debug, Default)]
pub(super) struct Findings {
    pub(super) counts: Counts,
    violations: BTreeSet<String>,
    /// What earlier verdicts said: a violation that lasts is told once.
    told: BTreeSet<String>,
}

impl Findings {
    /// One check of an invariant was made; it holds unless it says why not.
    pub(super) fn check(&mut self, invariant: Invariant, violated: Option<String>) {
        *self.counts.checks.entry(invariant).or_default() += 1;
        if let Some(how) = violated {
            self.violation(invariant, &how);
        }
    }

    /// So many checks were made, whose violations come later if there are any.
    pub(super) fn checked(&mut self, invariant: Invariant, count: usize) {
        if count > 0 {
            *self.counts.checks.entry(invariant).or_default() += count as u64;
        }
    }

    /// An invariant was violated.
    pub(super) fn violation(&mut self, invariant: Invariant, how: &str) {
        self.violations.insert(format!("{invariant}: {how}"));
    }

    /// The observer missed something: nothing that it did not find proves anything.
    pub(super) fn blind(&mut self, why: &str) {
        self.violations
            .insert(format!("the observer was blind: {why}"));
    }

    /// Everything since the last call of [`Self::take`], which stays.
    pub(super) fn so_far(&self) -> (Vec<String>, Counts) {
        let news = self.violations.difference(&self.told).cloned().collect();
        (news, self.counts.clone())
    }

    /// Everything since the last call.
    pub(super) fn take(&mut self) -> (Vec<String>, Counts) {
        let found = std::mem::take(&mut self.violations);
        let news = found.difference(&self.told).cloned().collect();
        self.told.extend(found);
        (news, std::mem::take(&mut self.counts))
    }
}
