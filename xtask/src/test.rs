//! `cargo xtask test`: everything that CI runs, stage by stage, with the time that each took.

use std::{
    path::Path,
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};

use crate::{
    build::{self, TestProgram},
    dependencies, generate, prerequisites, root,
};

/// Arguments of `cargo xtask test`.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// One suite: a stage, a package's directory, or a file under `tests/tests` without its ending.
    suite: Option<String>,
    /// Names the suites and stops.
    #[arg(long)]
    list: bool,
    /// How often a suite that samples runs.
    #[arg(long)]
    runs: Option<u32>,
    /// The seed that a suite that samples starts from.
    #[arg(long)]
    seed: Option<u64>,
}

/// Stages that are not test programs, in the order in which they run.
const STAGES: [(&str, Stage); 8] = [
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
];

#[derive(Clone, Copy)]
enum Stage {
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
}

/// Runs all stages and suites, or one.
pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    prerequisites::check()?;
    let root = root();
    let mut report = Report::default();
    let wanted = arguments.suite.as_deref();
    let mut found = false;
    if !arguments.list {
        for (name, stage) in STAGES {
            if wanted.is_none_or(|wanted| wanted == name) {
                found = true;
                report.stage(name, || stage.run(&root))?;
            }
        }
        if found && wanted.is_some() {
            report.print();
            return Ok(());
        }
    }
    let mut programs = Vec::new();
    report.stage("build", || {
        programs = build::test_programs(&root)?;
        Ok(())
    })?;
    // Scenarios on the real control plane come last: what is cheap to find is found first.
    programs.sort_by_key(|program| {
        (
            order(program),
            program.package.clone(),
            program.target.clone(),
        )
    });
    if arguments.list {
        for (name, _) in STAGES {
            println!("{name}");
        }
        for program in &programs {
            println!("{}", program.suite());
        }
        return Ok(());
    }
    let selected: Vec<&TestProgram> = programs
        .iter()
        .filter(|program| wanted.is_none_or(|wanted| program.is_named(wanted)))
        .collect();
    if selected.is_empty() {
        bail!(
            "no suite is named {:?}; `cargo xtask test --list` names them",
            wanted.unwrap_or_default()
        );
    }
    for program in selected {
        report.stage(&program.suite(), || program.run(arguments))?;
    }
    report.print();
    Ok(())
}

/// Pure crates first, then the simulator, then real processes.
fn order(program: &TestProgram) -> u8 {
    match (program.package.as_str(), program.is_integration_test) {
        ("tests", true) => 2,
        ("sim", _) => 1,
        _ => 0,
    }
}

impl Stage {
    fn run(self, root: &Path) -> Result<()> {
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

/// Lints the chart, and renders it for the oldest Kubernetes that it is for.
fn chart(root: &Path) -> Result<()> {
    let built = Command::new("bash")
        .arg("tests/helm/build.sh")
        .current_dir(root)
        .output()?;
    let helm = Path::new(String::from_utf8_lossy(&built.stdout).trim()).join("helm");
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

impl TestProgram {
    /// What the suite is called on the command line.
    fn suite(&self) -> String {
        if self.is_integration_test && self.package == "tests" {
            self.target.clone()
        } else if self.is_integration_test {
            format!("{}/{}", self.package, self.target)
        } else {
            self.package.clone()
        }
    }

    fn is_named(&self, wanted: &str) -> bool {
        self.suite() == wanted || (self.package == wanted && self.package != "tests")
    }

    fn run(&self, arguments: &Arguments) -> Result<()> {
        let mut command = Command::new(&self.executable);
        command
            .current_dir(&self.directory)
            .env("CARGO_MANIFEST_DIR", &self.directory);
        if let Some(runs) = arguments.runs {
            command.env("MUSTER_RUNS", runs.to_string());
        }
        if let Some(seed) = arguments.seed {
            command.env("MUSTER_SEED", seed.to_string());
        }
        if order(self) == 2 {
            // One cluster at a time: two cores carry one control plane and its kubelets, not two.
            command.arg("--test-threads=1");
        }
        command.arg("--nocapture");
        succeed(&mut command, &self.suite())
    }
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

/// How long each stage took.
#[derive(Default)]
struct Report {
    rows: Vec<(String, Duration)>,
}

impl Report {
    fn stage(&mut self, name: &str, run: impl FnOnce() -> Result<()>) -> Result<()> {
        println!("==> {name}");
        let started = Instant::now();
        let result = run();
        self.rows.push((name.to_owned(), started.elapsed()));
        if result.is_err() {
            self.print();
        }
        result.with_context(|| format!("stage {name}"))
    }

    fn print(&self) {
        println!("\n{:<44} {:>8}", "STAGE", "SECONDS");
        for (name, took) in &self.rows {
            println!("{name:<44} {:>8.1}", took.as_secs_f64());
        }
        let total: Duration = self.rows.iter().map(|(_, took)| *took).sum();
        println!("{:<44} {:>8.1}", "total", total.as_secs_f64());
    }
}
