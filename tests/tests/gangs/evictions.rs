//! Attempts that are evicted whole, and what their owners, their Teams and their users see of it.

mod drain;
mod failure;
mod lost_node;
mod rolling;
mod start_limit;

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::batch::v1::Job;
use kube::{Api, Client, ResourceExt};
use muster_api::{Gang, Reason, conditions, gang::Eviction, keys};
use muster_tests::{
    gangs,
    kubernetes::{LIMIT, Progress, eventually},
    suite::Scenario,
};

pub(crate) fn scenarios() -> Vec<Scenario> {
    let scenarios = [
        failure::scenarios(),
        start_limit::scenarios(),
        drain::scenarios(),
        rolling::scenarios(),
        lost_node::scenarios(),
    ];
    scenarios.into_iter().flatten().collect()
}

/// Waits until the Gang says that this attempt of it was evicted for that reason, and that nothing of it is admitted.
pub(crate) async fn wait_for_eviction(
    client: &Client,
    namespace: &str,
    beginning: &str,
    reason: Reason,
) -> Result<(Gang, Eviction)> {
    let what = format!("gang {namespace}/{beginning}* is evicted with reason {reason}");
    let gang = eventually(&what, LIMIT, async || {
        let gang = gangs::find(client, namespace, beginning).await?;
        let gang = gang.context("there is no such Gang")?;
        let status = gang.status.clone().unwrap_or_default();
        let is_evicted = status.evictions.iter().any(|it| it.reason == reason);
        Ok(if is_evicted {
            Progress::Done(gang)
        } else {
            Progress::NotYet(format!(
                "it is {:?}, {:?}, {:?}",
                status.phase, status.conditions, status.evictions
            ))
        })
    })
    .await?;
    let status = gang.status.as_ref().context("a status")?;
    let eviction = status.evictions.last().context("an eviction")?.clone();
    ensure!(
        eviction.reason == reason && status.attempt == eviction.attempt + 1,
        "{status:?}"
    );
    ensure!(status.admission.is_none(), "{:?}", status.admission);
    let mut conditions = status.conditions.iter();
    let evicted = conditions.find(|it| it.type_ == conditions::EVICTED);
    let evicted = evicted.context("no condition says that it is evicted")?;
    ensure!(
        evicted.status == "True" && evicted.reason == reason.as_str(),
        "{evicted:?}"
    );
    Ok((gang, eviction))
}

/// What a Job says about its suspension: whether it is, and for which eviction Muster did so.
fn suspension(job: &Job) -> (bool, Option<&str>) {
    let spec = job.spec.as_ref();
    let is_suspended = spec.is_some_and(|spec| spec.suspend == Some(true));
    let by_muster = job.annotations().get(keys::SUSPENDED_FOR);
    (is_suspended, by_muster.map(String::as_str))
}

/// The Job goes on, Muster left no mark on it, and its limit of failures is what it was.
pub(crate) async fn ensure_job_goes_on(
    client: &Client,
    namespace: &str,
    name: &str,
    backoff_limit: i32,
    failed: i32,
) -> Result<()> {
    let jobs: Api<Job> = Api::namespaced(client.clone(), namespace);
    let job = jobs.get(name).await?;
    ensure!(suspension(&job) == (false, None), "{:?}", job.spec);
    let status = job.status.unwrap_or_default();
    ensure!(
        status.failed.unwrap_or(0) == failed,
        "{failed} pods failed by themselves: {status:?}"
    );
    let limit = job.spec.and_then(|spec| spec.backoff_limit);
    ensure!(limit == Some(backoff_limit), "{limit:?}");
    Ok(())
}
