//! Compute instances: what a GPU instance can have, made, found, destroyed.

use std::ffi::c_uint;

use nvml_wrapper_sys::bindings::{
    NVML_COMPUTE_INSTANCE_ENGINE_PROFILE_COUNT, NVML_COMPUTE_INSTANCE_PROFILE_COUNT,
    nvmlComputeInstance_t, nvmlComputeInstanceInfo_t, nvmlComputeInstancePlacement_t,
    nvmlComputeInstanceProfileInfo_t, nvmlComputeInstanceProfileInfo_v2_t,
    nvmlComputeInstanceProfileInfo_v3_t, nvmlGpuInstance_t,
};

use super::{
    characters, count, get,
    gpu_instances::{code, report_change},
    put, put_all, put_version,
};
use crate::{
    call::{Code, INVALID_ARGUMENT, NOT_FOUND, NOT_SUPPORTED},
    handle::{Handle, Kind},
    machine::{Machine, Slice, find},
    mig::{self, ComputeProfile, Profile, Table},
    state::{GpuInstance, Placement},
};

impl Machine {
    /// A GPU instance with its table and its profile.
    fn instance_and_profile(
        &self,
        gpu: &str,
        id: u32,
    ) -> Result<(&'static Table, &'static Profile, &GpuInstance), Code> {
        let (table, card) = self.in_mig_mode(gpu)?;
        let instance = find(card, id).ok_or(INVALID_ARGUMENT)?;
        let profile = table.profile(instance.profile).ok_or(INVALID_ARGUMENT)?;
        Ok((table, profile, instance))
    }

    /// The compute profile with this enumerator in a GPU instance, and the profile of that.
    fn compute_profile(
        &self,
        instance: nvmlGpuInstance_t,
        enumerator: c_uint,
        engines: c_uint,
    ) -> Result<(&'static Profile, ComputeProfile), Code> {
        let (handle, gpu) = self.gpu_instance(instance)?;
        if enumerator >= NVML_COMPUTE_INSTANCE_PROFILE_COUNT
            || engines >= NVML_COMPUTE_INSTANCE_ENGINE_PROFILE_COUNT
        {
            return Err(INVALID_ARGUMENT);
        }
        let (_, profile, _) = self.instance_and_profile(&gpu, handle.gpu_instance)?;
        let compute = profile.compute_profile(enumerator).ok_or(NOT_SUPPORTED)?;
        Ok((profile, compute))
    }
}

