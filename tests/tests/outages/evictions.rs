//! A leader dies in the middle of an eviction: the next one completes it, wherever it stopped.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::batch::v1::Job;
use kube::{Api, Client, ResourceExt, api::ListParams};
use muster_api::{Ledger, NodeDevices, Reason, TeamSpec, keys, team::Stop};
use muster_tests::{
    builders::{self, RankProgram, gpu_quota},
    cluster::Cluster,
    gangs,
    kubernetes::{LIMIT, Progress, eventually},
    scenarios,
    suite::Scenario,
    workloads::Workload,
};

use crate::leaders::{controller, wait_until_leading};

/// Where the leader dies, in the order in which an eviction passes it.
const FAILPOINTS: [&str; 4] = [
    "after-evict-commit",
    "after-gang-evicted",
    "after-job-suspended",
    "before-job-resumed",
];
/// A lease runs out, another controller reads everything, and the gang starts anew.
const LIMIT_OF_ONE: Duration = Duration::from_mins(1);

pub(crate) fn scenarios() -> Vec<Scenario> {
    let scenarios =
        scenarios![an_eviction_in_whose_middle_the_leader_dies_is_completed_by_the_next_one];
    let of_all = LIMIT_OF_ONE * 3;
    let long = scenarios.into_iter().map(|one| one.with_more_time(of_all));
    long.collect()
}

async fn an_eviction_in_whose_middle_the_leader_dies_is_completed_by_the_next_one(
    cluster: &mut Cluster,
) -> Result<()> {
    let client = cluster.client();
    builders::team_of_sixteen(&client, "midway").await?;
    for failpoint in FAILPOINTS {
        evict_and_die(cluster, failpoint)
            .await
            .with_context(|| format!("the leader died {failpoint}"))?;
    }
    Ok(())
}

/// The armed controller leads when the eviction begins; the other one is there already.
async fn evict_and_die(cluster: &mut Cluster, failpoint: &str) -> Result<()> {
    let client = cluster.client();
    let muster = cluster.installation()?;
    muster.arm_controller(failpoint).await?;
    wait_until_leading(cluster, &[0]).await?;
    cluster.service(controller(1))?.start().await?;
    let workload = Workload {
        namespace: "midway",
        name: failpoint,
        ranks: 2,
        gpus: 4,
    };
    let ranks = workload.submit_job(cluster, &[]).await?;
    let gang = gangs::of_job(failpoint);
    gangs::wait_until_running(&client, "midway", &gang).await?;

    stop(&client, Stop::HoldAndDrain).await?;
    let muster = cluster.installation()?;
    muster.wait_until_controller_died().await?;
    let completed = is_completed(&client, failpoint).await;
    cluster.service(controller(0))?.start().await?;
    completed?;
    stop(&client, Stop::None).await?;
    runs_again(&client, failpoint, &ranks).await
}

/// The attempt was evicted once, its Job goes on, no node has a permit, and the Ledger names nothing.
async fn is_completed(client: &Client, job: &str) -> Result<()> {
    let gang = gangs::of_job(job);
    gangs::wait_for_reason(client, "midway", &gang, Reason::TeamStopped).await?;
    let evicted = gangs::find(client, "midway", &gang).await?;
    let status = evicted.and_then(|gang| gang.status).context("a status")?;
    let causes: Vec<Reason> = status.evictions.iter().map(|it| it.reason).collect();
    ensure!(
        status.attempt == 2 && causes == [Reason::TeamStopped],
        "attempt {}, evicted for {causes:?}",
        status.attempt
    );
    let jobs: Api<Job> = Api::namespaced(client.clone(), "midway");
    let nodes: Api<NodeDevices> = Api::all(client.clone());
    let ledgers: Api<Ledger> = Api::all(client.clone());
    eventually("the eviction is completed", LIMIT, async || {
        let job = jobs.get(job).await?;
        let is_marked = job.annotations().contains_key(keys::SUSPENDED_FOR);
        let is_suspended = job.spec.and_then(|spec| spec.suspend) == Some(true);
        let nodes = nodes.list(&ListParams::default()).await?;
        let permits: usize = nodes.iter().map(|node| node.spec.permits.len()).sum();
        let intents = ledgers.get(keys::LEDGER_NAME).await?.spec.intents.len();
        let is_completed = !is_marked && !is_suspended && permits == 0 && intents == 0;
        Ok(Progress::when(is_completed, || {
            format!(
                "suspended: {is_suspended}, marked: {is_marked}, {permits} permits, {intents} intents"
            )
        }))
    })
    .await
}

async fn runs_again(client: &Client, job: &str, ranks: &RankProgram) -> Result<()> {
    let gang = gangs::of_job(job);
    gangs::wait_until_running_again(client, "midway", &gang, 2).await?;
    ranks.finish()?;
    gangs::wait_for_job(client, "midway", job).await?;
    ranks.ensure_all_met()
}

async fn stop(client: &Client, stop: Stop) -> Result<()> {
    let spec = TeamSpec {
        quota: vec![gpu_quota("h100", 16, None)],
        stop,
        ..TeamSpec::default()
    };
    builders::team_of(client, "midway", spec).await
}
