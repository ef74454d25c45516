//! What was measured, for programs and for people.

use anyhow::{Context, Result};
use serde::Serialize;

use super::{
    CHECKPOINT_SECONDS, JUDGED, Mode, RESTART_SECONDS, gate::Row, summary::Summary, trace::Trace,
};
use crate::{
    machine::Machine,
    replay::engine::Spent,
    report::{Spread, Verdict},
};

/// GPUs that are idle though they are asked for.
const MOST_IDLE_PERCENT: f64 = 0.5;
/// Of the GPU-hours that naive reclaim loses.
const MOST_LOST: f64 = 0.5;

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Report {
    machine: Machine,
    /// File and SHA-256.
    traces: Vec<(String, String)>,
    checkpoint_seconds: u64,
    restart_seconds: u64,
    /// What holds of every number here.
    assumptions: &'static str,
    gate: Vec<Gate>,
    loads: Vec<Load>,
}

/// A row that the reference has to give.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Gate {
    gpus: u64,
    borrowing: bool,
    reclaim: bool,
    reserved_percent: u64,
    known_allocated_percent: f64,
    known_idle_while_pending_percent: f64,
    found: Summary,
}

/// One size of the cluster.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Load {
    gpus: u64,
    reserved_percent: u64,
    /// Naive reclaim, with the virtual clusters in the order of the file.
    naive: Summary,
    /// The same, beginning with each virtual cluster in turn.
    naive_by_first: Vec<Summary>,
    /// The mean over these.
    naive_mean_p95_seconds: f64,
    engine: Vec<EngineRun>,
    targets: Vec<Verdict>,
}

/// The engine in one mode.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct EngineRun {
    mode: Mode,
    #[serde(flatten)]
    summary: Summary,
    processor_seconds: f64,
    call_micros: Spread,
}

impl EngineRun {
    pub(super) fn of(mode: Mode, summary: Summary, spent: Spent) -> Self {
        Self {
            mode,
            summary,
            processor_seconds: spent.processor.as_secs_f64(),
            call_micros: Spread::of(spent.calls),
        }
    }
}

#[expect(
    clippy::cast_precision_loss,
    reason = "waits of two months are far below 2^52 seconds"
)]
impl Load {
    /// The last modes are those that are judged.
    pub(super) fn of(
        gpus: u64,
        reserved_percent: u64,
        naive_by_first: Vec<Summary>,
        engine: Vec<EngineRun>,
    ) -> Result<Self> {
        let naive = *naive_by_first.first().context("no reference")?;
        let p95 = |summary: &Summary| summary.wait_seconds.p95 as f64;
        let mean_p95 =
            naive_by_first.iter().map(p95).sum::<f64>() / naive_by_first.len().max(1) as f64;
        let judged = engine.len().checked_sub(JUDGED).context("no mode")?;
        let targets = engine.iter().skip(judged).flat_map(|run| {
            let found = &run.summary;
            let verdict = |what: &str, found: f64, at_most: f64| {
                Verdict::at_most(&format!("{}: {what}", run.mode.name), found, at_most)
            };
            [
                verdict(
                    "idle while pending, %",
                    found.idle_while_pending_percent,
                    MOST_IDLE_PERCENT,
                ),
                verdict(
                    "GPU-hours lost, of naive reclaim's",
                    found.lost_gpu_hours / naive.lost_gpu_hours,
                    MOST_LOST,
                ),
                verdict(
                    "p95 wait over naive reclaim's, in the order of the file",
                    p95(found) / p95(&naive),
                    1.0,
                ),
                verdict(
                    "p95 wait over naive reclaim's, the mean of all orders",
                    p95(found) / mean_p95,
                    1.0,
                ),
            ]
        });
        let targets = targets.collect();
        Ok(Self {
            gpus,
            reserved_percent,
            naive,
            naive_by_first,
            naive_mean_p95_seconds: mean_p95,
            engine,
            targets,
        })
    }

    fn print(&self) {
        println!(
            "\n{} GPUs, {} % guaranteed to nobody",
            self.gpus, self.reserved_percent
        );
        heading();
        row("naive reclaim, order of the file", &self.naive);
        for run in &self.engine {
            row(&format!("engine: {}", run.mode.name), &run.summary);
        }
        println!(
            "naive reclaim, beginning with each virtual cluster in turn: p95 wait {:.0} s in the mean",
            self.naive_mean_p95_seconds
        );
        for run in self.engine.iter().rev().take(JUDGED).rev() {
            println!(
                "engine: {}: {:.1} s on the processor, calls (us): {}",
                run.mode.name, run.processor_seconds, run.call_micros
            );
        }
        for target in &self.targets {
            println!("{target}");
        }
    }
}

impl Report {
    /// No size of the cluster was measured yet.
    pub(super) fn of(trace: &Trace, rows: Vec<(Row, Summary)>) -> Result<Self> {
        let gate = rows.into_iter().map(|(row, found)| Gate {
            gpus: row.gpus,
            borrowing: row.sharing.borrowing,
            reclaim: row.sharing.reclaim,
            reserved_percent: row.reserved_percent,
            known_allocated_percent: row.allocated_percent,
            known_idle_while_pending_percent: row.idle_while_pending_percent,
            found,
        });
        Ok(Self {
            machine: Machine::here()?,
            traces: trace.checksums.clone(),
            checkpoint_seconds: CHECKPOINT_SECONDS,
            restart_seconds: RESTART_SECONDS,
            assumptions: "Quota only: GPUs are counted, no nodes are modelled, gangs are atomic. All jobs have the same priority. \
                          Virtual time: no API server, no start of containers. The trace is a subset of the published one, with \
                          many small jobs.",
            gate: gate.collect(),
            loads: Vec::new(),
        })
    }

    pub(super) fn add(&mut self, load: Load) {
        self.loads.push(load);
    }

    pub(super) fn print(&self) {
        println!(
            "\nthe reference, at no cost of preemption (known: allocated, idle while pending)"
        );
        heading();
        for gate in &self.gate {
            let mode = match (gate.borrowing, gate.reclaim) {
                (false, _) => "alone",
                (true, false) => "borrow",
                (true, true) => "reclaim",
            };
            let what = format!(
                "{} {mode} {} % ({}, {})",
                gate.gpus,
                gate.reserved_percent,
                gate.known_allocated_percent,
                gate.known_idle_while_pending_percent
            );
            row(&what, &gate.found);
        }
        for load in &self.loads {
            load.print();
        }
        println!("\n{}", self.assumptions);
    }
}

fn heading() {
    println!(
        "{:<36}{:>8}{:>7}{:>9}{:>9}{:>8}{:>10}{:>10}{:>9}{:>8}",
        "", "alloc %", "idle %", "pending", "wait s", "p50", "p95", "p99", "preempt.", "lost h"
    );
}

fn row(what: &str, summary: &Summary) {
    let Summary {
        allocated_percent,
        idle_while_pending_percent,
        mean_pending_gpus,
        wait_seconds,
        preemptions,
        lost_gpu_hours,
        ..
    } = summary;
    println!(
        "{what:<36}{allocated_percent:>8.1}{idle_while_pending_percent:>7.2}{mean_pending_gpus:>9.0}{:>9.0}{:>8}{:>10}{:>10}{preemptions:>9}{lost_gpu_hours:>8.0}",
        wait_seconds.mean, wait_seconds.p50, wait_seconds.p95, wait_seconds.p99
    );
}
