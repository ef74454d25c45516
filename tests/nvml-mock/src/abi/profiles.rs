//! What a GPU can be cut into.

use std::ffi::c_uint;

use nvml_wrapper_sys::bindings::{
    NVML_GPU_INSTANCE_PROFILE_COUNT, nvmlDevice_t, nvmlGpuInstancePlacement_t,
    nvmlGpuInstanceProfileInfo_t, nvmlGpuInstanceProfileInfo_v2_t, nvmlGpuInstanceProfileInfo_v3_t,
};

use super::{characters, count, put, put_all, put_version};
use crate::{
    call::{Code, INVALID_ARGUMENT, NOT_SUPPORTED},
    machine::Machine,
    mig::{self, Profile, Table},
    state::Placement,
};

impl Machine {
    /// What a GPU can be cut into.
    fn table(&self, device: nvmlDevice_t) -> Result<&'static Table, Code> {
        let target = self.whole(device)?;
        if self.state.profiles_need_mig_mode {
            return Ok(self.in_mig_mode(&target.gpu)?.0);
        }
        self.board.mig_table().ok_or(NOT_SUPPORTED)
    }

    fn enumerated(
        &self,
        device: nvmlDevice_t,
        enumerator: c_uint,
    ) -> Result<&'static Profile, Code> {
        let table = self.table(device)?;
        if enumerator >= NVML_GPU_INSTANCE_PROFILE_COUNT {
            return Err(INVALID_ARGUMENT);
        }
        table.enumerated(enumerator).ok_or(NOT_SUPPORTED)
    }

    fn profile(&self, device: nvmlDevice_t, id: c_uint) -> Result<&'static Profile, Code> {
        self.table(device)?.profile(id).ok_or(NOT_SUPPORTED)
    }
}

export! {
    fn nvmlDeviceGetGpuInstanceProfileInfo(
        device: nvmlDevice_t, enumerator: c_uint, info: *mut nvmlGpuInstanceProfileInfo_t,
    ) {
        let profile = Machine::now()?.enumerated(device, enumerator)?;
        put(info, nvmlGpuInstanceProfileInfo_t {
            id: profile.id,
            isP2pSupported: 0,
            sliceCount: profile.compute_slices,
            instanceCount: profile.max_instances,
            multiprocessorCount: profile.multiprocessors,
            copyEngineCount: profile.engines.copy,
            decoderCount: profile.engines.decoders,
            encoderCount: 0,
            jpegCount: profile.engines.jpeg,
            ofaCount: profile.engines.optical_flow,
            memorySizeMB: profile.memory_mib,
        })
    }

    fn nvmlDeviceGetGpuInstanceProfileInfoV(
        device: nvmlDevice_t, enumerator: c_uint, info: *mut nvmlGpuInstanceProfileInfo_v2_t,
    ) {
        put_profile(info, Machine::now()?.enumerated(device, enumerator)?)
    }

    fn nvmlDeviceGetGpuInstanceProfileInfoByIdV(
        device: nvmlDevice_t, id: c_uint, info: *mut nvmlGpuInstanceProfileInfo_v2_t,
    ) {
        put_profile(info, Machine::now()?.profile(device, id)?)
    }

    fn nvmlDeviceGetGpuInstancePossiblePlacements(
        device: nvmlDevice_t, id: c_uint, placements: *mut nvmlGpuInstancePlacement_t, number: *mut c_uint,
    ) {
        put_placements(Machine::now()?.profile(device, id)?, placements, number)
    }

    fn nvmlDeviceGetGpuInstancePossiblePlacements_v2(
        device: nvmlDevice_t, id: c_uint, placements: *mut nvmlGpuInstancePlacement_t, number: *mut c_uint,
    ) {
        put_placements(Machine::now()?.profile(device, id)?, placements, number)
    }

    fn nvmlDeviceGetGpuInstanceRemainingCapacity(device: nvmlDevice_t, id: c_uint, number: *mut c_uint) {
        let machine = Machine::now()?;
        let target = machine.whole(device)?;
        let (table, card) = machine.in_mig_mode(&target.gpu)?;
        let profile = table.profile(id).ok_or(NOT_SUPPORTED)?;
        put(number, mig::remaining(table, card, profile))
    }
}

/// In the version that the caller has filled in.
fn put_profile(info: *mut nvmlGpuInstanceProfileInfo_v2_t, profile: &Profile) -> Result<(), Code> {
    let second = |version| nvmlGpuInstanceProfileInfo_v2_t {
        version,
        id: profile.id,
        isP2pSupported: 0,
        sliceCount: profile.compute_slices,
        instanceCount: profile.max_instances,
        multiprocessorCount: profile.multiprocessors,
        copyEngineCount: profile.engines.copy,
        decoderCount: profile.engines.decoders,
        encoderCount: 0,
        jpegCount: profile.engines.jpeg,
        ofaCount: profile.engines.optical_flow,
        memorySizeMB: profile.memory_mib,
        name: characters(&profile.nvml_name()),
    };
    let third = |version| nvmlGpuInstanceProfileInfo_v3_t {
        version,
        id: profile.id,
        sliceCount: profile.compute_slices,
        instanceCount: profile.max_instances,
        multiprocessorCount: profile.multiprocessors,
        copyEngineCount: profile.engines.copy,
        decoderCount: profile.engines.decoders,
        encoderCount: 0,
        jpegCount: profile.engines.jpeg,
        ofaCount: profile.engines.optical_flow,
        memorySizeMB: profile.memory_mib,
        name: characters(&profile.nvml_name()),
        capabilities: 0,
    };
    put_version(info.cast(), (2, second), (3, third))
}

/// By two calls: the first one, without room, asks how many there are.
fn put_placements(
    profile: &Profile,
    placements: *mut nvmlGpuInstancePlacement_t,
    number: *mut c_uint,
) -> Result<(), Code> {
    put(number, count(profile.placements().count())?)?;
    if placements.is_null() {
        return Ok(());
    }
    let in_c = |Placement { start, size }| nvmlGpuInstancePlacement_t { start, size };
    put_all(placements, profile.placements().map(in_c))
}
