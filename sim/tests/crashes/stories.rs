//! What befalls gangs that run, and what is to come of it.

use std::{collections::BTreeSet, ops::RangeInclusive};

use k8s_openapi::api::core::v1::Pod;
use muster_api::{Ledger, Reason, keys};
use muster_dra_driver::faults::FaultClass;
use muster_protocol::OnCordon;
use muster_sim::{
    faults::Fault,
    fixtures,
    invariants::Violation,
    scenario::{
        GangShape, Hardships, JobShape, NodeShape, OwnerKind, Product, Scenario, TeamShape,
        WHOLE_INTENT_BYTES,
    },
    world::World,
};

use crate::Victim;

const TEAM: &str = "blue";
const GANG: &str = "train";
/// How long the pods of a node whose machine died bear that it is not reachable, in milliseconds: as the fault that is drawn.
const TOLERATION_MILLISECONDS: u64 = 300_000;
/// For as long as a story lasts: until everything heals.
const FOR_GOOD: u64 = u64::MAX;
/// Kills of each process at the most, unless it is said at how many steps. All stories together take less than a minute by that.
const TRIES: u64 = 12;

/// A story.
pub(crate) struct Story {
    pub(crate) scenario: fn() -> Scenario,
    /// Goes on to where it begins. Ranks do not end by themselves.
    pub(crate) begin: fn(&mut World) -> Result<Stage, Violation>,
    /// What happens then.
    pub(crate) strike: fn(&mut World, &Stage),
    /// Whether what follows is over.
    pub(crate) is_over: fn(&World, &Stage) -> bool,
    /// Whether what it is about has happened by now.
    pub(crate) has_shown: fn(&World) -> bool,
    pub(crate) victims: &'static [Victim],
    /// For what attempts may be evicted, and how many are.
    pub(crate) reasons: &'static [Reason],
    pub(crate) evictions: RangeInclusive<usize>,
    /// How often each is killed at the most, unless it is said at how many steps.
    pub(crate) tries: u64,
}

/// What a story is about.
pub(crate) struct Stage {
    /// The node of what happens.
    pub(crate) node: String,
    /// UIDs of the pods that run before it.
    pub(crate) before: BTreeSet<String>,
}

/// That something is awaited in vain.
pub(crate) fn never(what: &str) -> Violation {
    Violation {
        invariant: "script",
        what: what.to_owned(),
    }
}

/// So many nodes with so many GPUs, and gangs of Jobs, with name, pods, and GPUs of each, for which there is quota, and a place without one of the nodes.
fn cluster(nodes: usize, gpus: usize, gangs: &[(&str, usize, usize)], hardships: &str) -> Scenario {
    let nodes = (0..nodes).map(|number| NodeShape {
        name: format!("node-{number}"),
        leaf: "leaf-0".to_owned(),
        product: Product::H100,
        gpus,
    });
    let nodes: Vec<NodeShape> = nodes.collect();
    let gangs = gangs.iter().map(|(name, pods, gpus_per_pod)| GangShape {
        max_restarts: Some(keys::MOST_RESTARTS),
        gpus_per_pod: *gpus_per_pod,
        ..GangShape::plain(name, TEAM, OwnerKind::Job(JobShape::PATIENT), *pods)
    });
    Scenario {
        teams: vec![TeamShape::with_quota(
            TEAM,
            Product::H100,
            nodes.len() * gpus,
        )],
        nodes,
        gangs: gangs.collect(),
        hardships: Hardships::named(hardships).unwrap_or_default(),
        keep_ended_seconds: 3_600,
        whole_intent_bytes: WHOLE_INTENT_BYTES,
        on_cordon: OnCordon::Nothing,
    }
}

/// The GPUs that ranks hold: their nodes, and their numbers there.
fn held_gpus(world: &World) -> Vec<(String, usize)> {
    let mut held = Vec::new();
    for (name, node) in &world.nodes {
        let units = node.containers.values().flat_map(|it| &it.units);
        for (_, unit) in units {
            let mut gpus = 0..node.shape.gpus;
            let gpu = gpus.find(|gpu| fixtures::gpu_uuid(name, *gpu) == unit.gpu);
            held.extend(gpu.map(|gpu| (name.clone(), gpu)));
        }
    }
    held
}

/// Gangs with so many pods in all are submitted, and run.
fn all_run(world: &mut World, gangs: &[&str], pods: usize) -> Result<Stage, Violation> {
    for gang in gangs {
        world.submit(gang);
    }
    world.until("all ranks run", |world| world.living_pods().len() == pods)?;
    let (node, _) = held_gpus(world)
        .into_iter()
        .next()
        .ok_or_else(|| never("somebody holds a GPU"))?;
    Ok(Stage {
        node,
        before: world.living_pods(),
    })
}

/// Whether all ranks of later attempts run, which are as many.
fn all_run_again(world: &World, stage: &Stage) -> bool {
    let living = world.living_pods();
    living.len() == stage.before.len() && living.is_disjoint(&stage.before)
}

/// A GPU of the node that a rank holds breaks.
fn break_held_gpu(world: &mut World, node: &str) {
    let held = held_gpus(world);
    if let Some((_, gpu)) = held.iter().find(|(of, _)| of == node) {
        world.gpu_breaks(node, *gpu, FaultClass::Reset);
    }
}

