//! NVML as it is loaded, closed, and loaded again.
//!
//! # Why it does not stay open
//!
//! Whoever has NVML open has device files of the driver open: the kernel's module cannot be unloaded, nor a GPU reset. And a
//! library works with the module of its own version only. So NVML is closed when a call says that the driver is gone or of
//! another version (`LIB_RM_VERSION_MISMATCH`, `DRIVER_NOT_LOADED`), when the kernel says so ([`Library::compare_with_kernel`]),
//! and for as long as somebody wants it closed ([`Library::hold_closed`]). The next question opens what is there by then. Where it is closed
//! for a moment only, as after a change of a GPU's mode, questions about the other GPUs wait for that moment
//! ([`Library::wait_while_briefly_closed`]): they would fail without a fault of theirs.
//!
//! # Which file
//!
//! The file is looked for at each opening, and loaded by its real path, of which the version is a part. To load a file by a
//! path that is loaded already would give the old one again, whatever lies there now, where a stuck call keeps that loaded.
//! Of the driver root the library needs nothing else: it links to `libc`, `libm`, `libdl`, `libpthread` and `librt` only, which
//! the loader takes from the driver's own image. They are there for its sake (`xtask/src/image/programs.rs`), and NVIDIA
//! builds it for a glibc that is older than any of ours.
//!
//! # Who closes it
//!
//! `nvmlShutdown` and `dlclose` may hang like any other call, so no caller does them. A [`Session`] is closed by the last
//! thread that drops it, which is one of [`super::calls`]: the state below holds it until such a thread has taken it out
//! ([`Library::close_retired`]), and each call that is under way has its own reference. So a library is never unloaded while
//! a thread is in it, and a call that is stuck keeps its session, and only that, until it returns. Sessions of two versions do
//! not disturb each other: they are different files with their own state. Of one file the loader and NVML count the users.

