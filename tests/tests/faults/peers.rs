//! A machine dies, and the ranks elsewhere fail of it: nobody waits until the node is given up.
//!
//! A node of which nothing is heard costs its gangs their attempts after minutes: it may be back, and what runs there may go on. Where ranks on other
//! nodes fail meanwhile there is nothing left to wait for, and the grace for failures decides. The gang starts again as soon as the node counts as
//! lost, for only then nobody waits for the pod there. Nodes of which nobody fails are the suite `node_loss`.

use std::time::{Duration, Instant};

use anyhow::{Result, bail, ensure};
use k8s_openapi::api::core::v1::Pod;
use kube::{Api, Client, api::ListParams};
use muster_api::{NodeDevices, Reason};
use muster_tests::{
    cluster::Cluster,
    evictions::wait_for_eviction,
    gangs,
    kubernetes::{Progress, eventually},
    node::NodePart,
    node_state::is_well,
    scenarios,
    suite::Scenario,
    workloads::Workload,
};

use crate::stage::{Running, prepare_team, restart_controller};

/// Its namespace, and its Team.
const NAMESPACE: &str = "peers";
/// GPUs of a node, and of each rank.
const GPUS: u32 = 8;
/// The argument that ships, and that of this test: for how long a rank may have failed.
const GRACE: (&str, &str) = ("--failure-grace-seconds=60", "--failure-grace-seconds=5");
/// Shortest time until then: the controller counts whole seconds, of which the first may have begun.
const NOT_BEFORE: Duration = Duration::from_secs(4);
/// Longest time from the end of the machine to the eviction: before the node counts as lost, which is when it has not been Ready for a minute.
const SOON: Duration = Duration::from_secs(50);
/// A gang that only waits for its node is evicted after so long (`--node-evict-after-seconds`).
const NODE_LOSS: Duration = Duration::from_secs(240);
/// Kubelets give back what pods held that are gone once a minute.
const SLOW_LIMIT: Duration = Duration::from_secs(150);
/// Longest time for what this does beside the rest: the node is lost after a minute, and is back after two.
const MORE_TIME: Duration = Duration::from_mins(4);

pub(crate) fn scenarios() -> Vec<Scenario> {
    let scenarios =
        scenarios![a_gang_whose_ranks_fail_of_a_machine_that_died_does_not_wait_until_it_is_lost];
    let scenarios = scenarios.into_iter();
    scenarios.map(|one| one.with_more_time(MORE_TIME)).collect()
}

async fn a_gang_whose_ranks_fail_of_a_machine_that_died_does_not_wait_until_it_is_lost(
    cluster: &mut Cluster,
) -> Result<()> {
    restart_controller(cluster, &[GRACE]).await?;
    let judged = does_not_wait(cluster).await;
    restart_controller(cluster, &[]).await?;
    judged
}

async fn does_not_wait(cluster: &mut Cluster) -> Result<()> {
    let client = cluster.client();
    prepare_team(&client, NAMESPACE, 4 * GPUS).await?;
    let workload = Workload {
        namespace: NAMESPACE,
        name: "train",
        ranks: 2,
        gpus: GPUS,
    };
    // Ranks that have lost a peer fail.
    let running = Running::start(cluster, workload, |program| program).await?;
    let gang = running.now(&client).await?;
    let nodes = gangs::nodes(&client, &gang).await?;
    let [_, dead] = nodes.as_slice() else {
        bail!("two ranks with a node each: {nodes:?}");
    };

    // What the machine has on its disk is given back only when it is back.
    suspend_bounds(cluster, true);
    let died_at = Instant::now();
    let node = cluster.node(dead)?;
    node.service(NodePart::Kubelet)?.kill();
    node.service(NodePart::Driver)?.kill();
    // What ran there is dead, and nobody tells of it but the rank that has lost it.
    running.ranks.fail(1)?;
    let judged = is_restarted(cluster, &running, dead, died_at).await;
    let node = cluster.node(dead)?;
    node.start_kubelet()?;
    node.start_driver()?;
    let back = is_back(cluster, dead).await;
    suspend_bounds(cluster, false);
    judged?;
    back?;
    running.finishes(&client).await
}

async fn is_restarted(
    cluster: &Cluster,
    running: &Running<'_>,
    dead: &str,
    died_at: Instant,
) -> Result<()> {
    let client = cluster.client();
    let reason = Reason::PodFailed;
    let (_, eviction) = wait_for_eviction(&client, NAMESPACE, &running.gang(), reason).await?;
    let took = died_at.elapsed();
    ensure!(
        eviction.attempt == 1 && took >= NOT_BEFORE && took <= SOON,
        "after {:.1} s: {eviction:?}",
        took.as_secs_f64()
    );
    gangs::ensure_says(&eviction.message, &["rank 0"])?;
    let limit = NODE_LOSS.saturating_sub(died_at.elapsed());
    running.runs_again(cluster, 2, limit, &[]).await?;
    let gang = running.now(&client).await?;
    let nodes = gangs::nodes(&client, &gang).await?;
    let is_elsewhere = nodes.iter().all(|node| node != dead);
    ensure!(is_elsewhere, "{dead} is dead: {nodes:?}");
    let evictions = gang.status.unwrap_or_default().evictions;
    ensure!(
        evictions.len() == 1,
        "it was to be evicted once: {evictions:?}"
    );
    Ok(())
}

/// The machine is back, and nothing is left there of the first attempt.
async fn is_back(cluster: &mut Cluster, name: &str) -> Result<()> {
    let client = cluster.client();
    let devices: Api<NodeDevices> = Api::all(client.clone());
    let records = cluster.node(name)?.driver_records();
    let what = format!("node {name} is back, and holds nothing");
    eventually(&what, SLOW_LIMIT, async || {
        let object = devices.get(name).await?;
        let pods = pods_on(&client, name).await?;
        let left = std::fs::read_dir(&records)?.count();
        let is_well = is_well(&object) && pods == 0 && left == 0;
        Ok(Progress::when(is_well, || {
            format!(
                "{pods} pods, {left} records, {:?}, {:?}",
                object.spec, object.status
            )
        }))
    })
    .await
}

/// How many pods of the gang are left on a node.
async fn pods_on(client: &Client, node: &str) -> Result<usize> {
    let pods: Api<Pod> = Api::namespaced(client.clone(), NAMESPACE);
    let on_node = ListParams::default().fields(&format!("spec.nodeName={node}"));
    Ok(pods.list(&on_node).await?.items.len())
}

/// Whether what the observer gives time for may last.
fn suspend_bounds(cluster: &Cluster, suspended: bool) {
    if let Some(observer) = cluster.observer() {
        observer.suspend_bounds(suspended);
    }
}
