//! Processes, and the slices that they use.

use muster_device::Process;

use crate::{
    machine::{Machine, gpus},
    making::{h100, make},
};

fn uses(gpu: &str, pid: u32) -> nvidia_ml_mock::Process {
    nvidia_ml_mock::Process {
        gpu: gpu.to_owned(),
        pid,
        used_bytes: 1 << 30,
    }
}

fn process(pid: u32, gpu_instance: Option<u32>) -> Process {
    Process { pid, gpu_instance }
}

#[test]
fn processes_name_their_gpu_instance_whatever_list_they_are_in_and_however_long_its_entries_are() {
    let (machine, backend, gpu) = h100();
    let first = make(&backend, &gpu, "1g.10gb", 0).unwrap();
    let second = make(&backend, &gpu, "3g.40gb", 4).unwrap();
    let (one, other) = (first.uuid.unwrap(), second.uuid.unwrap());
    for is_early in [false, true] {
        machine.change(|state| {
            state.has_early_535_lists = is_early;
            state.processes = vec![uses(&one, 11), uses(&other, 12), uses(&one, 13)];
            state.graphics_processes = vec![uses(&other, 14)];
            // Without a slice it counts on the whole GPU.
            state.mps_processes = vec![uses(&gpu.uuid, 15), uses(&one, 11)];
        });
        let listed = backend.processes(&gpu.uuid).unwrap();
        let (first, second) = (Some(first.gpu_instance), Some(second.gpu_instance));
        assert_eq!(
            listed,
            [
                process(11, first),
                process(12, second),
                process(13, first),
                process(14, second),
                process(15, None),
            ],
            "{is_early}"
        );
    }
}

#[test]
fn long_lists_are_read_whole() {
    for is_early in [false, true] {
        let machine = Machine::new();
        let backend = machine.backend();
        let gpu = gpus(&backend).swap_remove(0).uuid;
        machine.change(|state| {
            state.has_early_535_lists = is_early;
            state.processes = (0..300).map(|pid| uses(&gpu, 1_000 + pid)).collect();
        });
        let listed = backend.processes(&gpu).unwrap();
        let expected: Vec<Process> = (0..300).map(|pid| process(1_000 + pid, None)).collect();
        assert_eq!(listed, expected, "{is_early}");
    }
}
