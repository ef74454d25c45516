//! NVML's calls about instances, as functions. Safety: as [`super::card`] says.

use std::ptr;

use nvml_wrapper::{
    Device,
    error::{NvmlError, nvml_sym, nvml_try},
};
use nvml_wrapper_sys::bindings as raw;

use super::card::{Card, ROOM, list, placement};
use crate::mig::Placement;

/// What NVML gives where there is no instance.
const NO_INSTANCE: u32 = raw::INVALID_GPU_INSTANCE_ID;
/// Enumerators of profiles of compute instances; `nvml.h` of 580 has 8.
const COMPUTE_ENUMERATORS: u32 = 16;

/// A GPU instance, good for the question in which it was found.
#[derive(Clone, Copy, Debug)]
pub(super) struct GpuInstance(raw::nvmlGpuInstance_t);

/// A compute instance, good for the question in which it was found.
#[derive(Clone, Copy, Debug)]
pub(super) struct ComputeInstance(raw::nvmlComputeInstance_t);

/// What a GPU instance is.
#[derive(Clone, Copy, Debug)]
pub(super) struct GpuInstanceInfo {
    pub(super) id: u32,
    pub(super) profile: u32,
    pub(super) placement: Placement,
}

/// What a compute instance is.
#[derive(Clone, Copy, Debug)]
pub(super) struct ComputeInstanceInfo {
    pub(super) id: u32,
    /// The slice, with some drivers; with others the GPU.
    pub(super) device: raw::nvmlDevice_t,
}

/// A kind of compute instances in a GPU instance.
#[derive(Clone, Copy, Debug)]
pub(super) struct ComputeProfile {
    pub(super) enumerator: u32,
    pub(super) id: u32,
    pub(super) compute_slices: u32,
}

