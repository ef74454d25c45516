//! Two claims that want the same GPU: the second one's Prepare waits inside the call.

use std::fs;

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::{
    core::v1::{Event, Pod},
    resource::v1::ResourceClaim,
};
use kube::{
    Api, Client, ResourceExt,
    api::{DeleteParams, Patch, PatchParams, PostParams},
};
use muster_api::{Reason, keys};
use muster_tests::{
    builders::{self, RankProgram},
    cluster::Cluster,
    driver_socket::DriverSocket,
    kubernetes::{self, LIMIT, Progress, eventually},
    scenarios,
    suite::Scenario,
};
use serde_json::{Value, json};

use crate::stage::{
    NODE, ensure_held, only_claim, program, record_of, start, wait_for_phase,
    wait_until_nothing_is_prepared,
};

pub(crate) fn scenarios() -> Vec<Scenario> {
    scenarios![
        a_second_claim_on_a_gpu_waits_in_the_call_until_the_first_is_given_back,
        the_successor_of_a_force_deleted_pod_waits_until_its_gpu_is_free,
    ]
}

async fn a_second_claim_on_a_gpu_waits_in_the_call_until_the_first_is_given_back(
    cluster: &mut Cluster,
) -> Result<()> {
    let (holders, held) = start(cluster, "holds", 2).await?;
    wait_for_phase(&holders, "holds", "Running").await?;
    let (waiting, ranks) = start_on_device(cluster, "waits", "gpu-0").await?;
    let call = wait_until_prepare_waits(cluster, &waiting.claim, None).await?;
    // The call outlives the kubelet that made it, and the next kubelet calls again.
    cluster.node(NODE)?.restart_kubelet().await?;
    wait_until_prepare_waits(cluster, &waiting.claim, Some(&call)).await?;
    let voided = allocate(&waiting.claims, "voided", "gpu-1", None).await?;
    unprepare_during_prepare(cluster, &voided).await?;

    wait_for_phase(&holders, "holds", "Running").await?;
    wait_for_phase(&waiting.pods, "waits", "Pending").await?;
    held.finish()?;
    wait_for_phase(&waiting.pods, "waits", "Running").await?;
    ensure_never_refused(&cluster.client(), "driver-waits", Reason::DeviceHeld).await?;
    ranks.finish()?;
    wait_for_phase(&waiting.pods, "waits", "Succeeded").await?;
    let given = ranks.gpus()?.remove(&0).context("rank 0 reported")?;
    let uuids = cluster.node(NODE)?.gpu_uuids();
    ensure!(
        given == uuids[..1],
        "the pod was given {given:?}, the node has {uuids:?}"
    );
    wait_until_nothing_is_prepared(cluster).await
}

async fn the_successor_of_a_force_deleted_pod_waits_until_its_gpu_is_free(
    cluster: &mut Cluster,
) -> Result<()> {
    let (pods, _) = start(cluster, "first", 2).await?;
    wait_for_phase(&pods, "first", "Running").await?;
    let held = only_claim(&cluster.client(), "driver-first").await?;
    let node = cluster.node(NODE)?;
    node.set_runtime_faults(&json!({"hangStop": [{"pod": "first"}]}))?;
    let at_once = DeleteParams::default().grace_period(0);
    pods.delete("first", &at_once).await?;
    // The API says that the GPUs are free; the process that uses them lives.
    let (successors, ranks) = start(cluster, "second", 2).await?;
    let claim = only_claim(&cluster.client(), "driver-second").await?;
    wait_until_prepare_waits(cluster, &claim, None).await?;
    // The kubelet looks once a minute for claims of pods that are gone, and unprepares them while a container runs.
    let node = cluster.node(NODE)?;
    let mut driver = DriverSocket::connect(&node.driver_socket()).await?;
    ensure_held(&driver.unprepare(&held).await?)?;
    wait_for_phase(&successors, "second", "Pending").await?;
    cluster.node(NODE)?.set_runtime_faults(&json!({}))?;
    wait_for_phase(&successors, "second", "Running").await?;
    ensure_never_refused(&cluster.client(), "driver-second", Reason::DeviceHeld).await?;
    ranks.finish()?;
    wait_for_phase(&successors, "second", "Succeeded").await?;
    wait_until_nothing_is_prepared(cluster).await
}

