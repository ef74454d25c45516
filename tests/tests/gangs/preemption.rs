//! Gangs that give way to others: what they are told, when they go, and that they come back.

mod checkpoint;
mod reclaim;
mod shrink;
mod within_team;

use std::time::Duration;

use anyhow::Result;
use kube::{Client, ResourceExt};
use muster_api::{TeamSpec, gang::PreemptionNotice, keys, team::TeamTiers};
use muster_tests::{
    builders::{self, gpu_quota},
    gangs,
    install::{Installation, Part},
    kubernetes::{LIMIT, Progress, eventually},
    suite::Scenario,
};

use crate::stage::prepare_flavors;

pub(crate) fn scenarios() -> Vec<Scenario> {
    let scenarios = [
        reclaim::scenarios(),
        within_team::scenarios(),
        checkpoint::scenarios(),
        shrink::scenarios(),
    ];
    scenarios.into_iter().flatten().collect()
}

/// Two Teams in a Cohort of their own, each with a namespace of its name and so many GPUs of the fabric; gangs that name
/// no tier are of this one.
async fn prepare_teams(
    client: &Client,
    cohort: &str,
    teams: [(&str, u32); 2],
    default_tier: &str,
) -> Result<()> {
    prepare_flavors(client).await?;
    builders::cohort(client, cohort, Vec::new()).await?;
    for (name, gpus) in teams {
        let spec = TeamSpec {
            cohort: Some(cohort.to_owned()),
            quota: vec![gpu_quota("fabric", gpus, None)],
            tiers: Some(TeamTiers {
                default: Some(default_tier.to_owned()),
                ..TeamTiers::default()
            }),
            ..TeamSpec::default()
        };
        builders::team_of(client, name, spec).await?;
        builders::namespace(client, name, Some(name)).await?;
    }
    Ok(())
}

/// Waits until the Gang says that it is to give way.
async fn wait_for_notice(
    client: &Client,
    namespace: &str,
    beginning: &str,
) -> Result<PreemptionNotice> {
    wait_for_notice_within(client, namespace, beginning, LIMIT).await
}

async fn wait_for_notice_within(
    client: &Client,
    namespace: &str,
    beginning: &str,
    limit: Duration,
) -> Result<PreemptionNotice> {
    let what = format!("gang {namespace}/{beginning}* is told to give way");
    eventually(&what, limit, async || {
        let gang = gangs::find(client, namespace, beginning).await?;
        let status = gang.and_then(|gang| gang.status).unwrap_or_default();
        Ok(match status.preemption {
            Some(notice) => Progress::Done(notice),
            None => Progress::NotYet(format!("{:?}", status.conditions)),
        })
    })
    .await
}

/// So many pods of the Gang, all of them, carry the time at which it is to go.
async fn wait_until_pods_are_told(
    client: &Client,
    namespace: &str,
    beginning: &str,
    notice: &PreemptionNotice,
    pods_wanted: usize,
) -> Result<()> {
    eventually("all pods are told", LIMIT, async || {
        let Some(gang) = gangs::find(client, namespace, beginning).await? else {
            return Ok(Progress::NotYet("there is no such Gang".to_owned()));
        };
        let pods = gangs::pods(client, &gang).await?;
        let told = pods.values().filter(|pod| {
            let said = pod.annotations().get(keys::PREEMPT_AT);
            said.and_then(|said| said.parse().ok()) == Some(notice.preempt_at.0)
        });
        let count = told.count();
        Ok(Progress::when(count == pods_wanted, || {
            format!("{count} of {pods_wanted}")
        }))
    })
    .await
}

/// The controller's metrics have this line.
async fn wait_until_counted(muster: &Installation, line: &str) -> Result<()> {
    let (name, _) = line.split_once('{').unwrap_or((line, ""));
    eventually(&format!("there is {line}"), LIMIT, async || {
        let metrics = muster.metrics(Part::Controller).await?;
        let mut family = metrics.lines().filter(|line| line.starts_with(name));
        let is_counted = family.any(|counted| counted == line);
        Ok(Progress::when(is_counted, || {
            let family = metrics.lines().filter(|line| line.starts_with(name));
            format!("{:?}", family.collect::<Vec<_>>())
        }))
    })
    .await
}