impl Card<'_> {
    /// The GPU instances of a profile.
    pub(super) fn gpu_instances(&self, profile: u32) -> Result<Vec<GpuInstance>, NvmlError> {
        let get = nvml_sym(self.lib().nvmlDeviceGetGpuInstances.as_ref())?;
        let listed = list(ptr::null_mut(), |instances, count| {
            // SAFETY: as above.
            unsafe { get(self.handle(), profile, instances, count) }
        })?;
        Ok(listed.into_iter().map(GpuInstance).collect())
    }

    pub(super) fn gpu_instance_info(
        &self,
        instance: GpuInstance,
    ) -> Result<GpuInstanceInfo, NvmlError> {
        let get = nvml_sym(self.lib().nvmlGpuInstanceGetInfo.as_ref())?;
        let mut info = raw::nvmlGpuInstanceInfo_t {
            device: ptr::null_mut(),
            id: NO_INSTANCE,
            profileId: raw::INVALID_GPU_INSTANCE_PROFILE_ID,
            placement: raw::nvmlGpuInstancePlacement_t { start: 0, size: 0 },
        };
        // SAFETY: as above.
        nvml_try(unsafe { get(instance.0, &raw mut info) })?;
        Ok(GpuInstanceInfo {
            id: info.id,
            profile: info.profileId,
            placement: placement(info.placement),
        })
    }

    pub(super) fn create_gpu_instance(
        &self,
        profile: u32,
        at: Placement,
    ) -> Result<GpuInstance, NvmlError> {
        let create = nvml_sym(self.lib().nvmlDeviceCreateGpuInstanceWithPlacement.as_ref())?;
        let at = raw::nvmlGpuInstancePlacement_t {
            start: at.start,
            size: at.size,
        };
        let mut instance = ptr::null_mut();
        // SAFETY: as above.
        nvml_try(unsafe { create(self.handle(), profile, &raw const at, &raw mut instance) })?;
        Ok(GpuInstance(instance))
    }

    pub(super) fn destroy_gpu_instance(&self, instance: GpuInstance) -> Result<(), NvmlError> {
        let destroy = nvml_sym(self.lib().nvmlGpuInstanceDestroy.as_ref())?;
        // SAFETY: as above.
        nvml_try(unsafe { destroy(instance.0) })
    }

    /// What compute instances may be made in a GPU instance.
    pub(super) fn compute_profiles(
        &self,
        instance: GpuInstance,
    ) -> Result<Vec<ComputeProfile>, NvmlError> {
        let get = nvml_sym(
            self.lib()
                .nvmlGpuInstanceGetComputeInstanceProfileInfo
                .as_ref(),
        )?;
        let mut profiles = Vec::new();
        for enumerator in 0..COMPUTE_ENUMERATORS {
            // SAFETY: it is made of numbers only.
            let mut info: raw::nvmlComputeInstanceProfileInfo_t = unsafe { std::mem::zeroed() };
            let engines = raw::NVML_COMPUTE_INSTANCE_ENGINE_PROFILE_SHARED;
            // SAFETY: as above.
            match nvml_try(unsafe { get(instance.0, enumerator, engines, &raw mut info) }) {
                Ok(()) => profiles.push(ComputeProfile {
                    enumerator,
                    id: info.id,
                    compute_slices: info.sliceCount,
                }),
                Err(NvmlError::NotSupported | NvmlError::InvalidArg) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(profiles)
    }

    /// The compute instances of a profile in a GPU instance.
    pub(super) fn compute_instances(
        &self,
        instance: GpuInstance,
        profile: u32,
    ) -> Result<Vec<ComputeInstance>, NvmlError> {
        let get = nvml_sym(self.lib().nvmlGpuInstanceGetComputeInstances.as_ref())?;
        let listed = list(ptr::null_mut(), |instances, count| {
            // SAFETY: as above.
            unsafe { get(instance.0, profile, instances, count) }
        })?;
        Ok(listed.into_iter().map(ComputeInstance).collect())
    }

    pub(super) fn compute_instance_info(
        &self,
        instance: ComputeInstance,
    ) -> Result<ComputeInstanceInfo, NvmlError> {
        let get = nvml_sym(self.lib().nvmlComputeInstanceGetInfo_v2.as_ref())?;
        let mut info = raw::nvmlComputeInstanceInfo_t {
            device: ptr::null_mut(),
            gpuInstance: ptr::null_mut(),
            id: NO_INSTANCE,
            profileId: raw::INVALID_GPU_INSTANCE_PROFILE_ID,
            placement: raw::nvmlComputeInstancePlacement_t { start: 0, size: 0 },
        };
        // SAFETY: as above.
        nvml_try(unsafe { get(instance.0, &raw mut info) })?;
        Ok(ComputeInstanceInfo {
            id: info.id,
            device: info.device,
        })
    }

    pub(super) fn create_compute_instance(
        &self,
        instance: GpuInstance,
        profile: u32,
    ) -> Result<ComputeInstance, NvmlError> {
        let create = nvml_sym(self.lib().nvmlGpuInstanceCreateComputeInstance.as_ref())?;
        let mut made = ptr::null_mut();
        // SAFETY: as above.
        nvml_try(unsafe { create(instance.0, profile, &raw mut made) })?;
        Ok(ComputeInstance(made))
    }

    pub(super) fn destroy_compute_instance(
        &self,
        instance: ComputeInstance,
    ) -> Result<(), NvmlError> {
        let destroy = nvml_sym(self.lib().nvmlComputeInstanceDestroy.as_ref())?;
        // SAFETY: as above.
        nvml_try(unsafe { destroy(instance.0) })
    }

    /// The slices of the GPU, as devices.
    pub(super) fn mig_devices(&self) -> Result<Vec<raw::nvmlDevice_t>, NvmlError> {
        let count = nvml_sym(self.lib().nvmlDeviceGetMaxMigDeviceCount.as_ref())?;
        let get = nvml_sym(self.lib().nvmlDeviceGetMigDeviceHandleByIndex.as_ref())?;
        let mut most = 0;
        // SAFETY: as above.
        nvml_try(unsafe { count(self.handle(), &raw mut most) })?;
        let mut devices = Vec::new();
        for index in 0..most.min(ROOM) {
            let mut device = ptr::null_mut();
            // SAFETY: as above.
            match nvml_try(unsafe { get(self.handle(), index, &raw mut device) }) {
                Ok(()) => devices.push(device),
                // Nothing has that index.
                Err(NvmlError::NotFound | NvmlError::InvalidArg) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(devices)
    }

    /// Whether a device is a slice.
    pub(super) fn is_slice(&self, device: raw::nvmlDevice_t) -> Result<bool, NvmlError> {
        let get = nvml_sym(self.lib().nvmlDeviceIsMigDeviceHandle.as_ref())?;
        let mut is_slice = 0;
        // SAFETY: as above.
        nvml_try(unsafe { get(device, &raw mut is_slice) })?;
        Ok(is_slice != 0)
    }

    /// The numbers of a slice's GPU instance and compute instance.
    pub(super) fn numbers(&self, slice: raw::nvmlDevice_t) -> Result<(u32, u32), NvmlError> {
        let gpu_instance = nvml_sym(self.lib().nvmlDeviceGetGpuInstanceId.as_ref())?;
        let compute_instance = nvml_sym(self.lib().nvmlDeviceGetComputeInstanceId.as_ref())?;
        let (mut gpu, mut compute) = (NO_INSTANCE, NO_INSTANCE);
        // SAFETY: as above.
        nvml_try(unsafe { gpu_instance(slice, &raw mut gpu) })?;
        // SAFETY: as above.
        nvml_try(unsafe { compute_instance(slice, &raw mut compute) })?;
        Ok((gpu, compute))
    }

    /// UUID of a slice.
    pub(super) fn uuid(&self, slice: raw::nvmlDevice_t) -> Result<String, NvmlError> {
        // SAFETY: NVML has just said that it is one of its devices.
        unsafe { Device::new(slice, self.nvml()) }.uuid()
    }
}
