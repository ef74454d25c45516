//! What the objects of a node say of it, and what an administrator says of it by them.

use anyhow::Result;
use k8s_openapi::api::core::v1::{Node, Taint};
use kube::{
    Api, Client, ResourceExt,
    api::{Patch, PatchParams},
};
use muster_api::NodeDevices;
use serde_json::json;

use crate::kubernetes::{LIMIT, Progress, eventually};

/// Key of the taint by which an administrator says that a machine is off.
const OUT_OF_SERVICE: &str = "node.kubernetes.io/out-of-service";
/// Key of the taint by which the node controller says that it hears nothing of a node.
const UNREACHABLE: &str = "node.kubernetes.io/unreachable";

/// Gives a node the taint of this key with this value and effect, or takes it away. Taints that others write meanwhile stay.
pub async fn set_taint(
    client: &Client,
    node: &str,
    key: &str,
    taint: Option<(&str, &str)>,
) -> Result<()> {
    let nodes: Api<Node> = Api::all(client.clone());
    let what = format!("node {node} has the taint {key} as {taint:?}");
    eventually(&what, LIMIT, async || {
        let now = nodes.get(node).await?;
        let version = now.resource_version();
        let mut taints = now.spec.unwrap_or_default().taints.unwrap_or_default();
        taints.retain(|taint| taint.key != key);
        taints.extend(taint.map(|(value, effect)| Taint {
            key: key.to_owned(),
            value: Some(value.to_owned()),
            effect: effect.to_owned(),
            ..Taint::default()
        }));
        let patch = json!({"metadata": {"resourceVersion": version}, "spec": {"taints": taints}});
        let parameters = PatchParams::default();
        // A conflict is looked at again.
        nodes.patch(node, &parameters, &Patch::Merge(patch)).await?;
        Ok(Progress::Done(()))
    })
    .await
}

/// An administrator says that the machine is off, or is on again.
pub async fn set_out_of_service(client: &Client, node: &str, is_off: bool) -> Result<()> {
    let taint = is_off.then_some(("nodeshutdown", "NoExecute"));
    set_taint(client, node, OUT_OF_SERVICE, taint).await
}

/// Waits until the node controller says that it hears nothing of the node.
pub async fn wait_until_unreachable(client: &Client, node: &str) -> Result<()> {
    let nodes: Api<Node> = Api::all(client.clone());
    let what = format!("node {node} is unreachable");
    eventually(&what, LIMIT, async || {
        let spec = nodes.get(node).await?.spec.unwrap_or_default();
        let taints = spec.taints.unwrap_or_default();
        let is_unreachable = taints.iter().any(|taint| taint.key == UNREACHABLE);
        Ok(Progress::when(is_unreachable, || format!("{taints:?}")))
    })
    .await
}

/// Whether the node counts, and its driver has answered for its object as it is, and holds nothing.
pub fn is_well(object: &NodeDevices) -> bool {
    let answered = object.status.as_ref().is_some_and(|status| {
        Some(&status.uid) == object.metadata.uid.as_ref()
            && Some(status.observed_generation) == object.metadata.generation
            && status.held.is_empty()
    });
    let spec = &object.spec;
    answered && !spec.lost && !spec.awaits_driver && spec.permits.is_empty()
}
