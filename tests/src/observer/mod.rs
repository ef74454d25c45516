//! The observer: watches the API server and the nodes from the outside and checks S1 to S6 all the time.
//!
//! It knows nothing of Muster but `muster-api`: no engine, no protocol. What a gang costs it works out
//! from pods, claims and Team specs; which GPU was in whose hands it takes from the process runtime's
//! record, never from the driver. A scenario passes only if the observer saw nothing wrong.
//!
//! **Events are judged in the order in which they happened.** Watches of different kinds overtake one
//! another, so events wait a moment in [`order`] and are then taken by resourceVersion, which is etcd's
//! revision and therefore one order over all kinds. Each judged state is one that really was.
//!
//! The judge ([`judge::Judge`]) is pure: a test stages a violation of each invariant and sees it reported.

mod charges;
mod feed;
mod judge;
mod limits;
mod order;
mod quantity;
mod record;
#[cfg(test)]
mod staged_violations;
mod world;

use std::{
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use anyhow::{Result, bail};
use kube::Client;
use tokio::task::JoinSet;

use crate::node::Node;

/// Longest time from the proof of release until nothing is charged any more (S6).
pub const RELEASE_BOUND: Duration = Duration::from_secs(30);
/// Longest time that a GPU pod may stand without a charge (S2).
pub const COVERAGE_BOUND: Duration = Duration::from_secs(5);

/// A running observer. Dropping it stops it.
#[derive(Debug)]
pub struct Observer {
    shared: Arc<Mutex<judge::Judge>>,
    _tasks: JoinSet<()>,
}

/// What the observer has seen so far.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Verdict {
    /// What was wrong, each with its invariant.
    pub violations: Vec<String>,
    /// How much was seen.
    pub seen: Counts,
}

/// How much was seen: an observer that saw nothing proves nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Gangs that were admitted.
    pub gangs: u64,
    /// Pods with claims.
    pub pods: u64,
    /// Containers that got GPUs.
    pub containers: u64,
    /// Single checks that were made.
    pub checks: u64,
}

impl fmt::Display for Counts {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            formatter,
            "observed {} gangs, {} pods, {} containers with GPUs; {} checks",
            self.gangs, self.pods, self.containers, self.checks
        )
    }
}

impl Verdict {
    /// Everything that forbids a scenario to pass, blindness included.
    pub fn wrong(&self, has_gangs: bool) -> Vec<String> {
        let mut wrong = self.violations.clone();
        if has_gangs && (self.seen.gangs == 0 || self.seen.pods == 0 || self.seen.checks == 0) {
            wrong.push(format!("the observer was blind: {}", self.seen));
        }
        wrong
    }
}

impl Observer {
    /// Starts to watch. Returns once every kind has been listed.
    pub async fn start(client: &Client, nodes: &[Node]) -> Result<Self> {
        let shared = Arc::new(Mutex::new(judge::Judge::default()));
        let records = nodes
            .iter()
            .map(|node| (node.name().to_owned(), node.record()))
            .collect();
        let tasks = feed::start(client, records, Arc::clone(&shared)).await?;
        Ok(Self {
            shared,
            _tasks: tasks,
        })
    }

    /// What was seen since the last call of [`Self::begin`], or since the start.
    pub fn verdict(&self) -> Verdict {
        self.judge().verdict()
    }

    /// Forgets counts and violations, not the world: the next verdict is about what follows.
    pub fn begin(&self) {
        self.judge().begin();
    }

    /// While Muster is stopped on purpose nothing can be released or charged; the bounds of time stand still.
    pub fn suspend_bounds(&self, suspended: bool) {
        self.judge().suspend_bounds(suspended);
    }

    /// Waits until nothing is charged, permitted or in use: the end of a scenario that cleared what it made.
    pub async fn settled(&self) -> Result<()> {
        let deadline = Instant::now() + RELEASE_BOUND + Duration::from_secs(15);
        loop {
            let left = self.judge().left_over();
            if left.is_empty() {
                return Ok(());
            }
            if Instant::now() > deadline {
                bail!(
                    "S6: still there after everything was deleted: {}",
                    left.join("; ")
                );
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }

    fn judge(&self) -> MutexGuard<'_, judge::Judge> {
        // A panic while judging is reported by the task that panicked; the numbers are still good.
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
