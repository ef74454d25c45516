//! Which processes are on a GPU. Each list has three versions, by the name of the function.

use std::ffi::{c_uint, c_ulonglong};

use nvml_wrapper_sys::bindings::{
    nvmlDevice_t, nvmlProcessInfo_t, nvmlProcessInfo_v1_t, nvmlProcessInfo_v2_t,
};

use super::{count, get, put, put_all};
use crate::{
    call::{Code, INSUFFICIENT_SIZE, NOT_SUPPORTED, UNKNOWN},
    machine::{Context, Machine, Running},
};

/// What a process has as its ids where it is on no slice.
const NO_SLICE: c_uint = c_uint::MAX;

/// An entry of the functions `…_v3` in early drivers of branch 535: longer than before and after.
#[repr(C)]
struct Early535 {
    pid: c_uint,
    used_bytes: c_ulonglong,
    gpu_instance: c_uint,
    compute_instance: c_uint,
    protected_bytes: c_ulonglong,
}

export! {
    fn nvmlDeviceGetComputeRunningProcesses(
        device: nvmlDevice_t, number: *mut c_uint, infos: *mut nvmlProcessInfo_v1_t,
    ) {
        list(&Machine::now()?, Context::Compute, device, number, infos, first)
    }

    fn nvmlDeviceGetComputeRunningProcesses_v2(
        device: nvmlDevice_t, number: *mut c_uint, infos: *mut nvmlProcessInfo_v2_t,
    ) {
        list(&Machine::now()?, Context::Compute, device, number, infos, second)
    }

    fn nvmlDeviceGetComputeRunningProcesses_v3(
        device: nvmlDevice_t, number: *mut c_uint, infos: *mut nvmlProcessInfo_t,
    ) {
        third(Context::Compute, device, number, infos)
    }

    fn nvmlDeviceGetGraphicsRunningProcesses(
        device: nvmlDevice_t, number: *mut c_uint, infos: *mut nvmlProcessInfo_v1_t,
    ) {
        list(&Machine::now()?, Context::Graphics, device, number, infos, first)
    }

    fn nvmlDeviceGetGraphicsRunningProcesses_v2(
        device: nvmlDevice_t, number: *mut c_uint, infos: *mut nvmlProcessInfo_v2_t,
    ) {
        list(&Machine::now()?, Context::Graphics, device, number, infos, second)
    }

    fn nvmlDeviceGetGraphicsRunningProcesses_v3(
        device: nvmlDevice_t, number: *mut c_uint, infos: *mut nvmlProcessInfo_t,
    ) {
        third(Context::Graphics, device, number, infos)
    }

    fn nvmlDeviceGetMPSComputeRunningProcesses(
        device: nvmlDevice_t, number: *mut c_uint, infos: *mut nvmlProcessInfo_v1_t,
    ) {
        list(&Machine::now()?, Context::Mps, device, number, infos, first)
    }

    fn nvmlDeviceGetMPSComputeRunningProcesses_v2(
        device: nvmlDevice_t, number: *mut c_uint, infos: *mut nvmlProcessInfo_v2_t,
    ) {
        list(&Machine::now()?, Context::Mps, device, number, infos, second)
    }

    fn nvmlDeviceGetMPSComputeRunningProcesses_v3(
        device: nvmlDevice_t, number: *mut c_uint, infos: *mut nvmlProcessInfo_t,
    ) {
        third(Context::Mps, device, number, infos)
    }
}

/// The list by NVML's two calls: with too little room only the size is told. A GPU lists the processes of its MIG devices, too; a
/// MIG device its own.
fn list<Entry>(
    machine: &Machine,
    context: Context,
    device: nvmlDevice_t,
    number: *mut c_uint,
    infos: *mut Entry,
    entry: impl Fn(Running) -> Entry,
) -> Result<(), Code> {
    let target = machine.target(device)?;
    if machine.state.without_lists.contains(&target.gpu) {
        return Err(NOT_SUPPORTED);
    }
    if machine.state.secretive.contains(&target.gpu) {
        return Err(UNKNOWN);
    }
    let mut running = machine.running(target.position, &target.gpu, context);
    running.retain(|process| target.slice.is_none() || process.slice == target.slice);
    let needed = count(running.len())?;
    let room = get(number)?;
    put(number, needed)?;
    if room < needed {
        return Err(INSUFFICIENT_SIZE);
    }
    put_all(infos, running.into_iter().map(entry))
}

fn first(process: Running) -> nvmlProcessInfo_v1_t {
    nvmlProcessInfo_v1_t {
        pid: process.pid,
        usedGpuMemory: process.used_bytes,
    }
}

fn second(process: Running) -> nvmlProcessInfo_v2_t {
    let (gpu_instance, compute_instance) = ids(process);
    nvmlProcessInfo_v2_t {
        pid: process.pid,
        usedGpuMemory: process.used_bytes,
        gpuInstanceId: gpu_instance,
        computeInstanceId: compute_instance,
    }
}

/// Entries are those of the second version, but in early drivers of branch 535.
fn third(
    context: Context,
    device: nvmlDevice_t,
    number: *mut c_uint,
    infos: *mut nvmlProcessInfo_t,
) -> Result<(), Code> {
    let machine = Machine::now()?;
    if !machine.state.has_early_535_lists {
        return list(&machine, context, device, number, infos, second);
    }
    let early = |process: Running| {
        let (gpu_instance, compute_instance) = ids(process);
        Early535 {
            pid: process.pid,
            used_bytes: process.used_bytes,
            gpu_instance,
            compute_instance,
            protected_bytes: 0,
        }
    };
    list(&machine, context, device, number, infos.cast(), early)
}

fn ids(process: Running) -> (c_uint, c_uint) {
    process.slice.map_or((NO_SLICE, NO_SLICE), |slice| {
        (slice.gpu_instance, slice.compute_instance)
    })
}
