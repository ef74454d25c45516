//! What is not refused by name gets no device: from the extender no node, from the driver no preparation.

use std::{collections::BTreeSet, time::Duration};

use anyhow::{Context, Result, ensure};
use futures::future::try_join_all;
use k8s_openapi::api::{
    admissionregistration::v1::ValidatingAdmissionPolicyBinding, core::v1::Pod,
    resource::v1::ResourceClaim,
};
use kube::{
    Api, Client, ResourceExt,
    api::{Patch, PatchParams},
};
use muster_api::{Reason, keys};
use muster_tests::{
    builders::{self, RankProgram, RankSource},
    cluster::Cluster,
    events, gangs,
    kubernetes::{self, LIMIT, Progress, always, eventually},
    scenarios,
    suite::Scenario,
    workloads::Workload,
};
use serde_json::{Value, json};

use crate::{
    NODES,
    identities::{self, User},
    policies::{bind, refused, ungate, waiting_pod},
    taken_away::{put_back, take_away},
    webhook::{Webhook, in_every_state},
};

pub(crate) fn scenarios() -> Vec<Scenario> {
    let refused = scenarios![an_ungated_pod_without_an_admission_is_refused_by_the_extender];
    let mut all: Vec<Scenario> = refused.into_iter().map(Scenario::without_gangs).collect();
    let gone_round = scenarios![
        whoever_goes_round_an_admission_gets_no_device_with_the_webhook_up_down_and_deleted,
    ];
    // A refusal may take two calls of the kubelet: see `events`.
    let more = Duration::from_mins(2);
    all.extend(gone_round.into_iter().map(|one| one.with_more_time(more)));
    all
}

async fn an_ungated_pod_without_an_admission_is_refused_by_the_extender(
    cluster: &mut Cluster,
) -> Result<()> {
    let client = cluster.client();
    builders::team_of_sixteen(&client, "stripped").await?;
    let pod = waiting_pod(cluster, "stripped").await?;
    strip_gate(&client, &pod).await?;
    let reason = Reason::NotAdmitted.as_str();
    events::wait_for_message(&client, "stripped", &pod.name_any(), reason).await?;
    always("the pod is not bound", Duration::from_secs(3), async || {
        let node = get(&client, &pod)
            .await?
            .spec
            .and_then(|spec| spec.node_name);
        Ok(Progress::when(node.is_none(), || format!("{node:?}")))
    })
    .await
}

/// Removes the gate as an administrator, with policy (b) unbound meanwhile.
async fn strip_gate(client: &Client, pod: &Pod) -> Result<()> {
    let bindings: Api<ValidatingAdmissionPolicyBinding> = Api::all(client.clone());
    let saved = take_away(&bindings, "muster-pod-gate").await?;
    let pods: Api<Pod> = Api::namespaced(client.clone(), &pod.namespace().unwrap_or_default());
    // The API server takes a moment to see that the policy is unbound.
    let stripped = eventually("the gate can be removed", LIMIT, async || {
        pods.patch(&pod.name_any(), &PatchParams::default(), &ungate()?)
            .await?;
        Ok(Progress::Done(()))
    })
    .await;
    put_back(&bindings, saved).await?;
    stripped
}

/// What an admitted pod may be wronged by: each in each state of the webhook, on a pod of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wrong {
    /// Another claim of the same name, for two GPUs instead of one.
    Swapped,
    /// Two GPUs are allocated to the claim, which is charged for one.
    Excess,
    /// Bound to its own node by a user, past kube-scheduler.
    BoundByUser,
    /// Bound to another node than planned.
    BoundElsewhere,
}

impl Wrong {
    const ALL: [Self; 4] = [
        Self::Swapped,
        Self::Excess,
        Self::BoundByUser,
        Self::BoundElsewhere,
    ];

    fn pod(self, webhook: Webhook) -> String {
        let what = match self {
            Self::Swapped => "swapped",
            Self::Excess => "excess",
            Self::BoundByUser => "self",
            Self::BoundElsewhere => "elsewhere",
        };
        format!("{what}-{}", webhook.name())
    }

