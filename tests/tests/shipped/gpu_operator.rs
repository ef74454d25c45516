//! Pods of GPU Operator beside Muster: they look after nodes, and come to GPUs past all claims. Only what policies see of them is
//! here, in the form in which that operator makes them: who creates them is the controller of DaemonSets, and nothing of them is kept.

use anyhow::{Context, Result, bail, ensure};
use k8s_openapi::api::core::v1::Pod;
use kube::{Api, Client, api::PostParams};
use muster_api::keys;
use muster_tests::{
    containers::{Lab, operator, operator::TEAM_NAMESPACE, workload},
    kubeconfig,
    kubernetes::{LIMIT, Progress, eventually},
};
use serde_json::{Value, json};

use crate::{GPU_MACHINES, side_doors};

/// Its namespace, which the chart excepts.
const EXCEPTED: &str = "gpu-operator";
/// Another one, of no Team, which the chart knows nothing of.
const UNKNOWN: &str = "nvidia-tools";
/// As whom pods of DaemonSets are created.
const CREATOR: &str = "system:serviceaccount:kube-system:daemon-set-controller";

/// A DaemonSet of GPU Operator: the template of its pods, and what is answered where it is not excepted, if that needs an exception.
struct Operand {
    name: &'static str,
    spec: Value,
    refused: Option<&'static str>,
}

fn operands() -> Vec<Operand> {
    let host = |name: &str, path: &str| json!({"name": name, "hostPath": {"path": path}});
    let privileged = json!({"privileged": true});
    // Most wait for what another one has done.
    let waits = json!({
        "name": "toolkit-validation",
        "image": "nvcr.io/nvidia/gpu-operator:v1",
        "command": ["sh", "-c", "until [ -f /run/nvidia/validations/toolkit-ready ]; do sleep 5; done"],
        "securityContext": privileged,
        "volumeMounts": [{"name": "run-nvidia", "mountPath": "/run/nvidia", "mountPropagation": "HostToContainer"}],
    });
    let main = |name: &str, visible: Option<&str>| {
        let mut container = json!({
            "name": name,
            "image": format!("nvcr.io/nvidia/{name}:v1"),
            "securityContext": privileged,
        });
        if let Some(visible) = visible {
            container["env"] = json!([{"name": "NVIDIA_VISIBLE_DEVICES", "value": visible}]);
        }
        container
    };
    vec![
        Operand {
            name: "nvidia-device-plugin-daemonset",
            spec: json!({
                "runtimeClassName": "nvidia",
                "initContainers": [waits],
                "containers": [main("nvidia-device-plugin", Some("all"))],
                "volumes": [
                    host("run-nvidia", "/run/nvidia"),
                    host("device-plugin", "/var/lib/kubelet/device-plugins"),
                    host("host-root", "/"),
                    host("cdi-root", "/var/run/cdi"),
                ],
            }),
            refused: Some("container nvidia-device-plugin sets NVIDIA_VISIBLE_DEVICES"),
        },
        Operand {
            name: "nvidia-dcgm-exporter",
            spec: json!({
                "runtimeClassName": "nvidia",
                "initContainers": [waits],
                "containers": [main("nvidia-dcgm-exporter", None)],
                "volumes": [host("run-nvidia", "/run/nvidia"), host("pod-gpu-resources", "/var/lib/kubelet/pod-resources")],
            }),
            refused: Some("the RuntimeClass nvidia"),
        },
        Operand {
            name: "nvidia-driver-daemonset",
            spec: json!({
                "hostPID": true,
                "initContainers": [main("k8s-driver-manager", Some("void"))],
                "containers": [main("nvidia-driver-ctr", None)],
                "volumes": [
                    host("run-nvidia", "/run/nvidia"),
                    host("host-root", "/"),
                    host("host-sys", "/sys"),
                    host("dev-log", "/dev/log"),
                ],
            }),
            refused: None,
        },
        Operand {
            name: "nvidia-container-toolkit-daemonset",
            spec: json!({
                "hostPID": true,
                "containers": [main("nvidia-container-toolkit-ctr", Some("void"))],
                "volumes": [
                    host("run-nvidia", "/run/nvidia"),
                    host("host-root", "/"),
                    host("host-dev-char", "/dev/char"),
                    host("toolkit-install-dir", "/usr/local/nvidia"),
                ],
            }),
            refused: None,
        },
        Operand {
            name: "nvidia-mig-manager",
            spec: json!({
                "runtimeClassName": "nvidia",
                "hostPID": true,
                "initContainers": [waits],
                "containers": [main("nvidia-mig-manager", None)],
                "volumes": [host("run-nvidia", "/run/nvidia"), host("host-sys", "/sys"), host("host-root", "/")],
            }),
            refused: Some("the RuntimeClass nvidia"),
        },
        Operand {
            name: "nvidia-operator-validator",
            spec: json!({
                "runtimeClassName": "nvidia",
                "initContainers": [main("driver-validation", None), waits, main("cuda-validation", None)],
                "containers": [main("nvidia-operator-validator", None)],
                "volumes": [host("run-nvidia", "/run/nvidia"), host("host-dev-char", "/dev/char")],
            }),
            refused: Some("the RuntimeClass nvidia"),
        },
    ]
}

