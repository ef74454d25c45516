//! The chart, by real Helm.

use std::{collections::BTreeMap, net::Ipv4Addr, path::Path, time::Duration};

use anyhow::{Context, Result};
use nvidia_ml_mock::LIBRARY;
use serde_json::{Value, json};

use super::{NAMESPACE, Part, RELEASE};
use crate::{
    kube_binaries::KubeBinaries,
    node::{BOARD_FILE_ON_NODE, PROC_ON_NODE},
    process::Launch,
    programs::Programs,
};

/// Longest time of one call of Helm.
const LIMIT: Duration = Duration::from_mins(2);

/// What a test install differs by from the chart's defaults.
pub(super) struct Values {
    file: Value,
    set: Vec<String>,
}

/// No replicas, no node for the DaemonSet, addresses instead of Services (there are no endpoints on
/// loopback), the mock NVML library, and what stands for the kernel's side of it.
pub(super) fn values(
    addresses: &BTreeMap<Part, Ipv4Addr>,
    programs: &Programs,
    set: &[String],
) -> Values {
    let address = |part: Part| {
        addresses
            .get(&part)
            .map(ToString::to_string)
            .unwrap_or_default()
    };
    let extender = address(Part::Extender);
    Values {
        file: json!({
            "mode": "Enforce",
            "recovery": {"mode": "Enforce"},
            // There is no node for the pod of its Job.
            "enforce": {"check": false},
            "controller": {"replicas": 0},
            "webhook": {
                "replicas": 0,
                "urlOverride": format!("https://{}:8443", address(Part::Webhook)),
                "tlsNames": [address(Part::Webhook)],
            },
            "extender": {
                "replicas": 0,
                "urlOverride": format!("https://{extender}:8444"),
                "tlsNames": [extender],
                "readyUrls": [format!("http://{extender}:{}/readyz", Part::ADMIN_PORT)],
            },
            "driver": {
                "nodeSelector": {"muster-tests/no-node": "has-this-label"},
                // The mock is a library alone: containers get device nodes.
                "driverRoot": "",
                // Not as a value, which is a mount in a container.
                "extraEnv": [
                    {"name": "MUSTER_NVML_LIBRARY", "value": programs.path(LIBRARY)},
                    {"name": nvidia_ml_mock::STATE_VARIABLE, "value": BOARD_FILE_ON_NODE},
                    {"name": "MUSTER_PROC_DIR", "value": PROC_ON_NODE},
                ],
            },
            "logFormat": "text",
        }),
        set: set.to_vec(),
    }
}

/// `helm install`.
pub(super) async fn install(kube: &KubeBinaries, kubeconfig: &Path, values: &Values) -> Result<()> {
    let chart = Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy/helm/muster");
    let directory = kubeconfig
        .parent()
        .context("a kubeconfig lies in a directory")?;
    let file = directory.join("values.json");
    std::fs::write(&file, format!("{:#}\n", values.file))?;
    let mut launch = Launch::new("helm", kube.helm())
        .args(["install", RELEASE])
        .arg(chart)
        .args([
            "--namespace",
            NAMESPACE,
            "--create-namespace",
            "--kubeconfig",
        ])
        .arg(kubeconfig)
        .arg("--values")
        .arg(&file)
        // Helm keeps its caches in the home directory.
        .env("HOME", directory);
    for value in &values.set {
        launch = launch.args(["--set", value]);
    }
    launch.output(LIMIT).await?;
    Ok(())
}
