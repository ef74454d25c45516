//! What a stolen token of the controller would be good for against Jobs and pods: what evicting a gang needs, and nothing
//! else. Every call is a dry run.

use anyhow::{Context, Result};
use k8s_openapi::api::{batch::v1::Job, core::v1::Pod};
use kube::{
    Api, Client, ResourceExt,
    api::{DeleteParams, Patch, PatchParams},
};
use muster_api::keys;
use muster_tests::{
    builders::{self, RankProgram},
    cluster::Cluster,
    kubernetes, scenarios,
    suite::Scenario,
};
use serde_json::{Value, json};

use crate::{
    identities,
    policies::{refused, waiting_pod},
};

/// Its namespace.
const NAMESPACE: &str = "evicting";

/// No gang is ever admitted here.
pub(crate) fn scenarios() -> Vec<Scenario> {
    let all = scenarios![the_controller_does_to_jobs_and_pods_what_evicting_needs_and_nothing_else];
    all.into_iter().map(Scenario::without_gangs).collect()
}

async fn the_controller_does_to_jobs_and_pods_what_evicting_needs_and_nothing_else(
    cluster: &mut Cluster,
) -> Result<()> {
    let client = cluster.client();
    builders::team_of_sixteen(&client, NAMESPACE).await?;
    let controller = identities::controller(cluster).await?;
    let spec = pod_spec(cluster)?;
    for (name, annotations, is_suspended) in [
        ("runs", &[][..], false),
        ("raised", &[(keys::BACKOFF_COVERS, "2/3/uid")], false),
        ("held-by-user", &[], true),
        (
            "held-by-muster",
            &[(keys::SUSPENDED_FOR, "gang/1/uid")],
            true,
        ),
    ] {
        let mut job = builders::indexed_job(name, 1, annotations, &spec)?;
        let of_job = job.spec.as_mut().context("a spec")?;
        of_job.suspend = Some(is_suspended);
        of_job.backoff_limit = Some(3);
        kubernetes::create(&Api::<Job>::namespaced(client.clone(), NAMESPACE), &job).await?;
    }
    change_jobs(&controller).await?;
    end_pods(cluster, &controller).await
}

async fn change_jobs(controller: &Client) -> Result<()> {
    let jobs: Api<Job> = Api::namespaced(controller.clone(), NAMESPACE);
    let marked = |mark: Value, spec: Value| json!({"metadata": {"annotations": {keys::SUSPENDED_FOR: mark}}, "spec": spec});
    for (what, job, patch) in [
        (
            "suspends a Job and says so",
            "runs",
            marked(json!("gang/1/uid"), json!({"suspend": true})),
        ),
        (
            "raises a limit",
            "runs",
            json!({"metadata": {"annotations": {keys::BACKOFF_RAISED_FOR: "gang/1/uid/4"}}, "spec": {"backoffLimit": 4}}),
        ),
        (
            "raises a limit for restarts",
            "runs",
            json!({"metadata": {"annotations": {keys::BACKOFF_COVERS: "3/8/uid"}}, "spec": {"backoffLimit": 8}}),
        ),
        (
            "gives back the limit that there was",
            "raised",
            json!({"metadata": {"annotations": {keys::BACKOFF_COVERS: "2/2/uid"}}, "spec": {"backoffLimit": 2}}),
        ),
        (
            "resumes what it suspended",
            "held-by-muster",
            marked(Value::Null, json!({"suspend": false})),
        ),
    ] {
        let changed = jobs.patch(job, &dry(), &Patch::Merge(patch)).await;
        changed.with_context(|| format!("the controller {what}"))?;
    }
    for (what, job, patch) in [
        (
            "suspending a Job silently",
            "runs",
            json!({"spec": {"suspend": true}}),
        ),
        (
            "resuming what its user suspended",
            "held-by-user",
            json!({"spec": {"suspend": false}}),
        ),
        (
            "resuming, with the mark left",
            "held-by-muster",
            json!({"spec": {"suspend": false}}),
        ),
        (
            "lowering a limit",
            "runs",
            json!({"spec": {"backoffLimit": 2}}),
        ),
        (
            "lowering a limit beyond what it was",
            "raised",
            json!({"metadata": {"annotations": {keys::BACKOFF_COVERS: "1/1/uid"}}, "spec": {"backoffLimit": 1}}),
        ),
        (
            "saying of a limit that it was less, to lower it next",
            "runs",
            json!({"metadata": {"annotations": {keys::BACKOFF_COVERS: "0/8/uid"}}, "spec": {"backoffLimit": 8}}),
        ),
        (
            "changing how many pods run",
            "runs",
            json!({"spec": {"parallelism": 0}}),
        ),
        (
            "relabelling a Job",
            "runs",
            json!({"metadata": {"labels": {"app": "another"}}}),
        ),
        (
            "declaring another size",
            "runs",
            json!({"metadata": {"annotations": {keys::GANG_SIZE: "2"}}}),
        ),
        (
            "declaring how often it is started anew",
            "runs",
            json!({"metadata": {"annotations": {keys::MAX_RESTARTS: "2"}}}),
        ),
    ] {
        let changed = jobs.patch(job, &dry(), &Patch::Merge(patch)).await;
        refused(what, changed, "muster-job-by-controller")?;
    }
    Ok(())
}

/// Of pods that carry neither the name of a Gang nor the gate, it may delete none.
async fn end_pods(cluster: &Cluster, controller: &Client) -> Result<()> {
    let client = cluster.client();
    let all: Api<Pod> = Api::namespaced(client.clone(), NAMESPACE);
    let of_gang = waiting_pod(cluster, NAMESPACE).await?.name_any();
    let plain = builders::pod("plain", &[], &[], &pod_spec(cluster)?)?;
    kubernetes::create(&all, &plain).await?;

    let pods: Api<Pod> = Api::namespaced(controller.clone(), NAMESPACE);
    let disrupted = |type_: &str| {
        let condition = json!({"type": type_, "status": "True", "reason": "Evicted"});
        Patch::Strategic(json!({"status": {"conditions": [condition]}}))
    };
    let (target, ready) = (disrupted("DisruptionTarget"), disrupted("Ready"));
    let told = pods.patch_status(&of_gang, &dry(), &target).await;
    told.context("the controller tells a pod")?;
    let told = pods.patch_status(&of_gang, &dry(), &ready).await;
    refused("another condition", told, "muster-pod-by-controller")?;
    let dry_delete = DeleteParams {
        dry_run: true,
        ..DeleteParams::default()
    };
    let deleted = pods.delete("plain", &dry_delete).await;
    refused("deleting a pod of nobody's", deleted, "muster-pod-evicted")?;
    let name = Patch::Merge(json!({"metadata": {"annotations": {keys::GANG_NAME: "gang"}}}));
    pods.patch(&of_gang, &PatchParams::default(), &name).await?;
    let deleted = pods.delete(&of_gang, &dry_delete).await;
    deleted
        .context("the controller deletes a pod of a gang")
        .map(drop)
}

/// What a pod without devices runs.
fn pod_spec(cluster: &Cluster) -> Result<k8s_openapi::api::core::v1::PodSpec> {
    let peers = builders::peers_directory(cluster.directory(), NAMESPACE)?;
    let ranks = RankProgram::new(cluster.programs().path("rank"), peers, 1).until_finished();
    builders::pod_spec(&ranks.container(&[])?)
}

fn dry() -> PatchParams {
    PatchParams {
        dry_run: true,
        ..PatchParams::default()
    }
}
