//! The GPUs of a node: what NVML and the kernel say about them, and how containers get them (CDI).
//!
//! Invariants:
//! * Nobody waits for NVML for ever: every question has a limit ([`Backend`]), and a GPU that hangs costs only itself.
//! * A GPU is its UUID. Indices and minor numbers are good for one boot at most.
//! * Only values of NVML, of the kernel and of the driver's installation reach a CDI file.
//! * No driver on this machine is an error to retry, never "no GPUs are healthy" and never a crash.

pub mod cdi;
pub mod faults;
pub mod files;
mod gpu;
mod mig;
mod nvlink;
mod nvml;
mod sysfs;

pub use gpu::{FabricState, Gpu, NvlinkGroups, RdmaNic, slice_name};
pub use mig::{Media, MigFacts, MigInstance, MigModeAfter, MigProfile, Placement};
pub use nvlink::{Link, Peer, groups};
pub use nvml::{
    Backend, BackendConfig, BackendError, Heard, LibrarySource, LibraryStatus, Listed, ListedGpu,
    Process, Released,
};
