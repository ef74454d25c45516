//! What the scenarios of this suite stand on: Jobs that run, pods beside them, and a controller that is told to act otherwise for a while.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use anyhow::{Context, Result, ensure};
use k8s_openapi::{
    api::{
        batch::v1::Job,
        core::v1::{Pod, PodSpec},
    },
    apimachinery::pkg::apis::meta::v1::Time,
};
use kube::{Api, Client, ResourceExt, api::ListParams};
use muster_api::{Gang, GangPhase, NodeDevices, Reason, conditions, keys};
use muster_tests::{
    builders::{self, RankProgram, gpu_quota},
    cluster::{Cluster, Program},
    faults::{TargetGpu, ensure_fault_evictions, wait_for_fault_eviction},
    gangs,
    install::Part,
    kubernetes::{self, LIMIT, Progress, always, eventually},
    workloads::Workload,
};

/// Node label of two nodes that have a scenario to themselves, beside others.
pub(crate) const ROOM: &str = "example.com/room";
/// More pods than this take longer to start.
const FEW: u32 = 8;
/// How long it is looked whether nothing happens after all that could have made it happen was seen.
const NOTHING: Duration = Duration::from_secs(2);

/// A Team with so many GPUs, and a namespace of its name.
pub(crate) async fn prepare_team(client: &Client, name: &str, gpus: u32) -> Result<()> {
    builders::flavor(client, "gpus", None).await?;
    builders::team(client, name, None, vec![gpu_quota("gpus", gpus, None)]).await?;
    builders::namespace(client, name, Some(name)).await
}

/// A Job whose ranks run.
pub(crate) struct Running<'a> {
    pub(crate) workload: Workload<'a>,
    pub(crate) ranks: RankProgram,
    /// UIDs of its pods.
    pub(crate) pods: BTreeSet<String>,
    queued_at: Option<Time>,
}

impl<'a> Running<'a> {
    /// Submits it, and waits until it runs.
    pub(crate) async fn start(
        cluster: &Cluster,
        workload: Workload<'a>,
        program: impl FnOnce(RankProgram) -> RankProgram,
    ) -> Result<Self> {
        Self::start_where(cluster, workload, program, |spec| spec).await
    }

    /// The same, of ranks that hang once they have lost one of them.
    pub(crate) async fn start_hanging(cluster: &Cluster, workload: Workload<'a>) -> Result<Self> {
        Self::start(cluster, workload, RankProgram::hanging_when_lost).await
    }

    /// Submits it, and waits until it runs; something else is made of the pods' spec.
    pub(crate) async fn start_where(
        cluster: &Cluster,
        workload: Workload<'a>,
        program: impl FnOnce(RankProgram) -> RankProgram,
        adapt: impl FnOnce(PodSpec) -> PodSpec,
    ) -> Result<Self> {
        let ranks = submit(cluster, workload, program, adapt).await?;
        let (client, namespace) = (cluster.client(), workload.namespace);
        let gang = gangs::of_job(workload.name);
        let gang = if workload.ranks > FEW {
            gangs::wait_until_all_of_many_run(&client, namespace, &gang).await?
        } else {
            gangs::wait_until_running(&client, namespace, &gang).await?
        };
        let queued_at = queued_at(&gang);
        ensure!(queued_at.is_some(), "gang {} has no age", workload.name);
        Ok(Self {
            workload,
            ranks,
            pods: pods_of(&client, &gang).await?,
            queued_at,
        })
    }

    /// What the name of its Gang begins with.
    pub(crate) fn gang(&self) -> String {
        gangs::of_job(self.workload.name)
    }

    /// The Gang as it is now.
    pub(crate) async fn now(&self, client: &Client) -> Result<Gang> {
        let gang = gangs::find(client, self.workload.namespace, &self.gang()).await?;
        gang.with_context(|| format!("there is no gang {}", self.workload.name))
    }

    /// The first GPU of this rank.
    pub(crate) async fn gpu_of(&self, cluster: &Cluster, rank: u32) -> Result<TargetGpu> {
        let gang = self.now(&cluster.client()).await?;
        let held = TargetGpu::held_by(cluster, &gang).await?;
        let first = held.get(&rank).and_then(|gpus| gpus.first());
        let first = first.with_context(|| format!("rank {rank} has no GPU: {held:?}"))?;
        Ok(first.clone())
    }

