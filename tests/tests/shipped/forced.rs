//! The uninstall that is refused and done all the same: what it leaves, the guide's commands let go.

use anyhow::{Result, bail, ensure};
use k8s_openapi::api::{batch::v1::Job, core::v1::Pod};
use kube::{Api, ResourceExt, api::ListParams};
use muster_api::{Reason, keys};
use muster_tests::{
    containers::{
        Lab, kube_scheduler, operator,
        operator::{NAMESPACE, RELEASE, TEAM_NAMESPACE},
        prepared,
        workload::{self, STAY},
    },
    gangs,
    kubernetes::{LIMIT, Progress, eventually},
};
use serde_json::json;

use crate::{CONTROL, scheduler, uninstall, upgrade};

/// One pod of a gang of two, with no claim: nothing but its gate and its mark can hold it.
const WAITS: &str = "waits-for-one-more";
/// A Job that Muster suspends, and with a deadline keeps suspended as long as its Team is stopped.
const SUSPENDED: &str = "is-suspended";

pub(crate) async fn what_a_forced_uninstall_leaves_the_guides_commands_let_go(
    lab: &mut Lab,
) -> Result<()> {
    // The extender of a later install has another address: kube-scheduler gets it anew, as the notes of that install say.
    kube_scheduler::take_extender_out(lab, CONTROL).await?;
    scheduler::kube_scheduler_gets_the_extender_as_the_notes_say(lab).await?;
    pod_waits(lab).await?;
    job_is_suspended(lab).await?;
    // As the guide has it before each uninstall.
    kube_scheduler::take_extender_out(lab, CONTROL).await?;
    let refused = match uninstall::uninstall(lab, RELEASE, NAMESPACE).await {
        Ok(said) => bail!("it was uninstalled over a gated pod and a suspended Job: {said}"),
        Err(refused) => format!("{refused:#}"),
    };
    for word in ["GatedPods", WAITS, "SuspendedJobs", SUSPENDED, "--no-hooks"] {
        ensure!(refused.contains(word), "{word} is not in: {refused}");
    }
    // Word for word.
    let commands =
        operator::guide_block("helm uninstall muster --namespace muster-system --no-hooks")?;
    lab.shell(&commands).await?;
    stop_team(lab, "None").await?;
    let client = lab.client();
    workload::runs(&client, TEAM_NAMESPACE, WAITS).await?;
    let jobs: Api<Job> = Api::namespaced(client.clone(), TEAM_NAMESPACE);
    eventually("the Job goes on", LIMIT, async || {
        let job = jobs.get(SUSPENDED).await?;
        let is_marked = job.annotations().contains_key(keys::SUSPENDED_FOR);
        let active = job.status.and_then(|status| status.active);
        Ok(Progress::when(!is_marked && active == Some(2), || {
            format!("marked: {is_marked}, active: {active:?}")
        }))
    })
    .await?;
    let pods: Api<Pod> = Api::all(client);
    let pods = pods.list(&ListParams::default()).await?.items;
    let gated = pods.iter().filter(|pod| upgrade::is_gated(pod));
    let gated: Vec<String> = gated.map(ResourceExt::name_any).collect();
    ensure!(gated.is_empty(), "{gated:?} are gated");
    uninstall::nothing_is_left(lab, "after-force").await?;
    for (kind, name) in [("pod", WAITS), ("pod", "after-force"), ("job", SUSPENDED)] {
        lab.kubectl(&["delete", kind, name, "--namespace", TEAM_NAMESPACE])
            .await?;
    }
    Ok(())
}

async fn pod_waits(lab: &Lab) -> Result<()> {
    let pod = json!({
        "metadata": {
            "name": WAITS,
            "labels": {keys::GANG: WAITS},
            "annotations": {keys::GANG_SIZE: "2"},
        },
        "spec": {"containers": [workload::reporting(WAITS, &[], &json!({}), true)]},
    });
    // A webhook that was only just installed has no certificate in its configuration yet.
    let created = eventually("a pod of a gang is taken", LIMIT, async || {
        let created = workload::create(lab, TEAM_NAMESPACE, &pod).await?;
        Ok(Progress::Done(created))
    })
    .await?;
    ensure!(
        upgrade::is_gated(&created),
        "it was created without the gate"
    );
    let containers = created.spec.iter().flat_map(|spec| &spec.containers);
    let mut limits = containers.filter_map(|it| it.resources.as_ref()?.limits.as_ref());
    ensure!(
        limits.any(|limits| limits.contains_key(keys::MARKER_RESOURCE)),
        "it was created without the mark"
    );
    let gang = gangs::of_label(WAITS);
    gangs::wait_for_reason(&lab.client(), TEAM_NAMESPACE, &gang, Reason::MissingPods)
        .await
        .map(drop)
}

async fn job_is_suspended(lab: &Lab) -> Result<()> {
    let job = json!({
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": SUSPENDED},
        "spec": {
            "completionMode": "Indexed",
            "completions": 2,
            "parallelism": 2,
            "activeDeadlineSeconds": 3600,
            "template": {
                "metadata": {"annotations": {"muster.dev/gpus": "1"}},
                "spec": {
                    "restartPolicy": "Never",
                    "containers": [{"name": "rank", "image": prepared::WORKLOAD, "command": ["/bin/sh", "-c", STAY]}],
                },
            },
        },
    });
    operator::apply(lab, SUSPENDED, &job.to_string(), Some(TEAM_NAMESPACE)).await?;
    let client = lab.client();
    let gang = gangs::of_job(SUSPENDED);
    gangs::wait_until_running(&client, TEAM_NAMESPACE, &gang).await?;
    stop_team(lab, "HoldAndDrain").await?;
    let jobs: Api<Job> = Api::namespaced(client.clone(), TEAM_NAMESPACE);
    let pods: Api<Pod> = Api::namespaced(client, TEAM_NAMESPACE);
    let of_job = ListParams::default().labels(&format!("job-name={SUSPENDED}"));
    eventually(
        "the Job is suspended and its pods are gone",
        LIMIT,
        async || {
            let job = jobs.get(SUSPENDED).await?;
            let is_marked = job.annotations().contains_key(keys::SUSPENDED_FOR);
            let is_suspended = job.spec.is_some_and(|spec| spec.suspend == Some(true));
            let left = pods.list(&of_job).await?.items.len();
            Ok(Progress::when(
                is_suspended && is_marked && left == 0,
                || format!("suspended: {is_suspended}, marked: {is_marked}, {left} pods"),
            ))
        },
    )
    .await
}

async fn stop_team(lab: &Lab, stop: &str) -> Result<()> {
    let patch = json!({"spec": {"stop": stop}}).to_string();
    let words = ["patch", "team", "research", "--type=merge", "--patch"];
    lab.kubectl(&[&words[..], &[patch.as_str()]].concat())
        .await
        .map(drop)
}
