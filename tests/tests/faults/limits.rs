//! Jobs that say nothing of restarts, of which more ranks die at once than their `backoffLimit` bears with: of a fault they go on, and by themselves they fail as it says.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::batch::v1::Job;
use kube::{Api, ResourceExt};
use muster_api::{GangPhase, keys};
use muster_tests::{
    builders::{self, RankProgram},
    cluster::{Cluster, Program},
    faults::{Fault, TargetGpu},
    gangs,
    install::Part,
    kubernetes::{self, LIMIT, Progress, always, eventually},
    scenarios,
    suite::Scenario,
    workloads::Workload,
};

use crate::stage::{prepare_team, restart_controller};

/// Name of the Jobs.
const JOB: &str = "train";
const RANKS: u32 = 8;
/// What their user wrote, or left to Kubernetes.
const WRITTEN: i32 = 6;
/// Longest time for what these do beside the rest: a minute passes until it is clear that nothing else had the ranks die.
const MORE_TIME: Duration = Duration::from_mins(4);
/// How long it is looked whether a Job goes on.
const GOES_ON: Duration = Duration::from_secs(5);

pub(crate) fn scenarios() -> Vec<Scenario> {
    let of_faults = scenarios![a_job_of_which_all_ranks_die_of_a_fault_goes_on_beyond_its_limit];
    let of_themselves = scenarios![
        a_job_of_which_more_ranks_fail_by_themselves_than_it_bears_with_fails_as_it_says
    ];
    let of_faults = of_faults.into_iter().map(Scenario::with_faults);
    let all = of_faults.chain(of_themselves);
    all.map(|one| one.with_more_time(MORE_TIME)).collect()
}

async fn a_job_of_which_all_ranks_die_of_a_fault_goes_on_beyond_its_limit(
    cluster: &mut Cluster,
) -> Result<()> {
    let (client, namespace) = (cluster.client(), "bears");
    start(cluster, namespace).await?;
    let gang = gangs::find(&client, namespace, &gangs::of_job(JOB)).await?;
    let held = TargetGpu::held_by(cluster, &gang.context("a Gang")?).await?;
    let gpu = held.get(&1).and_then(|gpus| gpus.first());
    let gpu = gpu.context("rank 1 has a GPU")?.clone();
    let jobs: Api<Job> = Api::namespaced(client.clone(), namespace);
    let all = i32::try_from(RANKS)?;
    // Else the Job is suspended before the last of them has ended, and does not count that one.
    let controller = Program::Muster(Part::Controller, 0);
    cluster.service(controller)?.stop().await;
    gpu.inject(Fault::Xid(48))?;
    let counted = eventually("the Job has counted all of them", LIMIT, async || {
        let status = jobs.get(JOB).await?.status.unwrap_or_default();
        let has_counted = status.failed == Some(all);
        Ok(Progress::when(has_counted, || format!("{status:?}")))
    })
    .await;
    restart_controller(cluster, &[]).await?;
    let judged = async {
        counted?;
        eventually("the gang begins another attempt", 2 * LIMIT, async || {
            let gang = gangs::find(&client, namespace, &gangs::of_job(JOB)).await?;
            let status = gang.and_then(|gang| gang.status).unwrap_or_default();
            Ok(Progress::when(status.attempt == 2, || {
                format!("attempt {}, {:?}", status.attempt, status.queue)
            }))
        })
        .await?;
        let gang = gangs::find(&client, namespace, &gangs::of_job(JOB)).await?;
        let status = gang.and_then(|gang| gang.status).unwrap_or_default();
        ensure!(
            (status.failed_attempts, status.failed_pods) == (0, 0),
            "none failed by itself: {status:?}"
        );
        eventually("two attempts are covered", LIMIT, async || {
            let found = limits(&jobs.get(JOB).await?);
            let is_covered = found == (Some(2 * all), Some(format!("{WRITTEN}/{}", 2 * all)));
            Ok(Progress::when(is_covered, || format!("{found:?}")))
        })
        .await?;
        always("the Job goes on", GOES_ON, async || {
            let end = end(&jobs.get(JOB).await?);
            Ok(Progress::when(end.is_none(), || format!("{end:?}")))
        })
        .await
    }
    .await;
    let cleared = gpu.clear(cluster).await;
    judged?;
    cleared
}

