//! Child processes that cannot be left behind.
//!
//! Every child leads a process group of its own, so that stopping it stops what it started, and
//! carries a parent-death signal, so that even a test that is killed leaves no etcd behind. Both are
//! set without `unsafe`: the group by the standard library, the signal by `setpriv` of util-linux,
//! which replaces itself with the program.
//!
//! The kernel sends a parent-death signal when the *thread* that forked ends. So all children are
//! forked by one thread that lives as long as this process.

use std::{
    collections::BTreeMap,
    ffi::OsString,
    fs::File,
    io,
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Stdio},
    sync::{OnceLock, mpsc},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, anyhow, bail};
use rustix::process::{Pid, Signal, kill_process_group};

/// How often a child that was told to stop is looked at.
const POLL: Duration = Duration::from_millis(20);

/// The search path of children: what distributions use.
const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// What to start. The environment is empty but for `PATH`, `HOME` and what is given: no proxy and
/// no setting of the caller's shell changes what a test sees.
#[derive(Clone, Debug)]
pub struct Launch {
    /// Name of the process in messages, and of its log file.
    pub name: String,
    /// The program.
    pub program: PathBuf,
    /// Its arguments.
    pub arguments: Vec<OsString>,
    /// Its environment.
    pub environment: BTreeMap<String, OsString>,
    /// A command that runs the program inside a namespace (`nsenter …`); empty without.
    pub inside: Vec<OsString>,
}

impl Launch {
    /// A program without arguments, named after itself.
    pub fn new(name: impl Into<String>, program: impl Into<PathBuf>) -> Self {
        Self {
            name: name.into(),
            program: program.into(),
            arguments: Vec::new(),
            environment: BTreeMap::new(),
            inside: Vec::new(),
        }
    }

    /// Appends one argument.
    #[must_use]
    pub fn arg(mut self, argument: impl Into<OsString>) -> Self {
        self.arguments.push(argument.into());
        self
    }

    /// Appends arguments.
    #[must_use]
    pub fn args<I: IntoIterator<Item: Into<OsString>>>(mut self, arguments: I) -> Self {
        self.arguments.extend(arguments.into_iter().map(Into::into));
        self
    }

    /// Sets an environment variable.
    #[must_use]
    pub fn env(mut self, name: impl Into<String>, value: impl Into<OsString>) -> Self {
        self.environment.insert(name.into(), value.into());
        self
    }

    /// The command line with everything around the program.
    fn command(&self) -> Command {
        // setpriv comes last: entering a namespace may clear a parent-death signal.
        let mut words = self.inside.clone();
        words.extend(["setpriv", "--pdeathsig", "KILL", "--"].map(OsString::from));
        words.push(self.program.clone().into_os_string());
        words.extend(self.arguments.iter().cloned());
        let mut words = words.into_iter();
        let mut command = Command::new(words.next().unwrap_or_default());
        command
            .args(words)
            .env_clear()
            .env("PATH", PATH)
            .env("HOME", std::env::temp_dir())
            .envs(&self.environment)
            .process_group(0)
            .stdin(Stdio::null());
        command
    }

    /// Starts it; stdout and stderr go to `LOGS/NAME.log`, appended to, so that a restart keeps what
    /// the process said before.
    pub fn start(&self, logs: &Path) -> Result<Process> {
        let log = logs.join(format!("{}.log", self.name));
        let file = File::options()
            .create(true)
            .append(true)
            .open(&log)
            .with_context(|| format!("cannot open the log {}", log.display()))?;
        let mut command = self.command();
        command.stdout(file.try_clone()?).stderr(file);
        let child = spawn(command).with_context(|| format!("cannot start {}", self.name))?;
        Ok(Process {
            name: self.name.clone(),
            log,
            child,
        })
    }

    /// Runs it to its end within `limit` and returns what it wrote to stdout; stderr is part of the
    /// error when it fails.
    pub async fn output(&self, limit: Duration) -> Result<String> {
        let mut command = self.command();
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let child = spawn(command).with_context(|| format!("cannot start {}", self.name))?;
        let group = group_of(&child);
        let finished = tokio::task::spawn_blocking(move || child.wait_with_output());
        let Ok(output) = tokio::time::timeout(limit, finished).await else {
            signal(group, Signal::KILL);
            bail!("{} did not end within {} s", self.name, limit.as_secs());
        };
        let output = output.context("the waiting thread ended")??;
        if !output.status.success() {
            bail!(
                "{} ended with {}: {}",
                self.name,
                output.status,
                String::from_utf8_lossy(&output.stderr).trim()
            );
        }
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }
}

/// A running child. Dropping it kills its whole group.
#[derive(Debug)]
pub struct Process {
    name: String,
    log: PathBuf,
    child: Child,
}

impl Process {
    /// Its name in messages.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its process id, which is also its group's.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// How it ended, or `None` while it runs.
    pub fn exit_status(&mut self) -> Result<Option<ExitStatus>> {
        Ok(self.child.try_wait()?)
    }

