//! The list of everything that an image is made of, as SPDX 2.3.

mod document;

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, Result};
use spdx::Expression;

use self::document::{CreationInfo, Document, Part, Relationship};
use super::{
    contents::{Sources, SystemPackage, UnownedFile},
    digest::sha256,
};
use crate::{
    build::Artifact,
    metadata::{Metadata, Package},
};

/// What is listed, besides the packages.
#[derive(Debug)]
pub(crate) struct Subject<'a> {
    /// The package whose program it is.
    pub(crate) program: &'a str,
    /// The packages whose programs lie beside it.
    pub(crate) tools: &'a [&'a str],
    /// The executable itself: its digest tells the list from that of any other build.
    pub(crate) executable: &'a [u8],
    /// When it was made, as RFC 3339.
    pub(crate) created: &'a str,
    /// Version of the compiler and of its standard library.
    pub(crate) rust: &'a str,
    /// Where the libraries come from.
    pub(crate) system: &'a Sources,
    /// Where that comes from which is linked into the tools.
    pub(crate) archives: &'a Sources,
}

/// The list, in JSON. Without what was built, it holds what any package of the workspace might have asked for, too.
pub(crate) fn spdx(
    metadata: &Metadata,
    artifacts: Option<&[Artifact]>,
    subject: &Subject<'_>,
) -> Result<Vec<u8>> {
    let linked = linked(metadata, artifacts, subject.program, subject.tools)?;
    let root = linked
        .iter()
        .find(|package| package.name == subject.program)
        .with_context(|| format!("{} is not among the packages", subject.program))?;
    let document = "SPDXRef-DOCUMENT".to_owned();
    let mut packages = Vec::new();
    let mut relationships = vec![Relationship::new(&document, "DESCRIBES", &identity(root))];
    let tools: Vec<String> = linked
        .iter()
        .filter(|package| subject.tools.contains(&&*package.name))
        .map(|package| identity(package))
        .collect();
    for tool in &tools {
        relationships.push(Relationship::new(&document, "DESCRIBES", tool));
    }
    let named: BTreeMap<&str, &&Package> = linked
        .iter()
        .map(|package| (package.id.as_str(), package))
        .collect();
    for package in &linked {
        packages.push(crate_part(package));
        let node = metadata
            .resolve
            .nodes
            .iter()
            .find(|node| node.id == package.id);
        let uses = node.iter().flat_map(|node| &node.deps);
        for used in uses.filter_map(|edge| named.get(edge.pkg.as_str())) {
            relationships.push(Relationship::new(
                &identity(package),
                "DEPENDS_ON",
                &identity(used),
            ));
        }
    }
    let standard = standard_library(subject.rust);
    let program = [identity(root)];
    for user in program.iter().chain(&tools) {
        relationships.push(Relationship::new(user, "STATIC_LINK", &standard.id));
    }
    packages.push(standard);
    for (users, kind, sources) in [
        (&program[..], "DYNAMIC_LINK", subject.system),
        (&tools[..], "STATIC_LINK", subject.archives),
    ] {
        let known = sources.packages.iter().map(system_part);
        for part in known.chain(sources.unowned.iter().map(file_part)) {
            for user in users {
                relationships.push(Relationship::new(user, kind, &part.id));
            }
            if packages.iter().all(|listed| listed.id != part.id) {
                packages.push(part);
            }
        }
    }
    let digest = sha256(subject.executable);
    let name = format!("{}-{}", root.name, root.version);
    let document = Document {
        version: "SPDX-2.3",
        data_license: "CC0-1.0",
        id: document,
        namespace: format!(
            "https://muster.dev/spdx/{name}-{}",
            digest.trim_start_matches("sha256:")
        ),
        name,
        creation_info: CreationInfo {
            created: subject.created.to_owned(),
            creators: vec!["Tool: cargo-xtask-image".to_owned()],
        },
        packages,
        relationships,
    };
    Ok(serde_json::to_vec(&document)?)
}

