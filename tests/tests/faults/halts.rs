//! What keeps faults from ending anything: recovery that only observes, as it does where nobody says otherwise, and the circuit breaker.

use std::{collections::BTreeSet, time::Duration};

use anyhow::{Context, Result, ensure};
use futures::future::try_join_all;
use muster_api::keys::TAINT_FAULT;
use muster_tests::{
    builders::{self, RankProgram},
    cluster::Cluster,
    faults::{Fault, TargetGpu, reset_breaker, wait_for_breaker, wait_for_fault_eviction},
    kubernetes::{LIMIT, Progress, always, eventually},
    scenarios,
    suite::Scenario,
    workloads::Workload,
};

use crate::stage::{
    Running, ensure_tainted, evicted_for_faults, mended, prepare_team, restart_controller,
    wait_until_told,
};

/// Value of the chart by which no number of nodes is too many.
pub(crate) const CLOSED_BREAKER: &str = "recovery.breaker.sharePercent=100";
/// The argument that the chart makes of it, and the one by which two nodes are as many as there may be.
pub(crate) const SHARE: (&str, &str) = ("--breaker-share-percent=100", "--breaker-share-percent=0");
/// The argument of these tests, and what ships.
const MODE: (&str, &str) = ("--recovery-mode=enforce", "--recovery-mode=observe");
/// Nodes for which gangs are evicted at most where the share is nothing.
const LEAST: usize = 2;
/// Nodes on which a false alarm breaks out.
const ALARMED: usize = 4;
/// How long it is looked whether the open breaker lets anything pass.
const HELD: Duration = Duration::from_secs(3);
/// Longest time for what these do beside the rest.
const MORE_TIME: Duration = Duration::from_mins(4);

pub(crate) fn scenarios() -> Vec<Scenario> {
    let scenarios = scenarios![
        who_only_observes_tells_and_ends_nothing_until_it_is_told_to_act,
        a_false_alarm_on_many_nodes_opens_the_breaker_until_a_person_closes_it,
    ];
    let scenarios = scenarios.into_iter().map(Scenario::with_fault_evictions);
    scenarios.map(|one| one.with_more_time(MORE_TIME)).collect()
}

async fn who_only_observes_tells_and_ends_nothing_until_it_is_told_to_act(
    cluster: &mut Cluster,
) -> Result<()> {
    let client = cluster.client();
    restart_controller(cluster, &[MODE]).await?;
    let observed = observes(cluster).await;
    restart_controller(cluster, &[]).await?;
    let (running, gpu) = observed?;
    let judged = running
        .restarts_once(cluster, &gpu, 2 * LIMIT, &[&gpu])
        .await;
    mended(cluster, &gpu, judged).await?;
    running.finishes(&client).await
}

/// The GPU of a gang breaks: it is told, and nothing else.
async fn observes(cluster: &Cluster) -> Result<(Running<'static>, TargetGpu)> {
    let client = cluster.client();
    prepare_team(&client, "observes", 8).await?;
    let workload = Workload {
        namespace: "observes",
        name: "train",
        ranks: 2,
        gpus: 2,
    };
    let running = Running::start_hanging(cluster, workload).await?;
    let gpu = running.gpu_of(cluster, 1).await?;
    gpu.inject(Fault::Xid(48))?;
    gpu.wait_until_tainted(&client, TAINT_FAULT, "Reset")
        .await?;
    wait_until_told(&client, &running, "only observes").await?;
    running.stays(&client).await?;
    Ok((running, gpu))
}

async fn a_false_alarm_on_many_nodes_opens_the_breaker_until_a_person_closes_it(
    cluster: &mut Cluster,
) -> Result<()> {
    restart_controller(cluster, &[SHARE]).await?;
    let judged = is_opened_and_closed(cluster).await;
    // Whatever was found, it is closed for those that come after it.
    let reset = reset_breaker(cluster).await;
    restart_controller(cluster, &[]).await?;
    judged?;
    reset.map(drop)
}

