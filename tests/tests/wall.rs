//! What users who try to go round Muster get: the named policy's refusal, or no device. With the webhook up, down
//! and deleted; the same call by the identity that may make it passes.

use std::{collections::BTreeMap, process::ExitCode, time::Duration};

use anyhow::{Context, Result, bail, ensure};
use futures::future::try_join_all;
use k8s_openapi::api::{
    admissionregistration::v1::{
        MutatingWebhookConfiguration, ValidatingAdmissionPolicyBinding,
        ValidatingWebhookConfiguration,
    },
    core::v1::{Binding, Node, Pod},
    rbac::v1::PolicyRule,
    resource::v1::ResourceClaim,
};
use kube::{
    Api, Client, Resource, ResourceExt,
    api::{Patch, PatchParams, PostParams},
};
use muster_api::{Gang, GangPhase, Reason, conditions, keys};
use muster_tests::{
    builders::{self, RankProgram, RankSource, gpu_quota},
    cluster::{Cluster, ClusterOptions},
    gangs,
    gpu_board::Board,
    install::{Installation, MusterOptions, NAMESPACE, Part},
    kubeconfig,
    kubernetes::{self, Progress, always, eventually},
    node::NodeOptions,
    scenarios, suite, users,
    workloads::Workload,
};
use serde_json::{Value, json};

const LIMIT: Duration = Duration::from_mins(1);

fn main() -> ExitCode {
    let nodes = ["node-0", "node-1"].map(|name| NodeOptions {
        name: name.to_owned(),
        labels: BTreeMap::new(),
        board: Some(Board::H100Nvswitch8),
    });
    let options = ClusterOptions {
        nodes: nodes.to_vec(),
        muster: Some(MusterOptions {
            failpoints: true,
            ..MusterOptions::default()
        }),
        ..ClusterOptions::default()
    };
    // In these no gang is ever admitted, which is their point.
    let refused = scenarios![
        the_wall_holds_with_the_webhook_up_down_and_deleted,
        an_ungated_pod_without_an_admission_is_refused_by_the_extender,
    ];
    let mut scenarios: Vec<suite::Scenario> = refused
        .into_iter()
        .map(suite::Scenario::without_gangs)
        .collect();
    scenarios.extend(scenarios![
        a_bypass_a_swapped_claim_and_an_excess_allocation_get_no_device_from_the_driver,
        a_cordon_between_two_binds_stops_the_rest_of_the_gang,
        the_extender_is_never_asked_about_pods_without_the_marker,
    ]);
    suite::run("wall", options, scenarios)
}

async fn prepare_team(client: &Client, name: &str) -> Result<()> {
    builders::flavor(client, "h100", None).await?;
    builders::team(client, name, None, vec![gpu_quota("h100", 16, None)]).await?;
    builders::namespace(client, name, Some(name)).await
}

// --- the wall

/// A gang of two of which one pod exists: it waits, gated, as long as the scenario needs it.
async fn waiting_pod(cluster: &Cluster, namespace: &str) -> Result<Pod> {
    let client = cluster.client();
    let workload = Workload {
        namespace,
        name: "waits",
        ranks: 2,
        gpus: 1,
    };
    let (_, spec) = workload.prepare(cluster).await?;
    let pod = workload.create_labelled_pod(&client, &spec, 0).await?;
    let gang = gangs::of_label("waits");
    gangs::wait_for_reason(&client, namespace, &gang, Reason::MissingPods, LIMIT).await?;
    Ok(pod)
}

