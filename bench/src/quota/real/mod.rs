//! Kueue's scenario on a real control plane: `cargo xtask bench quota --real`.
//!
//! etcd, kube-apiserver, kube-controller-manager, kube-scheduler and Muster's programs are real; only nodes are played. A gang
//! is a Job of one pod with the gang label: unlike Kueue's scenario, pods are made, gated, placed, bound, run and, where their gang
//! gives way, ended and made again. So more is written for each gang than Kueue writes, by us and by Kubernetes.
//!
//! Gangs are created when the scenario says, or as soon after as the API server takes them. What is reported was seen by a watch
//! of Gangs, in `/proc`, and among the controller's metrics.

mod load;
mod metrics;
mod seen;

use std::{collections::BTreeMap, path::PathBuf, time::Duration};

use anyhow::{Result, bail, ensure};
use muster_tests::{
    cluster::{Cluster, ClusterOptions},
    fake_nodes::FakeNodes,
    install::{MusterOptions, Part},
    preflight,
    processes::Processes,
    progress::ProgressCallback,
    suite,
};
use serde::Serialize;

use super::{
    Choice,
    published::{self, Published},
    scenario::{Name, Scenario},
    summary::Summary,
};
use crate::{
    progress::Progress,
    report::{Verdict, write},
};
use seen::Seen;

/// Played nodes: with 128 cores each, far more than all quota, so that quota alone decides.
const NODES: FakeNodes = FakeNodes { count: 40, gpus: 1 };
/// Longest time until all gangs have ended.
const LIMIT: Duration = Duration::from_hours(3);
/// How often what was seen is looked at.
const LOOK: Duration = Duration::from_millis(200);
/// Of the time on the processor that Kueue's process takes, at most so much is the controller's.
const MOST_OF_KUEUE: f64 = 0.25;
/// The program whose time is compared.
const CONTROLLER: &str = "muster-controller";

/// One of Kueue's performance scenarios on a real control plane with played nodes.
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// Which of them.
    #[arg(long, value_enum, default_value = "baseline")]
    scenario: Choice,
    /// Calls that the controller may send to the API server in a second; 0: no bound. Kueue's runner has 50.
    #[arg(long, default_value_t = 0)]
    kube_api_qps: u32,
    /// Only the first so many of the scenario's Cohorts, which share nothing, so that a part is as hard for each gang; 0: all.
    #[arg(long, default_value_t = 0)]
    cohorts: usize,
    /// Writes what was measured as JSON.
    #[arg(long, value_name = "FILE")]
    report: Option<PathBuf>,
}

/// Runs each scenario on a cluster of its own.
pub(crate) async fn run(arguments: Arguments) -> Result<()> {
    let mut runs = Vec::new();
    for name in arguments.scenario.names() {
        let run = measure(*name, &arguments).await?;
        run.print();
        runs.push(run);
    }
    write(&runs, arguments.report.as_deref())
}

/// What was measured.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct RealRun {
    scenario: &'static str,
    gangs: usize,
    teams: usize,
    cohorts: usize,
    kube_api_qps: u32,
    nodes: u32,
    /// File and SHA-256.
    traces: Vec<(String, String)>,
    least_makespan_ms: u64,
    /// When the last gang was to be created, and when it was.
    last_creation_wanted_ms: u64,
    last_creation_ms: u64,
    muster: Summary,
    /// From the first Job to the last end, by program, in seconds.
    processor_seconds: BTreeMap<String, f64>,
    #[serde(rename = "memoryMiB")]
    memory_mebibytes: BTreeMap<String, f64>,
    /// Of the leader's task: what it is told, what it decides, what it wants written.
    deciding_seconds: f64,
    /// Calls of the controller, by kind.
    calls: BTreeMap<String, u64>,
    calls_per_admission: f64,
    published: Published,
    targets: Vec<Verdict>,
}

async fn measure(name: Name, arguments: &Arguments) -> Result<RealRun> {
    suite::prepare_process();
    if let Some(reason) = preflight::missing().await {
        bail!("{reason}");
    }
    let mut scenario = Scenario::read(name)?;
    if arguments.cohorts > 0 {
        scenario.keep_cohorts(arguments.cohorts);
    }
    let values = match arguments.kube_api_qps {
        0 => Vec::new(),
        qps => vec![format!(
            "controller.extraArgs={{--kube-api-qps={qps},--kube-api-burst={}}}",
            2 * qps
        )],
    };
    let cluster = Cluster::start(ClusterOptions {
        fake_nodes: Some(NODES),
        muster: Some(MusterOptions {
            values,
            ..MusterOptions::default()
        }),
        progress: ProgressCallback::to(|step| eprintln!("{step}")),
        ..ClusterOptions::default()
    })
    .await?;
    let measured = run_on(&cluster, name, arguments, scenario).await;
    cluster.stop().await;
    measured
}

