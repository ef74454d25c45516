//! Unix sockets that the kubelet connects to.

use std::{
    fs, io,
    os::unix::{
        fs::{FileTypeExt, PermissionsExt},
        net::UnixStream,
    },
    path::{Path, PathBuf},
    time::Duration,
};

use tokio::net::UnixListener;

/// Longest path of a unix socket: `sun_path` is 108 bytes with the closing zero.
const MAX_PATH_BYTES: usize = 107;
/// How long an instance that is about to end is waited for.
const TAKE_OVER_LIMIT: Duration = Duration::from_secs(20);

/// A socket that is bound, and whose file goes with it.
#[derive(Debug)]
pub struct Socket {
    path: PathBuf,
    /// Identity of the file that we made.
    inode: u64,
}

/// Binds a socket that only root may connect to. A socket that nobody serves is removed; one that somebody serves
/// is waited for, and then an error: two drivers of one name must not fight over it.
pub async fn bind(path: &Path) -> io::Result<(Socket, UnixListener)> {
    let said = |kind, message: String| {
        io::Error::new(kind, format!("socket {}: {message}", path.display()))
    };
    if !path.is_absolute() {
        let message =
            "the path is not absolute, and the kubelet looks for it from a directory of its own";
        return Err(said(io::ErrorKind::InvalidInput, message.to_owned()));
    }
    let length = path.as_os_str().len();
    if length > MAX_PATH_BYTES {
        let message = format!(
            "the path has {length} bytes, at most {MAX_PATH_BYTES} are possible; use a shorter directory"
        );
        return Err(said(io::ErrorKind::InvalidInput, message));
    }
    let deadline = tokio::time::Instant::now() + TAKE_OVER_LIMIT;
    while is_served(path) {
        if tokio::time::Instant::now() >= deadline {
            let message = "another program serves it".to_owned();
            return Err(said(io::ErrorKind::AddrInUse, message));
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    remove_dead(path).map_err(|error| said(error.kind(), error.to_string()))?;
    let bound = bind_private(path).map_err(|error| said(error.kind(), error.to_string()))?;
    let socket = Socket {
        path: path.to_owned(),
        inode: inode(path)?,
    };
    Ok((socket, bound))
}

fn is_served(path: &Path) -> bool {
    UnixStream::connect(path).is_ok()
}

fn remove_dead(path: &Path) -> io::Result<()> {
    match fs::symlink_metadata(path) {
        Ok(metadata) if metadata.file_type().is_socket() => fs::remove_file(path),
        Ok(_) => Err(io::Error::new(
            io::ErrorKind::AlreadyExists,
            "there is a file of that name that is no socket",
        )),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error),
    }
}

/// Bound under a hidden name, which the kubelet ignores, and renamed once only root may connect.
fn bind_private(path: &Path) -> io::Result<UnixListener> {
    let name = path
        .file_name()
        .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, "the path names no file"))?;
    // Not longer than the name itself, whose length is bounded.
    let mut hidden = std::ffi::OsString::from(".");
    hidden.push(name.to_string_lossy().get(1..).unwrap_or_default());
    let hidden = path.with_file_name(hidden);
    remove_dead(&hidden)?;
    let listener = UnixListener::bind(&hidden)?;
    fs::set_permissions(&hidden, fs::Permissions::from_mode(0o600))?;
    fs::rename(&hidden, path)?;
    Ok(listener)
}

fn inode(path: &Path) -> io::Result<u64> {
    use std::os::unix::fs::MetadataExt;
    Ok(fs::symlink_metadata(path)?.ino())
}

impl Drop for Socket {
    /// A successor may have put its own socket there meanwhile; that one stays.
    fn drop(&mut self) {
        if inode(&self.path).is_ok_and(|inode| inode == self.inode) {
            let _ = fs::remove_file(&self.path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_dead_socket_is_taken_over_and_ours_goes_with_us() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("dra.sock");
        drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
        assert!(path.exists());

        let (socket, listener) = bind(&path).await.unwrap();
        assert!(is_served(&path));
        let mode = fs::symlink_metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        drop(listener);
        drop(socket);
        assert!(!path.exists());
    }

    #[tokio::test]
    async fn what_is_no_socket_is_left_alone() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("dra.sock");
        fs::write(&path, "precious").unwrap();
        let error = bind(&path).await.unwrap_err();
        assert!(error.to_string().contains("no socket"), "{error}");
        assert_eq!(fs::read(&path).unwrap(), b"precious");
    }

    #[tokio::test(start_paused = true)]
    async fn a_socket_that_is_served_is_not_stolen() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("dra.sock");
        let _listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
        let error = bind(&path).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::AddrInUse);
    }

    #[tokio::test]
    async fn a_path_that_the_kubelet_would_not_find_is_refused() {
        let error = bind(Path::new("plugins/dra.sock")).await.unwrap_err();
        assert!(error.to_string().contains("not absolute"), "{error}");
    }

    #[tokio::test]
    async fn a_path_that_is_too_long_is_named_with_the_numbers() {
        let path = PathBuf::from(format!("/tmp/{}.sock", "x".repeat(120)));
        let error = bind(&path).await.unwrap_err().to_string();
        assert!(
            error.contains("130 bytes") && error.contains("107"),
            "{error}"
        );
    }

    #[tokio::test]
    async fn a_directory_that_is_missing_is_an_error_that_names_the_path() {
        let error = bind(Path::new("/nonexistent-muster/dra.sock"))
            .await
            .unwrap_err();
        assert!(error.to_string().contains("/nonexistent-muster/dra.sock"));
    }
}
