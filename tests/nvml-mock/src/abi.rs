//! The C functions. Names, types and return codes are those of `nvml.h`.
//!
//! A handle is the GPU's index plus one, cast to a pointer; it is never dereferenced.

use std::{
    cell::Cell,
    ffi::{CStr, c_char, c_int, c_uint, c_ulong, c_ulonglong},
    ptr::NonNull,
    sync::atomic::{AtomicUsize, Ordering},
    thread,
    time::Duration,
};

#[allow(clippy::wildcard_imports, reason = "forty names, each with its prefix")]
use nvml_wrapper_sys::bindings::*;

use crate::{
    board::{Board, Gpu},
    own_file, processes,
    state::{self, State},
};

type Code = nvmlReturn_t;

const SUCCESS: Code = nvmlReturn_enum_NVML_SUCCESS;
const UNINITIALIZED: Code = nvmlReturn_enum_NVML_ERROR_UNINITIALIZED;
const INVALID_ARGUMENT: Code = nvmlReturn_enum_NVML_ERROR_INVALID_ARGUMENT;
const NOT_SUPPORTED: Code = nvmlReturn_enum_NVML_ERROR_NOT_SUPPORTED;
const NOT_FOUND: Code = nvmlReturn_enum_NVML_ERROR_NOT_FOUND;
const INSUFFICIENT_SIZE: Code = nvmlReturn_enum_NVML_ERROR_INSUFFICIENT_SIZE;
const DRIVER_NOT_LOADED: Code = nvmlReturn_enum_NVML_ERROR_DRIVER_NOT_LOADED;
const GPU_IS_LOST: Code = nvmlReturn_enum_NVML_ERROR_GPU_IS_LOST;
const TIMEOUT: Code = nvmlReturn_enum_NVML_ERROR_TIMEOUT;
const VERSION_MISMATCH: Code = nvmlReturn_enum_NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
const LIB_RM_VERSION_MISMATCH: Code = nvmlReturn_enum_NVML_ERROR_LIB_RM_VERSION_MISMATCH;
const UNKNOWN: Code = nvmlReturn_enum_NVML_ERROR_UNKNOWN;

/// How often init was called more than shutdown.
static USERS: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    /// The function that this thread was called by.
    static FUNCTION: Cell<&'static str> = const { Cell::new("") };
}

/// How often a call that hangs looks whether it still does.
const LOOK_EVERY: Duration = Duration::from_millis(5);

/// The hardware at the moment of a call.
struct Machine {
    state: State,
    board: Board,
}

impl Machine {
    fn now() -> Result<Self, Code> {
        if USERS.load(Ordering::SeqCst) == 0 {
            return Err(UNINITIALIZED);
        }
        hang_about("");
        let (state, board) = state::load().map_err(|_| UNKNOWN)?;
        let machine = Self { state, board };
        machine.has_module()?;
        thread::sleep(Duration::from_millis(machine.state.delay_milliseconds));
        Ok(machine)
    }

    /// Whether the kernel has a module that this library is for.
    fn has_module(&self) -> Result<(), Code> {
        let loaded = &self.state.module_version;
        if self.state.unloaded {
            Err(DRIVER_NOT_LOADED)
        } else if loaded.is_empty() || loaded == self.driver_version() {
            Ok(())
        } else {
            Err(LIB_RM_VERSION_MISMATCH)
        }
    }

    /// The library's, which is the module's where it works at all.
    fn driver_version(&self) -> &str {
        own_file::version().unwrap_or(&self.board.driver_version)
    }

    fn uuid(&self, gpu: &Gpu) -> String {
        state::uuid(&self.state.seed, &gpu.pci_bus_id)
    }

    fn index(&self, device: nvmlDevice_t) -> Result<usize, Code> {
        let index = device.addr().checked_sub(1).ok_or(INVALID_ARGUMENT)?;
        let gpu = self.board.gpus.get(index).ok_or(INVALID_ARGUMENT)?;
        let uuid = self.uuid(gpu);
        hang_about(&uuid);
        if self.state.lost.contains(&uuid) {
            return Err(GPU_IS_LOST);
        }
        Ok(index)
    }

    fn gpu(&self, device: nvmlDevice_t) -> Result<&Gpu, Code> {
        let index = self.index(device)?;
        self.board.gpus.get(index).ok_or(INVALID_ARGUMENT)
    }

    fn handle(index: usize) -> nvmlDevice_t {
        std::ptr::without_provenance_mut(index + 1)
    }
}

fn code(result: Result<(), Code>) -> Code {
    result.err().unwrap_or(SUCCESS)
}