    /// Where the pod is planned, so that what is allocated in excess leaves the others their GPUs: on the first
    /// node 3 times 2 and nothing more, on the second 3 times 2 and one.
    fn node(self) -> &'static str {
        match self {
            Self::Excess | Self::BoundByUser => NODES[0],
            Self::Swapped | Self::BoundElsewhere => NODES[1],
        }
    }

    /// What the pod's Events say in the end.
    fn told(self) -> &'static str {
        match self {
            Self::Swapped => Reason::NoPermit.as_str(),
            Self::Excess => Reason::ChargeExceeded.as_str(),
            Self::BoundByUser => "is not allowed to use ResourceClaim",
            Self::BoundElsewhere => "NodeAffinity",
        }
    }
}

/// The driver waits 35 s inside the call before it refuses: so all that wrong an admitted pod are prepared while no
/// scheduler runs, in all states of the webhook, and meet it at the same time. kube-scheduler knows nothing of our
/// extender then, as a bypass would want it.
async fn whoever_goes_round_an_admission_gets_no_device_with_the_webhook_up_down_and_deleted(
    cluster: &mut Cluster,
) -> Result<()> {
    let client = cluster.client();
    builders::team_of_sixteen(&client, "past").await?;
    let users = [
        User::editor(cluster, "past").await?,
        User::insider(cluster, "past").await?,
    ];
    let debugged = running_pod(cluster).await?;
    cluster.control_plane.stop_scheduler().await;
    let bypass = waiting_pod(cluster, "past").await?;
    strip_gate(&client, &bypass).await?;
    for (webhook, wrong) in every_wrong() {
        submit_with_own_claim(cluster, &wrong.pod(webhook), wrong.node()).await?;
    }
    // All of them before the first is wronged: while a claim is swapped, the controller cannot tell which devices
    // are held on that node, and admits nothing there.
    for (webhook, wrong) in every_wrong() {
        let_go(&client, &wrong.pod(webhook)).await?;
    }
    let scheduler = identities::scheduler(cluster).await?;
    in_every_state(cluster, async |cluster, webhook| {
        for wrong in Wrong::ALL {
            let pod = let_go(&cluster.client(), &wrong.pod(webhook)).await?;
            let done = do_wrong(wrong, webhook, &pod, &users, &scheduler).await;
            done.with_context(|| format!("{wrong:?}"))?;
        }
        take_protection_off(&users, &debugged).await?;
        debug(cluster, &users, &debugged, webhook).await
    })
    .await?;

    observe_bounds(cluster, false);
    cluster.control_plane.start_scheduler(None).await?;
    let refused = all_are_refused(&client, &bypass).await;
    let given = pods_with_devices(cluster)?;
    builders::clear_workloads(&client).await?;
    cluster.control_plane.stop_scheduler().await;
    let configuration = cluster.installation()?.scheduler_configuration().await?;
    cluster
        .control_plane
        .start_scheduler(Some(configuration))
        .await?;
    observe_bounds(cluster, true);
    refused?;
    ensure!(given == BTreeSet::from([debugged]), "devices of {given:?}");
    Ok(())
}

fn every_wrong() -> impl Iterator<Item = (Webhook, Wrong)> {
    let states = Webhook::ALL.into_iter();
    states.flat_map(|webhook| Wrong::ALL.map(|wrong| (webhook, wrong)))
}

/// One pod that has its GPU, by right.
async fn running_pod(cluster: &Cluster) -> Result<String> {
    let client = cluster.client();
    let workload = Workload {
        namespace: "past",
        name: "debugged",
        ranks: 1,
        gpus: 1,
    };
    let (_, spec) = workload.prepare(cluster).await?;
    let spec = builders::on_node(spec, NODES[1]);
    let pod = workload.create_labelled_pod(&client, &spec, 0).await?;
    gangs::wait_until_running(&client, "past", &workload.gang()).await?;
    Ok(pod.name_any())
}

