//! What an operator does: installs the chart with values of their own, and follows the notes that Helm prints.

use std::{fs, path::PathBuf};

use anyhow::{Context, Result};
use serde_json::{Value, json};

use super::{Lab, addresses, hardware, repository};

/// The namespace that the README installs into.
pub const NAMESPACE: &str = "muster-system";
/// The release of the README, whose name is the prefix of all its objects.
pub const RELEASE: &str = "muster";
/// The namespace of the driver.
pub const DRIVER_NAMESPACE: &str = "muster-driver";
/// A namespace of the Team of the README; `helm test` runs there.
pub const TEAM_NAMESPACE: &str = "research";

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
    let file = values_file(lab);
    fs::write(&file, format!("{:#}\n", values()))?;
    lab.kubectl(&["create", "namespace", NAMESPACE]).await?;
    let labels = ["enforce", "audit", "warn"]
        .map(|what| format!("pod-security.kubernetes.io/{what}=restricted"));
    let mut words = vec!["label", "namespace", NAMESPACE];
    words.extend(labels.iter().map(String::as_str));
    lab.kubectl(&words).await?;
    lab.notes.installed = Some(jiff::Timestamp::now());
    install_again(lab).await
}

/// Installs the chart by the line of the README into the namespace that is there, with the operator's file of values.
pub async fn install_again(lab: &Lab) -> Result<()> {
    lab.shell(&install_line(lab)?).await.map(drop)
}

/// The line of the README that installs, with the operator's file of values.
pub fn install_line(lab: &Lab) -> Result<String> {
    let readme = fs::read_to_string(repository().join("README.md"))?;
    let mut lines = readme.lines().map(str::trim);
    let line = lines.find(|line| line.starts_with("helm install "));
    let line = line.context("the README says how to install")?;
    Ok(format!("{line} --values {}", values_file(lab).display()))
}

/// The operator's file of values.
fn values_file(lab: &Lab) -> PathBuf {
    lab.directory().join("values.yaml")
}

/// The line by which the guide upgrades, with the operator's file of values.
pub fn upgrade_line(lab: &Lab) -> Result<String> {
    let line = line_of_upgrades("helm upgrade ")?;
    Ok(line.replace(
        "muster-values.yaml",
        &values_file(lab).display().to_string(),
    ))
}

/// Upgrades by that line and what is set besides (`--set NAME=VALUE`, or nothing), and waits until all of it is Ready.
pub async fn upgrade(lab: &Lab, further: &str) -> Result<()> {
    let line = upgrade_line(lab)?;
    lab.shell(&format!("{line} {further}")).await?;
    wait_until_ready(lab).await
}

/// The line by which the guide goes back.
pub fn rollback_line() -> Result<String> {
    line_of_upgrades("helm rollback ")
}

/// The commands of the operator's guide, of the first block that says this.
pub fn guide_block(words: &str) -> Result<String> {
    let guide = fs::read_to_string(repository().join("docs/operator-guide.md"))?;
    let mut blocks = blocks(&guide, "sh").into_iter();
    let block = blocks.find(|block| block.contains(words));
    block.with_context(|| format!("the guide has no block with {words:?}"))
}

fn line_of_upgrades(beginning: &str) -> Result<String> {
    let block = guide_block("helm rollback ")?;
    let mut lines = block.lines();
    let line = lines.find(|line| line.starts_with(beginning));
    line.map(str::to_owned)
        .with_context(|| format!("the guide has no {beginning}beside it"))
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

/// Waits until all that the chart starts is Ready.
pub async fn wait_until_ready(lab: &Lab) -> Result<()> {
    for program in ["controller", "webhook", "extender"] {
        rolled_out(lab, NAMESPACE, &format!("deployment/{RELEASE}-{program}")).await?;
    }
    rolled_out(
        lab,
        DRIVER_NAMESPACE,
        &format!("daemonset/{RELEASE}-driver"),
    )
    .await
}

/// Waits until all pods of a workload (`deployment/NAME`) are those of its template, and Ready.
pub async fn rolled_out(lab: &Lab, namespace: &str, workload: &str) -> Result<()> {
    lab.kubectl(&[
        "rollout",
        "status",
        workload,
        "--namespace",
        namespace,
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
