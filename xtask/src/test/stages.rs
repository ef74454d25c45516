//! What CI checks beside the test programs.

use std::{
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use anyhow::{Context, Result, bail};
use serde_json::Value;

use super::model;
use crate::{build::cargo, dependencies, generate};

/// Stages that are not test programs, in the order in which they run.
pub(super) const STAGES: [(&str, Stage); 12] = [
    ("format", Stage::Cargo(&["fmt", "--all", "--check"])),
    ("generated", Stage::Generated),
    (
        "clippy",
        Stage::Cargo(&[
            "clippy",
            "--workspace",
            "--all-targets",
            "--",
            "--deny",
            "warnings",
        ]),
    ),
    ("dependencies", Stage::Dependencies),
    ("controlplane", Stage::Script("tests/controlplane/build.sh")),
    ("runtime", Stage::ProcessRuntime),
    ("helm", Stage::Script("tests/helm/build.sh")),
    ("chart", Stage::Chart),
    ("helm3", Stage::FormerHelm),
    ("alerts", Stage::Alerts),
    (
        "cdi",
        Stage::Cargo(&[
            "test",
            "--locked",
            "--manifest-path",
            "tests/cdi-validation/Cargo.toml",
            "--target-dir",
            "target/cdi-validation",
        ]),
    ),
    ("model", Stage::Model),
];

#[derive(Clone, Copy)]
pub(super) enum Stage {
    /// A cargo command.
    Cargo(&'static [&'static str]),
    /// A script of the repository.
    Script(&'static str),
    /// Files that are derived from the Rust types, compared.
    Generated,
    /// Bans, licenses and sources of the dependency graph.
    Dependencies,
    /// The process runtime's own tests, in Go.
    ProcessRuntime,
    /// The chart, by Helm's own checks.
    Chart,
    /// The chart by the Helm of before, compared.
    FormerHelm,
    /// The chart's alerts, by Prometheus' own promtool.
    Alerts,
    /// The checked model of the protocol, in part.
    Model,
}

impl Stage {
    pub(super) fn run(self, root: &Path) -> Result<()> {
        match self {
            Self::Cargo(arguments) => succeed(
                cargo().args(arguments).current_dir(root),
                arguments.first().unwrap_or(&"cargo"),
            ),
            Self::Script(path) => succeed(Command::new("bash").arg(path).current_dir(root), path),
            Self::Generated => generate::run(root, true),
            Self::Dependencies => dependencies::check(root),
            Self::ProcessRuntime => process_runtime(root),
            Self::Chart => chart(root),
            Self::FormerHelm => former_helm(root),
            Self::Alerts => alerts(root),
            Self::Model => model::check(root),
        }
    }
}

/// The process runtime's own tests, in Go.
fn process_runtime(root: &Path) -> Result<()> {
    let directory = root.join("tests/controlplane");
    succeed(
        Command::new("go")
            .args(["test", "-count=1", "./processruntime/..."])
            .env("CGO_ENABLED", "0")
            .env("GOTOOLCHAIN", "local")
            .env("GOFLAGS", "-trimpath -buildvcs=false")
            .current_dir(directory),
        "go test",
    )
}

/// Checks the alerts' rules, and runs their tests.
fn alerts(root: &Path) -> Result<()> {
    let promtool = built_by(root, "tests/prometheus/build.sh", &[])?.join("promtool");
    for (command, file) in [
        ("check", "deploy/helm/muster/files/alerts.yaml"),
        ("test", "xtask/tests/chart/alerts.yaml"),
    ] {
        let arguments = [command, "rules", file];
        succeed(
            Command::new(&promtool).args(arguments).current_dir(root),
            "promtool",
        )?;
    }
    Ok(())
}

/// The directory that a script has built programs into.
fn built_by(root: &Path, script: &str, arguments: &[&str]) -> Result<PathBuf> {
    let built = Command::new("bash")
        .arg(script)
        .args(arguments)
        .current_dir(root)
        .stderr(Stdio::inherit())
        .output()?;
    if !built.status.success() {
        bail!("{script} failed ({})", built.status);
    }
    Ok(PathBuf::from(String::from_utf8_lossy(&built.stdout).trim()))
}

/// Lints the chart, and renders it for the oldest Kubernetes that it is for.
fn chart(root: &Path) -> Result<()> {
    let helm = built_by(root, "tests/helm/build.sh", &[])?.join("helm");
    let lint = ["lint", "--strict", "--quiet", CHART];
    succeed(
        Command::new(&helm).args(lint).current_dir(root),
        "helm lint",
    )?;
    let render = ["template", "muster", CHART, "--kube-version", "1.37.0"];
    let mut render_for_oldest = Command::new(&helm);
    render_for_oldest
        .args(render)
        .current_dir(root)
        .stdout(Stdio::null());
    succeed(&mut render_for_oldest, "helm template")
}

/// Where the chart is.
const CHART: &str = "deploy/helm/muster";

/// Helm 3 takes the chart as well, and makes the same objects of it.
fn former_helm(root: &Path) -> Result<()> {
    let former = built_by(root, "tests/helm/build.sh", &["3"])?.join("helm");
    let helm = built_by(root, "tests/helm/build.sh", &[])?.join("helm");
    let lint = ["lint", "--strict", "--quiet", CHART];
    succeed(
        Command::new(&former).args(lint).current_dir(root),
        "helm lint of Helm 3",
    )?;
    let everything = [
        "mode=Enforce",
        "scheduler.enabled=true",
        "networkPolicy.enabled=true",
        "metrics.podMonitor.enabled=true",
        "metrics.prometheusRule.enabled=true",
        "metrics.dashboards.enabled=true",
        "openshift.enabled=true",
        "test.namespace=research",
    ];
    for values in [&everything[..], &[]] {
        if rendered(root, &former, values)? != rendered(root, &helm, values)? {
            bail!("Helm 3 and Helm 4 make different objects of {CHART} with {values:?}");
        }
    }
    Ok(())
}

/// The objects that this Helm makes of the chart, in an order of their own.
fn rendered(root: &Path, helm: &Path, values: &[&str]) -> Result<Vec<String>> {
    let output = Command::new(helm)
        .args(["template", "muster", CHART, "--kube-version", "1.37.0"])
        .args(values.iter().flat_map(|value| ["--set", value]))
        .current_dir(root)
        .stderr(Stdio::inherit())
        .output()
        .with_context(|| format!("starting {}", helm.display()))?;
    if !output.status.success() {
        bail!("{} template failed ({})", helm.display(), output.status);
    }
    let text = String::from_utf8(output.stdout)?;
    let mut objects = Vec::new();
    for document in text.split("\n---\n") {
        let object: Value = serde_saphyr::from_str(document).context("what Helm prints")?;
        objects.push(object.to_string());
    }
    objects.sort();
    objects.retain(|object| object != "null");
    Ok(objects)
}

pub(crate) fn succeed(command: &mut Command, what: &str) -> Result<()> {
    let status = command
        .status()
        .with_context(|| format!("starting {what}"))?;
    if !status.success() {
        bail!("{what} failed ({status})");
    }
    Ok(())
}
