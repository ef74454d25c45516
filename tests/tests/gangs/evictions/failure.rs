//! A rank fails while the others hang.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::batch::v1::Job;
use kube::{
    Api, ResourceExt,
    api::{Patch, PatchParams},
};
use muster_api::{Reason, keys};
use muster_tests::{
    builders::{self, RankProgram},
    cluster::Cluster,
    events, gangs,
    kubernetes::{self, LIMIT, Progress, always, eventually},
    scenarios,
    suite::Scenario,
    users,
    workloads::Workload,
};
use serde_json::{Value, json};

use super::{ensure_job_goes_on, suspension, wait_for_eviction};
use crate::stage::{FABRIC_NODES, prepare_team};

/// Name of the Jobs.
const JOB: &str = "train";

pub(super) fn scenarios() -> Vec<Scenario> {
    scenarios![
        a_rank_that_fails_while_the_others_hang_costs_the_attempt_and_the_job_runs_again_unharmed,
        a_user_who_resumes_a_job_in_the_middle_of_an_eviction_is_heard,
        a_gang_of_which_all_ranks_die_at_once_starts_anew_and_its_job_bears_with_it,
    ]
}

/// As long as a container does not stop its pod stays, and the Job stays suspended.
async fn a_rank_that_fails_while_the_others_hang_costs_the_attempt_and_the_job_runs_again_unharmed(
    cluster: &mut Cluster,
) -> Result<()> {
    let client = cluster.client();
    let (ranks, mark) = submit(cluster, "fails").await?;
    let jobs: Api<Job> = Api::namespaced(client.clone(), "fails");
    set_faults(cluster, &json!({"hangStop": [{"pod": JOB}]}))?;
    let suspended = async {
        suspended_for_the_failed_rank(cluster, "fails", &ranks, &mark).await?;
        stays(&jobs, (true, Some(&mark))).await
    }
    .await;
    set_faults(cluster, &json!({}))?;
    suspended?;
    let gang = gangs::of_job(JOB);
    for (kind, beginning) in [("Gang", gang.as_str()), ("Job", JOB)] {
        events::wait_for_reason(&client, "fails", kind, beginning, Reason::PodFailed).await?;
    }
    runs_again(cluster, "fails", &ranks).await
}

/// His word counts more than Muster's, which has told him and goes on once the pods are gone.
async fn a_user_who_resumes_a_job_in_the_middle_of_an_eviction_is_heard(
    cluster: &mut Cluster,
) -> Result<()> {
    let (ranks, mark) = submit(cluster, "resumes").await?;
    let user = users::user(cluster, "resumes", "editor", "edit", Vec::new()).await?;
    let jobs: Api<Job> = Api::namespaced(user, "resumes");
    set_faults(cluster, &json!({"hangStop": [{"pod": JOB}]}))?;
    let heard = async {
        suspended_for_the_failed_rank(cluster, "resumes", &ranks, &mark).await?;
        // Resumed before that, the Job ends none of them: Muster does, and raises its limit first.
        eventually("the other ranks are being ended", LIMIT, async || {
            let status = jobs.get(JOB).await?.status.unwrap_or_default();
            let are_ending = status.active.unwrap_or(0) == 0 && status.terminating == Some(3);
            Ok(Progress::when(are_ending, || format!("{status:?}")))
        })
        .await?;
        let resume = Patch::Merge(json!({"spec": {"suspend": false}}));
        jobs.patch(JOB, &PatchParams::default(), &resume).await?;
        eventually("Muster takes note of it", LIMIT, async || {
            let job = jobs.get(JOB).await?;
            let noted = job.annotations().get(keys::RESUMED_BY_OTHERS);
            let is_noted = suspension(&job) == (false, None) && noted == Some(&mark);
            Ok(Progress::when(is_noted, || {
                format!("{:?}, {:?}", suspension(&job), job.annotations())
            }))
        })
        .await?;
        stays(&jobs, (false, None)).await
    }
    .await;
    set_faults(cluster, &json!({}))?;
    heard?;
    runs_again(cluster, "resumes", &ranks).await
}

