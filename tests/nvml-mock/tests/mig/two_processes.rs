//! Two processes that use the same cards at once.

use std::{
    path::PathBuf,
    process::{Child, Command, Stdio},
};

use nvidia_ml_mock::Placement;

use crate::card::{INSUFFICIENT_RESOURCES, Machine, at};

/// Where the machine of the child processes is.
const DIRECTORY: &str = "NVML_MOCK_TEST_DIRECTORY";
/// How often each of them does what it does.
const ROUNDS: u32 = 40;

fn child(test: &str, machine: &Machine) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", &format!("two_processes::{test}"), "--ignored"])
        .env(DIRECTORY, machine.path(""))
        .stdout(Stdio::null())
        .spawn()
        .unwrap()
}

/// The machine of the test that runs this one as a process of its own; none where it is run as all tests are.
fn machine_of_parent() -> Option<Machine> {
    let directory = std::env::var_os(DIRECTORY).map(PathBuf::from);
    Some(Machine::in_directory(&directory?))
}

/// One of two processes: makes a slice where there is room and destroys it, and never finds that another had the same one.
#[test]
#[ignore = "another test runs it as a process of its own"]
fn makes_and_destroys() {
    let Some(machine) = machine_of_parent() else {
        return;
    };
    let device = machine.gpu(0);
    let mut made = 0;
    while made < ROUNDS {
        let start = made % 7;
        match machine.create(device, 19, at(start, 1)) {
            Ok(instance) => {
                let info = machine.info(instance).unwrap();
                assert_eq!((info.id, info.placement.start), (7 + start, start));
                let compute = machine.create_compute(instance, 0).unwrap();
                // It is ours alone: nobody else has destroyed it, or made one in it.
                assert_eq!(
                    machine.create_compute(instance, 0),
                    Err(INSUFFICIENT_RESOURCES)
                );
                machine.destroy_compute(compute).unwrap();
                machine.destroy(instance).unwrap();
                made += 1;
            }
            Err(code) => assert_eq!(code, INSUFFICIENT_RESOURCES),
        }
    }
}

/// One of two processes: makes a slice and dies in the middle of everything.
#[test]
#[ignore = "another test runs it as a process of its own"]
fn makes_and_dies() {
    let Some(machine) = machine_of_parent() else {
        return;
    };
    machine.create(machine.gpu(0), 14, at(2, 2)).unwrap();
    std::process::abort();
}

#[test]
fn two_processes_never_have_the_same_slice() {
    let machine = Machine::new("h100-nvswitch-8");
    let device = machine.gpu(0);
    machine.enable(device);
    let children = [0, 1].map(|_| child("makes_and_destroys", &machine));
    for mut child in children {
        assert!(child.wait().unwrap().success());
    }
    // Each round makes two things and destroys them, and each of that is an event: both have done their rounds.
    let events = machine.file.read().unwrap().next_event;
    assert!(events >= u64::from(2 * ROUNDS * 4), "{events}");
    assert_eq!(machine.instances(device), []);
}

#[test]
fn what_a_process_made_outlives_it_and_another_takes_it_over() {
    let machine = Machine::new("h100-nvswitch-8");
    let device = machine.gpu(0);
    machine.enable(device);
    assert!(!child("makes_and_dies", &machine).wait().unwrap().success());
    assert_eq!(machine.instances(device), [(4, 14, 2, 2)]);
    let taken = machine.create(device, 14, Placement { start: 2, size: 2 });
    assert_eq!(taken.err(), Some(INSUFFICIENT_RESOURCES));
    let mut instance = std::ptr::null_mut();
    call!(
        machine,
        nvmlDeviceGetGpuInstanceById(device, 4, &raw mut instance)
    )
    .unwrap();
    machine.destroy(instance).unwrap();
}
