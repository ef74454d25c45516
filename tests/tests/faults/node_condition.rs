//! What the controller says on the Node about its GPUs.

use anyhow::{Result, ensure};
use k8s_openapi::api::core::v1::{Node, NodeCondition};
use kube::{Api, Client};
use muster_api::conditions::NODE_GPU_FAULT;
use muster_tests::{
    faults::TargetGpu,
    kubernetes::{LIMIT, Progress, eventually},
};

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
