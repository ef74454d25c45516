//! Events, as they are waited for, and GPUs, as they are looked at.

use std::{
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant},
};

use muster_device::{
    BackendError,
    faults::{Catalogue, Errors, GpuEvent, GpuEventKind},
};
use nvidia_ml_mock::{CountedErrors, Event, RemappedRows};

use crate::{
    machine::{Machine, eventually, gpus},
    making::{h100, make},
};

const XID: u64 = 8;
const RECOVERY_ACTION: u64 = 32_768;
const MIG_CONFIG_CHANGE: u64 = 256;
/// A wait.
const BRIEFLY: Duration = Duration::from_millis(50);

fn event(gpu: &str, kind: u64, data: u64, slice: Option<(u32, u32)>) -> Event {
    Event {
        gpu: gpu.to_owned(),
        kind,
        data,
        gpu_instance: slice.map(|(gpu_instance, _)| gpu_instance),
        compute_instance: slice.map(|(_, compute_instance)| compute_instance),
        ..Event::default()
    }
}

fn report(machine: &Machine, event: Event) {
    machine.change(|state| state.report(event));
}

fn heard(gpu: &str, kind: GpuEventKind, slice: Option<(u32, u32)>) -> GpuEvent {
    GpuEvent {
        gpu: Some(gpu.to_owned()),
        kind,
        gpu_instance: slice.map(|(gpu_instance, _)| gpu_instance),
        compute_instance: slice.map(|(_, compute_instance)| compute_instance),
    }
}

fn uuids(backend: &muster_device::Backend) -> Vec<String> {
    gpus(backend).into_iter().map(|gpu| gpu.uuid).collect()
}

#[test]
fn events_are_heard_once_in_their_order_with_the_slice_that_they_are_about() {
    let machine = Machine::new();
    let backend = machine.backend();
    let gpus = uuids(&backend);
    let first = backend.wait_for_events(BRIEFLY).unwrap();
    assert!(first.is_anew && first.events.is_empty() && first.unheard.is_empty());
    report(&machine, event(&gpus[1], XID, 94, Some((9, 0))));
    report(&machine, event(&gpus[0], XID, 79, None));
    report(&machine, event(&gpus[0], MIG_CONFIG_CHANGE, 0, None));
    report(&machine, event(&gpus[7], RECOVERY_ACTION, 1, None));
    let second = backend.wait_for_events(BRIEFLY).unwrap();
    assert!(!second.is_anew && !second.is_broken);
    let expected = [
        heard(&gpus[1], GpuEventKind::Xid(94), Some((9, 0))),
        heard(&gpus[0], GpuEventKind::Xid(79), None),
        heard(&gpus[7], GpuEventKind::RecoveryAction, None),
    ];
    assert_eq!(second.events, expected);
    assert!(backend.wait_for_events(BRIEFLY).unwrap().events.is_empty());
}

#[test]
fn nothing_of_a_storm_is_lost() {
    const COUNT: u32 = 300;
    let machine = Machine::new();
    let backend = machine.backend();
    let gpu = uuids(&backend).swap_remove(0);
    drop(backend.wait_for_events(Duration::ZERO).unwrap());
    machine.change(|state| {
        for xid in 0..COUNT {
            state.report(event(&gpu, XID, xid.into(), None));
        }
    });
    let mut xids = Vec::new();
    eventually("all are heard", || {
        let events = backend.wait_for_events(BRIEFLY).unwrap().events;
        xids.extend(events.into_iter().map(|event| event.kind));
        xids.len() >= COUNT as usize
    });
    assert!(xids.into_iter().eq((0..COUNT).map(GpuEventKind::Xid)));
}

#[test]
fn a_gpu_that_is_lost_is_named_and_the_others_are_heard() {
    let machine = Machine::new();
    let backend = machine.backend();
    let gpus = uuids(&backend);
    drop(backend.wait_for_events(Duration::ZERO).unwrap());
    machine.change(|state| state.lost.push(gpus[2].clone()));
    assert!(backend.wait_for_events(BRIEFLY).unwrap().is_broken);
    let next = backend.wait_for_events(BRIEFLY).unwrap();
    assert!(next.is_anew && !next.is_broken);
    assert_eq!(next.lost, [gpus[2].as_str()]);
    report(&machine, event(&gpus[3], XID, 48, None));
    let events = backend.wait_for_events(BRIEFLY).unwrap().events;
    assert_eq!(events, [heard(&gpus[3], GpuEventKind::Xid(48), None)]);
}

#[test]
fn a_gpu_that_hangs_keeps_nobody_from_hearing_of_the_others() {
    let machine = Machine::new();
    let backend = machine.backend();
    let gpus = uuids(&backend);
    machine.hang(&[("", &gpus[3])]);
    let first = backend.wait_for_events(Duration::ZERO).unwrap();
    assert_eq!(first.unheard, [(3, BackendError::Unresponsive)]);
    report(&machine, event(&gpus[4], XID, 48, None));
    let events = backend.wait_for_events(BRIEFLY).unwrap().events;
    assert_eq!(events, [heard(&gpus[4], GpuEventKind::Xid(48), None)]);
    machine.hang(&[]);
    let expected = heard(&gpus[3], GpuEventKind::Xid(79), None);
    eventually("it is heard again", || {
        report(&machine, event(&gpus[3], XID, 79, None));
        let told = backend.wait_for_events(BRIEFLY).unwrap();
        told.events.contains(&expected)
    });
}

