//! A `libnvidia-ml.so` that answers from a state file: NVML for tests, through the real C ABI.
//!
//! The library is loaded exactly as the real one (`dlopen`), so what is tested is our binary as it ships.
//! It behaves as hardware does where Muster looks: lists by two calls (size first), `NOT_SUPPORTED` for
//! what a board does not have, `GPU_IS_LOST` for a GPU that fell off the bus, `UNINITIALIZED` outside of init and
//! shutdown, `LIB_RM_VERSION_MISMATCH` where the kernel's module is of another version, a call that hangs or fails on request, for
//! one GPU or for all, slices that can be made and destroyed by the rules of the product, events.
//!
//! # The state file
//!
//! The environment variable [`STATE_VARIABLE`] names a JSON file, read anew at every call, so that a test
//! changes the hardware by changing it ([`StateFile::change`]; a torn file is an NVML error). Without it the file is [`STATE_FILE`]
//! beside the library, so that each copy has hardware of its own. See [`State`]; the least is `{"board": "h100-nvswitch-8"}`.
//!
//! What NVML changes (MIG mode, slices, counted failures, events) is in the same file, so all processes that use it see the same
//! cards, and a process that is killed between two calls leaves what it would leave on a card.
//!
//! Processes use GPUs where the file lists them, or where the runtime has stated that it gave them device nodes: see [`Stated`].
//!
//! The boards are the files in `boards/`, named in [`State::board`]; what their GPUs can be cut into is in [`mig`].

mod abi;
mod board;
mod call;
mod capabilities;
mod handle;
mod library;
mod machine;
pub mod mig;
mod numbering;
mod own_file;
mod recorded;
mod state;
mod state_file;
mod stated;
mod uuid;

pub use board::{BOARDS, Board, Gpu, NvLink};
pub use library::{LIBRARY, library};
pub use recorded::{
    Answer, GoneWith, ListedAs, RecordedGpu, RecordedLink, RecordedMig, RecordedPeers,
    RecordedProfile, RecordedUse, Recording,
};
pub use state::{
    Card, ComputeInstance, CountedErrors, Event, Failure, GpuInstance, Hang, MOST_EVENTS,
    Placement, Process, RemappedRows, State,
};
pub use state_file::{STATE_FILE, STATE_VARIABLE, StateFile};
pub use stated::Stated;
pub use uuid::{mig_uuid, uuid};
