//! Muster's own programs, as `cargo` builds them.
//!
//! A test binary cannot depend on a program of another package (cargo has no stable way to say so),
//! so the harness asks the cargo that runs it to build them: a no-op where they are fresh.
//! `MUSTER_PROGRAMS=DIR` names ready-made ones instead.

use std::{
    fs::{self, File},
    path::{Path, PathBuf},
    process::Stdio,
};

use anyhow::{Context, Result, bail};
use nvidia_ml_mock::LIBRARY;
use serde_json::Value;
use tokio::process::Command;

use crate::fake_nodes;

/// What every cluster needs: the workload of the tests.
const WORKLOAD: &str = "rank";

/// What Muster in a cluster needs beside the mock NVML library.
const MUSTER: [&str; 4] = [
    "muster-controller",
    "muster-webhook",
    "muster-extender",
    "muster-dra-driver",
];

/// The hook, linked as it ships: it runs on nodes, whatever these have.
const STATIC_HOOK: [&str; 7] = [
    "--package",
    "muster-cdi-hook",
    "--bin",
    "muster-cdi-hook",
    "--",
    "-C",
    "target-feature=+crt-static",
];

/// What is to be built.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wanted {
    /// The workload alone.
    Workload,
    /// The program that plays nodes, too, and nothing of Muster.
    FakeNodes,
    /// Muster as it ships, too.
    Muster,
    /// Muster as it ships, and the program that plays nodes.
    MusterWithFakeNodes,
    /// Muster with failpoints in its controller, too.
    MusterWithFailpoints,
    /// Muster as it ships with all that its images hold, the command that makes them, and what stands for a container runtime.
    MusterForImages,
}

impl Wanted {
    fn has_muster(self) -> bool {
        !matches!(self, Self::Workload | Self::FakeNodes)
    }
}

/// Where the programs are.
#[derive(Clone, Debug)]
pub struct Programs {
    directory: PathBuf,
}

impl Programs {
    /// Builds what is wanted and links them into `directory/bin`: a build that
    /// happens while the cluster runs must not exchange the program that a restart starts.
    pub async fn find(directory: &Path, wanted: Wanted) -> Result<Self> {
        if let Some(ready_made) = std::env::var_os("MUSTER_PROGRAMS") {
            return Ok(Self {
                directory: PathBuf::from(ready_made),
            });
        }
        let target = directory.join("bin");
        fs::create_dir_all(&target)?;
        let _one_at_a_time = tokio::task::spawn_blocking(lock_builds).await??;
        for built in build(wanted).await? {
            let name = built
                .file_name()
                .context("cargo built a file without name")?;
            link_or_copy(&built, &target.join(name))?;
        }
        if wanted.has_muster() {
            link_or_copy(&nvidia_ml_mock::library()?, &target.join(LIBRARY))?;
        }
        Ok(Self { directory: target })
    }

    /// Path of a program, or of the mock NVML library, [`LIBRARY`].
    pub fn path(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }

    /// The directory that holds them.
    pub fn directory(&self) -> &Path {
        &self.directory
    }
}

/// A controller with failpoints and one without have the same path: until it is linked to where a suite starts it
/// from, no other suite may build. The lock is on this package's manifest, which is there and is nobody else's to
/// lock; it is given back when the file is closed.
fn lock_builds() -> Result<File> {
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR")).join("Cargo.toml");
    let file = File::open(&manifest);
    let file = file.with_context(|| format!("cannot open {}", manifest.display()))?;
    file.lock()
        .with_context(|| format!("cannot lock {}", manifest.display()))?;
    Ok(file)
}

async fn build(wanted: Wanted) -> Result<Vec<PathBuf>> {
    let mut words = targets(wanted);
    if wanted == Wanted::MusterWithFailpoints {
        words.extend(["--features", "muster-controller/failpoints"]);
    }
    let mut built = compile("build", &words).await?;
    if wanted == Wanted::MusterForImages {
        built.extend(compile("rustc", &STATIC_HOOK).await?);
    }
    Ok(built)
}

/// What cargo has built, by a command of it with these words.
async fn compile(command: &str, words: &[&str]) -> Result<Vec<PathBuf>> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut cargo = Command::new(cargo);
    cargo
        .current_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join(".."))
        .args([command, "--message-format=json-render-diagnostics"])
        .stdin(Stdio::null())
        .stderr(Stdio::inherit());
    // Which package this program is of is nothing to the build: build scripts look at these variables, too, and what stands on those that
    // do would be compiled anew for each suite.
    for (name, _) in std::env::vars_os() {
        let text = name.to_string_lossy();
        if text.starts_with("CARGO_PKG_") || text.starts_with("CARGO_MANIFEST_") {
            cargo.env_remove(name);
        }
    }
    // What is measured is built as what measures.
    if !cfg!(debug_assertions) {
        cargo.arg("--release");
    }
    let output = cargo
        .args(words)
        .output()
        .await
        .context("cannot run cargo")?;
    if !output.status.success() {
        bail!("cargo could not build Muster's programs, see above");
    }
    Ok(String::from_utf8_lossy(&output.stdout)
        .lines()
        .filter_map(|line| serde_json::from_str(line).ok())
        .filter_map(|message: Value| program(&message))
        .collect())
}

/// Programs are chosen by their names and not by their packages: cargo unifies features over the packages that it is
/// asked for, and asked for all of the workspace it compiles a dependency once, for the tests and for all programs.
fn targets(wanted: Wanted) -> Vec<&'static str> {
    let mut targets = vec!["--bin", WORKLOAD];
    if wanted.has_muster() {
        targets.extend(MUSTER.into_iter().flat_map(|name| ["--bin", name]));
    }
    if matches!(wanted, Wanted::FakeNodes | Wanted::MusterWithFakeNodes) {
        targets.extend(["--bin", fake_nodes::PROGRAM]);
    }
    if wanted == Wanted::MusterForImages {
        let further = ["muster-nvidia-runtime", "xtask"];
        targets.extend(further.into_iter().flat_map(|name| ["--bin", name]));
    }
    targets
}

/// The program that a message of cargo is about, if it is about one of ours.
fn program(message: &Value) -> Option<PathBuf> {
    let is_ours = message["package_id"].as_str()?.starts_with("path+");
    let is_built = message["reason"] == "compiler-artifact";
    let executable = message["executable"].as_str()?;
    (is_ours && is_built).then(|| PathBuf::from(executable))
}

fn link_or_copy(from: &Path, to: &Path) -> Result<()> {
    if fs::hard_link(from, to).is_err() {
        fs::copy(from, to)
            .with_context(|| format!("cannot copy {} to {}", from.display(), to.display()))?;
    }
    Ok(())
}
