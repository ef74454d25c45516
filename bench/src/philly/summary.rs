//! What one replay of Philly gave.

use serde::Serialize;

use super::trace::WINDOW_SECONDS;
use crate::replay::{Job, Outcome, Rules};

/// See the fields. Percentages are of all GPUs over the 61 days of the window; waits are from submission to the first start, of
/// all jobs, those that started after the window included; preemptions and what they cost too.
#[derive(Clone, Copy, Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Summary {
    pub(crate) jobs: usize,
    pub(crate) allocated_percent: f64,
    pub(crate) idle_while_pending_percent: f64,
    pub(crate) mean_pending_gpus: f64,
    pub(crate) wait_seconds: Waits,
    pub(crate) preemptions: u64,
    /// GPU-hours that were held for work that was lost, and for restarts.
    pub(crate) lost_gpu_hours: f64,
}

/// Quantiles by nearest rank.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub(crate) struct Waits {
    pub(crate) mean: f64,
    pub(crate) p50: u64,
    pub(crate) p95: u64,
    pub(crate) p99: u64,
}

#[expect(
    clippy::cast_precision_loss,
    reason = "GPU-seconds of two months are far below 2^52"
)]
impl Summary {
    pub(crate) fn of(jobs: &[Job], rules: Rules, outcome: &Outcome) -> Self {
        let measured = &outcome.measured;
        let whole = u128::from(rules.capacity) * u128::from(WINDOW_SECONDS);
        let percent = |part: u128| part as f64 * 100.0 / whole as f64;
        Self {
            jobs: jobs.len(),
            allocated_percent: percent(measured.held),
            idle_while_pending_percent: percent(measured.idle_while_pending),
            mean_pending_gpus: measured.pending as f64 / WINDOW_SECONDS as f64,
            wait_seconds: Waits::of(jobs, outcome),
            preemptions: outcome.evictions,
            lost_gpu_hours: outcome.lost as f64 / 3600.0,
        }
    }
}

impl Waits {
    #[expect(
        clippy::cast_precision_loss,
        reason = "waits of two months are far below 2^52 seconds"
    )]
    fn of(jobs: &[Job], outcome: &Outcome) -> Self {
        let records = jobs.iter().zip(&outcome.records);
        let waits = records.filter_map(|(job, record)| {
            let started = record.first_admitted_at?;
            Some(started - job.arrives_at)
        });
        let mut waits: Vec<u64> = waits.collect();
        waits.sort_unstable();
        let at = |percent: usize| {
            let rank = (waits.len() * percent).div_ceil(100).max(1);
            waits.get(rank - 1).copied().unwrap_or_default()
        };
        Self {
            mean: waits.iter().sum::<u64>() as f64 / waits.len().max(1) as f64,
            p50: at(50),
            p95: at(95),
            p99: at(99),
        }
    }
}
