//! Who hears of faults and looks for them, and keeps what was seen.
//!
//! NVML and the kernel's log are each listened to on a thread of their own; what they hear is remembered at once ([`Eye`]). One task writes it
//! to the disk and then tells it to whoever publishes, who tries again until that is done.

use std::{
    collections::BTreeSet,
    path::{Path, PathBuf},
    sync::Arc,
    thread,
    time::Duration,
};

use muster_device::{
    Backend,
    faults::{Catalogue, FaultClass, FaultState, KernelLog, Scope},
};
use muster_serve::Shutdown;
use tokio::{sync::watch, task::JoinHandle, time::Instant};

use super::{eye::Eye, mended};
use crate::{
    driver::Handle,
    inventory::KnownGpus,
    metrics::DriverMetrics,
    prepare::{DiskFailure, Input},
    store::Store,
};

/// How long NVML is listened to at a time. It can be closed in between.
const LISTEN: Duration = Duration::from_millis(200);
/// How often the kernel's log is looked at.
const READ_EVERY: Duration = Duration::from_millis(200);
/// Shortest and longest pause after a failure.
const PAUSE: (Duration, Duration) = (Duration::from_millis(200), Duration::from_secs(1));
/// How often all GPUs are looked at.
const LOOK_EVERY: Duration = Duration::from_secs(10);
/// How often it is looked whether a person has said something: one directory is read.
const ANSWER_EVERY: Duration = Duration::from_secs(1);
/// How often it is kept how often something was seen, and how far the log was read.
const KEEP_EVERY: Duration = Duration::from_secs(30);
/// For how long it is waited for the disk before what is new is told.
const LONGEST_WRITE: Duration = Duration::from_secs(1);
/// Time in which faults that come together are told together.
const SETTLE: Duration = Duration::from_millis(50);

/// What watching needs.
#[derive(Debug)]
pub struct Settings {
    /// NVML.
    pub backend: Arc<Backend>,
    /// Where it is remembered.
    pub store: Store,
    /// What each XID means.
    pub catalogue: watch::Receiver<Arc<Catalogue>>,
    /// The kernel's log.
    pub kernel_log: PathBuf,
    /// Where people say that a GPU is mended.
    pub mended: PathBuf,
    /// The GPUs.
    pub gpus: watch::Receiver<Option<KnownGpus>>,
    /// Receives what is wrong; has what was remembered.
    pub faults: watch::Sender<FaultState>,
    /// Who prepares claims.
    pub driver: Handle,
    /// Whether a command of the administrator has to find a GPU in order before its fault is over.
    pub validates: bool,
    /// What is counted.
    pub metrics: DriverMetrics,
}

/// Starts to watch, until shutdown. Who watches and remembers.
pub fn spawn(settings: Settings, shutdown: &Shutdown) -> Arc<Eye> {
    let remembered = settings.faults.borrow().clone();
    // Before any claim is prepared.
    settings
        .driver
        .tell(Input::Faults(Arc::new(remembered.clone())));
    let eye = Eye::new(
        settings.backend,
        settings.store,
        settings.catalogue,
        settings.gpus.clone(),
        remembered,
    );
    let eye = Arc::new(eye.with_validation(settings.validates));
    let (hearing, stop) = (Arc::clone(&eye), shutdown.clone());
    shutdown.spawn_until_stopped("listen to NVML", async move {
        // It goes on until the shutdown; if not, that ends the program.
        let _ended = tokio::task::spawn_blocking(move || listen(&hearing, &stop)).await;
    });
    let (reading, stop) = (Arc::clone(&eye), shutdown.clone());
    let log = settings.kernel_log;
    shutdown.spawn_until_stopped("read the kernel's log", async move {
        let _ended = tokio::task::spawn_blocking(move || read(&reading, &log, &stop)).await;
    });
    let looking = look(Arc::clone(&eye), settings.mended.into());
    shutdown.spawn_until_stopped("look at the health of the GPUs", looking);
    let keeper = Keeper {
        eye: Arc::clone(&eye),
        gpus: settings.gpus,
        faults: settings.faults,
        driver: settings.driver,
        metrics: settings.metrics,
        writing: None,
    };
    shutdown.spawn_until_stopped("keep and tell faults", keeper.run());
    eye
}

fn listen(eye: &Eye, shutdown: &Shutdown) {
    let mut pause = PAUSE.0;
    let mut told_lost = BTreeSet::new();
    while !shutdown.is_requested() {
        let is_broken = if let Ok(heard) = eye.backend().wait_for_events(LISTEN) {
            if heard.is_anew || heard.is_broken || !heard.lost.is_empty() {
                eye.look.notify_one();
            }
            for uuid in heard.lost {
                if !told_lost.contains(&uuid) {
                    tracing::error!(gpu = uuid, "a GPU fell off the bus");
                    told_lost.insert(uuid);
                }
            }
            eye.heard(heard.events);
            heard.is_broken
        } else {
            // Who lists the GPUs tells why.
            eye.heard(Vec::new());
            true
        };
        if is_broken {
            thread::sleep(pause);
            pause = (pause * 2).min(PAUSE.1);
        } else {
            pause = PAUSE.0;
        }
    }
}

