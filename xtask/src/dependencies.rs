//! What may enter the dependency graph: licenses, banned packages, sources, version requirements.
//!
//! These are the checks of cargo-deny that this repository needs, over the same data (`cargo metadata`). Building that
//! tool took longer than any other stage on an empty cache. Advisories are not checked: their database is not among the
//! registries that CI reaches.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
};

use anyhow::{Result, bail};
use spdx::{Expression, ParseMode};

use crate::metadata::{self, Metadata, Package};

/// Platforms that Muster is built for.
const TARGETS: [&str; 2] = ["x86_64-unknown-linux-gnu", "aarch64-unknown-linux-gnu"];

/// Licenses under which code may be linked into what ships.
const LICENSES: [&str; 8] = [
    "Apache-2.0",
    "Apache-2.0 WITH LLVM-exception",
    "BSD-2-Clause",
    "BSD-3-Clause",
    "ISC",
    "MIT",
    "Unicode-3.0",
    "Zlib",
];

/// Packages that may be used by nobody but these, and why.
const BANNED: [(&str, &[&str], &str); 5] = [
    ("openssl-sys", &[], ONE_TLS_STACK),
    ("native-tls", &[], ONE_TLS_STACK),
    ("aws-lc-rs", &[], ONE_TLS_STACK),
    (
        "nvml-wrapper",
        &["muster-device"],
        "NVML is reached through one crate only",
    ),
    (
        "serde_yaml",
        &[],
        "it is deprecated; YAML is read and written with serde-saphyr",
    ),
];

const ONE_TLS_STACK: &str =
    "there is one TLS stack, rustls with ring: two providers in one process make rustls panic";

/// Fails with everything that is not allowed.
pub(crate) fn check(root: &Path) -> Result<()> {
    let mut wrong = BTreeSet::new();
    for target in TARGETS {
        let arguments = ["--all-features", "--locked", "--filter-platform", target];
        let metadata = metadata::read(root, &arguments)?;
        wrong.extend(violations(&metadata));
    }
    if !wrong.is_empty() {
        let wrong: Vec<String> = wrong.into_iter().collect();
        bail!(
            "not allowed among the dependencies (see xtask/src/dependencies.rs):\n  {}",
            wrong.join("\n  ")
        );
    }
    Ok(())
}

/// Everything in the resolved graph that is not allowed.
fn violations(metadata: &Metadata) -> Vec<String> {
    let packages: BTreeMap<&str, &Package> = metadata
        .packages
        .iter()
        .map(|package| (package.id.as_str(), package))
        .collect();
    let used: Vec<&Package> = metadata
        .resolve
        .nodes
        .iter()
        .filter_map(|node| packages.get(node.id.as_str()).copied())
        .collect();
    let mut wrong = Vec::new();
    let others = used.iter().filter(|package| package.source.is_some());
    wrong.extend(others.filter_map(|package| wrong_license(package)));
    wrong.extend(wrong_sources(&used));
    for node in &metadata.resolve.nodes {
        let user = packages.get(node.id.as_str());
        let user = user.map_or("", |package| package.name.as_str());
        let names = node
            .deps
            .iter()
            .filter_map(|edge| packages.get(edge.pkg.as_str()));
        for name in names.map(|package| package.name.as_str()) {
            let banned = BANNED.iter().find(|(banned, _, _)| *banned == name);
            if let Some((_, allowed, why)) = banned.filter(|(_, by, _)| !by.contains(&user)) {
                wrong.push(format!("{user} uses {name}, only {allowed:?} may: {why}"));
            }
        }
    }
    let members = metadata.workspace_members.iter();
    for member in members.filter_map(|id| packages.get(id.as_str())) {
        let wildcards = member
            .dependencies
            .iter()
            .filter(|dependency| dependency.req == "*" && dependency.path.is_none());
        wrong.extend(
            wildcards.map(|dependency| {
                format!("{} takes any version of {}", member.name, dependency.name)
            }),
        );
    }
    wrong
}

