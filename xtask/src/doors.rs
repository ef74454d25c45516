//! The doors between the rooms: who may depend on whom. Checked against what cargo says, so that a
//! dependency which breaks them fails a test and not a review.

#![cfg(test)]

use std::collections::{BTreeMap, BTreeSet};

use crate::metadata::{self, Dependency, Metadata};

/// Rooms that a room may depend on. What is not listed is forbidden; `*` is every room.
const DOORS: [(&str, &[&str]); 20] = [
    ("muster-api", &[]),
    ("muster-engine", &[]),
    ("muster-serve", &[]),
    ("muster-kubelet-api", &[]),
    ("muster-cdi-hook", &[]),
    ("muster-device", &["muster-cdi-hook"]),
    ("muster-cluster", &["muster-api", "muster-engine"]),
    (
        "muster-protocol",
        &["muster-api", "muster-engine", "muster-cluster"],
    ),
    (
        "muster-webhook",
        &[
            "muster-api",
            "muster-engine",
            "muster-cluster",
            "muster-serve",
        ],
    ),
    (
        "muster-controller",
        &[
            "muster-api",
            "muster-engine",
            "muster-cluster",
            "muster-protocol",
            "muster-serve",
        ],
    ),
    (
        "muster-extender",
        &[
            "muster-api",
            "muster-engine",
            "muster-cluster",
            "muster-serve",
        ],
    ),
    (
        "muster-dra-driver",
        &[
            "muster-api",
            "muster-engine",
            "muster-cluster",
            "muster-serve",
            "muster-device",
            "muster-kubelet-api",
        ],
    ),
    (
        "muster-sim",
        &[
            "muster-api",
            "muster-engine",
            "muster-engine",
            "muster-cluster",
            "muster-protocol",
            "muster-controller",
            "muster-dra-driver",
        ],
    ),
    ("muster-engine-tests", &["muster-engine"]),
    ("muster-bench", &["*"]),
    ("muster-nvml-mock", &[]),
    ("muster-rank", &[]),
    ("muster-fake-nodes", &["*"]),
    ("muster-tests", &["*"]),
    ("xtask", &["*"]),
];

/// Crates that would let a clock, a network, a log or Kubernetes into the engine.
const FORBIDDEN_IN_ENGINE: [&str; 8] = [
    "kube",
    "kube-core",
    "k8s-openapi",
    "tokio",
    "tracing",
    "jiff",
    "rand",
    "libc",
];

impl Dependency {
    /// Tests of a room may use the fake of the world outside that stands at its edge, and the room itself
    /// with features that are not for shipping.
    fn is_for_tests(&self, room: &str) -> bool {
        let is_dev = self.kind.as_deref() == Some("dev");
        is_dev && (self.name == "muster-nvml-mock" || self.name == room)
    }
}

fn metadata() -> Metadata {
    // Packages of other platforms are not downloaded where nothing but this test has run.
    let arguments = ["--offline", "--filter-platform", "x86_64-unknown-linux-gnu"];
    metadata::read(&crate::root(), &arguments).expect("cargo answers")
}

#[test]
fn every_room_uses_only_the_doors_it_has() {
    let doors: BTreeMap<&str, &[&str]> = DOORS.into_iter().collect();
    let metadata = metadata();
    let rooms: BTreeSet<&str> = metadata
        .packages
        .iter()
        .filter(|package| metadata.workspace_members.contains(&package.id))
        .map(|package| package.name.as_str())
        .collect();
    for package in metadata
        .packages
        .iter()
        .filter(|package| rooms.contains(package.name.as_str()))
    {
        let allowed = doors
            .get(package.name.as_str())
            .unwrap_or_else(|| panic!("{} has no doors yet", package.name));
        for dependency in package.dependencies.iter().filter(|dependency| {
            rooms.contains(dependency.name.as_str()) && !dependency.is_for_tests(&package.name)
        }) {
            assert!(
                allowed.contains(&"*") || allowed.contains(&dependency.name.as_str()),
                "{} has no door to {}",
                package.name,
                dependency.name
            );
        }
    }
}

#[test]
fn nothing_impure_stands_below_the_engine() {
    let metadata = metadata();
    let names: BTreeMap<&str, &str> = metadata
        .packages
        .iter()
        .map(|package| (package.id.as_str(), package.name.as_str()))
        .collect();
    let below: BTreeMap<&str, Vec<&str>> = metadata
        .resolve
        .nodes
        .iter()
        .map(|node| {
            let normal = node
                .deps
                .iter()
                .filter(|edge| edge.dep_kinds.iter().any(|kind| kind.kind.is_none()));
            (
                node.id.as_str(),
                normal.map(|edge| edge.pkg.as_str()).collect(),
            )
        })
        .collect();
    let engine = names
        .iter()
        .find(|(_, name)| **name == "muster-engine")
        .map(|(id, _)| *id)
        .expect("the engine");
    let mut seen = BTreeSet::new();
    let mut open = vec![engine];
    while let Some(id) = open.pop() {
        if seen.insert(id) {
            open.extend(below.get(id).into_iter().flatten());
        }
    }
    for id in seen {
        assert!(
            !FORBIDDEN_IN_ENGINE.contains(&names[id]),
            "{} stands below the engine",
            names[id]
        );
    }
}
