//! Somebody takes one pod of a gang: the eviction API, as a drain does.

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::{batch::v1::Job, core::v1::Pod};
use kube::{Api, ResourceExt, api::EvictParams};
use muster_api::{Reason, keys};
use muster_tests::{
    builders, cluster::Cluster, events, gangs, kubernetes, scenarios, suite::Scenario,
    workloads::Workload,
};

use super::wait_for_eviction;
use crate::stage::prepare_team;

/// Name of the Job.
const JOB: &str = "train";
/// Its namespace and its Team.
const NAMESPACE: &str = "taken";

pub(super) fn scenarios() -> Vec<Scenario> {
    scenarios![a_gang_of_which_a_pod_is_evicted_by_the_api_restarts_whole_and_that_is_no_failure]
}

/// It may not be started anew after a failure of its own at all.
async fn a_gang_of_which_a_pod_is_evicted_by_the_api_restarts_whole_and_that_is_no_failure(
    cluster: &mut Cluster,
) -> Result<()> {
    let client = cluster.client();
    prepare_team(&client, NAMESPACE, "fabric", 4).await?;
    let workload = Workload {
        namespace: NAMESPACE,
        name: JOB,
        ranks: 2,
        gpus: 2,
    };
    let (ranks, _) = workload.prepare(cluster).await?;
    let ranks = ranks.hanging_when_lost();
    let spec = workload.pod_spec(&client, &ranks).await?;
    let mut job = builders::indexed_job(JOB, 2, &[(keys::MAX_RESTARTS, "0")], &spec)?;
    job.spec.as_mut().context("a spec")?.backoff_limit = Some(1);
    let jobs: Api<Job> = Api::namespaced(client.clone(), NAMESPACE);
    kubernetes::create(&jobs, &job).await?;
    let name = gangs::of_job(JOB);
    let gang = gangs::wait_until_running(&client, NAMESPACE, &name).await?;
    let members = gangs::pods(&client, &gang).await?;
    let first = members.get(&1).context("rank 1")?.name_any();

    let pods: Api<Pod> = Api::namespaced(client.clone(), NAMESPACE);
    pods.evict(&first, &EvictParams::default()).await?;
    let (_, eviction) = wait_for_eviction(&client, NAMESPACE, &name, Reason::PodDisrupted).await?;
    ensure!(eviction.attempt == 1, "{eviction:?}");
    gangs::ensure_says(&eviction.message, &["rank 1", &first, "eviction API"])?;
    events::wait_for_reason(&client, NAMESPACE, "Gang", &name, Reason::PodDisrupted).await?;

    let again = gangs::wait_until_running_again(&client, NAMESPACE, &name, 2).await?;
    let status = again.status.clone().unwrap_or_default();
    ensure!(
        status.attempt == 2 && status.failed_attempts == 0,
        "once, and it is no failure: {status:?}"
    );
    let uids = |pod: &Pod| pod.metadata.uid.clone();
    let before: Vec<_> = members.values().map(uids).collect();
    let anew = gangs::pods(&client, &again).await?;
    ensure!(
        anew.len() == 2 && anew.values().map(uids).all(|uid| !before.contains(&uid)),
        "all of its pods are new: {before:?}, {:?}",
        anew.keys()
    );
    ranks.finish()?;
    gangs::wait_for_job(&client, NAMESPACE, JOB).await?;
    ranks.ensure_all_met()
}
