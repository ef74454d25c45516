//! GPU instances and compute instances from the first to the last call.

use std::fs;

use nvidia_ml_mock::Process;
use nvml_wrapper_sys::bindings::{nvmlDevice_t, nvmlDeviceAttributes_t, nvmlMemory_t};

use crate::card::{
    IN_USE, INSUFFICIENT_RESOURCES, INVALID_ARGUMENT, Machine, NOT_FOUND, NOT_SUPPORTED, at,
    in_rust,
};

fn mig_device(machine: &Machine, device: nvmlDevice_t, index: u32) -> Result<nvmlDevice_t, u32> {
    let mut mig = std::ptr::null_mut();
    let asked = call!(
        machine,
        nvmlDeviceGetMigDeviceHandleByIndex(device, index, &raw mut mig)
    );
    asked.map(|()| mig)
}

fn name(machine: &Machine, device: nvmlDevice_t) -> String {
    let mut text = [0_u8; 96];
    call!(
        machine,
        nvmlDeviceGetName(device, text.as_mut_ptr().cast(), 96)
    )
    .unwrap();
    in_rust(&text)
}

#[test]
fn a_slice_is_made_used_and_destroyed() {
    let machine = Machine::new("h100-nvswitch-8");
    let device = machine.gpu(2);
    let uuid = machine.uuid(device);
    machine.enable(device);
    let instance = machine.create(device, 14, at(4, 2)).unwrap();
    let info = machine.info(instance).unwrap();
    assert_eq!((info.id, info.profileId), (5, 14));
    assert_eq!((info.placement.start, info.placement.size), (4, 2));
    assert_eq!(info.device, device);

    // Without a compute instance it is no device.
    assert_eq!(mig_device(&machine, device, 0), Err(NOT_FOUND));
    let compute = machine.create_compute(instance, 1).unwrap();
    let mig = machine.mig_device(compute);
    assert_eq!(mig_device(&machine, device, 0), Ok(mig));
    assert_eq!(mig_device(&machine, device, 1), Err(NOT_FOUND));
    assert_eq!(mig_device(&machine, device, 7), Err(INVALID_ARGUMENT));
    assert_eq!(name(&machine, mig), "NVIDIA H100 80GB HBM3 MIG 2g.20gb");
    assert_eq!(machine.uuid(mig), nvidia_ml_mock::mig_uuid(&uuid, 5, 0));
    let mut found = std::ptr::null_mut();
    let text = std::ffi::CString::new(machine.uuid(mig)).unwrap();
    call!(
        machine,
        nvmlDeviceGetHandleByUUID(text.as_ptr(), &raw mut found)
    )
    .unwrap();
    assert_eq!(found, mig);

    let mut memory = nvmlMemory_t {
        total: 0,
        free: 0,
        used: 0,
    };
    call!(machine, nvmlDeviceGetMemoryInfo(mig, &raw mut memory)).unwrap();
    assert_eq!(memory.total, 20_096 << 20);
    let mut attributes: std::mem::MaybeUninit<nvmlDeviceAttributes_t> =
        std::mem::MaybeUninit::zeroed();
    call!(
        machine,
        nvmlDeviceGetAttributes_v2(mig, attributes.as_mut_ptr())
    )
    .unwrap();
    // SAFETY: it was filled, and zeroes would be one, too.
    let attributes = unsafe { attributes.assume_init() };
    assert_eq!(attributes.multiprocessorCount, 32);
    assert_eq!(attributes.gpuInstanceSliceCount, 2);
    assert_eq!(attributes.memorySizeMB, 20_096);

    let access = machine.path("proc/driver/nvidia/capabilities/gpu2/mig/gi5/ci0/access");
    let minor = nvidia_ml_mock::mig::capability_minor(2, 5, Some(0));
    let content = fs::read_to_string(&access).unwrap();
    assert!(
        content.starts_with(&format!("DeviceFileMinor: {minor}\n")),
        "{content}"
    );

    // A slice is no GPU, and a GPU no slice.
    let mut number = 0;
    assert_eq!(
        call!(machine, nvmlDeviceGetMinorNumber(mig, &raw mut number)),
        Err(INVALID_ARGUMENT)
    );
    assert_eq!(
        call!(machine, nvmlDeviceGetGpuInstanceId(device, &raw mut number)),
        Err(INVALID_ARGUMENT)
    );
    assert_eq!(
        call!(
            machine,
            nvmlDeviceGetAttributes_v2(device, std::ptr::null_mut())
        ),
        Err(NOT_SUPPORTED)
    );

    assert_eq!(
        machine.destroy(instance),
        Err(IN_USE),
        "a compute instance is in it"
    );
    machine.destroy_compute(compute).unwrap();
    assert!(!access.exists());
    assert_eq!(machine.destroy_compute(compute), Err(INVALID_ARGUMENT));
    machine.destroy(instance).unwrap();
    assert_eq!(machine.destroy(instance), Err(INVALID_ARGUMENT));
    assert_eq!(machine.info(instance).err(), Some(INVALID_ARGUMENT));
    assert_eq!(machine.instances(device), []);
}

