//! What goes on while parts of Muster are down, and how the controller goes on after it died in the middle.

use std::{collections::BTreeMap, process::ExitCode, time::Duration};

use anyhow::{Result, ensure};
use k8s_openapi::api::core::v1::Pod;
use kube::{Api, Client, ResourceExt};
use muster_api::GangPhase;
use muster_tests::{
    builders::{self, RankProgram, RankSource, gpu_quota},
    cluster::{Cluster, ClusterOptions},
    gangs,
    gpu_board::Board,
    install::{MusterOptions, Part},
    kubernetes::{self, Progress, eventually},
    node::NodeOptions,
    scenarios, suite,
    workloads::Workload,
};

const LIMIT: Duration = Duration::from_mins(1);

fn main() -> ExitCode {
    let nodes = ["node-0", "node-1"].map(|name| NodeOptions {
        name: name.to_owned(),
        labels: BTreeMap::new(),
        board: Some(Board::H100Nvswitch8),
    });
    let options = ClusterOptions {
        nodes: nodes.to_vec(),
        muster: Some(MusterOptions {
            failpoints: true,
            ..MusterOptions::default()
        }),
        ..ClusterOptions::default()
    };
    let mut all = scenarios![
        a_controller_that_dies_between_the_gangs_status_and_the_first_ungate_is_continued,
        a_running_job_finishes_while_every_part_of_muster_is_down,
    ];
    let unmanaged = scenarios![a_pod_that_is_not_managed_runs_while_every_part_of_muster_is_down];
    all.extend(unmanaged.into_iter().map(suite::Scenario::without_gangs));
    suite::run("outages", options, all)
}

async fn prepare_team(client: &Client, name: &str) -> Result<()> {
    builders::flavor(client, "h100", None).await?;
    builders::team(client, name, None, vec![gpu_quota("h100", 16, None)]).await?;
    builders::namespace(client, name, Some(name)).await
}

async fn a_controller_that_dies_between_the_gangs_status_and_the_first_ungate_is_continued(
    cluster: &mut Cluster,
) -> Result<()> {
    let client = cluster.client();
    prepare_team(&client, "dies").await?;
    let muster = muster(cluster)?;
    muster.stop_part(Part::Controller).await;
    muster.start_with(
        Part::Controller,
        &[("MUSTER_FAILPOINT", "after-gang-status-before-ungate")],
    )?;
    muster.wait_for(Part::Controller).await?;

    let workload = Workload {
        namespace: "dies",
        name: "train",
        ranks: 4,
        gpus: 4,
    };
    let ranks = workload.submit_job(cluster, &[]).await?;
    let muster = self::muster(cluster)?;
    eventually("the controller dies at its failpoint", LIMIT, async || {
        Ok(Progress::when(muster.has_ended(Part::Controller)?, || {
            "it runs".to_owned()
        }))
    })
    .await?;
    let gang = gangs::wait_for_phase(
        &client,
        "dies",
        &gangs::of_job("train"),
        &[GangPhase::Admitted],
        LIMIT,
    )
    .await?;
    let pods: Vec<Pod> = kubernetes::list(&client, Some("dies")).await?;
    let gated = pods.iter().filter(|pod| is_gated(pod)).count();
    ensure!(
        gated == 4,
        "{gated} of 4 pods of {} are gated",
        gang.name_any()
    );

    let muster = self::muster(cluster)?;
    muster.kill(Part::Controller); // what is left of it
    muster.start(Part::Controller).await?;
    gangs::wait_for_phase(
        &client,
        "dies",
        &gangs::of_job("train"),
        &[GangPhase::Running],
        LIMIT,
    )
    .await?;
    ranks.finish()?;
    gangs::wait_for_job(&client, "dies", "train", LIMIT).await?;
    ranks.ensure_all_met()
}

