//! Loading the driver's kernel modules.

use std::{
    fmt,
    io::{self, Read},
    os::unix::process::CommandExt,
    path::PathBuf,
    process::{ChildStderr, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

/// How long `nvidia-modprobe` may take.
const LIMIT: Duration = Duration::from_secs(10);
/// Where it is, and what it runs itself: distributions, Talos, NixOS.
const PATH: &str =
    "/usr/sbin:/usr/bin:/sbin:/bin:/usr/local/sbin:/usr/local/bin:/run/current-system/sw/bin";
/// Between two looks whether it has ended.
const LOOK_EVERY: Duration = Duration::from_millis(10);
/// Longest complaint of it that is passed on.
const COMPLAINT_BYTES: usize = 1_000;

/// Loads kernel modules: the edge to the machine.
pub trait ModuleLoader: fmt::Debug + Send + Sync {
    /// Loads what CUDA needs. The error says what would work.
    fn load(&self) -> Result<(), String>;
}

/// The driver root's own `nvidia-modprobe`, with that root as its `/`: it knows where the modules of this driver are.
#[derive(Clone, Debug)]
pub struct NvidiaModprobe {
    root: PathBuf,
}

impl NvidiaModprobe {
    /// Of this driver root.
    pub fn new(root: impl Into<PathBuf>) -> Self {
        Self { root: root.into() }
    }

    fn command(&self) -> Command {
        let root = self.root.clone();
        // Looked for in the environment below, inside the root: systems have it in different directories.
        let mut command = Command::new("nvidia-modprobe");
        // The module of unified memory, and the first GPU's node, which has `nvidia` itself loaded.
        command
            .args(["-u", "-c=0"])
            .env_clear()
            .env("PATH", PATH)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped());
        let enter = move || {
            rustix::process::chroot(&root)?;
            rustix::process::chdir("/")?;
            Ok(())
        };
        // SAFETY: between fork and exec only two system calls are made, on memory that was allocated before.
        unsafe { command.pre_exec(enter) };
        command
    }

    fn run(&self) -> io::Result<Result<(), String>> {
        let mut child = self.command().spawn()?;
        let deadline = Instant::now() + LIMIT;
        let status = loop {
            match child.try_wait()? {
                Some(status) => break status,
                None if Instant::now() < deadline => thread::sleep(LOOK_EVERY),
                None => {
                    child.kill()?;
                    child.wait()?;
                    return Ok(Err(format!("it did not end within {} s", LIMIT.as_secs())));
                }
            }
        };
        if status.success() {
            return Ok(Ok(()));
        }
        let complaint = child.stderr.take().map(complaint).transpose();
        let complaint = complaint.ok().flatten().unwrap_or_default();
        Ok(Err(format!("{status} {}", complaint.trim())))
    }
}

/// What it said, as far as that is there by now: what it left running may hold its end open for good.
fn complaint(mut stderr: ChildStderr) -> io::Result<String> {
    rustix::io::ioctl_fionbio(&stderr, true)?;
    let mut said = [0; COMPLAINT_BYTES];
    let length = stderr.read(&mut said)?;
    let said = said.get(..length).unwrap_or_default();
    Ok(String::from_utf8_lossy(said).into_owned())
}

impl ModuleLoader for NvidiaModprobe {
    fn load(&self) -> Result<(), String> {
        let result = self.run().unwrap_or_else(|error| Err(error.to_string()));
        result.map_err(|cause| {
            format!(
                "nvidia-modprobe in driver root {}: {}; have the host load nvidia_uvm when it starts (modules-load.d)",
                self.root.display(),
                cause.trim()
            )
        })
    }
}
