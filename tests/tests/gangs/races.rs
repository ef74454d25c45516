//! Gangs that are created at the same moment and cannot all have what they ask for.

use std::{env, time::Duration};

use anyhow::{Context, Result};
use muster_api::{GangPhase, Reason};
use muster_tests::{
    builders::RankProgram,
    cluster::Cluster,
    gangs,
    kubernetes::{LIMIT, Progress, always, eventually},
    scenarios,
    suite::Scenario,
    workloads::Workload,
};

use crate::stage::prepare_team;

pub(crate) fn scenarios() -> Vec<Scenario> {
    let scenarios =
        scenarios![of_two_gangs_that_fit_only_one_at_a_time_one_runs_and_the_other_waits_whole];
    let more = RACE_LIMIT * runs().saturating_sub(RUNS);
    let long = scenarios.into_iter().map(|race| race.with_more_time(more));
    long.collect()
}

/// How often the two gangs race, unless `cargo xtask test gangs --runs N` says otherwise.
const RUNS: u32 = 10;
/// Longest time of one more race.
const RACE_LIMIT: Duration = Duration::from_secs(15);

fn runs() -> u32 {
    let runs = env::var("MUSTER_RUNS").ok();
    runs.and_then(|runs| runs.parse().ok()).unwrap_or(RUNS)
}

async fn of_two_gangs_that_fit_only_one_at_a_time_one_runs_and_the_other_waits_whole(
    cluster: &mut Cluster,
) -> Result<()> {
    let client = cluster.client();
    prepare_team(&client, "twins", "solo", 16).await?;
    for run in 0..runs() {
        race(cluster, run)
            .await
            .with_context(|| format!("run {run}"))?;
    }
    // Two of half the size do fit together.
    let halves = ["half-a", "half-b"].map(|name| Workload {
        namespace: "twins",
        name,
        ranks: 2,
        gpus: 2,
    });
    let ranks = create_interleaved(cluster, &halves).await?;
    for half in &halves {
        gangs::wait_until_running(&client, "twins", &gangs::of_label(half.name)).await?;
    }
    for (half, ranks) in halves.iter().zip(ranks) {
        ranks.finish()?;
        gangs::wait_until_finished(&client, "twins", &gangs::of_label(half.name)).await?;
    }
    Ok(())
}

async fn race(cluster: &mut Cluster, run: u32) -> Result<()> {
    let client = cluster.client();
    let names = [format!("a{run}"), format!("b{run}")];
    let twins = names.each_ref().map(|name| Workload {
        namespace: "twins",
        name,
        ranks: 4,
        gpus: 2,
    });
    let ranks = create_interleaved(cluster, &twins).await?;
    let phases = [GangPhase::Running];
    let first = eventually("one of the two runs", LIMIT, async || {
        for (number, name) in names.iter().enumerate() {
            let gang = gangs::find(&client, "twins", &gangs::of_label(name)).await?;
            if gang
                .and_then(|gang| gang.status)
                .is_some_and(|status| phases.contains(&status.phase))
            {
                return Ok(Progress::Done(number));
            }
        }
        Ok(Progress::NotYet("none runs".to_owned()))
    })
    .await?;
    let second = 1 - first;
    let waiting = gangs::of_label(&names[second]);
    gangs::wait_for_reason(&client, "twins", &waiting, Reason::WaitingForPlacement).await?;
    always(
        "no pod of the other is bound",
        Duration::from_millis(500),
        async || {
            gangs::ensure_none_bound(&client, "twins", &names[second]).await?;
            Ok(Progress::Done(()))
        },
    )
    .await?;
    ranks[first].finish()?;
    gangs::wait_until_running(&client, "twins", &waiting).await?;
    ranks[second].finish()?;
    gangs::wait_until_finished(&client, "twins", &waiting).await?;
    ranks.iter().try_for_each(RankProgram::ensure_all_met)
}

/// Creates the pods of several gangs in turn, as fast as the API server takes them.
async fn create_interleaved(
    cluster: &Cluster,
    workloads: &[Workload<'_>],
) -> Result<Vec<RankProgram>> {
    let client = cluster.client();
    let mut prepared = Vec::new();
    for workload in workloads {
        prepared.push(workload.prepare(cluster).await?);
    }
    for number in 0..workloads.first().map_or(0, |workload| workload.ranks) {
        for (workload, (_, spec)) in workloads.iter().zip(&prepared) {
            workload.create_labelled_pod(&client, spec, number).await?;
        }
    }
    Ok(prepared.into_iter().map(|(program, _)| program).collect())
}
