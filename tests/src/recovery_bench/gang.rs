//! The gang that is measured, and those beside it that nothing must happen to.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use anyhow::{Context, Result};
use k8s_openapi::api::{
    batch::v1::Job,
    core::v1::{Pod, PodSpec},
};
use kube::{Api, Client, ResourceExt, api::DeleteParams};
use muster_api::{Gang, keys};

use super::restarts::Before;
use crate::{
    builders::{self, RankProgram, gpu_quota},
    cluster::Cluster,
    gangs,
    kubernetes::{self, Progress, eventually, list},
    workloads::Workload,
};

/// Namespace and Team of all gangs.
pub(super) const NAMESPACE: &str = "bench";
/// Pods of the gang that is measured: with those beside it, a node has room for half of them.
pub(super) const RANKS: u32 = 6;
/// GPUs of each of its pods.
pub(super) const GPUS: u32 = 2;
/// `terminationGracePeriodSeconds` of all its pods: what Kubernetes ships.
pub(super) const GRACE_SECONDS: u32 = 30;
/// All GPUs of the four nodes.
const QUOTA: u32 = 32;
/// Failures that the Job may have before Muster raises that for the restarts that it was promised: what Kubernetes ships.
const BACKOFF_LIMIT: i32 = 6;
/// How often the gang may be started anew after pods that failed by themselves.
const MAX_RESTARTS: &str = "3";
/// Longest time until nothing is left of a Job: a kubelet that was away looks once a minute at pods that are gone.
const END_LIMIT: Duration = Duration::from_mins(5);
/// What a rank reports that SIGTERM ended.
const TERMINATED: &str = "terminated";
/// Steps of a tenth of a second, so that ranks run for longer than the whole measurement, which with everything takes most of a day: those to which
/// nothing must happen are there from its beginning to its end. A week.
const ENDLESS_STEPS: u32 = 7 * 864_000;
/// Seconds that ranks wait for their peers. A kubelet that could not start a pod tries again after 60 to 90 s, and what trains waits for that: ranks that
/// gave up before would end the attempt, and the measurement would be of them.
const MEETING_SECONDS: u64 = 600;

/// How the ranks of a gang behave.
#[derive(Clone, Copy, Debug)]
pub(super) struct Behaviour {
    /// Only SIGKILL ends them: they are there until the grace of their pods is over.
    pub(super) takes_grace: bool,
    /// A rank ends once a GPU of it fails.
    pub(super) dies_with_gpu: bool,
    /// They wait to be ended once they have lost a peer; else they fail.
    pub(super) hangs_when_lost: bool,
}

/// A gang that runs.
#[derive(Debug)]
pub(super) struct Running {
    pub(super) job: String,
    pub(super) ranks: RankProgram,
    pub(super) gang: Gang,
    /// Its pods, by rank.
    pub(super) pods: BTreeMap<u32, Pod>,
}

/// The Flavor, the Team and its namespace.
pub(super) async fn prepare(client: &Client) -> Result<()> {
    builders::flavor(client, "h100", None).await?;
    let quota = vec![gpu_quota("h100", QUOTA, None)];
    builders::team(client, NAMESPACE, None, quota).await?;
    builders::namespace(client, NAMESPACE, Some(NAMESPACE)).await
}

/// Starts a gang that behaves so, and waits until it runs.
pub(super) async fn start(cluster: &Cluster, job: &str, behaviour: Behaviour) -> Result<Running> {
    let workload = Workload {
        namespace: NAMESPACE,
        name: job,
        ranks: RANKS,
        gpus: GPUS,
    };
    let mut ranks = endless(cluster, job, RANKS)?;
    ranks.ignores_sigterm = behaviour.takes_grace;
    ranks.dies_with_gpu = behaviour.dies_with_gpu;
    ranks.hangs_when_lost = behaviour.hangs_when_lost;
    let mut spec = workload.pod_spec(&cluster.client(), &ranks).await?;
    spec.termination_grace_period_seconds = Some(i64::from(GRACE_SECONDS));
    let promised = [(keys::MAX_RESTARTS, MAX_RESTARTS)];
    let client = cluster.client();
    create(&client, job, RANKS, &promised, &spec).await?;
    let name = gangs::of_job(job);
    let gang = gangs::wait_until_all_of_many_run(&client, NAMESPACE, &name).await?;
    let pods = gangs::pods(&client, &gang).await?;
    Ok(Running {
        job: job.to_owned(),
        ranks,
        gang,
        pods,
    })
}

