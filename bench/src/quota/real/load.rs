//! What the scenario is on a cluster, Muster's or Kueue's: who may use how much, what goes first, and the Jobs that are created.

use std::{
    collections::BTreeSet,
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::batch::v1 as batch;
use kube::{Api, Client, api::PostParams};
use muster_api::{FlavorQuota, Quantity, ResourceQuota, Team, TeamSpec, TierPreemption, keys};
use muster_engine::quota::{BorrowWithinCohort, PreemptionPolicy, ReclaimWithinCohort, WithinTeam};
use muster_fake_nodes::kubelet::RUN_SECONDS;
use muster_tests::{builders, kueue};
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
/// How often a Job is sent before its error is the end of the measurement, and the pause before it is sent again.
const MOST_TRIES: u32 = 5;
const PAUSE: Duration = Duration::from_secs(1);

/// Name of the Job of the gang at this place among the scenario's.
pub(super) fn job_name(place: usize) -> String {
    format!("gang-{place:05}")
}

/// For whom the Jobs are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Manager {
    Muster,
    Kueue,
}

fn tier_name(priority: i32) -> String {
    format!("priority-{priority}")
}

/// Makes everything but the Jobs.
pub(super) async fn prepare(client: &Client, manager: Manager, scenario: &Scenario) -> Result<()> {
    match manager {
        Manager::Muster => prepare_muster(client, scenario).await,
        Manager::Kueue => prepare_kueue(client, scenario).await,
    }
}

async fn prepare_muster(client: &Client, scenario: &Scenario) -> Result<()> {
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

/// A Team is a ClusterQueue, with a LocalQueue of the same name in a namespace of the same name. Cohorts without limits have no object.
async fn prepare_kueue(client: &Client, scenario: &Scenario) -> Result<()> {
    let flavor = json!({"metadata": {"name": FLAVOR}});
    kueue::create(client, kueue::Kind::ResourceFlavor, None, flavor).await?;
    let priorities: BTreeSet<i32> = scenario.jobs.iter().map(|job| job.priority).collect();
    for priority in priorities {
        let class = json!({"metadata": {"name": tier_name(priority)}, "value": priority});
        kueue::create(client, kueue::Kind::WorkloadPriorityClass, None, class).await?;
    }
    for limits in &scenario.teams {
        let name = &limits.name;
        let mut cores = json!({"name": "cpu", "nominalQuota": format!("{}m", limits.nominal)});
        if let Some(limit) = limits.borrowing_limit {
            cores["borrowingLimit"] = json!(format!("{limit}m"));
        }
        let mut spec = json!({
            "namespaceSelector": {},
            "resourceGroups": [{
                "coveredResources": ["cpu"],
                "flavors": [{"name": FLAVOR, "resources": [cores]}],
            }],
            "preemption": kueue_preemption(&limits.preemption)?,
        });
        if let Some(cohort) = &limits.cohort {
            spec["cohortName"] = json!(cohort);
        }
        let queue = json!({"metadata": {"name": name}, "spec": spec});
        kueue::create(client, kueue::Kind::ClusterQueue, None, queue).await?;
        builders::namespace(client, name, None).await?;
        let queue = json!({"metadata": {"name": name}, "spec": {"clusterQueue": name}});
        kueue::create(client, kueue::Kind::LocalQueue, Some(name), queue).await?;
    }
    for limits in &scenario.teams {
        kueue::wait_until_active(client, &limits.name).await?;
    }
    Ok(())
}

fn kueue_preemption(policy: &PreemptionPolicy) -> Result<serde_json::Value> {
    let within_queue = match policy.within_team {
        WithinTeam::Never => "Never",
        WithinTeam::LowerPriority => "LowerPriority",
        WithinTeam::LowerOrNewerEqualPriority => "LowerOrNewerEqualPriority",
    };
    let reclaim = match policy.reclaim_within_cohort {
        ReclaimWithinCohort::Never => "Never",
        ReclaimWithinCohort::LowerPriority => "LowerPriority",
        ReclaimWithinCohort::Any => "Any",
    };
    ensure!(
        policy.borrow_within_cohort == BorrowWithinCohort::Never,
        "borrowing by preemption is in no scenario of Kueue's"
    );
    Ok(json!({"withinClusterQueue": within_queue, "reclaimWithinCohort": reclaim}))
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
    manager: Manager,
    scenario: &Scenario,
    begun: Instant,
) -> Result<AbortOnDropHandle<Result<Vec<u64>>>> {
    let jobs = scenario.jobs.iter().enumerate().map(|(place, job)| {
        let namespace = scenario.teams[job.team].name.clone();
        let object = object(place, job, manager, &namespace)?;
        Ok((job.arrives_at, namespace, object))
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
                create(&api, &job).await
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

/// Creates a Job. It is sent again where the API server, whose machine is busy, did not answer or made nothing of it; what is there then is what it made
/// without saying so.
async fn create(api: &Api<batch::Job>, job: &batch::Job) -> Result<()> {
    let mut tries = 0;
    loop {
        let error = match api.create(&PostParams::default(), job).await {
            Ok(_) => return Ok(()),
            Err(kube::Error::Api(status)) if tries > 0 && status.is_already_exists() => {
                return Ok(());
            }
            Err(error) => error,
        };
        tries += 1;
        if tries == MOST_TRIES {
            return Err(error).context("creating a Job");
        }
        eprintln!("a Job was not created, and is sent again: {error}");
        tokio::time::sleep(PAUSE).await;
    }
}

#[expect(
    clippy::cast_precision_loss,
    reason = "milliseconds of a run are far below 2^52"
)]
fn object(place: usize, job: &Job, manager: Manager, queue: &str) -> Result<batch::Job> {
    let name = job_name(place);
    let tier = tier_name(job.priority);
    let seconds = job.runs_for as f64 / 1_000.0;
    // Kueue is told at the Job, Muster at its pods.
    let (job_labels, labels) = match manager {
        Manager::Muster => (json!({}), json!({keys::GANG: name, keys::TIER: tier})),
        Manager::Kueue => {
            let labels = json!({kueue::QUEUE_LABEL: queue, kueue::PRIORITY_LABEL: tier});
            (labels, json!({}))
        }
    };
    let object = json!({
        "metadata": {"name": name, "labels": job_labels},
        "spec": {
            "suspend": manager == Manager::Kueue,
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
