//! What a controller shows of itself.

mod quota;

use std::{collections::BTreeSet, sync::atomic::AtomicU64, time::Duration};

use muster_cluster::{
    object::{Change, Kind, Object, ObjectKey},
    table::Table,
};
use muster_protocol::{ApiRequest, BreakerState, Outcome, lanes::Lane};
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

use crate::{extender_probe::ExtenderState, outcome, perform};
use quota::{QuotaCensus, QuotaFamilies};

/// The controller's metrics.
#[derive(Clone, Debug)]
pub struct ControllerMetrics {
    leading: Gauge,
    epoch: Gauge,
    gangs: Family<GangLabels, Gauge>,
    intents: Gauge,
    effects: Family<EffectLabels, Counter>,
    effects_waiting: Family<LaneLabel, Gauge>,
    effects_given_up: Family<LaneLabel, Counter>,
    effect_wait_seconds: Family<LaneLabel, Histogram>,
    stand_ins: Gauge,
    decide_seconds: Histogram,
    without_decisions_seconds: Gauge<f64, AtomicU64>,
    takeover_seconds: Family<PhaseLabel, Gauge<f64, AtomicU64>>,
    ungating_withheld: Gauge,
    ungating_careful: Gauge,
    stages_held: Gauge,
    breaker_open: Gauge,
    drained_nodes: Gauge,
    drained_nodes_limit: Gauge,
    quota: QuotaFamilies,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, EncodeLabelSet)]
struct GangLabels {
    team: String,
    phase: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct EffectLabels {
    kind: &'static str,
    outcome: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct LaneLabel {
    lane: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct PhaseLabel {
    phase: &'static str,
}

/// What a takeover spends its time with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TakeoverPhase {
    /// From the lease to an epoch of its own.
    RaiseEpoch,
    /// From there until everything is read.
    ReadAll,
    /// From there until it decides.
    FirstDecision,
}

impl TakeoverPhase {
    fn name(self) -> &'static str {
        match self {
            Self::RaiseEpoch => "raise-epoch",
            Self::ReadAll => "read-all",
            Self::FirstDecision => "first-decision",
        }
    }
}

impl ControllerMetrics {
    /// Registers the metrics; once per program.
    pub fn register(metrics: &Metrics) -> Self {
        let all = Self {
            leading: Gauge::default(),
            epoch: Gauge::default(),
            gangs: Family::default(),
            intents: Gauge::default(),
            effects: Family::default(),
            effects_waiting: Family::default(),
            effects_given_up: Family::default(),
            // 1 ms to 33 s.
            effect_wait_seconds: Family::new_with_constructor(|| {
                Histogram::new(exponential_buckets(0.001, 2.0, 16))
            }),
            stand_ins: Gauge::default(),
            without_decisions_seconds: Gauge::default(),
            takeover_seconds: Family::default(),
            // 0.1 ms to 6.5 s.
            decide_seconds: Histogram::new(exponential_buckets(0.0001, 2.0, 17)),
            ungating_withheld: Gauge::default(),
            ungating_careful: Gauge::default(),
            stages_held: Gauge::default(),
            breaker_open: Gauge::default(),
            drained_nodes: Gauge::default(),
            drained_nodes_limit: Gauge::default(),
            quota: QuotaFamilies::register(metrics),
        };
        metrics.register(|registry| {
            registry.register("leading", "1 if this replica leads", all.leading.clone());
            registry.register(
                "leader_epoch",
                "Epoch of this leader; 0 if it does not lead",
                all.epoch.clone(),
            );
            registry.register(
                "gangs",
                "Gangs by Team and phase, seen by the leader",
                all.gangs.clone(),
            );
            registry.register(
                "ledger_intents",
                "Intents that are not fully carried out",
                all.intents.clone(),
            );
            registry.register(
                "effects",
                "Effects of the protocol by kind and outcome",
                all.effects.clone(),
            );
            registry.register(
                "effects_waiting",
                "Effects that wait for their turn, by lane",
                all.effects_waiting.clone(),
            );
            registry.register(
                "effects_given_up",
                "Effects given up because too many waited in their lane; all but Events are written again later",
                all.effects_given_up.clone(),
            );
            registry.register(
                "effect_wait_seconds",
                "For how long an effect waited before it was sent, by lane",
                all.effect_wait_seconds.clone(),
            );
            registry.register(
                "stand_ins",
                "Objects that cannot be decoded and hold something back; the log says which and what",
                all.stand_ins.clone(),
            );
            registry.register(
                "without_decisions_seconds",
                "For how long this leader has decided nothing, because it is still taking over; 0: it decides",
                all.without_decisions_seconds.clone(),
            );
            registry.register(
                "takeover_seconds",
                "How long the takeover of this leader took, by phase",
                all.takeover_seconds.clone(),
            );
            registry.register(
                "decide_seconds",
                "Time of one round: take in what changed, decide, and say what is due",
                all.decide_seconds.clone(),
            );
            registry.register(
                "ungating_withheld",
                "1 while no pod is released because no extender replica is ready",
                all.ungating_withheld.clone(),
            );
            registry.register(
                "ungating_careful",
                "1 while few pods are released at a time because the extender failed or was slow within the last 30 s",
                all.ungating_careful.clone(),
            );
            registry.register(
                "stages_held",
                "How often an attempt seemed to go back to a stage that it had passed, in this leadership; more than 0 is a \
                 fault of the controller",
                all.stages_held.clone(),
            );
            registry.register(
                "breaker_open",
                "1 while nothing is evicted for faults and silent nodes, and nothing reset, because there were too many, until a person \
                 closes the circuit breaker",
                all.breaker_open.clone(),
            );
            registry.register(
                "drained_nodes",
                "Nodes for whose faults or silence gangs were evicted, or that might reset GPUs, within the window of the circuit breaker",
                all.drained_nodes.clone(),
            );
            registry.register(
                "drained_nodes_limit",
                "How many such nodes there may be",
                all.drained_nodes_limit.clone(),
            );
        });
        // An increase is only seen of a series that was there before.
        for lane in Lane::ALL {
            drop(
                all.effects_given_up
                    .get_or_create(&LaneLabel { lane: lane.name() }),
            );
        }
        all
    }

