//! A Job that may start with fewer pods than all.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::Pod;
use kube::{Client, ResourceExt};
use muster_api::{conditions, keys};
use muster_tests::{
    builders::{self, RankProgram},
    cluster::Cluster,
    gangs,
    kubernetes::{self, Progress, always},
    scenarios,
    suite::Scenario,
    workloads::Workload,
};

use crate::stage::prepare_team;

pub(crate) fn scenarios() -> Vec<Scenario> {
    scenarios![a_job_starts_with_the_four_of_its_six_pods_that_fit_and_runs_the_others_next]
}

/// The label by which Kubernetes numbers the pods of an Indexed Job.
const INDEX: &str = "batch.kubernetes.io/job-completion-index";

/// Four of the eight GPUs are taken. When they come free the attempt does not grow: the other pods are for the next one.
async fn a_job_starts_with_the_four_of_its_six_pods_that_fit_and_runs_the_others_next(
    cluster: &mut Cluster,
) -> Result<()> {
    let client = cluster.client();
    prepare_team(&client, "partial", "solo", 8).await?;
    let taker = Workload {
        namespace: "partial",
        name: "taker",
        ranks: 1,
        gpus: 4,
    };
    let (taker_ranks, spec) = taker.prepare(cluster).await?;
    taker.create_labelled_pods(&client, &spec).await?;
    gangs::wait_until_running(&client, "partial", &taker.gang()).await?;

    let ranks = submit(cluster).await?;
    let elastic = gangs::of_job("elastic");
    let gang = gangs::wait_until_running(&client, "partial", &elastic).await?;
    let status = gang.status.context("a status")?;
    let mut told = status.conditions.iter();
    let told = told.find(|it| it.type_ == conditions::ADMITTED);
    let told = told.context("a condition says that it is admitted")?;
    gangs::ensure_says(&told.message, &["the first 4 of 6 ranks"])?;
    first_four_run(&client).await?;
    ensure!(gangs::charged(&client).await?.get("partial") == Some(&8_000));

    taker_ranks.finish()?;
    gangs::wait_until_finished(&client, "partial", &taker.gang()).await?;
    let still = Duration::from_secs(2);
    always("the attempt does not grow", still, async || {
        first_four_run(&client).await?;
        Ok(Progress::Done(()))
    })
    .await?;
    ensure!(gangs::charged(&client).await?.get("partial") == Some(&4_000));

    ranks.finish()?;
    gangs::wait_for_job(&client, "partial", "elastic").await?;
    let gang = gangs::find(&client, "partial", &elastic).await?;
    let status = gang.and_then(|gang| gang.status).context("a status")?;
    ensure!(
        status.attempt == 2 && status.evictions.is_empty(),
        "attempt {}, {:?}",
        status.attempt,
        status.evictions
    );
    for (index, pod) in pods_by_index(&client).await? {
        let (attempt, count) = if index < 4 { ("1", "4") } else { ("2", "2") };
        ensure_told(index, &pod, attempt, count)?;
    }
    for (rank, result) in ranks.results()? {
        let started_with = if rank < 4 { 0..4 } else { 4..6 };
        let peers: Vec<u32> = started_with.filter(|peer| *peer != rank).collect();
        let met: Vec<u32> = serde_json::from_value(result["peers"].clone())?;
        ensure!(
            result["outcome"] == "Finished" && met == peers,
            "rank {rank} should have met {peers:?}: {result}"
        );
    }
    let gpus = ranks.gpus()?;
    let first_four: BTreeSet<&String> = gpus.range(..4).flat_map(|(_, gpus)| gpus).collect();
    ensure!(
        gpus.values().all(|gpus| gpus.len() == 1) && first_four.len() == 4,
        "a GPU each: {gpus:?}"
    );
    Ok(())
}

/// A Job of six ranks with a GPU each, which may start with four.
async fn submit(cluster: &Cluster) -> Result<RankProgram> {
    let client = cluster.client();
    let elastic = Workload {
        namespace: "partial",
        name: "elastic",
        ranks: 6,
        gpus: 1,
    };
    let (ranks, _) = elastic.prepare(cluster).await?;
    let ranks = ranks.of_those_admitted();
    let spec = elastic.pod_spec(&client, &ranks).await?;
    let may_be_less = [(keys::MIN_COUNT, "4")];
    let job = builders::indexed_job("elastic", 6, &may_be_less, &spec)?;
    kubernetes::create(&kube::Api::namespaced(client, "partial"), &job).await?;
    Ok(ranks)
}

/// Ranks 0 to 3 are bound and know how many they are; the others are gated and know nothing.
async fn first_four_run(client: &Client) -> Result<()> {
    let pods = pods_by_index(client).await?;
    ensure!(pods.keys().copied().eq(0..6), "{:?}", pods.keys());
    for (index, pod) in pods {
        let spec = pod.spec.as_ref().context("a spec")?;
        if index < 4 {
            ensure_told(index, &pod, "1", "4")?;
            let node = spec.node_name.as_deref();
            ensure!(node == Some("solo"), "index {index} is on {node:?}");
            continue;
        }
        let mut gates = spec.scheduling_gates.iter().flatten();
        let is_gated = gates.any(|gate| gate.name == keys::ADMISSION_GATE);
        let is_told = pod.annotations().contains_key(keys::ADMITTED_COUNT);
        ensure!(
            is_gated && !is_told && spec.node_name.is_none(),
            "index {index} should wait: {:?}, {spec:?}",
            pod.annotations()
        );
    }
    Ok(())
}

/// The pod knows its rank, its attempt and how many start with it.
fn ensure_told(index: u32, pod: &Pod, attempt: &str, count: &str) -> Result<()> {
    let rank = index.to_string();
    for (key, expected) in [
        (keys::RANK, rank.as_str()),
        (keys::ATTEMPT, attempt),
        (keys::ADMITTED_COUNT, count),
    ] {
        let told = pod.annotations().get(key).map(String::as_str);
        ensure!(
            told == Some(expected),
            "index {index}: {key} is {told:?}, not {expected}"
        );
    }
    Ok(())
}

async fn pods_by_index(client: &Client) -> Result<BTreeMap<u32, Pod>> {
    let pods: Vec<Pod> = kubernetes::list(client, Some("partial")).await?;
    let numbered = pods.into_iter().filter_map(|pod| {
        let index = pod.labels().get(INDEX)?.parse();
        Some(index.map(|index| (index, pod)))
    });
    Ok(numbered.collect::<Result<_, _>>()?)
}