async fn a_job_of_which_more_ranks_fail_by_themselves_than_it_bears_with_fails_as_it_says(
    cluster: &mut Cluster,
) -> Result<()> {
    let (client, namespace) = (cluster.client(), "gives-up");
    let ranks = start(cluster, namespace).await?;
    // The last one dies as it meets nobody any more.
    for rank in 0..RANKS - 1 {
        ranks.fail(rank)?;
    }
    let jobs: Api<Job> = Api::namespaced(client.clone(), namespace);
    eventually("the Job fails", 3 * LIMIT, async || {
        let job = jobs.get(JOB).await?;
        let end = end(&job);
        let has_failed = end.as_deref() == Some("Failed: BackoffLimitExceeded");
        Ok(Progress::when(has_failed, || {
            format!("{end:?}, {:?}", limits(&job))
        }))
    })
    .await?;
    let found = limits(&jobs.get(JOB).await?);
    let given_back = (Some(WRITTEN), Some(format!("{WRITTEN}/{WRITTEN}")));
    ensure!(
        found == given_back,
        "it has again what was written: {found:?}"
    );
    let gang = gangs::of_job(JOB);
    let failed = &[GangPhase::Failed];
    let gang = gangs::wait_for_phase(&client, namespace, &gang, failed).await?;
    let status = gang.status.unwrap_or_default();
    ensure!(
        status.failed_attempts == 1 && status.failed_pods > WRITTEN,
        "{status:?}"
    );
    Ok(())
}

/// A Job of eight ranks runs, which all die as one does. It covers one attempt.
async fn start(cluster: &Cluster, namespace: &str) -> Result<RankProgram> {
    let client = cluster.client();
    prepare_team(&client, namespace, 2 * RANKS).await?;
    let workload = Workload {
        namespace,
        name: JOB,
        ranks: RANKS,
        gpus: 1,
    };
    let (ranks, _) = workload.prepare(cluster).await?;
    let ranks = ranks.dying_with_their_gpu();
    let spec = workload.pod_spec(&client, &ranks).await?;
    let mut job = builders::indexed_job(JOB, RANKS, &[], &spec)?;
    job.spec.as_mut().context("a spec")?.backoff_limit = Some(WRITTEN);
    let jobs: Api<Job> = Api::namespaced(client.clone(), namespace);
    kubernetes::create(&jobs, &job).await?;
    gangs::wait_until_running(&client, namespace, &gangs::of_job(JOB)).await?;
    let found = limits(&jobs.get(JOB).await?);
    let covers = (
        Some(i32::try_from(RANKS)?),
        Some(format!("{WRITTEN}/{RANKS}")),
    );
    ensure!(found == covers, "{found:?}");
    Ok(ranks)
}

/// The limit of the Job, and from what to what it was raised, as it says.
fn limits(job: &Job) -> (Option<i32>, Option<String>) {
    let covers = job.annotations().get(keys::BACKOFF_COVERS);
    let covers = covers.and_then(|covers| covers.rsplit_once('/'));
    let limit = job.spec.as_ref().and_then(|spec| spec.backoff_limit);
    (limit, covers.map(|(limits, _)| limits.to_owned()))
}

/// How the Job ended, and for what reason.
fn end(job: &Job) -> Option<String> {
    let conditions = job.status.as_ref()?.conditions.as_ref()?;
    let mut conditions = conditions.iter().filter(|it| it.status == "True");
    let end = conditions.find(|it| ["Complete", "Failed"].contains(&it.type_.as_str()))?;
    let reason = end.reason.as_deref().unwrap_or_default();
    Some(format!("{}: {reason}", end.type_))
}