fn wrong_license(package: &Package) -> Option<String> {
    let name = &package.name;
    let Some(license) = &package.license else {
        return Some(format!("{name} states no license"));
    };
    match Expression::parse_mode(license, ParseMode::LAX) {
        Ok(expression) => {
            let is_allowed =
                expression.evaluate(|license| LICENSES.contains(&&*license.to_string()));
            (!is_allowed).then(|| format!("{name} has license {license}"))
        }
        Err(error) => Some(format!("{name}: license {license:?}: {error}")),
    }
}

/// Everything comes from one registry, and nothing from a repository.
fn wrong_sources(used: &[&Package]) -> Vec<String> {
    let mut registry = None;
    let mut wrong = Vec::new();
    for package in used {
        let Some(source) = &package.source else {
            continue;
        };
        let is_first = *registry.get_or_insert(source) == source;
        if !is_first || !source.starts_with("registry+") {
            wrong.push(format!("{} comes from {source}", package.name));
        }
    }
    wrong
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metadata::{Dependency, Edge, Node, Resolve};

    /// A graph in which `user` of the workspace uses one package.
    fn graph(used: Package) -> Metadata {
        let id = used.id.clone();
        let user = Package {
            id: "user".to_owned(),
            name: "muster-user".to_owned(),
            ..Package::default()
        };
        let node = |id: &str, uses: Vec<String>| Node {
            id: id.to_owned(),
            deps: uses
                .into_iter()
                .map(|pkg| Edge {
                    pkg,
                    dep_kinds: Vec::new(),
                })
                .collect(),
        };
        Metadata {
            packages: vec![user, used],
            workspace_members: vec!["user".to_owned()],
            resolve: Resolve {
                nodes: vec![node("user", vec![id.clone()]), node(&id, Vec::new())],
            },
            ..Metadata::default()
        }
    }

    fn package(name: &str) -> Package {
        Package {
            id: name.to_owned(),
            name: name.to_owned(),
            source: Some("registry+index".to_owned()),
            license: Some("MIT".to_owned()),
            ..Package::default()
        }
    }

    #[test]
    fn licenses_are_read_as_expressions() {
        for (license, is_allowed) in [
            (Some("MIT"), true),
            (Some("MIT/Apache-2.0"), true),
            (Some("Apache-2.0 / MIT"), true),
            (Some("GPL-3.0-only OR MIT"), true),
            (Some("GPL-3.0-only AND MIT"), false),
            (Some("(MIT OR Apache-2.0) AND Unicode-3.0"), true),
            (Some("Apache-2.0 WITH LLVM-exception"), true),
            (Some("MPL-2.0"), false),
            (Some("do as you like"), false),
            (None, false),
        ] {
            let used = Package {
                license: license.map(str::to_owned),
                ..package("used")
            };
            let wrong = violations(&graph(used));
            assert_eq!(wrong.is_empty(), is_allowed, "{license:?}: {wrong:?}");
        }
    }

    #[test]
    fn banned_packages_are_named_with_their_user() {
        let wrong = violations(&graph(package("nvml-wrapper")));
        assert!(
            wrong[0].contains("muster-user uses nvml-wrapper"),
            "{wrong:?}"
        );

        let mut by_device = graph(package("nvml-wrapper"));
        by_device.packages[0].name = "muster-device".to_owned();
        assert_eq!(violations(&by_device), Vec::<String>::new());
    }

    #[test]
    fn a_package_from_a_repository_or_a_second_registry_is_refused() {
        let used = Package {
            source: Some("git+https://example.com/x".to_owned()),
            ..package("used")
        };
        assert_eq!(violations(&graph(used)).len(), 1);

        let mut two = graph(package("used"));
        let elsewhere = Package {
            source: Some("registry+elsewhere".to_owned()),
            ..package("elsewhere")
        };
        two.packages.push(elsewhere);
        two.resolve.nodes.push(Node {
            id: "elsewhere".to_owned(),
            deps: Vec::new(),
        });
        assert_eq!(violations(&two).len(), 1);
    }

    #[test]
    fn any_version_is_refused_but_for_packages_of_the_repository() {
        for (path, count) in [(None, 1), (Some("../used".to_owned()), 0)] {
            let mut metadata = graph(package("used"));
            metadata.packages[0].dependencies.push(Dependency {
                name: "used".to_owned(),
                req: "*".to_owned(),
                kind: None,
                path,
            });
            assert_eq!(violations(&metadata).len(), count);
        }
    }
}
