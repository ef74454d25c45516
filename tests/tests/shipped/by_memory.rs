//! The example `by-memory.yaml` on a machine whose GPUs may be cut: what its containers see, and what their pods say of their health.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::{
    core::v1::{Pod, ResourceHealth},
    resource::v1::ResourceSlice,
};
use kube::{Api, ResourceExt, api::ListParams};
use muster_api::keys;
use muster_tests::{
    containers::{Lab, hardware, operator, workload},
    kubernetes::{Progress, eventually, list},
};
use nvidia_ml_mock::{Board, mig::Profile};

use crate::{
    GPU_MACHINES,
    examples::{self, NAMESPACE},
};

/// The machine whose GPUs may be cut. The other one has whole GPUs only.
const MACHINE: &str = GPU_MACHINES[0];
/// The example.
const EXAMPLE: &str = "by-memory.yaml";
/// Its pods that get a slice, each with the profiles that the example promises.
const SLICES: [(&str, &[&str]); 2] = [
    ("notebook-10g", &["1g.10gb"]),
    ("model-20g", &["1g.20gb", "2g.20gb"]),
];
/// Its Job of two whole GPUs.
const WHOLE: &str = "two-cards";
/// Longest time for anything to come about. A device that is not offered any more stays published for half a minute at least.
const LIMIT: Duration = Duration::from_mins(2);

pub(crate) async fn each_container_of_the_example_sees_what_it_asked_for_and_its_pod_whether_that_is_well(
    lab: &mut Lab,
) -> Result<()> {
    let result = slices_are_given(lab).await;
    // Whatever came of it, the others need what was there before.
    let restored = restore(lab).await;
    result.and(restored)
}

/// A slice on the card.
#[derive(Debug)]
struct Slice {
    /// UUID of its GPU.
    gpu: String,
    /// What it was made as.
    profile: &'static Profile,
}

async fn slices_are_given(lab: &Lab) -> Result<()> {
    examples::declare(lab).await?;
    let nodes = format!(
        r#"[{{"labels":{{"kubernetes.io/hostname":"{MACHINE}"}},"mode":"Dynamic","toggle":"WhenIdle"}}]"#
    );
    operator::upgrade(lab, &format!("--set-json 'driver.mig.nodes={nodes}'")).await?;
    devices_are_offered("slices", lab, |devices| {
        devices.iter().any(|device| device.contains("-mig-"))
    })
    .await?;
    let example = examples::file(EXAMPLE).display().to_string();
    lab.kubectl(&["apply", "--filename", &example]).await?;

    let client = lab.client();
    let mut first = None;
    for (pod, profiles) in SLICES {
        workload::runs(&client, NAMESPACE, pod).await?;
        let slice = slice_of(lab, pod).await?;
        let profile = slice.profile.name;
        ensure!(
            profiles.contains(&profile),
            "{pod} has a slice {profile}, and not one of {profiles:?}"
        );
        first.get_or_insert((pod, slice));
    }
    let pod = pod_of_job(lab).await?;
    workload::runs(&client, NAMESPACE, &pod).await?;
    let seen = seen(lab, &pod).await?;
    let gpus: Vec<&str> = seen.split(", ").collect();
    let is_whole = |gpu: &&str| gpu.strip_prefix("GPU ").is_some_and(is_number);
    ensure!(
        gpus.len() == 2 && gpus.iter().all(is_whole),
        "{pod} sees {seen:?} and not two whole GPUs"
    );
    let (pod, slice) = first.context("the example has slices")?;
    its_pod_says_whether_it_is_well(lab, pod, &slice).await
}

