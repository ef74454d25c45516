//! What was measured, for programs and for people.

use anyhow::Result;
use serde::Serialize;

use super::{
    published::{self, Published},
    scenario::{Name, Scenario},
    summary::Summary,
};
use crate::{
    machine::Machine,
    replay::engine::Spent,
    report::{Spread, Verdict},
};

/// The engine's makespan over that of a scheduler of the same policies that takes no time.
const MOST_OVER_ZERO_LATENCY: f64 = 1.03;
/// The engine's time on the processor over that of Kueue's process.
const MOST_OVER_KUEUE: f64 = 0.01;

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Report {
    machine: Machine,
    /// What virtual time leaves out, and what else differs from Kueue's runner.
    not_measured: &'static str,
    runs: Vec<Run>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Run {
    scenario: &'static str,
    gangs: usize,
    teams: usize,
    cohorts: usize,
    /// File and SHA-256.
    traces: Vec<(String, String)>,
    /// By the work over the quota, and by whoever comes last.
    least_makespan_ms: u64,
    zero_latency: Summary,
    engine: Summary,
    /// Of the fastest replay.
    engine_cost: EngineCost,
    replays: Replays,
    published: Published,
    /// By which Kueue's own run passes.
    published_limit_ms: u64,
    targets: Vec<Verdict>,
}

/// What the engine's replays of a scenario took on the processor. They decide the same, and the fastest is judged.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Replays {
    count: usize,
    median_processor_seconds: f64,
    slowest_processor_seconds: f64,
    /// The median over the time of Kueue's process, measured apart.
    median_over_kueue: f64,
}

impl Replays {
    /// Of their times in seconds, in any order.
    pub(super) fn of(name: Name, seconds: Vec<f64>) -> Self {
        let count = seconds.len();
        let spread = Spread::of(seconds);
        Self {
            count,
            median_processor_seconds: spread.p50,
            slowest_processor_seconds: spread.max,
            median_over_kueue: spread.p50 / published::of(name).processor_seconds,
        }
    }
}

/// What the engine took. Time is the thread's on the processor; what the world around it takes is not counted.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct EngineCost {
    /// For everything that it was told and asked.
    pub(super) processor_seconds: f64,
    pub(super) deciding_seconds: f64,
    pub(super) calls: usize,
    pub(super) calls_in_vain: u64,
    pub(super) call_micros: Spread,
    pub(super) admissions: u64,
    pub(super) preemptions: u64,
    pub(super) micros_per_admission: f64,
    /// Admissions and preemptions for each second on the processor.
    pub(super) decisions_per_second: f64,
    /// Of the engine and of the gangs as the benchmark keeps them.
    #[serde(rename = "peakHeapMiB")]
    pub(super) peak_heap_mebibytes: f64,
}

#[expect(
    clippy::cast_precision_loss,
    reason = "numbers of gangs are far below 2^52"
)]
impl EngineCost {
    pub(super) fn of(spent: Spent, peak_heap_mebibytes: f64) -> Self {
        let seconds = spent.processor.as_secs_f64();
        Self {
            processor_seconds: seconds,
            deciding_seconds: spent.deciding.as_secs_f64(),
            calls: spent.calls.len(),
            calls_in_vain: spent.calls_in_vain,
            call_micros: Spread::of(spent.calls),
            admissions: spent.admissions,
            preemptions: spent.preemptions,
            micros_per_admission: seconds * 1e6 / spent.admissions.max(1) as f64,
            decisions_per_second: (spent.admissions + spent.preemptions) as f64
                / seconds.max(f64::MIN_POSITIVE),
            peak_heap_mebibytes,
        }
    }
}

