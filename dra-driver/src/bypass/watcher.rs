//! The task that looks, judges, taints and tells.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::{Duration, Instant},
};

use jiff::Timestamp;
use muster_serve::Shutdown;
use tokio::sync::watch;

use super::{
    detector::{Changes, Detector},
    events::Bypass,
    look::{Looked, Looker, Places},
    notices::{Notices, Standing},
    origin::Origin,
    remembered::Remembered,
    sight::{PodName, Trusted},
};
use crate::{
    inventory::{KnownGpus, UsedPart},
    metrics::DriverMetrics,
    prepare::Milliseconds,
};

/// Longest and shortest time between two looks.
const LOOK_EVERY: (Duration, Duration) = (Duration::from_secs(5), Duration::from_millis(100));
/// Looks within the time after which an unexplained process is a bypass, where that is short.
const LOOKS: u32 = 6;
/// Looks that may fail before what is seen next counts as seen for the first time.
const MISSED_LOOKS: u32 = 3;

/// What watching needs.
#[derive(Debug)]
pub struct Settings {
    /// Where it is looked.
    pub places: Places,
    /// How long nothing explains a process until it is a bypass.
    pub grace: Duration,
    /// Who may use GPUs without a claim.
    pub trusted: Trusted,
    /// What stood when the program ended before.
    pub remembered: Remembered,
    /// The GPUs.
    pub gpus: watch::Receiver<Option<KnownGpus>>,
    /// Receives the parts of GPUs to taint.
    pub tainted: watch::Sender<BTreeSet<UsedPart>>,
    /// What is counted.
    pub metrics: DriverMetrics,
}

/// Starts to watch, until shutdown.
pub fn spawn(settings: Settings, shutdown: &Shutdown) {
    shutdown.spawn_until_stopped("watch of processes on GPUs", Watcher::new(settings).run());
}

struct Watcher {
    places: Places,
    looker: Looker,
    detector: Detector,
    notices: Notices,
    /// As it is on disk.
    remembered: Remembered,
    enforced: bool,
    gpus: watch::Receiver<Option<KnownGpus>>,
    tainted: watch::Sender<BTreeSet<UsedPart>>,
    metrics: DriverMetrics,
    grace: Duration,
    every: Duration,
    started: Instant,
    /// Names of pods, as they were seen last.
    names: BTreeMap<String, PodName>,
    /// What was logged last of what cannot be judged, and of what is trusted.
    logged: Logged,
}

#[derive(Debug, Default, PartialEq, Eq)]
struct Logged {
    unanswered: BTreeMap<String, String>,
    failure: Option<String>,
    trusted: usize,
}

impl Watcher {
    fn new(settings: Settings) -> Self {
        let every = (settings.grace / LOOKS).clamp(LOOK_EVERY.1, LOOK_EVERY.0);
        let milliseconds = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        let start = Milliseconds(0);
        let remembered = settings.remembered;
        let detector = Detector::new(
            milliseconds(settings.grace),
            milliseconds(every * MISSED_LOOKS),
            settings.trusted,
            remembered.groups.iter().cloned(),
            start,
        );
        let notices = Notices::of_remembered(&standing(&detector), start);
        Self {
            looker: Looker::new(settings.places.clone()),
            places: settings.places,
            detector,
            notices,
            enforced: remembered.enforced,
            remembered,
            gpus: settings.gpus,
            tainted: settings.tainted,
            metrics: settings.metrics,
            grace: settings.grace,
            every,
            started: Instant::now(),
            names: BTreeMap::new(),
            logged: Logged::default(),
        }
    }

    /// Runs until it is dropped.
    async fn run(mut self) {
        loop {
            tokio::time::sleep(self.every).await;
            // Before the first list there is nothing to look at.
            let Some(known) = self.gpus.borrow().clone() else {
                continue;
            };
            let present = known.gpus.iter().filter(|known| !known.gone);
            let gpus = present.map(|known| known.gpu.uuid.clone()).collect();
            let looked = self.looker.look(gpus, self.detector.trusted()).await;
            self.log_failure(looked.as_ref().err());
            if let Ok(looked) = looked {
                self.judge(looked, &known).await;
            }
        }
    }

