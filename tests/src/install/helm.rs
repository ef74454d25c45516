//! The chart, by real Helm.

use std::{collections::BTreeMap, net::Ipv4Addr, path::Path, time::Duration};

use anyhow::{Context, Result};
use nvidia_ml_mock::LIBRARY;
use serde_json::{Value, json};

use super::{NAMESPACE, Part, RELEASE};
use crate::{
    kube_binaries::KubeBinaries,
    kubernetes::{Progress, eventually},
    node::{BOARD_FILE_ON_NODE, PROC_ON_NODE},
    process::Launch,
    programs::Programs,
};

/// Longest time of one call of Helm.
const LIMIT: Duration = Duration::from_mins(2);

/// Longest time until the API server serves the kinds that the chart defines.
const SERVED_LIMIT: Duration = Duration::from_mins(1);

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

/// `helm install`, and the upgrade that mends it where that came too early: the chart's hooks make objects of a kind that the chart itself has just
/// defined, without waiting in between. On a busy machine the API server may not serve that kind yet.
pub(super) async fn install(kube: &KubeBinaries, kubeconfig: &Path, values: &Values) -> Result<()> {
    let chart = Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy/helm/muster");
    let directory = kubeconfig
        .parent()
        .context("a kubeconfig lies in a directory")?;
    let file = directory.join("values.json");
    std::fs::write(&file, format!("{:#}\n", values.file))?;
    let launch = |command: &[&str]| {
        let launch = Launch::new("helm", kube.helm())
            .args(command.iter().copied())
            .arg(RELEASE)
            .arg(&chart)
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
        let set = values.set.iter();
        set.fold(launch, |launch, value| {
            launch.args(["--set", value.as_str()])
        })
    };
    let mut command: &[&str] = &["install"];
    eventually("Helm installs the chart", SERVED_LIMIT, async || {
        let done = launch(command).output(LIMIT).await;
        command = &["upgrade", "--install"];
        Ok(match done {
            Ok(_) => Progress::Done(()),
            Err(error) => {
                let said = format!("{error:#}");
                if is_too_early(&said) {
                    Progress::NotYet(said)
                } else {
                    Progress::Never(error)
                }
            }
        })
    })
    .await
}

/// Whether Helm says that a kind is not served: by what the API server lists, or by its answer to a call.
fn is_too_early(said: &str) -> bool {
    [
        "no matches for kind",
        "could not find the requested resource",
    ]
    .iter()
    .any(|words| said.contains(words))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_kind_that_is_not_served_yet_is_waited_for() {
        let hook =
            "helm ended with exit status: 1: Error: INSTALLATION FAILED: failed post-install: ";
        for (said, expected) in [
            (
                "resource mapping not found for name: \"critical\" namespace: \"\" from \"\": no matches for kind \"PriorityTier\" in version \"muster.dev/v1alpha1\"\nensure CRDs are installed first",
                true,
            ),
            (
                "warning: Hook post-install muster/templates/prioritytiers.yaml failed: the server could not find the requested resource",
                true,
            ),
            (
                "PriorityTier \"critical\" is invalid: spec.value: Required value",
                false,
            ),
            ("cannot reuse a name that is still in use", false),
        ] {
            assert_eq!(is_too_early(&format!("{hook}{said}")), expected, "{said}");
        }
    }
}
