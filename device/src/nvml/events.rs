//! Events of NVML, waited for.
//!
//! Raw, because the wrapper (0.13.0) drops the numbers of instances, and knows none of the newer kinds.
//!
//! A set of events lives as long as the session that it was made in. Where NVML was closed in between, or a set broke, the next is a new
//! one, which begins with what comes after it was made: whoever waits is told ([`Heard::is_anew`]) and looks at the GPUs. Each GPU is
//! registered in its own lane, so that one that hangs keeps nobody from hearing of the others. A GPU that is lost ends the wait of
//! the whole set: the next set is made without it.
//!
//! A wait is a call like any other, so that NVML can be closed: it is to be short.

use std::{
    collections::{BTreeMap, BTreeSet},
    ffi::{c_uint, c_ulonglong},
    ptr,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use nvml_wrapper::error::{NvmlError, nvml_sym, nvml_try};
use nvml_wrapper_sys::bindings as raw;

use super::{Backend, BackendError, Lane, gone_or_failed, library::Session};
use crate::faults::{GpuEvent, GpuEventKind};

/// What is listened for, as far as the GPU has it.
const WANTED: c_ulonglong = (raw::nvmlEventTypeSingleBitEccError
    | raw::nvmlEventTypeDoubleBitEccError
    | raw::nvmlEventTypeXidCriticalError
    | raw::nvmlEventTypeSingleBitEccErrorStorm
    | raw::nvmlEventTypeDramRetirementEvent
    | raw::nvmlEventTypeDramRetirementFailure
    | raw::nvmlEventTypeNonFatalPoisonError
    | raw::nvmlEventTypeFatalPoisonError
    | raw::nvmlEventTypeGpuUnavailableError
    | raw::nvmlEventTypeGpuRecoveryAction) as c_ulonglong;
/// What an event has as its ids where it is about no slice.
const NO_SLICE: c_uint = c_uint::MAX;
/// Most events of one wait: what is left is heard by the next.
const MOST_EVENTS: usize = 1_024;
/// After this long a wait takes no further events either: it is a call, and has its limit.
const MOST_TAKING: Duration = Duration::from_millis(250);
/// After this long a GPU that could not be registered is tried again.
const TRY_AGAIN: Duration = Duration::from_secs(5);

/// What was heard.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Heard {
    /// Events, in NVML's order. At most about a thousand; further ones are heard by the next wait.
    pub events: Vec<GpuEvent>,
    /// Whether it was listened anew from here on: what came before may not have been heard.
    pub is_anew: bool,
    /// Whether the wait broke off: nothing is heard until the next one, before which the caller had better pause.
    pub is_broken: bool,
    /// UUIDs of GPUs that fell off the bus, as far as they are known.
    pub lost: Vec<String>,
    /// GPUs that are not heard, by NVML's index, and why. They are tried again.
    pub unheard: Vec<(u32, BackendError)>,
}

/// The events of a session.
#[derive(Debug, Default)]
pub(super) struct Events {
    listening: Mutex<Listening>,
}

#[derive(Debug, Default)]
struct Listening {
    set: Option<Arc<EventSet>>,
    /// UUIDs of the GPUs that are registered, by their handles.
    names: BTreeMap<usize, String>,
    registered: BTreeSet<u32>,
    tried: BTreeMap<u32, Instant>,
}

/// A set of events. Held by its session, and by calls that hold that: the library is loaded and initialised when it is dropped.
#[derive(Debug)]
struct EventSet {
    handle: raw::nvmlEventSet_t,
    free: unsafe extern "C" fn(raw::nvmlEventSet_t) -> raw::nvmlReturn_t,
}

// SAFETY: NVML may be called by any number of threads, with any of its handles.
unsafe impl Send for EventSet {}
// SAFETY: as before.
unsafe impl Sync for EventSet {}

impl Drop for EventSet {
    fn drop(&mut self) {
        // SAFETY: the set is of the library that the function is of, which is loaded as said above, and nobody waits for it any more:
        // whoever does holds it. What fails leaves a set that the library frees when it is shut down.
        let _ = unsafe { (self.free)(self.handle) };
    }
}

