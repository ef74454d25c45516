//! What a rank says about itself at its end.

use std::{fs, path::Path, process::ExitCode};

use serde::Serialize;

use crate::exchange::Failure;

/// One JSON object, written as `RANK.result.json` into the shared directory and to the standard output.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Report {
    rank: u32,
    world_size: u32,
    /// Ranks that were met, ascending, without this one.
    pub(crate) peers: Vec<u32>,
    gpus: Vec<String>,
    /// Steps that were done before this rank started, by the gang's last checkpoint.
    pub(crate) resumed_at: u32,
    /// Steps that all ranks have done, those before included.
    pub(crate) steps: u32,
    /// `Finished`, or why not.
    outcome: String,
}

impl Report {
    pub(crate) fn new(rank: u32, world_size: u32, gpus: &str) -> Self {
        Self {
            rank,
            world_size,
            peers: Vec::new(),
            gpus: self::gpus(gpus).map(str::to_owned).collect(),
            resumed_at: 0,
            steps: 0,
            outcome: String::new(),
        }
    }

    /// Writes the report and gives the exit code of the outcome.
    pub(crate) fn finish(mut self, directory: &Path, outcome: Result<(), Failure>) -> ExitCode {
        let code = match &outcome {
            Ok(()) => 0,
            Err(failure) => failure.exit_code(),
        };
        self.outcome = match outcome {
            Ok(()) => "Finished".to_owned(),
            Err(failure) => failure.to_string(),
        };
        let text = match serde_json::to_string(&self) {
            Ok(text) => text,
            Err(error) => error.to_string(),
        };
        let file = directory.join(format!("{}.result.json", self.rank));
        if let Err(error) = fs::write(&file, &text) {
            eprintln!("cannot write {}: {error}", file.display());
        }
        say(&text);
        ExitCode::from(code)
    }
}

/// UUIDs of GPUs in a list that is separated by commas.
pub(crate) fn gpus(list: &str) -> impl Iterator<Item = &str> {
    let gpus = list.split(',').map(str::trim);
    gpus.filter(|gpu| !gpu.is_empty())
}

/// The report is this program's output: what `kubectl logs` shows.
#[expect(clippy::print_stdout, reason = "the report is the program's output")]
fn say(text: &str) {
    println!("{text}");
}
