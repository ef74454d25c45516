//! What the controller says on the Node about its GPUs.
//!
//! It writes to the Node that it has seen, by its UID. Should that be gone by the time, and another Node have its name, nothing may stand there that
//! was meant for the first. When exactly the controller writes no test can choose, and with a Node under a kubelet of this suite its driver's token
//! would go. So what stands between is shown here by itself: what the API server answers to the very patch that the controller sends. What the
//! controller makes of that answer its own tests show.

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::{Node, NodeCondition};
use kube::{
    Api, Client, ResourceExt,
    api::{Patch, PatchParams},
    core::ObjectMeta,
};
use muster_api::{conditions::NODE_GPU_FAULT, keys::FIELD_MANAGER_CONTROLLER};
use muster_tests::{
    cluster::Cluster,
    faults::TargetGpu,
    kubernetes::{self, LIMIT, Progress, eventually},
    scenarios,
    suite::Scenario,
};
use serde_json::json;

/// A Node that no kubelet stands behind.
const MADE_ANEW: &str = "made-anew";

pub(crate) fn scenarios() -> Vec<Scenario> {
    let scenarios =
        scenarios![a_condition_that_was_meant_for_an_earlier_node_of_the_name_is_refused];
    let scenarios = scenarios.into_iter();
    scenarios.map(Scenario::without_gangs).collect()
}

async fn a_condition_that_was_meant_for_an_earlier_node_of_the_name_is_refused(
    cluster: &mut Cluster,
) -> Result<()> {
    let client = cluster.client();
    let refused = is_refused(&client).await;
    let nodes: Api<Node> = Api::all(client);
    kubernetes::delete(&nodes, MADE_ANEW).await?;
    refused
}

async fn is_refused(client: &Client) -> Result<()> {
    let nodes: Api<Node> = Api::all(client.clone());
    let node = Node {
        metadata: ObjectMeta {
            name: Some(MADE_ANEW.to_owned()),
            ..ObjectMeta::default()
        },
        ..Node::default()
    };
    let first = kubernetes::create(&nodes, &node).await?;
    let first = first.uid().context("a Node has a UID")?;
    kubernetes::delete(&nodes, MADE_ANEW).await?;
    let second = kubernetes::create(&nodes, &node).await?;
    let second = second.uid().context("a Node has a UID")?;
    ensure!(first != second, "it is the same Node: {first}");

    let Err(kube::Error::Api(answer)) = write(&nodes, &first).await else {
        anyhow::bail!("a condition of Node {first} was taken, or not answered, by {second}");
    };
    // By this the controller knows the answer.
    ensure!(
        answer.code == 422 && answer.message.contains("metadata.uid"),
        "{answer:?}"
    );
    ensure_node_has_none(client).await?;
    // It was the UID: nothing else is wrong with it.
    write(&nodes, &second).await?;
    let stands = condition_of(client, MADE_ANEW, NODE_GPU_FAULT).await?;
    ensure!(is_true(stands.as_ref()), "{stands:?}");
    Ok(())
}

/// Writes the condition as the controller does (`controller/src/node_conditions.rs`), to the Node of this UID.
async fn write(nodes: &Api<Node>, uid: &str) -> kube::Result<()> {
    let parameters = PatchParams {
        field_manager: Some(FIELD_MANAGER_CONTROLLER.to_owned()),
        ..PatchParams::default()
    };
    let condition = json!({
        "type": NODE_GPU_FAULT,
        "status": "True",
        "reason": "Reset",
        "message": "gpu-3: Reset (XID 48)",
        "lastHeartbeatTime": "2026-11-27T00:00:00Z",
        "lastTransitionTime": "2026-11-27T00:00:00Z",
    });
    let patch = json!({"metadata": {"uid": uid}, "status": {"conditions": [condition]}});
    let patch = Patch::Strategic(&patch);
    nodes
        .patch_status(MADE_ANEW, &parameters, &patch)
        .await
        .map(drop)
}

async fn ensure_node_has_none(client: &Client) -> Result<()> {
    let stands = condition_of(client, MADE_ANEW, NODE_GPU_FAULT).await?;
    ensure!(stands.is_none(), "it stands on another Node: {stands:?}");
    Ok(())
}

/// Waits until the GPU's Node has the condition of this type for a GPU of this class, and its message names this GPU.
pub(crate) async fn wait_until_node_says(
    client: &Client,
    gpu: &TargetGpu,
    kind: &str,
    class: &str,
) -> Result<()> {
    let what = format!("node {} says {kind}={class} of {}", gpu.node, gpu.device);
    let named = format!("{}: {class}", gpu.device);
    eventually(&what, LIMIT, async || {
        let condition = condition_of(client, &gpu.node, kind).await?;
        let is_said = condition.as_ref().is_some_and(|condition| {
            let reason = condition.reason.as_deref();
            let message = condition.message.as_deref().unwrap_or_default();
            condition.status == "True" && reason == Some(class) && message.contains(&named)
        });
        Ok(Progress::when(is_said, || format!("{condition:?}")))
    })
    .await
}

/// Waits until the Node does not say any more that a GPU has a fault.
pub(crate) async fn wait_until_node_says_no_fault(client: &Client, node: &str) -> Result<()> {
    let what = format!("node {node} says no {NODE_GPU_FAULT}");
    eventually(&what, LIMIT, async || {
        let fault = condition_of(client, node, NODE_GPU_FAULT).await?;
        Ok(Progress::when(!is_true(fault.as_ref()), || {
            format!("{fault:?}")
        }))
    })
    .await
}

/// Fails if the Node says that a GPU has a fault.
pub(crate) async fn ensure_node_says_no_fault(client: &Client, node: &str) -> Result<()> {
    let fault = condition_of(client, node, NODE_GPU_FAULT).await?;
    ensure!(
        !is_true(fault.as_ref()),
        "node {node} was to have no {NODE_GPU_FAULT}, and has {fault:?}"
    );
    Ok(())
}

async fn condition_of(client: &Client, node: &str, kind: &str) -> Result<Option<NodeCondition>> {
    let nodes: Api<Node> = Api::all(client.clone());
    let status = nodes.get(node).await?.status.unwrap_or_default();
    let mut conditions = status.conditions.unwrap_or_default().into_iter();
    Ok(conditions.find(|condition| condition.type_ == kind))
}

fn is_true(condition: Option<&NodeCondition>) -> bool {
    condition.is_some_and(|condition| condition.status == "True")
}
