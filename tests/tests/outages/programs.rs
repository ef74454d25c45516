//! What goes on while programs of Muster are down.

use std::{collections::BTreeMap, time::Duration};

use anyhow::{Result, ensure};
use k8s_openapi::api::{
    batch::v1::Job,
    core::v1::{ContainerStateTerminated, Pod},
};
use kube::{Api, Client, ResourceExt};
use muster_tests::{
    builders,
    cluster::{Cluster, Program},
    control_plane::ControlPlanePart,
    gangs,
    install::Part,
    kubernetes::{self, LIMIT, Progress, always, eventually},
    scenarios,
    suite::Scenario,
    workloads::{self, Workload},
};

/// How long nothing answers: longer than anybody waits for an answer, and than it takes until a node of which nothing is heard counts as not Ready.
const DOWN: Duration = Duration::from_secs(30);
/// The central parts, in the order in which they are started.
const CENTRAL_PARTS: [Part; 3] = [Part::Webhook, Part::Extender, Part::Controller];

pub(crate) fn scenarios(is_all: bool) -> Vec<Scenario> {
    let mut running = scenarios![running_jobs_finish_while_every_part_of_muster_is_down];
    if is_all {
        let longer = scenarios![gangs_run_on_while_neither_muster_nor_an_api_server_answers];
        // Everything is started anew in it.
        running.extend(longer.into_iter().map(|one| one.with_more_time(2 * LIMIT)));
    }
    let running = running.into_iter().map(Scenario::with_outages);
    let mut all: Vec<Scenario> = running.collect();
    let unmanaged = scenarios![a_pod_that_is_not_managed_runs_while_every_part_of_muster_is_down];
    all.extend(unmanaged.into_iter().map(Scenario::without_gangs));
    all
}

/// Two Jobs run. While webhook, extender and controller are down, the first completes: nothing of it needs them.
/// While the drivers are down, too, the second's ranks finish and the API says so; that its pods succeeded, and with
/// them the Job, the kubelet says only once the node's driver has taken the devices back (`SyncTerminatingPod` in
/// `pkg/kubelet/kubelet.go` of Kubernetes 1.37: "resources must be unprepared after all containers have stopped and
/// before the pod status is changed"). So of the end of a Job this much waits for a driver, whichever it is, and is
/// made up for as soon as that is back.
async fn running_jobs_finish_while_every_part_of_muster_is_down(
    cluster: &mut Cluster,
) -> Result<()> {
    let client = cluster.client();
    builders::team_of_sixteen(&client, "goes-on").await?;
    let [first, second] = ["first", "second"].map(|name| Workload {
        namespace: "goes-on",
        name,
        ranks: 2,
        gpus: 4,
    });
    let first_ranks = first.submit_job(cluster, &[]).await?;
    let second_ranks = second.submit_job(cluster, &[]).await?;
    for name in [first.name, second.name] {
        gangs::wait_until_running(&client, "goes-on", &gangs::of_job(name)).await?;
    }
    let began_with = pod_uids(&client, "goes-on").await?;

    stop_central_parts(cluster).await?;
    first_ranks.finish()?;
    gangs::wait_for_job(&client, "goes-on", first.name).await?;
    first_ranks.ensure_all_met()?;

    stop_drivers(cluster).await;
    second_ranks.finish()?;
    let ended = eventually("all ranks have ended well", LIMIT, async || {
        all_containers_ended_well(&client, &second).await
    })
    .await;
    let still_counts = job_still_counts_its_pods(&client, &second).await;
    start_drivers(cluster).await?;
    ended?;
    still_counts?;
    second_ranks.ensure_all_met()?;
    gangs::wait_for_job(&client, "goes-on", second.name).await?;
    let ended_with = pod_uids(&client, "goes-on").await?;
    ensure!(
        ended_with == began_with,
        "pods were lost or made anew: {began_with:?}, {ended_with:?}"
    );

    start_central_parts(cluster).await?;
    for name in [first.name, second.name] {
        gangs::wait_until_finished(&client, "goes-on", &gangs::of_job(name)).await?;
    }
    Ok(())
}

