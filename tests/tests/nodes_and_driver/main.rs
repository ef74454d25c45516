//! The driver on a real kubelet, without a controller: the chart is installed in mode Observe, in which the
//! driver prepares what kube-scheduler allocates. What it does without a permit is in `admission_policies`.
//!
//! That no GPU is ever in two hands is judged by the observer (S3), from the process runtime's record.

mod health;
mod plain;
mod repeated;
mod same_gpu;
mod stage;

use std::process::ExitCode;

use muster_tests::{
    cluster::ClusterOptions,
    gpu_board::Board,
    install::MusterOptions,
    node::NodeOptions,
    suite::{self, Scenario},
};

use crate::stage::NODE;

fn main() -> ExitCode {
    let options = ClusterOptions {
        nodes: vec![NodeOptions {
            name: NODE.to_owned(),
            board: Some(Board::T4Pair),
            // The kubelet may ask for a claim before the node authorizer has seen that its pod is bound ("no
            // relationship found between node and this object"); it is refused, and asks again at the pod's next
            // regular sync. With a controller such pods are nudged.
            sync_seconds: Some(5),
            ..NodeOptions::default()
        }],
        muster: Some(MusterOptions {
            parts: Vec::new(),
            values: vec!["mode=Observe".to_owned()],
            ..MusterOptions::default()
        }),
        ..ClusterOptions::default()
    };
    let scenarios = [
        plain::scenarios(),
        health::scenarios(),
        repeated::scenarios(),
        same_gpu::scenarios(),
    ];
    let scenarios = scenarios.into_iter().flatten();
    suite::run(
        "nodes_and_driver",
        options,
        scenarios.map(Scenario::without_controller).collect(),
    )
}
