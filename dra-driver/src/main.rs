//! Starts the DRA driver; see the library.

use std::{
    io::{self, Write},
    process::ExitCode,
};

use clap::Parser;
use muster_dra_driver::{faults::remedy::in_root, program};

fn main() -> anyhow::Result<ExitCode> {
    if let Some(failure) = in_root::enter(std::env::args_os()) {
        writeln!(io::stderr(), "{failure}")?;
        return Ok(ExitCode::from(in_root::NOT_RUN));
    }
    run()?;
    Ok(ExitCode::SUCCESS)
}

#[tokio::main]
async fn run() -> anyhow::Result<()> {
    muster_serve::tls::install_provider();
    program::run(program::Args::parse()).await
}
