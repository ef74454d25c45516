//! A fault outlives whoever tells of it: the driver, the kubelet, which deletes what its node publishes, and the controller. A reboot of the machine ends it.

use std::{collections::BTreeSet, time::Duration};

use anyhow::Result;
use k8s_openapi::api::resource::v1::ResourceSlice;
use kube::{Api, Client, ResourceExt, api::ListParams};
use muster_api::keys::{TAINT_FAULT, TAINT_NODE_FAULT};
use muster_tests::{
    cluster::Cluster,
    faults::{Fault, TargetGpu, reboot, wait_for_fault_eviction},
    kubernetes::{LIMIT, Progress, always, eventually},
    scenarios,
    suite::Scenario,
    workloads::Workload,
};

use crate::stage::{Running, Single, ensure_tainted, mended, prepare_team, restart_controller};

/// How long it is looked whether a taint stays.
const STAYS: Duration = Duration::from_secs(3);
/// Longest time for what these do beside the rest.
const MORE_TIME: Duration = Duration::from_mins(4);

pub(crate) fn scenarios() -> Vec<Scenario> {
    let scenarios =
        scenarios![a_fault_outlives_driver_kubelet_and_controller_and_is_over_by_a_reboot];
    let scenarios = scenarios.into_iter().map(Scenario::with_fault_evictions);
    scenarios.map(|one| one.with_more_time(MORE_TIME)).collect()
}

async fn a_fault_outlives_driver_kubelet_and_controller_and_is_over_by_a_reboot(
    cluster: &mut Cluster,
) -> Result<()> {
    let client = cluster.client();
    prepare_team(&client, "outlives", 8).await?;
    let workload = Workload {
        namespace: "outlives",
        name: "train",
        ranks: 1,
        gpus: 2,
    };
    let running = Running::start_hanging(cluster, workload).await?;
    let gpu = running.gpu_of(cluster, 0).await?;
    gpu.inject(Fault::Xid(79))?;
    let judged = async {
        wait_for_fault_eviction(&client, "outlives", &running.gang(), &gpu).await?;
        running.runs_again(cluster, 2, 2 * LIMIT, &[&gpu]).await?;
        outlives(cluster, &gpu).await?;
        running.runs_again(cluster, 2, LIMIT, &[&gpu]).await?;
        reboot(cluster, &gpu.node).await?;
        gpu.wait_until_untainted(&client, &[TAINT_FAULT, TAINT_NODE_FAULT])
            .await?;
        let new = Single::create(cluster, "outlives", "new", 1, &gpu.node).await?;
        new.runs(cluster).await?;
        new.finishes(&client).await
    }
    .await;
    mended(cluster, &gpu, judged).await?;
    running.finishes(&client).await
}

/// Each is started anew in turn, and the taint is there again, or was never away.
async fn outlives(cluster: &mut Cluster, gpu: &TargetGpu) -> Result<()> {
    let client = cluster.client();
    cluster.node(&gpu.node)?.crash_driver().await?;
    always("the taint stays", STAYS, async || {
        ensure_tainted(&client, gpu).await?;
        Ok(Progress::Done(()))
    })
    .await?;
    let before = published(&client, &gpu.node).await?;
    let node = cluster.node(&gpu.node)?;
    node.restart_kubelet().await?;
    // Until then it is the old ones that have the taint.
    eventually("the kubelet has deleted the slices", LIMIT, async || {
        let left = published(&client, &gpu.node).await?;
        Ok(Progress::when(left.is_disjoint(&before), || {
            format!("{left:?}")
        }))
    })
    .await?;
    gpu.wait_until_tainted(&client, TAINT_FAULT, "Reboot")
        .await?;
    gpu.wait_until_tainted(&client, TAINT_NODE_FAULT, "Reboot")
        .await?;
    restart_controller(cluster, &[]).await?;
    ensure_tainted(&client, gpu).await
}

/// UIDs of the slices that a node publishes.
async fn published(client: &Client, node: &str) -> Result<BTreeSet<String>> {
    let slices: Api<ResourceSlice> = Api::all(client.clone());
    let slices = slices.list(&ListParams::default()).await?;
    let own = slices
        .iter()
        .filter(|slice| slice.spec.node_name.as_deref() == Some(node));
    Ok(own.filter_map(ResourceExt::uid).collect())
}
