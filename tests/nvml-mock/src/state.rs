//! The format of the state file: what a test says of the hardware, and what the hardware remembers.
//!
//! Both are in one file, so that several processes see the same cards. [`crate::StateFile`] reads and changes it.

use std::{collections::BTreeMap, path::PathBuf};

use serde::{Deserialize, Serialize};

/// Most events that are kept for event sets that have not seen them.
pub const MOST_EVENTS: usize = 16_384;

/// Content of the state file. Only `board` is needed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "each is a setting of the file"
)]
pub struct State {
    /// Name of the board, one of [`crate::BOARDS`].
    pub board: String,
    /// What the UUIDs are made from (see [`crate::uuid()`]): give each node its own, the node's name, say.
    pub seed: String,
    /// What each card remembers, by UUID of the GPU. A card that is not here is as it comes from the factory.
    pub cards: BTreeMap<String, Card>,
    /// PCI bus ids in the order of NVML's indices; those that are not named follow in PCI order. Empty: PCI order.
    pub index_order: Vec<String>,
    /// Processes with a compute context, beside those that the runtime states (see [`crate::Stated`]).
    pub processes: Vec<Process>,
    /// Processes with a graphics context.
    pub graphics_processes: Vec<Process>,
    /// Processes that compute through MPS.
    pub mps_processes: Vec<Process>,
    /// The lists of processes are as in early drivers of branch 535: the functions `…_v3` write entries of 32 bytes, with
    /// protected memory at the end, where those before and after them write 24.
    pub has_early_535_lists: bool,
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
    /// Calls that fail. The first one that fits counts.
    pub failures: Vec<Failure>,
    /// File to which the library adds a line `FUNCTION UUID` for each call about a GPU that does not hang. It writes none without.
    pub call_log: Option<PathBuf>,
    /// What was reported to event sets, in order of [`Event::sequence`]. See [`Self::report`].
    pub events: Vec<Event>,
    /// Sequence of the next event.
    pub next_event: u64,
    /// The kernel has no module of the driver.
    pub unloaded: bool,
    /// Version of the kernel's module; any that the library works with if empty. A library's own version is in its file name
    /// (`libnvidia-ml.so.580.95.05`), or that of the board.
    pub module_version: String,
    /// Where the library keeps what the kernel's module shows of MIG under `/proc`: the directory that stands for `/proc`.
    /// `driver/nvidia-caps/mig-minors` in it lists the minor of every capability, and
    /// `driver/nvidia/capabilities/gpuMINOR/mig/giID/ciID/access` are those of the instances that exist; the
    /// processes that the runtime states are in it by their ids. Nothing is kept without it.
    pub proc_directory: Option<PathBuf>,
    /// Profiles are told only while the GPU is in MIG mode. (Whether real drivers do so is not documented.)
    pub profiles_need_mig_mode: bool,
    /// The GPUs are passed through to a virtual machine that cannot reset them: a change of MIG mode that needs a reset stays
    /// pending, and its activation answers `RESET_REQUIRED`.
    pub cannot_reset: bool,
    /// Links do not say what is at their other end, as in virtual machines.
    pub hides_link_peers: bool,
    /// How far the fabric manager has come, where the board has one: `NVML_GPU_FABRIC_STATE_*`. Completed (3) without.
    pub fabric_state: Option<u8>,
}

/// What a card remembers of itself.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Card {
    /// Minor number of its device node; without, its place in PCI order.
    pub minor: Option<u32>,
    /// Minor number that it has after the next reset.
    pub minor_after_reset: Option<u32>,
    /// Whether it is in MIG mode.
    pub mig_current: bool,
    /// Whether it will be in MIG mode after a reset. Equal to `mig_current` where nothing is pending.
    pub mig_pending: bool,
    /// The GPU instances that exist, ascending by id.
    pub gpu_instances: Vec<GpuInstance>,
    /// What the driver wants done (`NVML_FI_DEV_GET_GPU_RECOVERY_ACTION`): 0 none, 1 reset, 2 reboot of the node, 3 drain peers, 4
    /// drain and reset, 5 to 7 and others in newer drivers.
    pub recovery_action: u32,
    /// Rows of memory that were replaced.
    pub remapped_rows: RemappedRows,
    /// Errors that it has counted since its driver was loaded.
    pub counted_errors: CountedErrors,
    /// Why its clocks are slower than they could be: bits of `nvmlClocksThrottleReason*` (8: hardware slows them down, 0x40: for heat).
    pub throttle_reasons: u64,
    /// It has no memory of its own, as GB10: questions for it answer `NOT_SUPPORTED`.
    pub has_no_memory: bool,
}

/// A GPU instance: memory slices and what goes with them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct GpuInstance {
    /// Id on its GPU, 0 to 14. It follows from the placement: see [`crate::mig::Table::gpu_instance_id`].
    pub id: u32,
    /// `id` of its profile (19, not the enumerator 0).
    pub profile: u32,
    /// Its memory slices.
    pub placement: Placement,
    /// The compute instances that exist, ascending by id.
    #[serde(default)]
    pub compute_instances: Vec<ComputeInstance>,
}

/// A compute instance: compute slices of a GPU instance. With its GPU instance it is a MIG device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ComputeInstance {
    /// Id in its GPU instance: the lowest that was free.
    pub id: u32,
    /// `id` of its profile.
    pub profile: u32,
    /// Its compute slices, counted from the first of its GPU instance.
    pub placement: Placement,
}

