//! A GPU breaks on a tenth of all nodes within one second, under gangs of Jobs that take up to four nodes each: all that were hit run again elsewhere, whole, once, with their
//! quota kept, and nobody else is touched. The controller's index, protocol and engine that ship, under virtual time.
//!
//! **Work follows change**: the same is done to a fifth of the nodes in the same run, and what one gang that was hit costs, in objects that are looked at and in writes, may not grow with
//! the cluster. Each prints what it took of the machine's own time, which is no bound of a test.
//!
//! **Quota kept** is judged by those who would take it: every Team has exactly the quota that its gangs use, and one more gang that waits for quota. Without the keep
//! they do take it, which a test of its own shows.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::{core::v1::Pod, resource::v1::ResourceClaim};
use muster_api::{Gang, GangPhase, Quantity, Reason, Team};
use muster_protocol::{Config, Mode};
use muster_sim::{fixtures, scheduler::allocated_devices};

use crate::{
    cluster::{Cluster, JobGang, Shape, device_name, node_name, team_name},
    job_controller::JobController,
    mass_faults::{ANSWERED_AT_ONCE, GPU, QUIET_SECONDS, break_gpu, breaker},
    progress::Progress,
    world::{World, config},
};

const NODES: usize = 1_500;
/// The smaller cluster with which it is compared.
const FEWER_NODES: usize = 300;
const TEAMS: usize = 10;
/// One node of so many is hit.
const HIT_OF: usize = 10;
/// Pods and GPUs of each: together eleven nodes. The fourth has two nodes, and shares one of them with the last.
const SHAPES: [Shape; 5] = [
    Shape::new(2, 8),
    Shape::new(3, 8),
    Shape::new(4, 8),
    Shape::new(3, 4),
    Shape::new(1, 4),
];
const NODES_OF_SHAPES: usize = 11;
/// What waits for quota in each Team.
const WAITING: Shape = Shape::new(2, 8);
/// Within which all gangs of an empty cluster run.
const START_SECONDS: u64 = 120;
/// Within which all that were hit run again.
const LIMIT_SECONDS: u64 = 60;
/// For how long nothing may follow.
const AFTER_SECONDS: u64 = 60;
/// Of one gang that is evicted and runs again, with up to four pods on as many nodes, and again four elsewhere.
const MOST_WRITES_OF_GANG: f64 = 100.0;
/// How much more one gang may cost in a cluster of five times as many nodes: what is shared by all that happens in a second is less, and the domains of the topology are more.
const WRITES_GROW_AT_MOST: f64 = 1.5;
const LOOKS_GROW_AT_MOST: f64 = 3.0;

/// A cluster whose gangs run.
struct Scene {
    world: World,
    jobs: JobController,
}

/// What is seen of a gang, by its Job.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Seen {
    phase: Option<GangPhase>,
    attempt: i64,
    is_admitted: bool,
    /// Why its attempts ended.
    evictions: Vec<Reason>,
    /// UIDs of its pods that run.
    running: BTreeSet<String>,
    /// What these have: node and device.
    devices: BTreeSet<(String, String)>,
}

impl Seen {
    fn runs_whole(&self, shape: Shape) -> bool {
        self.phase == Some(GangPhase::Running)
            && self.running.len() == shape.pods
            && self.devices.len() == shape.pods * shape.gpus
    }

    fn nodes(&self) -> BTreeSet<&str> {
        self.devices.iter().map(|(node, _)| node.as_str()).collect()
    }

    fn has_any(&self, devices: &BTreeSet<(String, String)>) -> bool {
        !self.devices.is_disjoint(devices)
    }
}

/// All gangs, by the names of their Jobs.
type Gangs = BTreeMap<String, Seen>;

