//! A storm of events, as they come from NVML.

use std::time::Duration;

use futures::FutureExt;
use muster_device::{
    BackendConfig, LibrarySource, Listed, ListedGpu, cdi,
    faults::{FaultClass, GpuEventKind},
};

use super::*;
use crate::{
    faults::remedy::{
        check::Outcome,
        run::{Ended, How},
        validating::taken_up,
    },
    inventory::fixtures,
};

const GPUS: u32 = 8;
const SECONDS: u32 = 5;
const EVENTS_PER_SECOND: u32 = 10_000;
/// Of one wait for NVML, at the most (`device/src/nvml/events.rs`).
const EVENTS_OF_WAIT: usize = 1_024;

fn uuid(index: u32) -> String {
    format!("GPU-{index}")
}

/// One that has never seen anything, of a node whose NVML does not answer: what the driver wants done with a GPU it does not say.
fn eye(directory: &tempfile::TempDir) -> Eye {
    let gpus = (0..GPUS).map(|index| ListedGpu {
        gpu: fixtures::gpu(&uuid(index), index, &format!("0000:{index:02x}:00.0")),
        silent: None,
    });
    let listed = Listed {
        gpus: gpus.collect(),
        unidentified: Vec::new(),
    };
    let known = KnownGpus::default().after("boot", &listed);
    let cdi = cdi::Directory::new(directory.path(), "gpu.muster.dev", directory.path());
    let store = Store::open(directory.path().join("state"), cdi).unwrap();
    let library = LibrarySource::File("/nonexistent-muster".into());
    let (_, catalogue) = watch::channel(Arc::new(Catalogue::shipped()));
    let (_, gpus) = watch::channel(Some(known));
    Eye::new(
        Arc::new(Backend::new(BackendConfig::new(library))),
        store,
        catalogue,
        gpus,
        FaultState::default(),
    )
}

fn event(index: u32, xid: u32) -> GpuEvent {
    GpuEvent {
        gpu: Some(uuid(index)),
        kind: GpuEventKind::Xid(xid),
        gpu_instance: None,
        compute_instance: None,
    }
}

/// Five seconds of ten thousand events a second of one GPU, and a fault of another among them: nothing waits for anything, so each is
/// remembered with the wait that it was heard by.
#[test]
fn a_storm_of_one_gpu_is_kept_up_with_hides_no_fault_and_is_as_little_to_keep_as_its_first_second()
{
    let directory = tempfile::tempdir().unwrap();
    let eye = eye(&directory);
    let begun = Instant::now();
    let mut bytes = Vec::new();
    // How often there was something to write, and to tell.
    let mut news = 0;
    for second in 0..SECONDS {
        let mut events: Vec<GpuEvent> = (0..EVENTS_PER_SECOND)
            .map(|number| event(0, [13, 31, 43, 63][number as usize % 4]))
            .collect();
        if second == 2 {
            // A milder one follows it.
            events[5_000] = event(5, 79);
            events[5_001] = event(5, 43);
        }
        for wait in events.chunks(EVENTS_OF_WAIT) {
            eye.heard(wait.to_vec());
            news += u32::from(eye.news.notified().now_or_never().is_some());
            let is_heard = wait.contains(&event(5, 79));
            if is_heard {
                let state = eye.state();
                let fault = state.fault(&uuid(5), None).map(|fault| fault.class);
                assert_eq!(fault, Some(FaultClass::Reboot), "at once");
            }
        }
        bytes.push(serde_json::to_vec(&*eye.state()).unwrap().len());
    }
    let took = begun.elapsed();
    assert!(took < Duration::from_secs(SECONDS.into()), "{took:?}");
    let state = eye.state();
    for index in (0..GPUS).filter(|index| *index != 5) {
        assert!(state.fault(&uuid(index), None).is_none(), "GPU {index}");
    }
    let fault = state.fault(&uuid(5), None).map(|fault| fault.class);
    assert_eq!(fault, Some(FaultClass::Reboot));
    // Two classes of the one, two of the other.
    assert!(news <= 4, "{news} writes");
    let growth = bytes[bytes.len() - 1] - bytes[0];
    assert!(growth < 1_024, "{bytes:?}");
    // Each was counted.
    let causes = state.gpus()[&uuid(0)].all().iter();
    let counted: u64 = causes.flat_map(|fault| fault.causes.values()).sum();
    assert_eq!(counted, u64::from(SECONDS * EVENTS_PER_SECOND) - 2);
}

/// Else a GPU that was reset, and is in order, would be reset once more, and then be one to be exchanged.
#[test]
fn a_validation_that_could_not_be_run_has_not_found_a_gpu_out_of_order() {
    let directory = tempfile::tempdir().unwrap();
    let eye = eye(&directory).with_validation(true);
    let uuid = uuid(0);
    eye.note_validation_due(&uuid, true);
    let ended = |how| Ended {
        how,
        output: String::new(),
    };
    let not_run = ended(How::NotRun("status 127".to_owned()));
    let _ = taken_up(&eye, &uuid, &Outcome::NotRun(not_run));
    assert!(eye.awaits_first_validation(&uuid));
    let found = Outcome::OutOfOrder(Some(1), ended(How::Exited(1)));
    let _ = taken_up(&eye, &uuid, &found);
    assert!(!eye.awaits_first_validation(&uuid));
}
