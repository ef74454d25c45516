//! Attempts that are evicted whole, and what their owners, their Teams and their users see of it.

mod drain;
mod failure;
mod rolling;
mod start_limit;
mod taken;

use anyhow::{Result, ensure};
use k8s_openapi::api::batch::v1::Job;
use kube::{Api, Client, ResourceExt};
use muster_api::keys;
pub(crate) use muster_tests::evictions::wait_for_eviction;
use muster_tests::suite::Scenario;

pub(crate) fn scenarios() -> Vec<Scenario> {
    let scenarios = [
        failure::scenarios(),
        start_limit::scenarios(),
        drain::scenarios(),
        rolling::scenarios(),
        taken::scenarios(),
    ];
    scenarios.into_iter().flatten().collect()
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