async fn a_running_job_finishes_while_every_part_of_muster_is_down(
    cluster: &mut Cluster,
) -> Result<()> {
    let client = cluster.client();
    prepare_team(&client, "goes-on").await?;
    let workload = Workload {
        namespace: "goes-on",
        name: "train",
        ranks: 2,
        gpus: 8,
    };
    let ranks = workload.submit_job(cluster, &[]).await?;
    gangs::wait_for_phase(
        &client,
        "goes-on",
        &gangs::of_job("train"),
        &[GangPhase::Running],
        LIMIT,
    )
    .await?;
    stop_muster(cluster).await?;
    ranks.finish()?;
    eventually("all ranks have ended", LIMIT, async || {
        ranks.ensure_all_met()?;
        Ok(Progress::Done(()))
    })
    .await?;
    // The kubelet calls a pod terminal only after its driver took the devices back.
    start_drivers(cluster).await?;
    gangs::wait_for_job(&client, "goes-on", "train", LIMIT).await?;
    start_central_parts(cluster).await?;
    gangs::wait_for_phase(
        &client,
        "goes-on",
        &gangs::of_job("train"),
        &[GangPhase::Finished],
        LIMIT,
    )
    .await?;
    Ok(())
}

async fn a_pod_that_is_not_managed_runs_while_every_part_of_muster_is_down(
    cluster: &mut Cluster,
) -> Result<()> {
    let client = cluster.client();
    stop_muster(cluster).await?;
    let result = run_unmanaged_pod(cluster, &client).await;
    start_drivers(cluster).await?;
    start_central_parts(cluster).await?;
    result
}

async fn run_unmanaged_pod(cluster: &Cluster, client: &Client) -> Result<()> {
    builders::namespace(client, "unmanaged", None).await?;
    let peers = builders::peers_directory(cluster.directory(), "unmanaged")?;
    let mut ranks = RankProgram::new(cluster.programs().path("rank"), peers, 1);
    ranks.rank = RankSource::Fixed(0);
    let spec = builders::pod_spec(&ranks.container(&[])?)?;
    let pods: Api<Pod> = Api::namespaced(client.clone(), "unmanaged");
    kubernetes::create(&pods, &builders::pod("web", &[], &[], &spec)?).await?;
    eventually("the pod succeeds", LIMIT, async || {
        let phase = pods
            .get("web")
            .await?
            .status
            .and_then(|status| status.phase);
        Ok(Progress::when(
            phase.as_deref() == Some("Succeeded"),
            || format!("it is {phase:?}"),
        ))
    })
    .await
}

fn muster(cluster: &mut Cluster) -> Result<&mut muster_tests::install::Installation> {
    cluster
        .muster
        .as_mut()
        .ok_or_else(|| anyhow::anyhow!("Muster is not installed"))
}

/// Stops every part of Muster, the drivers included. While the controller is down on purpose, nothing can
/// be given back: the observer's bounds of time stand still.
async fn stop_muster(cluster: &mut Cluster) -> Result<()> {
    if let Some(observer) = cluster.observer() {
        observer.suspend_bounds(true);
    }
    for part in [Part::Controller, Part::Extender, Part::Webhook] {
        muster(cluster)?.stop_part(part).await;
    }
    for node in &mut cluster.nodes {
        node.stop_driver().await;
    }
    Ok(())
}

async fn start_drivers(cluster: &mut Cluster) -> Result<()> {
    for node in &mut cluster.nodes {
        node.start_driver()?;
        node.wait_for_driver().await?;
    }
    Ok(())
}

async fn start_central_parts(cluster: &mut Cluster) -> Result<()> {
    for part in [Part::Webhook, Part::Extender, Part::Controller] {
        muster(cluster)?.start(part).await?;
    }
    if let Some(observer) = cluster.observer() {
        observer.suspend_bounds(false);
    }
    Ok(())
}

fn is_gated(pod: &Pod) -> bool {
    let gates = pod
        .spec
        .as_ref()
        .and_then(|spec| spec.scheduling_gates.as_ref());
    gates.is_some_and(|gates| !gates.is_empty())
}
