//! A GPU that hangs costs only itself.

use std::time::Instant;

use muster_device::{BackendError, Gpu, Listed};
use nvidia_ml_mock::Process;

use crate::machine::{CALL_LIMIT, Machine, eventually, uuids};

fn gpus(listed: &Listed) -> Vec<&Gpu> {
    listed.gpus.iter().map(|listed| &listed.gpu).collect()
}

#[test]
fn a_gpu_that_hangs_stays_what_it_was_and_the_others_go_on_being_asked() {
    for function in ["", "nvmlDeviceGetName", "nvmlDeviceGetNvLinkState"] {
        let machine = Machine::new();
        let backend = machine.backend();
        let before = backend.gpus().unwrap();
        let (mut all, none) = uuids(&before);
        assert_eq!((all.len(), none.len()), (8, 0));
        let sick = all.remove(2);

        machine.hang(&[(function, &sick)]);
        let hung = backend.gpus().unwrap();
        assert_eq!(
            uuids(&hung),
            (all.clone(), vec![sick.clone()]),
            "{function}"
        );
        assert_eq!(hung.gpus[2].silent, Some(BackendError::Unresponsive));
        assert_eq!(gpus(&hung), gpus(&before), "no neighbour is regrouped");

        assert_eq!(backend.gpus().unwrap(), hung);
        let started = Instant::now();
        assert_eq!(backend.processes(&sick), Err(BackendError::Unresponsive));
        let waited = started.elapsed();
        assert!(waited < CALL_LIMIT, "nobody waits for it a second time");
        assert_eq!(backend.processes(&all[0]), Ok(Vec::new()));
        assert_eq!(backend.status().stuck_calls, 1);

        machine.hang(&[]);
        eventually("it answers again", || backend.gpus().unwrap() == before);
        assert_eq!(backend.status().stuck_calls, 0);
    }
}

#[test]
fn a_gpu_that_hangs_before_it_said_who_it_is_is_not_listed_and_is_told() {
    let machine = Machine::new();
    let (mut all, _) = uuids(&machine.backend().gpus().unwrap());
    let sick = all.remove(7);
    machine.hang(&[("nvmlDeviceGetHandleByIndex_v2", &sick)]);
    let backend = machine.backend();
    let listed = backend.gpus().unwrap();
    assert_eq!(uuids(&listed), (all, Vec::new()));
    assert_eq!(listed.unidentified, [BackendError::Unresponsive]);
    machine.hang(&[]);
    eventually("all are listed", || {
        let listed = backend.gpus().unwrap();
        listed.unidentified.is_empty() && listed.gpus.len() == 8
    });
}

#[test]
fn a_gpu_that_hangs_while_nvml_is_opened_anew_is_still_known() {
    let machine = Machine::new();
    let backend = machine.backend();
    let before = backend.gpus().unwrap();
    let (mut all, _) = uuids(&before);
    let sick = all.remove(0);
    drop(backend.release("a GPU is being reset").unwrap());
    machine.hang(&[("", &sick)]);
    let listed = backend.gpus().unwrap();
    assert_eq!(uuids(&listed), (all, vec![sick]));
    assert_eq!(gpus(&listed), gpus(&before));
    assert_eq!(listed.unidentified.len(), 1);
    machine.hang(&[]);
}

#[test]
fn when_all_gpus_hang_no_more_threads_are_stuck_than_there_are_gpus() {
    let machine = Machine::new();
    let backend = machine.backend();
    let (all, _) = uuids(&backend.gpus().unwrap());
    let hangs: Vec<(&str, &str)> = all.iter().map(|gpu| ("", gpu.as_str())).collect();
    machine.hang(&hangs);
    for _ in 0..5 {
        let (answered, silent) = uuids(&backend.gpus().unwrap());
        assert_eq!((answered.len(), silent.len()), (0, 8));
        assert_eq!(backend.status().stuck_calls, 8);
    }
    machine.hang(&[]);
}

#[test]
fn a_library_that_hangs_is_told_and_known_gpus_go_on_being_asked() {
    let machine = Machine::new();
    let backend = machine.backend();
    let (all, _) = uuids(&backend.gpus().unwrap());
    machine.hang(&[("nvmlDeviceGetCount_v2", "")]);
    assert_eq!(backend.gpus(), Err(BackendError::Unresponsive));
    assert_eq!(backend.processes(&all[5]), Ok(Vec::new()));
    machine.hang(&[]);
    eventually("it answers again", || backend.gpus().is_ok());
}

#[test]
fn an_opening_that_hangs_is_told_and_is_used_once_it_is_done() {
    let machine = Machine::new();
    machine.hang(&[("nvmlInit_v2", "")]);
    let backend = machine.backend();
    assert_eq!(backend.gpus(), Err(BackendError::Unresponsive));
    assert_eq!(backend.gpus(), Err(BackendError::Unresponsive));
    let status = backend.status();
    assert_eq!((status.file, status.stuck_calls), (None, 1));
    machine.hang(&[]);
    eventually("it is open", || backend.gpus().is_ok());
    assert_eq!(backend.status().openings, 1);
}

#[test]
fn a_gpu_that_fails_costs_only_itself() {
    let machine = Machine::new();
    let backend = machine.backend();
    let (mut all, _) = uuids(&backend.gpus().unwrap());
    let lost = all.remove(6);
    machine.change(|state| state.lost = vec![lost.clone()]);
    assert_eq!(uuids(&backend.gpus().unwrap()), (all, Vec::new()));
    assert_eq!(backend.processes(&lost), Err(BackendError::Gone(lost)));
}

#[test]
fn before_the_gpus_were_listed_none_is_taken_for_one_that_is_lost_and_none_waits_behind_one_that_hangs()
 {
    let machine = Machine::new();
    let (all, _) = uuids(&machine.backend().gpus().unwrap());
    let [lost, hung, .., used] = &all[..] else {
        panic!("{all:?}")
    };
    machine.change(|state| {
        state.lost = vec![lost.clone()];
        state.processes = vec![Process {
            gpu: used.clone(),
            pid: 4242,
            used_bytes: 0,
        }];
    });
    machine.hang(&[("", hung)]);
    let backend = machine.backend();
    let processes = backend.processes(used).unwrap();
    assert_eq!(processes.len(), 1, "it would be given away");
    assert_eq!(backend.status().stuck_calls, 1);
    // What hangs may be any that nobody says to be.
    let other = "GPU-other".to_owned();
    assert_eq!(backend.processes(&other), Err(BackendError::Unresponsive));
    machine.hang(&[]);
    eventually("no GPU is that one", || {
        backend.processes(&other) == Err(BackendError::Gone(other.clone()))
    });
    let gone = BackendError::Gone(lost.clone());
    assert_eq!(backend.processes(lost), Err(gone));
    assert_eq!(backend.processes(hung), Ok(Vec::new()));
}

#[test]
fn before_the_gpus_were_listed_nobody_waits_for_all_of_them_when_all_hang() {
    let machine = Machine::new();
    let (all, _) = uuids(&machine.backend().gpus().unwrap());
    let hangs: Vec<(&str, &str)> = all.iter().map(|gpu| ("", gpu.as_str())).collect();
    machine.hang(&hangs);
    let backend = machine.backend();
    let started = Instant::now();
    assert_eq!(backend.processes(&all[7]), Err(BackendError::Unresponsive));
    let waited = started.elapsed();
    assert!(waited < 5 * CALL_LIMIT, "{waited:?}");
    machine.hang(&[]);
}
