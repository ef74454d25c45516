//! What a newcomer's machine must have, checked before anything long starts.

use std::process::{Command, Stdio};

use anyhow::{Result, bail};

/// A program that must be there, and how to get it.
const PROGRAMS: [(&str, &str, &str); 5] = [
    (
        "cargo",
        "--version",
        "Rust 1.95 or newer, with rustfmt and clippy",
    ),
    (
        "go",
        "version",
        "Go 1.26 or newer: it builds the real control plane from its modules",
    ),
    ("git", "--version", "git"),
    (
        "g++",
        "--version",
        "g++ of GCC: it compiles the checked model of the protocol",
    ),
    (
        "unshare",
        "--version",
        "unshare of util-linux: kubelets run in user namespaces",
    ),
];

/// Fails with a list of what is missing.
pub(crate) fn check() -> Result<()> {
    let missing: Vec<&str> = PROGRAMS
        .iter()
        .filter(|(program, argument, _)| !runs(program, argument))
        .map(|(_, _, how)| *how)
        .collect();
    if !missing.is_empty() {
        bail!("missing on this machine:\n  - {}", missing.join("\n  - "));
    }
    Ok(())
}

fn runs(program: &str, argument: &str) -> bool {
    Command::new(program)
        .arg(argument)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|status| status.success())
}
