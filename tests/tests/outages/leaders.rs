//! Two controllers: what one has begun the other one finishes, whichever way the first is lost.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::{coordination::v1::Lease, core::v1::Pod};
use kube::{Api, ResourceExt};
use muster_api::GangPhase;
use muster_tests::{
    builders::{self, RankProgram},
    cluster::{Cluster, Program},
    gangs,
    install::{NAMESPACE, Part},
    kubernetes::{self, LIMIT, Progress, eventually},
    scenarios,
    suite::Scenario,
    workloads::Workload,
};

/// Names of the Jobs that are submitted before the leader is lost.
const JOBS: [&str; 4] = ["a", "b", "c", "d"];

pub(crate) fn scenarios() -> Vec<Scenario> {
    scenarios![
        a_controller_that_dies_between_the_gangs_status_and_the_first_ungate_is_continued,
        what_a_dying_leader_has_begun_the_other_controller_finishes,
        a_leader_that_is_killed_while_it_admits_is_followed_by_the_other_controller,
        a_leader_that_hangs_past_its_lease_commits_nothing_when_it_goes_on,
    ]
}

/// No other controller runs meanwhile, so that what the first one has left can be looked at.
async fn a_controller_that_dies_between_the_gangs_status_and_the_first_ungate_is_continued(
    cluster: &mut Cluster,
) -> Result<()> {
    let client = cluster.client();
    builders::team_of_sixteen(&client, "dies").await?;
    let muster = cluster.installation()?;
    muster
        .arm_controller("after-gang-status-before-ungate")
        .await?;
    let workload = Workload {
        namespace: "dies",
        name: "train",
        ranks: 4,
        gpus: 4,
    };
    let ranks = workload.submit_job(cluster, &[]).await?;
    let muster = cluster.installation()?;
    muster.wait_until_controller_died().await?;
    let train = gangs::of_job("train");
    let gang = gangs::wait_for_phase(&client, "dies", &train, &[GangPhase::Admitted]).await?;
    let pods: Vec<Pod> = kubernetes::list(&client, Some("dies")).await?;
    let gated = pods.iter().filter(|pod| is_gated(pod)).count();
    ensure!(
        gated == 4,
        "{gated} of 4 pods of {} are gated",
        gang.name_any()
    );

    cluster.installation()?.start(Part::Controller).await?;
    gangs::wait_until_running(&client, "dies", &train).await?;
    ranks.finish()?;
    gangs::wait_for_job(&client, "dies", "train").await?;
    ranks.ensure_all_met()
}

/// The leader dies at its failpoint; the other controller follows already when that happens.
async fn what_a_dying_leader_has_begun_the_other_controller_finishes(
    cluster: &mut Cluster,
) -> Result<()> {
    let client = cluster.client();
    builders::team_of_sixteen(&client, "begun").await?;
    for failpoint in ["after-ledger-commit", "after-first-ungate"] {
        let muster = cluster.installation()?;
        muster.arm_controller(failpoint).await?;
        wait_until_leading(cluster, &[0]).await?;
        cluster.service(controller(1))?.start().await?;
        let workload = Workload {
            namespace: "begun",
            name: failpoint,
            ranks: 2,
            gpus: 4,
        };
        let ranks = workload.submit_job(cluster, &[]).await?;
        let muster = cluster.installation()?;
        muster.wait_until_controller_died().await?;
        let gang = gangs::of_job(failpoint);
        let started = gangs::wait_until_running(&client, "begun", &gang).await;
        cluster.service(controller(0))?.start().await?;
        started.with_context(|| format!("the leader died {failpoint}"))?;
        ranks.finish()?;
        gangs::wait_for_job(&client, "begun", failpoint).await?;
        ranks.ensure_all_met()?;
    }
    Ok(())
}

async fn a_leader_that_is_killed_while_it_admits_is_followed_by_the_other_controller(
    cluster: &mut Cluster,
) -> Result<()> {
    let leader = wait_until_leading(cluster, &[0, 1]).await?;
    let ranks = submit_until_the_first_is_admitted(cluster, "killed").await?;
    cluster.service(controller(leader))?.kill();
    let other = wait_until_leading(cluster, &[1 - leader]).await;
    let all_run = all_run(cluster, "killed").await;
    cluster.service(controller(leader))?.start().await?;
    other?;
    all_run?;
    all_finish(cluster, "killed", &ranks).await
}

