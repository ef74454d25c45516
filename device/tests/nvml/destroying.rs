//! Slices destroyed: these, and no others.

use muster_device::{BackendError, Placement};
use nvidia_ml_mock::{ComputeInstance, Process};

use crate::{
    machine::once,
    making::{IN_USE, UNKNOWN, by_hand, h100, make, on_card},
};

#[test]
fn what_is_gone_already_is_fine_however_often() {
    let (machine, backend, gpu) = h100();
    let made = make(&backend, &gpu, "2g.20gb", 2).unwrap();
    for _ in 0..2 {
        let destroyed = backend.destroy_slice(&gpu.uuid, made.gpu_instance, made.placement);
        assert_eq!(destroyed, Ok(()));
        assert_eq!(on_card(&machine, &gpu), []);
    }
}

#[test]
fn a_number_that_another_has_by_now_and_a_place_that_another_has_are_left_alone() {
    let (machine, backend, gpu) = h100();
    let made = make(&backend, &gpu, "1g.10gb", 0).unwrap();
    let (id, at) = (made.gpu_instance, made.placement);
    backend.destroy_slice(&gpu.uuid, id, at).unwrap();
    // The driver gave the number away, for another place.
    by_hand(&machine, &gpu, id, 19, Placement { start: 3, size: 1 });
    // Somebody made another one here.
    by_hand(&machine, &gpu, 11, 19, at);
    let before = on_card(&machine, &gpu);
    assert_eq!(backend.destroy_slice(&gpu.uuid, id, at), Ok(()));
    let longer = Placement { start: 3, size: 2 };
    assert_eq!(backend.destroy_slice(&gpu.uuid, id, longer), Ok(()));
    assert_eq!(on_card(&machine, &gpu), before);
    backend.destroy_slice(&gpu.uuid, 11, at).unwrap();
    assert_eq!(on_card(&machine, &gpu).len(), 1);
}

#[test]
fn what_counts_is_what_exists_and_not_what_was_answered() {
    for function in ["nvmlComputeInstanceDestroy", "nvmlGpuInstanceDestroy"] {
        for code in [UNKNOWN, IN_USE] {
            let (machine, backend, gpu) = h100();
            let made = make(&backend, &gpu, "3g.40gb", 4).unwrap();
            let destroy = || backend.destroy_slice(&gpu.uuid, made.gpu_instance, made.placement);

            machine.fail(vec![once(function, code, false)]);
            let refused = destroy().unwrap_err();
            let is_in_use = matches!(refused, BackendError::InUse(_));
            assert_eq!(is_in_use, code == IN_USE, "{function}: {refused}");
            assert_eq!(on_card(&machine, &gpu).len(), 1, "{function}");
            // Half of it may be gone. The next try goes on there.
            machine.fail(vec![once(function, code, true)]);
            assert_eq!(destroy(), Ok(()), "{function} {code}");
            assert_eq!(on_card(&machine, &gpu), []);
        }
    }
}

#[test]
fn a_slice_that_cannot_be_looked_at_is_not_said_to_be_gone() {
    for function in [
        "nvmlDeviceGetMigMode",
        "nvmlDeviceGetGpuInstanceProfileInfoV",
        "nvmlDeviceGetGpuInstances",
        "nvmlGpuInstanceGetInfo",
        "nvmlGpuInstanceGetComputeInstanceProfileInfo",
        "nvmlGpuInstanceGetComputeInstances",
        "nvmlComputeInstanceGetInfo_v2",
    ] {
        let (machine, backend, gpu) = h100();
        let made = make(&backend, &gpu, "1g.10gb", 5).unwrap();
        let before = on_card(&machine, &gpu);
        machine.fail(vec![once(function, UNKNOWN, false)]);
        let destroyed = backend.destroy_slice(&gpu.uuid, made.gpu_instance, made.placement);
        assert!(
            matches!(destroyed, Err(BackendError::Failed(_))),
            "{function}"
        );
        assert_eq!(on_card(&machine, &gpu), before, "{function}");
        machine.fail(vec![once(function, UNKNOWN, false)]);
        let listed = backend.mig_instances(&gpu.uuid);
        assert!(matches!(listed, Err(BackendError::Failed(_))), "{function}");
    }
}

#[test]
fn a_slice_that_a_process_uses_stays_whole() {
    let (machine, backend, gpu) = h100();
    let made = make(&backend, &gpu, "1g.20gb", 0).unwrap();
    let before = on_card(&machine, &gpu);
    machine.change(|state| {
        state.processes = vec![Process {
            gpu: made.uuid.clone().unwrap(),
            pid: 4242,
            used_bytes: 0,
        }];
    });
    let destroy = || backend.destroy_slice(&gpu.uuid, made.gpu_instance, made.placement);
    assert!(matches!(destroy(), Err(BackendError::InUse(_))));
    assert_eq!(on_card(&machine, &gpu), before);
    machine.change(|state| state.processes.clear());
    assert_eq!(destroy(), Ok(()));
    assert_eq!(on_card(&machine, &gpu), []);
}

#[test]
fn what_somebody_divided_is_told_and_is_left_to_him() {
    let (machine, backend, gpu) = h100();
    let at = Placement { start: 0, size: 4 };
    by_hand(&machine, &gpu, 1, 9, at);
    let part = |id: u32| ComputeInstance {
        id,
        profile: 0,
        placement: nvidia_ml_mock::Placement { start: id, size: 1 },
    };
    for parts in [1, 2] {
        machine.change(|state| {
            let [instance] = &mut state.card(&gpu.uuid).gpu_instances[..] else {
                panic!("one was made by hand")
            };
            instance.compute_instances = (0..parts).map(part).collect();
        });
        let listed = backend.mig_instances(&gpu.uuid).unwrap();
        let [one] = &listed[..] else {
            panic!("{listed:?}")
        };
        let shown = (one.is_divided, one.compute_instance, one.uuid.as_deref());
        assert_eq!(shown, (true, Some(0), None));
    }
    let before = on_card(&machine, &gpu);
    let error = backend.destroy_slice(&gpu.uuid, 1, at).unwrap_err();
    assert!(
        error.to_string().contains("has 2 compute instances"),
        "{error}"
    );
    assert_eq!(on_card(&machine, &gpu), before);
}