/// Stores a value where the caller wants it.
fn put<T>(target: *mut T, value: T) -> Result<(), Code> {
    let target = NonNull::new(target).ok_or(INVALID_ARGUMENT)?;
    // SAFETY: by contract of every caller of NVML, a pointer argument that is not null points to a writable
    // value of its type.
    unsafe { target.write(value) };
    Ok(())
}

/// Stores a text with its closing zero.
fn put_text(target: *mut c_char, capacity: c_uint, text: &str) -> Result<(), Code> {
    let capacity = usize::try_from(capacity).map_err(|_| INVALID_ARGUMENT)?;
    if target.is_null() {
        return Err(INVALID_ARGUMENT);
    }
    if text.len() >= capacity {
        return Err(INSUFFICIENT_SIZE);
    }
    // SAFETY: the caller says that `capacity` bytes may be written, and the text with its zero is no longer.
    unsafe {
        std::ptr::copy_nonoverlapping(text.as_ptr().cast(), target, text.len());
        target.add(text.len()).write(0);
    }
    Ok(())
}

fn text<'a>(source: *const c_char) -> Result<&'a str, Code> {
    if source.is_null() {
        return Err(INVALID_ARGUMENT);
    }
    // SAFETY: by contract of NVML a text argument is closed by a zero and outlives the call.
    let text = unsafe { CStr::from_ptr(source) };
    text.to_str().map_err(|_| INVALID_ARGUMENT)
}

/// `NVML_STRUCT_VERSION` of `nvml.h`: the size with the version in the highest byte.
fn struct_version<T>(version: u32) -> Option<u32> {
    Some(u32::try_from(size_of::<T>()).ok()? | (version << 24))
}

/// Does not return while the state file says that this call hangs.
fn hang_about(gpu: &str) {
    let hangs = || {
        let of_this = |(state, _): (State, Board)| {
            let mut hangs = state.hangs.iter();
            hangs.any(|hang| hang.is_of(FUNCTION.get(), gpu))
        };
        state::load().is_ok_and(of_this)
    };
    while hangs() {
        thread::sleep(LOOK_EVERY);
    }
}

fn begin() -> Result<(), Code> {
    hang_about("");
    let (state, board) = state::load().map_err(|_| DRIVER_NOT_LOADED)?;
    Machine { state, board }.has_module()?;
    USERS.fetch_add(1, Ordering::SeqCst);
    Ok(())
}

macro_rules! export {
    ($(fn $name:ident($($argument:ident: $type:ty),* $(,)?) $body:block)*) => {$(
        #[unsafe(no_mangle)]
        extern "C" fn $name($($argument: $type),*) -> Code {
            FUNCTION.set(stringify!($name));
            let body = || -> Result<(), Code> { $body };
            code(body())
        }
    )*};
}

// --- the library

export! {
    fn nvmlInit_v2() {
        begin()
    }

    fn nvmlInitWithFlags(_flags: c_uint) {
        begin()
    }

    fn nvmlShutdown() {
        hang_about("");
        let less = |users: usize| users.checked_sub(1);
        let before = USERS.fetch_update(Ordering::SeqCst, Ordering::SeqCst, less);
        before.map(drop).map_err(|_| UNINITIALIZED)
    }
}

#[unsafe(no_mangle)]
extern "C" fn nvmlErrorString(code: Code) -> *const c_char {
    let text = match code {
        SUCCESS => c"Success",
        UNINITIALIZED => c"Uninitialized",
        INVALID_ARGUMENT => c"Invalid Argument",
        NOT_SUPPORTED => c"Not Supported",
        NOT_FOUND => c"Not Found",
        INSUFFICIENT_SIZE => c"Insufficient Size",
        DRIVER_NOT_LOADED => c"Driver Not Loaded",
        GPU_IS_LOST => c"GPU is lost",
        TIMEOUT => c"Timeout",
        LIB_RM_VERSION_MISMATCH => c"RM has detected an NVML/RM version mismatch.",
        _ => c"Unknown Error",
    };
    text.as_ptr()
}

export! {
    fn nvmlSystemGetDriverVersion(version: *mut c_char, length: c_uint) {
        put_text(version, length, Machine::now()?.driver_version())
    }

    fn nvmlSystemGetNVMLVersion(version: *mut c_char, length: c_uint) {
        put_text(version, length, &format!("13.{}", Machine::now()?.driver_version()))
    }

    fn nvmlSystemGetCudaDriverVersion_v2(version: *mut c_int) {
        put(version, Machine::now()?.board.cuda_driver_version)
    }
}

// --- which GPUs

