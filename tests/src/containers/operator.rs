//! What an operator does: installs the chart with values of their own, and follows the notes that Helm prints.

use std::{fs, time::Duration};

use anyhow::{Context, Result};
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use serde_json::{Value, json};

use super::{Lab, addresses, hardware, machine::SCHEDULER_MANIFEST, repository};
use crate::kubernetes::{Progress, eventually};

/// The namespace that the README installs into.
pub const NAMESPACE: &str = "muster-system";
/// The release of the README, whose name is the prefix of all its objects.
pub const RELEASE: &str = "muster";
/// The namespace of the driver.
pub const DRIVER_NAMESPACE: &str = "muster-driver";
/// A namespace of the Team of the README; `helm test` runs there.
pub const TEAM_NAMESPACE: &str = "research";
/// Longest time until kube-scheduler runs with another configuration.
pub const SCHEDULER_LIMIT: Duration = Duration::from_mins(2);

/// What an operator would write. All else is the chart's default: images under the names that `cargo xtask image` gives them,
/// NVIDIA's driver in the root of its machine.
fn values() -> Value {
    let mut driver = hardware::values();
    driver["namespace"] = json!(DRIVER_NAMESPACE);
    driver["createNamespace"] = json!(true);
    json!({
        "mode": "Enforce",
        "driver": driver,
        "networkPolicy": {"enabled": true, "controlPlaneCidrs": [addresses::MACHINES]},
        "test": {"namespace": TEAM_NAMESPACE},
    })
}

/// Makes a namespace that admits nothing but restricted pods, and installs the chart in it, by the line of the README.
pub async fn install(lab: &mut Lab) -> Result<()> {
    let file = lab.directory().join("values.yaml");
    fs::write(&file, format!("{:#}\n", values()))?;
    lab.kubectl(&["create", "namespace", NAMESPACE]).await?;
    let labels = ["enforce", "audit", "warn"]
        .map(|what| format!("pod-security.kubernetes.io/{what}=restricted"));
    let mut words = vec!["label", "namespace", NAMESPACE];
    words.extend(labels.iter().map(String::as_str));
    lab.kubectl(&words).await?;
    let readme = fs::read_to_string(repository().join("README.md"))?;
    let mut lines = readme.lines().map(str::trim);
    let line = lines.find(|line| line.starts_with("helm install "));
    let line = line.context("the README says how to install")?;
    lab.notes.installed = Some(jiff::Timestamp::now());
    lab.shell(&format!("{line} --values {}", file.display()))
        .await?;
    Ok(())
}

/// The commands of the notes that Helm prints.
pub async fn notes(lab: &Lab) -> Result<Vec<String>> {
    let line = format!("helm get notes {RELEASE} --namespace {NAMESPACE}");
    let notes = lab.shell(&line).await?;
    let commands = notes.lines().map(str::trim).filter(|line| {
        let starts = |word: &str| line.starts_with(word);
        starts("kubectl ") || starts("helm ")
    });
    Ok(commands.map(str::to_owned).collect())
}

/// The one command of the notes that has all of these words.
pub async fn command(lab: &Lab, words: &[&str]) -> Result<String> {
    let all = notes(lab).await?;
    let has = |line: &&String| words.iter().all(|word| line.contains(word));
    let found = all.iter().find(has).cloned();
    found.with_context(|| format!("no command of the notes has {words:?}: {all:#?}"))
}

/// Labels the nodes with GPUs, as the notes say.
pub async fn label_nodes(lab: &Lab) -> Result<()> {
    let line = command(lab, &["kubectl label node NODE"]).await?;
    for machine in lab.machines.iter().filter(|machine| machine.has_gpus()) {
        lab.shell(&line.replace("NODE", machine.name())).await?;
    }
    Ok(())
}

