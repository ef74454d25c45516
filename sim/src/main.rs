//! `muster-sim`: what Muster would decide about a cluster that is written in files, and how its quota compares with
//! Kueue's.

use std::{
    io::Write,
    path::{Path, PathBuf},
    process::ExitCode,
};

use anyhow::Context;
use clap::{Parser, Subcommand};
use muster_sim::{
    conformance,
    decide::{self, Source},
};

/// Runs what ships on a cluster that does not exist.
#[derive(Parser)]
#[command(version)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Prints, as JSON, which gangs are admitted, on which nodes, why the others wait and what would help them, and which gangs
    /// give way to whom.
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
    /// Compares decisions about quota with cases of Kueue's own tests.
    ///
    /// Prints what passed, deviated, failed and was skipped in each suite of the file, and the sum as the last line. The
    /// exit status is 1 if a case failed.
    Conformance {
        /// A JSON object of suites, each an object of cases.
        file: PathBuf,
    },
}

fn main() -> ExitCode {
    let done = match Arguments::parse().command {
        Command::Decide { files } => decide(&files),
        Command::Conformance { file } => conform(&file),
    };
    match done {
        Ok(code) => code,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn decide(files: &[PathBuf]) -> anyhow::Result<ExitCode> {
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
    Ok(ExitCode::SUCCESS)
}

fn conform(file: &Path) -> anyhow::Result<ExitCode> {
    let text = std::fs::read_to_string(file)
        .with_context(|| format!("{} cannot be read", file.display()))?;
    let report = conformance::run(&text)?;
    write!(std::io::stdout().lock(), "{report}")?;
    Ok(if report.counts(None).failed == 0 {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}