/// The slice of a GPU is as well as the GPU.
async fn its_pod_says_whether_it_is_well(lab: &Lab, pod: &str, slice: &Slice) -> Result<()> {
    let machine = lab.machine(MACHINE)?;
    let name = device_label(slice.profile);
    let healthy = health_is(lab, pod, "Healthy").await?;
    ensure!(
        healthy.resource_id.contains(&name),
        "the pod's status names {:?}, and no device with {name}",
        healthy.resource_id
    );
    hardware::change_state(machine, |state| state.lost.push(slice.gpu.clone()))?;
    let unhealthy = health_is(lab, pod, "Unhealthy").await;
    hardware::change_state(machine, |state| state.lost.clear())?;
    let unhealthy = unhealthy?;
    let message = unhealthy.message.unwrap_or_default();
    ensure!(
        message.contains(&slice.gpu),
        "the pod's status says {message:?}, which does not name {}",
        slice.gpu
    );
    ensure!(
        unhealthy.resource_id == healthy.resource_id,
        "the device was {:?} and is {:?}",
        healthy.resource_id,
        unhealthy.resource_id
    );
    health_is(lab, pod, "Healthy").await.map(drop)
}

/// Waits until a pod's only device is in this state, as its kubelet says.
async fn health_is(lab: &Lab, pod: &str, expected: &str) -> Result<ResourceHealth> {
    let pods: Api<Pod> = Api::namespaced(lab.client(), NAMESPACE);
    let what = format!("the GPU of {pod} is {expected} in its status");
    eventually(&what, LIMIT, async || {
        let status = pods.get(pod).await?.status.unwrap_or_default();
        let containers = status.container_statuses.unwrap_or_default();
        let resources = containers
            .into_iter()
            .flat_map(|container| container.allocated_resources_status.unwrap_or_default());
        let mut healths: Vec<ResourceHealth> = resources
            .flat_map(|resource| resource.resources.unwrap_or_default())
            .collect();
        let seen = format!("{healths:?}");
        let is_expected = |health: &ResourceHealth| health.health.as_deref() == Some(expected);
        Ok(match (healths.pop(), healths.is_empty()) {
            (Some(only), true) if is_expected(&only) => Progress::Done(only),
            _ => Progress::NotYet(seen),
        })
    })
    .await
}

/// The slice that a pod's container sees, as it lies on the card.
async fn slice_of(lab: &Lab, pod: &str) -> Result<Slice> {
    let seen = seen(lab, pod).await?;
    let (minor, gpu_instance, compute_instance) =
        numbers(&seen).with_context(|| format!("{pod} sees {seen:?} and not one slice"))?;
    let state = hardware::state(lab.machine(MACHINE)?)?;
    let board = Board::named(&state.board).context("a board that is known")?;
    // Nothing was numbered anew: the minor number is the place on the board.
    let place = board.gpus.get(minor);
    let place = place.with_context(|| format!("{MACHINE} has no GPU {minor}"))?;
    let gpu = nvidia_ml_mock::uuid(&state.seed, &place.pci_bus_id);
    let instances = state.cards.get(&gpu).map(|card| &card.gpu_instances);
    let instance = instances
        .into_iter()
        .flatten()
        .find(|instance| instance.id == gpu_instance)
        .with_context(|| format!("{pod} sees {seen}, which is not on the card: {instances:?}"))?;
    let computes = &instance.compute_instances;
    ensure!(
        computes.iter().any(|it| it.id == compute_instance),
        "{pod} sees {seen}, and the GPU instance has {computes:?}"
    );
    let table = board.mig_table().context("a board that can be cut")?;
    let profile = table.profile(instance.profile);
    let profile = profile.with_context(|| format!("no profile is {}", instance.profile))?;
    Ok(Slice { gpu, profile })
}

/// What a program that uses CUDA finds in a pod, in which the driver's own programs run, too.
async fn seen(lab: &Lab, pod: &str) -> Result<String> {
    let run = async |program: &str| {
        let words = ["exec", "--namespace", NAMESPACE, pod, "--", program];
        lab.kubectl(&words).await
    };
    let said = run("nvidia-smi").await?;
    ensure!(said.contains("NVML is there"), "{pod}: {said}");
    let said = run("cuda-devices").await?;
    let seen = said.trim().strip_prefix("cuda: ");
    let seen = seen.with_context(|| format!("{pod}: {said}"))?;
    Ok(seen.to_owned())
}

