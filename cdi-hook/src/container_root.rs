//! The container's root. Every path in it is opened by the kernel as if it were `/`, so that no link, no `..` and no
//! race leads out of it.

use std::{
    fs::File,
    io::{self, Read, Write},
    os::fd::OwnedFd,
    path::{Path, PathBuf},
};

use rustix::{
    fs::{self, AtFlags, FileType, Mode, OFlags, ResolveFlags},
    io::{Errno, Result},
};

use crate::{Failure, writable};

/// How often the kernel is asked again when something moved while it looked.
const TRIES: usize = 64;
/// What a name is called until it is whole.
const TEMPORARY: &str = ".muster-cdi-hook";

/// The container's root.
pub(crate) struct ContainerRoot {
    directory: OwnedFd,
}

/// A directory on the container's own root file system: no volume.
pub(crate) struct Directory {
    directory: OwnedFd,
    path: PathBuf,
}

impl ContainerRoot {
    /// Opens it, and makes it writable if it is not. The host's own root is none.
    pub(crate) fn open(path: &Path) -> std::result::Result<Self, Failure> {
        let opened = Self::open_as_it_is(path)?;
        if !writable::is_read_only(&opened.directory) {
            return Ok(opened);
        }
        match writable::for_us_alone(path, &opened.directory) {
            Ok(()) => Self::open_as_it_is(path),
            // All may be done already. If it is not, writing fails, and says what would work.
            Err(_) => Ok(opened),
        }
    }

    fn open_as_it_is(path: &Path) -> std::result::Result<Self, Failure> {
        let failed = |error: Errno| Failure::runtime(&path.display(), &error);
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let directory = fs::open(path, flags, Mode::empty()).map_err(failed)?;
        let it = fs::fstat(&directory).map_err(failed)?;
        let host = fs::stat("/").map_err(failed)?;
        if (it.st_dev, it.st_ino) == (host.st_dev, host.st_ino) {
            let cause = "the container's root is the root that the hook itself runs in";
            return Err(Failure::runtime(&path.display(), cause));
        }
        Ok(Self { directory })
    }

    /// Whether there is something at this path, also on a volume.
    pub(crate) fn has(&self, path: &Path) -> bool {
        self.resolve(path, OFlags::PATH, ResolveFlags::empty())
            .is_ok()
    }

    /// A directory of the root file system; made if it is missing.
    pub(crate) fn directory(&self, path: &Path) -> std::result::Result<Directory, Failure> {
        let opened = match self.own_directory(path) {
            Err(Errno::NOENT) => self.make_directory(path),
            opened => opened,
        };
        Ok(Directory {
            directory: opened.map_err(|errno| Failure::at(path, errno))?,
            path: path.to_owned(),
        })
    }

    /// The content of a regular file of the container; `None` if it is missing, something else, or longer than `limit`.
    pub(crate) fn read(&self, path: &Path, limit: u64) -> Option<Vec<u8>> {
        // Opening a pipe or a device must neither wait nor do anything.
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY;
        let is_file = |descriptor: &OwnedFd| {
            fs::fstat(descriptor).is_ok_and(|status| {
                FileType::from_raw_mode(status.st_mode) == FileType::RegularFile
            })
        };
        let looked = self
            .resolve(path, OFlags::PATH, ResolveFlags::empty())
            .ok()?;
        if !is_file(&looked) {
            return None;
        }
        let opened = self.resolve(path, flags, ResolveFlags::empty()).ok()?;
        if !is_file(&opened) {
            return None;
        }
        let mut content = Vec::new();
        let length = File::from(opened).take(limit + 1).read_to_end(&mut content);
        length.ok().filter(|length| *length as u64 <= limit)?;
        Some(content)
    }

    fn own_directory(&self, path: &Path) -> Result<OwnedFd> {
        let flags = OFlags::PATH | OFlags::DIRECTORY;
        self.resolve(path, flags, ResolveFlags::NO_XDEV)
    }

    /// Makes what is missing of the path, one name at a time, each inside what was found of it.
    fn make_directory(&self, path: &Path) -> Result<OwnedFd> {
        let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
            return Err(Errno::NOENT);
        };
        let parent = match self.own_directory(parent) {
            Err(Errno::NOENT) => self.make_directory(parent)?,
            opened => opened?,
        };
        match fs::mkdirat(&parent, name, Mode::from_raw_mode(0o755)) {
            // A link that leads nowhere: found neither before nor afterwards.
            Ok(()) | Err(Errno::EXIST) => self.own_directory(path),
            Err(error) => Err(error),
        }
    }

    fn resolve(&self, path: &Path, flags: OFlags, more: ResolveFlags) -> Result<OwnedFd> {
        let resolve = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS | more;
        let mut tries = 0;
        loop {
            let flags = flags | OFlags::CLOEXEC;
            match fs::openat2(&self.directory, path, flags, Mode::empty(), resolve) {
                Err(Errno::AGAIN | Errno::INTR) if tries < TRIES => tries += 1,
                result => return result,
            }
        }
    }
}

impl Directory {
    /// Puts a symbolic link under this name, whatever was there, unless it is there already.
    pub(crate) fn put_link(&self, name: &str, target: &str) -> std::result::Result<(), Failure> {
        let there = fs::readlinkat(&self.directory, name, Vec::new());
        if there.is_ok_and(|there| there.as_bytes() == target.as_bytes()) {
            return Ok(());
        }
        self.put(name, || fs::symlinkat(target, &self.directory, TEMPORARY))
    }

    /// Puts a file that everybody may read under this name, whatever was there: a link is replaced, not followed.
    pub(crate) fn put_file(&self, name: &str, content: &[u8]) -> std::result::Result<(), Failure> {
        self.put(name, || {
            let flags =
                OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let mode = Mode::from_raw_mode(0o644);
            let file = fs::openat(&self.directory, TEMPORARY, flags, mode)?;
            File::from(file)
                .write_all(content)
                .map_err(|error| errno(&error))
        })
    }

    /// Makes something under a temporary name, and gives it the name that it is to have.
    fn put(
        &self,
        name: &str,
        make: impl FnOnce() -> Result<()>,
    ) -> std::result::Result<(), Failure> {
        let remove = || fs::unlinkat(&self.directory, TEMPORARY, AtFlags::empty());
        let cleared = match remove() {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(error) => Err(error),
        };
        let put = cleared
            .and_then(|()| make())
            .and_then(|()| fs::renameat(&self.directory, TEMPORARY, &self.directory, name));
        put.map_err(|error| {
            // What is half made must not stay; what went wrong is what counts.
            let _ = remove();
            Failure::at(&self.path.join(name), error)
        })
    }
}

fn errno(error: &io::Error) -> Errno {
    Errno::from_io_error(error).unwrap_or(Errno::IO)
}
