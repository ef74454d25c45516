//! Pods that users run: what a container says of what it was given.

use std::{collections::BTreeMap, time::Duration};

use anyhow::{Context, Result, bail};
use k8s_openapi::api::core::v1::{Pod, ServiceAccount};
use kube::{Api, Client, ResourceExt, api::LogParams};
use serde_json::{Value, json};

use super::{Lab, prepared};
use crate::kubernetes::{self, Progress, eventually};

/// Longest time until a pod that has quota and a place has ended.
const LIMIT: Duration = Duration::from_mins(2);

/// Says what a container has, a line for each; at last what it has of nodes for all GPUs of the machine that it made itself, as
/// NVIDIA's libraries do where they may.
const REPORT: &str = r#"
echo "user: $(id -u)"
echo "root: $(sed -n 's|^[^ ]* / [^ ]* \(r[ow]\)[, ].*|\1|p' /proc/mounts)"
echo "nodes: $(ls /dev | grep -E '^nvidia[0-9]+$' | sort | tr '\n' ' ')"
cuda-devices
nvidia-smi 2>/dev/null || echo "nvidia-smi: none"
echo "NVIDIA_VISIBLE_DEVICES: ${NVIDIA_VISIBLE_DEVICES-}"
echo "library: $([ -e /usr/lib/x86_64-linux-gnu/libcuda.so.1 ] && echo there)"
echo "cache: $([ -e /etc/ld.so.cache ] && echo there)"
echo "uuids: $(env | sed -n 's/^MUSTER_GPU_[0-9]*=//p' | sort | tr '\n' ' ')"
for number in 0 1 2 3 4 5 6 7; do mknod "/dev/nvidia$number" c 195 "$number" 2>/dev/null; done
echo "with nodes of its own: $(cuda-devices)"
echo "end: reached"
"#;
/// Then goes on until it is told to end: a claim says what it was given only as long as its pod has not ended.
pub const STAY: &str = "trap 'exit 0' TERM; sleep 2000000000 & wait";

/// A container that says what it has; `stays` is whether it then goes on.
pub fn reporting(name: &str, claims: &[&str], security: &Value, stays: bool) -> Value {
    let script = format!("{REPORT}{}", if stays { STAY } else { "" });
    let claims: Vec<Value> = claims.iter().map(|claim| json!({"name": claim})).collect();
    json!({
        "name": name,
        "image": prepared::WORKLOAD,
        "command": ["/bin/sh", "-c", script],
        "resources": {"claims": claims},
        "securityContext": security,
    })
}

/// What a container said.
#[derive(Clone, Debug)]
pub struct Report(BTreeMap<String, String>);

impl Report {
    /// The rest of the line that begins with this word.
    pub fn says(&self, what: &str) -> &str {
        self.0.get(what).map_or("(nothing)", String::as_str)
    }

    fn of(text: &str) -> Self {
        let lines = text.lines().filter_map(|line| line.split_once(':'));
        let pairs = lines.map(|(what, says)| (what.to_owned(), says.trim().to_owned()));
        Self(pairs.collect())
    }
}

/// Creates a pod.
pub async fn create(lab: &Lab, namespace: &str, pod: &Value) -> Result<Pod> {
    let pods: Api<Pod> = Api::namespaced(lab.client(), namespace);
    let pod: Pod = serde_json::from_value(pod.clone())?;
    kubernetes::create(&pods, &pod).await
}

/// Deletes a pod. While it ends, what comes next may start.
pub async fn delete(lab: &Lab, namespace: &str, name: &str) -> Result<()> {
    let pods: Api<Pod> = Api::namespaced(lab.client(), namespace);
    kubernetes::delete(&pods, name).await
}

/// Waits until a pod runs, and returns when its first container was started.
pub async fn runs(client: &Client, namespace: &str, name: &str) -> Result<Pod> {
    let pods: Api<Pod> = Api::namespaced(client.clone(), namespace);
    eventually(&format!("pod {namespace}/{name} runs"), LIMIT, async || {
        let pod = pods.get(name).await?;
        let status = pod.status.clone().unwrap_or_default();
        match status.phase.as_deref() {
            Some("Running") => Ok(Progress::Done(pod)),
            Some("Succeeded" | "Failed") => bail!("it has ended: {:?}", status.container_statuses),
            _ => Ok(Progress::NotYet(format!(
                "{:?} {:?} {:?}",
                status.phase, status.conditions, status.container_statuses
            ))),
        }
    })
    .await
}

/// What a container of a pod said.
pub async fn log(client: &Client, namespace: &str, pod: &str, container: &str) -> Result<String> {
    let pods: Api<Pod> = Api::namespaced(client.clone(), namespace);
    let parameters = LogParams {
        container: Some(container.to_owned()),
        ..LogParams::default()
    };
    let log = pods.logs(pod, &parameters).await;
    log.with_context(|| format!("the log of {container} in {namespace}/{pod}"))
}

/// What a container of a pod says of what it has, once it has said it.
pub async fn report(
    client: &Client,
    namespace: &str,
    pod: &str,
    container: &str,
) -> Result<Report> {
    let pods: Api<Pod> = Api::namespaced(client.clone(), namespace);
    let what = format!("container {container} of {namespace}/{pod} says what it has");
    eventually(&what, LIMIT, async || {
        let said = log(client, namespace, pod, container).await;
        let said = match said {
            Ok(said) if said.contains("end: reached") => {
                return Ok(Progress::Done(Report::of(&said)));
            }
            Ok(said) => said,
            Err(error) => format!("{error:#}"),
        };
        let status = pods.get(pod).await?.status.unwrap_or_default();
        Ok(Progress::NotYet(format!(
            "{said:?}; {:?} {:?} {:?}",
            status.phase, status.conditions, status.container_statuses
        )))
    })
    .await
}

/// Waits until pods can be created in a namespace.
pub async fn namespace_is_ready(client: &Client, namespace: &str) -> Result<()> {
    let accounts: Api<ServiceAccount> = Api::namespaced(client.clone(), namespace);
    let what = format!("namespace {namespace} has its ServiceAccount");
    eventually(&what, LIMIT, async || {
        let account = accounts.get_opt("default").await?;
        Ok(Progress::when(account.is_some(), || {
            "it has none".to_owned()
        }))
    })
    .await
}

/// Waits until no pod is left in a namespace.
pub async fn all_gone(client: &Client, namespace: &str) -> Result<()> {
    let pods: Api<Pod> = Api::namespaced(client.clone(), namespace);
    eventually(
        &format!("no pod is left in {namespace}"),
        LIMIT,
        async || {
            let left = pods.list(&kube::api::ListParams::default()).await?.items;
            let names: Vec<String> = left.iter().map(ResourceExt::name_any).collect();
            Ok(Progress::when(names.is_empty(), || format!("{names:?}")))
        },
    )
    .await
}
