//! What is refused by name. Every call is a dry run, so that the next one finds the pod as it was.

use anyhow::{Context, Result, bail, ensure};
use k8s_openapi::api::{
    core::v1::{Pod, PodSchedulingGate},
    resource::v1::ResourceClaim,
};
use kube::{
    Api, Client, ResourceExt,
    api::{Patch, PatchParams, PostParams},
};
use muster_api::{Gang, Reason, keys};
use muster_tests::{
    builders, cluster::Cluster, gangs, scenarios, suite::Scenario, workloads::Workload,
};
use serde_json::{Value, json};

use crate::{
    NODES,
    identities::{self, User},
    webhook::{WEBHOOK_FAILS, Webhook, in_every_state},
};

/// No gang is ever admitted here, which is the point.
pub(crate) fn scenarios() -> Vec<Scenario> {
    let all = scenarios![the_policies_hold_with_the_webhook_up_down_and_deleted];
    all.into_iter().map(Scenario::without_gangs).collect()
}

async fn the_policies_hold_with_the_webhook_up_down_and_deleted(
    cluster: &mut Cluster,
) -> Result<()> {
    let client = cluster.client();
    builders::team_of_sixteen(&client, "guarded").await?;
    let pod = waiting_pod(cluster, "guarded").await?;
    let users = [
        User::editor(cluster, "guarded").await?,
        User::insider(cluster, "guarded").await?,
    ];
    let controller = identities::controller(cluster).await?;
    in_every_state(cluster, async |_, webhook| {
        for user in &users {
            let attempts = Attempts {
                user,
                webhook,
                pod: &pod,
                pods: Api::namespaced(user.client.clone(), "guarded"),
            };
            attempts.all_fail().await.context(user.name)?;
        }
        controller_may(&controller, &pod).await
    })
    .await
}

/// A gang of two of which one pod exists: it waits, gated, as long as the scenario needs it.
pub(crate) async fn waiting_pod(cluster: &Cluster, namespace: &str) -> Result<Pod> {
    let client = cluster.client();
    let workload = Workload {
        namespace,
        name: "waits",
        ranks: 2,
        gpus: 1,
    };
    let (_, spec) = workload.prepare(cluster).await?;
    let pod = workload.create_labelled_pod(&client, &spec, 0).await?;
    gangs::wait_for_reason(&client, namespace, &workload.gang(), Reason::MissingPods).await?;
    Ok(Api::namespaced(client, namespace)
        .get(&pod.name_any())
        .await?)
}

/// The same by the identity that may.
async fn controller_may(controller: &Client, pod: &Pod) -> Result<()> {
    let namespace = pod.namespace().context("a namespace")?;
    let pods: Api<Pod> = Api::namespaced(controller.clone(), &namespace);
    let name = pod.name_any();
    pods.patch(&name, &dry(), &ungate()?)
        .await
        .context("the controller removes the gate")?;
    for key in keys::CONTROLLER_ANNOTATIONS {
        pods.patch(&name, &dry(), &annotate(key))
            .await
            .with_context(|| format!("the controller writes {key}"))?;
    }
    controller_may_not(&pods, &name).await
}

/// What a stolen token of the controller would be good for.
async fn controller_may_not(pods: &Api<Pod>, name: &str) -> Result<()> {
    let image = json!([{"op": "replace", "path": "/spec/containers/0/image", "value": "example.invalid/evil:1"}]);
    let image: Patch<()> = Patch::Json(serde_json::from_value(image)?);
    let changed = pods.patch(name, &dry(), &image).await;
    refused("the image", changed, "muster-pod-by-controller")?;
    for (what, metadata) in [
        ("a label", json!({"labels": {"app": "another"}})),
        (
            "an annotation of others",
            json!({"annotations": {"example.com/x": "1"}}),
        ),
        ("a finalizer", json!({"finalizers": ["example.com/x"]})),
    ] {
        let patch = Patch::Merge(json!({"metadata": metadata}));
        let changed = pods.patch(name, &dry(), &patch).await;
        refused(what, changed, "muster-pod-by-controller")?;
    }
    Ok(())
}

/// What one user tries in one state of the webhook.
struct Attempts<'a> {
    user: &'a User,
    webhook: Webhook,
    pod: &'a Pod,
    pods: Api<Pod>,
}