    /// Fails with the end of its log if it has ended.
    pub fn ensure_running(&mut self) -> Result<()> {
        match self.exit_status()? {
            None => Ok(()),
            Some(status) => bail!(
                "{} ended with {status}; the end of {}:\n{}",
                self.name,
                self.log.display(),
                self.log_end()
            ),
        }
    }

    /// The last lines of its log.
    pub fn log_end(&self) -> String {
        last_lines(&self.log, 15)
    }

    /// SIGTERM to the group, then SIGKILL after `limit`. Never fails: what is gone is gone.
    pub async fn stop(mut self, limit: Duration) {
        signal(group_of(&self.child), Signal::TERM);
        let deadline = Instant::now() + limit;
        while Instant::now() < deadline {
            if !matches!(self.child.try_wait(), Ok(None)) {
                return;
            }
            tokio::time::sleep(POLL).await;
        }
        tracing::warn!(
            process = self.name,
            "ignored SIGTERM and is killed; see {}",
            self.log.display()
        );
    }

    /// SIGKILL to the group, at once: a crash.
    pub fn kill(self) {
        drop(self);
    }

    /// SIGSTOP to the group: the machine hangs.
    pub fn freeze(&self) {
        signal(group_of(&self.child), Signal::STOP);
    }

    /// SIGCONT to the group.
    pub fn thaw(&self) {
        signal(group_of(&self.child), Signal::CONT);
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if matches!(self.child.try_wait(), Ok(Some(_))) {
            return; // reaped: its number may belong to somebody else by now
        }
        signal(group_of(&self.child), Signal::KILL);
        // A killed process always ends; without the wait it would stay a zombie.
        let _ = self.child.wait();
    }
}

/// The last `count` lines of a file; empty if it cannot be read.
pub fn last_lines(file: &Path, count: usize) -> String {
    let Ok(content) = std::fs::read(file) else {
        return String::new();
    };
    let text = String::from_utf8_lossy(&content);
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(count)..].join("\n")
}

fn group_of(child: &Child) -> Option<Pid> {
    i32::try_from(child.id()).ok().and_then(Pid::from_raw)
}

fn signal(group: Option<Pid>, signal: Signal) {
    if let Some(group) = group {
        // The only error there can be is that the group is gone already.
        let _ = kill_process_group(group, signal);
    }
}

type SpawnRequest = (Command, mpsc::Sender<io::Result<Child>>);

/// Forks on the one thread that outlives everything else of this process.
fn spawn(command: Command) -> Result<Child> {
    static SPAWNER: OnceLock<mpsc::Sender<SpawnRequest>> = OnceLock::new();
    let spawner = SPAWNER.get_or_init(|| {
        let (requests, inbox) = mpsc::channel::<SpawnRequest>();
        thread::spawn(move || {
            while let Ok((mut command, answer)) = inbox.recv() {
                let _ = answer.send(command.spawn());
            }
        });
        requests
    });
    let (answer, answered) = mpsc::channel();
    spawner
        .send((command, answer))
        .map_err(|_| anyhow!("the thread that starts processes has ended"))?;
    Ok(answered
        .recv()
        .context("the thread that starts processes has ended")??)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn stopping_a_process_stops_what_it_started() {
        let logs = tempfile::tempdir().unwrap();
        let process = Launch::new("family", "sh")
            .args(["-c", "sleep 600 & echo child=$!; wait"])
            .start(logs.path())
            .unwrap();
        let child = loop {
            let said = process.log_end();
            if let Some(pid) = said.strip_prefix("child=") {
                break pid.trim().to_owned();
            }
            tokio::time::sleep(POLL).await;
        };
        process.stop(Duration::from_secs(5)).await;
        let alive = || {
            // A zombie still has a directory; its state says that it is dead.
            std::fs::read_to_string(format!("/proc/{child}/stat"))
                .is_ok_and(|stat| !stat.contains(") Z"))
        };
        let deadline = Instant::now() + Duration::from_secs(5);
        while alive() && Instant::now() < deadline {
            tokio::time::sleep(POLL).await;
        }
        assert!(!alive(), "process {child} outlived its parent's group");
    }

    #[tokio::test]
    async fn a_command_that_fails_says_why() {
        let error = Launch::new("failing", "sh")
            .args(["-c", "echo broken >&2; exit 3"])
            .output(Duration::from_secs(5))
            .await
            .unwrap_err();
        assert!(format!("{error:#}").contains("broken"), "{error:#}");
    }

    #[tokio::test]
    async fn a_process_does_not_see_the_callers_environment() {
        let seen = Launch::new("environment", "env")
            .env("GIVEN", "1")
            .output(Duration::from_secs(5))
            .await
            .unwrap();
        let names: Vec<&str> = seen.lines().filter_map(|l| l.split('=').next()).collect();
        assert_eq!(names, ["GIVEN", "HOME", "PATH"]);
    }
}