/// A pod with a claim of its own for one GPU.
async fn submit_with_own_claim(cluster: &Cluster, name: &str, node: &str) -> Result<()> {
    let client = cluster.client();
    let claims = Api::namespaced(client.clone(), "past");
    kubernetes::create(&claims, &builders::claim(name, 1)?).await?;
    let workload = Workload {
        namespace: "past",
        name,
        ranks: 1,
        gpus: 1,
    };
    let (_, spec) = workload.prepare_with_claim(cluster, name).await?;
    let spec = builders::on_node(spec, node);
    workload.create_labelled_pods(&client, &spec).await
}

/// Waits until the pod was let go; no scheduler runs, so it is not bound.
async fn let_go(client: &Client, name: &str) -> Result<Pod> {
    let pods: Api<Pod> = Api::namespaced(client.clone(), "past");
    eventually(&format!("pod {name}-0 is let go"), LIMIT, async || {
        let pod = pods.get(&format!("{name}-0")).await?;
        let spec = pod.spec.as_ref();
        let gates = spec.and_then(|spec| spec.scheduling_gates.as_ref());
        Ok(if gates.is_none_or(Vec::is_empty) {
            Progress::Done(pod)
        } else {
            Progress::NotYet("it is gated".to_owned())
        })
    })
    .await
}

async fn do_wrong(
    wrong: Wrong,
    webhook: Webhook,
    pod: &Pod,
    [editor, insider]: &[User; 2],
    scheduler: &Client,
) -> Result<()> {
    let claim = wrong.pod(webhook);
    match wrong {
        Wrong::Swapped => {
            let claims: Api<ResourceClaim> = Api::namespaced(editor.client.clone(), "past");
            kubernetes::delete(&claims, &claim).await?;
            kubernetes::create(&claims, &builders::claim(&claim, 2)?).await?;
            Ok(())
        }
        // No user may write it: that is tried in `policies`. A kube-scheduler that does it is what is left.
        Wrong::Excess => allocate_two(scheduler, pod, &claim, webhook).await,
        // The first node is the one's own, and not the other's.
        Wrong::BoundByUser | Wrong::BoundElsewhere => bind_to(insider, pod, NODES[0]).await,
    }
}

/// Allocates two GPUs to a claim that is charged for one; in each state of the webhook others.
async fn allocate_two(scheduler: &Client, pod: &Pod, claim: &str, webhook: Webhook) -> Result<()> {
    let claims: Api<ResourceClaim> = Api::namespaced(scheduler.clone(), "past");
    let first = 2 * Webhook::ALL
        .iter()
        .position(|state| *state == webhook)
        .unwrap_or(0);
    let node = Wrong::Excess.node();
    let device = |number: usize| json!({"request": "gpus", "driver": keys::DRIVER, "pool": node, "device": format!("gpu-{number}")});
    let allocation = json!({"status": {
        "allocation": {
            "devices": {"results": [device(first), device(first + 1)]},
            "nodeSelector": {"nodeSelectorTerms": [{"matchFields": [
                {"key": "metadata.name", "operator": "In", "values": [node]},
            ]}]},
        },
        "reservedFor": [{"resource": "pods", "name": pod.name_any(), "uid": pod.metadata.uid}],
    }});
    let patch = Patch::Merge(&allocation);
    claims
        .patch_status(claim, &PatchParams::default(), &patch)
        .await?;
    Ok(())
}

/// As the one who may: what is tried in `policies` on a gated pod passes on one that was let go.
async fn bind_to(insider: &User, pod: &Pod, node: &str) -> Result<()> {
    let name = pod.name_any();
    let uri = format!("/api/v1/namespaces/past/pods/{name}/binding");
    bind(&insider.client, &uri, &name, &json!({}), node).await?;
    Ok(())
}

