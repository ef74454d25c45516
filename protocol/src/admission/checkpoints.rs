//! Whether a gang that is to give way wrote a checkpoint since it was told.
//!
//! **No clock decides that.** A checkpoint is dated by the clock of whatever machine the rank runs on, a notice by that of a leader, and the two may be
//! hours apart: with one that is ahead any old checkpoint would be newer than the notice, and the gang would go at once; with one that is behind none
//! ever would be. So a checkpoint counts if its pod said something else before. Notices are told by an annotation of each pod, and a checkpoint by
//! another one of the same object, whose versions have one order, whoever watches them: what a pod said when it was first seen to be told was written
//! before this leader saw that, and what it says otherwise later on was written after it was told.
//!
//! **Twice, late, never.** The same said again is no other checkpoint. One that is seen together with the notice does not count, since it may be older; nor
//! does any on a pod that the API server does not let be told. **A new leader** does not know which was first, and takes what it finds for older. In all of
//! these the gang has the rest of its notice, which begins anew with each leader: it may go later than it might, never before it was to.

use std::collections::BTreeMap;

use jiff::Timestamp;
use muster_api::{gang::PreemptionNotice, keys};
use muster_cluster::{index::Index, pod, table::Table};

use crate::{Machine, admission::plan::Plan};

/// What pods said when they were first seen to be told of a notice.
#[derive(Debug)]
struct Told {
    notice: (i64, Timestamp),
    /// As pods are told of it.
    preempt_at: String,
    /// By UID of the pod.
    before: BTreeMap<String, Option<String>>,
}

/// What pods said of checkpoints before they were told to go, by UID of their Gang; of Gangs with a notice alone.
#[derive(Debug, Default)]
pub(crate) struct Checkpoints {
    told: Table<String, Told>,
}

impl Checkpoints {
    /// Notes which pods of the attempt are told of its notice by now.
    fn note(&mut self, index: &Index, plan: &Plan, notice: &PreemptionNotice) {
        let of = (notice.attempt, notice.noticed_at.0);
        let preempt_at = notice.preempt_at.0.to_string();
        let known = self.told.remove(&plan.gang_uid);
        let known = known.filter(|told| told.notice == of && told.preempt_at == preempt_at);
        let mut told = known.unwrap_or(Told {
            notice: of,
            preempt_at,
            before: BTreeMap::new(),
        });
        for rank in &plan.ranks {
            let Some(pod) = index.pod_by_uid(&rank.pod) else {
                continue;
            };
            let is_told = pod::annotation(pod, keys::PREEMPT_AT) == Some(told.preempt_at.as_str());
            if is_told && !told.before.contains_key(&rank.pod) {
                let said = pod::annotation(pod, keys::CHECKPOINTED_AT).map(str::to_owned);
                told.before.insert(rank.pod.clone(), said);
            }
        }
        self.told.insert(plan.gang_uid.clone(), told);
    }

    /// The checkpoint that a pod of the attempt wrote since it was told of its notice, as the pod dates it; of several the one with the latest date.
    pub(crate) fn since_told(&self, index: &Index, plan: &Plan) -> Option<Timestamp> {
        let told = self.told.get(&plan.gang_uid)?;
        let written = plan.ranks.iter().filter_map(|rank| {
            let before = told.before.get(&rank.pod)?;
            let pod = index.pod_by_uid(&rank.pod)?;
            let said = pod::annotation(pod, keys::CHECKPOINTED_AT)?;
            let is_other = before.as_deref() != Some(said);
            said.parse::<Timestamp>().ok().filter(|_| is_other)
        });
        written.max()
    }

    /// A Gang has no notice, or is gone.
    pub(crate) fn forget(&mut self, gang_uid: &str) {
        self.told.remove(gang_uid);
    }
}

impl Machine {
    /// Notes which pods of a Gang are told of the notice that it carries.
    pub(crate) fn note_checkpoints(
        &mut self,
        gang_uid: &str,
        plan: Option<&Plan>,
        notice: Option<&PreemptionNotice>,
    ) {
        match plan.zip(notice) {
            Some((plan, notice)) => self.checkpoints.note(&self.index, plan, notice),
            None => self.checkpoints.forget(gang_uid),
        }
    }
}
