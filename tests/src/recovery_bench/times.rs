//! The times of single runs, and the quantiles of many.

use std::fmt;

use crate::scale::Percentiles;

/// What a time that never came counts as: longer than any. `null` in JSON.
const NEVER: f64 = f64::INFINITY;
/// Quantiles of nothing: `null` in JSON.
pub(super) const NONE: Percentiles = Percentiles {
    p50: f64::NAN,
    p99: f64::NAN,
};

/// Times of one fault, in seconds since it was injected. `None`: it did not come to that before the wait ended.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct FaultTimes {
    pub(super) taint: Option<f64>,
    /// Also `None` if nobody was evicted, as all ranks had ended.
    pub(super) intent: Option<f64>,
    pub(super) deleted: Option<f64>,
    pub(super) running: Option<f64>,
    /// Attempts that it took, at least one.
    pub(super) attempts: Option<i64>,
}

/// Times of one lost node, in seconds since then. `None`: it did not come to that before the wait ended.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct NodeLossTimes {
    pub(super) intent: Option<f64>,
    pub(super) running: Option<f64>,
}

/// What was counted in a case.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Counts {
    pub(super) wrong: usize,
    pub(super) partial: usize,
    pub(super) died_otherwise: usize,
    pub(super) unmeasured: usize,
}

impl Counts {
    /// With so many further restarts that were wrong.
    pub(super) fn with_wrong(self, more: usize) -> Self {
        Self {
            wrong: self.wrong + more,
            ..self
        }
    }
}

impl FaultTimes {
    /// Whether the gang ran again and nobody had been evicted.
    pub(super) fn is_without_eviction(&self) -> bool {
        self.running.is_some() && self.intent.is_none()
    }
}

impl fmt::Display for FaultTimes {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let of = |time: Option<f64>| text(time.unwrap_or(NEVER), 2);
        let intent = if self.is_without_eviction() {
            "nobody evicted".to_owned()
        } else {
            format!("intent {}", of(self.intent))
        };
        write!(
            formatter,
            "taint {}, {intent}, all deleted {}, all running {} (seconds)",
            of(self.taint),
            of(self.deleted),
            of(self.running)
        )
    }
}

impl fmt::Display for NodeLossTimes {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let of = |time: Option<f64>| text(time.unwrap_or(NEVER), 1);
        let (intent, running) = (of(self.intent), of(self.running));
        write!(
            formatter,
            "intent {intent}, all running {running} (seconds)"
        )
    }
}

/// Quantiles of times of which some may never have come.
pub(super) fn quantiles(times: impl Iterator<Item = Option<f64>>) -> Percentiles {
    let times: Vec<f64> = times.map(|time| time.unwrap_or(NEVER)).collect();
    if times.is_empty() {
        NONE
    } else {
        Percentiles::of(times)
    }
}

/// A time in seconds, with so many decimals, or why there is none.
pub(super) fn text(seconds: f64, decimals: usize) -> String {
    if seconds.is_nan() {
        "-".to_owned()
    } else if seconds.is_infinite() {
        "never".to_owned()
    } else {
        format!("{seconds:.decimals$}")
    }
}
