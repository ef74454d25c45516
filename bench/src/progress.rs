//! What a measurement that takes long says meanwhile, on standard error.

use std::time::{Duration, Instant};

const EVERY: Duration = Duration::from_secs(5);

/// Says something every few seconds.
pub(crate) struct Progress {
    begun: Instant,
    told: Instant,
}

impl Progress {
    /// Of a part of the measurement.
    pub(crate) fn of(what: &str) -> Self {
        eprintln!("{what}");
        Self {
            begun: Instant::now(),
            told: Instant::now(),
        }
    }

    /// Says how far it is, if it is time to.
    pub(crate) fn tick(&mut self, state: impl FnOnce() -> String) {
        if self.told.elapsed() >= EVERY {
            self.told = Instant::now();
            self.say(&state());
        }
    }

    /// Says something now.
    pub(crate) fn say(&self, text: &str) {
        eprintln!("  {:6.1} s  {text}", self.begun.elapsed().as_secs_f64());
    }
}
