//! Who says how its GPUs are to be connected, or where they are to be, gets such ones, and not the first ones that are free.

use std::{collections::BTreeSet, slice};

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::{core::v1::Pod, resource::v1::ResourceClaimTemplate};
use kube::{Api, Client};
use muster_api::keys;
use muster_tests::{
    builders::{self, RankProgram},
    cluster::Cluster,
    kubernetes, scenarios,
    suite::Scenario,
};
use serde_json::json;

use crate::stage::{BRIDGED, Given, Single, attributes, example, on, prepare_team};

/// Two GPUs, connected or not.
const ANY: [(&str, &str); 1] = [(keys::GPUS, "2")];
/// Two GPUs that are connected.
const CONNECTED: [(&str, &str); 2] = [(keys::GPUS, "2"), (keys::INTERCONNECT, "nvlink")];
/// The attribute of a device that says where it is.
const NUMA_NODE: &str = "resource.kubernetes.io/numaNode";

pub(crate) fn scenarios() -> Vec<Scenario> {
    scenarios![
        two_gpus_over_nvlink_are_those_of_one_bridge_and_not_the_first_two_that_are_free,
        the_example_by_numa_node_gets_a_gpu_that_is_there_and_not_the_first_one_that_is_free,
    ]
}

/// The first two GPUs of the node have no bridge between them. Whoever does not ask for one is given these, or the rest would prove nothing.
async fn two_gpus_over_nvlink_are_those_of_one_bridge_and_not_the_first_two_that_are_free(
    cluster: &mut Cluster,
) -> Result<()> {
    let client = cluster.client();
    prepare_team(&client, "bridges").await?;
    let any = Single::create(cluster, "bridges", "any", &ANY, on(BRIDGED)).await?;
    let given = any.runs(cluster).await?;
    let groups = groups_of(&client, &given).await?;
    ensure!(
        given.len() == 2 && groups.len() == 2,
        "any two were asked for, and {given:?} of {groups:?} given"
    );
    any.finishes(&client, &given).await?;

    let mut running = Vec::new();
    let mut bridges = BTreeSet::new();
    for name in ["one", "other"] {
        let pair = Single::create(cluster, "bridges", name, &CONNECTED, on(BRIDGED)).await?;
        let given = pair.runs(cluster).await?;
        let groups = groups_of(&client, &given).await?;
        ensure!(
            given.len() == 2 && groups.len() == 1,
            "{name} was given {given:?} of {groups:?}"
        );
        bridges.extend(groups);
        running.push((pair, given));
    }
    ensure!(bridges.len() == 2, "both have {bridges:?}");
    for (pair, given) in running {
        pair.finishes(&client, &given).await?;
    }
    Ok(())
}

/// `manifests/examples/near-numa-node.yaml` as it stands there, but for its namespace and its container.
async fn the_example_by_numa_node_gets_a_gpu_that_is_there_and_not_the_first_one_that_is_free(
    cluster: &mut Cluster,
) -> Result<()> {
    let client = cluster.client();
    prepare_team(&client, "numa").await?;
    let [mut template, mut pod] = example("near-numa-node.yaml")?;
    for object in [&mut template, &mut pod] {
        object["metadata"]["namespace"] = json!("numa");
    }
    let templates: Api<ResourceClaimTemplate> = Api::namespaced(client.clone(), "numa");
    kubernetes::create(&templates, &serde_json::from_value(template)?).await?;
    let name = pod["metadata"]["name"].as_str().context("a name")?;
    let name = name.to_owned();
    let peers = builders::peers_directory(cluster.directory(), &format!("numa-{name}"))?;
    let ranks = RankProgram::new(cluster.programs().path("rank"), peers, 1).until_finished();
    pod["spec"]["containers"] = json!([ranks.container(&["gpu"])?]);
    pod["spec"]["restartPolicy"] = json!("Never");
    let pods: Api<Pod> = Api::namespaced(client.clone(), "numa");
    kubernetes::create(&pods, &serde_json::from_value(pod)?).await?;
    let reader = Single {
        namespace: "numa",
        name: &name,
        ranks,
    };
    let given = reader.runs_on_one(cluster).await?;
    let first = Given {
        device: "gpu-0".to_owned(),
        ..given.clone()
    };
    let mut numa_nodes = Vec::new();
    for device in [&given, &first] {
        let told = attributes(&client, slice::from_ref(device), NUMA_NODE).await?;
        numa_nodes.extend(told.into_iter().map(|attribute| attribute.int));
    }
    ensure!(
        numa_nodes == [Some(1), Some(0)],
        "{given:?} and the first GPU of its node are of {numa_nodes:?}"
    );
    reader.finishes(&client, &[given]).await
}

/// The NVLink groups of these devices.
async fn groups_of(client: &Client, given: &[Given]) -> Result<BTreeSet<String>> {
    let groups = attributes(client, given, "nvlinkGroup").await?;
    Ok(groups.into_iter().filter_map(|it| it.string).collect())
}
