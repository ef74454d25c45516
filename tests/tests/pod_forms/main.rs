//! Ways to write a GPU pod, and what Muster makes of each: `docs/pods.md` on a real control plane. And the end of `docs/first-hour.md`.
//!
//! The nodes are played, so that every gang that may start does. What containers get, and how gangs end, is seen where nodes are
//! real: [`document::END_TO_END`] and [`document::BESIDES`] say by which scenario.

mod cases;
mod document;
mod first_hour;
mod made;

use std::{collections::BTreeMap, process::ExitCode, time::Duration};

use anyhow::{Result, ensure};
use futures::{StreamExt, TryStreamExt, stream};
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::{
    Api, Client, ResourceExt,
    api::{ListParams, Patch, PatchParams},
};
use muster_api::{Gang, TeamSpec, team::Stop};
use muster_tests::{
    builders::{self, gpu_quota},
    cluster::{Cluster, ClusterOptions},
    fake_nodes::FakeNodes,
    install::MusterOptions,
    kubernetes::{Answer, Progress, eventually, list},
    scenarios, suite,
};
use serde_json::json;

use crate::{
    cases::{CASES, Case, Outcome},
    first_hour::the_first_hour_ends_with_a_gang_that_says_why_it_waits,
    made::by_namespace,
};

/// The Team of the namespaces that have one.
const TEAM: &str = "forms";
/// Its quota: as much as there is.
const GPUS: u32 = 80;
/// How many of them a node has.
const GPUS_OF_NODE: u32 = 8;
/// How many forms are made at the same time: what becomes of each is asked here, and not how many the API server takes at once.
const MADE_AT_ONCE: usize = 8;
/// Longest time in which no form comes right: a played kubelet repeats a refused call after a minute, as a real one does.
const STANDSTILL: Duration = Duration::from_mins(2);
/// How much longer than others a scenario may take: forty forms and more are looked at, each of which has its own time.
const MORE_TIME: Duration = Duration::from_mins(7);
/// The resource of a device plugin that a Flavor counts.
const PLUGIN_RESOURCE: &str = "nvidia.com/gpu";

fn main() -> ExitCode {
    if let Err(error) = document::check() {
        eprintln!("pod_forms: {error:#}");
        return ExitCode::FAILURE;
    }
    let options = ClusterOptions {
        muster: Some(MusterOptions::default()),
        fake_nodes: Some(FakeNodes {
            count: GPUS / GPUS_OF_NODE,
            gpus: GPUS_OF_NODE,
        }),
        ..ClusterOptions::default()
    };
    let scenarios = scenarios![
        every_form_becomes_what_the_guide_says,
        the_first_hour_ends_with_a_gang_that_says_why_it_waits,
    ];
    let scenarios = scenarios.into_iter();
    let scenarios = scenarios.map(|scenario| scenario.with_more_time(MORE_TIME));
    suite::run("pod_forms", options, scenarios.collect())
}

/// First the Team is stopped, so that pods are seen as they were created; then it is let go.
async fn every_form_becomes_what_the_guide_says(cluster: &mut Cluster) -> Result<()> {
    let client = cluster.client();
    builders::flavor(&client, "all", None).await?;
    builders::flavor_of_resource(&client, "plugin", PLUGIN_RESOURCE, &[]).await?;
    offer_by_plugins(&client).await?;
    set_one_apart(&client).await?;
    team(cluster, Stop::Hold).await?;
    let answers = stream::iter(CASES).map(|case| made::make(&client, case));
    let answers: Vec<Answer> = answers.buffered(MADE_AT_ONCE).try_collect().await?;
    let answers: BTreeMap<&str, Answer> = CASES.iter().map(|case| case.form).zip(answers).collect();
    wait_for_all(
        cluster,
        "as the webhook writes them",
        |case, pods, _| match (&case.outcome, answers.get(case.form)) {
            (Outcome::Refused(reason, says), Some(Answer::Refused(said))) => {
                let is_told = said.contains(reason.as_str()) && said.contains(says);
                ensure!(is_told, "refused, but: {said}");
                ensure!(pods.is_empty(), "refused, but there is a pod");
                Ok(())
            }
            (Outcome::Refused(..), _) => Err(anyhow::anyhow!("it was not refused")),
            (_, Some(Answer::Refused(said))) => Err(anyhow::anyhow!("it was refused: {said}")),
            (Outcome::NotManaged, _) => made::is_left_alone(pods),
            _ => made::is_held(pods),
        },
    )
    .await?;
    team(cluster, Stop::None).await?;
    wait_for_all(cluster, "as the guide says", |case, pods, gangs| {
        made::became(&case.outcome, pods, gangs)
    })
    .await
}

