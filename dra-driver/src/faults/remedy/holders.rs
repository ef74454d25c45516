//! Who has a GPU open: processes that compute on it, and monitors, which merely look at it. Either keeps the driver from resetting it.
//!
//! NVML lists the first. The second, DCGM's host engine say, have its device file open, `/dev/nvidiaMINOR`, and so do the first.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt, fs, io,
    path::Path,
};

use rustix::fs::{AtFlags, CWD, FileType, StatxFlags, statx};

/// Major number of the device files of GPUs (Linux `Documentation/admin-guide/devices.txt`: 195 is the vendor's).
const NVIDIA_MAJOR: u32 = 195;
/// What the kernel appends to the name of a file that was removed.
const DELETED: &str = " (deleted)";
/// The error that `/proc` gives of a process that has ended since it was listed: `ESRCH`.
const NO_SUCH_PROCESS: i32 = 3;

/// A process that has a GPU open.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Holder {
    /// Its id, as the host counts.
    pub pid: u32,
    /// Path of its program, in its own file system.
    pub program: Option<String>,
}

impl fmt::Display for Holder {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "process {}", self.pid)?;
        match &self.program {
            Some(program) => write!(formatter, " ({program})"),
            None => Ok(()),
        }
    }
}

impl Holder {
    /// The process with this id.
    pub fn of(proc: &Path, pid: u32) -> Self {
        let link = fs::read_link(proc.join(pid.to_string()).join("exe")).ok();
        let program = link.map(|path| path.to_string_lossy().into_owned());
        Self {
            pid,
            program: program.map(|it| it.trim_end_matches(DELETED).to_owned()),
        }
    }
}

/// Who has the device file of any of these GPUs open, by UUID. `minors` are the numbers of the files. An error says that it cannot be told. Blocking.
pub fn holders(
    proc: &Path,
    minors: &BTreeMap<u32, String>,
) -> io::Result<BTreeMap<String, BTreeSet<Holder>>> {
    let mut found: BTreeMap<String, BTreeSet<Holder>> = BTreeMap::new();
    for entry in fs::read_dir(proc)? {
        let entry = entry?;
        let name = entry.file_name();
        let Some(pid) = name.to_str().and_then(|name| name.parse::<u32>().ok()) else {
            continue;
        };
        let open = match open_minors(&entry.path().join("fd")) {
            Ok(open) => open,
            Err(error) if has_ended(&error) => continue,
            Err(error) => {
                let message = format!("the open files of process {pid}: {error}");
                return Err(io::Error::new(error.kind(), message));
            }
        };
        for uuid in open.iter().filter_map(|minor| minors.get(minor)) {
            let holders = found.entry(uuid.clone()).or_default();
            holders.insert(Holder::of(proc, pid));
        }
    }
    Ok(found)
}

fn open_minors(directory: &Path) -> io::Result<BTreeSet<u32>> {
    let mut minors = BTreeSet::new();
    for entry in fs::read_dir(directory)? {
        let file = entry?.path();
        match fs::read_link(&file) {
            Ok(target) => {
                let named = minor(&target);
                minors.extend(named.and_then(|named| minor_of(&file, named)));
            }
            // It was closed meanwhile.
            Err(error) if has_ended(&error) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(minors)
}

/// The number of the device file of a GPU. Containers may have it under another directory, not under another name.
fn minor(path: &Path) -> Option<u32> {
    let name = path.file_name()?.to_str()?;
    let name = name.strip_suffix(DELETED).unwrap_or(name);
    name.strip_prefix("nvidia")?.parse().ok()
}

/// The number of the device of a GPU that an open file is, if it is one. Anybody may give a file of his the name of one, and is no user of a GPU for that.
/// No file system is asked: one that does not answer holds up nobody. What cannot be told is what its name says.
fn minor_of(file: &Path, named: u32) -> Option<u32> {
    let Ok(found) = statx(CWD, file, AtFlags::STATX_DONT_SYNC, StatxFlags::TYPE) else {
        return Some(named);
    };
    let is_device = FileType::from_raw_mode(u32::from(found.stx_mode)) == FileType::CharacterDevice;
    (is_device && found.stx_rdev_major == NVIDIA_MAJOR).then_some(found.stx_rdev_minor)
}

fn has_ended(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::NotFound || error.raw_os_error() == Some(NO_SUCH_PROCESS)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn who_has_a_device_file_open_is_named_with_its_program() {
        let directory = tempfile::tempdir().unwrap();
        let proc = directory.path();
        let process = |pid: u32, files: &[&str]| {
            let fd = proc.join(pid.to_string()).join("fd");
            fs::create_dir_all(&fd).unwrap();
            symlink("/usr/bin/nv-hostengine", proc.join(format!("{pid}/exe"))).unwrap();
            for (number, file) in files.iter().enumerate() {
                symlink(file, fd.join(number.to_string())).unwrap();
            }
        };
        process(
            10,
            &[
                "/dev/null",
                "/dev/nvidiactl",
                "/dev/nvidia1",
                "/dev/nvidia-uvm",
            ],
        );
        process(
            11,
            &["socket:[1]", "/dev/nvidia1 (deleted)", "/dev/nvidia10"],
        );
        process(12, &["/root/dev/nvidia0"]);
        // That is no device.
        let own = proc.join("files/nvidia0");
        fs::create_dir_all(proc.join("files")).unwrap();
        fs::write(&own, "").unwrap();
        process(14, &[own.to_str().unwrap(), "/dev/null"]);
        // It ends at this moment.
        fs::create_dir_all(proc.join("13")).unwrap();
        fs::create_dir_all(proc.join("driver/nvidia")).unwrap();
        let minors = BTreeMap::from([(0, "GPU-a".to_owned()), (1, "GPU-b".to_owned())]);
        let found = holders(proc, &minors).unwrap();
        let told = |uuid: &str| -> Vec<String> {
            let holders = found[uuid].iter();
            holders.map(ToString::to_string).collect()
        };
        assert_eq!(told("GPU-a"), ["process 12 (/usr/bin/nv-hostengine)"]);
        let both = [10, 11].map(|pid| format!("process {pid} (/usr/bin/nv-hostengine)"));
        assert_eq!(told("GPU-b"), both);
        let error = holders(&proc.join("none"), &minors).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::NotFound);
    }
}
