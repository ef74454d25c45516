//! Kueue's scenario on a real control plane: `cargo xtask bench quota --real`.
//!
//! etcd, kube-apiserver, kube-controller-manager, kube-scheduler and Muster's programs are real; only nodes are played. A gang
//! is a Job of one pod with the gang label: unlike Kueue's scenario, pods are made, gated, placed, bound, run and, where their gang
//! gives way, ended and made again. So more is written for each gang than Kueue writes, by us and by Kubernetes.
//!
//! With `--peer kueue` Kueue itself does the same Jobs, with the same pods on played nodes of the same size, on a control plane of its own
//! before that: what each takes is then compared in one run on one machine. Without it what Muster takes is compared with what was
//! published of Kueue, which is of a run without pods, and is printed beside in any case.
//!
//! Gangs are created when the scenario says, or as soon after as the API server takes them. What is reported was seen by a watch
//! of Gangs or of Workloads, in `/proc`, and among the controller's metrics.

mod load;
mod metrics;
mod seen;

use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context, Result, bail, ensure};
use muster_tests::{
    cluster::{Cluster, ClusterOptions},
    fake_nodes::FakeNodes,
    install::{MusterOptions, Part},
    kubernetes::{self, eventually},
    kueue::{self, Kueue},
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
    replay::Outcome,
    report::{Verdict, write},
};
use load::Manager;
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
    /// Who does the same Jobs in the same run.
    #[arg(long, value_enum)]
    peer: Option<Peer>,
    /// Writes what was measured as JSON.
    #[arg(long, value_name = "FILE")]
    report: Option<PathBuf>,
}

/// Who can do what Muster does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Peer {
    /// Kueue's own program, built from its module.
    Kueue,
}

/// Runs each scenario on a cluster of its own.
pub(crate) async fn run(arguments: Arguments) -> Result<()> {
    let mut runs = Vec::new();
    for name in arguments.scenario.names() {
        let run = measure(*name, &arguments).await?;
        run.print();
        runs.push(run);
        // What is measured is there whatever becomes of the rest.
        write(&runs, arguments.report.as_deref())?;
    }
    Ok(())
}

/// Where what Kueue took is written as soon as it is known, whatever becomes of Muster's part: beside the report.
fn kueue_report(report: &Path, name: Name) -> PathBuf {
    report.with_extension(format!("{}.kueue.json", name.as_str()))
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
    /// Of these, what writes; Events are among it.
    writes_per_admission: f64,
    published: Published,
    /// What Kueue took in the same run, if it was asked for.
    kueue: Option<RealKueue>,
    targets: Vec<Verdict>,
}

/// What Kueue took.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct RealKueue {
    summary: Summary,
    last_creation_ms: u64,
    processor_seconds: BTreeMap<String, f64>,
    #[serde(rename = "memoryMiB")]
    memory_mebibytes: BTreeMap<String, f64>,
    /// What its client wrote, by method of HTTP; Events are among it.
    writes: BTreeMap<String, f64>,
    writes_per_admission: f64,
}

/// What any of them took.
struct Taken {
    outcome: Outcome,
    summary: Summary,
    last_creation_ms: u64,
    processor_seconds: BTreeMap<String, f64>,
    memory_mebibytes: BTreeMap<String, f64>,
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
    let kueue = match arguments.peer {
        Some(Peer::Kueue) => {
            let kueue = measure_kueue(name, arguments, scenario.clone()).await?;
            let path = arguments.report.as_deref();
            let path = path.map(|report| kueue_report(report, name));
            write(&kueue, path.as_deref())?;
            Some(kueue)
        }
        None => None,
    };
    let values = match arguments.kube_api_qps {
        0 => Vec::new(),
        qps => vec![format!(
            "controller.extraArgs={{--kube-api-qps={qps},--kube-api-burst={}}}",
            2 * qps
        )],
    };
    let mut cluster = Cluster::start(ClusterOptions {
        fake_nodes: Some(NODES),
        muster: Some(MusterOptions {
            values,
            ..MusterOptions::default()
        }),
        progress: ProgressCallback::to(|step| eprintln!("{step}")),
        ..ClusterOptions::default()
    })
    .await?;
    let measured = run_on(&mut cluster, name, arguments, scenario, kueue).await;
    keep_if_failed(&mut cluster, measured.is_err());
    cluster.stop().await;
    measured
}

/// Hours may have been lost: somebody will want to see why.
fn keep_if_failed(cluster: &mut Cluster, has_failed: bool) {
    if has_failed {
        let kept = cluster.keep_directory();
        eprintln!("everything is kept in {}", kept.display());
    }
}

/// What the controller says at `/metrics`. Where the machine is busy it does not answer at once, and is asked again.
async fn controller_metrics(cluster: &Cluster) -> Result<String> {
    let muster = cluster.muster.as_ref().context("Muster is not installed")?;
    let what = "the controller shows its metrics";
    eventually(what, kubernetes::LIMIT, async || {
        let text = muster.metrics(Part::Controller).await?;
        Ok(kubernetes::Progress::Done(text))
    })
    .await
}