export! {
    fn nvmlDeviceGetCount_v2(count: *mut c_uint) {
        put(count, c_uint::try_from(Machine::now()?.board.gpus.len()).map_err(|_| UNKNOWN)?)
    }

    fn nvmlDeviceGetHandleByIndex_v2(index: c_uint, device: *mut nvmlDevice_t) {
        let handle = Machine::handle(usize::try_from(index).map_err(|_| INVALID_ARGUMENT)?);
        Machine::now()?.index(handle)?;
        put(device, handle)
    }

    fn nvmlDeviceGetHandleByUUID(uuid: *const c_char, device: *mut nvmlDevice_t) {
        let machine = Machine::now()?;
        let wanted = text(uuid)?;
        // Each is asked, as `nvml.h` allows: one that is lost, or hangs, stands before those after it.
        for position in 0..machine.board.gpus.len() {
            let handle = Machine::handle(position);
            if machine.uuid(machine.gpu(handle)?) == wanted {
                return put(device, handle);
            }
        }
        Err(NOT_FOUND)
    }

    fn nvmlDeviceGetHandleByPciBusId_v2(pci_bus_id: *const c_char, device: *mut nvmlDevice_t) {
        let machine = Machine::now()?;
        // The domain may be written with four or with eight digits.
        let wanted = text(pci_bus_id)?.to_ascii_uppercase();
        let found = machine.board.gpus.iter().position(|gpu| {
            gpu.pci_bus_id == wanted || gpu.pci_bus_id.strip_prefix("0000") == Some(&wanted)
        });
        let handle = Machine::handle(found.ok_or(NOT_FOUND)?);
        machine.index(handle)?;
        put(device, handle)
    }
}

// --- what each GPU is

export! {
    fn nvmlDeviceGetUUID(device: nvmlDevice_t, uuid: *mut c_char, length: c_uint) {
        let machine = Machine::now()?;
        put_text(uuid, length, &machine.uuid(machine.gpu(device)?))
    }

    fn nvmlDeviceGetName(device: nvmlDevice_t, name: *mut c_char, length: c_uint) {
        let machine = Machine::now()?;
        machine.index(device)?;
        put_text(name, length, &machine.board.product_name)
    }

    fn nvmlDeviceGetIndex(device: nvmlDevice_t, index: *mut c_uint) {
        put(index, c_uint::try_from(Machine::now()?.index(device)?).map_err(|_| UNKNOWN)?)
    }

    fn nvmlDeviceGetMinorNumber(device: nvmlDevice_t, minor: *mut c_uint) {
        put(minor, c_uint::try_from(Machine::now()?.index(device)?).map_err(|_| UNKNOWN)?)
    }

    fn nvmlDeviceGetArchitecture(device: nvmlDevice_t, architecture: *mut nvmlDeviceArchitecture_t) {
        let machine = Machine::now()?;
        machine.index(device)?;
        put(architecture, machine.board.architecture)
    }

    fn nvmlDeviceGetCudaComputeCapability(device: nvmlDevice_t, major: *mut c_int, minor: *mut c_int) {
        let machine = Machine::now()?;
        machine.index(device)?;
        put(major, machine.board.compute_capability.0)?;
        put(minor, machine.board.compute_capability.1)
    }

    fn nvmlDeviceGetPciInfo_v3(device: nvmlDevice_t, pci: *mut nvmlPciInfo_t) {
        let machine = Machine::now()?;
        let mut info = pci_info(&machine.gpu(device)?.pci_bus_id)?;
        info.pciDeviceId = machine.board.pci_device_id;
        info.pciSubSystemId = machine.board.pci_subsystem_id;
        put(pci, info)
    }

    fn nvmlDeviceGetMemoryInfo(device: nvmlDevice_t, memory: *mut nvmlMemory_t) {
        let machine = Machine::now()?;
        let used = machine.board.reserved_bytes.saturating_add(machine.used(device)?);
        let total = machine.board.memory_bytes;
        put(memory, nvmlMemory_t { total, free: total.saturating_sub(used), used })
    }

    fn nvmlDeviceGetMemoryInfo_v2(device: nvmlDevice_t, memory: *mut nvmlMemory_v2_t) {
        let machine = Machine::now()?;
        let used = machine.used(device)?;
        let pointer = NonNull::new(memory).ok_or(INVALID_ARGUMENT)?;
        // SAFETY: as `put`; the caller filled the version in.
        let version = unsafe { pointer.as_ref() }.version;
        if Some(version) != struct_version::<nvmlMemory_v2_t>(2) {
            return Err(VERSION_MISMATCH);
        }
        let (total, reserved) = (machine.board.memory_bytes, machine.board.reserved_bytes);
        let free = total.saturating_sub(reserved).saturating_sub(used);
        put(memory, nvmlMemory_v2_t { version, total, reserved, free, used })
    }

    // Only machines whose GPU memory is NUMA memory of the host have one (Grace Hopper).
    fn nvmlDeviceGetNumaNodeId(device: nvmlDevice_t, _node: *mut c_uint) {
        Machine::now()?.index(device)?;
        Err(NOT_SUPPORTED)
    }

    fn nvmlDeviceGetMemoryAffinity(
        device: nvmlDevice_t, size: c_uint, set: *mut c_ulong, _scope: nvmlAffinityScope_t,
    ) {
        let node = Machine::now()?.gpu(device)?.numa_node;
        if size == 0 {
            return Err(INSUFFICIENT_SIZE);
        }
        for word in 0..usize::try_from(size).map_err(|_| INVALID_ARGUMENT)? {
            let bits = if word == 0 { 1_u64.checked_shl(node).unwrap_or(0) } else { 0 };
            // SAFETY: the caller says that `size` words may be written.
            put(unsafe { set.add(word) }, bits)?;
        }
        Ok(())
    }

    fn nvmlDeviceGetMigMode(device: nvmlDevice_t, current: *mut c_uint, pending: *mut c_uint) {
        let machine = Machine::now()?;
        machine.index(device)?;
        if !machine.board.mig_capable {
            return Err(NOT_SUPPORTED);
        }
        put(current, NVML_DEVICE_MIG_DISABLE)?;
        put(pending, NVML_DEVICE_MIG_DISABLE)
    }
}

