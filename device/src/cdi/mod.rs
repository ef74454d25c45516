//! CDI specs: how a container runtime gives GPUs to a container.
//!
//! Without a driver root ([`Driver`]) a container gets device nodes and variables; what else it needs is in its image, or
//! comes by the runtime's own ways. With one it gets all that a CUDA program needs of the host: the driver's libraries,
//! programs, sockets and firmware, the links that programs look for, and its loader told of them (`docs/cdi.md`).
//!
//! * What goes into a spec comes from NVML, from the kernel and from the driver root: never from a user.
//! * `NVIDIA_VISIBLE_DEVICES` is always `void`, so that NVIDIA's own runtime adds nothing.
//! * What a GPU cannot be used without is there, or the spec is not written and the failure says what is missing.

mod claim;
mod directory;
mod driver;
mod driver_root;
mod elf;
mod failure;
mod hooks;
mod libraries;
mod loader_configuration;
mod modules;
mod nodes;
mod other_files;
mod spec;
mod version;

pub use claim::{ClaimedGpu, MigSlice};
pub use directory::Directory;
pub use driver::Driver;
pub use driver_root::DriverRoot;
pub use failure::Failure;
pub use hooks::Hooks;
pub use modules::{ModuleLoader, NvidiaModprobe};
pub use spec::{Device, DeviceNode, Edits, Hook, Mount, Spec};
pub(crate) use version::of_kernel as kernel_version;
