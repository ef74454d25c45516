//! What came to a GPU by a side door all the same: told, and nothing new is placed there, until it is gone.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::{
    core::v1::{Event, Pod},
    resource::v1::{Device, ResourceSlice},
};
use kube::{Api, ResourceExt, api::ListParams};
use muster_api::{Reason, keys};
use muster_tests::{
    containers::{
        Lab, hardware,
        machine::Machine,
        operator::{DRIVER_NAMESPACE, TEAM_NAMESPACE},
        workload,
    },
    kubernetes::{LIMIT, Progress, eventually, list},
};
use serde_json::json;

use crate::GPU_MACHINES;

const MACHINE: &str = GPU_MACHINES[0];
const DEVICE: &str = "gpu-7";
const POD: &str = "by-side-door";
/// Longest time in which a process is found.
const COMMAND_LIMIT: Duration = Duration::from_secs(30);
/// It takes 30 s without an explanation, and as long after the end, and a look every 5 s.
const JUDGED_LIMIT: Duration = LIMIT.saturating_mul(2);

/// The id of the process that says what its container has, in the pod of this UID, as its machine counts.
const FIND: &str = r#"
for cgroup in /proc/[0-9]*/cgroup; do
    if grep -qs "pod$1" "$cgroup" && grep -aqs 'end: reached' "${cgroup%cgroup}cmdline"; then
        echo "$cgroup" | cut -d/ -f3
        exit
    fi
done
exit 1
"#;

/// What uses a GPU here is a process that has none in fact; that NVML lists it is all that is played. Whose it is the kernel says.
pub(crate) async fn a_pod_without_a_claim_that_uses_a_gpu_is_told_and_nothing_new_is_placed_there(
    lab: &mut Lab,
) -> Result<()> {
    let pod = json!({
        "metadata": {"name": POD},
        "spec": {
            "nodeSelector": {"kubernetes.io/hostname": MACHINE},
            "containers": [workload::reporting("side", &[], &json!({}), true)],
        },
    });
    workload::create(lab, TEAM_NAMESPACE, &pod).await?;
    let client = lab.client();
    let pod = workload::runs(&client, TEAM_NAMESPACE, POD).await?;
    workload::report(&client, TEAM_NAMESPACE, POD, "side").await?;
    let uid = pod.uid().context("the pod has a UID")?;
    let machine = lab.machine(MACHINE)?;
    let process = process_of(machine, &uid).await?;
    let gpu = uuid(lab).await?;
    hardware::begin_use(machine, &gpu, process)?;
    let told = is_told(lab, &uid, process).await;
    workload::delete(lab, TEAM_NAMESPACE, POD).await?;
    workload::all_gone(&client, TEAM_NAMESPACE).await?;
    // Whatever came of it, the others need the GPU.
    hardware::end_use(machine, process)?;
    told?;
    is_bypassed(lab, &[], 0).await
}

async fn process_of(machine: &Machine, uid: &str) -> Result<u32> {
    let words = ["bash", "-euc", FIND, "find", uid];
    let found = machine.run(&words, COMMAND_LIMIT).await?;
    let found = found.trim();
    found.parse().with_context(|| format!("process {found:?}"))
}

async fn is_told(lab: &Lab, uid: &str, process: u32) -> Result<()> {
    is_bypassed(lab, &[DEVICE], 1).await?;
    let who =
        format!("pod {TEAM_NAMESPACE}/{POD} (UID {uid}) uses {DEVICE} by processes {process}");
    // Events of what has no namespace are in this one.
    for (namespace, kind, name) in [("default", "Node", MACHINE), (TEAM_NAMESPACE, "Pod", POD)] {
        let event = event(lab, namespace, kind, name, &who).await?;
        ensure!(event.type_.as_deref() == Some("Warning"), "{event:?}");
    }
    let metrics = metrics(lab).await?;
    let began = r#"muster_driver_bypasses_total{origin="pod"} "#;
    ensure!(
        metrics.lines().any(|line| line.starts_with(began)),
        "no line {began:?}: {metrics}"
    );
    Ok(())
}

