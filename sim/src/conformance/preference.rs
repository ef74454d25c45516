//! Which of two Flavors suits a gang better.

use muster_engine::quota::{FlavorMode, Suitability};
use serde::Deserialize;

use super::{queues::Fungibility, same};

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Case {
    a: Tried,
    b: Tried,
    #[serde(default)]
    config: Fungibility,
    want_preferred: bool,
}

/// A Flavor that was tried.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Tried {
    preemption_mode: Mode,
    #[serde(default)]
    borrowing_level: usize,
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
enum Mode {
    NoFit,
    NoPreemptionCandidates,
    Preempt,
    Reclaim,
    Fit,
}

impl From<Tried> for Suitability {
    fn from(tried: Tried) -> Self {
        Self {
            mode: match tried.preemption_mode {
                Mode::NoFit => FlavorMode::NoFit,
                Mode::NoPreemptionCandidates => FlavorMode::NoCandidates,
                Mode::Preempt => FlavorMode::Preempt,
                Mode::Reclaim => FlavorMode::Reclaim,
                Mode::Fit => FlavorMode::Fit,
            },
            borrow_level: tried.borrowing_level,
        }
    }
}

pub(super) fn judge(case: &Case) -> anyhow::Result<()> {
    let fungibility = case.config.policy();
    let preferred = fungibility.is_preferred(case.a.into(), case.b.into());
    same(
        || "the first is preferred".to_owned(),
        &preferred,
        &case.want_preferred,
    )
}
