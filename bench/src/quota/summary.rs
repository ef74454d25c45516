//! What one replay of a scenario gave, in the words of Kueue's runner.

use std::collections::BTreeMap;

use serde::Serialize;

use super::scenario::Scenario;
use crate::replay::Outcome;

/// See the fields.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Summary {
    /// From the beginning of the creation to the end of the last gang.
    pub(super) makespan_ms: u64,
    pub(super) evictions: u64,
    /// By kind of gang.
    pub(super) classes: BTreeMap<String, Class>,
    /// By kind of Team: what was held of the nominal quota between the kind's first event and its last. Beyond 100, it borrowed.
    pub(super) quota_use_percent: BTreeMap<String, f64>,
}

/// Of one kind of gang.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Class {
    pub(super) gangs: usize,
    pub(super) evictions: u64,
    /// From the creation to the last admission.
    pub(super) time_to_admission_ms: Distribution,
    pub(super) time_to_finish_mean_ms: f64,
}

/// Quantiles by nearest rank.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub(super) struct Distribution {
    pub(super) mean: f64,
    pub(super) p50: u64,
    pub(super) p99: u64,
    pub(super) max: u64,
}

#[expect(
    clippy::cast_precision_loss,
    reason = "milliseconds of a run are far below 2^52"
)]
impl Distribution {
    fn of(mut sample: Vec<u64>) -> Self {
        sample.sort_unstable();
        let at = |percent: usize| {
            let rank = (sample.len() * percent).div_ceil(100).max(1);
            sample.get(rank - 1).copied().unwrap_or_default()
        };
        Self {
            mean: sample.iter().sum::<u64>() as f64 / sample.len().max(1) as f64,
            p50: at(50),
            p99: at(99),
            max: at(100),
        }
    }
}

impl Summary {
    pub(super) fn of(scenario: &Scenario, outcome: &Outcome) -> Self {
        let classes = scenario.classes.iter().enumerate();
        let classes =
            classes.map(|(class, name)| (name.clone(), Class::of(class, scenario, outcome)));
        let kinds = scenario.team_classes.iter().enumerate();
        let kinds = kinds.map(|(kind, name)| (name.clone(), quota_use(kind, scenario, outcome)));
        Self {
            makespan_ms: outcome.makespan,
            evictions: outcome.evictions,
            classes: classes.collect(),
            quota_use_percent: kinds.collect(),
        }
    }
}

impl Class {
    fn of(class: usize, scenario: &Scenario, outcome: &Outcome) -> Self {
        let records = scenario.jobs.iter().zip(&outcome.records);
        let records = || records.clone().filter(|(job, _)| job.class == class);
        let since = |time: Option<u64>, from: u64| Some(time? - from);
        let admitted = records().filter_map(|(job, it)| since(it.last_admitted_at, job.arrives_at));
        let finished = records().filter_map(|(job, it)| since(it.finished_at, job.arrives_at));
        Self {
            gangs: records().count(),
            evictions: records().map(|(_, it)| u64::from(it.evictions)).sum(),
            time_to_admission_ms: Distribution::of(admitted.collect()),
            time_to_finish_mean_ms: Distribution::of(finished.collect()).mean,
        }
    }
}

#[expect(
    clippy::cast_precision_loss,
    reason = "core-milliseconds of a run are far below 2^52"
)]
fn quota_use(kind: usize, scenario: &Scenario, outcome: &Outcome) -> f64 {
    let teams = scenario.teams.iter().zip(&outcome.measured.teams);
    let of_kind = teams
        .zip(&scenario.team_class)
        .filter(|(_, it)| **it == kind);
    let (mut held, mut nominal) = (0, 0);
    let (mut first, mut last) = (u64::MAX, 0);
    for ((limits, used), _) in of_kind {
        held += used.held;
        nominal += limits.nominal;
        first = used.first_event_at.map_or(first, |at| first.min(at));
        last = used.last_event_at.map_or(last, |at| last.max(at));
    }
    let whole = u128::from(nominal) * u128::from(last.saturating_sub(first).max(1));
    held as f64 * 100.0 / whole as f64
}