async fn the_wall_holds_with_the_webhook_up_down_and_deleted(cluster: &mut Cluster) -> Result<()> {
    let client = cluster.client();
    prepare_team(&client, "walled").await?;
    let pod = waiting_pod(cluster, "walled").await?;
    let insider = insider(cluster, "walled").await?;
    let controller = controller(cluster).await?;

    try_everything(&insider, &controller, &pod, true)
        .await
        .context("webhook up")?;
    muster(cluster)?.stop_part(Part::Webhook).await;
    try_everything(&insider, &controller, &pod, false)
        .await
        .context("webhook down")?;

    let mutating: Api<MutatingWebhookConfiguration> = Api::all(client.clone());
    let validating: Api<ValidatingWebhookConfiguration> = Api::all(client.clone());
    let saved = (
        take_away(&mutating, "muster").await?,
        take_away(&validating, "muster").await?,
    );
    let tried = try_everything(&insider, &controller, &pod, false)
        .await
        .context("webhook deleted");
    put_back(&mutating, saved.0).await?;
    put_back(&validating, saved.1).await?;
    muster(cluster)?.start(Part::Webhook).await?;
    tried
}

/// Everything that an insider may try on a gated pod, as dry runs so that the next round finds it as it was.
async fn try_everything(
    insider: &Client,
    controller: &Client,
    pod: &Pod,
    gate_is_added: bool,
) -> Result<()> {
    let namespace = pod.namespace().context("a namespace")?;
    let pods: Api<Pod> = Api::namespaced(insider.clone(), &namespace);
    let name = pod.name_any();
    let dry = PatchParams {
        dry_run: true,
        ..PatchParams::default()
    };
    let ungate = Patch::Json::<()>(serde_json::from_value(
        json!([{"op": "remove", "path": "/spec/schedulingGates"}]),
    )?);
    let decide = |key: &str| Patch::Merge(json!({"metadata": {"annotations": {key: "0"}}}));

    let refusal = refused("removing the gate", pods.patch(&name, &dry, &ungate).await)?;
    ensure!(refusal.contains("muster-pod-gate"), "{refusal}");
    for key in keys::CONTROLLER_ANNOTATIONS {
        let refusal = refused(key, pods.patch(&name, &dry, &decide(key)).await)?;
        ensure!(refusal.contains("muster-pod-decided"), "{refusal}");
        let refusal = refused(key, pods.patch_status(&name, &dry, &decide(key)).await)?;
        ensure!(
            refusal.contains("muster-pod-decided"),
            "by pods/status: {refusal}"
        );
    }
    let regroup = Patch::Merge(json!({"metadata": {"labels": {keys::GANG: "another"}}}));
    let refusal = refused("changing the gang", pods.patch(&name, &dry, &regroup).await)?;
    ensure!(refusal.contains("muster-pod-declared"), "{refusal}");
    let resize = Patch::Merge(json!({"metadata": {"annotations": {keys::GANG_SIZE: "1"}}}));
    let refusal = refused("changing the size", pods.patch(&name, &dry, &resize).await)?;
    ensure!(refusal.contains("muster-pod-declared"), "{refusal}");
    let refusal = refused(
        "changing the size by pods/status",
        pods.patch_status(&name, &dry, &resize).await,
    )?;
    ensure!(refusal.contains("muster-pod-declared"), "{refusal}");

    refuse_bindings(insider, &namespace, &name).await?;
    refuse_creations(insider, pod, gate_is_added).await?;
    refuse_objects(insider, &namespace).await?;

    // The same by the identity that may.
    let pods: Api<Pod> = Api::namespaced(controller.clone(), &namespace);
    pods.patch(&name, &dry, &ungate)
        .await
        .context("the controller removes the gate")?;
    pods.patch(&name, &dry, &decide(keys::RANK))
        .await
        .context("the controller writes the rank")?;
    Ok(())
}

