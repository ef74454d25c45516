//! Ways past claims, as a tenant would try them: somebody who may edit a namespace of a Team, and nothing else.

use std::fs;

use anyhow::{Result, bail, ensure};
use muster_tests::containers::{Lab, operator, operator::TEAM_NAMESPACE, workload};
use serde_json::{Value, json};

const TENANT: &str = "tenant";

/// What is tried, and a part of what is answered beside the reason.
fn attempts() -> Vec<(&'static str, Value, &'static str)> {
    let pod = |container: Value, further: Value| {
        let mut container = container;
        container["name"] = json!("way");
        container["image"] = json!("localhost/workload:1");
        let mut spec = json!({"containers": [container]});
        for (field, value) in further.as_object().into_iter().flatten() {
            spec[field] = value.clone();
        }
        spec
    };
    let variable = |value: Value| {
        let mut variable = json!({"name": "NVIDIA_VISIBLE_DEVICES"});
        for (field, value) in value.as_object().into_iter().flatten() {
            variable[field] = value.clone();
        }
        json!({"env": [variable]})
    };
    let host = |path: &str| json!({"volumes": [{"name": "host", "hostPath": {"path": path}}]});
    let nothing = json!({});
    vec![
        (
            "a variable that asks for all GPUs",
            pod(variable(json!({"value": "all"})), nothing.clone()),
            "container way sets NVIDIA_VISIBLE_DEVICES",
        ),
        (
            "the same from a field",
            pod(
                variable(json!({"valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}})),
                nothing.clone(),
            ),
            "container way sets NVIDIA_VISIBLE_DEVICES",
        ),
        (
            "a privileged container",
            pod(
                json!({"securityContext": {"privileged": true}}),
                nothing.clone(),
            ),
            "container way is privileged",
        ),
        (
            "the node's devices",
            pod(nothing.clone(), host("/dev")),
            "shows the devices of the node (/dev)",
        ),
        (
            "the node's root",
            pod(nothing.clone(), host("/")),
            "shows the devices of the node (/)",
        ),
        (
            "one GPU of the node, by another spelling",
            pod(nothing.clone(), host("/./dev//nvidia0")),
            "shows /./dev//nvidia0, a GPU",
        ),
        (
            "a RuntimeClass of NVIDIA",
            pod(nothing.clone(), json!({"runtimeClassName": "nvidia"})),
            "the RuntimeClass nvidia",
        ),
        (
            "a variable in an init container",
            pod(
                nothing.clone(),
                json!({"initContainers": [{
                    "name": "first",
                    "image": "localhost/workload:1",
                    "env": [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "0"}],
                }]}),
            ),
            "container first sets NVIDIA_VISIBLE_DEVICES",
        ),
    ]
}

/// A RuntimeClass that is not there is refused by Kubernetes itself.
pub(crate) async fn make_runtime_class(lab: &Lab) -> Result<()> {
    let class = json!({"apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass", "metadata": {"name": "nvidia"}, "handler": "runc"});
    operator::apply(lab, "runtime-class", &class.to_string(), None)
        .await
        .map(drop)
}

pub(crate) async fn a_tenant_gets_no_gpu_by_a_side_door(lab: &mut Lab) -> Result<()> {
    let role = ["create", "rolebinding", TENANT, "--clusterrole=edit"];
    let user = format!("--user={TENANT}");
    let namespace = format!("--namespace={TEAM_NAMESPACE}");
    lab.kubectl(&[&role[..], &[user.as_str(), namespace.as_str()]].concat())
        .await?;
    make_runtime_class(lab).await?;
    let as_tenant = format!("--as={TENANT}");
    for (number, (what, spec, answer)) in attempts().into_iter().enumerate() {
        let name = format!("way-{number}");
        let pod = json!({
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name, "namespace": TEAM_NAMESPACE},
            "spec": spec,
        });
        match create(lab, &name, &pod, &[&as_tenant]).await {
            Ok(_) => bail!("{what}: the pod was taken"),
            Err(refused) => {
                let text = format!("{refused:#}");
                for part in ["muster-pod-side-door", "NotPermitted: ", answer] {
                    ensure!(text.contains(part), "{what}: {part:?} is not in: {text}");
                }
            }
        }
    }
    // The same pod without any of it is taken.
    let pod = json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "plain", "namespace": TEAM_NAMESPACE},
        "spec": {"containers": [{
            "name": "plain",
            "image": "localhost/workload:1",
            "env": [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "void"}],
        }]},
    });
    create(lab, "plain", &pod, &[&as_tenant]).await?;
    workload::runs(&lab.client(), TEAM_NAMESPACE, "plain").await?;
    // Annotations may change while a pod waits, or before its sandbox is made anew.
    let annotate = |annotation: &'static str| {
        [
            "annotate",
            "pod",
            "plain",
            annotation,
            namespace.as_str(),
            as_tenant.as_str(),
        ]
    };
    lab.kubectl(&annotate("example.com/note=nvidia.com/gpu"))
        .await?;
    match lab
        .kubectl(&annotate("cdi.k8s.io/way=nvidia.com/gpu=all"))
        .await
    {
        Ok(_) => bail!("an annotation that names devices was taken"),
        Err(refused) => {
            let text = format!("{refused:#}");
            ensure!(
                text.contains("annotation cdi.k8s.io/way names devices"),
                "{text}"
            );
        }
    }
    // A debugger in a pod that runs is a way, too, for those who may start one: a tenant may not.
    let debug = [
        "debug",
        "plain",
        "--image=localhost/workload:1",
        "--profile=sysadmin",
    ];
    let debug = [&debug[..], &[namespace.as_str()]].concat();
    match lab.kubectl(&debug).await {
        Ok(_) => bail!("a privileged debugger was taken"),
        Err(refused) => {
            let text = format!("{refused:#}");
            ensure!(text.contains("is privileged"), "{text}");
        }
    }
    workload::delete(lab, TEAM_NAMESPACE, "plain").await?;
    workload::all_gone(&lab.client(), TEAM_NAMESPACE).await
}

async fn create(lab: &Lab, name: &str, object: &Value, further: &[&str]) -> Result<String> {
    let file = lab.directory().join(format!("{name}.json"));
    fs::write(&file, format!("{object:#}\n"))?;
    let file = file.display().to_string();
    let words = ["create", "--filename", &file];
    lab.kubectl(&[&words[..], further].concat()).await
}
