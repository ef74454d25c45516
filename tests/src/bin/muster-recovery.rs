//! `cargo xtask bench recovery`: how long it takes from a fault to the whole gang running again. It fails if a target is not met.
#![allow(clippy::print_stdout, reason = "a benchmark speaks on standard output")]

use std::{
    cell::RefCell,
    path::{Path, PathBuf},
    process::ExitCode,
    time::Instant,
};

use anyhow::{Context, Result, anyhow};
use clap::Parser;
use muster_tests::{
    cluster::Cluster,
    progress::ProgressCallback,
    recovery_bench::{self, Case, MOST_SIDE_BY_SIDE, Options, RecoveryReport, Timing},
    suite,
};

/// Nodes that are lost of each kind where nobody says how many.
const NODE_LOSS_RUNS: u32 = 5;

/// How long it takes from a fault to the whole gang running again.
#[derive(Parser)]
struct Arguments {
    /// Faults of each case.
    #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    runs: u32,
    /// Gangs that run, and lose a GPU, at one time, which takes less time in all; there is room for two. The report says so: what one does another may wait for.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=i64::from(MOST_SIDE_BY_SIDE)))]
    side_by_side: u32,
    /// A case, as GRACE:DIED: seconds of grace that ranks take (0 or 30), and how many die with their GPU (a number, or all). Several may be given,
    /// the first is what the report says first. All eight without it: 0, 1, 3 and all, with 30 and with 0.
    #[arg(long = "case", value_name = "GRACE:DIED")]
    cases: Vec<Case>,
    /// Nodes that are lost while ranks elsewhere hang, and as many while they fail; with 0 nothing is measured about lost nodes. Five without it, or
    /// as many as faults if these are fewer: each takes five minutes and more.
    #[arg(long, value_parser = clap::value_parser!(u32).range(0..=1_000))]
    node_loss_runs: Option<u32>,
    /// Shortens what decides about lost nodes to a tenth or so; the report says so.
    #[arg(long)]
    quick: bool,
    /// Writes what was measured as JSON, after each run anew.
    #[arg(long)]
    report: Option<PathBuf>,
}

#[tokio::main]
async fn main() -> ExitCode {
    suite::run_program(Box::pin(run(Arguments::parse()))).await
}

async fn run(arguments: Arguments) -> Result<()> {
    let timing = if arguments.quick {
        Timing::QUICK
    } else {
        Timing::AS_SHIPPED
    };
    let node_loss_runs = arguments.runs.min(NODE_LOSS_RUNS);
    let options = Options {
        runs: arguments.runs,
        side_by_side: arguments.side_by_side,
        cases: if arguments.cases.is_empty() {
            Case::all()
        } else {
            arguments.cases
        },
        node_loss_runs: arguments.node_loss_runs.unwrap_or(node_loss_runs),
        timing,
    };
    let progress = ProgressCallback::to(|step| println!("{step}"));
    let mut cluster = Cluster::start(recovery_bench::cluster_options(timing, progress)).await?;
    let began = Instant::now();
    let say = |text: &str| println!("{:>7.1} s  {text}", began.elapsed().as_secs_f64());
    let path = arguments.report.as_deref();
    let last = RefCell::new(None);
    let keep = |report: &RecoveryReport| {
        *last.borrow_mut() = Some(report.clone());
        write(report, path)
    };
    let measured = tokio::select! {
        measured = Box::pin(recovery_bench::measure(&mut cluster, &options, say, keep)) => measured,
        interrupted = tokio::signal::ctrl_c() => match interrupted {
            Ok(()) => Err(anyhow!("interrupted; what was measured until then is above")),
            Err(error) => Err(error).context("waiting for Ctrl-C"),
        },
    };
    // What was measured stands, whatever ended it.
    if let Some(mut report) = last.into_inner() {
        if let Err(error) = &measured {
            // Who reads it is to know that it is not all that was wanted.
            report.findings.push(format!("ENDED: {error:#}"));
            if let Err(error) = write(&report, path) {
                println!("{error:#}");
            }
        }
        println!("\n{report}");
    }
    let judged = measured.and_then(|report| report.judge());
    if judged.is_err() {
        println!(
            "everything is kept in {}",
            cluster.keep_directory().display()
        );
    }
    cluster.stop().await;
    judged
}

/// As a whole, so that whoever reads it meanwhile sees the last report or this one.
fn write(report: &RecoveryReport, path: Option<&Path>) -> Result<()> {
    let Some(path) = path else { return Ok(()) };
    let text = serde_json::to_string_pretty(report)?;
    let partial = path.with_extension("new");
    std::fs::write(&partial, text + "\n")
        .with_context(|| format!("writing {}", partial.display()))?;
    std::fs::rename(&partial, path).with_context(|| format!("writing {}", path.display()))
}
