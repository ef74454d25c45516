//! What is published, and what a pod that asks for it gets.

use anyhow::{Context, Result, ensure};
use muster_tests::{cluster::Cluster, scenarios, suite::Scenario};

use crate::stage::{NODE, start, wait_for_devices, wait_for_phase, wait_until_nothing_is_prepared};

pub(crate) fn scenarios() -> Vec<Scenario> {
    let published = scenarios![every_gpu_is_published_under_its_name];
    let mut all: Vec<Scenario> = published.into_iter().map(Scenario::without_gangs).collect();
    all.extend(scenarios![
        a_pod_with_a_claim_gets_the_gpu_that_was_allocated
    ]);
    all
}

async fn every_gpu_is_published_under_its_name(cluster: &mut Cluster) -> Result<()> {
    wait_for_devices(&cluster.client(), &["gpu-0", "gpu-1"]).await?;
    start(cluster, "published", 0).await.map(drop)
}

async fn a_pod_with_a_claim_gets_the_gpu_that_was_allocated(cluster: &mut Cluster) -> Result<()> {
    let (pods, ranks) = start(cluster, "plain", 2).await?;
    wait_for_phase(&pods, "plain", "Running").await?;
    ranks.finish()?;
    wait_for_phase(&pods, "plain", "Succeeded").await?;
    let mut given = ranks.gpus()?.remove(&0).context("rank 0 reported")?;
    let mut all = cluster.node(NODE)?.gpu_uuids();
    given.sort();
    all.sort();
    ensure!(
        given == all,
        "the pod was given {given:?}, the node has {all:?}"
    );
    wait_until_nothing_is_prepared(cluster).await
}
