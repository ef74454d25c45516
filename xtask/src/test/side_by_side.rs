//! Suites side by side: each has addresses and files of its own, and those of the real control plane mostly wait.
//!
//! The output of a suite is kept in a file while it runs and printed whole when it ends, so that two never mix;
//! meanwhile one line says how far each is. A suite that fails keeps no other one from running: all that is wrong is told at once,
//! and again at the end, where whoever sees the end only looks for it.

use std::{
    collections::{BTreeMap, VecDeque},
    fs::{self, File},
    io::{self, IsTerminal, Write},
    path::{Path, PathBuf},
    process::{Command, ExitStatus, Stdio},
    sync::{Mutex, MutexGuard, PoisonError, mpsc},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};

use wait_timeout::ChildExt;

use super::report::Report;

/// How often the line that says how far each suite is changes on a terminal.
const LOOK: Duration = Duration::from_secs(1);
/// How often it is repeated where the output goes to a file.
const REPEAT: Duration = Duration::from_secs(30);
/// How many lines of a suite that failed are repeated in the end.
const END_LINES: usize = 60;
/// What the line of a scenario's result begins with.
const RESULT: &str = "test ";

/// A suite that is to run.
pub(super) struct Suite {
    /// Its name.
    pub(super) name: String,
    /// How it is started.
    pub(super) command: Command,
    /// It is killed, and has failed, if it takes longer.
    pub(super) limit: Duration,
}

/// A suite that has ended.
struct Ended {
    name: String,
    took: Duration,
    result: io::Result<ExitStatus>,
}

/// Suites that wait, and since when each of the others runs.
struct Line {
    waiting: VecDeque<Suite>,
    running: BTreeMap<String, Instant>,
}

/// Runs all of them, in this order as lanes become free: at most so many at a time. Their output lies in `directory`.
pub(super) fn run(
    suites: Vec<Suite>,
    lanes: usize,
    directory: &Path,
    report: &mut Report,
) -> Result<()> {
    if suites.is_empty() {
        return Ok(());
    }
    fs::create_dir_all(directory)?;
    let names: Vec<&str> = suites.iter().map(|suite| suite.name.as_str()).collect();
    println!("==> {} ({lanes} side by side)", names.join(", "));
    let line = Mutex::new(Line {
        waiting: suites.into(),
        running: BTreeMap::new(),
    });
    let mut failed = Vec::new();
    thread::scope(|scope| {
        let (sender, news) = mpsc::channel();
        for _ in 0..lanes {
            let (sender, line) = (sender.clone(), &line);
            scope.spawn(move || lane(line, directory, &sender));
        }
        drop(sender);
        let mut progress = Progress::new(directory);
        loop {
            match news.recv_timeout(LOOK) {
                Ok(ended) => {
                    progress.clear();
                    print_whole(&ended, directory)?;
                    report.add(&ended.name, ended.took);
                    if !ended.result.is_ok_and(|status| status.success()) {
                        failed.push(ended.name);
                    }
                }
                Err(mpsc::RecvTimeoutError::Timeout) => progress.show(&lock(&line).running),
                Err(mpsc::RecvTimeoutError::Disconnected) => return anyhow::Ok(()),
            }
        }
    })?;
    if !failed.is_empty() {
        for name in &failed {
            print_end(name, directory)?;
        }
        report.print();
        bail!("failed: {}", failed.join(", "));
    }
    Ok(())
}

/// Takes one suite after another until none waits.
fn lane(line: &Mutex<Line>, directory: &Path, news: &mpsc::Sender<Ended>) {
    loop {
        let mut suite = {
            let mut line = lock(line);
            let Some(suite) = line.waiting.pop_front() else {
                return;
            };
            line.running.insert(suite.name.clone(), Instant::now());
            suite
        };
        let started = Instant::now();
        let log = log(directory, &suite.name);
        let result = run_into(&mut suite, &log);
        lock(line).running.remove(&suite.name);
        let ended = Ended {
            name: suite.name,
            took: started.elapsed(),
            result,
        };
        if news.send(ended).is_err() {
            return;
        }
    }
}

fn run_into(suite: &mut Suite, log: &Path) -> io::Result<ExitStatus> {
    let file = File::create(log)?;
    let mut child = suite
        .command
        .stdin(Stdio::null())
        .stdout(file.try_clone()?)
        .stderr(file)
        .spawn()?;
    if let Some(status) = child.wait_timeout(suite.limit)? {
        return Ok(status);
    }
    child.kill()?;
    child.wait()?;
    let seconds = suite.limit.as_secs();
    let why = format!("it did not end within {seconds} s and was killed");
    Err(io::Error::new(io::ErrorKind::TimedOut, why))
}

fn log(directory: &Path, suite: &str) -> PathBuf {
    // A suite of a package is named PACKAGE/SUITE.
    directory.join(format!("{}.log", suite.replace('/', "-")))
}

fn print_whole(ended: &Ended, directory: &Path) -> Result<()> {
    let log = log(directory, &ended.name);
    let output = fs::read(&log).with_context(|| format!("reading {}", log.display()))?;
    println!("==> {}", ended.name);
    io::stdout().write_all(&output)?;
    let took = ended.took.as_secs_f64();
    match &ended.result {
        Ok(status) if status.success() => println!("<== {}: {took:.1} s", ended.name),
        Ok(status) => println!("<== {}: {status} after {took:.1} s", ended.name),
        Err(error) => println!("<== {}: {error} (after {took:.1} s)", ended.name),
    }
    Ok(())
}

