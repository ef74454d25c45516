//! Suites side by side: each has addresses and files of its own, and those of the real control plane mostly wait.
//!
//! The output of a suite is kept in a file while it runs and printed whole when it ends, so that two never mix;
//! meanwhile one line says how far each is. A suite that fails keeps no other one from running: all that is wrong is told at once,
//! and in short again behind the table of times, where whoever sees the end only looks for it.

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
const END_LINES: usize = 25;
/// How many characters of each of them.
const END_LINE_CHARACTERS: usize = 300;
/// What the line of a scenario's result begins with.
const RESULT: &str = "test ";
/// What the last line of a program of Rust's own test harness begins with.
const HARNESS_RESULT: &str = "test result: ";

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
        report.print();
        for name in &failed {
            print_end(name, directory)?;
        }
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

/// Repeats what a suite that failed said of it.
fn print_end(name: &str, directory: &Path) -> Result<()> {
    let log = log(directory, name);
    let output = fs::read(&log).with_context(|| format!("reading {}", log.display()))?;
    let text = String::from_utf8_lossy(&output);
    println!("==> the end of {name}\n{}", end_of(name, &text));
    Ok(())
}

/// Of what a suite that failed has said: the lines from its first failure on, but for scenarios that went well. One that says nothing of a failure
/// may have panicked; else its last lines are told. Long lines are cut.
fn end_of(suite: &str, text: &str) -> String {
    let lines: Vec<&str> = text.lines().collect();
    let last_lines = lines.len().saturating_sub(END_LINES);
    let began = lines
        .iter()
        .position(|line| is_failure(suite, line))
        .or_else(|| panic_in(&lines))
        .unwrap_or(last_lines);
    let told = lines.iter().skip(began);
    let told = told.filter(|line| !(line.starts_with(RESULT) && line.contains(" ... ok (")));
    let told: Vec<String> = told.take(END_LINES).map(|line| cut(line)).collect();
    told.join("\n")
}

/// Whether a suite on the real control plane says in this line that a scenario, or all of it, has failed.
fn is_failure(suite: &str, line: &str) -> bool {
    let is_of_scenario =
        line.starts_with(&format!("{RESULT}{suite}::")) && line.contains(" ... FAILED");
    is_of_scenario || line.starts_with(&format!("{suite}: FAILED"))
}

/// The line of the last panic. Rust's own test harness names in its end what has failed, and panics there may be expected.
fn panic_in(lines: &[&str]) -> Option<usize> {
    if lines.iter().any(|line| line.starts_with(HARNESS_RESULT)) {
        return None;
    }
    lines
        .iter()
        .rposition(|line| line.contains(" panicked at "))
}

/// The line, or so much of it as is repeated.
fn cut(line: &str) -> String {
    match line.char_indices().nth(END_LINE_CHARACTERS) {
        Some((end, _)) => format!("{}…", &line[..end]),
        None => line.to_owned(),
    }
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
    fn the_end_of_a_suite_that_failed_says_what_has_failed() {
        let many = |line: &str| [line; 40].join("\n");
        let last = |line: &str| [line; END_LINES].join("\n");
        let failed = "test gangs::b ... FAILED (3.1 s)\n  it waits\ngangs: FAILED: b";
        let told = "test gangs::b ... FAILED (3.1 s)\n  it waits\ntest gangs::c is looked at\ngangs: FAILED: b";
        let panicked = "thread 'main' (7) panicked at a.rs:1:2:\n  1: frame";
        for (text, expected) in [
            // A suite on the real control plane: from the first failure on, without what went well.
            (
                format!(
                    "{}\n{failed}",
                    many("test gangs::a ... ok (1.0 s; 1 gangs)")
                ),
                failed.to_owned(),
            ),
            (
                told.replace(
                    "test gangs::c",
                    "test gangs::a ... ok (1.0 s)\ntest gangs::c",
                ),
                told.to_owned(),
            ),
            // It is cut short after so many lines.
            (
                format!("gangs: FAILED: no cluster\n{}", many("of a log")),
                format!("gangs: FAILED: no cluster\n{}", last("of a log"))
                    .lines()
                    .take(END_LINES)
                    .collect::<Vec<_>>()
                    .join("\n"),
            ),
            // It ended without a word of its own.
            (
                format!("{}\n{panicked}", many("gangs: it starts")),
                panicked.to_owned(),
            ),
            // A program of Rust's own test harness, with a panic that a test expects.
            (
                format!(
                    "{panicked}\ntest a::b ... FAILED\n{}\ntest result: FAILED.",
                    many("of a test")
                ),
                format!(
                    "{}\ntest result: FAILED.",
                    ["of a test"; END_LINES - 1].join("\n")
                ),
            ),
            // Another suite's failure is none of this one.
            (
                format!("test faults::a ... FAILED\n{}", many("goes on")),
                last("goes on"),
            ),
            (String::new(), String::new()),
        ] {
            assert_eq!(end_of("gangs", &text), expected, "{text}");
        }
    }

    #[test]
    fn a_line_that_is_repeated_has_a_limit_in_characters() {
        let most = "é".repeat(END_LINE_CHARACTERS);
        assert_eq!(cut(&most), most);
        assert_eq!(cut(&format!("{most}é")), format!("{most}…"));
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
