//! How long each stage took.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};

/// The table that is printed at the end, or at the first failure.
pub(super) struct Report {
    rows: Vec<(String, Duration)>,
    began: Instant,
}

impl Report {
    /// Nothing took any time yet.
    pub(super) fn new() -> Self {
        Self {
            rows: Vec::new(),
            began: Instant::now(),
        }
    }

    /// Runs a stage by itself.
    pub(super) fn stage(&mut self, name: &str, run: impl FnOnce() -> Result<()>) -> Result<()> {
        println!("==> {name}");
        let started = Instant::now();
        let result = run();
        self.add(name, started.elapsed());
        if result.is_err() {
            self.print();
        }
        result.with_context(|| format!("stage {name}"))
    }

    /// Adds a stage that has run.
    pub(super) fn add(&mut self, name: &str, took: Duration) {
        self.rows.push((name.to_owned(), took));
    }

    /// Prints the table. The total is less than the sum where stages ran side by side.
    pub(super) fn print(&self) {
        println!("\n{:<44} {:>8}", "STAGE", "SECONDS");
        for (name, took) in &self.rows {
            println!("{name:<44} {:>8.1}", took.as_secs_f64());
        }
        let total = self.began.elapsed().as_secs_f64();
        println!("{:<44} {total:>8.1}", "total");
    }
}
