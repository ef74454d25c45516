//! The file of cases of Kueue's own tests.
//!
//! It is never copied into the project. A test that has none says SKIPPED, loudly; it fails with `CI=true`, and where
//! `MUSTER_CONFORMANCE` names a file (or its directory) that is not there.

use std::{
    env,
    io::{self, Write},
    path::{Path, PathBuf},
};

/// Names the file, or its directory.
const VARIABLE: &str = "MUSTER_CONFORMANCE";
/// Without the variable, relative to the root of this repository.
const DEFAULT: &str = "../shared/conformance";
const FILE: &str = "quota_cases.json";

/// The text of the cases, or `None` where there are none on this machine.
///
/// # Panics
///
/// If the file cannot be read, and [`VARIABLE`] names it or `CI=true`.
pub(crate) fn text() -> Option<String> {
    let named = env::var_os(VARIABLE).map(PathBuf::from);
    let is_ci = env::var_os("CI").is_some_and(|value| value == "true");
    match read(named.as_deref(), &default_directory(), is_ci) {
        Ok(text) => Some(text),
        Err(Missing { why, is_failure }) => {
            assert!(!is_failure, "{why}");
            // The harness keeps what a test prints to itself if the test passes; what is written it does not see.
            let told = writeln!(io::stderr(), "\n*** SKIPPED, nothing was tested: {why}\n");
            told.expect("standard error can be written to");
            None
        }
    }
}

/// Why there are no cases.
#[derive(Debug)]
pub(crate) struct Missing {
    /// Names the file and the variable.
    pub(crate) why: String,
    /// Whether the test fails for that; else it is skipped.
    pub(crate) is_failure: bool,
}

/// The text of the file that is named, by itself or by its directory; else of the one in the default directory.
pub(crate) fn read(named: Option<&Path>, default: &Path, is_ci: bool) -> Result<String, Missing> {
    let mut path = named.unwrap_or(default).to_path_buf();
    if named.is_none() || path.is_dir() {
        path.push(FILE);
    }
    std::fs::read_to_string(&path).map_err(|error| {
        let needed = if is_ci { "; CI=true needs it" } else { "" };
        Missing {
            why: format!(
                "the conformance cases at {} cannot be read ({error}){needed}; {VARIABLE} names the file or its directory",
                path.display()
            ),
            is_failure: is_ci || named.is_some(),
        }
    })
}

fn default_directory() -> PathBuf {
    let package = Path::new(env!("CARGO_MANIFEST_DIR"));
    let workspace = package
        .ancestors()
        .find(|directory| directory.join("Cargo.lock").is_file());
    workspace.unwrap_or(package).join(DEFAULT)
}