    pub(crate) fn set_leading(&self, leading: bool) {
        self.leading.set(i64::from(leading));
    }

    pub(crate) fn set_stages_held(&self, so_often: u64) {
        let so_often = i64::try_from(so_often).unwrap_or(i64::MAX);
        if self.stages_held.set(so_often) < so_often {
            tracing::error!(
                times = so_often,
                "an attempt of a gang seemed to go back to a stage that it had passed, and was kept in the later one: this is a \
                 fault of the controller, please report it"
            );
        }
    }

    pub(crate) fn set_breaker(&self, breaker: BreakerState) {
        let count = |nodes: usize| i64::try_from(nodes).unwrap_or(i64::MAX);
        self.drained_nodes.set(count(breaker.evacuated_nodes));
        self.drained_nodes_limit.set(count(breaker.most_nodes));
        let is_open = i64::from(breaker.is_open);
        if self.breaker_open.set(is_open) < is_open {
            tracing::warn!(
                "the circuit breaker is open: nothing is evicted for faults and silent nodes any more, and no GPU reset; look whether \
                 they are real, then run `muster-controller reset-breaker`"
            );
        }
    }

    pub(crate) fn set_epoch(&self, epoch: Option<i64>) {
        self.epoch.set(epoch.unwrap_or(0));
    }

    pub(crate) fn set_extender(&self, extender: ExtenderState) {
        let gauge = |state| i64::from(extender == state);
        self.ungating_withheld.set(gauge(ExtenderState::Unready));
        self.ungating_careful.set(gauge(ExtenderState::Unreliable));
    }

    pub(crate) fn set_waiting(&self, lane: Lane, effects: usize) {
        self.effects_waiting
            .get_or_create(&LaneLabel { lane: lane.name() })
            .set(i64::try_from(effects).unwrap_or(i64::MAX));
    }

    pub(crate) fn given_up(&self, lane: Lane) {
        self.effects_given_up
            .get_or_create(&LaneLabel { lane: lane.name() })
            .inc();
    }

    pub(crate) fn sent(&self, lane: Lane, waited: Duration) {
        self.effect_wait_seconds
            .get_or_create(&LaneLabel { lane: lane.name() })
            .observe(waited.as_secs_f64());
    }

    pub(crate) fn set_stand_ins(&self, objects: usize) {
        self.stand_ins
            .set(i64::try_from(objects).unwrap_or(i64::MAX));
    }

    pub(crate) fn set_without_decisions(&self, so_long: Duration) {
        self.without_decisions_seconds.set(so_long.as_secs_f64());
    }

    pub(crate) fn set_takeover(&self, phase: TakeoverPhase, took: Duration) {
        let label = PhaseLabel {
            phase: phase.name(),
        };
        self.takeover_seconds
            .get_or_create(&label)
            .set(took.as_secs_f64());
    }

    pub(crate) fn decided(&self, took: Duration) {
        self.decide_seconds.observe(took.as_secs_f64());
    }

    pub(crate) fn settled(&self, write: &ApiRequest, outcome: &Outcome) {
        let labels = EffectLabels {
            kind: perform::name(write),
            outcome: outcome::label(outcome),
        };
        self.effects.get_or_create(&labels).inc();
    }
}

/// Counts Gangs and intents from what is observed.
#[derive(Debug)]
pub(crate) struct Census {
    metrics: ControllerMetrics,
    gangs: Table<ObjectKey, GangLabels>,
    shown: BTreeSet<GangLabels>,
    quota: QuotaCensus,
}

impl Census {
    pub(crate) fn new(metrics: ControllerMetrics) -> Self {
        Self {
            quota: QuotaCensus::new(metrics.quota.clone()),
            metrics,
            gangs: Table::default(),
            shown: BTreeSet::new(),
        }
    }

