//! What was reviewed.

use muster_serve::metrics::Metrics;
use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family},
};

/// The counter `muster_webhook_reviews_total`, by what was reviewed and the verdict.
#[derive(Clone, Debug, Default)]
pub struct Reviews {
    answered: Family<Labels, Counter>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Labels {
    review: &'static str,
    verdict: &'static str,
}

impl Reviews {
    /// Registers the counter; once per program.
    pub fn register(metrics: &Metrics) -> Self {
        let reviews = Self::default();
        metrics.register(|registry| {
            registry.register(
                "webhook_reviews",
                "Admission reviews by what was reviewed and the verdict (allowed, denied, malformed, error)",
                reviews.answered.clone(),
            );
        });
        reviews
    }

    /// Counts one answer.
    pub fn count(&self, review: &'static str, verdict: &'static str) {
        self.answered
            .get_or_create(&Labels { review, verdict })
            .inc();
    }
}