/// The numbers of `GPU 3 slice 9/0`: of the GPU, of the GPU instance and of the compute instance.
fn numbers(seen: &str) -> Option<(usize, u32, u32)> {
    let (gpu, slice) = seen.strip_prefix("GPU ")?.split_once(" slice ")?;
    let (gpu_instance, compute_instance) = slice.split_once('/')?;
    Some((
        gpu.parse().ok()?,
        gpu_instance.parse().ok()?,
        compute_instance.parse().ok()?,
    ))
}

fn is_number(text: &str) -> bool {
    text.parse::<u32>().is_ok()
}

/// What the names of its devices have for a profile without engines for media.
fn device_label(profile: &Profile) -> String {
    format!("-mig-{}-", profile.name.replace('.', ""))
}

/// The only pod of the example's Job.
async fn pod_of_job(lab: &Lab) -> Result<String> {
    let client = lab.client();
    eventually("the example's Job has its pod", LIMIT, async || {
        let pods: Vec<Pod> = list(&client, Some(NAMESPACE)).await?;
        let mut of_job = pods.iter().filter(|pod| {
            let job = pod.labels().get("batch.kubernetes.io/job-name");
            job.is_some_and(|job| job == WHOLE)
        });
        Ok(match of_job.next() {
            Some(pod) => Progress::Done(pod.name_any()),
            None => Progress::NotYet(format!("{} other pods", pods.len())),
        })
    })
    .await
}

/// Waits until what the machine offers is so, by the names of devices that nothing is held against.
async fn devices_are_offered(
    what: &str,
    lab: &Lab,
    holds: impl Fn(&[String]) -> bool,
) -> Result<()> {
    let slices: Api<ResourceSlice> = Api::all(lab.client());
    let what = format!("{MACHINE} offers {what}");
    eventually(&what, LIMIT, async || {
        let all = slices.list(&ListParams::default()).await?;
        let specs = all.items.into_iter().map(|slice| slice.spec);
        let ours = specs.filter(|spec| {
            spec.driver == keys::DRIVER && spec.node_name.as_deref() == Some(MACHINE)
        });
        let devices = ours.flat_map(|spec| spec.devices.unwrap_or_default());
        let (free, tainted): (Vec<_>, Vec<_>) =
            devices.partition(|device| device.taints.as_ref().is_none_or(Vec::is_empty));
        let mut names: Vec<String> = free.into_iter().map(|device| device.name).collect();
        names.sort();
        let is_so = tainted.is_empty() && holds(&names);
        Ok(Progress::when(is_so, || {
            format!("{names:?}, and {} that are tainted", tainted.len())
        }))
    })
    .await
}

/// Nothing of the example is left, and GPUs are offered whole.
async fn restore(lab: &Lab) -> Result<()> {
    let machine = lab.machine(MACHINE)?;
    hardware::change_state(machine, |state| state.lost.clear())?;
    let example = examples::file(EXAMPLE).display().to_string();
    lab.kubectl(&[
        "delete",
        "--filename",
        &example,
        "--ignore-not-found",
        "--cascade=foreground",
        "--wait=false",
    ])
    .await?;
    workload::all_gone(&lab.client(), NAMESPACE).await?;
    eventually("the driver has removed its slices", LIMIT, async || {
        let cards = hardware::state(machine)?.cards;
        let left: Vec<_> = cards
            .values()
            .flat_map(|card| &card.gpu_instances)
            .collect();
        Ok(Progress::when(left.is_empty(), || format!("{left:?}")))
    })
    .await?;
    operator::upgrade(lab, "").await?;
    // The driver leaves a GPU in the mode that was last needed. From here on the mode is the administrator's.
    hardware::change_state(machine, |state| {
        for card in state.cards.values_mut() {
            card.mig_current = false;
            card.mig_pending = false;
        }
    })?;
    let board = Board::named(&hardware::state(machine)?.board).context("a board that is known")?;
    let whole: Vec<String> = (0..board.gpus.len())
        .map(|index| format!("gpu-{index}"))
        .collect();
    devices_are_offered("whole GPUs", lab, |devices| devices == whole).await
}
