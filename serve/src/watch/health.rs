//! What a watch shows of itself.

use std::{
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
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

/// After how long without a failure a watch that broke off counts as one that works: longer than the pause before an attempt (a minute) and the
/// longest attempt (310 s without an answer) together.
const FORGOTTEN_AFTER: Duration = Duration::from_secs(400);

/// A gauge of the seconds for which a watch has been failing.
///
/// *A list that failed* comes, or fails again, and until it has come nothing is known. So what is told is as old as it is *when the gauge is read*:
/// before the next attempt there is a pause, and one that is never answered takes minutes.
///
/// *A watch that broke off* and works again tells nothing before something changes, which may be days later. So what is told is the time from
/// the first failure to the last, and no failure for [`FORGOTTEN_AFTER`] is the end of it.
///
/// There is one for each kind: a watch that is closed and opened again goes on where it was.
#[derive(Clone, Debug, Default)]
pub(super) struct AgeGauge(Arc<Mutex<Option<Failing>>>);

/// What is known of a watch that fails.
#[derive(Clone, Copy, Debug)]
struct Failing {
    since: Instant,
    last: Instant,
    /// Whether a list is awaited.
    awaits_list: bool,
}

impl Failing {
    fn is_forgotten(self) -> bool {
        !self.awaits_list && self.last.elapsed() > FORGOTTEN_AFTER
    }
}

impl AgeGauge {
    fn failing(&self) -> MutexGuard<'_, Option<Failing>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The watch failed now.
    fn failed(&self, awaits_list: bool) {
        let mut failing = self.failing();
        let now = Instant::now();
        let before = failing.filter(|failing| !failing.is_forgotten());
        *failing = Some(Failing {
            since: before.map_or(now, |before| before.since),
            last: now,
            awaits_list,
        });
    }

    fn works(&self) {
        *self.failing() = None;
    }

    fn seconds(&self) -> u64 {
        let failing = *self.failing();
        let failing = failing.filter(|failing| !failing.is_forgotten());
        failing.map_or(0, |failing| {
            let known = if failing.awaits_list {
                Instant::now()
            } else {
                failing.last
            };
            known.saturating_duration_since(failing.since).as_secs()
        })
    }
}

impl TypedMetric for AgeGauge {
    const TYPE: MetricType = MetricType::Gauge;
}

impl EncodeMetric for AgeGauge {
    fn encode(&self, mut encoder: MetricEncoder<'_>) -> Result<(), fmt::Error> {
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
        self.stale_seconds.failed(is_listed_next(error));
        let seconds = self.stale_seconds.seconds();
        self.errors.inc();
        tracing::warn!(kind = self.kind, seconds, %error, "watch fails");
    }

    /// The watch works.
    pub(super) fn works(&mut self) {
        if !std::mem::replace(&mut self.is_known_to_work, true) {
            self.stale_seconds.works();
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

/// Whether kube's watcher asks for a list after such a failure. After any other it watches on from where it was.
fn is_listed_next(error: &watcher::Error) -> bool {
    match error {
        watcher::Error::InitialListFailed(_) | watcher::Error::NoResourceVersion => true,
        watcher::Error::WatchError(status) => status.code == 410,
        watcher::Error::WatchStartFailed(_) | watcher::Error::WatchFailed(_) => false,
    }
}
