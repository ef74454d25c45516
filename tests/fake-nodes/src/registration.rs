//! A node joins: its Node object, its lease, and the slices of its driver.

use std::{collections::BTreeSet, time::Duration};

use anyhow::{Context, Result};
use futures::{StreamExt, stream};
use jiff::Timestamp;
use k8s_openapi::{
    api::{coordination::v1::Lease, core::v1::Node, resource::v1::ResourceSlice},
    apimachinery::pkg::apis::meta::v1::MicroTime,
};
use kube::{
    Api, Client, ResourceExt,
    api::{DeleteParams, ListParams, Patch, PatchParams, PostParams},
};
use muster_api::keys;
use muster_dra_driver::slices::plan::{Pool, plan};
use serde_json::json;

use crate::{client::Clients, hardware::Shape};

/// Label of a node's leaf.
pub const LEAF_LABEL: &str = "example.com/leaf";
/// Label of a node's spine.
pub const SPINE_LABEL: &str = "example.com/spine";
/// Leases that are renewed at the same time.
const RENEWED_AT_ONCE: usize = 8;

/// A node that has joined.
#[derive(Clone, Debug)]
pub struct Registered {
    /// What it is made of.
    pub shape: Shape,
    /// UID of its Node object.
    pub uid: String,
}

/// Makes or takes over the Node object, and publishes the slices of a node that has a driver.
pub async fn register(clients: &Clients, shape: Shape, has_driver: bool) -> Result<Registered> {
    let name = shape.name.clone();
    let joined = join(clients, shape, has_driver);
    joined.await.with_context(|| format!("node {name}"))
}

async fn join(clients: &Clients, shape: Shape, has_driver: bool) -> Result<Registered> {
    let nodes: Api<Node> = Api::all(clients.admin());
    let object: Node = serde_json::from_value(json!({
        "metadata": {
            "name": shape.name,
            "labels": {
                "kubernetes.io/hostname": shape.name,
                "kubernetes.io/os": "linux",
                LEAF_LABEL: shape.leaf,
                SPINE_LABEL: shape.spine,
            },
        },
    }))?;
    let node = match nodes.create(&PostParams::default(), &object).await {
        Ok(node) => node,
        Err(kube::Error::Api(status)) if status.is_already_exists() => {
            nodes.get(&shape.name).await?
        }
        Err(error) => return Err(error.into()),
    };
    let uid = node.uid().context("a Node without UID")?;
    lease(&clients.admin(), &shape.name).await?;
    let capacity =
        json!({"cpu": "128", "memory": "2Ti", "pods": "250", "ephemeral-storage": "1Ti"});
    let now = Timestamp::now();
    let condition = |kind: &str, status: &str, reason: &str| {
        json!({
            "type": kind, "status": status, "reason": reason, "message": "played by muster-fake-nodes",
            "lastHeartbeatTime": now, "lastTransitionTime": now,
        })
    };
    let status = json!({"status": {
        "capacity": capacity,
        "allocatable": capacity,
        "conditions": [
            condition("Ready", "True", "KubeletReady"),
            condition("MemoryPressure", "False", "KubeletHasSufficientMemory"),
            condition("DiskPressure", "False", "KubeletHasNoDiskPressure"),
            condition("PIDPressure", "False", "KubeletHasSufficientPID"),
        ],
        "nodeInfo": {
            "architecture": "amd64", "bootID": format!("boot-{}", shape.name), "containerRuntimeVersion": "none://0",
            "kernelVersion": "0", "kubeProxyVersion": "", "kubeletVersion": "v1.37.1", "machineID": shape.name,
            "operatingSystem": "linux", "osImage": "none", "systemUUID": shape.name,
        },
    }});
    nodes
        .patch_status(
            &shape.name,
            &PatchParams::default(),
            &Patch::Strategic(&status),
        )
        .await?;
    if has_driver {
        let driver = clients.driver(&shape.name)?;
        publish(&driver, &shape, &uid, &BTreeSet::new()).await?;
    }
    Ok(Registered { shape, uid })
}

/// Makes the slices of a node what they should be, as its driver.
pub async fn publish(
    driver: &Client,
    shape: &Shape,
    node_uid: &str,
    held: &BTreeSet<String>,
) -> Result<()> {
    let slices: Api<ResourceSlice> = Api::all(driver.clone());
    let params = ListParams::default().fields(&format!(
        "spec.nodeName={},spec.driver={}",
        shape.name,
        keys::DRIVER
    ));
    let existing = slices.list(&params).await?.items;
    let pool = Pool {
        driver: keys::DRIVER.to_owned(),
        node: shape.name.clone(),
        node_uid: node_uid.to_owned(),
    };
    let desired = shape.contents(held);
    let writes = plan(&pool, &desired, &existing);
    for slice in &writes.delete {
        slices
            .delete(&slice.name_any(), &DeleteParams::default())
            .await?;
    }
    for slice in &writes.update {
        slices
            .replace(&slice.name_any(), &PostParams::default(), slice)
            .await?;
    }
    for slice in &writes.create {
        slices.create(&PostParams::default(), slice).await?;
    }
    Ok(())
}

async fn lease(admin: &Client, node: &str) -> Result<()> {
    let leases: Api<Lease> = Api::namespaced(admin.clone(), "kube-node-lease");
    let object: Lease = serde_json::from_value(json!({
        "metadata": {"name": node},
        "spec": {
            "holderIdentity": node,
            "leaseDurationSeconds": 40,
            "renewTime": MicroTime(Timestamp::now()),
        },
    }))?;
    match leases.create(&PostParams::default(), &object).await {
        Ok(_) => Ok(()),
        Err(kube::Error::Api(status)) if status.is_already_exists() => renew(&leases, node).await,
        Err(error) => Err(error.into()),
    }
}

async fn renew(leases: &Api<Lease>, node: &str) -> Result<()> {
    let patch = json!({"spec": {"renewTime": MicroTime(Timestamp::now())}});
    leases
        .patch(node, &PatchParams::default(), &Patch::Merge(&patch))
        .await?;
    Ok(())
}

/// Renews the leases of all nodes, spread over each `every`, for ever. A renewal that fails is left for the next round,
/// as a kubelet's would be late.
pub async fn renew_leases(clients: Clients, nodes: Vec<String>, every: Duration) -> Result<()> {
    let leases: Api<Lease> = Api::namespaced(clients.admin(), "kube-node-lease");
    let mut round = tokio::time::interval(every);
    loop {
        round.tick().await;
        stream::iter(&nodes)
            .for_each_concurrent(RENEWED_AT_ONCE, async |node| {
                if let Err(error) = renew(&leases, node).await {
                    tracing::warn!(%node, %error, "the lease was not renewed");
                }
            })
            .await;
    }
}
