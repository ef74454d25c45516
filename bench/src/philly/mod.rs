//! Philly by teams, quota counted in GPUs: `cargo xtask bench philly`.
//!
//! Two months of a real cluster, its virtual clusters as Teams of one Cohort, replayed in virtual time under the engine and under the
//! reference ([`counts`]), whose own numbers have to come out first ([`gate`]). Neither knows nodes, so what is compared is
//! quota: who waits though something is free, whom reclaim costs how much.
//!
//! The trace has no priorities, so all jobs are equal. Preempted work goes on from its last checkpoint after a restart.

mod counts;
mod gate;
mod report;
mod summary;
mod trace;

use std::path::PathBuf;

use anyhow::{Result, ensure};
use muster_engine::quota::{self, PreemptionPolicy, ReclaimWithinCohort, Weight};
use serde::Serialize;

use crate::{
    progress::Progress,
    replay::{
        Interruption, Job, Rules, Scheduler, Status,
        engine::{Engine, Setting, Spent, TeamLimits},
        replay,
    },
    report::write,
};
use counts::{Counts, Sharing};
use report::{EngineRun, Load, Report};
use summary::Summary;
use trace::{Trace, WINDOW_SECONDS};

/// What preemption costs a job.
const CHECKPOINT_SECONDS: u64 = 900;
const RESTART_SECONDS: u64 = 60;
const COSTS: Interruption = Interruption::Checkpoints {
    every: CHECKPOINT_SECONDS,
    restart: RESTART_SECONDS,
};
/// More than preemptions are ever under way at once.
const PREEMPTIONS: usize = 512;
const COHORT: &str = "philly";

/// Two months of Microsoft's Philly cluster by teams, quota level, with the engine in virtual time.
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// Writes what was measured as JSON.
    #[arg(long, value_name = "FILE")]
    report: Option<PathBuf>,
    /// Replays on so many GPUs alone: 448, 512 or 640.
    #[arg(long, value_name = "N")]
    gpus: Option<u64>,
    /// Runs the engine as it is judged, and in no other mode.
    #[arg(long)]
    judged: bool,
}

/// What decides who is served and who gives way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
enum Served {
    /// Age and priority.
    ByAge,
    /// Shares; every Team weighs the same.
    Fair,
    /// Shares; a Team's weight is its quota.
    FairByQuota,
    /// Shares; a Team's weight is how many jobs it submitted in the month before.
    FairByJobs,
}

/// How the engine is set.
#[derive(Clone, Copy, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Mode {
    name: &'static str,
    borrowing: bool,
    reclaim: bool,
    served: Served,
    /// The tier's notice: for so long a gang may run on to its next checkpoint.
    notice_seconds: u64,
    /// For so long after its admission nobody may preempt a gang.
    min_runtime_seconds: u64,
}

const ALONE: Mode = Mode {
    name: "no borrowing",
    borrowing: false,
    reclaim: false,
    served: Served::ByAge,
    notice_seconds: 0,
    min_runtime_seconds: 0,
};
const BORROWING: Mode = Mode {
    name: "borrowing, no reclaim",
    borrowing: true,
    ..ALONE
};
const IMMEDIATE: Mode = Mode {
    name: "reclaim, Immediate",
    reclaim: true,
    ..BORROWING
};
/// A whole interval between checkpoints is granted before and after.
const AFTER_CHECKPOINT: Mode = Mode {
    name: "reclaim, AfterCheckpoint",
    notice_seconds: CHECKPOINT_SECONDS,
    min_runtime_seconds: CHECKPOINT_SECONDS,
    ..IMMEDIATE
};
const FAIR_IMMEDIATE: Mode = Mode {
    name: "fair shares, Immediate",
    served: Served::Fair,
    ..IMMEDIATE
};
const FAIR_AFTER_CHECKPOINT: Mode = Mode {
    name: "fair shares, AfterCheckpoint",
    served: Served::Fair,
    ..AFTER_CHECKPOINT
};
/// What nobody uses is shared in the proportion of what is guaranteed.
const FAIR_BY_QUOTA: Mode = Mode {
    name: "fair by quota, AfterCheckpoint",
    served: Served::FairByQuota,
    ..FAIR_AFTER_CHECKPOINT
};
/// What nobody uses is shared in the proportion of the jobs that were submitted in the month before: each counts alike, whosever it is.
const FAIR_BY_JOBS: Mode = Mode {
    name: "fair by jobs, AfterCheckpoint",
    served: Served::FairByJobs,
    ..FAIR_AFTER_CHECKPOINT
};
const MODES: [Mode; 8] = [
    ALONE,
    BORROWING,
    IMMEDIATE,
    AFTER_CHECKPOINT,
    FAIR_IMMEDIATE,
    FAIR_AFTER_CHECKPOINT,
    FAIR_BY_QUOTA,
    FAIR_BY_JOBS,
];
/// So many of the last modes are judged by the targets.
const JUDGED: usize = 3;

/// GPUs, and of them what is guaranteed to nobody, in percent. The load is 1.05, 0.92 (twice) and 0.74.
const LOADS: [(u64, u64); 4] = [(448, 0), (512, 0), (512, 10), (640, 0)];

pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    let wanted = LOADS
        .into_iter()
        .filter(|(gpus, _)| arguments.gpus.is_none_or(|wanted| wanted == *gpus));
    let wanted: Vec<(u64, u64)> = wanted.collect();
    ensure!(!wanted.is_empty(), "--gpus is one of 448, 512 and 640");
    let trace = trace::read()?;
    let mut progress = Progress::of(&format!(
        "Philly: {} jobs of {} virtual clusters",
        trace.jobs.len(),
        trace.clusters.len()
    ));
    let mut rows = Vec::new();
    for row in gate::ROWS {
        let found = reference(
            &trace,
            row.gpus,
            row.reserved_percent,
            row.sharing,
            Interruption::Free,
            0,
        )?;
        row.check(&found)?;
        rows.push((row, found));
    }
    progress.say("the reference gives what is known of it");
    let mut report = Report::of(&trace, rows)?;
    let modes = if arguments.judged {
        &MODES[MODES.len() - JUDGED..]
    } else {
        &MODES
    };
    for (gpus, reserved_percent) in wanted {
        progress.say(&format!("{gpus} GPUs, {reserved_percent} % reserved"));
        report.add(measure(
            &trace,
            gpus,
            reserved_percent,
            modes,
            &mut progress,
        )?);
        // What is measured is there whatever becomes of the rest.
        write(&report, arguments.report.as_deref())?;
    }
    report.print();
    Ok(())
}

fn measure(
    trace: &Trace,
    gpus: u64,
    reserved_percent: u64,
    modes: &[Mode],
    progress: &mut Progress,
) -> Result<Load> {
    let sharing = Sharing {
        borrowing: true,
        reclaim: true,
    };
    // The reference looks at virtual clusters in the order of a file, which says nothing about them; it is tried from each on.
    let naive: Result<Vec<Summary>> = (0..trace.clusters.len())
        .map(|first| reference(trace, gpus, reserved_percent, sharing, COSTS, first))
        .collect();
    let engine: Result<Vec<EngineRun>> = modes
        .iter()
        .map(|mode| engine(trace, gpus, reserved_percent, *mode, progress))
        .collect();
    Load::of(gpus, reserved_percent, naive?, engine?)
}

fn rules(gpus: u64, interruption: Interruption, notice: u64) -> Rules {
    Rules {
        capacity: gpus,
        horizon: Some(WINDOW_SECONDS),
        interruption,
        notice,
    }
}

/// Without those that could never run.
fn possible(jobs: &[Job], gpus: u64, quotas: &[u64], borrowing: bool) -> Vec<Job> {
    let jobs = jobs.iter().copied();
    let possible = jobs.filter(|job| job.size <= if borrowing { gpus } else { quotas[job.team] });
    possible.collect()
}

/// The reference, which begins each pass with the virtual cluster `first`.
fn reference(
    trace: &Trace,
    gpus: u64,
    reserved_percent: u64,
    sharing: Sharing,
    interruption: Interruption,
    first: usize,
) -> Result<Summary> {
    let mut quotas = trace::quotas(&trace.clusters, gpus, reserved_percent);
    let mut jobs = possible(&trace.jobs, gpus, &quotas, sharing.borrowing);
    quotas.rotate_left(first);
    for job in &mut jobs {
        job.team = (job.team + quotas.len() - first) % quotas.len();
    }
    let teams = quotas.len();
    let mut counts = Counts::new(&jobs, gpus, quotas, sharing);
    let rules = rules(gpus, interruption, 0);
    summarize(&jobs, teams, rules, &mut counts, |_| {})
}

fn engine(
    trace: &Trace,
    gpus: u64,
    reserved_percent: u64,
    mode: Mode,
    progress: &mut Progress,
) -> Result<EngineRun> {
    let quotas = trace::quotas(&trace.clusters, gpus, reserved_percent);
    let jobs = possible(&trace.jobs, gpus, &quotas, mode.borrowing);
    let reclaim_within_cohort = if mode.reclaim {
        ReclaimWithinCohort::Any
    } else {
        ReclaimWithinCohort::Never
    };
    let teams = trace.clusters.iter().zip(&quotas).zip(&trace.jobs_before);
    let teams = teams.map(|((cluster, quota), jobs)| TeamLimits {
        name: cluster.name.clone(),
        cohort: Some(COHORT.to_owned()),
        nominal: *quota,
        borrowing_limit: (!mode.borrowing).then_some(0),
        weight: match mode.served {
            Served::ByAge | Served::Fair => Weight::ONE,
            Served::FairByQuota => Weight(Weight::ONE.0 * quota),
            Served::FairByJobs => Weight(Weight::ONE.0 * (*jobs).max(1)),
        },
        preemption: PreemptionPolicy {
            reclaim_within_cohort,
            ..PreemptionPolicy::NEVER
        },
    });
    let setting = Setting {
        teams: teams.collect(),
        pools: vec![(COHORT.to_owned(), gpus - quotas.iter().sum::<u64>())],
        sharing: match mode.served {
            Served::ByAge => quota::Sharing::ByPriority,
            Served::Fair | Served::FairByQuota | Served::FairByJobs => quota::Sharing::FAIR,
        },
        preemptions: PREEMPTIONS,
        min_runtime: mode.min_runtime_seconds,
        notice: mode.notice_seconds,
    };
    let mut engine = Engine::new(&jobs, &setting)?;
    let rules = rules(gpus, COSTS, mode.notice_seconds);
    let summary = summarize(&jobs, quotas.len(), rules, &mut engine, |status| {
        progress.tick(|| status.to_string());
    })?;
    let spent: Spent = engine.into_spent();
    progress.say(&format!(
        "{}: {:.1} s on the processor",
        mode.name,
        spent.processor.as_secs_f64()
    ));
    Ok(EngineRun::of(mode, summary, spent))
}

fn summarize<S: Scheduler>(
    jobs: &[Job],
    teams: usize,
    rules: Rules,
    scheduler: &mut S,
    each_instant: impl FnMut(Status),
) -> Result<Summary> {
    let outcome = replay(jobs, teams, rules, scheduler, each_instant)?;
    Ok(Summary::of(jobs, rules, &outcome))
}