/// What the API server says of a pod as the controller of DaemonSets makes it for a node; nothing is kept.
async fn created(client: &Client, namespace: &str, operand: &Operand) -> Result<Pod> {
    let mut spec = operand.spec.clone();
    spec["priorityClassName"] = json!("system-node-critical");
    spec["tolerations"] = json!([{"operator": "Exists"}]);
    let fields = json!([{"key": "metadata.name", "operator": "In", "values": [GPU_MACHINES[0]]}]);
    spec["affinity"] = json!({"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {
        "nodeSelectorTerms": [{"matchFields": fields}],
    }}});
    let pod = json!({
        "metadata": {
            "generateName": format!("{}-", operand.name),
            "labels": {"app": operand.name},
            "ownerReferences": [{
                "apiVersion": "apps/v1",
                "kind": "DaemonSet",
                "name": operand.name,
                "uid": "00000000-0000-4000-8000-000000000000",
                "controller": true,
            }],
        },
        "spec": spec,
    });
    let pod: Pod = serde_json::from_value(pod)?;
    let pods: Api<Pod> = Api::namespaced(client.clone(), namespace);
    Ok(pods.create(&dry_run(), &pod).await?)
}

fn dry_run() -> PostParams {
    PostParams {
        dry_run: true,
        ..PostParams::default()
    }
}

/// Its namespace and another one, and a client of the controller of DaemonSets.
async fn begin(lab: &Lab) -> Result<Client> {
    side_doors::make_runtime_class(lab).await?;
    for namespace in [EXCEPTED, UNKNOWN] {
        let object =
            json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}});
        operator::apply(lab, namespace, &object.to_string(), None).await?;
        workload::namespace_is_ready(&lab.client(), namespace).await?;
    }
    let file = lab
        .control_plane
        .kubeconfig_for("daemon-set-controller", CREATOR, None)?;
    kubeconfig::client(&file).await
}

async fn ensure_all_taken(client: &Client, namespace: &str) -> Result<()> {
    for operand in operands() {
        let taken = created(client, namespace, &operand).await;
        taken.with_context(|| format!("{} in {namespace}", operand.name))?;
    }
    Ok(())
}

pub(crate) async fn its_pods_are_taken_in_its_namespace_and_told_elsewhere_where_they_belong(
    lab: &mut Lab,
) -> Result<()> {
    let client = begin(lab).await?;
    ensure_all_taken(&client, EXCEPTED).await?;
    for operand in operands() {
        let name = operand.name;
        let answer = created(&client, UNKNOWN, &operand).await;
        match (answer, operand.refused) {
            (Ok(_), None) => {}
            (Ok(_), Some(why)) => bail!("{name} was taken, though {why}"),
            (Err(refused), None) => return Err(refused.context(name)),
            (Err(refused), Some(why)) => {
                let text = format!("{refused:#}");
                let parts = ["muster-pod-side-door", "NotPermitted: ", why];
                for part in [&parts[..], &["sideDoors.exceptedNamespaces"]].concat() {
                    ensure!(text.contains(part), "{name}: {part:?} is not in: {text}");
                }
            }
        }
        // A tenant may run none of them, whoever creates it.
        match created(&client, TEAM_NAMESPACE, &operand).await {
            Ok(_) => bail!("{name} was taken in a Team's namespace"),
            Err(refused) => {
                let text = format!("{refused:#}");
                ensure!(text.contains("NotPermitted: "), "{name}: {text}");
            }
        }
    }
    its_workload_waits_for_a_team(lab).await
}

/// The pod by which the validator tries the device plugin asks for a GPU like any other.
async fn its_workload_waits_for_a_team(lab: &Lab) -> Result<()> {
    let pods: Api<Pod> = Api::namespaced(lab.client(), EXCEPTED);
    let pod: Pod = serde_json::from_value(json!({
        "metadata": {"generateName": "nvidia-device-plugin-validator-"},
        "spec": {
            "runtimeClassName": "nvidia",
            "restartPolicy": "OnFailure",
            "containers": [{
                "name": "plugin-validation",
                "image": "nvcr.io/nvidia/cuda-sample:v1",
                "resources": {"limits": {"nvidia.com/gpu": "1"}},
            }],
        },
    }))?;
    let created = pods.create(&dry_run(), &pod).await?;
    let spec = created.spec.unwrap_or_default();
    let gates = spec.scheduling_gates.unwrap_or_default();
    let is_gated = gates.iter().any(|gate| gate.name == keys::ADMISSION_GATE);
    ensure!(is_gated, "it is not gated, as the guide says: {gates:?}");
    Ok(())
}

pub(crate) async fn its_pods_are_taken_wherever_the_chart_is_told(lab: &mut Lab) -> Result<()> {
    let client = begin(lab).await?;
    let namespaces = json!([EXCEPTED, UNKNOWN]);
    let excepted = format!("--set-json 'sideDoors.exceptedNamespaces={namespaces}'");
    operator::upgrade(lab, &excepted).await?;
    // The API server takes a moment to see that a binding has changed.
    let taken = eventually("all are taken", LIMIT, async || {
        ensure_all_taken(&client, UNKNOWN).await?;
        Ok(Progress::Done(()))
    })
    .await;
    // Whatever came of it, the others need what was there before: drivers, too, were started with these names.
    operator::upgrade(lab, "").await?;
    taken
}