/// The nodes say what they would if a device plugin handed out as many GPUs there again.
async fn offer_by_plugins(client: &Client) -> Result<()> {
    let nodes: Api<Node> = Api::all(client.clone());
    let units = json!({PLUGIN_RESOURCE: GPUS_OF_NODE.to_string()});
    let patch = json!({"status": {"capacity": units, "allocatable": units}});
    for node in nodes.list(&ListParams::default()).await? {
        nodes
            .patch_status(
                &node.name_any(),
                &PatchParams::default(),
                &Patch::Merge(&patch),
            )
            .await?;
    }
    Ok(())
}

/// One node is all that `pod-node-affinity` asks for, and what it tolerates keeps all others off; two more are half of it. Whoever plans without
/// one of its rules plans another node, or none.
async fn set_one_apart(client: &Client) -> Result<()> {
    let nodes: Api<Node> = Api::all(client.clone());
    let pool = json!({"example.com/pool": "training"});
    let rack = json!({"example.com/rack": "r7"});
    let both = json!({"example.com/pool": "training", "example.com/rack": "r7"});
    let taints = json!([{"key": "nvidia.com/gpu", "effect": "NoSchedule"}]);
    let made = [
        json!({"metadata": {"labels": pool}}),
        json!({"metadata": {"labels": rack}}),
        json!({"metadata": {"labels": both}, "spec": {"taints": taints}}),
    ];
    for (node, change) in nodes.list(&ListParams::default()).await?.iter().zip(made) {
        let (name, change) = (node.name_any(), Patch::Merge(&change));
        nodes.patch(&name, &PatchParams::default(), &change).await?;
    }
    Ok(())
}

async fn team(cluster: &Cluster, stop: Stop) -> Result<()> {
    let spec = TeamSpec {
        quota: ["all", "plugin"]
            .map(|flavor| gpu_quota(flavor, GPUS, None))
            .into(),
        stop,
        ..TeamSpec::default()
    };
    builders::team_of(&cluster.client(), TEAM, spec).await
}

/// Waits until `look` finds nothing wrong with any case, by the pods and Gangs of its namespace; else tells all that are wrong. As long as
/// one more comes right in time, the others wait their turn: for 8 pods that are released at a time where the extender is slow,
/// and for the pauses of kube-scheduler and of the Job controller, which grow with each failure.
async fn wait_for_all(
    cluster: &Cluster,
    what: &str,
    look: impl Fn(&Case, &[Pod], &[Gang]) -> Result<()>,
) -> Result<()> {
    let client = cluster.client();
    let mut fewest = usize::MAX;
    while fewest > 0 {
        let before = fewest;
        fewest = eventually(&format!("more are {what}"), STANDSTILL, async || {
            let pods = by_namespace(list::<Pod>(&client, None).await?);
            let gangs = by_namespace(list::<Gang>(&client, None).await?);
            let wrong = wrong_ones(&pods, &gangs, &look);
            Ok(if wrong.len() < before {
                Progress::Done(wrong.len())
            } else {
                Progress::NotYet(wrong.join("\n  "))
            })
        })
        .await?;
    }
    Ok(())
}

/// What is wrong with each case that is not right.
fn wrong_ones(
    pods: &BTreeMap<String, Vec<Pod>>,
    gangs: &BTreeMap<String, Vec<Gang>>,
    look: &impl Fn(&Case, &[Pod], &[Gang]) -> Result<()>,
) -> Vec<String> {
    let mut wrong = Vec::new();
    for case in CASES {
        let namespace = case.namespace();
        let pods = pods.get(&namespace).map_or(&[][..], Vec::as_slice);
        let gangs = gangs.get(&namespace).map_or(&[][..], Vec::as_slice);
        if let Err(error) = look(case, pods, gangs) {
            wrong.push(format!("{}: {error:#}", case.form));
        }
    }
    wrong
}
