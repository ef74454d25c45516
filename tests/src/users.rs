//! Users of the cluster with the roles that a test gives them.

use std::time::Duration;

use anyhow::Result;
use k8s_openapi::api::{
    core::v1::Pod,
    rbac::v1::{PolicyRule, Role, RoleBinding},
};
use kube::{Api, Client, api::ListParams};
use serde_json::json;

use crate::{
    cluster::Cluster,
    kubeconfig,
    kubernetes::{self, Progress, eventually},
};

/// A client of a user with one of the roles that every cluster has (`view`, `edit`, `admin`) in this
/// namespace, and these rules beyond it.
pub async fn user(
    cluster: &Cluster,
    namespace: &str,
    name: &str,
    cluster_role: &str,
    beyond: Vec<PolicyRule>,
) -> Result<Client> {
    let client = cluster.client();
    if !beyond.is_empty() {
        let mut role = Role::default();
        role.metadata.name = Some(name.to_owned());
        role.rules = Some(beyond);
        kubernetes::create(&Api::namespaced(client.clone(), namespace), &role).await?;
        bind(&client, namespace, name, "Role", name).await?;
    }
    // Last, because the API server learns of bindings in order: once this one counts, so do the others.
    bind(&client, namespace, name, "ClusterRole", cluster_role).await?;
    let file = cluster.control_plane.kubeconfig_for(name, name, None)?;
    let user = kubeconfig::client(&file).await?;
    let pods: Api<Pod> = Api::namespaced(user.clone(), namespace);
    let what = format!("{name} has the role {cluster_role} in {namespace}");
    eventually(&what, Duration::from_secs(20), async || {
        pods.list(&ListParams::default()).await?;
        Ok(Progress::Done(()))
    })
    .await?;
    Ok(user)
}

async fn bind(client: &Client, namespace: &str, user: &str, kind: &str, role: &str) -> Result<()> {
    let api_group = "rbac.authorization.k8s.io";
    let binding: RoleBinding = serde_json::from_value(json!({
        "metadata": {"name": format!("{user}-{}-{role}", kind.to_lowercase())},
        "subjects": [{"kind": "User", "apiGroup": api_group, "name": user}],
        "roleRef": {"apiGroup": api_group, "kind": kind, "name": role},
    }))?;
    kubernetes::create(&Api::namespaced(client.clone(), namespace), &binding).await?;
    Ok(())
}
