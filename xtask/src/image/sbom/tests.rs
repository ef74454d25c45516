use serde_json::Value;

use super::*;
use crate::{
    build::Target,
    metadata::{Edge, EdgeKind, Node, Resolve},
};

fn package(name: &str, source: Option<&str>) -> Package {
    Package {
        id: name.to_owned(),
        name: name.to_owned(),
        version: "1.0.0+x".to_owned(),
        source: source.map(str::to_owned),
        license: Some("MIT/Apache-2.0".to_owned()),
        ..Package::default()
    }
}

fn node(name: &str, uses: &[(&str, Option<&str>)]) -> Node {
    let edge = |&(used, kind): &(&str, Option<&str>)| Edge {
        pkg: used.to_owned(),
        dep_kinds: vec![EdgeKind {
            kind: kind.map(str::to_owned),
        }],
    };
    Node {
        id: name.to_owned(),
        deps: uses.iter().map(edge).collect(),
    }
}

/// A program that links one crate, which links another; and uses one in tests, one to build, one as a macro, and one that was
/// not built.
fn graph() -> (Metadata, Vec<Artifact>) {
    let registry = Some("registry+index");
    let names = ["direct", "indirect", "tests", "builds", "macro", "unbuilt"];
    let mut packages = vec![package("program", None), package("other", None)];
    packages.extend(names.iter().map(|name| package(name, registry)));
    let metadata = Metadata {
        packages,
        workspace_members: vec!["other".to_owned(), "program".to_owned()],
        resolve: Resolve {
            nodes: vec![
                node(
                    "program",
                    &[
                        ("direct", None),
                        ("tests", Some("dev")),
                        ("builds", Some("build")),
                        ("macro", None),
                        ("unbuilt", None),
                    ],
                ),
                node("direct", &[("indirect", None)]),
                node("indirect", &[]),
            ],
        },
        ..Metadata::default()
    };
    let artifact = |name: &str, kind: &str| Artifact {
        package_id: name.to_owned(),
        target: Target {
            name: name.to_owned(),
            kind: vec![kind.to_owned()],
        },
        ..Artifact::default()
    };
    let artifacts = vec![
        artifact("program", "bin"),
        artifact("other", "bin"),
        artifact("direct", "lib"),
        artifact("direct", "custom-build"),
        artifact("indirect", "lib"),
        artifact("tests", "lib"),
        artifact("builds", "lib"),
        artifact("macro", "proc-macro"),
        artifact("unbuilt", "custom-build"),
    ];
    (metadata, artifacts)
}

fn listed(executable: &[u8]) -> Value {
    let (metadata, artifacts) = graph();
    let system = debian("libc6");
    let subject = Subject {
        program: "program",
        tools: &[],
        executable,
        created: "2026-11-24T17:17:14Z",
        rust: "1.95.0",
        system: &system,
        archives: &Sources::default(),
    };
    let bytes = spdx(&metadata, Some(&artifacts), &subject).unwrap();
    serde_json::from_slice(&bytes).unwrap()
}

/// One package of the distribution.
fn debian(name: &str) -> Sources {
    Sources {
        packages: vec![SystemPackage {
            name: name.to_owned(),
            version: "2.36-9+deb12u14".to_owned(),
            architecture: "amd64".to_owned(),
            distribution: "debian".to_owned(),
        }],
        unowned: Vec::new(),
    }
}

fn texts<'a>(list: &'a Value, field: &str) -> Vec<&'a str> {
    let items = list.as_array().unwrap().iter();
    items.map(|item| item[field].as_str().unwrap()).collect()
}

#[test]
fn what_is_linked_is_listed_and_nothing_else() {
    let document = listed(b"program");
    let names = texts(&document["packages"], "name");
    assert_eq!(
        names,
        ["direct", "indirect", "program", "rust-std", "libc6"]
    );
}

#[test]
fn every_relation_is_between_things_that_are_listed() {
    let document = listed(b"program");
    let mut known = texts(&document["packages"], "SPDXID");
    known.push(document["SPDXID"].as_str().unwrap());
    let relations = &document["relationships"];
    for field in ["spdxElementId", "relatedSpdxElement"] {
        for id in texts(relations, field) {
            assert!(known.contains(&id), "{id} among {known:?}");
        }
    }
    let kinds = texts(relations, "relationshipType");
    let wanted = [
        "DESCRIBES",
        "DEPENDS_ON",
        "DEPENDS_ON",
        "STATIC_LINK",
        "DYNAMIC_LINK",
    ];
    assert_eq!(kinds, wanted);
    let described = relations[0]["relatedSpdxElement"].as_str();
    assert_eq!(described, Some("SPDXRef-crate-program-1.0.0-x"));
}

