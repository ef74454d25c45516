//! What Teams have, use and wait for, in the families that Kueue's users know, in base units: GPUs, cores and bytes.
//!
//! Everything is read off objects as the leader sees them: what a Team has off its spec, what it uses off the status that the
//! controller keeps.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::atomic::AtomicU64,
};

use muster_api::{
    FlavorQuota, Gang, GangStatus, Quantity, QueueLimit, ResourceQuota, Team, conditions,
};
use muster_cluster::{
    formed::has_ended,
    object::{Change, Kind, Object, ObjectKey},
    quantity,
};
use muster_serve::metrics::Metrics;
use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{
        counter::Counter,
        family::Family,
        gauge::Gauge,
        histogram::{Histogram, exponential_buckets},
    },
};

type Amounts = Family<LimitLabels, Gauge<f64, AtomicU64>>;

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, EncodeLabelSet)]
struct LimitLabels {
    team: String,
    flavor: String,
    resource: String,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, EncodeLabelSet)]
struct TeamLabel {
    team: String,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, EncodeLabelSet)]
struct ReasonLabels {
    team: String,
    reason: String,
}

/// The families of a program.
#[derive(Clone, Debug)]
pub(super) struct QuotaFamilies {
    nominal: Amounts,
    borrowing_limit: Amounts,
    lending_limit: Amounts,
    usage: Amounts,
    weighted_share: Family<TeamLabel, Gauge<f64, AtomicU64>>,
    pending: Family<ReasonLabels, Gauge>,
    admitted: Family<TeamLabel, Counter>,
    evicted: Family<ReasonLabels, Counter>,
    admission_wait_seconds: Family<TeamLabel, Histogram>,
}

/// Keeps the families by what is observed in one leadership.
#[derive(Debug)]
pub(super) struct QuotaCensus {
    families: QuotaFamilies,
    /// What is shown of each Team.
    teams: BTreeMap<String, BTreeSet<LimitLabels>>,
    gangs: BTreeMap<ObjectKey, SeenGang>,
    pending: BTreeMap<ReasonLabels, i64>,
}

/// What was seen of a gang last.
#[derive(Debug, Default)]
struct SeenGang {
    waits: Option<ReasonLabels>,
    is_admitted: bool,
    /// The last attempt that was evicted.
    evicted: Option<i64>,
}

impl QuotaFamilies {
    /// Registers the families; once per program.
    pub(super) fn register(metrics: &Metrics) -> Self {
        let families = Self {
            nominal: Family::default(),
            borrowing_limit: Family::default(),
            lending_limit: Family::default(),
            usage: Family::default(),
            weighted_share: Family::default(),
            pending: Family::default(),
            admitted: Family::default(),
            evicted: Family::default(),
            // 1 s to 3 days.
            admission_wait_seconds: Family::new_with_constructor(|| {
                Histogram::new(exponential_buckets(1.0, 2.0, 19))
            }),
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
            registry.register(
                "pending_gangs",
                "Gangs that wait, by Team and reason",
                families.pending.clone(),
            );
            registry.register(
                "admitted_gangs",
                "Admissions that this replica has seen, by Team",
                families.admitted.clone(),
            );
            registry.register(
                "evicted_gangs",
                "Evictions that this replica has seen, by Team and cause",
                families.evicted.clone(),
            );
            registry.register(
                "admission_wait_time_seconds",
                "Time from a gang's place in the queue to its first admission, by Team",
                families.admission_wait_seconds.clone(),
            );
        });
        families
    }

    /// Takes a resource of a Flavor out of all families. A series that is left shows its last value for ever.
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

impl QuotaCensus {
    pub(super) fn new(families: QuotaFamilies) -> Self {
        Self {
            families,
            teams: BTreeMap::new(),
            gangs: BTreeMap::new(),
            pending: BTreeMap::new(),
        }
    }

    pub(super) fn observe(&mut self, change: &Change) {
        match change {
            Change::Applied(Object::Team(team)) => self.show_team(team),
            Change::Applied(Object::Gang(gang)) => self.count_gang(gang),
            Change::Applied(_) => {}
            Change::Deleted(key) => self.forget(key),
            Change::ListedKeys(kind, keys) => self.keep(*kind, |key| keys.contains(key)),
            Change::Listed(kind, objects) => {
                let keys: BTreeSet<ObjectKey> = objects.iter().map(Object::key).collect();
                self.keep(*kind, |key| keys.contains(key));
                for object in objects {
                    match object {
                        Object::Team(team) => self.show_team(team),
                        Object::Gang(gang) => self.count_gang(gang),
                        _ => {}
                    }
                }
            }
        }
    }

