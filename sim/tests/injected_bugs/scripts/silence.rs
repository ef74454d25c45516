//! Nodes that are silent for minutes, and come back. What runs there lives on.

use muster_api::Gang;
use muster_sim::{
    faults::Fault,
    invariants::Violation,
    script::Script,
    world::{Steps, World},
};

use super::{GPUS, faults::breaking};

/// Longer than until gangs are evicted for it, and shorter than until Kubernetes deletes their pods.
const SILENT_MILLISECONDS: u64 = 280_000;
/// Shortly before they are evicted.
const NEARLY_LOST_MILLISECONDS: u64 = 200_000;
/// Until nodes that were silent for so long are back.
const BACK_MILLISECONDS: u64 = 100_000;
/// How long a moment is waited for at a time.
const AT_A_TIME_MILLISECONDS: u64 = 60_000;
/// For as long as the script lasts.
const FOR_GOOD: u64 = u64::MAX;

fn pass(world: &mut World, milliseconds: u64) -> Result<(), Violation> {
    let end = world.now + milliseconds;
    while world.now < end {
        let next = end.min(world.now + AT_A_TIME_MILLISECONDS);
        world.until("time has passed", |world| world.now >= next)?;
    }
    Ok(())
}

/// Nothing is heard of the kubelets of these nodes.
fn fall_silent(world: &mut World, nodes: &[&str]) {
    let until = world.now + SILENT_MILLISECONDS;
    for node in nodes {
        world.strike(Fault::KubeletSilent, node, until);
    }
}

/// Gangs are submitted whose ranks do not end by themselves, and all run.
fn run(world: &mut World, gangs: &[&str]) -> Result<(), Violation> {
    world.hold(Steps::Ranks);
    for gang in gangs {
        world.submit(gang);
    }
    world.until("all run", |world| world.living_pods().len() == gangs.len())
}

/// How many gangs were evicted.
fn evicted(world: &World) -> usize {
    let gangs = world.api.list::<Gang>();
    let attempts = gangs.filter_map(|gang| Some(gang.status.as_ref()?.attempt));
    attempts.filter(|attempt| *attempt > 1).count()
}

/// All nodes are silent at once.
pub(crate) fn everybody_is_silent() -> Script {
    breaking(3, GPUS, &[("a", 1, GPUS)], |world| {
        run(world, &["a"])?;
        fall_silent(world, &["node-0", "node-1", "node-2"]);
        pass(world, SILENT_MILLISECONDS)
    })
}

/// The node of a gang is silent while recovery only observes.
pub(crate) fn a_node_is_silent_before_an_observer() -> Script {
    breaking(2, GPUS, &[("a", 1, GPUS)], |world| {
        world.strike(Fault::RecoveryObserves, "recovery", FOR_GOOD);
        run(world, &["a"])?;
        fall_silent(world, &["node-0", "node-1"]);
        pass(world, SILENT_MILLISECONDS)
    })
}

/// Two nodes are silent, and then a third one: no more than two at a time, which is no outage, and one too many in ten minutes.
pub(crate) fn a_third_node_is_silent_after_two() -> Script {
    let gangs = [("a", 1, GPUS), ("b", 1, GPUS), ("c", 1, GPUS)];
    breaking(3, GPUS, &gangs, |world| {
        run(world, &["a", "b", "c"])?;
        fall_silent(world, &["node-0", "node-1"]);
        pass(world, NEARLY_LOST_MILLISECONDS)?;
        world.until("two gangs are evicted", |world| evicted(world) == 2)?;
        pass(world, BACK_MILLISECONDS)?;
        fall_silent(world, &["node-2"]);
        pass(world, NEARLY_LOST_MILLISECONDS)?;
        world.until("the breaker opens", |world| world.is_breaker_open())
    })
}
