//! The scheduler step, on a control plane as kubeadm makes it: kube-scheduler in a static pod, its files on its machine.

use std::fs;

use anyhow::{Context, Result, bail, ensure};
use jiff::{Timestamp, ToSpan};
use k8s_openapi::api::core::v1::{Event, Pod};
use kube::{
    Api,
    api::{DeleteParams, PostParams},
};
use muster_tests::{
    containers::{
        Lab, image_names, kube_scheduler, operator,
        operator::{NAMESPACE, RELEASE, TEAM_NAMESPACE},
        workload,
    },
    kubernetes::{LIMIT, Progress, eventually, list},
};
use serde_json::{Value, json};

use crate::{CONTROL, GPU_MACHINES, given, upgrade};

/// Where the comments of what is printed have it put.
const FILE: &str = "/etc/kubernetes/muster/scheduler.yaml";

pub(crate) async fn kube_scheduler_gets_the_extender_as_the_notes_say(lab: &mut Lab) -> Result<()> {
    kube_scheduler::wait_until_ready(lab, CONTROL, None, Timestamp::UNIX_EPOCH).await?;
    let since = a_moment_ago()?;
    let printed = kube_scheduler::configure(lab, CONTROL, None).await?;
    ensure!(
        printed.contains("kubeconfig: /etc/kubernetes/scheduler.conf"),
        "it does not name the kubeconfig that the scheduler has:\n{printed}"
    );
    kube_scheduler::wait_until_ready(lab, CONTROL, Some(FILE), since).await
}

/// Kubelets tell times to the second.
fn a_moment_ago() -> Result<Timestamp> {
    Ok(Timestamp::now().checked_sub(1.second())?)
}

/// Two profiles, of which the second is the operator's own.
const EXISTING: &str = "
apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
clientConnection: {kubeconfig: /etc/kubernetes/scheduler.conf}
leaderElection: {leaderElect: true}
podMaxBackoffSeconds: 5
profiles:
- schedulerName: default-scheduler
- schedulerName: packing
  pluginConfig:
  - name: NodeResourcesFit
    args:
      scoringStrategy: {type: MostAllocated, resources: [{name: cpu, weight: 1}]}
";

pub(crate) async fn an_existing_configuration_is_kept_and_gets_the_extender(
    lab: &mut Lab,
) -> Result<()> {
    let since = a_moment_ago()?;
    let printed = kube_scheduler::configure(lab, CONTROL, Some(EXISTING)).await?;
    for kept in [
        "schedulerName: packing",
        "podMaxBackoffSeconds: 5",
        "urlPrefix: https://",
    ] {
        ensure!(printed.contains(kept), "{kept} is not in it:\n{printed}");
    }
    kube_scheduler::wait_until_ready(lab, CONTROL, Some(FILE), since).await
}

/// The cluster's own.
const FIRST: &str = "default-scheduler";
/// The chart's.
const SECOND: &str = "muster-scheduler";

pub(crate) async fn a_second_scheduler_of_the_charts_has_every_pod_with_claims(
    lab: &mut Lab,
) -> Result<()> {
    let line = operator::upgrade_line(lab)?;
    let in_observe = format!("{line} --set mode=Observe,scheduler.enabled=true");
    match lab.shell(&in_observe).await {
        Ok(said) => bail!("a second scheduler was taken in Observe: {said}"),
        Err(refused) => {
            let text = format!("{refused:#}");
            let why = "scheduler.enabled=true needs mode=Enforce";
            ensure!(text.contains(why), "{text}");
        }
    }
    for machine in GPU_MACHINES {
        image_names::import_scheduler(lab, lab.machine(machine)?).await?;
    }
    let switch = printed_switch(lab).await?;
    let created = upgrade::change(lab, &switch).await?;
    // Until the last replica of the webhook knows the scheduler, its policy refuses what that replica has let through.
    created.ensure_refused_only_by(&["muster-pod-scheduler"])?;
    let note = created.note("to a second scheduler");
    lab.notes.lines.push(note);
    let deployment = format!("deployment/{SECOND}");
    operator::rolled_out(lab, NAMESPACE, &deployment).await?;
    is_scheduled_by(lab, SECOND).await?;
    given::given_on(lab, GPU_MACHINES[0]).await?;

    // The API server writes the name of its own scheduler into pods that name none, so that one is no choice.
    for (named, becomes) in [
        (None, SECOND),
        (Some(FIRST), SECOND),
        (Some(SECOND), SECOND),
    ] {
        let pod = tried(lab, named, true).await?;
        let scheduler = pod.spec.unwrap_or_default().scheduler_name;
        ensure!(
            scheduler.as_deref() == Some(becomes),
            "a pod that names {named:?} is {scheduler:?}'s"
        );
    }
    match tried(lab, Some("packing"), true).await {
        Ok(_) => bail!("a pod with a claim was taken that names a third scheduler"),
        Err(refused) => {
            let text = format!("{refused:#}");
            for part in ["muster-pod-scheduler", "NotPermitted: ", SECOND] {
                ensure!(text.contains(part), "{part:?} is not in: {text}");
            }
        }
    }
    for named in [FIRST, "packing"] {
        let pod = tried(lab, Some(named), false).await?;
        let scheduler = pod.spec.unwrap_or_default().scheduler_name;
        ensure!(
            scheduler.as_deref() == Some(named),
            "a pod without claims that names {named} is {scheduler:?}'s"
        );
    }

    upgrade::change(lab, &line).await?.ensure_plain_taken()?;
    let left = ["get", &deployment, "--ignore-not-found", "--output=name"];
    let left = lab
        .kubectl(&[&left[..], &["--namespace", NAMESPACE]].concat())
        .await?;
    ensure!(left.trim().is_empty(), "{left} is left");
    is_scheduled_by(lab, FIRST).await
}