/// A gated pod cannot be bound, and a Binding cannot carry annotations of ours into a pod.
async fn refuse_bindings(insider: &Client, namespace: &str, name: &str) -> Result<()> {
    for (annotations, by) in [
        (json!({}), "schedulingGates"),
        (
            json!({keys::RANK: "0", keys::PLACEMENT: keys::PLACEMENT_ANY}),
            "muster-binding",
        ),
    ] {
        let binding: Binding = serde_json::from_value(json!({
            "metadata": {"name": name, "namespace": namespace, "annotations": annotations},
            "target": {"kind": "Node", "name": "node-0"},
        }))?;
        let uri = format!("/api/v1/namespaces/{namespace}/pods/{name}/binding?dryRun=All");
        let request = http::Request::post(uri)
            .header("content-type", "application/json")
            .body(serde_json::to_vec(&binding)?)?;
        let answer = insider.request::<Value>(request).await;
        let refusal = refused("binding a gated pod", answer)?;
        ensure!(refusal.contains(by), "expected {by:?}: {refusal}");
    }
    Ok(())
}

/// A managed pod is created with the gate and without a node, or not at all.
async fn refuse_creations(insider: &Client, like: &Pod, gate_is_added: bool) -> Result<()> {
    let namespace = like.namespace().context("a namespace")?;
    let pods: Api<Pod> = Api::namespaced(insider.clone(), &namespace);
    let dry = PostParams {
        dry_run: true,
        ..PostParams::default()
    };
    let mut pod = Pod {
        metadata: kube::core::ObjectMeta {
            name: Some("sneaks".to_owned()),
            labels: like.metadata.labels.clone(),
            annotations: like.metadata.annotations.clone(),
            ..kube::core::ObjectMeta::default()
        },
        spec: like.spec.clone(),
        status: None,
    };
    let spec = pod.spec.as_mut().context("a spec")?;
    spec.scheduling_gates = None;
    let created = pods.create(&dry, &pod).await;
    if gate_is_added {
        let gates = created?
            .spec
            .and_then(|spec| spec.scheduling_gates)
            .unwrap_or_default();
        ensure!(
            gates.iter().any(|gate| gate.name == keys::ADMISSION_GATE),
            "{gates:?}"
        );
    } else {
        refused("creating a managed pod without the gate", created)?;
    }
    let spec = pod.spec.as_mut().context("a spec")?;
    spec.node_name = Some("node-0".to_owned());
    refused(
        "creating a managed pod on a node",
        pods.create(&dry, &pod).await,
    )?;
    Ok(())
}

/// Gang and Ledger are the controller's, but for what section 4 of the design allows.
async fn refuse_objects(insider: &Client, namespace: &str) -> Result<()> {
    let gang = gangs::find(insider, namespace, &gangs::of_label("waits"))
        .await?
        .context("the Gang")?;
    let gangs: Api<Gang> = Api::namespaced(insider.clone(), namespace);
    let dry = PatchParams {
        dry_run: true,
        ..PatchParams::default()
    };
    let shrink = Patch::Merge(json!({"spec": {"size": 1}}));
    refused(
        "shrinking a Gang",
        gangs.patch(&gang.name_any(), &dry, &shrink).await,
    )?;
    let suspend = Patch::Merge(json!({"spec": {"suspend": true}}));
    gangs
        .patch(&gang.name_any(), &dry, &suspend)
        .await
        .context("a user suspends a Gang")?;
    Ok(())
}

/// What the API server said when it refused.
fn refused<T>(what: &str, answer: kube::Result<T>) -> Result<String> {
    match answer {
        Ok(_) => bail!("{what} was allowed"),
        Err(kube::Error::Api(status)) => Ok(status.message.clone()),
        Err(error) => Err(error).with_context(|| what.to_owned()),
    }
}

// --- a gate that is gone all the same

async fn an_ungated_pod_without_an_admission_is_refused_by_the_extender(
    cluster: &mut Cluster,
) -> Result<()> {
    let client = cluster.client();
    prepare_team(&client, "stripped").await?;
    let pod = waiting_pod(cluster, "stripped").await?;
    strip_gate(&client, &pod).await?;
    wait_for_event(
        &client,
        "stripped",
        &pod.name_any(),
        Reason::NotAdmitted.as_str(),
    )
    .await?;
    ensure_never_bound(&client, &pod).await
}

