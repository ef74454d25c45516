//! What users who try to go round Muster get: a refusal by name, or no device. With the webhook up, down and deleted;
//! the same call by the identity that may make it passes.

mod certificates;
mod evicting;
mod extender;
mod identities;
mod no_device;
mod other_webhooks;
mod policies;
mod roles;
mod taken_away;
mod webhook;

use std::process::ExitCode;

use muster_tests::{cluster::ClusterOptions, suite};

/// The nodes, with eight GPUs each.
const NODES: [&str; 2] = ["node-0", "node-1"];

fn main() -> ExitCode {
    let scenarios = [
        // First, because it shows that the extender was never asked so far.
        extender::scenarios(),
        policies::scenarios(),
        evicting::scenarios(),
        roles::scenarios(),
        other_webhooks::scenarios(),
        certificates::scenarios(),
        no_device::scenarios(),
    ];
    let options = ClusterOptions::with_failpoints(&NODES);
    suite::run(
        "admission_policies",
        options,
        scenarios.into_iter().flatten().collect(),
    )
}