export! {
    fn nvmlGpuInstanceGetComputeInstanceProfileInfo(
        instance: nvmlGpuInstance_t,
        enumerator: c_uint,
        engines: c_uint,
        info: *mut nvmlComputeInstanceProfileInfo_t,
    ) {
        let (profile, compute) = Machine::now()?.compute_profile(instance, enumerator, engines)?;
        put(info, nvmlComputeInstanceProfileInfo_t {
            id: compute.id,
            sliceCount: compute.slices,
            instanceCount: count(compute.placements(profile.compute_slices).len())?,
            multiprocessorCount: profile.multiprocessors_of(compute.slices),
            sharedCopyEngineCount: profile.engines.copy,
            sharedDecoderCount: profile.engines.decoders,
            sharedEncoderCount: 0,
            sharedJpegCount: profile.engines.jpeg,
            sharedOfaCount: profile.engines.optical_flow,
        })
    }

    fn nvmlGpuInstanceGetComputeInstanceProfileInfoV(
        instance: nvmlGpuInstance_t,
        enumerator: c_uint,
        engines: c_uint,
        info: *mut nvmlComputeInstanceProfileInfo_v2_t,
    ) {
        let (profile, compute) = Machine::now()?.compute_profile(instance, enumerator, engines)?;
        let instances = count(compute.placements(profile.compute_slices).len())?;
        let second = |version| nvmlComputeInstanceProfileInfo_v2_t {
            version,
            id: compute.id,
            sliceCount: compute.slices,
            instanceCount: instances,
            multiprocessorCount: profile.multiprocessors_of(compute.slices),
            sharedCopyEngineCount: profile.engines.copy,
            sharedDecoderCount: profile.engines.decoders,
            sharedEncoderCount: 0,
            sharedJpegCount: profile.engines.jpeg,
            sharedOfaCount: profile.engines.optical_flow,
            name: characters(&profile.nvml_compute_name(compute.slices)),
        };
        let third = |version| nvmlComputeInstanceProfileInfo_v3_t {
            version,
            id: compute.id,
            sliceCount: compute.slices,
            instanceCount: instances,
            multiprocessorCount: profile.multiprocessors_of(compute.slices),
            sharedCopyEngineCount: profile.engines.copy,
            sharedDecoderCount: profile.engines.decoders,
            sharedEncoderCount: 0,
            sharedJpegCount: profile.engines.jpeg,
            sharedOfaCount: profile.engines.optical_flow,
            name: characters(&profile.nvml_compute_name(compute.slices)),
            capabilities: 0,
        };
        put_version(info.cast(), (2, second), (3, third))
    }

    fn nvmlGpuInstanceGetComputeInstanceRemainingCapacity(
        instance: nvmlGpuInstance_t, profile: c_uint, number: *mut c_uint,
    ) {
        let machine = Machine::now()?;
        let (handle, gpu) = machine.gpu_instance(instance)?;
        let (table, _, instance) = machine.instance_and_profile(&gpu, handle.gpu_instance)?;
        put(number, mig::remaining_compute(table, instance, profile).map_err(code)?)
    }

    // By two calls: the first one, without room, asks how many there are.
    fn nvmlGpuInstanceGetComputeInstancePossiblePlacements(
        instance: nvmlGpuInstance_t,
        profile: c_uint,
        placements: *mut nvmlComputeInstancePlacement_t,
        number: *mut c_uint,
    ) {
        let (profile, compute) = Machine::now()?.compute_profile(instance, profile, 0)?;
        let places = compute.placements(profile.compute_slices);
        put(number, count(places.len())?)?;
        if placements.is_null() {
            return Ok(());
        }
        let in_c = |Placement { start, size }| nvmlComputeInstancePlacement_t { start, size };
        put_all(placements, places.into_iter().map(in_c))
    }

    fn nvmlGpuInstanceCreateComputeInstance(
        instance: nvmlGpuInstance_t, profile: c_uint, compute: *mut nvmlComputeInstance_t,
    ) {
        create(instance, profile, None, compute)
    }

    fn nvmlGpuInstanceCreateComputeInstanceWithPlacement(
        instance: nvmlGpuInstance_t,
        profile: c_uint,
        placement: *const nvmlComputeInstancePlacement_t,
        compute: *mut nvmlComputeInstance_t,
    ) {
        let nvmlComputeInstancePlacement_t { start, size } = get(placement)?;
        create(instance, profile, Some(Placement { start, size }), compute)
    }

    fn nvmlComputeInstanceDestroy(instance: nvmlComputeInstance_t) {
        let machine = Machine::now()?;
        let (handle, gpu) = machine.compute_instance(instance)?;
        let slice = Slice {
            gpu_instance: handle.gpu_instance,
            compute_instance: handle.compute_instance,
        };
        machine.change(|machine| {
            let is_used = machine.is_used(handle.position, &gpu, |one| one == Some(slice));
            let card = machine.state.card(&gpu);
            let Slice { gpu_instance, compute_instance } = slice;
            mig::destroy_compute_instance(card, gpu_instance, compute_instance, is_used).map_err(code)?;
            report_change(&mut machine.state, &gpu);
            Ok(())
        })
    }

    fn nvmlGpuInstanceGetComputeInstances(
        instance: nvmlGpuInstance_t,
        profile: c_uint,
        instances: *mut nvmlComputeInstance_t,
        number: *mut c_uint,
    ) {
        let machine = Machine::now()?;
        let (gpu_instance, gpu) = machine.gpu_instance(instance)?;
        let (_, _, instance) = machine.instance_and_profile(&gpu, gpu_instance.gpu_instance)?;
        let of_profile = instance.compute_instances.iter().filter(|one| one.profile == profile);
        let handles: Vec<nvmlComputeInstance_t> = of_profile
            .map(|one| handle(gpu_instance, one.id).pointer())
            .collect();
        put(number, count(handles.len())?)?;
        put_all(instances, handles)
    }

    fn nvmlGpuInstanceGetComputeInstanceById(
        instance: nvmlGpuInstance_t, id: c_uint, compute: *mut nvmlComputeInstance_t,
    ) {
        let machine = Machine::now()?;
        let (gpu_instance, gpu) = machine.gpu_instance(instance)?;
        let slice = Slice { gpu_instance: gpu_instance.gpu_instance, compute_instance: id };
        machine.slice(&gpu, slice).ok_or(NOT_FOUND)?;
        put(compute, handle(gpu_instance, id).pointer())
    }

    fn nvmlComputeInstanceGetInfo(instance: nvmlComputeInstance_t, info: *mut nvmlComputeInstanceInfo_t) {
        put_info(instance, info, false)
    }

    fn nvmlComputeInstanceGetInfo_v2(instance: nvmlComputeInstance_t, info: *mut nvmlComputeInstanceInfo_t) {
        put_info(instance, info, true)
    }
}

fn create(
    instance: nvmlGpuInstance_t,
    profile: c_uint,
    placement: Option<Placement>,
    compute: *mut nvmlComputeInstance_t,
) -> Result<(), Code> {
    if compute.is_null() {
        return Err(INVALID_ARGUMENT);
    }
    let machine = Machine::now()?;
    let (gpu_instance, gpu) = machine.gpu_instance(instance)?;
    let id = machine.change(|machine| {
        let table = machine.in_mig_mode(&gpu)?.0;
        let card = machine.state.card(&gpu);
        let within = gpu_instance.gpu_instance;
        let made = mig::create_compute_instance(table, card, within, profile, placement);
        let id = made.map_err(code)?;
        report_change(&mut machine.state, &gpu);
        Ok(id)
    })?;
    put(compute, handle(gpu_instance, id).pointer())
}

/// The handle of the MIG device is in version 2 of the function only: before it was that of the GPU.
fn put_info(
    instance: nvmlComputeInstance_t,
    info: *mut nvmlComputeInstanceInfo_t,
    has_mig_device: bool,
) -> Result<(), Code> {
    let machine = Machine::now()?;
    let (handle, gpu) = machine.compute_instance(instance)?;
    let slice = Slice {
        gpu_instance: handle.gpu_instance,
        compute_instance: handle.compute_instance,
    };
    let (_, _, part) = machine.slice(&gpu, slice).ok_or(INVALID_ARGUMENT)?;
    let device = if has_mig_device {
        slice.handle(handle.position)
    } else {
        Handle::gpu(handle.position)
    };
    let gpu_instance = Handle {
        kind: Kind::GpuInstance,
        compute_instance: 0,
        ..handle
    };
    let Placement { start, size } = part.placement;
    let filled = nvmlComputeInstanceInfo_t {
        device: device.pointer(),
        gpuInstance: gpu_instance.pointer(),
        id: part.id,
        profileId: part.profile,
        placement: nvmlComputeInstancePlacement_t { start, size },
    };
    put(info, filled)
}

fn handle(gpu_instance: Handle, compute_instance: u32) -> Handle {
    Handle {
        kind: Kind::ComputeInstance,
        compute_instance,
        ..gpu_instance
    }
}