    pub(crate) fn observe(&mut self, change: &Change) {
        self.quota.observe(change);
        match change {
            Change::Applied(object) => self.count(object),
            Change::Deleted(key) => {
                if let Some(labels) = self.gangs.remove(key) {
                    self.metrics.gangs.get_or_create(&labels).dec();
                }
            }
            Change::ListedKeys(Kind::Gang, keys) => {
                let gone = self.gangs.keys_where(|key| !keys.contains(key));
                let gone: Vec<ObjectKey> = gone.into_iter().cloned().collect();
                for labels in gone.iter().filter_map(|key| self.gangs.remove(key)) {
                    self.metrics.gangs.get_or_create(&labels).dec();
                }
            }
            Change::ListedKeys(..) => {}
            Change::Listed(kind, objects) => {
                if *kind == Kind::Gang {
                    self.gangs.clear();
                    // A gauge that is left out shows its last value for ever.
                    for labels in &self.shown {
                        self.metrics.gangs.get_or_create(labels).set(0);
                    }
                }
                for object in objects {
                    self.count(object);
                }
            }
        }
    }

    fn count(&mut self, object: &Object) {
        match object {
            Object::Gang(gang) => {
                let status = gang.status.as_ref();
                let team = status.and_then(|status| status.team.clone());
                let phase = status.map(|status| status.phase).unwrap_or_default();
                let labels = GangLabels {
                    team: team.unwrap_or_default(),
                    phase: format!("{phase:?}"),
                };
                let key = object.key();
                if self.gangs.get(&key) == Some(&labels) {
                    return;
                }
                self.metrics.gangs.get_or_create(&labels).inc();
                self.shown.insert(labels.clone());
                if let Some(before) = self.gangs.insert(key, labels) {
                    self.metrics.gangs.get_or_create(&before).dec();
                }
            }
            Object::Ledger(ledger) => {
                let intents = i64::try_from(ledger.spec.intents.len()).unwrap_or(i64::MAX);
                self.metrics.intents.set(intents);
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use muster_api::{Gang, GangPhase, GangSpec, GangStatus, Ledger, LedgerSpec};

    use super::*;

    fn gang(name: &str, phase: GangPhase) -> Object {
        let mut gang = Gang::new(name, GangSpec::default());
        gang.metadata.namespace = Some("team-a".to_owned());
        gang.status = Some(GangStatus {
            team: Some("ml".to_owned()),
            phase,
            ..GangStatus::default()
        });
        Object::Gang(Arc::new(gang))
    }

    #[test]
    fn what_is_given_up_is_counted_from_nought_so_that_the_first_is_an_increase() {
        let registry = Metrics::new("test", "0");
        let metrics = ControllerMetrics::register(&registry);
        let shows = |line: &str| registry.encode().unwrap().contains(line);
        assert!(shows("muster_effects_given_up_total{lane=\"event\"} 0\n"));
        metrics.given_up(Lane::Event);
        assert!(shows("muster_effects_given_up_total{lane=\"event\"} 1\n"));
    }

    #[test]
    fn gangs_are_counted_once_however_often_they_are_told() {
        let registry = Metrics::new("test", "0");
        let mut census = Census::new(ControllerMetrics::register(&registry));
        census.observe(&Change::Listed(
            Kind::Gang,
            vec![gang("a", GangPhase::Pending), gang("b", GangPhase::Pending)],
        ));
        census.observe(&Change::Applied(gang("a", GangPhase::Running)));
        census.observe(&Change::Applied(gang("a", GangPhase::Running)));
        census.observe(&Change::Applied(Object::Ledger(Arc::new(Ledger::new(
            "cluster",
            LedgerSpec::default(),
        )))));
        let has = |line: &str| {
            let text = registry.encode().unwrap();
            assert!(text.contains(line), "{line} is missing in\n{text}");
        };
        has("muster_gangs{team=\"ml\",phase=\"Pending\"} 1");
        has("muster_gangs{team=\"ml\",phase=\"Running\"} 1");
        census.observe(&Change::Deleted(gang("a", GangPhase::Running).key()));
        has("muster_gangs{team=\"ml\",phase=\"Running\"} 0");
        census.observe(&Change::Listed(
            Kind::Gang,
            vec![gang("c", GangPhase::Admitted)],
        ));
        has("muster_gangs{team=\"ml\",phase=\"Pending\"} 0");
        has("muster_gangs{team=\"ml\",phase=\"Admitted\"} 1");
        census.observe(&Change::Applied(gang("d", GangPhase::Admitted)));
        has("muster_gangs{team=\"ml\",phase=\"Admitted\"} 2");
        let keys = [gang("d", GangPhase::Admitted).key()].into();
        census.observe(&Change::ListedKeys(Kind::Gang, keys));
        has("muster_gangs{team=\"ml\",phase=\"Admitted\"} 1");
    }
}
