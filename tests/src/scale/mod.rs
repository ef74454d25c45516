//! How fast gangs run on a real control plane with many nodes: `cargo xtask bench scale --real`.
//!
//! etcd, kube-apiserver, kube-controller-manager and kube-scheduler are real, and so are Muster's controller, webhook
//! and extender, installed by the chart; the nodes are played ([`crate::fake_nodes`]). Gangs of two pods with eight GPUs
//! each are submitted as Indexed Jobs, as fast as the API server takes them, until nine tenths of the cluster are asked
//! for. What is reported was seen from outside: by a watch of Gangs, and in `/proc`.

mod load;
mod permitted;
mod watched;

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use anyhow::{Context, Result};
use serde::Serialize;

use crate::{cluster::Cluster, fake_nodes::FakeNodes, processes::Processes};
use load::Load;
use watched::Watched;

/// Longest time until all gangs run.
const LIMIT: Duration = Duration::from_mins(20);
/// How often what the watch has seen is looked at.
const LOOK: Duration = Duration::from_millis(100);

/// What was measured.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ScaleReport {
    /// Played nodes, of 8 GPUs each.
    pub nodes: u32,
    /// Gangs, of two pods with 8 GPUs each.
    pub gangs: usize,
    /// Gangs divided by the seconds from the first that was admitted to the last that runs.
    pub gangs_per_second: f64,
    /// From the creation of the first Job to all gangs running, in seconds.
    pub makespan_seconds: f64,
    /// From the answer to a Job's creation to its gang's admission.
    pub created_to_admitted_seconds: Percentiles,
    /// From a gang's admission to its phase Running.
    pub admitted_to_running_seconds: Percentiles,
    /// From the deletion of the first Job to no permit left, in seconds.
    pub release_seconds: f64,
    /// CPU seconds that each program took from the first Job to all gangs running.
    pub cpu_seconds: BTreeMap<String, f64>,
    /// Resident memory of each program at the end, in MiB.
    pub memory_mi_b: BTreeMap<String, f64>,
}

/// Two quantiles of a sample, by nearest rank.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Percentiles {
    /// The median.
    pub p50: f64,
    /// The 99th percentile.
    pub p99: f64,
}

impl Percentiles {
    /// Of a sample in any order; zero of none.
    pub fn of(mut sample: Vec<f64>) -> Self {
        sample.sort_by(f64::total_cmp);
        let at = |per_cent: usize| {
            let rank = (sample.len() * per_cent).div_ceil(100);
            sample
                .get(rank.saturating_sub(1))
                .copied()
                .unwrap_or_default()
        };
        Self {
            p50: at(50),
            p99: at(99),
        }
    }
}

/// Submits the load on a cluster with these nodes and measures. `say` is told of progress.
pub async fn measure(
    cluster: &Cluster,
    nodes: FakeNodes,
    say: impl Fn(&str),
) -> Result<ScaleReport> {
    let load = Load::prepare(cluster, nodes).await?;
    let watched = Watched::start(cluster.client());
    let gangs = load.gangs();
    let before = Processes::now()?;
    let began = Instant::now();
    say(&format!("submitting {gangs} gangs"));
    let submitted = load.submit().await?;
    say(&format!(
        "all submitted after {:.1} s",
        began.elapsed().as_secs_f64()
    ));
    let mut told = Instant::now();
    let seen = loop {
        let seen = watched.seen();
        if seen.running() >= gangs {
            break seen;
        }
        if told.elapsed() > Duration::from_secs(5) {
            told = Instant::now();
            say(&format!(
                "{} admitted, {} running",
                seen.admitted(),
                seen.running()
            ));
        }
        anyhow::ensure!(
            began.elapsed() < LIMIT,
            "{} of {gangs} gangs run after {} s",
            seen.running(),
            LIMIT.as_secs()
        );
        tokio::time::sleep(LOOK).await;
    };
    let after = Processes::now()?;
    let last = seen.last_running().context("no gang runs")?;
    let first = seen.first_admitted().context("no gang was admitted")?;
    permitted::check(&cluster.client(), gangs * load::RANKS).await?;
    let deleting = Instant::now();
    say("all run, each pod with a permit; deleting them");
    load.clear(LIMIT).await?;
    #[expect(
        clippy::cast_precision_loss,
        reason = "a number of gangs is far below 2^52"
    )]
    let count = gangs as f64;
    Ok(ScaleReport {
        nodes: nodes.count,
        gangs,
        gangs_per_second: count / last.duration_since(first).as_secs_f64(),
        makespan_seconds: last.duration_since(began).as_secs_f64(),
        created_to_admitted_seconds: Percentiles::of(seen.created_to_admitted(&submitted)),
        admitted_to_running_seconds: Percentiles::of(seen.admitted_to_running()),
        release_seconds: deleting.elapsed().as_secs_f64(),
        cpu_seconds: after.cpu_since(&before),
        memory_mi_b: after.memory(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_by_nearest_rank() {
        let sample = |count: u32| (1..=count).rev().map(f64::from).collect();
        for (count, p50, p99) in [
            (1, 1.0, 1.0),
            (2, 1.0, 2.0),
            (100, 50.0, 99.0),
            (200, 100.0, 198.0),
        ] {
            assert_eq!(Percentiles::of(sample(count)), Percentiles { p50, p99 });
        }
        assert_eq!(Percentiles::of(Vec::new()), Percentiles::default());
    }
}
