//! A command as processes that end, whatever it does.
//!
//! It has a process group of its own, a deadline, no input, and an environment with a path and nothing else of the driver's but the mark that it runs
//! under. When its time is over, or it is to stop, the group is asked to end, and killed after a grace. When it has ended, whatever is left that bears its
//! mark is killed, also what has left the group: nothing that a command began outlives it. Processes that the kernel does not end are told
//! ([`How::Stuck`]): the GPU is not free as long as they are there.

use std::{
    ffi::OsString,
    io::{self, PipeReader, Read},
    os::unix::process::{CommandExt, ExitStatusExt},
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Stdio},
    sync::{Arc, Mutex, PoisonError},
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use rustix::process::{Pid, Signal, kill_process_group};

use super::{
    in_root,
    processes::{self, KILLED, POLL, VARIABLE},
};

/// Where programs look for programs.
const SEARCH_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
/// How much of the output is kept: the end of it.
const MOST_OUTPUT_BYTES: usize = 4 << 10;

/// A command to run. Blocking.
#[derive(Debug)]
pub struct Run<'a> {
    /// Program and arguments.
    pub words: &'a [String],
    /// The file system that it is in; the driver's own without it.
    pub root: Option<&'a PathBuf>,
    /// What its processes are known by.
    pub id: &'a str,
    /// How long it may take.
    pub deadline: Duration,
    /// How long it has to end when it is asked to.
    pub grace: Duration,
}

/// How it ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum How {
    /// By itself, with this status.
    Exited(i32),
    /// By a signal that nobody here sent.
    Killed(i32),
    /// It took too long, and was ended.
    Late,
    /// It was to stop, and was ended.
    Stopped,
    /// It never began.
    NotRun(String),
    /// What it began cannot be ended.
    Stuck,
}

/// What came of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ended {
    /// How it ended.
    pub how: How,
    /// The end of what it said, at most 4 KiB.
    pub output: String,
}

impl Ended {
    /// In a line, for people.
    pub fn message(&self) -> String {
        let how = match &self.how {
            How::Exited(status) => format!("it ended with status {status}"),
            How::Killed(signal) => format!("it was ended by signal {signal}"),
            How::Late => "it did not end in time".to_owned(),
            How::Stopped => "it was stopped".to_owned(),
            How::NotRun(cause) => format!("it could not be run: {cause}"),
            How::Stuck => "its processes cannot be ended".to_owned(),
        };
        if self.output.is_empty() {
            how
        } else {
            format!("{how}, and said: {}", self.output)
        }
    }
}

impl Run<'_> {
    /// Runs it until it has ended, or `is_over` says that it is to stop.
    pub fn until(&self, is_over: impl Fn() -> bool) -> Ended {
        let (mut child, output) = match self.start() {
            Ok(started) => started,
            Err(error) => {
                return Ended {
                    how: How::NotRun(error.to_string()),
                    output: String::new(),
                };
            }
        };
        let how = self.wait(&mut child, is_over);
        let is_ended = processes::end_own(Path::new("/proc"), self.id);
        let output = output.end();
        let how = match how {
            How::Exited(status) if status == i32::from(in_root::NOT_RUN) || status == 126 => {
                How::NotRun(format!("status {status}"))
            }
            how => how,
        };
        Ended {
            how: if is_ended { how } else { How::Stuck },
            output,
        }
    }

    fn start(&self) -> io::Result<(Child, Output)> {
        let words = match self.root {
            Some(root) => in_root::words(root, self.words)?,
            None => self.words.iter().map(OsString::from).collect(),
        };
        let (program, arguments) = words
            .split_first()
            .ok_or_else(|| io::Error::other("no program"))?;
        let (reader, writer) = io::pipe()?;
        // Before anything runs, so that what cannot be read is not begun.
        let output = Output::of(reader)?;
        let child = Command::new(program)
            .args(arguments)
            .env_clear()
            .env("PATH", SEARCH_PATH)
            .env(VARIABLE, self.id)
            .stdin(Stdio::null())
            .stdout(writer.try_clone()?)
            .stderr(writer)
            .process_group(0)
            .spawn()?;
        Ok((child, output))
    }

    /// Waits for it. It is not reaped before it has ended, so its group is its own when it is killed.
    fn wait(&self, child: &mut Child, is_over: impl Fn() -> bool) -> How {
        let deadline = Instant::now() + self.deadline;
        let mut ending: Option<(How, Instant)> = None;
        let mut kill_by: Option<Instant> = None;
        loop {
            match child.try_wait() {
                Ok(Some(status)) => return ending.map_or_else(|| ended(status), |(how, _)| how),
                Ok(None) => {}
                // Whether it has ended nobody can tell.
                Err(_) => return How::Stuck,
            }
            let now = Instant::now();
            match (&ending, kill_by) {
                (None, _) => {
                    let how = if now >= deadline {
                        Some(How::Late)
                    } else {
                        is_over().then_some(How::Stopped)
                    };
                    if let Some(how) = how {
                        signal(child, Signal::TERM);
                        ending = Some((how, now + self.grace));
                    }
                }
                (Some((_, until)), None) if now >= *until => {
                    signal(child, Signal::KILL);
                    kill_by = Some(now + KILLED);
                }
                (Some(_), Some(until)) if now >= until => return How::Stuck,
                _ => {}
            }
            thread::sleep(POLL);
        }
    }
}

