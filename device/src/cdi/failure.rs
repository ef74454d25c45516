//! Why a spec was not written.

use std::{io, path::PathBuf};

/// Why a spec was not written.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// The file.
    #[error(transparent)]
    File(#[from] io::Error),
    /// The kernel has no such device.
    #[error("{file} lists no {device}: the kernel module {module} is not loaded; {cause}")]
    ModuleMissing {
        /// The kernel's list.
        file: PathBuf,
        /// The device that is missing.
        device: &'static str,
        /// What would make it.
        module: &'static str,
        /// What came of loading it.
        cause: String,
    },
    /// The kernel has no such slice.
    #[error(
        "{file}: {cause}: the GPU has no such slice (MIG), or the driver is older than 450 and knows none"
    )]
    SliceMissing {
        /// The kernel's description of it.
        file: PathBuf,
        /// What is wrong with that.
        cause: String,
    },
    /// The container toolkit's hook is not there.
    #[error(
        "{path}: {cause}: install NVIDIA's container toolkit, name its nvidia-cdi-hook or nvidia-ctk (--toolkit-hook), or leave \
         that out for the hook that Muster brings"
    )]
    HookMissing {
        /// Where it would be on the host.
        path: PathBuf,
        /// What is wrong.
        cause: String,
    },
    /// The driver root cannot be looked at.
    #[error("driver root {root}: {cause}")]
    Root {
        /// Where it is for the driver.
        root: PathBuf,
        /// What is wrong.
        cause: String,
    },
}
