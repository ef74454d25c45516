//! What the scenario is on a cluster: Teams, Cohorts and tiers, and the Jobs that are created.

use std::{
    collections::BTreeSet,
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::batch::v1::Job;
use kube::{Api, Client, api::PostParams};
use muster_api::{
    FlavorQuota, PriorityTier, PriorityTierSpec, Quantity, ResourceQuota, TeamSpec, TierPreemption,
    keys,
};
use muster_engine::quota::{BorrowWithinCohort, PreemptionPolicy, ReclaimWithinCohort, WithinTeam};
use muster_tests::{builders, kubernetes};
use serde_json::json;
use tokio::{sync::Semaphore, task::JoinHandle};

use crate::quota::scenario::Scenario;

const FLAVOR: &str = "default-flavor";
/// What a played node runs a pod for.
const RUN_SECONDS: &str = "fake-nodes.muster.dev/run-seconds";
/// Jobs that are created at the same time.
const AT_ONCE: usize = 64;
/// What the Teams of the API do without being told to, and the scenario wants.
const DEFAULT_POLICY: PreemptionPolicy = PreemptionPolicy {
    within_team: WithinTeam::LowerPriority,
    reclaim_within_cohort: ReclaimWithinCohort::Any,
    borrow_within_cohort: BorrowWithinCohort::Never,
};

/// What creates the Jobs.
pub(super) struct Load {
    client: Client,
}

/// Name of the Job of the gang at this place among the scenario's.
pub(super) fn job_name(place: usize) -> String {
    format!("gang-{place:05}")
}

fn tier_name(priority: i32) -> String {
    format!("priority-{priority}")
}

impl Load {
    /// Makes everything but the Jobs.
    pub(super) async fn prepare(client: &Client, scenario: &Scenario) -> Result<Self> {
        builders::flavor(client, FLAVOR, None).await?;
        let priorities: BTreeSet<i32> = scenario.jobs.iter().map(|job| job.priority).collect();
        for priority in priorities {
            let tier = tier(&tier_name(priority), priority);
            kubernetes::create(&Api::all(client.clone()), &tier).await?;
        }
        for team in &scenario.teams {
            ensure!(
                team.preemption == DEFAULT_POLICY,
                "Team {} wants another policy than Teams have by default",
                team.name
            );
            if let Some(cohort) = &team.cohort {
                builders::cohort(client, cohort, Vec::new()).await?;
            }
            let cores = |milli: u64| Quantity(format!("{milli}m"));
            let quota = ResourceQuota {
                name: "cpu".to_owned(),
                nominal: Some(cores(team.nominal)),
                borrowing_limit: team.borrowing_limit.map(cores),
                ..ResourceQuota::default()
            };
            let spec = TeamSpec {
                cohort: team.cohort.clone(),
                quota: vec![FlavorQuota {
                    flavor: FLAVOR.to_owned(),
                    resources: vec![quota],
                }],
                ..TeamSpec::default()
            };
            builders::team_of(client, &team.name, spec).await?;
            builders::namespace(client, &team.name, Some(&team.name)).await?;
        }
        Ok(Self {
            client: client.clone(),
        })
    }

    /// Creates each Job at its time after `begun`; in the order of the scenario, when each was sent, in milliseconds.
    pub(super) fn start(
        &self,
        scenario: &Scenario,
        begun: Instant,
    ) -> JoinHandle<Result<Vec<u64>>> {
        let jobs: Vec<(u64, String, Job)> = scenario
            .jobs
            .iter()
            .enumerate()
            .map(|(place, job)| {
                let namespace = scenario.teams[job.team].name.clone();
                (job.arrives_at, namespace, object(place, job))
            })
            .collect();
        let client = self.client.clone();
        tokio::spawn(async move {
            let room = Arc::new(Semaphore::new(AT_ONCE));
            let mut calls = Vec::with_capacity(jobs.len());
            for (at, namespace, job) in jobs {
                let at = begun + Duration::from_millis(at);
                tokio::time::sleep_until(at.into()).await;
                let turn = Arc::clone(&room).acquire_owned().await?;
                let sent = u64::try_from(begun.elapsed().as_millis())?;
                let api: Api<Job> = Api::namespaced(client.clone(), &namespace);
                calls.push(tokio::spawn(async move {
                    let created = api.create(&PostParams::default(), &job).await;
                    drop(turn);
                    created.map(|_| sent).context("creating a Job")
                }));
            }
            let mut sent = Vec::with_capacity(calls.len());
            for call in calls {
                sent.push(call.await??);
            }
            Ok(sent)
        })
    }
}

fn tier(name: &str, value: i32) -> PriorityTier {
    let spec = PriorityTierSpec {
        value,
        preemption: TierPreemption::Immediate,
        notice_seconds: Some(0),
        ..PriorityTierSpec::default()
    };
    PriorityTier::new(name, spec)
}

#[expect(
    clippy::cast_precision_loss,
    reason = "milliseconds of a run are far below 2^52"
)]
fn object(place: usize, job: &crate::replay::Job) -> Job {
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
    serde_json::from_value(object).unwrap_or_default()
}
