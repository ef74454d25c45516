//! Which GPUs there are, and what each is.

use std::ffi::{c_char, c_int, c_uint, c_ulong};

use nvml_wrapper_sys::bindings::{
    nvmlAffinityScope_t, nvmlDevice_t, nvmlDeviceArchitecture_t, nvmlMemory_t, nvmlMemory_v2_t,
    nvmlPciInfo_t,
};

use super::{characters, count, get, put, put_text, struct_version, text};
use crate::{
    call::{
        Code, INSUFFICIENT_SIZE, INVALID_ARGUMENT, NOT_FOUND, NOT_SUPPORTED, UNKNOWN,
        VERSION_MISMATCH,
    },
    handle::{Handle, Kind},
    machine::{Context, Machine, Slice, Target},
};

export! {
    fn nvmlDeviceGetCount_v2(number: *mut c_uint) {
        put(number, count(Machine::now()?.board.gpus.len())?)
    }

    fn nvmlDeviceGetHandleByIndex_v2(index: c_uint, device: *mut nvmlDevice_t) {
        let machine = Machine::now()?;
        let index = usize::try_from(index).map_err(|_| INVALID_ARGUMENT)?;
        let positions = machine.state.positions(&machine.board);
        let position = positions.get(index).copied().ok_or(INVALID_ARGUMENT)?;
        machine.present(position)?;
        put(device, Handle::gpu(position).pointer())
    }

    fn nvmlDeviceGetHandleByUUID(uuid: *const c_char, device: *mut nvmlDevice_t) {
        let machine = Machine::now()?;
        let wanted = text(uuid)?;
        // Each is asked, as `nvml.h` allows: one that is lost, or hangs, stands before those after it.
        for position in machine.state.positions(&machine.board) {
            let gpu = machine.present(position)?;
            if gpu == wanted {
                return put(device, Handle::gpu(position).pointer());
            }
            let slices = machine.slices(&gpu);
            if let Some((slice, _)) = slices.iter().find(|(_, uuid)| uuid == wanted) {
                return put(device, slice.handle(position).pointer());
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
        let position = found.ok_or(NOT_FOUND)?;
        machine.present(position)?;
        put(device, Handle::gpu(position).pointer())
    }

    fn nvmlDeviceGetUUID(device: nvmlDevice_t, uuid: *mut c_char, length: c_uint) {
        let machine = Machine::now()?;
        put_text(uuid, length, &machine.uuid(&machine.target(device)?)?)
    }

    fn nvmlDeviceGetName(device: nvmlDevice_t, name: *mut c_char, length: c_uint) {
        let machine = Machine::now()?;
        let target = machine.target(device)?;
        let product = &machine.board.product_name;
        let Some(slice) = target.slice else {
            return put_text(name, length, product);
        };
        let (profile, _, part) = machine.slice(&target.gpu, slice).ok_or(INVALID_ARGUMENT)?;
        let part = profile.nvml_compute_name(part.placement.size);
        put_text(name, length, &format!("{product} {part}"))
    }

    fn nvmlDeviceGetIndex(device: nvmlDevice_t, index: *mut c_uint) {
        let machine = Machine::now()?;
        let target = machine.target(device)?;
        let found = match target.slice {
            Some(slice) => machine.slices(&target.gpu).iter().position(|(one, _)| *one == slice),
            None => machine.state.positions(&machine.board).iter().position(|one| *one == target.position),
        };
        put(index, count(found.ok_or(UNKNOWN)?)?)
    }

    fn nvmlDeviceGetMinorNumber(device: nvmlDevice_t, minor: *mut c_uint) {
        let machine = Machine::now()?;
        let target = machine.whole(device)?;
        put(minor, machine.state.minor(&machine.board, target.position))
    }

    fn nvmlDeviceGetArchitecture(device: nvmlDevice_t, architecture: *mut nvmlDeviceArchitecture_t) {
        let machine = Machine::now()?;
        machine.target(device)?;
        put(architecture, machine.board.architecture)
    }

    fn nvmlDeviceGetCudaComputeCapability(device: nvmlDevice_t, major: *mut c_int, minor: *mut c_int) {
        let machine = Machine::now()?;
        machine.target(device)?;
        put(major, machine.board.compute_capability.0)?;
        put(minor, machine.board.compute_capability.1)
    }

    fn nvmlDeviceGetPciInfo_v3(device: nvmlDevice_t, pci: *mut nvmlPciInfo_t) {
        let machine = Machine::now()?;
        let target = machine.whole(device)?;
        let mut info = pci_info(&machine.at(target.position)?.pci_bus_id)?;
        info.pciDeviceId = machine.board.pci_device_id;
        info.pciSubSystemId = machine.board.pci_subsystem_id;
        put(pci, info)
    }

    fn nvmlDeviceGetMemoryInfo(device: nvmlDevice_t, memory: *mut nvmlMemory_t) {
        let machine = Machine::now()?;
        let Memory { total, reserved, used } = machine.memory(&machine.target(device)?)?;
        let used = reserved.saturating_add(used);
        put(memory, nvmlMemory_t { total, free: total.saturating_sub(used), used })
    }

    fn nvmlDeviceGetMemoryInfo_v2(device: nvmlDevice_t, memory: *mut nvmlMemory_v2_t) {
        let machine = Machine::now()?;
        let Memory { total, reserved, used } = machine.memory(&machine.target(device)?)?;
        let version = get(memory.cast::<c_uint>())?;
        if Some(version) != struct_version::<nvmlMemory_v2_t>(2) {
            return Err(VERSION_MISMATCH);
        }
        let free = total.saturating_sub(reserved).saturating_sub(used);
        put(memory, nvmlMemory_v2_t { version, total, reserved, free, used })
    }

    // Only machines whose GPU memory is NUMA memory of the host have one (Grace Hopper).
    fn nvmlDeviceGetNumaNodeId(device: nvmlDevice_t, _node: *mut c_uint) {
        Machine::now()?.whole(device)?;
        Err(NOT_SUPPORTED)
    }

    fn nvmlDeviceGetMemoryAffinity(
        device: nvmlDevice_t, size: c_uint, set: *mut c_ulong, _scope: nvmlAffinityScope_t,
    ) {
        let machine = Machine::now()?;
        let node = machine.at(machine.whole(device)?.position)?.numa_node;
        if size == 0 {
            return Err(INSUFFICIENT_SIZE);
        }
        if set.is_null() {
            return Err(INVALID_ARGUMENT);
        }
        for word in 0..usize::try_from(size).map_err(|_| INVALID_ARGUMENT)? {
            let bits = if word == 0 { 1_u64.checked_shl(node).unwrap_or(0) } else { 0 };
            // SAFETY: the caller says that `size` words may be written.
            put(unsafe { set.add(word) }, bits)?;
        }
        Ok(())
    }
}

/// Memory of a GPU or a MIG device, in bytes.
struct Memory {
    total: u64,
    /// What the driver keeps.
    reserved: u64,
    /// What processes have.
    used: u64,
}

impl Machine {
    /// UUID of a GPU or a MIG device.
    pub(super) fn uuid(&self, target: &Target) -> Result<String, Code> {
        let Some(slice) = target.slice else {
            return Ok(target.gpu.clone());
        };
        let slices = self.slices(&target.gpu).into_iter();
        let mut mine = slices.filter(|(one, _)| *one == slice);
        mine.next().map(|(_, uuid)| uuid).ok_or(INVALID_ARGUMENT)
    }

    fn memory(&self, target: &Target) -> Result<Memory, Code> {
        if self
            .card(&target.gpu)
            .is_some_and(|card| card.has_no_memory)
        {
            return Err(NOT_SUPPORTED);
        }
        let running = self.running(target.position, &target.gpu, Context::Compute);
        // Compute instances of one GPU instance share its memory.
        let gpu_instance = target.slice.map(|slice| slice.gpu_instance);
        let is_mine = |slice: Option<Slice>| {
            gpu_instance.is_none() || slice.map(|slice| slice.gpu_instance) == gpu_instance
        };
        let used = running
            .iter()
            .filter(|process| is_mine(process.slice))
            .fold(0_u64, |sum, process| sum.saturating_add(process.used_bytes));
        let (total, reserved) = match target.slice {
            Some(slice) => {
                let (profile, ..) = self.slice(&target.gpu, slice).ok_or(INVALID_ARGUMENT)?;
                (profile.memory_bytes(), 0)
            }
            None => (self.board.memory_bytes, self.board.reserved_bytes),
        };
        Ok(Memory {
            total,
            reserved,
            used,
        })
    }
}

impl Slice {
    /// The handle of this MIG device of the GPU at `position`.
    pub(super) fn handle(self, position: usize) -> Handle {
        Handle {
            kind: Kind::MigDevice,
            position,
            gpu_instance: self.gpu_instance,
            compute_instance: self.compute_instance,
        }
    }
}

/// `DDDDDDDD:BB:DD.F` in NVML's fields.
pub(super) fn pci_info(pci_bus_id: &str) -> Result<nvmlPciInfo_t, Code> {
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