    /// Forgets what a list did not name.
    fn keep(&mut self, kind: Kind, is_listed: impl Fn(&ObjectKey) -> bool) {
        let known: Vec<ObjectKey> = match kind {
            Kind::Team => self.teams.keys().map(|name| team_key(name)).collect(),
            Kind::Gang => self.gangs.keys().cloned().collect(),
            _ => return,
        };
        for key in known.iter().filter(|key| !is_listed(key)) {
            self.forget(key);
        }
    }

    fn forget(&mut self, key: &ObjectKey) {
        match key.kind {
            Kind::Team => {
                for labels in self.teams.remove(&key.name).into_iter().flatten() {
                    self.families.remove(&labels);
                }
                let label = TeamLabel {
                    team: key.name.clone(),
                };
                self.families.weighted_share.remove(&label);
            }
            Kind::Gang => {
                if let Some(waits) = self.gangs.remove(key).and_then(|seen| seen.waits) {
                    self.count_pending(&waits, -1);
                }
            }
            _ => {}
        }
    }

    fn show_team(&mut self, team: &Team) {
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
            // What follows the inventory stands in the status alone.
            let nominal = has.and_then(|it| it.nominal.as_ref());
            let nominal = nominal.or_else(|| uses.map(|it| &it.nominal));
            set(&families.nominal, of, nominal);
            let borrowing_limit = has.and_then(|it| it.borrowing_limit.as_ref());
            set(&families.borrowing_limit, of, borrowing_limit);
            let lending_limit = has.and_then(|it| it.lending_limit.as_ref());
            set(&families.lending_limit, of, lending_limit);
            set(&families.usage, of, uses.map(|it| &it.used));
        }
        let label = TeamLabel { team: name.clone() };
        match status.and_then(|status| status.weighted_share) {
            Some(share) => {
                let shares = self.families.weighted_share.get_or_create(&label);
                // Kueue, too, shows what is beyond all measure as a number.
                #[expect(clippy::cast_precision_loss, reason = "a metric is read by people")]
                shares.set(share as f64);
            }
            None => {
                self.families.weighted_share.remove(&label);
            }
        }
        let shown: BTreeSet<LimitLabels> = shown.into_keys().collect();
        let before = self.teams.insert(name, shown.clone()).unwrap_or_default();
        for labels in before.difference(&shown) {
            self.families.remove(labels);
        }
    }

    fn count_gang(&mut self, gang: &Gang) {
        let status = gang.status.clone().unwrap_or_default();
        let team = status.team.clone().unwrap_or_default();
        let waits = status.queue.as_ref().filter(|_| !has_ended(gang));
        let waits = waits.map(|wait| ReasonLabels {
            team: team.clone(),
            reason: wait.reason.to_string(),
        });
        let is_admitted = status.admission.is_some();
        if let Some(waits) = &waits {
            self.count_pending(waits, 1);
        }
        let key = ObjectKey::of(Kind::Gang, &gang.metadata);
        let eviction = status.evictions.last();
        let evicted = eviction.map(|eviction| eviction.attempt);
        let seen = SeenGang {
            waits,
            is_admitted,
            evicted,
        };
        let before = self.gangs.insert(key, seen);
        if let (Some(eviction), Some(before)) = (eviction, &before)
            && before.evicted < evicted
        {
            let of = ReasonLabels {
                team: team.clone(),
                reason: eviction.reason.to_string(),
            };
            self.families.evicted.get_or_create(&of).inc();
        }
        // One that is admitted when it is first seen was admitted before anybody looked.
        let is_new = is_admitted && before.as_ref().is_some_and(|seen| !seen.is_admitted);
        if let Some(waits) = before.and_then(|seen| seen.waits) {
            self.count_pending(&waits, -1);
        }
        // An adopted gang ran before it was admitted: it did not wait.
        let is_adopted = status.admission.as_ref().is_some_and(|it| it.adopted);
        if is_new && !is_adopted {
            let label = TeamLabel { team };
            self.families.admitted.get_or_create(&label).inc();
            // It keeps its age, so of a later admission nobody knows how long it waited for that.
            let is_first = status.attempt <= gang.spec.first_attempt.max(1);
            if let Some(waited) = waited_seconds(&status).filter(|_| is_first) {
                let waits = self.families.admission_wait_seconds.get_or_create(&label);
                waits.observe(waited);
            }
        }
    }

    fn count_pending(&mut self, waits: &ReasonLabels, by: i64) {
        let count = self.pending.entry(waits.clone()).or_default();
        *count += by;
        if *count == 0 {
            self.families.pending.remove(waits);
            self.pending.remove(waits);
        } else {
            self.families.pending.get_or_create(waits).set(*count);
        }
    }
}