fn look(world: &World) -> Result<Gangs> {
    let api = world.api();
    let mut gangs = Gangs::new();
    for pod in api.list::<Pod>() {
        let Some(job) = fixtures::job_of(pod) else {
            continue;
        };
        let phase = pod.status.as_ref().and_then(|it| it.phase.as_deref());
        if phase != Some("Running") || pod.metadata.deletion_timestamp.is_some() {
            continue;
        }
        let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
        let name = pod.metadata.name.as_deref().unwrap_or_default();
        let claim = api.get::<ResourceClaim>(namespace, name);
        let claim = claim.context("a pod without a claim")?;
        let seen = gangs.entry(job.to_owned()).or_default();
        seen.running
            .insert(pod.metadata.uid.clone().unwrap_or_default());
        let devices = allocated_devices(claim);
        let devices = devices.map(|(node, device)| (node.to_owned(), device.to_owned()));
        seen.devices.extend(devices);
    }
    for gang in api.list::<Gang>() {
        let mut owners = gang.metadata.owner_references.iter().flatten();
        let job = owners.find(|owner| owner.kind == "Job");
        let job = job.context("a Gang without a Job")?;
        let status = gang.status.clone().unwrap_or_default();
        let seen = gangs.entry(job.name.clone()).or_default();
        seen.phase = Some(status.phase);
        seen.attempt = status.attempt;
        seen.is_admitted = status.admission.is_some();
        let evictions = status.evictions.iter();
        seen.evictions = evictions.map(|eviction| eviction.reason).collect();
    }
    Ok(gangs)
}

impl Scene {
    /// Four fifths of the nodes are held by gangs of Jobs, each Team has the quota that it uses, and one more gang of each waits for quota.
    fn new(nodes: usize, keep_seconds: u64) -> Result<Self> {
        let mut config: Config = config()?;
        config.recovery.mode = Mode::Enforce;
        config.recovery.keep_seconds = keep_seconds;
        let cluster = Cluster::idle(nodes, TEAMS, Vec::new());
        let mut scene = Self {
            world: World::with(&cluster, config)?,
            jobs: JobController::default(),
        };
        let mut progress = Progress::of(&format!("recovery of many among {nodes} nodes"));
        scene.world.settle(QUIET_SECONDS, &mut progress)?;
        let count = nodes * 4 / 5 / NODES_OF_SHAPES * SHAPES.len();
        let mut used = [0; TEAMS];
        for number in 0..count {
            // Every Team has gangs of all shapes.
            let team = number / SHAPES.len() % TEAMS;
            let shape = SHAPES[number % SHAPES.len()];
            used[team] += shape.pods * shape.gpus;
            scene.submit(number, team, shape)?;
        }
        let mut seconds = 0;
        while !scene.all_run()? {
            ensure!(
                seconds < START_SECONDS,
                "not all of {count} gangs run after {seconds} s"
            );
            scene.pass_a_second()?;
            seconds += 1;
            progress.tick(|| format!("{seconds} s"));
        }
        for (team, used) in used.into_iter().enumerate() {
            let nominal = Quantity(used.to_string());
            scene.world.change::<Team>(("", &team_name(team)), |team| {
                let quota = team.spec.quota.iter_mut();
                for resource in quota.flat_map(|quota| &mut quota.resources) {
                    resource.nominal = Some(nominal.clone());
                }
            })?;
        }
        scene.world.settle(QUIET_SECONDS, &mut progress)?;
        for team in 0..TEAMS {
            scene.submit(count + team, team, WAITING)?;
        }
        for _ in 0..2 * QUIET_SECONDS {
            scene.pass_a_second()?;
        }
        let gangs = look(&scene.world)?;
        for gang in scene.jobs.gangs() {
            let seen = gangs.get(&gang.name()).context("a gang is not there")?;
            let is_as_meant = if gang.number < count {
                seen.attempt == 1 && seen.runs_whole(gang.shape)
            } else {
                seen.phase == Some(GangPhase::Pending) && !seen.is_admitted
            };
            ensure!(is_as_meant, "{}: {seen:?}", gang.name());
        }
        // From now on the API server takes its time.
        scene.world.answer_at_once(ANSWERED_AT_ONCE);
        Ok(scene)
    }