/// Starts a gang of one pod with one GPU on this node, which is to run on whatever happens to others, and waits until it runs.
pub(super) async fn start_bystander(cluster: &Cluster, job: &str, node: &str) -> Result<()> {
    let workload = Workload {
        namespace: NAMESPACE,
        name: job,
        ranks: 1,
        gpus: 1,
    };
    let ranks = endless(cluster, job, 1)?;
    let client = cluster.client();
    let spec = builders::on_node(workload.pod_spec(&client, &ranks).await?, node);
    create(&client, job, 1, &[], &spec).await?;
    let name = gangs::of_job(job);
    gangs::wait_until_all_of_many_run(&client, NAMESPACE, &name).await?;
    Ok(())
}

/// Deletes a Job, if it is there, and waits until none of its pods is left.
pub(super) async fn delete(client: &Client, namespace: &str, job: &str) -> Result<()> {
    let jobs: Api<Job> = Api::namespaced(client.clone(), namespace);
    match jobs.delete(job, &DeleteParams::background()).await {
        Ok(_) => {}
        Err(kube::Error::Api(status)) if status.is_not_found() => {}
        Err(error) => return Err(error).with_context(|| format!("cannot delete Job {job}")),
    }
    let what = format!("nothing is left of Job {namespace}/{job}");
    eventually(&what, END_LIMIT, async || {
        let pods: Vec<Pod> = list(client, Some(namespace)).await?;
        let of_job = pods
            .iter()
            .filter(|pod| pod.owner_references().iter().any(|owner| owner.name == job));
        let left: Vec<String> = of_job.map(ResourceExt::name_any).collect();
        Ok(Progress::when(left.is_empty(), || format!("{left:?}")))
    })
    .await
}

fn endless(cluster: &Cluster, job: &str, ranks: u32) -> Result<RankProgram> {
    let peers = builders::peers_directory(cluster.directory(), &format!("{NAMESPACE}-{job}"))?;
    let program = RankProgram::new(cluster.programs().path("rank"), peers, ranks);
    let mut program = program.until_finished();
    program.steps = ENDLESS_STEPS;
    program.deadline_seconds = MEETING_SECONDS;
    Ok(program)
}

async fn create(
    client: &Client,
    job: &str,
    ranks: u32,
    annotations: &[(&str, &str)],
    spec: &PodSpec,
) -> Result<()> {
    let mut object = builders::indexed_job(job, ranks, annotations, spec)?;
    object.spec.as_mut().context("a spec")?.backoff_limit = Some(BACKOFF_LIMIT);
    let jobs: Api<Job> = Api::namespaced(client.clone(), NAMESPACE);
    kubernetes::create(&jobs, &object).await.map(drop)
}

impl Running {
    /// Its name, attempt and pods.
    pub(super) fn before(&self) -> Result<Before> {
        let status = self.gang.status.as_ref().context("a status")?;
        let pods: BTreeSet<String> = self.pods.values().filter_map(Pod::uid).collect();
        Ok(Before {
            gang: format!("{NAMESPACE}/{}", self.gang.name_any()),
            attempt: status.attempt,
            pods,
        })
    }

    /// The node that a rank of it runs on.
    pub(super) fn node_of(&self, rank: u32) -> Result<String> {
        let pod = self.pods.get(&rank);
        let pod = pod.with_context(|| format!("there is no rank {rank}"))?;
        let node = pod.spec.as_ref().and_then(|spec| spec.node_name.clone());
        node.with_context(|| format!("pod {} is not bound", pod.name_any()))
    }

    /// How many of its ranks have ended by themselves, as they reported at their end. Who was told to end is none of them, and who was killed has
    /// reported nothing.
    pub(super) fn died(&self) -> u32 {
        let has_died = |rank: &u32| {
            let outcome = self.ranks.outcome(*rank);
            outcome.is_some_and(|outcome| outcome != TERMINATED)
        };
        let died = (0..RANKS).filter(has_died).count();
        u32::try_from(died).unwrap_or(RANKS)
    }

    /// Its ranks end well, and nothing is left of it.
    pub(super) async fn finish(&self, client: &Client) -> Result<()> {
        self.ranks.finish()?;
        gangs::wait_for_job(client, NAMESPACE, &self.job).await?;
        delete(client, NAMESPACE, &self.job).await
    }
}
