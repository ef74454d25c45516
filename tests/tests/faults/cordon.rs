//! A node is drained by hand. With `onCordon: Move` its gang is moved whole, and whoever asks the eviction API waits for that.

use std::collections::BTreeSet;

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::Node;
use kube::Api;
use muster_api::Reason;
use muster_tests::{
    cluster::Cluster, evictions::wait_for_eviction, gangs, kubernetes::LIMIT, scenarios,
    suite::Scenario, workloads::Workload,
};

use crate::{
    budgets::Evictor,
    stage::{Running, prepare_team, restart_controller},
};

/// The argument that ships, and the one by which drains move gangs.
pub(crate) const ON_CORDON: (&str, &str) = ("--on-cordon=nothing", "--on-cordon=move");
/// Its namespace, and its Team.
const NAMESPACE: &str = "cordoned";

pub(crate) fn scenarios() -> Vec<Scenario> {
    scenarios![a_drain_waits_until_the_gang_of_its_node_has_been_moved_whole]
}

async fn a_drain_waits_until_the_gang_of_its_node_has_been_moved_whole(
    cluster: &mut Cluster,
) -> Result<()> {
    restart_controller(cluster, &[ON_CORDON]).await?;
    let moved = is_moved(cluster).await;
    restart_controller(cluster, &[]).await?;
    moved
}

async fn is_moved(cluster: &Cluster) -> Result<()> {
    let client = cluster.client();
    prepare_team(&client, NAMESPACE, 8).await?;
    let workload = Workload {
        namespace: NAMESPACE,
        name: "train",
        ranks: 2,
        gpus: 2,
    };
    let running = Running::start_hanging(cluster, workload).await?;
    let gang = running.now(&client).await?;
    let evictor = Evictor::of(cluster).await?;
    evictor.is_held_off(&gang).await?;
    let nodes = gangs::nodes(&client, &gang).await?;
    let node = nodes.first().context("a node")?.clone();
    let all: Api<Node> = Api::all(client.clone());
    all.cordon(&node).await?;
    let moved = async {
        let reason = Reason::Drained;
        let (_, eviction) = wait_for_eviction(&client, NAMESPACE, &running.gang(), reason).await?;
        gangs::ensure_says(&eviction.message, &[&node, "cordoned"])?;
        running.runs_again(cluster, 2, 2 * LIMIT, &[]).await?;
        let gang = running.now(&client).await?;
        let nodes: BTreeSet<String> = gangs::nodes(&client, &gang).await?.into_iter().collect();
        ensure!(!nodes.contains(&node), "{node} is cordoned: {nodes:?}");
        evictor.is_held_off(&gang).await
    }
    .await;
    all.uncordon(&node).await?;
    moved?;
    running.finishes(&client).await
}
