//! `cargo xtask bench`: measurements that are too long, or too dependent on the machine, for a test.

use std::{path::PathBuf, process::Command};

use anyhow::{Context, Result, bail};
use clap::Subcommand;

use crate::{prerequisites, root};

/// Arguments of `cargo xtask bench`.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    bench: Bench,
}

#[derive(Subcommand)]
enum Bench {
    /// How fast gangs run on a real control plane, with nodes that one process plays.
    Scale {
        /// Nodes, each with 8 GPUs.
        #[arg(long, default_value_t = 500)]
        nodes: u32,
        /// Writes what was measured as JSON.
        #[arg(long, value_name = "FILE")]
        report: Option<PathBuf>,
    },
    /// How long the engine takes to decide at 10,000 nodes and 50,000 waiting gangs, and at a tenth of that.
    Engine,
}

/// Builds what the measurement needs and runs it.
pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    let mut command = Command::new("cargo");
    command.current_dir(root()).arg("run");
    match &arguments.bench {
        Bench::Scale { nodes, report } => {
            prerequisites::check()?;
            command.args(["--quiet", "--bin", "muster-scale", "--"]);
            command.args(["--nodes", &nodes.to_string()]);
            if let Some(report) = report {
                // The measurement runs in the repository's root; the path is the caller's.
                command.arg("--report").arg(std::path::absolute(report)?);
            }
        }
        Bench::Engine => {
            command.args([
                "--release",
                "--package",
                "muster-engine",
                "--example",
                "scale",
            ]);
        }
    }
    let status = command.status().context("starting the measurement")?;
    if !status.success() {
        bail!("the measurement failed ({status})");
    }
    Ok(())
}