#[test]
fn who_was_released_listens_anew_and_says_so() {
    let machine = Machine::new();
    let backend = machine.backend();
    let gpu = uuids(&backend).swap_remove(0);
    drop(backend.wait_for_events(Duration::ZERO).unwrap());
    let released = backend.release("a GPU is being reset").unwrap();
    let error = backend.wait_for_events(Duration::ZERO).unwrap_err();
    assert!(matches!(error, BackendError::Unavailable(_)), "{error}");
    drop(released);
    assert!(backend.wait_for_events(Duration::ZERO).unwrap().is_anew);
    report(&machine, event(&gpu, XID, 48, None));
    let events = backend.wait_for_events(BRIEFLY).unwrap().events;
    assert_eq!(events, [heard(&gpu, GpuEventKind::Xid(48), None)]);
}

#[test]
fn who_listens_keeps_nobody_from_closing_nvml() {
    let machine = Machine::new();
    let backend = machine.backend();
    drop(gpus(&backend));
    let (is_over, listens) = (AtomicBool::new(false), AtomicBool::new(false));
    thread::scope(|scope| {
        scope.spawn(|| {
            let deadline = Instant::now() + Duration::from_mins(2);
            while !is_over.load(Ordering::SeqCst) && Instant::now() < deadline {
                // While it is closed it is an error.
                if backend.wait_for_events(4 * BRIEFLY).is_ok() {
                    listens.store(true, Ordering::SeqCst);
                }
            }
        });
        for _ in 0..3 {
            eventually("it listens", || listens.swap(false, Ordering::SeqCst));
            let released = backend.release("a GPU is being reset");
            // Whoever listens is to end, whatever came of it.
            is_over.store(released.is_err(), Ordering::SeqCst);
            drop(released.unwrap());
        }
        is_over.store(true, Ordering::SeqCst);
    });
}

#[test]
fn a_look_tells_what_the_driver_wants_done_and_how_the_memory_and_the_links_are() {
    let (machine, backend, gpu) = h100();
    machine.change(|state| {
        let card = state.card(&gpu.uuid);
        card.mig_current = false;
        card.mig_pending = false;
    });
    let healthy = backend.condition(&gpu.uuid).unwrap();
    assert_eq!(healthy.recovery_action, Some(0));
    assert_eq!(healthy.row_remap_pending, Some(false));
    assert_eq!(healthy.row_remap_failure, Some(false));
    assert_eq!(healthy.is_throttled, Some(false));
    assert!(healthy.active_links > Some(0), "{healthy:?}");
    let found = healthy.observations(
        &Catalogue::shipped(),
        healthy.active_links,
        &Errors::default(),
    );
    assert!(found.is_empty(), "{found:?}");
    machine.change(|state| {
        let card = state.card(&gpu.uuid);
        card.recovery_action = 4;
        card.remapped_rows = RemappedRows {
            is_pending: true,
            has_failed: true,
            ..RemappedRows::default()
        };
        // For heat; that it is idle (1) would harm nobody.
        card.throttle_reasons = 0x41;
    });
    let broken = backend.condition(&gpu.uuid).unwrap();
    assert_eq!(broken.recovery_action, Some(4));
    assert_eq!(broken.row_remap_pending, Some(true));
    assert_eq!(broken.row_remap_failure, Some(true));
    assert_eq!(broken.is_throttled, Some(true));
    assert_eq!(backend.recovery_action(&gpu.uuid), Ok(Some(4)));
    // Errors are told by their number.
    assert_eq!(broken.errors.corrected_ecc, Some(0));
    machine.change(|state| {
        let card = state.card(&gpu.uuid);
        card.mig_current = false;
        card.mig_pending = false;
        card.counted_errors = CountedErrors {
            corrected_ecc: 7,
            uncorrected_ecc: 1,
            link_replays: 3,
            link_recoveries: 5,
        };
    });
    let counted = backend.condition(&gpu.uuid).unwrap().errors;
    let expected = Errors {
        corrected_ecc: Some(7),
        uncorrected_ecc: Some(1),
        links: Some(3),
    };
    assert_eq!(counted, expected);
    machine.change(|state| state.card(&gpu.uuid).recovery_action = 4);
    // Cut into slices it needs no links, and does not tell of its rows.
    machine.in_mig_mode(&gpu.uuid);
    make(&backend, &gpu, "1g.10gb", 0).unwrap();
    let cut = backend.condition(&gpu.uuid).unwrap();
    assert_eq!((cut.active_links, cut.row_remap_failure), (None, None));
    assert_eq!(cut.recovery_action, Some(4));
    machine.change(|state| state.lost.push(gpu.uuid.clone()));
    let gone = backend.condition(&gpu.uuid);
    assert_eq!(gone, Err(BackendError::Gone(gpu.uuid)));
}

#[test]
fn errors_of_nvlinks_are_told_by_the_counters_that_the_part_has() {
    for (board, expected) in [("h100-nvswitch-8", 3), ("b200-nvswitch-8", 5)] {
        let machine = Machine::of(board);
        let backend = machine.backend();
        let gpu = gpus(&backend).swap_remove(0);
        machine.change(|state| {
            state.card(&gpu.uuid).counted_errors = CountedErrors {
                link_replays: 3,
                link_recoveries: 5,
                ..CountedErrors::default()
            };
        });
        let counted = backend.condition(&gpu.uuid).unwrap().errors;
        assert_eq!(counted.links, Some(expected), "{board}");
    }
}
