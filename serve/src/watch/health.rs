//! What a watch shows of itself.

use std::{
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use kube::{
    Resource,
    runtime::watcher::{self, Event},
};
use prometheus_client::{
    encoding::{EncodeMetric, MetricEncoder},
    metrics::{MetricType, TypedMetric, counter::Counter, gauge::Gauge},
};
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
    stale_seconds: AgeGauge,
    errors: Counter,
    undecodable_now: Gauge,
    /// Whether the gauge says so because of this watch. Each event would ask it else.
    is_known_to_work: bool,
}

/// A gauge of the seconds for which a watch has been failing *when it is read*: between two failures there may be a minute, or five where
/// a list is never answered, and whoever looks in between is to see that time as well.
///
/// One for each kind: a watch that is closed and opened again goes on where it was.
#[derive(Clone, Debug, Default)]
pub(super) struct AgeGauge(Arc<Mutex<Option<Instant>>>);

impl AgeGauge {
    fn failing_since(&self) -> MutexGuard<'_, Option<Instant>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn seconds(&self) -> u64 {
        let since = *self.failing_since();
        since.map_or(0, |since| since.elapsed().as_secs())
    }
}

impl TypedMetric for AgeGauge {
    const TYPE: MetricType = MetricType::Gauge;
}

impl EncodeMetric for AgeGauge {
    fn encode(&self, mut encoder: MetricEncoder) -> Result<(), fmt::Error> {
        encoder.encode_gauge(&self.seconds())
    }

    fn metric_type(&self) -> MetricType {
        Self::TYPE
    }
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
            is_known_to_work: false,
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
    /// Nor does an object of the list: until the last page has come nothing is known of what is gone, and that page may be refused.
    pub(super) fn took<T>(&mut self, event: &Event<T>) {
        if matches!(event, Event::InitDone | Event::Apply(_) | Event::Delete(_)) {
            self.works();
        }
    }

    /// The watch failed, and goes on.
    pub(super) fn failed(&mut self, error: &watcher::Error) {
        self.is_known_to_work = false;
        self.stale_seconds
            .failing_since()
            .get_or_insert_with(Instant::now);
        let seconds = self.stale_seconds.seconds();
        self.errors.inc();
        tracing::warn!(kind = self.kind, seconds, %error, "watch fails");
    }

    /// The watch works.
    pub(super) fn works(&mut self) {
        if !std::mem::replace(&mut self.is_known_to_work, true) {
            *self.stale_seconds.failing_since() = None;
        }
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
