//! What gangs wait for, and what became of them.
//!
//! An admission or an eviction counts when it is seen to happen: a gang that shows it when it is seen first had it before anybody
//! looked, so a new leader counts nothing again.

use std::collections::{BTreeMap, BTreeSet};

use muster_api::{
    Gang, GangStatus, Reason, conditions,
    gang::{PreemptionNotice, PreemptionRight},
};
use muster_cluster::{
    formed::has_ended,
    object::{Kind, ObjectKey},
    table::Table,
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

use super::teams::TeamLabel;

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, EncodeLabelSet)]
struct ReasonLabels {
    team: String,
    reason: String,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, EncodeLabelSet)]
struct PreemptionLabels {
    preempting_team: String,
    reason: String,
}

#[derive(Clone, Debug)]
pub(super) struct GangFamilies {
    pending: Family<ReasonLabels, Gauge>,
    admitted: Family<TeamLabel, Counter>,
    evicted: Family<ReasonLabels, Counter>,
    preempted: Family<PreemptionLabels, Counter>,
    admission_wait_seconds: Family<TeamLabel, Histogram>,
}

#[derive(Debug)]
pub(super) struct GangCensus {
    families: GangFamilies,
    gangs: Table<ObjectKey, SeenGang>,
    pending: BTreeMap<ReasonLabels, i64>,
    evicted: BTreeSet<ReasonLabels>,
    preempted: BTreeSet<PreemptionLabels>,
}

/// What was seen of a gang last.
#[derive(Debug, Default)]
struct SeenGang {
    uid: String,
    team: String,
    waits: Option<ReasonLabels>,
    is_admitted: bool,
    /// The last attempt that was evicted.
    evicted: Option<i64>,
    /// The last notice, though it may be taken back by now.
    notice: Option<SeenNotice>,
}

/// To whom an attempt was to give way.
#[derive(Clone, Debug)]
struct SeenNotice {
    attempt: i64,
    preemptor_uid: String,
    /// The Team of that gang, which may be gone when the attempt is evicted.
    preempting_team: String,
    right: PreemptionRight,
}

impl GangFamilies {
    pub(super) fn register(metrics: &Metrics) -> Self {
        let families = Self {
            pending: Family::default(),
            admitted: Family::default(),
            evicted: Family::default(),
            preempted: Family::default(),
            // 1 s to 3 days.
            admission_wait_seconds: Family::new_with_constructor(|| {
                Histogram::new(exponential_buckets(1.0, 2.0, 19))
            }),
        };
        metrics.register(|registry| {
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
                "preempted_gangs",
                "Evictions for another gang that this replica has seen, by the Team of that gang and its right",
                families.preempted.clone(),
            );
            registry.register(
                "admission_wait_time_seconds",
                "Time from a gang's place in the queue to its first admission, by Team",
                families.admission_wait_seconds.clone(),
            );
        });
        families
    }
}

impl GangCensus {
    pub(super) fn new(families: GangFamilies) -> Self {
        Self {
            families,
            gangs: Table::default(),
            pending: BTreeMap::new(),
            evicted: BTreeSet::new(),
            preempted: BTreeSet::new(),
        }
    }

    pub(super) fn known(&self) -> Vec<&ObjectKey> {
        self.gangs.keys_where(|_| true)
    }

    pub(super) fn forget(&mut self, key: &ObjectKey) {
        if let Some(waits) = self.gangs.remove(key).and_then(|seen| seen.waits) {
            self.count_pending(&waits, -1);
        }
    }

    /// Takes out what was counted of a Team that is gone. Another one of that name begins at 0.
    pub(super) fn forget_team(&mut self, team: &str) {
        let label = TeamLabel {
            team: team.to_owned(),
        };
        self.families.admitted.remove(&label);
        self.families.admission_wait_seconds.remove(&label);
        for of in self.evicted.extract_if(.., |of| of.team == team) {
            self.families.evicted.remove(&of);
        }
        let preempted = &mut self.preempted;
        for of in preempted.extract_if(.., |of| of.preempting_team == team) {
            self.families.preempted.remove(&of);
        }
    }

