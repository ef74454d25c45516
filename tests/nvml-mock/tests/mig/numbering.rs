//! A machine that was started again may number its GPUs otherwise.

use std::collections::BTreeMap;

use crate::card::{Machine, at};

/// Index and minor number of each GPU, by UUID.
fn numbers(machine: &Machine) -> BTreeMap<String, (u32, u32)> {
    let of = |index: u32| {
        let device = machine.gpu(index);
        let (mut told, mut minor) = (u32::MAX, u32::MAX);
        call!(machine, nvmlDeviceGetIndex(device, &raw mut told)).unwrap();
        call!(machine, nvmlDeviceGetMinorNumber(device, &raw mut minor)).unwrap();
        assert_eq!(told, index);
        (machine.uuid(device), (index, minor))
    };
    (0..4).map(of).collect()
}

#[test]
fn after_a_reboot_indices_and_minors_may_be_others_and_the_gpus_are_the_same() {
    let machine = Machine::new("a30-4");
    let device = machine.gpu(1);
    machine.enable(device);
    machine.create(device, 14, at(0, 1)).unwrap();
    let before = numbers(&machine);
    machine.change(|state| {
        state.reboot();
        state.index_order = vec!["00000000:E3:00.0".to_owned(), "00000000:65:00.0".to_owned()];
        for (minor, uuid) in (0..4).rev().zip(before.keys()) {
            state.card(uuid).minor = Some(minor);
        }
    });
    let after = numbers(&machine);
    assert!(before.keys().eq(after.keys()));
    assert_ne!(before, after);
    let minors: Vec<u32> = after.values().map(|(_, minor)| *minor).collect();
    assert_eq!(minors, [3, 2, 1, 0]);
    // Ampere stays in its mode, and its slices are gone.
    let uuid = before.iter().find(|(_, (index, _))| *index == 1);
    let (uuid, _) = uuid.unwrap();
    let (index, _) = after.get(uuid).unwrap();
    let device = machine.gpu(*index);
    assert_eq!(machine.mode(device), Ok((1, 1)));
    assert_eq!(machine.instances(device), []);
}