/// A Prepare that waits for its device ends with the claim's Unprepare, and leaves nothing.
async fn unprepare_during_prepare(cluster: &mut Cluster, claim: &ResourceClaim) -> Result<()> {
    let socket = cluster.node(NODE)?.driver_socket();
    let mut preparing = DriverSocket::connect(&socket).await?;
    let mut unpreparing = preparing.clone();
    let (prepared, unprepared) = tokio::join!(preparing.prepare(claim), async {
        wait_until_prepare_waits(cluster, claim, None).await?;
        unpreparing.unprepare(claim).await
    });
    let (prepared, unprepared) = (prepared?, unprepared?);
    ensure!(
        prepared.error.contains("unprepared") && unprepared.is_empty(),
        "prepare: {prepared:?}, unprepare: {unprepared:?}"
    );
    let record = record_of(cluster, claim)?;
    ensure!(!record.exists(), "its mark is left");
    Ok(())
}

/// Waits until a Prepare of the claim waits, by the mark that it leaves on disk: another than this one. Its mark.
async fn wait_until_prepare_waits(
    cluster: &mut Cluster,
    claim: &ResourceClaim,
    before: Option<&str>,
) -> Result<String> {
    let record = record_of(cluster, claim)?;
    let what = format!("a Prepare of claim {} waits", claim.name_any());
    eventually(&what, LIMIT, async || {
        let text = fs::read_to_string(&record)?;
        let record: Value = serde_json::from_str(&text)?;
        let mark = record.get("call").and_then(Value::as_str);
        let waits = record.get("state").and_then(Value::as_str) == Some("Waiting");
        Ok(match mark.filter(|mark| waits && before != Some(*mark)) {
            Some(mark) => Progress::Done(mark.to_owned()),
            None => Progress::NotYet(text),
        })
    })
    .await
}

/// A Prepare that waits inside the call is not refused and repeated.
async fn ensure_never_refused(client: &Client, namespace: &str, reason: Reason) -> Result<()> {
    let events: Vec<Event> = kubernetes::list(client, Some(namespace)).await?;
    let messages = events.into_iter().filter_map(|event| event.message);
    let refusals: Vec<String> = messages
        .filter(|message| message.contains(reason.as_str()))
        .collect();
    ensure!(refusals.is_empty(), "the kubelet was refused: {refusals:?}");
    Ok(())
}

/// A pod and the claim that was allocated for it.
struct Allocated {
    pods: Api<Pod>,
    claims: Api<ResourceClaim>,
    claim: ResourceClaim,
}

/// Makes a namespace and in it a pod of the same name with a claim for this device, whoever has it: kube-scheduler is
/// not asked.
async fn start_on_device(
    cluster: &Cluster,
    name: &str,
    device: &str,
) -> Result<(Allocated, RankProgram)> {
    let client = cluster.client();
    let namespace = format!("driver-{name}");
    let (ranks, spec) = program(cluster, &namespace).await?;
    let mut spec = builders::with_claim(spec, "allocated");
    spec.scheduler_name = Some("nobody".to_owned());
    let pods: Api<Pod> = Api::namespaced(client.clone(), &namespace);
    let pod = kubernetes::create(&pods, &builders::pod(name, &[], &[], &spec)?).await?;
    let claims: Api<ResourceClaim> = Api::namespaced(client, &namespace);
    let claim = allocate(&claims, "allocated", device, Some(&pod)).await?;
    let binding = json!({
        "apiVersion": "v1", "kind": "Binding",
        "metadata": {"name": name},
        "target": {"kind": "Node", "name": NODE},
    });
    let _: Value = pods
        .create_subresource("binding", name, &PostParams::default(), &binding)
        .await
        .context("the pod is bound")?;
    let allocated = Allocated {
        pods,
        claims,
        claim,
    };
    Ok((allocated, ranks))
}

/// Makes a claim and writes by hand what kube-scheduler would: that it has this device, for this pod.
async fn allocate(
    claims: &Api<ResourceClaim>,
    name: &str,
    device: &str,
    pod: Option<&Pod>,
) -> Result<ResourceClaim> {
    kubernetes::create(claims, &builders::claim(name, 1)?).await?;
    let reserved_for =
        pod.map(|pod| json!({"resource": "pods", "name": pod.name_any(), "uid": pod.uid()}));
    let status = json!({"status": {
        "reservedFor": reserved_for.as_slice(),
        "allocation": {"devices": {"results": [
            {"request": "gpus", "driver": keys::DRIVER, "pool": NODE, "device": device},
        ]}},
    }});
    claims
        .patch_status(name, &PatchParams::default(), &Patch::Merge(status))
        .await
        .with_context(|| format!("cannot allocate claim {name}"))
}
