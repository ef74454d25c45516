//! NVML is closed when it is of no use or of harm, and opened again.

use std::thread;

use muster_device::BackendError;
use nvidia_ml_mock::State;

use crate::machine::{LIBRARIES, Machine, VERSION, eventually, uuids};

const NEXT: &str = "590.10.01";

/// What breaks the driver of a machine.
type Break = fn(&mut State);

#[test]
fn the_version_that_the_kernel_has_now_is_loaded_without_a_restart() {
    let machine = Machine::new();
    let backend = machine.backend();
    assert_eq!(backend.gpus().unwrap().gpus[0].gpu.driver_version, VERSION);
    let next = machine.install(LIBRARIES, NEXT);
    machine.load(Some(NEXT));
    machine.change(|state| NEXT.clone_into(&mut state.module_version));
    // The old library was closed before it could say anything that is old.
    assert_eq!(backend.gpus().unwrap().gpus[0].gpu.driver_version, NEXT);
    let status = backend.status();
    assert_eq!(status.file, Some(next.canonicalize().unwrap()));
    assert_eq!(status.openings, 2);
}

#[test]
fn nvml_that_says_that_its_driver_is_gone_or_another_is_closed_and_opened_once_that_is_over() {
    let broken: [(&str, Break); 2] = [
        ("version", |state| {
            NEXT.clone_into(&mut state.module_version);
        }),
        ("not loaded", |state| state.unloaded = true),
    ];
    for (says, breaks) in broken {
        let machine = Machine::new();
        let backend = machine.backend();
        let before = backend.gpus().unwrap();
        let gpu = before.gpus[0].gpu.uuid.clone();
        machine.change(breaks);
        // Whoever asks first, and whatever, is told, and so are those after it.
        for _ in 0..2 {
            let error = backend.processes(&gpu).unwrap_err();
            assert!(
                matches!(&error, BackendError::Unavailable(cause) if cause.contains(says)),
                "{error}"
            );
            assert_eq!(backend.status().file, None);
        }
        machine.change(|state| {
            state.unloaded = false;
            state.module_version.clear();
        });
        eventually("it is open again", || backend.gpus().is_ok());
        assert_eq!(backend.gpus().unwrap(), before);
        assert_eq!(backend.status().openings, 2);
    }
}

#[test]
fn a_module_that_is_unloaded_closes_nvml_though_the_library_still_answers() {
    let machine = Machine::new();
    let backend = machine.backend();
    let gpu = backend.gpus().unwrap().gpus[0].gpu.uuid.clone();
    assert_eq!(backend.processes(&gpu), Ok(Vec::new()));
    machine.load(None);
    // Opened anew, it is that which cannot be.
    machine.hang(&[("nvmlInit_v2", "")]);
    for asked in [backend.gpus().map(drop), backend.processes(&gpu).map(drop)] {
        assert_eq!(asked, Err(BackendError::Unresponsive));
    }
    assert_eq!(backend.status().file, None);
    machine.change(|state| {
        state.hangs.clear();
        state.unloaded = true;
    });
    eventually(
        "it is told",
        || matches!(backend.gpus(), Err(BackendError::Unavailable(cause)) if cause.contains("not loaded")),
    );
}

#[test]
fn nothing_opens_what_was_released_until_that_is_over() {
    let machine = Machine::new();
    let backend = machine.backend();
    let gpu = backend.gpus().unwrap().gpus[0].gpu.uuid.clone();
    let released = backend.release("a GPU is being reset").unwrap();
    for error in [
        backend.gpus().map(drop).unwrap_err(),
        backend.processes(&gpu).map(drop).unwrap_err(),
    ] {
        assert!(
            matches!(&error, BackendError::Unavailable(cause) if cause == "a GPU is being reset"),
            "{error}"
        );
    }
    let another = backend.release("a GPU is being reset").unwrap();
    drop(released);
    assert!(backend.gpus().is_err(), "another one wants it closed");
    drop(another);
    assert_eq!(backend.gpus().unwrap().gpus.len(), 8);
    assert_eq!(backend.status().openings, 2);
}

#[test]
fn what_a_stuck_call_is_in_is_not_said_to_be_released_and_the_rest_goes_on() {
    let machine = Machine::new();
    let backend = machine.backend();
    let (gpus, _) = uuids(&backend.gpus().unwrap());
    machine.hang(&[("", &gpus[3])]);
    assert_eq!(backend.processes(&gpus[3]), Err(BackendError::Unresponsive));
    let released = backend.release("a GPU is being reset");
    assert_eq!(released.map(drop), Err(BackendError::Unresponsive));
    // It is opened anew, and the stuck call keeps to the old one.
    assert_eq!(backend.processes(&gpus[4]), Ok(Vec::new()));
    machine.hang(&[]);
    eventually("it can be released", || {
        backend.release("a GPU is being reset").is_ok()
    });
    assert_eq!(backend.gpus().unwrap().gpus.len(), 8);
}

#[test]
fn a_release_waits_for_what_is_under_way() {
    let machine = Machine::new();
    let backend = machine.backend();
    let (gpus, _) = uuids(&backend.gpus().unwrap());
    machine.change(|state| state.delay_milliseconds = 20);
    let backend = &backend;
    thread::scope(|scope| {
        let asking: Vec<_> = gpus
            .iter()
            .map(|gpu| scope.spawn(move || backend.processes(gpu)))
            .collect();
        let released = backend.release("a GPU is being reset").unwrap();
        for asked in asking {
            match asked.join().unwrap() {
                Ok(_) | Err(BackendError::Unavailable(_)) => {}
                Err(error) => panic!("{error}"),
            }
        }
        drop(released);
    });
    assert!(backend.processes(&gpus[0]).is_ok());
}
