//! What feeds the judge: one watch per kind, the records of the nodes, and the time.

use std::{
    io::{Read, Seek, SeekFrom},
    path::PathBuf,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use anyhow::{Context, Result};
use futures::StreamExt;
use kube::{
    Api, Client, Resource, ResourceExt,
    runtime::watcher::{self, Event},
};
use serde::de::DeserializeOwned;
use tokio::{
    sync::mpsc,
    task::JoinSet,
    time::{MissedTickBehavior, interval, timeout},
};

use super::{
    judge::Judge,
    record::Line,
    world::{Change, Object},
};

/// How often records are read and bounds are judged.
const TICK: Duration = Duration::from_millis(200);
/// Longest time until every kind has been listed. Muster's kinds exist only once its chart is installed.
const FIRST_LISTS: Duration = Duration::from_mins(1);

/// Starts all of it; returns once every kind that exists has been listed.
pub(super) async fn start(
    client: &Client,
    records: Vec<(String, PathBuf)>,
    judge: Arc<Mutex<Judge>>,
) -> Result<JoinSet<()>> {
    let feed = Feed {
        client: client.clone(),
        judge: Arc::clone(&judge),
        began: Instant::now(),
    };
    let mut tasks = JoinSet::new();
    let (listed, mut lists) = mpsc::channel::<()>(8);
    feed.watch(&mut tasks, &listed, |pod| Object::Pod(Box::new(pod)));
    feed.watch(&mut tasks, &listed, |claim| Object::Claim(Box::new(claim)));
    feed.watch_when_served(&mut tasks, |gang| Object::Gang(Box::new(gang)));
    feed.watch_when_served(&mut tasks, |node| Object::NodeDevices(Box::new(node)));
    feed.watch_when_served(&mut tasks, |ledger| Object::Ledger(Box::new(ledger)));
    feed.watch_when_served(&mut tasks, |team| Object::Team(Box::new(team)));
    feed.watch_when_served(&mut tasks, |cohort| Object::Cohort(Box::new(cohort)));
    drop(listed);
    for _ in 0..2 {
        timeout(FIRST_LISTS, lists.recv())
            .await
            .context("the observer's first lists did not come")?;
    }
    tasks.spawn(feed.keep_time(records));
    Ok(tasks)
}

#[derive(Clone)]
struct Feed {
    client: Client,
    judge: Arc<Mutex<Judge>>,
    began: Instant,
}

impl Feed {
    /// A kind of Kubernetes' own: served from the start.
    fn watch<K>(&self, tasks: &mut JoinSet<()>, listed: &mpsc::Sender<()>, object: fn(K) -> Object)
    where
        K: Resource<DynamicType = ()> + Clone + DeserializeOwned + std::fmt::Debug + Send + 'static,
    {
        let feed = self.clone();
        let listed = listed.clone();
        tasks.spawn(async move { feed.follow(object, Some(listed)).await });
    }

    /// A kind of Muster's: served once the chart is installed, which may be later.
    fn watch_when_served<K>(&self, tasks: &mut JoinSet<()>, object: fn(K) -> Object)
    where
        K: Resource<DynamicType = ()> + Clone + DeserializeOwned + std::fmt::Debug + Send + 'static,
    {
        let feed = self.clone();
        tasks.spawn(async move {
            let api = Api::<K>::all(feed.client.clone());
            while api
                .list(&kube::api::ListParams::default().limit(1))
                .await
                .is_err()
            {
                tokio::time::sleep(TICK).await;
            }
            feed.follow(object, None).await;
        });
    }

    /// Follows a kind for ever. A second list means that events may be missing.
    async fn follow<K>(&self, object: fn(K) -> Object, listed: Option<mpsc::Sender<()>>)
    where
        K: Resource<DynamicType = ()> + Clone + DeserializeOwned + std::fmt::Debug + Send + 'static,
    {
        let mut events = watcher::watcher(
            Api::<K>::all(self.client.clone()),
            watcher::Config::default(),
        )
        .boxed();
        let mut lists = 0;
        while let Some(event) = events.next().await {
            match event {
                Ok(Event::Init) => {
                    lists += 1;
                    if lists > 1 {
                        self.gap(&format!("{} were listed again", K::plural(&())));
                    }
                }
                Ok(Event::InitApply(found) | Event::Apply(found)) => {
                    self.observe(object, found, false);
                }
                Ok(Event::Delete(found)) => self.observe(object, found, true),
                Ok(Event::InitDone) => {
                    if let Some(listed) = &listed {
                        // Nobody waits any more once the start is over.
                        let _ = listed.try_send(());
                    }
                }
                Err(error) => {
                    tracing::debug!(%error, kind = %K::kind(&()), "the watch was interrupted and resumes");
                    tokio::time::sleep(TICK).await;
                }
            }
        }
        self.gap(&format!("the watch of {} ended", K::plural(&())));
    }

    fn observe<K: Resource>(&self, object: fn(K) -> Object, found: K, gone: bool) {
        let revision = found
            .resource_version()
            .and_then(|version| version.parse().ok())
            .unwrap_or(0);
        let change = Change {
            object: object(found),
            gone,
        };
        self.lock(|judge, now| judge.observe(revision, now, change));
    }

    fn gap(&self, what: &str) {
        self.lock(|judge, _| judge.gap(what));
    }

    /// Reads the records and lets the judge judge, for ever.
    async fn keep_time(self, records: Vec<(String, PathBuf)>) {
        let mut records: Vec<Record> = records
            .into_iter()
            .map(|(node, path)| Record {
                node,
                path,
                read: 0,
            })
            .collect();
        let mut ticks = interval(TICK);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            for record in &mut records {
                for line in record.new_lines() {
                    self.lock(|judge, _| judge.record(&record.node, &line));
                }
            }
            self.lock(Judge::tick);
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

/// A node's record, read as it grows.
struct Record {
    node: String,
    path: PathBuf,
    read: u64,
}

impl Record {
    /// Whole lines since the last call. The runtime writes each line by one write.
    fn new_lines(&mut self) -> Vec<Line> {
        let mut text = String::new();
        let read = std::fs::File::open(&self.path).and_then(|mut file| {
            file.seek(SeekFrom::Start(self.read))?;
            file.read_to_string(&mut text)
        });
        if read.is_err() {
            return Vec::new();
        }
        let whole = text.rfind('\n').map_or(0, |end| end + 1);
        self.read += whole as u64;
        text[..whole]
            .lines()
            .filter_map(|line| serde_json::from_str(line).ok())
            .collect()
    }
}