#[test]
fn scanners_find_packages_by_their_urls() {
    let document = listed(b"program");
    let urls: Vec<&str> = document["packages"]
        .as_array()
        .unwrap()
        .iter()
        .filter_map(|package| package["externalRefs"][0]["referenceLocator"].as_str())
        .collect();
    let wanted = [
        "pkg:cargo/direct@1.0.0%2Bx",
        "pkg:cargo/indirect@1.0.0%2Bx",
        "pkg:deb/debian/libc6@2.36-9%2Bdeb12u14?arch=amd64",
    ];
    assert_eq!(urls, wanted);
}

#[test]
fn licenses_are_spdx_expressions() {
    let document = listed(b"program");
    let licenses = texts(&document["packages"], "licenseDeclared");
    assert_eq!(licenses[0], "MIT OR Apache-2.0");
    assert_eq!(licenses[4], "NOASSERTION");
    assert_eq!(expression("do as you like"), None);
}

#[test]
fn two_builds_have_lists_of_different_names() {
    let namespace = |executable| {
        let document = listed(executable);
        document["documentNamespace"].as_str().unwrap().to_owned()
    };
    assert_eq!(namespace(b"one"), namespace(b"one"));
    assert_ne!(namespace(b"one"), namespace(b"other"));
}

#[test]
fn a_program_that_is_no_package_is_named() {
    let (metadata, artifacts) = graph();
    let error = linked(&metadata, Some(&artifacts), "absent", &[]).unwrap_err();
    assert!(error.to_string().contains("absent"));
}

#[test]
fn without_a_word_about_the_build_everything_that_may_be_linked_is_listed() {
    let (metadata, _) = graph();
    let linked = linked(&metadata, None, "program", &[]).unwrap();
    let names: Vec<&str> = linked.iter().map(|package| package.name.as_str()).collect();
    assert_eq!(names, ["direct", "indirect", "macro", "program", "unbuilt"]);
}

#[test]
fn tools_are_listed_and_described_with_what_is_linked_into_them_beside_their_program() {
    let (metadata, artifacts) = graph();
    let subject = Subject {
        program: "program",
        tools: &["other"],
        executable: b"program",
        created: "2026-11-24T17:17:14Z",
        rust: "1.95.0",
        system: &Sources {
            unowned: vec![UnownedFile {
                name: "libown.so.1".to_owned(),
                digest: "sha256:abc".to_owned(),
            }],
            ..debian("libc6")
        },
        archives: &debian("libc6-dev"),
    };
    let bytes = spdx(&metadata, Some(&artifacts), &subject).unwrap();
    let document: Value = serde_json::from_slice(&bytes).unwrap();
    let names = texts(&document["packages"], "name");
    assert_eq!(
        names,
        [
            "direct",
            "indirect",
            "other",
            "program",
            "rust-std",
            "libc6",
            "libown.so.1",
            "libc6-dev"
        ]
    );
    let relations = document["relationships"].as_array().unwrap();
    let described: Vec<&str> = relations
        .iter()
        .filter(|relation| relation["relationshipType"] == "DESCRIBES")
        .filter_map(|relation| relation["relatedSpdxElement"].as_str())
        .collect();
    let wanted = [
        "SPDXRef-crate-program-1.0.0-x",
        "SPDXRef-crate-other-1.0.0-x",
    ];
    assert_eq!(described, wanted);
    let links = |from: &str, kind: &str| -> Vec<&str> {
        relations
            .iter()
            .filter(|relation| {
                relation["spdxElementId"] == from && relation["relationshipType"] == kind
            })
            .filter_map(|relation| relation["relatedSpdxElement"].as_str())
            .collect()
    };
    let [program, tool] = wanted;
    let libraries = [
        "SPDXRef-deb-libc6-2.36-9-deb12u14",
        "SPDXRef-file-libown.so.1-sha256-abc",
    ];
    assert_eq!(links(program, "DYNAMIC_LINK"), libraries);
    assert_eq!(links(program, "STATIC_LINK"), ["SPDXRef-rust-std-1.95.0"]);
    let archives = [
        "SPDXRef-rust-std-1.95.0",
        "SPDXRef-deb-libc6-dev-2.36-9-deb12u14",
    ];
    assert_eq!(links(tool, "STATIC_LINK"), archives);
    assert_eq!(links(tool, "DYNAMIC_LINK"), [""; 0]);
}
