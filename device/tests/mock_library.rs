//! The backend on the mock `libnvidia-ml.so`, loaded as the real one is.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::{
    fs, thread,
    time::{Duration, Instant},
};

use muster_device::{
    Backend, BackendConfig, BackendError, FabricState, Gpu, LibrarySource, Process,
};
use nvidia_ml_mock::{STATE_VARIABLE, State, library, uuid};

const LIMIT: Duration = Duration::from_secs(30);

fn backend() -> Backend {
    Backend::new(BackendConfig {
        sysfs: "/nonexistent-muster".into(),
        proc: "/nonexistent-muster".into(),
        ..BackendConfig::new(LibrarySource::File(library().unwrap()))
    })
}

fn gpus(backend: &Backend) -> Vec<Gpu> {
    let listed = backend.gpus().unwrap();
    assert!(listed.gpus.iter().all(|gpu| gpu.silent.is_none()));
    listed.gpus.into_iter().map(|listed| listed.gpu).collect()
}

/// One test, since the library's state file is named by the environment of the process.
#[test]
fn the_backend_reads_what_the_library_says() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("state.json");
    let write = |state: &State| {
        let next = directory.path().join("next.json");
        fs::write(&next, serde_json::to_vec(state).unwrap()).unwrap();
        fs::rename(&next, &path).unwrap();
    };
    // SAFETY: this program has one test, and no other thread reads the environment yet.
    unsafe { std::env::set_var(STATE_VARIABLE, &path) };

    // Before the driver is there, the library says so, and a later question succeeds.
    let backend = backend();
    assert!(matches!(backend.gpus(), Err(BackendError::Unavailable(_))));

    let mut state = State {
        board: "h100-nvswitch-8".to_owned(),
        seed: "node-0".to_owned(),
        ..State::default()
    };
    write(&state);
    let deadline = Instant::now() + LIMIT;
    while backend.gpus().is_err() {
        assert!(Instant::now() < deadline, "it is not opened");
        thread::sleep(Duration::from_millis(10));
    }
    let all = gpus(&backend);
    assert_eq!(all.len(), 8);
    let fifth = all.get(5).unwrap();
    assert_eq!(fifth.uuid, uuid("node-0", "00000000:C3:00.0"));
    assert_eq!(fifth.device_name(), "gpu-5");
    assert_eq!(fifth.pci_bus_id, "0000:c3:00.0");
    assert_eq!(fifth.pcie_root, "pci0000:c3");
    assert_eq!(fifth.product_name, "NVIDIA H100 80GB HBM3");
    assert_eq!(fifth.architecture, "Hopper");
    assert_eq!(fifth.memory_bytes, Some(81_559 << 20));
    assert_eq!(fifth.numa_node, Some(1));
    assert_eq!(fifth.minor, 5);
    assert_eq!(fifth.cuda_compute_capability, (9, 0));
    assert_eq!(fifth.driver_version, "580.95.05");
    assert_eq!(fifth.fabric_clique, None);
    assert_eq!(fifth.fabric, FabricState::Completed);
    assert_eq!(fifth.rdma_nic, None);
    assert_eq!(
        (fifth.nvlink.pair, fifth.nvlink.quad, fifth.nvlink.group),
        (4, 4, 0)
    );

    // While the fabric manager has not come to the GPUs nothing starts on them.
    for (told, expected) in [
        (Some(1), FabricState::None),
        (Some(2), FabricState::Unfinished),
        (None, FabricState::Completed),
    ] {
        state.fabric_state = told;
        write(&state);
        let states: Vec<_> = gpus(&backend).iter().map(|gpu| gpu.fabric).collect();
        assert_eq!(states, [expected; 8], "{told:?}");
    }

    // Processes come and go.
    assert_eq!(backend.processes(&fifth.uuid).unwrap(), []);
    state.processes = vec![nvidia_ml_mock::Process {
        gpu: fifth.uuid.clone(),
        pid: 4242,
        used_bytes: 1 << 30,
    }];
    write(&state);
    assert_eq!(
        backend.processes(&fifth.uuid).unwrap(),
        [Process {
            pid: 4242,
            gpu_instance: None
        }]
    );
    assert_eq!(backend.processes(&all.first().unwrap().uuid).unwrap(), []);

    // One that does not tell costs itself.
    let first = &all.first().unwrap().uuid;
    state.secretive = vec![first.clone()];
    write(&state);
    assert!(matches!(
        backend.processes(first),
        Err(BackendError::Failed(_))
    ));
    assert_eq!(
        backend.processes(&fifth.uuid).unwrap(),
        [Process {
            pid: 4242,
            gpu_instance: None
        }]
    );

    // That there are no lists does not say that nobody is there.
    state.secretive.clear();
    state.without_lists = vec![first.clone()];
    write(&state);
    assert!(matches!(
        backend.processes(first),
        Err(BackendError::Failed(_))
    ));

    // A GPU that falls off the bus is gone, and the others are not.
    state.lost = vec![fifth.uuid.clone()];
    write(&state);
    assert_eq!(gpus(&backend).len(), 7);
    assert!(matches!(
        backend.processes(&fifth.uuid),
        Err(BackendError::Gone(_))
    ));

    // A board without NVLink, MIG or fabric.
    write(&State {
        board: "t4-2".to_owned(),
        ..State::default()
    });
    let others = gpus(&backend);
    let groups: Vec<_> = others.iter().map(|gpu| gpu.nvlink).collect();
    assert_eq!(
        groups.iter().map(|nvlink| nvlink.group).collect::<Vec<_>>(),
        [0, 1]
    );
    assert_eq!(others.first().unwrap().architecture, "Turing");
    assert_eq!(others.first().unwrap().fabric, FabricState::None);
}
