//! What a watch shows of itself.

use kube::{Resource, runtime::watcher};
use prometheus_client::metrics::{counter::Counter, gauge::Gauge};
use tokio::time::Instant;

use super::{KindLabel, WatchMetrics};
use crate::readiness::Condition;

/// Whether one watch works, whether it has told its first list, and what it cannot decode.
pub(super) struct WatchHealth {
    kind: String,
    synced: Condition,
    stale_seconds: Gauge,
    errors: Counter,
    undecodable_now: Gauge,
    failing_since: Option<Instant>,
}

impl WatchHealth {
    pub(super) fn new<K: Resource<DynamicType = ()>>(
        metrics: &WatchMetrics,
        synced: Condition,
    ) -> Self {
        let label = KindLabel {
            kind: K::kind(&()).into_owned(),
        };
        Self {
            synced,
            stale_seconds: metrics.stale_seconds.get_or_create_owned(&label),
            errors: metrics.errors.get_or_create_owned(&label),
            undecodable_now: metrics.undecodable.get_or_create_owned(&label),
            failing_since: None,
            kind: label.kind,
        }
    }

    /// The watch failed, and goes on.
    pub(super) fn failed(&mut self, error: &watcher::Error) {
        let since = *self.failing_since.get_or_insert_with(Instant::now);
        let seconds = since.elapsed().as_secs();
        self.stale_seconds
            .set(i64::try_from(seconds).unwrap_or(i64::MAX));
        self.errors.inc();
        tracing::warn!(kind = self.kind, seconds, %error, "watch fails");
    }

    /// The watch works.
    pub(super) fn works(&mut self) {
        self.failing_since = None;
        self.stale_seconds.set(0);
    }

    /// So many objects cannot be decoded now.
    pub(super) fn undecodable(&self, objects: usize) {
        self.undecodable_now
            .set(i64::try_from(objects).unwrap_or(i64::MAX));
    }

    /// The first list is in the channel.
    pub(super) fn synced(&self) {
        self.synced.set(true);
    }
}
