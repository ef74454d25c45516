//! Slices made: whole, or not at all.

use std::{thread, time::Duration};

use muster_device::{Backend, BackendError, Gpu, MigInstance, MigProfile, Placement};
use nvidia_ml_mock::{Failure, GpuInstance, mig_uuid};

use crate::{
    machine::{Machine, eventually, gpus, once},
    profiles::boards,
};

pub(crate) const UNKNOWN: u32 = 999;
pub(crate) const IN_USE: u32 = 19;
const GPU_IS_LOST: u32 = 15;

/// Longer than any call takes that does not hang, on however busy a machine.
const PATIENCE: Duration = Duration::from_secs(30);

/// A machine whose first GPU is in MIG mode.
pub(crate) fn cut(board: &str) -> (Machine, Backend, Gpu) {
    let machine = Machine::of(board);
    let backend = machine.backend();
    cut_of(machine, backend)
}

/// The same, asked by who waits for as long as it takes.
fn cut_in_time(board: &str) -> (Machine, Backend, Gpu) {
    let machine = Machine::of(board);
    let backend = machine.backend_within(PATIENCE);
    cut_of(machine, backend)
}

fn cut_of(machine: Machine, backend: Backend) -> (Machine, Backend, Gpu) {
    let gpu = gpus(&backend).swap_remove(0);
    machine.in_mig_mode(&gpu.uuid);
    (machine, backend, gpu)
}

/// An H100 in MIG mode.
pub(crate) fn h100() -> (Machine, Backend, Gpu) {
    cut("h100-nvswitch-8")
}

/// What the card has.
pub(crate) fn on_card(machine: &Machine, gpu: &Gpu) -> Vec<GpuInstance> {
    machine.state().card(&gpu.uuid).gpu_instances.clone()
}

pub(crate) fn profile<'a>(gpu: &'a Gpu, name: &str) -> &'a MigProfile {
    gpu.mig.as_ref().unwrap().profile(name).unwrap()
}

/// Makes a slice of an H100 with this profile that begins there.
pub(crate) fn make(
    backend: &Backend,
    gpu: &Gpu,
    name: &str,
    start: u32,
) -> Result<MigInstance, BackendError> {
    let profile = profile(gpu, name);
    let size = profile.memory_slices;
    backend.create_slice(&gpu.uuid, profile, Placement { start, size })
}

/// A GPU instance that somebody made by hand, without compute instances.
pub(crate) fn by_hand(machine: &Machine, gpu: &Gpu, id: u32, profile: u32, at: Placement) {
    let instance = GpuInstance {
        id,
        profile,
        placement: nvidia_ml_mock::Placement {
            start: at.start,
            size: at.size,
        },
        compute_instances: Vec::new(),
    };
    machine.change(|state| state.card(&gpu.uuid).gpu_instances.push(instance));
}

#[test]
fn every_profile_is_made_and_destroyed_wherever_it_may_lie() {
    for (board, table) in boards() {
        let (machine, backend, gpu) = cut_in_time(board);
        // The boards of seven compute slices have the same places, and so have those of four.
        let is_thorough = board == "a30-4" || board.starts_with("h100");
        let places = if is_thorough { usize::MAX } else { 1 };
        for profile in &gpu.mig.as_ref().unwrap().profiles {
            for placement in profile.placements.iter().take(places) {
                let at = format!("{board}: {} at {placement:?}", profile.name);
                let made = backend
                    .create_slice(&gpu.uuid, profile, *placement)
                    .unwrap();
                let id = table.gpu_instance_id(nvidia_ml_mock::Placement {
                    start: placement.start,
                    size: placement.size,
                });
                let expected = MigInstance {
                    placement: *placement,
                    gpu_instance: id,
                    compute_instance: Some(0),
                    is_divided: false,
                    profile: profile.gpu_instance_profile,
                    uuid: Some(mig_uuid(&gpu.uuid, id, 0)),
                };
                assert_eq!(made, expected, "{at}");
                assert_eq!(backend.mig_instances(&gpu.uuid), Ok(vec![made]), "{at}");
                let instances = on_card(&machine, &gpu);
                let [instance] = instances.as_slice() else {
                    panic!("{at}: {instances:?}")
                };
                let [compute] = instance.compute_instances.as_slice() else {
                    panic!("{at}: {instances:?}")
                };
                assert_eq!(compute.placement.size, profile.compute_slices, "{at}");
                backend.destroy_slice(&gpu.uuid, id, *placement).unwrap();
                assert_eq!(on_card(&machine, &gpu), [], "{at}");
            }
        }
    }
}

