//! The chart under another name, in another namespace, and what becomes of a second one beside it.

use anyhow::{Result, bail, ensure};
use muster_tests::{
    containers::{
        Lab, image_names, operator,
        operator::{DRIVER_NAMESPACE, NAMESPACE, RELEASE, TEAM_NAMESPACE},
        workload,
    },
    gangs,
    kubernetes::{LIMIT, Progress, eventually},
};

use crate::{GPU_MACHINES, scheduler, uninstall, upgrade};

/// The release; it does not say the chart's name, so that follows in the names of its objects.
const OTHER_RELEASE: &str = "gangs";
/// What these names begin with.
const PREFIX: &str = "gangs-muster";
const OTHER_NAMESPACE: &str = "gpus";
const OTHER_DRIVER_NAMESPACE: &str = "gpus-driver";
/// The gang that runs with it.
const JOB: &str = "elsewhere";

/// It comes after a release that left its definitions, and takes them over as the guide says. The chart's own scheduler asks its extender.
pub(crate) async fn another_release_in_another_namespace_runs_a_gang_and_refuses_a_second_beside_it(
    lab: &mut Lab,
) -> Result<()> {
    uninstall::uninstall_if_there(lab).await?;
    let client = lab.client();
    for namespace in [NAMESPACE, DRIVER_NAMESPACE] {
        workload::all_gone(&client, namespace).await?;
    }
    for machine in GPU_MACHINES {
        image_names::import_scheduler(lab, lab.machine(machine)?).await?;
    }
    let line = line_for(lab, OTHER_RELEASE, OTHER_NAMESPACE)?;
    lab.shell(&format!(
        "{line} --take-ownership --set driver.namespace={OTHER_DRIVER_NAMESPACE},scheduler.enabled=true"
    ))
    .await?;
    for program in ["controller", "webhook", "extender", "scheduler"] {
        let deployment = format!("deployment/{PREFIX}-{program}");
        operator::rolled_out(lab, OTHER_NAMESPACE, &deployment).await?;
    }
    let driver = format!("daemonset/{PREFIX}-driver");
    operator::rolled_out(lab, OTHER_DRIVER_NAMESPACE, &driver).await?;
    a_second_is_refused(lab).await?;

    let own = format!("{PREFIX}-scheduler");
    // The leader puts the webhook's certificate into its configuration within seconds of the install.
    eventually("a pod with a GPU is taken", LIMIT, async || {
        let pod = scheduler::tried(lab, None, true).await?;
        let named = pod.spec.and_then(|spec| spec.scheduler_name);
        let is_own = named.as_deref() == Some(own.as_str());
        Ok(Progress::when(is_own, || format!("{named:?}")))
    })
    .await?;
    let job = upgrade::job(JOB, 4);
    operator::apply(lab, JOB, &job, Some(TEAM_NAMESPACE)).await?;
    gangs::wait_until_running(&client, TEAM_NAMESPACE, &gangs::of_job(JOB)).await?;
    // It returns when the pods are gone.
    lab.kubectl(&[
        "delete",
        "job",
        JOB,
        "--namespace",
        TEAM_NAMESPACE,
        "--cascade=foreground",
    ])
    .await?;
    uninstall::uninstall_in_the_end(lab, OTHER_RELEASE, OTHER_NAMESPACE).await?;
    for namespace in [OTHER_NAMESPACE, OTHER_DRIVER_NAMESPACE] {
        workload::all_gone(&client, namespace).await?;
    }
    // With the certificates in it, which nobody takes over.
    lab.kubectl(&["delete", "namespace", OTHER_NAMESPACE, "--wait=false"])
        .await
        .map(drop)
}

/// The README's line that installs, for another release.
fn line_for(lab: &Lab, release: &str, namespace: &str) -> Result<String> {
    let line = operator::install_line(lab)?;
    let (named, placed) = (
        format!("helm install {RELEASE} "),
        format!("--namespace {NAMESPACE} "),
    );
    ensure!(line.contains(&named) && line.contains(&placed), "{line}");
    Ok(line
        .replace(&named, &format!("helm install {release} "))
        .replace(&placed, &format!("--namespace {namespace} ")))
}

/// By another name, and by the same name in another namespace, also for whoever has Helm take over what is there.
async fn a_second_is_refused(lab: &Lab) -> Result<()> {
    for (release, namespace) in [
        (RELEASE, NAMESPACE),
        (RELEASE, OTHER_NAMESPACE),
        (OTHER_RELEASE, NAMESPACE),
    ] {
        for flag in ["", " --take-ownership"] {
            let line = format!("{}{flag}", line_for(lab, release, namespace)?);
            let refused = match lab.shell(&line).await {
                Ok(said) => bail!("a second release was taken by {line}: {said}"),
                Err(refused) => format!("{refused:#}"),
            };
            for words in [
                "release gangs of Muster is installed in this cluster already, in namespace gpus",
                "uninstall it first",
            ] {
                ensure!(refused.contains(words), "{line} says: {refused}");
            }
        }
    }
    let releases = lab
        .shell("helm list --all-namespaces --short --filter '^(muster|gangs)$'")
        .await?;
    ensure!(releases.trim() == OTHER_RELEASE, "{releases:?} are there");
    Ok(())
}
