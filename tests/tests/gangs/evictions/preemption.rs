//! A Team has its quota back from one that borrows it.

use anyhow::{Context, Result, ensure};
use jiff::Timestamp;
use kube::{Api, Client, ResourceExt};
use muster_api::{
    PriorityTier, PriorityTierSpec, Reason, TeamSpec, TierPreemption, gang::PreemptionNotice, keys,
    team::TeamTiers,
};
use muster_tests::{
    builders::{self, gpu_quota},
    cluster::Cluster,
    events, gangs,
    kubernetes::{self, LIMIT, Progress, eventually},
    scenarios,
    suite::Scenario,
    workloads::Workload,
};

use super::{ensure_job_goes_on, wait_for_eviction};
use crate::stage::prepare_flavors;

pub(super) fn scenarios() -> Vec<Scenario> {
    scenarios![a_team_that_borrows_is_told_and_gives_back_and_its_job_runs_again_when_there_is_room]
}

const NOTICE_SECONDS: i64 = 5;

/// Team `lends` owns half of the GPUs, Team `borrows` the other half; the latter uses all.
async fn a_team_that_borrows_is_told_and_gives_back_and_its_job_runs_again_when_there_is_room(
    cluster: &mut Cluster,
) -> Result<()> {
    let client = cluster.client();
    prepare_flavors(&client).await?;
    tier(&client).await?;
    builders::cohort(&client, "halves", Vec::new()).await?;
    for name in ["lends", "borrows"] {
        let spec = TeamSpec {
            cohort: Some("halves".to_owned()),
            quota: vec![gpu_quota("fabric", 8, None)],
            tiers: Some(TeamTiers {
                default: Some("gives-way".to_owned()),
                ..TeamTiers::default()
            }),
            ..TeamSpec::default()
        };
        builders::team_of(&client, name, spec).await?;
        builders::namespace(&client, name, Some(name)).await?;
    }
    let large = Workload {
        namespace: "borrows",
        name: "large",
        ranks: 8,
        gpus: 2,
    };
    let large_ranks = large.submit_job(cluster, &[]).await?;
    let borrows = gangs::of_job("large");
    gangs::wait_until_running(&client, "borrows", &borrows).await?;

    let own = Workload {
        namespace: "lends",
        name: "own",
        ranks: 4,
        gpus: 2,
    };
    let own_ranks = own.submit_job(cluster, &[]).await?;
    let lends = gangs::of_job("own");
    let notice = wait_for_notice(&client, &borrows).await?;
    ensure!(notice.preemptor.starts_with("lends/"), "{notice:?}");
    gangs::ensure_says(&notice.message, &[notice.preemptor.as_str(), "quota"])?;
    wait_until_pods_are_told(&client, &borrows, notice.preempt_at.0).await?;
    gangs::wait_for_reason(&client, "lends", &lends, Reason::WaitingForRelease).await?;
    for (kind, beginning) in [("Gang", borrows.as_str()), ("Job", "large")] {
        let reason = Reason::PreemptionNotice;
        events::wait_for_reason(&client, "borrows", kind, beginning, reason).await?;
    }

    let (gang, eviction) =
        wait_for_eviction(&client, "borrows", &borrows, Reason::Preempted).await?;
    gangs::ensure_says(&eviction.message, &[notice.preemptor.as_str()])?;
    let lasted = eviction.at.0.as_second() - notice.noticed_at.0.as_second();
    ensure!(lasted >= NOTICE_SECONDS, "its notice took {lasted} s");
    let status = gang.status.context("a status")?;
    ensure!(status.requeue_at.is_none(), "{:?}", status.requeue_at);
    let queued_at = status.queued_at.context("its age")?;
    events::wait_for_reason(&client, "borrows", "Job", "large", Reason::Preempted).await?;
    gangs::wait_until_running(&client, "lends", &lends).await?;
    gangs::wait_for_reason(&client, "borrows", &borrows, Reason::WaitingForQuota).await?;
    ensure_job_goes_on(&client, "borrows", "large", 0, 0).await?;

    own_ranks.finish()?;
    gangs::wait_for_job(&client, "lends", "own").await?;
    own_ranks.ensure_all_met()?;
    let again = gangs::wait_until_running_again(&client, "borrows", &borrows, 2).await?;
    let status = again.status.context("a status")?;
    ensure!(status.queued_at == Some(queued_at), "it lost its age");
    ensure!(status.preemption.is_none(), "{:?}", status.preemption);
    large_ranks.finish()?;
    gangs::wait_for_job(&client, "borrows", "large").await?;
    large_ranks.ensure_all_met()
}

/// A tier whose gangs give way after a notice that a test can wait for.
async fn tier(client: &Client) -> Result<()> {
    let spec = PriorityTierSpec {
        value: 50,
        preemption: TierPreemption::Immediate,
        notice_seconds: Some(NOTICE_SECONDS),
        ..PriorityTierSpec::default()
    };
    let tier = PriorityTier::new("gives-way", spec);
    kubernetes::apply(&Api::all(client.clone()), &tier).await?;
    Ok(())
}

async fn wait_for_notice(client: &Client, beginning: &str) -> Result<PreemptionNotice> {
    let what = format!("gang borrows/{beginning}* is told to give way");
    eventually(&what, LIMIT, async || {
        let gang = gangs::find(client, "borrows", beginning).await?;
        let status = gang.and_then(|gang| gang.status).unwrap_or_default();
        Ok(match status.preemption {
            Some(notice) => Progress::Done(notice),
            None => Progress::NotYet(format!("{:?}", status.conditions)),
        })
    })
    .await
}

/// Every pod of the gang carries the time at which it is to go, or is going already.
async fn wait_until_pods_are_told(client: &Client, beginning: &str, at: Timestamp) -> Result<()> {
    eventually("all pods are told", LIMIT, async || {
        let gang = gangs::find(client, "borrows", beginning).await?;
        let gang = gang.context("there is no such Gang")?;
        let pods = gangs::pods(client, &gang).await?;
        let told = |pod: &k8s_openapi::api::core::v1::Pod| {
            let said = pod.annotations().get(keys::PREEMPT_AT);
            said.and_then(|said| said.parse().ok()) == Some(at)
        };
        let count = pods.values().filter(|pod| told(pod)).count();
        Ok(Progress::when(count == 8, || format!("{count} of 8")))
    })
    .await
}
