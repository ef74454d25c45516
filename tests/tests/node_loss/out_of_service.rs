//! A machine dies under a gang, somebody says that it is off, and it comes back.

use std::fs;

use anyhow::Result;
use k8s_openapi::api::core::v1::{Node, Taint};
use kube::{
    Api, ResourceExt,
    api::{Patch, PatchParams},
};
use muster_api::NodeDevices;
use muster_tests::{
    cluster::Cluster,
    kubernetes::{Progress, eventually},
    node::NodePart,
    scenarios,
    suite::Scenario,
};
use serde_json::json;

use crate::stage::{self, GPUS, SLOW_LIMIT, Scene};

/// By which an administrator says that a machine is off.
const OUT_OF_SERVICE: &str = "node.kubernetes.io/out-of-service";

pub(crate) fn scenarios() -> Vec<Scenario> {
    stage::long(scenarios![
        a_machine_that_is_said_to_be_off_costs_its_gang_the_attempt_and_counts_nothing_when_it_is_back,
    ])
}

async fn a_machine_that_is_said_to_be_off_costs_its_gang_the_attempt_and_counts_nothing_when_it_is_back(
    cluster: &mut Cluster,
) -> Result<()> {
    let client = cluster.client();
    let nodes: Api<Node> = Api::all(client.clone());
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
    stage::wait_until_unreachable(&nodes, &scene.node).await?;
    set_out_of_service(&nodes, &scene.node, true).await?;
    let elsewhere = scene.runs_elsewhere(&client, "out of service").await?;

    // Were it back before Kubernetes has deleted the pods that were there, they would be charged beside those that run elsewhere
    // until its kubelet has ended them.
    let what = format!("the pods on node {} are gone", scene.node);
    eventually(&what, SLOW_LIMIT, async || {
        let left = scene.pods_on_node(&client).await?;
        Ok(Progress::when(left.is_empty(), || format!("{left:?}")))
    })
    .await?;
    set_out_of_service(&nodes, &scene.node, false).await?;
    comes_back(cluster, &scene).await?;
    if let Some(observer) = cluster.observer() {
        observer.suspend_bounds(false);
    }
    scene.finishes(&client, &elsewhere).await
}

/// An administrator says that the machine is off, or is on again.
async fn set_out_of_service(nodes: &Api<Node>, name: &str, is_off: bool) -> Result<()> {
    let spec = nodes.get(name).await?.spec.unwrap_or_default();
    let mut taints = spec.taints.unwrap_or_default();
    taints.retain(|taint| taint.key != OUT_OF_SERVICE);
    if is_off {
        taints.push(Taint {
            key: OUT_OF_SERVICE.to_owned(),
            value: Some("nodeshutdown".to_owned()),
            effect: "NoExecute".to_owned(),
            ..Taint::default()
        });
    }
    let patch = Patch::Merge(json!({"spec": {"taints": taints}}));
    let parameters = PatchParams::default();
    nodes.patch(name, &parameters, &patch).await.map(drop)?;
    Ok(())
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
        let is_well = Some(&spec.node_uid) == uid.as_ref() && stage::is_well(&object);
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
