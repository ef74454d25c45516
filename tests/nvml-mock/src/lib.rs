//! A `libnvidia-ml.so` that answers from a state file: NVML for tests, through the real C ABI.
//!
//! The library is loaded exactly as the real one (`dlopen`), so what is tested is our binary as it ships.
//! It behaves as hardware does where Muster looks: lists by two calls (size first), `NOT_SUPPORTED` for
//! what a board does not have, `GPU_IS_LOST` for a GPU that fell off the bus, `UNINITIALIZED` outside of init and
//! shutdown, `LIB_RM_VERSION_MISMATCH` where the kernel's module is of another version, a call that hangs on request, for one GPU
//! or for all.
//!
//! # The state file
//!
//! The environment variable [`STATE_VARIABLE`] names a JSON file, read anew at every call, so that a test
//! changes the hardware by replacing it (by rename: a torn file is an NVML error). Without it the file is [`STATE_FILE`] beside
//! the library, so that each copy has hardware of its own. See [`State`]; the least is `{"board": "h100-nvswitch-8"}`.
//!
//! Processes use the GPUs that CDI gave them (their environment says which), beside those that the file lists.
//!
//! The boards are the files in `boards/`, named in [`State::board`]: `h100-nvswitch-8` (8 x H100 80 GB, all to all
//! by NVSwitch) and `t4-2` (2 x T4, no NVLink, no MIG).

mod abi;
mod board;
mod library;
mod own_file;
mod processes;
mod state;

pub use board::{BOARDS, Board, Gpu, NvLink};
pub use library::{LIBRARY, library};
pub use state::{Hang, Process, STATE_FILE, STATE_VARIABLE, State, uuid};
