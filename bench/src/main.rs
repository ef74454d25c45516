//! Measurements that are too long, or too dependent on the machine, for a test: `cargo xtask bench`.
#![allow(clippy::print_stdout, reason = "a benchmark speaks on standard output")]

mod cluster;
mod drain;
mod events;
mod machine;
mod memory;
mod philly;
mod plans;
mod progress;
mod quota;
mod replay;
mod report;
mod scale;
mod serving;
mod stopwatch;
mod takeover;
mod traces;
mod world;
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
    Scale(scale::Arguments),
    Quota(quota::Arguments),
    Philly(philly::Arguments),
}

#[tokio::main]
async fn main() -> ExitCode {
    let done = match Bench::parse() {
        Bench::Scale(arguments) => scale::run(arguments).await,
        Bench::Quota(arguments) => quota::run(&arguments).await,
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
