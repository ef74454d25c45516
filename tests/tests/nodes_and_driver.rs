//! The driver on real kubelets, without a controller: the chart is installed in mode Observe, in which the
//! driver prepares what kube-scheduler allocates. What the driver does with permits is in `permits`.

use std::{process::ExitCode, time::Duration};

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::{
    core::v1::Pod,
    resource::v1::{ResourceClaimTemplate, ResourceSlice},
};
use kube::{
    Api, Client, ResourceExt,
    api::{DeleteParams, ListParams},
};
use muster_api::keys;
use muster_tests::{
    builders::{self, RankProgram, RankSource},
    cluster::{Cluster, ClusterOptions},
    gpu_board::Board,
    install::MusterOptions,
    kubernetes::{self, Progress, eventually},
    node::NodeOptions,
    scenarios, suite,
};

const LIMIT: Duration = Duration::from_mins(1);
const NODE: &str = "t4";

fn main() -> ExitCode {
    let options = ClusterOptions {
        nodes: vec![NodeOptions {
            name: NODE.to_owned(),
            board: Some(Board::T4Pair),
            ..NodeOptions::default()
        }],
        muster: Some(MusterOptions {
            parts: Vec::new(),
            values: vec!["mode=Observe".to_owned()],
            ..MusterOptions::default()
        }),
        ..ClusterOptions::default()
    };
    let scenarios = scenarios![
        every_gpu_is_published_under_its_name,
        a_pod_with_a_claim_gets_the_gpu_that_was_allocated,
        a_pod_outlives_a_crash_of_the_driver_and_a_restart_of_the_kubelet,
        the_successor_of_a_force_deleted_pod_waits_until_its_gpu_is_free,
    ];
    let scenarios = scenarios.into_iter().map(suite::Scenario::without_gangs);
    suite::run("nodes_and_driver", options, scenarios.collect())
}

async fn every_gpu_is_published_under_its_name(cluster: &mut Cluster) -> Result<()> {
    wait_for_devices(&cluster.client(), &["gpu-0", "gpu-1"]).await?;
    start(cluster, "published", 0).await.map(drop)
}

async fn a_pod_with_a_claim_gets_the_gpu_that_was_allocated(cluster: &mut Cluster) -> Result<()> {
    let (pods, ranks) = start(cluster, "plain", 2).await?;
    wait_for_phase(&pods, "plain", "Running").await?;
    ranks.finish()?;
    wait_for_phase(&pods, "plain", "Succeeded").await?;
    let mut given = ranks.gpus()?.remove(&0).context("rank 0 reported")?;
    let mut all = cluster.node(NODE)?.gpu_uuids();
    given.sort();
    all.sort();
    ensure!(
        given == all,
        "the pod was given {given:?}, the node has {all:?}"
    );
    wait_until_no_cdi_files(cluster).await
}

async fn a_pod_outlives_a_crash_of_the_driver_and_a_restart_of_the_kubelet(
    cluster: &mut Cluster,
) -> Result<()> {
    let client = cluster.client();
    let (pods, ranks) = start(cluster, "outlives", 2).await?;
    let before = wait_for_phase(&pods, "outlives", "Running").await?;
    let node = cluster.node(NODE)?;
    node.crash_driver().await?;
    node.restart_kubelet().await?;
    // The kubelet deletes all slices of the node at its start.
    wait_for_devices(&client, &["gpu-0", "gpu-1"]).await?;
    let after = wait_for_phase(&pods, "outlives", "Running").await?;
    ensure!(
        restarts(&before) == restarts(&after),
        "its container was restarted"
    );
    ranks.finish()?;
    wait_for_phase(&pods, "outlives", "Succeeded").await?;
    wait_until_no_cdi_files(cluster).await
}

