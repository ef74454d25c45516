//! Why gangs wait. Each that cannot start says exactly why, with the numbers and names that help, and holds nobody
//! up; and where somebody can end the wait, it ends when he does.
//!
//! The Team of these gangs is `StrictFifo`: there, only what holds nobody up by itself lets the last gang through.

mod never;
mod until;

use anyhow::{Context, Result};
use kube::Client;
use muster_api::{Reason, TeamSpec, team::Queueing};
use muster_tests::{
    builders::{self, RankProgram, gpu_quota},
    cluster::Cluster,
    gangs,
    suite::Scenario,
    workloads::Workload,
};

pub(crate) fn scenarios() -> Vec<Scenario> {
    let mut all = never::scenarios();
    all.extend(until::scenarios());
    all
}

/// A gang that waits: why, and what it says with the reason.
struct Waiting {
    namespace: &'static str,
    gang: String,
    reason: Reason,
    says: &'static [&'static str],
}

impl Waiting {
    fn new(workload: &Workload<'static>, reason: Reason, says: &'static [&'static str]) -> Self {
        Self {
            namespace: workload.namespace,
            gang: workload.gang(),
            reason,
            says,
        }
    }

    fn job(mut self, name: &str) -> Self {
        self.gang = gangs::of_job(name);
        self
    }
}

/// All of them wait for exactly these reasons, and the gang that came last runs.
async fn all_wait_and_hold_nobody_up(
    cluster: &Cluster,
    waiting: &[Waiting],
    last: &Workload<'_>,
) -> Result<RankProgram> {
    let client = cluster.client();
    for one in waiting {
        let details = gangs::wait_for_reason(&client, one.namespace, &one.gang, one.reason).await?;
        gangs::ensure_says(&details, one.says).with_context(|| one.reason.to_string())?;
    }
    let (ranks, spec) = last.prepare(cluster).await?;
    last.create_labelled_pods(&client, &spec).await?;
    gangs::wait_until_running(&client, last.namespace, &last.gang()).await?;
    Ok(ranks)
}

/// Two pods with one GPU each.
const fn pair(namespace: &'static str, name: &'static str) -> Workload<'static> {
    Workload {
        namespace,
        name,
        ranks: 2,
        gpus: 1,
    }
}

const fn single(namespace: &'static str, name: &'static str) -> Workload<'static> {
    Workload {
        ranks: 1,
        ..pair(namespace, name)
    }
}

fn strict() -> TeamSpec {
    TeamSpec {
        quota: vec![gpu_quota("fabric", 64, None)],
        queueing: Queueing::StrictFifo,
        ..TeamSpec::default()
    }
}

async fn team(client: &Client, name: &str, spec: TeamSpec) -> Result<()> {
    builders::team_of(client, name, spec).await?;
    builders::namespace(client, name, Some(name)).await
}
