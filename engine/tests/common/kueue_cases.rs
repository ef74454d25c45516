//! The file of cases of Kueue's own tests.
//!
//! It is never copied into the project: without it a test says SKIPPED, loudly. If `MUSTER_CONFORMANCE` names it (or its
//! directory) and it is not there, the test fails.

use std::path::{Path, PathBuf};

const FILE: &str = "quota_cases.json";

/// The text of the cases, or `None` where there are none on this machine.
///
/// # Panics
///
/// If `MUSTER_CONFORMANCE` names a file that cannot be read.
pub(crate) fn text() -> Option<String> {
    let named = std::env::var_os("MUSTER_CONFORMANCE").map(PathBuf::from);
    let package = Path::new(env!("CARGO_MANIFEST_DIR"));
    let workspace = package
        .ancestors()
        .find(|directory| directory.join("Cargo.lock").is_file());
    let default = workspace.unwrap_or(package).join("../shared/conformance");
    let mut path = named.clone().unwrap_or(default);
    if path.is_dir() {
        path.push(FILE);
    }
    let text = std::fs::read_to_string(&path).ok();
    assert!(
        text.is_some() || named.is_none(),
        "MUSTER_CONFORMANCE: cannot read {}",
        path.display()
    );
    if text.is_none() {
        println!("SKIPPED: no conformance cases at {}", path.display());
    }
    text
}
