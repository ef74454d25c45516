//! A Team has its quota back from one that borrows it.

use anyhow::{Context, Result, ensure};
use muster_api::{Reason, TierPreemption};
use muster_tests::{
    builders::tier, cluster::Cluster, events, gangs, scenarios, suite::Scenario,
    workloads::Workload,
};

use super::{prepare_teams, wait_for_notice, wait_until_counted, wait_until_pods_are_told};
use crate::evictions::{ensure_job_goes_on, wait_for_eviction};

pub(super) fn scenarios() -> Vec<Scenario> {
    scenarios![a_team_that_borrows_is_told_and_gives_back_and_its_job_runs_again_when_there_is_room]
}

const NOTICE_SECONDS: i64 = 5;

/// Team `lends` owns half of the GPUs, Team `borrows` the other half; the latter uses all.
async fn a_team_that_borrows_is_told_and_gives_back_and_its_job_runs_again_when_there_is_room(
    cluster: &mut Cluster,
) -> Result<()> {
    let client = cluster.client();
    let immediate = TierPreemption::Immediate;
    tier(&client, "gives-way", 50, immediate, Some(NOTICE_SECONDS)).await?;
    let teams = [("lends", 8), ("borrows", 8)];
    prepare_teams(&client, "halves", teams, "gives-way").await?;
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
    let notice = wait_for_notice(&client, "borrows", &borrows).await?;
    ensure!(notice.preemptor.starts_with("lends/"), "{notice:?}");
    gangs::ensure_says(&notice.message, &[notice.preemptor.as_str(), "quota"])?;
    wait_until_pods_are_told(&client, "borrows", &borrows, &notice, 8).await?;
    gangs::wait_for_reason(&client, "lends", &lends, Reason::WaitingForRelease).await?;
    for (kind, beginning) in [("Gang", borrows.as_str()), ("Job", "large")] {
        let reason = Reason::PreemptionNotice;
        events::wait_for_reason(&client, "borrows", kind, beginning, reason).await?;
    }
    for (kind, beginning) in [("Gang", lends.as_str()), ("Job", "own")] {
        let reason = Reason::WaitingForRelease;
        events::wait_for_reason(&client, "lends", kind, beginning, reason).await?;
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

    let muster = cluster.installation()?;
    for counted in [
        "muster_evicted_gangs_total{team=\"borrows\",reason=\"Preempted\"} 1",
        "muster_preempted_gangs_total{preempting_team=\"lends\",reason=\"Reclaimed\"} 1",
    ] {
        wait_until_counted(muster, counted).await?;
    }

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
