//! The observer: watches the cluster from the outside and checks S1 to S8 and S16 all the time, and S18
//! while a scenario says that an outage is on.
//!
//! It knows nothing of Muster but `muster-api`: no engine, no protocol. What a gang costs, whom it is charged to and
//! which Flavor it takes it works out from pods, claims, slices, Namespaces and Team specs; which part of which GPU was in whose hands
//! it takes from the device nodes in the process runtime's record ([`hardware`]), never from the driver; what was wrong with which GPU from
//! what tests did to the hardware ([`crate::faults::journal`]). A scenario passes only if the observer saw nothing wrong, and saw enough to say so.
//!
//! **Everything has one order.** One watch of etcd ([`etcd`]) brings every write of every kind in the order in which it
//! was committed, over outages of the API server and of etcd itself, and a missing revision fails the scenario. Each
//! line of a record carries the revision at which its container started or ended, and is judged by the state of that
//! revision ([`history`]), however late it is read.
//!
//! The judge ([`judge::Judge`]) is pure: a test stages a violation of each invariant and sees it reported.

mod attempts;
mod charges;
mod claim_names;
mod containers;
mod decode;
mod disk;
mod epochs;
mod etcd;
mod fault_evictions;
mod faults;
mod feed;
mod findings;
mod gang_lives;
mod hardware;
mod history;
mod journals;
mod judge;
mod leaks;
mod limits;
mod outages;
mod overdue;
mod published;
mod quantity;
mod quota;
mod record;
#[cfg(test)]
mod staged_violations;
mod ungates;
mod whole_evictions;
mod world;
mod wrong;

use std::{
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use anyhow::{Result, bail};
use tokio::task::JoinSet;

pub use findings::{Counts, Invariant};

use crate::{faults::journal::Journal, node::Node};

/// Longest time from the proof of release until nothing is charged any more (S6).
pub const RELEASE_BOUND: Duration = Duration::from_secs(30);
/// How much longer a gang may be charged of which a pod of a Job failed: what it died of may be told as late as that, and the Job fails by what it
/// was (`docs/adr/0047`). Each leader begins anew.
pub const DOUBT_BOUND: Duration = Duration::from_mins(1);
/// Longest time that a GPU pod may be there without a charge when Muster finds it running (S2).
pub const COVERAGE_BOUND: Duration = Duration::from_secs(5);
/// Longest time that an attempt that is evicted may be partly ended (S4): some pods have ended or are told to, and others are not. Another
/// leader may have to be found in between.
pub const PARTLY_ENDED_BOUND: Duration = Duration::from_secs(60);
/// Longest time until everything is given back after a scenario, beyond [`RELEASE_BOUND`].
const SETTLE_SLACK: Duration = Duration::from_secs(15);

/// A running observer. Dropping it stops it.
pub struct Observer {
    judge: Arc<Mutex<judge::Judge>>,
    etcd: Arc<etcd::Etcd>,
    _tasks: JoinSet<()>,
}

// Not derived: a client shows nothing of itself.
impl fmt::Debug for Observer {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = formatter.debug_struct("Observer");
        shown.field("revision", &self.judge().revision());
        shown.finish_non_exhaustive()
    }
}

/// What the observer has seen since its last verdict.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Verdict {
    /// What was wrong, each with its invariant.
    pub violations: Vec<String>,
    /// How much was seen.
    pub seen: Counts,
}

/// What must have happened before the observer: of what does not happen, nothing can be seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expected {
    /// Gangs were admitted, ran and ended.
    Gangs,
    /// The same, and GPUs were broken and told to be.
    Faults,
    /// The same, and gangs were evicted for that.
    FaultEvictions,
    /// Gangs were admitted, ran and ended, and containers of them ran while an outage was on.
    Outages,
    /// Containers got GPUs, with no controller to admit them.
    Containers,
    /// No pod got a GPU.
    Nothing,
}

impl Expected {
    /// The invariants that must have been checked.
    fn invariants(self) -> &'static [Invariant] {
        use Invariant::{S1, S2, S3, S4, S5, S6, S7, S8, S16, S18};
        match self {
            Self::Gangs => &[S1, S2, S3, S4, S5, S6, S16],
            Self::Faults => &[S1, S2, S3, S4, S5, S6, S7, S16],
            Self::FaultEvictions => &[S1, S2, S3, S4, S5, S6, S7, S8, S16],
            Self::Outages => &[S1, S2, S3, S4, S5, S6, S16, S18],
            Self::Containers => &[S3, S6],
            Self::Nothing => &[],
        }
    }
}

impl Verdict {
    /// Everything that forbids a scenario to pass, blindness included.
    pub fn wrong(&self, expected: Expected) -> Vec<String> {
        let mut wrong = self.violations.clone();
        let seen = &self.seen;
        let unseen = expected
            .invariants()
            .iter()
            .filter(|invariant| !seen.checks.contains_key(invariant));
        wrong.extend(unseen.map(|invariant| {
            format!("the observer was blind: it never checked {invariant}; {seen}")
        }));
        let is_empty = match expected {
            Expected::Gangs | Expected::Faults | Expected::FaultEvictions | Expected::Outages => {
                seen.gangs == 0 || seen.pods == 0 || seen.containers == 0
            }
            Expected::Containers => seen.pods == 0 || seen.containers == 0,
            Expected::Nothing => false,
        };
        if is_empty {
            wrong.push(format!("the observer was blind: {seen}"));
        }
        wrong
    }
}

