//! What Teams and Cohorts have, use and wait for, in the families that Kueue's users know, in base units: GPUs, cores and bytes.
//!
//! Everything is read off objects as the leader sees them: what a Team has off its spec, what it uses off the status that the
//! controller keeps, and so on.
//!
//! **How many series there are** follows what administrators make, never what users do: Teams, Cohorts, the Flavors and resources
//! of their quota, and the words of the API. A series of something that is gone goes with it.

mod cohorts;
mod gangs;
mod teams;
#[cfg(test)]
mod tests;

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Debug,
    hash::Hash,
    sync::atomic::AtomicU64,
};

use muster_api::Quantity;
use muster_cluster::{
    object::{Change, Kind, Object, ObjectKey},
    quantity,
};
use muster_serve::metrics::Metrics;
use prometheus_client::metrics::{family::Family, gauge::Gauge};

use self::{
    cohorts::{CohortCensus, CohortFamilies},
    gangs::{GangCensus, GangFamilies},
    teams::{TeamCensus, TeamFamilies},
};

type Numbers<L> = Family<L, Gauge<f64, AtomicU64>>;

/// The families of a program.
#[derive(Clone, Debug)]
pub(super) struct QuotaFamilies {
    teams: TeamFamilies,
    cohorts: CohortFamilies,
    gangs: GangFamilies,
}

/// Keeps the families by what is observed in one leadership.
#[derive(Debug)]
pub(super) struct QuotaCensus {
    teams: TeamCensus,
    cohorts: CohortCensus,
    gangs: GangCensus,
}

impl QuotaFamilies {
    /// Registers the families; once per program.
    pub(super) fn register(metrics: &Metrics) -> Self {
        Self {
            teams: TeamFamilies::register(metrics),
            cohorts: CohortFamilies::register(metrics),
            gangs: GangFamilies::register(metrics),
        }
    }
}

impl QuotaCensus {
    pub(super) fn new(families: QuotaFamilies) -> Self {
        Self {
            teams: TeamCensus::new(families.teams),
            cohorts: CohortCensus::new(families.cohorts),
            gangs: GangCensus::new(families.gangs),
        }
    }

    pub(super) fn observe(&mut self, change: &Change) {
        match change {
            Change::Applied(object) => self.show(object),
            Change::Deleted(key) => self.forget(key),
            Change::ListedKeys(kind, keys) => self.keep(*kind, keys),
            Change::Listed(kind, objects) => {
                let keys: BTreeSet<ObjectKey> = objects.iter().map(Object::key).collect();
                self.keep(*kind, &keys);
                for object in objects {
                    self.show(object);
                }
            }
        }
    }

    fn show(&mut self, object: &Object) {
        match object {
            Object::Team(team) => self.teams.show(team),
            Object::Cohort(cohort) => self.cohorts.show(cohort),
            Object::Gang(gang) => self.gangs.count(gang),
            _ => {}
        }
    }

    /// Forgets what a list did not name.
    fn keep(&mut self, kind: Kind, listed: &BTreeSet<ObjectKey>) {
        let cluster_wide = |name: &str| ObjectKey {
            kind,
            namespace: String::new(),
            name: name.to_owned(),
        };
        let known: Vec<ObjectKey> = match kind {
            Kind::Team => self.teams.known().map(cluster_wide).collect(),
            Kind::Cohort => self.cohorts.known().map(cluster_wide).collect(),
            Kind::Gang => self.gangs.known().into_iter().cloned().collect(),
            _ => return,
        };
        for key in known.iter().filter(|key| !listed.contains(key)) {
            self.forget(key);
        }
    }

    fn forget(&mut self, key: &ObjectKey) {
        match key.kind {
            Kind::Team => {
                self.teams.forget(&key.name);
                self.gangs.forget_team(&key.name);
            }
            Kind::Cohort => self.cohorts.forget(&key.name),
            Kind::Gang => self.gangs.forget(key),
            _ => {}
        }
    }
}

/// The series that are shown of each object, by its name. One that is left shows its last value for ever.
#[derive(Debug)]
struct Series<L>(BTreeMap<String, BTreeSet<L>>);

impl<L: Ord> Series<L> {
    fn none() -> Self {
        Self(BTreeMap::new())
    }

    fn names(&self) -> impl Iterator<Item = &str> {
        self.0.keys().map(String::as_str)
    }

    /// Notes what is shown of an object. Returns what was shown of it before and is not any more.
    fn replace(&mut self, name: String, shown: BTreeSet<L>) -> BTreeSet<L> {
        let mut before = self.0.remove(&name).unwrap_or_default();
        before.retain(|labels| !shown.contains(labels));
        self.0.insert(name, shown);
        before
    }

    /// Forgets an object. Returns what was shown of it.
    fn remove(&mut self, name: &str) -> BTreeSet<L> {
        self.0.remove(name).unwrap_or_default()
    }
}

/// Shows an amount; one that is absent, or that nobody can count with, is not shown.
fn set_amount<L: Clone + Debug + Eq + Hash>(
    family: &Numbers<L>,
    labels: &L,
    resource: &str,
    amount: Option<&Quantity>,
) {
    let amount = amount.and_then(|amount| quantity::in_base_units(resource, amount));
    set(family, labels, amount);
}

/// Shows a weighted share. Kueue, too, shows what is beyond all measure as a number.
fn set_share<L: Clone + Debug + Eq + Hash>(family: &Numbers<L>, labels: &L, share: Option<i64>) {
    #[expect(clippy::cast_precision_loss, reason = "a metric is read by people")]
    let share = share.map(|share| share as f64);
    set(family, labels, share);
}

fn set<L: Clone + Debug + Eq + Hash>(family: &Numbers<L>, labels: &L, number: Option<f64>) {
    match number {
        Some(number) => {
            family.get_or_create(labels).set(number);
        }
        None => {
            family.remove(labels);
        }
    }
}