/// With a kube-scheduler that knows nothing of our extender, as a bypass would use, all three at once: the
/// driver waits 35 s inside the call before it refuses.
async fn a_bypass_a_swapped_claim_and_an_excess_allocation_get_no_device_from_the_driver(
    cluster: &mut Cluster,
) -> Result<()> {
    let client = cluster.client();
    prepare_team(&client, "past").await?;
    cluster.control_plane.stop_scheduler().await;
    let bypass = waiting_pod(cluster, "past").await?;
    strip_gate(&client, &bypass).await?;
    let swapped = admitted_with_own_claim(cluster, "past", "swapped").await?;
    swap_claim(&client, "past", "swapped").await?;
    let excess = admitted_with_own_claim(cluster, "past", "excess").await?;
    allocate_two(&client, &excess, "excess").await?;

    observe_bounds(cluster, false);
    cluster.control_plane.start_scheduler(None).await?;
    let refusals = [
        (&bypass, Reason::NoPermit),
        (&swapped, Reason::NoPermit),
        (&excess, Reason::ChargeExceeded),
    ];
    let refused =
        try_join_all(refusals.map(|(pod, reason)| refused_by_driver(&client, pod, reason))).await;
    builders::clear_workloads(&client).await?;
    cluster.control_plane.stop_scheduler().await;
    let configuration = muster(cluster)?.scheduler_configuration().await?;
    cluster
        .control_plane
        .start_scheduler(Some(configuration))
        .await?;
    observe_bounds(cluster, true);
    refused.map(drop)
}

/// A pod with a claim of its own that was let go while no scheduler runs: admitted for one GPU, not bound.
async fn admitted_with_own_claim(cluster: &Cluster, namespace: &str, name: &str) -> Result<Pod> {
    let client = cluster.client();
    let claims = Api::namespaced(client.clone(), namespace);
    kubernetes::create(&claims, &builders::claim(name, 1)?).await?;
    let workload = Workload {
        namespace,
        name,
        ranks: 1,
        gpus: 0,
    };
    let (ranks, _) = workload.prepare(cluster).await?;
    let spec = builders::pod_spec(&ranks.container(&["gpus"])?)?;
    let spec = builders::with_claim(spec, name);
    let pod = workload.create_labelled_pod(&client, &spec, 0).await?;
    eventually("the pod is let go", LIMIT, async || {
        let pod = get(&client, &pod).await?;
        let gates = pod
            .spec
            .as_ref()
            .and_then(|spec| spec.scheduling_gates.as_ref());
        Ok(if gates.is_none_or(Vec::is_empty) {
            Progress::Done(pod)
        } else {
            Progress::NotYet("it is gated".to_owned())
        })
    })
    .await
}

/// Another claim of the same name: its UID is not in any permit.
async fn swap_claim(client: &Client, namespace: &str, name: &str) -> Result<()> {
    let claims: Api<ResourceClaim> = Api::namespaced(client.clone(), namespace);
    kubernetes::delete(&claims, name).await?;
    kubernetes::create(&claims, &builders::claim(name, 1)?).await?;
    Ok(())
}

/// Allocates two GPUs to a claim that is charged for one, as whoever may write its status could.
async fn allocate_two(client: &Client, pod: &Pod, claim: &str) -> Result<()> {
    let claims: Api<ResourceClaim> =
        Api::namespaced(client.clone(), &pod.namespace().unwrap_or_default());
    let node = planned_node(pod).context("the pod is pinned")?;
    let device = |device: &str| json!({"request": "gpus", "driver": keys::DRIVER, "pool": node, "device": device});
    let allocation = json!({"status": {
        "allocation": {
            "devices": {"results": [device("gpu-6"), device("gpu-7")]},
            "nodeSelector": {"nodeSelectorTerms": [{"matchFields": [
                {"key": "metadata.name", "operator": "In", "values": [node]},
            ]}]},
        },
        "reservedFor": [{"resource": "pods", "name": pod.name_any(), "uid": pod.metadata.uid}],
    }});
    let parameters = PatchParams::default();
    claims
        .patch_status(claim, &parameters, &Patch::Merge(&allocation))
        .await?;
    Ok(())
}

