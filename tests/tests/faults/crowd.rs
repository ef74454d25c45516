//! Gangs of many pods, and gangs that others wait behind.

use std::{env, time::Duration};

use anyhow::{Result, ensure};
use muster_api::{GangPhase, keys::TAINT_FAULT};
use muster_tests::{
    cluster::Cluster,
    faults::{Fault, wait_for_fault_eviction},
    gangs,
    kubernetes::LIMIT,
    scenarios,
    suite::Scenario,
    workloads::Workload,
};

use crate::{
    ALL,
    stage::{Running, charged, mended, prepare_team, submit},
};

/// Pods of the large gang, each with a GPU, where there are nodes enough.
const MANY: u32 = 64;
/// The same in the sample.
const SOME: u32 = 12;
/// Longest time until so many pods have ended and started.
const LIMIT_OF_MANY: Duration = Duration::from_mins(4);

pub(crate) fn scenarios() -> Vec<Scenario> {
    let scenarios = scenarios![
        a_gang_of_many_pods_restarts_whole,
        an_evicted_gang_keeps_its_quota_before_those_that_wait_behind_it,
    ];
    let scenarios = scenarios.into_iter().map(Scenario::with_fault_evictions);
    scenarios
        .map(|one| one.with_more_time(2 * LIMIT_OF_MANY))
        .collect()
}

/// All pods are new, and the Team is charged what it was charged.
async fn a_gang_of_many_pods_restarts_whole(cluster: &mut Cluster) -> Result<()> {
    let client = cluster.client();
    let is_all = env::var_os(ALL).is_some();
    let ranks = if is_all { MANY } else { SOME };
    prepare_team(&client, "many", ranks).await?;
    let workload = Workload {
        namespace: "many",
        name: "train",
        ranks,
        gpus: 1,
    };
    let running = Running::start_hanging(cluster, workload).await?;
    let gpu = running.gpu_of(cluster, ranks / 2).await?;
    let before = charged(&client, "many").await?;
    gpu.inject(Fault::Xid(48))?;
    let judged = async {
        gpu.wait_until_tainted(&client, TAINT_FAULT, "Reset")
            .await?;
        running
            .restarts_once(cluster, &gpu, LIMIT_OF_MANY, &[&gpu])
            .await?;
        let after = charged(&client, "many").await?;
        ensure!(
            before == i64::from(ranks) * 1000 && after == before,
            "its Team was charged {before} thousandths of a GPU, and is {after}"
        );
        anyhow::Ok(())
    }
    .await;
    mended(cluster, &gpu, judged).await?;
    running.finishes(&client).await
}

/// The gang uses all that its Team has. One that would fit in its place waits behind it, and is not let in while the pods of the first are made anew.
async fn an_evicted_gang_keeps_its_quota_before_those_that_wait_behind_it(
    cluster: &mut Cluster,
) -> Result<()> {
    let client = cluster.client();
    prepare_team(&client, "keeps", 4).await?;
    let of = |name| Workload {
        namespace: "keeps",
        name,
        ranks: 2,
        gpus: 2,
    };
    let first = Running::start_hanging(cluster, of("first")).await?;
    let small = Workload {
        gpus: 1,
        ranks: 1,
        ..of("second")
    };
    let second = submit(cluster, small, |ranks| ranks, |spec| spec).await?;
    let waiting = gangs::of_job("second");
    gangs::wait_for_phase(&client, "keeps", &waiting, &[GangPhase::Pending]).await?;
    let gpu = first.gpu_of(cluster, 0).await?;
    gpu.inject(Fault::Xid(48))?;
    let first_gang = first.gang();
    let judged = async {
        let evicted = wait_for_fault_eviction(&client, "keeps", &first_gang, &gpu);
        let status = evicted.await?.0.status.unwrap_or_default();
        let recovers_from = status.recovery.as_ref().map(|recovery| recovery.attempt);
        ensure!(
            recovers_from == Some(1) || status.admission.is_some(),
            "it does not say that what it held is kept: {status:?}"
        );
        first.runs_again(cluster, 2, 2 * LIMIT, &[&gpu]).await?;
        let gang = gangs::find(&client, "keeps", &waiting).await?;
        let status = gang.and_then(|gang| gang.status).unwrap_or_default();
        ensure!(
            status.phase == GangPhase::Pending && status.admission.is_none(),
            "the one behind it went before it: {status:?}"
        );
        gangs::ensure_none_bound(&client, "keeps", "second").await
    }
    .await;
    mended(cluster, &gpu, judged).await?;
    first.finishes(&client).await?;
    gangs::wait_until_running(&client, "keeps", &waiting).await?;
    second.finish()?;
    gangs::wait_for_job(&client, "keeps", "second").await
}