    fn now(&self) -> Milliseconds {
        Milliseconds(u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX))
    }

    async fn judge(&mut self, looked: Looked, known: &KnownGpus) {
        self.enforced = looked.enforce;
        self.names.extend(looked.sight.names.clone());
        let changes = self.detector.see(self.now(), &looked.sight);
        let standing = standing(&self.detector);
        self.names
            .retain(|uid, _| standing.contains_key(&Origin::Pod(uid.clone())));
        let devices = device_names(known);
        self.log(&changes, looked.unanswered, &devices);
        self.count(&changes, &standing);
        self.remember().await;
        let tainted = self.wanted().tainted();
        self.tainted.send_if_modified(|before| {
            let is_new = *before != tainted;
            *before = tainted;
            is_new
        });
        self.tell(&standing, &devices).await;
    }

    /// What is to be on disk now.
    fn wanted(&self) -> Remembered {
        Remembered {
            enforced: self.enforced,
            groups: self
                .detector
                .standing()
                .map(|(group, _)| group.clone())
                .collect(),
        }
    }

    /// On disk before it is published. What is not written now is tried again with the next look.
    async fn remember(&mut self) {
        let wanted = self.wanted();
        let is_same = wanted.groups == self.remembered.groups
            && (wanted.enforced == self.remembered.enforced || wanted.groups.is_empty());
        if is_same {
            return;
        }
        let (store, written) = (self.places.store.clone(), wanted.clone());
        let result = tokio::task::spawn_blocking(move || written.write(&store)).await;
        match result {
            Ok(Ok(())) => self.remembered = wanted,
            Ok(Err(failure)) => tracing::warn!(%failure, "bypasses are not remembered"),
            Err(panicked) => tracing::warn!(%panicked, "bypasses are not remembered"),
        }
    }

    fn count(&self, changes: &Changes, standing: &Standing) {
        for group in &changes.began {
            self.metrics.began(&group.origin);
        }
        let gpus: BTreeSet<&String> = standing.values().flatten().collect();
        let count = |number: usize| i64::try_from(number).unwrap_or(i64::MAX);
        self.metrics.bypassed.set(count(gpus.len()));
        self.metrics
            .trusted
            .set(count(self.detector.trusted_processes()));
    }

    /// What is due by Events.
    async fn tell(&mut self, standing: &Standing, devices: &BTreeMap<String, String>) {
        for origin in self.notices.due(self.now(), standing) {
            let Some(gpus) = standing.get(&origin) else {
                continue;
            };
            let is_done = self.create_events(&origin, devices).await;
            self.notices.given(self.now(), &origin, gpus, is_done);
        }
    }

    async fn create_events(&self, origin: &Origin, devices: &BTreeMap<String, String>) -> bool {
        let node = self.places.kubernetes.node();
        let uid = self.places.kubernetes.node_uid().await;
        // As kubelets do.
        let uid = uid.unwrap_or_else(|_| node.to_owned());
        let bypass = self.bypass(origin, devices);
        let mut is_done = true;
        for event in bypass.events(node, &uid, Timestamp::now()) {
            if let Err(error) = self.places.kubernetes.create_event(&event).await {
                tracing::warn!(%error, "a bypass could not be told by an Event");
                is_done = false;
            }
        }
        is_done
    }

    fn bypass<'a>(&'a self, origin: &'a Origin, devices: &BTreeMap<String, String>) -> Bypass<'a> {
        let pod = match origin {
            Origin::Pod(uid) => self.names.get(uid),
            Origin::Node | Origin::Unknown | Origin::Hidden => None,
        };
        let mut bypass = Bypass {
            origin,
            pod,
            devices: BTreeSet::new(),
            processes: BTreeSet::new(),
            tainted_for: self.enforced.then_some(self.grace),
        };
        let of_origin = self.detector.standing();
        for (group, processes) in of_origin.filter(|(group, _)| group.origin == *origin) {
            let device = devices.get(&group.gpu).unwrap_or(&group.gpu);
            bypass.add(device.clone(), processes);
        }
        bypass
    }

    fn log(
        &mut self,
        changes: &Changes,
        unanswered: BTreeMap<String, String>,
        devices: &BTreeMap<String, String>,
    ) {
        let origins: BTreeSet<&Origin> = changes.began.iter().map(|group| &group.origin).collect();
        for origin in origins {
            let note = self.bypass(origin, devices).note();
            tracing::warn!(reason = %muster_api::Reason::QuotaBypassDetected, "{note}");
        }
        for group in &changes.ended {
            tracing::info!(gpu = group.gpu, origin = ?group.origin, "what bypassed quota is gone");
        }
        let logged = &mut self.logged;
        if logged.unanswered != unanswered {
            tracing::warn!(?unanswered, "GPUs whose processes cannot be judged");
            logged.unanswered = unanswered;
        }
        let trusted = self.detector.trusted_processes();
        if logged.trusted != trusted {
            tracing::info!(
                trusted,
                "processes on GPUs without a claim that are trusted"
            );
            logged.trusted = trusted;
        }
    }

    fn log_failure(&mut self, failure: Option<&String>) {
        if let Some(cause) = failure
            && self.logged.failure.as_ref() != Some(cause)
        {
            tracing::warn!(cause, "what uses the GPUs cannot be judged");
        }
        self.logged.failure = failure.cloned();
    }
}

fn standing(detector: &Detector) -> Standing {
    let mut standing = Standing::new();
    for (group, _) in detector.standing() {
        let gpus = standing.entry(group.origin.clone()).or_default();
        gpus.insert(group.gpu.clone());
    }
    standing
}

fn device_names(known: &KnownGpus) -> BTreeMap<String, String> {
    let gpus = known.gpus.iter().map(|known| &known.gpu);
    gpus.map(|gpu| (gpu.uuid.clone(), gpu.device_name()))
        .collect()
}