/// The line that the notes' command prints for a managed control plane, with the values that it prints.
async fn printed_switch(lab: &Lab) -> Result<String> {
    let command = operator::command(lab, &["scheduler-config --for managed"]).await?;
    let printed = lab.shell(&command).await?;
    let file = lab.directory().join("managed-values.yaml");
    fs::write(&file, &printed)?;
    let comments = printed.lines().filter_map(|line| line.strip_prefix("# "));
    let mut lines = comments.map(str::trim);
    let line = lines.find(|line| line.starts_with("helm upgrade "));
    let line = line.with_context(|| format!("it says no way to switch:\n{printed}"))?;
    for place in [" RELEASE ", " NAMESPACE ", " THIS-FILE"] {
        ensure!(line.contains(place), "{place} is not in {line}");
    }
    Ok(line
        .replace(" RELEASE ", &format!(" {RELEASE} "))
        .replace(" NAMESPACE ", &format!(" {NAMESPACE} "))
        .replace(" THIS-FILE", &format!(" {}", file.display())))
}

/// What the API server would make of a pod.
pub(crate) async fn tried(lab: &Lab, scheduler: Option<&str>, asks: bool) -> Result<Pod> {
    let pods: Api<Pod> = Api::namespaced(lab.client(), TEAM_NAMESPACE);
    let parameters = PostParams {
        dry_run: true,
        ..PostParams::default()
    };
    Ok(pods
        .create(&parameters, &pod("tried", scheduler, asks)?)
        .await?)
}

fn pod(name: &str, scheduler: Option<&str>, asks: bool) -> Result<Pod> {
    let mut pod = json!({
        "metadata": {"name": name},
        "spec": {"containers": [workload::reporting("main", &[], &json!({}), true)]},
    });
    if asks {
        pod["metadata"]["annotations"] = json!({"muster.dev/gpus": "1"});
    }
    if let Some(scheduler) = scheduler {
        pod["spec"]["schedulerName"] = Value::from(scheduler);
    }
    serde_json::from_value(pod).context("a pod")
}

/// A pod that names no scheduler and asks for a GPU runs, and this scheduler says that it chose its node.
async fn is_scheduled_by(lab: &Lab, scheduler: &str) -> Result<()> {
    let client = lab.client();
    let pods: Api<Pod> = Api::namespaced(client.clone(), TEAM_NAMESPACE);
    let name = format!("by-{scheduler}");
    let asking = pod(&name, None, true)?;
    // A replica of the webhook that is ending may have answered for another scheduler: then it is refused, or was created for that one.
    eventually(&format!("a pod is {scheduler}'s"), LIMIT, async || {
        let created = pods.create(&PostParams::default(), &asking).await?;
        let named = created.spec.and_then(|spec| spec.scheduler_name);
        if named.as_deref() == Some(scheduler) {
            return Ok(Progress::Done(()));
        }
        pods.delete(&name, &DeleteParams::default()).await?;
        Ok(Progress::NotYet(format!("{named:?}")))
    })
    .await?;
    workload::runs(&client, TEAM_NAMESPACE, &name).await?;
    let what = format!("{scheduler} says that it chose the node of {name}");
    eventually(&what, LIMIT, async || {
        let events: Vec<Event> = list(&client, Some(TEAM_NAMESPACE)).await?;
        let of_pod = events.into_iter().filter(|event| {
            event.reason.as_deref() == Some("Scheduled")
                && event.involved_object.name.as_deref() == Some(name.as_str())
        });
        let by: Vec<Option<String>> = of_pod.map(|event| event.reporting_component).collect();
        let is_so = by.iter().any(|by| by.as_deref() == Some(scheduler));
        Ok(Progress::when(is_so, || format!("{by:?}")))
    })
    .await?;
    pods.delete(&name, &DeleteParams::default()).await?;
    workload::all_gone(&client, TEAM_NAMESPACE).await
}
