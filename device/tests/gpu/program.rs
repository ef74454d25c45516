//! This program itself, started anew as one that uses CUDA (`cuda.rs`).

use std::{
    env,
    io::{BufRead, BufReader, Write},
    process::{Child, ChildStdin, Command, Stdio},
    sync::mpsc::{self, Receiver},
    thread,
    time::{Duration, Instant},
};

use crate::{
    cuda::NO_LIBRARY,
    uses::{Missing, PAUSE, SHORT_LIMIT},
};

/// Longest time until a program has its context: the first one sets the GPU up.
pub(crate) const START_LIMIT: Duration = Duration::from_mins(1);

/// The program; it ends with this.
pub(crate) struct Program {
    child: Child,
    input: Option<ChildStdin>,
    lines: Receiver<String>,
}

impl Program {
    /// Starts it with this argument, on the GPU or the slice with this UUID.
    pub(crate) fn start(argument: &str, visible: &str) -> Result<Self, String> {
        let program = env::current_exe().map_err(|error| error.to_string())?;
        let mut child = Command::new(program)
            .arg(argument)
            .env("CUDA_VISIBLE_DEVICES", visible)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|error| error.to_string())?;
        let (sender, lines) = mpsc::channel();
        if let Some(output) = child.stdout.take() {
            thread::spawn(move || {
                for line in BufReader::new(output).lines().map_while(Result::ok) {
                    if sender.send(line).is_err() {
                        return;
                    }
                }
            });
        }
        Ok(Self {
            input: child.stdin.take(),
            child,
            lines,
        })
    }

    /// Its process id.
    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// Waits until it says a line that begins with this word, and returns that.
    pub(crate) fn wait_for(&self, word: &str, limit: Duration) -> Result<String, Missing> {
        match self.lines.recv_timeout(limit) {
            Ok(line) if line.split(' ').next() == Some(word) => Ok(line),
            Ok(line) if line.starts_with(NO_LIBRARY) => Err(Missing::Nothing(line)),
            Ok(line) => Err(Missing::Failed(format!("the program says: {line}"))),
            Err(_) => Err(Missing::Failed(format!(
                "the program has not said {word:?} in {} s",
                limit.as_secs()
            ))),
        }
    }

    /// Has it go on.
    pub(crate) fn go_on(&mut self) -> Result<(), String> {
        match &mut self.input {
            Some(input) => writeln!(input).map_err(|error| error.to_string()),
            None => Err("the program reads nothing".to_owned()),
        }
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        // It ends with its input, and is not waited for if it hangs.
        self.input = None;
        let deadline = Instant::now() + SHORT_LIMIT;
        while matches!(self.child.try_wait(), Ok(None)) && Instant::now() < deadline {
            thread::sleep(PAUSE);
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
