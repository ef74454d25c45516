//! Builds with cargo and learns which files came out.

use std::{
    env,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use anyhow::{Context, Result, bail};
use serde::Deserialize;

/// A test program that cargo built.
#[derive(Debug)]
pub(crate) struct TestProgram {
    /// Package that it belongs to.
    pub(crate) package: String,
    /// Name of the target: the library's, or the file's under `tests/`.
    pub(crate) target: String,
    /// Whether it is one of the package's `tests/*.rs`.
    pub(crate) is_integration_test: bool,
    /// The executable.
    pub(crate) executable: PathBuf,
    /// Directory of the package: cargo runs tests there.
    pub(crate) directory: PathBuf,
}

/// Something that cargo built, or had built before.
#[derive(Debug, Default, Deserialize)]
pub(crate) struct Artifact {
    /// `compiler-artifact`: cargo's word for what this is.
    pub(crate) reason: String,
    /// The same as in cargo's metadata.
    #[serde(default)]
    pub(crate) package_id: String,
    /// The package's `Cargo.toml`.
    #[serde(default)]
    pub(crate) manifest_path: PathBuf,
    #[serde(default)]
    pub(crate) target: Target,
    #[serde(default)]
    pub(crate) profile: Profile,
    /// The features that it was built with.
    #[serde(default)]
    pub(crate) features: Vec<String>,
    pub(crate) executable: Option<PathBuf>,
}

impl Artifact {
    /// Whether it is a build script or a macro: nothing of it is in the program.
    pub(crate) fn runs_in_the_compiler(&self) -> bool {
        let kinds = &self.target.kind;
        kinds
            .iter()
            .any(|kind| kind == "custom-build" || kind == "proc-macro")
    }
}

/// What of a package was built.
#[derive(Debug, Default, Deserialize)]
pub(crate) struct Target {
    pub(crate) name: String,
    pub(crate) kind: Vec<String>,
}

/// How it was built.
#[derive(Debug, Default, Deserialize)]
pub(crate) struct Profile {
    pub(crate) test: bool,
}

/// A cargo that is told nothing of this tool's own package.
///
/// Cargo tells a program that it starts which package that is of, by variables that build scripts look at, too. Handed on, they would have
/// cryptography, TLS and all that stands on them compiled anew each time that this tool builds after somebody else, and the other way round.
pub(crate) fn cargo() -> Command {
    let mut command = Command::new("cargo");
    for (name, _) in env::vars_os() {
        let text = name.to_string_lossy();
        if text.starts_with("CARGO_PKG_") || text.starts_with("CARGO_MANIFEST_") {
            command.env_remove(name);
        }
    }
    command
}

/// Has cargo say what it built.
pub(crate) const MESSAGES: &str = "--message-format=json-render-diagnostics";

/// Runs a build that was asked for [`MESSAGES`], and returns everything that it is made of.
pub(crate) fn artifacts(command: &mut Command) -> Result<Vec<Artifact>> {
    let output = command
        .stdout(Stdio::piped())
        .stderr(Stdio::inherit())
        .spawn()
        .and_then(std::process::Child::wait_with_output)
        .context("starting cargo")?;
    if !output.status.success() {
        bail!("the build failed ({})", output.status);
    }
    let text = String::from_utf8_lossy(&output.stdout);
    let messages = text
        .lines()
        .filter_map(|line| serde_json::from_str(line).ok());
    Ok(messages
        .filter(|artifact: &Artifact| artifact.reason == "compiler-artifact")
        .collect())
}

/// Builds every test program of the workspace in one go.
///
/// One go, because cargo unifies features over the packages that it is asked for: suite by suite, half of the
/// dependencies would be built again for each.
pub(crate) fn test_programs(root: &Path) -> Result<Vec<TestProgram>> {
    let built = artifacts(
        cargo()
            .args(["test", "--workspace", "--no-run", MESSAGES])
            .current_dir(root),
    )
    .context("building the tests")?;
    let mut programs = Vec::new();
    for message in built {
        let Some(executable) = message.executable else {
            continue;
        };
        if !message.profile.test {
            continue;
        }
        let directory = message
            .manifest_path
            .parent()
            .map(Path::to_path_buf)
            .unwrap_or_default();
        programs.push(TestProgram {
            package: directory
                .strip_prefix(root)
                .unwrap_or(&directory)
                .display()
                .to_string(),
            is_integration_test: message.target.kind.iter().any(|kind| kind == "test"),
            target: message.target.name,
            executable,
            directory,
        });
    }
    programs.sort_by(|a, b| (&a.package, &a.target).cmp(&(&b.package, &b.target)));
    Ok(programs)
}
