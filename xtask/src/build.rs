//! Builds with cargo and learns which files came out.

use std::{
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

#[derive(Deserialize)]
struct Message {
    reason: String,
    #[serde(default)]
    manifest_path: PathBuf,
    #[serde(default)]
    target: Target,
    #[serde(default)]
    profile: Profile,
    executable: Option<PathBuf>,
}

#[derive(Deserialize, Default)]
struct Target {
    name: String,
    kind: Vec<String>,
}

#[derive(Deserialize, Default)]
struct Profile {
    test: bool,
}

/// Builds every test program of the workspace in one go.
///
/// One go, because cargo unifies features over the packages that it is asked for: suite by suite, half of the
/// dependencies would be built again for each.
pub(crate) fn test_programs(root: &Path) -> Result<Vec<TestProgram>> {
    let output = Command::new("cargo")
        .args([
            "test",
            "--workspace",
            "--no-run",
            "--message-format=json-render-diagnostics",
        ])
        .current_dir(root)
        .stdout(Stdio::piped())
        .stderr(Stdio::inherit())
        .spawn()
        .and_then(std::process::Child::wait_with_output)
        .context("starting cargo")?;
    if !output.status.success() {
        bail!("the tests do not build");
    }
    let mut programs = Vec::new();
    for line in String::from_utf8_lossy(&output.stdout).lines() {
        let Ok(message) = serde_json::from_str::<Message>(line) else {
            continue;
        };
        let Some(executable) = message.executable else {
            continue;
        };
        if message.reason != "compiler-artifact" || !message.profile.test {
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
