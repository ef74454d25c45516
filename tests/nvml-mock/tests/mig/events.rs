//! Event sets.

use std::time::{Duration, Instant};

use nvidia_ml_mock::Event;
use nvml_wrapper_sys::bindings::{nvmlEventData_t, nvmlEventSet_t};

use crate::card::{GPU_IS_LOST, INVALID_ARGUMENT, Machine, NOT_SUPPORTED, TIMEOUT, at};

const XID: u64 = 8;
const DOUBLE_BIT_ECC: u64 = 2;
const MIG_CONFIG_CHANGE: u64 = 256;
/// More than any of these tests needs.
const LONG: u32 = 30_000;

fn set(machine: &Machine) -> nvmlEventSet_t {
    let mut set = std::ptr::null_mut();
    call!(machine, nvmlEventSetCreate(&raw mut set)).unwrap();
    set
}

fn wait(machine: &Machine, set: nvmlEventSet_t, milliseconds: u32) -> Result<nvmlEventData_t, u32> {
    let mut data = nvmlEventData_t {
        device: std::ptr::null_mut(),
        eventType: 0,
        eventData: 0,
        gpuInstanceId: 0,
        computeInstanceId: 0,
    };
    call!(
        machine,
        nvmlEventSetWait_v2(set, &raw mut data, milliseconds)
    )
    .map(|()| data)
}

fn report(machine: &Machine, gpu: &str, kind: u64, data: u64, slice: Option<(u32, u32)>) {
    machine.change(|state| {
        state.report(Event {
            gpu: gpu.to_owned(),
            kind,
            data,
            gpu_instance: slice.map(|(gpu_instance, _)| gpu_instance),
            compute_instance: slice.map(|(_, compute_instance)| compute_instance),
            ..Event::default()
        });
    });
}

#[test]
fn a_set_reports_what_it_is_registered_for_in_order_and_once() {
    let machine = Machine::new("h100-nvswitch-8");
    let (first, second) = (machine.gpu(0), machine.gpu(1));
    let (one, other) = (machine.uuid(first), machine.uuid(second));
    report(&machine, &one, XID, 1, None);
    let events = set(&machine);
    report(&machine, &one, XID, 2, None);
    call!(machine, nvmlDeviceRegisterEvents(first, XID, events)).unwrap();
    assert_eq!(
        wait(&machine, events, 0).err(),
        Some(TIMEOUT),
        "all were before"
    );
    report(&machine, &one, XID, 79, None);
    report(&machine, &other, XID, 3, None);
    report(&machine, &one, DOUBLE_BIT_ECC, 0, None);
    report(&machine, &one, XID, 94, Some((9, 0)));
    let told = wait(&machine, events, LONG).unwrap();
    assert_eq!(
        (told.device, told.eventType, told.eventData),
        (first, XID, 79)
    );
    assert_eq!(
        (told.gpuInstanceId, told.computeInstanceId),
        (u32::MAX, u32::MAX)
    );
    let told = wait(&machine, events, LONG).unwrap();
    assert_eq!(told.eventData, 94);
    assert_eq!((told.gpuInstanceId, told.computeInstanceId), (9, 0));
    assert_eq!(wait(&machine, events, 0).err(), Some(TIMEOUT));
    call!(machine, nvmlEventSetFree(events)).unwrap();
    assert_eq!(wait(&machine, events, 0).err(), Some(INVALID_ARGUMENT));
}

#[test]
fn a_wait_lasts_until_there_is_something() {
    let machine = Machine::new("h100-nvswitch-8");
    let device = machine.gpu(0);
    let uuid = machine.uuid(device);
    let events = set(&machine);
    call!(machine, nvmlDeviceRegisterEvents(device, XID, events)).unwrap();
    let started = Instant::now();
    assert_eq!(wait(&machine, events, 50).err(), Some(TIMEOUT));
    assert!(started.elapsed() >= Duration::from_millis(50));
    std::thread::scope(|scope| {
        scope.spawn(|| report(&machine, &uuid, XID, 48, None));
        assert_eq!(wait(&machine, events, LONG).unwrap().eventData, 48);
    });
}

#[test]
fn a_lost_gpu_ends_the_wait_of_its_set_and_of_no_other() {
    let machine = Machine::new("h100-nvswitch-8");
    let (first, second) = (machine.gpu(0), machine.gpu(1));
    let sets = [first, second].map(|device| {
        let events = set(&machine);
        call!(machine, nvmlDeviceRegisterEvents(device, XID, events)).unwrap();
        events
    });
    let uuid = machine.uuid(first);
    machine.change(|state| state.lost.push(uuid.clone()));
    let ends = sets.map(|events| wait(&machine, events, 0).err());
    assert_eq!(ends, [Some(GPU_IS_LOST), Some(TIMEOUT)]);
}

#[test]
fn whoever_listens_hears_that_slices_were_made() {
    let machine = Machine::new("h100-nvswitch-8");
    let device = machine.gpu(0);
    machine.enable(device);
    let events = set(&machine);
    call!(
        machine,
        nvmlDeviceRegisterEvents(device, MIG_CONFIG_CHANGE, events)
    )
    .unwrap();
    machine.create(device, 19, at(0, 1)).unwrap();
    let told = wait(&machine, events, LONG).unwrap();
    assert_eq!((told.device, told.eventType), (device, MIG_CONFIG_CHANGE));
    assert_eq!(wait(&machine, events, 0).err(), Some(TIMEOUT));
}

#[test]
fn only_what_the_board_reports_can_be_registered() {
    let machine = Machine::new("t4-2");
    let device = machine.gpu(0);
    let events = set(&machine);
    let register = |kinds: u64| call!(machine, nvmlDeviceRegisterEvents(device, kinds, events));
    let mut kinds = 0;
    call!(
        machine,
        nvmlDeviceGetSupportedEventTypes(device, &raw mut kinds)
    )
    .unwrap();
    assert_eq!(register(kinds), Ok(()));
    assert_eq!(register(MIG_CONFIG_CHANGE), Err(NOT_SUPPORTED));
    assert_eq!(register(1 << 40), Err(INVALID_ARGUMENT));
}
