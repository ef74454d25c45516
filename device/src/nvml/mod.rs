//! NVML: the node's GPUs, their slices, and who uses them.

mod calls;
mod condition;
mod events;
mod facts;
mod hidden_links;
mod library;
mod mig;
mod processes;

use std::{
    collections::BTreeMap,
    path::PathBuf,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use nvml_wrapper::error::NvmlError;

use self::{
    calls::{Calls, Lane, NoAnswer},
    facts::{Facts, facts},
    hidden_links::Pairs,
    library::{Library, Session},
    processes::processes,
};
use crate::{
    cdi::DriverRoot,
    gpu::{Gpu, NvlinkGroups},
    nvlink::{Link, groups},
};

pub use self::{events::Heard, library::LibraryStatus, processes::Process};

/// Longest that one question to NVML is waited for. A firmware that hangs answers never.
const CALL_LIMIT: Duration = Duration::from_secs(5);

/// Where NVML's library is looked for, each time it is opened.
#[derive(Clone, Debug)]
pub enum LibrarySource {
    /// This file, or what it links to by then; a name without a directory is one that the loader finds.
    File(PathBuf),
    /// The driver root: the library of the version of the kernel's module.
    DriverRoot(DriverRoot),
}

/// Where the driver's library and the kernel's files are.
#[derive(Clone, Debug)]
pub struct BackendConfig {
    /// The library.
    pub library: LibrarySource,
    /// `/sys` of the host.
    pub sysfs: PathBuf,
    /// `/proc` of the host.
    pub proc: PathBuf,
    /// Longest that one question is waited for.
    pub call_limit: Duration,
}

impl BackendConfig {
    /// This library, on a host whose `/sys` and `/proc` are where they always are.
    pub fn new(library: LibrarySource) -> Self {
        Self {
            library,
            sysfs: "/sys".into(),
            proc: "/proc".into(),
            call_limit: CALL_LIMIT,
        }
    }
}

/// Why NVML did not answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BackendError {
    /// There is no driver, it does not start, or it is another than the library is for. NVML is closed, and opened again by a
    /// later question.
    #[error("NVML is not available: {0}")]
    Unavailable(String),
    /// No answer in time; the state of the hardware is unknown.
    #[error("NVML did not answer in time")]
    Unresponsive,
    /// The GPU is not there (any more), or fell off the bus: nothing runs on it.
    #[error("GPU {0} is gone")]
    Gone(String),
    /// Something that is to be changed is in use: by a process, or by what a change would take with it. Or it is being changed, which takes
    /// longer than a question is waited for.
    #[error("NVML: {0}")]
    InUse(String),
    /// Any other refusal.
    #[error("NVML: {0}")]
    Failed(String),
}

impl From<NoAnswer> for BackendError {
    fn from(none: NoAnswer) -> Self {
        match none {
            NoAnswer::Late => Self::Unresponsive,
            NoAnswer::Busy => Self::InUse("the GPU is being changed at the moment".to_owned()),
            NoAnswer::Broken => Self::Failed("the call broke off".to_owned()),
            NoAnswer::NoThread(error) => Self::Failed(format!("no thread to ask it: {error}")),
        }
    }
}

impl From<NvmlError> for BackendError {
    fn from(error: NvmlError) -> Self {
        match error {
            NvmlError::DriverNotLoaded
            | NvmlError::LibRmVersionMismatch
            | NvmlError::Uninitialized => Self::Unavailable(error.to_string()),
            other => Self::Failed(other.to_string()),
        }
    }
}

fn gone_or_failed(gpu: &str, error: NvmlError) -> BackendError {
    match error {
        NvmlError::GpuLost | NvmlError::NotFound => BackendError::Gone(gpu.to_owned()),
        other => other.into(),
    }
}

/// The GPUs of the node, each by itself: one that does not answer costs only what would have been new of it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Listed {
    /// In PCI order. A GPU that fell off the bus is left out.
    pub gpus: Vec<ListedGpu>,
    /// Of the GPUs that did not say who they are, why. A GPU that was known and is not in the list may be one of these.
    pub unidentified: Vec<BackendError>,
}

/// A GPU, and whether it answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListedGpu {
    /// What is known of it; if it is silent, from before.
    pub gpu: Gpu,
    /// Why it did not answer, if so.
    pub silent: Option<BackendError>,
}

/// NVML behind a limit. Questions about a GPU that is known are asked one after the other, about different ones at once (NVML may be
/// called by any number of threads). The modules beside this say what becomes of those that hang, and when NVML is open.
#[derive(Debug)]
pub struct Backend {
    calls: Calls,
    library: Arc<Library>,
    sysfs: PathBuf,
    /// What each GPU last said of itself, by UUID. A GPU that is silent stays where it is among its NVLink neighbours: without
    /// it the groups of all others would be made anew.
    said: Mutex<BTreeMap<String, Facts>>,
    pairs: Mutex<Pairs>,
}

