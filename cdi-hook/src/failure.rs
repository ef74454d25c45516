//! Why the hook failed, in words that the pod's events will show.

use std::path::{Path, PathBuf};

use rustix::io::Errno;

/// Why the hook failed.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// The command line is not one of ours.
    #[error("command line: {0}")]
    Arguments(String),
    /// The runtime's description of the container cannot be used.
    #[error("{what}: {cause}")]
    Runtime {
        /// Which part of it.
        what: String,
        /// What is wrong with it.
        cause: String,
    },
    /// Something in the container's root cannot be done.
    #[error("{path} in the container: {cause}")]
    Container {
        /// Path as the container sees it.
        path: PathBuf,
        /// What went wrong, and what would work.
        cause: String,
    },
}

impl Failure {
    /// An error of the kernel about a path in the container.
    pub(crate) fn at(path: &Path, errno: Errno) -> Self {
        let cause = match errno {
            Errno::ROFS => {
                "the root file system is read-only for the hook, too; let the pod have a writable root"
                    .to_owned()
            }
            Errno::XDEV => {
                "a volume is mounted there, and volumes are not written to; mount it elsewhere".to_owned()
            }
            Errno::NOSYS => "openat2 is missing: Linux 5.6 or newer is needed".to_owned(),
            other => other.to_string(),
        };
        Self::Container {
            path: path.to_owned(),
            cause,
        }
    }

    /// A complaint about the runtime's description.
    pub(crate) fn runtime(
        what: &(impl ToString + ?Sized),
        cause: &(impl ToString + ?Sized),
    ) -> Self {
        Self::Runtime {
            what: what.to_string(),
            cause: cause.to_string(),
        }
    }
}
