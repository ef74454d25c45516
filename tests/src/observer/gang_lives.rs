//! S5: an accepted gang exists until it is finished, deleted, or failed with a stated reason. A gang whose object is
//! deleted while its pods live is made again.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use kube::ResourceExt;
use muster_api::{Gang, GangPhase};

use super::{
    findings::{Findings, Invariant::S5},
    overdue::Overdue,
    world::{self, World},
};
use crate::kubernetes::is_terminal;

/// What S5 has to remember.
#[derive(Debug)]
pub(super) struct GangLives {
    /// UIDs of gangs that were admitted and whose end was not seen.
    admitted: BTreeSet<String>,
    /// Gangs whose objects vanished before they ended, by `namespace/name`.
    lost: BTreeMap<String, Gang>,
    overdue: Overdue,
}

impl GangLives {
    /// A gang that is deleted has to be back within this bound.
    pub(super) fn new(bound: Duration) -> Self {
        Self {
            admitted: BTreeSet::new(),
            lost: BTreeMap::new(),
            overdue: Overdue::after(bound),
        }
    }

    /// A Gang was written, or is gone.
    pub(super) fn write(&mut self, gang: &Gang, gone: bool, findings: &mut Findings) {
        let uid = world::uid(gang);
        let status = gang.status.as_ref();
        let is_admitted = status.is_some_and(|status| status.admission.is_some());
        if !gone && is_admitted && self.admitted.insert(uid.clone()) {
            findings.counts.gangs += 1;
        }
        let phase = status.map(|status| status.phase).unwrap_or_default();
        let has_ended = matches!(phase, GangPhase::Finished | GangPhase::Failed);
        if (has_ended || gone) && self.admitted.remove(&uid) {
            findings.check(S5, None);
        }
        if phase == GangPhase::Failed {
            let conditions = status.map(|status| status.conditions.as_slice());
            let mut conditions = conditions.unwrap_or_default().iter();
            let is_silent = conditions.all(|condition| condition.message.is_empty());
            let silent = || format!("gang {} is Failed without a stated reason", gang.name_any());
            findings.check(S5, is_silent.then(silent));
        }
        let namespace = gang.namespace().unwrap_or_default();
        let key = format!("{namespace}/{}", gang.name_any());
        if !gone {
            self.lost.remove(&key);
        } else if !has_ended {
            self.lost.insert(key, gang.clone());
        }
    }

    /// Judges the gangs that vanished.
    pub(super) fn judge(&mut self, world: &World, now_millis: u64, findings: &mut Findings) {
        self.lost.retain(|_, gang| {
            let mut pods = world.pods_of(gang);
            pods.any(|pod| pod.metadata.deletion_timestamp.is_none() && !is_terminal(pod))
        });
        let lost = self.lost.keys();
        let lost: BTreeSet<String> = lost
            .map(|key| format!("gang {key} vanished while its pods live"))
            .collect();
        findings.checked(S5, lost.len());
        for late in self.overdue.note(lost, now_millis) {
            findings.violation(S5, &late);
        }
    }

    /// Time passed that does not count.
    pub(super) fn shift(&mut self, by_millis: u64) {
        self.overdue.shift(by_millis);
    }
}
