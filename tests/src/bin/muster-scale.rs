//! `cargo xtask bench scale --real`: how fast gangs run on a real control plane with many nodes.
#![allow(clippy::print_stdout, reason = "a benchmark speaks on standard output")]

use std::{path::PathBuf, process::ExitCode};

use anyhow::{Context, Result};
use clap::Parser;
use muster_tests::{
    cluster::{Cluster, ClusterOptions},
    fake_nodes::FakeNodes,
    install::MusterOptions,
    progress::ProgressCallback,
    scale, suite,
};

/// GPUs of a played node.
const GPUS: u32 = 8;

/// How fast gangs run on a real control plane with many nodes.
#[derive(Parser)]
struct Arguments {
    /// Nodes, each with 8 GPUs.
    #[arg(long, default_value_t = 500, value_parser = clap::value_parser!(u32).range(2..=5_000))]
    nodes: u32,
    /// Writes what was measured as JSON.
    #[arg(long)]
    report: Option<PathBuf>,
}

#[tokio::main]
async fn main() -> ExitCode {
    suite::run_program(Box::pin(run(Arguments::parse()))).await
}

async fn run(arguments: Arguments) -> Result<()> {
    let nodes = FakeNodes {
        count: arguments.nodes,
        gpus: GPUS,
    };
    let mut cluster = Cluster::start(ClusterOptions {
        fake_nodes: Some(nodes),
        muster: Some(MusterOptions::default()),
        progress: ProgressCallback::to(|step| println!("{step}")),
        ..ClusterOptions::default()
    })
    .await?;
    let measured = scale::measure(&cluster, nodes, |text| println!("    ...    {text}")).await;
    if measured.is_err() {
        println!(
            "everything is kept in {}",
            cluster.keep_directory().display()
        );
    }
    cluster.stop().await;
    let text = serde_json::to_string_pretty(&measured?)?;
    println!("{text}");
    if let Some(path) = &arguments.report {
        std::fs::write(path, text).with_context(|| format!("writing {}", path.display()))?;
    }
    Ok(())
}