/// Repeats the last lines of a suite's output.
fn print_end(name: &str, directory: &Path) -> Result<()> {
    let log = log(directory, name);
    let output = fs::read(&log).with_context(|| format!("reading {}", log.display()))?;
    let text = String::from_utf8_lossy(&output);
    let lines: Vec<&str> = text.lines().collect();
    let end = &lines[lines.len().saturating_sub(END_LINES)..];
    println!("==> the end of {name}\n{}", end.join("\n"));
    Ok(())
}

/// A thread that panicked has left the line as good as any.
fn lock(line: &Mutex<Line>) -> MutexGuard<'_, Line> {
    line.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The line that says how far each suite is.
struct Progress<'a> {
    directory: &'a Path,
    is_terminal: bool,
    shown: Instant,
}

impl<'a> Progress<'a> {
    fn new(directory: &'a Path) -> Self {
        Self {
            directory,
            is_terminal: io::stderr().is_terminal(),
            shown: Instant::now(),
        }
    }

    fn show(&mut self, running: &BTreeMap<String, Instant>) {
        if !self.is_terminal && self.shown.elapsed() < REPEAT {
            return;
        }
        self.shown = Instant::now();
        let suites: Vec<String> = running
            .iter()
            .map(|(name, started)| {
                let seconds = started.elapsed().as_secs();
                format!("{name} {seconds} s, {} done", self.results_of(name))
            })
            .collect();
        let text = format!("    running: {}", suites.join("; "));
        if self.is_terminal {
            eprint!("\r\x1b[2K{text}");
        } else {
            eprintln!("{text}");
        }
    }

    fn clear(&self) {
        if self.is_terminal {
            eprint!("\r\x1b[2K");
        }
    }

    /// Scenarios of a suite that have ended.
    fn results_of(&self, suite: &str) -> usize {
        let output = fs::read_to_string(log(self.directory, suite)).unwrap_or_default();
        let lines = output.lines();
        lines.filter(|line| line.starts_with(RESULT)).count()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(name: &str, script: &str) -> Suite {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        Suite {
            name: name.to_owned(),
            command,
            limit: Duration::from_mins(1),
        }
    }

    fn directory(name: &str) -> PathBuf {
        let directory = std::env::temp_dir().join(format!("xtask-{name}-{}", std::process::id()));
        fs::create_dir_all(&directory).unwrap();
        directory
    }

    #[test]
    fn two_suites_run_at_the_same_time() {
        let directory = directory("pair");
        // Each waits for a file that only the other makes.
        let meet = |own: &str, other: &str| {
            let path = |name: &str| directory.join(name).display().to_string();
            let (own, other) = (path(own), path(other));
            format!("touch {own}; while ! test -e {other}; do sleep 0.01; done")
        };
        let suites = vec![
            shell("one", &meet("a", "b")),
            shell("other", &meet("b", "a")),
        ];
        run(suites, 2, &directory, &mut Report::new()).unwrap();
        fs::remove_dir_all(directory).unwrap();
    }

    #[test]
    fn after_a_failure_what_runs_ends_and_all_others_run() {
        let directory = directory("failure");
        let [ended, started] = ["ended", "started"].map(|name| directory.join(name));
        // One fails only once the other runs, however late its lane begins; the other ends only when that one's process is
        // waited for.
        let [runs, failed] =
            ["runs", "fails"].map(|name| directory.join(name).display().to_string());
        let is_waited_for =
            format!("while kill -0 $(cat {failed}) 2>/dev/null; do sleep 0.01; done");
        let wait_for = |path: &str| format!("while ! test -e {path}; do sleep 0.01; done");
        let suites = vec![
            shell(
                "fails",
                &format!(
                    "{}; echo $$ > {failed}.new; mv {failed}.new {failed}; exit 3",
                    wait_for(&runs)
                ),
            ),
            shell(
                "runs",
                &format!(
                    "touch {runs}; {}; {is_waited_for}; touch {}",
                    wait_for(&failed),
                    ended.display()
                ),
            ),
            shell("waits", &format!("touch {}", started.display())),
        ];
        let error = run(suites, 2, &directory, &mut Report::new()).unwrap_err();
        assert_eq!(error.to_string(), "failed: fails");
        assert!(ended.exists());
        assert!(started.exists());
        fs::remove_dir_all(directory).unwrap();
    }

    #[test]
    fn a_suite_that_hangs_is_killed_and_what_it_said_is_printed() {
        let directory = directory("hangs");
        let mut hangs = shell("hangs", "echo begins; exec sleep 600");
        hangs.limit = Duration::from_millis(300);
        let error = run(vec![hangs], 1, &directory, &mut Report::new()).unwrap_err();
        assert_eq!(error.to_string(), "failed: hangs");
        let said = fs::read_to_string(log(&directory, "hangs")).unwrap();
        assert_eq!(said, "begins\n");
        fs::remove_dir_all(directory).unwrap();
    }
}
