//! What outlives the program: all that was seen and is not mended, in `faults.json` beside the checkpoint.
//!
//! A file that cannot be read is set aside. What it said is found again, as far as it is of this boot, because the kernel's log is then read from its
//! oldest record on, and counts: somebody has watched before. Where there never was a file nobody has, and what the log says is to be
//! confirmed first. One of a later version is left alone: what is seen is published and not kept.
//!
//! Two instances run during an update. Each write raises the generation in the file, and is made only over the generation that its writer knows: who
//! was overtaken is told what stands there, takes it in ([`FaultState::take_in`]), and writes again.
//!
//! Where the disk fails nobody knows what was seen. A driver that began with nothing would take the taints off, and write nothing over what stands
//! there once the disk works again: so it does not begin.

use muster_device::faults::FaultState;

use super::remembering::{self, FaultBugs};
use crate::{
    prepare::DiskFailure,
    store::{self, Store},
};

/// File in the state directory.
const FILE: &str = "faults.json";

/// Reads what is remembered. An error says that the disk failed: what was seen may still be there. Blocking.
pub fn load(store: &Store, boot_id: &str) -> Result<FaultState, DiskFailure> {
    let _lock = store
        .lock()
        .map_err(|error| DiskFailure::new(error.to_string()))?;
    let is_first = store::was_never_beside(store, FILE)?;
    let remembered: Option<FaultState> = match store::load_beside(store, FILE) {
        Err(failure) if store::is_later_beside(store, FILE) => {
            tracing::error!(%failure, "faults of the GPUs are not remembered");
            None
        }
        remembered => remembered?,
    };
    let mut state = remembering::begin(remembered, boot_id, FaultBugs::default());
    if is_first {
        state.begin_first();
    }
    Ok(state)
}

/// What came of a write.
#[derive(Debug)]
#[must_use = "what was not written is to be written again"]
pub enum Written {
    /// It is on the disk, as of this generation.
    Done(u64),
    /// Another instance has written this since the generation that was known. Nothing was written.
    Overtaken(Box<FaultState>),
}

/// Writes it over this generation. Blocking; twice does no harm. A file that is not there any more, or cannot be read, is nobody's.
pub fn write(store: &Store, state: &FaultState, over: u64) -> Result<Written, DiskFailure> {
    let _lock = store
        .lock()
        .map_err(|error| DiskFailure::new(error.to_string()))?;
    let there: Option<FaultState> = store::load_beside(store, FILE)?;
    if let Some(there) = there.filter(|there| there.generation() != over) {
        return Ok(Written::Overtaken(Box::new(there)));
    }
    let next = over.saturating_add(1);
    let content = state.clone().with_generation(next);
    store::put_beside(store, FILE, &content)?;
    Ok(Written::Done(next))
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::symlink};

    use muster_device::{
        cdi,
        faults::{Cause, Device, FaultClass, KnownAddresses, Observation, Scope},
    };

    use super::*;

    fn store(directory: &tempfile::TempDir) -> Store {
        let cdi = cdi::Directory::new(directory.path(), "gpu.muster.dev", directory.path());
        Store::open(directory.path().join("state"), cdi).unwrap()
    }

    /// With a fault of `GPU-0`.
    fn faulty() -> FaultState {
        let mut state = FaultState::default();
        let known = KnownAddresses([("GPU-0".to_owned(), None)].into());
        let observation = Observation {
            class: FaultClass::Reset,
            scope: Scope::Gpu,
            cause: Cause::Xid(48),
        };
        let _ = state.observe(&Device::Uuid("GPU-0".to_owned()), observation, &known, 0);
        state
    }

    #[test]
    fn while_the_disk_fails_what_was_seen_is_not_taken_for_nothing_and_is_there_afterwards() {
        let directory = tempfile::tempdir().unwrap();
        let store = store(&directory);
        let written = write(&store, &faulty(), 0).unwrap();
        assert!(matches!(written, Written::Done(1)), "{written:?}");
        let lock = directory.path().join("state/lock");
        fs::remove_file(&lock).unwrap();
        fs::create_dir(&lock).unwrap();
        assert!(load(&store, "one").is_err(), "nobody can lock a directory");
        fs::remove_dir(&lock).unwrap();
        assert!(load(&store, "one").unwrap().gpus().contains_key("GPU-0"));
    }

    #[test]
    fn nothing_is_written_over_what_another_instance_wrote_meanwhile() {
        let directory = tempfile::tempdir().unwrap();
        let store = store(&directory);
        let written = write(&store, &faulty(), 0).unwrap();
        assert!(matches!(written, Written::Done(1)), "{written:?}");
        // It began before that.
        let empty = FaultState::default();
        let Written::Overtaken(there) = write(&store, &empty, 0).unwrap() else {
            panic!("it was written over");
        };
        assert!(there.gpus().contains_key("GPU-0"));
        assert_eq!(there.generation(), 1);
        let written = write(&store, &there, 1).unwrap();
        assert!(matches!(written, Written::Done(2)), "{written:?}");
        assert_eq!(load(&store, "one").unwrap().generation(), 2);
    }

    #[test]
    fn what_a_later_version_wrote_keeps_no_driver_from_beginning_and_stays_as_it_is() {
        let directory = tempfile::tempdir().unwrap();
        let store = store(&directory);
        let path = directory.path().join("state").join(FILE);
        let later = r#"{"schema": 999, "gpus": []}"#;
        fs::write(&path, later).unwrap();
        assert!(load(&store, "one").unwrap().gpus().is_empty());
        assert!(write(&store, &faulty(), 0).is_err());
        assert_eq!(fs::read_to_string(&path).unwrap(), later);
    }

    #[test]
    fn only_where_there_never_was_a_file_is_the_log_of_a_time_when_nobody_watched() {
        let directory = tempfile::tempdir().unwrap();
        let cdi = cdi::Directory::new(directory.path(), "gpu.muster.dev", directory.path());
        let path = directory.path().join("state");
        let store = Store::open(&path, cdi).unwrap();
        assert!(load(&store, "one").unwrap().is_log_old());
        // It ended before it had written anything.
        let mut state = load(&store, "one").unwrap();
        assert!(state.is_log_old());
        state.log_is_read();
        let written = write(&store, &state, 0).unwrap();
        assert!(matches!(written, Written::Done(_)), "{written:?}");
        assert!(!load(&store, "one").unwrap().is_log_old());
        assert!(!load(&store, "two").unwrap().is_log_old(), "a boot later");
        fs::write(path.join(FILE), "{").unwrap();
        assert!(
            !load(&store, "two").unwrap().is_log_old(),
            "it is set aside"
        );
        assert!(
            !load(&store, "two").unwrap().is_log_old(),
            "and stays there"
        );
    }

    /// What is set aside is there, wherever it leads: somebody has watched.
    #[test]
    fn a_link_in_place_of_the_file_is_no_sign_that_nobody_watched() {
        for target in ["nowhere", FILE] {
            let directory = tempfile::tempdir().unwrap();
            let cdi = cdi::Directory::new(directory.path(), "gpu.muster.dev", directory.path());
            let path = directory.path().join("state");
            let store = Store::open(&path, cdi).unwrap();
            symlink(target, path.join(FILE)).unwrap();
            for look in ["in its place", "set aside"] {
                assert!(
                    !load(&store, "one").unwrap().is_log_old(),
                    "{target} {look}"
                );
                let is_there = fs::symlink_metadata(path.join(FILE)).is_ok();
                assert!(!is_there, "{target} {look}: it is set aside");
            }
        }
    }
}