/// Two failures are more than the Job may have by itself.
async fn a_gang_of_which_all_ranks_die_at_once_starts_anew_and_its_job_bears_with_it(
    cluster: &mut Cluster,
) -> Result<()> {
    let (client, namespace) = (cluster.client(), "dies");
    prepare_team(&client, namespace, "fabric", 4).await?;
    let workload = Workload {
        namespace,
        name: JOB,
        ranks: 2,
        gpus: 2,
    };
    let (ranks, _) = workload.prepare(cluster).await?;
    let spec = workload.pod_spec(&client, &ranks).await?;
    let limits = [(keys::MAX_RESTARTS, "2")];
    let mut job = builders::indexed_job(JOB, 2, &limits, &spec)?;
    job.spec.as_mut().context("a spec")?.backoff_limit = Some(1);
    let jobs: Api<Job> = Api::namespaced(client.clone(), namespace);
    let uid = kubernetes::create(&jobs, &job).await?.metadata.uid;
    let gang = gangs::of_job(JOB);
    gangs::wait_until_running(&client, namespace, &gang).await?;
    let covers = format!("1/6/{}", uid.context("a UID")?);
    let job = jobs.get(JOB).await?;
    let says = job.annotations().get(keys::BACKOFF_COVERS);
    ensure!(says == Some(&covers), "{says:?}");
    for rank in 0..2 {
        ranks.fail(rank)?;
    }
    let again = gangs::wait_until_running_again(&client, namespace, &gang, 2).await?;
    let failed = again.status.map(|status| status.failed_attempts);
    ensure!(failed == Some(1), "{failed:?}");
    ensure_job_goes_on(&client, namespace, JOB, 6, 2).await?;
    ranks.finish()?;
    gangs::wait_for_job(&client, namespace, JOB).await?;
    ranks.ensure_all_met()
}

/// A Job of four ranks that runs. It may have one failure: that of the rank. Would the end of the others count, it were
/// Failed. Returns what a suspension for its first attempt says, too.
async fn submit(cluster: &Cluster, namespace: &str) -> Result<(RankProgram, String)> {
    let client = cluster.client();
    prepare_team(&client, namespace, "fabric", 8).await?;
    let workload = Workload {
        namespace,
        name: JOB,
        ranks: 4,
        gpus: 2,
    };
    let (ranks, _) = workload.prepare(cluster).await?;
    let ranks = ranks.hanging_when_lost();
    let spec = workload.pod_spec(&client, &ranks).await?;
    let limits = [(keys::FAILURE_GRACE_SECONDS, "2")];
    let mut job = builders::indexed_job(JOB, 4, &limits, &spec)?;
    job.spec.as_mut().context("a spec")?.backoff_limit = Some(1);
    let jobs: Api<Job> = Api::namespaced(client.clone(), namespace);
    let uid = kubernetes::create(&jobs, &job).await?.metadata.uid;
    let gang = gangs::wait_until_running(&client, namespace, &gangs::of_job(JOB)).await?;
    let mark = format!("{}/1/{}", gang.name_any(), uid.context("a UID")?);
    Ok((ranks, mark))
}

/// A rank fails, its attempt is evicted for that, and its Job is suspended with this mark.
async fn suspended_for_the_failed_rank(
    cluster: &Cluster,
    namespace: &str,
    ranks: &RankProgram,
    mark: &str,
) -> Result<()> {
    let client = cluster.client();
    ranks.fail(2)?;
    let gang = gangs::of_job(JOB);
    let (_, eviction) = wait_for_eviction(&client, namespace, &gang, Reason::PodFailed).await?;
    ensure!(eviction.attempt == 1, "{eviction:?}");
    gangs::ensure_says(&eviction.message, &["rank 2"])?;
    let jobs: Api<Job> = Api::namespaced(client, namespace);
    eventually("the Job is suspended", LIMIT, async || {
        let job = jobs.get(JOB).await?;
        let is_suspended = suspension(&job) == (true, Some(mark));
        Ok(Progress::when(is_suspended, || {
            format!("{:?}", suspension(&job))
        }))
    })
    .await
}

async fn stays(jobs: &Api<Job>, expected: (bool, Option<&str>)) -> Result<()> {
    let what = format!("the Job stays suspended: {expected:?}");
    always(&what, Duration::from_secs(2), async || {
        let job = jobs.get(JOB).await?;
        let is_same = suspension(&job) == expected;
        Ok(Progress::when(is_same, || {
            format!("{:?}", suspension(&job))
        }))
    })
    .await
}

/// The second attempt runs to its end, and of the first the Job counts the one failure. Its limit covers what two attempts of four pods may cost.
async fn runs_again(cluster: &Cluster, namespace: &str, ranks: &RankProgram) -> Result<()> {
    let client = cluster.client();
    let gang = gangs::of_job(JOB);
    let gang = gangs::wait_until_running_again(&client, namespace, &gang, 2).await?;
    let attempt = gang.status.map(|status| status.attempt);
    ensure!(attempt == Some(2), "it took more: {attempt:?}");
    ensure_job_goes_on(&client, namespace, JOB, 8, 1).await?;
    ranks.finish()?;
    gangs::wait_for_job(&client, namespace, JOB).await?;
    ranks.ensure_all_met()
}

fn set_faults(cluster: &Cluster, faults: &Value) -> Result<()> {
    let nodes = cluster.nodes.iter();
    let mut nodes = nodes.filter(|node| FABRIC_NODES.contains(&node.name()));
    nodes.try_for_each(|node| node.set_runtime_faults(faults))
}