async fn the_successor_of_a_force_deleted_pod_waits_until_its_gpu_is_free(
    cluster: &mut Cluster,
) -> Result<()> {
    let (pods, _) = start(cluster, "first", 2).await?;
    wait_for_phase(&pods, "first", "Running").await?;
    let node = cluster.node(NODE)?;
    node.set_runtime_faults(&serde_json::json!({"hangStop": [{"pod": "first"}]}))?;
    let at_once = DeleteParams::default().grace_period(0);
    pods.delete("first", &at_once).await?;
    let (successors, ranks) = start(cluster, "second", 2).await?;
    // The API says that the GPUs are free; the process that uses them lives. The observer (S3) sees to it
    // that the successor does not start before that process is gone.
    kubernetes::always(
        "the successor does not run",
        Duration::from_secs(5),
        async || {
            let pod = successors.get("second").await?;
            let phase = pod.status.and_then(|status| status.phase);
            Ok(Progress::when(phase.as_deref() == Some("Pending"), || {
                format!("{phase:?}")
            }))
        },
    )
    .await?;
    cluster
        .node(NODE)?
        .set_runtime_faults(&serde_json::json!({}))?;
    wait_for_phase(&successors, "second", "Running").await?;
    ranks.finish()?;
    wait_for_phase(&successors, "second", "Succeeded").await?;
    wait_until_no_cdi_files(cluster).await
}

/// Makes a namespace and in it a pod of the same name that runs until it is told to finish, with this many
/// GPUs.
async fn start(cluster: &Cluster, name: &str, gpus: u32) -> Result<(Api<Pod>, RankProgram)> {
    let client = cluster.client();
    let namespace = format!("driver-{name}");
    builders::namespace(&client, &namespace, None).await?;
    let peers = builders::peers_directory(cluster.directory(), &namespace)?;
    let mut ranks = RankProgram::new(cluster.programs().path("rank"), peers, 1).until_finished();
    ranks.rank = RankSource::Fixed(0);
    let pods: Api<Pod> = Api::namespaced(client.clone(), &namespace);
    let spec = if gpus == 0 {
        builders::pod_spec(&ranks.container(&[])?)?
    } else {
        let templates: Api<ResourceClaimTemplate> = Api::namespaced(client, &namespace);
        kubernetes::create(&templates, &builders::claim_template("gpus", gpus, None)?).await?;
        let spec = builders::pod_spec(&ranks.container(&["gpus"])?)?;
        builders::with_claim_template(spec, "gpus")
    };
    kubernetes::create(&pods, &builders::pod(name, &[], &[], &spec)?).await?;
    Ok((pods, ranks))
}

async fn wait_for_phase(pods: &Api<Pod>, name: &str, phase: &str) -> Result<Pod> {
    eventually(&format!("pod {name} is {phase}"), LIMIT, async || {
        let pod = pods.get(name).await?;
        let status = pod.status.clone().unwrap_or_default();
        Ok(if status.phase.as_deref() == Some(phase) {
            Progress::Done(pod)
        } else {
            Progress::NotYet(format!(
                "{:?} {:?}",
                status.phase, status.container_statuses
            ))
        })
    })
    .await
}

fn restarts(pod: &Pod) -> i32 {
    let statuses = pod
        .status
        .iter()
        .flat_map(|s| s.container_statuses.iter().flatten());
    statuses.map(|status| status.restart_count).sum()
}

async fn wait_for_devices(client: &Client, expected: &[&str]) -> Result<()> {
    let slices: Api<ResourceSlice> = Api::all(client.clone());
    eventually(
        &format!("the devices {expected:?} are published"),
        LIMIT,
        async || {
            let slices = slices.list(&ListParams::default()).await?;
            let mut names: Vec<String> = slices
                .iter()
                .filter(|slice| slice.spec.driver == keys::DRIVER)
                .flat_map(|slice| slice.spec.devices.iter().flatten())
                .map(|device| device.name.clone())
                .collect();
            names.sort();
            Ok(Progress::when(names == expected, || {
                format!(
                    "{names:?} in {} slices",
                    slices.iter().map(ResourceExt::name_any).count()
                )
            }))
        },
    )
    .await
}

async fn wait_until_no_cdi_files(cluster: &mut Cluster) -> Result<()> {
    let directory = cluster.node(NODE)?.cdi_directory();
    eventually("no CDI file is left", LIMIT, async || {
        let files: Vec<_> = std::fs::read_dir(&directory)?
            .filter_map(|entry| Some(entry.ok()?.file_name()))
            .collect();
        Ok(Progress::when(files.is_empty(), || format!("{files:?}")))
    })
    .await
}
