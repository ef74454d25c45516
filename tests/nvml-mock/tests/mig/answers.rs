//! What is read of profiles and of a GPU's health, in each version of its structure.

use nvidia_ml_mock::{RemappedRows, mig::TABLES};
use nvml_wrapper_sys::bindings::{
    nvmlDevice_t, nvmlFieldValue_t, nvmlGpuInstancePlacement_t, nvmlGpuInstanceProfileInfo_t,
    nvmlGpuInstanceProfileInfo_v2_t, nvmlGpuInstanceProfileInfo_v3_t,
};

use crate::card::{INVALID_ARGUMENT, Machine, NOT_SUPPORTED, at};

/// A structure of C that is all zero.
fn zeroed<T>() -> T {
    let zeroes = std::mem::MaybeUninit::<T>::zeroed();
    // SAFETY: it is used for structures of numbers, pointers and characters only, for which zeroes are valid.
    unsafe { zeroes.assume_init() }
}

/// `NVML_STRUCT_VERSION`.
fn version<T>(number: u32) -> u32 {
    u32::try_from(size_of::<T>()).unwrap() | (number << 24)
}

fn text(characters: &[std::ffi::c_char]) -> String {
    let bytes: Vec<u8> = characters.iter().map(|byte| byte.cast_unsigned()).collect();
    crate::card::in_rust(&bytes)
}

#[test]
fn each_profile_is_told_by_its_enumerator_and_made_by_its_id() {
    for (board, table) in [
        ("a30-4", "a30"),
        ("a100-40gb-nvswitch-8", "a100-40gb"),
        ("a100-80gb-nvswitch-8", "a100-80gb"),
        ("h100-nvswitch-8", "h100-80gb"),
        ("h200-nvswitch-8", "h200"),
        ("b200-nvswitch-8", "b200"),
    ] {
        let machine = Machine::new(board);
        let device = machine.gpu(0);
        let table = TABLES.iter().find(|one| one.name == table).unwrap();
        for enumerator in 0..20 {
            let mut info: nvmlGpuInstanceProfileInfo_t = zeroed();
            let asked = call!(
                machine,
                nvmlDeviceGetGpuInstanceProfileInfo(device, enumerator, &raw mut info)
            );
            let Some(profile) = table.enumerated(enumerator) else {
                let code = if enumerator < 17 {
                    NOT_SUPPORTED
                } else {
                    INVALID_ARGUMENT
                };
                assert_eq!(asked, Err(code), "{enumerator}");
                continue;
            };
            assert_eq!(asked, Ok(()));
            assert_eq!(
                (info.id, info.sliceCount),
                (profile.id, profile.compute_slices)
            );
            assert_eq!(info.memorySizeMB, profile.memory_mib);

            let mut second: nvmlGpuInstanceProfileInfo_v2_t = zeroed();
            second.version = version::<nvmlGpuInstanceProfileInfo_v2_t>(2);
            call!(
                machine,
                nvmlDeviceGetGpuInstanceProfileInfoV(device, enumerator, &raw mut second)
            )
            .unwrap();
            assert_eq!(text(&second.name), format!("MIG {}", profile.name));
            let mut third: nvmlGpuInstanceProfileInfo_v3_t = zeroed();
            third.version = version::<nvmlGpuInstanceProfileInfo_v3_t>(3);
            let pointer = (&raw mut third).cast();
            call!(
                machine,
                nvmlDeviceGetGpuInstanceProfileInfoV(device, enumerator, pointer)
            )
            .unwrap();
            assert_eq!(text(&third.name), format!("MIG {}", profile.name));
            assert_eq!(third.instanceCount, profile.max_instances);
            assert_eq!(
                call!(
                    machine,
                    nvmlDeviceGetGpuInstanceProfileInfoV(
                        device,
                        enumerator,
                        zeroed_version(&mut third)
                    )
                ),
                Err(25)
            );

            let mut places = [nvmlGpuInstancePlacement_t { start: 0, size: 0 }; 8];
            let mut number = 0;
            let id = profile.id;
            call!(
                machine,
                nvmlDeviceGetGpuInstancePossiblePlacements_v2(
                    device,
                    id,
                    std::ptr::null_mut(),
                    &raw mut number
                )
            )
            .unwrap();
            call!(
                machine,
                nvmlDeviceGetGpuInstancePossiblePlacements_v2(
                    device,
                    id,
                    places.as_mut_ptr(),
                    &raw mut number
                )
            )
            .unwrap();
            let told: Vec<(u32, u32)> = places
                .iter()
                .take(usize::try_from(number).unwrap())
                .map(|place| (place.start, place.size))
                .collect();
            let expected: Vec<(u32, u32)> = profile
                .placements()
                .map(|place| (place.start, place.size))
                .collect();
            assert_eq!(told, expected);
        }
    }
}