/// Gives kube-scheduler the extender: prints its configuration by the command of the notes, and does what its comments
/// say. `existing` is the configuration that it has, where it has one.
pub async fn configure_scheduler(
    lab: &Lab,
    machine: &str,
    existing: Option<&str>,
) -> Result<String> {
    let directory = lab.directory().display();
    let line = match existing {
        None => command(lab, &["scheduler-config > scheduler.yaml"]).await?,
        Some(content) => {
            fs::write(lab.directory().join("EXISTING.yaml"), content)?;
            command(lab, &["scheduler-config --merge -"]).await?
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
    let mut pod: Value = serde_saphyr::from_str(&fs::read_to_string(&manifest)?)?;
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
        fs::write(&manifest, format!("{pod:#}\n"))?;
    } else {
        // "move it away, wait until the pod is gone, and move it back"
        let aside = lab
            .machine(machine)?
            .path("/etc/kubernetes/kube-scheduler.yaml")?;
        fs::rename(&manifest, &aside)?;
        wait_until_gone(lab, machine).await?;
        fs::rename(&aside, &manifest)?;
    }
    Ok(printed)
}

/// What follows these words in one of the lines.
fn after(lines: &[&str], words: &str) -> Option<String> {
    let mut found = lines.iter().filter_map(|line| line.split_once(words));
    found.next().map(|(_, rest)| rest.to_owned())
}

/// The pod of kube-scheduler on this machine, as the API server shows it.
pub async fn scheduler_pod(lab: &Lab, machine: &str) -> Result<Option<Pod>> {
    let pods: Api<Pod> = Api::namespaced(lab.client(), "kube-system");
    Ok(pods.get_opt(&format!("kube-scheduler-{machine}")).await?)
}

async fn wait_until_gone(lab: &Lab, machine: &str) -> Result<()> {
    eventually(
        "the pod of kube-scheduler is gone",
        SCHEDULER_LIMIT,
        async || {
            let pod = scheduler_pod(lab, machine).await?;
            Ok(Progress::when(pod.is_none(), || "it is there".to_owned()))
        },
    )
    .await
}

/// Waits until kube-scheduler is Ready with this configuration file (none: as kubeadm starts it), and has not restarted.
pub async fn wait_for_scheduler(lab: &Lab, machine: &str, config: Option<&str>) -> Result<()> {
    eventually(
        &format!("kube-scheduler runs with {config:?}"),
        SCHEDULER_LIMIT,
        async || {
            let Some(pod) = scheduler_pod(lab, machine).await? else {
                return Ok(Progress::NotYet("it has no pod".to_owned()));
            };
            let containers = pod.spec.map(|spec| spec.containers).unwrap_or_default();
            let words = containers.into_iter().filter_map(|it| it.command).flatten();
            let mut configs =
                words.filter_map(|word| Some(word.strip_prefix("--config=")?.to_owned()));
            let found = configs.next_back();
            let status = pod.status.unwrap_or_default();
            let states = status.container_statuses.unwrap_or_default();
            let is_ready = states.iter().any(|it| it.ready && it.restart_count == 0);
            let is_configured = found.as_deref() == config;
            Ok(Progress::when(is_ready && is_configured, || {
                format!("--config {found:?}, {states:?}")
            }))
        },
    )
    .await
}

/// Waits until all that the chart starts is Ready.
pub async fn wait_until_ready(lab: &Lab) -> Result<()> {
    for program in ["controller", "webhook", "extender"] {
        let deployment = format!("deployment/{RELEASE}-{program}");
        lab.kubectl(&[
            "rollout",
            "status",
            &deployment,
            "--namespace",
            NAMESPACE,
            "--timeout=110s",
        ])
        .await?;
    }
    let daemon_set = format!("daemonset/{RELEASE}-driver");
    lab.kubectl(&[
        "rollout",
        "status",
        &daemon_set,
        "--namespace",
        DRIVER_NAMESPACE,
        "--timeout=110s",
    ])
    .await?;
    Ok(())
}

/// Applies YAML by kubectl, as whoever `as_user` is (an administrator without).
pub async fn apply(
    lab: &Lab,
    name: &str,
    content: &str,
    namespace: Option<&str>,
) -> Result<String> {
    let file = lab.directory().join(format!("{name}.yaml"));
    fs::write(&file, content)?;
    let file = file.display().to_string();
    let mut words = vec!["apply", "--filename", &file];
    if let Some(namespace) = namespace {
        words.extend(["--namespace", namespace]);
    }
    lab.kubectl(&words).await
}

/// The blocks of a language in a Markdown text.
pub fn blocks(text: &str, language: &str) -> Vec<String> {
    let opening = format!("```{language}");
    let mut blocks = Vec::new();
    let mut open: Option<String> = None;
    for line in text.lines() {
        match &mut open {
            None if line.trim() == opening => open = Some(String::new()),
            None => {}
            Some(_) if line.trim() == "```" => blocks.extend(open.take()),
            Some(block) => {
                block.push_str(line);
                block.push('\n');
            }
        }
    }
    blocks
}

/// Applies the README's block that declares who owns what.
pub async fn apply_team(lab: &Lab) -> Result<()> {
    let readme = fs::read_to_string(repository().join("README.md"))?;
    let blocks = blocks(&readme, "yaml");
    let block = blocks.iter().find(|block| block.contains("kind: Team"));
    let block = block.context("the README declares a Team")?;
    apply(lab, "readme-team", block, None).await.map(drop)
}

/// Makes a namespace, and labels it as the notes say.
pub async fn label_namespace(lab: &Lab, namespace: &str, team: &str) -> Result<()> {
    lab.kubectl(&["create", "namespace", namespace]).await?;
    let line = command(lab, &["kubectl label namespace NAMESPACE"]).await?;
    let line = line
        .replace("NAMESPACE", namespace)
        .replace("=TEAM", &format!("={team}"));
    lab.shell(&line).await.map(drop)
}
