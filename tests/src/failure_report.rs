//! What is kept of a scenario that failed: the objects and events of that moment, beside the logs.

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::Result;
use k8s_openapi::api::{
    batch::v1::Job,
    core::v1::{Event, Namespace, Node, Pod},
    resource::v1::{ResourceClaim, ResourceSlice},
};
use kube::{Api, Client, Resource, api::ListParams};
use muster_api::{Cohort, Flavor, Gang, Ledger, NodeDevices, Queue, Team};
use serde::{Serialize, de::DeserializeOwned};

use crate::cluster::Cluster;

/// Writes everything into `report/SCENARIO` of the cluster's directory and returns that path. What
/// cannot be read is left out with a line of its own: a report must not hide the failure.
pub async fn write(cluster: &Cluster, scenario: &str) -> PathBuf {
    let directory = cluster.directory().join("report").join(scenario);
    write_for(&cluster.client(), &directory).await;
    directory
}

/// The same of any cluster, into this directory.
pub async fn write_for(client: &Client, directory: &Path) {
    if let Err(error) = fs::create_dir_all(directory) {
        eprintln!("cannot make {}: {error}", directory.display());
        return;
    }
    let mut missing = Vec::new();
    macro_rules! collect {
        ($($kind:ty => $file:literal),* $(,)?) => {
            $(if let Err(error) = collect::<$kind>(client, &directory.join($file)).await {
                missing.push(format!("{}: {error:#}", $file));
            })*
        };
    }
    collect! {
        Pod => "pods.json",
        Job => "jobs.json",
        Event => "events.json",
        Node => "nodes.json",
        Namespace => "namespaces.json",
        ResourceClaim => "claims.json",
        ResourceSlice => "slices.json",
        Gang => "gangs.json",
        Queue => "queues.json",
        Team => "teams.json",
        Cohort => "cohorts.json",
        Flavor => "flavors.json",
        NodeDevices => "node-devices.json",
        Ledger => "ledger.json",
    }
    if !missing.is_empty() {
        let _ = fs::write(directory.join("MISSING"), missing.join("\n"));
    }
}

async fn collect<K>(client: &Client, file: &Path) -> Result<()>
where
    K: Resource<DynamicType = ()> + Clone + std::fmt::Debug + Serialize + DeserializeOwned,
{
    let api: Api<K> = Api::all(client.clone());
    let objects = api.list(&ListParams::default()).await?.items;
    fs::write(file, serde_json::to_vec_pretty(&objects)?)?;
    Ok(())
}
