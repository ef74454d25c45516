//! How long a takeover takes, in its phases: nothing is decided meanwhile.

use std::time::Duration;

use tokio::time::Instant;

use crate::metrics::{ControllerMetrics, TakeoverPhase};

/// A takeover that lasts longer is logged as a warning.
const BUDGET: Duration = Duration::from_secs(30);

/// How far a takeover is, and since when.
pub(super) struct TakeoverClock {
    metrics: ControllerMetrics,
    begun: Instant,
    /// When the first list was asked for: the epoch is raised.
    reading_since: Option<Instant>,
    /// When the last list was complete.
    read_at: Option<Instant>,
    is_over: bool,
}

impl TakeoverClock {
    /// The replica leads from now on.
    pub(super) fn start(metrics: ControllerMetrics) -> Self {
        Self {
            metrics,
            begun: Instant::now(),
            reading_since: None,
            read_at: None,
            is_over: false,
        }
    }

    /// A kind is to be read.
    pub(super) fn list_is_asked_for(&mut self) {
        self.reading_since.get_or_insert_with(Instant::now);
        self.read_at = None;
    }

    /// A kind was read, and so many are still missing.
    pub(super) fn list_is_read(&mut self, missing: usize) {
        if missing == 0 {
            self.read_at = Some(Instant::now());
        }
    }

    /// The machine was polled, and it decides, or does not yet.
    pub(super) fn polled(&mut self, decides: bool) {
        if self.is_over {
            return;
        }
        let total = self.begun.elapsed();
        if !decides {
            self.metrics.set_without_decisions(total);
            return;
        }
        self.is_over = true;
        self.metrics.set_without_decisions(Duration::ZERO);
        let reading_since = self.reading_since.unwrap_or(self.begun);
        let read_at = self.read_at.unwrap_or(reading_since);
        let phases = [
            (TakeoverPhase::RaiseEpoch, reading_since - self.begun),
            (TakeoverPhase::ReadAll, read_at - reading_since),
            (TakeoverPhase::FirstDecision, read_at.elapsed()),
        ];
        for (phase, took) in phases {
            self.metrics.set_takeover(phase, took);
        }
        let [
            raise_epoch_seconds,
            read_all_seconds,
            first_decision_seconds,
        ] = phases.map(|(_, took)| took.as_secs_f64());
        let seconds = total.as_secs_f64();
        if total > BUDGET {
            tracing::warn!(
                seconds,
                raise_epoch_seconds,
                read_all_seconds,
                first_decision_seconds,
                budget_seconds = BUDGET.as_secs(),
                "taken over; nothing was decided for longer than it should take"
            );
        } else {
            tracing::info!(
                seconds,
                raise_epoch_seconds,
                read_all_seconds,
                first_decision_seconds,
                "taken over"
            );
        }
    }
}
