//! `cargo xtask demo`: starts a cluster with Muster on this machine and plays the story.
#![allow(
    clippy::print_stdout,
    reason = "a demonstration speaks on standard output"
)]

use std::{path::PathBuf, process::ExitCode};

use anyhow::{Context, Result, ensure};
use clap::Parser;
use muster_tests::{
    cluster::{Cluster, ClusterOptions},
    demo,
    install::MusterOptions,
    kube_binaries::KubeBinaries,
    progress::ProgressCallback,
    suite,
};

/// Shows the main job on a real control plane on this machine.
#[derive(Parser)]
struct Arguments {
    /// Leaves everything running until Ctrl-C and says how to look at it.
    #[arg(long)]
    keep: bool,
    /// Writes what was observed as JSON.
    #[arg(long)]
    report: Option<PathBuf>,
}

#[tokio::main]
async fn main() -> ExitCode {
    suite::run_program(Box::pin(run(Arguments::parse()))).await
}

async fn run(arguments: Arguments) -> Result<()> {
    let cluster = Cluster::start(ClusterOptions {
        nodes: demo::nodes(["leaf-a", "leaf-b", "leaf-a", "leaf-b"]),
        muster: Some(MusterOptions::default()),
        progress: ProgressCallback::to(|step| println!("{step}")),
        ..ClusterOptions::default()
    })
    .await?;
    let report = demo::play(&cluster, |line| println!("{line}")).await;
    if let Ok(report) = &report {
        println!("\n{report}");
    }
    if let (Ok(report), Some(path)) = (&report, &arguments.report) {
        let text = serde_json::to_string_pretty(report)?;
        std::fs::write(path, text).with_context(|| format!("writing {}", path.display()))?;
        println!("written to {}", path.display());
    }
    if arguments.keep {
        keep(&cluster).await?;
    }
    cluster.stop().await;
    let report = report?;
    ensure!(
        report.observer.all_well,
        "the observer saw that something was wrong:\n{}",
        report.observer
    );
    let wrong = report.fault.wrong();
    ensure!(
        wrong.is_empty(),
        "the broken GPU cost more than it may: {}",
        wrong.join("; ")
    );
    Ok(())
}

/// Waits for Ctrl-C.
async fn keep(cluster: &Cluster) -> Result<()> {
    let kubectl = KubeBinaries::find().await?.kubernetes("kubectl");
    let kubeconfig = cluster.control_plane.admin_kubeconfig();
    println!("Everything is left running; Ctrl-C ends it. To try:\n");
    println!("  export KUBECONFIG={}", kubeconfig.display());
    for command in [
        "get teams,cohorts,flavors",
        "get gangs,queues --all-namespaces",
        "describe gangs --namespace research",
        "get nodedevices --output yaml",
        "get resourceslices",
    ] {
        println!("  {} {command}", kubectl.display());
    }
    tokio::signal::ctrl_c().await.context("waiting for Ctrl-C")
}
