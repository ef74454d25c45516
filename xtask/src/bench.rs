//! `cargo xtask bench`: measurements that are too long, or too dependent on the machine, for a test.

use std::{
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, bail};
use clap::{CommandFactory, Subcommand};

use crate::{build::cargo, prerequisites, root};

/// Arguments of `cargo xtask bench`.
#[derive(clap::Args)]
#[command(arg_required_else_help = true)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    bench: Option<Bench>,
    /// Lists the measurements.
    #[arg(long)]
    list: bool,
}

#[derive(Subcommand)]
enum Bench {
    /// What index, protocol and engine cost by the size of the cluster, in one process: events, plans, drain, takeover,
    /// memory, writes.
    Scale {
        /// Nodes, each with 8 GPUs. [default: 10000; with --real 500]
        #[arg(long)]
        nodes: Option<usize>,
        /// Gangs that wait. [default: 50000]
        #[arg(long, conflicts_with = "real")]
        gangs: Option<usize>,
        /// Measures how fast gangs run on a real control plane instead, with nodes that one process plays.
        #[arg(long)]
        real: bool,
        /// Writes what was measured as JSON.
        #[arg(long, value_name = "FILE")]
        report: Option<PathBuf>,
    },
    /// Kueue's performance scenarios with the engine in virtual time: makespan, times to admission, quota in use, evictions, and what the
    /// engine costs, beside a scheduler of the same policies that takes no time. With --real on a real control plane.
    Quota {
        /// Which of Kueue's scenarios: baseline, large-scale or all. [default: all; with --real baseline]
        #[arg(long)]
        scenario: Option<String>,
        /// Runs the scenario on a real control plane instead, with nodes that one process plays and a pod for each gang.
        #[arg(long)]
        real: bool,
        /// Calls that the controller may send in a second. [default: no bound; Kueue's runner has 50]
        #[arg(long, requires = "real")]
        kube_api_qps: Option<u32>,
        /// Only the first so many Cohorts, which share nothing. [default: all]
        #[arg(long, requires = "real")]
        cohorts: Option<u32>,
        /// Has the same Jobs done by another program in the same run: kueue, which is built where that has not been done yet.
        #[arg(long, requires = "real")]
        peer: Option<String>,
        /// Writes what was measured as JSON.
        #[arg(long, value_name = "FILE")]
        report: Option<PathBuf>,
    },
    /// Two months of Microsoft's Philly cluster by teams, quota counted in GPUs: what stays idle, who waits how long, what
    /// preemption costs, beside naive reclaim.
    Philly {
        /// Replays on so many GPUs alone: 448, 512 or 640. [default: all]
        #[arg(long, value_name = "N")]
        gpus: Option<u64>,
        /// Runs the engine as it is judged, and in no other mode.
        #[arg(long)]
        judged: bool,
        /// Writes what was measured as JSON.
        #[arg(long, value_name = "FILE")]
        report: Option<PathBuf>,
    },
    /// How well slices of GPUs are packed: requests placed and GPUs opened in random clusters, beside the optimum (an integer program,
    /// solved to proof) and beside first fit. Fails where the targets are not met.
    Mig {
        /// Random instances. [default: 300]
        #[arg(long)]
        instances: Option<u64>,
        /// Seed of the first. [default: 0]
        #[arg(long)]
        seed: Option<u64>,
        /// Writes what was measured as JSON.
        #[arg(long, value_name = "FILE")]
        report: Option<PathBuf>,
    },
    /// From a fault of a GPU, or the loss of a node, to the whole gang running again, on a real control plane: taint, intent, deletion and
    /// start, and whether anybody else was restarted. Fails if a target is not met, or a gang did not come back.
    Recovery {
        /// Faults of each case. [default: 50]
        #[arg(long)]
        runs: Option<u32>,
        /// Gangs that run, and lose a GPU, at one time: 1 or 2. Less time in all; the report says so. [default: 1]
        #[arg(long)]
        side_by_side: Option<u32>,
        /// GRACE:DIED: seconds of grace that ranks take (0 or 30) and how many die with their GPU (a number, or all). May be repeated.
        /// [default: all eight]
        #[arg(long = "case", value_name = "GRACE:DIED")]
        cases: Vec<String>,
        /// Nodes that are lost while ranks elsewhere hang, and as many while they fail; 0: none. [default: 5, or --runs if that is less]
        #[arg(long)]
        node_loss_runs: Option<u32>,
        /// Shortens what decides about lost nodes; the report says so.
        #[arg(long)]
        quick: bool,
        /// Writes what was measured as JSON, after each run anew.
        #[arg(long, value_name = "FILE")]
        report: Option<PathBuf>,
    },
    /// What the engine alone costs, by kind of event, at 10,000 nodes and 50,000 waiting gangs and at less.
    Engine,
}