    fn submit(&mut self, number: usize, team: usize, shape: Shape) -> Result<()> {
        let gang = JobGang {
            number,
            team,
            shape,
        };
        self.jobs.submit(&mut self.world, gang)
    }

    fn all_run(&self) -> Result<bool> {
        let gangs = look(&self.world)?;
        let runs = |gang: &JobGang| {
            let seen = gangs.get(&gang.name());
            seen.is_some_and(|seen| seen.runs_whole(gang.shape))
        };
        Ok(self.jobs.gangs().iter().all(runs))
    }

    /// The controller, kube-scheduler, the Job controller and the kubelets do what there is to do, and a second passes.
    fn pass_a_second(&mut self) -> Result<()> {
        self.world.settle_second()?;
        self.world.start_pods()?;
        self.jobs.step(&mut self.world)?;
        self.world.end_deleted_pods()?;
        self.world.wait_a_second();
        Ok(())
    }

    /// Breaks a GPU on one node of ten. The devices that are broken.
    fn break_a_tenth(&mut self, nodes: usize) -> Result<BTreeSet<(String, String)>> {
        let mut broken = BTreeSet::new();
        for node in (0..nodes).step_by(HIT_OF) {
            break_gpu(&mut self.world, node)?;
            broken.insert((node_name(node), device_name(GPU)));
        }
        Ok(broken)
    }

    /// GPUs that are charged to each Team, in thousandths, as its gangs are admitted.
    fn charged(&self) -> BTreeMap<String, i64> {
        let mut charged: BTreeMap<String, i64> = BTreeMap::new();
        for gang in self.world.api().list::<Gang>() {
            let status = gang.status.as_ref();
            if let Some(admission) = status.and_then(|status| status.admission.as_ref()) {
                let claims = admission.charge.claims.iter();
                let each =
                    claims.flat_map(|claims| claims.uids.iter().map(move |_| claims.gpus_milli));
                *charged.entry(admission.team.clone()).or_default() += each.sum::<i64>();
            }
        }
        charged
    }

    fn writes(&self) -> u64 {
        self.world.writes.values().sum()
    }
}

/// What one gang that was hit cost.
#[derive(Debug)]
struct Cost {
    looks: f64,
    writes: f64,
}

/// A share of what all of them cost.
#[expect(
    clippy::cast_precision_loss,
    reason = "numbers of looks and writes are far below 2^52"
)]
fn each(all: u64, gangs: usize) -> f64 {
    all as f64 / gangs as f64
}

/// The Jobs whose gangs hold what is broken.
fn hit(gangs: &Gangs, broken: &BTreeSet<(String, String)>) -> BTreeSet<String> {
    let hit = gangs.iter().filter(|(_, seen)| seen.has_any(broken));
    hit.map(|(job, _)| job.clone()).collect()
}