/// How many nodes gangs were evicted for.
fn evacuated(world: &World) -> usize {
    let mut ledgers = world.api.list::<Ledger>();
    ledgers
        .next()
        .map_or(0, |ledger| ledger.spec.breaker.drained.len())
}

/// A GPU breaks under a gang.
pub(crate) fn a_gpu_breaks() -> Story {
    Story {
        scenario: || cluster(2, 2, &[(GANG, 2, 1)], "BrokenDevices"),
        begin: |world| all_run(world, &[GANG], 2),
        strike: |world, stage| break_held_gpu(world, &stage.node),
        is_over: all_run_again,
        has_shown: |_| true,
        victims: &[
            Victim::Leader,
            Victim::DriverHere,
            Victim::DriverElsewhere,
            Victim::KubeletHere,
            Victim::LeaderAndDriverHere,
        ],
        reasons: &[Reason::DeviceFault],
        evictions: 1..=1,
        tries: 40,
    }
}

/// The GPUs of both ranks break. The second is heard of while the gang is started anew, perhaps only once it was given that GPU again.
pub(crate) fn two_gpus_break_at_once() -> Story {
    Story {
        scenario: || cluster(3, 2, &[(GANG, 2, 1)], "BrokenDevices"),
        strike: |world, _| {
            for (node, gpu) in held_gpus(world) {
                world.gpu_breaks(&node, gpu, FaultClass::Reset);
            }
        },
        victims: &[
            Victim::Leader,
            Victim::DriverHere,
            Victim::KubeletHere,
            Victim::LeaderAndDriverHere,
        ],
        evictions: 1..=2,
        tries: TRIES,
        ..a_gpu_breaks()
    }
}

/// The machine of a rank dies, and nobody says so. Whoever counts how long it is silent may die before that is over: then its pods are deleted for it first.
pub(crate) fn a_node_is_lost() -> Story {
    Story {
        scenario: || cluster(3, 2, &[(GANG, 2, 1)], ""),
        begin: |world| all_run(world, &[GANG], 2),
        strike: |world, stage| {
            let until = world.now + TOLERATION_MILLISECONDS;
            world.strike(Fault::MachineDies, &stage.node, until);
        },
        is_over: all_run_again,
        has_shown: |_| true,
        victims: &[
            Victim::Leader,
            Victim::DriverElsewhere,
            Victim::KubeletElsewhere,
            Victim::LeaderAndDriverElsewhere,
        ],
        reasons: &[Reason::NodeLost, Reason::PodDisrupted, Reason::PodFailed],
        evictions: 1..=1,
        tries: TRIES,
    }
}

/// A node is drained by hand, and its gang moved away from it.
pub(crate) fn a_gang_is_moved() -> Story {
    Story {
        scenario: || Scenario {
            on_cordon: OnCordon::Move,
            ..cluster(3, 2, &[(GANG, 2, 1)], "Drains")
        },
        strike: |world, stage| world.strike(Fault::DrainNode, &stage.node, FOR_GOOD),
        victims: &[
            Victim::Leader,
            Victim::DriverHere,
            Victim::KubeletHere,
            Victim::LeaderAndDriverElsewhere,
        ],
        reasons: &[Reason::Drained],
        ..a_node_is_lost()
    }
}

/// A machine is switched off, and its administrator says so. Nobody but the leader can end the pods that are bound there; with an odd number of them their owner
/// does not consent, so that the fence alone lets it.
pub(crate) fn pods_are_forced_behind_a_fence() -> Story {
    Story {
        scenario: || cluster(3, 2, &[(GANG, 3, 1)], "HungPods"),
        begin: |world| all_run(world, &[GANG], 3),
        strike: |world, stage| world.strike(Fault::MachineOff, &stage.node, FOR_GOOD),
        is_over: |world, stage| {
            let is_there = |pod: &Pod| {
                let spec = pod.spec.as_ref();
                spec.is_some_and(|spec| spec.node_name.as_ref() == Some(&stage.node))
            };
            all_run_again(world, stage) && !world.api.list::<Pod>().any(is_there)
        },
        has_shown: |world| world.invariants.tally().contains_key("forced by a fence"),
        reasons: &[Reason::NodeLost],
        ..a_node_is_lost()
    }
}

/// Gangs were evicted for faults on two nodes, and are being started anew, when a third one has a fault. That opens the breaker, and a minute later
/// a person closes it.
pub(crate) fn the_breaker_opens() -> Story {
    const GANGS: [(&str, usize, usize); 3] = [("a", 1, 2), ("b", 1, 2), ("c", 1, 2)];
    const THIRD: &str = "node-2";
    Story {
        // Room for one gang on each, with and without one of its GPUs.
        scenario: || cluster(3, 3, &GANGS, "BrokenDevices"),
        begin: |world| {
            let stage = all_run(world, &GANGS.map(|(name, ..)| name), GANGS.len())?;
            break_held_gpu(world, "node-0");
            break_held_gpu(world, "node-1");
            world.until("two nodes are evacuated", |world| evacuated(world) == 2)?;
            Ok(Stage {
                node: THIRD.to_owned(),
                ..stage
            })
        },
        strike: |world, stage| break_held_gpu(world, &stage.node),
        has_shown: World::is_breaker_open,
        victims: &[
            Victim::Leader,
            Victim::DriverHere,
            Victim::KubeletHere,
            Victim::LeaderAndDriverHere,
        ],
        evictions: 3..=3,
        tries: TRIES,
        ..a_gpu_breaks()
    }
}
