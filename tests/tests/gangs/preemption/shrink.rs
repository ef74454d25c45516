//! Quota is lowered below what Teams use: one of them gives back, because it says so.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use jiff::Timestamp;
use kube::Client;
use muster_api::{Reason, TeamSpec, TierPreemption, gang::PreemptionRight, team::Shrink};
use muster_tests::{
    builders::{self, RankProgram, gpu_quota, tier},
    cluster::Cluster,
    events, gangs,
    kubernetes::LIMIT,
    scenarios,
    suite::Scenario,
    workloads::Workload,
};

use super::{wait_for_notice_within, wait_until_counted, wait_until_pods_are_told};
use crate::{
    evictions::{ensure_job_goes_on, wait_for_eviction},
    stage::prepare_flavors,
};

pub(super) fn scenarios() -> Vec<Scenario> {
    let scenarios =
        scenarios![a_lowered_quota_costs_one_gang_of_the_team_that_says_so_after_a_minute];
    let long = scenarios.into_iter();
    long.map(|one| one.with_more_time(AFTER)).collect()
}

/// For so long a gang would have to go before it is told.
const AFTER: Duration = Duration::from_secs(60);
const NOTICE_SECONDS: i64 = 3;
/// Each has four GPUs.
const GANGS: [(&str, &str, &str); 5] = [
    ("gives", "first", "dear"),
    ("gives", "spare", "spare"),
    ("gives", "second", "dear"),
    ("keeps", "third", "spare"),
    ("keeps", "fourth", "dear"),
];

/// Team `gives` has to give back four GPUs of twelve, Team `keeps` has four too many as well and says nothing of them.
async fn a_lowered_quota_costs_one_gang_of_the_team_that_says_so_after_a_minute(
    cluster: &mut Cluster,
) -> Result<()> {
    let client = cluster.client();
    prepare_flavors(&client).await?;
    let immediate = TierPreemption::Immediate;
    for (name, value) in [("dear", 500), ("spare", 5)] {
        tier(&client, name, value, immediate, Some(NOTICE_SECONDS)).await?;
    }
    set_quotas(&client, 12, 8).await?;
    for team in ["gives", "keeps"] {
        builders::namespace(&client, team, Some(team)).await?;
    }
    let mut programs = Vec::new();
    for (team, name, tier) in GANGS {
        let gang = Workload {
            namespace: team,
            name,
            ranks: 2,
            gpus: 2,
        };
        programs.push(gang.submit_job_of_tier(cluster, tier, |it| it).await?);
    }
    for (team, name, _) in GANGS {
        gangs::wait_until_running(&client, team, &gangs::of_job(name)).await?;
    }

    let lowered_at = Timestamp::now().as_second();
    set_quotas(&client, 8, 4).await?;
    spare_one_goes(&client, lowered_at).await?;
    others_stay(&client).await?;
    let charged = gangs::charged(&client).await?;
    let of = |team| charged.get(team).copied();
    ensure!(
        (of("gives"), of("keeps")) == (Some(8_000), Some(8_000)),
        "{charged:?}"
    );
    let counted = "muster_evicted_gangs_total{team=\"gives\",reason=\"QuotaShrunk\"} 1";
    wait_until_counted(cluster.installation()?, counted).await?;

    set_quotas(&client, 12, 8).await?;
    gangs::wait_until_running_again(&client, "gives", &gangs::of_job("spare"), 2).await?;
    programs.iter().try_for_each(RankProgram::finish)?;
    for ((team, name, _), ranks) in GANGS.into_iter().zip(&programs) {
        gangs::wait_for_job(&client, team, name).await?;
        ranks.ensure_all_met()?;
    }
    others_stay(&client).await
}

async fn set_quotas(client: &Client, gives: u32, keeps: u32) -> Result<()> {
    for (name, gpus, shrink) in [
        ("gives", gives, Shrink::Evict),
        ("keeps", keeps, Shrink::default()),
    ] {
        let spec = TeamSpec {
            quota: vec![gpu_quota("fabric", gpus, None)],
            shrink,
            ..TeamSpec::default()
        };
        builders::team_of(client, name, spec).await?;
    }
    Ok(())
}

/// Of its Team the gang of the lower tier goes, though another one was admitted later: told first, not before the minute is over,
/// and without losing its place.
async fn spare_one_goes(client: &Client, lowered_at: i64) -> Result<()> {
    let spare = gangs::of_job("spare");
    let gang = gangs::find(client, "gives", &spare).await?;
    let queued_at = gang.and_then(|gang| gang.status?.queued_at);
    ensure!(queued_at.is_some(), "it has no age");
    let notice = wait_for_notice_within(client, "gives", &spare, AFTER + LIMIT).await?;
    let after = notice.noticed_at.0.as_second() - lowered_at;
    // Both are whole seconds, and the leader counts by a clock of its own.
    ensure!(
        after + 1 >= i64::try_from(AFTER.as_secs())?,
        "it was told {after} s after the quota was lowered"
    );
    ensure!(
        notice.right == PreemptionRight::QuotaShrunk && notice.preemptor.is_empty(),
        "{notice:?}"
    );
    let why = "Team gives uses 12 GPUs of fabric where 8 may be used";
    gangs::ensure_says(&notice.message, &[why])?;
    wait_until_pods_are_told(client, "gives", &spare, &notice, 2).await?;

    let (gang, eviction) = wait_for_eviction(client, "gives", &spare, Reason::QuotaShrunk).await?;
    let lasted = eviction.at.0.as_second() - notice.noticed_at.0.as_second();
    ensure!(lasted >= NOTICE_SECONDS, "its notice took {lasted} s");
    let status = gang.status.context("a status")?;
    ensure!(
        status.queued_at == queued_at && status.requeue_at.is_none(),
        "it lost its place: {status:?}"
    );
    for reason in [Reason::PreemptionNotice, Reason::QuotaShrunk] {
        for (kind, beginning) in [("Gang", spare.as_str()), ("Job", "spare")] {
            events::wait_for_reason(client, "gives", kind, beginning, reason).await?;
        }
    }
    gangs::wait_for_reason(client, "gives", &spare, Reason::WaitingForQuota).await?;
    ensure_job_goes_on(client, "gives", "spare", 0, 0).await
}

/// All others are in their first attempt, and nobody has told them anything.
async fn others_stay(client: &Client) -> Result<()> {
    for (team, name, _) in GANGS.into_iter().filter(|(_, name, _)| *name != "spare") {
        let gang = gangs::find(client, team, &gangs::of_job(name)).await?;
        let status = gang.and_then(|gang| gang.status).context("a status")?;
        ensure!(
            status.attempt == 1 && status.evictions.is_empty() && status.preemption.is_none(),
            "{team}/{name} should stay: {status:?}"
        );
    }
    Ok(())
}