fn recover(nodes: usize) -> Result<Cost> {
    let mut scene = Scene::new(nodes, config()?.recovery.keep_seconds)?;
    let before = look(&scene.world)?;
    let charged = scene.charged();
    let looks = scene.world.visited();
    let writes = scene.writes();
    let spent = scene.world.spent();
    let broken = scene.break_a_tenth(nodes)?;
    let hit = hit(&before, &broken);
    let shapes: BTreeMap<String, Shape> = scene
        .jobs
        .gangs()
        .iter()
        .map(|gang| (gang.name(), gang.shape))
        .collect();
    let span = |job: &String| before[job].nodes().len();
    let spans: BTreeSet<usize> = hit.iter().map(span).collect();
    ensure!(
        spans.is_superset(&BTreeSet::from([2, 3, 4])),
        "they take {spans:?} nodes"
    );
    let mut seconds = 0;
    loop {
        let now = look(&scene.world)?;
        check(&before, &now, &hit)?;
        let runs_again = |job: &&String| {
            let seen = &now[*job];
            seen.attempt == 2 && seen.runs_whole(shapes[*job])
        };
        let again = hit.iter().filter(runs_again).count();
        if again == hit.len() {
            break;
        }
        ensure!(
            seconds < LIMIT_SECONDS,
            "after {seconds} s {again} of {} run again",
            hit.len()
        );
        scene.pass_a_second()?;
        seconds += 1;
    }
    let cost = Cost {
        looks: each(scene.world.visited() - looks, hit.len()),
        writes: each(scene.writes() - writes, hit.len()),
    };
    let spent = scene.world.spent().saturating_sub(spent);
    println!(
        "{} of {nodes} nodes: {} gangs run again after {seconds} s, {spent:?} of the machine; {cost:?} each",
        broken.len(),
        hit.len()
    );
    // And nothing follows.
    let again = look(&scene.world)?;
    for _ in 0..AFTER_SECONDS {
        scene.pass_a_second()?;
    }
    let after = look(&scene.world)?;
    ensure!(after == again, "something follows");
    for job in &hit {
        let seen = &after[job];
        ensure!(seen.evictions == [Reason::DeviceFault], "{job}: {seen:?}");
        ensure!(
            seen.running.is_disjoint(&before[job].running),
            "{job}: a pod of it was not made again"
        );
        ensure!(!seen.has_any(&broken), "{job} has a broken GPU: {seen:?}");
    }
    ensure!(
        scene.charged() == charged,
        "the Teams are charged otherwise"
    );
    let (is_open, evacuated) = breaker(&scene.world)?;
    let held = hit.iter().flat_map(|job| &before[job].devices);
    let held = held.filter(|device| broken.contains(*device)).count();
    ensure!(
        !is_open && (1..=held).contains(&evacuated),
        "the breaker counts {evacuated} of {held} nodes, and is open: {is_open}"
    );
    Ok(cost)
}

/// What is so in every second: nobody else is touched (S8), nobody takes the quota, and no gang runs with pods of two attempts (S4).
fn check(before: &Gangs, now: &Gangs, hit: &BTreeSet<String>) -> Result<()> {
    for (job, was) in before {
        let is = now.get(job).context("a gang is gone")?;
        if hit.contains(job) {
            let old = is.running.intersection(&was.running).count();
            ensure!(
                old == 0 || old == is.running.len(),
                "{job} runs with pods of two attempts: {is:?}"
            );
            ensure!(is.evictions.len() <= 1, "{job}: {is:?}");
        } else {
            ensure!(is == was, "{job} was not hit, was {was:?} and is {is:?}");
        }
    }
    Ok(())
}

#[test]
fn of_faults_on_a_tenth_of_1500_nodes_at_once_each_gang_that_is_hit_runs_again_whole_and_once_and_costs_what_it_costs_among_300()
-> Result<()> {
    let fewer = recover(FEWER_NODES)?;
    let cost = recover(NODES)?;
    assert!(cost.writes <= MOST_WRITES_OF_GANG, "{cost:?}");
    assert!(
        cost.writes <= WRITES_GROW_AT_MOST * fewer.writes,
        "{cost:?}, {fewer:?}"
    );
    assert!(
        cost.looks <= LOOKS_GROW_AT_MOST * fewer.looks,
        "{cost:?}, {fewer:?}"
    );
    Ok(())
}

/// What the check of the quota would find.
#[test]
fn without_the_keep_those_who_wait_for_quota_take_it_from_gangs_that_are_hit() -> Result<()> {
    let mut scene = Scene::new(FEWER_NODES, 0)?;
    let before = look(&scene.world)?;
    scene.break_a_tenth(FEWER_NODES)?;
    for _ in 0..LIMIT_SECONDS {
        let now = look(&scene.world)?;
        let mut waited = before.iter().filter(|(_, seen)| !seen.is_admitted);
        if waited.any(|(job, _)| now[job].is_admitted) {
            return Ok(());
        }
        scene.pass_a_second()?;
    }
    anyhow::bail!("nobody took it within {LIMIT_SECONDS} s")
}