fn planned_node(pod: &Pod) -> Option<String> {
    let affinity = pod.spec.as_ref()?.affinity.as_ref()?;
    let required = affinity
        .node_affinity
        .as_ref()?
        .required_during_scheduling_ignored_during_execution
        .as_ref()?;
    let term = required.node_selector_terms.first()?;
    let field = term.match_fields.as_ref()?.first()?;
    field.values.as_ref()?.first().cloned()
}

/// Waits until the driver has refused the pod's claim for this reason, and the pod has not started.
async fn refused_by_driver(client: &Client, pod: &Pod, reason: Reason) -> Result<()> {
    let namespace = pod.namespace().context("a namespace")?;
    wait_for_event(client, &namespace, &pod.name_any(), reason.as_str()).await?;
    let phase = get(client, pod)
        .await?
        .status
        .and_then(|status| status.phase);
    ensure!(phase.as_deref() == Some("Pending"), "it is {phase:?}");
    Ok(())
}

/// A bypass that is let through on purpose stands on its node without a charge; the bounds do not count then.
fn observe_bounds(cluster: &Cluster, count: bool) {
    if let Some(observer) = cluster.observer() {
        observer.suspend_bounds(!count);
    }
}

/// Removes the gate as an administrator, with policy (b) unbound meanwhile.
async fn strip_gate(client: &Client, pod: &Pod) -> Result<()> {
    let bindings: Api<ValidatingAdmissionPolicyBinding> = Api::all(client.clone());
    let saved = take_away(&bindings, "muster-pod-gate").await?;
    let pods: Api<Pod> = Api::namespaced(client.clone(), &pod.namespace().unwrap_or_default());
    let ungate = Patch::Json::<()>(serde_json::from_value(
        json!([{"op": "remove", "path": "/spec/schedulingGates"}]),
    )?);
    // The API server takes a moment to see that the policy is unbound.
    let stripped = eventually("the gate can be removed", LIMIT, async || {
        pods.patch(&pod.name_any(), &PatchParams::default(), &ungate)
            .await?;
        Ok(Progress::Done(()))
    })
    .await;
    put_back(&bindings, saved).await?;
    stripped
}

async fn wait_for_event(client: &Client, namespace: &str, pod: &str, text: &str) -> Result<()> {
    eventually(
        &format!("an event on {pod} says {text}"),
        LIMIT,
        async || {
            let events: Vec<k8s_openapi::api::core::v1::Event> =
                kubernetes::list(client, Some(namespace)).await?;
            let messages: Vec<String> = events
                .into_iter()
                .filter(|event| event.involved_object.name.as_deref() == Some(pod))
                .filter_map(|event| event.message)
                .collect();
            let told = messages.iter().any(|message| message.contains(text));
            Ok(Progress::when(told, || format!("{messages:?}")))
        },
    )
    .await
}

async fn ensure_never_bound(client: &Client, pod: &Pod) -> Result<()> {
    always("the pod is not bound", Duration::from_secs(3), async || {
        let node = get(client, pod).await?.spec.and_then(|spec| spec.node_name);
        Ok(Progress::when(node.is_none(), || format!("{node:?}")))
    })
    .await
}

async fn get(client: &Client, pod: &Pod) -> Result<Pod> {
    let pods: Api<Pod> = Api::namespaced(client.clone(), &pod.namespace().unwrap_or_default());
    Ok(pods.get(&pod.name_any()).await?)
}

// --- the extender