fn ended(status: ExitStatus) -> How {
    match (status.code(), status.signal()) {
        (Some(code), _) => How::Exited(code),
        (None, signal) => How::Killed(signal.unwrap_or_default()),
    }
}

fn signal(child: &Child, signal: Signal) {
    let group = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
    if let Some(group) = group {
        // It may have ended just now.
        let _ = kill_process_group(group, signal);
    }
}

/// What a command says.
struct Output {
    kept: Arc<Mutex<Vec<u8>>>,
    reading: JoinHandle<()>,
}

impl Output {
    fn of(mut reader: PipeReader) -> io::Result<Self> {
        let kept = Arc::new(Mutex::new(Vec::new()));
        let end = Arc::clone(&kept);
        let read = move || {
            let mut buffer = [0; 4_096];
            while let Ok(count @ 1..) = reader.read(&mut buffer) {
                let mut end = end.lock().unwrap_or_else(PoisonError::into_inner);
                end.extend_from_slice(buffer.get(..count).unwrap_or_default());
                let more = end.len().saturating_sub(MOST_OUTPUT_BYTES);
                drop(end.drain(..more));
            }
        };
        let reading = thread::Builder::new().spawn(read)?;
        Ok(Self { kept, reading })
    }

    /// What it has said, once it has ended. Whoever holds its output open all the same is not waited for.
    fn end(self) -> String {
        let deadline = Instant::now() + KILLED;
        while !self.reading.is_finished() && Instant::now() < deadline {
            thread::sleep(POLL);
        }
        let kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        String::from_utf8_lossy(&kept).trim().to_owned()
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    fn shell(script: &str) -> Vec<String> {
        ["/bin/sh", "-c", script].map(str::to_owned).to_vec()
    }

    fn run(id: &str, script: &str, deadline: Duration, is_over: impl Fn() -> bool) -> Ended {
        let words = shell(script);
        let run = Run {
            words: &words,
            root: None,
            id: &format!("{id}-{}", std::process::id()),
            deadline,
            grace: Duration::from_millis(100),
        };
        run.until(is_over)
    }

    const LONG: Duration = Duration::from_mins(1);

    #[test]
    fn how_it_ends_and_what_it_says_is_told() {
        for (script, how, output) in [
            ("echo in order", How::Exited(0), "in order"),
            ("echo not; echo so >&2; exit 3", How::Exited(3), "not\nso"),
            ("kill -9 $$", How::Killed(9), ""),
            ("exit 127", How::NotRun("status 127".to_owned()), ""),
            (
                "test -z \"$HOME$KUBERNETES_SERVICE_HOST\"",
                How::Exited(0),
                "",
            ),
        ] {
            let ended = run("told", script, LONG, || false);
            assert_eq!(
                (ended.how, ended.output.as_str()),
                (how, output),
                "{script}"
            );
        }
        let words = ["/nonexistent-muster".to_owned()];
        let run = Run {
            words: &words,
            root: None,
            id: "none",
            deadline: LONG,
            grace: LONG,
        };
        let ended = run.until(|| false);
        assert!(matches!(ended.how, How::NotRun(_)), "{ended:?}");
    }

    #[test]
    fn of_what_it_says_the_end_is_kept() {
        let script = "i=0; while [ $i -lt 2000 ]; do echo line $i; i=$((i+1)); done";
        let ended = run("much", script, LONG, || false);
        assert!(ended.output.len() <= MOST_OUTPUT_BYTES);
        assert!(ended.output.ends_with("line 1999"), "{}", ended.output);
    }

    #[test]
    fn what_takes_too_long_or_is_to_stop_ends_and_all_that_it_began() {
        // What has left its group, and heeds no request.
        let script = "trap '' TERM; setsid sh -c 'trap \"\" TERM; sleep 1000' & echo begun; wait; sleep 1000";
        let started = Instant::now();
        let ended = run("late", script, Duration::from_millis(500), || false);
        assert_eq!(ended.how, How::Late, "{ended:?}");
        assert_eq!(ended.output, "begun");
        let polls = Cell::new(0);
        let is_over = || {
            polls.set(polls.get() + 1);
            polls.get() > 5
        };
        let ended = run("stopped", script, LONG, is_over);
        assert_eq!(ended.how, How::Stopped, "{ended:?}");
        assert!(started.elapsed() < LONG, "{:?}", started.elapsed());
        for id in ["late", "stopped"] {
            let id = format!("{id}-{}", std::process::id());
            let left = processes::marked(Path::new("/proc"), &id, None);
            assert!(left.is_empty(), "{id}");
        }
    }
}