/// Slices in a row.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Placement {
    /// The first.
    pub start: u32,
    /// How many.
    pub size: u32,
}

/// Rows of memory that were replaced, or could not be.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct RemappedRows {
    /// After correctable errors.
    pub correctable: u32,
    /// After uncorrectable errors.
    pub uncorrectable: u32,
    /// A reset is needed before replacements take effect.
    pub is_pending: bool,
    /// A row could not be replaced.
    pub has_failed: bool,
}

/// Errors that a card has counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct CountedErrors {
    /// Of its memory, corrected.
    pub corrected_ecc: u64,
    /// Of its memory, and not corrected.
    pub uncorrected_ecc: u64,
    /// Packets that its NVLinks sent again.
    pub link_replays: u32,
    /// How often its NVLinks had to be trained again, as cards from Blackwell on count; those before count replays.
    pub link_recoveries: u32,
}

/// Calls that hang.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Hang {
    /// Name of the C function; any if empty.
    pub function: String,
    /// UUID of the GPU that it is about; if empty, all that are about no GPU, or have not found it yet.
    pub gpu: String,
}

/// Calls that fail.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Failure {
    /// Name of the C function; any if empty.
    pub function: String,
    /// UUID of the GPU that the call is about, for a slice that of its parent; if empty, calls about any GPU or none.
    pub gpu: String,
    /// What they return: a number of `nvmlReturn_t`.
    pub code: u32,
    /// How many more calls fail; all if absent. The library counts down, and ignores the entry from 0 on.
    pub times: Option<u32>,
    /// The call does what it is for before it fails. An entry without it keeps the call from doing anything.
    pub after_effect: bool,
}

/// Something that event sets report.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Event {
    /// Place among all events of the machine; [`State::report`] gives it.
    pub sequence: u64,
    /// UUID of the GPU, for a slice that of its parent.
    pub gpu: String,
    /// What it is: a bit of `nvmlEventType*` (8: an XID).
    pub kind: u64,
    /// The XID, for one.
    pub data: u64,
    /// The GPU instance; the whole GPU without.
    pub gpu_instance: Option<u32>,
    /// The compute instance; the whole GPU instance without.
    pub compute_instance: Option<u32>,
}

/// A process with a context.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Process {
    /// UUID of the GPU, or of the MIG device.
    pub gpu: String,
    /// Process id.
    pub pid: u32,
    /// Memory that it uses.
    pub used_bytes: u64,
}

impl State {
    /// The card of this UUID; what is changed of it is remembered.
    pub fn card(&mut self, gpu: &str) -> &mut Card {
        self.cards.entry(gpu.to_owned()).or_default()
    }

    /// Reports an event to every event set that is registered for it; the sequence of `event` does not matter. The newest
    /// [`MOST_EVENTS`] are kept.
    pub fn report(&mut self, event: Event) {
        let sequence = self.next_event;
        self.next_event += 1;
        self.events.push(Event { sequence, ..event });
        let oldest = self.events.len().saturating_sub(MOST_EVENTS);
        self.events.drain(..oldest);
    }
}

impl Hang {
    /// Whether a call of this function is meant, about the GPU of this UUID or about none.
    pub(crate) fn is_of(&self, function: &str, gpu: &str) -> bool {
        self.gpu == gpu && (self.function.is_empty() || self.function == function)
    }
}

impl Failure {
    /// Whether a call of this function is meant, about the GPU of this UUID or, if empty, about none.
    pub(crate) fn is_of(&self, function: &str, gpu: &str) -> bool {
        let is_function = self.function.is_empty() || self.function == function;
        is_function && self.gpu == gpu && self.times != Some(0)
    }
}

impl Placement {
    /// The slice after the last.
    pub fn end(self) -> u32 {
        self.start.saturating_add(self.size)
    }

    /// Whether both have a slice.
    pub fn overlaps(self, other: Self) -> bool {
        self.start < other.end() && other.start < self.end()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_least_state_is_a_board() {
        let state: State = serde_json::from_str(r#"{"board": "t4-2"}"#).unwrap();
        assert_eq!(state.board, "t4-2");
        assert!(state.processes.is_empty());
    }

    #[test]
    fn what_is_written_is_read_again() {
        let mut state = State {
            board: "a100-40gb-nvswitch-8".to_owned(),
            failures: vec![Failure {
                function: "nvmlGpuInstanceDestroy".to_owned(),
                code: 19,
                times: Some(1),
                ..Failure::default()
            }],
            ..State::default()
        };
        state.card("GPU-1").gpu_instances.push(GpuInstance {
            id: 9,
            profile: 19,
            placement: Placement { start: 2, size: 1 },
            compute_instances: vec![ComputeInstance {
                id: 0,
                profile: 0,
                placement: Placement { start: 0, size: 1 },
            }],
        });
        state.report(Event {
            kind: 8,
            data: 94,
            ..Event::default()
        });
        let text = serde_json::to_string(&state).unwrap();
        assert_eq!(serde_json::from_str::<State>(&text).unwrap(), state);
    }

    #[test]
    fn events_are_numbered_in_the_order_of_their_reports() {
        let mut state = State::default();
        for data in [79, 94, 13] {
            state.report(Event {
                data,
                sequence: 1_000,
                ..Event::default()
            });
        }
        let numbered: Vec<(u64, u64)> = state.events.iter().map(|e| (e.sequence, e.data)).collect();
        assert_eq!(numbered, [(0, 79), (1, 94), (2, 13)]);
    }
}
