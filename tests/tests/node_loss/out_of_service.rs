//! A machine dies under a gang, somebody says that it is off, and it comes back.

use std::fs;

use anyhow::Result;
use k8s_openapi::api::core::v1::Node;
use kube::{Api, ResourceExt};
use muster_api::NodeDevices;
use muster_tests::{
    cluster::Cluster,
    kubernetes::{Progress, eventually},
    node::NodePart,
    node_state::{is_well, set_out_of_service, wait_until_unreachable},
    scenarios,
    suite::Scenario,
};

use crate::stage::{self, GPUS, SLOW_LIMIT, Scene};

pub(crate) fn scenarios() -> Vec<Scenario> {
    stage::long(scenarios![
        a_machine_that_is_said_to_be_off_costs_its_gang_the_attempt_and_counts_nothing_when_it_is_back,
    ])
}

async fn a_machine_that_is_said_to_be_off_costs_its_gang_the_attempt_and_counts_nothing_when_it_is_back(
    cluster: &mut Cluster,
) -> Result<()> {
    let client = cluster.client();
    let scene = stage::begin(cluster, "is-off").await?;
    // What the machine has on its disk is given back only when it is back.
    if let Some(observer) = cluster.observer() {
        observer.suspend_bounds(true);
    }
    let node = cluster.node(&scene.node)?;
    node.service(NodePart::Kubelet)?.kill();
    node.service(NodePart::Driver)?.kill();
    // What ran there is dead.
    scene.ranks.fail(1)?;
    wait_until_unreachable(&client, &scene.node).await?;
    set_out_of_service(&client, &scene.node, true).await?;
    let elsewhere = scene.runs_elsewhere(&client, "out of service").await?;

    // Were it back before Kubernetes has deleted the pods that were there, they would be charged beside those that run elsewhere
    // until its kubelet has ended them.
    let what = format!("the pods on node {} are gone", scene.node);
    eventually(&what, SLOW_LIMIT, async || {
        let left = scene.pods_on_node(&client).await?;
        Ok(Progress::when(left.is_empty(), || format!("{left:?}")))
    })
    .await?;
    set_out_of_service(&client, &scene.node, false).await?;
    comes_back(cluster, &scene).await?;
    if let Some(observer) = cluster.observer() {
        observer.suspend_bounds(false);
    }
    scene.finishes(&client, &elsewhere).await
}

/// The machine boots. Once its driver has answered the node counts again, and nothing that it had is anybody's: the Team is
/// charged what its gang has elsewhere, all the time.
async fn comes_back(cluster: &mut Cluster, scene: &Scene) -> Result<()> {
    let client = cluster.client();
    let name = scene.node.as_str();
    let node = cluster.node(name)?;
    node.start_kubelet()?;
    node.start_driver()?;
    let nodes: Api<Node> = Api::all(client.clone());
    let devices: Api<NodeDevices> = Api::all(client.clone());
    let records = cluster.node(name)?.driver_records();
    let what = format!("node {name} is back, and holds nothing");
    eventually(&what, SLOW_LIMIT, async || {
        let used = scene.used(&client).await?;
        if used > GPUS {
            let more = anyhow::anyhow!("its Team uses {used} GPUs, its gang has {GPUS}");
            return Ok(Progress::Never(more));
        }
        let uid = nodes.get(name).await?.uid();
        let object = devices.get(name).await?;
        let spec = &object.spec;
        let is_well = Some(&spec.node_uid) == uid.as_ref() && is_well(&object);
        let left = fs::read_dir(&records)?.count();
        Ok(Progress::when(used == GPUS && is_well && left == 0, || {
            format!(
                "{used} GPUs used, {left} records, {spec:?}, {:?}",
                object.status
            )
        }))
    })
    .await
}
