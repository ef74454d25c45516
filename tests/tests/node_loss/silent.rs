//! Nothing is heard of a node for too long, and nobody says why.

use std::{fs, path::Path};

use anyhow::{Result, ensure};
use kube::{Api, Client};
use muster_api::NodeDevices;
use muster_tests::{
    cluster::Cluster,
    kubernetes::{LIMIT, Progress, eventually},
    node::NodePart,
    node_state::is_well,
    scenarios,
    suite::Scenario,
};

use crate::stage::{self, GPUS, SLOW_LIMIT, Scene};

pub(crate) fn scenarios() -> Vec<Scenario> {
    stage::long(scenarios![
        a_node_that_is_silent_for_too_long_is_lost_and_charged_to_no_team_until_it_is_back
    ])
}

/// Kubelet and driver hang, as if the network were cut; what they have started runs on.
async fn a_node_that_is_silent_for_too_long_is_lost_and_charged_to_no_team_until_it_is_back(
    cluster: &mut Cluster,
) -> Result<()> {
    let client = cluster.client();
    let scene = stage::begin(cluster, "silent").await?;
    let node = cluster.node(&scene.node)?;
    let records = node.driver_records();
    for part in [NodePart::Kubelet, NodePart::Driver] {
        node.service(part)?.freeze();
    }
    let moved = elsewhere(&client, &scene).await;
    let node = cluster.node(&scene.node)?;
    for part in [NodePart::Driver, NodePart::Kubelet] {
        node.service(part)?.thaw();
    }
    let elsewhere = moved?;
    is_back(&client, &scene, &records).await?;
    scene.finishes(&client, &elsewhere).await
}

/// The node is marked as lost, and its half of the gang is charged to nobody; then the gang is evicted and has the whole quota of its
/// Team elsewhere, while what it had on the node is still permitted there. Its new pods.
async fn elsewhere(client: &Client, scene: &Scene) -> Result<Vec<String>> {
    let devices: Api<NodeDevices> = Api::all(client.clone());
    let what = format!("node {} is lost, and charged to nobody", scene.node);
    eventually(&what, LIMIT, async || {
        let spec = devices.get(&scene.node).await?.spec;
        let used = scene.used(client).await?;
        Ok(Progress::when(spec.lost && used == GPUS / 2, || {
            format!("{used} GPUs used, {spec:?}")
        }))
    })
    .await?;
    let pods = scene.runs_elsewhere(client, "is lost").await?;
    let what = "its Team is charged for the second attempt alone";
    eventually(what, LIMIT, async || {
        let used = scene.used(client).await?;
        Ok(Progress::when(used == GPUS, || format!("{used} GPUs used")))
    })
    .await?;
    let spec = devices.get(&scene.node).await?.spec;
    let permits: Vec<(i64, bool)> = spec
        .permits
        .iter()
        .map(|it| (it.attempt, it.withdrawn))
        .collect();
    ensure!(spec.lost && permits == [(1, true)], "{spec:?}");
    Ok(pods)
}

/// The node is heard of again: its kubelet ends the pod of the first attempt, its driver proves it, and the Team is charged what its
/// gang has. Until then it may be charged for both.
async fn is_back(client: &Client, scene: &Scene, records: &Path) -> Result<()> {
    let devices: Api<NodeDevices> = Api::all(client.clone());
    let what = format!("node {} is back, and holds nothing", scene.node);
    eventually(&what, SLOW_LIMIT, async || {
        let used = scene.used(client).await?;
        let object = devices.get(&scene.node).await?;
        let pods = scene.pods_on_node(client).await?;
        let left = fs::read_dir(records)?.count();
        let is_well = is_well(&object) && pods.is_empty() && left == 0;
        Ok(Progress::when(used == GPUS && is_well, || {
            format!(
                "{used} GPUs used, pods {pods:?}, {left} records, {:?}, {:?}",
                object.spec, object.status
            )
        }))
    })
    .await
}