/// NVML is closed until this is dropped.
#[derive(Debug)]
#[must_use = "NVML is opened again when this is dropped"]
pub struct Released {
    library: Arc<Library>,
    briefly: bool,
}

impl Drop for Released {
    fn drop(&mut self) {
        self.library.let_open(self.briefly);
    }
}

impl Backend {
    /// NVML, which is opened with the first question.
    pub fn new(config: BackendConfig) -> Self {
        let BackendConfig {
            library,
            sysfs,
            proc,
            call_limit,
        } = config;
        Self {
            calls: Calls::new(call_limit),
            library: Arc::new(Library::new(library, proc)),
            sysfs,
            said: Mutex::default(),
            pairs: Mutex::default(),
        }
    }

    /// All GPUs. An error says that nothing is known of any of them now. They are asked one after the other: where nobody keeps
    /// them set up the driver does that with the first question, which takes seconds, and all at once would wait for each other.
    pub fn gpus(&self) -> Result<Listed, BackendError> {
        self.library.compare_with_kernel();
        let count = self.ask(Lane::Library, |session| Ok(session.nvml.device_count()?))?;
        let mut found: BTreeMap<String, (Facts, Option<BackendError>)> = BTreeMap::new();
        let mut unidentified = Vec::new();
        for index in 0..count {
            let known = self.library.uuid(index);
            let lane = known.clone().map_or(Lane::Index(index), Lane::Gpu);
            match self.ask(lane, move |session| identified(session, index)) {
                Ok(mut facts) => {
                    let before = self.said().get(&facts.uuid).cloned();
                    facts.keep_links(before.as_ref());
                    self.said().insert(facts.uuid.clone(), facts.clone());
                    facts.warn(before.as_ref());
                    found.insert(facts.uuid.clone(), (facts, None));
                }
                Err(BackendError::Gone(_)) => {
                    if let Some(uuid) = known {
                        self.said().remove(&uuid);
                    }
                }
                Err(error @ BackendError::Unavailable(_)) => return Err(error),
                Err(error) => match known.and_then(|uuid| self.said().get(&uuid).cloned()) {
                    Some(facts) => {
                        // One that is being changed is not silent: it is asked again by the next look.
                        let is_changed = matches!(error, BackendError::InUse(_));
                        let silent = (!is_changed).then_some(error);
                        found.insert(facts.uuid.clone(), (facts, silent));
                    }
                    None => unidentified.push(error),
                },
            }
        }
        let mut said = self.said();
        match unidentified.first() {
            // It may be any that was there before.
            Some(cause) => {
                for (uuid, facts) in &*said {
                    let silent = || (facts.clone(), Some(cause.clone()));
                    found.entry(uuid.clone()).or_insert_with(silent);
                }
            }
            None => said.retain(|uuid, _| found.contains_key(uuid)),
        }
        drop(said);
        self.find_hidden_peers(&mut found);
        Ok(Listed {
            gpus: self.assemble(found.into_values().collect()),
            unidentified,
        })
    }

    /// Processes with a compute, graphics or MPS context on a GPU, ascending; each with its GPU instance, if it has one.
    pub fn processes(&self, uuid: &str) -> Result<Vec<Process>, BackendError> {
        // A library of another version that says that nobody is there would have a GPU in use given away.
        self.library.compare_with_kernel();
        self.find(uuid)?;
        let lane = Lane::Gpu(uuid.to_owned());
        let uuid = uuid.to_owned();
        self.ask(lane, move |session| processes(session, &uuid))
    }

    /// The number by which NVML, and with it NVIDIA's programs, name a GPU now. It says nothing in another boot, nor of a GPU's device.
    pub fn index(&self, uuid: &str) -> Result<u32, BackendError> {
        self.find(uuid)?;
        let lane = Lane::Gpu(uuid.to_owned());
        let uuid = uuid.to_owned();
        self.ask(lane, move |session| {
            // It is still that GPU's.
            let _device = session.device(&uuid)?;
            session.index(&uuid)
        })
    }

    /// Closes NVML, so that the kernel's module can be unloaded and a GPU be reset, and keeps it closed until what is returned is
    /// dropped; `cause` is what questions are told meanwhile. An error says that a call is stuck in it, or did not end in time: then
    /// it is not closed, and not kept from being opened again either.
    pub fn release(&self, cause: &str) -> Result<Released, BackendError> {
        self.close(cause, false)
    }

    /// The same; `briefly`: for a moment, for which other questions wait.
    fn close(&self, cause: &str, briefly: bool) -> Result<Released, BackendError> {
        self.library.hold_closed(cause, briefly);
        let released = Released {
            library: Arc::clone(&self.library),
            briefly,
        };
        self.calls.settle();
        let library = Arc::clone(&self.library);
        let is_closed = self.calls.run(Lane::Library, move || {
            library.close_retired();
            library.is_closed()
        })?;
        is_closed
            .then_some(released)
            .ok_or(BackendError::Unresponsive)
    }

