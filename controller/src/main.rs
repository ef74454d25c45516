//! Starts the controller, or one of the commands for operators; see the library.

use std::process::ExitCode;

use clap::Parser;
use mimalloc::MiMalloc;
use muster_controller::args::{Cli, Command};

/// Everything that is known of the cluster is in memory, in many small pieces that come and go: with this allocator the
/// takeover of 10,000 nodes takes a tenth less memory than with glibc's, and admitting 18,000 gangs a seventh less time.
#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

// One thread for all that is short; a leader's work has another (`muster_controller::workplace`). Each more would be woken in vain most of
// the time.
#[tokio::main(flavor = "current_thread")]
async fn main() -> anyhow::Result<ExitCode> {
    muster_serve::tls::install_provider();
    let cli = Cli::parse();
    match cli.command {
        Some(Command::SchedulerConfig(args)) => {
            muster_controller::scheduler_config::print(args).await?;
        }
        Some(Command::CheckDevice(args)) => muster_controller::device_check::run(&args)?,
        Some(Command::CheckEnforce(args)) => {
            muster_controller::enforce_check::run(args).await?;
        }
        Some(Command::BeginObserve(args)) => {
            muster_controller::observe_begin::run(args).await?;
        }
        Some(Command::CheckUninstall(args)) => {
            muster_controller::uninstall_check::run(args).await?;
        }
        Some(Command::ResetBreaker(args)) => {
            muster_controller::breaker_reset::run(args).await?;
        }
        // Its exit code says more than whether there was an error.
        Some(Command::Preflight(args)) => return muster_controller::preflight::run(&args).await,
        Some(Command::Run(args)) => Box::pin(muster_controller::run::run(args)).await?,
        None => Box::pin(muster_controller::run::run(cli.run)).await?,
    }
    Ok(ExitCode::SUCCESS)
}
