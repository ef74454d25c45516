//! Takes away what scenarios made.

use std::time::Duration;

use anyhow::Result;
use k8s_openapi::api::{
    apps::v1::{Deployment, StatefulSet},
    batch::v1::{CronJob, Job},
    core::v1::{Namespace, Pod},
    resource::v1::ResourceClaim,
};
use kube::{
    Api, Client, ResourceExt,
    api::{DeleteParams, ListParams, PropagationPolicy},
};
use muster_api::{Cohort, Team};

use super::MADE_BY;
use crate::kubernetes::{self, Progress, eventually};

/// Longest time until everything that a scenario made is gone.
const CLEAR_LIMIT: Duration = Duration::from_mins(1);

/// Deletes the workloads and claims that scenarios made and waits until no pod of them is left.
pub async fn clear_workloads(client: &Client) -> Result<()> {
    for name in namespaces_made(client).await? {
        clear_namespace(client, &name).await?;
    }
    Ok(())
}

/// Deletes the namespaces, Teams and Cohorts that scenarios made, and waits for none of it: namespaces go
/// slowly, and every scenario has names of its own. Only after everything was given back: a Team that
/// is gone has no limits.
pub async fn clear_owners(client: &Client) -> Result<()> {
    let namespaces: Api<Namespace> = Api::all(client.clone());
    for name in namespaces_made(client).await? {
        kubernetes::delete(&namespaces, &name).await?;
    }
    let parameters = DeleteParams::default();
    let teams: Api<Team> = Api::all(client.clone());
    if teams.list(&made_by_us()).await.is_ok() {
        teams.delete_collection(&parameters, &made_by_us()).await?;
        let cohorts: Api<Cohort> = Api::all(client.clone());
        cohorts
            .delete_collection(&parameters, &made_by_us())
            .await?;
    }
    Ok(())
}

async fn namespaces_made(client: &Client) -> Result<Vec<String>> {
    let namespaces: Api<Namespace> = Api::all(client.clone());
    let made = namespaces.list(&made_by_us()).await?;
    let live = made
        .iter()
        .filter(|namespace| namespace.metadata.deletion_timestamp.is_none());
    Ok(live.map(ResourceExt::name_any).collect())
}

fn made_by_us() -> ListParams {
    ListParams::default().labels(&format!("{}={}", MADE_BY.0, MADE_BY.1))
}

async fn clear_namespace(client: &Client, name: &str) -> Result<()> {
    let cron_jobs: Api<CronJob> = Api::namespaced(client.clone(), name);
    let jobs: Api<Job> = Api::namespaced(client.clone(), name);
    let deployments: Api<Deployment> = Api::namespaced(client.clone(), name);
    let stateful_sets: Api<StatefulSet> = Api::namespaced(client.clone(), name);
    let pods: Api<Pod> = Api::namespaced(client.clone(), name);
    let everything = ListParams::default();
    let background = DeleteParams {
        propagation_policy: Some(PropagationPolicy::Background),
        ..DeleteParams::default()
    };
    cron_jobs
        .delete_collection(&background, &everything)
        .await?;
    jobs.delete_collection(&background, &everything).await?;
    deployments
        .delete_collection(&background, &everything)
        .await?;
    stateful_sets
        .delete_collection(&background, &everything)
        .await?;
    eventually(
        &format!("all pods of namespace {name} are gone"),
        CLEAR_LIMIT,
        async || {
            // Again in each round: a Job that was just being synced may have made another pod.
            pods.delete_collection(&DeleteParams::default(), &everything)
                .await?;
            let left: Vec<String> = pods
                .list(&everything)
                .await?
                .iter()
                .map(ResourceExt::name_any)
                .collect();
            Ok(Progress::when(left.is_empty(), || format!("{left:?}")))
        },
    )
    .await?;
    // Those that no pod owns; some were allocated by the scenario itself, and nobody takes that back.
    let claims: Api<ResourceClaim> = Api::namespaced(client.clone(), name);
    claims
        .delete_collection(&DeleteParams::default(), &everything)
        .await?;
    Ok(())
}
