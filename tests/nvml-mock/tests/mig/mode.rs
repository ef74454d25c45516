//! MIG mode.

use crate::card::{IN_USE, INVALID_ARGUMENT, Machine, NOT_SUPPORTED, RESET_REQUIRED, UNKNOWN, at};

#[test]
fn hopper_changes_its_mode_at_once_and_ampere_by_a_reset() {
    for board in ["h100-nvswitch-8", "a100-40gb-nvswitch-8"] {
        let machine = Machine::new(board);
        let (first, second) = (machine.gpu(0), machine.gpu(1));
        assert_eq!(machine.mode(first), Ok((0, 0)));
        machine.enable(first);
        assert_eq!(machine.mode(first), Ok((1, 1)));
        assert_eq!(machine.mode(second), Ok((0, 0)), "the others stay");
        assert_eq!(machine.set_mode(first, 2), Err(INVALID_ARGUMENT));
        assert_eq!(machine.set_mode(first, 0), Ok(0));
        assert_eq!(machine.mode(first), Ok((0, 0)));
    }
}

#[test]
fn a_mode_that_cannot_be_activated_stays_pending_and_says_why() {
    let machine = Machine::new("a100-40gb-nvswitch-8");
    let (first, second) = (machine.gpu(0), machine.gpu(1));
    machine.change(|state| state.cannot_reset = true);
    assert_eq!(machine.set_mode(first, 1), Ok(RESET_REQUIRED));
    assert_eq!(machine.mode(first), Ok((0, 1)));
    // Nothing can be made while it is pending.
    assert_eq!(
        machine.create(first, 19, at(0, 1)).err(),
        Some(NOT_SUPPORTED)
    );

    machine.change(|state| state.cannot_reset = false);
    let uuid = machine.uuid(second);
    machine.change(|state| {
        state.processes = vec![nvidia_ml_mock::Process {
            gpu: uuid.clone(),
            pid: 7,
            used_bytes: 0,
        }];
    });
    assert_eq!(machine.set_mode(second, 1), Ok(IN_USE));
    assert_eq!(machine.mode(second), Ok((0, 1)));
    machine.change(|state| state.processes.clear());
    assert_eq!(machine.set_mode(second, 1), Ok(0));
    assert_eq!(machine.mode(second), Ok((1, 1)));
    let instance = machine.create(second, 19, at(0, 1)).unwrap();
    assert_eq!(machine.set_mode(second, 0), Ok(IN_USE));
    assert_eq!(machine.mode(second), Ok((1, 0)));
    machine.destroy(instance).unwrap();
}

#[test]
fn a_reset_may_give_another_minor_number() {
    let machine = Machine::new("a100-40gb-nvswitch-8");
    let device = machine.gpu(3);
    let uuid = machine.uuid(device);
    machine.change(|state| state.card(&uuid).minor_after_reset = Some(11));
    let minor = || {
        let mut minor = u32::MAX;
        call!(machine, nvmlDeviceGetMinorNumber(device, &raw mut minor)).map(|()| minor)
    };
    assert_eq!(minor(), Ok(3));
    machine.enable(device);
    assert_eq!(minor(), Ok(11));
}

#[test]
fn a_gpu_that_cannot_be_cut_says_so() {
    let machine = Machine::new("t4-2");
    let device = machine.gpu(0);
    assert_eq!(machine.mode(device), Err(NOT_SUPPORTED));
    assert_eq!(machine.set_mode(device, 1), Err(NOT_SUPPORTED));
    assert_eq!(
        machine.create(device, 19, at(0, 1)).err(),
        Some(NOT_SUPPORTED)
    );
}

#[test]
fn a_state_file_that_is_torn_is_an_error_and_nothing_else() {
    let machine = Machine::new("h100-nvswitch-8");
    let device = machine.gpu(0);
    std::fs::write(machine.file.path(), "{\"board\": ").unwrap();
    assert_eq!(machine.mode(device), Err(UNKNOWN));
    assert_eq!(machine.set_mode(device, 1), Err(UNKNOWN));
}