    /// It runs whole in this attempt, with new pods alone, with its age, and without these GPUs.
    pub(crate) async fn runs_again(
        &self,
        cluster: &Cluster,
        attempt: i64,
        limit: Duration,
        without: &[&TargetGpu],
    ) -> Result<()> {
        let client = cluster.client();
        let (namespace, beginning) = (self.workload.namespace, self.gang());
        let again =
            gangs::wait_until_running_again_within(&client, namespace, &beginning, attempt, limit);
        let gang = again.await?;
        let now = gang.status.as_ref().map(|status| status.attempt);
        ensure!(now == Some(attempt), "it took more: {now:?}");
        let age = queued_at(&gang);
        ensure!(
            age == self.queued_at,
            "its place in the queue was {:?} and is {age:?}",
            self.queued_at
        );
        let pods = pods_of(&client, &gang).await?;
        ensure!(
            pods.len() == self.pods.len() && pods.is_disjoint(&self.pods),
            "its pods were {:?} and are {pods:?}",
            self.pods
        );
        let held = TargetGpu::held_by(cluster, &gang).await?;
        let mut held = held.values().flatten();
        let broken = held.find(|gpu| without.contains(gpu));
        ensure!(broken.is_none(), "it was given {broken:?}, which is broken");
        Ok(())
    }

    /// It is evicted for that GPU, once, and runs again in time without these.
    pub(crate) async fn restarts_once(
        &self,
        cluster: &Cluster,
        gpu: &TargetGpu,
        limit: Duration,
        without: &[&TargetGpu],
    ) -> Result<()> {
        let (client, namespace, gang) = (cluster.client(), self.workload.namespace, self.gang());
        wait_for_fault_eviction(&client, namespace, &gang, gpu).await?;
        self.runs_again(cluster, 2, limit, without).await?;
        ensure_fault_evictions(&client, namespace, &gang, 1).await
    }

    /// For a while it is as it was: the same attempt, the same pods, none of them ended.
    pub(crate) async fn stays(&self, client: &Client) -> Result<()> {
        let what = format!("gang {} stays", self.workload.name);
        always(&what, NOTHING, async || {
            let gang = self.now(client).await?;
            let status = gang.status.clone().unwrap_or_default();
            let pods = pods_of(client, &gang).await?;
            let is_same = status.phase == GangPhase::Running
                && status.attempt == 1
                && status.evictions.is_empty()
                && pods == self.pods;
            Ok(Progress::when(is_same, || format!("{status:?}, {pods:?}")))
        })
        .await
    }

    /// Its ranks do what they have to do, and its Job is complete.
    pub(crate) async fn finishes(&self, client: &Client) -> Result<()> {
        self.ranks.finish()?;
        gangs::wait_for_job(client, self.workload.namespace, self.workload.name).await?;
        self.ranks.ensure_all_met()
    }
}

/// Whatever was found, the GPU is mended for those that come after; what was found.
pub(crate) async fn mended<T>(cluster: &Cluster, gpu: &TargetGpu, judged: Result<T>) -> Result<T> {
    let cleared = gpu.clear(cluster).await;
    let found = judged?;
    cleared?;
    Ok(found)
}

/// Submits a Job, which may lose all its pods several times.
pub(crate) async fn submit(
    cluster: &Cluster,
    workload: Workload<'_>,
    program: impl FnOnce(RankProgram) -> RankProgram,
    adapt: impl FnOnce(PodSpec) -> PodSpec,
) -> Result<RankProgram> {
    let client = cluster.client();
    let (ranks, _) = workload.prepare(cluster).await?;
    let ranks = program(ranks);
    let spec = adapt(workload.pod_spec(&client, &ranks).await?);
    let mut job = builders::indexed_job(workload.name, workload.ranks, &[], &spec)?;
    let limit = i32::try_from(workload.ranks.saturating_mul(4))?;
    job.spec.as_mut().context("a spec")?.backoff_limit = Some(limit);
    let jobs: Api<Job> = Api::namespaced(client, workload.namespace);
    kubernetes::create(&jobs, &job).await?;
    Ok(ranks)
}

/// A pod by itself, on a node that was chosen for it.
pub(crate) struct Single {
    namespace: String,
    name: String,
    ranks: RankProgram,
}

impl Single {
    /// Creates it with so many GPUs.
    pub(crate) async fn create(
        cluster: &Cluster,
        namespace: &str,
        name: &str,
        gpus: u32,
        node: &str,
    ) -> Result<Self> {
        let workload = Workload {
            namespace,
            name,
            ranks: 1,
            gpus,
        };
        let (ranks, spec) = workload.prepare(cluster).await?;
        let pod = builders::pod(name, &[], &[], &builders::on_node(spec, node))?;
        let pods: Api<Pod> = Api::namespaced(cluster.client(), namespace);
        kubernetes::create(&pods, &pod).await?;
        Ok(Self {
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            ranks,
        })
    }

    /// Waits until it runs; its GPUs.
    pub(crate) async fn runs(&self, cluster: &Cluster) -> Result<Vec<TargetGpu>> {
        let client = cluster.client();
        gangs::wait_until_running(&client, &self.namespace, &gangs::of_pod(&self.name)).await?;
        let granted = gangs::granted(&client, &self.namespace).await?;
        let devices = granted.get(&self.name).into_iter().flatten();
        let gpus = devices.map(|(node, device)| TargetGpu::of_device(cluster, node, device));
        gpus.collect()
    }

