//! Faults of GPUs, at moments at which more than one attempt may be lost for them.

use std::collections::BTreeSet;

use k8s_openapi::api::resource::v1::ResourceClaim;
use muster_api::{Gang, Ledger, keys};
use muster_cluster::object::Kind;
use muster_dra_driver::faults::FaultClass;
use muster_sim::{
    invariants::Violation,
    scenario::{Hardships, JobShape, NodeShape, OwnerKind},
    scheduler,
    script::Script,
    world::{Steps, World},
};

use super::{GPUS, NODE, Shape, node, script};

/// How long it is waited for what should not follow.
const WHATEVER_FOLLOWS_MILLISECONDS: u64 = 20_000;

/// On so many nodes with so many GPUs, where GPUs may break; a Job makes the pods of each gang, and makes them again.
pub(super) fn breaking(
    nodes: usize,
    gpus: usize,
    gangs: &[Shape],
    play: fn(&mut World) -> Result<(), Violation>,
) -> Script {
    let mut script = script(gangs, play);
    let scenario = &mut script.scenario;
    scenario.hardships = Hardships::named("BrokenDevices").unwrap_or_default();
    let first = scenario.nodes.remove(0);
    scenario.nodes.extend((0..nodes).map(|number| NodeShape {
        name: format!("node-{number}"),
        gpus,
        ..first.clone()
    }));
    for quota in scenario.teams.iter_mut().flat_map(|team| &mut team.quotas) {
        quota.nominal_gpus = nodes * gpus;
    }
    for gang in &mut scenario.gangs {
        gang.owner = OwnerKind::Job(JobShape::PATIENT);
        gang.max_restarts = Some(keys::MOST_RESTARTS);
    }
    script
}

/// The highest attempt of any gang.
fn attempt(world: &World) -> i64 {
    let gangs = world.api.list::<Gang>();
    let attempts = gangs.filter_map(|gang| Some(gang.status.as_ref()?.attempt));
    attempts.max().unwrap_or_default()
}

/// UIDs of the claims that are allocated.
fn allocated(world: &World) -> BTreeSet<String> {
    let claims = world.api.list::<ResourceClaim>();
    claims
        .filter(|claim| scheduler::allocated_node(claim).is_some())
        .filter_map(|claim| claim.metadata.uid.clone())
        .collect()
}

/// How many nodes gangs were evicted for.
fn evacuated(world: &World) -> usize {
    let mut ledgers = world.api.list::<Ledger>();
    ledgers
        .next()
        .map_or(0, |ledger| ledger.spec.breaker.drained.len())
}

/// A gang is evicted for a fault, and kube-scheduler, which has not heard of it, gives it the very device again: two GPUs of
/// three are what it wants, and they are taken in their order.
pub(crate) fn a_gang_is_given_the_device_that_it_was_evicted_for() -> Script {
    breaking(1, GPUS + 1, &[("a", 1, GPUS)], |world| {
        world.hold(Steps::Ranks);
        world.submit("a");
        world.until("a runs", |world| !node(world).containers.is_empty())?;
        let before = allocated(world);
        world.hold(Steps::SchedulerWatches(Kind::ResourceSlice));
        world.gpu_breaks(NODE, 0, FaultClass::Reset);
        world.until("a is evicted", |world| attempt(world) > 1)?;
        world.until("a is given devices again", |world| {
            !allocated(world).is_subset(&before)
        })?;
        let given_at = world.now;
        world.until("nothing follows", |world| {
            world.now >= given_at + WHATEVER_FOLLOWS_MILLISECONDS
        })?;
        world.mend_gpus(NODE);
        Ok(())
    })
}

/// Faults on two nodes have cost their gangs an attempt when the leader dies. A third one is one too many, whoever leads.
pub(crate) fn a_third_node_has_a_fault_under_the_next_leader() -> Script {
    let gangs = [("a", 1, GPUS), ("b", 1, GPUS), ("c", 1, GPUS)];
    breaking(3, GPUS, &gangs, |world| {
        world.hold(Steps::Ranks);
        for gang in ["a", "b", "c"] {
            world.submit(gang);
        }
        world.until("each node has a gang", |world| {
            let mut nodes = world.nodes.values();
            nodes.all(|node| !node.containers.is_empty())
        })?;
        world.gpu_breaks("node-0", 0, FaultClass::Reset);
        world.gpu_breaks("node-1", 1, FaultClass::Contained);
        world.until("two nodes are evacuated", |world| evacuated(world) == 2)?;
        world.crash_leader();
        world.gpu_breaks("node-2", 0, FaultClass::Reboot);
        world.until("the breaker opens", |world| world.is_breaker_open())?;
        Ok(())
    })
}
