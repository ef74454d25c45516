//! A cluster whose gangs are of Jobs and run, and what is seen of them.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::{core::v1::Pod, resource::v1::ResourceClaim};
use muster_api::{Gang, GangPhase, Quantity, Reason, Team};
use muster_protocol::{Config, Mode};
use muster_sim::{fixtures, scheduler::allocated_devices};

use crate::{
    cluster::{Cluster, JobGang, Shape, device_name, node_name, team_name},
    job_controller::JobController,
    mass_faults::{ANSWERED_AT_ONCE, GPU, QUIET_SECONDS, break_gpu},
    progress::Progress,
    world::{World, config},
};

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
/// What is shared by all that happens in a second, or is no write.
const APART: [&str; 8] = [
    "list",
    "read",
    "Event",
    "Queue",
    "Team status",
    "Cohort status",
    "Flavor status",
    "PriorityTier status",
];

/// A cluster whose gangs run.
pub(super) struct Scene {
    pub(super) world: World,
    pub(super) jobs: JobController,
}

/// What is seen of a gang, by its Job.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Seen {
    pub(super) phase: Option<GangPhase>,
    pub(super) attempt: i64,
    pub(super) is_admitted: bool,
    /// Why its attempts ended.
    pub(super) evictions: Vec<Reason>,
    /// UIDs of its pods that run.
    pub(super) running: BTreeSet<String>,
    /// What these have: node and device.
    pub(super) devices: BTreeSet<(String, String)>,
}

impl Seen {
    pub(super) fn runs_whole(&self, shape: Shape) -> bool {
        self.phase == Some(GangPhase::Running)
            && self.running.len() == shape.pods
            && self.devices.len() == shape.pods * shape.gpus
    }

    pub(super) fn nodes(&self) -> BTreeSet<&str> {
        self.devices.iter().map(|(node, _)| node.as_str()).collect()
    }

    pub(super) fn has_any(&self, devices: &BTreeSet<(String, String)>) -> bool {
        !self.devices.is_disjoint(devices)
    }
}

/// All gangs, by the names of their Jobs.
pub(super) type Gangs = BTreeMap<String, Seen>;

/// All gangs, as the API server has them.
pub(super) fn look(world: &World) -> Result<Gangs> {
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
    pub(super) fn new(nodes: usize, keep_seconds: u64) -> Result<Self> {
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
    pub(super) fn pass_a_second(&mut self) -> Result<()> {
        self.world.settle_second()?;
        self.world.start_pods()?;
        self.jobs.step(&mut self.world)?;
        self.world.end_deleted_pods()?;
        self.world.wait_a_second();
        Ok(())
    }

    /// Breaks a GPU on one node of ten. The devices that are broken.
    pub(super) fn break_a_tenth(&mut self, nodes: usize) -> Result<BTreeSet<(String, String)>> {
        let mut broken = BTreeSet::new();
        for node in (0..nodes).step_by(HIT_OF) {
            break_gpu(&mut self.world, node)?;
            broken.insert((node_name(node), device_name(GPU)));
        }
        Ok(broken)
    }

    /// GPUs that are charged to each Team, in thousandths, as its gangs are admitted.
    pub(super) fn charged(&self) -> BTreeMap<String, i64> {
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

    /// Writes that are some gang's own, so far.
    pub(super) fn writes(&self) -> u64 {
        let writes = self.world.writes.iter();
        let own = writes.filter(|(kind, _)| !APART.contains(kind));
        own.map(|(_, count)| count).sum()
    }
}
