//! Calls that fail because the state file says so.

use nvidia_ml_mock::{Failure, State};

use crate::card::{GPU_IS_LOST, IN_USE, Machine, NOT_FOUND, RESET_REQUIRED, UNKNOWN, at};

fn fails(function: &str, gpu: &str, code: u32, times: Option<u32>) -> Failure {
    Failure {
        function: function.to_owned(),
        gpu: gpu.to_owned(),
        code,
        times,
        after_effect: false,
    }
}

fn set(machine: &Machine, failures: Vec<Failure>) {
    machine.change(|state: &mut State| state.failures = failures);
}

#[test]
fn a_failure_is_of_its_function_and_its_gpu_and_counted() {
    let machine = Machine::new("h100-nvswitch-8");
    let (first, second) = (machine.gpu(0), machine.gpu(1));
    let uuid = machine.uuid(first);
    set(
        &machine,
        vec![fails("nvmlDeviceGetMigMode", &uuid, UNKNOWN, Some(2))],
    );
    assert_eq!(machine.mode(second), Ok((0, 0)), "of another GPU");
    assert_eq!(machine.uuid(first), uuid, "another function");
    assert_eq!(machine.mode(first), Err(UNKNOWN));
    assert_eq!(machine.mode(first), Err(UNKNOWN));
    assert_eq!(machine.mode(first), Ok((0, 0)));
}

#[test]
fn a_gpu_can_answer_everything_with_one_error() {
    for code in [UNKNOWN, RESET_REQUIRED, GPU_IS_LOST] {
        let machine = Machine::new("h100-nvswitch-8");
        let (first, second) = (machine.gpu(0), machine.gpu(1));
        let uuid = machine.uuid(first);
        set(&machine, vec![fails("", &uuid, code, None)]);
        for _ in 0..3 {
            assert_eq!(machine.mode(first), Err(code));
            assert_eq!(machine.mode(second), Ok((0, 0)));
        }
        let mut device = std::ptr::null_mut();
        assert_eq!(
            call!(machine, nvmlDeviceGetHandleByIndex_v2(0, &raw mut device)),
            Err(code)
        );
    }
}

#[test]
fn a_call_that_fails_has_done_nothing_unless_it_fails_after_its_effect() {
    let machine = Machine::new("h100-nvswitch-8");
    let device = machine.gpu(0);
    let uuid = machine.uuid(device);
    machine.enable(device);
    let create = "nvmlDeviceCreateGpuInstanceWithPlacement";
    set(&machine, vec![fails(create, &uuid, UNKNOWN, Some(1))]);
    assert_eq!(machine.create(device, 19, at(0, 1)).err(), Some(UNKNOWN));
    assert_eq!(machine.instances(device), []);

    let after = Failure {
        after_effect: true,
        ..fails(create, &uuid, UNKNOWN, Some(1))
    };
    set(&machine, vec![after]);
    assert_eq!(machine.create(device, 19, at(0, 1)).err(), Some(UNKNOWN));
    assert_eq!(machine.instances(device), [(7, 19, 0, 1)]);
    machine.create(device, 19, at(1, 1)).unwrap();

    // Also where the call is about the instance.
    let mut instance = std::ptr::null_mut();
    call!(
        machine,
        nvmlDeviceGetGpuInstanceById(device, 7, &raw mut instance)
    )
    .unwrap();
    set(
        &machine,
        vec![fails("nvmlGpuInstanceDestroy", &uuid, IN_USE, Some(1))],
    );
    assert_eq!(machine.destroy(instance), Err(IN_USE));
    machine.destroy(instance).unwrap();
    assert_eq!(
        call!(
            machine,
            nvmlDeviceGetGpuInstanceById(device, 7, &raw mut instance)
        ),
        Err(NOT_FOUND)
    );
}

#[test]
fn of_many_calls_at_once_as_many_fail_as_are_to() {
    let machine = Machine::new("h100-nvswitch-8");
    let uuid = machine.uuid(machine.gpu(0));
    set(
        &machine,
        vec![fails("nvmlDeviceGetMigMode", &uuid, UNKNOWN, Some(10))],
    );
    let failed: usize = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..4)
            .map(|_| {
                let machine = &machine;
                scope.spawn(move || {
                    let device = machine.gpu(0);
                    let asked = (0..10).map(|_| machine.mode(device));
                    asked.filter(Result::is_err).count()
                })
            })
            .collect();
        let counts = threads.into_iter().map(|thread| thread.join().unwrap());
        counts.sum()
    });
    assert_eq!(failed, 10);
}