/// A claim whose devices are in use cannot be deleted from under its pod.
async fn take_protection_off(users: &[User; 2], pod: &str) -> Result<()> {
    for user in users {
        let pods: Api<Pod> = Api::namespaced(user.client.clone(), "past");
        let status = pods.get(pod).await?.status.unwrap_or_default();
        let mut made = status.resource_claim_statuses.into_iter().flatten();
        let claim = made.next().and_then(|made| made.resource_claim_name);
        let claim = claim.context("the claim of a running pod")?;
        let claims: Api<ResourceClaim> = Api::namespaced(user.client.clone(), "past");
        let bare = Patch::Merge(json!({"metadata": {"finalizers": null}}));
        let taken = claims.patch(&claim, &PatchParams::default(), &bare).await;
        refused("taking its protection off a claim", taken, "muster-claim")?;
    }
    Ok(())
}

/// A container that is put into a running pod by pods/ephemeralcontainers gets none of its GPUs.
async fn debug(cluster: &Cluster, users: &[User; 2], pod: &str, webhook: Webhook) -> Result<()> {
    let name = format!("debug-{}", webhook.name());
    let peers = builders::peers_directory(cluster.directory(), &name)?;
    let mut program = RankProgram::new(cluster.programs().path("rank"), peers, 1);
    program.rank = RankSource::Fixed(0);
    let mut container = program.container(&[])?;
    container.name = name;
    container.resources = None;
    let patch = Patch::Strategic(json!({"spec": {"ephemeralContainers": [container]}}));
    for user in users.iter().filter(|user| user.is_insider) {
        let pods: Api<Pod> = Api::namespaced(user.client.clone(), "past");
        pods.patch_ephemeral_containers(pod, &PatchParams::default(), &patch)
            .await?;
    }
    let gpus = eventually("the ephemeral container has ended", LIMIT, async || {
        Ok(Progress::Done(program.gpus()?))
    })
    .await?;
    let given: Vec<String> = gpus.into_values().flatten().collect();
    ensure!(given.is_empty(), "an ephemeral container got {given:?}");
    Ok(())
}

async fn all_are_refused(client: &Client, bypass: &Pod) -> Result<()> {
    let wronged = every_wrong().map(|(webhook, wrong)| {
        let pod = format!("{}-0", wrong.pod(webhook));
        (pod, wrong.told())
    });
    let bypass = (bypass.name_any(), Reason::NoPermit.as_str());
    let all = wronged.chain([bypass]).map(|(pod, told)| async move {
        events::wait_for_message(client, "past", &pod, told).await?;
        let pods: Api<Pod> = Api::namespaced(client.clone(), "past");
        let phase = pods.get(&pod).await?.status.and_then(|status| status.phase);
        let has_not_run = matches!(phase.as_deref(), Some("Pending" | "Failed"));
        ensure!(has_not_run, "{pod} is {phase:?}");
        Ok(())
    });
    try_join_all(all).await.map(drop)
}

/// Pods of the scenario that a process runtime has ever given a device.
fn pods_with_devices(cluster: &Cluster) -> Result<BTreeSet<String>> {
    let mut pods = BTreeSet::new();
    for node in &cluster.nodes {
        for line in std::fs::read_to_string(node.record())?.lines() {
            let line: Value = serde_json::from_str(line)?;
            let devices = line["cdiDevices"].as_array().map_or(0, Vec::len);
            if line["podNamespace"] == "past" && devices > 0 {
                pods.insert(line["podName"].as_str().unwrap_or_default().to_owned());
            }
        }
    }
    Ok(pods)
}

/// A bypass that is let through on purpose stands on its node without a charge; the bounds do not count then.
fn observe_bounds(cluster: &Cluster, count: bool) {
    if let Some(observer) = cluster.observer() {
        observer.suspend_bounds(!count);
    }
}

async fn get(client: &Client, pod: &Pod) -> Result<Pod> {
    let pods: Api<Pod> = Api::namespaced(client.clone(), &pod.namespace().unwrap_or_default());
    Ok(pods.get(&pod.name_any()).await?)
}
