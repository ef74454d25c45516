//! What of the hardware a test can change.

use std::{fs, path::PathBuf};

use serde::{Deserialize, Serialize};

use crate::{board::Board, own_file};

/// Environment variable with the path of the state file.
pub const STATE_VARIABLE: &str = "MUSTER_NVML_MOCK_STATE";
/// Name of the state file beside the library, where that variable is not set.
pub const STATE_FILE: &str = "nvml-mock.json";

/// Content of the state file. Only `board` is needed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct State {
    /// Name of the board, one of [`crate::BOARDS`].
    pub board: String,
    /// What the UUIDs are made from (see [`uuid`]): give each node its own, the node's name, say.
    pub seed: String,
    /// Processes that use GPUs, beside those that CDI gave them to.
    pub processes: Vec<Process>,
    /// The processes that CDI gave GPUs to are not listed: hardware lists a process only once it has a context.
    pub hides_given: bool,
    /// UUIDs of GPUs that do not say which processes use them, and answer `UNKNOWN`.
    pub secretive: Vec<String>,
    /// UUIDs of GPUs of which the driver has no lists of processes, and answers `NOT_SUPPORTED`.
    pub without_lists: Vec<String>,
    /// UUIDs of GPUs that fell off the bus.
    pub lost: Vec<String>,
    /// How long every call takes, as when firmware is slow.
    pub delay_milliseconds: u64,
    /// Calls that do not return until this says otherwise, as when firmware hangs.
    pub hangs: Vec<Hang>,
    /// The kernel has no module of the driver.
    pub unloaded: bool,
    /// Version of the kernel's module; any that the library works with if empty. A library's own version is in its file name
    /// (`libnvidia-ml.so.580.95.05`), or that of the board.
    pub module_version: String,
}

/// Calls that hang.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Hang {
    /// Name of the C function; any if empty.
    #[serde(default)]
    pub function: String,
    /// UUID of the GPU that it is about; if empty, all that are about no GPU, or have not found it yet.
    #[serde(default)]
    pub gpu: String,
}

impl Hang {
    /// Whether a call of this function is meant, about the GPU of this UUID or about none.
    pub(crate) fn is_of(&self, function: &str, gpu: &str) -> bool {
        self.gpu == gpu && (self.function.is_empty() || self.function == function)
    }
}

/// A process with a compute context on a GPU.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Process {
    /// UUID of the GPU.
    pub gpu: String,
    /// Process id.
    pub pid: u32,
    /// Memory that it uses.
    #[serde(default)]
    pub used_bytes: u64,
}

/// UUID of the GPU at `pci_bus_id` of the machine with this `seed`: always the same, different for others.
pub fn uuid(seed: &str, pci_bus_id: &str) -> String {
    let text = format!("{seed}\0{pci_bus_id}");
    let high = fnv(0xcbf2_9ce4_8422_2325, text.as_bytes());
    let low = fnv(high, text.as_bytes());
    let hex = format!("{high:016x}{low:016x}");
    let part = |from: usize, to: usize| hex.get(from..to).unwrap_or_default();
    format!(
        "GPU-{}-{}-{}-{}-{}",
        part(0, 8),
        part(8, 12),
        part(12, 16),
        part(16, 20),
        part(20, 32)
    )
}

/// FNV-1a.
fn fnv(basis: u64, bytes: &[u8]) -> u64 {
    bytes.iter().fold(basis, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

/// The state and its board, or what is wrong with the file.
pub(crate) fn load() -> Result<(State, Board), String> {
    let file = file().ok_or_else(|| format!("{STATE_VARIABLE} is not set"))?;
    let path = file.display();
    let text = fs::read_to_string(&file).map_err(|error| format!("{path}: {error}"))?;
    let state: State = serde_json::from_str(&text).map_err(|error| format!("{path}: {error}"))?;
    let board = Board::named(&state.board)
        .ok_or_else(|| format!("{path}: there is no board {:?}", state.board))?;
    Ok((state, board))
}

fn file() -> Option<PathBuf> {
    let named = std::env::var_os(STATE_VARIABLE).map(PathBuf::from);
    named.or_else(|| Some(own_file::path()?.parent()?.join(STATE_FILE)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uuids_differ_by_seed_and_by_slot_and_stay_the_same() {
        let one = uuid("node-0", "00000000:1B:00.0");
        assert_eq!(one, uuid("node-0", "00000000:1B:00.0"));
        assert_ne!(one, uuid("node-1", "00000000:1B:00.0"));
        assert_ne!(one, uuid("node-0", "00000000:43:00.0"));
        assert_eq!(one.len(), "GPU-00000000-0000-0000-0000-000000000000".len());
    }

    #[test]
    fn the_least_state_is_a_board() {
        let state: State = serde_json::from_str(r#"{"board": "t4-2"}"#).unwrap();
        assert_eq!(state.board, "t4-2");
        assert!(state.processes.is_empty());
    }
}
