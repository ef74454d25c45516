//! What goes on while parts of the cluster are down, and how a controller goes on after another one died, hung or was
//! replaced in the middle. Two controllers run all the time.

mod control_plane;
mod evictions;
mod leaders;
mod programs;

use std::process::ExitCode;

use muster_tests::{cluster::ClusterOptions, suite};

fn main() -> ExitCode {
    let mut options = ClusterOptions::with_failpoints(&["node-0", "node-1"]);
    if let Some(muster) = &mut options.muster {
        muster.controllers = 2;
    }
    let scenarios = [
        leaders::scenarios(),
        evictions::scenarios(),
        control_plane::scenarios(),
        programs::scenarios(),
    ];
    suite::run(
        "outages",
        options,
        scenarios.into_iter().flatten().collect(),
    )
}
