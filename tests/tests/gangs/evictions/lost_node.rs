//! A machine dies under a gang, and comes back.

use std::{fs, time::Duration};

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::{
    batch::v1::Job,
    core::v1::{Node, Pod, Taint},
};
use kube::{
    Api, Client, ResourceExt,
    api::{ListParams, Patch, PatchParams},
};
use muster_api::{Gang, NodeDevices, Queue, Reason};
use muster_tests::{
    builders::{self, RankProgram},
    cluster::Cluster,
    gangs,
    kubernetes::{self, LIMIT, Progress, eventually},
    node::NodePart,
    scenarios,
    suite::Scenario,
    workloads::Workload,
};
use serde_json::json;

use super::wait_for_eviction;
use crate::stage::prepare_team;

/// Name of the Jobs.
const JOB: &str = "train";
/// By which an administrator says that a machine is off.
const OUT_OF_SERVICE: &str = "node.kubernetes.io/out-of-service";
/// A kubelet gives back what pods held that are gone once a minute.
const SLOW_LIMIT: Duration = Duration::from_secs(100);

pub(super) fn scenarios() -> Vec<Scenario> {
    let scenarios = scenarios![
        a_machine_that_is_said_to_be_off_costs_its_gang_the_attempt_and_counts_nothing_when_it_is_back,
    ];
    let long = scenarios.into_iter();
    long.map(|one| one.with_more_time(SLOW_LIMIT)).collect()
}

async fn a_machine_that_is_said_to_be_off_costs_its_gang_the_attempt_and_counts_nothing_when_it_is_back(
    cluster: &mut Cluster,
) -> Result<()> {
    let client = cluster.client();
    let nodes: Api<Node> = Api::all(client.clone());
    let (ranks, dead) = dies_under_a_gang(cluster, "is-off").await?;
    wait_until_unreachable(&nodes, &dead).await?;
    set_out_of_service(&nodes, &dead, true).await?;
    let elsewhere = runs_elsewhere(&client, "is-off", &dead, "out of service").await?;

    wait_until_forgotten(&client, "is-off", &dead).await?;
    set_out_of_service(&nodes, &dead, false).await?;
    comes_back(cluster, "is-off", &dead).await?;
    finishes(cluster, "is-off", &elsewhere, &ranks).await
}

/// A Job of two whole nodes runs, which is all that its Team may use; then kubelet and driver of the second one's machine are
/// no more, and what ran there is dead.
async fn dies_under_a_gang(
    cluster: &mut Cluster,
    namespace: &str,
) -> Result<(RankProgram, String)> {
    let client = cluster.client();
    prepare_team(&client, namespace, "fabric", 16).await?;
    let workload = Workload {
        namespace,
        name: JOB,
        ranks: 2,
        gpus: 8,
    };
    let (ranks, _) = workload.prepare(cluster).await?;
    let ranks = ranks.hanging_when_lost();
    let spec = workload.pod_spec(&client, &ranks).await?;
    let mut job = builders::indexed_job(JOB, 2, &[], &spec)?;
    // Kubernetes may have the pods of a node that is off fail before the Job is suspended.
    job.spec.as_mut().context("a spec")?.backoff_limit = Some(2);
    let jobs: Api<Job> = Api::namespaced(client.clone(), namespace);
    kubernetes::create(&jobs, &job).await?;
    let gang = gangs::wait_until_running(&client, namespace, &gangs::of_job(JOB)).await?;
    let nodes = gangs::nodes(&client, &gang).await?;
    let dead = nodes.get(1).context("the second rank's node")?.clone();
    // What the machine has on its disk is given back only when it is back.
    if let Some(observer) = cluster.observer() {
        observer.suspend_bounds(true);
    }
    let node = cluster.node(&dead)?;
    node.service(NodePart::Kubelet)?.kill();
    node.service(NodePart::Driver)?.kill();
    ranks.fail(1)?;
    Ok((ranks, dead))
}

/// The node controller says that it hears nothing of it.
async fn wait_until_unreachable(nodes: &Api<Node>, name: &str) -> Result<()> {
    let what = format!("node {name} is unreachable");
    eventually(&what, LIMIT, async || {
        let spec = nodes.get(name).await?.spec.unwrap_or_default();
        let taints = spec.taints.unwrap_or_default();
        let is_unreachable = taints
            .iter()
            .any(|taint| taint.key == "node.kubernetes.io/unreachable");
        Ok(Progress::when(is_unreachable, || format!("{taints:?}")))
    })
    .await
}

/// Kubernetes has deleted the pods that were on the machine. Were it back before, they would be charged beside those that run
/// elsewhere until its kubelet has ended them.
async fn wait_until_forgotten(client: &Client, namespace: &str, node: &str) -> Result<()> {
    let pods: Api<Pod> = Api::namespaced(client.clone(), namespace);
    let on_node = ListParams::default().fields(&format!("spec.nodeName={node}"));
    let what = format!("the pods on node {node} are gone");
    eventually(&what, SLOW_LIMIT, async || {
        let left = pods.list(&on_node).await?.items;
        let left: Vec<String> = left.iter().map(ResourceExt::name_any).collect();
        Ok(Progress::when(left.is_empty(), || format!("{left:?}")))
    })
    .await
}