/// Where a wait begins.
struct Begun {
    is_anew: bool,
    /// Indices of the GPUs that are to be registered.
    due: Vec<u32>,
}

/// How it ended.
struct Waited {
    events: Vec<GpuEvent>,
    is_broken: bool,
}

impl Backend {
    /// Waits for events of all GPUs, at most that long, which is to be well below a second. To be called by one thread, which does
    /// nothing else. An error says that nothing is heard of any GPU now.
    pub fn wait_for_events(&self, longest: Duration) -> Result<Heard, BackendError> {
        let begun = self.ask(Lane::Events, |session| session.events.begin(session))?;
        let mut heard = Heard {
            is_anew: begun.is_anew,
            ..Heard::default()
        };
        for index in begun.due {
            let known = self.library.uuid(index);
            let lane = known.clone().map_or(Lane::Index(index), Lane::Gpu);
            match self.ask(lane, move |session| session.events.register(session, index)) {
                Ok(()) => {}
                Err(BackendError::Gone(_)) => heard.lost.extend(known),
                Err(error @ BackendError::Unavailable(_)) => return Err(error),
                Err(error) => heard.unheard.push((index, error)),
            }
        }
        let limit = longest.saturating_add(self.calls.limit());
        let waited = self.ask_within(Lane::Events, limit, move |session| {
            session.events.wait(session, longest)
        })?;
        heard.events = waited.events;
        heard.is_broken = waited.is_broken;
        Ok(heard)
    }
}

impl Events {
    fn listening(&self) -> MutexGuard<'_, Listening> {
        self.listening
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes a set, if there is none. Only calls of [`Lane::Events`] do, of which there is one at a time.
    fn begin(&self, session: &Session) -> Result<Begun, BackendError> {
        let count = session.nvml.device_count()?;
        let is_anew = self.listening().set.is_none();
        if is_anew {
            // It may hang, so nothing is locked.
            let set = Some(Arc::new(EventSet::new(session)?));
            *self.listening() = Listening {
                set,
                ..Listening::default()
            };
        }
        let now = Instant::now();
        let mut listening = self.listening();
        let due: Vec<u32> = (0..count)
            .filter(|index| {
                let tried = listening.tried.get(index);
                let is_due = tried.is_none_or(|at| now.duration_since(*at) >= TRY_AGAIN);
                is_due && !listening.registered.contains(index)
            })
            .collect();
        listening
            .tried
            .extend(due.iter().map(|index| (*index, now)));
        drop(listening);
        Ok(Begun { is_anew, due })
    }

    fn register(&self, session: &Session, index: u32) -> Result<(), BackendError> {
        let set = self.listening().set.clone();
        let Some(set) = set else {
            return Ok(());
        };
        let gone = |error| gone_or_failed(&format!("with index {index}"), error);
        let device = session.nvml.device_by_index(index).map_err(gone)?;
        let uuid = device.uuid().map_err(gone)?;
        session.identify(index, &uuid);
        let lib = session.nvml.lib();
        let supported = nvml_sym(lib.nvmlDeviceGetSupportedEventTypes.as_ref())?;
        let register = nvml_sym(lib.nvmlDeviceRegisterEvents.as_ref())?;
        let mut kinds = 0;
        // SAFETY: the handle is of this library, which is loaded and initialised as long as the session lives, and the pointer is to a
        // local of the type that the function writes.
        match nvml_try(unsafe { supported(device.handle(), &raw mut kinds) }) {
            Ok(()) => {}
            // It has no events.
            Err(NvmlError::NotSupported) => kinds = 0,
            Err(error) => return Err(gone(error)),
        }
        let wanted = kinds & WANTED;
        if wanted != 0 {
            // SAFETY: as before; the set is of the same library, and is not freed as long as `set` lives.
            let registered = unsafe { register(device.handle(), wanted, set.handle) };
            nvml_try(registered).map_err(gone)?;
        }
        // SAFETY: it is not called with, only remembered as a number.
        let handle = unsafe { device.handle() }.addr();
        let mut listening = self.listening();
        // Another set may have been made meanwhile, which knows nothing of it.
        if listening
            .set
            .as_ref()
            .is_some_and(|now| Arc::ptr_eq(now, &set))
        {
            listening.names.insert(handle, uuid);
            listening.registered.insert(index);
        }
        Ok(())
    }