async fn a_cordon_between_two_binds_stops_the_rest_of_the_gang(
    cluster: &mut Cluster,
) -> Result<()> {
    let client = cluster.client();
    prepare_team(&client, "cordon").await?;
    let muster = muster(cluster)?;
    muster.stop_part(Part::Controller).await;
    // It dies once it has let one pod go: the other is still gated.
    muster.start_with(
        Part::Controller,
        &[("MUSTER_FAILPOINT", "before-second-ungate")],
    )?;
    muster.wait_for(Part::Controller).await?;
    let workload = Workload {
        namespace: "cordon",
        name: "train",
        ranks: 2,
        gpus: 8,
    };
    let ranks = workload.submit_job(cluster, &[]).await?;
    let muster = self::muster(cluster)?;
    eventually("the controller dies at its failpoint", LIMIT, async || {
        Ok(Progress::when(muster.has_ended(Part::Controller)?, || {
            "it runs".to_owned()
        }))
    })
    .await?;
    let bound = eventually("one pod is bound", LIMIT, async || {
        let pods: Vec<Pod> = kubernetes::list(&client, Some("cordon")).await?;
        let bound = pods.into_iter().find_map(|pod| pod.spec?.node_name);
        Ok(bound.map_or_else(|| Progress::NotYet("none is".to_owned()), Progress::Done))
    })
    .await?;
    let other = if bound == "node-0" {
        "node-1"
    } else {
        "node-0"
    };
    set_cordon(&client, other, true).await?;
    let result = async {
        let muster = self::muster(cluster)?;
        muster.kill(Part::Controller);
        muster.start(Part::Controller).await?;
        degraded(&client, "cordon", &gangs::of_job("train")).await?;
        always(
            "no further rank is bound",
            Duration::from_secs(3),
            async || {
                let pods: Vec<Pod> = kubernetes::list(&client, Some("cordon")).await?;
                let nodes: Vec<String> = pods
                    .into_iter()
                    .filter_map(|pod| pod.spec?.node_name)
                    .collect();
                Ok(Progress::when(nodes == [bound.clone()], || {
                    format!("{nodes:?}")
                }))
            },
        )
        .await
    }
    .await;
    set_cordon(&client, other, false).await?;
    result?;
    // With its place back the gang starts after all.
    gangs::wait_for_phase(
        &client,
        "cordon",
        &gangs::of_job("train"),
        &[GangPhase::Running],
        LIMIT,
    )
    .await?;
    ranks.finish()?;
    gangs::wait_for_job(&client, "cordon", "train", LIMIT).await
}

async fn set_cordon(client: &Client, node: &str, cordoned: bool) -> Result<()> {
    let nodes: Api<Node> = Api::all(client.clone());
    let patch = Patch::Merge(json!({"spec": {"unschedulable": cordoned}}));
    nodes.patch(node, &PatchParams::default(), &patch).await?;
    Ok(())
}

/// Waits until the Gang says that it cannot start as planned.
async fn degraded(client: &Client, namespace: &str, gang: &str) -> Result<()> {
    eventually(
        "the Gang is Degraded because a place is lost",
        LIMIT,
        async || {
            let gang = gangs::find(client, namespace, gang)
                .await?
                .context("there is no such Gang")?;
            let conditions = gang.status.unwrap_or_default().conditions;
            let is_told = conditions.iter().any(|condition| {
                condition.type_ == conditions::DEGRADED
                    && condition.status == "True"
                    && condition.reason == Reason::PlaceLost.as_str()
            });
            Ok(Progress::when(is_told, || format!("{conditions:?}")))
        },
    )
    .await
}

