//! Nodes that die under a gang: said to be off, silent, deleted. Three nodes, of which a gang takes two.

mod deleted;
mod out_of_service;
mod silent;
mod stage;

use std::process::ExitCode;

use muster_tests::{
    cluster::ClusterOptions, gpu_board::Board, install::MusterOptions, node::NodeOptions, suite,
};

/// Nodes are given up sooner than the chart says: lost after 10 s instead of 60, gangs evicted after 20 s instead of 240.
const SOON: [&str; 2] = [
    "controller.extraArgs={--node-lost-after-seconds=10}",
    "recovery.nodeLossSeconds=20",
];

fn main() -> ExitCode {
    let node = |name: &str| NodeOptions {
        name: name.to_owned(),
        board: Some(Board::H100Nvswitch8),
        ..NodeOptions::default()
    };
    let options = ClusterOptions {
        nodes: ["node-0", "node-1", "node-2"].map(node).into(),
        muster: Some(MusterOptions {
            values: SOON.map(str::to_owned).to_vec(),
            ..MusterOptions::default()
        }),
        ..ClusterOptions::default()
    };
    let scenarios = [
        out_of_service::scenarios(),
        silent::scenarios(),
        // Last: its node does not come back.
        deleted::scenarios(),
    ];
    let scenarios = scenarios.into_iter().flatten().collect();
    suite::run("node_loss", options, scenarios)
}