impl Attempts<'_> {
    async fn all_fail(&self) -> Result<()> {
        let removed = self.pods.patch(&self.name(), &dry(), &ungate()?).await;
        refused("removing the gate", removed, "muster-pod-gate")?;
        self.write_annotations().await?;
        self.declare_anew().await?;
        self.bind().await?;
        self.create().await?;
        self.attach_ephemeral_container().await?;
        self.change_claim().await?;
        self.change_gang().await
    }

    fn name(&self) -> String {
        self.pod.name_any()
    }

    fn namespace(&self) -> Result<String> {
        self.pod.namespace().context("a namespace")
    }

    /// What the controller decided is written by nobody else, not by a subresource either.
    async fn write_annotations(&self) -> Result<()> {
        let name = self.name();
        for key in keys::CONTROLLER_ANNOTATIONS {
            let written = self.pods.patch(&name, &dry(), &annotate(key)).await;
            refused(key, written, "muster-pod-decided")?;
            let written = self.pods.patch_status(&name, &dry(), &annotate(key)).await;
            let by = self.user.or_rbac("muster-pod-decided");
            refused(&format!("{key} by pods/status"), written, &by)?;
        }
        Ok(())
    }

    /// What the pod declared stays as it is.
    async fn declare_anew(&self) -> Result<()> {
        let name = self.name();
        let regroup = Patch::Merge(json!({"metadata": {"labels": {keys::GANG: "another"}}}));
        let resize = Patch::Merge(json!({"metadata": {"annotations": {keys::GANG_SIZE: "1"}}}));
        for (what, patch) in [("the gang", &regroup), ("the size", &resize)] {
            let changed = self.pods.patch(&name, &dry(), patch).await;
            refused(what, changed, "muster-pod-declared")?;
            let changed = self.pods.patch_status(&name, &dry(), patch).await;
            let by = self.user.or_rbac("muster-pod-declared");
            refused(&format!("{what} by pods/status"), changed, &by)?;
        }
        Ok(())
    }

    /// A pod gets its node by a Binding alone, a gated pod gets none, and a Binding carries no annotations of ours.
    async fn bind(&self) -> Result<()> {
        let name = self.name();
        let to_node = Patch::Merge(json!({"spec": {"nodeName": NODES[0]}}));
        let set = self.pods.patch(&name, &dry(), &to_node).await;
        refused("setting nodeName", set, "pod updates may not change")?;
        let ours = json!({keys::RANK: "0", keys::PLACEMENT: keys::PLACEMENT_ANY});
        let namespace = self.namespace()?;
        for (annotations, by) in [(json!({}), "schedulingGates"), (ours, "muster-binding")] {
            for resource in [format!("pods/{name}/binding"), "bindings".to_owned()] {
                let uri = format!("/api/v1/namespaces/{namespace}/{resource}?dryRun=All");
                let bound = bind(&self.user.client, &uri, &name, &annotations, NODES[0]).await;
                refused(&resource, bound, &self.user.or_rbac(by))?;
            }
        }
        Ok(())
    }

    /// A managed pod is created with the gate, without a node, without our annotations, or not at all.
    async fn create(&self) -> Result<()> {
        let like = Pod {
            metadata: kube::core::ObjectMeta {
                name: Some("sneaks".to_owned()),
                labels: self.pod.metadata.labels.clone(),
                annotations: self.pod.metadata.annotations.clone(),
                ..kube::core::ObjectMeta::default()
            },
            spec: self.pod.spec.clone(),
            status: None,
        };
        let gate = |gates| {
            let mut pod = like.clone();
            pod.spec.get_or_insert_default().scheduling_gates = gates;
            pod
        };
        let own_gate = PodSchedulingGate {
            name: keys::ADMISSION_GATE.to_owned(),
        };
        let ungated = gate(None);
        let mut placed = ungated.clone();
        placed.spec.get_or_insert_default().node_name = Some(NODES[0].to_owned());
        let mut decided = gate(Some(vec![own_gate]));
        decided
            .annotations_mut()
            .insert(keys::RANK.to_owned(), "0".to_owned());
        if self.webhook == Webhook::Up {
            let spec = self.pods.create(&dry_post(), &ungated).await?.spec;
            let gates = spec.and_then(|spec| spec.scheduling_gates);
            let mut gates = gates.iter().flatten();
            ensure!(gates.any(|gate| gate.name == keys::ADMISSION_GATE));
        } else {
            self.creation_fails(&ungated, "muster-pod-created").await?;
        }
        self.creation_fails(&placed, "muster-pod-created").await?;
        self.creation_fails(&decided, "muster-pod-decided").await
    }

    /// By the policy; where the webhook is registered and down, the API server does not come that far. What is let
    /// through once is a hole, so nothing is tried twice: `in_every_state` has waited until the state is in force.
    async fn creation_fails(&self, pod: &Pod, policy: &str) -> Result<()> {
        let by = match self.webhook {
            Webhook::Down => WEBHOOK_FAILS,
            Webhook::Up | Webhook::Deleted => policy,
        };
        let created = self.pods.create(&dry_post(), pod).await;
        refused("creating a managed pod", created, by)
    }

    /// An ephemeral container cannot name the claim: Kubernetes gives it no resources. Nor does that subresource
    /// write annotations.
    async fn attach_ephemeral_container(&self) -> Result<()> {
        let attach = |container: Value| {
            let annotations = json!({keys::RANK: "0"});
            Patch::Strategic(json!({
                "metadata": {"annotations": annotations},
                "spec": {"ephemeralContainers": [container]},
            }))
        };
        let greedy = json!({
            "name": "greedy", "image": "example.invalid/shell:1",
            "resources": {"claims": [{"name": "gpus"}]},
        });
        let by = self
            .user
            .or_rbac("cannot be set for an Ephemeral Container");
        let attached = self.attach(&attach(greedy)).await;
        refused("naming the claim", attached, &by)?;
        let modest = json!({"name": "modest", "image": "example.invalid/shell:1"});
        let attached = self.attach(&attach(modest)).await;
        if !self.user.is_insider {
            return refused("pods/ephemeralcontainers", attached, &self.user.rbac());
        }
        let pod = attached.context("an insider debugs a pod")?;
        ensure!(!pod.annotations().contains_key(keys::RANK), "{pod:?}");
        Ok(())
    }

    async fn attach(&self, patch: &Patch<Value>) -> kube::Result<Pod> {
        let name = self.name();
        self.pods
            .patch_ephemeral_containers(&name, &dry(), patch)
            .await
    }

    /// The claim behind the pod keeps what it asks for, and a user allocates nothing.
    async fn change_claim(&self) -> Result<()> {
        let claims: Api<ResourceClaim> =
            Api::namespaced(self.user.client.clone(), &self.namespace()?);
        let pod = self.pods.get(&self.name()).await?;
        let status = pod.status.unwrap_or_default();
        let mut made = status.resource_claim_statuses.into_iter().flatten();
        let claim = made.next().and_then(|made| made.resource_claim_name);
        let claim = claim.context("the claim is made")?;
        let spec = serde_json::to_value(builders::claim("more", 2)?.spec)?;
        let more = Patch::Merge(json!({"spec": spec}));
        let changed = claims.patch(&claim, &dry(), &more).await;
        refused("asking for more", changed, "field is immutable")?;
        let mark = json!({"metadata": {"annotations": {keys::EXTENDED_RESOURCE_CLAIM: "true"}}});
        let marked = claims.patch(&claim, &dry(), &Patch::Merge(mark)).await;
        if self.user.is_insider {
            // He may bind pods, as kube-scheduler may.
            marked.context("an insider marks a claim")?;
        } else {
            let what = "saying that kube-scheduler made it";
            refused(what, marked, "muster-claim-by-scheduler")?;
        }
        let allocate = Patch::Merge(json!({"status": {"allocation": {"devices": {}}}}));
        let allocated = claims.patch_status(&claim, &dry(), &allocate).await;
        refused("allocating", allocated, &self.user.rbac())
    }

    /// Of a Gang, a user changes only whether it is suspended, and its tier.
    async fn change_gang(&self) -> Result<()> {
        let (gangs, gang) = gang_of_waiting_pod(&self.user.client, &self.namespace()?).await?;
        let shrunk = gangs.patch(&gang, &dry(), &shrink()).await;
        refused("shrinking a Gang", shrunk, "muster-objects")?;
        let regroup = Patch::Merge(json!({"metadata": {"labels": {keys::GANG: "another"}}}));
        let regrouped = gangs.patch(&gang, &dry(), &regroup).await;
        refused("relabelling a Gang", regrouped, "muster-objects")?;
        let suspend = Patch::Merge(json!({"spec": {"suspend": true}}));
        let suspended = gangs.patch(&gang, &dry(), &suspend).await;
        suspended.context("a user suspends a Gang").map(drop)
    }
}

