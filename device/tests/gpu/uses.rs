//! Whether NVML says who uses a GPU, by a program that does.

use std::{
    collections::BTreeSet,
    fs, thread,
    time::{Duration, Instant},
};

use muster_device::{Backend, Gpu, Process};
use nvidia_ml_mock::{GoneWith, ListedAs, RecordedUse};

use crate::{
    cuda::{HOLD, HOLDING, RELEASED},
    program::{Program, START_LIMIT},
};

/// Longest time until NVML lists what is there, or no longer lists what is not.
const LIST_LIMIT: Duration = Duration::from_secs(20);
/// The same where it may never come about.
pub(crate) const SHORT_LIMIT: Duration = Duration::from_secs(5);
/// Between two looks.
pub(crate) const PAUSE: Duration = Duration::from_millis(100);
/// The host's own namespace of processes (`PROC_PID_INIT_INO` of Linux).
const NAMESPACE_OF_THE_HOST: &str = "pid:[4026531836]";

/// Why there is nothing to say.
#[derive(Debug)]
pub(crate) enum Missing {
    /// There is no CUDA, or nothing of the GPU to use.
    Nothing(String),
    /// It did not work.
    Failed(String),
}

impl From<String> for Missing {
    fn from(cause: String) -> Self {
        Self::Failed(cause)
    }
}

/// Whether the host's process ids are ours, too.
pub(crate) fn is_on_the_host() -> bool {
    let namespace = fs::read_link("/proc/self/ns/pid");
    namespace.is_ok_and(|it| it.as_os_str() == NAMESPACE_OF_THE_HOST)
}

/// Has a program use this GPU, the one at this place, and looks at all of them meanwhile.
pub(crate) fn look(
    backend: &Backend,
    place: usize,
    gpu: &Gpu,
    all: &[&Gpu],
) -> Result<RecordedUse, Missing> {
    let visible = visible(backend, gpu)?;
    let before = listed(backend, gpu)?;
    let mut holder = Program::start(HOLD, &visible)?;
    holder.wait_for(HOLDING, START_LIMIT)?;
    let own = holder.id();
    let limit = if is_on_the_host() {
        LIST_LIMIT
    } else {
        SHORT_LIMIT
    };
    let mut added = Vec::new();
    eventually(limit, || {
        added = listed(backend, gpu)?.difference(&before).copied().collect();
        Ok(!added.is_empty())
    })?;
    let itself = added.iter().find(|process| process.pid == own);
    let found = itself.or_else(|| added.first()).copied();
    for other in all.iter().filter(|other| other.uuid != gpu.uuid) {
        let listed = listed(backend, other)?;
        if listed.iter().any(|process| process.pid == own) {
            let (used, wrong) = (&gpu.uuid, &other.uuid);
            let cause = format!("process {own} uses {used} and is listed with {wrong}");
            return Err(Missing::Failed(cause));
        }
    }
    let has_gone = || found.is_none_or(|it| !is_listed(backend, gpu, it));
    holder.go_on()?;
    holder.wait_for(RELEASED, LIST_LIMIT)?;
    let is_gone_early = eventually(SHORT_LIMIT, || Ok(has_gone()))?;
    drop(holder);
    let is_gone = eventually(LIST_LIMIT, || Ok(has_gone()))?;
    if !is_gone {
        let cause = format!(
            "a process that has ended is listed for more than {} s: {found:?}",
            LIST_LIMIT.as_secs()
        );
        return Err(Missing::Failed(cause));
    }
    Ok(RecordedUse {
        gpu: place,
        from_the_host: is_on_the_host(),
        listed: match (itself, found) {
            (Some(_), _) => ListedAs::Itself,
            (None, Some(_)) => ListedAs::Another,
            (None, None) => ListedAs::Nobody,
        },
        has_gpu_instance: found.is_some_and(|process| process.gpu_instance.is_some()),
        gone: match found {
            None => GoneWith::Nothing,
            Some(_) if is_gone_early => GoneWith::Context,
            Some(_) => GoneWith::Process,
        },
    })
}

/// What CUDA is to see: the GPU, or a slice of it where it is cut.
pub(crate) fn visible(backend: &Backend, gpu: &Gpu) -> Result<String, Missing> {
    if gpu.mig.as_ref().is_none_or(|mig| !mig.current) {
        return Ok(gpu.uuid.clone());
    }
    let slices = backend.mig_instances(&gpu.uuid);
    let slices = slices.map_err(|error| error.to_string())?;
    let uuid = slices.into_iter().find_map(|slice| slice.uuid);
    let nothing = || Missing::Nothing(format!("{} is in MIG mode, and has no slice", gpu.uuid));
    uuid.ok_or_else(nothing)
}

fn listed(backend: &Backend, gpu: &Gpu) -> Result<BTreeSet<Process>, String> {
    let processes = backend.processes(&gpu.uuid);
    let processes = processes.map_err(|error| format!("processes of {}: {error}", gpu.uuid))?;
    Ok(processes.into_iter().collect())
}

/// What cannot be listed now is taken for there: the next look may tell.
fn is_listed(backend: &Backend, gpu: &Gpu, process: Process) -> bool {
    match listed(backend, gpu) {
        Ok(listed) => listed.contains(&process),
        Err(_) => true,
    }
}

/// Looks until it holds: whether it did in time.
pub(crate) fn eventually(
    limit: Duration,
    mut holds: impl FnMut() -> Result<bool, String>,
) -> Result<bool, String> {
    let deadline = Instant::now() + limit;
    loop {
        if holds()? {
            return Ok(true);
        }
        if Instant::now() >= deadline {
            return Ok(false);
        }
        thread::sleep(PAUSE);
    }
}
