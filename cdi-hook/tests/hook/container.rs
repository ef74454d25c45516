//! A container that is being created: a bundle with a root.

use std::{
    fs,
    io::Write,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
};

/// The program.
const HOOK: &str = env!("CARGO_BIN_EXE_muster-cdi-hook");
/// Where the driver's library is in the container: in no directory that loaders look into by themselves.
pub(crate) const LIBRARY: &str = "x86_64::libcuda.so.1::/usr/lib/nvidia/libcuda.so.1";

/// A bundle, and what lies beside it on the host.
pub(crate) struct Container {
    directory: tempfile::TempDir,
}

impl Container {
    /// An image with glibc's loader, as far as the hook can see.
    pub(crate) fn new() -> Self {
        let container = Self {
            directory: tempfile::tempdir().unwrap(),
        };
        container.write("lib64/ld-linux-x86-64.so.2", b"");
        container.write("etc/passwd", b"");
        let configuration = r#"{"ociVersion": "1.2.0", "root": {"path": "rootfs"}}"#;
        fs::write(container.host("config.json"), configuration).unwrap();
        container
    }

    /// A path on the host, outside of the container's root.
    pub(crate) fn host(&self, path: &str) -> PathBuf {
        self.directory.path().join(path)
    }

    /// A path in the container's root.
    pub(crate) fn path(&self, path: &str) -> PathBuf {
        self.directory.path().join("rootfs").join(path)
    }

    /// Puts a file into the image.
    pub(crate) fn write(&self, path: &str, content: &[u8]) {
        let path = self.path(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content).unwrap();
    }

    /// Puts a link into the image, instead of what is there.
    pub(crate) fn link(&self, path: &str, target: impl AsRef<Path>) {
        let path = self.path(path);
        let _ = fs::remove_dir_all(&path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        symlink(target, path).unwrap();
    }

    /// Runs the hook.
    pub(crate) fn run(&self, arguments: &[&str]) -> Output {
        let mut command = Command::new(HOOK);
        command.args(arguments);
        self.feed(command)
    }

    /// Runs the hook after a piece of shell script, in a mount namespace of its own. `$ROOT` is the container's root.
    pub(crate) fn run_after(&self, script: &str, arguments: &[&str]) -> Output {
        let mut command = Command::new("unshare");
        if !rustix::process::geteuid().is_root() {
            command.args(["--user", "--map-root-user"]);
        }
        let script = format!("{script}\nexec \"$@\"");
        command
            .args(["--mount", "sh", "-euc", &script, "sh", HOOK])
            .args(arguments)
            .env("ROOT", self.path(""));
        self.feed(command)
    }

    fn feed(&self, mut command: Command) -> Output {
        let state = format!(
            r#"{{"ociVersion": "1.2.0", "id": "c", "status": "creating", "bundle": "{}"}}"#,
            self.directory.path().display()
        );
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        // One that fails before it reads closes its end.
        let _ = child.stdin.take().unwrap().write_all(state.as_bytes());
        child.wait_with_output().unwrap()
    }
}

/// It did what it was asked, in silence.
pub(crate) fn succeeds(output: &Output) {
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && said.is_empty(), "{said}");
}

/// It failed, and said why.
pub(crate) fn fails(output: &Output) -> String {
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success(), "it succeeded: {said}");
    assert!(said.starts_with("muster-cdi-hook: "), "{said}");
    said
}