/// The packages that are in the program and its tools: those that these reach by dependencies which are linked, and that were built. The graph
/// alone knows more, since it is of all features that any package of the workspace asks for.
fn linked<'a>(
    metadata: &'a Metadata,
    artifacts: Option<&[Artifact]>,
    program: &str,
    tools: &[&str],
) -> Result<Vec<&'a Package>> {
    let packages: BTreeMap<&str, &Package> = metadata
        .packages
        .iter()
        .map(|package| (package.id.as_str(), package))
        .collect();
    let built: Option<BTreeSet<&str>> = artifacts.map(|artifacts| {
        let linked = artifacts
            .iter()
            .filter(|artifact| !artifact.runs_in_the_compiler());
        linked
            .map(|artifact| artifact.package_id.as_str())
            .collect()
    });
    let is_built = |id: &str| built.as_ref().is_none_or(|built| built.contains(id));
    let mut open = Vec::new();
    for name in std::iter::once(program).chain(tools.iter().copied()) {
        let mut members = metadata.workspace_members.iter().map(String::as_str);
        let member = members.find(|id| {
            let package = packages.get(id);
            package.is_some_and(|package| package.name == name)
        });
        open.push(member.with_context(|| format!("no package is named {name}"))?);
    }
    let mut reached = BTreeSet::new();
    while let Some(id) = open.pop() {
        if !is_built(id) || !reached.insert(id) {
            continue;
        }
        let node = metadata.resolve.nodes.iter().find(|node| node.id == id);
        let edges = node.iter().flat_map(|node| &node.deps);
        let links = edges.filter(|edge| edge.dep_kinds.iter().any(|kind| kind.kind.is_none()));
        open.extend(links.map(|edge| edge.pkg.as_str()));
    }
    let mut linked: Vec<&Package> = reached
        .into_iter()
        .filter_map(|id| packages.get(id).copied())
        .collect();
    linked.sort_by_key(|package| (&package.name, &package.version));
    Ok(linked)
}

fn identity(package: &Package) -> String {
    identifier(&["crate", &package.name, &package.version])
}

/// SPDX allows letters, digits, dots and dashes.
fn identifier(parts: &[&str]) -> String {
    let allowed = |letter: char| letter.is_ascii_alphanumeric() || letter == '.';
    let text = parts.join("-");
    format!("SPDXRef-{}", text.replace(|letter| !allowed(letter), "-"))
}

/// A package of Cargo's registry, or of this repository.
fn crate_part(package: &Package) -> Part {
    let license = package.license.as_deref().and_then(expression);
    let part = Part::new(identity(package), &package.name, &package.version, license);
    if package.source.is_none() {
        return part;
    }
    let version = package.version.replace('+', "%2B");
    part.found_by(format!("pkg:cargo/{}@{version}", package.name))
}

/// The compiler's own part of every program.
fn standard_library(rust: &str) -> Part {
    Part::new(
        identifier(&["rust-std", rust]),
        "rust-std",
        rust,
        Some("MIT OR Apache-2.0".to_owned()),
    )
}

/// A package of the distribution. Its license is what its copyright file in the image says; that is written for people.
fn system_part(package: &SystemPackage) -> Part {
    let SystemPackage {
        name,
        version,
        architecture,
        distribution,
    } = package;
    let written = version.replace('+', "%2B");
    let locator = format!("pkg:deb/{distribution}/{name}@{written}?arch={architecture}");
    Part::new(identifier(&["deb", name, version]), name, version, None).found_by(locator)
}

/// A file of which no more is known than its content.
fn file_part(file: &UnownedFile) -> Part {
    let UnownedFile { name, digest } = file;
    Part::new(identifier(&["file", name, digest]), name, digest, None)
}

/// A license as SPDX writes it; crates still say `MIT/Apache-2.0`.
fn expression(license: &str) -> Option<String> {
    let canonical = Expression::canonicalize(license).ok()?;
    let text = canonical.unwrap_or_else(|| license.to_owned());
    Expression::parse(&text).is_ok().then_some(text)
}

#[cfg(test)]
mod tests;