async fn the_extender_is_never_asked_about_pods_without_the_marker(
    cluster: &mut Cluster,
) -> Result<()> {
    let client = cluster.client();
    prepare_team(&client, "unmarked").await?;
    let before = requests(cluster).await?;
    let peers = builders::peers_directory(cluster.directory(), "unmarked")?;
    let mut ranks = RankProgram::new(cluster.programs().path("rank"), peers, 1);
    ranks.rank = RankSource::Fixed(0);
    let spec = builders::pod_spec(&ranks.container(&[])?)?;
    let pods: Api<Pod> = Api::namespaced(client.clone(), "unmarked");
    kubernetes::create(&pods, &builders::pod("web", &[], &[], &spec)?).await?;
    eventually("the pod succeeds", LIMIT, async || {
        let phase = pods
            .get("web")
            .await?
            .status
            .and_then(|status| status.phase);
        Ok(Progress::when(
            phase.as_deref() == Some("Succeeded"),
            || format!("it is {phase:?}"),
        ))
    })
    .await?;
    let after = requests(cluster).await?;
    ensure!(
        before == after,
        "the extender was asked {} times",
        after - before
    );

    // And it is asked about those that carry it.
    let workload = Workload {
        namespace: "unmarked",
        name: "marked",
        ranks: 2,
        gpus: 1,
    };
    let ranks = workload.submit_job(cluster, &[]).await?;
    gangs::wait_for_phase(
        &client,
        "unmarked",
        &gangs::of_job("marked"),
        &[GangPhase::Running],
        LIMIT,
    )
    .await?;
    ranks.finish()?;
    let asked = requests(cluster).await? - after;
    ensure!(asked >= 2, "it was asked {asked} times about two pods");
    gangs::wait_for_job(&client, "unmarked", "marked", LIMIT).await
}

/// Requests that the extender has answered since its start.
async fn requests(cluster: &mut Cluster) -> Result<u64> {
    let metrics = muster(cluster)?.metrics(Part::Extender).await?;
    let lines = metrics
        .lines()
        .filter(|line| line.starts_with("muster_extender_requests_total{"));
    lines
        .map(|line| {
            let number = line.rsplit(' ').next().unwrap_or_default();
            number.parse::<u64>().with_context(|| line.to_owned())
        })
        .sum()
}

// --- identities

/// Somebody with `edit` in the namespace and, beyond that, with the subresources that could go round the gate.
async fn insider(cluster: &Cluster, namespace: &str) -> Result<Client> {
    let rule = |resources: &[&str], verbs: &[&str]| PolicyRule {
        api_groups: Some(vec![String::new()]),
        resources: Some(resources.iter().map(ToString::to_string).collect()),
        verbs: verbs.iter().map(ToString::to_string).collect(),
        ..PolicyRule::default()
    };
    let beyond = vec![
        rule(&["pods/binding", "bindings"], &["create"]),
        rule(
            &["pods/status", "pods/ephemeralcontainers"],
            &["patch", "update"],
        ),
    ];
    users::user(cluster, namespace, "insider", "edit", beyond).await
}

/// The controller's own ServiceAccount.
async fn controller(cluster: &Cluster) -> Result<Client> {
    let file = cluster.directory().join("muster-controller.kubeconfig");
    kubeconfig::client(&file)
        .await
        .with_context(|| format!("the ServiceAccount in {NAMESPACE}"))
}

fn muster(cluster: &mut Cluster) -> Result<&mut Installation> {
    cluster.muster.as_mut().context("Muster is not installed")
}

/// Deletes an object and returns it as it was.
async fn take_away<K>(api: &Api<K>, name: &str) -> Result<K>
where
    K: Resource + Clone + std::fmt::Debug + serde::de::DeserializeOwned,
{
    let saved = api.get(name).await?;
    kubernetes::delete(api, name).await?;
    Ok(saved)
}

/// Creates an object again that was taken away.
async fn put_back<K>(api: &Api<K>, mut object: K) -> Result<()>
where
    K: Resource + Clone + std::fmt::Debug + serde::Serialize + serde::de::DeserializeOwned,
{
    let metadata = object.meta_mut();
    metadata.resource_version = None;
    metadata.uid = None;
    metadata.managed_fields = None;
    kubernetes::create(api, &object).await.map(drop)
}