    pub(super) fn count(&mut self, gang: &Gang) {
        let none = GangStatus::default();
        let status = gang.status.as_ref().unwrap_or(&none);
        let team = status.team.clone().unwrap_or_default();
        let waits = status.queue.as_ref().filter(|_| !has_ended(gang));
        let waits = waits.map(|wait| ReasonLabels {
            team: team.clone(),
            reason: wait.reason.to_string(),
        });
        if let Some(waits) = &waits {
            self.count_pending(waits, 1);
        }
        let key = ObjectKey::of(Kind::Gang, &gang.metadata);
        let uid = gang.metadata.uid.clone().unwrap_or_default();
        let before = self.gangs.remove(&key);
        let noticed_before = before.as_ref().and_then(|seen| seen.notice.clone());
        let seen = SeenGang {
            uid,
            team,
            waits,
            is_admitted: status.admission.is_some(),
            evicted: status.evictions.last().map(|eviction| eviction.attempt),
            notice: match &status.preemption {
                Some(notice) => Some(self.seen_notice(notice, noticed_before.as_ref())),
                None => noticed_before,
            },
        };
        if let Some(before) = &before {
            self.count_evictions(status, before, &seen);
            self.count_admission(gang, status, before, &seen);
        }
        self.gangs.insert(key, seen);
        if let Some(waits) = before.and_then(|seen| seen.waits) {
            self.count_pending(&waits, -1);
        }
    }

    /// The notice, with the Team of whom it is for: as that gang says itself, or said while it was there.
    fn seen_notice(&self, notice: &PreemptionNotice, before: Option<&SeenNotice>) -> SeenNotice {
        let (namespace, name) = notice.preemptor.split_once('/').unwrap_or_default();
        let key = ObjectKey {
            kind: Kind::Gang,
            namespace: namespace.to_owned(),
            name: name.to_owned(),
        };
        let preemptor = self
            .gangs
            .get(&key)
            .filter(|it| it.uid == notice.preemptor_uid);
        let before = before.filter(|it| it.preemptor_uid == notice.preemptor_uid);
        let team = preemptor.map(|it| &it.team);
        let team = team.or_else(|| before.map(|it| &it.preempting_team));
        SeenNotice {
            attempt: notice.attempt,
            preemptor_uid: notice.preemptor_uid.clone(),
            preempting_team: team.cloned().unwrap_or_default(),
            right: notice.right,
        }
    }

    /// Counts each attempt once: its eviction is committed when the Gang names it, and is named in every status after that.
    fn count_evictions(&mut self, status: &GangStatus, before: &SeenGang, seen: &SeenGang) {
        let evictions = status.evictions.iter();
        let new = evictions.filter(|it| before.evicted.is_none_or(|before| before < it.attempt));
        for eviction in new {
            let of = ReasonLabels {
                team: seen.team.clone(),
                reason: eviction.reason.to_string(),
            };
            self.families.evicted.get_or_create(&of).inc();
            self.evicted.insert(of);
            let mut notices = [&seen.notice, &before.notice].into_iter().flatten();
            let notice = notices.find(|notice| notice.attempt == eviction.attempt);
            if let (Reason::Preempted, Some(notice)) = (eviction.reason, notice) {
                let of = PreemptionLabels {
                    preempting_team: notice.preempting_team.clone(),
                    reason: format!("{:?}", notice.right),
                };
                self.families.preempted.get_or_create(&of).inc();
                self.preempted.insert(of);
            }
        }
    }

    fn count_admission(
        &self,
        gang: &Gang,
        status: &GangStatus,
        before: &SeenGang,
        seen: &SeenGang,
    ) {
        // An adopted gang ran before it was admitted: it did not wait.
        let is_adopted = status.admission.as_ref().is_some_and(|it| it.adopted);
        if before.is_admitted || !seen.is_admitted || is_adopted {
            return;
        }
        let label = TeamLabel {
            team: seen.team.clone(),
        };
        self.families.admitted.get_or_create(&label).inc();
        // It keeps its age, so of a later admission nobody knows how long it waited for that.
        let is_first = status.attempt <= gang.spec.first_attempt.max(1);
        if let Some(waited) = waited_seconds(status).filter(|_| is_first) {
            let waits = self.families.admission_wait_seconds.get_or_create(&label);
            waits.observe(waited);
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
