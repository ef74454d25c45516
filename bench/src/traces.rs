//! Where the public traces lie that benchmarks read. None of them is part of this repository.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use ring::digest::{SHA256, digest};

/// Names the directory.
const VARIABLE: &str = "MUSTER_TRACES";
/// Without the variable, relative to the root of this repository.
const DEFAULT: &str = "../shared/traces";

/// A trace file as it was read.
#[derive(Debug)]
pub(crate) struct TraceFile {
    pub(crate) text: String,
    /// SHA-256 in hexadecimal, for the report.
    pub(crate) sha256: String,
}

/// Reads one file of the directory; who lacks it is told where it comes from.
pub(crate) fn read(path: &str, source: &str) -> Result<TraceFile> {
    let directory = std::env::var_os(VARIABLE).map_or_else(default_directory, PathBuf::from);
    read_in(&directory, path, source)
}

fn default_directory() -> PathBuf {
    let package = Path::new(env!("CARGO_MANIFEST_DIR"));
    package.parent().unwrap_or(package).join(DEFAULT)
}

fn read_in(directory: &Path, path: &str, source: &str) -> Result<TraceFile> {
    let file = directory.join(path);
    let text = std::fs::read_to_string(&file).with_context(|| {
        format!(
            "{} cannot be read: take it from {source} and put it there, or set {VARIABLE} to the directory that has {path}",
            file.display()
        )
    })?;
    let digest = digest(&SHA256, text.as_bytes());
    let sha256 = digest
        .as_ref()
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect();
    Ok(TraceFile { text, sha256 })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_lacks_a_trace_is_told_which_and_where_it_comes_from() -> Result<()> {
        let directory = std::env::temp_dir().join(format!("muster-traces-{}", std::process::id()));
        let Err(error) = read_in(&directory, "kueue-perf/a.yaml", "kubernetes-sigs/kueue") else {
            anyhow::bail!("there is no such file");
        };
        let text = format!("{error:#}");
        for wanted in ["kueue-perf/a.yaml", "kubernetes-sigs/kueue", VARIABLE] {
            assert!(text.contains(wanted), "{text}");
        }
        std::fs::create_dir(&directory)?;
        std::fs::write(directory.join("some"), "abc")?;
        let read = read_in(&directory, "some", "nowhere")?;
        std::fs::remove_dir_all(&directory)?;
        assert_eq!(read.text, "abc");
        assert!(read.sha256.starts_with("ba7816bf"), "{}", read.sha256);
        Ok(())
    }
}
