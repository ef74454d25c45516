//! Health of GPUs, as the kubelet writes it into the status of pods that have them.

use anyhow::{Result, ensure};
use k8s_openapi::api::core::v1::{Pod, ResourceHealth};
use kube::Api;
use muster_tests::{
    cluster::Cluster,
    kubernetes::{LIMIT, Progress, eventually},
    scenarios,
    suite::Scenario,
};

use crate::stage::{NODE, start, wait_for_phase, wait_until_nothing_is_prepared};

pub(crate) fn scenarios() -> Vec<Scenario> {
    scenarios![a_pod_says_that_its_gpu_is_lost_and_that_it_is_back]
}

async fn a_pod_says_that_its_gpu_is_lost_and_that_it_is_back(cluster: &mut Cluster) -> Result<()> {
    let (pods, ranks) = start(cluster, "health", 2).await?;
    wait_for_phase(&pods, "health", "Running").await?;
    let devices = healths(&pods, [("gpu-0", "Healthy"), ("gpu-1", "Healthy")]).await?;

    let hardware = cluster.node(NODE)?.hardware();
    let uuids = cluster.node(NODE)?.gpu_uuids();
    let lost = uuids.iter().skip(1).take(1).cloned();
    hardware.change(|state| state.lost.extend(lost))?;
    let seen = healths(&pods, [("gpu-0", "Healthy"), ("gpu-1", "Unhealthy")]).await;
    hardware.change(|state| state.lost.clear())?;
    let seen = seen?;
    let messages: Vec<&str> = seen
        .iter()
        .filter_map(|health| health.message.as_deref())
        .filter(|message| !message.is_empty())
        .collect();
    ensure!(
        matches!(messages.as_slice(), [only] if uuids.get(1).is_some_and(|lost| only.contains(lost))),
        "the GPU that is lost is {:?}, and the pod's status says {messages:?}",
        uuids.get(1)
    );
    let ids = |devices: &[ResourceHealth]| -> Vec<String> {
        let ids = devices.iter().map(|health| health.resource_id.clone());
        ids.collect()
    };
    ensure!(
        ids(&devices) == ids(&seen),
        "the devices were {:?} and are {:?}",
        ids(&devices),
        ids(&seen)
    );

    healths(&pods, [("gpu-0", "Healthy"), ("gpu-1", "Healthy")]).await?;
    ranks.finish()?;
    wait_for_phase(&pods, "health", "Succeeded").await?;
    wait_until_nothing_is_prepared(cluster).await
}

/// Waits until the pod's devices, by the ends of their names, are in these states; all that is said of them, in the order of their names.
async fn healths(pods: &Api<Pod>, expected: [(&str, &str); 2]) -> Result<Vec<ResourceHealth>> {
    let what = format!("the pod's status says {expected:?}");
    eventually(&what, LIMIT, async || {
        let status = pods.get("health").await?.status.unwrap_or_default();
        let containers = status.container_statuses.unwrap_or_default();
        let resources = containers
            .into_iter()
            .flat_map(|container| container.allocated_resources_status.unwrap_or_default());
        let mut seen: Vec<ResourceHealth> = resources
            .flat_map(|resource| resource.resources.unwrap_or_default())
            .collect();
        seen.sort_by(|one, other| one.resource_id.cmp(&other.resource_id));
        let is_so = seen.len() == expected.len()
            && seen.iter().zip(expected).all(|(health, (device, state))| {
                health.resource_id.ends_with(device) && health.health.as_deref() == Some(state)
            });
        Ok(if is_so {
            Progress::Done(seen)
        } else {
            Progress::NotYet(format!("{seen:?}"))
        })
    })
    .await
}
