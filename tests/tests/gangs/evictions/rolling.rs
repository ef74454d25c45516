//! A StatefulSet whose pods are one gang gets another template.

use std::time::Duration;

use anyhow::{Result, ensure};
use k8s_openapi::api::{apps::v1::StatefulSet, core::v1::Pod};
use kube::{
    Api, ResourceExt,
    api::{Patch, PatchParams},
};
use muster_api::Gang;
use muster_tests::{
    builders,
    cluster::Cluster,
    gangs,
    kubernetes::{self, Progress, eventually},
    scenarios,
    suite::Scenario,
    workloads::Workload,
};
use serde_json::json;

use crate::stage::prepare_team;

pub(super) fn scenarios() -> Vec<Scenario> {
    scenarios![a_rolling_update_of_a_stateful_set_that_is_a_gang_comes_to_its_end]
}

/// The annotation of the template that changes.
const VERSION: &str = "example.com/version";
/// Longest time until all pods run by the new template: its controller replaces one after another, and each costs an attempt.
const ROLL_LIMIT: Duration = Duration::from_secs(120);

/// Its controller ends one pod and waits until the next one is ready, which waits for the gang, which waits for its pods.
async fn a_rolling_update_of_a_stateful_set_that_is_a_gang_comes_to_its_end(
    cluster: &mut Cluster,
) -> Result<()> {
    let client = cluster.client();
    prepare_team(&client, "rolls", "fabric", 8).await?;
    let workload = Workload {
        namespace: "rolls",
        name: "serve",
        ranks: 3,
        gpus: 2,
    };
    let (ranks, _) = workload.prepare(cluster).await?;
    let ranks = ranks.hanging_when_lost();
    let spec = workload.pod_spec(&client, &ranks).await?;
    let sets: Api<StatefulSet> = Api::namespaced(client.clone(), "rolls");
    kubernetes::create(&sets, &builders::gang_stateful_set("serve", 3, &spec)?).await?;
    let gang = gangs::wait_until_running(&client, "rolls", &workload.gang()).await?;

    let version = json!({"spec": {"template": {"metadata": {"annotations": {VERSION: "2"}}}}});
    let parameters = PatchParams::default();
    sets.patch("serve", &parameters, &Patch::Merge(&version))
        .await?;
    eventually("all pods are of version 2 and run", ROLL_LIMIT, async || {
        let pods: Vec<Pod> = kubernetes::list(&client, Some("rolls")).await?;
        let is_new = |pod: &&Pod| pod.annotations().get(VERSION).is_some_and(|it| it == "2");
        let new = pods.iter().filter(is_new).count();
        let set = sets.get("serve").await?.status.unwrap_or_default();
        let gang = gangs::find(&client, "rolls", &workload.gang()).await?;
        let gang = gang.and_then(|gang| gang.status).unwrap_or_default();
        let is_done = new == 3
            && pods.len() == 3
            && set.ready_replicas == Some(3)
            && gang.phase == muster_api::GangPhase::Running;
        Ok(Progress::when(is_done, || {
            let queue = gang.queue.as_ref();
            format!(
                "{new} of {} pods are new; {set:?}; the gang is {:?} in attempt {}, {queue:?}, {:?}",
                pods.len(),
                gang.phase,
                gang.attempt,
                gang.conditions,
            )
        }))
    })
    .await?;
    let all: Vec<Gang> = kubernetes::list(&client, Some("rolls")).await?;
    let uids: Vec<Option<String>> = all.iter().map(ResourceExt::uid).collect();
    ensure!(uids == [gang.uid()], "it is another gang now: {all:?}");
    let gang = gangs::wait_until_running(&client, "rolls", &workload.gang()).await?;
    let status = gang.status.unwrap_or_default();
    eprintln!(
        "measured: a rolling update of a StatefulSet of 3 pods took {} attempts",
        status.attempt - 1
    );
    ensure!(status.attempt > 1, "nothing was evicted");
    // What those said that are gone: each rank was replaced.
    let gpus = ranks.gpus()?;
    ensure!(
        gpus.values().all(|gpus| gpus.len() == 2),
        "two GPUs each: {gpus:?}"
    );
    Ok(())
}