/// The scenario with Kueue in place of Muster.
#[expect(
    clippy::cast_precision_loss,
    reason = "numbers of gangs are far below 2^52"
)]
async fn measure_kueue(name: Name, arguments: &Arguments, scenario: Scenario) -> Result<RealKueue> {
    // Minutes, if it has not been built yet: nobody waits for that but us.
    Kueue::find().await?;
    let mut cluster = Cluster::start(ClusterOptions {
        fake_nodes: Some(NODES),
        progress: ProgressCallback::to(|step| eprintln!("{step}")),
        ..ClusterOptions::default()
    })
    .await?;
    let bound = (arguments.kube_api_qps > 0).then_some(arguments.kube_api_qps);
    let gangs = scenario.jobs.len() as u64;
    let taken = async {
        let mut kueue = Kueue::start(&cluster, bound).await?;
        let before = kueue.writes().await?;
        let taken = take(&mut cluster, name, Some(&mut kueue), scenario).await;
        // That it has ended is the better word for whatever failed.
        kueue.ensure_running()?;
        let writes = kueue.writes().await;
        kueue.stop().await;
        let (taken, mut writes) = (taken?, writes?);
        ensure!(
            !writes.is_empty(),
            "Kueue has admitted gangs, and its metrics say of no write"
        );
        for (method, before) in before {
            writes.entry(method).and_modify(|writes| *writes -= before);
        }
        anyhow::Ok((taken, writes))
    };
    let taken = taken.await;
    keep_if_failed(&mut cluster, taken.is_err());
    cluster.stop().await;
    let (taken, writes) = taken?;
    let admissions = taken.outcome.evictions + gangs;
    Ok(RealKueue {
        writes_per_admission: writes.values().sum::<f64>() / admissions as f64,
        writes,
        summary: taken.summary,
        last_creation_ms: taken.last_creation_ms,
        processor_seconds: taken.processor_seconds,
        memory_mebibytes: taken.memory_mebibytes,
    })
}

/// Prepares the cluster, creates the scenario's Jobs and waits until all have ended. Muster does them where there is no Kueue.
async fn take(
    cluster: &mut Cluster,
    name: Name,
    mut kueue: Option<&mut Kueue>,
    mut scenario: Scenario,
) -> Result<Taken> {
    let manager = if kueue.is_some() {
        Manager::Kueue
    } else {
        Manager::Muster
    };
    let mut progress = Progress::of(&format!(
        "{} with {manager:?} on a real API server: {} gangs of {} Teams in {} Cohorts",
        name.as_str(),
        scenario.jobs.len(),
        scenario.teams.len(),
        scenario.cohorts
    ));
    load::prepare(&cluster.client(), manager, &scenario).await?;
    let before = Processes::now()?;
    let seen = match manager {
        Manager::Muster => Seen::of_muster(cluster.client(), &scenario),
        Manager::Kueue => Seen::of_kueue(cluster.client(), &scenario),
    };
    let mut creating = load::start(cluster.client(), manager, &scenario, seen.begun())?;
    let mut created = None;
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
        // Nobody starts them anew, and what they would have counted is lost.
        cluster.ensure_running()?;
        if let Some(kueue) = kueue.as_deref_mut() {
            kueue.ensure_running()?;
        }
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
    Ok(Taken {
        summary: Summary::of(&scenario, &outcome),
        outcome,
        last_creation_ms: created.last().copied().unwrap_or_default(),
        processor_seconds: after.cpu_since(&before),
        memory_mebibytes: after.memory(),
    })
}

#[expect(
    clippy::cast_precision_loss,
    reason = "numbers of gangs and calls are far below 2^52"
)]
async fn run_on(
    cluster: &mut Cluster,
    name: Name,
    arguments: &Arguments,
    scenario: Scenario,
    kueue: Option<RealKueue>,
) -> Result<RealRun> {
    let calls_before = metrics::calls(&controller_metrics(cluster).await?);
    let last_creation_wanted_ms = scenario.jobs.last().map_or(0, |job| job.arrives_at);
    let taken = take(cluster, name, None, scenario.clone()).await?;
    let text = controller_metrics(cluster).await?;
    let mut calls = metrics::calls(&text);
    for (kind, before) in calls_before {
        calls
            .entry(kind)
            .and_modify(|calls| *calls = calls.saturating_sub(before));
    }
    let admissions = taken.outcome.evictions + scenario.jobs.len() as u64;
    let published = published::of(name);
    // Kueue's published time is that of all its gangs.
    let share = scenario.jobs.len() as f64 / published.gangs as f64;
    let of_controller = on_the_processor(&taken.processor_seconds, CONTROLLER)?;
    let (what, of_kueue) = match &kueue {
        Some(kueue) => (
            "the controller's time on the processor over that of Kueue's process for the same Jobs in this run",
            on_the_processor(&kueue.processor_seconds, kueue::PROGRAM)?,
        ),
        None => (
            "the controller's time on the processor over that of Kueue's process, for as many gangs",
            published.processor_seconds * share,
        ),
    };
    let targets = vec![Verdict::at_most(
        what,
        of_controller / of_kueue,
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
        last_creation_ms: taken.last_creation_ms,
        muster: taken.summary,
        processor_seconds: taken.processor_seconds,
        memory_mebibytes: taken.memory_mebibytes,
        deciding_seconds: metrics::deciding_seconds(&text),
        calls_per_admission: calls.values().sum::<u64>() as f64 / admissions as f64,
        writes_per_admission: metrics::writes(&calls) as f64 / admissions as f64,
        calls,
        published,
        kueue,
        targets,
    })
}