/// An administrator says that the machine is off, or is on again.
async fn set_out_of_service(nodes: &Api<Node>, name: &str, is_off: bool) -> Result<()> {
    let spec = nodes.get(name).await?.spec.unwrap_or_default();
    let mut taints = spec.taints.unwrap_or_default();
    taints.retain(|taint| taint.key != OUT_OF_SERVICE);
    if is_off {
        taints.push(Taint {
            key: OUT_OF_SERVICE.to_owned(),
            value: Some("nodeshutdown".to_owned()),
            effect: "NoExecute".to_owned(),
            ..Taint::default()
        });
    }
    let patch = Patch::Merge(json!({"spec": {"taints": taints}}));
    let parameters = PatchParams::default();
    nodes.patch(name, &parameters, &patch).await.map(drop)?;
    Ok(())
}

/// The attempt is evicted once, for its node, and the next one runs whole on others. Its pods.
async fn runs_elsewhere(
    client: &Client,
    namespace: &str,
    dead: &str,
    how: &str,
) -> Result<Vec<String>> {
    let gang = gangs::of_job(JOB);
    let (_, eviction) = wait_for_eviction(client, namespace, &gang, Reason::NodeLost).await?;
    ensure!(eviction.attempt == 1, "{eviction:?}");
    gangs::ensure_says(&eviction.message, &["rank 1", dead])?;
    ensure!(eviction.message.contains(how), "{}", eviction.message);
    let gang = gangs::wait_until_running_again(client, namespace, &gang, 2).await?;
    let nodes = gangs::nodes(client, &gang).await?;
    ensure!(
        nodes.len() == 2 && nodes.iter().all(|node| node != dead),
        "it runs on {nodes:?}, and {dead} is dead"
    );
    pods_of_second_attempt(client, &gang).await
}

async fn pods_of_second_attempt(client: &Client, gang: &Gang) -> Result<Vec<String>> {
    let attempt = gang.status.as_ref().map(|status| status.attempt);
    ensure!(attempt == Some(2), "it took more: {attempt:?}");
    let pods = gangs::pods(client, gang).await?.into_values();
    Ok(pods.filter_map(|pod| pod.uid()).collect())
}

/// The machine boots. Once its driver has answered the node counts again, and nothing that it had is anybody's: the Team is
/// charged what its gang has elsewhere, all the time.
async fn comes_back(cluster: &mut Cluster, namespace: &str, name: &str) -> Result<()> {
    let client = cluster.client();
    let node = cluster.node(name)?;
    node.start_kubelet()?;
    node.start_driver()?;
    let nodes: Api<Node> = Api::all(client.clone());
    let devices: Api<NodeDevices> = Api::all(client.clone());
    let queues: Api<Queue> = Api::namespaced(client.clone(), namespace);
    let records = cluster.node(name)?.driver_records();
    let what = format!("node {name} is back, and holds nothing");
    eventually(&what, SLOW_LIMIT, async || {
        let queue = queues.get(namespace).await?.status.unwrap_or_default();
        let used = queue.limits.iter().map(|it| it.used.0.parse::<u32>());
        let used: u32 = used.sum::<Result<u32, _>>()?;
        if used > 16 {
            let more = anyhow::anyhow!("Team {namespace} uses {used} GPUs, its gang has 16");
            return Ok(Progress::Never(more));
        }
        let uid = nodes.get(name).await?.uid();
        let object = devices.get(name).await?;
        let answered = object.status.as_ref().is_some_and(|status| {
            Some(&status.uid) == object.metadata.uid.as_ref()
                && Some(status.observed_generation) == object.metadata.generation
                && status.held.is_empty()
        });
        let spec = &object.spec;
        let is_well = Some(&spec.node_uid) == uid.as_ref() && !spec.lost && !spec.awaits_driver;
        let left = fs::read_dir(&records)?.count();
        let is_back = used == 16 && is_well && answered && spec.permits.is_empty() && left == 0;
        Ok(Progress::when(is_back, || {
            format!(
                "{used} GPUs used, {left} records, {spec:?}, {:?}",
                object.status
            )
        }))
    })
    .await?;
    if let Some(observer) = cluster.observer() {
        observer.suspend_bounds(false);
    }
    Ok(())
}

/// The same pods of the second attempt run to their end.
async fn finishes(
    cluster: &Cluster,
    namespace: &str,
    pods: &[String],
    ranks: &RankProgram,
) -> Result<()> {
    let client = cluster.client();
    let gang = gangs::of_job(JOB);
    let gang = gangs::wait_until_running_again(&client, namespace, &gang, 2).await?;
    let now = pods_of_second_attempt(&client, &gang).await?;
    ensure!(now == pods, "its pods are others: {pods:?}, then {now:?}");
    ranks.finish()?;
    gangs::wait_for_job(&client, namespace, JOB).await?;
    ranks.ensure_all_met()
}
