//! kube-scheduler asks the extender: what it is asked about, and what it refuses.

use std::{collections::BTreeMap, time::Duration};

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::{
    Api, Client, ResourceExt,
    api::{Patch, PatchParams},
};
use muster_api::{Reason, conditions};
use muster_tests::{
    builders,
    cluster::Cluster,
    events, gangs,
    install::Part,
    kubernetes::{self, LIMIT, Progress, always, eventually},
    scenarios,
    suite::Scenario,
    workloads::{self, Workload},
};
use serde_json::json;

use crate::{identities, policies::bind};

pub(crate) fn scenarios() -> Vec<Scenario> {
    scenarios![
        the_extender_is_never_asked_about_pods_without_the_marker,
        a_cordon_between_two_binds_stops_the_rest_of_the_gang,
    ]
}

/// Three ranks: a launcher without GPUs that is bound; beside it a worker that is let go, on a node that is well; and a
/// worker whose node is cordoned. The controller has let all of them go, and the second's own node takes it: only the
/// extender knows that its gang has lost a place.
async fn a_cordon_between_two_binds_stops_the_rest_of_the_gang(
    cluster: &mut Cluster,
) -> Result<()> {
    let client = cluster.client();
    builders::team_of_sixteen(&client, "cordon").await?;
    cluster.control_plane.stop_scheduler().await;
    let workers = Workload {
        namespace: "cordon",
        name: "train",
        ranks: 3,
        gpus: 8,
    };
    let launcher = Workload { gpus: 0, ..workers };
    let (ranks, spec) = workers.prepare(cluster).await?;
    let launcher_spec = launcher.pod_spec(&client, &ranks).await?;
    launcher
        .create_labelled_pod(&client, &launcher_spec, 0)
        .await?;
    for number in 1..workers.ranks {
        workers.create_labelled_pod(&client, &spec, number).await?;
    }
    let planned = wait_until_let_go(&client, &workers).await?;
    let launchers_node = planned.get("train-0").context("the launcher")?.clone();
    let elsewhere = planned.iter().find(|(_, node)| **node != launchers_node);
    let (_, other) = elsewhere.context("a worker on another node")?;
    let uri = "/api/v1/namespaces/cordon/pods/train-0/binding";
    let scheduler = identities::scheduler(cluster).await?;
    bind(&scheduler, uri, "train-0", &json!({}), &launchers_node).await?;

    set_cordon(&client, other, true).await?;
    let result = async {
        let configuration = cluster.installation()?.scheduler_configuration().await?;
        let control_plane = &mut cluster.control_plane;
        control_plane.start_scheduler(Some(configuration)).await?;
        let beside = planned
            .iter()
            .find(|(pod, node)| *pod != "train-0" && **node == launchers_node);
        let (beside, _) = beside.context("a worker beside the launcher")?;
        let told = Reason::PlaceLost.as_str();
        events::wait_for_message(&client, "cordon", beside, told).await?;
        degraded(&client, "cordon", &workers.gang()).await?;
        always(
            "no further rank is bound",
            Duration::from_secs(3),
            async || {
                let pods: Vec<Pod> = kubernetes::list(&client, Some("cordon")).await?;
                let bound: Vec<String> = pods
                    .into_iter()
                    .filter(|pod| {
                        pod.spec
                            .as_ref()
                            .is_some_and(|spec| spec.node_name.is_some())
                    })
                    .map(|pod| pod.name_any())
                    .collect();
                Ok(Progress::when(bound == ["train-0"], || {
                    format!("{bound:?}")
                }))
            },
        )
        .await
    }
    .await;
    set_cordon(&client, other, false).await?;
    result?;
    // With its place back the gang starts after all.
    gangs::wait_until_running(&client, "cordon", &workers.gang()).await?;
    ranks.finish()?;
    gangs::wait_until_finished(&client, "cordon", &workers.gang()).await
}

/// Waits until no pod of the gang is gated any more, and returns where each is planned.
async fn wait_until_let_go(
    client: &Client,
    workload: &Workload<'_>,
) -> Result<BTreeMap<String, String>> {
    let what = "all ranks are let go";
    let gang = eventually(what, LIMIT, async || {
        let pods: Vec<Pod> = kubernetes::list(client, Some(workload.namespace)).await?;
        let is_gated = |pod: &&Pod| {
            let spec = pod.spec.as_ref();
            let gates = spec.and_then(|spec| spec.scheduling_gates.as_ref());
            gates.is_some_and(|gates| !gates.is_empty())
        };
        let gated = pods.iter().filter(is_gated).count();
        let gang = gangs::find(client, workload.namespace, &workload.gang()).await?;
        Ok(match gang {
            Some(gang) if gated == 0 => Progress::Done(gang),
            _ => Progress::NotYet(format!("{gated} are gated")),
        })
    })
    .await?;
    let placement = gang.status.clone().and_then(|status| status.placement);
    let placement = placement.context("the gang has a placement")?;
    let mut planned = BTreeMap::new();
    for (rank, pod) in gangs::pods(client, &gang).await? {
        let node = placement.node_of(usize::try_from(rank)?);
        let node = node.with_context(|| format!("rank {rank} has a place"))?;
        planned.insert(pod.name_any(), node.node.clone());
    }
    Ok(planned)
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
pub(crate) async fn requests(cluster: &mut Cluster) -> Result<u64> {
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
