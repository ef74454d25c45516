//! What goes on while parts of the cluster are down, and how a controller goes on after another one died, hung or was
//! replaced in the middle. Two controllers run all the time. While nothing of ours or of the API server answers, the observer sees that nothing ends
//! that runs (S18).
//!
//! `cargo xtask test outages --all` runs what takes long, too.

mod control_plane;
mod evictions;
mod leaders;
mod programs;

use std::{env, process::ExitCode};

use muster_tests::{cluster::ClusterOptions, suite};

/// Set for the long form of a suite.
const ALL: &str = "MUSTER_ALL";

fn main() -> ExitCode {
    let mut options = ClusterOptions::with_failpoints(&["node-0", "node-1"]);
    if let Some(muster) = &mut options.muster {
        muster.controllers = 2;
    }
    let scenarios = [
        leaders::scenarios(),
        evictions::scenarios(),
        control_plane::scenarios(),
        programs::scenarios(env::var_os(ALL).is_some()),
    ];
    suite::run(
        "outages",
        options,
        scenarios.into_iter().flatten().collect(),
    )
}
