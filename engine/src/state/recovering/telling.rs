//! What is told of those that recover: to themselves, and to those that wait because of them.

use super::keep::has_place;
use crate::{
    decision::{Blocker, KeptForRecovery, Why},
    names::GangUid,
    state::State,
};

impl State {
    /// What is kept for a gang that recovers.
    pub fn recovery_of(&self, gang: &GangUid) -> Option<KeptForRecovery> {
        let keep = self.keeps.by_gang.get(gang)?;
        let with_place = keep.kept.values().filter(|hold| has_place(hold)).count();
        Some(KeptForRecovery {
            attempt: keep.told.attempt,
            until: keep.until,
            pods: keep.parts.len(),
            charged: keep.kept.len() + keep.held.len(),
            placed: with_place + keep.held.len(),
        })
    }

    /// Whether nothing is kept any more for a gang that was told to recover from an attempt, since others have it or its time is over.
    pub fn is_recovery_over(&self, gang: &GangUid, attempt: i64) -> bool {
        self.keeps.over.get(gang) == Some(&attempt)
    }

    /// That something is kept for a gang that waits, and what it lacks.
    pub(in crate::state) fn why_recovering(&self, gang: &GangUid) -> Option<Why> {
        let waiting = self.waiting.get(self.waiting.id(gang)?)?;
        let kept = self.recovery_of(gang)?;
        if let Some(why) = self.why_obstacle(waiting) {
            return Some(why);
        }
        let keep = self.keeps.by_gang.get(gang)?;
        if keep.judged.is_none() {
            return Some(Why::NextCommit);
        }
        Some(Why::Recovering {
            kept,
            now: self.latest.unwrap_or(kept.until),
        })
    }

    /// Says of those that stand in the way which of them recover.
    pub(in crate::state) fn name_recovering(&self, why: &mut Why) {
        let (Why::Quota { blocker, .. } | Why::Placement { blocker, .. }) = why else {
            return;
        };
        let Blocker { gangs, .. } = blocker;
        for name in gangs {
            self.cluster.note_visits(1);
            if self.keeps.has_name(name) {
                name.push_str(" (which recovers)");
            }
        }
    }
}
