//! kube-scheduler as kubeadm has it, a static pod with its files on its machine, and the step that gives it the extender.

use std::{fs, time::Duration};

use anyhow::{Context, Result};
use jiff::{Timestamp, ToSpan};
use k8s_openapi::api::core::v1::{ContainerStatus, Pod};
use kube::Api;
use serde_json::Value;

use super::{Lab, machine::SCHEDULER_MANIFEST, operator};
use crate::kubernetes::{Progress, always, eventually};

/// Longest time until it runs with another configuration: it waits for the lease of the one before, too.
const LIMIT: Duration = Duration::from_mins(2);
/// Its manifest from before it got the extender, in the lab's directory.
const BEFORE: &str = "kube-scheduler-before.json";
/// How long it must go on then. One that does not like its configuration ends at once.
const WATCHED: Duration = Duration::from_secs(2);

/// Gives kube-scheduler the extender: prints its configuration by the command of the notes, and does what its comments
/// say. `existing` is the configuration that it has, where it has one.
pub async fn configure(lab: &Lab, machine: &str, existing: Option<&str>) -> Result<String> {
    let directory = lab.directory().display();
    let line = match existing {
        None => operator::command(lab, &["scheduler-config > scheduler.yaml"]).await?,
        Some(content) => {
            fs::write(lab.directory().join("EXISTING.yaml"), content)?;
            operator::command(lab, &["scheduler-config --merge -"]).await?
        }
    };
    // A replica that has only just started may not be asked yet.
    lab.shell(&format!("cd {directory}; {line}")).await?;
    let printed = fs::read_to_string(lab.directory().join("scheduler.yaml"))?;
    let comments: Vec<&str> = printed
        .lines()
        .filter_map(|line| line.strip_prefix("# "))
        .map(str::trim)
        .collect();
    let manifest = lab.machine(machine)?.path(SCHEDULER_MANIFEST)?;
    let before = fs::read_to_string(&manifest)?;
    let mut pod: Value = serde_saphyr::from_str(&before)?;
    let place =
        after(&comments, "save this as ").or_else(|| after(&comments, "put this in place of "));
    let place = place.context("it does not say where to save it")?;
    let place = place.split(',').next().unwrap_or(&place);
    let file = lab.machine(machine)?.path(place.trim_end_matches('.'))?;
    let parent = file.parent().context("a file lies in a directory")?;
    fs::create_dir_all(parent)?;
    fs::write(&file, &printed)?;
    if existing.is_none() {
        for (field, pointer) in [
            ("spec.containers[0].command:", "/spec/containers/0/command"),
            (
                "spec.containers[0].volumeMounts:",
                "/spec/containers/0/volumeMounts",
            ),
            ("spec.volumes:", "/spec/volumes"),
        ] {
            let text = after(&comments, field).with_context(|| format!("nothing about {field}"))?;
            let added: Vec<Value> = serde_saphyr::from_str(text.trim())?;
            let list = pod.pointer_mut(pointer).and_then(Value::as_array_mut);
            list.with_context(|| format!("the manifest has no {pointer}"))?
                .extend(added);
        }
        fs::write(lab.directory().join(BEFORE), before)?;
    }
    // "move it away, wait until the pod is gone, and move it back": where it is changed in place, a kubelet that finds the former pod still
    // ending looks again 10 to 15 s later.
    let aside = lab
        .machine(machine)?
        .path("/etc/kubernetes/kube-scheduler.yaml")?;
    fs::rename(&manifest, &aside)?;
    wait_until_gone(lab, machine).await?;
    fs::write(&aside, format!("{pod:#}\n"))?;
    fs::rename(&aside, &manifest)?;
    Ok(printed)
}

/// Takes the extender out: kube-scheduler is started again as kubeadm had it. Nothing happens where it never got the extender.
pub async fn take_extender_out(lab: &Lab, machine: &str) -> Result<()> {
    let before = lab.directory().join(BEFORE);
    if !before.exists() {
        return Ok(());
    }
    let since = Timestamp::now().checked_sub(1.second())?;
    let manifest = lab.machine(machine)?.path(SCHEDULER_MANIFEST)?;
    fs::copy(&before, &manifest)?;
    fs::remove_file(before)?;
    wait_until_ready(lab, machine, None, since).await
}

/// What follows these words in one of the lines.
fn after(lines: &[&str], words: &str) -> Option<String> {
    let mut found = lines.iter().filter_map(|line| line.split_once(words));
    found.next().map(|(_, rest)| rest.to_owned())
}

/// Waits until it is Ready with this configuration file (none: as kubeadm starts it), was started after `since`, and goes on.
pub async fn wait_until_ready(
    lab: &Lab,
    machine: &str,
    config: Option<&str>,
    since: Timestamp,
) -> Result<()> {
    let what = format!("kube-scheduler runs with --config {config:?}");
    let container = eventually(&what, LIMIT, async || {
        let Some(pod) = pod(lab, machine).await? else {
            return Ok(Progress::NotYet("it has no pod".to_owned()));
        };
        let found = config_of(&pod);
        let status = container_of(&pod);
        let is_new = status
            .as_ref()
            .and_then(started)
            .is_some_and(|it| it >= since);
        let is_ready = status.as_ref().is_some_and(|it| it.ready);
        Ok(if is_new && is_ready && found.as_deref() == config {
            Progress::Done(status.and_then(|it| it.container_id))
        } else {
            Progress::NotYet(format!("--config {found:?}, {status:?}"))
        })
    })
    .await?;
    always("kube-scheduler goes on", WATCHED, async || {
        let now = pod(lab, machine).await?.as_ref().and_then(container_of);
        let is_same = now
            .as_ref()
            .is_some_and(|now| now.container_id == container);
        Ok(Progress::when(is_same, || format!("{now:?}")))
    })
    .await
}

/// Its pod, as the API server shows it.
async fn pod(lab: &Lab, machine: &str) -> Result<Option<Pod>> {
    let pods: Api<Pod> = Api::namespaced(lab.client(), "kube-system");
    Ok(pods.get_opt(&format!("kube-scheduler-{machine}")).await?)
}

async fn wait_until_gone(lab: &Lab, machine: &str) -> Result<()> {
    eventually("the pod of kube-scheduler is gone", LIMIT, async || {
        let is_gone = pod(lab, machine).await?.is_none();
        Ok(Progress::when(is_gone, || "it is there".to_owned()))
    })
    .await
}

fn config_of(pod: &Pod) -> Option<String> {
    let containers = pod.spec.iter().flat_map(|spec| &spec.containers);
    let words = containers.filter_map(|it| it.command.as_ref()).flatten();
    let mut found = words.filter_map(|word| word.strip_prefix("--config="));
    found.next_back().map(str::to_owned)
}

fn container_of(pod: &Pod) -> Option<ContainerStatus> {
    let statuses = pod.status.as_ref()?.container_statuses.as_ref()?;
    statuses.first().cloned()
}

/// To the second.
fn started(status: &ContainerStatus) -> Option<Timestamp> {
    let running = status.state.as_ref()?.running.as_ref()?;
    running.started_at.as_ref().map(|time| time.0)
}
