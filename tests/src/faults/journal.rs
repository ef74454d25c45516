//! What tests did to the GPUs of a node, in the order in which they did it: the truth that the observer compares everything with.
//!
//! A line is written before the hardware changes. So whatever follows from it is seen after it, and what was done later stands below.

use std::{
    fs::{self, File},
    io::Write,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

use super::{Fault, Mend};

/// Name of the file in the directory of a node.
const FILE: &str = "injected.jsonl";

/// One thing that was done to a GPU.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Injected {
    /// UUID of the GPU.
    pub gpu: String,
    /// What.
    pub what: What,
    /// When, in milliseconds since 1970.
    pub at_unix_millis: i64,
}

/// What was done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum What {
    /// It broke.
    Fault(Fault),
    /// Something mended it, perhaps.
    Mend(Mend),
}

/// The file of a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Journal {
    path: PathBuf,
}

impl Journal {
    /// That of the node with this directory. There may be no file yet.
    pub fn of(node_directory: &Path) -> Self {
        Self {
            path: node_directory.join(FILE),
        }
    }

    /// Adds a line.
    pub(super) fn note(&self, gpu: &str, what: What) -> Result<()> {
        let injected = Injected {
            gpu: gpu.to_owned(),
            what,
            at_unix_millis: jiff::Timestamp::now().as_millisecond(),
        };
        let mut line = serde_json::to_string(&injected)?;
        line.push('\n');
        let file = File::options().create(true).append(true).open(&self.path);
        let written = file.and_then(|mut file| file.write_all(line.as_bytes()));
        written.with_context(|| self.path.display().to_string())
    }

    /// Its length; 0 while there is none.
    pub fn bytes(&self) -> u64 {
        fs::metadata(&self.path).map_or(0, |metadata| metadata.len())
    }

    /// All its lines. The last one is left out while it is being written.
    pub fn read(&self) -> Result<Vec<Injected>> {
        let text = match fs::read_to_string(&self.path) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(error).with_context(|| self.path.display().to_string()),
        };
        let whole = text.rsplit_once('\n').map_or("", |(whole, _)| whole);
        let lines = whole.lines().map(|line| {
            serde_json::from_str(line).with_context(|| format!("{}: {line}", self.path.display()))
        });
        lines.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_done_is_read_in_its_order_and_a_line_that_is_being_written_is_not_read() {
        let directory = tempfile::tempdir().unwrap();
        let journal = Journal::of(directory.path());
        assert!(journal.read().unwrap().is_empty(), "nothing was done yet");
        let done = [
            What::Fault(Fault::Xid(48)),
            What::Fault(Fault::Lost),
            What::Mend(Mend::Reset),
        ];
        for what in done {
            journal.note("GPU-1", what).unwrap();
        }
        let read = |journal: &Journal| -> Vec<What> {
            let lines = journal.read().unwrap();
            assert!(lines.iter().all(|line| line.gpu == "GPU-1"));
            lines.into_iter().map(|line| line.what).collect()
        };
        assert_eq!(read(&journal), done);
        let file = File::options()
            .append(true)
            .open(directory.path().join(FILE));
        file.unwrap().write_all(b"{\"gpu\":").unwrap();
        assert_eq!(read(&journal), done);
    }
}