#[test]
fn a_gpu_is_filled_and_what_does_not_fit_is_refused_and_leaves_nothing() {
    let (machine, backend, gpu) = h100();
    for start in 0..7 {
        make(&backend, &gpu, "1g.10gb", start).unwrap();
    }
    let full = on_card(&machine, &gpu);
    assert_eq!(full.len(), 7);
    let listed = backend.mig_instances(&gpu.uuid).unwrap();
    let starts: Vec<u32> = listed.iter().map(|one| one.placement.start).collect();
    assert_eq!(starts, [0, 1, 2, 3, 4, 5, 6]);
    // In the way is what NVML would not name.
    for (name, start) in [("1g.10gb", 3), ("3g.40gb", 0), ("7g.80gb", 0)] {
        let error = make(&backend, &gpu, name, start).unwrap_err().to_string();
        assert!(error.contains("is in the way, at memory slice"), "{error}");
        assert_eq!(on_card(&machine, &gpu), full);
    }
    // The last memory slice is for larger ones only.
    let last = &listed[6];
    let destroyed = backend.destroy_slice(&gpu.uuid, last.gpu_instance, last.placement);
    assert_eq!(destroyed, Ok(()));
    make(&backend, &gpu, "1g.20gb", 6).unwrap();

    // There is room, and no second set of media engines: only NVML knows.
    let (machine, backend, gpu) = h100();
    make(&backend, &gpu, "1g.10gb+me", 0).unwrap();
    let error = make(&backend, &gpu, "1g.10gb+me", 1)
        .unwrap_err()
        .to_string();
    assert!(error.contains("insufficient"), "{error}");
    assert_eq!(on_card(&machine, &gpu).len(), 1);
}

#[test]
fn a_place_that_a_profile_does_not_have_is_refused_before_anything_is_asked() {
    let (machine, backend, gpu) = h100();
    machine.hang(&[("", &gpu.uuid)]);
    let error = make(&backend, &gpu, "3g.40gb", 1).unwrap_err().to_string();
    assert!(error.contains("may not lie at memory slice 1"), "{error}");
    machine.hang(&[]);
}

#[test]
fn a_gpu_that_is_not_in_the_mode_has_no_slices_and_gets_none() {
    let machine = Machine::new();
    let backend = machine.backend();
    let gpu = gpus(&backend).swap_remove(0);
    assert_eq!(backend.mig_instances(&gpu.uuid), Ok(Vec::new()));
    let error = make(&backend, &gpu, "1g.10gb", 0).unwrap_err().to_string();
    assert!(error.contains("is not in MIG mode"), "{error}");
    let placement = Placement { start: 0, size: 1 };
    assert_eq!(backend.destroy_slice(&gpu.uuid, 7, placement), Ok(()));
    assert_eq!(on_card(&machine, &gpu), []);
}

/// Every function that making a slice calls.
const CALLS: [&str; 14] = [
    "nvmlDeviceGetHandleByIndex_v2",
    "nvmlDeviceGetUUID",
    "nvmlDeviceGetMigMode",
    "nvmlDeviceGetGpuInstanceProfileInfoV",
    "nvmlDeviceGetGpuInstances",
    "nvmlDeviceCreateGpuInstanceWithPlacement",
    "nvmlGpuInstanceGetInfo",
    "nvmlGpuInstanceGetComputeInstanceProfileInfo",
    "nvmlGpuInstanceCreateComputeInstance",
    "nvmlComputeInstanceGetInfo_v2",
    "nvmlDeviceIsMigDeviceHandle",
    "nvmlDeviceGetGpuInstanceId",
    "nvmlDeviceGetComputeInstanceId",
    "nvmlGpuInstanceGetComputeInstances",
];

#[test]
fn whichever_call_fails_the_slice_is_there_whole_or_nothing_of_it_is() {
    let (machine, backend, gpu) = cut_in_time("h100-nvswitch-8");
    make(&backend, &gpu, "2g.20gb", 4).unwrap();
    let neighbour = on_card(&machine, &gpu);
    let mut refused = 0;
    for function in CALLS {
        for (code, before) in [
            (UNKNOWN, Vec::new()),
            (UNKNOWN, neighbour.clone()),
            (IN_USE, Vec::new()),
            (GPU_IS_LOST, Vec::new()),
        ] {
            for after_effect in [false, true] {
                let beside = before.len();
                let case = format!("{function}: {code}, after: {after_effect}, beside {beside}");
                machine.change(|state| {
                    state.card(&gpu.uuid).gpu_instances.clone_from(&before);
                    state.failures = vec![once(function, code, after_effect)];
                });
                let made = make(&backend, &gpu, "3g.40gb", 0);
                machine.fail(Vec::new());
                match made {
                    Ok(made) => {
                        let whole = backend.mig_instances(&gpu.uuid).unwrap();
                        assert!(whole.contains(&made), "{case}");
                        let (id, placement) = (made.gpu_instance, made.placement);
                        let destroyed = backend.destroy_slice(&gpu.uuid, id, placement);
                        assert_eq!(destroyed, Ok(()), "{case}");
                    }
                    Err(error) => {
                        refused += 1;
                        let is_gone = matches!(error, BackendError::Gone(_));
                        assert_eq!(is_gone, code == GPU_IS_LOST, "{case}: {error}");
                    }
                }
                assert_eq!(on_card(&machine, &gpu), before, "{case}");
            }
        }
    }
    // Ten are needed in each case. What only helps to find the UUID has another way.
    assert!(refused >= 10 * 4 * 2, "{refused}");
}

