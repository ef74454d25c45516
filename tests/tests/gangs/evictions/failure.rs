//! A rank fails while the others hang.

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::batch::v1::Job;
use kube::{Api, ResourceExt};
use muster_api::Reason;
use muster_tests::{
    builders,
    cluster::Cluster,
    events, gangs,
    kubernetes::{self, LIMIT, Progress, always, eventually},
    scenarios,
    suite::Scenario,
    workloads::Workload,
};
use serde_json::json;
use std::time::Duration;

use super::{ensure_job_goes_on, set_limits, suspension, wait_for_eviction};
use crate::stage::{FABRIC_NODES, prepare_team};

pub(super) fn scenarios() -> Vec<Scenario> {
    scenarios![
        a_rank_that_fails_while_the_others_hang_costs_the_attempt_and_the_job_runs_again_unharmed
    ]
}

/// The Job may have one failure: that of the rank. Would the end of the others count, it were Failed.
async fn a_rank_that_fails_while_the_others_hang_costs_the_attempt_and_the_job_runs_again_unharmed(
    cluster: &mut Cluster,
) -> Result<()> {
    let client = cluster.client();
    prepare_team(&client, "fails", "fabric", 8).await?;
    let workload = Workload {
        namespace: "fails",
        name: "train",
        ranks: 4,
        gpus: 2,
    };
    let (ranks, _) = workload.prepare(cluster).await?;
    let ranks = ranks.hanging_when_lost();
    let spec = workload.pod_spec(&client, &ranks).await?;
    let mut job = builders::indexed_job("train", 4, &[], &spec)?;
    job.spec.as_mut().context("a spec")?.backoff_limit = Some(1);
    let jobs: Api<Job> = Api::namespaced(client.clone(), "fails");
    let job_uid = kubernetes::create(&jobs, &job).await?.metadata.uid;
    let job_uid = job_uid.context("a UID")?;
    let train = gangs::of_job("train");
    let grace = json!({"restart": {"failureGraceSeconds": 2}});
    set_limits(cluster, "fails", &train, &grace).await?;
    gangs::wait_until_running(&client, "fails", &train).await?;

    // As long as a container does not stop, its pod stays, and the Job has to stay suspended.
    let hang = json!({"hangStop": [{"pod": "train-"}]});
    set_faults(cluster, &hang)?;
    ranks.fail(2)?;
    let suspended = wait_for_eviction(&client, "fails", &train, Reason::PodFailed).await;
    let suspended = match suspended {
        Ok((gang, eviction)) => {
            ensure!(eviction.attempt == 1, "{eviction:?}");
            gangs::ensure_says(&eviction.message, &["rank 2"])?;
            let eviction = format!("{}/1/{job_uid}", gang.name_any());
            stays_suspended_for(&jobs, &eviction).await
        }
        Err(error) => Err(error),
    };
    set_faults(cluster, &json!({}))?;
    suspended?;
    for (kind, beginning) in [("Gang", train.as_str()), ("Job", "train")] {
        events::wait_for_reason(&client, "fails", kind, beginning, Reason::PodFailed).await?;
    }

    let gang = gangs::wait_until_running_again(&client, "fails", &train, 2).await?;
    let attempt = gang.status.map(|status| status.attempt);
    ensure!(attempt == Some(2), "it took more: {attempt:?}");
    ensure_job_goes_on(&client, "fails", "train", 1, 1).await?;
    ranks.finish()?;
    gangs::wait_for_job(&client, "fails", "train").await?;
    ranks.ensure_all_met()
}

/// Muster suspends the Job for this eviction, and it stays suspended while a pod of the attempt is there.
async fn stays_suspended_for(jobs: &Api<Job>, eviction: &str) -> Result<()> {
    eventually("the Job is suspended", LIMIT, async || {
        let job = jobs.get("train").await?;
        let is = suspension(&job) == (true, Some(eviction));
        Ok(Progress::when(is, || format!("{:?}", suspension(&job))))
    })
    .await?;
    always("it stays suspended", Duration::from_secs(2), async || {
        let job = jobs.get("train").await?;
        let is = suspension(&job) == (true, Some(eviction));
        Ok(Progress::when(is, || format!("{:?}", suspension(&job))))
    })
    .await
}

fn set_faults(cluster: &mut Cluster, faults: &serde_json::Value) -> Result<()> {
    for node in FABRIC_NODES {
        cluster.node(node)?.set_runtime_faults(faults)?;
    }
    Ok(())
}
