//! An administrator ends what a Team runs, and lets it go on.

use anyhow::{Context, Result, ensure};
use kube::{Api, Client, api::ListParams};
use muster_api::{GangPhase, NodeDevices, Queue, Reason, TeamSpec, conditions, team::Stop};
use muster_tests::{
    builders::{self, gpu_quota},
    cluster::Cluster,
    events, gangs,
    kubernetes::{LIMIT, Progress, eventually},
    scenarios,
    suite::Scenario,
    workloads::Workload,
};

use super::{ensure_job_goes_on, wait_for_eviction};
use crate::stage::prepare_team;

pub(super) fn scenarios() -> Vec<Scenario> {
    scenarios![a_team_that_is_drained_gives_everything_back_and_its_jobs_run_again_once_it_may]
}

/// Names of the Jobs.
const JOBS: [&str; 2] = ["small", "large"];

/// Pods that nobody makes again are gone, and their gang says why.
async fn a_team_that_is_drained_gives_everything_back_and_its_jobs_run_again_once_it_may(
    cluster: &mut Cluster,
) -> Result<()> {
    let client = cluster.client();
    prepare_team(&client, "drained", "fabric", 16).await?;
    let mut programs = Vec::new();
    for (name, gpus) in JOBS.into_iter().zip([2, 4]) {
        let workload = Workload {
            namespace: "drained",
            name,
            ranks: 2,
            gpus,
        };
        programs.push(workload.submit_job(cluster, &[]).await?);
    }
    let alone = Workload {
        namespace: "drained",
        name: "alone",
        ranks: 2,
        gpus: 1,
    };
    let (_, spec) = alone.prepare(cluster).await?;
    alone.create_labelled_pods(&client, &spec).await?;
    for gang in JOBS.map(gangs::of_job).iter().chain([&alone.gang()]) {
        gangs::wait_until_running(&client, "drained", gang).await?;
    }
    ensure!(gangs::charged(&client).await?.get("drained") == Some(&14_000));

    stop(&client, Stop::HoldAndDrain).await?;
    for job in JOBS {
        let gang = gangs::of_job(job);
        let (_, eviction) =
            wait_for_eviction(&client, "drained", &gang, Reason::TeamStopped).await?;
        gangs::ensure_says(&eviction.message, &["drained", "HoldAndDrain"])?;
        events::wait_for_reason(&client, "drained", "Job", job, Reason::TeamStopped).await?;
        gangs::wait_for_reason(&client, "drained", &gang, Reason::TeamStopped).await?;
    }
    let ended =
        gangs::wait_for_phase(&client, "drained", &alone.gang(), &[GangPhase::Failed]).await?;
    let conditions = ended.status.unwrap_or_default().conditions;
    let mut conditions = conditions.iter();
    let finished = conditions.find(|it| it.type_ == conditions::FINISHED);
    let why = &finished.context("a condition says why")?.message;
    gangs::ensure_says(why, &["TeamStopped"])?;
    wait_until_nothing_is_held(&client).await?;
    for job in JOBS {
        gangs::ensure_none_bound(&client, "drained", job).await?;
        ensure_job_goes_on(&client, "drained", job, 0, 0).await?;
    }

    stop(&client, Stop::None).await?;
    for (job, ranks) in JOBS.into_iter().zip(&programs) {
        gangs::wait_until_running_again(&client, "drained", &gangs::of_job(job), 2).await?;
        ranks.finish()?;
        gangs::wait_for_job(&client, "drained", job).await?;
        ranks.ensure_all_met()?;
    }
    Ok(())
}

async fn stop(client: &Client, stop: Stop) -> Result<()> {
    let spec = TeamSpec {
        quota: vec![gpu_quota("fabric", 16, None)],
        stop,
        ..TeamSpec::default()
    };
    builders::team_of(client, "drained", spec).await
}

/// No node has a permit, and the Team uses nothing.
async fn wait_until_nothing_is_held(client: &Client) -> Result<()> {
    let nodes: Api<NodeDevices> = Api::all(client.clone());
    let queues: Api<Queue> = Api::namespaced(client.clone(), "drained");
    eventually("nothing of it is held", LIMIT, async || {
        let nodes = nodes.list(&ListParams::default()).await?;
        let permits: usize = nodes.iter().map(|node| node.spec.permits.len()).sum();
        let queue = queues.get("drained").await?.status.unwrap_or_default();
        let is_free = queue.limits.iter().all(|limit| limit.used.0 == "0");
        let is_told = !queue.limits.is_empty() && queue.pending_gangs == 2;
        Ok(Progress::when(permits == 0 && is_free && is_told, || {
            format!("{permits} permits, {queue:?}")
        }))
    })
    .await
}
