//! Files that are derived from Rust: the custom resource definitions, in `manifests/crds` for reading and in
//! the chart for installing, the CEL of the one definition of *managed*, and the Containerfile. They are committed, and CI
//! compares them.

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, bail};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;

use crate::{build::cargo, image::containerfile, test::succeed};

/// Where each definition is written.
const DIRECTORIES: [&str; 2] = ["manifests/crds", "deploy/helm/muster/files/crds"];

/// Writes the files, or compares them.
pub(crate) fn run(root: &Path, check: bool) -> Result<()> {
    let mut stale = Vec::new();
    for (path, content) in files()? {
        let path = root.join(path);
        if fs::read_to_string(&path).is_ok_and(|found| found == content) {
            continue;
        }
        if check {
            stale.push(path);
            continue;
        }
        if let Some(directory) = path.parent() {
            fs::create_dir_all(directory)?;
        }
        fs::write(&path, content).with_context(|| format!("writing {}", path.display()))?;
        println!(
            "wrote {}",
            path.strip_prefix(root).unwrap_or(&path).display()
        );
    }
    if !check {
        // Built apart, so that this tool stays light; a unit test of the webhook compares them.
        let example = [
            "run",
            "--quiet",
            "--package",
            "muster-webhook",
            "--example",
            "generated_files",
        ];
        succeed(cargo().args(example).current_dir(root), "generated_files")?;
    }
    if !stale.is_empty() {
        let list: Vec<String> = stale
            .iter()
            .map(|path| path.display().to_string())
            .collect();
        bail!(
            "not as the Rust types say (run `cargo xtask generate`):\n  {}",
            list.join("\n  ")
        );
    }
    Ok(())
}

fn files() -> Result<Vec<(PathBuf, String)>> {
    let mut files = vec![(PathBuf::from(containerfile::PATH), containerfile::render())];
    for definition in muster_api::crds::all() {
        let content = render(&definition)?;
        for directory in DIRECTORIES {
            let name = format!("{}.yaml", definition.spec.names.plural);
            files.push((Path::new(directory).join(name), content.clone()));
        }
    }
    Ok(files)
}

fn render(definition: &CustomResourceDefinition) -> Result<String> {
    let text = serde_saphyr::to_string(definition).context("rendering a definition")?;
    Ok(format!(
        "# Generated from `api/src` by `cargo xtask generate`; not edited by hand.\n{text}"
    ))
}
