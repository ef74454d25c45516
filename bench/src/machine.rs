//! On what a report was measured, and of what.

use anyhow::{Context, Result};
use serde::Serialize;

/// What a reader needs to compare two reports.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Machine {
    /// Commit of this repository, with `-dirty` where files differ from it; empty outside of a checkout.
    commit: String,
    processor: String,
    cores: usize,
}

impl Machine {
    pub(crate) fn here() -> Result<Self> {
        let processors = std::fs::read_to_string("/proc/cpuinfo").context("/proc/cpuinfo")?;
        Ok(Self {
            commit: commit(),
            processor: model(&processors),
            cores: std::thread::available_parallelism()?.get(),
        })
    }
}

fn commit() -> String {
    let output = std::process::Command::new("git")
        .args([
            "describe",
            "--always",
            "--abbrev=12",
            "--dirty",
            "--exclude=*",
        ])
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output();
    let output = output.ok().filter(|output| output.status.success());
    let text = output.map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned());
    text.unwrap_or_default()
}

/// The first processor's name, where the kernel tells it.
fn model(processors: &str) -> String {
    let mut lines = processors.lines();
    let name = lines.find_map(|line| line.strip_prefix("model name")?.split_once(':'));
    name.map_or_else(String::new, |(_, name)| name.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_processor_is_named() {
        let text =
            "processor\t: 0\nmodel name\t: Some CPU @ 2 GHz\nflags: x\nmodel name\t: Other\n";
        assert_eq!(model(text), "Some CPU @ 2 GHz");
        assert_eq!(model("processor: 0\n"), "");
    }
}
