//! Calls that are repeated, and what is lost between them: the driver's memory, the kubelet's, the claim.

use std::{collections::BTreeMap, ffi::OsString, fs, path::Path};

use anyhow::{Context as _, Result, ensure};
use k8s_openapi::api::{core::v1::Pod, resource::v1::ResourceClaim};
use kube::{
    Api,
    api::{Patch, PatchParams},
};
use muster_kubelet_api::dra::v1::NodePrepareResourceResponse;
use muster_tests::{
    builders,
    cluster::Cluster,
    driver_socket::DriverSocket,
    kubernetes::{self, LIMIT, Progress, eventually},
    node::Node,
    scenarios,
    suite::Scenario,
};
use serde_json::json;

use crate::stage::{
    NODE, ensure_held, only_claim, program, record_of, start, wait_for_devices, wait_for_phase,
    wait_until_nothing_is_prepared,
};

pub(crate) fn scenarios() -> Vec<Scenario> {
    scenarios![
        a_pod_outlives_repeated_calls_a_crash_of_the_driver_and_a_restart_of_the_kubelet,
        a_claim_that_vanishes_under_its_pod_is_given_back_when_the_pod_ends,
    ]
}

async fn a_pod_outlives_repeated_calls_a_crash_of_the_driver_and_a_restart_of_the_kubelet(
    cluster: &mut Cluster,
) -> Result<()> {
    let client = cluster.client();
    let (pods, ranks) = start(cluster, "outlives", 2).await?;
    let before = wait_for_phase(&pods, "outlives", "Running").await?;
    let claim = only_claim(&client, "driver-outlives").await?;
    let first = call_again(cluster, &claim).await?;
    ensure!(
        first.error.is_empty() && first.devices.len() == 2,
        "{first:?}"
    );

    cluster.node(NODE)?.crash_driver().await?;
    let second = call_again(cluster, &claim).await?;
    cluster.node(NODE)?.restart_kubelet().await?;
    // The kubelet deletes all slices of the node at its start.
    wait_for_devices(&client, &["gpu-0", "gpu-1"]).await?;
    let third = call_again(cluster, &claim).await?;
    ensure!(
        first == second && first == third,
        "it answered {first:?}, after its crash {second:?}, after the kubelet's restart {third:?}"
    );
    let after = wait_for_phase(&pods, "outlives", "Running").await?;
    ensure!(
        restarts(&before) == restarts(&after),
        "its container was restarted"
    );
    ranks.finish()?;
    wait_for_phase(&pods, "outlives", "Succeeded").await?;
    wait_until_nothing_is_prepared(cluster).await?;
    let mut driver = DriverSocket::connect(&cluster.node(NODE)?.driver_socket()).await?;
    for _ in 0..2 {
        let error = driver.unprepare(&claim).await?;
        ensure!(error.is_empty(), "what is given back: {error}");
    }
    Ok(())
}

async fn a_claim_that_vanishes_under_its_pod_is_given_back_when_the_pod_ends(
    cluster: &mut Cluster,
) -> Result<()> {
    let client = cluster.client();
    let namespace = "driver-vanishes";
    let (ranks, spec) = program(cluster, namespace).await?;
    let claims: Api<ResourceClaim> = Api::namespaced(client.clone(), namespace);
    kubernetes::create(&claims, &builders::claim("mine", 2)?).await?;
    let pods: Api<Pod> = Api::namespaced(client, namespace);
    let pod = builders::pod("vanishes", &[], &[], &builders::with_claim(spec, "mine"))?;
    kubernetes::create(&pods, &pod).await?;
    let before = wait_for_phase(&pods, "vanishes", "Running").await?;

    kubernetes::delete(&claims, "mine").await?;
    let unprotected = Patch::Merge(json!({"metadata": {"finalizers": null}}));
    claims
        .patch("mine", &PatchParams::default(), &unprotected)
        .await?;
    eventually("the claim is gone", LIMIT, async || {
        let claim = claims.get_opt("mine").await?;
        Ok(Progress::when(claim.is_none(), || format!("{claim:?}")))
    })
    .await?;
    // What it knows of the claim is on its disk, and nowhere else any more.
    cluster.node(NODE)?.crash_driver().await?;
    let after = wait_for_phase(&pods, "vanishes", "Running").await?;
    ensure!(
        restarts(&before) == restarts(&after),
        "its container was restarted"
    );
    ranks.finish()?;
    wait_for_phase(&pods, "vanishes", "Succeeded").await?;
    wait_until_nothing_is_prepared(cluster).await
}

/// Has the claim of a running pod prepared again, twice, and given back, which is refused. What was answered to both;
/// nothing on the node changes but that the record names the last call.
async fn call_again(
    cluster: &mut Cluster,
    claim: &ResourceClaim,
) -> Result<NodePrepareResourceResponse> {
    let record = record_of(cluster, claim)?;
    let node = cluster.node(NODE)?;
    let before = prepared(&record, node)?;
    let mut driver = DriverSocket::connect(&node.driver_socket()).await?;
    let answer = driver.prepare(claim).await?;
    let repeated = driver.prepare(claim).await?;
    ensure!(answer == repeated, "first {answer:?}, then {repeated:?}");
    ensure_held(&driver.unprepare(claim).await?)?;
    let after = prepared(&record, node)?;
    ensure!(before == after, "before {before:?}, after {after:?}");
    Ok(answer)
}

/// What the driver's record says, and all CDI files, without the name of the call that was answered last.
fn prepared(record: &Path, node: &Node) -> Result<(String, BTreeMap<OsString, String>)> {
    let record = fs::read_to_string(record)?;
    let said: serde_json::Value = serde_json::from_str(&record)?;
    let call = said["call"].as_str().context("a record names its call")?;
    let without_call = |text: &str| text.replace(call, "CALL");
    let mut files = BTreeMap::new();
    for entry in fs::read_dir(node.cdi_directory())? {
        let entry = entry?;
        let text = fs::read_to_string(entry.path())?;
        files.insert(entry.file_name(), without_call(&text));
    }
    Ok((without_call(&record), files))
}

fn restarts(pod: &Pod) -> i32 {
    let statuses = pod
        .status
        .iter()
        .flat_map(|s| s.container_statuses.iter().flatten());
    statuses.map(|status| status.restart_count).sum()
}
