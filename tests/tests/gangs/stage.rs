//! What the scenarios of this suite stand on: two flavors, and Teams of their own.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, Result, ensure};
use kube::{Client, ResourceExt};
use muster_api::Gang;
use muster_tests::{
    builders::{self, RankProgram, gpu_quota},
    cluster::Cluster,
    gangs,
};

/// Node label of the flavors: the fabric, and the node alone.
pub(crate) const POOL: &str = "example.com/pool";
/// Node label of the leaf switch.
pub(crate) const LEAF: &str = "example.com/leaf";
/// The nodes of flavor `fabric`; flavor `solo` has one node of that name.
pub(crate) const FABRIC_NODES: [&str; 4] = ["node-0", "node-1", "node-2", "node-3"];

/// Two flavors, each with the leaves as topology.
pub(crate) async fn prepare_flavors(client: &Client) -> Result<()> {
    builders::topology(client, "leaves", &[("leaf", LEAF)]).await?;
    for pool in ["fabric", "solo"] {
        builders::flavor_on(client, pool, Some("leaves"), &[(POOL, pool)]).await?;
    }
    Ok(())
}

/// A Team of its own with one namespace of the same name.
pub(crate) async fn prepare_team(
    client: &Client,
    name: &str,
    flavor: &str,
    gpus: u32,
) -> Result<()> {
    prepare_flavors(client).await?;
    builders::team(client, name, None, vec![gpu_quota(flavor, gpus, None)]).await?;
    builders::namespace(client, name, Some(name)).await
}

/// The GPUs of each rank's claim, by UUID: what was allocated to the pods of a Gang that runs.
pub(crate) async fn allocated_gpus(
    cluster: &Cluster,
    gang: &Gang,
) -> Result<BTreeMap<u32, BTreeSet<String>>> {
    let client = cluster.client();
    let namespace = gang.namespace().context("a namespace")?;
    let granted = gangs::granted(&client, &namespace).await?;
    let mut gpus = BTreeMap::new();
    for (rank, pod) in gangs::pods(&client, gang).await? {
        let devices = granted.get(&pod.name_any()).into_iter().flatten();
        let uuids = devices.map(|(node, device)| gpu_uuid(cluster, node, device));
        gpus.insert(rank, uuids.collect::<Result<BTreeSet<String>>>()?);
    }
    Ok(gpus)
}

/// UUID of device `gpu-N` of a node: its N-th GPU in PCI order.
fn gpu_uuid(cluster: &Cluster, node: &str, device: &str) -> Result<String> {
    let mut nodes = cluster.nodes.iter();
    let number: Option<usize> = device
        .strip_prefix("gpu-")
        .and_then(|number| number.parse().ok());
    nodes
        .find(|known| known.name() == node)
        .and_then(|node| node.gpu_uuids().get(number?).cloned())
        .with_context(|| format!("there is no device {device} on {node}"))
}

/// Every rank met all others and was given the GPUs that its claim was allocated, as many as it asked
/// for; and none of them was given twice.
pub(crate) fn ranks_got_what_was_allocated(
    ranks: &RankProgram,
    allocated: &BTreeMap<u32, BTreeSet<String>>,
    asked: &[usize],
) -> Result<()> {
    ranks.ensure_all_met()?;
    let mut given = BTreeSet::new();
    for ((rank, gpus), asked) in ranks.gpus()?.into_iter().zip(asked) {
        let gpus: BTreeSet<String> = gpus.into_iter().collect();
        let of_claim = allocated.get(&rank);
        ensure!(
            of_claim == Some(&gpus) && gpus.len() == *asked,
            "rank {rank} got {gpus:?}, its claim has {of_claim:?}"
        );
        for gpu in gpus {
            ensure!(given.insert(gpu.clone()), "{gpu} was given to two ranks");
        }
    }
    Ok(())
}