/// Waits until these devices of the machine are tainted, no other one is, and the driver counts as many.
async fn is_bypassed(lab: &Lab, expected: &[&str], count: usize) -> Result<()> {
    let what = format!("{expected:?} of {MACHINE} are tainted, and {count} counted");
    let line = format!("muster_driver_bypassed_devices {count}");
    eventually(&what, JUDGED_LIMIT, async || {
        let devices = devices(lab).await?;
        let is_tainted = |device: &&Device| {
            let mut taints = device.taints.iter().flatten();
            taints.any(|it| it.key == keys::TAINT_BYPASSED && it.effect == "NoSchedule")
        };
        let tainted = devices.iter().filter(is_tainted);
        let tainted: Vec<&str> = tainted.map(|device| device.name.as_str()).collect();
        let metrics = metrics(lab).await?;
        let counted: Vec<&str> = metrics
            .lines()
            .filter(|line| line.starts_with("muster_driver_bypass"))
            .collect();
        let holds = tainted == expected && counted.contains(&line.as_str());
        Ok(Progress::when(holds, || {
            format!("tainted {tainted:?}, counted {counted:?}")
        }))
    })
    .await
}

async fn event(lab: &Lab, namespace: &str, kind: &str, name: &str, says: &str) -> Result<Event> {
    let client = lab.client();
    let what = format!("an Event on {kind} {name} says {says:?}");
    eventually(&what, LIMIT, async || {
        let events: Vec<Event> = list(&client, Some(namespace)).await?;
        let mut events: Vec<Event> = events
            .into_iter()
            .filter(|event| {
                let about = &event.involved_object;
                about.kind.as_deref() == Some(kind)
                    && about.name.as_deref() == Some(name)
                    && event.reason.as_deref() == Some(Reason::QuotaBypassDetected.as_str())
            })
            .collect();
        let is_wanted = |event: &Event| event.message.as_ref().is_some_and(|it| it.contains(says));
        match events.iter().position(is_wanted) {
            Some(position) => Ok(Progress::Done(events.swap_remove(position))),
            None => Ok(Progress::NotYet(format!("{events:?}"))),
        }
    })
    .await
}

/// What the driver of the machine counts.
async fn metrics(lab: &Lab) -> Result<String> {
    let pods: Vec<Pod> = list(&lab.client(), Some(DRIVER_NAMESPACE)).await?;
    let mut specs = pods
        .iter()
        .filter_map(|pod| Some((pod.name_any(), pod.spec.as_ref()?)));
    let found = specs.find(|(_, spec)| spec.node_name.as_deref() == Some(MACHINE));
    let (name, spec) = found.context("the machine has a driver")?;
    let mut ports = spec
        .containers
        .iter()
        .flat_map(|it| it.ports.iter().flatten());
    let port = ports.find(|port| port.name.as_deref() == Some("admin"));
    let port = port
        .context("the driver has a port for metrics")?
        .container_port;
    let path = format!("/api/v1/namespaces/{DRIVER_NAMESPACE}/pods/{name}:{port}/proxy/metrics");
    lab.kubectl(&["get", "--raw", &path]).await
}

async fn devices(lab: &Lab) -> Result<Vec<Device>> {
    let slices = Api::<ResourceSlice>::all(lab.client());
    let slices = slices.list(&ListParams::default()).await?.items;
    let ours = slices.into_iter().filter(|slice| {
        slice.spec.driver == keys::DRIVER && slice.spec.node_name.as_deref() == Some(MACHINE)
    });
    Ok(ours
        .flat_map(|slice| slice.spec.devices.unwrap_or_default())
        .collect())
}

async fn uuid(lab: &Lab) -> Result<String> {
    let devices = devices(lab).await?;
    let device = devices.iter().find(|device| device.name == DEVICE);
    let attributes = device.and_then(|device| device.attributes.as_ref());
    let uuid = attributes.and_then(|all| all.get("uuid")?.string.clone());
    uuid.with_context(|| format!("{DEVICE} of {MACHINE} has a UUID"))
}
