//! Developer commands. `cargo xtask --help` lists them.
#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a command line tool speaks on standard output"
)]

mod bench;
mod build;
mod demo;
mod dependencies;
mod doors;
mod generate;
mod image;
mod metadata;
mod prerequisites;
mod simulate;
mod test;

use std::{path::PathBuf, process::ExitCode};

use clap::{Parser, Subcommand};

/// Developer commands of Muster.
#[derive(Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Runs what CI runs, or one suite.
    Test(test::Arguments),
    /// Measures what no test does.
    Bench(bench::Arguments),
    /// Runs the simulation of the whole protocol with many seeds.
    Simulate(simulate::Arguments),
    /// Shows the main job on a real control plane on this machine.
    Demo(demo::Arguments),
    /// Makes the images of the programs, without a daemon and without a registry.
    Image(image::Arguments),
    /// Writes the files that are derived from the Rust types.
    Generate {
        /// Only compare; fail where a file differs.
        #[arg(long)]
        check: bool,
    },
}

fn main() -> ExitCode {
    let result = match Arguments::parse().command {
        Command::Test(arguments) => test::run(&arguments),
        Command::Bench(arguments) => bench::run(&arguments),
        Command::Simulate(arguments) => simulate::run(&arguments),
        Command::Demo(arguments) => demo::run(&arguments),
        Command::Image(arguments) => image::run(&arguments),
        Command::Generate { check } => generate::run(&root(), check),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// The repository: the directory above this crate.
fn root() -> PathBuf {
    let mut root = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    root.pop();
    root
}
