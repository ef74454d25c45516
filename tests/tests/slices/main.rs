//! GPUs whole and in slices, by memory and by interconnect, on a real control plane: kube-scheduler allocates, the driver cuts.
//!
//! Three nodes: `h100` with eight GPUs that are cut for whoever asks, and made whole again; `a30` with sixteen that an administrator left in
//! MIG mode, so that there are slices only; `bridged` with four that are whole, and connected two by two. That no memory of a GPU is ever in
//! two hands, that everybody is charged for what he has and that no slice is left behind is judged by the observer: by device nodes and cards.
//! That whoever runs has the device nodes of what it was allocated, and of nothing else, is judged whenever a scenario asks what it was given.

mod burst;
mod by_memory;
mod by_model;
mod by_place;
mod by_resource;
mod counters;
mod declared;
mod driver;
mod full_node;
mod overlapping;
mod stage;

use std::{collections::BTreeMap, env, process::ExitCode};

use muster_tests::{
    cluster::ClusterOptions, gpu_board::Board, install::MusterOptions, node::NodeOptions, suite,
};

use crate::stage::{A30, BRIDGED, H100, POOL, RESOURCE};

/// Set for the long form of a suite.
const ALL: &str = "MUSTER_ALL";

fn main() -> ExitCode {
    let node = |name: &str, board: Board, in_mig_mode: bool| NodeOptions {
        name: name.to_owned(),
        labels: BTreeMap::from([(POOL.to_owned(), name.to_owned())]),
        board: Some(board),
        in_mig_mode,
        // Who is refused while there is no driver is asked about again at the pod's next regular look.
        sync_seconds: Some(5),
    };
    let options = ClusterOptions {
        nodes: vec![
            node(H100, Board::H100Nvswitch8, false),
            node(A30, Board::A30Sixteen, true),
            node(BRIDGED, Board::A100With40GbBridgedFour, false),
        ],
        muster: Some(MusterOptions {
            values: vec![
                "driver.mig.mode=Dynamic".to_owned(),
                "driver.mig.toggle=WhenIdle".to_owned(),
                format!("deviceClasses.gpu.extendedResourceName={RESOURCE}"),
            ],
            ..MusterOptions::default()
        }),
        ..ClusterOptions::default()
    };
    let mut scenarios = by_memory::scenarios();
    scenarios.extend(by_model::scenarios());
    scenarios.extend(by_place::scenarios());
    scenarios.extend(by_resource::scenarios());
    scenarios.extend(counters::scenarios());
    scenarios.extend(declared::scenarios());
    scenarios.extend(overlapping::scenarios());
    scenarios.extend(driver::scenarios());
    scenarios.extend(full_node::scenarios());
    if env::var_os(ALL).is_some() {
        scenarios.extend(driver::longer_scenarios());
        scenarios.extend(burst::scenarios());
    }
    suite::run("slices", options, scenarios)
}