fn read(eye: &Eye, path: &Path, shutdown: &Shutdown) {
    let mut open: Option<KernelLog> = None;
    let mut told = String::new();
    while !shutdown.is_requested() {
        let position = eye.state().log();
        let log = match open.take() {
            Some(log) => Ok(log),
            None => KernelLog::open(path, position),
        };
        let read = log.and_then(|mut log| {
            let read = log.read()?;
            Ok((log, read))
        });
        match read {
            Ok((log, read)) => {
                told.clear();
                eye.read(read.lines);
                eye.read_log(log.position(), !read.has_more);
                // What was overwritten may have been what an event waits for.
                eye.log_is_read(!read.has_lost);
                if read.has_lost {
                    eye.look.notify_one();
                }
                open = Some(log);
                if !read.has_more {
                    thread::sleep(READ_EVERY);
                }
            }
            Err(error) => {
                eye.log_is_read(false);
                let cause = error.to_string();
                if told != cause {
                    tracing::warn!(file = %path.display(), cause, "the kernel's log cannot be read");
                    told = cause;
                }
                thread::sleep(PAUSE.1);
            }
        }
    }
}

/// Answers people, and looks at the GPUs. One after the other: a look that began before a person's word was taken up would find after it what was so before.
async fn look(eye: Arc<Eye>, mended: Arc<Path>) {
    let mut look_at = Instant::now();
    let mut told = None;
    loop {
        let is_due = Instant::now() >= look_at;
        let (looking, said) = (Arc::clone(&eye), Arc::clone(&mended));
        let looked = tokio::task::spawn_blocking(move || {
            let answered = mended::answer(&looking, &said);
            if is_due {
                looking.look_at_all();
            }
            answered
        });
        match looked.await {
            Ok(answered) => {
                let failure = answered.err().map(|error| error.to_string());
                if let Some(cause) = failure.as_ref().filter(|_| failure != told) {
                    tracing::warn!(directory = %mended.display(), cause, "nobody can say that a GPU is mended");
                }
                told = failure;
            }
            Err(broken) => tracing::error!(%broken, "the look at the GPUs broke off"),
        }
        if is_due {
            look_at = Instant::now() + LOOK_EVERY;
        }
        tokio::select! {
            () = eye.look.notified() => {
                tokio::time::sleep(PAUSE.1).await;
                look_at = Instant::now();
            }
            () = tokio::time::sleep(ANSWER_EVERY) => {}
        }
    }
}

/// Writes what is seen, and tells it.
struct Keeper {
    eye: Arc<Eye>,
    gpus: watch::Receiver<Option<KnownGpus>>,
    faults: watch::Sender<FaultState>,
    driver: Handle,
    metrics: DriverMetrics,
    /// A write that is under way, and what was known when it was begun.
    writing: Option<(JoinHandle<Result<(), DiskFailure>>, FaultState)>,
}

impl Keeper {
    async fn run(mut self) {
        let remembered = self.eye.state().clone();
        self.count(&remembered);
        loop {
            tokio::select! {
                () = self.eye.news.notified() => {}
                Ok(()) = self.gpus.changed() => self.eye.look.notify_one(),
                () = tokio::time::sleep(KEEP_EVERY) => {}
            }
            tokio::time::sleep(SETTLE).await;
            self.eye.adopt();
            let state = self.eye.state().clone();
            self.keep(&state).await;
            // What is not on the disk is told all the same: to keep a GPU out of use is what matters first.
            self.tell(state);
        }
    }

    /// Writes it, and waits for that: what was told and is not on the disk would be taken back by a crash. But not for long: a disk that
    /// hangs, or a lock that somebody has, keeps no GPU in use that is broken. One write is under way at a time.
    async fn keep(&mut self, state: &FaultState) {
        let eye = Arc::clone(&self.eye);
        let begin = || {
            (
                tokio::task::spawn_blocking(move || eye.keep()),
                state.clone(),
            )
        };
        let (writing, _) = self.writing.get_or_insert_with(begin);
        let Ok(written) = tokio::time::timeout(LONGEST_WRITE, writing).await else {
            tracing::warn!("faults of GPUs are not on the disk yet, and told all the same");
            self.eye.news.notify_one();
            return;
        };
        let content = self.writing.take().map(|(_, content)| content);
        match written {
            Ok(Ok(())) => {
                if content.as_ref() != Some(state) {
                    self.eye.news.notify_one();
                }
            }
            // It is tried again with the next change, or after a while.
            Ok(Err(failure)) => tracing::warn!(%failure, "faults of GPUs are not kept"),
            Err(broken) => tracing::error!(%broken, "faults of GPUs are not kept"),
        }
    }

    fn count(&self, state: &FaultState) {
        self.metrics.faults(state, self.gpus.borrow().as_ref());
    }

    fn tell(&self, state: FaultState) {
        self.count(&state);
        let is_new = outline(&self.faults.borrow()) != outline(&state);
        if is_new {
            // First, so that no claim is prepared that has a taint.
            self.driver.tell(Input::Faults(Arc::new(state.clone())));
            self.faults.send_replace(state);
        }
    }
}

/// What is published: which GPU has what, and why, not how often it was seen.
type Outline<'a> = BTreeSet<(&'a str, FaultClass, Scope, Vec<&'a String>)>;

fn outline(state: &FaultState) -> Outline<'_> {
    let gpus = state.gpus().iter();
    gpus.flat_map(|(uuid, faults)| {
        let all = faults.all().iter();
        all.map(move |fault| {
            let causes: Vec<&String> = fault.causes.keys().collect();
            (uuid.as_str(), fault.class, fault.scope, causes)
        })
    })
    .collect()
}
