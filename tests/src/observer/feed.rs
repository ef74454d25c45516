//! What feeds the judge: the watch of etcd, the records and disks of the nodes, and the time.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use anyhow::{Result, bail};
use futures::{StreamExt, pin_mut};
use tokio::{
    task::JoinSet,
    time::{MissedTickBehavior, interval, sleep},
};

use super::{
    decode,
    disk::{self, Disk},
    etcd::{Commit, Compacted, Etcd, Revision},
    hardware::Machine,
    journals::Journals,
    judge::Judge,
    record::RecordFile,
    world::{Change, Object},
};

/// How often records and disks are read and bounds are judged.
const TICK: Duration = Duration::from_millis(200);
/// Pause before etcd is asked again after it did not answer.
const RETRY: Duration = Duration::from_millis(200);

/// A node as it is seen without asking it.
#[derive(Debug)]
pub(super) struct SeenNode {
    pub(super) record: RecordFile,
    pub(super) machine: Machine,
}

/// Starts all of it.
pub(super) fn start(
    etcd: Arc<Etcd>,
    nodes: Vec<SeenNode>,
    disks: Vec<Disk>,
    journals: Journals,
    judge: Arc<Mutex<Judge>>,
) -> JoinSet<()> {
    let feed = Feed {
        judge,
        journals: Arc::new(Mutex::new(journals)),
        began: Instant::now(),
    };
    let mut tasks = JoinSet::new();
    tasks.spawn(feed.clone().follow(etcd));
    tasks.spawn(feed.keep_time(nodes, disks));
    tasks
}

#[derive(Clone)]
struct Feed {
    judge: Arc<Mutex<Judge>>,
    /// Held while what is in them is handed on, so that nobody judges by less.
    journals: Arc<Mutex<Journals>>,
    began: Instant,
}

impl Feed {
    /// Follows etcd from its first revision on, over outages, until revisions are missing.
    async fn follow(self, etcd: Arc<Etcd>) {
        let mut next: Revision = 1;
        loop {
            let Err(error) = self.follow_once(&etcd, &mut next).await else {
                sleep(RETRY).await;
                continue;
            };
            if error.is::<Compacted>() {
                return self.lock(|judge, _| judge.blind(&format!("{error:#}")));
            }
            tracing::debug!(error = format!("{error:#}"), next, "the watch resumes");
            sleep(RETRY).await;
        }
    }

    async fn follow_once(&self, etcd: &Etcd, next: &mut Revision) -> Result<()> {
        let commits = etcd.watch_from(*next).await?;
        pin_mut!(commits);
        while let Some(commits) = commits.next().await {
            for commit in commits? {
                *next = commit.revision + 1;
                self.commit(&commit);
            }
        }
        bail!("etcd ended the watch")
    }

    fn commit(&self, commit: &Commit) {
        let changes = commit.writes.iter().filter_map(|write| {
            let change = decode::change(write);
            change.unwrap_or_else(|error| {
                self.lock(|judge, _| judge.blind(&format!("{error:#}")));
                None
            })
        });
        let changes: Vec<Change> = changes.collect();
        // What a fault brought about was written after the fault was written down.
        let is_about_faults =
            |change: &Change| matches!(change.object, Object::Slice(_) | Object::Gang(_));
        if changes.iter().any(is_about_faults) {
            self.read_journals();
        }
        self.lock(|judge, _| judge.commit(commit.revision, changes));
    }

    /// Hands on what tests did to GPUs up to now.
    fn read_journals(&self) {
        let journals = self.journals.lock();
        let mut journals = journals.unwrap_or_else(PoisonError::into_inner);
        let news = journals.news();
        self.lock(|judge, _| match news {
            Ok(news) => {
                for (node, injected) in &news {
                    judge.injected(node, injected);
                }
            }
            Err(error) => judge.blind(&format!("{error:#}")),
        });
    }

    /// Reads records, cards and disks and lets the judge judge, for ever.
    async fn keep_time(self, mut nodes: Vec<SeenNode>, disks: Vec<Disk>) {
        let mut ticks = interval(TICK);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            self.read_journals();
            for SeenNode { record, machine } in &mut nodes {
                let lines = record.new_lines();
                let cards = machine.look();
                self.lock(|judge, _| match (lines, cards) {
                    (Ok(lines), Ok(cards)) => {
                        for line in &lines {
                            judge.record(&record.node, &cards, line);
                        }
                        judge.slices(&record.node, cards.slices);
                    }
                    (Err(error), _) | (_, Err(error)) => judge.blind(&format!("{error:#}")),
                });
            }
            let remains = disk::look(&disks);
            self.lock(|judge, now_millis| {
                match remains {
                    Ok(remains) => judge.disks(remains),
                    Err(error) => judge.blind(&format!("{error:#}")),
                }
                judge.tick(now_millis);
            });
        }
    }

    fn lock(&self, act: impl FnOnce(&mut Judge, u64)) {
        let now = u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX);
        act(
            &mut self.judge.lock().unwrap_or_else(PoisonError::into_inner),
            now,
        );
    }
}