#[expect(
    clippy::cast_precision_loss,
    reason = "numbers of gangs and calls are far below 2^52"
)]
async fn run_on(
    cluster: &Cluster,
    name: Name,
    arguments: &Arguments,
    mut scenario: Scenario,
) -> Result<RealRun> {
    let muster = cluster.muster.as_ref();
    let Some(muster) = muster else {
        bail!("Muster is not installed");
    };
    let mut progress = Progress::of(&format!(
        "{} on a real API server: {} gangs of {} Teams in {} Cohorts",
        name.as_str(),
        scenario.jobs.len(),
        scenario.teams.len(),
        scenario.cohorts
    ));
    load::prepare(&cluster.client(), &scenario).await?;
    let calls_before = metrics::calls(&muster.metrics(Part::Controller).await?);
    let before = Processes::now()?;
    let seen = Seen::start(cluster.client(), &scenario);
    let mut creating = load::start(cluster.client(), &scenario, seen.begun())?;
    let mut created = None;
    let last_creation_wanted_ms = scenario.jobs.last().map_or(0, |job| job.arrives_at);
    while !seen.have_all_finished() {
        progress.tick(|| seen.to_string());
        if let Some(wrong) = seen.wrong() {
            bail!("{wrong}");
        }
        ensure!(
            seen.begun().elapsed() < LIMIT,
            "after {} s: {seen}",
            LIMIT.as_secs()
        );
        // What cannot be created never ends either.
        tokio::select! {
            done = &mut creating, if created.is_none() => created = Some(done??),
            () = tokio::time::sleep(LOOK) => {}
        }
    }
    let after = Processes::now()?;
    let created = match created {
        Some(created) => created,
        None => creating.await??,
    };
    for (job, at) in scenario.jobs.iter_mut().zip(&created) {
        job.arrives_at = *at;
    }
    let outcome = seen.outcome();
    let text = muster.metrics(Part::Controller).await?;
    let mut calls = metrics::calls(&text);
    for (kind, before) in calls_before {
        calls
            .entry(kind)
            .and_modify(|calls| *calls = calls.saturating_sub(before));
    }
    let admissions = outcome.evictions + scenario.jobs.len() as u64;
    let processor_seconds = after.cpu_since(&before);
    let published = published::of(name);
    // Kueue's time is that of all its gangs.
    let share = scenario.jobs.len() as f64 / published.gangs as f64;
    let of_controller = processor_seconds.get(CONTROLLER).copied();
    let Some(of_controller) = of_controller else {
        bail!("no process is called {CONTROLLER}: {processor_seconds:?}");
    };
    let targets = vec![Verdict::at_most(
        "the controller's time on the processor over that of Kueue's process, for as many gangs",
        of_controller / (published.processor_seconds * share),
        MOST_OF_KUEUE,
    )];
    Ok(RealRun {
        scenario: name.as_str(),
        gangs: scenario.jobs.len(),
        teams: scenario.teams.len(),
        cohorts: scenario.cohorts,
        kube_api_qps: arguments.kube_api_qps,
        nodes: NODES.count,
        traces: scenario.checksums.clone(),
        least_makespan_ms: scenario.least_makespan(),
        last_creation_wanted_ms,
        last_creation_ms: created.last().copied().unwrap_or_default(),
        muster: Summary::of(&scenario, &outcome),
        processor_seconds,
        memory_mebibytes: after.memory(),
        deciding_seconds: metrics::deciding_seconds(&text),
        calls_per_admission: calls.values().sum::<u64>() as f64 / admissions as f64,
        calls,
        published,
        targets,
    })
}

impl RealRun {
    /// The rows for people.
    pub(super) fn print(&self) {
        let bound = match self.kube_api_qps {
            0 => "no bound".to_owned(),
            qps => format!("at most {qps} calls a second"),
        };
        println!(
            "\n{} on a real API server, {bound}: {} gangs of {} Teams in {} Cohorts",
            self.scenario, self.gangs, self.teams, self.cohorts
        );
        let row = |what: &str, muster: String, kueue: String| {
            println!("{what:<34}{muster:>12}{kueue:>12}");
        };
        row("", "Muster".to_owned(), "Kueue".to_owned());
        let (muster, kueue) = (&self.muster, &self.published);
        row(
            "makespan, ms",
            muster.makespan_ms.to_string(),
            kueue.makespan_ms.to_string(),
        );
        for (name, class) in &muster.classes {
            let published = kueue.time_to_admission_mean_ms.get(name.as_str());
            row(
                &format!("{name}: admitted after, mean ms"),
                format!("{:.0}", class.time_to_admission_ms.mean),
                published.map_or_else(String::new, ToString::to_string),
            );
            row(
                &format!("{name}: evictions"),
                class.evictions.to_string(),
                String::new(),
            );
        }
        for (name, percent) in &muster.quota_use_percent {
            row(
                &format!("{name}: quota in use, %"),
                format!("{percent:.1}"),
                format!("{:.1}", kueue.quota_use_percent),
            );
        }
        for (program, seconds) in &self.processor_seconds {
            let kueue = (program == CONTROLLER).then(|| format!("{:.0}", kueue.processor_seconds));
            let text = format!("{program}: on the processor, s");
            row(&text, format!("{seconds:.1}"), kueue.unwrap_or_default());
        }
        let memory = self.memory_mebibytes.get(CONTROLLER).copied();
        row(
            "memory of the controller, MiB",
            format!("{:.0}", memory.unwrap_or_default()),
            format!("{:.0}", kueue.peak_memory_mebibytes),
        );
        println!(
            "no schedule is shorter than {} ms; the last Job was created after {} ms (the scenario says {} ms)",
            self.least_makespan_ms, self.last_creation_ms, self.last_creation_wanted_ms
        );
        println!(
            "{:.1} calls for an admission ({:?}); {:.1} s in the leader's task",
            self.calls_per_admission, self.calls, self.deciding_seconds
        );
        for target in &self.targets {
            println!("{target}");
        }
    }
}
