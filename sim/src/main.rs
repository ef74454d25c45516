//! `muster-sim decide FILE...`: what Muster would decide about a cluster that is written in files.

use std::{io::Write, path::PathBuf, process::ExitCode};

use clap::{Parser, Subcommand};
use muster_sim::decide::{self, Source};

/// Runs what ships on a cluster that does not exist.
#[derive(Parser)]
#[command(version)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Prints, as JSON, which gangs are admitted, on which nodes, and why the others wait.
    ///
    /// Reads Kubernetes objects as users write them: Nodes, ResourceSlices, DeviceClasses, Topologies, Flavors,
    /// Cohorts, Teams, PriorityTiers, Namespaces, Pods, Jobs, ResourceClaims, ResourceClaimTemplates, and Gangs that
    /// run. What a cluster would add by itself is made up: UIDs, statuses, the pods of Jobs, claims of templates,
    /// gates, the tiers and the DeviceClass of the chart.
    Decide {
        /// YAML or JSON; several documents, and Lists. `-` reads the standard input.
        #[arg(required = true)]
        files: Vec<PathBuf>,
    },
}

fn main() -> ExitCode {
    let Command::Decide { files } = Arguments::parse().command;
    match run(&files) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(files: &[PathBuf]) -> anyhow::Result<()> {
    let sources = files
        .iter()
        .map(|file| Source::open(file))
        .collect::<Result<Vec<_>, _>>()?;
    let answer = decide::decide(&sources)?;
    for warning in &answer.warnings {
        eprintln!("warning: {warning}");
    }
    let mut output = std::io::stdout().lock();
    serde_json::to_writer_pretty(&mut output, &answer.decisions)?;
    writeln!(output)?;
    Ok(())
}
