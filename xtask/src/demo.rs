//! `cargo xtask demo`: starts the demonstration, which lives beside the harness that it shares with the scenarios.

use std::path::PathBuf;

use anyhow::{Context, Result, bail};

use crate::{build::cargo, prerequisites, root};

/// Arguments of `cargo xtask demo`.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Leaves everything running and prints how to look at it.
    #[arg(long)]
    keep: bool,
    /// Writes what was observed as JSON.
    #[arg(long, value_name = "FILE")]
    report: Option<PathBuf>,
}

/// Builds what the demonstration needs and runs it.
pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    prerequisites::check()?;
    let mut command = cargo();
    // By the program's name, so that its dependencies are those of this tool: see `tests/src/programs.rs`. Not quiet: a
    // cold build takes minutes, and cargo shows how far it is.
    command.args(["run", "--bin", "muster-demo", "--"]);
    if arguments.keep {
        command.arg("--keep");
    }
    if let Some(report) = &arguments.report {
        // The demonstration runs in the repository's root; the path is the caller's.
        command.arg("--report").arg(std::path::absolute(report)?);
    }
    let status = command
        .current_dir(root())
        .status()
        .context("starting the demonstration")?;
    if !status.success() {
        bail!("the demonstration failed ({status})");
    }
    Ok(())
}