    /// Waits until it is told that there is no place for it.
    pub(crate) async fn waits_for_place(&self, client: &Client) -> Result<()> {
        let (gang, reason) = (gangs::of_pod(&self.name), Reason::WaitingForPlacement);
        gangs::wait_for_reason(client, &self.namespace, &gang, reason)
            .await
            .map(drop)
    }

    /// Fails unless it runs, and was never started again.
    pub(crate) async fn is_untouched(&self, client: &Client) -> Result<()> {
        let pods: Api<Pod> = Api::namespaced(client.clone(), &self.namespace);
        kubernetes::ensure_untouched(&pods.get(&self.name).await?)
    }

    /// It does what it has to do.
    pub(crate) async fn finishes(&self, client: &Client) -> Result<()> {
        self.ranks.finish()?;
        gangs::wait_until_finished(client, &self.namespace, &gangs::of_pod(&self.name)).await
    }
}

/// Lets the pods run on the nodes of this room only.
pub(crate) fn in_room(mut spec: PodSpec, room: &str) -> PodSpec {
    let selector = BTreeMap::from([(ROOM.to_owned(), room.to_owned())]);
    spec.node_selector = Some(selector);
    spec
}

/// UIDs of the pods of a Gang's latest attempt.
pub(crate) async fn pods_of(client: &Client, gang: &Gang) -> Result<BTreeSet<String>> {
    let pods = gangs::pods(client, gang).await?;
    Ok(pods.values().filter_map(ResourceExt::uid).collect())
}

fn queued_at(gang: &Gang) -> Option<Time> {
    gang.status.as_ref()?.queued_at.clone()
}

/// Waits until the driver's list of what is wrong with its node's GPUs names this one with that class for that cause. What it had before may be listed, too.
pub(crate) async fn wait_until_listed(
    client: &Client,
    gpu: &TargetGpu,
    class: &str,
    cause: &str,
) -> Result<()> {
    let nodes: Api<NodeDevices> = Api::all(client.clone());
    let what = format!("{} is listed as {class}: {cause}", gpu.full_device_name());
    eventually(&what, LIMIT, async || {
        let status = nodes.get(&gpu.node).await?.status.unwrap_or_default();
        let faults = status.faults.unwrap_or_default();
        let mut faults = faults.iter();
        let is_listed = faults.any(|fault| {
            let mut causes = fault.causes.iter();
            fault.gpu == gpu.uuid && fault.class == class && causes.any(|it| it == cause)
        });
        Ok(Progress::when(is_listed, || format!("{faults:?}")))
    })
    .await
}

/// Waits until the Gang says of this attempt that a fault reached it, and that this follows.
pub(crate) async fn wait_until_told(
    client: &Client,
    running: &Running<'_>,
    words: &str,
) -> Result<()> {
    let what = format!("gang {} tells of its fault: {words}", running.workload.name);
    eventually(&what, LIMIT, async || {
        let status = running.now(client).await?.status.unwrap_or_default();
        let is_so = status.conditions.iter().any(|condition| {
            condition.type_ == conditions::DEGRADED
                && condition.status == "True"
                && condition.reason == Reason::DeviceFault.as_str()
                && condition.message.contains(words)
        });
        Ok(Progress::when(is_so, || format!("{:?}", status.conditions)))
    })
    .await
}

/// Starts the controller anew, with these of its arguments exchanged; as it was installed with none.
pub(crate) async fn restart_controller(
    cluster: &mut Cluster,
    exchanged: &[(&str, &str)],
) -> Result<()> {
    let controller = cluster.service(Program::Muster(Part::Controller, 0))?;
    controller.stop().await;
    controller.spawn_with_arguments(exchanged)?;
    controller.wait_until_ready().await
}

/// Names of the gangs of a namespace that were evicted for faults.
pub(crate) async fn evicted_for_faults(
    client: &Client,
    namespace: &str,
) -> Result<BTreeSet<String>> {
    let all: Api<Gang> = Api::namespaced(client.clone(), namespace);
    let all = all.list(&ListParams::default()).await?;
    let evicted = all.iter().filter(|gang| {
        let mut evictions = gang.status.iter().flat_map(|status| &status.evictions);
        evictions.any(|eviction| eviction.reason == Reason::DeviceFault)
    });
    Ok(evicted.map(ResourceExt::name_any).collect())
}

/// How many thousandths of GPUs the Team is charged for by its gangs' admissions.
pub(crate) async fn charged(client: &Client, team: &str) -> Result<i64> {
    Ok(gangs::charged(client).await?.remove(team).unwrap_or(0))
}

/// Whether a device has this taint now.
pub(crate) async fn ensure_tainted(client: &Client, gpu: &TargetGpu) -> Result<()> {
    let taints = gpu.taints(client).await?;
    let is_told = taints.iter().any(|taint| taint.key == keys::TAINT_FAULT);
    ensure!(is_told, "{}: {taints:?}", gpu.full_device_name());
    Ok(())
}
