//! What the scenario is on a cluster: Teams, Cohorts and tiers, and the Jobs that are created.

use std::{
    collections::BTreeSet,
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::batch::v1 as batch;
use kube::{Api, Client, api::PostParams};
use muster_api::{FlavorQuota, Quantity, ResourceQuota, Team, TeamSpec, TierPreemption, keys};
use muster_fake_nodes::kubelet::RUN_SECONDS;
use muster_tests::builders;
use serde_json::json;
use tokio::{sync::Semaphore, task::JoinSet};
use tokio_util::task::AbortOnDropHandle;

use crate::{
    quota::scenario::Scenario,
    replay::{Job, engine::TeamLimits},
};

const FLAVOR: &str = "default-flavor";
/// Jobs that are created at the same time.
const AT_ONCE: usize = 64;
/// Name of the Job of the gang at this place among the scenario's.
pub(super) fn job_name(place: usize) -> String {
    format!("gang-{place:05}")
}

fn tier_name(priority: i32) -> String {
    format!("priority-{priority}")
}

/// Makes everything but the Jobs.
pub(super) async fn prepare(client: &Client, scenario: &Scenario) -> Result<()> {
    builders::flavor(client, FLAVOR, None).await?;
    let priorities: BTreeSet<i32> = scenario.jobs.iter().map(|job| job.priority).collect();
    for priority in priorities {
        let (name, immediate) = (tier_name(priority), TierPreemption::Immediate);
        builders::tier(client, &name, priority, immediate, Some(0)).await?;
    }
    for limits in &scenario.teams {
        if let Some(cohort) = &limits.cohort {
            builders::cohort(client, cohort, Vec::new()).await?;
        }
        let spec = spec_of(limits);
        let team = Team::new(&limits.name, spec.clone());
        ensure!(
            muster_cluster::limits::team(&team).0.preemption == limits.preemption,
            "Team {} wants another policy than Teams have by default",
            limits.name
        );
        builders::team_of(client, &limits.name, spec).await?;
        builders::namespace(client, &limits.name, Some(&limits.name)).await?;
    }
    Ok(())
}

fn spec_of(limits: &TeamLimits) -> TeamSpec {
    let cores = |milli: u64| Quantity(format!("{milli}m"));
    let quota = ResourceQuota {
        name: "cpu".to_owned(),
        nominal: Some(cores(limits.nominal)),
        borrowing_limit: limits.borrowing_limit.map(cores),
        ..ResourceQuota::default()
    };
    TeamSpec {
        cohort: limits.cohort.clone(),
        quota: vec![FlavorQuota {
            flavor: FLAVOR.to_owned(),
            resources: vec![quota],
        }],
        ..TeamSpec::default()
    }
}

/// Creates each Job at its time after `begun`; in the order of the scenario, when each was sent, in milliseconds.
pub(super) fn start(
    client: Client,
    scenario: &Scenario,
    begun: Instant,
) -> Result<AbortOnDropHandle<Result<Vec<u64>>>> {
    let jobs = scenario.jobs.iter().enumerate().map(|(place, job)| {
        let namespace = scenario.teams[job.team].name.clone();
        Ok((job.arrives_at, namespace, object(place, job)?))
    });
    let jobs: Vec<(u64, String, batch::Job)> = jobs.collect::<Result<_>>()?;
    Ok(AbortOnDropHandle::new(tokio::spawn(async move {
        let room = Arc::new(Semaphore::new(AT_ONCE));
        let mut calls = JoinSet::new();
        let mut sent = vec![0; jobs.len()];
        for (place, (at, namespace, job)) in jobs.into_iter().enumerate() {
            tokio::time::sleep_until((begun + Duration::from_millis(at)).into()).await;
            let turn = Arc::clone(&room).acquire_owned().await?;
            sent[place] = u64::try_from(begun.elapsed().as_millis())?;
            let api: Api<batch::Job> = Api::namespaced(client.clone(), &namespace);
            calls.spawn(async move {
                let _turn = turn;
                let created = api.create(&PostParams::default(), &job).await;
                created.map(drop).context("creating a Job")
            });
            while let Some(done) = calls.try_join_next() {
                done??;
            }
        }
        while let Some(done) = calls.join_next().await {
            done??;
        }
        Ok(sent)
    })))
}

#[expect(
    clippy::cast_precision_loss,
    reason = "milliseconds of a run are far below 2^52"
)]
fn object(place: usize, job: &Job) -> Result<batch::Job> {
    let name = job_name(place);
    let labels = json!({keys::GANG: name, keys::TIER: tier_name(job.priority)});
    let seconds = job.runs_for as f64 / 1_000.0;
    let object = json!({
        "metadata": {"name": name},
        "spec": {
            "parallelism": 1,
            "completions": 1,
            "template": {
                "metadata": {
                    "labels": labels,
                    "annotations": {keys::GANG_SIZE: "1", RUN_SECONDS: seconds.to_string()},
                },
                "spec": {
                    "restartPolicy": "Never",
                    "automountServiceAccountToken": false,
                    "containers": [{
                        "name": "main",
                        "image": "example.invalid/worker:1",
                        "resources": {"requests": {"cpu": format!("{}m", job.size)}},
                    }],
                },
            },
        },
    });
    Ok(serde_json::from_value(object)?)
}
