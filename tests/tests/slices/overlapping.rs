//! Slices that need the same memory of one GPU.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::{core::v1::Pod, resource::v1::ResourceClaimTemplate};
use kube::{Api, api::DeleteParams};
use muster_tests::{
    builders,
    cluster::Cluster,
    kubernetes::{self, LIMIT, Progress, always, eventually},
    scenarios,
    suite::Scenario,
};
use serde_json::json;

use crate::stage::{A30, Single, cards, prepare_team, wait_until_uncut};

/// How long the one who waits is watched. Muster looks again whenever anything of the node changes.
const WATCHED: Duration = Duration::from_secs(3);

pub(crate) fn scenarios() -> Vec<Scenario> {
    scenarios![the_successor_of_a_force_deleted_pod_waits_until_its_slice_is_given_back]
}

/// The first one has all memory of a GPU, in one slice. Once its pod is deleted by force Kubernetes says that the GPU is free, while its process
/// lives; the second one asks for a quarter of the same GPU.
async fn the_successor_of_a_force_deleted_pod_waits_until_its_slice_is_given_back(
    cluster: &mut Cluster,
) -> Result<()> {
    let client = cluster.client();
    prepare_team(&client, "overlap").await?;
    let uuids = cluster.node(A30)?.gpu_uuids();
    let gpu = uuids.get(2).context("the node has a third GPU")?;
    let templates: Api<ResourceClaimTemplate> = Api::namespaced(client.clone(), "overlap");
    for (name, profile) in [("all", "4g.24gb"), ("quarter", "1g.6gb")] {
        let device = "device.attributes['gpu.muster.dev']";
        let selector = format!("{device}.profile == '{profile}' && {device}.parentUUID == '{gpu}'");
        let template = builders::slice_template(name, &selector)?;
        kubernetes::create(&templates, &template).await?;
    }
    let first = Single::create_with_template(cluster, "overlap", "first", "all").await?;
    let of_first = first.runs_on_one(cluster).await?;
    let stops_never = json!({"hangStop": [{"pod": "first"}]});
    cluster.node(A30)?.set_runtime_faults(&stops_never)?;
    let pods: Api<Pod> = Api::namespaced(client.clone(), "overlap");
    let at_once = DeleteParams::default().grace_period(0);
    pods.delete("first", &at_once).await?;
    eventually("the first pod is gone", LIMIT, async || {
        let pod = pods.get_opt("first").await?;
        Ok(Progress::when(pod.is_none(), || "it is there".to_owned()))
    })
    .await?;

    let second = Single::create_with_template(cluster, "overlap", "second", "quarter").await?;
    always("the second one waits", WATCHED, async || {
        let phase = second.pod(&client).await?.status.unwrap_or_default().phase;
        let slices = cards(cluster, A30)?.remove(2).gpu_instances;
        let is_held = slices.len() == 1 && slices.iter().all(|it| it.placement.size == 4);
        let waits = phase.as_deref() == Some("Pending") && is_held;
        Ok(Progress::when(waits, || format!("{phase:?}, {slices:?}")))
    })
    .await?;
    cluster.node(A30)?.set_runtime_faults(&json!({}))?;
    let of_second = second.runs_on_one(cluster).await?;
    let of_gpu = "gpu-2-mig-";
    ensure!(
        of_first.device.starts_with(of_gpu) && of_second.device.starts_with(of_gpu),
        "{of_first:?}, {of_second:?}"
    );
    second.finishes(&client, &[of_second]).await?;
    wait_until_uncut(cluster, A30).await
}
