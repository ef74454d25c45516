//! What the scenarios of this suite stand on: a gang on two of the three nodes, which runs on when one of its nodes does not.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use k8s_openapi::{
    api::{batch::v1::Job, core::v1::Pod},
    apimachinery::pkg::apis::meta::v1::Time,
};
use kube::{Api, Client, ResourceExt, api::ListParams};
use muster_api::{Gang, Queue, Reason};
use muster_tests::{
    builders::{self, RankProgram},
    cluster::Cluster,
    evictions::wait_for_eviction,
    gangs, kubernetes,
    suite::Scenario,
    workloads::Workload,
};

/// Name of the Jobs.
const JOB: &str = "train";
/// All that its Team may use.
pub(crate) const GPUS: u32 = 16;
/// Kubernetes removes the pods of a node that is gone after a minute or so, and a kubelet gives back what pods held that are gone once
/// a minute.
pub(crate) const SLOW_LIMIT: Duration = Duration::from_secs(100);

/// A gang on two nodes, the second of which is about to die.
pub(crate) struct Scene {
    /// Namespace and Team.
    pub(crate) namespace: &'static str,
    pub(crate) ranks: RankProgram,
    /// The node of rank 1.
    pub(crate) node: String,
    queued_at: Option<Time>,
}

/// They have to wait for what is slow.
pub(crate) fn long(scenarios: Vec<Scenario>) -> Vec<Scenario> {
    let scenarios = scenarios.into_iter();
    scenarios
        .map(|one| one.with_more_time(SLOW_LIMIT))
        .collect()
}

/// A Job of two whole nodes runs, which is all that its Team may use. Its ranks hang once they have lost a peer.
pub(crate) async fn begin(cluster: &Cluster, namespace: &'static str) -> Result<Scene> {
    let client = cluster.client();
    builders::team_of_sixteen(&client, namespace).await?;
    let workload = Workload {
        namespace,
        name: JOB,
        ranks: 2,
        gpus: GPUS / 2,
    };
    let (ranks, _) = workload.prepare(cluster).await?;
    let ranks = ranks.hanging_when_lost();
    let spec = workload.pod_spec(&client, &ranks).await?;
    let mut job = builders::indexed_job(JOB, 2, &[], &spec)?;
    // Kubernetes may have the pods of a node that is off or gone fail before the Job is suspended.
    job.spec.as_mut().context("a spec")?.backoff_limit = Some(2);
    let jobs: Api<Job> = Api::namespaced(client.clone(), namespace);
    kubernetes::create(&jobs, &job).await?;
    let gang = gangs::wait_until_running(&client, namespace, &gangs::of_job(JOB)).await?;
    let nodes = gangs::nodes(&client, &gang).await?;
    let queued_at = gang.status.and_then(|status| status.queued_at);
    ensure!(queued_at.is_some(), "it has no age");
    Ok(Scene {
        namespace,
        ranks,
        node: nodes.get(1).context("the second rank's node")?.clone(),
        queued_at,
    })
}

impl Scene {
    /// The attempt is evicted once, for its node, and the next one runs whole on others, with its age. Its pods.
    pub(crate) async fn runs_elsewhere(&self, client: &Client, how: &str) -> Result<Vec<String>> {
        let namespace = self.namespace;
        let gang = gangs::of_job(JOB);
        let (_, eviction) = wait_for_eviction(client, namespace, &gang, Reason::NodeLost).await?;
        ensure!(eviction.attempt == 1, "{eviction:?}");
        gangs::ensure_says(&eviction.message, &["rank 1", &self.node, how])?;
        let gang = gangs::wait_until_running_again(client, namespace, &gang, 2).await?;
        let nodes = gangs::nodes(client, &gang).await?;
        ensure!(
            nodes.len() == 2 && !nodes.contains(&self.node),
            "it runs on {nodes:?}, and {} is dead",
            self.node
        );
        let age = gang.status.as_ref().and_then(|it| it.queued_at.clone());
        ensure!(age == self.queued_at, "it lost its age: {age:?}");
        pods_of_second_attempt(client, &gang).await
    }

    /// How many GPUs its Team uses, as its members are told.
    pub(crate) async fn used(&self, client: &Client) -> Result<u32> {
        let queues: Api<Queue> = Api::namespaced(client.clone(), self.namespace);
        let queue = queues.get(self.namespace).await?.status.unwrap_or_default();
        let used = queue.limits.iter().map(|it| it.used.0.parse::<u32>());
        Ok(used.sum::<Result<u32, _>>()?)
    }

    /// How many pods are left on the node, by name.
    pub(crate) async fn pods_on_node(&self, client: &Client) -> Result<Vec<String>> {
        let pods: Api<Pod> = Api::namespaced(client.clone(), self.namespace);
        let on_node = ListParams::default().fields(&format!("spec.nodeName={}", self.node));
        let left = pods.list(&on_node).await?.items;
        Ok(left.iter().map(ResourceExt::name_any).collect())
    }

    /// The same pods of the second attempt run to their end.
    pub(crate) async fn finishes(&self, client: &Client, pods: &[String]) -> Result<()> {
        let gang = gangs::of_job(JOB);
        let gang = gangs::wait_until_running_again(client, self.namespace, &gang, 2).await?;
        let now = pods_of_second_attempt(client, &gang).await?;
        ensure!(now == pods, "its pods are others: {pods:?}, then {now:?}");
        self.ranks.finish()?;
        gangs::wait_for_job(client, self.namespace, JOB).await?;
        self.ranks.ensure_all_met()
    }
}

async fn pods_of_second_attempt(client: &Client, gang: &Gang) -> Result<Vec<String>> {
    let attempt = gang.status.as_ref().map(|status| status.attempt);
    ensure!(attempt == Some(2), "it took more: {attempt:?}");
    let pods = gangs::pods(client, gang).await?.into_values();
    Ok(pods.filter_map(|pod| pod.uid()).collect())
}
