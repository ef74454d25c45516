//! What containers get: those that name a claim, and those that do not.

use std::collections::BTreeSet;

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::{
    core::v1::Pod,
    resource::v1::{ResourceClaim, ResourceSlice},
};
use kube::Api;
use muster_tests::containers::{
    Lab, operator,
    operator::TEAM_NAMESPACE,
    prepared,
    workload::{self, Report},
};
use serde_json::{Value, json};

use crate::{GPU_MACHINES, NVIDIA_MACHINE};

const TEMPLATE: &str = "
apiVersion: resource.k8s.io/v1
kind: ResourceClaimTemplate
metadata: {name: two-gpus}
spec:
  spec:
    devices:
      requests: [{name: gpus, exactly: {deviceClassName: gpu.muster.dev, count: 2}}]
";

/// Device nodes and UUIDs.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Gpus {
    nodes: BTreeSet<String>,
    uuids: BTreeSet<String>,
}

impl Gpus {
    /// Those that a container sees.
    fn seen(report: &Report) -> Self {
        Self {
            nodes: words(report.says("nodes")),
            uuids: words(report.says("uuids")),
        }
    }
}

pub(crate) async fn a_container_gets_its_gpus_and_the_driver_and_nothing_else(
    lab: &mut Lab,
) -> Result<()> {
    let report = given_there(lab, GPU_MACHINES[0]).await?;
    let cuda = report.says("cuda");
    ensure!(cuda.contains("cannot open shared object file"), "{cuda}");
    Ok(())
}

/// A pod that asks for no GPU is left as it is, and gets what its image says, as the guide warns: so the others show something.
pub(crate) async fn and_so_it_does_where_nvidias_runtime_is_the_default_one(
    lab: &mut Lab,
) -> Result<()> {
    given_there(lab, NVIDIA_MACHINE).await?;
    let pod = json!({
        "metadata": {"name": "asks-for-none"},
        "spec": {
            "restartPolicy": "Never",
            "nodeSelector": {"kubernetes.io/hostname": NVIDIA_MACHINE},
            "containers": [workload::reporting("plain", &[], &json!({}), true)],
        },
    });
    workload::create(lab, TEAM_NAMESPACE, &pod).await?;
    let client = lab.client();
    workload::runs(&client, TEAM_NAMESPACE, "asks-for-none").await?;
    let report = workload::report(&client, TEAM_NAMESPACE, "asks-for-none", "plain").await?;
    let nodes = words(report.says("nodes")).len();
    ensure!(
        nodes == 8,
        "what stands for NVIDIA's runtime gave {nodes} GPUs to a container whose image says `all`: it tests nothing"
    );
    workload::delete(lab, TEAM_NAMESPACE, "asks-for-none").await
}

/// The driver's libraries are of no use there, and of no harm: nothing of the image is changed for them.
pub(crate) async fn an_image_without_glibc_gets_devices_and_files_and_no_cache_for_a_loader(
    lab: &mut Lab,
) -> Result<()> {
    operator::apply(lab, "two-gpus", TEMPLATE, Some(TEAM_NAMESPACE)).await?;
    let container = |name: &str, claims: &[&str], security: &Value, stays: bool| {
        let mut container = workload::reporting(name, claims, security, stays);
        container["image"] = json!(prepared::WITHOUT_GLIBC);
        container
    };
    let pod = json!({
        "metadata": {"name": "foreign"},
        "spec": {
            "restartPolicy": "Never",
            "nodeSelector": {"kubernetes.io/hostname": GPU_MACHINES[0]},
            "resourceClaims": [{"name": "gpus", "resourceClaimTemplateName": "two-gpus"}],
            "containers": [
                container("sharing", &["gpus"], &json!({}), true),
                container("restricted", &["gpus"], &restricted(), false),
                container("without", &[], &json!({}), false),
            ],
        },
    });
    workload::create(lab, TEAM_NAMESPACE, &pod).await?;
    let client = lab.client();
    let pod = workload::runs(&client, TEAM_NAMESPACE, "foreign").await?;
    let given = given_to(lab, &pod).await?;
    for (container, visible, library) in [
        ("sharing", "void", "there"),
        ("restricted", "void", "there"),
        ("without", "void", ""),
    ] {
        let report = workload::report(&client, TEAM_NAMESPACE, "foreign", container).await?;
        expect(&report, container, "NVIDIA_VISIBLE_DEVICES", visible)?;
        expect(&report, container, "library", library)?;
        expect(&report, container, "cache", "")?;
        // It is there, and has no loader.
        expect(&report, container, "nvidia-smi", "none")?;
        let seen = Gpus::seen(&report);
        let expected = if container == "without" {
            Gpus {
                nodes: BTreeSet::new(),
                uuids: BTreeSet::new(),
            }
        } else {
            given.clone()
        };
        ensure!(
            seen == expected,
            "{container}: {report:?} instead of {expected:?}"
        );
    }
    workload::delete(lab, TEAM_NAMESPACE, "foreign").await
}

/// A container that may do little: no root, and a root that it cannot write to.
fn restricted() -> Value {
    json!({
        "runAsNonRoot": true,
        "runAsUser": 1000,
        "readOnlyRootFilesystem": true,
        "allowPrivilegeEscalation": false,
        "capabilities": {"drop": ["ALL"]},
    })
}

