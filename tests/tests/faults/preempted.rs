//! A rank that kube-scheduler preempts, in favour of a pod of higher priority that is not Muster's.
//!
//! The pod wants the CPU of the rank's node, and has no claims: Muster has no say in it. kube-scheduler ends the one rank, and the others would wait for it
//! for ever. So the gang is started anew whole, once, elsewhere, and says why. That the eviction API takes one is `evictions/taken.rs` in `gangs`.

use anyhow::{Context, Result, bail, ensure};
use k8s_openapi::{
    api::{
        core::v1::{Node, Pod, PodSpec},
        scheduling::v1::PriorityClass,
    },
    apimachinery::pkg::api::resource::Quantity,
};
use kube::{Api, Client, ResourceExt};
use muster_api::Reason;
use muster_tests::{
    builders::{self, RankProgram, RankSource, peers_directory},
    cluster::Cluster,
    events,
    evictions::wait_for_eviction,
    gangs,
    kubernetes::{self, LIMIT, Progress, eventually},
    scenarios,
    suite::Scenario,
    workloads::Workload,
};
use serde_json::json;

use crate::stage::{Running, prepare_team};

/// Namespace and Team of the gang.
const NAMESPACE: &str = "preempted";
/// Namespace of the pod that is preferred, and name of its PriorityClass.
const PREFERRED: &str = "preferred";
/// The part of a node's CPU that each of them asks for, in percent: no two have room on one node.
const SHARE_PERCENT: i64 = 60;
/// The rank that is preempted.
const TAKEN: u32 = 1;

pub(crate) fn scenarios() -> Vec<Scenario> {
    let scenarios = scenarios![a_gang_of_which_kube_scheduler_preempted_a_rank_restarts_whole_once];
    let scenarios = scenarios.into_iter();
    scenarios.map(|one| one.with_more_time(LIMIT)).collect()
}

async fn a_gang_of_which_kube_scheduler_preempted_a_rank_restarts_whole_once(
    cluster: &mut Cluster,
) -> Result<()> {
    let client = cluster.client();
    let classes: Api<PriorityClass> = Api::all(client.clone());
    let class: PriorityClass = serde_json::from_value(json!({
        "metadata": {"name": PREFERRED},
        "value": 1_000_000,
        "preemptionPolicy": "PreemptLowerPriority",
    }))?;
    kubernetes::create(&classes, &class).await?;
    let judged = is_preempted(cluster).await;
    kubernetes::delete(&classes, PREFERRED).await?;
    judged
}

async fn is_preempted(cluster: &Cluster) -> Result<()> {
    let client = cluster.client();
    prepare_team(&client, NAMESPACE, 8).await?;
    builders::namespace(&client, PREFERRED, None).await?;
    let workload = Workload {
        namespace: NAMESPACE,
        name: "train",
        ranks: 2,
        gpus: 2,
    };
    // They are all on this machine, and have the same.
    let first = cluster.nodes.first().context("a node")?;
    let cpu = share_of(&client, first.name()).await?;
    let running = Running::start_where(cluster, workload, RankProgram::hanging_when_lost, |spec| {
        asking_for(spec, &cpu)
    });
    let running = running.await?;
    let gang = running.now(&client).await?;
    let members = gangs::pods(&client, &gang).await?;
    let taken = members.get(&TAKEN).context("the rank's pod")?.name_any();
    let nodes = gangs::nodes(&client, &gang).await?;
    let node = nodes.get(usize::try_from(TAKEN)?);
    let node = node.context("the rank's node")?;

    let preferred = create_preferred(cluster, &cpu, node).await?;
    let reason = Reason::PodDisrupted;
    let (_, eviction) = wait_for_eviction(&client, NAMESPACE, &running.gang(), reason).await?;
    let rank = format!("rank {TAKEN}");
    gangs::ensure_says(&eviction.message, &[&rank, &taken, "kube-scheduler"])?;
    events::wait_for_reason(&client, NAMESPACE, "Gang", &running.gang(), reason).await?;
    preferred_runs(&client).await?;

    running.runs_again(cluster, 2, 2 * LIMIT, &[]).await?;
    let gang = running.now(&client).await?;
    let again = gangs::nodes(&client, &gang).await?;
    ensure!(
        !again.contains(node),
        "there is no room on {node}: {again:?}"
    );
    running.finishes(&client).await?;
    let status = running.now(&client).await?.status.unwrap_or_default();
    let [only] = status.evictions.as_slice() else {
        bail!("it was to be evicted once: {:?}", status.evictions);
    };
    ensure!(
        only.reason == reason && status.attempt == 2 && status.failed_attempts == 0,
        "once, and it is no failure: {status:?}"
    );
    preferred.finish()
}

/// The pod that is preferred: it may run on this node alone, and there is room for it only if a rank goes.
async fn create_preferred(cluster: &Cluster, cpu: &Quantity, node: &str) -> Result<RankProgram> {
    let peers = peers_directory(cluster.directory(), PREFERRED)?;
    let mut program = RankProgram::new(cluster.programs().path("rank"), peers, 1);
    program.rank = RankSource::Fixed(0);
    let program = program.until_finished();
    let spec = builders::pod_spec(&program.container(&[])?)?;
    let mut spec = asking_for(builders::on_node(spec, node), cpu);
    spec.priority_class_name = Some(PREFERRED.to_owned());
    let pods: Api<Pod> = Api::namespaced(cluster.client(), PREFERRED);
    let pod = builders::pod("web", &[], &[], &spec)?;
    kubernetes::create(&pods, &pod).await?;
    Ok(program)
}

async fn preferred_runs(client: &Client) -> Result<()> {
    let pods: Api<Pod> = Api::namespaced(client.clone(), PREFERRED);
    eventually("the pod that is preferred runs", LIMIT, async || {
        let status = pods.get("web").await?.status.unwrap_or_default();
        let runs = status.phase.as_deref() == Some("Running");
        Ok(Progress::when(runs, || format!("{status:?}")))
    })
    .await
}

/// The share of a node's CPU that each asks for.
async fn share_of(client: &Client, node: &str) -> Result<Quantity> {
    let nodes: Api<Node> = Api::all(client.clone());
    let status = nodes.get(node).await?.status.unwrap_or_default();
    let allocatable = status.allocatable.unwrap_or_default();
    let cpu = allocatable.get("cpu").context("a node has CPU")?;
    let millis = match cpu.0.strip_suffix('m') {
        Some(millis) => millis.parse::<i64>(),
        None => cpu.0.parse::<i64>().map(|cores| cores * 1_000),
    };
    let millis = millis.with_context(|| format!("node {node} has {cpu:?} of CPU"))?;
    Ok(Quantity(format!("{}m", millis * SHARE_PERCENT / 100)))
}

/// Lets the pod's first container ask for so much CPU.
fn asking_for(mut spec: PodSpec, cpu: &Quantity) -> PodSpec {
    if let Some(container) = spec.containers.first_mut() {
        let resources = container.resources.get_or_insert_default();
        let requests = resources.requests.get_or_insert_default();
        requests.insert("cpu".to_owned(), cpu.clone());
    }
    spec
}