#[test]
fn what_cannot_be_undone_is_said_and_the_next_try_completes_it() {
    let (machine, backend, gpu) = h100();
    let always = |function| Failure {
        times: None,
        ..once(function, UNKNOWN, false)
    };
    machine.fail(vec![
        always("nvmlGpuInstanceCreateComputeInstance"),
        always("nvmlGpuInstanceDestroy"),
    ]);
    let error = make(&backend, &gpu, "1g.10gb", 2).unwrap_err().to_string();
    assert!(
        error.contains("the compute instance was not made")
            && error.contains("the GPU instance at memory slice 2 may still be there"),
        "{error}"
    );
    let instances = on_card(&machine, &gpu);
    let [left] = instances.as_slice() else {
        panic!("{instances:?}")
    };
    assert!(left.compute_instances.is_empty());
    let seen = backend.mig_instances(&gpu.uuid).unwrap();
    assert_eq!((seen[0].compute_instance, &seen[0].uuid), (None, &None));

    machine.fail(Vec::new());
    let made = make(&backend, &gpu, "1g.10gb", 2).unwrap();
    assert_eq!(made.gpu_instance, left.id);
    assert_eq!(backend.mig_instances(&gpu.uuid), Ok(vec![made]));
}

#[test]
fn a_gpu_instance_that_was_there_before_stays_when_it_cannot_be_completed() {
    let (machine, backend, gpu) = h100();
    by_hand(&machine, &gpu, 1, 9, Placement { start: 0, size: 4 });
    let before = on_card(&machine, &gpu);
    for after_effect in [false, true] {
        let function = "nvmlGpuInstanceCreateComputeInstance";
        machine.fail(vec![once(function, UNKNOWN, after_effect)]);
        assert!(make(&backend, &gpu, "3g.40gb", 0).is_err());
        assert_eq!(on_card(&machine, &gpu), before, "{after_effect}");
    }
    // One of another profile is in the way, with compute instances or without.
    assert!(make(&backend, &gpu, "4g.40gb", 0).is_err());
    assert_eq!(on_card(&machine, &gpu), before);
    make(&backend, &gpu, "3g.40gb", 0).unwrap();
}

#[test]
fn a_slice_that_nobody_waits_for_any_more_is_undone_and_other_gpus_go_on() {
    for function in [
        "nvmlDeviceCreateGpuInstanceWithPlacement",
        "nvmlGpuInstanceCreateComputeInstance",
    ] {
        let (machine, _, gpu) = h100();
        let backend = machine.backend_within(Duration::from_secs(1));
        let other = gpus(&backend).swap_remove(1);
        machine.in_mig_mode(&other.uuid);
        machine.hang(&[(function, &gpu.uuid)]);
        let late = Err(BackendError::Unresponsive);
        assert_eq!(make(&backend, &gpu, "1g.10gb", 0), late, "{function}");
        assert_eq!(
            backend.mig_instances(&gpu.uuid).map(drop),
            Err(BackendError::Unresponsive)
        );
        assert_eq!(backend.status().stuck_calls, 1);
        make(&backend, &other, "1g.10gb", 0).unwrap();
        machine.hang(&[]);
        eventually("it returns", || backend.status().stuck_calls == 0);
        eventually("nothing of it is left", || {
            backend.mig_instances(&gpu.uuid) == Ok(Vec::new())
        });
        assert_eq!(on_card(&machine, &gpu), [], "{function}");
        make(&backend, &gpu, "1g.10gb", 0).unwrap();
    }
}

#[test]
fn a_gpu_that_is_being_changed_for_longer_than_a_question_may_take_is_not_silent() {
    let (machine, _, gpu) = h100();
    let backend = machine.backend_within(Duration::from_secs(3));
    let before = gpus(&backend);
    machine.hang(&[("nvmlDeviceCreateGpuInstanceWithPlacement", &gpu.uuid)]);
    thread::scope(|scope| {
        let making = scope.spawn(|| make(&backend, &gpu, "1g.10gb", 0));
        eventually("it is being made", || {
            let asked = backend.mig_instances(&gpu.uuid);
            matches!(asked, Err(BackendError::InUse(_)))
        });
        let listed = gpus(&backend);
        machine.hang(&[]);
        assert_eq!(listed, before);
        making.join().unwrap().unwrap();
    });
}

#[test]
fn a_gpu_that_falls_off_the_bus_has_no_slices_and_gets_none() {
    let (machine, backend, gpu) = h100();
    let made = make(&backend, &gpu, "1g.10gb", 0).unwrap();
    machine.change(|state| state.lost = vec![gpu.uuid.clone()]);
    let gone = BackendError::Gone(gpu.uuid.clone());
    assert_eq!(make(&backend, &gpu, "1g.10gb", 1), Err(gone.clone()));
    assert_eq!(backend.mig_instances(&gpu.uuid), Err(gone.clone()));
    let destroyed = backend.destroy_slice(&gpu.uuid, made.gpu_instance, made.placement);
    assert_eq!(destroyed, Err(gone));
}