    fn wait(&self, session: &Session, longest: Duration) -> Result<Waited, BackendError> {
        let mut waited = Waited {
            events: Vec::new(),
            is_broken: false,
        };
        let (set, names) = {
            let listening = self.listening();
            (listening.set.clone(), listening.names.clone())
        };
        // NVML was opened anew since it was begun.
        let Some(set) = set else {
            return Ok(waited);
        };
        let wait = nvml_sym(session.nvml.lib().nvmlEventSetWait_v2.as_ref())?;
        let mut milliseconds = c_uint::try_from(longest.as_millis()).unwrap_or(c_uint::MAX);
        let deadline = Instant::now() + longest.saturating_add(MOST_TAKING);
        for _ in 0..MOST_EVENTS {
            let mut data = raw::nvmlEventData_t {
                device: ptr::null_mut(),
                eventType: 0,
                eventData: 0,
                gpuInstanceId: NO_SLICE,
                computeInstanceId: NO_SLICE,
            };
            // SAFETY: the set is of this library and is not freed as long as `set` lives; the pointer is to a local of the type that
            // the function writes.
            match nvml_try(unsafe { wait(set.handle, &raw mut data, milliseconds) }) {
                Ok(()) => waited.events.extend(read(&data, &names)),
                Err(NvmlError::Timeout) => break,
                Err(error) => {
                    // A GPU that is lost ends the wait for all: the next set is made without it.
                    *self.listening() = Listening::default();
                    waited.is_broken = true;
                    let is_told = !waited.events.is_empty() || matches!(error, NvmlError::GpuLost);
                    if is_told {
                        break;
                    }
                    return Err(error.into());
                }
            }
            if Instant::now() >= deadline {
                break;
            }
            milliseconds = 0;
        }
        Ok(waited)
    }
}

impl EventSet {
    fn new(session: &Session) -> Result<Self, BackendError> {
        let lib = session.nvml.lib();
        let create = nvml_sym(lib.nvmlEventSetCreate.as_ref())?;
        let free = *nvml_sym(lib.nvmlEventSetFree.as_ref())?;
        let mut handle = ptr::null_mut();
        // SAFETY: the library is loaded and initialised as long as the session lives, and the pointer is to a local of the type that
        // the function writes.
        nvml_try(unsafe { create(&raw mut handle) })?;
        Ok(Self { handle, free })
    }
}

/// An event, if it is one that was asked for.
fn read(data: &raw::nvmlEventData_t, names: &BTreeMap<usize, String>) -> Option<GpuEvent> {
    let kind = match u32::try_from(data.eventType).ok()? {
        raw::nvmlEventTypeXidCriticalError => {
            // No XID has that many digits: what cannot be is none that is known.
            GpuEventKind::Xid(u32::try_from(data.eventData).unwrap_or(u32::MAX))
        }
        raw::nvmlEventTypeSingleBitEccError | raw::nvmlEventTypeSingleBitEccErrorStorm => {
            GpuEventKind::CorrectedEcc
        }
        raw::nvmlEventTypeDoubleBitEccError => GpuEventKind::DoubleBitEcc,
        raw::nvmlEventTypeDramRetirementEvent => GpuEventKind::RowRetired,
        raw::nvmlEventTypeDramRetirementFailure => GpuEventKind::RowRemapFailure,
        raw::nvmlEventTypeNonFatalPoisonError => GpuEventKind::ContainedPoison,
        raw::nvmlEventTypeFatalPoisonError => GpuEventKind::FatalPoison,
        raw::nvmlEventTypeGpuUnavailableError => GpuEventKind::Unavailable,
        raw::nvmlEventTypeGpuRecoveryAction => GpuEventKind::RecoveryAction,
        _ => return None,
    };
    let instance = |id: c_uint| (id != NO_SLICE).then_some(id);
    Some(GpuEvent {
        gpu: names.get(&data.device.addr()).cloned(),
        kind,
        gpu_instance: instance(data.gpuInstanceId),
        compute_instance: instance(data.computeInstanceId),
    })
}