/// From when a gang queues to when it was admitted; nothing if either is not said, or the clocks of two leaders disagree.
fn waited_seconds(status: &GangStatus) -> Option<f64> {
    let queued_at = status.queued_at.as_ref()?.0;
    let mut admitted = status
        .conditions
        .iter()
        .filter(|it| it.type_ == conditions::ADMITTED && it.status == "True");
    let admitted_at = admitted.next()?.last_transition_time.0;
    let waited = admitted_at.duration_since(queued_at);
    (!waited.is_negative()).then(|| waited.as_secs_f64())
}

/// Shows an amount; one that is absent, or that nobody can count with, is not shown.
fn set(family: &Amounts, labels: &LimitLabels, amount: Option<&Quantity>) {
    match amount.and_then(|amount| quantity::in_base_units(&labels.resource, amount)) {
        Some(amount) => {
            family.get_or_create(labels).set(amount);
        }
        None => {
            family.remove(labels);
        }
    }
}

fn team_key(name: &str) -> ObjectKey {
    ObjectKey {
        kind: Kind::Team,
        namespace: String::new(),
        name: name.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use serde_json::{Value, json};

    use super::*;

    fn team(spec: &Value, status: &Value) -> Object {
        let team = json!({"apiVersion": "muster.dev/v1alpha1", "kind": "Team", "metadata": {"name": "vision"},
            "spec": spec, "status": status});
        Object::Team(Arc::new(serde_json::from_value(team).unwrap()))
    }

    fn gang(name: &str, status: &Value) -> Object {
        let gang = json!({"apiVersion": "muster.dev/v1alpha1", "kind": "Gang",
            "metadata": {"name": name, "namespace": "ml"}, "spec": {"size": 1}, "status": status});
        Object::Gang(Arc::new(serde_json::from_value(gang).unwrap()))
    }

    fn waiting(reason: &str) -> Value {
        json!({"team": "vision", "phase": "Pending", "queuedAt": "2027-01-01T00:00:00Z",
            "queue": {"reason": reason, "details": ""}})
    }

    fn admitted(adopted: bool) -> Value {
        json!({"team": "vision", "phase": "Admitted", "queuedAt": "2027-01-01T00:00:00Z",
            "admission": {"team": "vision", "teamGeneration": 1, "ledgerSequence": 1, "pods": [], "adopted": adopted,
                "charge": {}},
            "conditions": [{"type": "Admitted", "status": "True", "reason": "Admitted", "message": "",
                "lastTransitionTime": "2027-01-01T00:01:30Z"}]})
    }

    struct Shown {
        registry: Metrics,
        census: QuotaCensus,
    }

    impl Shown {
        fn new() -> Self {
            let registry = Metrics::new("test", "0");
            let census = QuotaCensus::new(QuotaFamilies::register(&registry));
            Self { registry, census }
        }

        fn see(&mut self, object: Object) {
            self.census.observe(&Change::Applied(object));
        }

        /// The lines of a family, without its name.
        fn family(&self, name: &str) -> Vec<String> {
            let text = self.registry.encode().unwrap();
            let prefix = format!("muster_{name}{{");
            let lines = text.lines().filter_map(|line| line.strip_prefix(&prefix));
            let mut lines: Vec<String> = lines.map(str::to_owned).collect();
            lines.sort();
            lines
        }
    }

    #[test]
    fn what_a_team_has_and_uses_is_shown_in_base_units_until_it_is_gone() {
        let mut shown = Shown::new();
        let quota = json!({"cohort": "all", "quota": [{"flavor": "h100", "resources": [
            {"name": "gpus", "nominal": "7500m", "borrowingLimit": 2, "lendingLimit": 0},
            {"name": "vram", "nominal": "1Gi"}]}]});
        let status = json!({"limits": [{"flavor": "h100", "resource": "gpus", "nominal": "7500m", "used": "500m",
            "borrowed": "0", "available": "7"}], "weightedShare": 125});
        shown.see(team(&quota, &status));
        assert_eq!(
            shown.family("team_nominal_quota"),
            [
                "team=\"vision\",flavor=\"h100\",resource=\"gpus\"} 7.5",
                "team=\"vision\",flavor=\"h100\",resource=\"vram\"} 1073741824.0",
            ]
        );
        let gpus = |value| {
            vec![format!(
                "team=\"vision\",flavor=\"h100\",resource=\"gpus\"}} {value}"
            )]
        };
        assert_eq!(shown.family("team_borrowing_limit"), gpus("2.0"));
        assert_eq!(shown.family("team_lending_limit"), gpus("0.0"));
        assert_eq!(shown.family("team_resource_usage"), gpus("0.5"));
        assert_eq!(
            shown.family("team_weighted_share"),
            ["team=\"vision\"} 125.0"]
        );

        let follows =
            json!({"quota": [{"flavor": "h100", "resources": [{"name": "gpus", "auto": true}]}]});
        shown.see(team(&follows, &status));
        assert_eq!(shown.family("team_nominal_quota"), gpus("7.5"));

        let narrowed =
            json!({"quota": [{"flavor": "h100", "resources": [{"name": "gpus", "nominal": 4}]}]});
        shown.see(team(&narrowed, &json!({})));
        assert_eq!(shown.family("team_nominal_quota"), gpus("4.0"));
        for gone in [
            "team_borrowing_limit",
            "team_lending_limit",
            "team_resource_usage",
            "team_weighted_share",
        ] {
            assert_eq!(shown.family(gone), [""; 0], "{gone}");
        }
        shown
            .census
            .observe(&Change::ListedKeys(Kind::Team, BTreeSet::new()));
        assert_eq!(shown.family("team_nominal_quota"), [""; 0]);
    }

    #[test]
    fn waiting_gangs_are_counted_by_the_reason_that_they_have_now() {
        let mut shown = Shown::new();
        shown.see(gang("a", &waiting("WaitingForQuota")));
        shown.see(gang("a", &waiting("WaitingForQuota")));
        shown.see(gang("b", &waiting("WaitingForQuota")));
        let line = |reason, count| format!("team=\"vision\",reason=\"{reason}\"}} {count}");
        assert_eq!(shown.family("pending_gangs"), [line("WaitingForQuota", 2)]);
        shown.see(gang("a", &waiting("WaitingForPlacement")));
        assert_eq!(
            shown.family("pending_gangs"),
            [line("WaitingForPlacement", 1), line("WaitingForQuota", 1)]
        );
        // Made again under its name, before anything was said of it.
        shown.see(gang("b", &json!({})));
        assert_eq!(
            shown.family("pending_gangs"),
            [line("WaitingForPlacement", 1)]
        );
        shown.see(gang("a", &admitted(false)));
        assert_eq!(shown.family("pending_gangs"), [""; 0]);
        shown.see(gang("c", &waiting("WaitingForQuota")));
        let c = gang("c", &waiting("WaitingForQuota"));
        shown.census.observe(&Change::Deleted(c.key()));
        assert_eq!(shown.family("pending_gangs"), [""; 0]);
    }

    #[test]
    fn an_eviction_counts_once_by_its_cause() {
        let evicted = |attempts: &[(i64, &str)]| {
            let evictions = attempts.iter().map(|(attempt, reason)| {
                json!({"attempt": attempt, "reason": reason, "message": "", "at": "2027-01-01T00:00:00Z"})
            });
            let evictions: Vec<Value> = evictions.collect();
            json!({"team": "vision", "phase": "Evicting", "evictions": evictions})
        };
        let mut shown = Shown::new();
        shown.see(gang("a", &admitted(false)));
        shown.see(gang("a", &evicted(&[(1, "Preempted")])));
        shown.see(gang("a", &evicted(&[(1, "Preempted")])));
        shown.see(gang(
            "a",
            &evicted(&[(1, "Preempted"), (2, "StartTimeout")]),
        ));
        // Before this leader looked.
        shown.see(gang("earlier", &evicted(&[(1, "Preempted")])));
        let line = |reason| format!("team=\"vision\",reason=\"{reason}\"}} 1");
        let expected = [line("Preempted"), line("StartTimeout")];
        assert_eq!(shown.family("evicted_gangs_total"), expected);
    }

    #[test]
    fn an_admission_counts_once_with_the_time_that_the_gang_waited() {
        let mut shown = Shown::new();
        shown.see(gang("a", &waiting("WaitingForQuota")));
        shown.see(gang("a", &admitted(false)));
        shown.see(gang("a", &admitted(false)));
        // It ran already.
        shown.see(gang(
            "found",
            &json!({"team": "vision", "phase": "Assembling"}),
        ));
        shown.see(gang("found", &admitted(true)));
        // It was admitted before this leader looked: a first list comes object by object.
        shown.see(gang("earlier", &admitted(false)));
        assert_eq!(shown.family("admitted_gangs_total"), ["team=\"vision\"} 1"]);
        assert_eq!(
            shown.family("admission_wait_time_seconds_sum"),
            ["team=\"vision\"} 90.0"]
        );
        assert_eq!(
            shown.family("admission_wait_time_seconds_count"),
            ["team=\"vision\"} 1"]
        );

        // Again, after an attempt that ran: it counts, but nobody knows for how long it waited since.
        let mut again = admitted(false);
        again["attempt"] = json!(2);
        shown.see(gang("a", &waiting("WaitingForQuota")));
        shown.see(gang("a", &again));
        assert_eq!(shown.family("admitted_gangs_total"), ["team=\"vision\"} 2"]);
        assert_eq!(
            shown.family("admission_wait_time_seconds_count"),
            ["team=\"vision\"} 1"]
        );
    }
}
