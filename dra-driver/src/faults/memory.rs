//! What outlives the program: all that was seen and is not mended, in `faults.json` beside the checkpoint.
//!
//! A file that cannot be read is set aside. What it said is found again, as far as it is of this boot, because the kernel's log is then read from its
//! oldest record on, and counts: somebody has watched before. Where there never was a file nobody has, and what the log says is to be
//! confirmed first. One of a later version is left alone: what is seen is published and not kept.

use muster_device::faults::FaultState;

use crate::{
    prepare::DiskFailure,
    store::{self, Store},
};

/// File in the state directory.
const FILE: &str = "faults.json";

/// Reads what is remembered. Blocking.
pub fn load(store: &Store, boot_id: &str) -> FaultState {
    let load = || -> Result<(Option<FaultState>, bool), DiskFailure> {
        let _lock = store
            .lock()
            .map_err(|error| DiskFailure::new(error.to_string()))?;
        let is_first = store::was_never_beside(store, FILE)?;
        Ok((store::load_beside(store, FILE)?, is_first))
    };
    let (state, is_first) = load()
        .inspect_err(|failure| tracing::error!(%failure, "faults of the GPUs are not remembered"))
        .unwrap_or_default();
    let mut state = state.unwrap_or_default();
    state.begin_boot(boot_id);
    if is_first {
        state.begin_first();
    }
    state
}

/// Writes it. Blocking; twice does no harm.
pub fn write(store: &Store, state: &FaultState) -> Result<(), DiskFailure> {
    let _lock = store
        .lock()
        .map_err(|error| DiskFailure::new(error.to_string()))?;
    store::put_beside(store, FILE, state)
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::symlink};

    use muster_device::cdi;

    use super::*;

    #[test]
    fn only_where_there_never_was_a_file_is_the_log_of_a_time_when_nobody_watched() {
        let directory = tempfile::tempdir().unwrap();
        let cdi = cdi::Directory::new(directory.path(), "gpu.muster.dev", directory.path());
        let path = directory.path().join("state");
        let store = Store::open(&path, cdi).unwrap();
        assert!(load(&store, "one").is_log_old());
        // It ended before it had written anything.
        let mut state = load(&store, "one");
        assert!(state.is_log_old());
        state.log_is_read();
        write(&store, &state).unwrap();
        assert!(!load(&store, "one").is_log_old());
        assert!(!load(&store, "two").is_log_old(), "a boot later");
        fs::write(path.join(FILE), "{").unwrap();
        assert!(!load(&store, "two").is_log_old(), "it is set aside");
        assert!(!load(&store, "two").is_log_old(), "and stays there");
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
                assert!(!load(&store, "one").is_log_old(), "{target} {look}");
                let is_there = fs::symlink_metadata(path.join(FILE)).is_ok();
                assert!(!is_there, "{target} {look}: it is set aside");
            }
        }
    }
}
