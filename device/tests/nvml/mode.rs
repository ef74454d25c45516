//! GPUs put into MIG mode, and out of it.

use std::thread;

use muster_device::{BackendError, MigModeAfter};

use crate::{
    machine::{Machine, gpus, once},
    making::{UNKNOWN, h100, make, on_card},
};

fn mode(current: bool, pending: bool) -> MigModeAfter {
    MigModeAfter { current, pending }
}

#[test]
fn a_mode_is_changed_and_what_it_was_already_is_fine() {
    let machine = Machine::new();
    let backend = machine.backend();
    let gpu = gpus(&backend).swap_remove(4);
    for on in [true, false] {
        for _ in 0..2 {
            assert_eq!(backend.set_mig_mode(&gpu.uuid, on), Ok(mode(on, on)));
            let mig = gpus(&backend).swap_remove(4).mig.unwrap();
            assert_eq!((mig.current, mig.pending), (on, on));
        }
    }
    // Opened anew after a change, and only then.
    assert_eq!(backend.status().openings, 3);
}

/// NVML is closed after each change, for a moment.
#[test]
fn a_change_of_one_gpus_mode_fails_nothing_that_is_done_on_another() {
    const CHANGES: u32 = 40;
    let (_machine, backend, cut) = h100();
    let switched = gpus(&backend).swap_remove(1);
    thread::scope(|scope| {
        let switching = scope.spawn(|| {
            for change in 0..CHANGES {
                let on = change % 2 == 0;
                let after = backend.set_mig_mode(&switched.uuid, on);
                assert_eq!(after, Ok(mode(on, on)));
            }
        });
        while !switching.is_finished() {
            let made = make(&backend, &cut, "1g.10gb", 0).unwrap();
            let destroyed = backend.destroy_slice(&cut.uuid, made.gpu_instance, made.placement);
            assert_eq!(destroyed, Ok(()));
        }
        switching.join().unwrap();
    });
}

#[test]
fn minor_numbers_that_a_reset_changes_are_read_again() {
    let machine = Machine::of("a100-40gb-nvswitch-8");
    let backend = machine.backend();
    let before = gpus(&backend);
    machine.change(|state| state.card(&before[0].uuid).minor_after_reset = Some(42));
    let after = backend.set_mig_mode(&before[0].uuid, true);
    assert_eq!(after, Ok(mode(true, true)));
    let minors = gpus(&backend).into_iter().map(|gpu| gpu.minor);
    assert_eq!(minors.collect::<Vec<_>>(), [42, 1, 2, 3, 4, 5, 6, 7]);
}

#[test]
fn a_mode_that_waits_for_a_reset_is_told_and_can_be_taken_back() {
    let machine = Machine::of("a100-80gb-nvswitch-8");
    machine.change(|state| state.cannot_reset = true);
    let backend = machine.backend();
    let gpu = gpus(&backend).swap_remove(0);
    for _ in 0..2 {
        let after = backend.set_mig_mode(&gpu.uuid, true);
        assert_eq!(after, Ok(mode(false, true)));
    }
    let mig = gpus(&backend).swap_remove(0).mig.unwrap();
    assert_eq!((mig.current, mig.pending), (false, true));
    let after = backend.set_mig_mode(&gpu.uuid, false);
    assert_eq!(after, Ok(mode(false, false)));
}

#[test]
fn a_gpu_in_use_keeps_its_mode_and_nothing_is_pending_afterwards() {
    let machine = Machine::new();
    let backend = machine.backend();
    let gpu = gpus(&backend).swap_remove(0);
    machine.change(|state| {
        state.processes = vec![nvidia_ml_mock::Process {
            gpu: gpu.uuid.clone(),
            pid: 4242,
            used_bytes: 0,
        }];
    });
    let refused = backend.set_mig_mode(&gpu.uuid, true).unwrap_err();
    assert!(matches!(refused, BackendError::InUse(_)), "{refused}");
    let card = machine.state().card(&gpu.uuid).clone();
    assert_eq!((card.mig_current, card.mig_pending), (false, false));
}

#[test]
fn a_mode_is_not_taken_from_slices() {
    let (machine, backend, gpu) = h100();
    make(&backend, &gpu, "1g.10gb", 0).unwrap();
    let before = on_card(&machine, &gpu);
    let refused = backend.set_mig_mode(&gpu.uuid, false).unwrap_err();
    assert!(matches!(refused, BackendError::InUse(_)), "{refused}");
    let mut state = machine.state();
    let card = state.card(&gpu.uuid);
    assert_eq!((card.mig_current, card.mig_pending), (true, true));
    assert_eq!(card.gpu_instances, before);
}

#[test]
fn what_counts_is_the_mode_and_not_the_answer() {
    for (after_effect, is_on) in [(false, false), (true, true)] {
        let machine = Machine::new();
        let backend = machine.backend();
        let gpu = gpus(&backend).swap_remove(0);
        machine.fail(vec![once("nvmlDeviceSetMigMode", UNKNOWN, after_effect)]);
        let after = backend.set_mig_mode(&gpu.uuid, true);
        assert_eq!(after.is_ok(), is_on, "{after:?}");
        let card = machine.state().card(&gpu.uuid).clone();
        assert_eq!((card.mig_current, card.mig_pending), (is_on, is_on));
    }
}

#[test]
fn a_gpu_without_the_mode_says_so() {
    let machine = Machine::of("t4-2");
    let backend = machine.backend();
    let gpu = gpus(&backend).swap_remove(0);
    let refused = backend
        .set_mig_mode(&gpu.uuid, true)
        .unwrap_err()
        .to_string();
    assert!(refused.contains("has no MIG mode"), "{refused}");
    assert_eq!(backend.mig_instances(&gpu.uuid), Ok(Vec::new()));
}
