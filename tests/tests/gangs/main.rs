//! Gangs with everything that ships: four nodes on two leaves, and a fifth that stands alone.

mod evictions;
mod partial;
mod preemption;
mod queue;
mod races;
mod reasons;
mod shorthand;
mod stage;
mod starting;
mod story;

use std::{collections::BTreeMap, process::ExitCode};

use muster_tests::{
    cluster::ClusterOptions, demo, gpu_board::Board, install::MusterOptions, node::NodeOptions,
    suite,
};

use crate::stage::{LEAF, POOL};

fn main() -> ExitCode {
    let node = |name: &str, pool: &str, leaf: &str| NodeOptions {
        name: name.to_owned(),
        labels: BTreeMap::from([
            (POOL.to_owned(), pool.to_owned()),
            (LEAF.to_owned(), leaf.to_owned()),
        ]),
        board: Some(Board::H100Nvswitch8),
        ..NodeOptions::default()
    };
    // The nodes of the fabric carry the labels of the demo's story, too.
    let mut nodes = demo::nodes(story::DEMO_LEAVES);
    for cast in &mut nodes {
        cast.labels.extend(node(&cast.name, "fabric", "a").labels);
    }
    nodes.push(node("solo", "solo", "solo"));
    let options = ClusterOptions {
        nodes,
        muster: Some(MusterOptions::default()),
        ..ClusterOptions::default()
    };
    let scenarios = [
        // First: as long as nobody has made a Flavor of node solo, its GPUs are nobody's.
        story::scenarios(),
        starting::scenarios(),
        races::scenarios(),
        queue::scenarios(),
        reasons::scenarios(),
        shorthand::scenarios(),
        partial::scenarios(),
        evictions::scenarios(),
        preemption::scenarios(),
    ];
    suite::run("gangs", options, scenarios.into_iter().flatten().collect())
}