/// The same as [`given_there`], and the pod is gone in the end.
pub(crate) async fn given_on(lab: &Lab, machine: &str) -> Result<Report> {
    let report = given_there(lab, machine).await?;
    workload::all_gone(&lab.client(), TEAM_NAMESPACE).await?;
    Ok(report)
}

/// Runs a pod there of which all containers but one name its claim, and checks what these say. Returns what the other says.
async fn given_there(lab: &Lab, machine: &str) -> Result<Report> {
    let name = format!("given-{machine}");
    operator::apply(lab, "two-gpus", TEMPLATE, Some(TEAM_NAMESPACE)).await?;
    let pod = json!({
        "metadata": {"name": name},
        "spec": {
            "restartPolicy": "Never",
            "nodeSelector": {"kubernetes.io/hostname": machine},
            "resourceClaims": [{"name": "gpus", "resourceClaimTemplateName": "two-gpus"}],
            "initContainers": [workload::reporting("before", &["gpus"], &json!({}), false)],
            "containers": [
                workload::reporting("restricted", &["gpus"], &restricted(), false),
                workload::reporting("sharing", &["gpus"], &json!({}), true),
                workload::reporting("without", &[], &json!({}), false),
            ],
        },
    });
    workload::create(lab, TEAM_NAMESPACE, &pod).await?;
    let client = lab.client();
    let pod = workload::runs(&client, TEAM_NAMESPACE, &name).await?;
    let given = given_to(lab, &pod).await?;
    for container in ["before", "restricted", "sharing"] {
        let report = workload::report(&client, TEAM_NAMESPACE, &name, container).await?;
        let seen = Gpus::seen(&report);
        ensure!(
            seen == given,
            "{container}: {report:?} instead of {given:?}"
        );
        let names: Vec<String> = given
            .nodes
            .iter()
            .map(|node| node.replace("nvidia", "GPU "))
            .collect();
        let names = names.join(", ");
        expect(&report, container, "cuda", &names)?;
        // Its cgroup knows no others, whatever nodes there are.
        let cuda = format!("cuda: {names}");
        expect(&report, container, "with nodes of its own", &cuda)?;
        expect(&report, container, "nvidia-smi", "NVML is there")?;
        expect(&report, container, "NVIDIA_VISIBLE_DEVICES", "void")?;
        expect(&report, container, "cache", "there")?;
        let (user, root) = match container {
            "restricted" => ("1000", "ro"),
            _ => ("0", "rw"),
        };
        expect(&report, container, "user", user)?;
        expect(&report, container, "root", root)?;
    }
    let report = workload::report(&client, TEAM_NAMESPACE, &name, "without").await?;
    expect(&report, "without", "uuids", "")?;
    expect(&report, "without", "nvidia-smi", "none")?;
    expect(&report, "without", "nodes", "")?;
    expect(&report, "without", "NVIDIA_VISIBLE_DEVICES", "void")?;
    workload::delete(lab, TEAM_NAMESPACE, &name).await?;
    Ok(report)
}

fn expect(report: &Report, container: &str, what: &str, expected: &str) -> Result<()> {
    let says = report.says(what);
    ensure!(
        says == expected,
        "{container} says {what}: {says:?}, and not {expected:?}"
    );
    Ok(())
}

fn words(text: &str) -> BTreeSet<String> {
    text.split_whitespace().map(str::to_owned).collect()
}

/// The GPUs of a pod's claim, as the scheduler chose them and the driver published them.
async fn given_to(lab: &Lab, pod: &Pod) -> Result<Gpus> {
    let status = pod.status.clone().unwrap_or_default();
    let named = status.resource_claim_statuses.unwrap_or_default();
    let claim = named.into_iter().find_map(|it| it.resource_claim_name);
    let claim = claim.context("the pod has a claim")?;
    let claims: Api<ResourceClaim> = Api::namespaced(lab.client(), TEAM_NAMESPACE);
    let status = claims.get(&claim).await?.status.unwrap_or_default();
    let allocation = status.allocation.context("the claim is allocated")?;
    let results = allocation.devices.and_then(|devices| devices.results);
    let slices = Api::<ResourceSlice>::all(lab.client());
    let slices = slices.list(&kube::api::ListParams::default()).await?.items;
    let mut gpus = Gpus {
        nodes: BTreeSet::new(),
        uuids: BTreeSet::new(),
    };
    for result in results.unwrap_or_default() {
        let mut devices = slices
            .iter()
            .filter(|slice| slice.spec.pool.name == result.pool)
            .flat_map(|slice| slice.spec.devices.iter().flatten());
        let device = devices.find(|device| device.name == result.device);
        let attributes = device.and_then(|device| device.attributes.as_ref());
        let uuid = attributes.and_then(|all| all.get("uuid")?.string.clone());
        gpus.uuids.insert(uuid.context("a device with a UUID")?);
        // A board of one kind of GPU: the number is the minor one.
        gpus.nodes.insert(result.device.replace("gpu-", "nvidia"));
    }
    Ok(gpus)
}
