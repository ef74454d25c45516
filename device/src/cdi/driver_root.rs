//! The root of a file system with NVIDIA's driver in it: `/`, or where a container that installs the driver shows its own.
//!
//! A path in it is resolved by the kernel as if it were `/`, and so are its links: what an absolute link in a driver
//! container means is in that container, and none leads out.

use std::{
    fs::{self, File},
    io,
    os::fd::{AsRawFd, OwnedFd},
    path::{Path, PathBuf},
};

use rustix::fs::{Dir, Mode, OFlags, ResolveFlags, open, openat2};

use super::{Failure, libraries, version};

/// Most entries of a directory that are looked at: those of systems have some thousand.
const MOST_NAMES: usize = 32_768;

/// A driver root.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DriverRoot {
    /// Where it is for this process.
    pub path: PathBuf,
    /// Where it is for the container runtime.
    pub on_host: PathBuf,
}

/// A driver root that was opened to be looked at.
pub(super) struct OpenRoot<'a> {
    root: &'a DriverRoot,
    directory: OwnedFd,
    real: PathBuf,
}

impl DriverRoot {
    pub(super) fn open(&self) -> Result<OpenRoot<'_>, Failure> {
        let failed = |error: io::Error| self.failure(&error);
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let directory =
            open(&self.path, flags, Mode::empty()).map_err(|error| failed(error.into()))?;
        let real = real_path(&directory).map_err(failed)?;
        Ok(OpenRoot {
            root: self,
            directory,
            real,
        })
    }

    /// NVML's library in it, for this process to load: that of the kernel's version.
    pub(crate) fn management_library(&self, proc: &Path) -> Result<PathBuf, Failure> {
        libraries::management_library(&self.open()?, version::of_kernel(proc))
    }

    pub(super) fn failure(&self, cause: &(impl ToString + ?Sized)) -> Failure {
        Failure::Root {
            root: self.path.clone(),
            cause: cause.to_string(),
        }
    }
}

impl OpenRoot<'_> {
    /// Which root it is.
    pub(super) fn root(&self) -> &DriverRoot {
        self.root
    }

    /// The names in a directory, in order; none if it is not there. Of one that is beyond all measure only some.
    pub(super) fn names(&self, path: &Path) -> Vec<String> {
        let listed = || {
            let directory = self
                .resolve(path, OFlags::RDONLY | OFlags::DIRECTORY)
                .ok()?;
            Dir::read_from(directory).ok()
        };
        let entries = listed().into_iter().flatten().take(MOST_NAMES).flatten();
        let mut names: Vec<String> = entries
            .filter_map(|entry| entry.file_name().to_str().ok().map(str::to_owned))
            .filter(|name| name != "." && name != "..")
            .collect();
        names.sort_unstable();
        names
    }

    /// Opens a file. Only regular ones: opening anything else may wait, or do something.
    pub(super) fn file(&self, path: &Path) -> io::Result<File> {
        let file = File::from(self.resolve(path, OFlags::RDONLY | OFlags::NONBLOCK)?);
        let is_file = file.metadata()?.is_file();
        is_file
            .then_some(file)
            .ok_or_else(|| io::Error::other("it is no regular file"))
    }

    /// Where something in the root is on the host, links resolved; `None` if it is not there.
    pub(super) fn on_host(&self, path: &Path) -> Option<PathBuf> {
        let real = self.here(path)?;
        let inside = real.strip_prefix(&self.real).ok()?;
        Some(self.root.on_host.join(inside))
    }

    /// Where it is for this process, links resolved; `None` if it is not there.
    pub(super) fn here(&self, path: &Path) -> Option<PathBuf> {
        let found = self.resolve(path, OFlags::PATH).ok()?;
        let real = real_path(&found).ok()?;
        real.starts_with(&self.real).then_some(real)
    }

    fn resolve(&self, path: &Path, flags: OFlags) -> io::Result<OwnedFd> {
        let resolve = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS;
        let flags = flags | OFlags::CLOEXEC;
        Ok(openat2(
            &self.directory,
            path,
            flags,
            Mode::empty(),
            resolve,
        )?)
    }
}

/// The path of what is open, as the kernel knows it.
fn real_path(descriptor: &OwnedFd) -> io::Result<PathBuf> {
    fs::read_link(format!("/proc/self/fd/{}", descriptor.as_raw_fd()))
}