/// A version that is none.
fn zeroed_version(
    info: &mut nvmlGpuInstanceProfileInfo_v3_t,
) -> *mut nvmlGpuInstanceProfileInfo_v2_t {
    info.version = 0;
    std::ptr::from_mut(info).cast()
}

#[test]
fn profiles_can_be_hidden_outside_of_the_mode() {
    let machine = Machine::new("h100-nvswitch-8");
    let device = machine.gpu(0);
    machine.change(|state| state.profiles_need_mig_mode = true);
    let ask = || {
        let mut info: nvmlGpuInstanceProfileInfo_t = zeroed();
        call!(
            machine,
            nvmlDeviceGetGpuInstanceProfileInfo(device, 0, &raw mut info)
        )
    };
    assert_eq!(ask(), Err(NOT_SUPPORTED));
    machine.enable(device);
    assert_eq!(ask(), Ok(()));
}

#[test]
fn what_remains_is_what_still_fits() {
    let machine = Machine::new("h100-nvswitch-8");
    let device = machine.gpu(0);
    machine.enable(device);
    let remaining = |profile: u32| {
        let mut number = u32::MAX;
        call!(
            machine,
            nvmlDeviceGetGpuInstanceRemainingCapacity(device, profile, &raw mut number)
        )
        .map(|()| number)
    };
    assert_eq!(remaining(19), Ok(7));
    machine.create(device, 9, at(4, 4)).unwrap();
    assert_eq!(
        [19, 20, 15, 14, 9, 5, 0].map(remaining),
        [Ok(4), Ok(1), Ok(2), Ok(2), Ok(1), Ok(1), Ok(0)]
    );
    assert_eq!(remaining(77), Err(NOT_SUPPORTED));
}

fn field(machine: &Machine, device: nvmlDevice_t, id: u32) -> Result<u32, u32> {
    let mut value: nvmlFieldValue_t = zeroed();
    value.fieldId = id;
    call!(machine, nvmlDeviceGetFieldValues(device, 1, &raw mut value))?;
    if value.nvmlReturn != 0 {
        return Err(value.nvmlReturn);
    }
    // SAFETY: an answer is an unsigned number, and any bits are one.
    Ok(unsafe { value.value.uiVal })
}

#[test]
fn the_recovery_action_and_remapped_rows_are_those_of_the_card() {
    let machine = Machine::new("h100-nvswitch-8");
    let (device, other) = (machine.gpu(0), machine.gpu(1));
    let uuid = machine.uuid(device);
    assert_eq!(field(&machine, device, 230), Ok(0));
    machine.change(|state| {
        let card = state.card(&uuid);
        card.recovery_action = 7;
        card.remapped_rows = RemappedRows {
            correctable: 1,
            uncorrectable: 2,
            is_pending: true,
            has_failed: false,
        };
    });
    let rows = |id| field(&machine, device, id);
    assert_eq!(rows(230), Ok(7));
    assert_eq!([142, 143, 144, 145].map(rows), [Ok(1), Ok(2), Ok(1), Ok(0)]);
    assert_eq!(field(&machine, other, 230), Ok(0));
    assert_eq!(rows(1), Err(NOT_SUPPORTED));
    // Not told while there are slices.
    machine.enable(device);
    machine.create(device, 19, at(0, 1)).unwrap();
    assert_eq!(rows(142), Err(NOT_SUPPORTED));
    assert_eq!(rows(230), Ok(7));
}

#[test]
fn a_card_without_memory_has_no_figures_of_it() {
    let machine = Machine::new("h100-nvswitch-8");
    let device = machine.gpu(0);
    let uuid = machine.uuid(device);
    machine.change(|state| state.card(&uuid).has_no_memory = true);
    let mut memory = zeroed();
    assert_eq!(
        call!(machine, nvmlDeviceGetMemoryInfo(device, &raw mut memory)),
        Err(NOT_SUPPORTED)
    );
}
