//! What the extender was asked and what it said.

use muster_serve::metrics::Metrics;
use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family},
};

/// The counter `muster_extender_requests_total`, by verb and verdict.
///
/// It stays 0 for pods without the marker: kube-scheduler never asks about those.
#[derive(Clone, Debug, Default)]
pub struct Requests {
    answered: Family<Labels, Counter>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Labels {
    verb: &'static str,
    verdict: &'static str,
}

impl Requests {
    /// Registers the counter; once per program.
    pub fn register(metrics: &Metrics) -> Self {
        let requests = Self::default();
        metrics.register(|registry| {
            registry.register(
                "extender_requests",
                "Requests of kube-scheduler by verb (filter, prioritize, preempt) and verdict",
                requests.answered.clone(),
            );
        });
        requests
    }

    /// Counts one answer.
    pub fn count(&self, verb: &'static str, verdict: &'static str) {
        self.answered.get_or_create(&Labels { verb, verdict }).inc();
    }

    /// How many answers of a verb and verdict were given.
    pub fn answered(&self, verb: &'static str, verdict: &'static str) -> u64 {
        self.answered.get_or_create(&Labels { verb, verdict }).get()
    }
}
