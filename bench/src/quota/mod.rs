//! Kueue's performance scenarios in virtual time: `cargo xtask bench quota`.
//!
//! The API server takes no time: what the engine admits runs at once and ends after its run time, who gives way is released at once
//! and waits again with its age. So what is left is what the policies cost, beside a scheduler of the same policies that is written
//! apart ([`zero_latency`]), and the engine's own time on the processor.

#[cfg(test)]
mod agreement;
mod published;
#[cfg(feature = "cluster")]
pub(crate) mod real;
mod report;
mod scenario;
mod summary;
mod zero_latency;

use std::path::PathBuf;

use anyhow::{Context, Result};
use clap::ValueEnum;
use muster_engine::quota::Sharing;

use crate::{
    memory::HeapPeak,
    progress::Progress,
    replay::{
        Interruption, Outcome, Rules,
        engine::{Engine, Setting},
        replay,
    },
    report::write,
};
use report::{EngineCost, Replays, Report, Run};
use scenario::{Name, Scenario};
use summary::Summary;
use zero_latency::ZeroLatency;

/// How often the engine replays a scenario.
const RUNS: usize = 5;

/// Kueue's performance scenarios, with the engine in virtual time.
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// Which of Kueue's scenarios.
    #[arg(long, value_enum)]
    scenario: Option<Choice>,
    /// Writes what was measured as JSON.
    #[arg(long, value_name = "FILE")]
    report: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Choice {
    Baseline,
    LargeScale,
    All,
}

impl Choice {
    fn names(self) -> &'static [Name] {
        match self {
            Self::Baseline => &[Name::Baseline],
            Self::LargeScale => &[Name::LargeScale],
            Self::All => &[Name::Baseline, Name::LargeScale],
        }
    }
}

pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    let mut report = Report::here()?;
    for name in arguments.scenario.unwrap_or(Choice::All).names() {
        report.add(measure(*name)?);
        // What is measured is there whatever becomes of the rest.
        write(&report, arguments.report.as_deref())?;
    }
    report.print();
    Ok(())
}

fn measure(name: Name) -> Result<Run> {
    let scenario = Scenario::read(name)?;
    let mut progress = Progress::of(&format!(
        "{}: {} gangs of {} Teams in {} Cohorts",
        name.as_str(),
        scenario.jobs.len(),
        scenario.teams.len(),
        scenario.cohorts
    ));
    let rules = Rules {
        capacity: scenario.capacity(),
        horizon: None,
        interruption: Interruption::LosesEverything,
        notice: 0,
    };
    let (jobs, teams) = (&scenario.jobs, scenario.teams.len());
    let mut zero_latency = ZeroLatency::new(jobs, &scenario.teams);
    let outcome = replay(jobs, teams, rules, &mut zero_latency, |status| {
        progress.tick(|| format!("zero latency: {status}"));
    })?;
    let bound = Summary::of(&scenario, &outcome);
    progress.say(&format!(
        "zero latency: all ended after {} ms",
        bound.makespan_ms
    ));

    let setting = Setting {
        teams: scenario.teams.clone(),
        pools: Vec::new(),
        sharing: Sharing::ByPriority,
        // At one moment, at most one of each Team in a round.
        preemptions: teams,
        min_runtime: 0,
        notice: 0,
    };
    // Each time it decides the same. Who else uses the machine only makes it slower: the fastest run says what the engine needs, and
    // the median what it took here.
    let mut took = Vec::new();
    let mut fastest: Option<(EngineCost, Outcome)> = None;
    for _ in 0..RUNS {
        let mut heap = HeapPeak::from_now();
        let mut engine = Engine::new(jobs, &setting)?;
        let outcome = replay(jobs, teams, rules, &mut engine, |status| {
            heap.look();
            progress.tick(|| format!("engine: {status}"));
        })?;
        let cost = EngineCost::of(engine.into_spent(), heap.mebibytes());
        progress.say(&format!(
            "engine: {:.2} s on the processor",
            cost.processor_seconds
        ));
        took.push(cost.processor_seconds);
        let is_faster = fastest
            .as_ref()
            .is_none_or(|(known, _)| cost.processor_seconds < known.processor_seconds);
        if is_faster {
            fastest = Some((cost, outcome));
        }
    }
    let (cost, outcome) = fastest.context("the engine never ran")?;
    let engine = Summary::of(&scenario, &outcome);
    progress.say(&format!(
        "engine: all ended after {} ms",
        engine.makespan_ms
    ));
    let replays = Replays::of(name, took);
    Ok(Run::of(name, &scenario, bound, engine, cost, replays))
}