    /// How NVML stands.
    pub fn status(&self) -> LibraryStatus {
        self.library.status(self.calls.stuck())
    }

    fn ask<Answer: Send + 'static>(
        &self,
        lane: Lane,
        question: impl FnOnce(&Session) -> Result<Answer, BackendError> + Send + 'static,
    ) -> Result<Answer, BackendError> {
        self.ask_within(lane, self.calls.limit(), question)
    }

    /// Asks a question that may take this long, once it is its turn.
    fn ask_within<Answer: Send + 'static>(
        &self,
        lane: Lane,
        limit: Duration,
        question: impl FnOnce(&Session) -> Result<Answer, BackendError> + Send + 'static,
    ) -> Result<Answer, BackendError> {
        self.library.wait_while_briefly_closed(limit);
        if !self.library.is_open()? {
            let library = Arc::clone(&self.library);
            self.calls.run(Lane::Library, move || library.open())??;
        }
        let library = Arc::clone(&self.library);
        self.calls
            .run_within(lane, limit, move || library.ask(question))?
    }

    /// Finds out which index a GPU has, if that is not known. Each is asked in its own lane, so that none waits in that of another.
    /// A GPU is gone only if each of the others says that it is another, or is lost. Where many hang it gives up early: whoever asks
    /// may hold a lock, and the list of GPUs is made meanwhile.
    fn find(&self, uuid: &str) -> Result<(), BackendError> {
        if self.library.knows(uuid) {
            return Ok(());
        }
        let count = self.ask(Lane::Library, |session| Ok(session.nvml.device_count()?))?;
        let openings = self.status().openings;
        let deadline = Instant::now() + 2 * self.calls.limit();
        let mut unidentified = None;
        for index in 0..count {
            if Instant::now() >= deadline {
                return Err(BackendError::Unresponsive);
            }
            if self.library.uuid(index).is_none() {
                match self.ask(Lane::Index(index), move |session| named(session, index)) {
                    Ok(()) | Err(BackendError::Gone(_)) => {}
                    Err(error @ BackendError::Unavailable(_)) => return Err(error),
                    Err(error) => unidentified = Some(error),
                }
            }
            if self.library.knows(uuid) {
                return Ok(());
            }
        }
        // Each opening numbers them anew: half of each says nothing.
        if self.status().openings != openings {
            return Err(BackendError::Failed(
                "it was opened anew meanwhile".to_owned(),
            ));
        }
        Err(unidentified.unwrap_or_else(|| BackendError::Gone(uuid.to_owned())))
    }

    fn said(&self) -> MutexGuard<'_, BTreeMap<String, Facts>> {
        self.said.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn pairs(&self) -> MutexGuard<'_, Pairs> {
        self.pairs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn assemble(&self, mut found: Vec<(Facts, Option<BackendError>)>) -> Vec<ListedGpu> {
        found.sort_by(|(one, _), (other, _)| one.pci_bus_id.cmp(&other.pci_bus_id));
        let numbered = || (0_u32..).zip(found.iter().map(|(facts, _)| facts));
        let buses: BTreeMap<u32, String> = numbered()
            .map(|(index, facts)| (index, facts.pci_bus_id.clone()))
            .collect();
        let links: Vec<Link> = numbered()
            .flat_map(|(gpu, facts)| {
                facts.peers.iter().map(move |peer| Link {
                    gpu,
                    peer: peer.clone(),
                })
            })
            .collect();
        let groups = groups(&buses, &links);
        (0_u32..)
            .zip(found)
            .map(|(index, (facts, silent))| {
                let nvlink = groups.get(&index).copied();
                let nvlink = nvlink.unwrap_or_else(|| NvlinkGroups::alone(index));
                let gpu = facts.into_gpu(index, nvlink, &self.sysfs);
                ListedGpu { gpu, silent }
            })
            .collect()
    }
}

/// From now on it is known whose index this is.
fn named(session: &Session, index: u32) -> Result<(), BackendError> {
    let gone = |error| gone_or_failed(&format!("with index {index}"), error);
    let device = session.nvml.device_by_index(index).map_err(gone)?;
    session.identify(index, &device.uuid().map_err(gone)?);
    Ok(())
}

/// What the GPU with this index says, and from now on whose index it is.
fn identified(session: &Session, index: u32) -> Result<Facts, BackendError> {
    let facts = facts(&session.nvml, index)?;
    session.identify(index, &facts.uuid);
    Ok(facts)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_library_is_an_error_that_names_it() {
        let file = "/nonexistent-muster/libnvidia-ml.so.1".into();
        let backend = Backend::new(BackendConfig::new(LibrarySource::File(file)));
        let error = backend.gpus().unwrap_err();
        assert!(
            matches!(&error, BackendError::Unavailable(cause) if cause.contains("/nonexistent-muster")),
            "{error}"
        );
    }
}
