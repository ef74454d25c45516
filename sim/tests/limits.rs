//! Jobs of which all ranks die at once, more of them than their `backoffLimit`, and that say nothing of restarts: of a fault they go on, and by themselves they fail as
//! without Muster.

use std::collections::BTreeSet;

use k8s_openapi::api::{batch::v1::Job, resource::v1::ResourceSlice};
use muster_api::{Gang, GangStatus, keys};
use muster_dra_driver::faults::FaultClass;
use muster_protocol::OnCordon;
use muster_sim::{
    faults::Faults,
    fixtures,
    invariants::Violation,
    random::Random,
    run::come_to_rest,
    scenario::{
        GangShape, Hardships, JobShape, NodeShape, OwnerKind, Product, Scenario, TeamShape,
        WHOLE_INTENT_BYTES,
    },
    world::{Steps, World},
};

const GANG: &str = "train";
const TEAM: &str = "blue";
const PODS: usize = 2;
/// What its user wrote: one failure less than an attempt may cost.
const LIMIT: i32 = 1;
const NODES: [&str; 2] = ["node-0", "node-1"];
const GPUS_PER_NODE: usize = 2;
const SEEDS: u64 = 8;

/// Two nodes, and a gang that fits what is left of them when a GPU is broken.
fn scenario() -> Scenario {
    let nodes = NODES.map(|name| NodeShape {
        name: name.to_owned(),
        leaf: "leaf-0".to_owned(),
        product: Product::H100,
        gpus: GPUS_PER_NODE,
    });
    let job = JobShape {
        backoff_limit: LIMIT,
        ..JobShape::PATIENT
    };
    let gang = GangShape::plain(GANG, TEAM, OwnerKind::Job(job), PODS);
    Scenario {
        nodes: nodes.into(),
        teams: vec![TeamShape::with_quota(
            TEAM,
            Product::H100,
            NODES.len() * GPUS_PER_NODE,
        )],
        gangs: vec![gang],
        hardships: Hardships::named("BrokenDevices").unwrap_or_default(),
        keep_ended_seconds: 3_600,
        whole_intent_bytes: WHOLE_INTENT_BYTES,
        on_cordon: OnCordon::Nothing,
    }
}

/// A GPU that a rank holds: its node, and its number there.
fn held_gpu(world: &World) -> Option<(&'static str, usize)> {
    NODES.into_iter().find_map(|name| {
        let node = world.nodes.get(name)?;
        let container = node.containers.values().next()?;
        let (_, unit) = container.units.first()?;
        let mut gpus = 0..GPUS_PER_NODE;
        let gpu = gpus.find(|gpu| fixtures::gpu_uuid(name, *gpu) == unit.gpu)?;
        Some((name, gpu))
    })
}

fn never(what: &str) -> Violation {
    Violation {
        invariant: "script",
        what: what.to_owned(),
    }
}

/// All ranks run, and never one of those.
fn runs(world: &mut World, before: &BTreeSet<String>) -> Result<BTreeSet<String>, Violation> {
    world.until("all ranks run", |world| {
        let living = world.living_pods();
        living.len() == PODS && living.is_disjoint(before)
    })?;
    Ok(world.living_pods())
}

/// A GPU breaks, all ranks die of it, and all run again.
fn breaks(world: &mut World) -> Result<(), Violation> {
    let before = world.living_pods();
    let (node, gpu) = held_gpu(world).ok_or_else(|| never("nobody holds a GPU"))?;
    world.gpu_breaks(node, gpu, FaultClass::Reset);
    world.ranks_die(true);
    runs(world, &before)?;
    Ok(())
}

fn job(world: &World) -> Result<Job, Violation> {
    let mut jobs = world.api.list::<Job>();
    jobs.next().cloned().ok_or_else(|| never("there is a Job"))
}

fn gang(world: &World) -> GangStatus {
    let mut gangs = world.api.list::<Gang>();
    let status = gangs.next().and_then(|gang| gang.status.clone());
    status.unwrap_or_default()
}

