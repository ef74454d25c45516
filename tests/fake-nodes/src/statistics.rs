//! What happened so far, one line at a time.

use std::{
    sync::{
        Arc,
        atomic::{AtomicI64, AtomicU64, Ordering},
    },
    time::Duration,
};

use anyhow::Result;

/// Counters over all nodes.
#[derive(Debug, Default)]
pub struct Statistics {
    /// Pods that run now.
    pub running: AtomicI64,
    /// Pods that have ever been started.
    pub started: AtomicU64,
    /// Claims that were prepared.
    pub prepared: AtomicU64,
    /// Claims that were given back.
    pub unprepared: AtomicU64,
    /// Calls to the driver that were refused.
    pub refused: AtomicU64,
    /// Calls to the API server that failed.
    pub failed_calls: AtomicU64,
}

impl Statistics {
    /// Counts one more.
    pub fn count(counter: &AtomicU64) {
        counter.fetch_add(1, Ordering::Relaxed);
    }

    fn line(&self) -> String {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        format!(
            "pods running {} started {}, claims prepared {} unprepared {} refused {}, failed calls {}",
            self.running.load(Ordering::Relaxed),
            read(&self.started),
            read(&self.prepared),
            read(&self.unprepared),
            read(&self.refused),
            read(&self.failed_calls),
        )
    }
}

/// Logs a line each `every`, where it says something new.
pub async fn print(statistics: Arc<Statistics>, every: Duration) -> Result<()> {
    let mut told = String::new();
    loop {
        tokio::time::sleep(every).await;
        let line = statistics.line();
        if line != told {
            tracing::info!("{line}");
            told = line;
        }
    }
}
