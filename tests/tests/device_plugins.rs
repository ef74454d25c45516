//! Gangs whose pods ask for GPUs of a device plugin, as most users write it: by limits alone. Two nodes have such a plugin, played by
//! what it leaves behind in the node's status; a third is served by Muster's driver.

use std::{collections::BTreeMap, process::ExitCode};

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::{
    Api, Client, ResourceExt,
    api::{DeleteParams, Patch, PatchParams},
};
use muster_api::{Flavor, Gang, Reason};
use muster_tests::{
    builders::{self, RankProgram, RankSource, gpu_quota},
    cluster::{Cluster, ClusterOptions},
    gangs,
    gpu_board::Board,
    install::MusterOptions,
    kubernetes::{self, LIMIT, Progress, eventually},
    node::NodeOptions,
    scenarios, suite,
    workloads::Workload,
};
use serde_json::json;

/// Node label of the Flavors.
const POOL: &str = "example.com/pool";
/// The resource of the plugin.
const GPU: &str = "nvidia.com/gpu";
/// The nodes with the plugin.
const PLUGIN_NODES: [&str; 2] = ["plugin-a", "plugin-b"];

fn main() -> ExitCode {
    let node = |name: &str, pool: &str, board: Option<Board>| NodeOptions {
        name: name.to_owned(),
        labels: BTreeMap::from([(POOL.to_owned(), pool.to_owned())]),
        board,
        ..NodeOptions::default()
    };
    let mut nodes = vec![node("driver", "driver", Some(Board::H100Nvswitch8))];
    nodes.extend(PLUGIN_NODES.map(|name| node(name, "plugin", None)));
    let options = ClusterOptions {
        nodes,
        muster: Some(MusterOptions::default()),
        ..ClusterOptions::default()
    };
    suite::run(
        "device_plugins",
        options,
        scenarios![
            a_gang_that_only_writes_limits_waits_for_quota_and_runs_whole_beside_one_with_claims,
            a_gang_gets_no_gpu_that_a_foreign_pod_has_and_goes_where_a_plugin_offers_some,
        ],
    )
}

async fn a_gang_that_only_writes_limits_waits_for_quota_and_runs_whole_beside_one_with_claims(
    cluster: &mut Cluster,
) -> Result<()> {
    let client = cluster.client();
    prepare(&client, "limits", 4).await?;
    for node in PLUGIN_NODES {
        offer(&client, node, 4).await?;
    }
    wait_until_counted(&client, 2, 8).await?;
    let first = submit(cluster, "limits", "first", 1, 2).await?;
    gangs::wait_until_running(&client, "limits", &gangs::of_label("first")).await?;

    // Two of the four that the Team has are left.
    let pair = submit(cluster, "limits", "pair", 2, 2).await?;
    let of_pair = gangs::of_label("pair");
    let details =
        gangs::wait_for_reason(&client, "limits", &of_pair, Reason::WaitingForQuota).await?;
    gangs::ensure_says(&details, &["asks for 4 GPUs", "2 can be had now"])?;
    gangs::ensure_none_bound(&client, "limits", "pair").await?;

    let claims = run_with_claims(cluster, "limits").await?;

    first.finish()?;
    gangs::wait_until_finished(&client, "limits", &gangs::of_label("first")).await?;
    let gang = gangs::wait_until_running(&client, "limits", &of_pair).await?;
    ensure_on(&client, &gang, &PLUGIN_NODES).await?;
    for (rank, pod) in gangs::pods(&client, &gang).await? {
        let spec = pod.spec.context("a pod has a spec")?;
        ensure!(
            spec.resource_claims.is_none(),
            "rank {rank} was given a claim"
        );
    }
    let charged = gangs::charged(&client).await?;
    // Four of the plugin, and four by claims.
    ensure!(charged.get("limits") == Some(&8_000), "{charged:?}");
    pair.finish()?;
    claims.finish()?;
    gangs::wait_until_finished(&client, "limits", &of_pair).await?;
    gangs::wait_for_job(&client, "limits", "claims").await?;
    // What it held is there for the next one.
    let next = submit(cluster, "limits", "next", 2, 2).await?;
    let of_next = gangs::of_label("next");
    gangs::wait_until_running(&client, "limits", &of_next).await?;
    next.finish()?;
    gangs::wait_until_finished(&client, "limits", &of_next).await
}

