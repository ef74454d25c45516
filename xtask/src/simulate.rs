//! `cargo xtask simulate`: the simulation with more seeds than CI takes.

use anyhow::{Context, Result, bail};

use crate::{build::cargo, root};

/// Arguments of `cargo xtask simulate`.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// How many seeds.
    #[arg(long, default_value_t = 20_000)]
    seeds: u64,
    /// The first of them.
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

/// Builds the suite `sim/seeds`, optimized, and runs it. A seed that fails is told with what it breaks, and can be run alone.
pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    let status = cargo()
        .current_dir(root())
        .args(["test", "--release", "--package", "muster-sim"])
        .args(["--test", "seeds", "--", "--nocapture"])
        .env("MUSTER_RUNS", arguments.seeds.to_string())
        .env("MUSTER_SEED", arguments.seed.to_string())
        .status()
        .context("starting the simulation")?;
    if !status.success() {
        bail!("the simulation failed ({status})");
    }
    Ok(())
}
