//! kube-scheduler asks the extender: what it is asked about, and what it refuses.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::{
    Api, Client,
    api::{Patch, PatchParams},
};
use muster_api::{Reason, conditions};
use muster_tests::{
    builders,
    cluster::Cluster,
    gangs,
    install::Part,
    kubernetes::{self, LIMIT, Progress, always, eventually},
    scenarios,
    suite::Scenario,
    workloads::{self, Workload},
};
use serde_json::json;

use crate::NODES;

pub(crate) fn scenarios() -> Vec<Scenario> {
    scenarios![
        the_extender_is_never_asked_about_pods_without_the_marker,
        a_cordon_between_two_binds_stops_the_rest_of_the_gang,
    ]
}

async fn a_cordon_between_two_binds_stops_the_rest_of_the_gang(
    cluster: &mut Cluster,
) -> Result<()> {
    let client = cluster.client();
    builders::team_of_sixteen(&client, "cordon").await?;
    // It dies once it has let one pod go: the other is still gated.
    let muster = cluster.installation()?;
    muster.arm_controller("before-second-ungate").await?;
    let workload = Workload {
        namespace: "cordon",
        name: "train",
        ranks: 2,
        gpus: 8,
    };
    let ranks = workload.submit_job(cluster, &[]).await?;
    let muster = cluster.installation()?;
    muster.wait_until_controller_died().await?;
    let bound = eventually("one pod is bound", LIMIT, async || {
        let pods: Vec<Pod> = kubernetes::list(&client, Some("cordon")).await?;
        let bound = pods.into_iter().find_map(|pod| pod.spec?.node_name);
        Ok(bound.map_or_else(|| Progress::NotYet("none is".to_owned()), Progress::Done))
    })
    .await?;
    let mut others = NODES.into_iter().filter(|node| *node != bound);
    let other = others.next().context("another node")?;
    set_cordon(&client, other, true).await?;
    let result = async {
        let muster = cluster.installation()?;
        muster.start(Part::Controller).await?;
        degraded(&client, "cordon", &gangs::of_job("train")).await?;
        always(
            "no further rank is bound",
            Duration::from_secs(3),
            async || {
                let pods: Vec<Pod> = kubernetes::list(&client, Some("cordon")).await?;
                let nodes: Vec<String> = pods
                    .into_iter()
                    .filter_map(|pod| pod.spec?.node_name)
                    .collect();
                Ok(Progress::when(nodes == [bound.clone()], || {
                    format!("{nodes:?}")
                }))
            },
        )
        .await
    }
    .await;
    set_cordon(&client, other, false).await?;
    result?;
    // With its place back the gang starts after all.
    gangs::wait_until_running(&client, "cordon", &gangs::of_job("train")).await?;
    ranks.finish()?;
    gangs::wait_for_job(&client, "cordon", "train").await
}

async fn set_cordon(client: &Client, node: &str, cordoned: bool) -> Result<()> {
    let nodes: Api<Node> = Api::all(client.clone());
    let patch = Patch::Merge(json!({"spec": {"unschedulable": cordoned}}));
    nodes.patch(node, &PatchParams::default(), &patch).await?;
    Ok(())
}

/// Waits until the Gang says that it cannot start as planned.
async fn degraded(client: &Client, namespace: &str, gang: &str) -> Result<()> {
    eventually(
        "the Gang is Degraded because a place is lost",
        LIMIT,
        async || {
            let gang = gangs::find(client, namespace, gang)
                .await?
                .context("there is no such Gang")?;
            let conditions = gang.status.unwrap_or_default().conditions;
            let is_told = conditions.iter().any(|condition| {
                condition.type_ == conditions::DEGRADED
                    && condition.status == "True"
                    && condition.reason == Reason::PlaceLost.as_str()
            });
            Ok(Progress::when(is_told, || format!("{conditions:?}")))
        },
    )
    .await
}

async fn the_extender_is_never_asked_about_pods_without_the_marker(
    cluster: &mut Cluster,
) -> Result<()> {
    let client = cluster.client();
    builders::team_of_sixteen(&client, "unmarked").await?;
    let before = requests(cluster).await?;
    ensure!(before == 0, "it was asked {before} times before");
    workloads::run_unmanaged_pod(cluster, "unmarked").await?;
    let after = requests(cluster).await?;
    ensure!(after == 0, "it was asked {after} times");

    // And it is asked about those that carry it.
    let workload = Workload {
        namespace: "unmarked",
        name: "marked",
        ranks: 2,
        gpus: 1,
    };
    let ranks = workload.submit_job(cluster, &[]).await?;
    gangs::wait_until_running(&client, "unmarked", &gangs::of_job("marked")).await?;
    ranks.finish()?;
    let asked = requests(cluster).await?;
    ensure!(asked >= 2, "it was asked {asked} times about two pods");
    gangs::wait_for_job(&client, "unmarked", "marked").await
}

/// Requests that the extender has answered since its start.
async fn requests(cluster: &mut Cluster) -> Result<u64> {
    let metrics = cluster.installation()?.metrics(Part::Extender).await?;
    let lines = metrics
        .lines()
        .filter(|line| line.starts_with("muster_extender_requests_total{"));
    lines
        .map(|line| {
            let number = line.rsplit(' ').next().unwrap_or_default();
            number.parse::<u64>().with_context(|| line.to_owned())
        })
        .sum()
}