/// A process that is frozen does not see that its lease has run out. When it goes on it still believes that it leads,
/// and what it had in hand is sent; the observer sees whether any of it is written (S16).
async fn a_leader_that_hangs_past_its_lease_commits_nothing_when_it_goes_on(
    cluster: &mut Cluster,
) -> Result<()> {
    let leader = wait_until_leading(cluster, &[0, 1]).await?;
    let ranks = submit_until_the_first_is_admitted(cluster, "hangs").await?;
    cluster.service(controller(leader))?.freeze();
    let other = wait_until_leading(cluster, &[1 - leader]).await;
    let all_run = all_run(cluster, "hangs").await;
    let stale = cluster.service(controller(leader))?;
    stale.thaw();
    // Its rule is to end when it must not lead any more; whatever started it starts it again.
    stale.wait_until_ended().await?;
    stale.start().await?;
    other?;
    all_run?;
    all_finish(cluster, "hangs", &ranks).await
}

pub(crate) fn controller(replica: usize) -> Program<'static> {
    Program::Muster(Part::Controller, replica)
}

/// Submits all Jobs, two pods with two GPUs each; when this returns, the leader is in the middle of admitting them.
async fn submit_until_the_first_is_admitted(
    cluster: &Cluster,
    namespace: &str,
) -> Result<Vec<RankProgram>> {
    let client = cluster.client();
    builders::team_of_sixteen(&client, namespace).await?;
    let mut ranks = Vec::new();
    for name in JOBS {
        let workload = Workload {
            namespace,
            name,
            ranks: 2,
            gpus: 2,
        };
        ranks.push(workload.submit_job(cluster, &[]).await?);
    }
    let what = "the first gang is admitted";
    let deadline = Duration::from_secs(30);
    eventually(what, deadline, async || {
        let gangs: Vec<muster_api::Gang> = kubernetes::list(&client, Some(namespace)).await?;
        let is_admitted = gangs.iter().any(|gang| {
            let status = gang.status.as_ref();
            status.is_some_and(|status| status.admission.is_some())
        });
        Ok(Progress::when(is_admitted, || {
            format!("{} gangs", gangs.len())
        }))
    })
    .await?;
    Ok(ranks)
}

async fn all_run(cluster: &Cluster, namespace: &str) -> Result<()> {
    for name in JOBS {
        gangs::wait_until_running(&cluster.client(), namespace, &gangs::of_job(name)).await?;
    }
    Ok(())
}

async fn all_finish(cluster: &Cluster, namespace: &str, ranks: &[RankProgram]) -> Result<()> {
    ranks.iter().try_for_each(RankProgram::finish)?;
    for name in JOBS {
        gangs::wait_for_job(&cluster.client(), namespace, name).await?;
    }
    ranks.iter().try_for_each(RankProgram::ensure_all_met)
}

/// Waits until one of these replicas holds the lease, and returns which.
pub(crate) async fn wait_until_leading(cluster: &mut Cluster, replicas: &[usize]) -> Result<usize> {
    let leases: Api<Lease> = Api::namespaced(cluster.client(), NAMESPACE);
    let mut processes = Vec::new();
    for replica in replicas {
        processes.push((*replica, cluster.service(controller(*replica))?.id()));
    }
    let what = format!("one of the controllers {replicas:?} leads");
    eventually(&what, LIMIT, async || {
        let holder = leases.get("muster-controller").await?.spec;
        let holder = holder.and_then(|spec| spec.holder_identity);
        let holder = holder.unwrap_or_default();
        // The identity is POD_PROCESS_TIME.
        let process = holder.split('_').nth(1).and_then(|id| id.parse().ok());
        let leading = processes
            .iter()
            .find(|(_, id)| id.is_some() && *id == process);
        Ok(match leading {
            Some((replica, _)) => Progress::Done(*replica),
            None => Progress::NotYet(format!("{holder:?} does")),
        })
    })
    .await
}

fn is_gated(pod: &Pod) -> bool {
    let spec = pod.spec.as_ref();
    let gates = spec.and_then(|spec| spec.scheduling_gates.as_ref());
    gates.is_some_and(|gates| !gates.is_empty())
}