async fn a_gang_gets_no_gpu_that_a_foreign_pod_has_and_goes_where_a_plugin_offers_some(
    cluster: &mut Cluster,
) -> Result<()> {
    let client = cluster.client();
    prepare(&client, "room", 8).await?;
    offer(&client, "plugin-a", 4).await?;
    offer(&client, "plugin-b", 0).await?;
    wait_until_counted(&client, 1, 4).await?;
    let foreign = foreign_pod(cluster, 3).await?;
    let claims = run_with_claims(cluster, "room").await?;

    let ranks = submit(cluster, "room", "two", 1, 2).await?;
    let of_two = gangs::of_label("two");
    let details =
        gangs::wait_for_reason(&client, "room", &of_two, Reason::WaitingForPlacement).await?;
    gangs::ensure_says(&details, &["devices in use or tainted"])?;
    gangs::ensure_none_bound(&client, "room", "two").await?;
    offer(&client, "plugin-b", 4).await?;
    let gang = gangs::wait_until_running(&client, "room", &of_two).await?;
    ensure_on(&client, &gang, &["plugin-b"]).await?;
    ranks.finish()?;
    claims.finish()?;
    gangs::wait_until_finished(&client, "room", &of_two).await?;
    gangs::wait_for_job(&client, "room", "claims").await?;
    let pods: Api<Pod> = Api::namespaced(client, "kube-system");
    pods.delete(&foreign, &DeleteParams::default()).await?;
    Ok(())
}

/// The Flavors, and a Team with one namespace of the same name and this quota of what the plugin hands out.
async fn prepare(client: &Client, team: &str, gpus: u32) -> Result<()> {
    builders::flavor_of_resource(client, "plugin", GPU, &[(POOL, "plugin")]).await?;
    builders::flavor_on(client, "driver", None, &[(POOL, "driver")]).await?;
    let quota = [("plugin", gpus), ("driver", 8)];
    let quota = quota.map(|(flavor, gpus)| gpu_quota(flavor, gpus, None));
    builders::team(client, team, None, quota.into()).await?;
    builders::namespace(client, team, Some(team)).await
}

/// What a kubelet reports of a node whose device plugin has so many healthy devices.
async fn offer(client: &Client, node: &str, gpus: u32) -> Result<()> {
    let nodes: Api<Node> = Api::all(client.clone());
    let units = json!({GPU: gpus.to_string()});
    let patch = json!({"status": {"capacity": units, "allocatable": units}});
    nodes
        .patch_status(node, &PatchParams::default(), &Patch::Merge(&patch))
        .await?;
    Ok(())
}

/// Waits until the Flavor of the plugin counts so many nodes and GPUs.
async fn wait_until_counted(client: &Client, nodes: i64, gpus: i64) -> Result<()> {
    let flavors: Api<Flavor> = Api::all(client.clone());
    eventually(
        "the Flavor counts what the plugin offers",
        LIMIT,
        async || {
            let status = flavors.get("plugin").await?.status.unwrap_or_default();
            let counted = (status.nodes, status.devices, status.healthy_devices);
            Ok(Progress::when(counted == (nodes, gpus, gpus), || {
                format!("{status:?}")
            }))
        },
    )
    .await
}

/// Pods with the gang label that ask for so many units each.
async fn submit(
    cluster: &Cluster,
    namespace: &str,
    name: &str,
    ranks: u32,
    units: u32,
) -> Result<RankProgram> {
    let workload = Workload {
        namespace,
        name,
        ranks,
        gpus: 0,
    };
    let (program, spec) = workload.prepare(cluster).await?;
    let spec = builders::with_limit(spec, GPU, units);
    workload
        .create_labelled_pods(&cluster.client(), &spec)
        .await?;
    Ok(program)
}

/// A Job with claims for four GPUs, which runs where Muster's driver is: none of the plugin's business.
async fn run_with_claims(cluster: &Cluster, namespace: &str) -> Result<RankProgram> {
    let workload = Workload {
        namespace,
        name: "claims",
        ranks: 1,
        gpus: 4,
    };
    let program = workload.submit_job(cluster, &[]).await?;
    let client = cluster.client();
    let gang = gangs::wait_until_running(&client, namespace, &gangs::of_job("claims")).await?;
    ensure_on(&client, &gang, &["driver"]).await?;
    Ok(program)
}

/// A pod of a namespace that Muster leaves alone, which runs on node `plugin-a` with so many units.
async fn foreign_pod(cluster: &Cluster, units: u32) -> Result<String> {
    let peers = builders::peers_directory(cluster.directory(), "foreign")?;
    let mut program = RankProgram::new(cluster.programs().path("rank"), peers, 1).until_finished();
    program.rank = RankSource::Fixed(0);
    let spec = builders::pod_spec(&program.container(&[])?)?;
    let spec = builders::with_limit(builders::on_node(spec, "plugin-a"), GPU, units);
    let pods: Api<Pod> = Api::namespaced(cluster.client(), "kube-system");
    let pod = kubernetes::create(&pods, &builders::pod("foreign", &[], &[], &spec)?).await?;
    let name = pod.name_any();
    eventually("the foreign pod runs", LIMIT, async || {
        let status = pods.get(&name).await?.status.unwrap_or_default();
        let runs = status.phase.as_deref() == Some("Running");
        Ok(Progress::when(runs, || format!("{status:?}")))
    })
    .await?;
    Ok(name)
}

/// Fails unless every pod of the Gang is bound to one of these nodes.
async fn ensure_on(client: &Client, gang: &Gang, nodes: &[&str]) -> Result<()> {
    let on = gangs::nodes(client, gang).await?;
    ensure!(
        on.iter().all(|node| nodes.contains(&node.as_str())),
        "it runs on {on:?}"
    );
    Ok(())
}