impl Machine {
    fn used(&self, device: nvmlDevice_t) -> Result<u64, Code> {
        let uuid = self.uuid(self.gpu(device)?);
        let of_gpu = self
            .state
            .processes
            .iter()
            .filter(|process| process.gpu == uuid);
        Ok(of_gpu.fold(0, |sum, process| process.used_bytes.saturating_add(sum)))
    }
}

/// `DDDDDDDD:BB:DD.F` in NVML's fields.
fn pci_info(pci_bus_id: &str) -> Result<nvmlPciInfo_t, Code> {
    let number = |from, to| {
        let digits = pci_bus_id.get(from..to).ok_or(UNKNOWN)?;
        u32::from_str_radix(digits, 16).map_err(|_| UNKNOWN)
    };
    Ok(nvmlPciInfo_t {
        busIdLegacy: characters(pci_bus_id.get(4..).ok_or(UNKNOWN)?),
        domain: number(0, 8)?,
        bus: number(9, 11)?,
        device: number(12, 14)?,
        pciDeviceId: 0,
        pciSubSystemId: 0,
        busId: characters(pci_bus_id),
    })
}

fn characters<const LENGTH: usize>(text: &str) -> [c_char; LENGTH] {
    let mut characters = [0; LENGTH];
    // The last one stays the closing zero.
    for (target, byte) in characters.iter_mut().take(LENGTH - 1).zip(text.bytes()) {
        *target = byte.cast_signed();
    }
    characters
}

// --- NVLink

impl Machine {
    /// PCI bus id of the switch at the other end of a link.
    fn switch(&self, device: nvmlDevice_t, link: c_uint) -> Result<&str, Code> {
        self.index(device)?;
        let nvlink = self.board.nvlink.as_ref().ok_or(NOT_SUPPORTED)?;
        if link >= nvlink.links_per_gpu {
            return Err(INVALID_ARGUMENT);
        }
        let position = usize::try_from(link).map_err(|_| INVALID_ARGUMENT)?;
        let switch = nvlink.switches.iter().cycle().nth(position);
        switch.map(String::as_str).ok_or(NOT_SUPPORTED)
    }
}

export! {
    fn nvmlDeviceGetNvLinkState(device: nvmlDevice_t, link: c_uint, active: *mut nvmlEnableState_t) {
        Machine::now()?.switch(device, link)?;
        put(active, nvmlEnableState_enum_NVML_FEATURE_ENABLED)
    }

    fn nvmlDeviceGetNvLinkRemotePciInfo_v2(device: nvmlDevice_t, link: c_uint, pci: *mut nvmlPciInfo_t) {
        put(pci, pci_info(Machine::now()?.switch(device, link)?)?)
    }

    fn nvmlDeviceGetNvLinkRemoteDeviceType(
        device: nvmlDevice_t, link: c_uint, kind: *mut nvmlIntNvLinkDeviceType_t,
    ) {
        Machine::now()?.switch(device, link)?;
        put(kind, nvmlIntNvLinkDeviceType_enum_NVML_NVLINK_DEVICE_TYPE_SWITCH)
    }

    // One machine under a fabric manager: set up, but no part of a multi-node domain (all zero).
    fn nvmlDeviceGetGpuFabricInfo(device: nvmlDevice_t, info: *mut nvmlGpuFabricInfo_t) {
        let machine = Machine::now()?;
        machine.index(device)?;
        if !machine.board.fabric_managed {
            return Err(NOT_SUPPORTED);
        }
        put(info, nvmlGpuFabricInfo_t {
            clusterUuid: [0; 16],
            status: SUCCESS,
            cliqueId: 0,
            state: NVML_GPU_FABRIC_STATE_COMPLETED.try_into().map_err(|_| UNKNOWN)?,
        })
    }
}

