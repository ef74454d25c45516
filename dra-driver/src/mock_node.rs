//! A node with the mock of NVML and a checkpoint, and what claims have of it: for tests.

use std::{fs, sync::Arc, time::Duration};

use muster_device::{Backend, BackendConfig, LibrarySource, cdi};
use nvidia_ml_mock::{STATE_FILE, State, StateFile};

use crate::{
    prepare::{Acknowledged, ClaimRef, Record, RecordState, RecordedDevice, Unit, Write},
    store::Store,
};

/// Eight H100 behind NVSwitches.
pub(crate) const EIGHT_H100: &str = "h100-nvswitch-8";
/// The boot in which it runs.
pub(crate) const BOOT: &str = "boot";

/// The node. Its files go with it.
pub(crate) struct MockNode {
    pub(crate) directory: tempfile::TempDir,
    /// What the cards are made to say.
    pub(crate) card: StateFile,
    pub(crate) backend: Arc<Backend>,
    /// Without any generation that was acknowledged.
    pub(crate) store: Store,
}

impl MockNode {
    /// One of eight H100.
    pub(crate) fn new() -> Self {
        Self::of(EIGHT_H100, None)
    }

    /// One of eight H100 whose NVML is waited for no longer than this.
    pub(crate) fn with_call_limit(limit: Duration) -> Self {
        Self::of(EIGHT_H100, Some(limit))
    }

    /// One with this board.
    pub(crate) fn of(board: &str, call_limit: Option<Duration>) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path();
        let library = path.join("libnvidia-ml.so.1");
        fs::copy(nvidia_ml_mock::library().unwrap(), &library).unwrap();
        let card = StateFile::at(path.join(STATE_FILE));
        let state = State {
            board: board.to_owned(),
            ..State::default()
        };
        card.write(&state).unwrap();
        let mut config = BackendConfig::new(LibrarySource::File(library));
        if let Some(limit) = call_limit {
            config.call_limit = limit;
        }
        let cdi = cdi::Directory::new(path, "gpu.muster.dev", path);
        let store = Store::open(path.join("state"), cdi).unwrap();
        Self {
            card,
            backend: Arc::new(Backend::new(config)),
            store,
            directory,
        }
    }

    /// A generation is acknowledged: the records say who holds what.
    pub(crate) fn acknowledge(&self) {
        let known = Write::PutNode {
            boot_id: BOOT.to_owned(),
            acknowledged: Some(acknowledged()),
        };
        let lock = self.store.lock().unwrap();
        self.store.apply(&lock, &known).unwrap();
    }

    /// UUIDs of its GPUs.
    pub(crate) fn gpus(&self) -> Vec<String> {
        let listed = self.backend.gpus().unwrap().gpus.into_iter();
        listed.map(|listed| listed.gpu.uuid).collect()
    }
}

/// The generation of no object.
pub(crate) fn acknowledged() -> Acknowledged {
    Acknowledged {
        uid: None,
        generation: 0,
        enforce: false,
    }
}

/// Claim `c`.
pub(crate) fn claim() -> ClaimRef {
    ClaimRef {
        uid: "c".to_owned(),
        namespace: "ml".to_owned(),
        name: "claim".to_owned(),
    }
}

/// That claim, with this part of a GPU.
pub(crate) fn prepared(unit: Unit) -> Record {
    Record {
        claim: claim(),
        state: RecordState::Prepared,
        call: None,
        by_name: None,
        pods: Vec::new(),
        devices: vec![RecordedDevice {
            request: "gpu".to_owned(),
            pool: "node-0".to_owned(),
            device: "gpu-0".to_owned(),
            unit,
            minor: 0,
            admin_access: false,
            slice: None,
        }],
    }
}