/// Builds what the measurement needs and runs it.
pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    let Some(bench) = arguments.bench.as_ref().filter(|_| !arguments.list) else {
        for (name, about) in names() {
            println!("{name:<8} {about}");
        }
        return Ok(());
    };
    let mut command = cargo();
    command.current_dir(root()).arg("run");
    match bench {
        Bench::Scale {
            nodes,
            gangs,
            real,
            report,
        } => {
            if *real {
                prerequisites::check()?;
            }
            let program = if *real {
                "muster-scale"
            } else {
                "muster-bench"
            };
            run_program(&mut command, program);
            if !real {
                command.arg("scale");
            }
            for (name, number) in [("--nodes", nodes), ("--gangs", gangs)] {
                if let Some(number) = number {
                    command.args([name, &number.to_string()]);
                }
            }
            report_to(&mut command, report.as_deref())?;
        }
        Bench::Quota {
            scenario,
            real,
            kube_api_qps,
            cohorts,
            peer,
            report,
        } => {
            if *real {
                prerequisites::check()?;
                run_program(&mut command, "muster-bench");
                command.arg("quota-real");
            } else {
                run_replays(&mut command);
                command.arg("quota");
            }
            if let Some(scenario) = scenario {
                command.args(["--scenario", scenario]);
            }
            if let Some(peer) = peer {
                command.args(["--peer", peer]);
            }
            for (name, number) in [("--kube-api-qps", kube_api_qps), ("--cohorts", cohorts)] {
                if let Some(number) = number {
                    command.args([name, &number.to_string()]);
                }
            }
            report_to(&mut command, report.as_deref())?;
        }
        Bench::Philly {
            gpus,
            judged,
            report,
        } => {
            run_replays(&mut command);
            command.arg("philly");
            if let Some(gpus) = gpus {
                command.args(["--gpus", &gpus.to_string()]);
            }
            if *judged {
                command.arg("--judged");
            }
            report_to(&mut command, report.as_deref())?;
        }
        Bench::Mig {
            instances,
            seed,
            report,
        } => {
            run_program(&mut command, "muster-bench");
            command.arg("mig");
            for (name, number) in [("--instances", instances), ("--seed", seed)] {
                if let Some(number) = number {
                    command.args([name, &number.to_string()]);
                }
            }
            report_to(&mut command, report.as_deref())?;
        }
        Bench::Recovery {
            runs,
            side_by_side,
            cases,
            node_loss_runs,
            quick,
            report,
        } => {
            prerequisites::check()?;
            run_program(&mut command, "muster-recovery");
            for (name, number) in [
                ("--runs", runs),
                ("--side-by-side", side_by_side),
                ("--node-loss-runs", node_loss_runs),
            ] {
                if let Some(number) = number {
                    command.args([name, &number.to_string()]);
                }
            }
            for case in cases {
                command.args(["--case", case]);
            }
            if *quick {
                command.arg("--quick");
            }
            report_to(&mut command, report.as_deref())?;
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

/// By its name and not by its package: see the programs of `tests`, which are built with the same features.
fn run_program(command: &mut Command, program: &str) {
    command.args(["--release", "--bin", program, "--"]);
}

/// What replays traces needs no cluster, and is built in a minute without what does.
fn run_replays(command: &mut Command) {
    let package = ["--package", "muster-bench", "--no-default-features"];
    command.arg("--release").args(package).arg("--");
}

/// The measurement runs in the repository's root; the path is the caller's.
fn report_to(command: &mut Command, report: Option<&Path>) -> Result<()> {
    if let Some(report) = report {
        command.arg("--report").arg(std::path::absolute(report)?);
    }
    Ok(())
}

/// Each measurement with what it measures.
pub(crate) fn names() -> Vec<(String, String)> {
    let command = measurements();
    let measurements = command.get_subcommands().map(|bench| {
        let about = bench.get_about().map(ToString::to_string);
        (bench.get_name().to_owned(), about.unwrap_or_default())
    });
    measurements.collect()
}

/// A command whose subcommands are the measurements.
fn measurements() -> clap::Command {
    #[derive(clap::Parser)]
    struct Benches {
        #[command(subcommand)]
        _bench: Bench,
    }
    Benches::command()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_measurement_is_listed_with_what_it_measures() {
        let names = names();
        for wanted in ["scale", "quota", "philly", "mig", "recovery", "engine"] {
            let found = names.iter().find(|(name, _)| name == wanted);
            assert!(
                found.is_some_and(|(_, about)| about.len() > 20),
                "{names:?}"
            );
        }
    }

    /// What stands behind `cargo xtask bench` in a heading, or at the beginning of a row.
    fn usage(line: &str) -> Option<&str> {
        let command = line
            .strip_prefix("## ")
            .or_else(|| line.strip_prefix("| "))?;
        let usage = command.strip_prefix("`cargo xtask bench ")?;
        usage.split_once('`').map(|(usage, _)| usage)
    }

    #[test]
    fn every_flag_that_the_documents_name_is_one_of_its_measurement() {
        let command = measurements();
        let documents = [
            include_str!("../../docs/benchmarks.md"),
            include_str!("../../CONTRIBUTING.md"),
        ];
        let mut flags = 0;
        for usage in documents.into_iter().flat_map(str::lines).filter_map(usage) {
            let mut words = usage.split([' ', '[', ']']);
            let measurement = words.next().unwrap_or_default();
            let measurement = command.find_subcommand(measurement).expect(usage);
            for flag in words.filter_map(|word| word.strip_prefix("--")) {
                let mut known = measurement.get_arguments();
                assert!(
                    known.any(|it| it.get_long() == Some(flag)),
                    "{usage}: --{flag}"
                );
                flags += 1;
            }
        }
        assert!(flags > 20, "the documents name {flags} flags");
    }
}
