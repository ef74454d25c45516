//! MIG mode, and MIG devices: what programs see of a compute instance in its GPU instance.

use std::ffi::c_uint;

use nvml_wrapper_sys::bindings::{
    NVML_DEVICE_MIG_DISABLE, NVML_DEVICE_MIG_ENABLE, nvmlDevice_t, nvmlDeviceAttributes_t,
    nvmlReturn_t,
};

use super::{gpu_instances::report_change, put};
use crate::{
    call::{Code, IN_USE, INVALID_ARGUMENT, NOT_FOUND, NOT_SUPPORTED, RESET_REQUIRED, SUCCESS},
    handle::Handle,
    machine::{Machine, Slice, Target},
    mig::{self, Activation, Reset},
};

impl Machine {
    /// A handle that must be that of a MIG device.
    fn mig_device(&self, device: nvmlDevice_t) -> Result<(Target, Slice), Code> {
        let target = self.target(device)?;
        let slice = target.slice.ok_or(INVALID_ARGUMENT)?;
        Ok((target, slice))
    }
}

export! {
    fn nvmlDeviceGetMigMode(device: nvmlDevice_t, current: *mut c_uint, pending: *mut c_uint) {
        let machine = Machine::now()?;
        let target = machine.whole(device)?;
        machine.board.mig_table().ok_or(NOT_SUPPORTED)?;
        let card = machine.card(&target.gpu);
        let mode = |is_on| if is_on { NVML_DEVICE_MIG_ENABLE } else { NVML_DEVICE_MIG_DISABLE };
        put(current, mode(card.is_some_and(|card| card.mig_current)))?;
        put(pending, mode(card.is_some_and(|card| card.mig_pending)))
    }

    // Success says that the mode is pending; whether it is current says `status`.
    fn nvmlDeviceSetMigMode(device: nvmlDevice_t, mode: c_uint, status: *mut nvmlReturn_t) {
        let machine = Machine::now()?;
        let target = machine.whole(device)?;
        machine.board.mig_table().ok_or(NOT_SUPPORTED)?;
        let is_on = match mode {
            NVML_DEVICE_MIG_DISABLE => false,
            NVML_DEVICE_MIG_ENABLE => true,
            _ => return Err(INVALID_ARGUMENT),
        };
        if status.is_null() {
            return Err(INVALID_ARGUMENT);
        }
        let activation = machine.change(|machine| {
            let reset = match (machine.board.needs_reset_for_mig(), machine.state.cannot_reset) {
                (false, _) => Reset::NotNeeded,
                (true, false) => Reset::Done,
                (true, true) => Reset::Impossible,
            };
            let is_used = machine.is_used(target.position, &target.gpu, |_| true);
            let activation = mig::set_mode(machine.state.card(&target.gpu), is_on, reset, is_used);
            report_change(&mut machine.state, &target.gpu);
            Ok(activation)
        })?;
        put(status, match activation {
            Activation::Done => SUCCESS,
            Activation::InUse => IN_USE,
            Activation::ResetRequired => RESET_REQUIRED,
        })
    }

    fn nvmlDeviceIsMigDeviceHandle(device: nvmlDevice_t, is_mig: *mut c_uint) {
        put(is_mig, c_uint::from(Machine::now()?.target(device)?.slice.is_some()))
    }

    fn nvmlDeviceGetGpuInstanceId(device: nvmlDevice_t, id: *mut c_uint) {
        put(id, Machine::now()?.mig_device(device)?.1.gpu_instance)
    }

    fn nvmlDeviceGetComputeInstanceId(device: nvmlDevice_t, id: *mut c_uint) {
        put(id, Machine::now()?.mig_device(device)?.1.compute_instance)
    }

    // None where the GPU is not in MIG mode, or has none.
    fn nvmlDeviceGetMaxMigDeviceCount(device: nvmlDevice_t, number: *mut c_uint) {
        let machine = Machine::now()?;
        let target = machine.whole(device)?;
        let in_mode = machine.in_mig_mode(&target.gpu);
        put(number, in_mode.map_or(0, |(table, _)| table.most_devices()))
    }

    fn nvmlDeviceGetMigDeviceHandleByIndex(device: nvmlDevice_t, index: c_uint, mig: *mut nvmlDevice_t) {
        let machine = Machine::now()?;
        let target = machine.whole(device)?;
        let (table, _) = machine.in_mig_mode(&target.gpu)?;
        if index >= table.most_devices() {
            return Err(INVALID_ARGUMENT);
        }
        let index = usize::try_from(index).map_err(|_| INVALID_ARGUMENT)?;
        let slices = machine.slices(&target.gpu);
        let (slice, _) = slices.get(index).ok_or(NOT_FOUND)?;
        put(mig, slice.handle(target.position).pointer())
    }

    fn nvmlDeviceGetDeviceHandleFromMigDeviceHandle(mig: nvmlDevice_t, device: *mut nvmlDevice_t) {
        let (target, _) = Machine::now()?.mig_device(mig)?;
        put(device, Handle::gpu(target.position).pointer())
    }

    // Of MIG devices only.
    fn nvmlDeviceGetAttributes_v2(device: nvmlDevice_t, attributes: *mut nvmlDeviceAttributes_t) {
        let machine = Machine::now()?;
        let target = machine.target(device)?;
        let slice = target.slice.ok_or(NOT_SUPPORTED)?;
        let (profile, _, part) = machine.slice(&target.gpu, slice).ok_or(INVALID_ARGUMENT)?;
        put(attributes, nvmlDeviceAttributes_t {
            multiprocessorCount: profile.multiprocessors_of(part.placement.size),
            sharedCopyEngineCount: profile.engines.copy,
            sharedDecoderCount: profile.engines.decoders,
            sharedEncoderCount: 0,
            sharedJpegCount: profile.engines.jpeg,
            sharedOfaCount: profile.engines.optical_flow,
            gpuInstanceSliceCount: profile.compute_slices,
            computeInstanceSliceCount: part.placement.size,
            memorySizeMB: profile.memory_mib,
        })
    }
}
