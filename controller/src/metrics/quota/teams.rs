//! What each Team has and uses.

use std::collections::BTreeMap;

use muster_api::{FlavorQuota, QueueLimit, ResourceQuota, Team};
use muster_serve::metrics::Metrics;
use prometheus_client::{encoding::EncodeLabelSet, metrics::family::Family};

use super::{Numbers, Series, set_amount, set_share};

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, EncodeLabelSet)]
struct LimitLabels {
    team: String,
    flavor: String,
    resource: String,
}

/// A family by Team alone.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, EncodeLabelSet)]
pub(super) struct TeamLabel {
    pub(super) team: String,
}

#[derive(Clone, Debug)]
pub(super) struct TeamFamilies {
    nominal: Numbers<LimitLabels>,
    borrowing_limit: Numbers<LimitLabels>,
    lending_limit: Numbers<LimitLabels>,
    usage: Numbers<LimitLabels>,
    weighted_share: Numbers<TeamLabel>,
}

#[derive(Debug)]
pub(super) struct TeamCensus {
    families: TeamFamilies,
    shown: Series<LimitLabels>,
}

impl TeamFamilies {
    pub(super) fn register(metrics: &Metrics) -> Self {
        let families = Self {
            nominal: Family::default(),
            borrowing_limit: Family::default(),
            lending_limit: Family::default(),
            usage: Family::default(),
            weighted_share: Family::default(),
        };
        metrics.register(|registry| {
            registry.register(
                "team_nominal_quota",
                "What is guaranteed to a Team, in GPUs, cores, bytes or pieces",
                families.nominal.clone(),
            );
            registry.register(
                "team_borrowing_limit",
                "Most that a Team may borrow above its nominal quota; absent without a limit",
                families.borrowing_limit.clone(),
            );
            registry.register(
                "team_lending_limit",
                "Most of its nominal quota that a Team lends; absent without a limit",
                families.lending_limit.clone(),
            );
            registry.register(
                "team_resource_usage",
                "What is charged to a Team, what is being released included",
                families.usage.clone(),
            );
            registry.register(
                "team_weighted_share",
                "Thousandths of what could be lent to a Team that it borrows, for its weight; absent unless its root Cohort \
                 shares fairly",
                families.weighted_share.clone(),
            );
        });
        families
    }

    /// Takes a resource of a Flavor out of all families.
    fn remove(&self, labels: &LimitLabels) {
        for family in [
            &self.nominal,
            &self.borrowing_limit,
            &self.lending_limit,
            &self.usage,
        ] {
            family.remove(labels);
        }
    }
}

impl TeamCensus {
    pub(super) fn new(families: TeamFamilies) -> Self {
        Self {
            families,
            shown: Series::none(),
        }
    }

    pub(super) fn known(&self) -> impl Iterator<Item = &str> {
        self.shown.names()
    }

    pub(super) fn show(&mut self, team: &Team) {
        let name = team.metadata.name.clone().unwrap_or_default();
        let labels = |flavor: &str, resource: &str| LimitLabels {
            team: name.clone(),
            flavor: flavor.to_owned(),
            resource: resource.to_owned(),
        };
        let mut shown: BTreeMap<LimitLabels, (Option<&ResourceQuota>, Option<&QueueLimit>)> =
            BTreeMap::new();
        for FlavorQuota { flavor, resources } in &team.spec.quota {
            for has in resources {
                shown.entry(labels(flavor, &has.name)).or_default().0 = Some(has);
            }
        }
        let status = team.status.as_ref();
        for uses in status.iter().flat_map(|status| &status.limits) {
            shown
                .entry(labels(&uses.flavor, &uses.resource))
                .or_default()
                .1 = Some(uses);
        }
        for (of, (has, uses)) in &shown {
            let families = &self.families;
            let set = |family, amount| set_amount(family, of, &of.resource, amount);
            // What follows the inventory stands in the status alone.
            let nominal = has.and_then(|it| it.nominal.as_ref());
            let nominal = nominal.or_else(|| uses.map(|it| &it.nominal));
            set(&families.nominal, nominal);
            let borrowing_limit = has.and_then(|it| it.borrowing_limit.as_ref());
            set(&families.borrowing_limit, borrowing_limit);
            let lending_limit = has.and_then(|it| it.lending_limit.as_ref());
            set(&families.lending_limit, lending_limit);
            set(&families.usage, uses.map(|it| &it.used));
        }
        let label = TeamLabel { team: name.clone() };
        let share = status.and_then(|status| status.weighted_share);
        set_share(&self.families.weighted_share, &label, share);
        for gone in self.shown.replace(name, shown.into_keys().collect()) {
            self.families.remove(&gone);
        }
    }

    pub(super) fn forget(&mut self, name: &str) {
        for gone in self.shown.remove(name) {
            self.families.remove(&gone);
        }
        let team = name.to_owned();
        self.families.weighted_share.remove(&TeamLabel { team });
    }
}
