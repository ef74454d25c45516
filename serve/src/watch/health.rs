//! What a watch shows of itself.

use kube::{
    Resource,
    runtime::watcher::{self, Event},
};
use prometheus_client::metrics::{counter::Counter, gauge::Gauge};
use tokio::time::Instant;

use super::{KindLabel, WatchMetrics};
use crate::readiness::Condition;

/// Whether one watch works, whether it has told its first list, and what it cannot decode.
///
/// The watches of this module show it by themselves. Whoever drives kube's watcher himself tells what comes of it ([`WatchHealth::note`]).
#[derive(Debug)]
pub struct WatchHealth {
    kind: String,
    synced: Option<Condition>,
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
        let mut health = Self::beside_readiness::<K>(metrics);
        health.synced = Some(synced);
        health
    }

    /// That of a watch without which the program is ready all the same: it shows in the log and in the metrics only.
    pub fn beside_readiness<K: Resource<DynamicType = ()>>(metrics: &WatchMetrics) -> Self {
        let label = KindLabel {
            kind: K::kind(&()).into_owned(),
        };
        Self {
            synced: None,
            stale_seconds: metrics.stale_seconds.get_or_create_owned(&label),
            errors: metrics.errors.get_or_create_owned(&label),
            undecodable_now: metrics.undecodable.get_or_create_owned(&label),
            failing_since: None,
            kind: label.kind,
        }
    }

    /// Notes what came of the watch: that it works, or that it failed and goes on, which is logged as a warning with the reason.
    pub fn note<T>(&mut self, seen: &watcher::Result<Event<T>>) {
        match seen {
            Ok(event) => self.took(event),
            Err(error) => self.failed(error),
        }
    }

    /// The watch told something. That it begins a list says nothing: kube's watcher tells so before it asks for the list, so before each refusal as well.
    pub(super) fn took<T>(&mut self, event: &Event<T>) {
        if !matches!(event, Event::Init) {
            self.works();
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
        if let Some(synced) = &self.synced {
            synced.set(true);
        }
    }
}