use std::{
    collections::BTreeMap,
    mem,
    path::{Path, PathBuf},
    sync::{
        Arc, Condvar, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use nvml_wrapper::{Device, Nvml};

use super::{BackendError, LibrarySource, events::Events, gone_or_failed};
use crate::cdi;

/// Shortest and longest pause before NVML is opened again. Whoever asks in between is told why it is closed.
const PAUSE: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(10));

/// The library, as far as it is loaded.
#[derive(Debug)]
pub(super) struct Library {
    source: LibrarySource,
    proc: PathBuf,
    state: Mutex<State>,
    /// Told when it may be opened again.
    let_open: Condvar,
    /// Sessions that are not closed yet, the stuck ones included.
    sessions: Arc<AtomicUsize>,
}

#[derive(Debug)]
struct State {
    open: Option<Arc<Session>>,
    /// No question finds it any more, and no thread has closed it yet.
    retired: Vec<Arc<Session>>,
    /// How many want it closed.
    held_closed: usize,
    /// How many of them for a moment.
    held_briefly: usize,
    /// How often it was closed for a moment.
    brief_closings: u64,
    /// Why it is closed.
    cause: String,
    /// When it may be opened again.
    open_at: Option<Instant>,
    /// The pause after the next failure.
    pause: Duration,
    openings: u64,
}

/// NVML from its opening until it is closed. NVML numbers the GPUs anew in each.
#[derive(Debug)]
pub(super) struct Session {
    /// First, so that they are freed while NVML is open.
    pub(super) events: Events,
    /// Before what counts it, so that it is closed before it counts as closed.
    pub(super) nvml: Nvml,
    file: PathBuf,
    /// Version of the kernel's module when it was opened.
    kernel: Option<String>,
    /// UUIDs by NVML's index, as far as they were asked for.
    uuids: Mutex<BTreeMap<u32, String>>,
    _counted: Counted,
}

#[derive(Debug)]
struct Counted(Arc<AtomicUsize>);

impl Counted {
    fn new(sessions: &Arc<AtomicUsize>) -> Self {
        sessions.fetch_add(1, Ordering::SeqCst);
        Self(Arc::clone(sessions))
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

/// How NVML stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LibraryStatus {
    /// The file, while it is open.
    pub file: Option<PathBuf>,
    /// How often it was opened.
    pub openings: u64,
    /// Calls that overran their limit and have not returned: as many threads.
    pub stuck_calls: usize,
}

impl Library {
    pub(super) fn new(source: LibrarySource, proc: PathBuf) -> Self {
        Self {
            source,
            proc,
            state: Mutex::new(State {
                open: None,
                retired: Vec::new(),
                held_closed: 0,
                held_briefly: 0,
                brief_closings: 0,
                cause: "it was not opened yet".to_owned(),
                open_at: None,
                pause: PAUSE.0,
                openings: 0,
            }),
            let_open: Condvar::new(),
            sessions: Arc::default(),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether it is open; an error if it is closed and is to stay so for now.
    pub(super) fn is_open(&self) -> Result<bool, BackendError> {
        self.state().is_open()
    }

    /// Opens it, unless that is done already. To be called where it may hang, by one thread at a time.
    pub(super) fn open(&self) -> Result<(), BackendError> {
        // Its descriptors first: the old version's would keep the module that it is for.
        self.close_retired();
        // Whoever had the turn before may have opened it, or failed.
        if self.state().is_open()? {
            return Ok(());
        }
        let loaded = self.load();
        let mut state = self.state();
        match loaded {
            Ok(session) if state.held_closed == 0 => {
                tracing::info!(library = %session.file.display(), "NVML is open");
                state.openings += 1;
                state.open_at = None;
                state.open = Some(Arc::new(session));
                Ok(())
            }
            Ok(session) => {
                // It was wanted closed meanwhile. Closing may take its time, so not under the lock.
                let closed = state.closed();
                drop(state);
                drop(session);
                Err(closed)
            }
            Err(cause) => {
                if state.held_closed == 0 {
                    state.close(cause);
                }
                Err(state.closed())
            }
        }
    }

    fn load(&self) -> Result<Session, String> {
        // Before the library: if the module is exchanged in between, the next comparison tells.
        let kernel = cdi::kernel_version(&self.proc);
        let file = self.source.find(&self.proc)?;
        let counted = Counted::new(&self.sessions);
        let mut builder = Nvml::builder();
        let nvml = builder.lib_path(file.as_os_str()).init();
        let nvml = nvml.map_err(|error| format!("{}: {error}", file.display()))?;
        Ok(Session {
            events: Events::default(),
            nvml,
            file,
            kernel,
            uuids: Mutex::default(),
            _counted: counted,
        })
    }

    /// Asks a question of what is open. To be called where it may hang.
    pub(super) fn ask<Answer>(
        &self,
        question: impl FnOnce(&Session) -> Result<Answer, BackendError>,
    ) -> Result<Answer, BackendError> {
        let session = {
            let state = self.state();
            state.open.clone().ok_or_else(|| state.closed())?
        };
        let answer = question(&session);
        match &answer {
            Ok(_) => self.state().pause = PAUSE.0,
            Err(BackendError::Unavailable(cause)) => self.retire(&session, cause),
            Err(_) => {}
        }
        drop(session);
        if matches!(answer, Err(BackendError::Unavailable(_))) {
            self.close_retired();
        }
        answer
    }

    /// Closes what answered that it is of no use. Another that was opened since is left alone.
    fn retire(&self, session: &Arc<Session>, cause: &str) {
        let mut state = self.state();
        let is_this = |open: &Arc<Session>| Arc::ptr_eq(open, session);
        if state.open.as_ref().is_some_and(is_this) {
            state.close(cause.to_owned());
        }
    }

    /// Closes it if the kernel has another module than when it was opened: what a library of another version, or of a module
    /// that is gone, still answers is old.
    pub(super) fn compare_with_kernel(&self) {
        let now = cdi::kernel_version(&self.proc);
        let mut state = self.state();
        let Some(session) = &state.open else {
            return;
        };
        let cause = match (&session.kernel, &now) {
            (before, now) if before == now => return,
            (Some(before), Some(now)) => {
                format!("the kernel's module was of version {before}, and is of {now} now")
            }
            (Some(before), None) => {
                format!("the kernel's module of version {before} is not loaded any more")
            }
            (None, _) => "the kernel's module was loaded since".to_owned(),
        };
        state.close(cause);
        state.open_at = None;
    }

    /// From now on no question opens it or finds it open. What is under way goes on. `briefly`: questions wait for it meanwhile.
    pub(super) fn hold_closed(&self, cause: &str, briefly: bool) {
        let mut state = self.state();
        state.held_closed += 1;
        if briefly {
            state.held_briefly += 1;
            state.brief_closings += 1;
        }
        state.close(cause.to_owned());
    }

    /// One less wants it closed.
    pub(super) fn let_open(&self, briefly: bool) {
        let mut state = self.state();
        state.held_closed = state.held_closed.saturating_sub(1);
        if briefly {
            state.held_briefly = state.held_briefly.saturating_sub(1);
        }
        state.open_at = None;
        drop(state);
        self.let_open.notify_all();
    }

    /// Waits, at most that long, while it is closed for a moment. Not to be called in a call: whoever closes it waits for those.
    pub(super) fn wait_while_briefly_closed(&self, longest: Duration) {
        let is_closed = |state: &mut State| state.held_briefly > 0;
        let waited = self
            .let_open
            .wait_timeout_while(self.state(), longest, is_closed);
        drop(waited);
    }

    /// How often it was closed for a moment so far.
    pub(super) fn brief_closings(&self) -> u64 {
        self.state().brief_closings
    }

    /// Closes what no question finds any more, as far as no call is in it. To be called where it may hang.
    pub(super) fn close_retired(&self) {
        let retired = mem::take(&mut self.state().retired);
        drop(retired);
    }

    /// Whether nothing is open or half open.
    pub(super) fn is_closed(&self) -> bool {
        self.sessions.load(Ordering::SeqCst) == 0
    }

    /// UUID of the GPU with this index, if it was asked for since NVML was opened.
    pub(super) fn uuid(&self, index: u32) -> Option<String> {
        let state = self.state();
        let uuids = state.open.as_ref()?.uuids();
        uuids.get(&index).cloned()
    }

    /// Whether the index of this GPU is known since NVML was opened.
    pub(super) fn knows(&self, uuid: &str) -> bool {
        let state = self.state();
        let knows = |session: &Arc<Session>| session.uuids().values().any(|known| known == uuid);
        state.open.as_ref().is_some_and(knows)
    }

    pub(super) fn status(&self, stuck_calls: usize) -> LibraryStatus {
        let state = self.state();
        LibraryStatus {
            file: state.open.as_ref().map(|session| session.file.clone()),
            openings: state.openings,
            stuck_calls,
        }
    }
}

impl State {
    fn is_open(&self) -> Result<bool, BackendError> {
        let waits = self.open_at.is_some_and(|at| Instant::now() < at);
        match &self.open {
            Some(_) => Ok(true),
            None if waits || self.held_closed > 0 => Err(self.closed()),
            None => Ok(false),
        }
    }

    fn closed(&self) -> BackendError {
        BackendError::Unavailable(self.cause.clone())
    }

    /// Takes it from whoever asks, if it is open, and says why; until it may be opened again, and that ever later.
    fn close(&mut self, cause: String) {
        if self.open.is_some() || self.cause != cause {
            tracing::warn!(cause, "NVML is closed");
        }
        self.retired.extend(self.open.take());
        self.cause = cause;
        self.open_at = Some(Instant::now() + self.pause);
        self.pause = (self.pause * 2).min(PAUSE.1);
    }
}

impl Session {
    fn uuids(&self) -> MutexGuard<'_, BTreeMap<u32, String>> {
        self.uuids.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// From now on this index is known to be that GPU.
    pub(super) fn identify(&self, index: u32, uuid: &str) {
        self.uuids().insert(index, uuid.to_owned());
    }

    /// The index that a GPU is known to have.
    pub(super) fn index(&self, uuid: &str) -> Result<u32, BackendError> {
        let known = {
            let uuids = self.uuids();
            let found = uuids.iter().find(|(_, known)| *known == uuid);
            found.map(|(index, _)| *index)
        };
        known.ok_or_else(|| BackendError::Failed("it was opened anew meanwhile".to_owned()))
    }

    /// The GPU, by its index, which must be known: to find one by its UUID NVML may ask the others, of which one may hang, and
    /// where any is lost it may say that this one is.
    pub(super) fn device(&self, uuid: &str) -> Result<Device<'_>, BackendError> {
        let gone = |error| gone_or_failed(uuid, error);
        let index = self.index(uuid)?;
        let device = self.nvml.device_by_index(index).map_err(gone)?;
        if device.uuid().map_err(gone)? == uuid {
            return Ok(device);
        }
        self.uuids().remove(&index);
        let cause = format!("GPU {uuid} does not have the index {index} any more");
        Err(BackendError::Failed(cause))
    }
}

impl LibrarySource {
    /// The file to load now.
    fn find(&self, proc: &Path) -> Result<PathBuf, String> {
        match self {
            Self::File(file) if file.components().count() == 1 && file.is_relative() => {
                Ok(file.clone())
            }
            Self::File(file) => file
                .canonicalize()
                .map_err(|error| format!("{}: {error}", file.display())),
            Self::DriverRoot(root) => root
                .management_library(proc)
                .map_err(|failure| failure.to_string()),
        }
    }
}