/// Whether a driver tells of a fault.
fn is_any_told(world: &World) -> bool {
    let slices = world.api.list::<ResourceSlice>();
    let devices = slices.flat_map(|slice| slice.spec.devices.iter().flatten());
    let mut taints = devices.flat_map(|device| device.taints.iter().flatten());
    taints.any(|taint| taint.key != keys::TAINT_HELD)
}

/// How the Job ended, and for what reason.
fn end(job: &Job) -> Option<(String, Option<String>)> {
    let conditions = job.status.as_ref()?.conditions.as_ref()?;
    let ends = ["Complete", "Failed"];
    let mut conditions = conditions.iter();
    let end = conditions.find(|it| ends.contains(&it.type_.as_str()) && it.status == "True")?;
    Some((end.type_.clone(), end.reason.clone()))
}

/// What the Job says of its limit, and what it is.
fn limits(job: &Job) -> (i32, String) {
    let annotations = job.metadata.annotations.as_ref();
    let covers = annotations.and_then(|it| it.get(keys::BACKOFF_COVERS));
    let covers = covers.and_then(|it| it.rsplit_once('/')).map(|it| it.0);
    let limit = job.spec.as_ref().and_then(|spec| spec.backoff_limit);
    (
        limit.unwrap_or_default(),
        covers.unwrap_or_default().to_owned(),
    )
}

fn survives(world: &mut World) -> Result<(), Violation> {
    world.hold(Steps::Ranks);
    world.submit(GANG);
    runs(world, &BTreeSet::new())?;
    breaks(world)?;
    let status = gang(world);
    let found = (status.attempt, status.failed_attempts, status.failed_pods);
    assert_eq!(found, (2, 0, 0), "none failed by itself");
    assert_eq!(limits(&job(world)?), (4, "1/4".to_owned()));
    come_to_rest(world)?;
    let end = end(&job(world)?).map(|end| end.0);
    assert_eq!(end.as_deref(), Some("Complete"));
    Ok(())
}

fn fails(world: &mut World, after_a_fault: bool) -> Result<(), Violation> {
    world.hold(Steps::Ranks);
    world.submit(GANG);
    runs(world, &BTreeSet::new())?;
    if after_a_fault {
        breaks(world)?;
        for node in NODES {
            world.mend_gpus(node);
        }
        // Else it might be what they die of.
        world.until("no fault is told any more", |world| !is_any_told(world))?;
    }
    world.ranks_die(false);
    world.until("the Job fails", |world| {
        job(world).is_ok_and(|job| end(&job).is_some())
    })?;
    come_to_rest(world)?;
    let job = job(world)?;
    let expected = ("Failed".to_owned(), Some("BackoffLimitExceeded".to_owned()));
    assert_eq!(end(&job), Some(expected));
    assert_eq!(limits(&job), (LIMIT, "1/1".to_owned()));
    let status = gang(world);
    let pods = i32::try_from(PODS).unwrap_or_default();
    assert_eq!((status.failed_attempts, status.failed_pods), (1, pods));
    Ok(())
}

/// The story of what failed, if anything did.
fn play(script: impl Fn(&mut World) -> Result<(), Violation>) -> Result<(), String> {
    for seed in 1..=SEEDS {
        let mut world = World::new(&scenario(), Faults::none(), Random::new(seed));
        world.trace.keep(400);
        let outcome = script(&mut world);
        outcome.map_err(|violation| format!("seed {seed}: {violation}\n{}", world.trace.text()))?;
    }
    Ok(())
}

#[test]
fn a_job_of_which_all_ranks_die_of_a_fault_goes_on() {
    play(survives).unwrap_or_else(|story| panic!("{story}"));
}

#[test]
fn a_job_of_which_all_ranks_die_by_themselves_fails_as_it_says() {
    let script = |world: &mut World| fails(world, false);
    play(script).unwrap_or_else(|story| panic!("{story}"));
}

#[test]
fn a_fault_before_takes_nothing_from_what_the_job_bears_and_adds_nothing() {
    let script = |world: &mut World| fails(world, true);
    play(script).unwrap_or_else(|story| panic!("{story}"));
}