/// What a program took of the processor.
fn on_the_processor(seconds: &BTreeMap<String, f64>, program: &str) -> Result<f64> {
    let found = seconds.get(program).copied();
    found.with_context(|| format!("no process is called {program}: {seconds:?}"))
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
        let kueue = self.kueue.as_ref();
        let row = |what: &str, muster: String, of_kueue: Option<String>, published: String| {
            let column = kueue.map_or_else(String::new, |_| {
                format!("{:>12}", of_kueue.unwrap_or_default())
            });
            println!("{what:<42}{muster:>12}{column}{published:>12}");
        };
        row(
            "",
            "Muster".to_owned(),
            Some("Kueue".to_owned()),
            "published".to_owned(),
        );
        row(
            "makespan, ms",
            self.muster.makespan_ms.to_string(),
            kueue.map(|kueue| kueue.summary.makespan_ms.to_string()),
            self.published.makespan_ms.to_string(),
        );
        for (name, class) in &self.muster.classes {
            let of_kueue = kueue.and_then(|kueue| kueue.summary.classes.get(name));
            let published = self.published.time_to_admission_mean_ms.get(name.as_str());
            row(
                &format!("{name}: admitted after, mean ms"),
                format!("{:.0}", class.time_to_admission_ms.mean),
                of_kueue.map(|class| format!("{:.0}", class.time_to_admission_ms.mean)),
                published.map_or_else(String::new, ToString::to_string),
            );
            row(
                &format!("{name}: evictions"),
                class.evictions.to_string(),
                of_kueue.map(|class| class.evictions.to_string()),
                String::new(),
            );
        }
        for (name, percent) in &self.muster.quota_use_percent {
            let of_kueue = kueue.and_then(|kueue| kueue.summary.quota_use_percent.get(name));
            row(
                &format!("{name}: quota in use, %"),
                format!("{percent:.1}"),
                of_kueue.map(|percent| format!("{percent:.1}")),
                format!("{:.1}", self.published.quota_use_percent),
            );
        }
        row(
            "writes of the controller for an admission",
            format!("{:.1}", self.writes_per_admission),
            kueue.map(|kueue| format!("{:.1}", kueue.writes_per_admission)),
            String::new(),
        );
        let seconds = |costs: &BTreeMap<String, f64>, program: &str| {
            let seconds = costs.get(program);
            seconds.map(|seconds| format!("{seconds:.1}"))
        };
        let none = BTreeMap::new();
        let of_kueue = kueue.map_or(&none, |kueue| &kueue.processor_seconds);
        let mut programs: BTreeSet<&String> = self
            .processor_seconds
            .keys()
            .chain(of_kueue.keys())
            .collect();
        // That one stands beside what was published of it.
        programs.retain(|program| *program != kueue::PROGRAM);
        for program in programs {
            row(
                &format!("{program}: on the processor, s"),
                seconds(&self.processor_seconds, program).unwrap_or_default(),
                seconds(of_kueue, program),
                String::new(),
            );
        }
        row(
            "Kueue's process: on the processor, s",
            String::new(),
            seconds(of_kueue, kueue::PROGRAM),
            format!("{:.0}", self.published.processor_seconds),
        );
        let memory = self.memory_mebibytes.get(CONTROLLER).copied();
        let of_kueue = kueue.and_then(|kueue| kueue.memory_mebibytes.get(kueue::PROGRAM).copied());
        row(
            "memory, MiB",
            format!("{:.0}", memory.unwrap_or_default()),
            of_kueue.map(|mebibytes| format!("{mebibytes:.0}")),
            format!("{:.0}", self.published.peak_memory_mebibytes),
        );
        println!(
            "published: of Kueue's own run, all {} gangs, without pods and with {} writes a second at most",
            self.published.gangs, self.published.client_writes_per_second
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_kueue_took_is_beside_the_report_and_of_one_scenario() {
        for (name, expected) in [
            (Name::Baseline, "out/quota.baseline.kueue.json"),
            (Name::LargeScale, "out/quota.large-scale.kueue.json"),
        ] {
            let path = kueue_report(Path::new("out/quota.json"), name);
            assert_eq!(path, Path::new(expected));
        }
    }
}