// --- processes

impl Machine {
    /// The UUID of a GPU of which there are lists of processes.
    fn has_lists(&self, device: nvmlDevice_t) -> Result<String, Code> {
        let uuid = self.uuid(self.gpu(device)?);
        if self.state.without_lists.contains(&uuid) {
            return Err(NOT_SUPPORTED);
        }
        Ok(uuid)
    }

    /// The list by NVML's two calls: with too little room only the size is told.
    fn list_processes(
        &self,
        device: nvmlDevice_t,
        count: *mut c_uint,
        infos: *mut nvmlProcessInfo_t,
    ) -> Result<(), Code> {
        let uuid = self.has_lists(device)?;
        if self.state.secretive.contains(&uuid) {
            return Err(UNKNOWN);
        }
        let listed = self.state.processes.iter();
        let mut processes: Vec<(u32, u64)> = listed
            .filter(|process| process.gpu == uuid)
            .map(|process| (process.pid, process.used_bytes))
            .collect();
        if !self.state.hides_given {
            processes.extend(processes::using(&uuid).into_iter().map(|pid| (pid, 0)));
        }
        let needed = c_uint::try_from(processes.len()).map_err(|_| UNKNOWN)?;
        let pointer = NonNull::new(count).ok_or(INVALID_ARGUMENT)?;
        // SAFETY: as `put`; the caller filled the room in.
        let room = unsafe { pointer.read() };
        put(count, needed)?;
        if room < needed {
            return Err(INSUFFICIENT_SIZE);
        }
        for (position, (pid, used_bytes)) in processes.into_iter().enumerate() {
            let info = nvmlProcessInfo_t {
                pid,
                usedGpuMemory: used_bytes,
                gpuInstanceId: u32::MAX,
                computeInstanceId: u32::MAX,
            };
            // SAFETY: the caller says that there is room for `room` entries, and `position` is below that.
            put(unsafe { infos.add(position) }, info)?;
        }
        Ok(())
    }
}

export! {
    fn nvmlDeviceGetComputeRunningProcesses_v3(
        device: nvmlDevice_t, count: *mut c_uint, infos: *mut nvmlProcessInfo_t,
    ) {
        Machine::now()?.list_processes(device, count, infos)
    }

    fn nvmlDeviceGetGraphicsRunningProcesses_v3(
        device: nvmlDevice_t, count: *mut c_uint, _infos: *mut nvmlProcessInfo_t,
    ) {
        Machine::now()?.has_lists(device)?;
        put(count, 0)
    }

    fn nvmlDeviceGetMPSComputeRunningProcesses_v3(
        device: nvmlDevice_t, count: *mut c_uint, _infos: *mut nvmlProcessInfo_t,
    ) {
        Machine::now()?.has_lists(device)?;
        put(count, 0)
    }
}

// --- events: there are none yet

export! {
    fn nvmlEventSetCreate(set: *mut nvmlEventSet_t) {
        Machine::now()?;
        put(set, std::ptr::without_provenance_mut(1))
    }

    fn nvmlEventSetFree(_set: nvmlEventSet_t) {
        Machine::now().map(|_| ())
    }

    fn nvmlDeviceGetSupportedEventTypes(device: nvmlDevice_t, types: *mut c_ulonglong) {
        Machine::now()?.index(device)?;
        put(types, 0)
    }

    fn nvmlDeviceRegisterEvents(device: nvmlDevice_t, types: c_ulonglong, _set: nvmlEventSet_t) {
        Machine::now()?.index(device)?;
        if types == 0 { Ok(()) } else { Err(NOT_SUPPORTED) }
    }

    fn nvmlEventSetWait_v2(_set: nvmlEventSet_t, _data: *mut nvmlEventData_t, milliseconds: c_uint) {
        Machine::now()?;
        thread::sleep(Duration::from_millis(u64::from(milliseconds)));
        Err(TIMEOUT)
    }
}