async fn is_opened_and_closed(cluster: &Cluster) -> Result<()> {
    let client = cluster.client();
    prepare_team(&client, "alarm", 8).await?;
    let names: Vec<String> = (0..ALARMED)
        .map(|number| format!("train-{number}"))
        .collect();
    let gangs = names.iter().zip(&cluster.nodes).map(async |(name, node)| {
        let workload = Workload {
            namespace: "alarm",
            name,
            ranks: 1,
            gpus: 1,
        };
        let running =
            Running::start_where(cluster, workload, RankProgram::hanging_when_lost, |spec| {
                builders::on_node(spec, node.name())
            });
        let running = running.await?;
        let gpu = running.gpu_of(cluster, 0).await?;
        anyhow::Ok((running, gpu))
    });
    let gangs = try_join_all(gangs).await?;
    for (_, gpu) in &gangs {
        gpu.inject(Fault::Xid(48))?;
    }
    let judged = is_held_up(cluster, &gangs).await;
    let cleared = try_join_all(gangs.iter().map(|(_, gpu)| gpu.clear(cluster))).await;
    judged?;
    cleared?;
    for (running, _) in &gangs {
        running.finishes(&client).await?;
    }
    Ok(())
}

/// The breaker opens, and whoever is not evicted by then goes on; mended are all of these but one, and that one is evicted once the breaker is
/// closed.
async fn is_held_up(cluster: &Cluster, gangs: &[(Running<'_>, TargetGpu)]) -> Result<()> {
    let client = cluster.client();
    let breaker = wait_for_breaker(&client, true).await?;
    let says = breaker.message.unwrap_or_default();
    ensure!(says.contains("nodes"), "it says {says:?}");
    let evicted = settled(&client).await?;
    ensure!(
        evicted.len() <= LEAST,
        "gangs on {} nodes were evicted: {evicted:?}",
        evicted.len()
    );
    // It stops evictions, and no taint.
    for (_, gpu) in gangs {
        gpu.wait_until_tainted(&client, TAINT_FAULT, "Reset")
            .await?;
    }
    let is_spared = |running: &Running<'_>| {
        let beginning = running.gang();
        !evicted.iter().any(|name| name.starts_with(&beginning))
    };
    let spared = gangs.iter().filter(|(running, _)| is_spared(running));
    let spared: Vec<_> = spared.collect();
    let (last, others) = spared.split_last().context("one that goes on")?;
    always("nobody else is evicted", HELD, async || {
        let now = evicted_for_faults(&client, "alarm").await?;
        Ok(Progress::when(now == evicted, || {
            format!("{evicted:?}, then {now:?}")
        }))
    })
    .await?;
    try_join_all(others.iter().map(|(_, gpu)| gpu.clear(cluster))).await?;
    for (running, _) in &spared {
        running.stays(&client).await?;
    }
    let (running, gpu) = last;
    ensure_tainted(&client, gpu).await?;
    let said = reset_breaker(cluster).await?;
    ensure!(
        said.contains("is closed") && said.contains("It was open"),
        "{said}"
    );
    wait_for_breaker(&client, false).await?;
    wait_for_fault_eviction(&client, "alarm", &running.gang(), gpu).await?;
    running.runs_again(cluster, 2, 2 * LIMIT, &[gpu]).await?;
    for (running, _) in others {
        running.stays(&client).await?;
    }
    Ok(())
}

/// Who was evicted when the breaker opened: what was committed before is carried out.
async fn settled(client: &kube::Client) -> Result<BTreeSet<String>> {
    let mut before = evicted_for_faults(client, "alarm").await?;
    let mut same = 0;
    eventually("what was committed is carried out", LIMIT, async || {
        let now = evicted_for_faults(client, "alarm").await?;
        same = if now == before { same + 1 } else { 0 };
        before.clone_from(&now);
        Ok(if same >= 10 {
            Progress::Done(now)
        } else {
            Progress::NotYet(format!("{now:?}"))
        })
    })
    .await
}
