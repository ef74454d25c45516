//! Files that are whole or not there, also after a crash or a power cut.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, Write},
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
};

/// Writes a file whole: into a temporary file beside it, to the disk, renamed over the old one, and the
/// directory to the disk. `mode` are its permission bits. Applied twice it does no harm; a crash leaves the old
/// content, and at most a file ending in `.tmp` that the next write takes over.
pub fn write_whole(path: &Path, content: &[u8], mode: u32) -> io::Result<()> {
    let temporary = temporary(path)?;
    let result = write_new(&temporary, content, mode).and_then(|()| fs::rename(&temporary, path));
    if result.is_err() {
        // A full disk must not stay full because of us.
        let _ = fs::remove_file(&temporary);
    }
    result?;
    sync_directory(path)
}

/// Removes a file for good; one that is not there is fine.
pub fn remove(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Ok(()) => sync_directory(path),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error),
    }
}

fn temporary(path: &Path) -> io::Result<PathBuf> {
    let name = path
        .file_name()
        .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, "the path names no file"))?;
    let mut hidden = std::ffi::OsString::from(".");
    hidden.push(name);
    hidden.push(".tmp");
    Ok(path.with_file_name(hidden))
}

fn write_new(path: &Path, content: &[u8], mode: u32) -> io::Result<()> {
    // Not followed if it is a link: it is made anew.
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(mode)
        .open(path)?;
    file.write_all(content)?;
    file.sync_all()
}

fn sync_directory(path: &Path) -> io::Result<()> {
    match path.parent() {
        Some(parent) => File::open(parent)?.sync_all(),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn a_file_is_replaced_whole_and_removed_twice() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("record.json");
        write_whole(&path, b"one", 0o600).unwrap();
        write_whole(&path, b"two", 0o600).unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"two");
        assert_eq!(
            fs::metadata(&path).unwrap().permissions().mode() & 0o777,
            0o600
        );
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1);
        remove(&path).unwrap();
        remove(&path).unwrap();
        assert!(!path.exists());
    }

    #[test]
    fn what_a_crash_left_does_not_stand_in_the_way() {
        let directory = tempfile::tempdir().unwrap();
        fs::write(directory.path().join(".record.json.tmp"), b"half").unwrap();
        let path = directory.path().join("record.json");
        write_whole(&path, b"whole", 0o600).unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"whole");
    }

    #[test]
    fn a_directory_that_is_gone_is_an_error() {
        let path = Path::new("/nonexistent-muster/record.json");
        assert!(write_whole(path, b"", 0o600).is_err());
        assert!(write_whole(Path::new("/"), b"", 0o600).is_err());
    }
}
