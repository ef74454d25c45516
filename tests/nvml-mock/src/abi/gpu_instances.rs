//! GPU instances: made, found, destroyed.

use std::ffi::c_uint;

use nvml_wrapper_sys::bindings::{
    nvmlDevice_t, nvmlEventMigConfigChange, nvmlGpuInstance_t, nvmlGpuInstanceInfo_t,
    nvmlGpuInstancePlacement_t,
};

use super::{count, get, put, put_all};
use crate::{
    call::{Code, IN_USE, INSUFFICIENT_RESOURCES, INVALID_ARGUMENT, NOT_FOUND, NOT_SUPPORTED},
    handle::{Handle, Kind},
    machine::{Machine, find},
    mig::{self, Refusal},
    state::{Event, Placement, State},
};

/// What NVML returns for a refusal of the hardware.
pub(super) fn code(refusal: Refusal) -> Code {
    match refusal {
        Refusal::Invalid => INVALID_ARGUMENT,
        Refusal::Insufficient => INSUFFICIENT_RESOURCES,
        Refusal::InUse => IN_USE,
        Refusal::NotFound => NOT_FOUND,
    }
}

/// Those who listen hear that instances of a GPU were made or destroyed.
pub(super) fn report_change(state: &mut State, gpu: &str) {
    state.report(Event {
        gpu: gpu.to_owned(),
        kind: u64::from(nvmlEventMigConfigChange),
        ..Event::default()
    });
}

export! {
    fn nvmlDeviceCreateGpuInstance(device: nvmlDevice_t, profile: c_uint, instance: *mut nvmlGpuInstance_t) {
        create(device, profile, None, instance)
    }

    fn nvmlDeviceCreateGpuInstanceWithPlacement(
        device: nvmlDevice_t,
        profile: c_uint,
        placement: *const nvmlGpuInstancePlacement_t,
        instance: *mut nvmlGpuInstance_t,
    ) {
        let nvmlGpuInstancePlacement_t { start, size } = get(placement)?;
        create(device, profile, Some(Placement { start, size }), instance)
    }

    fn nvmlGpuInstanceDestroy(instance: nvmlGpuInstance_t) {
        let machine = Machine::now()?;
        let (handle, gpu) = machine.gpu_instance(instance)?;
        machine.change(|machine| {
            let is_used = machine.is_used(handle.position, &gpu, |slice| {
                slice.is_some_and(|slice| slice.gpu_instance == handle.gpu_instance)
            });
            let card = machine.state.card(&gpu);
            mig::destroy_gpu_instance(card, handle.gpu_instance, is_used).map_err(code)?;
            report_change(&mut machine.state, &gpu);
            Ok(())
        })
    }

    fn nvmlDeviceGetGpuInstances(
        device: nvmlDevice_t, profile: c_uint, instances: *mut nvmlGpuInstance_t, number: *mut c_uint,
    ) {
        let machine = Machine::now()?;
        let target = machine.whole(device)?;
        let (table, card) = machine.in_mig_mode(&target.gpu)?;
        table.profile(profile).ok_or(INVALID_ARGUMENT)?;
        let of_profile = card.gpu_instances.iter().filter(|instance| instance.profile == profile);
        let handles: Vec<nvmlGpuInstance_t> = of_profile
            .map(|instance| handle(target.position, instance.id).pointer())
            .collect();
        put(number, count(handles.len())?)?;
        put_all(instances, handles)
    }

    fn nvmlDeviceGetGpuInstanceById(device: nvmlDevice_t, id: c_uint, instance: *mut nvmlGpuInstance_t) {
        let machine = Machine::now()?;
        let target = machine.whole(device)?;
        let (_, card) = machine.in_mig_mode(&target.gpu)?;
        find(card, id).ok_or(NOT_FOUND)?;
        put(instance, handle(target.position, id).pointer())
    }

    fn nvmlGpuInstanceGetInfo(instance: nvmlGpuInstance_t, info: *mut nvmlGpuInstanceInfo_t) {
        let machine = Machine::now()?;
        let (handle, gpu) = machine.gpu_instance(instance)?;
        let (_, card) = machine.in_mig_mode(&gpu)?;
        let found = find(card, handle.gpu_instance).ok_or(INVALID_ARGUMENT)?;
        let Placement { start, size } = found.placement;
        put(info, nvmlGpuInstanceInfo_t {
            device: Handle::gpu(handle.position).pointer(),
            id: found.id,
            profileId: found.profile,
            placement: nvmlGpuInstancePlacement_t { start, size },
        })
    }
}

fn create(
    device: nvmlDevice_t,
    profile: c_uint,
    placement: Option<Placement>,
    instance: *mut nvmlGpuInstance_t,
) -> Result<(), Code> {
    if instance.is_null() {
        return Err(INVALID_ARGUMENT);
    }
    let machine = Machine::now()?;
    let target = machine.whole(device)?;
    if machine.board.mig_table().is_none() {
        return Err(NOT_SUPPORTED);
    }
    let id = machine.change(|machine| {
        let table = machine.in_mig_mode(&target.gpu)?.0;
        let card = machine.state.card(&target.gpu);
        let id = mig::create_gpu_instance(table, card, profile, placement).map_err(code)?;
        report_change(&mut machine.state, &target.gpu);
        Ok(id)
    })?;
    put(instance, handle(target.position, id).pointer())
}

fn handle(position: usize, gpu_instance: u32) -> Handle {
    Handle {
        kind: Kind::GpuInstance,
        position,
        gpu_instance,
        compute_instance: 0,
    }
}
