//! Where the programs of Kubernetes and Helm are: built by the scripts of `tests/controlplane` and
//! `tests/helm`, which cache what they built outside the checkout.

use std::{
    path::{Path, PathBuf},
    process::Stdio,
};

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};
use tokio::process::Command;

/// Programs of Kubernetes, and Helm.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct KubeBinaries {
    kubernetes: PathBuf,
    helm: PathBuf,
}

impl KubeBinaries {
    /// Finds them, building what is not cached: minutes the first time, nothing later.
    /// `MUSTER_KUBE_BIN` and `MUSTER_HELM_BIN` name directories with ready-made programs instead.
    pub async fn find() -> Result<Self> {
        let kubernetes = build("controlplane").await?;
        let helm = build("helm").await?;
        Ok(Self { kubernetes, helm })
    }

    /// Path of a program of Kubernetes, or of the process runtime.
    pub fn kubernetes(&self, program: &str) -> PathBuf {
        self.kubernetes.join(program)
    }

    /// The directory with the programs of Kubernetes.
    pub fn kubernetes_directory(&self) -> &Path {
        &self.kubernetes
    }

    /// Path of Helm.
    pub fn helm(&self) -> PathBuf {
        self.helm.join("helm")
    }

    /// The directory with Helm.
    pub fn helm_directory(&self) -> &Path {
        &self.helm
    }
}

/// Runs `tests/ROOM/build.sh`; the only line of its standard output is a directory. What it says
/// while it builds goes to our standard error as it comes: minutes of silence look like a hang.
pub(crate) async fn build(room: &str) -> Result<PathBuf> {
    let script = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join(room)
        .join("build.sh");
    let output = Command::new(&script)
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .output()
        .await
        .with_context(|| format!("cannot run {}", script.display()))?;
    if !output.status.success() {
        bail!("{} failed ({}), see above", script.display(), output.status);
    }
    let directory = PathBuf::from(String::from_utf8_lossy(&output.stdout).trim());
    if !directory.is_dir() {
        bail!(
            "{} names {}, which is no directory",
            script.display(),
            directory.display()
        );
    }
    Ok(directory)
}
