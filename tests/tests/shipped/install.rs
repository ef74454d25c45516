//! The install, and what it brings.

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::{
    core::v1::{Event, Namespace, Pod},
    networking::v1::NetworkPolicy,
};
use kube::{Api, ResourceExt, api::ListParams};
use muster_tests::{
    containers::{
        Lab, operator,
        operator::{DRIVER_NAMESPACE, NAMESPACE, TEAM_NAMESPACE},
    },
    kubernetes::{LIMIT, Progress, eventually, list},
};
use serde_json::Value;

use crate::GPU_MACHINES;

/// Containers of Muster's that run, for two nodes with GPUs: two replicas of each server, and a driver a node.
const PODS: usize = 3 * 2 + GPU_MACHINES.len();

pub(crate) async fn the_chart_installs_as_the_readme_says_into_a_restricted_namespace(
    lab: &mut Lab,
) -> Result<()> {
    operator::install(lab).await?;
    operator::label_nodes(lab).await
}

pub(crate) async fn every_pod_is_ready_from_its_image(lab: &mut Lab) -> Result<()> {
    operator::wait_until_ready(lab).await?;
    let client = lab.client();
    let mut pods: Vec<Pod> = list(&client, Some(NAMESPACE)).await?;
    pods.extend(list::<Pod>(&client, Some(DRIVER_NAMESPACE)).await?);
    ensure!(
        pods.len() == PODS,
        "{} pods instead of {PODS}: {:?}",
        pods.len(),
        pods.iter().map(ResourceExt::name_any).collect::<Vec<_>>()
    );
    for pod in &pods {
        let name = pod.name_any();
        let status = pod.status.clone().unwrap_or_default();
        for container in status.container_statuses.unwrap_or_default() {
            let image = &container.image;
            ensure!(
                image.starts_with("ghcr.io/muster-dev/muster-"),
                "{name} runs {image}"
            );
            ensure!(container.ready, "{name} is not Ready");
            ensure!(
                container.restart_count == 0,
                "{name} was started {} times",
                container.restart_count + 1
            );
        }
    }
    let namespaces: Api<Namespace> = Api::all(client.clone());
    for (namespace, level) in [(NAMESPACE, "restricted"), (DRIVER_NAMESPACE, "privileged")] {
        let labels = namespaces.get(namespace).await?.metadata.labels;
        let labels = labels.unwrap_or_default();
        let enforced = labels.get("pod-security.kubernetes.io/enforce");
        ensure!(
            enforced.is_some_and(|enforced| enforced == level),
            "{namespace} enforces {enforced:?} and not {level}"
        );
    }
    // They are made, and nobody enforces them here: the bridge plugin knows none.
    let policies = Api::<NetworkPolicy>::all(client.clone());
    let made = policies.list(&ListParams::default()).await?.items.len();
    ensure!(made == 4, "{made} NetworkPolicies instead of 4");
    Ok(())
}

pub(crate) async fn helm_test_gives_a_pod_a_gpu(lab: &mut Lab) -> Result<()> {
    declare_team_once_the_webhook_answers(lab).await?;
    let line = operator::command(lab, &["helm test"]).await?;
    let said = lab.shell(&format!("{line} --timeout 110s 2>&1")).await?;
    ensure!(said.contains("1 of 1 GPUs: /dev/nvidia"), "{said}");
    let installed = lab.notes.installed.context("the chart was installed")?;
    let seconds = started(lab).await?.duration_since(installed).as_secs();
    lab.notes.lines.push(format!(
        "from `helm install` to the first container with a GPU: {seconds} s"
    ));
    Ok(())
}

/// When the container of `helm test` was started, by the kubelet's Event: the pod is gone.
async fn started(lab: &Lab) -> Result<jiff::Timestamp> {
    eventually("the kubelet tells of the start", LIMIT, async || {
        let events: Vec<Event> = list(&lab.client(), Some(TEAM_NAMESPACE)).await?;
        let started = events.into_iter().find(|event| {
            let object = &event.involved_object;
            event.reason.as_deref() == Some("Started")
                && object.name.as_deref() == Some("muster-test-device")
        });
        let time = started.and_then(|event| event.first_timestamp);
        Ok(match time {
            Some(time) => Progress::Done(time.0),
            None => Progress::NotYet("no Event says so".to_owned()),
        })
    })
    .await
}

/// The leader puts the webhook's certificate into its configuration within seconds of the install.
async fn declare_team_once_the_webhook_answers(lab: &Lab) -> Result<()> {
    eventually("the README's Team is taken", LIMIT, async || {
        operator::apply_team(lab).await?;
        Ok(Progress::Done(()))
    })
    .await?;
    operator::label_namespace(lab, TEAM_NAMESPACE, "research").await
}

pub(crate) async fn pods_at_rest_are_measured(lab: &mut Lab) -> Result<()> {
    let mut lines = Vec::new();
    for machine in &lab.machines {
        let path = format!("/api/v1/nodes/{}/proxy/stats/summary", machine.name());
        let summary: Value = serde_json::from_str(&lab.kubectl(&["get", "--raw", &path]).await?)?;
        let pods = summary["pods"].as_array().cloned().unwrap_or_default();
        for pod in pods {
            let namespace = pod["podRef"]["namespace"].as_str().unwrap_or_default();
            if ![NAMESPACE, DRIVER_NAMESPACE].contains(&namespace) {
                continue;
            }
            let name = pod["podRef"]["name"].as_str().unwrap_or_default();
            let bytes = |field: &str| pod["memory"][field].as_u64();
            let (Some(working), Some(resident)) = (bytes("workingSetBytes"), bytes("rssBytes"))
            else {
                continue;
            };
            lines.push(format!(
                "at rest {name}: {} MiB resident, {} MiB working set",
                resident >> 20,
                working >> 20
            ));
        }
    }
    ensure!(
        lines.len() == PODS,
        "the kubelets know the memory of {} pods instead of {PODS}: {lines:#?}",
        lines.len()
    );
    lines.sort();
    lab.notes.lines.extend(lines);
    Ok(())
}