impl Run {
    #[expect(
        clippy::cast_precision_loss,
        reason = "milliseconds of a run are far below 2^52"
    )]
    pub(super) fn of(
        name: Name,
        scenario: &Scenario,
        zero_latency: Summary,
        engine: Summary,
        engine_cost: EngineCost,
        replays: Replays,
    ) -> Self {
        let published = published::of(name);
        let targets = vec![
            Verdict::at_most(
                "makespan over that of the zero-latency scheduler",
                engine.makespan_ms as f64 / zero_latency.makespan_ms as f64,
                MOST_OVER_ZERO_LATENCY,
            ),
            Verdict::at_most(
                "time on the processor of the fastest replay over that of Kueue's process, measured apart",
                engine_cost.processor_seconds / published.processor_seconds,
                MOST_OVER_KUEUE,
            ),
        ];
        Self {
            scenario: name.as_str(),
            gangs: scenario.jobs.len(),
            teams: scenario.teams.len(),
            cohorts: scenario.cohorts,
            traces: scenario.checksums.clone(),
            least_makespan_ms: scenario.least_makespan(),
            zero_latency,
            engine,
            engine_cost,
            replays,
            published,
            published_limit_ms: scenario.published_limit_ms,
            targets,
        }
    }

    fn print(&self) {
        println!(
            "\n{}: {} gangs of {} Teams in {} Cohorts",
            self.scenario, self.gangs, self.teams, self.cohorts
        );
        println!(
            "{:<34}{:>12}{:>14}{:>12}",
            "", "engine", "zero latency", "Kueue"
        );
        let row = |what: &str, engine: String, bound: String, kueue: String| {
            println!("{what:<34}{engine:>12}{bound:>14}{kueue:>12}");
        };
        let (engine, bound, kueue) = (&self.engine, &self.zero_latency, &self.published);
        row(
            "makespan, ms",
            engine.makespan_ms.to_string(),
            bound.makespan_ms.to_string(),
            kueue.makespan_ms.to_string(),
        );
        for (name, class) in &engine.classes {
            let other = bound.classes.get(name);
            let time = class.time_to_admission_ms;
            let other_time = other
                .map(|other| other.time_to_admission_ms)
                .unwrap_or_default();
            let published = kueue.time_to_admission_mean_ms.get(name.as_str());
            row(
                &format!("{name}: admitted after, mean ms"),
                format!("{:.0}", time.mean),
                format!("{:.0}", other_time.mean),
                published.map_or_else(String::new, ToString::to_string),
            );
            for (what, engine, bound) in [
                ("p50", time.p50, other_time.p50),
                ("p99", time.p99, other_time.p99),
            ] {
                row(
                    &format!("{name}: {what} ms"),
                    engine.to_string(),
                    bound.to_string(),
                    String::new(),
                );
            }
            row(
                &format!("{name}: evictions"),
                class.evictions.to_string(),
                other.map_or(0, |other| other.evictions).to_string(),
                String::new(),
            );
        }
        for (name, percent) in &engine.quota_use_percent {
            let other = bound
                .quota_use_percent
                .get(name)
                .copied()
                .unwrap_or_default();
            row(
                &format!("{name}: quota in use, %"),
                format!("{percent:.1}"),
                format!("{other:.1}"),
                format!("{:.1}", kueue.quota_use_percent),
            );
        }
        let cost = &self.engine_cost;
        row(
            "on the processor, fastest, s",
            format!("{:.2}", cost.processor_seconds),
            String::new(),
            format!("{:.0}", kueue.processor_seconds),
        );
        row(
            "on the processor, median, s",
            format!("{:.2}", self.replays.median_processor_seconds),
            String::new(),
            String::new(),
        );
        row(
            "memory, MiB",
            format!("{:.0}", cost.peak_heap_mebibytes),
            String::new(),
            format!("{:.0}", kueue.peak_memory_mebibytes),
        );
        println!(
            "no schedule is shorter than {} ms; Kueue's run may take {} ms",
            self.least_makespan_ms, self.published_limit_ms
        );
        println!(
            "engine: {:.0} us for an admission, {:.0} decisions a second, {} calls (us: {}), {} of them in vain",
            cost.micros_per_admission,
            cost.decisions_per_second,
            cost.calls,
            cost.call_micros,
            cost.calls_in_vain
        );
        for target in &self.targets {
            println!("{target}");
        }
        println!(
            "the median of {} replays is {:.4} of Kueue's process; the slowest took {:.2} s",
            self.replays.count,
            self.replays.median_over_kueue,
            self.replays.slowest_processor_seconds
        );
    }
}

impl Report {
    /// Nothing was measured yet on this machine.
    pub(super) fn here() -> Result<Self> {
        Ok(Self {
            machine: Machine::here()?,
            not_measured: "Virtual time: no API server, no controllers, no pods. Kueue's figures hold the writes of a client that \
                           is limited to 50 a second, and no pods either; its makespan says little about its decisions. Memory of \
                           the engine is its heap, of Kueue the resident memory of the process.",
            runs: Vec::new(),
        })
    }

    pub(super) fn add(&mut self, run: Run) {
        self.runs.push(run);
    }

    pub(super) fn print(&self) {
        for run in &self.runs {
            run.print();
        }
        println!("\n{}", self.not_measured);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_and_the_slowest_replay_stand_beside_the_fastest() {
        let replays = Replays::of(Name::Baseline, vec![1.583, 0.8, 1.3, 0.9, 5.0]);
        let json = serde_json::to_value(&replays).unwrap();
        for (field, expected) in [
            ("count", 5.0),
            ("medianProcessorSeconds", 1.3),
            ("slowestProcessorSeconds", 5.0),
            // Kueue's process takes 79.15 s.
            ("medianOverKueue", 1.3 / 79.15),
        ] {
            let found = json[field].as_f64().unwrap();
            assert!((found - expected).abs() < 1e-9, "{field}: {found}");
        }
    }
}
