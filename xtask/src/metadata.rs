//! What `cargo metadata` says about the dependency graph.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use serde::Deserialize;

use crate::build::cargo;

/// The packages and how they depend on each other.
#[derive(Debug, Default, Deserialize)]
pub(crate) struct Metadata {
    pub(crate) packages: Vec<Package>,
    pub(crate) workspace_members: Vec<String>,
    pub(crate) resolve: Resolve,
    /// Where cargo puts what it builds.
    #[serde(default)]
    pub(crate) target_directory: PathBuf,
}

/// A package of the graph.
#[derive(Clone, Debug, Default, Deserialize)]
pub(crate) struct Package {
    pub(crate) id: String,
    pub(crate) name: String,
    #[serde(default)]
    pub(crate) version: String,
    /// Absent for a package of the repository.
    pub(crate) source: Option<String>,
    /// An SPDX expression.
    pub(crate) license: Option<String>,
    #[serde(default)]
    pub(crate) description: Option<String>,
    /// Where its source is developed.
    #[serde(default)]
    pub(crate) repository: Option<String>,
    pub(crate) dependencies: Vec<Dependency>,
}

/// A dependency as a manifest declares it.
#[derive(Clone, Debug, Default, Deserialize)]
pub(crate) struct Dependency {
    pub(crate) name: String,
    /// The version requirement.
    pub(crate) req: String,
    #[cfg_attr(
        not(test),
        expect(dead_code, reason = "asked for by the test of the doors")
    )]
    pub(crate) kind: Option<String>,
    /// Set for a package of the repository.
    pub(crate) path: Option<String>,
}

/// The graph that cargo resolved.
#[derive(Debug, Default, Deserialize)]
pub(crate) struct Resolve {
    pub(crate) nodes: Vec<Node>,
}

/// A package and what it was resolved to depend on.
#[derive(Debug, Default, Deserialize)]
pub(crate) struct Node {
    pub(crate) id: String,
    pub(crate) deps: Vec<Edge>,
}

/// One resolved dependency.
#[derive(Debug, Default, Deserialize)]
pub(crate) struct Edge {
    pub(crate) pkg: String,
    pub(crate) dep_kinds: Vec<EdgeKind>,
}

/// As what a dependency is used.
#[derive(Debug, Default, Deserialize)]
pub(crate) struct EdgeKind {
    /// `dev` or `build`; absent for what is linked.
    pub(crate) kind: Option<String>,
}

/// Asks cargo, with further arguments.
pub(crate) fn read(root: &Path, arguments: &[&str]) -> Result<Metadata> {
    let output = cargo()
        .args(["metadata", "--format-version", "1"])
        .args(arguments)
        .current_dir(root)
        .output()
        .context("starting cargo")?;
    let complaint = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "cargo metadata: {complaint}");
    serde_json::from_slice(&output.stdout).context("reading cargo's metadata")
}