impl Observer {
    /// Starts to watch the etcd at this URL, and these nodes.
    pub fn start(etcd_url: &str, nodes: &[Node]) -> Result<Self> {
        let mut judge = judge::Judge::default();
        for node in nodes {
            judge.node(node.name(), &node.gpu_uuids());
        }
        let judge = Arc::new(Mutex::new(judge));
        let etcd = Arc::new(etcd::Etcd::at(etcd_url)?);
        let seen = nodes.iter().map(|node| feed::SeenNode {
            record: record::RecordFile::new(node.name().to_owned(), node.record()),
            machine: hardware::Machine {
                state_file: node.hardware().path().to_owned(),
                gpus: node.gpu_uuids(),
            },
        });
        let disks = nodes.iter().map(|node| disk::Disk {
            node: node.name().to_owned(),
            cdi_directory: node.cdi_directory(),
            claim_records: node.driver_records(),
        });
        let journals = nodes.iter().map(|node| {
            let journal = Journal::of(node.directory());
            (node.name().to_owned(), journal)
        });
        let tasks = feed::start(
            Arc::clone(&etcd),
            seen.collect(),
            disks.collect(),
            journals::Journals::new(journals),
            Arc::clone(&judge),
        );
        Ok(Self {
            judge,
            etcd,
            _tasks: tasks,
        })
    }

    /// What was seen since the last verdict, or since the start. What happens between two scenarios belongs to the
    /// verdict of the second.
    pub fn take_verdict(&self) -> Verdict {
        self.judge().take_verdict()
    }

    /// While Muster is stopped on purpose nothing can be released or charged; the bounds of time stand still. What is
    /// judged by revisions (S1, S3, S4 but for attempts that are partly ended, S8, S16, S2 of a container that was
    /// permitted, and S7 of what was told) is judged all the same.
    pub fn suspend_bounds(&self, suspended: bool) {
        self.judge().suspend_bounds(suspended);
    }

    /// An outage of Muster, or of the API server, is about to begin: until [`Self::outage_is_over`] each container that runs now goes on, or ends by
    /// itself and well (S18). What happened before this call is judged first, for which etcd has to answer.
    pub async fn outage_begins(&self) -> Result<()> {
        self.wait_until("everything is judged before the outage", |_| Vec::new())
            .await?;
        self.judge().outage_begins();
        Ok(())
    }

    /// The outage is over, and etcd answers again: all that happened meanwhile is judged first.
    pub async fn outage_is_over(&self) -> Result<()> {
        self.wait_until("everything is judged after the outage", |_| Vec::new())
            .await?;
        self.judge().outage_is_over();
        Ok(())
    }

    /// Waits until everything that was written before this call is judged, and returns what was seen since the last
    /// verdict. The next verdict says it again.
    pub async fn verdict_so_far(&self) -> Result<Verdict> {
        self.wait_until("everything is judged", |_| Vec::new())
            .await?;
        Ok(self.judge().verdict_so_far())
    }

    /// Waits until nothing is charged, allocated, prepared, tainted or in use: the end of a scenario that cleared what
    /// it made.
    pub async fn settled(&self) -> Result<()> {
        let what = "nothing is left of what was deleted (S6)";
        self.wait_until(what, judge::Judge::left_over).await
    }

    /// Waits until what was written before this call is judged and nothing is left of what is asked for.
    async fn wait_until(
        &self,
        what: &str,
        left_over: impl Fn(&judge::Judge) -> Vec<String>,
    ) -> Result<()> {
        let deadline = Instant::now() + RELEASE_BOUND + SETTLE_SLACK;
        let mut written = self.etcd.revision().await;
        // The tick that is under way may have read the records before this call; the one after it has not.
        let ticks = self.judge().ticks() + 2;
        loop {
            let left = match &written {
                Ok(written) => {
                    let judge = self.judge();
                    let mut left = left_over(&judge);
                    if judge.ticks() < ticks {
                        left.push("the records and disks that are not read yet".to_owned());
                    }
                    if judge.revision() < *written {
                        left.push(format!(
                            "revisions from {} to {written}",
                            judge.revision() + 1
                        ));
                    }
                    left
                }
                Err(error) => vec![format!("{error:#}")],
            };
            if left.is_empty() {
                return Ok(());
            }
            if Instant::now() > deadline {
                bail!(
                    "the observer waited until {what}; there is {}",
                    left.join("; ")
                );
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
            if written.is_err() {
                written = self.etcd.revision().await;
            }
        }
    }

    fn judge(&self) -> MutexGuard<'_, judge::Judge> {
        // A panic while judging is reported by the task that panicked; the numbers are still good.
        self.judge.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
