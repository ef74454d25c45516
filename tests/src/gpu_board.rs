//! GPUs of a test node: the state file of the mock NVML library.

use std::{fs, path::Path};

use anyhow::{Context, Result};
use nvidia_ml_mock::State;

/// A machine of GPUs that the mock NVML library shows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Board {
    /// 8 H100 with 80 GB, all to all by NVSwitch.
    H100Nvswitch8,
    /// 2 T4 without NVLink.
    T4Pair,
}

impl Board {
    /// Number of its GPUs.
    pub fn gpus(&self) -> usize {
        match self {
            Self::H100Nvswitch8 => 8,
            Self::T4Pair => 2,
        }
    }

    /// Its name in the mock.
    fn name(&self) -> &'static str {
        match self {
            Self::H100Nvswitch8 => "h100-nvswitch-8",
            Self::T4Pair => "t4-2",
        }
    }

    /// The state of a machine of this name on which all is well.
    pub fn state(&self, node: &str) -> State {
        State {
            board: self.name().to_owned(),
            seed: node.to_owned(),
            ..State::default()
        }
    }
}

/// Writes a state file; by rename, because the library may read it at any moment.
pub fn write(file: &Path, state: &State) -> Result<()> {
    let partial = file.with_extension("new");
    fs::write(&partial, serde_json::to_vec_pretty(state)?)
        .and_then(|()| fs::rename(&partial, file))
        .with_context(|| format!("cannot write {}", file.display()))
}