/// Posts a Binding.
pub(crate) async fn bind(
    client: &Client,
    uri: &str,
    pod: &str,
    annotations: &Value,
    node: &str,
) -> kube::Result<Value> {
    let binding = json!({
        "apiVersion": "v1", "kind": "Binding",
        "metadata": {"name": pod, "annotations": annotations},
        "target": {"kind": "Node", "name": node},
    });
    let request = http::Request::post(uri)
        .header("content-type", "application/json")
        .body(binding.to_string().into_bytes())
        .map_err(kube::Error::HttpError)?;
    client.request::<Value>(request).await
}

async fn gang_of_waiting_pod(client: &Client, namespace: &str) -> Result<(Api<Gang>, String)> {
    let gang = gangs::find(client, namespace, &gangs::of_label("waits")).await?;
    let name = gang.context("the Gang")?.name_any();
    Ok((Api::namespaced(client.clone(), namespace), name))
}

/// Fails unless the API server refused, for this cause.
pub(crate) fn refused<T>(what: &str, answer: kube::Result<T>, by: &str) -> Result<()> {
    match answer {
        Ok(_) => bail!("{what} was allowed, expected a refusal by {by:?}"),
        Err(kube::Error::Api(status)) => {
            let message = &status.message;
            ensure!(message.contains(by), "{what}: expected {by:?}: {message}");
            Ok(())
        }
        Err(error) => Err(error).with_context(|| what.to_owned()),
    }
}

/// Takes every gate of a pod.
pub(crate) fn ungate() -> Result<Patch<()>> {
    let removal = json!([{"op": "remove", "path": "/spec/schedulingGates"}]);
    Ok(Patch::Json(serde_json::from_value(removal)?))
}

fn annotate(key: &str) -> Patch<Value> {
    Patch::Merge(json!({"metadata": {"annotations": {key: "0"}}}))
}

fn shrink() -> Patch<Value> {
    Patch::Merge(json!({"spec": {"size": 1}}))
}

fn dry() -> PatchParams {
    PatchParams {
        dry_run: true,
        ..PatchParams::default()
    }
}

fn dry_post() -> PostParams {
    PostParams {
        dry_run: true,
        ..PostParams::default()
    }
}
