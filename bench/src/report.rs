//! What was measured, as it is written.

use std::{path::Path, time::Duration};

use anyhow::{Context, Result};
use serde::Serialize;

/// Quantiles and the largest.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub(crate) struct Spread {
    pub(crate) p50: f64,
    pub(crate) p99: f64,
    pub(crate) max: f64,
}

impl Spread {
    /// Of a sample in any order; zero of none.
    pub(crate) fn of(mut sample: Vec<f64>) -> Self {
        sample.sort_by(f64::total_cmp);
        let at = |percent: usize| {
            let rank = (sample.len() * percent).div_ceil(100).max(1);
            sample.get(rank - 1).copied().unwrap_or_default()
        };
        Self {
            p50: at(50),
            p99: at(99),
            max: at(100),
        }
    }
}

impl std::fmt::Display for Spread {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { p50, p99, max } = self;
        write!(formatter, "p50 {p50:.0}, p99 {p99:.0}, max {max:.0}")
    }
}

/// A number and what it is to be.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Verdict {
    pub(crate) what: String,
    pub(crate) found: f64,
    pub(crate) at_most: f64,
    pub(crate) is_met: bool,
}

impl Verdict {
    pub(crate) fn at_most(what: &str, found: f64, at_most: f64) -> Self {
        Self {
            what: what.to_owned(),
            found,
            at_most,
            is_met: found <= at_most,
        }
    }
}

impl std::fmt::Display for Verdict {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self {
            what,
            found,
            at_most,
            is_met,
        } = self;
        let verdict = if *is_met { "within" } else { "ABOVE" };
        write!(formatter, "{what}: {found:.4}; {verdict} {at_most}")
    }
}

/// Writes a report as JSON, if it is wanted.
pub(crate) fn write(report: &impl Serialize, path: Option<&Path>) -> Result<()> {
    let Some(path) = path else { return Ok(()) };
    let text = serde_json::to_string_pretty(report)?;
    std::fs::write(path, text + "\n").with_context(|| format!("writing {}", path.display()))
}

/// In microseconds, as a number of JSON.
pub(crate) fn micros(time: Duration) -> f64 {
    time.as_secs_f64() * 1_000_000.0
}

/// In MiB.
#[expect(
    clippy::cast_precision_loss,
    reason = "a number of bytes is far below 2^52"
)]
pub(crate) fn mebibytes(bytes: usize) -> f64 {
    bytes as f64 / (1024.0 * 1024.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_at_its_limit_is_within_it() {
        for (found, text) in [
            (1.0, "size: 1.0000; within 1"),
            (1.01, "size: 1.0100; ABOVE 1"),
            (f64::NAN, "size: NaN; ABOVE 1"),
        ] {
            assert_eq!(Verdict::at_most("size", found, 1.0).to_string(), text);
        }
    }

    #[test]
    fn quantiles_are_by_nearest_rank() {
        let sample = |count: u32| (1..=count).rev().map(f64::from).collect();
        for (count, p50, p99) in [
            (1, 1.0, 1.0),
            (2, 1.0, 2.0),
            (100, 50.0, 99.0),
            (200, 100.0, 198.0),
        ] {
            let max = f64::from(count);
            assert_eq!(Spread::of(sample(count)), Spread { p50, p99, max });
        }
        assert_eq!(Spread::of(Vec::new()), Spread::default());
    }
}
