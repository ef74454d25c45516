//! What CI checks beside the test programs.

use std::{
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use anyhow::{Context, Result, bail};

use super::model;
use crate::{dependencies, generate};

/// Stages that are not test programs, in the order in which they run.
pub(super) const STAGES: [(&str, Stage); 10] = [
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
    ("alerts", Stage::Alerts),
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
    /// The chart's alerts, by Prometheus' own promtool.
    Alerts,
    /// The checked model of the protocol, in part.
    Model,
}

impl Stage {
    pub(super) fn run(self, root: &Path) -> Result<()> {
        match self {
            Self::Cargo(arguments) => succeed(
                Command::new("cargo").args(arguments).current_dir(root),
                arguments.first().unwrap_or(&"cargo"),
            ),
            Self::Script(path) => succeed(Command::new("bash").arg(path).current_dir(root), path),
            Self::Generated => generate::run(root, true),
            Self::Dependencies => dependencies::check(root),
            Self::ProcessRuntime => process_runtime(root),
            Self::Chart => chart(root),
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
    let promtool = built_by(root, "tests/prometheus/build.sh")?.join("promtool");
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
fn built_by(root: &Path, script: &str) -> Result<PathBuf> {
    let built = Command::new("bash")
        .arg(script)
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
    let helm = built_by(root, "tests/helm/build.sh")?.join("helm");
    let chart = "deploy/helm/muster";
    let lint = ["lint", "--strict", "--quiet", chart];
    succeed(
        Command::new(&helm).args(lint).current_dir(root),
        "helm lint",
    )?;
    let render = ["template", "muster", chart, "--kube-version", "1.37.0"];
    let mut render_for_oldest = Command::new(&helm);
    render_for_oldest
        .args(render)
        .current_dir(root)
        .stdout(Stdio::null());
    succeed(&mut render_for_oldest, "helm template")
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
