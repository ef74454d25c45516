//! Event sets. A set belongs to the process that made it, the events to the machine: each set reports those that come after it was
//! made, about the GPUs that were registered before they came, in their order, each once.

use std::{
    collections::BTreeMap,
    ffi::{c_uint, c_ulonglong},
    sync::{Mutex, MutexGuard, PoisonError},
    thread,
    time::{Duration, Instant},
};

use nvml_wrapper_sys::bindings::{
    nvmlDevice_t, nvmlEventData_t, nvmlEventMigConfigChange, nvmlEventSet_t, nvmlEventTypeAll,
};

use super::put;
use crate::{
    call::{Code, GPU_IS_LOST, INVALID_ARGUMENT, LOOK_EVERY, NOT_SUPPORTED, TIMEOUT},
    handle::Handle,
    machine::Machine,
    state::Event,
};

/// What an event has as its ids where it is about no slice.
const NO_SLICE: c_uint = c_uint::MAX;

/// The sets of this process, by handle.
static SETS: Mutex<Sets> = Mutex::new(Sets {
    sets: BTreeMap::new(),
    last: 0,
});

struct Sets {
    sets: BTreeMap<usize, Set>,
    /// The newest handle: none is given twice.
    last: usize,
}

struct Set {
    /// Sequence of the first event that it has not looked at.
    next: u64,
    registrations: Vec<Registration>,
}

struct Registration {
    /// UUID of the GPU.
    gpu: String,
    kinds: u64,
    /// Sequence of the first event that it is about.
    from: u64,
}

impl Set {
    /// The next event that it reports.
    fn take(&mut self, events: &[Event], next_event: u64) -> Option<Event> {
        // A file that was made anew counts anew.
        self.next = self.next.min(next_event);
        let is_mine = |event: &&Event| {
            event.sequence >= self.next
                && self.registrations.iter().any(|registration| {
                    registration.gpu == event.gpu
                        && registration.kinds & event.kind != 0
                        && event.sequence >= registration.from.min(next_event)
                })
        };
        let found = events.iter().find(is_mine).cloned();
        self.next = found
            .as_ref()
            .map_or(next_event, |event| event.sequence + 1);
        found
    }
}

fn sets() -> MutexGuard<'static, Sets> {
    SETS.lock().unwrap_or_else(PoisonError::into_inner)
}

export! {
    fn nvmlEventSetCreate(set: *mut nvmlEventSet_t) {
        let next = Machine::now()?.state.next_event;
        if set.is_null() {
            return Err(INVALID_ARGUMENT);
        }
        let mut sets = sets();
        sets.last += 1;
        let handle = sets.last;
        let registrations = Vec::new();
        sets.sets.insert(handle, Set { next, registrations });
        put(set, std::ptr::without_provenance_mut(handle))
    }

    fn nvmlEventSetFree(set: nvmlEventSet_t) {
        Machine::now()?;
        sets().sets.remove(&set.addr()).map(drop).ok_or(INVALID_ARGUMENT)
    }

    fn nvmlDeviceGetSupportedEventTypes(device: nvmlDevice_t, kinds: *mut c_ulonglong) {
        let machine = Machine::now()?;
        machine.whole(device)?;
        put(kinds, machine.event_kinds())
    }

    fn nvmlDeviceRegisterEvents(device: nvmlDevice_t, kinds: c_ulonglong, set: nvmlEventSet_t) {
        let machine = Machine::now()?;
        let target = machine.whole(device)?;
        if kinds & !u64::from(nvmlEventTypeAll) != 0 {
            return Err(INVALID_ARGUMENT);
        }
        if kinds & !machine.event_kinds() != 0 {
            return Err(NOT_SUPPORTED);
        }
        let mut sets = sets();
        let set = sets.sets.get_mut(&set.addr()).ok_or(INVALID_ARGUMENT)?;
        let from = machine.state.next_event;
        set.registrations.push(Registration { gpu: target.gpu, kinds, from });
        Ok(())
    }

    fn nvmlEventSetWait(set: nvmlEventSet_t, data: *mut nvmlEventData_t, milliseconds: c_uint) {
        // It has no ids of slices.
        let (machine, event) = wait(set, milliseconds)?;
        put(data, machine.event_data(&Event { gpu_instance: None, compute_instance: None, ..event }))
    }

    fn nvmlEventSetWait_v2(set: nvmlEventSet_t, data: *mut nvmlEventData_t, milliseconds: c_uint) {
        let (machine, event) = wait(set, milliseconds)?;
        put(data, machine.event_data(&event))
    }
}

/// Waits for the next event. Nothing is locked meanwhile: another thread may wait for the same set, change it, or free it.
fn wait(set: nvmlEventSet_t, milliseconds: c_uint) -> Result<(Machine, Event), Code> {
    let deadline = Instant::now() + Duration::from_millis(u64::from(milliseconds));
    loop {
        let machine = Machine::now()?;
        let mut sets = sets();
        let set = sets.sets.get_mut(&set.addr()).ok_or(INVALID_ARGUMENT)?;
        if let Some(event) = set.take(&machine.state.events, machine.state.next_event) {
            return Ok((machine, event));
        }
        let is_lost = |one: &Registration| machine.state.lost.contains(&one.gpu);
        if set.registrations.iter().any(is_lost) {
            return Err(GPU_IS_LOST);
        }
        drop(sets);
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(TIMEOUT);
        }
        thread::sleep(left.min(LOOK_EVERY));
    }
}

impl Machine {
    /// What GPUs of this board report.
    fn event_kinds(&self) -> u64 {
        let all = u64::from(nvmlEventTypeAll);
        if self.board.mig.is_some() {
            all
        } else {
            all & !u64::from(nvmlEventMigConfigChange)
        }
    }

    fn event_data(&self, event: &Event) -> nvmlEventData_t {
        let positions = 0..self.board.gpus.len();
        let mut of_gpu =
            positions.filter(|position| self.state.uuid(&self.board, *position) == event.gpu);
        let device = of_gpu
            .next()
            .map(|position| Handle::gpu(position).pointer());
        nvmlEventData_t {
            device: device.unwrap_or(std::ptr::null_mut()),
            eventType: event.kind,
            eventData: event.data,
            gpuInstanceId: event.gpu_instance.unwrap_or(NO_SLICE),
            computeInstanceId: event.compute_instance.unwrap_or(NO_SLICE),
        }
    }
}
