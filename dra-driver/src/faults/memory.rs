//! What outlives the program: all that was seen and is not mended, in `faults.json` beside the checkpoint.
//!
//! A file that cannot be read is set aside. What it said is found again, as far as it is of this boot, because the kernel's log is then read from its
//! oldest record on. One of a later version is left alone: what is seen is published and not kept.

use muster_device::faults::FaultState;

use crate::{
    prepare::DiskFailure,
    store::{self, Store},
};

/// File in the state directory.
const FILE: &str = "faults.json";

/// Reads what is remembered. Blocking.
pub fn load(store: &Store, boot_id: &str) -> FaultState {
    let load = || -> Result<Option<FaultState>, DiskFailure> {
        let _lock = store
            .lock()
            .map_err(|error| DiskFailure::new(error.to_string()))?;
        store::load_beside(store, FILE)
    };
    let mut state = load()
        .inspect_err(|failure| tracing::error!(%failure, "faults of the GPUs are not remembered"))
        .ok()
        .flatten()
        .unwrap_or_default();
    state.begin_boot(boot_id);
    state
}

/// Writes it. Blocking; twice does no harm.
pub fn write(store: &Store, state: &FaultState) -> Result<(), DiskFailure> {
    let _lock = store
        .lock()
        .map_err(|error| DiskFailure::new(error.to_string()))?;
    store::put_beside(store, FILE, state)
}
