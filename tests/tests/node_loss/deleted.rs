//! A machine is scrapped under a gang, and its Node deleted.

use anyhow::Result;
use k8s_openapi::api::{core::v1::Node, resource::v1::ResourceSlice};
use kube::{
    Api, ResourceExt,
    api::{DeleteParams, ListParams},
};
use muster_api::NodeDevices;
use muster_tests::{
    cluster::Cluster,
    kubernetes::{Progress, eventually},
    scenarios,
    suite::Scenario,
};

use crate::stage::{self, GPUS, SLOW_LIMIT};

pub(crate) fn scenarios() -> Vec<Scenario> {
    stage::long(scenarios![
        a_node_that_is_deleted_costs_its_gang_the_attempt_and_leaves_nothing_behind
    ])
}

/// The gang does not wait until Kubernetes has removed the pods that were there; what they held does.
async fn a_node_that_is_deleted_costs_its_gang_the_attempt_and_leaves_nothing_behind(
    cluster: &mut Cluster,
) -> Result<()> {
    let client = cluster.client();
    let scene = stage::begin(cluster, "deleted").await?;
    cluster.node(&scene.node)?.scrap()?;
    scene.ranks.fail(1)?;
    let nodes: Api<Node> = Api::all(client.clone());
    nodes.delete(&scene.node, &DeleteParams::default()).await?;
    let elsewhere = scene.runs_elsewhere(&client, "is gone").await?;

    let devices: Api<NodeDevices> = Api::all(client.clone());
    let slices: Api<ResourceSlice> = Api::all(client.clone());
    let what = format!("nothing is left of node {}", scene.node);
    eventually(&what, SLOW_LIMIT, async || {
        let object = devices.get_opt(&scene.node).await?;
        let pods = scene.pods_on_node(&client).await?;
        let slices = slices.list(&ListParams::default()).await?;
        let of_node = slices
            .iter()
            .filter(|it| it.spec.node_name.as_ref() == Some(&scene.node));
        let slices: Vec<String> = of_node.map(ResourceExt::name_any).collect();
        let used = scene.used(&client).await?;
        let is_gone = object.is_none() && pods.is_empty() && slices.is_empty() && used == GPUS;
        Ok(Progress::when(is_gone, || {
            format!(
                "{used} GPUs used, pods {pods:?}, slices {slices:?}, {:?}",
                object.map(|object| (object.spec, object.status))
            )
        }))
    })
    .await?;
    scene.finishes(&client, &elsewhere).await
}
