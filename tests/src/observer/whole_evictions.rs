//! S4 of attempts that are evicted: no gang is partly running for long. Once the Ledger evicts an attempt, and any pod of it has ended or is told
//! to, all that were let go for it are within a bound.
//!
//! A pod that is told to end has its deletion timestamp. How long it takes to go from there on is its grace period, its kubelet and its node, and
//! not judged here; nor are pods that still have their gate, or were let go for another attempt since.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use kube::ResourceExt;
use muster_api::{IntentKind, Ledger, keys};

use super::{
    findings::{Findings, Invariant::S4},
    overdue::Overdue,
    world::{self, World},
};
use crate::kubernetes::is_terminal;

/// What S4 has to remember of evictions.
#[derive(Debug)]
pub(super) struct WholeEvictions {
    /// UIDs of the pods of each attempt that is evicted and of which some go on, by the Gang's UID.
    open: BTreeMap<(String, i64), Vec<String>>,
    overdue: Overdue,
}

impl WholeEvictions {
    /// All pods of an attempt have to be told to end within this bound after the first.
    pub(super) fn new(bound: Duration) -> Self {
        Self {
            open: BTreeMap::new(),
            overdue: Overdue::after(bound),
        }
    }

    /// The Ledger was written; the world is the one before. It names an Evict before the Gang gives up its admission, which says which pods the
    /// attempt has.
    pub(super) fn ledger(&mut self, world: &World, ledger: &Ledger) {
        let intents = ledger.spec.intents.iter();
        for intent in intents.filter(|intent| intent.kind == IntentKind::Evict) {
            let gang = world.gangs.get(&intent.gang_uid);
            let status = gang.and_then(|gang| gang.status.as_ref());
            let status = status.filter(|status| status.attempt == intent.attempt);
            let Some(admission) = status.and_then(|status| status.admission.as_ref()) else {
                continue;
            };
            let pods = admission.pods.iter().map(|pod| pod.uid.clone());
            let attempt = (intent.gang_uid.clone(), intent.attempt);
            self.open.insert(attempt, pods.collect());
        }
    }

    /// Judges the attempts that are evicted. Pods of a Gang that is gone are S5's.
    pub(super) fn judge(&mut self, world: &World, now_millis: u64, findings: &mut Findings) {
        let mut partly = BTreeSet::new();
        self.open.retain(|(gang, attempt), pods| {
            let Some(gang) = world.gangs.get(gang) else {
                return false;
            };
            let going_on = pods.iter().filter(|pod| goes_on(world, pod, *attempt));
            let going_on = going_on.count();
            if going_on == 0 {
                findings.check(S4, None);
                return false;
            }
            if going_on < pods.len() {
                partly.insert(format!(
                    "attempt {attempt} of gang {}/{} is evicted, and only some of its pods end",
                    gang.namespace().unwrap_or_default(),
                    gang.name_any()
                ));
            }
            true
        });
        for late in self.overdue.note(partly, now_millis) {
            findings.violation(S4, &late);
        }
    }

    /// Time passed that does not count.
    pub(super) fn shift(&mut self, by_millis: u64) {
        self.overdue.shift(by_millis);
    }
}

/// Whether a pod was let go for this attempt, has not ended and is not told to.
fn goes_on(world: &World, pod_uid: &str, attempt: i64) -> bool {
    world.pods.get(pod_uid).is_some_and(|pod| {
        let of = pod.annotations().get(keys::ATTEMPT);
        let of: Option<i64> = of.and_then(|of| of.parse().ok());
        of == Some(attempt)
            && pod.metadata.deletion_timestamp.is_none()
            && !is_terminal(pod)
            && !world::is_gated(pod)
    })
}
