//! How many writes the whole life of a gang takes.

use std::collections::BTreeMap;

use anyhow::{Result, ensure};
use muster_api::Gang;

use crate::{
    cluster::{Cluster, Shape, WaitingGang, arriving, team_name},
    progress::Progress,
    world::World,
};

const NODES: usize = 40;
const TEAMS: usize = 2;
const QUIET_SECONDS: usize = 5;
/// How long an ended Gang is kept.
const KEPT_SECONDS: u64 = 3_600;

/// By shape. A gang of N pods on M nodes may take N + 3M + 8.
pub(crate) fn measure(progress: &mut Progress) -> Result<BTreeMap<String, u64>> {
    let mut writes = BTreeMap::new();
    for (name, shape, nodes) in [("1x1", Shape::new(1, 1), 1), ("8x8", Shape::new(8, 8), 8)] {
        let by_kind = life(shape, progress)?;
        let count = by_kind.values().sum();
        let most = shape.pods + 3 * nodes + 8;
        progress.say(&format!(
            "{name}: {count} writes, at most {most}: {by_kind:?}"
        ));
        writes.insert(name.to_owned(), count);
    }
    Ok(writes)
}

/// A gang comes to an idle cluster, runs, ends, and its Gang is removed an hour later.
fn life(shape: Shape, progress: &mut Progress) -> Result<BTreeMap<&'static str, u64>> {
    let mut world = World::new(&Cluster::idle(NODES, TEAMS, Vec::new()))?;
    world.settle(QUIET_SECONDS, progress)?;
    world.writes.clear();
    // Team 1 asks for little memory.
    let gang = WaitingGang::of_team(1, 1, shape);
    let objects = arriving(&gang);
    let name = |rank| format!("train-{:06}-{rank}", gang.number);
    for (kind, value) in objects {
        world.put(kind, value)?;
    }
    world.settle(QUIET_SECONDS, progress)?;
    let started = world.start_pods()?;
    ensure!(
        started == shape.pods,
        "{started} of {} pods were let go",
        shape.pods
    );
    world.settle(QUIET_SECONDS, progress)?;
    for rank in 0..shape.pods {
        world.end_pod(&team_name(gang.team), &name(rank))?;
    }
    world.settle(QUIET_SECONDS, progress)?;
    world.wait(KEPT_SECONDS);
    world.settle(QUIET_SECONDS, progress)?;
    let left = world.api().list::<Gang>().count();
    ensure!(left == 0, "its Gang still exists after an hour");
    // What all gangs of a Team have in common is written at most once a second, for all of them together.
    let apart = [
        "list",
        "read",
        "Event",
        "Queue",
        "delete Queue",
        "Team status",
    ];
    world.writes.retain(|kind, _| !apart.contains(kind));
    Ok(world.writes)
}
