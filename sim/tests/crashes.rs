//! A GPU breaks under a gang, and while the gang is started anew elsewhere each process is killed, at each step of that: the leader, the driver of
//! either node, its kubelet, the leader and a driver at once. It comes to rest with one restart, whenever that was.
//!
//! The same seed gives the same run up to the kill, so a clean recovery says how many steps there are. Every few of them are tried, others with each
//! process and seed; `MUSTER_STRIDE=1` tries all, `MUSTER_SEED` and `MUSTER_RUNS` choose the seeds.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::Pod;
use muster_api::{Gang, Reason, keys};
use muster_dra_driver::faults::FaultClass;
use muster_protocol::OnCordon;
use muster_sim::{
    faults::Faults,
    invariants::Violation,
    random::Random,
    run::come_to_rest,
    scenario::{
        BY_SCRIPT, GangShape, Hardships, JobShape, NodeShape, OwnerKind, Product, QuotaShape,
        Ranks, Scenario, TeamShape, WHOLE_INTENT_BYTES,
    },
    seeds,
    world::{Steps, World},
};

const GANG: &str = "train";
const TEAM: &str = "blue";
const PODS: usize = 2;
const NODES: [&str; 2] = ["node-0", "node-1"];
const GPUS_PER_NODE: usize = 2;
/// Steps of a recovery between two that are tried.
const STRIDE: u64 = 10;
const SEEDS: u64 = 1;
/// Steps after which a recovery is taken for one that never ends.
const MOST_STEPS: u64 = 5_000;

/// What is killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Victim {
    Leader,
    DriverOfFault,
    DriverElsewhere,
    KubeletOfFault,
    LeaderAndDriver,
}

const VICTIMS: [Victim; 5] = [
    Victim::Leader,
    Victim::DriverOfFault,
    Victim::DriverElsewhere,
    Victim::KubeletOfFault,
    Victim::LeaderAndDriver,
];

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

/// Two nodes, and a gang that fits what is left of them when a GPU is broken.
fn scenario() -> Scenario {
    let nodes = NODES.map(|name| NodeShape {
        name: name.to_owned(),
        leaf: "leaf-0".to_owned(),
        product: Product::H100,
        gpus: GPUS_PER_NODE,
    });
    let gang = GangShape {
        name: GANG.to_owned(),
        team: TEAM.to_owned(),
        namespace: TEAM.to_owned(),
        owner: OwnerKind::Job(JobShape::PATIENT),
        pods: PODS,
        min_count: None,
        max_runtime_seconds: None,
        max_restarts: Some(keys::MOST_RESTARTS),
        product: None,
        gpus_per_pod: 1,
        claims_per_pod: 1,
        shared: None,
        tier: 0,
        ranks: Ranks::default(),
        submitted_at: BY_SCRIPT,
    };
    Scenario {
        nodes: nodes.into(),
        teams: vec![TeamShape {
            name: TEAM.to_owned(),
            namespaces: vec![TEAM.to_owned()],
            fairness: None,
            quotas: vec![QuotaShape {
                product: Product::H100,
                nominal_gpus: NODES.len() * GPUS_PER_NODE,
                borrowing_gpus: None,
            }],
        }],
        gangs: vec![gang],
        hardships: Hardships::named("BrokenDevices").unwrap_or_default(),
        keep_ended_seconds: 3_600,
        whole_intent_bytes: WHOLE_INTENT_BYTES,
        on_cordon: OnCordon::Nothing,
    }
}

/// The pods whose containers live, by UID.
fn living(world: &World) -> BTreeSet<String> {
    let nodes = world.nodes.values();
    nodes
        .flat_map(|node| node.containers.keys().cloned())
        .collect()
}

/// The GPU that the first rank holds: its node, and its number there.
fn held_gpu(world: &World) -> Option<(&'static str, usize)> {
    NODES.into_iter().find_map(|name| {
        let node = world.nodes.get(name)?;
        let container = node.containers.values().next()?;
        let (_, unit) = container.units.first()?;
        let mut gpus = 0..GPUS_PER_NODE;
        let gpu = gpus.find(|gpu| muster_sim::fixtures::gpu_uuid(name, *gpu) == unit.gpu)?;
        Some((name, gpu))
    })
}

