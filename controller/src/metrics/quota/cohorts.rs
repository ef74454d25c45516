//! What is shared in each Cohort, and how much of it is used. What only the controller can tell is read off the Cohort's status: a
//! Cohort that is merely named by others has none, and no series either.

use muster_api::Cohort;
use muster_serve::metrics::Metrics;
use prometheus_client::{encoding::EncodeLabelSet, metrics::family::Family};

use super::{Numbers, Series, set_amount, set_share};

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, EncodeLabelSet)]
struct LimitLabels {
    cohort: String,
    flavor: String,
    resource: String,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, EncodeLabelSet)]
struct CohortLabel {
    cohort: String,
}

#[derive(Clone, Debug)]
pub(super) struct CohortFamilies {
    subtree_quota: Numbers<LimitLabels>,
    subtree_resource_reservations: Numbers<LimitLabels>,
    weighted_share: Numbers<CohortLabel>,
}

#[derive(Debug)]
pub(super) struct CohortCensus {
    families: CohortFamilies,
    shown: Series<LimitLabels>,
}

impl CohortFamilies {
    pub(super) fn register(metrics: &Metrics) -> Self {
        let families = Self {
            subtree_quota: Family::default(),
            subtree_resource_reservations: Family::default(),
            weighted_share: Family::default(),
        };
        metrics.register(|registry| {
            registry.register(
                "cohort_subtree_quota",
                "What a Cohort has and all its members lend, in GPUs, cores, bytes or pieces",
                families.subtree_quota.clone(),
            );
            registry.register(
                "cohort_subtree_resource_reservations",
                "What is in use of a Cohort's subtree quota and of what it borrows from above, what is being released included",
                families.subtree_resource_reservations.clone(),
            );
            registry.register(
                "cohort_weighted_share",
                "Thousandths of what could be lent to a Cohort that it borrows, for its weight; absent unless its root Cohort \
                 shares fairly",
                families.weighted_share.clone(),
            );
        });
        families
    }

    /// Takes a resource of a Flavor out of all families.
    fn remove(&self, labels: &LimitLabels) {
        self.subtree_quota.remove(labels);
        self.subtree_resource_reservations.remove(labels);
    }
}

impl CohortCensus {
    pub(super) fn new(families: CohortFamilies) -> Self {
        Self {
            families,
            shown: Series::none(),
        }
    }

    pub(super) fn known(&self) -> impl Iterator<Item = &str> {
        self.shown.names()
    }

    pub(super) fn show(&mut self, cohort: &Cohort) {
        let name = cohort.metadata.name.clone().unwrap_or_default();
        let status = cohort.status.as_ref();
        let limits = status.iter().flat_map(|status| &status.limits);
        let shown = limits.map(|limit| {
            let labels = LimitLabels {
                cohort: name.clone(),
                flavor: limit.flavor.clone(),
                resource: limit.resource.clone(),
            };
            let set = |family, amount| set_amount(family, &labels, &limit.resource, Some(amount));
            set(&self.families.subtree_quota, &limit.subtree_quota);
            set(&self.families.subtree_resource_reservations, &limit.used);
            labels
        });
        let shown = shown.collect();
        let label = CohortLabel {
            cohort: name.clone(),
        };
        let share = status.and_then(|status| status.weighted_share);
        set_share(&self.families.weighted_share, &label, share);
        for gone in self.shown.replace(name, shown) {
            self.families.remove(&gone);
        }
    }

    pub(super) fn forget(&mut self, name: &str) {
        for gone in self.shown.remove(name) {
            self.families.remove(&gone);
        }
        let cohort = name.to_owned();
        self.families.weighted_share.remove(&CohortLabel { cohort });
    }
}
