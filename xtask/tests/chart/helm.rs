//! Real Helm, and what it makes of the chart.

use std::{
    path::{Path, PathBuf},
    process::Command,
    sync::LazyLock,
};

use serde_json::Value;

static HELM: LazyLock<PathBuf> = LazyLock::new(|| {
    let build = Command::new(root().join("tests/helm/build.sh")).output();
    let build = build.expect("tests/helm/build.sh runs");
    PathBuf::from(String::from_utf8(build.stdout).unwrap().trim()).join("helm")
});

pub(crate) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

pub(crate) fn chart() -> PathBuf {
    root().join("deploy/helm/muster")
}

/// What Helm prints for a release with these values, or why it refuses. A value is `path=JSON`.
pub(crate) fn template(
    release: &str,
    namespace: &str,
    values: &[String],
) -> Result<String, String> {
    let output = Command::new(&*HELM)
        .args(["template", release, "--namespace", namespace])
        .args(["--kube-version", "1.37.1"])
        .args(values.iter().flat_map(|value| ["--set-json", value]))
        .arg(chart())
        .env("HOME", env!("CARGO_TARGET_TMPDIR"))
        .output()
        .expect("helm runs");
    if output.status.success() {
        Ok(String::from_utf8(output.stdout).unwrap())
    } else {
        Err(String::from_utf8_lossy(&output.stderr).into_owned())
    }
}

/// The objects of the release `muster` in `muster-system` with these values.
pub(crate) fn objects(values: &[&str]) -> Vec<Value> {
    let values: Vec<String> = values.iter().map(|&value| value.to_owned()).collect();
    parsed(&template("muster", "muster-system", &values).unwrap())
}

pub(crate) fn parsed(text: &str) -> Vec<Value> {
    text.split("\n---\n")
        .map(|document| {
            serde_saphyr::from_str(document).unwrap_or_else(|error| panic!("{error}: {document}"))
        })
        .filter(|object: &Value| !object.is_null())
        .collect()
}

pub(crate) fn object<'a>(objects: &'a [Value], kind: &str, name: &str) -> &'a Value {
    let found = objects
        .iter()
        .find(|object| object["kind"] == kind && object["metadata"]["name"] == name);
    found.unwrap_or_else(|| panic!("no {kind} {name}"))
}
