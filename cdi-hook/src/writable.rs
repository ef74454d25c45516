//! A container's root that is read-only before hooks run.
//!
//! runc makes a root read-only after the hooks; crun before 1.26 did so before them, and is the runtime of many CRI-O nodes.
//! What is read-only then is the container's mount, not the file system below it. The hook takes mounts of its own, in which
//! that mount is writable. The container's stays what it is, and ours end with the process, however it ends.

use std::{os::fd::AsFd, path::Path};

use rustix::{
    fs::{StatVfsMountFlags, fstatvfs},
    io::Result,
    mount::{MountFlags, mount_remount},
    thread::UnshareFlags,
};

/// Whether the root that is open as `directory` is read-only.
pub(crate) fn is_read_only(directory: impl AsFd) -> bool {
    flags_of(directory).is_ok_and(|flags| flags.contains(StatVfsMountFlags::RDONLY))
}

/// Makes the mount at `path` writable for this process alone. What was opened before is not of the new mounts.
pub(crate) fn for_us_alone(path: &Path, directory: impl AsFd) -> Result<()> {
    let flags = flags_of(directory)?;
    own_mounts()?;
    // What is not said again is taken away, and some of it may be locked.
    let kept = [
        (StatVfsMountFlags::NOSUID, MountFlags::NOSUID),
        (StatVfsMountFlags::NODEV, MountFlags::NODEV),
        (StatVfsMountFlags::NOEXEC, MountFlags::NOEXEC),
    ];
    let kept = kept.into_iter().filter(|(has, _)| flags.contains(*has));
    let kept = kept.fold(MountFlags::BIND, |all, (_, flag)| all | flag);
    mount_remount(path, kept, "")
}

fn flags_of(directory: impl AsFd) -> Result<StatVfsMountFlags> {
    Ok(fstatvfs(directory)?.f_flag)
}

#[expect(
    deprecated,
    reason = "the other is unsafe for threads that share open files, which this flag leaves alone"
)]
fn own_mounts() -> Result<()> {
    rustix::thread::unshare(UnshareFlags::NEWNS)
}
