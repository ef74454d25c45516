//! An urgent gang of a Team takes the place of one that can wait, whatever that one makes of SIGTERM.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use muster_api::{Reason, TeamSpec, TierPreemption};
use muster_tests::{
    builders::{self, RankProgram, gpu_quota, tier},
    cluster::Cluster,
    gangs,
    kubernetes::{is_terminal, list},
    scenarios,
    suite::Scenario,
    workloads::Workload,
};

use super::{wait_for_notice, wait_until_pods_are_told};
use crate::{evictions::wait_for_eviction, stage::prepare_flavors};

pub(super) fn scenarios() -> Vec<Scenario> {
    scenarios![an_urgent_gang_takes_the_place_of_the_latest_that_can_wait_though_it_ignores_sigterm]
}

const NOTICE_SECONDS: i64 = 4;

/// The Team's 16 GPUs are used by two gangs of a low tier. The one that was admitted last goes; its ranks ignore SIGTERM,
/// and until the kubelet has killed them the urgent gang waits.
async fn an_urgent_gang_takes_the_place_of_the_latest_that_can_wait_though_it_ignores_sigterm(
    cluster: &mut Cluster,
) -> Result<()> {
    let client = cluster.client();
    prepare_flavors(&client).await?;
    let immediate = TierPreemption::Immediate;
    tier(&client, "can-wait", 5, immediate, Some(NOTICE_SECONDS)).await?;
    tier(&client, "urgent", 900, TierPreemption::Never, None).await?;
    let spec = TeamSpec {
        quota: vec![gpu_quota("fabric", 16, None)],
        ..TeamSpec::default()
    };
    builders::team_of(&client, "mixed", spec).await?;
    builders::namespace(&client, "mixed", Some("mixed")).await?;
    let gang = |name| Workload {
        namespace: "mixed",
        name,
        ranks: 2,
        gpus: 4,
    };
    let mut can_wait = Vec::new();
    for name in ["first", "second"] {
        let ranks = gang(name)
            .submit_job_of_tier(cluster, "can-wait", RankProgram::ignoring_sigterm)
            .await?;
        can_wait.push((name, ranks));
        gangs::wait_until_running(&client, "mixed", &gangs::of_job(name)).await?;
        // Of gangs that were admitted within the same second either may be the latest.
        tokio::time::sleep(Duration::from_secs(1)).await;
    }

    let urgent = gang("now")
        .submit_job_of_tier(cluster, "urgent", |ranks| ranks)
        .await?;
    let second = gangs::of_job("second");
    let notice = wait_for_notice(&client, "mixed", &second).await?;
    wait_until_pods_are_told(&client, "mixed", &second, &notice, 2).await?;
    let told = pods_of(&client, "second").await?;
    let (_, eviction) = wait_for_eviction(&client, "mixed", &second, Reason::Preempted).await?;
    let lasted = eviction.at.0.as_second() - notice.noticed_at.0.as_second();
    ensure!(lasted >= NOTICE_SECONDS, "its notice took {lasted} s");

    let running = gangs::wait_until_running(&client, "mixed", &gangs::of_job("now")).await?;
    let still_there = pods_of(&client, "second").await?;
    for pod in &told {
        ensure!(!still_there.contains(pod), "{pod} of the victim still runs");
    }
    let grace = told_grace_seconds(&client, &running).await?;
    let admitted = running.status.context("a status")?.conditions;
    let admitted = admitted.iter().find(|it| it.type_ == "Admitted");
    let admitted = admitted.context("a condition says when it was admitted")?;
    let waited = admitted.last_transition_time.0.as_second() - eviction.at.0.as_second();
    ensure!(
        waited >= grace,
        "it was admitted {waited} s after an eviction that only SIGKILL ends, after {grace} s"
    );
    let first = gangs::find(&client, "mixed", &gangs::of_job("first")).await?;
    let status = first.and_then(|gang| gang.status).context("a status")?;
    ensure!(
        status.attempt == 1 && status.preemption.is_none() && status.evictions.is_empty(),
        "the first had to go too: {status:?}"
    );

    urgent.finish()?;
    gangs::wait_for_job(&client, "mixed", "now").await?;
    urgent.ensure_all_met()?;
    gangs::wait_until_running_again(&client, "mixed", &second, 2).await?;
    for (name, ranks) in can_wait {
        ranks.finish()?;
        gangs::wait_for_job(&client, "mixed", name).await?;
        ranks.ensure_all_met()?;
    }
    Ok(())
}

/// UIDs of the pods of a Job that have not ended.
async fn pods_of(client: &kube::Client, job: &str) -> Result<Vec<String>> {
    let pods: Vec<Pod> = list(client, Some("mixed")).await?;
    let pods = pods.into_iter();
    let of_job = pods.filter(|pod| pod.owner_references().iter().any(|owner| owner.name == job));
    let alive = of_job.filter(|pod| !is_terminal(pod));
    Ok(alive.filter_map(|pod| pod.uid()).collect())
}

/// After how many seconds the kubelet kills what ignores SIGTERM: the same for all pods here.
async fn told_grace_seconds(client: &kube::Client, gang: &muster_api::Gang) -> Result<i64> {
    let pods = gangs::pods(client, gang).await?;
    let pod = pods.into_values().next().context("a pod")?;
    let spec = pod.spec.context("a spec")?;
    spec.termination_grace_period_seconds
        .context("a grace period")
}