#[test]
fn what_is_used_is_not_destroyed_and_the_rest_of_the_gpu_is() {
    let machine = Machine::new("a100-40gb-nvswitch-8");
    let device = machine.gpu(0);
    machine.enable(device);
    let made: Vec<_> = [at(0, 1), at(1, 1)]
        .into_iter()
        .map(|place| {
            let instance = machine.create(device, 19, place).unwrap();
            (instance, machine.create_compute(instance, 0).unwrap())
        })
        .collect();
    let (used, idle) = (made[0], made[1]);
    let process = Process {
        gpu: machine.uuid(machine.mig_device(used.1)),
        pid: 42,
        used_bytes: 1 << 20,
    };
    for list in 0..3 {
        machine.change(|state| {
            let lists = [
                &mut state.processes,
                &mut state.graphics_processes,
                &mut state.mps_processes,
            ];
            for (number, of_kind) in lists.into_iter().enumerate() {
                of_kind.clear();
                of_kind.extend((number == list).then(|| process.clone()));
            }
        });
        assert_eq!(machine.destroy_compute(used.1), Err(IN_USE));
    }
    machine.destroy_compute(idle.1).unwrap();
    machine.destroy(idle.0).unwrap();
    machine.change(|state| state.mps_processes.clear());
    machine.destroy_compute(used.1).unwrap();
    machine.destroy(used.0).unwrap();
}

#[test]
fn a_place_that_is_taken_is_lack_of_resources_and_one_that_is_none_is_invalid() {
    let machine = Machine::new("h100-nvswitch-8");
    let device = machine.gpu(0);
    assert_eq!(
        machine.create(device, 19, at(0, 1)).err(),
        Some(NOT_SUPPORTED),
        "it is not in MIG mode"
    );
    machine.enable(device);
    machine.create(device, 9, at(4, 4)).unwrap();
    for (profile, place, code) in [
        (9, at(4, 4), INSUFFICIENT_RESOURCES),
        (19, at(4, 1), INSUFFICIENT_RESOURCES),
        (0, at(0, 8), INSUFFICIENT_RESOURCES),
        // No starts, no sizes, no profile; 0 is an enumerator, too, and here the whole GPU.
        (19, at(7, 1), INVALID_ARGUMENT),
        (14, at(1, 2), INVALID_ARGUMENT),
        (19, at(0, 2), INVALID_ARGUMENT),
        (0, at(0, 1), INVALID_ARGUMENT),
        (77, at(0, 1), INVALID_ARGUMENT),
        (19, at(u32::MAX, 1), INVALID_ARGUMENT),
        (19, at(u32::MAX, u32::MAX), INVALID_ARGUMENT),
    ] {
        let made = machine.create(device, profile, place).err();
        assert_eq!(made, Some(code), "{profile} {place:?}");
    }
    assert_eq!(machine.instances(device), [(2, 9, 4, 4)]);
}

#[test]
fn an_id_comes_back_with_its_place_and_so_does_the_uuid() {
    let machine = Machine::new("h100-nvswitch-8");
    let device = machine.gpu(0);
    machine.enable(device);
    let first = machine.create(device, 19, at(3, 1)).unwrap();
    let compute = machine.create_compute(first, 0).unwrap();
    let before = machine.uuid(machine.mig_device(compute));
    machine.destroy_compute(compute).unwrap();
    machine.destroy(first).unwrap();
    // Another profile, the same place.
    let second = machine.create(device, 20, at(3, 1)).unwrap();
    let compute = machine.create_compute(second, 0).unwrap();
    assert_eq!(machine.info(second).unwrap().id, 10);
    assert_eq!(machine.uuid(machine.mig_device(compute)), before);
}

#[test]
fn compute_instances_share_a_gpu_instance_and_take_the_lowest_id() {
    let machine = Machine::new("h100-nvswitch-8");
    let device = machine.gpu(0);
    machine.enable(device);
    let instance = machine.create(device, 9, at(0, 4)).unwrap();
    let parts: Vec<_> = (0..3)
        .map(|_| machine.create_compute(instance, 0).unwrap())
        .collect();
    assert_eq!(
        machine.create_compute(instance, 0),
        Err(INSUFFICIENT_RESOURCES)
    );
    assert_eq!(
        machine.create_compute(instance, 2),
        Err(INSUFFICIENT_RESOURCES)
    );
    assert_eq!(machine.create_compute(instance, 4), Err(INVALID_ARGUMENT));
    let uuids: std::collections::BTreeSet<String> = parts
        .iter()
        .map(|part| machine.uuid(machine.mig_device(*part)))
        .collect();
    assert_eq!(uuids.len(), 3);
    assert_eq!(
        name(&machine, machine.mig_device(parts[0])),
        "NVIDIA H100 80GB HBM3 MIG 1c.3g.40gb"
    );
    machine.destroy_compute(parts[1]).unwrap();
    let again = machine.create_compute(instance, 0).unwrap();
    let mut id = u32::MAX;
    let mig = machine.mig_device(again);
    call!(machine, nvmlDeviceGetComputeInstanceId(mig, &raw mut id)).unwrap();
    assert_eq!(id, 1);
}

#[test]
fn handles_of_one_kind_are_none_of_another() {
    let machine = Machine::new("h100-nvswitch-8");
    let device = machine.gpu(0);
    machine.enable(device);
    let instance = machine.create(device, 19, at(0, 1)).unwrap();
    let compute = machine.create_compute(instance, 0).unwrap();
    assert_eq!(machine.mode(instance.cast()), Err(INVALID_ARGUMENT));
    assert_eq!(machine.mode(std::ptr::null_mut()), Err(INVALID_ARGUMENT));
    assert_eq!(machine.destroy(compute.cast()), Err(INVALID_ARGUMENT));
    assert_eq!(machine.destroy(device.cast()), Err(INVALID_ARGUMENT));
    assert_eq!(
        machine.destroy_compute(instance.cast()),
        Err(INVALID_ARGUMENT)
    );
    assert_eq!(machine.instances(device).len(), 1);
}