/// Whether all ranks of a later attempt run.
fn has_recovered(world: &World, before: &BTreeSet<String>) -> bool {
    let living = living(world);
    living.len() == PODS && living.is_disjoint(before)
}

fn kill_driver(world: &mut World, node: &str) {
    if let Some(instance) = world.newest_instance(node) {
        world.crash_instance(node, instance);
    }
}

fn kill(world: &mut World, victim: Victim, node: &str) {
    let elsewhere = if node == NODES[0] { NODES[1] } else { NODES[0] };
    match victim {
        Victim::Leader => world.crash_leader(),
        Victim::DriverOfFault => kill_driver(world, node),
        Victim::DriverElsewhere => kill_driver(world, elsewhere),
        Victim::KubeletOfFault => world.restart_kubelet(node),
        Victim::LeaderAndDriver => {
            world.crash_leader();
            kill_driver(world, node);
        }
    }
}

/// Plays a recovery in which somebody is killed after so many steps of it, if anybody is. How many steps it took until all ranks ran again.
fn play(world: &mut World, killed: Option<(Victim, u64)>) -> Result<u64, Violation> {
    world.hold(Steps::Ranks);
    world.submit(GANG);
    world.until("all ranks run", |world| living(world).len() == PODS)?;
    let before = living(world);
    let never = |what: &str| Violation {
        invariant: "script",
        what: what.to_owned(),
    };
    let (node, gpu) = held_gpu(world).ok_or_else(|| never("nobody holds a GPU"))?;
    world.gpu_breaks(node, gpu, FaultClass::Reset);
    let mut steps = 0;
    while !has_recovered(world, &before) {
        if let Some((victim, after)) = killed
            && after == steps
        {
            kill(world, victim, node);
        }
        if steps >= MOST_STEPS {
            return Err(never("all ranks run again"));
        }
        world.step()?;
        steps += 1;
    }
    come_to_rest(world)?;
    let reasons: Vec<Reason> = world
        .api
        .list::<Gang>()
        .flat_map(|gang| gang.status.iter().flat_map(|status| &status.evictions))
        .map(|eviction| eviction.reason)
        .collect();
    if reasons != [Reason::DeviceFault] {
        let what = format!("one fault, and attempts were evicted for {reasons:?}");
        return Err(Violation {
            invariant: "S10",
            what,
        });
    }
    if !world.owners.is_complete(GANG, &world.api) {
        return Err(never("the gang finishes"));
    }
    Ok(steps)
}

/// What came of it, and the story of what failed.
fn played(seed: u64, killed: Option<(Victim, u64)>) -> Result<u64, String> {
    let mut world = World::new(&scenario(), Faults::none(), Random::new(seed));
    world.trace.keep(400);
    let outcome = play(&mut world, killed);
    outcome.map_err(|violation| {
        let pods = world.api.list::<Pod>().count();
        format!(
            "seed {seed}, {killed:?}: {violation}; {pods} pods\n{}",
            world.trace.text()
        )
    })
}

#[test]
fn whoever_is_killed_at_whatever_step_of_a_recovery_it_ends_with_one_restart() {
    let stride = number("MUSTER_STRIDE").unwrap_or(STRIDE).max(1);
    let first = number("MUSTER_SEED").unwrap_or(1);
    let runs = number("MUSTER_RUNS").unwrap_or(SEEDS);
    for seed in first..first + runs {
        let steps = played(seed, None);
        let steps = steps.unwrap_or_else(|story| panic!("nobody is killed: {story}"));
        let tries = steps / stride;
        println!("seed {seed}: {steps} steps, of which {tries} are tried with each of {VICTIMS:?}");
        assert!(tries >= 4, "hardly any of {steps} steps");
        let count = VICTIMS.len() as u64;
        let failed = seeds::all(0..tries * count, |number| {
            let place = number % count;
            let victim = usize::try_from(place).ok().and_then(|it| VICTIMS.get(it))?;
            // Each is killed at other steps.
            let after = number / count * stride + (place * stride / count + seed) % stride;
            played(seed, Some((*victim, after))).err()
        });
        let failed: Vec<String> = failed.into_iter().flatten().collect();
        if let Some(story) = failed.first() {
            panic!("{} of {} kills: {story}", failed.len(), tries * count);
        }
    }
}