/// All of Muster is down, and with it the API server and etcd. The kubelets, kube-scheduler and kube-controller-manager go on, and hear of nobody.
async fn gangs_run_on_while_neither_muster_nor_an_api_server_answers(
    cluster: &mut Cluster,
) -> Result<()> {
    let client = cluster.client();
    builders::team_of_sixteen(&client, "unheard").await?;
    let workload = Workload {
        namespace: "unheard",
        name: "train",
        ranks: 2,
        gpus: 4,
    };
    let ranks = workload.submit_job(cluster, &[]).await?;
    let gang = gangs::of_job(workload.name);
    gangs::wait_until_running(&client, "unheard", &gang).await?;
    let began_with = pod_uids(&client, "unheard").await?;

    stop_central_parts(cluster).await?;
    stop_drivers(cluster).await;
    let parts = [ControlPlanePart::ApiServer, ControlPlanePart::Etcd];
    for part in parts {
        cluster.service(Program::ControlPlane(part))?.kill();
    }
    let went_on = always("the ranks go on", DOWN, async || {
        let ended: Vec<String> = (0..workload.ranks)
            .filter_map(|rank| ranks.outcome(rank))
            .collect();
        Ok(Progress::when(ended.is_empty(), || format!("{ended:?}")))
    })
    .await;
    // An API server answers once its etcd does.
    for part in parts.into_iter().rev() {
        cluster
            .service(Program::ControlPlane(part))?
            .start()
            .await?;
    }
    start_drivers(cluster).await?;
    start_central_parts(cluster).await?;
    went_on?;
    let ended_with = pod_uids(&client, "unheard").await?;
    ensure!(
        ended_with == began_with,
        "pods were lost or made anew: {began_with:?}, {ended_with:?}"
    );
    ranks.finish()?;
    gangs::wait_for_job(&client, "unheard", workload.name).await?;
    gangs::wait_until_finished(&client, "unheard", &gang).await?;
    let status = gangs::find(&client, "unheard", &gang).await?;
    let status = status.and_then(|gang| gang.status).unwrap_or_default();
    ensure!(
        status.attempt == 1 && status.evictions.is_empty(),
        "it went on as if nothing had been: {status:?}"
    );
    ranks.ensure_all_met()
}

async fn pod_uids(client: &Client, namespace: &str) -> Result<BTreeMap<String, Option<String>>> {
    let pods: Vec<Pod> = kubernetes::list(client, Some(namespace)).await?;
    let named = pods.into_iter().map(|pod| (pod.name_any(), pod.uid()));
    Ok(named.collect())
}

/// As the kubelets report it to the API server.
async fn all_containers_ended_well(
    client: &Client,
    workload: &Workload<'_>,
) -> Result<Progress<()>> {
    let pods = pods_of_job(client, workload).await?;
    let ends: Vec<Option<ContainerStateTerminated>> = pods
        .into_iter()
        .filter_map(|pod| pod.status?.container_statuses)
        .flatten()
        .map(|container| container.state.unwrap_or_default().terminated)
        .collect();
    let ended_well = |end: &Option<ContainerStateTerminated>| {
        end.as_ref().is_some_and(|ended| ended.exit_code == 0)
    };
    let all = usize::try_from(workload.ranks)?;
    Ok(Progress::when(
        ends.len() == all && ends.iter().all(ended_well),
        || format!("{ends:?}"),
    ))
}

/// No pod is called lost or failed meanwhile: they count as running.
async fn job_still_counts_its_pods(client: &Client, workload: &Workload<'_>) -> Result<()> {
    for pod in pods_of_job(client, workload).await? {
        let phase = pod.status.unwrap_or_default().phase;
        ensure!(phase.as_deref() == Some("Running"), "a pod is {phase:?}");
    }
    let jobs: Api<Job> = Api::namespaced(client.clone(), workload.namespace);
    let status = jobs.get(workload.name).await?.status.unwrap_or_default();
    let active = i32::try_from(workload.ranks)?;
    ensure!(
        status.active == Some(active) && status.failed.is_none_or(|failed| failed == 0),
        "{status:?}"
    );
    Ok(())
}

async fn pods_of_job(client: &Client, workload: &Workload<'_>) -> Result<Vec<Pod>> {
    let pods: Vec<Pod> = kubernetes::list(client, Some(workload.namespace)).await?;
    let is_of_job = |pod: &Pod| {
        let label = pod.labels().get("batch.kubernetes.io/job-name");
        label.is_some_and(|job| job == workload.name)
    };
    Ok(pods.into_iter().filter(is_of_job).collect())
}

async fn a_pod_that_is_not_managed_runs_while_every_part_of_muster_is_down(
    cluster: &mut Cluster,
) -> Result<()> {
    builders::namespace(&cluster.client(), "unmanaged", None).await?;
    stop_central_parts(cluster).await?;
    stop_drivers(cluster).await;
    let result = workloads::run_unmanaged_pod(cluster, "unmanaged").await;
    start_drivers(cluster).await?;
    start_central_parts(cluster).await?;
    result
}

/// While the controller is down on purpose, nothing can be given back: the observer's bounds of time stand still. Until the central parts are back, whatever
/// else is down, no container ends that is not told to finish (S18).
async fn stop_central_parts(cluster: &mut Cluster) -> Result<()> {
    if let Some(observer) = cluster.observer() {
        observer.suspend_bounds(true);
        observer.outage_begins().await?;
    }
    for part in CENTRAL_PARTS.into_iter().rev() {
        cluster.installation()?.stop_part(part).await;
    }
    Ok(())
}

async fn start_central_parts(cluster: &mut Cluster) -> Result<()> {
    for part in CENTRAL_PARTS {
        cluster.installation()?.start(part).await?;
    }
    if let Some(observer) = cluster.observer() {
        observer.outage_is_over().await?;
        observer.suspend_bounds(false);
    }
    Ok(())
}

async fn stop_drivers(cluster: &mut Cluster) {
    for node in &mut cluster.nodes {
        node.stop_driver().await;
    }
}

async fn start_drivers(cluster: &mut Cluster) -> Result<()> {
    for node in &mut cluster.nodes {
        node.start_driver()?;
        node.wait_for_driver().await?;
    }
    Ok(())
}
