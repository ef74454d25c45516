//! Measurements that are too long, or too dependent on the machine, for a test: `cargo xtask bench`.
#![allow(clippy::print_stdout, reason = "a benchmark speaks on standard output")]

#[cfg(feature = "cluster")]
mod cluster;
#[cfg(feature = "cluster")]
mod drain;
#[cfg(feature = "cluster")]
mod events;
#[cfg(all(test, feature = "cluster"))]
mod job_controller;
mod machine;
#[cfg(all(test, feature = "cluster"))]
mod mass_faults;
#[cfg(all(test, feature = "cluster"))]
mod mass_recovery;
mod memory;
#[cfg(feature = "cluster")]
mod mig;
mod philly;
#[cfg(feature = "cluster")]
mod plans;
mod progress;
mod quota;
mod replay;
mod report;
#[cfg(feature = "cluster")]
mod scale;
#[cfg(feature = "cluster")]
mod scale_report;
#[cfg(feature = "cluster")]
mod serving;
mod stopwatch;
#[cfg(feature = "cluster")]
mod takeover;
mod traces;
#[cfg(feature = "cluster")]
mod world;
#[cfg(feature = "cluster")]
mod writes;

use std::process::ExitCode;

use cap::Cap;
use clap::Parser;
use mimalloc::MiMalloc;

/// Counts what is allocated, for the memory of the machine alone: resident memory would count the world around it, and what
/// the allocator keeps. Beneath it is the allocator that the controller ships with.
#[global_allocator]
static ALLOCATOR: Cap<MiMalloc> = Cap::new(MiMalloc, usize::MAX);

/// Measures the core.
#[derive(Parser)]
enum Bench {
    #[cfg(feature = "cluster")]
    Scale(scale::Arguments),
    #[cfg(feature = "cluster")]
    QuotaReal(quota::real::Arguments),
    #[cfg(feature = "cluster")]
    Mig(mig::Arguments),
    Quota(quota::Arguments),
    Philly(philly::Arguments),
}

fn main() -> ExitCode {
    let done = match Bench::parse() {
        #[cfg(feature = "cluster")]
        Bench::Scale(arguments) => in_runtime(scale::run(arguments)),
        #[cfg(feature = "cluster")]
        Bench::QuotaReal(arguments) => in_runtime(quota::real::run(arguments)),
        #[cfg(feature = "cluster")]
        Bench::Mig(arguments) => mig::run(&arguments),
        Bench::Quota(arguments) => quota::run(&arguments),
        Bench::Philly(arguments) => philly::run(&arguments),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

#[cfg(feature = "cluster")]
fn in_runtime(measurement: impl Future<Output = anyhow::Result<()>>) -> anyhow::Result<()> {
    tokio::runtime::Runtime::new()?.block_on(measurement)
}
